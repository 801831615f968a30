"""From a resolved job to the script."""

# Begins the line between what a job decides and what is the same in every job of its kind.
SECOND_PART = "# === The same in"
