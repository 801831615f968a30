"""Functions of the user that flags name: `--dataset own:data` is the function `data` in the module `own`."""

import contextlib
import importlib
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.errors import UserError


def import_function(name: str, flag: str) -> Callable[..., Any]:
    """Return the function PACKAGE.MODULE:FUNCTION of a flag; raises UserError if the import fails."""
    module, colon, function = name.partition(":")
    if not colon:
        fix = f"one of those in --help, or {flag} PACKAGE.MODULE:FUNCTION"
        raise UserError(f"{flag} {name} is not known", fix=fix)
    allow_imports_from_current_folder()
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        fix = (
            "put its folder on PYTHONPATH, or install it" if is_missing else "name a function of that module"
        )
        raise UserError(f"{flag} {name}: {error}", fix=fix) from error
    return factory


def allow_imports_from_current_folder() -> None:
    """Let Python import from the current folder, after the standard library and before all other packages.

    So a file such as json.py or queue.py does not replace a module of the standard library.
    """
    with contextlib.suppress(OSError):
        here = os.getcwd()  # noqa: PTH109 - sys.path holds texts
        if here not in sys.path and "" not in sys.path:
            standard = [folder for folder in sys.path if _is_standard(folder)]
            others = [folder for folder in sys.path if folder not in standard]
            sys.path[:] = [*standard, here, *others]


def _is_standard(folder: str) -> bool:
    """Return whether a folder of sys.path belongs to the standard library."""
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    is_part = Path(folder).name in ("lib-dynload", f"python{version}.zip")
    return is_part or folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
