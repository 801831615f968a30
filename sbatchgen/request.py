"""The command line of a job: its flags, and the plan that they and the files together make."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import click

from sbatchgen.document import Document, parse_scalar, read
from sbatchgen.errors import CommandLineError, Problem, did_you_mean
from sbatchgen.job import MODES, JobSpec
from sbatchgen.options import NAMES, SbatchOptions
from sbatchgen.plan import Layer, Origin, Plan, Source, layer
from sbatchgen.profile import Profile
from sbatchgen.resolve import resolve
from sbatchgen.search import Places, bundled, is_file_name
from sbatchgen.units import JobName

if TYPE_CHECKING:
    from sbatchgen.trace import TemplateLine

FLAGS = {"exclusive": "--exclusive", "requeue": "--requeue/--no-requeue"}


@dataclass(frozen=True)
class Resolved:
    """A plan, what rendering it needs besides, and who named its profile."""

    plan: Plan
    places: Places
    profile_file: Path
    profile_by: Origin
    code: Path
    rerun: tuple[str, ...]

    def script(self) -> str:
        """The script of the plan."""
        from sbatchgen.render import render

        return render(
            self.plan,
            code=self.code,
            rerun=self.rerun,
            folders=self.places.folders("templates"),
            cache=self.places.cache,
        )

    def trace(self, script: str) -> list[TemplateLine]:
        """Where each line of the plan's script is from."""
        from sbatchgen.trace import trace

        folders = self.places.folders("templates")
        return trace(self.plan, script, code=self.code, rerun=self.rerun, folders=folders)


GROUPS = ("Job", "Launch", "Runtime", "Training", "Slurm")


class JobOption(click.Option):
    """An option of a job: the group of the help that it is in, and whether the short help shows it."""

    def __init__(self, names: list[str], *, group: str, common: bool, **more: Any) -> None:
        super().__init__(names, default=None, **more)
        self.group, self.common = group, common


@functools.cache
def parameters() -> tuple[JobOption, ...]:
    """The options of every command that takes a JOB."""
    of_job = (_of_job(one) for one in fields(JobSpec) if "group" in one.metadata)
    any_key = JobOption(
        ["--set", "settings"],
        group="Job",
        common=False,
        multiple=True,
        metavar="KEY=VALUE",
        help="Any key of a job.",
    )
    return (*of_job, any_key, *map(_of_sbatch, fields(SbatchOptions)))


def _of_job(key: Field[Any]) -> JobOption:
    """The flag of a job's key."""
    about, kind = key.metadata, _of_optional(_hints()[key.name])
    return JobOption(
        [_flag(key), key.name],
        group=about["group"],
        common=about.get("common", False),
        help=about["help"],
        metavar=about.get("metavar"),
        is_flag=kind is bool,
        multiple=get_origin(kind) in (tuple, Mapping),
        shell_complete=completed("profiles") if key.name == "profile" else None,
    )


def _of_sbatch(option: Field[Any]) -> JobOption:
    """The flag of an option of sbatch, which has its name."""
    is_flag = option.name in FLAGS
    return JobOption(
        [FLAGS.get(option.name, _flag(option)), option.name],
        group="Slurm",
        common=option.metadata.get("common", False),
        help=option.metadata["help"],
        metavar=None if is_flag else "VALUE",
        is_flag=is_flag,
        shell_complete=completed("partitions") if option.name == "partition" else None,
    )


def completed(what: str) -> Callable[..., Any]:
    """A function of `completion`, which is loaded once a shell asks."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        from sbatchgen import completion

        return getattr(completion, what)(ctx, param, incomplete)

    return complete


def _flag(key: Field[Any]) -> str:
    return str(key.metadata.get("flag", f"--{key.name.replace('_', '-')}"))


def resolve_request(
    job: str, args: tuple[str, ...], given: Mapping[str, Any], *, environment: Mapping[str, str], folder: Path
) -> Resolved:
    """The plan of a command line.

    Args:
        job: A mode, or a job YAML.
        args: The trainer's arguments.
        given: Values of `parameters`, None or empty where a flag was not given.
        environment: For SBATCHGEN_PROFILE and the search paths.
        folder: The current folder.

    Raises:
        SbatchgenError: Of the command line, or of a file.
    """
    places = Places(folder, environment)
    flags = _flags(args, given)
    job_document = _job(job)
    project = places.project
    nearby = _short(project, folder) if project else None
    project_document = read(nearby, JobSpec) if nearby else None
    documents = [(Source.PROJECT, project_document), (Source.JOB, job_document)]
    layers = [layer(source, one.value, one.places) for source, one in documents if one]
    layers.append(flags)
    said = {key: value for one in layers for key, value in one.values.items()}
    profile_name, profile_by = _profile_name(
        given, environment, (job, job_document), (nearby, project_document)
    )
    profile_file = places.profile(profile_name)
    profile: Document[Profile] = read(profile_file, Profile)
    mode = job if job in MODES else said.get("mode")
    if mode is None:
        fix = f"add a line like 'mode: ddp' (one of {', '.join(MODES)})"
        raise CommandLineError.of(f"{job} does not say its mode", at=job, fix=fix)
    plan = resolve(profile, layers, mode=mode, name=job if job in MODES else _name_of(job))
    rerun = _rerun(job, profile_name, args, given)
    return Resolved(plan, places, profile_file, profile_by, bundled("code"), rerun)


def _profile_name(
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    job: tuple[str | Path | None, Document[JobSpec] | None],
    project: tuple[str | Path | None, Document[JobSpec] | None],
) -> tuple[str, Origin]:
    """The profile's name or file: by flag, by SBATCHGEN_PROFILE, by the job or by sbatchgen.yaml."""
    if named := given.get("profile"):
        return str(named), Origin(Source.COMMAND_LINE, "--profile")
    if named := environment.get("SBATCHGEN_PROFILE"):
        return named, Origin(Source.PROJECT, "SBATCHGEN_PROFILE")
    for source, (file, document) in ((Source.JOB, job), (Source.PROJECT, project)):
        if file and document and document.value.profile:
            return beside(file, document.value.profile), Origin(source, document.places["profile"])
    return "local", Origin(Source.DEFAULT, "nobody names one")


def beside(file: str | Path, profile: str) -> str:
    """A profile as the file that names it means it: a path counts from that file's folder."""
    if not is_file_name(profile):
        return profile
    path = Path(file).parent / profile
    return f"./{path}" if not path.is_absolute() and "/" not in str(path) else str(path)


def _job(job: str) -> Document[JobSpec] | None:
    if job in MODES:
        return None
    path = Path(job)
    if not path.is_file():
        fix = "give a job YAML" if "/" in job or job.endswith((".yaml", ".yml")) else did_you_mean(job, MODES)
        raise CommandLineError.of(f"no job '{job}': it is neither a mode nor a file", fix=fix)
    return read(path, JobSpec)


def _name_of(job: str) -> str:
    try:
        return JobName.parse(Path(job).stem)
    except ValueError as error:
        raise CommandLineError.of(str(error), at=job, fix="add --job-name, or rename the file") from error


def _short(path: Path, folder: Path) -> Path:
    return path.relative_to(folder) if path.parent == folder else path


def _flags(args: tuple[str, ...], given: Mapping[str, Any]) -> Layer:
    """What the flags say, each parsed by the type of its key; all problems at once."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    problems: list[Problem] = []
    for key, value, flag in _said(given, problems):
        try:
            values[key] = value if isinstance(value, bool) else parse_scalar(value, key_type(key))
            places[key] = flag
        except ValueError as error:
            problems.append(Problem(str(error), flag))
    for key, texts, flag in (("args", args, "after --"), ("binds", given.get("binds", ()), "--bind")):
        kind = get_args(_of_optional(_hints()[key]))[0]
        try:
            if texts:
                values[key] = tuple(parse_scalar(text, kind) for text in texts)
                places[key] = flag
        except ValueError as error:
            problems.append(Problem(str(error), flag))
    if problems:
        raise CommandLineError(problems)
    return Layer(Source.COMMAND_LINE, values, places)


def _said(given: Mapping[str, Any], problems: list[Problem]) -> Iterator[tuple[str, Any, str]]:
    """Key, value and flag of everything that was given; what has no key goes to `problems`."""
    flag_of = {one.name: _flag(one) for one in fields(JobSpec)}
    for key, value in given.items():
        if value is not None and key not in ("profile", "env", "settings", "binds"):
            flag = flag_of.get(key, f"--{key.replace('_', '-')}")
            yield (f"options.{key}" if key in NAMES else key), value, flag
    for flag, texts, prefix in (
        ("--env", given.get("env", ()), "env."),
        ("--set", given.get("settings", ()), ""),
    ):
        for text in texts:
            name, equals, value = text.partition("=")
            if equals:
                yield f"{prefix}{name}", value, f"{flag} {name}"
            else:
                problems.append(Problem(f"{flag} {text} has no '='", flag, f"write {flag} NAME=VALUE"))


def _hints() -> dict[str, Any]:
    return JobSpec.__annotations__


def key_type(key: str) -> Any:
    """The type of a key as in "options.nodes", "env.NAME" or "resume".

    Raises:
        ValueError: No such key, or one that holds no single value.
    """
    head, dot, rest = key.partition(".")
    hints = _hints()
    if head == "options" and dot:
        option_hints = SbatchOptions.__annotations__
        if rest not in option_hints:
            raise ValueError(f"unknown option '{rest}': {did_you_mean(rest, option_hints)}")
        return _of_optional(option_hints[rest])
    if head in ("env", "extra_options") and dot:
        name_kind, kind = get_args(hints[head])
        name_kind.parse(rest)
        return kind
    simple = {f.name for f in fields(JobSpec) if f.default is not MISSING} - {"args", "binds", "profile"}
    if key not in simple:
        raise ValueError(f"unknown key '{key}': {did_you_mean(key, [*simple, 'options.nodes', 'env.NAME'])}")
    return _of_optional(hints[key])


def _of_optional(kind: Any) -> Any:
    return (
        next(one for one in (get_args(kind) or (kind,)) if one is not type(None)) if _is_union(kind) else kind
    )


def _is_union(kind: Any) -> bool:
    return type(None) in get_args(kind)


def _rerun(job: str, profile: str, args: tuple[str, ...], given: Mapping[str, Any]) -> tuple[str, ...]:
    """The command that renders the script again, flags in the order of `parameters`."""
    words = ["sbatchgen", "render", job, "--profile", profile]
    for parameter in parameters()[1:]:
        value = given.get(str(parameter.name))
        if value is None or value == ():
            continue
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
            continue
        for one in value if isinstance(value, tuple) else (value,):
            words += [parameter.opts[0], one]
    return (*words, "--", *args) if args else tuple(words)


def with_log(resolved: Resolved, log: str) -> Resolved:
    """The same job with its log at an absolute path, as `submit` wants it."""
    from sbatchgen.units import ShellPath

    plan = resolved.plan
    options = replace(plan.options, output=ShellPath(log))
    return replace(
        resolved, plan=replace(plan, options=options), rerun=(*_before_args(resolved.rerun, "--output", log),)
    )


def _before_args(rerun: tuple[str, ...], *words: str) -> tuple[str, ...]:
    cut = rerun.index("--") if "--" in rerun else len(rerun)
    return (*rerun[:cut], *words, *rerun[cut:])
