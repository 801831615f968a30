"""Loaded by Python as it starts in a process of the tests: torch without what a training does not need.

That is two thirds of the time that a trainer takes to start. torch loads its compiler with the first optimizer, to
tell it which functions it must leave alone, and torchvision loads it at once; nothing here compiles or quantizes.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from operator import eq
from types import ModuleType, SimpleNamespace
from typing import Any


def disable(function: Any = None, *_: object, **__: object) -> Any:
    return function or (lambda function: function)


def nothing(*_: object, **__: object) -> None:
    pass


class Config:
    """What activation checkpointing asks; older versions of torch ask more, of the real one."""

    error_on_nested_fx_trace = True

    def __getattr__(self, name: str) -> Any:
        return getattr(real("torch._dynamo")("config"), name)


def later(module: str, function: str) -> Callable[..., Any]:
    """The real function, whose module is loaded with the first call."""

    def call(*arguments: Any, **options: Any) -> Any:
        return real(module)(function)(*arguments, **options)

    return call


# What torch 2.13 asks of each when nothing is compiled; in the order in which it loads them.
ASKED: dict[str, dict[str, Any]] = {
    "torchgen.model": {},
    "torch.distributions": {},
    "torch.nested": {},
    "torch.nested._internal": {},
    "torch.nested._internal.nested_tensor": {"NestedTensor": type("NestedTensor", (), {})},
    "torch.nn.intrinsic": {},
    "torch.nn.qat": {},
    "torch.nn.quantizable": {},
    "torch.nn.quantized": {},
    "torch.quantization": {},
    "torch.masked": {},
    "torch.export": {},
    "torch._subclasses": {},
    "torch._subclasses.fake_tensor": {
        "FakeTensor": type("FakeTensor", (), {}),
        "FakeTensorMode": type("FakeTensorMode", (), {}),
        "get_plain_tensors": nothing,
        "unset_fake_temporarily": nullcontext,
    },
    "torch._subclasses.functional_tensor": {
        "FunctionalTensor": type("FunctionalTensor", (), {"metadata_fns": ()})
    },
    "torch._higher_order_ops": {
        name: later("torch._higher_order_ops", name) for name in ("cond", "while_loop")
    },
    "torch.func": {"vmap": later("torch.func", "vmap")},
    "torch.distributed._meta_registrations": {},
    "torch._meta_registrations": {},  # shapes without values
    "torch.compiler": {"is_compiling": lambda: False, "disable": disable},
    "torch._native": {},
    "torch.fx.experimental.symbolic_shapes": {
        "expect_true": bool,
        "sym_eq": eq,
    },  # of torch.autograd.backward
    "torch._dynamo": {
        "disable": disable,
        "graph_break": nothing,
        "utils": SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
        "config": Config(),
        "trace_rules": SimpleNamespace(
            LEGACY_MOD_INLINELIST=set(),
            get_legacy_mod_inlinelist=SimpleNamespace(cache_clear=nothing),
            clear_lru_cache=nothing,
        ),
    },
}
# Import them and are imported by them.
ASK = ("torch.ao.quantization", "torch.fx.experimental.proxy_tensor", "torch.fx.passes")
# What torchvision 0.28 has only for the compiler, for ONNX and for quantization. The real ones are never loaded.
LEFT_OUT: dict[str, dict[str, Any]] = {
    "torchvision._meta_registrations": {},
    "torchvision.models.quantization": {},
    "torchvision.ops._register_onnx_ops": {"_register_custom_op": nothing},
    "torchvision.ops.roi_align": {"RoIAlign": object, "roi_align": nothing},
}


class NoCompiler(MetaPathFinder, Loader):
    """Has all that torch asks of these modules; for anything else the real one is loaded."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name in ASKED:
            return ModuleSpec(name, self, is_package=True)
        if name in LEFT_OUT:
            return ModuleSpec(name, self)
        if name.rpartition(".")[0] in ASKED or (ASKED and name in ASK):
            restore()
            importlib.import_module(name)
            return ModuleSpec(name, Loaded(sys.modules.pop(name)))  # what is there would be executed again
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in LEFT_OUT:
            vars(module).update(LEFT_OUT[module.__name__])
            return
        vars(module).update(ASKED[module.__name__], __getattr__=real(module.__name__))
        if module.__name__ == "torch._meta_registrations":
            generators()
            importlib.import_module("torch._subclasses.functional_tensor")  # asked as attributes of torch


class Loaded(Loader):
    """Gives a module that is there already."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def create_module(self, _: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, _: ModuleType) -> None:
        pass


def generators() -> None:
    """Set what a module that is left out would set, and without which torch 2.13 makes no generators."""
    core = sys.modules["torch._C"]
    if not hasattr(core, "_set_generator_metaclass"):
        return
    try:
        meta = importlib.import_module("torch._custom_class_base").CustomClassBaseMeta  # since 2.14
    except ModuleNotFoundError:
        meta = importlib.import_module("torch._opaque_base").OpaqueBaseMeta
    core._set_generator_metaclass(meta)


def real(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that takes everything from the real one."""

    def get(name: str) -> Any:
        if name.startswith("__"):  # what Python's own import asks
            raise AttributeError(name)
        if module in ASKED:
            restore()
        return getattr(importlib.import_module(module), name)

    return get


def _loader(name: str) -> Any:
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "loader", None)


def restore() -> None:
    """Load the real modules, in an order that their imports of each other allow."""
    names = [name for name in ASKED if isinstance(_loader(name), NoCompiler)]  # others were loaded before
    ASKED.clear()
    for name in names:
        del sys.modules[name]
        parent, _, own = name.rpartition(".")
        if parent in sys.modules:
            vars(sys.modules[parent]).pop(own, None)
    for name in names:
        if name != "torch._dynamo":  # which torch too loads only when asked
            importlib.import_module(name)


sys.meta_path.insert(0, NoCompiler())
gc.set_threshold(200_000)  # imports make many objects, all of which stay
atexit.register(gc.freeze)  # nor are they looked through at the end, a quarter of what `import torch` takes
