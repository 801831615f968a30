"""A reader of scripts that reads and refuses as sbatch does, without an sbatch: `reader.read_script`.

The folder needs only `units` of the rest of sbatchgen, and no other library.
"""
