"""The linter of a script: the findings of all rules, without the findings that comments turn off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Finding, in_order
from sbatchgen.base.units import RELEASES
from sbatchgen.check.lint.suppression import apply_suppressions
from sbatchgen.check.rules import comments, judge
from sbatchgen.check.rules.rule import Applies, Rule
from sbatchgen.check.script.job import OLD_SLURM
from sbatchgen.check.script.script import JobScript
from sbatchgen.check.script.wrapped_job import wrapped_jobs

LONG_SCRIPT = 1 << 17  # characters; a longer script is not read again as older releases of Slurm do
_LONGEST_MESSAGE = 200  # characters of an exception's message
_OPTION_MODULES = ("directives", "directive_options", "misread_values", *judge.JOBS)
_LAUNCH_MODULES = ("process_counts", "task_counts", "steps", "statuses", "rendezvous", "software")
# Cause -> ids of the rules that raised an exception. A bug in a reader may end many rules.
_Failures = dict[str, list[str]]


@cache
def rules() -> dict[str, Rule[Any]]:
    """Return every rule by its id, in the order of the ids."""
    modules = (*judge.STARTED, *judge.RESOLVED, *judge.TRAINERS, *judge.SCRIPTS, *judge.JOBS)
    # Of rules with the same id, the last counts, which is the rule of scripts.
    all_rules = (*comments.RULES, *judge.rules(modules))
    return {rule.id: rule for rule in sorted(all_rules, key=lambda rule: rule.id)}


@cache
def _script_rules() -> dict[str, Rule[Any]]:
    """Return the rules that judge scripts, by id."""
    return {rule.id: rule for rule in judge.rules((*judge.SCRIPTS, *judge.JOBS))}


def applies(rule_id: str, kind: Applies) -> bool:
    """Return whether a rule applies to a kind of script or line.

    Rules of other tools and rules about comments apply to all kinds.
    """
    rule = _script_rules().get(rule_id)
    return rule is None or kind in rule.applies


def marks_secret(rule_id: str) -> bool:
    """Return whether the findings of a rule mark a secret, which no report may show again."""
    rule = _script_rules().get(rule_id)
    return rule is not None and rule.marks_secret


def lint(script: JobScript, others: Sequence[Finding] = ()) -> list[Finding]:
    """Return the findings of a script that no comment turns off, in the order of its lines.

    `others` are findings of other tools and of a dry run. A repeated finding counts once.
    """
    failures: _Failures = {}
    script_rules = judge.rules((*judge.SCRIPTS, *judge.JOBS))
    findings = _run_rules(script, judge.candidates(script_rules, script), failures)
    findings += _wrapped_findings(script, failures)
    findings = _downgraded(script, _applicable(script, findings))
    findings += _added_findings(script, others, findings)
    if "sbatchgen:" in script.text:
        findings = apply_suppressions(
            findings, script.file, script.lines, rules=[*rules()], certain=_conclusive_ids(script)
        )
    return in_order([*findings, *_failure_findings(script, failures)])


def _wrapped_findings(script: JobScript, failures: _Failures) -> Iterator[Finding]:
    """Yield the warnings and errors about launches in the jobs that the script submits with sbatch --wrap."""
    for word, job in wrapped_jobs(script) if "--wrap" in script.text else ():
        place = script.at_word(word)
        for finding in _run_rules(job, judge.candidates(judge.rules(_LAUNCH_MODULES), job), failures):
            if finding.severity != "info" and not finding.pedantic:
                problem = finding.problem._replace(at=place.text)
                yield finding._replace(place=place, problem=problem, edits=())


def _added_findings(
    script: JobScript, others: Sequence[Finding], findings: Sequence[Finding]
) -> list[Finding]:
    """Return the findings in `others`, unless `findings` has the rule for the same launch, line or job."""
    lines: dict[str, set[int]] = {}
    for finding in findings:
        lines.setdefault(finding.rule, set()).add(finding.place.line)
    may_repeat = any(finding.rule in lines for finding in others)
    commands = [launch.command for launch in script.launches] if may_repeat else []
    launch_spans = [range(command.line, command.end_line + 1) for command in commands]
    added = []
    for finding in others:
        line, known_lines = finding.place.line, lines.get(finding.rule, set())
        covered = next((span for span in launch_spans if line in span), range(line, line + 1))
        # Whether the rule already has a finding outside all launches, such as in a directive.
        is_about_job = any(not any(known in span for span in launch_spans) for known in known_lines)
        if not is_about_job and known_lines.isdisjoint(covered):
            added.append(finding)
    return added


def _conclusive_ids(script: JobScript) -> list[str]:
    """Return the ids of rules that would surely have found their mistake; [] if no cluster is known.

    Rules that compare a job with the cluster need a cluster. Rules about started programs need a dry run.
    """
    started = {rule.id for rule in judge.rules(judge.STARTED)}
    return [rule for rule in rules() if rule not in started] if script.knows_cluster else []


def _run_rules(script: JobScript, chosen: Iterable[Rule[Any]], failures: _Failures) -> list[Finding]:
    """Return the findings of these rules. A rule that raises is noted in `failures`, and the others run."""
    findings: list[Finding] = []
    for rule in chosen:
        try:
            findings.extend(judge.findings(rule, script))
        except Exception as error:  # noqa: BLE001 - each is a bug of sbatchgen
            import traceback

            last_frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last_frame.filename.rpartition('/')[2]}:{last_frame.lineno}"
            cause = f"{type(error).__name__}: {str(error)[:_LONGEST_MESSAGE]}, {where}"
            failures.setdefault(cause, []).append(rule.id)
    return findings


def _failure_findings(script: JobScript, failures: _Failures) -> Iterator[Finding]:
    """Yield a finding for each cause, with the id of the first rule that raised."""
    place = script.at(1)
    for cause, ids in failures.items():
        subject = f"rule {ids[0]}" if len(ids) == 1 else f"rule {ids[0]} and {len(ids) - 1} more"
        what = f"{subject} failed on this script ({cause}): please report it"
        yield Finding("warning", Problem(what, place.text), rule=ids[0], place=place)


def _downgraded(script: JobScript, findings: list[Finding]) -> list[Finding]:
    """Return the findings, with warnings in place of errors that older releases do not raise.

    This applies only if no release is named.
    """
    option_rules = judge.rules(_OPTION_MODULES)
    ids = {rule.id for rule in option_rules}
    # The lines with errors; the loop removes those that older releases refuse as well.
    lines = _error_lines(finding for finding in findings if finding.rule in ids)
    if not script.assumed or not lines or len(script.text) > LONG_SCRIPT:
        return findings
    if script.read_by(OLD_SLURM).sbatch.refusal == script.sbatch.refusal:
        return findings
    error_rules = {finding.rule for finding in findings if finding.severity == "error"}
    rules_to_run = sorted(option_rules, key=lambda rule: rule.id not in error_rules)
    newest_taking: dict[int, str] = {}  # line -> the newest release that takes the line
    for release in RELEASES[RELEASES.index(OLD_SLURM) : RELEASES.index(script.release)]:
        older = script.read_by(release)
        for rule in rules_to_run:
            lines -= _error_lines(_run_rules(older, [rule], {}))
            if not lines:  # soon, as the rules with errors come first
                break
        newest_taking |= dict.fromkeys(lines, release)
        if not lines:
            break
        rules_to_run = [rule for rule in option_rules if rule.id in error_rules]  # only these became stricter
    downgraded = []
    for finding in findings:
        release = newest_taking.get(finding.place.line, "")
        if release and finding.severity == "error":
            what = f"{finding.problem.what} (Slurm {release} and older take it)"
            problem = finding.problem._replace(what=what)
            finding = finding._replace(severity="warning", problem=problem)  # noqa: PLW2901
        downgraded.append(finding)
    return downgraded


def _error_lines(findings: Iterable[Finding]) -> set[int]:
    """Return the lines of the errors among findings."""
    return {finding.place.line for finding in findings if finding.severity == "error"}


def _applicable(script: JobScript, findings: list[Finding]) -> list[Finding]:
    """Return the findings of rules that apply to the kind of the script, and to its unfilled lines."""
    if not findings:
        return []
    if script.written_directives:
        return [finding for finding in findings if applies(finding.rule, Applies.PURE_WRITERS)]
    if script.writes_jobs:
        findings = [finding for finding in findings if applies(finding.rule, Applies.WRITERS)]
    if not (lines := {*script.placeholders, *script.unfilled}):
        return findings
    if script.is_template:
        return [finding for finding in findings if applies(finding.rule, Applies.TEMPLATES)]
    return [
        finding
        for finding in findings
        if applies(finding.rule, Applies.PLACEHOLDERS)
        or (finding.place.line not in lines and applies(finding.rule, Applies.NEAR_PLACEHOLDERS))
    ]
