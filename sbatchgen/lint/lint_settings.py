"""What counts for all files of a call of `lint`: flags, sbatchgen.yaml and the profile's policies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from sbatchgen.cluster_facts import KnownCluster
from sbatchgen.errors import CommandLineError, DocumentError, Problem, did_you_mean
from sbatchgen.finding import Finding, Severity
from sbatchgen.frozen import frozen
from sbatchgen.inputs.job_file import JobSpec
from sbatchgen.inputs.profile import Profile
from sbatchgen.inputs.search import Places, beside
from sbatchgen.lint.linter import applies, lint, rules
from sbatchgen.lint.source import Source
from sbatchgen.machine.search_path import in_shell
from sbatchgen.rules.comments import RETIRED, is_known
from sbatchgen.rules.rule import Applies
from sbatchgen.sbatch.option_table import line_of
from sbatchgen.script.job import DEFAULT_SLURM, NO_CLUSTER
from sbatchgen.script.script import JobScript
from sbatchgen.units import RELEASES

if TYPE_CHECKING:
    from sbatchgen.inputs.document import Document

LONGEST_ID = 40  # characters that are shown of one that no rule has


@frozen(kw_only=True)
class Settings:
    """What counts for all files of a call."""

    profile: KnownCluster | None  # the cluster, if one is named
    slurm: str  # the release that reads the scripts
    folder: Path  # where they would be submitted
    places: Mapping[str, str] = field(default_factory=dict)  # where each key of the profile is written
    assumed: bool = False  # whether the release is a guess
    selected: tuple[str, ...] = ()  # the starts of ids of the rules that are wanted; empty for all
    pedantic: bool = False  # whether pedantic rules are wanted that no whole id asks for
    disabled: tuple[str, ...] = ()  # the starts of ids of those that are not wanted
    severity: Mapping[str, Severity] = field(default_factory=dict)  # other severities, by the starts of ids
    environment: Mapping[str, str] = field(default_factory=dict)  # that of the submission, where there is one
    makes_log_folders: bool = False  # whether the folders of logs are made before a script is submitted
    removed: tuple[str, ...] = ()  # the rules that flags or files name and that were removed

    def judged(self, finding: Finding) -> Finding | None:
        """Return the finding with the severity that it has here; None if it is not wanted."""
        wanted = not self.selected or finding.rule.startswith(self.selected)
        if not wanted or finding.rule.startswith(self.disabled):
            return None
        if finding.pedantic and not (self.pedantic or finding.rule in {*self.selected, *self.severity}):
            return None
        starts = [start for start in self.severity if finding.rule.startswith(start)]
        return finding._replace(severity=self.severity[max(starts, key=len)]) if starts else finding


def findings_of(source: Source, settings: Settings, others: Sequence[Finding] = ()) -> list[Finding]:
    """Return the findings of a script that are not turned off, with the lines and columns of its file."""
    findings = lint(script_of(source, settings), others)
    if source.indents:
        where = Applies.PARTS if source.is_part else Applies.EXAMPLES
        findings = [finding for finding in findings if applies(finding.rule, where)]
    judged = map(settings.judged, findings)
    return [source.moved(finding) for finding in judged if finding is not None]


def script_of(source: Source, settings: Settings) -> JobScript:
    """Return a script as rules judge it."""
    return JobScript(
        file=source.file,
        text=source.text,
        slurm=settings.slurm,
        assumed=settings.assumed,
        profile=settings.profile or NO_CLUSTER,
        environment=settings.environment,
        folder=settings.folder,
        makes_log_folders=settings.makes_log_folders,
    )


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
    off = {rule.upper(): lines.get("lint.disable", "") for rule in project.lint.disable}
    severities = project.lint.severity
    _refuse_unknown(off | {start.upper(): lines.get(f"lint.severity.{start}", "") for start in severities})
    severity = {start.upper(): value for start, value in severities.items()}
    document = _read_profile(places, profile, project)
    cluster = document.value if document else None
    known = slurm or (cluster.slurm if cluster else "")
    known = known or (_release_here(places) if runs_here and cluster is None else "")
    release = known or DEFAULT_SLURM
    try:
        line_of(release)
    except ValueError as error:
        fix = f"one of {', '.join(RELEASES)}"
        raise CommandLineError.of(f"Slurm {release} is not known here", at="--slurm", fix=fix) from error
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
    from sbatchgen.inputs.document import read_document  # YAML's reader is slow to load

    document = read_document(places.project, JobSpec)
    return document.value, document.places


def _read_profile(places: Places, named: str | None, project: JobSpec) -> Document[Profile] | None:
    name = named or places.environment.get("SBATCHGEN_PROFILE")
    if not name and project.profile and places.project:
        name = beside(places.project, project.profile)
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
    from sbatchgen.inputs.document import read_document

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
    from sbatchgen.inputs.nodes import MAX_SHOWN

    problems = [
        Problem(f"no rule '{rule[:LONGEST_ID]}'", ids[rule], did_you_mean(rule[:LONGEST_ID], rules()))
        for rule in unknown[:MAX_SHOWN]
    ]
    if more := len(unknown) - len(problems):
        problems.append(Problem(f"and {more} more ids that no rule has"))
    raise DocumentError(problems)
