"""Commands that belong to the Python that runs sbatchgen: sbatchgen itself, and pip with a package."""

import os
import sys
import sysconfig
from pathlib import Path

from sbatchgen.base.quoting import word


def to_install(package: str) -> str:
    """Return the command that installs a package, and in a shared installation who must type the command."""
    command = f"{word(sys.executable)} -m pip install {word(package)}"
    if os.access(sysconfig.get_path("purelib"), os.W_OK):
        return command
    return f"ask who maintains {sys.prefix} to type {command}"


def own_command() -> Path:
    """Return the path of the command with which sbatchgen was started.

    `python -m sbatchgen` names a file of the package. pip has put the command beside this Python.
    """
    path = Path(sys.argv[0]).absolute()
    return Path(sys.executable).with_name("sbatchgen") if path.name == "__main__.py" else path
