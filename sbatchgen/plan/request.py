"""A request: the plan that a command line, sbatchgen.yaml, a job and a profile together make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sbatchgen.errors import CommandLineError, did_you_mean
from sbatchgen.inputs.document import Document, read
from sbatchgen.inputs.flags import layer_of, parameters
from sbatchgen.inputs.job import MODES, JobSpec
from sbatchgen.inputs.layers import Level, Origin, layer
from sbatchgen.inputs.profile import Profile
from sbatchgen.inputs.search import Places, bundled, is_file_name
from sbatchgen.plan.plan import Plan
from sbatchgen.plan.resolve import resolve
from sbatchgen.units import JobName


@dataclass(frozen=True)
class Resolved:
    """A plan, what rendering it needs besides, and who named its profile."""

    plan: Plan
    places: Places
    profile_file: Path
    profile_by: Origin
    code: Path
    rerun: tuple[str, ...]


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
    flags = layer_of(args, given)
    job_document = _job(job)
    project = places.project
    nearby = _short(project, folder) if project else None
    project_document = read(nearby, JobSpec) if nearby else None
    documents = [(Level.PROJECT, project_document), (Level.JOB, job_document)]
    layers = [layer(level, one.value, one.places) for level, one in documents if one]
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
        return str(named), Origin(Level.COMMAND_LINE, "--profile")
    if named := environment.get("SBATCHGEN_PROFILE"):
        return named, Origin(Level.PROJECT, "SBATCHGEN_PROFILE")
    for level, (file, document) in ((Level.JOB, job), (Level.PROJECT, project)):
        if file and document and document.value.profile:
            return beside(file, document.value.profile), Origin(level, document.places["profile"])
    return "local", Origin(Level.DEFAULT, "nobody names one")


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
