"""Programs that start other programs: their kinds, their options, and the commands that they start."""
