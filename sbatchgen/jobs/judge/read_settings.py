"""Reads the settings of `lint` from its flags, from sbatchgen.yaml, and from the policies of the profile."""

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
from sbatchgen.check.sbatch.option_table import major_release
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
    project, project_places = _read_project(places)
    project_disabled, severity = _project_rules(project, project_places)
    document = _read_profile(places, profile, project)
    cluster = document.value if document else None
    known_release = slurm or (cluster.slurm if cluster else "")
    if not known_release and runs_here and cluster is None:
        known_release = _release_here(places)
    release = known_release or DEFAULT_SLURM
    _refuse_unknown_release(release)
    selected = _starts_of_ids(select, "--select")
    disabled = (*project_disabled, *_starts_of_ids(disable, "--disable"))
    ids = {*selected, *disabled, *severity, *(cluster.policies if cluster else ())}
    return Settings(
        profile=cluster,
        places=document.places if document else {},
        slurm=release,
        folder=places.folder,
        is_release_assumed=not known_release,
        selected_rules=selected,
        pedantic=pedantic,
        disabled_rules=disabled,
        severities=severity,
        removed_rules=tuple(sorted(RETIRED & ids)),
    )


def _read_project(places: Places) -> tuple[JobSpec, Mapping[str, str]]:
    """Return sbatchgen.yaml and the `file:line` of each of its keys; an empty job if there is no file."""
    if places.project is None:
        return JobSpec(), {}
    from sbatchgen.jobs.inputs.document import read_document  # YAML's reader is slow to load

    document = read_document(places.project, JobSpec)
    return document.value, document.places


def _project_rules(
    project: JobSpec, places: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, Severity]]:
    """Return the starts of ids such as "SB4" that sbatchgen.yaml turns off, and its severity for each start.

    Raises DocumentError: no rule has an id with such a start.
    """
    disabled = {start.upper(): places.get("lint.disable", "") for start in project.lint.disable}
    severities = project.lint.severity
    with_severity = {start.upper(): places.get(f"lint.severity.{start}", "") for start in severities}
    _refuse_unknown_ids(disabled | with_severity)
    return tuple(disabled), {start.upper(): severity for start, severity in severities.items()}


def _refuse_unknown_release(release: str) -> None:
    """Raise CommandLineError for a release of Slurm that sbatchgen does not know."""
    try:
        major_release(release)
    except ValueError as error:
        fix = f"one of {', '.join(RELEASES)}"
        raise CommandLineError.of(f"Slurm {release} is not known here", at="--slurm", fix=fix) from error


def _read_profile(places: Places, named: str | None, project: JobSpec) -> Document[Profile] | None:
    """Return the profile that the flag, SBATCHGEN_PROFILE or sbatchgen.yaml names, or None.

    `named` is the value of the flag --profile.
    """
    name = named or places.environment.get("SBATCHGEN_PROFILE")
    if not name and project.profile and places.project:
        name = profile_named_in(places.project, project.profile)
    return read_checked_profile(places.profile(name)) if name else None


def _release_here(places: Places) -> str:
    """Return Slurm's release from the user's only profile; "" if it is not known, or sbatch is not here."""
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
    policies: dict[str, str] = {
        rule: document.places.get(f"policies.{rule}", "") for rule in document.value.policies
    }
    _refuse_unknown_ids(policies, whole=True)
    return document


def _starts_of_ids(texts: Iterable[str], flag: str) -> tuple[str, ...]:
    """Return the starts of ids in the values of a flag: "sb4,SB101" -> "SB4", "SB101".

    Raises CommandLineError: no rule has an id with such a start.
    """
    starts = tuple(part.strip().upper() for text in texts for part in text.split(",") if part.strip())
    for start in starts:
        if not is_known(start, rules()):
            raise CommandLineError.of(f"no rule '{start}'", at=flag, fix=did_you_mean(start, rules()))
    return starts


def _refuse_unknown_ids(ids: Mapping[str, str], *, whole: bool = False) -> None:
    """Raise DocumentError for ids that no rule has; the start of a rule's id is enough unless `whole`.

    `ids` has the place of each id. The error shows the first MAX_SHOWN unknown ids.
    """
    if not ids:
        return  # because loading all rules takes 20 ms
    known = {*rules(), *RETIRED}
    unknown = [rule for rule in ids if rule not in known and (whole or not is_known(rule, known))]
    if not unknown:
        return
    from sbatchgen.jobs.inputs.yaml_nodes import MAX_SHOWN

    problems = [
        Problem(f"no rule '{rule[:LONGEST_ID]}'", ids[rule], did_you_mean(rule[:LONGEST_ID], rules()))
        for rule in unknown[:MAX_SHOWN]
    ]
    if others := len(unknown) - len(problems):
        problems.append(Problem(f"and {others} more ids that no rule has"))
    raise DocumentError(problems)
