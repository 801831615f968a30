"""The check of a profile, for `sbatchgen profile check`: it judges a job of every mode in every partition.

Only findings about the profile's own values are reported. The check makes up values that users have to add,
such as an account.
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
from sbatchgen.check.rules.qos import GPU_LIMIT_RULES
from sbatchgen.check.rules.syntax import bash_complaints
from sbatchgen.jobs.inputs.document import Document, parse_scalar
from sbatchgen.jobs.inputs.flags import key_type
from sbatchgen.jobs.inputs.layers import BY_PARTITION, Layer, Level
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.inputs.search import Places, bundled
from sbatchgen.jobs.inputs.start_settings import SETUPS, PlaceSettings
from sbatchgen.jobs.judge.job_check import check, lint_rendered
from sbatchgen.jobs.judge.read_settings import read_checked_profile
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.render.render import render_request
from sbatchgen.jobs.resolved.request import Request
from sbatchgen.jobs.resolved.resolve import resolve
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

_MIN_GIB = 64  # the smallest memory that is compared with sizes of memory modules
_COUNT_KEYS = ("step.nodes", "step.ntasks", "step.ntasks-per-node")
# Made-up values for options that a profile requires. An option gets the first value that it accepts.
_MADE_UP = ("x", "1", "gpu:1", "true", "append")


def findings(file: Path, places: Places, text: str | None = None) -> list[Finding]:
    """Return the findings of a profile, each once.

    `text` replaces the file's text, for example in an editor. Raises DocumentError: the profile is wrong, or
    can't be read.
    """
    profile = read_checked_profile(file, text)
    all_findings = [
        *_name_findings(profile, file),
        *_date_findings(profile),
        *_setup_findings(profile),
        *_source_findings(profile),
        *_memory_findings(profile),
    ]
    for rule in sorted(RETIRED.intersection(profile.value.policies)):
        at = profile.places.get(f"policies.{rule}", "")
        all_findings.append(Finding("info", Problem(removal(rule), at, "remove the policy")))
    for mode in MODES:
        for partition in (*profile.value.partitions,) or (None,):
            for launcher in _launchers(profile.value, mode, partition):
                resolved = _resolved_job(profile, mode, partition, launcher)
                job_findings = check(resolved, log_folders_made=True)
                all_findings += [
                    finding for finding in job_findings if finding.problem.at.startswith(f"{file}:")
                ]
                all_findings += _gpu_findings(job_findings, profile, partition)
                all_findings += _script_findings(resolved, file, places)
    all_findings = [*_softened_for_one_node(all_findings, profile)]
    return [*{finding.problem: finding for finding in all_findings}.values()]


def _name_findings(profile: Document[Profile], file: Path) -> Iterator[Finding]:
    """Warn if the profile has the name of a bundled profile, because reviews show the name only."""
    name, folder = profile.value.name, bundled("profiles")
    is_bundled = file.stem == name or file.resolve().parent == folder.resolve()
    if (folder / f"{name}.yaml").is_file() and not is_bundled:
        what = f"name: '{name}' is the name of a bundled profile"
        yield Finding("warning", Problem(what, profile.places["name"], "give your cluster a name of its own"))


def _date_findings(profile: Document[Profile]) -> Iterator[Finding]:
    """Warn if `checked`, the day on which the facts were verified, is not a day in the past."""
    text, fix = profile.value.checked, "write the day on which you last compared them, as 2026-01-31"
    with suppress(ValueError):
        Moment.parse(text)
        if profile.value.age_days >= -1:  # in the author's time zone it may be tomorrow already
            return
    what = f"checked: '{text}' is not a day in the past, so no command can say that the facts are old"
    yield Finding("warning", Problem(what, profile.places["checked"], fix))


def _setup_findings(profile: Document[Profile]) -> Iterator[Finding]:
    """Report lines of shell that bash can't parse. bash reads the lines without running them."""
    records: dict[str, PlaceSettings] = {"": profile.value}  # such as "partitions.gpu." -> its settings
    for kind in ("partitions", "modes"):
        records |= {f"{kind}.{name}.": record for name, record in getattr(profile.value, kind).items()}
    shell_values = {
        f"{start}{name}": getattr(record, name)
        for start, record in records.items()
        for name in (*SETUPS, "master_addr")
    }
    for key, value in shell_values.items():
        # The script has the command of `master_addr` in $(...).
        text = f"$({value}\n)" if isinstance(value, str) else "\n".join(value or ())
        if not text:
            continue
        for line, message in bash_complaints(text)[:1]:
            if not message:
                continue  # bash was too slow
            what = f"{key}: bash can't read it: line {line}: {message}"
            at = profile.places.get(key) or profile.places[f"{key}+"]
            yield Finding("error", Problem(what, at, "write whole commands, one a line"))


def _source_findings(profile: Document[Profile]) -> Iterator[Finding]:
    """Warn about each source that is named for a key that the profile does not set."""
    for number, source in enumerate(profile.value.sources):
        for key in source.keys:
            if not any(f"{set_key}.".startswith(f"{key}.") for set_key in profile.places):
                at = profile.places[f"sources[{number}].keys"]
                what = f"sources: the profile does not set '{key}'"
                yield Finding("warning", Problem(what, at, "write keys as partitions.gpu.time_max"))


def _memory_findings(profile: Document[Profile]) -> Iterator[Finding]:
    """Warn if `mem_per_node` looks like a node's installed memory, because jobs can get only a part of that.

    A partition with names of nodes is left out, because `profile discover` took its facts from Slurm.
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
                what = f"{start}mem_per_node: {kind.mem_per_node} looks like the installed memory. "
                what += "Slurm gives jobs less, so a job that asks for all of it never starts"
                fix = f"write mem_installed: {kind.mem_per_node}, or RealMemory of scontrol show node as "
                fix += "mem_per_node"
                yield Finding("warning", Problem(what, at, fix))


def is_installed_size(mib: int) -> bool:
    """Return whether an amount of memory is typical of memory modules: 2^n GiB or 3 * 2^n GiB."""
    gib, rest = divmod(mib, 1024)
    possible_powers = (gib, gib // 3 if gib % 3 == 0 else 0)
    is_usual = any(number.bit_count() == 1 for number in possible_powers)  # 2^n has a single bit
    return rest == 0 and gib >= _MIN_GIB and is_usual


def _gpu_findings(
    job_findings: Iterable[Finding], profile: Document[Profile], name: str | None
) -> Iterator[Finding]:
    """Yield a job's errors about GPUs that follow only from the facts of a partition.

    `name` is the name of the partition. Its place in the profile becomes the place of the errors.
    """
    partition = profile.value.partitions[Text(name)] if name else Partition()
    at = profile.places.get(f"partitions.{name}", "")
    has_gpus = any(kind.gpus_per_node for kind in partition.node_kinds())
    if not has_gpus:
        return
    for finding in job_findings:
        is_derived = finding.problem.at == str(BY_PARTITION)
        if finding.severity == "error" and finding.rule not in GPU_LIMIT_RULES and is_derived:
            yield finding._replace(problem=finding.problem._replace(at=at))


def _softened_for_one_node(all_findings: Sequence[Finding], profile: Document[Profile]) -> Iterator[Finding]:
    """Yield the findings. An error about a fixed number becomes an info if a job on one node has that number.

    For example, `step: {ntasks: 4}` fits jobs of mode ddp on one node with four GPUs, and no other jobs.
    """
    count_places = {at for key, at in profile.places.items() if key.endswith(_COUNT_KEYS)}
    refused = {finding.problem.at for finding in all_findings if finding.severity == "error"} & count_places
    fitting_one_node: set[str] = set()  # places of numbers
    if refused:
        for partition in (*profile.value.partitions,) or (None,):
            one_node_job = _resolved_job(profile, "ddp", partition, "srun", nodes="1")
            job_findings = check(one_node_job, log_folders_made=True)
            fitting_one_node |= refused - {finding.problem.at for finding in job_findings}
    for finding in all_findings:
        at = finding.problem.at
        if at in fitting_one_node:
            what = "only mode ddp with launcher srun on one node has this number: render refuses other jobs"
            yield Finding("info", Problem(what, at, "remove the number: sbatchgen computes it for each job"))
        else:
            yield finding


def _launchers(profile: Profile, mode: str, partition: str | None) -> list[str]:
    """Return the launchers to check: "" for the default launcher, and each launcher with settings."""
    in_partition = profile.partitions[Text(partition)].launchers if partition else {}
    return ["", *({**profile.launchers, **in_partition} if MODES[mode].launchers else {})]


def _resolved_job(
    profile: Document[Profile], mode: str, partition: str | None, launcher: str, **options: str
) -> ResolvedJob:
    """Return a resolved job of a mode in a partition, with made-up values for options that are required."""
    texts = required_options(profile.value) | options
    texts |= {} if partition is None else {"partition": partition}
    keys = {f"options.{name}": text for name, text in texts.items()}
    values = {key: parse_scalar(text, key_type(key)) for key, text in keys.items()}
    values |= {"launcher": launcher} if launcher else {}

    def resolve_values() -> ResolvedJob:
        flags = Layer(Level.COMMAND_LINE, values, dict.fromkeys(values, "made up"))
        return resolve(profile, [flags], mode_name=mode, name=mode)

    resolved = resolve_values()
    missing = made_up_environment(resolved)
    values |= {name: parse_scalar(text, key_type(name)) for name, text in missing.items()}
    return resolve_values() if missing else resolved


def made_up_environment(resolved: ResolvedJob) -> dict[str, str]:
    """Return the key of the environment or image that users must name, with a made-up value; {} for none."""
    required = resolved.runtime.needs(resolved.facts)
    return {required.key: "made-up"} if required and not resolved.software.get(required.key) else {}


def required_options(profile: Profile) -> dict[str, str]:
    """Return a made-up value for each option of sbatch that a profile requires: {"account": "x"}."""
    values: dict[str, str] = {}
    for name in profile.required:
        for text in _MADE_UP:
            with suppress(ValueError):
                parse_scalar(text, key_type(f"options.{name}"))
                values.setdefault(name, text)
    return values


def _script_findings(resolved: ResolvedJob, file: Path, places: Places) -> Iterator[Finding]:
    """Report faults of a job's script in lines that come from the profile's lines of shell.

    A template of the profile that can't be rendered is reported as well.
    """
    request = Request(resolved=resolved, places=places.with_templates_of(file), profile_file=file)
    try:
        script = render_request(request)
    except SbatchgenError as error:
        yield from (Finding("error", problem) for problem in error.problems)
        return
    lines = script.split("\n")
    if not resolved.uses_slurm:
        return
    for finding in lint_rendered(resolved, script):
        line = lines[finding.place.line - 1] if finding.place.line else None
        for key in SETUPS:
            if line in getattr(resolved.settings, key):
                problem = finding.problem._replace(at=resolved.origin(key).where)
                yield finding._replace(problem=problem, place=NOWHERE, edits=())
