"""Makes a request: the resolved job that a command line, sbatchgen.yaml, a job file and a profile describe.

`read_request` reads these files, finds the profile, and resolves the job. The other functions change a
request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sbatchgen.base.errors import CommandLineError, did_you_mean, nearest
from sbatchgen.base.machine.search_path import in_shell
from sbatchgen.base.quoting import first_names
from sbatchgen.base.quoting import word as quoted
from sbatchgen.base.texts import JobName
from sbatchgen.base.units import OptionValue, ShellPath, is_utf8
from sbatchgen.jobs.inputs.document import Document, read_document
from sbatchgen.jobs.inputs.flags import layer_of, parameters
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.layers import BY_DEFAULT, Layer, Level, Origin, job_layer
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import PROJECT_FILE, Places, profile_named_in
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.resolved.resolve import named_partition, resolve
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

if TYPE_CHECKING:
    from sbatchgen.jobs.resolved.choice import Check
    from sbatchgen.jobs.resolved.sweep import Sweep

_FIRST_OPTION = 3  # the index of the first option of a command: sbatchgen render JOB --profile ...
ONLY_PROFILE = "it is your only profile"  # why a profile was taken that the user has not named


class Request(NamedTuple):
    """A resolved job, with the folders of its templates and the command in its script."""

    resolved: ResolvedJob
    places: Places  # where templates are searched for
    profile_file: Path
    profile_by: Origin = BY_DEFAULT  # where the user named the profile, or why the default was taken
    # The command that makes the same request again: ("sbatchgen", "render", "ddp", "--profile", ...).
    rerun: tuple[str, ...] = ()


def read_request(
    job: str,
    args: tuple[str, ...],
    job_options: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    folder: Path,
    check: Check,
    read_trainer: Callable[[ResolvedJob], Layer | None] | None = None,
    text: str | None = None,
) -> Request:
    """Return the request of a command line.

    `job` is a mode or the path of a job file, `args` are the trainer's arguments, and `job_options` has the
    values of the options by the names of `parameters`. `check` returns the findings of a job, which decide
    the partition if the job names none. `read_trainer` returns the lowest layer: the settings that follow
    from the text of the trainer. `text` is the text of the job file, if an editor has not saved it yet.

    Raises SbatchgenError if the command line or a file is wrong.
    """
    places = Places(folder, environment)
    flags = layer_of(args, job_options)
    layers = _layers(job, flags, places, text)
    name, profile_by = _profile_name(job_options, places, layers)
    profile_file = places.profile(name)
    profile = read_document(profile_file, Profile, folder=folder)
    mode, job_name = _mode(job, flags, layers), _default_job_name(job)

    resolved = _resolved_in_partition(profile, layers, mode, job_name, check)
    has_one_trainer = resolved.trainer and not _has_programs(layers)
    if has_one_trainer and read_trainer and (trainer_layer := read_trainer(resolved)):
        resolved = _resolved_in_partition(profile, [trainer_layer, *layers], mode, job_name, check)
    return Request(
        resolved=_with_own_runs(resolved, folder),
        places=places.with_templates_of(profile_file),
        profile_file=profile_file,
        profile_by=profile_by,
        rerun=_render_command(job, name, args, job_options),
    )


def _layers(job: str, flags: Layer, places: Places, text: str | None) -> list[Layer]:
    """Return the layers of sbatchgen.yaml, of the job file and of the command line, the lowest first.

    Only the command line always has a layer. `text` is the text of the job file, if an editor has not saved
    it yet.
    """
    layers, folder = [flags], places.folder
    if job not in MODES:  # then it is the name of a job file
        job_file = _job_file(job, folder) if text is None else Path(job)
        layers.insert(0, _read_layer(Level.JOB, job_file, folder, text))
    if project := places.project:
        shown_path = Path(PROJECT_FILE) if project.parent == folder else project
        layers.insert(0, _read_layer(Level.PROJECT, shown_path, folder))
    return layers


def _mode(job: str, flags: Layer, layers: Sequence[Layer]) -> str:
    """Return the mode from the command line or the job; "single" for several programs without a mode."""
    modes = [layer.values["mode"] for layer in layers if "mode" in layer.values]
    if _has_programs(layers):
        modes.insert(0, "single")  # below all layers, so that each layer overrides it
    written = modes[-1] if modes else None
    mode: str | None = flags.values.get("mode") or (job if job in MODES else written)
    if mode is None:
        fix = f"add a line like 'mode: ddp' (one of {', '.join(MODES)})"
        raise CommandLineError.of(f"{job} does not set a mode", at=job, fix=fix)
    return mode


def _default_job_name(job: str) -> str:
    """Return the name of a job without --job-name: its mode, or the name of its file without the ending."""
    try:
        return job if job in MODES else JobName.parse(Path(job).stem)
    except ValueError as error:
        raise CommandLineError.of(str(error), at=job, fix="add --job-name, or rename the file") from error


def _with_own_runs(resolved: ResolvedJob, folder: Path) -> ResolvedJob:
    """Return the job with a run folder that belongs to this user, unless the job or the profile names one."""
    if resolved.origin("run_dir").level > Level.DEFAULT or resolved.profile.paths.runs:
        return resolved
    from sbatchgen.jobs.resolved.own_runs import own_runs  # not needed with paths.runs, as in most profiles

    name = str(resolved.options.job_name)
    runs, why = own_runs(folder, name)
    if not why:
        return resolved
    origins = {**resolved.origins, "run_dir": Origin(Level.DEFAULT, why)}
    return replace(resolved, run_dir=ShellPath(f"{runs}/{name}"), origins=origins)


def _resolved_in_partition(
    profile: Document[Profile], layers: Sequence[Layer], mode: str, name: str, check: Check
) -> ResolvedJob:
    """Return the job resolved for the partition that it names, or for one that sbatchgen chooses."""

    def resolve_in(partition: str) -> ResolvedJob:  # "" stands for the named or the default partition
        if _has_programs(layers):
            from sbatchgen.jobs.resolved.programs import resolve_programs

            return resolve_programs(profile, layers, mode_name=mode, name=name, chosen=partition)
        return resolve(profile, layers, mode_name=mode, name=name, chosen=partition)

    has_only_default = {*profile.value.partitions} <= {profile.value.default_partition}
    if named_partition(layers) or has_only_default:
        return resolve_in("")
    from sbatchgen.jobs.resolved.choice import choose_partition

    return choose_partition(resolve_in, check)


def _has_programs(layers: Sequence[Layer]) -> bool:
    """Return whether a layer has the key `programs`, so that the job has several programs."""
    return any(key.startswith("programs.") for layer in layers for key in layer.values)


def _read_layer(level: Level, path: Path, folder: Path, text: str | None = None) -> Layer:
    """Return the layer of a job file or of sbatchgen.yaml; `text` counts instead of the file's text.

    `path` is relative to `folder`.
    """
    document = read_document(path, JobSpec, text, folder=folder)
    return job_layer(level, document.value, document.places)


def _job_file(job: str, folder: Path) -> Path:
    """Return the path of a job file relative to a folder; raise CommandLineError if it is not a file."""
    path = Path(job)
    if not (folder / path).is_file():
        from glob import escape  # only a wrong name needs the module

        fix = did_you_mean(job, MODES)
        if path.suffix or "/" in job:
            # A user may have typed job.yml for job.yaml, so files with endings such as .y* are similar.
            similar_files = (folder / path.parent).glob(f"*{escape(path.suffix[:2])}*")
            files = {file.stem: path.parent / file.name for file in similar_files}
            near = files.get(nearest(path.stem, files))
            fix = f"did you mean '{near}'?" if near else "name a mode, or a file that exists"
        raise CommandLineError.of(f"no job '{job}': it is neither a mode nor a file", fix=fix)
    return path


def _profile_name(job_options: Mapping[str, Any], places: Places, layers: list[Layer]) -> tuple[str, Origin]:
    """Return the name or the file of the profile, and where the user has named it.

    The order is: --profile, SBATCHGEN_PROFILE, the job file, sbatchgen.yaml. Without a name, the default is
    taken.
    """
    if named := job_options.get("profile"):
        return str(named), Origin(Level.COMMAND_LINE, "--profile")
    if named := places.environment.get("SBATCHGEN_PROFILE"):
        return named, Origin(Level.PROJECT, "SBATCHGEN_PROFILE")
    for layer in reversed(layers):
        if named := layer.values.get("profile"):
            where = layer.places["profile"]
            return profile_named_in(Path(where.rpartition(":")[0]), named), Origin(layer.level, where)
    return _profile_by_default(places)


def _profile_by_default(places: Places) -> tuple[str, Origin]:
    """Return the name of the default profile, and the reason as its origin.

    On a machine without Slurm it is `local`, and on other machines the user's only profile. `local` is not
    the default on a machine with Slurm, because the job would then train on a login node. Raises
    CommandLineError if the user has no profile or several.
    """
    if not in_shell("sbatch", places.environment):
        return "local", Origin(Level.DEFAULT, "no profile is set")
    names = places.own_profiles()
    if len(names) == 1:
        return names[0], Origin(Level.DEFAULT, ONLY_PROFILE)
    if names:
        what = f"no profile is named, and you have several: {first_names(names, 5)}"
        name = quoted(names[0])
        fix = f"add --profile {name}, or export SBATCHGEN_PROFILE={name}"
        raise CommandLineError.of(what, fix=fix)
    new_file = quoted(str(places.new_profile))
    fix = f"describe this cluster: sbatchgen profile discover --name mycluster --write {new_file}"
    fix += (
        "; or add --profile with a name that sbatchgen profile list shows; --profile local runs the job here"
    )
    raise CommandLineError.of("no profile is named: which cluster is the job for?", fix=fix)


def _render_command(
    job: str, profile: str, args: tuple[str, ...], job_options: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the words of the command that renders this job; raise CommandLineError if one is not UTF-8."""
    words = ["sbatchgen", "render", job, "--profile", profile]
    for parameter in parameters()[1:]:  # without --profile, which is the first
        value = job_options.get(str(parameter.name))
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        elif value is not None:
            for text in value if isinstance(value, tuple) else (value,):
                words += _words_of_option(parameter.opts[0], text)
    if args:
        words += ["--", *args]
    for word in words:
        if not is_utf8(word):
            raise CommandLineError.of(f"'{word}' is not UTF-8", fix="give the file or folder another name")
    return tuple(words)


def _words_of_option(name: str, value: str) -> tuple[str, ...]:
    """Return an option of a command, with its value.

    The value `--` is written as in --comment=--, because a word `--` begins the trainer's arguments.
    """
    return (f"{name}=--",) if value == "--" else (name, value)


def with_sweep(request: Request, sweep: Sweep, array: str, words: Sequence[str]) -> Request:
    """Return the request of a sweep, from a request whose --array is a placeholder.

    `array` is the value of --array, and `words` are the options that name the points, such as --param.
    """
    (_, _, job, *_), end = request.rerun, _end_of_options(request.rerun)
    options_but_array = [
        word
        for option in _options(request.rerun)
        if option[0].partition("=")[0] != "--array"
        for word in option
    ]
    array_origin = Origin(Level.COMMAND_LINE, f"{sweep.submitted_points:,} points")
    origins = {**request.resolved.origins, "options.array": array_origin}
    options = replace(request.resolved.options, array=OptionValue(array))
    return request._replace(
        resolved=replace(request.resolved, sweep=sweep, options=options, origins=origins),
        rerun=("sbatchgen", "sweep", job, *options_but_array, *words, *request.rerun[end:]),
    )


def with_options(request: Request, resolved: ResolvedJob, *words: str) -> Request:
    """Return the request with another resolved job, and with the options `words` that lead to this job."""
    rerun, end = request.rerun, _end_of_options(request.rerun)
    return request._replace(resolved=resolved, rerun=(*rerun[:end], *words, *rerun[end:]))


def with_replaced_options(command: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the words of a command in which some options have other values.

    `options` has their long names and values by turns: ["--nodes", "2", "--time", "01:00:00"].
    """
    names = options[::2]
    kept_words = [
        word for option in _options(command) if option[0].partition("=")[0] not in names for word in option
    ]
    return [*command[:_FIRST_OPTION], *kept_words, *options, *command[_end_of_options(command) :]]


def _options(command: Sequence[str]) -> list[Sequence[str]]:
    """Return the options of a command, each with its value if it takes one.

    A value may look like the name of an option: ["--comment", "--nodes"] is one option.
    """
    switches = {
        name for option in parameters() if option.is_flag for name in (*option.opts, *option.secondary_opts)
    }
    options, index = [], _FIRST_OPTION
    while index < len(command) and command[index] != "--":
        word_count = 1 if command[index] in switches or "=" in command[index] else 2
        options.append(command[index : index + word_count])
        index += word_count
    return options


def _end_of_options(command: Sequence[str]) -> int:
    """Return the index of the `--` before the trainer's arguments; without `--`, the number of words."""
    return _FIRST_OPTION + sum(map(len, _options(command)))
