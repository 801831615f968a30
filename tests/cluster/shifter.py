"""A stand-in for Shifter in tests: checks a command line of `shifter`, then runs the command on the host.

The plugin of Slurm has named the image (engines.c). ~/images.env holds the variables that the image sets, which win
over the host's; a program starts in the folder of the image, here /.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(words: list[str]) -> None:
    image = os.environ.get("SHIFTER") or os.environ.get("SLURM_SPANK_SHIFTER_IMAGE")
    while words and words[0].startswith("-"):
        option, _, value = words.pop(0).partition("=")
        source, _, target = value.partition(":")
        if option != "--volume" or not target or not Path(source).exists():
            sys.exit(f"shifter: bad option {option}={value}")
    if not image or not words:
        sys.exit("shifter: no image or no command")
    lines = Path(Path.home(), "images.env").read_text().splitlines()
    os.environ.update(dict(line.split("=", 1) for line in lines) | {"IN_IMAGE": image})
    os.chdir("/")
    os.execvp(words[0], words)  # noqa: S606 that is its purpose


if __name__ == "__main__":
    main(sys.argv[1:])
