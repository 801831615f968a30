#!/usr/bin/env python3
"""The findings of `sbatchgen lint` in a folder of scripts, by rule and severity, one example each.

    python benchmarks/lint_precision.py FOLDER
    python benchmarks/lint_precision.py FOLDER --show SB104 --sample 20    # 20 findings of one rule, to judge
    python benchmarks/lint_precision.py FOLDER tests/fixtures/corpus --record tests/fixtures/seen.tsv

Each regular file with a directive is read, at any depth and with any name; unreadable files are counted. A
rule's line shows its findings, the scripts that have them, and their share of all scripts. No script is run,
and bytes that are not UTF-8 are read as lint reads them. shellcheck is not run. --record writes in how many
scripts each rule has a finding, pedantic ones too: docs/reference/rules.md shows it.

Exit status: 0; 2 if the folder does not exist.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.finding import Finding
from sbatchgen.check.lint.lint_settings import Settings, findings_of
from sbatchgen.check.lint.linter import rules
from sbatchgen.check.lint.source import MAX_BYTES, read_source
from sbatchgen.jobs.inputs.search import Places
from sbatchgen.jobs.judge.read_settings import settings_of

DIRECTIVE = re.compile(rb"^[ \t]*#SBATCH", re.MULTILINE)
SEVERITIES = ("error", "warning", "info")
WIDTH = 110  # characters of a script's line that are shown


class Row(NamedTuple):
    """A finding with its file and the text of its line."""

    file: str
    finding: Finding
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.finding.place.line}"
        return f"    {_plain(where)}: {_plain(self.text)}\n        {_plain(self.finding.problem.what)}"


class Read(NamedTuple):
    """The findings in the scripts of a folder, how long each took, and what could not be read."""

    rows: list[Row]
    seconds: dict[str, float]
    unread: list[str]


def main() -> int:
    """Lint and print; the exit status."""
    parser = argparse.ArgumentParser(description="Findings of `sbatchgen lint` in a folder of scripts.")
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--select", action="append", default=[], metavar="RULES", help="as in lint --select")
    parser.add_argument("--slurm", metavar="RELEASE", help="the release that reads them [lint's own]")
    parser.add_argument("--show", metavar="RULE", help="the findings of one rule, or of one severity")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the counts to a file")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="of --show, N chosen at random")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="for --sample [1]")
    options = parser.parse_args()
    for folder in options.folders:
        if not folder.is_dir():
            print(f"{_plain(str(folder))} is not a folder", file=sys.stderr)
            return 2
    places = Places(options.folders[0].resolve(), {})
    pedantic = options.record is not None
    settings = settings_of(places, None, options.slurm, select=options.select, pedantic=pedantic)
    read = Read([], {}, [])
    for folder in options.folders:
        _read(folder, settings, read)
    if options.record:
        options.record.write_text(_record(read), encoding="ascii")
    if options.show:
        _show(read, options.show, options.sample, random.Random(options.seed))  # noqa: S311 - a sample
    else:
        _report(read)
    return 0


def _read(folder: Path, settings: Settings, read: Read) -> None:
    for path in _files(folder):
        name = os.path.relpath(path, folder)
        before = time.perf_counter()
        try:
            source = read_source(str(path))
        except DocumentError:
            read.unread.append(name)
            continue
        if not DIRECTIVE.search(source.data):
            continue
        findings = findings_of(source, settings)
        read.seconds[name] = time.perf_counter() - before
        lines = source.text.split("\n")
        read.rows.extend(Row(name, finding, _line(lines, finding.place.line)) for finding in findings)


def _record(read: Read) -> str:
    """Return how many scripts there are, and in how many each rule has a finding, a line for each."""
    scripts = Counter(rule for rule, _ in {(row.finding.rule, row.file) for row in read.rows})
    lines = [f"scripts\t{len(read.seconds)}", *(f"{rule}\t{scripts[rule]}" for rule in sorted(scripts))]
    return "\n".join(lines) + "\n"


def _files(folder: Path) -> Iterator[Path]:
    """The files at any depth by name; links to folders are not followed, and .git is left out."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in sorted(names):
            path = Path(where, name)
            if path.is_file() and path.stat().st_size <= MAX_BYTES:
                yield path


def _line(lines: list[str], number: int) -> str:
    return lines[number - 1].strip()[:WIDTH] if 0 < number <= len(lines) else ""


def _report(read: Read) -> None:
    scripts = len(read.seconds)
    unread = f", {len(read.unread)} can't be read" if read.unread else ""
    print(f"{scripts} scripts{unread}")
    if not scripts:
        return
    by_file: dict[str, Counter[str]] = {name: Counter() for name in read.seconds}
    for row in read.rows:
        by_file[row.file][row.finding.severity] += 1
    for severity in SEVERITIES:
        counts = [each[severity] for each in by_file.values()]
        having = sum(count > 0 for count in counts)
        share = 100 * having / scripts
        print(f"{severity:8}{sum(counts):6} in {having} scripts ({share:.1f} %), mean {mean(counts):.2f}")
    totals = [each.total() for each in by_file.values()]
    print(f"a script has {median(totals):g} findings in the median, {max(totals)} at most")
    _times(read.seconds)
    for severity in SEVERITIES:
        _by_rule([row for row in read.rows if row.finding.severity == severity], severity, scripts)


def _times(seconds: dict[str, float]) -> None:
    slowest = max(seconds, key=lambda name: seconds[name])
    each = sorted(seconds.values())
    print(
        f"{sum(each):.1f} s in all, {1000 * median(each):.1f} ms in the median, "
        f"{1000 * each[-1]:.0f} ms for {_plain(slowest)}"
    )


def _by_rule(rows: list[Row], severity: str, scripts: int) -> None:
    of_rule: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of_rule[row.finding.rule].append(row)
    for rule, every in sorted(of_rule.items(), key=lambda item: (-len(item[1]), item[0])):
        files = len({row.file for row in every})
        print(
            f"\n{severity} {rule} {rules()[rule].title}: {len(every)} in {files} scripts "
            f"({100 * files / scripts:.1f} %)\n{every[0]}"
        )


def _show(read: Read, what: str, sample: int, chance: random.Random) -> None:
    chosen = [row for row in read.rows if what in (row.finding.rule, row.finding.severity)]
    if sample and sample < len(chosen):
        chosen = sorted(chance.sample(chosen, sample), key=lambda row: (row.finding.rule, row.file))
    for row in chosen:
        print(f"{row.finding.severity} {row.finding.rule}\n{row}")
    print(f"{len(chosen)} finding{'s' * (len(chosen) != 1)}")


def _plain(text: str) -> str:
    """A text that any terminal can show: odd bytes and control characters are escaped."""
    return text.encode("ascii", "backslashreplace").decode().translate(_CONTROLS)


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127) if chr(code) not in "\n\t"}


if __name__ == "__main__":
    sys.exit(main())
