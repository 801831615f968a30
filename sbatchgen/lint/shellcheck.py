"""shellcheck's findings, where it is installed: what is wrong with a script as a program of bash.

It is asked through stdin, so that it sees the very bytes that were read. It counts columns in characters, a
tab as one (shellcheck(1), json1).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

from sbatchgen.errors import Problem
from sbatchgen.finding import Finding, Place, Severity
from sbatchgen.lint.source import Source

FILES = 10  # up to so many files it is asked unasked: each costs a process
MAX_BYTES = 128 << 10
TIMEOUT_S = 10
SHELLS = ("sh", "bash", "dash", "ksh")
PAGES = "https://www.shellcheck.net/wiki/"
# Which files `source` would read is known only where the job runs.
_EXCLUDED = "SC1090,SC1091"
# Its errors are warnings here: only what Slurm refuses, or what breaks the job for sure, fails a call.
_SEVERITIES: dict[str, Severity] = {"error": "warning", "warning": "warning"}


def findings(source: Source, program: str) -> list[Finding]:
    """What shellcheck says of a script; nothing if it is not a shell script, too large, or takes too long."""
    first = source.data.partition(b"\n")[0].decode("utf-8", "replace")
    interpreter = [word.rpartition("/")[2] for word in first[2:].split()] if first.startswith("#!") else []
    if len(source.data) > MAX_BYTES or (interpreter and not set(interpreter) & set(SHELLS)):
        return []
    said = [] if interpreter else ["--shell=bash"]
    try:
        done = subprocess.run(
            [program, "--format=json1", f"--exclude={_EXCLUDED}", *said, "-"],
            input=source.data,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return list(_read(source.file, done.stdout))
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        return []


def _read(file: str, answer: bytes) -> Iterator[Finding]:
    for comment in json.loads(answer)["comments"]:
        line, column = int(comment["line"]), int(comment["column"])
        same = comment["endLine"] == line and comment["endColumn"] > column
        place = Place(f"{file}:{line}:{column}", line, column, int(comment["endColumn"]) if same else 0)
        rule = f"SC{int(comment['code']):04}"
        severity = _SEVERITIES.get(comment["level"], "info")
        what = str(comment["message"]).rstrip(".")
        yield Finding(severity, Problem(what, place.text, f"see {PAGES}{rule}"), rule=rule, place=place)
