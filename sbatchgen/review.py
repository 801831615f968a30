"""A plan as text for people: what it asks for, and where each value is from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sbatchgen.options import NAMES
from sbatchgen.plan import Plan
from sbatchgen.resources import written

OWN = (
    "runtime",
    "launcher",
    "nproc_per_node",
    "trainer",
    "args",
    "image",
    "conda_env",
    "venv",
    "binds",
    "data",
    "run_dir",
    "resume",
    "max_restarts",
    "template",
)


def summary(plan: Plan) -> str:
    """One screen: what runs, what it asks for, and what that costs."""
    options = plan.options
    cpus = (options.cpus_per_task or 1) * (options.ntasks_per_node or 1)
    processes = plan.nodes * plan.nproc_per_node
    rows = [
        ("job", f"{plan.name}: mode {plan.mode}, {_started(plan)}, runtime {plan.runtime}"),
        ("cluster", f"{plan.profile.name} ({plan.profile.url}, checked {plan.profile.checked})"),
        ("processes", f"{processes} on {_plural(plan.nodes, 'node')}"),
    ]
    if plan.slurm:
        rows += [("each node", f"{_plural(cpus, 'CPU')}, {_gpus(plan)}, {_memory(plan)}")]
        rows += [("time", f"{options.time}{_cost(plan, cpus)}")]
    rows += [("run folder", str(plan.run_dir)), ("data", str(plan.data)), ("resume", _resume(plan))]
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {text}\n" for name, text in rows)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _started(plan: Plan) -> str:
    return f"launcher {plan.launcher}" if plan.launcher else "one process"


def _gpus(plan: Plan) -> str:
    if plan.shards:
        return f"{_plural(plan.shards, 'shard')} of a GPU"
    return _plural(plan.gpus_per_node, "GPU") if plan.gpus_per_node else "no GPU"


def _memory(plan: Plan) -> str:
    options = plan.options
    if options.mem_per_gpu is not None:
        return f"{options.mem_per_gpu} of memory a GPU"
    if options.mem_per_cpu is not None:
        return f"{options.mem_per_cpu} of memory a CPU"
    if options.mem is None:
        return "memory as the cluster gives by default"
    return f"{options.mem} of memory" if options.mem else "all of its memory"


def _cost(plan: Plan, cpus: int) -> str:
    if plan.options.time is None:
        return ""
    hours = plan.options.time / 3600
    if plan.gpus_per_node:
        return f", at most {plan.nodes * plan.gpus_per_node * hours:g} GPU-hours"
    return f", at most {plan.nodes * cpus * hours:g} CPU-hours"


def _resume(plan: Plan) -> str:
    if plan.resume == "off":
        return "off: starts from nothing"
    text = "the newest checkpoint, if any" if plan.resume == "auto" else str(plan.resume)
    return text + (f"; requeued at most {plan.max_restarts} times" if plan.restartable else "")


def origins(plan: Plan, *, profile_file: Path, code: Path) -> str:
    """Every value, where it was written, and what it overrode."""
    rows = [(f"--{name.replace('_', '-')}", f"options.{name}", getattr(plan.options, name)) for name in NAMES]
    rows += [(name, name, getattr(plan, name)) for name in OWN]
    rows += [(f"env {name}", f"env.{name}", value) for name, value in plan.env.items()]
    rows += [(f"--{name}", f"extra_options.{name}", value) for name, value in plan.extra_options.items()]
    table = [("profile", str(plan.profile.name), str(profile_file))]
    table += [
        (label, _text(value), (written(plan.origin(key)) or "default") + _overridden(plan, key))
        for label, key, value in rows
        if value is not None and value != ()
    ]
    if plan.trainer is None:
        table.append(("code", str(plan.profile.paths.code or code), "the folder that holds `training`"))
    first, second = (max(len(row[column]) for row in table) for column in (0, 1))
    return "".join(
        f"{label:<{first}}  {value:<{min(second, 40)}}  {where}\n" for label, value, where in table
    )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _overridden(plan: Plan, key: str) -> str:
    said = [f"{origin.where} said {_text(value)}" for value, origin in plan.overridden.get(key, ())]
    return f"  ({'; '.join(said)})" if said else ""
