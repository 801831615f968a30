"""The renderer: it makes the script of a resolved job."""

# The start of the line that divides a script: the job decides the lines above, and its kind the lines below.
SECOND_PART = "# === The same in"
