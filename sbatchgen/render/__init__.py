"""From a plan to the script."""
