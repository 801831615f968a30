"""The work of `sbatchgen lint`: lints files and folders, and gives the report and the exit status."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypedDict

from sbatchgen.base import quoting
from sbatchgen.base.errors import LIMIT_STATUS, CommandLineError, DocumentError, Problem, did_you_mean
from sbatchgen.base.files import write
from sbatchgen.base.finding import Finding, Severity
from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import counted, one_line
from sbatchgen.check.lint import fix, formats, shellcheck
from sbatchgen.check.lint.lint_settings import Settings, findings_of
from sbatchgen.check.lint.linter import marks_secret, rules
from sbatchgen.check.lint.source import STDIN, Source, files_to_lint, read_sources
from sbatchgen.check.rules.comments import RETIRED, SHELLCHECK, removal
from sbatchgen.check.rules.rule import UNFINISHED_DRY_RUN
from sbatchgen.check.rules.rule_page import pages

# The ranks of the values of --fail-on: the severities, and "never", a rank that no finding reaches.
SEVERITY_RANK = {"info": 0, "warning": 1, "error": 2, "never": 3}
FOUND_STATUS = 3  # exit status for a finding that --fail-on names, or for a file that can't be read
PAGES_MAX = 2  # documents that a summary lists; with more, it would have over five lines
MANY_FILES = 100  # with this number of files or more, several processes save time

# A function that returns further findings in a script, such as those of a dry run.
ExtraFindings = Callable[[Source, Settings], Sequence[Finding]]


@frozen(kw_only=True)
class Outcome:
    """The output of one call of `lint`, and its exit status."""

    report: str  # for stdout
    diff: bytes  # the diff of --fix or --diff, for stdout, before the report
    problems: tuple[Problem, ...]  # files that can't be read, for stderr
    summary: tuple[str, ...]  # lines for stderr
    status: int  # the exit status


@frozen(kw_only=True)
class CheckedFile:
    """The findings in a file, and the diff of --fix or --diff."""

    located_findings: tuple[formats.LocatedFinding, ...] = ()
    problems: tuple[Problem, ...] = ()  # why the file can't be read
    diff: bytes = b""
    scripts: int = 0  # the number of scripts in the file
    submitters: int = 0  # the number of scripts that only submit other scripts
    is_document: bool = False  # whether the file is a page with examples, such as Markdown


@frozen()
class Task:
    """The options for the work on each file."""

    settings: Settings
    fix_mode: str = ""  # "fix" to change the file, "diff" to only show the change, "" for neither
    shellcheck: str = ""  # the path of shellcheck; "" to run no shellcheck
    find_more: ExtraFindings | None = None


class RuleText(NamedTuple):
    """A rule with its page, in Markdown."""

    rule: str
    severity: Severity
    pedantic: bool
    title: str
    page: str


class RulesOutput(TypedDict):
    """The output of `lint --rules` and `lint --explain` for programs."""

    rules: Sequence[RuleText]


def rule_pages(names: Sequence[str]) -> str:
    """Return the pages of rules, in Markdown; raise CommandLineError for an unknown rule."""
    page_of = pages()
    return "\n".join(page_of[rule].short(_source(rule)) for rule in _named_rules(names))


def _source(rule: str) -> str:
    """Return the manual or the report that a rule cites; "" for a rule that cites a page of sbatchgen."""
    source = rules()[rule].source or rules()[rule].report
    return "" if source.startswith("docs/") else source


def _named_rules(names: Sequence[str]) -> list[str]:
    """Return the ids of the rules that --explain names, such as SB104 and SB207 of "SB104,sb207".

    Raises:
        CommandLineError: The names hold an unknown rule, a rule of shellcheck, or a removed rule.
    """
    known = pages()
    ids = [part.strip().upper() for name in names for part in name.split(",") if part.strip()]
    for rule in ids:
        if SHELLCHECK.fullmatch(rule):
            fix = f"see {shellcheck.PAGES}{rule}"
            raise CommandLineError.of(f"{rule} is a rule of shellcheck", at="--explain", fix=fix)
        if rule in RETIRED:
            raise CommandLineError.of(removal(rule), at="--explain")
        if rule not in known:
            raise CommandLineError.of(f"no rule '{rule}'", at="--explain", fix=did_you_mean(rule, known))
    return ids


def rule_texts(names: Sequence[str]) -> list[RuleText]:
    """Return the rules that --explain names, or all rules, with their pages."""
    page_of = pages()
    return [
        RuleText(rule.id, rule.severity, rule.pedantic, rule.title, page_of[rule.id].short(_source(rule.id)))
        for rule in (rules()[name] for name in _named_rules(names) or rules())
    ]


def rules_table() -> str:
    """Return a table of all rules: the id, the severity, the title, and a note on pedantic rules."""
    return quoting.table(
        (rule.id, rule.severity, rule.title + " (pedantic)" * rule.pedantic) for rule in rules().values()
    )


def lint_files(
    names: Sequence[str],
    *,
    settings: Settings,
    style: formats.Style,
    form: str,
    strict: bool,
    fail_on: str,
    fix_mode: str,
    ask_shellcheck: bool | None,
    find_more: ExtraFindings | None = None,
) -> Outcome:
    """Lint files and folders with the options of `sbatchgen lint`. The name - means stdin.

    `style` colours a text by a severity. `form` is the format of the report. `fix_mode` is as in a Task.
    If `ask_shellcheck` is None, an installed shellcheck runs for up to FILES_BY_DEFAULT files. `find_more`
    may be called in another process.
    """
    problems: list[Problem] = []
    found_files = list(files_to_lint(names, problems.append))
    shellcheck_path = shellcheck.path_to_run(len(found_files), wanted=ask_shellcheck)
    task = Task(settings, fix_mode, shellcheck_path, find_more)
    checked_files = list(_check_all(found_files, task))
    located_findings = [finding for file in checked_files for finding in file.located_findings]
    problems += [problem for file in checked_files for problem in file.problems]
    failing_rank = min(SEVERITY_RANK[fail_on], SEVERITY_RANK["warning"]) if strict else SEVERITY_RANK[fail_on]
    fails = any(SEVERITY_RANK[item.finding.severity] >= failing_rank for item in located_findings)
    summary = [*map(removal, settings.removed_rules)]
    if form == "text":
        summary += [*_documents_table(checked_files), _summary(located_findings, checked_files)]
    return Outcome(
        report=_report(form, located_findings, problems, style),
        diff=b"".join(file.diff for file in checked_files),
        problems=tuple(problems),
        summary=tuple(summary),
        status=FOUND_STATUS if problems or fails else _status_of_plans(located_findings, fail_on),
    )


def _status_of_plans(located_findings: Iterable[formats.LocatedFinding], fail_on: str) -> int:
    """Return the exit status for dry runs that a limit cut short; 0 without such a dry run.

    Only warnings count. A script that waits for ever in a dry run, such as for a server, gives an info.
    """
    cut_short = [item.finding for item in located_findings if item.finding.rule == UNFINISHED_DRY_RUN]
    has_warning = any(finding.severity == "warning" for finding in cut_short)
    return LIMIT_STATUS if has_warning and fail_on != "never" else 0


def refuse_change(names: Sequence[str], fix_mode: str, form: str) -> None:
    """Raise CommandLineError for --fix or --diff in a format other than text, and for --fix of stdin."""
    if fix_mode and form != "text":
        what = f"--{fix_mode} shows a change, which is text"
        raise CommandLineError.of(what, at="--format", fix="--format text")
    if fix_mode == "fix" and STDIN in names:
        raise CommandLineError.of("--fix can't change stdin", at=STDIN, fix="name the file, or use --diff")


def _check_all(names: Sequence[str], task: Task) -> Iterable[CheckedFile]:
    """Check each file, in several processes if the files are many or shellcheck runs."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = min(processors, len(names))
    work = partial(check_file, task=task)
    if processes < 2 or STDIN in names or (len(names) < MANY_FILES and not task.shellcheck):
        return map(work, names)
    from sbatchgen.check.lint.workers import spread

    return spread(work, names, processes)


def check_file(name: str, task: Task) -> CheckedFile:
    """Lint a file, and fix the file if the task asks for fixes."""
    try:
        scripts = read_sources(name)
        diff = b""
        is_document = any(source.indents for source in scripts)
        if task.fix_mode and scripts and not is_document:
            scripts, diff = _fix_script(name, scripts[0], task)
        located_findings = tuple(finding for source in scripts for finding in _located_findings(source, task))
        submitters = sum(source.is_submitter for source in scripts)
        return CheckedFile(
            located_findings=located_findings,
            diff=diff,
            scripts=len(scripts),
            submitters=submitters,
            is_document=is_document,
        )
    except DocumentError as error:
        return CheckedFile(problems=error.problems)


def _fix_script(name: str, source: Source, task: Task) -> tuple[list[Source], bytes]:
    """Return the script to report on, and the diff of its fixes; with --fix, write the fixed script."""
    fixed = fix.apply_fixes(source.data, lambda data: findings_of(replace(source, data=data), task.settings))
    diff = fix.difference(source.file, source.data, fixed)
    if task.fix_mode == "fix" and diff:
        write(Path(name), fixed, before=source.data)
        source = replace(source, data=fixed)
    return [source], diff


def _located_findings(source: Source, task: Task) -> Iterator[formats.LocatedFinding]:
    """Yield the findings in a script, each with its line, where stars replace secrets."""
    other_findings = shellcheck.findings(source, task.shellcheck) if task.shellcheck else []
    if task.find_more:
        other_findings = [*other_findings, *task.find_more(source, task.settings)]
    findings = findings_of(source, task.settings, other_findings)
    lines = source.text.split("\n") if findings else []
    # The line of the file -> its text. Blanks stand for the characters before an example in a document.
    indexes = {finding.place.line - source.line for finding in findings}.intersection(range(len(lines)))
    shown_lines = {source.line + index: " " * source.indent(index) + lines[index] for index in indexes}
    for finding in findings:
        if marks_secret(finding.rule) and finding.place.line in shown_lines:
            line, start = shown_lines[finding.place.line], finding.place.column - 1
            end = finding.place.end - 1 if finding.place.end else len(line)
            shown_lines[finding.place.line] = line[:start] + "*" * (end - start) + line[end:]
    for finding in findings:
        yield formats.LocatedFinding(source.file, finding, shown_lines.get(finding.place.line, ""))


def _report(
    form: str,
    located_findings: Sequence[formats.LocatedFinding],
    problems: Sequence[Problem],
    style: formats.Style,
) -> str:
    """Return the report in a format of --format."""
    if form == "json":
        return formats.as_json(located_findings)
    if form == "github":
        return formats.as_github(located_findings)
    if form == "sarif":
        titles = {rule.id: rule.title for rule in rules().values()}
        texts = {page.rule: page.short(_source(page.rule)) for page in pages().values()}
        return formats.as_sarif(located_findings, problems, titles, texts)
    return formats.as_text(located_findings, style)


def _documents_table(checked_files: Sequence[CheckedFile]) -> list[str]:
    """Return a table of the documents with the most findings; [] if fewer than two have findings.

    Messages call a document a page.
    """
    documents = [file for file in checked_files if file.is_document and file.located_findings]
    if len(documents) < 2:
        return []
    by_severity = sorted(documents, key=lambda file: _severity_counts(file.located_findings), reverse=True)
    worst = by_severity[:PAGES_MAX]
    rows = [
        (one_line(file.located_findings[0].file), _counts_text(file.located_findings))
        for file in documents
        if file in worst
    ]
    unlisted = len(documents) - len(rows)
    last_line = f"and {counted(unlisted, 'page')} with fewer findings" if unlisted else ""
    return [*quoting.table([("PAGE", "FINDINGS"), *rows]).splitlines(), last_line]


def _summary(located_findings: Sequence[formats.LocatedFinding], checked_files: Sequence[CheckedFile]) -> str:
    """Return a line such as: 3 scripts, 1 of them submits others: 2 errors, 1 info."""
    scripts = sum(file.scripts for file in checked_files)
    if not scripts:
        return "no scripts found"
    documents = sum(file.is_document for file in checked_files)
    submitters = sum(file.submitters for file in checked_files)
    verb = "submits" if submitters == 1 else "submit"
    addition = f", {submitters} of them {verb} others" if submitters and scripts > submitters else ""
    addition += f", in {counted(documents, 'page')}" if documents > 1 else ""
    return f"{counted(scripts, 'script')}{addition}: {_counts_text(located_findings) or 'nothing found'}"


def _severity_counts(located_findings: Sequence[formats.LocatedFinding]) -> tuple[int, int, int]:
    """Return the numbers of errors, warnings and infos."""
    severities = [item.finding.severity for item in located_findings]
    return severities.count("error"), severities.count("warning"), severities.count("info")


def _counts_text(located_findings: Sequence[formats.LocatedFinding]) -> str:
    """Return the numbers of findings in words: 1 error, 2 warnings, 3 info; "" without findings."""
    errors, warnings, infos = _severity_counts(located_findings)
    counts = [counted(errors, "error")] * bool(errors) + [counted(warnings, "warning")] * bool(warnings)
    return ", ".join(counts + [f"{infos} info"] * bool(infos))
