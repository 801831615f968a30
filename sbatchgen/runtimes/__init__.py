"""Where Python comes from: one module for each runtime, found by being in this folder.

`base` has what every runtime can say of itself. A module ends in `RUNTIME = ...`.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Literal

from sbatchgen.runtimes.base import Runtime


def _runtimes() -> dict[str, Runtime]:
    modules = sorted(module.name for module in iter_modules(__path__) if module.name != "base")
    runtimes: list[Runtime] = [import_module(f"{__name__}.{name}").RUNTIME for name in modules]
    return {runtime.name: runtime for runtime in runtimes}


RUNTIMES = _runtimes()
if TYPE_CHECKING:
    RuntimeName = str
else:
    RuntimeName = Literal[tuple(RUNTIMES)]
