"""The work of `sbatchgen lint`: from names of files to a report and an exit status."""

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
from sbatchgen.check.lint.source import STDIN, Source, files, sources
from sbatchgen.check.rules.comments import RETIRED, SHELLCHECK, removal
from sbatchgen.check.rules.rule import UNFINISHED_DRY_RUN
from sbatchgen.check.rules.rule_page import pages

# The rank of each severity. A value of --fail-on is a severity, or "never" for none.
SEVERITY_RANK = {"info": 0, "warning": 1, "error": 2, "never": 3}
FOUND_STATUS = 3  # exit status if there are findings to fail on, or files that can't be read
PAGES_MAX = 2  # documents in a summary, which has five lines at most
MANY_FILES = 100  # with this number of files or more, several processes save time

ExtraFindings = Callable[[Source, Settings], Sequence[Finding]]  # finds more in a script, as a dry run does


@frozen(kw_only=True)
class Outcome:
    """The result of a call of `lint`."""

    report: str  # for stdout
    change: bytes  # the diff of --fix or --diff, for stdout, before the report
    problems: tuple[Problem, ...]  # files that can't be read, for stderr
    summary: tuple[str, ...]  # lines for stderr
    status: int  # the exit status


@frozen(kw_only=True)
class CheckedFile:
    """The findings of a file, and the diff of --fix or --diff."""

    located: tuple[formats.LocatedFinding, ...] = ()  # the findings, with their lines
    problems: tuple[Problem, ...] = ()  # why the file can't be read
    change: bytes = b""  # the diff
    scripts: int = 0  # the number of scripts in the file
    submitters: int = 0  # the number of scripts that only submit other scripts
    is_document: bool = False


@frozen()
class Task:
    """The work on each file."""

    settings: Settings
    mend: str = ""  # "fix" to change the file, "diff" to only show the change
    shellcheck: str = ""  # the path of shellcheck; "" to do without
    find_more: ExtraFindings | None = None  # called for each script


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


def explanation(names: Sequence[str]) -> str:
    """Return the pages of rules, in Markdown; raise CommandLineError for an unknown rule."""
    known = pages()
    return "\n".join(known[rule].short(_source(rule)) for rule in _named_rules(names))


def _source(rule: str) -> str:
    """Return the source of a rule; "" if the source is a page of sbatchgen."""
    source = rules()[rule].source or rules()[rule].report
    return "" if source.startswith("docs/") else source


def _named_rules(names: Sequence[str]) -> list[str]:
    """Return the ids of rules that --explain names; raise CommandLineError for an unknown rule."""
    known = pages()
    ids = [part.strip().upper() for name in names for part in name.split(",") if part.strip()]
    for rule in ids:
        if SHELLCHECK.fullmatch(rule):
            page = f"see {shellcheck.PAGES}{rule}"
            raise CommandLineError.of(f"{rule} is a rule of shellcheck", at="--explain", fix=page)
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


def table() -> str:
    """Return a table of all rules: the id, the severity, the title, and a note on pedantic rules."""
    return quoting.table(
        (rule.id, rule.severity, rule.title + " (pedantic)" * rule.pedantic) for rule in rules().values()
    )


def run(
    names: Sequence[str],
    *,
    settings: Settings,
    style: formats.Style,
    form: str,
    strict: bool,
    fail_on: str,
    mend: str,
    ask_shellcheck: bool | None,
    find_more: ExtraFindings | None = None,
) -> Outcome:
    """Lint files, folders, and stdin for -, with the options of `sbatchgen lint`.

    `style` colours a text by a severity. `form` is the format of the report. `mend` is "fix", "diff" or "".
    If `ask_shellcheck` is None, an installed shellcheck runs for up to FILES_BY_DEFAULT files. `find_more`
    returns further findings in a script; another process may call it.
    """
    problems: list[Problem] = []
    found_files = list(files(names, problems.append))
    program = shellcheck.program(len(found_files), wanted=ask_shellcheck)
    task = Task(settings, mend, program, find_more)
    checked = list(_check_all(found_files, task))
    located = [finding for file in checked for finding in file.located]
    problems += [problem for file in checked for problem in file.problems]
    failing_rank = min(SEVERITY_RANK[fail_on], SEVERITY_RANK["warning"]) if strict else SEVERITY_RANK[fail_on]
    fails = any(SEVERITY_RANK[item.finding.severity] >= failing_rank for item in located)
    summary = [*map(removal, settings.removed)]
    if form == "text":
        summary += [*_documents_table(checked), _summary(located, checked)]
    return Outcome(
        report=_report(form, located, problems, style),
        change=b"".join(file.change for file in checked),
        problems=tuple(problems),
        summary=tuple(summary),
        status=FOUND_STATUS if problems or fails else _status_of_plans(located, fail_on),
    )


def _status_of_plans(located: Iterable[formats.LocatedFinding], fail_on: str) -> int:
    """Return the exit status for plans that a limit cut short; 0 without such a plan.

    Only a warning counts: a script that waits for ever in the dry run, such as for a server, gives an info.
    """
    cut_short = [item.finding for item in located if item.finding.rule == UNFINISHED_DRY_RUN]
    has_warning = any(finding.severity == "warning" for finding in cut_short)
    return LIMIT_STATUS if has_warning and fail_on != "never" else 0


def refuse_change(names: Sequence[str], mend: str, form: str) -> None:
    """Raise CommandLineError if --fix or --diff can't change stdin, or can't show the change as `form`."""
    if mend and form != "text":
        what = f"--{mend} shows a change, which is text"
        raise CommandLineError.of(what, at="--format", fix="--format text")
    if mend == "fix" and STDIN in names:
        raise CommandLineError.of("--fix can't change stdin", at=STDIN, fix="name the file, or use --diff")


def _check_all(names: Sequence[str], task: Task) -> Iterable[CheckedFile]:
    """Check each file; use all CPUs for many files, and for shellcheck."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = min(processors, len(names))
    work = partial(check, task=task)
    if processes < 2 or STDIN in names or (len(names) < MANY_FILES and not task.shellcheck):
        return map(work, names)
    from sbatchgen.check.lint.workers import spread

    return spread(work, names, processes)


def check(name: str, task: Task) -> CheckedFile:
    """Lint a file, and fix the file if the task asks for fixes."""
    try:
        scripts = sources(name)
        change = b""
        if task.mend and scripts and not any(source.indents for source in scripts):  # no document
            scripts, change = _mend_script(name, scripts[0], task)
        located = tuple(finding for source in scripts for finding in _located_findings(source, task))
        is_document = any(source.indents for source in scripts)
        submitters = sum(source.is_submitter for source in scripts)
        return CheckedFile(
            located=located,
            change=change,
            scripts=len(scripts),
            submitters=submitters,
            is_document=is_document,
        )
    except DocumentError as error:
        return CheckedFile(problems=error.problems)


def _mend_script(name: str, source: Source, task: Task) -> tuple[list[Source], bytes]:
    """Write the fixed script with --fix; return the script to report on, and the diff."""
    fixed = fix.apply_fixes(source.data, lambda data: findings_of(replace(source, data=data), task.settings))
    change = fix.difference(source.file, source.data, fixed)
    if task.mend == "fix" and change:
        write(Path(name), fixed, before=source.data)
        source = replace(source, data=fixed)
    return [source], change


def _located_findings(source: Source, task: Task) -> Iterator[formats.LocatedFinding]:
    """Yield the findings of a script with their lines; stars replace the secrets in the lines."""
    others = shellcheck.findings(source, task.shellcheck) if task.shellcheck else []
    if task.find_more:
        others = [*others, *task.find_more(source, task.settings)]
    findings = findings_of(source, task.settings, others)
    lines = source.text.split("\n") if findings else []
    numbers = {finding.place.line - source.line for finding in findings}.intersection(range(len(lines)))
    shown = {source.line + number: " " * source.indent(number) + lines[number] for number in numbers}
    for finding in findings:
        if marks_secret(finding.rule) and finding.place.line in shown:
            line, start = shown[finding.place.line], finding.place.column - 1
            end = finding.place.end - 1 if finding.place.end else len(line)
            shown[finding.place.line] = line[:start] + "*" * (end - start) + line[end:]
    for finding in findings:
        yield formats.LocatedFinding(source.file, finding, shown.get(finding.place.line, ""))


def _report(
    form: str, located: Sequence[formats.LocatedFinding], problems: Sequence[Problem], style: formats.Style
) -> str:
    """Return the report in the format `form`."""
    if form == "json":
        return formats.as_json(located)
    if form == "github":
        return formats.as_github(located)
    if form == "sarif":
        titles = {rule.id: rule.title for rule in rules().values()}
        texts = {page.rule: page.short(_source(page.rule)) for page in pages().values()}
        return formats.as_sarif(located, problems, titles, texts)
    return formats.as_text(located, style)


def _documents_table(checked: Sequence[CheckedFile]) -> list[str]:
    """Return a table of the documents with the most findings, if several documents have findings."""
    documents = [file for file in checked if file.is_document and file.located]
    if len(documents) < 2:
        return []
    worst = sorted(documents, key=lambda file: [-count for count in _severity_counts(file.located)])[
        :PAGES_MAX
    ]
    rows = [
        (one_line(file.located[0].file), _counts_text(file.located)) for file in documents if file in worst
    ]
    missing = len(documents) - len(rows)
    last_line = f"and {counted(missing, 'page')} with fewer" if missing else ""
    return [*quoting.table([("PAGE", "FINDINGS"), *rows]).splitlines(), last_line]


def _summary(located: Sequence[formats.LocatedFinding], checked: Sequence[CheckedFile]) -> str:
    """Return a line such as: 3 scripts, 1 of them submits others: 2 errors, 1 info."""
    scripts = sum(file.scripts for file in checked)
    if not scripts:
        return "no scripts found"
    documents = sum(file.is_document for file in checked)
    submitters = sum(file.submitters for file in checked)
    verb = "submits" if submitters == 1 else "submit"
    addition = f", {submitters} of them {verb} others" if submitters and scripts > submitters else ""
    addition += f", in {counted(documents, 'page')}" if documents > 1 else ""
    return f"{counted(scripts, 'script')}{addition}: {_counts_text(located) or 'nothing found'}"


def _severity_counts(located: Sequence[formats.LocatedFinding]) -> tuple[int, int, int]:
    """Return the numbers of errors, warnings and infos."""
    severities = [item.finding.severity for item in located]
    return severities.count("error"), severities.count("warning"), severities.count("info")


def _counts_text(located: Sequence[formats.LocatedFinding]) -> str:
    """Return the numbers of findings in words: 1 error, 2 warnings, 3 info; "" without findings."""
    errors, warnings, infos = _severity_counts(located)
    counts = [counted(errors, "error")] * bool(errors) + [counted(warnings, "warning")] * bool(warnings)
    return ", ".join(counts + [f"{infos} info"] * bool(infos))
