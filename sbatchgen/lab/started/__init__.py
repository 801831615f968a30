"""The rules about the programs that a script starts, judged by its dry run."""
