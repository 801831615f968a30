"""A stand-in for Apptainer in tests: checks a command line of `apptainer exec`, then runs it on the host.

The image is any file; IMAGE.env beside it holds the variables that the image sets, one NAME=VALUE a line. They win
over the host's, and APPTAINERENV_NAME wins over them, as in Apptainer (its user guide, "Environment and Metadata").
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FLAGS = ("--nv", "--rocm")


def main(words: list[str]) -> None:
    if not words or words.pop(0) != "exec":
        sys.exit("FATAL: only `exec` is known here")
    folder, seen = Path("/"), []
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--pwd":
            folder = Path(words.pop(0))
        elif option == "--bind":
            seen += [bound(bind) for bind in words.pop(0).split(",")]
        elif option not in FLAGS:
            sys.exit(f"FATAL: unknown flag: {option}")
    if len(words) < 2:
        sys.exit("FATAL: exec needs an image and a command")
    image, *command = words
    if not os.access(image, os.R_OK):
        sys.exit(f"FATAL: could not open image {image}")
    if not any(folder.is_relative_to(place) for place in seen):
        sys.exit(f"FATAL: {folder} is not in the container")
    os.chdir(folder)
    os.environ.update(variables(Path(f"{image}.env")))
    os.execvp(command[0], command)  # noqa: S606 that is its purpose


def bound(bind: str) -> Path:
    """Where SRC[:DST[:OPTIONS]] is in the container; this stand-in can leave it only where it is."""
    source, *rest = bind.split(":")
    target = rest[0] if rest else source
    if not Path(source).is_absolute() or not Path(source).exists():
        sys.exit(f"FATAL: mount source {source} doesn't exist")
    if target != source or rest[1:] not in ([], ["ro"], ["rw"]):
        sys.exit(f"FATAL: no such mount here: {bind}")
    return Path(target)


def variables(file: Path) -> dict[str, str]:
    """What the image sets, and over it what the caller sets for the container."""
    lines = file.read_text().splitlines() if file.exists() else []
    own = {
        name.removeprefix("APPTAINERENV_"): evaluated(value)
        for name, value in os.environ.items()
        if name.startswith("APPTAINERENV_")
    }
    return dict(line.split("=", 1) for line in lines) | own


def evaluated(value: str) -> str:
    """A value as the real one gives it to the container: read as shell text, unless it is told not to."""
    if os.environ.get("APPTAINER_NO_EVAL"):
        return value
    return subprocess.run(
        ["sh", "-c", f'printf %s "{value}"'], capture_output=True, text=True, check=False
    ).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
