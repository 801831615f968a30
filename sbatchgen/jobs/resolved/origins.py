"""The origins of the values of a resolved job: all for `explain`, the unexpected for `review`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

from sbatchgen.base.frozen import frozen
from sbatchgen.base.keys import keys_of
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.layers import Level, Origin
from sbatchgen.jobs.inputs.options import GPU_OPTIONS, LONG_NAMES
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.inputs.start_settings import PlaceSettings
from sbatchgen.jobs.resolved.choice import in_short
from sbatchgen.jobs.resolved.request import Request
from sbatchgen.jobs.resolved.resolve import FIRST
from sbatchgen.jobs.resolved.resolved_job import JobProgram, ResolvedJob
from sbatchgen.jobs.resolved.task_share import GUESS, LIMITED

_INHERITED = "(that of the shell that submits)"  # a variable that has no value in the resolved job
_PLACE_KEYS = frozenset(keys_of(PlaceSettings))
_HIDDEN_KEYS = "profile mode options extra_options env step lint programs network runtimes".split()  # noqa: SIM905
# What a job costs, whom it is charged to, where it runs and when: such a value is shown with its origin where
# the user did not type it.
MATTER = (
    *"partition account qos reservation nodes exclusive constraint nodelist exclude licenses".split(),  # noqa: SIM905
    *GPU_OPTIONS,
    *"mem mem_per_cpu mem_per_gpu time begin array dependency export".split(),  # noqa: SIM905
)
# Of these, the values that are shown even if they only follow from a rule.
DERIVED = ("options.time", "options.nodes", *(f"options.{name}" for name in GPU_OPTIONS))


@frozen(kw_only=True)
class Setting:
    """A value of a resolved job, and where it was set."""

    name: str  # an option or a key
    value: str  # the value, as text
    by: str  # "default", "profile", "partition", "project" (sbatchgen.yaml), "job" or "command line"
    at: str  # `file:line`, a flag, or the rule that the value follows from
    overrode: tuple[Setting, ...] = ()  # the values that it overrode, the highest first
    documented: tuple[str, ...] = ()  # where the documentation of the cluster says it


def settings(request: Request) -> Iterator[Setting]:
    """Yield every value of a resolved job."""
    resolved = request.resolved
    documented = _documented(request) if resolved.profile.sources else {}
    name = str(resolved.profile.name)
    yield Setting(name="profile", value=name, by="profile", at=str(request.profile_file))
    keys = [f"options.{name}" for name in LONG_NAMES]
    keys += [field.name for field in fields(JobSpec) if field.name not in _HIDDEN_KEYS]
    keys += [key for key in resolved.origins if _is_inner(resolved, key)]
    keys += [f"step.{name}" for name in resolved.step]
    keys += [f"env.{name}" for name in resolved.env]
    keys += [f"extra_options.{name}" for name in resolved.extra_options]
    for key in keys:
        value = _value(resolved, key)
        if value is not None:
            setting = _setting(key, value, resolved.origin(key), resolved.overridden.get(key, ()))
            yield replace(setting, documented=tuple(documented.get(setting.at, ())))
    for program in resolved.programs:
        yield from _of_program(program, resolved.origin(f"programs.{program.name}"))
    if resolved.passed_over and not resolved.fits_nowhere:
        yield _partition(resolved, FIRST)
    for name, why_not in resolved.passed_over.items():
        yield Setting(name=f"partition {name}", value="passed over", by="default", at=why_not)
    if resolved.is_bundled:
        folder = str(resolved.code or bundled("code"))
        yield Setting(name="code", value=folder, by="default", at="the folder that holds `training`")


def _of_program(program: JobProgram, origin: Origin) -> Iterator[Setting]:
    """Yield the settings of one of several programs; all are from the place where the program is written."""
    job, share, spec = program.job, program.share, program.spec
    keys = [key for key, by in job.origins.items() if by.level is Level.JOB and not str(by)]
    values = {"mode": job.mode.name, "args": job.args, **{key: _value(job, key) for key in keys}}
    values |= {f"env.{name}": job.env.get(name) for name in spec.env}
    values |= {f"ready.{sign}": getattr(spec.ready, sign) for sign in spec.ready.signs}
    values |= {"ready.hosts": program.ready.hosts if program.ready.hosts != "all" else None}
    values |= {name: getattr(spec, name) for name in ("needs", "main", "once", "optional", "restarts")}
    values |= {"replicas": share.replicas, "beside": share.beside}
    values |= {"options.nodes": share.all_nodes, "options.gpus_per_node": share.gpus}
    for key, value in values.items():
        if value not in (None, False, (), 0, ""):
            setting = _setting(key, value, origin)
            yield replace(setting, name=f"{program.name}: {setting.name}")


def _documented(request: Request) -> dict[str, list[str]]:
    """Return the sources of what is written at each place of the profile: those that name the longest key."""
    cited: dict[str, list[tuple[int, str]]] = {}
    places = read_document(request.profile_file, Profile).places
    for source in request.resolved.profile.sources:
        for key in source.keys:
            for at in {at for name, at in places.items() if f"{name}.".startswith(f"{key}.")}:
                cited.setdefault(at, []).append((len(key), source.at.url))
    return {at: [url for size, url in pairs if size == max(pairs)[0]] for at, pairs in cited.items()}


def surprises(resolved: ResolvedJob, profile_by: Origin) -> Iterator[Setting]:
    """Yield surprising values: the keys in MATTER, values of sbatchgen.yaml, and values without effect."""
    if profile_by.level < Level.JOB:
        yield _setting("profile", resolved.profile.name, profile_by)
    if resolved.passed_over and not resolved.fits_nowhere:
        yield _partition(resolved, in_short(resolved))
    options = (f"options.{name}" for name in MATTER)
    for key in dict.fromkeys((*options, *resolved.origins)):
        origin, value = resolved.origins.get(key), _value(resolved, key)
        if origin is None or value is None or key == "profile":
            continue
        if key.startswith("options.") and not resolved.slurm:
            continue
        overrode = [
            (other, by)
            for other, by in resolved.overridden.get(key, ())
            if not _has(value, other) and _was_meant(key, by, instead=origin)
        ]
        if overrode or _untyped(key, origin, _text(value)):
            yield _setting(key, value, origin, overrode)


def _partition(resolved: ResolvedJob, why: str) -> Setting:
    """Return the partition that was chosen, also if the script leaves the partition to the cluster."""
    left = "" if resolved.options.partition else "; the script leaves it to the cluster"
    return Setting(name="partition", value=resolved.partition_name, by="default", at=why + left)


def _untyped(key: str, origin: Origin, value: str) -> bool:
    """Return whether a value matters and the user wrote it neither into the command nor into the job."""
    if origin.level is Level.DEFAULT:
        is_odd = origin.where.startswith(GUESS) or origin.where.endswith(LIMITED)
        return is_odd or (key in DERIVED and value not in ("1", "gpu:1"))
    if origin.level in (Level.PROFILE, Level.PARTITION):
        return key.removeprefix("options.") in MATTER or key.startswith("extra_options.")
    return origin.level is Level.PROJECT


def _has(value: Any, other: Any) -> bool:
    """Return whether a value equals another value, or is a list that adds to the other."""
    added = isinstance(value, tuple) and isinstance(other, tuple) and value[: len(other)] == other
    return (added and bool(other)) or _text(value) == _text(other)


def _was_meant(key: str, by: Origin, *, instead: Origin) -> bool:
    """Return whether somebody may rely on an overridden value. Lists are joined, and override nothing."""
    if key in ("args", "launcher_args", "binds") or by.level is Level.DEFAULT:
        return False
    return by.level >= Level.PROJECT or instead.level in (Level.PARTITION, Level.PROJECT)


def _setting(key: str, value: Any, origin: Origin, overrode: Iterable[tuple[Any, Origin]] = ()) -> Setting:
    head, dot, rest = key.partition(".")
    name = f"env {rest}" if head == "env" and dot else key
    if head.endswith("options") and dot:
        name = f"--{LONG_NAMES.get(rest, rest)}"
    return Setting(
        name=name,
        value=_text(value),
        by=origin.level.name.lower().replace("_", " "),
        at=str(origin) or origin.where,
        overrode=tuple(_setting(key, other, by) for other, by in overrode),
    )


def _is_inner(resolved: ResolvedJob, key: str) -> bool:
    """Return whether a key is in `network`, or in the runtime of the job without an own key of jobs."""
    runtime = resolved.runtime
    of_job = {f"runtimes.{runtime.name}.{each.fact}" for each in runtime.keys}
    return key not in of_job and key.startswith(("network.", f"runtimes.{runtime.name}."))


def _value(resolved: ResolvedJob, key: str) -> Any:
    """Return the final value of a key; None for a key that is not set."""
    head, dot, rest = key.partition(".")
    if head == "runtimes":
        runtime, _, fact = rest.partition(".")
        return getattr(resolved.facts, fact, None) if runtime == resolved.runtime.name else None
    known = resolved.software.get(head, None if head in _PLACE_KEYS else getattr(resolved, head, None))
    holder = getattr(resolved.settings, head, None) if known is None else known
    if not dot:
        return holder if holder != () else None
    if not isinstance(holder, dict):
        return getattr(holder, rest, None)
    return _INHERITED if head == "env" and holder.get(rest, "") is None else holder.get(rest)


def _text(value: Any) -> str:
    if value is None:
        return _INHERITED
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
