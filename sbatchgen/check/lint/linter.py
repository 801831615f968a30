"""The linter: `lint` applies all rules to a script, and returns the findings that no comment turns off."""

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

LONG_SCRIPT = 1 << 17  # characters; a longer script is read for one release only, to save time
_LONGEST_MESSAGE = 200  # characters of an exception's message
# The modules of rules about directives, whose findings may depend on the release of Slurm.
_DIRECTIVE_RULE_MODULES = ("directives", "directive_options", "misread_values", *judge.JOBS)
# The modules of rules about launches, which also judge the command of sbatch --wrap.
_LAUNCH_RULE_MODULES = ("process_counts", "task_counts", "steps", "statuses", "rendezvous", "software")
# The text of an exception -> the ids of the rules that raised it. A bug in a reader may end many rules.
_Failures = dict[str, list[str]]


@cache
def rules() -> dict[str, Rule[Any]]:
    """Return every rule by its id, in the order of the ids."""
    modules = (*judge.STARTED, *judge.RESOLVED, *judge.TRAINERS, *judge.SCRIPTS, *judge.JOBS)
    # Several rules may share an id. The last of them is kept, which is the rule of scripts.
    all_rules = (*comments.RULES, *judge.rules(modules))
    return {rule.id: rule for rule in sorted(all_rules, key=lambda rule: rule.id)}


@cache
def _script_rules() -> dict[str, Rule[Any]]:
    """Return the rules that judge scripts, by id."""
    return {rule.id: rule for rule in judge.rules((*judge.SCRIPTS, *judge.JOBS))}


def rule_applies(rule_id: str, kind: Applies) -> bool:
    """Return whether a rule applies to a kind of script or of line.

    A rule of another tool, or about comments of the linter, applies to all kinds.
    """
    rule = _script_rules().get(rule_id)
    return rule is None or kind in rule.applies


def marks_secret(rule_id: str) -> bool:
    """Return whether the findings of a rule mark a secret, such as a password, which reports must hide."""
    rule = _script_rules().get(rule_id)
    return rule is not None and rule.marks_secret


def lint(script: JobScript, other_findings: Sequence[Finding] = ()) -> list[Finding]:
    """Return the findings in a script that no comment turns off, in the order of its lines.

    `other_findings` come from other tools or from a dry run. They count if they repeat no finding of a rule.
    """
    failures: _Failures = {}
    script_rules = judge.rules((*judge.SCRIPTS, *judge.JOBS))
    findings = _run_rules(script, judge.candidates(script_rules, script), failures)
    findings += _wrapped_findings(script, failures)
    findings = _downgrade_new_errors(script, _applicable_findings(script, findings))
    findings += _new_findings(script, other_findings, known=findings)
    if "sbatchgen:" in script.text:
        findings = apply_suppressions(
            findings, script.file, script.lines, rules=[*rules()], decisive_rules=_decisive_rules(script)
        )
    return in_order([*findings, *_failure_findings(script, failures)])


def _wrapped_findings(script: JobScript, failures: _Failures) -> Iterator[Finding]:
    """Yield the warnings and errors about launches in jobs that the script submits with sbatch --wrap."""
    if "--wrap" not in script.text:
        return
    for word, job in wrapped_jobs(script):
        place = script.at_word(word)
        for finding in _run_rules(job, judge.candidates(judge.rules(_LAUNCH_RULE_MODULES), job), failures):
            if finding.severity != "info" and not finding.pedantic:
                problem = finding.problem._replace(at=place.text)
                yield finding._replace(place=place, problem=problem, edits=())


def _new_findings(
    script: JobScript, other_findings: Sequence[Finding], *, known: Sequence[Finding]
) -> list[Finding]:
    """Return the findings in `other_findings` that repeat no known finding.

    A finding of the same rule about the same line or launch repeats a known finding. If the known finding is
    about the whole job, each finding of the same rule repeats it.
    """
    lines_of_rule: dict[str, set[int]] = {}
    for finding in known:
        lines_of_rule.setdefault(finding.rule, set()).add(finding.place.line)
    may_repeat = any(finding.rule in lines_of_rule for finding in other_findings)
    commands = [launch.command for launch in script.launches] if may_repeat else []
    launch_spans = [range(command.line, command.end_line + 1) for command in commands]
    new_findings = []
    for finding in other_findings:
        line, known_lines = finding.place.line, lines_of_rule.get(finding.rule, set())
        lines_of_launch = next((span for span in launch_spans if line in span), range(line, line + 1))
        # A known finding outside all launches, such as in a directive, is about the whole job.
        has_finding_about_job = any(
            not any(known_line in span for span in launch_spans) for known_line in known_lines
        )
        if not has_finding_about_job and known_lines.isdisjoint(lines_of_launch):
            new_findings.append(finding)
    return new_findings


def _decisive_rules(script: JobScript) -> list[str]:
    """Return the ids of rules that would surely find their mistake in this script, if it had the mistake.

    A comment that turns off such a rule is useless if the rule finds nothing. Rules that need a dry run are
    excluded. Without a cluster the result is [], as some rules compare the script with the cluster.
    """
    needing_dry_run = {rule.id for rule in judge.rules(judge.STARTED)}
    return [rule for rule in rules() if rule not in needing_dry_run] if script.knows_cluster else []


def _run_rules(script: JobScript, rules_to_run: Iterable[Rule[Any]], failures: _Failures) -> list[Finding]:
    """Return the findings of these rules; add a rule that raises an exception to `failures`."""
    findings: list[Finding] = []
    for rule in rules_to_run:
        try:
            findings.extend(judge.findings(rule, script))
        except Exception as error:  # noqa: BLE001 - each is a bug of sbatchgen
            import traceback

            last_frame = traceback.extract_tb(error.__traceback__)[-1]
            code_line = f"{last_frame.filename.rpartition('/')[2]}:{last_frame.lineno}"
            cause = f"{type(error).__name__}: {str(error)[:_LONGEST_MESSAGE]}, {code_line}"
            failures.setdefault(cause, []).append(rule.id)
    return findings


def _failure_findings(script: JobScript, failures: _Failures) -> Iterator[Finding]:
    """Yield a finding for each cause of failures, with the id of the first rule that failed."""
    place = script.at(1)
    for cause, ids in failures.items():
        subject = f"rule {ids[0]}" if len(ids) == 1 else f"rule {ids[0]} and {len(ids) - 1} more"
        what = f"{subject} failed on this script ({cause}): please report it"
        yield Finding("warning", Problem(what, place.text), rule=ids[0], place=place)


def _downgrade_new_errors(script: JobScript, findings: list[Finding]) -> list[Finding]:
    """Return the findings with warnings in place of new errors, for which an older release takes the line.

    If the user names a release, the findings stay as they are.
    """
    directive_rules = judge.rules(_DIRECTIVE_RULE_MODULES)
    ids = {rule.id for rule in directive_rules}
    # The lines with errors. The loop below removes the lines with errors in older releases.
    lines = _error_lines(finding for finding in findings if finding.rule in ids)
    if not script.is_release_assumed or not lines or len(script.text) > LONG_SCRIPT:
        return findings
    if script.read_by(OLD_SLURM).sbatch.refusal == script.sbatch.refusal:
        return findings
    error_rules = {finding.rule for finding in findings if finding.severity == "error"}
    # The rules with errors come first, so that the loop may end before the other rules run.
    rules_to_run = sorted(directive_rules, key=lambda rule: rule.id not in error_rules)
    newest_accepting: dict[int, str] = {}  # line -> the newest release that takes the line
    for release in RELEASES[RELEASES.index(OLD_SLURM) : RELEASES.index(script.release)]:
        older = script.read_by(release)
        for rule in rules_to_run:
            lines -= _error_lines(_run_rules(older, [rule], {}))
            if not lines:
                break
        newest_accepting |= dict.fromkeys(lines, release)
        if not lines:
            break
        # After the oldest release, only the rules with errors became stricter.
        rules_to_run = [rule for rule in directive_rules if rule.id in error_rules]
    downgraded = []
    for finding in findings:
        release = newest_accepting.get(finding.place.line, "")
        if release and finding.severity == "error":
            what = f"{finding.problem.what} (Slurm {release} and older take it)"
            problem = finding.problem._replace(what=what)
            finding = finding._replace(severity="warning", problem=problem)  # noqa: PLW2901
        downgraded.append(finding)
    return downgraded


def _error_lines(findings: Iterable[Finding]) -> set[int]:
    """Return the numbers of the lines of those findings that are errors."""
    return {finding.place.line for finding in findings if finding.severity == "error"}


def _applicable_findings(script: JobScript, findings: list[Finding]) -> list[Finding]:
    """Return the findings of rules that apply to the script and to the finding's line.

    Fewer rules apply to templates, to scripts that write jobs, and to scripts and lines with placeholders.
    """
    if not findings:
        return []
    if script.written_directives:
        return [finding for finding in findings if rule_applies(finding.rule, Applies.PURE_WRITERS)]
    if script.writes_jobs:
        findings = [finding for finding in findings if rule_applies(finding.rule, Applies.WRITERS)]
    if not (lines := {*script.program_placeholders, *script.person_placeholders}):
        return findings
    if script.is_template:
        return [finding for finding in findings if rule_applies(finding.rule, Applies.TEMPLATES)]
    return [
        finding
        for finding in findings
        if rule_applies(finding.rule, Applies.PLACEHOLDERS)
        or (finding.place.line not in lines and rule_applies(finding.rule, Applies.NEAR_PLACEHOLDERS))
    ]
