"""The runtimes, which are the sources of a job's Python: `RUNTIMES` has each by its name.

Each module of this folder except `base` is a runtime, and ends with `RUNTIME = ...`.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from sbatchgen.jobs.runtimes.base import Runtime


def _runtimes() -> dict[str, Runtime]:
    """Return the runtimes of all modules in this folder by their names."""
    files = os.listdir(os.path.dirname(__file__))  # noqa: PTH120, PTH208 - pathlib takes longer
    modules = {file.partition(".")[0] for file in files if file.endswith((".py", ".pyc"))}
    names = sorted(modules - {"__init__", "base"})
    runtimes: list[Runtime] = [import_module(f"{__name__}.{name}").RUNTIME for name in names]
    return {runtime.name: runtime for runtime in runtimes}


RUNTIMES = _runtimes()
if TYPE_CHECKING:
    RuntimeName = str
else:
    RuntimeName = Literal[tuple(RUNTIMES)]
