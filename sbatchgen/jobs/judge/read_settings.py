"""What counts for a call of `lint`: read from its flags, sbatchgen.yaml and a profile with its policies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sbatchgen.base.errors import CommandLineError, DocumentError, Problem, did_you_mean
from sbatchgen.base.finding import Severity
from sbatchgen.base.machine.search_path import in_shell
from sbatchgen.base.units import RELEASES
from sbatchgen.check.lint.lint_settings import Settings
from sbatchgen.check.lint.linter import rules
from sbatchgen.check.rules.comments import RETIRED, is_known
from sbatchgen.check.sbatch.option_table import line_of
from sbatchgen.check.script.job import DEFAULT_SLURM
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import Places, profile_named_in

if TYPE_CHECKING:
    from sbatchgen.jobs.inputs.document import Document

LONGEST_ID = 40  # characters that are shown of one that no rule has


def settings_of(
    places: Places,
    profile: str | None,
    slurm: str | None = None,
    *,
    select: Sequence[str] = (),
    disable: Sequence[str] = (),
    pedantic: bool = False,
    runs_here: bool = False,
) -> Settings:
    """Return what flags and sbatchgen.yaml say; without a profile no cluster is known.

    Of scripts that run here (`runs_here`) the release is then that of the user's only profile.

    Raises:
        CommandLineError: A flag's value makes no sense.
        DocumentError: The profile or sbatchgen.yaml is wrong.
    """
    project, lines = _read_project(places)
    off, severity = _of_project(project, lines)
    document = _read_profile(places, profile, project)
    cluster = document.value if document else None
    known = slurm or (cluster.slurm if cluster else "")
    known = known or (_release_here(places) if runs_here and cluster is None else "")
    release = known or DEFAULT_SLURM
    _refuse_release(release)
    selected, disabled = _ids(select, "--select"), (*off, *_ids(disable, "--disable"))
    removed = RETIRED & {*selected, *disabled, *severity, *(cluster.policies if cluster else ())}
    return Settings(
        profile=cluster,
        places=document.places if document else {},
        slurm=release,
        folder=places.folder,
        assumed=not known,
        selected=selected,
        pedantic=pedantic,
        disabled=disabled,
        severity=severity,
        removed=tuple(sorted(removed)),
    )


def _read_project(places: Places) -> tuple[JobSpec, Mapping[str, str]]:
    if places.project is None:
        return JobSpec(), {}
    from sbatchgen.jobs.inputs.document import read_document  # YAML's reader is slow to load

    document = read_document(places.project, JobSpec)
    return document.value, document.places


def _of_project(project: JobSpec, lines: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, Severity]]:
    """Return the rules that sbatchgen.yaml turns off, and its severities; raises DocumentError."""
    off = {rule.upper(): lines.get("lint.disable", "") for rule in project.lint.disable}
    severities = project.lint.severity
    _refuse_unknown(off | {start.upper(): lines.get(f"lint.severity.{start}", "") for start in severities})
    return tuple(off), {start.upper(): value for start, value in severities.items()}


def _refuse_release(release: str) -> None:
    """Raise CommandLineError for a release of Slurm that rules do not know."""
    try:
        line_of(release)
    except ValueError as error:
        fix = f"one of {', '.join(RELEASES)}"
        raise CommandLineError.of(f"Slurm {release} is not known here", at="--slurm", fix=fix) from error


def _read_profile(places: Places, named: str | None, project: JobSpec) -> Document[Profile] | None:
    name = named or places.environment.get("SBATCHGEN_PROFILE")
    if not name and project.profile and places.project:
        name = profile_named_in(places.project, project.profile)
    return checked(places.profile(name)) if name else None


def _release_here(places: Places) -> str:
    """Return the release of the user's only profile, where there is a Slurm; "" without one."""
    names = places.own_profiles() if in_shell("sbatch", places.environment) else []
    with contextlib.suppress(DocumentError):
        return (len(names) == 1 and checked(places.profile(names[0])).value.slurm) or ""
    return ""


def checked(file: Path, text: str | None = None) -> Document[Profile]:
    """Read a profile whose policies name rules that exist; `text` is what an editor has of it.

    Raises:
        DocumentError: It is wrong.
    """
    from sbatchgen.jobs.inputs.document import read_document

    document = read_document(file, Profile, text)
    _refuse_unknown(
        {rule: document.places.get(f"policies.{rule}", "") for rule in document.value.policies}, whole=True
    )
    return document


def _ids(texts: Iterable[str], flag: str) -> tuple[str, ...]:
    """Return the starts of ids in the values of a flag; raises CommandLineError if no rule's id starts so."""
    ids = tuple(part.strip().upper() for text in texts for part in text.split(",") if part.strip())
    for start in ids:
        if not is_known(start, rules()):
            raise CommandLineError.of(f"no rule '{start}'", at=flag, fix=did_you_mean(start, rules()))
    return ids


def _refuse_unknown(ids: Mapping[str, str], *, whole: bool = False) -> None:
    """Raise DocumentError for ids, by their places, that no rule has; of very many, for the first."""
    if not ids:
        return  # loading all rules takes 20 ms
    known = {*rules(), *RETIRED}
    unknown = [rule for rule in ids if rule not in known and (whole or not is_known(rule, known))]
    if not unknown:
        return
    from sbatchgen.jobs.inputs.nodes import MAX_SHOWN

    problems = [
        Problem(f"no rule '{rule[:LONGEST_ID]}'", ids[rule], did_you_mean(rule[:LONGEST_ID], rules()))
        for rule in unknown[:MAX_SHOWN]
    ]
    if more := len(unknown) - len(problems):
        problems.append(Problem(f"and {more} more ids that no rule has"))
    raise DocumentError(problems)
