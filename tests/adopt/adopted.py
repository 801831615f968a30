"""A script adopted, as the tests of this folder do it."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

from sbatchgen.lab.adopt.adoption import Adoption, adopt


@functools.cache  # several tests look at the same scripts
def adopted(text: str, file: str = "old.slurm") -> Adoption:
    user = {"HOME": "/home/me", "USER": "me"}
    return adopt(text, file=file, user=user, day="2026-01-31")


def ran(text: str, folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a job in a folder, with the lines of programs that it finds in place of the real ones.

    They are files: a rendered script becomes its training by exec, which starts no function.
    """
    places = folder / "programs"
    places.mkdir(exist_ok=True)
    for name, lines in programs.items():
        (places / name).write_text(f"#!/bin/bash\n{lines}\n")
        (places / name).chmod(0o755)
    return subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env={"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(folder), "PATH": f"{places}:{os.defpath}"},
        capture_output=True,
        text=True,
        check=False,
    )
