"""Read what sbatch reads in a script, and say why it refuses it, without an sbatch: `read` of `reader`.

Of the rest of sbatchgen it needs only `units`, and no other library.
"""
