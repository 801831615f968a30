"""A reader of scripts that works like sbatch, without an sbatch on the machine: `reader.read_script`.

The folder imports only `base`, and no other library.
"""
