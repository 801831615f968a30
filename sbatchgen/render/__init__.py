"""From a resolved job to the script."""
