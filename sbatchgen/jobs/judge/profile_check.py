"""The check of a profile: a job of every mode in every partition is resolved and judged.

Only what the profile itself says is judged. What a user has to add (an account, a number of GPUs) is made up,
or left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from sbatchgen.base.errors import Problem, SbatchgenError
from sbatchgen.base.finding import NOWHERE, Finding
from sbatchgen.base.units import Moment, Text
from sbatchgen.check.cluster_facts import NodeFacts
from sbatchgen.check.rules.comments import RETIRED, removal
from sbatchgen.check.rules.limits import GPU_LIMIT_RULES
from sbatchgen.check.rules.syntax import faults_of_bash
from sbatchgen.jobs.inputs.document import Document, parse_scalar
from sbatchgen.jobs.inputs.flags import key_type
from sbatchgen.jobs.inputs.layers import BY_PARTITION, Layer, Level
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.inputs.search import Places, bundled
from sbatchgen.jobs.inputs.start_settings import SETUPS, PlaceSettings
from sbatchgen.jobs.judge.job_check import check, lint_rendered
from sbatchgen.jobs.judge.read_settings import checked
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.render.render import render_request
from sbatchgen.jobs.resolved.request import Request
from sbatchgen.jobs.resolved.resolve import resolve
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

_SMALL_GIB = 64  # nodes with less memory are not in a table of hardware
_COUNTS = ("step.nodes", "step.ntasks", "step.ntasks-per-node")
_MADE_UP = (
    "x",
    "1",
    "gpu:1",
    "true",
    "append",
)  # for what a profile requires: the first that the option takes


def findings(file: Path, places: Places, text: str | None = None) -> list[Finding]:
    """Return the findings of a profile, each once; `text` is the text of the file in an editor.

    Raises:
        DocumentError: It can't be read.
    """
    profile = checked(file, text)
    every = [*_name(profile, file), *_date(profile), *_setup(profile), *_sources(profile), *_memory(profile)]
    for rule in sorted(RETIRED.intersection(profile.value.policies)):
        at = profile.places.get(f"policies.{rule}", "")
        every.append(Finding("info", Problem(removal(rule), at, "remove the policy")))
    for mode in MODES:
        for partition in (*profile.value.partitions,) or (None,):
            for launcher in _launchers(profile.value, mode, partition):
                resolved = _plan(profile, mode, partition, launcher)
                about = check(resolved, log_folders_made=True)
                every += [finding for finding in about if finding.problem.at.startswith(f"{file}:")]
                every += _of_gpus(about, profile, partition)
                every += _of_script(resolved, file, places)
    every = [*_fitting_one_node(every, profile)]
    return [*{finding.problem: finding for finding in every}.values()]


def _name(profile: Document[Profile], file: Path) -> Iterator[Finding]:
    """Warn if the profile has the name of a bundled profile, which reviews would show."""
    name, folder = profile.value.name, bundled("profiles")
    is_bundled = file.stem == name or file.resolve().parent == folder.resolve()
    if (folder / f"{name}.yaml").is_file() and not is_bundled:
        what = f"name: '{name}' is the name of a bundled profile"
        yield Finding("warning", Problem(what, profile.places["name"], "give your cluster a name of its own"))


def _date(profile: Document[Profile]) -> Iterator[Finding]:
    """Warn if `checked` does not say how old the facts are."""
    text, fix = profile.value.checked, "write the day on which you last compared them, as 2026-01-31"
    with suppress(ValueError):
        Moment.parse(text)
        if profile.value.age >= -1:  # the date may be tomorrow where it was written
            return
    what = f"checked: '{text}' is not a day in the past, so no command can say that the facts are old"
    yield Finding("warning", Problem(what, profile.places["checked"], fix))


def _setup(profile: Document[Profile]) -> Iterator[Finding]:
    """Report lines of shell that bash can't parse; they are not run."""
    records: dict[str, PlaceSettings] = {"": profile.value}
    for kind in ("partitions", "modes"):
        records |= {f"{kind}.{name}.": each for name, each in getattr(profile.value, kind).items()}
    keys = [(below, settings, key) for below, settings in records.items() for key in (*SETUPS, "master_addr")]
    for below, settings, name in keys:
        key, value = f"{below}{name}", getattr(settings, name)
        text = f"$({value}\n)" if isinstance(value, str) else "\n".join(value or ())
        for line, message in faults_of_bash(text)[:1] if text else ():
            if not message:
                continue  # bash was too slow
            what = f"{key}: bash can't read it: line {line}: {message}"
            at = profile.places.get(key) or profile.places[f"{key}+"]
            yield Finding("error", Problem(what, at, "write whole commands, one a line"))


def _sources(profile: Document[Profile]) -> Iterator[Finding]:
    """Warn of sources of keys that the profile does not set."""
    for number, source in enumerate(profile.value.sources):
        for key in source.keys:
            if not any(f"{place}.".startswith(f"{key}.") for place in profile.places):
                at = profile.places[f"sources[{number}].keys"]
                what = f"sources: the profile does not set '{key}'"
                yield Finding("warning", Problem(what, at, "write keys as partitions.gpu.time_max"))


def _memory(profile: Document[Profile]) -> Iterator[Finding]:
    """Warn of memory that is a size of memory modules: Slurm never gives jobs all of what is installed.

    Where the partition's host names are known, its facts are Slurm's own.
    """
    for name, partition in profile.value.partitions.items():
        if partition.nodes is not None:
            continue
        below = f"partitions.{name}."
        kinds: dict[str, NodeFacts] = {below: partition}
        kinds |= {f"{below}shapes[{number}].": shape for number, shape in enumerate(partition.shapes)}
        for start, kind in kinds.items():
            at = profile.places.get(f"{start}mem_per_node", "")
            if at and kind.mem_per_node and is_installed_size(kind.mem_per_node):
                what = (
                    f"{start}mem_per_node: {kind.mem_per_node} looks like what is built in, and a job that "
                )
                what += "asks for all of it never starts: jobs may have less"
                fix = f"write mem_installed: {kind.mem_per_node}, or RealMemory of scontrol show node as "
                fix += "mem_per_node"
                yield Finding("warning", Problem(what, at, fix))


def is_installed_size(mib: int) -> bool:
    """Return whether so many MiB are a size of memory modules: a power of two of GiB, or three times one."""
    gib, rest = divmod(mib, 1024)
    powers = {gib, gib // 3 if gib % 3 == 0 else 0}
    return rest == 0 and gib >= _SMALL_GIB and any(n and n & (n - 1) == 0 for n in powers)


def _of_gpus(about: Iterable[Finding], profile: Document[Profile], name: str | None) -> Iterator[Finding]:
    """Yield errors in the GPUs that a job gets where the profile alone decides their number and type."""
    partition = profile.value.partitions[Text(name)] if name else Partition()
    at = profile.places.get(f"partitions.{name}", "")
    for finding in about if any(kind.gpus_per_node for kind in partition.kinds()) else ():
        if (
            finding.severity == "error"
            and finding.rule not in GPU_LIMIT_RULES
            and finding.problem.at == str(BY_PARTITION)
        ):
            yield finding._replace(problem=finding.problem._replace(at=at))


def _fitting_one_node(every: Sequence[Finding], profile: Document[Profile]) -> Iterator[Finding]:
    """Yield findings; a fixed number of tasks or nodes that fits a job of one node is not an error."""
    counts = {at for key, at in profile.places.items() if key.endswith(_COUNTS)}
    refused = {finding.problem.at for finding in every if finding.severity == "error"} & counts
    fitting = set[str]()
    for partition in ((*profile.value.partitions,) or (None,)) if refused else ():
        on_one = check(_plan(profile, "ddp", partition, "srun", nodes="1"), log_folders_made=True)
        fitting |= refused - {finding.problem.at for finding in on_one}
    for finding in every:
        at = finding.problem.at
        if at in fitting:
            what = "only mode ddp with launcher srun on one node has this number: render refuses other jobs"
            yield Finding("info", Problem(what, at, "remove the number: sbatchgen counts for each job"))
        else:
            yield finding


def _launchers(profile: Profile, mode: str, partition: str | None) -> list[str]:
    """Return the launchers that have settings of their own; first "", the default one."""
    of_partition = profile.partitions[Text(partition)].launchers if partition else {}
    return ["", *({**profile.launchers, **of_partition} if MODES[mode].launchers else {})]


def _plan(
    profile: Document[Profile], mode: str, partition: str | None, launcher: str, **options: str
) -> ResolvedJob:
    """Plan a job of a mode in a partition, with a value for everything that the profile requires."""
    texts = required(profile.value) | ({} if partition is None else {"partition": partition}) | options
    keys = {f"options.{name}": text for name, text in texts.items()}
    values = {key: parse_scalar(text, key_type(key)) for key, text in keys.items()}
    values |= {"launcher": launcher} if launcher else {}

    def resolved_here() -> ResolvedJob:
        flags = Layer(Level.COMMAND_LINE, values, dict.fromkeys(values, "made up"))
        return resolve(profile, [flags], mode_name=mode, name=mode)

    resolved = resolved_here()
    missing = {name: parse_scalar(text, key_type(name)) for name, text in of_user(resolved).items()}
    values |= missing
    return resolved_here() if missing else resolved


def of_user(resolved: ResolvedJob) -> dict[str, str]:
    """Return a value for the environment or image that the profile leaves to its users, by its key."""
    needed = resolved.runtime.needs(resolved.facts)
    return {needed.key: "made-up"} if needed and not resolved.software.get(needed.key) else {}


def required(profile: Profile) -> dict[str, str]:
    """Return a value for everything that a profile requires, as a command line would give it."""
    values: dict[str, str] = {}
    for name in profile.required:
        for text in _MADE_UP:
            with suppress(ValueError):
                parse_scalar(text, key_type(f"options.{name}"))
                values.setdefault(name, text)
    return values


def _of_script(resolved: ResolvedJob, file: Path, places: Places) -> Iterator[Finding]:
    """Report what is wrong in the lines of the script that the profile writes: `setup`, and its template."""
    request = Request(resolved=resolved, places=places.with_templates_of(file), profile_file=file)
    try:
        script = render_request(request)
    except SbatchgenError as error:
        yield from (Finding("error", problem) for problem in error.problems)
        return
    lines = script.split("\n")
    for finding in lint_rendered(resolved, script) if resolved.slurm else ():
        line = lines[finding.place.line - 1] if finding.place.line else None
        for key in SETUPS:
            if line in getattr(resolved.settings, key):
                problem = finding.problem._replace(at=resolved.origin(key).where)
                yield finding._replace(problem=problem, place=NOWHERE, edits=())
