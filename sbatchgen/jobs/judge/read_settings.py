"""The reader of `lint`'s settings: from flags, sbatchgen.yaml, and the profile with its policies."""

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

LONGEST_ID = 40  # characters of an unknown id that a message shows


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
    """Return the settings of `lint`. Without a profile, they have no facts of a cluster.

    `profile` and `slurm` are the values of the flags with these names. If the scripts run on this cluster
    (`runs_here`) and no profile is named, Slurm's release is that of the user's only profile.

    Raises CommandLineError for a wrong value of a flag, DocumentError for a wrong profile or sbatchgen.yaml.
    """
    project, lines = _read_project(places)
    off, severity = _project_rules(project, lines)
    document = _read_profile(places, profile, project)
    cluster = document.value if document else None
    known = slurm or (cluster.slurm if cluster else "")
    known = known or (_release_here(places) if runs_here and cluster is None else "")
    release = known or DEFAULT_SLURM
    _refuse_release(release)
    selected, disabled = _rule_starts(select, "--select"), (*off, *_rule_starts(disable, "--disable"))
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
    """Return sbatchgen.yaml and the places of its keys; an empty job if there is no such file."""
    if places.project is None:
        return JobSpec(), {}
    from sbatchgen.jobs.inputs.document import read_document  # YAML's reader is slow to load

    document = read_document(places.project, JobSpec)
    return document.value, document.places


def _project_rules(project: JobSpec, lines: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, Severity]]:
    """Return the starts of ids that sbatchgen.yaml turns off, and its severities by start of id.

    Raises DocumentError: no rule has such an id.
    """
    off = {rule.upper(): lines.get("lint.disable", "") for rule in project.lint.disable}
    severities = project.lint.severity
    _refuse_unknown(off | {start.upper(): lines.get(f"lint.severity.{start}", "") for start in severities})
    return tuple(off), {start.upper(): value for start, value in severities.items()}


def _refuse_release(release: str) -> None:
    """Raise CommandLineError for a release of Slurm that sbatchgen does not know."""
    try:
        line_of(release)
    except ValueError as error:
        fix = f"one of {', '.join(RELEASES)}"
        raise CommandLineError.of(f"Slurm {release} is not known here", at="--slurm", fix=fix) from error


def _read_profile(places: Places, named: str | None, project: JobSpec) -> Document[Profile] | None:
    """Return the profile that the flag, SBATCHGEN_PROFILE or sbatchgen.yaml names, or None."""
    name = named or places.environment.get("SBATCHGEN_PROFILE")
    if not name and project.profile and places.project:
        name = profile_named_in(places.project, project.profile)
    return read_checked_profile(places.profile(name)) if name else None


def _release_here(places: Places) -> str:
    """Return Slurm's release in the user's only profile, on a machine with Slurm; "" if it is not known."""
    names = places.own_profiles() if in_shell("sbatch", places.environment) else []
    with contextlib.suppress(DocumentError):
        return (len(names) == 1 and read_checked_profile(places.profile(names[0])).value.slurm) or ""
    return ""


def read_checked_profile(file: Path, text: str | None = None) -> Document[Profile]:
    """Read a profile, and check that its policies name rules that exist.

    `text` replaces the file's text, in an editor.

    Raises:
        DocumentError: The profile is wrong, or no rule has the id of a policy.
    """
    from sbatchgen.jobs.inputs.document import read_document

    document = read_document(file, Profile, text)
    _refuse_unknown(
        {rule: document.places.get(f"policies.{rule}", "") for rule in document.value.policies}, whole=True
    )
    return document


def _rule_starts(texts: Iterable[str], flag: str) -> tuple[str, ...]:
    """Return the starts of ids in the values of a flag, such as "SB4"; raises CommandLineError if unknown."""
    ids = tuple(part.strip().upper() for text in texts for part in text.split(",") if part.strip())
    for start in ids:
        if not is_known(start, rules()):
            raise CommandLineError.of(f"no rule '{start}'", at=flag, fix=did_you_mean(start, rules()))
    return ids


def _refuse_unknown(ids: Mapping[str, str], *, whole: bool = False) -> None:
    """Raise DocumentError for ids that no rule has, or whose start no rule has unless `whole`.

    `ids` has the place of each id. The error shows the first MAX_SHOWN unknown ids.
    """
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
    if others := len(unknown) - len(problems):
        problems.append(Problem(f"and {others} more ids that no rule has"))
    raise DocumentError(problems)
