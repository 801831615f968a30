"""How the Python that runs sbatchgen gets a package."""

import os
import sys
import sysconfig

from sbatchgen.base.quoting import word


def to_install(package: str) -> str:
    """Return what installs a package, and who has to type that where all users share one installation."""
    command = f"{word(sys.executable)} -m pip install {word(package)}"
    if os.access(sysconfig.get_path("purelib"), os.W_OK):
        return command
    return f"ask who maintains {sys.prefix} to type {command}"
