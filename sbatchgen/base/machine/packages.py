"""The command that installs a package for the Python that runs sbatchgen."""

import os
import sys
import sysconfig

from sbatchgen.base.quoting import word


def to_install(package: str) -> str:
    """Return the command that installs a package, and in a shared installation who must type the command."""
    command = f"{word(sys.executable)} -m pip install {word(package)}"
    if os.access(sysconfig.get_path("purelib"), os.W_OK):
        return command
    return f"ask who maintains {sys.prefix} to type {command}"
