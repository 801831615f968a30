"""A stand-in for Apptainer in tests: checks a command line of `apptainer exec` or `run`, then runs it on the host.

Called `singularity`, it is one from before Apptainer: it knows the variables of this name alone.

The image is any file; IMAGE.env beside it holds the variables that the image sets, one NAME=VALUE a line. They win
over the host's, and APPTAINERENV_NAME wins over them, as in Apptainer (its user guide, "Environment and Metadata").
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

FLAGS = ("--nv", "--rocm")
OWN = "SINGULARITY" if Path(sys.argv[0]).name == "singularity" else "APPTAINER"


def main(words: list[str]) -> None:
    if not words or (verb := words.pop(0)) not in ("exec", "run"):
        fail("only `exec` and `run` are known here")
    folder, seen = Path("/"), []
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--pwd":
            folder = Path(words.pop(0))
        elif option == "--bind":
            seen += [bound(bind) for bind in words.pop(0).split(",")]
        elif option not in FLAGS:
            fail(f"unknown flag: {option}", status=1)
    if len(words) < 2:
        fail("exec needs an image and a command", status=1)
    image, *command = words
    if not os.access(image, os.R_OK):
        fail(f"could not open image {image}")
    if not any(folder.is_relative_to(place) for place in seen):
        fail(f"failed to set working directory: chdir {folder}: no such file or directory")
    os.chdir(folder)
    os.environ.update(variables(Path(f"{image}.env")))
    os.environ["STARTED_BY"] = verb
    try:
        os.execvp(command[0], command)  # noqa: S606 that is its purpose
    except FileNotFoundError:
        fail(f'"{command[0]}": executable file not found in $PATH')


def fail(message: str, *, status: int = 255) -> NoReturn:
    """End as Apptainer does where it starts nothing."""
    print(f"FATAL:   {message}", file=sys.stderr)
    sys.exit(status)


def bound(bind: str) -> Path:
    """Where SRC[:DST[:OPTIONS]] is in the container; this stand-in can leave it only where it is."""
    source, *rest = bind.split(":")
    target = rest[0] if rest else source
    if not Path(source).is_absolute() or not Path(source).exists():
        fail(f"mount source {source} doesn't exist")
    if target != source or rest[1:] not in ([], ["ro"], ["rw"]):
        fail(f"no such mount here: {bind}")
    return Path(target)


def variables(file: Path) -> dict[str, str]:
    """What the image sets, and over it what the caller sets for the container."""
    lines = file.read_text().splitlines() if file.exists() else []
    own = {
        name.removeprefix(f"{OWN}ENV_"): evaluated(value)
        for name, value in os.environ.items()
        if name.startswith(f"{OWN}ENV_")
    }
    return dict(line.split("=", 1) for line in lines) | own


def evaluated(value: str) -> str:
    """A value as the real one gives it to the container: read as shell text, unless APPTAINER_NO_EVAL is set."""
    if os.environ.get(f"{OWN}_NO_EVAL"):
        return value
    return subprocess.run(
        ["sh", "-c", f'printf %s "{value}"'], capture_output=True, text=True, check=False
    ).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
