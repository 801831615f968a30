"""What sbatch reads in a script, and why it refuses it, without an sbatch: `read` of `reader`.

Of the rest of sbatchgen it needs nothing, and it needs no other library.
"""
