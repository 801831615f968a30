"""`sbatchgen lint`: from names of files to a report and an exit status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from sbatchgen.document import read
from sbatchgen.errors import CommandLineError, DocumentError, Problem, did_you_mean
from sbatchgen.finding import Finding, Place, Severity
from sbatchgen.job import JobSpec, LintSpec
from sbatchgen.lint import fix, report
from sbatchgen.lint.linter import GROUPS, lint
from sbatchgen.lint.source import STDIN, Source, files, sources
from sbatchgen.lint.suppression import kept
from sbatchgen.profile import Profile
from sbatchgen.rules import judge
from sbatchgen.rules.ask import DEFAULT_SLURM
from sbatchgen.rules.page import pages
from sbatchgen.rules.subject import Subject
from sbatchgen.script.releases import RELEASES, line_of
from sbatchgen.search import Places

RANK = {"info": 0, "warning": 1, "error": 2, "never": 3}
FOUND = 3  # exit status where there are findings to fail on, or files that can't be read
RULES = {rule.id: rule for rule in chain.from_iterable(group.RULES for group in (*judge.GROUPS, *GROUPS))}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a call of `lint` gives: the report for stdout, the rest for stderr."""

    report: str
    problems: tuple[Problem, ...]
    summary: str
    status: int


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What counts for all files of a call.

    Attributes:
        selected: The starts of ids of the rules that are wanted; none for all.
        spec: What sbatchgen.yaml and the flags turn off, or give another severity.
        environment: That of the submission, where there is one.
        makes_log_folders: Whether the folders of logs are made before a script is submitted.
    """

    profile: Profile | None
    slurm: str
    folder: Path
    selected: tuple[str, ...]
    spec: LintSpec
    environment: Mapping[str, str] = field(default_factory=dict)
    makes_log_folders: bool = False


def page(rule: str) -> str:
    """The page of a rule.

    Raises:
        CommandLineError: There is no such rule.
    """
    found = pages()
    if rule.upper() not in found:
        raise CommandLineError.of(f"no rule '{rule}'", fix=did_you_mean(rule.upper(), found))
    return found[rule.upper()].text


def run(
    names: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    style: report.Style,
    profile: str | None,
    slurm: str | None,
    form: str,
    select: Sequence[str],
    disable: Sequence[str],
    fail_on: str,
    **mend: bool,
) -> Outcome:
    """Lint files.

    Args:
        names: Files, folders, or - for stdin.
        environment: For SBATCHGEN_PROFILE and the search paths.
        folder: The current folder.
        style: Colours a text by a severity.
        profile: The cluster, by name or file.
        slurm: The release of Slurm; by default the profile's.
        form: text, json, sarif or github.
        select: Rules that are wanted, by the starts of their ids; all if there are none.
        disable: Rules that are not.
        fail_on: The least severity of a finding that fails.
        mend: `fix` to change the files, `diff` to show the change only.

    Raises:
        CommandLineError: A flag's value makes no sense.
        DocumentError: The profile or sbatchgen.yaml is wrong.
    """
    settings = settings_of(Places(folder, environment), profile, slurm, select=select, disable=disable)
    problems: list[Problem] = []
    found: list[report.Located] = []
    lines: dict[str, list[str]] = {}
    changes = ""
    for name in files(names):
        try:
            for source in sources(name):
                findings = findings_of(source, settings)
                if any(mend.values()) and not source.example and name != STDIN:
                    mended = fix.mended(source.data, findings)
                    changes += fix.difference(name, source.data, mended)
                    if mend["fix"] and mended != source.data:
                        fix.write(Path(name), mended)
                        source = replace(source, data=mended)  # noqa: PLW2901
                        findings = findings_of(source, settings)
                found += [(source.file, finding) for finding in findings]
                lines.setdefault(source.file, []).extend(_lines(source, len(lines.get(source.file, []))))
        except DocumentError as error:
            problems += error.problems
    failing = any(RANK[finding.severity] >= RANK[fail_on] for _, finding in found)
    return Outcome(
        report=changes + _report(form, found, lines, style),
        problems=tuple(problems),
        summary=_summary(found) if form == "text" else "",
        status=FOUND if problems or failing else 0,
    )


def findings_of(source: Source, settings: Settings) -> list[Finding]:
    """The findings of a script that nobody turned off, in the lines and columns of its file."""
    subject = Subject(
        file=source.file,
        text=source.text,
        slurm=settings.slurm,
        profile=settings.profile,
        environment=settings.environment,
        folder=settings.folder,
        makes_log_folders=settings.makes_log_folders,
    )
    found = (_judged(finding, settings) for finding in kept(lint(subject), subject.lines))
    return [_moved(finding, source) for finding in found if finding is not None]


def _judged(finding: Finding, settings: Settings) -> Finding | None:
    """The finding with the severity that it has here; None if it is not wanted."""
    if settings.selected and not finding.rule.startswith(settings.selected):
        return None
    if finding.rule.startswith(tuple(settings.spec.disable)):
        return None
    severities: list[Severity] = [
        severity for start, severity in settings.spec.severity.items() if finding.rule.startswith(start)
    ]
    return replace(finding, severity=severities[-1]) if severities else finding


def _moved(finding: Finding, source: Source) -> Finding:
    """The finding where it stands in the file that its script is a part of."""
    if source.line == 1 and not source.indent:
        return finding
    old = finding.place
    place = Place(
        line=old.line + source.line - 1,
        column=old.column + source.indent,
        end=old.end + source.indent if old.end else 0,
    )
    return replace(finding, place=place)


def _lines(source: Source, known: int) -> Iterator[str]:
    """The lines of a file up to the end of a script in it, from the `known` ones on."""
    skipped = [""] * (source.line - 1 - known)
    yield from skipped
    yield from (" " * source.indent + line for line in source.text.split("\n"))


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
    project = read(places.project, JobSpec).value if places.project else JobSpec()
    cluster = _profile(places, profile, project)
    release = slurm or (cluster.slurm if cluster else None) or DEFAULT_SLURM
    try:
        line_of(release)
    except ValueError as error:
        fix_text = f"one of {', '.join(RELEASES)}"
        raise CommandLineError.of(f"Slurm {release} is not known here", at="--slurm", fix=fix_text) from error
    off = (*project.lint.disable, *_ids(disable, "--disable"))
    return Settings(
        profile=cluster,
        slurm=release,
        folder=places.folder,
        selected=_ids(select, "--select"),
        spec=LintSpec(disable=off, severity=project.lint.severity),  # type: ignore[arg-type]
    )


def _profile(places: Places, named: str | None, project: JobSpec) -> Profile | None:
    """The cluster, where somebody names one; scripts need none."""
    name = named or places.environment.get("SBATCHGEN_PROFILE")
    if not name and project.profile and places.project:
        from sbatchgen.request import beside

        name = beside(places.project, project.profile)
    return read(places.profile(name), Profile).value if name else None


def _ids(texts: Iterable[str], flag: str) -> tuple[str, ...]:
    """The starts of ids in the values of a flag."""
    ids = tuple(one.strip().upper() for text in texts for one in text.split(",") if one.strip())
    for one in ids:
        if not any(rule.startswith(one) for rule in RULES):
            raise CommandLineError.of(f"no rule '{one}'", at=flag, fix=did_you_mean(one, RULES))
    return ids


def _report(
    form: str, found: list[report.Located], lines: Mapping[str, list[str]], style: report.Style
) -> str:
    if form == "json":
        return report.as_json(found)
    if form == "github":
        return report.as_github(found)
    if form == "sarif":
        return report.as_sarif(found, {rule.id: rule.title for rule in RULES.values()})
    return report.as_text(found, lines, style)


def _summary(found: list[report.Located]) -> str:
    counts = [
        (severity, sum(one.severity == severity for _, one in found))
        for severity in ("error", "warning", "info")
    ]
    said = [
        f"{count} {severity}{'s' * (count > 1 and severity != 'info')}" for severity, count in counts if count
    ]
    count = len({file for file, _ in found})
    return f"{', '.join(said)} in {count} file{'s' * (count > 1)}" if said else "nothing found"
