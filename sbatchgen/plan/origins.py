"""Where the values of a plan are from: all of them, for `explain`, and those that surprise, for `review`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sbatchgen.inputs.layers import Level, Origin
from sbatchgen.inputs.options import GPU_OPTIONS, NAMES
from sbatchgen.inputs.search import bundled
from sbatchgen.plan.plan import Plan
from sbatchgen.plan.request import Request

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
    "requeue_on_timeout",
    "requeue_on_node_fail",
    "template",
)


@dataclass(frozen=True, kw_only=True)
class Said:
    """A value, and who said it.

    Attributes:
        value: The value, as text.
        by: "default", "profile", "partition", "project" (sbatchgen.yaml), "job" or "command line".
        at: `file:line`, a flag, or the rule that the value follows from.
    """

    value: str
    by: str
    at: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """An option or a key, and what it is set to.

    Attributes:
        name: Its name, as in "--time" or "runtime".
        said: The value that counts.
        overrode: Those that it took the place of, the highest first.
    """

    name: str
    said: Said
    overrode: tuple[Said, ...] = ()


def explanations(request: Request) -> Iterator[Explanation]:
    """Every value of a plan."""
    plan = request.plan
    yield Explanation(
        name="profile",
        said=Said(value=str(plan.profile.name), by="profile", at=str(request.profile_file)),
    )
    keys = [f"options.{name}" for name in NAMES] + list(OWN)
    keys += [f"env.{name}" for name in plan.env] + [f"extra_options.{name}" for name in plan.extra_options]
    for key in keys:
        value = _value(plan, key)
        if value is not None:
            others = tuple(_said(other, by) for other, by in plan.overridden.get(key, ()))
            yield Explanation(name=_name(key), said=_said(value, plan.origin(key)), overrode=others)
    if plan.trainer is None:
        folder = str(plan.profile.paths.code or bundled("code"))
        yield Explanation(
            name="code", said=Said(value=folder, by="default", at="the folder that holds `training`")
        )


# What a job costs, whom it is charged to, where it runs and when: where such a value was not typed by the
# user, it is shown with the place that it is from.
MATTER = (
    *(
        "partition",
        "account",
        "qos",
        "reservation",
        "nodes",
        "exclusive",
        "constraint",
        "nodelist",
        "exclude",
    ),
    *(*GPU_OPTIONS, "mem", "mem_per_cpu", "mem_per_gpu", "licenses"),
    *("time", "begin", "array", "dependency", "export"),
)
# Of these, what is only a rule's result is as surprising as what stands in a file.
GUESSED = ("options.time", "options.nodes", *(f"options.{name}" for name in GPU_OPTIONS))


def surprises(plan: Plan, profile_by: Origin) -> Iterator[Explanation]:
    """What a user may not expect: see MATTER; what sbatchgen.yaml says; what was written and does not count.

    Args:
        plan: The job.
        profile_by: Who named its profile.
    """
    if profile_by.level < Level.JOB:
        yield Explanation(name="profile", said=_said(plan.profile.name, profile_by))
    keys = dict.fromkeys([f"options.{name}" for name in MATTER] + list(plan.origins))
    for key in keys:
        origin, value = plan.origins.get(key), _value(plan, key)
        if origin is None or value is None or key == "profile":
            continue
        if key.startswith("options.") and not plan.slurm:
            continue
        overrode = tuple(
            _said(other, by)
            for other, by in plan.overridden.get(key, ())
            if _text(other) != _text(value) and _was_meant(key, by, instead=origin)
        )
        if overrode or _untyped(key, origin, _text(value)):
            yield Explanation(name=_name(key), said=_said(value, origin), overrode=overrode)


def _untyped(key: str, origin: Origin, value: str) -> bool:
    """Whether a value matters that the user did not write into the command or the job."""
    if origin.level is Level.DEFAULT:
        return key in GUESSED and value not in ("1", "gpu:1")
    if origin.level in (Level.PROFILE, Level.PARTITION):
        return key.removeprefix("options.") in MATTER or key.startswith("extra_options.")
    return origin.level is Level.PROJECT


def _was_meant(key: str, by: Origin, *, instead: Origin) -> bool:
    """Whether somebody may count on a value that another one took the place of: lists are joined instead."""
    if key in ("args", "binds") or by.level is Level.DEFAULT:
        return False
    return by.level >= Level.PROJECT or instead.level in (Level.PARTITION, Level.PROJECT)


def _name(key: str) -> str:
    head, dot, rest = key.partition(".")
    if head in ("options", "extra_options") and dot:
        return f"--{rest.replace('_', '-')}"
    return f"env {rest}" if dot else head


def _value(plan: Plan, key: str) -> Any:
    """The value of a key as the plan has it in the end; None where it has none."""
    head, dot, rest = key.partition(".")
    holder = getattr(plan, head, None)
    if not dot:
        return holder if holder != () else None
    return holder.get(rest) if isinstance(holder, dict) else getattr(holder, rest, None)


def _said(value: Any, origin: Origin) -> Said:
    by = origin.level.name.lower().replace("_", " ")
    return Said(value=_text(value), by=by, at=str(origin) or origin.where)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
