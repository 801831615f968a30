"""What counts for all files of a call of `lint`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from sbatchgen.base.finding import Finding, Severity
from sbatchgen.base.frozen import frozen
from sbatchgen.check.cluster_facts import KnownCluster
from sbatchgen.check.lint.linter import applies, lint
from sbatchgen.check.lint.source import Source
from sbatchgen.check.rules.rule import Applies
from sbatchgen.check.script.job import NO_CLUSTER
from sbatchgen.check.script.script import JobScript


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
