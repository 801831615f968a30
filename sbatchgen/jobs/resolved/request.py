"""A request: the resolved job that a command line, sbatchgen.yaml, a job and a profile together make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sbatchgen.base.errors import CommandLineError, did_you_mean, nearest
from sbatchgen.base.machine.search_path import in_shell
from sbatchgen.base.quoting import first_names
from sbatchgen.base.texts import JobName
from sbatchgen.base.units import OptionValue, ShellPath, is_utf8
from sbatchgen.jobs.inputs.document import Document, read_document
from sbatchgen.jobs.inputs.flags import layer_of, parameters
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.layers import BY_DEFAULT, Layer, Level, Origin, layer
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import PROJECT_FILE, Places, beside
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.resolved.resolve import named_partition, resolve
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

if TYPE_CHECKING:
    from sbatchgen.jobs.resolved.choice import Check
    from sbatchgen.jobs.resolved.sweep import Sweep

ONLY_PROFILE = "it is your only profile"


class Request(NamedTuple):
    """A resolved job, with the places and words that its script needs."""

    resolved: ResolvedJob
    places: Places  # where templates are looked for
    profile_file: Path  # the file of its profile
    profile_by: Origin = BY_DEFAULT  # who named the profile
    rerun: tuple[str, ...] = ()  # the command that renders the script again


def read_request(
    job: str,
    args: tuple[str, ...],
    given: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    folder: Path,
    check: Check,
    read_trainer: Callable[[ResolvedJob], Layer | None] | None = None,
    text: str | None = None,
) -> Request:
    """Return the request of a command line.

    Of a mode or a job YAML, the values of `parameters`, and arguments.

    The rules of `check` choose a partition if the job names none. `read_trainer` returns what follows from
    the trainer's text, as the lowest layer. An editor has `text` as the job YAML. Raises SbatchgenError: the
    command line or a file is wrong.
    """
    places = Places(folder, environment)
    flags = layer_of(args, given)
    layers = _layers(job, flags, places, text)
    name, profile_by = _profile_name(given, places, layers)
    profile_file = places.profile(name)
    profile = read_document(profile_file, Profile)
    mode, name_of_job = _mode(job, flags, layers), _name_of_job(job)

    resolved = _in_its_partition(profile, layers, mode, name_of_job, check)
    is_read = resolved.trainer and not _has_programs(layers)
    if is_read and read_trainer and (seen := read_trainer(resolved)):
        resolved = _in_its_partition(profile, [seen, *layers], mode, name_of_job, check)
    return Request(
        resolved=_with_own_runs(resolved, folder),
        places=places.with_templates_of(profile_file),
        profile_file=profile_file,
        profile_by=profile_by,
        rerun=_rerun(job, name, args, given),
    )


def _layers(job: str, flags: Layer, places: Places, text: str | None) -> list[Layer]:
    """Return the layers of sbatchgen.yaml, of the job YAML and of the command line, the lowest first."""
    layers = [flags]
    if job not in MODES:
        layers.insert(0, _read(Level.JOB, _job_file(job) if text is None else Path(job), text))
    if project := places.project:
        nearby = Path(PROJECT_FILE) if project.parent == places.folder else project
        layers.insert(0, _read(Level.PROJECT, nearby))
    return layers


def _mode(job: str, flags: Layer, layers: Sequence[Layer]) -> str:
    """Return the mode of a job: that of the command line, else of its file; for programs their own mode."""
    modes = [each.values["mode"] for each in layers if "mode" in each.values]
    written = modes[-1] if modes else "single" if _has_programs(layers) else None
    mode: str | None = flags.values.get("mode") or (job if job in MODES else written)
    if mode is None:
        fix = f"add a line like 'mode: ddp' (one of {', '.join(MODES)})"
        raise CommandLineError.of(f"{job} does not set a mode", at=job, fix=fix)
    return mode


def _name_of_job(job: str) -> str:
    """Return the name that a job has by default: the name of its mode, or of its file."""
    try:
        return job if job in MODES else JobName.parse(Path(job).stem)
    except ValueError as error:
        raise CommandLineError.of(str(error), at=job, fix="add --job-name, or rename the file") from error


def _with_own_runs(resolved: ResolvedJob, folder: Path) -> ResolvedJob:
    """Return a job with its run folder in the user's own folder, unless the job or the profile names one."""
    if resolved.origin("run_dir").level > Level.DEFAULT or resolved.profile.paths.runs:
        return resolved
    from sbatchgen.jobs.resolved.own_runs import own_runs  # few profiles leave the place to it

    name = str(resolved.options.job_name)
    runs, why = own_runs(folder, name)
    if not why:
        return resolved
    origins = {**resolved.origins, "run_dir": Origin(Level.DEFAULT, why)}
    return replace(resolved, run_dir=ShellPath(f"{runs}/{name}"), origins=origins)


def _in_its_partition(
    profile: Document[Profile], layers: Sequence[Layer], mode: str, name: str, check: Check
) -> ResolvedJob:
    def resolved_in(partition: str) -> ResolvedJob:
        if _has_programs(layers):
            from sbatchgen.jobs.resolved.programs import resolve_programs

            return resolve_programs(profile, layers, mode_name=mode, name=name, chosen=partition)
        return resolve(profile, layers, mode_name=mode, name=name, chosen=partition)

    if named_partition(layers) or {*profile.value.partitions} <= {profile.value.default_partition}:
        return resolved_in("")
    from sbatchgen.jobs.resolved.choice import chosen

    return chosen(resolved_in, check)


def _has_programs(layers: Sequence[Layer]) -> bool:
    return any(key.startswith("programs.") for each in layers for key in each.values)


def _read(level: Level, path: Path, text: str | None = None) -> Layer:
    document = read_document(path, JobSpec, text)
    return layer(level, document.value, document.places)


def _job_file(job: str) -> Path:
    path = Path(job)
    if not path.is_file():
        fix = did_you_mean(job, MODES)
        if path.suffix or "/" in job:
            files = {file.stem: file for file in path.parent.glob(f"*{path.suffix[:2]}*")}  # .yml: .yaml too
            near = files.get(nearest(path.stem, files))
            fix = f"did you mean '{near}'?" if near else "name a mode, or a file that exists"
        raise CommandLineError.of(f"no job '{job}': it is neither a mode nor a file", fix=fix)
    return path


def _profile_name(given: Mapping[str, Any], places: Places, layers: list[Layer]) -> tuple[str, Origin]:
    """Return the profile's name or file: of the flag, SBATCHGEN_PROFILE, the job or sbatchgen.yaml."""
    if named := given.get("profile"):
        return str(named), Origin(Level.COMMAND_LINE, "--profile")
    if named := places.environment.get("SBATCHGEN_PROFILE"):
        return named, Origin(Level.PROJECT, "SBATCHGEN_PROFILE")
    for each in reversed(layers):
        if named := each.values.get("profile"):
            where = each.places["profile"]
            return beside(Path(where.rpartition(":")[0]), named), Origin(each.level, where)
    return _profile_by_default(places)


def _profile_by_default(places: Places) -> tuple[str, Origin]:
    """Return `local` without Slurm, else the user's only profile.

    No job trains on a login node by mistake.
    """
    if not in_shell("sbatch", places.environment):
        return "local", Origin(Level.DEFAULT, "no profile is set")
    names = places.own_profiles()
    if len(names) == 1:
        return names[0], Origin(Level.DEFAULT, ONLY_PROFILE)
    if names:
        what = f"no profile is named, and you have several: {first_names(names, 5)}"
        fix = f"add --profile {names[0]}, or export SBATCHGEN_PROFILE={names[0]}"
        raise CommandLineError.of(what, fix=fix)
    fix = f"describe this cluster: sbatchgen profile discover --name mycluster --write {places.new_profile}"
    fix += (
        "; or add --profile with a name that sbatchgen profile list shows; --profile local runs the job here"
    )
    raise CommandLineError.of("no profile is named: which cluster is the job for?", fix=fix)


def _rerun(job: str, profile: str, args: tuple[str, ...], given: Mapping[str, Any]) -> tuple[str, ...]:
    words = ["sbatchgen", "render", job, "--profile", profile]
    for parameter in parameters()[1:]:
        value = given.get(str(parameter.name))
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        elif value is not None:
            for text in value if isinstance(value, tuple) else (value,):
                words += [parameter.opts[0], text]
    if args:
        words += ["--", *args]
    for word in words:
        if not is_utf8(word):
            raise CommandLineError.of(f"'{word}' is not UTF-8", fix="give the file or folder another name")
    return tuple(words)


def with_sweep(request: Request, sweep: Sweep, array: str, words: Sequence[str]) -> Request:
    """Return the request of a sweep, from that of its first array.

    `words` are the options that gave the points.
    """
    cut = _end_of_options(request.rerun)
    at = request.rerun.index("--array")
    options = (*request.rerun[2:at], *request.rerun[at + 2 : cut])
    by = Origin(Level.COMMAND_LINE, f"{sweep.chosen:,} points")
    origins = {**request.resolved.origins, "options.array": by}
    chosen = replace(request.resolved.options, array=OptionValue(array))
    return request._replace(
        resolved=replace(request.resolved, sweep=sweep, options=chosen, origins=origins),
        rerun=("sbatchgen", "sweep", *options, *words, *request.rerun[cut:]),
    )


def with_words(request: Request, resolved: ResolvedJob, *words: str) -> Request:
    """Return the request of a resolved job that differs by options: `words` say so on a command line."""
    rerun, cut = request.rerun, _end_of_options(request.rerun)
    return request._replace(resolved=resolved, rerun=(*rerun[:cut], *words, *rerun[cut:]))


def typed(run: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the words of a command with these options and their values, in place of those of their names."""
    cut = _end_of_options(run)
    kept = [
        word
        for before, word in zip(("", *run), run[:cut], strict=False)
        if word not in options[::2] and before not in options[::2]
    ]
    return [*kept, *options, *run[cut:]]


def _end_of_options(rerun: Sequence[str]) -> int:
    """Return the place of the `--` before the trainer's arguments, or of the end."""
    return rerun.index("--") if "--" in rerun else len(rerun)
