"""Loaded by Python as it starts in a process of the tests: torch without its compiler.

That is half of the time that a trainer takes to start. torch loads it with the first optimizer, to tell it which
functions it must leave alone; nothing here compiles.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

COMPILER = "torch._dynamo"


def disable(function: Any = None, *_: object, **__: object) -> Any:
    return function or (lambda function: function)


class NoCompiler(MetaPathFinder, Loader):
    """Has all that torch 2.13 asks its compiler when nothing is compiled; for anything else the real one is loaded."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == COMPILER else None

    def exec_module(self, module: ModuleType) -> None:
        nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
        inlined = SimpleNamespace(cache_clear=nothing)
        vars(module).update(
            disable=disable,
            graph_break=nothing,
            utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
            trace_rules=SimpleNamespace(
                LEGACY_MOD_INLINELIST=set(), get_legacy_mod_inlinelist=inlined, clear_lru_cache=nothing
            ),
            __getattr__=self.of_the_real_one,
        )

    def of_the_real_one(self, name: str) -> Any:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            del sys.modules[COMPILER]
            vars(sys.modules["torch"]).pop("_dynamo", None)
        return getattr(importlib.import_module(COMPILER), name)


sys.meta_path.insert(0, NoCompiler())
