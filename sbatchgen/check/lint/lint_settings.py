"""The settings of a call of `lint`, which hold for all its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from sbatchgen.base.finding import Finding, Severity
from sbatchgen.base.frozen import frozen
from sbatchgen.check.cluster_facts import KnownCluster
from sbatchgen.check.lint.linter import lint, rule_applies
from sbatchgen.check.lint.source import Source
from sbatchgen.check.rules.rule import Applies
from sbatchgen.check.script.job import NO_CLUSTER
from sbatchgen.check.script.script import JobScript


@frozen(kw_only=True)
class Settings:
    """The settings of a call of `lint`."""

    profile: KnownCluster | None  # the facts of the cluster; None if no cluster is named
    slurm: str  # the release of Slurm that reads the scripts
    folder: Path  # the folder of the submission
    places: Mapping[str, str] = field(default_factory=dict)  # key of the profile -> its place in a file
    is_release_assumed: bool = False  # whether no one named the release
    # The next settings name rules by their ids, or by the start of their ids, such as SB4.
    selected_rules: tuple[str, ...] = ()  # empty for all rules
    pedantic: bool = False  # whether all pedantic rules report; otherwise those whose whole id is named
    disabled_rules: tuple[str, ...] = ()
    severities: Mapping[str, Severity] = field(default_factory=dict)  # rules -> their severity
    environment: Mapping[str, str] = field(default_factory=dict)  # the environment of the submission
    makes_log_folders: bool = False  # whether the submission makes the folders of the logs
    removed_rules: tuple[str, ...] = ()  # ids in flags or files of rules that sbatchgen had in the past

    def with_severity(self, finding: Finding) -> Finding | None:
        """Return the finding with the severity of these settings; None if its rule is off."""
        rule = finding.rule
        is_selected = not self.selected_rules or rule.startswith(self.selected_rules)
        if not is_selected or rule.startswith(self.disabled_rules):
            return None
        if finding.pedantic and not (self.pedantic or rule in {*self.selected_rules, *self.severities}):
            return None
        starts = [start for start in self.severities if rule.startswith(start)]
        return finding._replace(severity=self.severities[max(starts, key=len)]) if starts else finding


def findings_of(source: Source, settings: Settings, other_findings: Sequence[Finding] = ()) -> list[Finding]:
    """Return the findings in a script that these settings show, with their lines and columns in the file.

    `other_findings` come from other tools or from a dry run.
    """
    findings = lint(script_of(source, settings), other_findings)
    if source.indents:
        kind = Applies.PARTS if source.is_part else Applies.EXAMPLES
        findings = [finding for finding in findings if rule_applies(finding.rule, kind)]
    shown = map(settings.with_severity, findings)
    return [source.place_in_file(finding) for finding in shown if finding is not None]


def script_of(source: Source, settings: Settings) -> JobScript:
    """Return the JobScript of a source, with these settings."""
    return JobScript(
        file=source.file,
        text=source.text,
        slurm=settings.slurm,
        is_release_assumed=settings.is_release_assumed,
        profile=settings.profile or NO_CLUSTER,
        environment=settings.environment,
        folder=settings.folder,
        makes_log_folders=settings.makes_log_folders,
    )
