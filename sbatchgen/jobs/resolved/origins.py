"""Lists the values of a resolved job, each with the place where it was set.

`explain` shows all values. A review shows only the values that the user may not expect.
"""

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
from sbatchgen.jobs.resolved.choice import passed_over_line
from sbatchgen.jobs.resolved.job_share import GUESS_START, LIMITED_END
from sbatchgen.jobs.resolved.request import Request
from sbatchgen.jobs.resolved.resolve import FIRST_THAT_FITS
from sbatchgen.jobs.resolved.resolved_job import JobProgram, ResolvedJob

# The value that is shown for a variable that keeps its value from the shell that submits.
_INHERITED = "(that of the shell that submits)"
_PLACE_KEYS = frozenset(keys_of(PlaceSettings))
# Keys of job files that `settings` does not yield, or yields in another way than the other keys.
_HIDDEN_KEYS = "profile mode options extra_options env step lint programs network runtimes".split()  # noqa: SIM905
# Options that decide the cost of a job, its account, its nodes and its time. If the user did not type such an
# option, the review shows its value and origin.
IMPORTANT_OPTIONS = (
    *"partition account qos reservation nodes exclusive constraint nodelist exclude licenses".split(),  # noqa: SIM905
    *GPU_OPTIONS,
    *"mem mem_per_cpu mem_per_gpu time begin array dependency export".split(),  # noqa: SIM905
)
# Keys of important options that the review shows even if sbatchgen has derived their value.
_SHOWN_IF_DERIVED = ("options.time", "options.nodes", *(f"options.{name}" for name in GPU_OPTIONS))


@frozen(kw_only=True)
class Setting:
    """A value of a resolved job, and where it was set."""

    name: str  # an option or a key
    value: str  # the value, as text
    # The layer that set it: "default", "profile", "partition", "project" for sbatchgen.yaml, "job", or
    # "command line"
    by: str
    at: str  # `file:line`, a flag, or in words the rule that the value follows from
    overrode: tuple[Setting, ...] = ()  # the values of lower layers that it overrode, the highest layer first
    documented: tuple[str, ...] = ()  # web addresses where the cluster's documentation describes the value


def settings(request: Request) -> Iterator[Setting]:
    """Yield each value of a job: its profile, options, keys and variables, and the values of its programs.

    The partitions that sbatchgen did not choose follow, each with the reason.
    """
    resolved = request.resolved
    documented = _documentation_by_place(request) if resolved.profile.sources else {}
    name = str(resolved.profile.name)
    yield Setting(name="profile", value=name, by="profile", at=str(request.profile_file))
    keys = [f"options.{name}" for name in LONG_NAMES]
    keys += [field.name for field in fields(JobSpec) if field.name not in _HIDDEN_KEYS]
    keys += [key for key in resolved.origins if _is_profile_key(resolved, key)]
    keys += [f"step.{name}" for name in resolved.step]
    keys += [f"env.{name}" for name in resolved.env]
    keys += [f"extra_options.{name}" for name in resolved.extra_options]
    for key in keys:
        value = _value(resolved, key)
        if value is not None:
            setting = _setting(key, value, resolved.origin(key), resolved.overridden.get(key, ()))
            yield replace(setting, documented=tuple(documented.get(setting.at, ())))
    for program in resolved.programs:
        yield from _program_settings(program, resolved.origin(f"programs.{program.name}"))
    if resolved.passed_over and not resolved.fits_no_partition:
        yield _chosen_partition(resolved, FIRST_THAT_FITS)
    for name, why_not in resolved.passed_over.items():
        yield Setting(name=f"partition {name}", value="passed over", by="default", at=why_not)
    if resolved.is_bundled:
        folder = str(resolved.code or bundled("code"))
        yield Setting(name="code", value=folder, by="default", at="the folder that holds `training`")


def _program_settings(program: JobProgram, origin: Origin) -> Iterator[Setting]:
    """Yield the settings of one of several programs; `origin` is the place where the program is written."""
    job, share, spec = program.job, program.share, program.spec
    # The values of the program's own layer are those of Level.JOB without a place.
    keys = [key for key, by in job.origins.items() if by.level is Level.JOB and not str(by)]
    values = {"mode": job.mode.name, "args": job.args, **{key: _value(job, key) for key in keys}}
    values |= {f"env.{name}": job.env.get(name) for name in spec.env}
    values |= {f"ready.{sign}": getattr(spec.ready, sign) for sign in spec.ready.signs}
    values |= {"ready.hosts": program.ready.hosts if program.ready.hosts != "all" else None}
    values |= {name: getattr(spec, name) for name in ("needs", "main", "once", "optional", "restarts")}
    values |= {"replicas": share.replicas, "beside": share.beside_program}
    values |= {"options.nodes": share.all_nodes, "options.gpus_per_node": share.gpus_per_node}
    for key, value in values.items():
        if value not in (None, False, (), 0, ""):
            setting = _setting(key, value, origin)
            yield replace(setting, name=f"{program.name}: {setting.name}")


def _documentation_by_place(request: Request) -> dict[str, list[str]]:
    """Return for lines of the profile (`file:line`) where the cluster's documentation describes them.

    The key `sources` of the profile names a web address for a key, which holds for all keys below it. If
    several sources describe a line, only those with the longest key count.
    """
    cited: dict[str, list[tuple[int, str]]] = {}  # place -> pairs of a key's length and a web address
    places = read_document(request.profile_file, Profile, folder=request.places.folder).places
    for source in request.resolved.profile.sources:
        for key in source.keys:
            for at in {at for name, at in places.items() if f"{name}.".startswith(f"{key}.")}:
                cited.setdefault(at, []).append((len(key), source.at.url))
    return {at: [url for length, url in pairs if length == max(pairs)[0]] for at, pairs in cited.items()}


def surprises(resolved: ResolvedJob, profile_by: Origin) -> Iterator[Setting]:
    """Yield the values that a review points out, because the user may not expect them.

    These are IMPORTANT_OPTIONS that the user did not type, values of sbatchgen.yaml, and values that overrode
    another value. `profile_by` is the origin of the profile's name.
    """
    if profile_by.level < Level.JOB:
        yield _setting("profile", resolved.profile.name, profile_by)
    if resolved.passed_over and not resolved.fits_no_partition:
        yield _chosen_partition(resolved, passed_over_line(resolved))
    options = (f"options.{name}" for name in IMPORTANT_OPTIONS)
    for key in dict.fromkeys((*options, *resolved.origins)):
        origin, value = resolved.origins.get(key), _value(resolved, key)
        if origin is None or value is None or key == "profile":
            continue
        if key.startswith("options.") and not resolved.uses_slurm:
            continue
        overrode = [
            (other, by)
            for other, by in resolved.overridden.get(key, ())
            if not _keeps(value, other) and _may_be_missed(key, by, winner=origin)
        ]
        if overrode or _is_surprise(key, origin, _text(value)):
            yield _setting(key, value, origin, overrode)


def _chosen_partition(resolved: ResolvedJob, why: str) -> Setting:
    """Return the partition that sbatchgen chose as a setting; `why` is the reason for the choice."""
    omitted = "" if resolved.options.partition else "; the script leaves it to the cluster"
    return Setting(name="partition", value=resolved.partition_name, by="default", at=why + omitted)


def _is_surprise(key: str, origin: Origin, value: str) -> bool:
    """Return whether the user may not expect a value.

    Values of the job and of the command line are no surprise, because the user has written them. Of the
    values that sbatchgen derives, only guesses, limited numbers of GPUs and some important options are.
    """
    if origin.level is Level.DEFAULT:
        is_guess = origin.where.startswith(GUESS_START)
        is_limited = origin.where.endswith(LIMITED_END)
        is_notable = key in _SHOWN_IF_DERIVED and value not in ("1", "gpu:1")
        return is_guess or is_limited or is_notable
    if origin.level in (Level.PROFILE, Level.PARTITION):
        return key.removeprefix("options.") in IMPORTANT_OPTIONS or key.startswith("extra_options.")
    return origin.level is Level.PROJECT


def _keeps(value: Any, overridden: Any) -> bool:
    """Return whether nothing of an overridden value is lost: the new value is equal, or a longer list.

    A list that begins with the overridden list only adds items to it, as the key `KEY+` does.
    """
    extends = (
        isinstance(value, tuple) and isinstance(overridden, tuple) and value[: len(overridden)] == overridden
    )
    return (extends and bool(overridden)) or _text(value) == _text(overridden)


def _may_be_missed(key: str, by: Origin, *, winner: Origin) -> bool:
    """Return whether somebody may rely on a value from the origin `by` that `winner` overrode."""
    if key in ("args", "launcher_args", "binds") or by.level is Level.DEFAULT:
        return False  # the layers join these lists, so no item is lost; no one has written a default
    return by.level >= Level.PROJECT or winner.level in (Level.PARTITION, Level.PROJECT)


def _setting(key: str, value: Any, origin: Origin, overrode: Iterable[tuple[Any, Origin]] = ()) -> Setting:
    """Return a value as a setting; an option of sbatch is named by its flag, such as --nodes."""
    record_key, dot, inner_key = key.partition(".")
    name = f"env {inner_key}" if record_key == "env" and dot else key
    if record_key.endswith("options") and dot:  # "options.nodes" or "extra_options.nice"
        name = f"--{LONG_NAMES.get(inner_key, inner_key)}"
    return Setting(
        name=name,
        value=_text(value),
        by=origin.level.name.lower().replace("_", " "),
        at=str(origin) or origin.where,
        overrode=tuple(_setting(key, other, by) for other, by in overrode),
    )


def _is_profile_key(resolved: ResolvedJob, key: str) -> bool:
    """Return whether only profiles have a key: it is in `network`, or in the settings of the job's runtime.

    Some settings of a runtime have a key in job files. Such a key is not listed twice.
    """
    runtime = resolved.runtime
    facts_with_job_key = {f"runtimes.{runtime.name}.{job_key.fact}" for job_key in runtime.keys}
    return key not in facts_with_job_key and key.startswith(("network.", f"runtimes.{runtime.name}."))


def _value(resolved: ResolvedJob, key: str) -> Any:
    """Return the value of a flat key, such as "options.nodes", in the resolved job; None if it is not set."""
    record_key, dot, inner_key = key.partition(".")
    if record_key == "runtimes":
        runtime, _, fact = inner_key.partition(".")
        return getattr(resolved.facts, fact, None) if runtime == resolved.runtime.name else None
    attribute = None if record_key in _PLACE_KEYS else getattr(resolved, record_key, None)
    value = resolved.software.get(record_key, attribute)
    if value is None:
        value = getattr(resolved.settings, record_key, None)
    if not dot:
        return value if value != () else None
    if not isinstance(value, dict):
        return getattr(value, inner_key, None)
    is_inherited = record_key == "env" and value.get(inner_key, "") is None
    return _INHERITED if is_inherited else value.get(inner_key)


def _text(value: Any) -> str:
    """Return a value as `explain` and the review show it."""
    if value is None:
        return _INHERITED
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
