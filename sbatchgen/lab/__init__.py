"""Tools beside a job: dry runs, rehearsals, adopting, discovering, the editor and the page."""
