"""The tools around a job: dry runs, rehearsals, adoption, discovery, the editor and the page."""
