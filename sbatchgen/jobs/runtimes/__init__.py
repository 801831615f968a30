"""Where Python comes from: one module for each runtime, found by being in this folder.

`base` has what every runtime can say of itself. A module ends in `RUNTIME = ...`.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from sbatchgen.jobs.runtimes.base import Runtime


def _runtimes() -> dict[str, Runtime]:
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
