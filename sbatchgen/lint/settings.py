"""What counts for all files of a call of `lint`: flags, sbatchgen.yaml and the profile's policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sbatchgen.errors import CommandLineError, DocumentError, Problem, did_you_mean
from sbatchgen.finding import Finding, Severity
from sbatchgen.inputs.job import JobSpec
from sbatchgen.inputs.profile import Profile
from sbatchgen.inputs.search import Places, beside
from sbatchgen.job.job import DEFAULT_SLURM, NO_CLUSTER
from sbatchgen.job.script import JobScript
from sbatchgen.lint.linter import lint, rules
from sbatchgen.lint.source import Source
from sbatchgen.lint.suppression import is_known
from sbatchgen.sbatch.option_table import line_of
from sbatchgen.units import RELEASES

if TYPE_CHECKING:
    from sbatchgen.inputs.document import Document

ALL = "ALL"
LONGEST_ID = 40  # characters that are shown of one that no rule has


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What counts for all files of a call.

    Attributes:
        profile: The cluster; None if nobody names one.
        slurm: The release that reads the scripts.
        assumed: Whether nobody has named it.
        folder: Where they would be submitted.
        selected: The starts of ids of the rules that are wanted; none for all but the pedantic ones, which
            their whole id or ALL asks for.
        disabled: The starts of ids of those that are not.
        severity: Other severities, by the starts of ids.
        environment: That of the submission, where there is one.
        makes_log_folders: Whether the folders of logs are made before a script is submitted.
    """

    profile: Profile | None
    slurm: str
    folder: Path
    assumed: bool = False
    selected: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    severity: Mapping[str, Severity] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    makes_log_folders: bool = False

    def judged(self, finding: Finding) -> Finding | None:
        """The finding with the severity that it has here; None if it is not wanted."""
        if self.selected and ALL not in self.selected and not finding.rule.startswith(self.selected):
            return None
        if finding.rule.startswith(self.disabled):
            return None
        if finding.pedantic and not {ALL, finding.rule} & {*self.selected, *self.severity}:
            return None
        starts = [start for start in self.severity if finding.rule.startswith(start)]
        return finding._replace(severity=self.severity[max(starts, key=len)]) if starts else finding


def findings_of(source: Source, settings: Settings, others: Sequence[Finding] = ()) -> list[Finding]:
    """The findings of a script that are not turned off, with the lines and columns of its file."""
    script = JobScript(
        file=source.file,
        text=source.text,
        slurm=settings.slurm,
        assumed=settings.assumed,
        profile=settings.profile or NO_CLUSTER,
        environment=settings.environment,
        folder=settings.folder,
        makes_log_folders=settings.makes_log_folders,
    )
    found = map(settings.judged, lint(script, others))
    return [source.moved(finding) for finding in found if finding is not None]


def settings_of(
    places: Places,
    profile: str | None,
    slurm: str | None = None,
    *,
    select: Sequence[str] = (),
    disable: Sequence[str] = (),
) -> Settings:
    """What flags and sbatchgen.yaml say; without a profile no cluster is known.

    Raises:
        CommandLineError: A flag's value makes no sense.
        DocumentError: The profile or sbatchgen.yaml is wrong.
    """
    project, written = _project(places)
    said = project.lint
    off = tuple(dict.fromkeys(one.upper() for one in said.disable))
    severity = {start.upper(): value for start, value in said.severity.items()}
    named = [(one, "lint.disable") for one in off]
    named += [(start.upper(), f"lint.severity.{start}") for start in said.severity]
    _refuse([(one, written.get(key, "")) for one, key in named if not is_known(one, rules())])
    cluster = _profile(places, profile, project)
    release = slurm or (cluster.slurm if cluster else None) or DEFAULT_SLURM
    try:
        line_of(release)
    except ValueError as error:
        fix = f"one of {', '.join(RELEASES)}"
        raise CommandLineError.of(f"Slurm {release} is not known here", at="--slurm", fix=fix) from error
    return Settings(
        profile=cluster,
        slurm=release,
        folder=places.folder,
        assumed=not (slurm or (cluster and cluster.slurm)),
        selected=ids(select, "--select", also=ALL),
        disabled=(*off, *ids(disable, "--disable")),
        severity=severity,
    )


def _project(places: Places) -> tuple[JobSpec, Mapping[str, str]]:
    """What sbatchgen.yaml says, and where its keys are."""
    if places.project is None:
        return JobSpec(), {}
    from sbatchgen.inputs.document import read  # YAML's reader is slow to load

    document = read(places.project, JobSpec)
    return document.value, document.places


def _profile(places: Places, named: str | None, project: JobSpec) -> Profile | None:
    """The cluster, if one is named."""
    name = named or places.environment.get("SBATCHGEN_PROFILE")
    if not name and project.profile and places.project:
        name = beside(places.project, project.profile)
    return checked(places.profile(name)).value if name else None


def checked(file: Path) -> Document[Profile]:
    """A profile whose policies name rules that there are.

    Raises:
        DocumentError: It is wrong.
    """
    from sbatchgen.inputs.document import read

    document = read(file, Profile)
    named = document.value.policies
    _refuse([(rule, document.places.get(f"policies.{rule}", "")) for rule in named if rule not in rules()])
    return document


def ids(texts: Iterable[str], flag: str, *, also: str = "") -> tuple[str, ...]:
    """The starts of ids in the values of a flag, which may be the word `also`.

    Raises:
        CommandLineError: No rule's id starts so.
    """
    found = tuple(one.strip().upper() for text in texts for one in text.split(",") if one.strip())
    for one in found:
        if one != also and not is_known(one, rules()):
            raise CommandLineError.of(f"no rule '{one}'", at=flag, fix=did_you_mean(one, rules()))
    return found


def _refuse(unknown: Sequence[tuple[str, str]]) -> None:
    """Complain of ids that no rule has, each with its place; of very many, the first."""
    if not unknown:
        return
    from sbatchgen.inputs.nodes import MAX_SHOWN

    shown = [(one[:LONGEST_ID], at) for one, at in unknown[:MAX_SHOWN]]
    problems = [Problem(f"no rule '{one}'", at, did_you_mean(one, rules())) for one, at in shown]
    if more := len(unknown) - len(shown):
        problems.append(Problem(f"and {more} more ids that no rule has"))
    raise DocumentError(problems)
