"""Variables that extend what the image of a container has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sbatchgen.jobs.render import launch
from tests.scripts import resolved, script


@pytest.mark.parametrize(
    ("value", "inside"),
    [
        ("/x y:${A}", "/x y:image"),
        ("${A}:${HOST}/z", "image:/host/z"),
        ("<${A}>", "<image>"),
        ("${HOST}", "/host"),
    ],
)
def test_a_variable_that_extends_itself_has_the_value_of_the_image(
    value: str, inside: str, tmp_path: Path
) -> None:
    of = resolved("single", "lumi", env={"A": value}, trainer="train.py", account="x")
    lines = launch.command_lines(of, (), ())
    words = " ".join(line for line in lines if line.strip().startswith("sh -c"))
    exported = [line for line in script(of).splitlines() if line.startswith("    export A=")]
    start = f"{exported[0]}; " if exported else "A=image "
    done = subprocess.run(
        ["bash", "-c", f"{start}{words} printenv A"],
        env={"HOST": "/host", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{inside}\n"
