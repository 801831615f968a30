#!/usr/bin/env python3
"""What each part of lint finds: a part that changes nothing may go.

    python benchmarks/ablation.py FOLDER                   # the scripts of a folder
    python benchmarks/ablation.py FOLDER --slurm 26.05 --profile msu
    python benchmarks/ablation.py FOLDER --unused          # the parts that change no script and no request

Each part is switched off in turn: a rule about scripts, the check of a kind of value (see
sbatchgen/check/sbatch/options.txt), and the checks of options together. A line of the table says in how many
scripts the findings change without it, in how many of the recorded requests of people, one half of them with
a slip of the keyboard (benchmarks/values.py), and how many of these lint then judges otherwise than
slurmctld did.

Exit status: 0; 2 where the folder has no script.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sbatchgen.base.errors import DocumentError
from sbatchgen.check.lint.lint_settings import Settings, findings_of
from sbatchgen.check.lint.linter import rules
from sbatchgen.check.lint.source import Source, read_source
from sbatchgen.check.rules import judge
from sbatchgen.check.sbatch import reader
from sbatchgen.check.sbatch.option_table import value_kinds
from sbatchgen.jobs.inputs.search import Places
from sbatchgen.jobs.judge.read_settings import settings_of
from tests.rules.values import NOT_REFUSED, Answers

RECORDED = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "controller_22.05.json.gz"
EVERY = 4  # so many of the recorded requests are left out for one that is judged
TOGETHER = "options together"
Findings = frozenset[tuple[str, int, str]]  # rule, line and severity


class Subject(NamedTuple):
    """A script, or a recorded request.

    Attributes:
        source: Its text.
        options: The options that sbatch reads in it.
        said: Why slurmctld refused it; "" where it did not, None for a script.
    """

    source: Source
    options: frozenset[str]
    said: str | None


def main() -> int:
    """Switch each part off, and print the table."""
    parser = argparse.ArgumentParser(description="count what each part of lint finds")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--slurm", metavar="RELEASE", help="the release that reads the scripts [lint's own]")
    parser.add_argument("--profile", help="the cluster of the scripts")
    parser.add_argument("--unused", action="store_true", help="show only parts that change nothing")
    options = parser.parse_args()
    settings = settings_of(
        Places(options.folder.resolve(), {}), options.profile, options.slurm, select=["all"]
    )
    subjects = [*_scripts(options.folder), *_requests()]
    if subjects[0].said is not None:
        print(f"error: {options.folder} has no script", file=sys.stderr)
        return 2
    before = [_findings(subject, settings) for subject in subjects]
    print(f"{'part':28} {'scripts':>8} {'requests':>8} {'verdicts':>8}  title")
    for rule in (rule for rule in rules().values() if rule in judge.rules((*judge.SCRIPTS, *judge.JOBS))):
        after = [frozenset(row for row in findings if row[0] != rule.id) for findings in before]
        _print(rule.id, rule.title, subjects, before, after, unused=options.unused)
    for kind in (*dict.fromkeys(value_kinds().values()), TOGETHER):
        names = {name for name, value_kind in value_kinds().items() if value_kind == kind}
        touched = [kind == TOGETHER or bool(names & subject.options) for subject in subjects]
        with _without(kind):
            pairs = zip(subjects, before, touched, strict=True)
            after = [_findings(subject, settings) if hit else old for subject, old, hit in pairs]
        title = f"values of --{', --'.join(sorted(names))}" if names else ""
        _print(kind, title[:60], subjects, before, after, unused=options.unused)
    return 0


def _scripts(folder: Path) -> Iterator[Subject]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            source = read_source(str(path))
        except DocumentError:
            continue
        if b"#SBATCH" in source.data:
            yield Subject(source, frozenset(reader.read_script(source.data).options), None)


def _requests() -> Iterator[Subject]:
    answers = Answers.read(RECORDED)
    for request, said in [*zip(answers.requests, answers.said, strict=True)][::EVERY]:
        names = frozenset(name for name, _ in request.options)
        yield Subject(Source(file="job.sh", data=request.script.encode()), names, said)


def _findings(subject: Subject, settings: Settings) -> Findings:
    rows = findings_of(subject.source, settings)
    return frozenset((row.rule, row.place.line, row.severity) for row in rows)


@contextmanager
def _without(kind: str) -> Iterator[None]:
    """Switch off the check of a kind of value, or those of options together."""
    kinds = value_kinds()
    together = mock.patch.object(reader, "check_options") if kind == TOGETHER else nullcontext()
    with together, mock.patch.dict(kinds):
        for name in [name for name, value_kind in kinds.items() if value_kind == kind]:
            del kinds[name]
        yield


def _print(
    part: str,
    title: str,
    subjects: list[Subject],
    before: list[Findings],
    after: list[Findings],
    *,
    unused: bool,
) -> None:
    changed = [
        (subject, old, new) for subject, old, new in zip(subjects, before, after, strict=True) if old != new
    ]
    scripts = sum(subject.said is None for subject, _, _ in changed)
    verdicts = sum(
        subject.said is not None and _is_error(old) == bool(subject.said) != _is_error(new)
        for subject, old, new in changed
    )
    if not (unused and changed):
        print(f"{part:28} {scripts:8} {len(changed) - scripts:8} {verdicts:8}  {title}")


def _is_error(findings: Findings) -> bool:
    return any(severity == "error" and rule not in NOT_REFUSED for rule, _, severity in findings)


if __name__ == "__main__":
    sys.exit(main())
