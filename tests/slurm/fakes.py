"""Commands of Slurm that give recorded answers; without packages (-S), Python starts in a quarter of the time."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SQUEUE = """#!{python} -S
import sys
table = {table}
asked = next(word for word in sys.argv if word.startswith("--Format=")).removeprefix("--Format=")
fields = [field.partition(":") for field in asked.split(",")]
for row in table:
    row.setdefault("Command", "/tmp/sbatchgen-c0ffee-x/job.slurm")
    print("".join(row.get(name, "N/A") + end for name, _, end in fields))
"""
SACCT = """#!{python} -S
import json, sys
recorded = json.load(open({recorded}))
value = {{name: rest for name, _, rest in (word.partition("=") for word in sys.argv)}}
if recorded.get("release") == "20.11" and "SubmitLine" in value["--format"]:
    sys.exit('sacct: error: Invalid field requested: "SubmitLine"')
for row in recorded["runs"]:
    row = dict(zip(recorded["fields"], row), SubmitLine=recorded.get("submit_line", ""))
    print("".join(row.get(name, "") + value["--delimiter"] for name in value["--format"].split(",")))
"""
RECORDED = """#!{python} -S
import sys
print({answers}[" ".join(sys.argv[1:])], end="")
"""
FAILING = """#!/bin/sh
echo '{says}' >&2
exit 1
"""


def _put(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def squeue(folder: Path, table: Sequence[Mapping[str, str]]) -> None:
    """A squeue that answers with these values of its fields, whatever jobs are asked for.

    Jobs without a Command have that of the submission with the key c0ffee.
    """
    _put(folder, "squeue", SQUEUE.format(python=sys.executable, table=json.dumps(table)))


def sacct(folder: Path, recorded: Path) -> None:
    """A sacct that answers with the recorded table, whatever jobs are asked for."""
    _put(folder, "sacct", SACCT.format(python=sys.executable, recorded=json.dumps(str(recorded))))


def recorded(folder: Path, name: str, answers: Mapping[str, str]) -> None:
    """A command that gives these answers, by its arguments; it fails on others."""
    _put(folder, name, RECORDED.format(python=sys.executable, answers=json.dumps(answers)))


def failing(folder: Path, name: str, says: str) -> None:
    """A command that fails with these words."""
    _put(folder, name, FAILING.format(says=says))


def saying(folder: Path, name: str, says: str) -> None:
    """A command that says the same to everyone."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text(says)
    _put(folder, name, f"#!/bin/sh\ncat '{folder / name}.txt'\n")
