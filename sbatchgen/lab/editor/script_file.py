"""What an editor shows in a script: the meanings and limits of its options, and choices at the cursor."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from sbatchgen.base.finding import Finding
from sbatchgen.base.keys import keys_of
from sbatchgen.check.lint.linter import rules
from sbatchgen.check.rules.rule_page import pages
from sbatchgen.check.sbatch.getopt import Option
from sbatchgen.check.sbatch.option_table import HasArgument, Spec
from sbatchgen.check.sbatch.values import MAIL_EVENTS
from sbatchgen.check.script.known_options import known_specs
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.options import LONG_NAMES, SbatchOptions
from sbatchgen.lab.editor.cluster import ClusterFacts
from sbatchgen.lab.editor.cursor import Choice, Choices, Note, choices_with_start

_DISTRIBUTIONS = "block cyclic plane= arbitrary block:block block:cyclic cyclic:cyclic"
_GRES_FLAGS = "disable-binding enforce-binding one-task-per-sharing multiple-tasks-per-sharing"
# By option: words that it takes as its value.
VALUE_WORDS = {
    "distribution": tuple(_DISTRIBUTIONS.split()),
    "exclusive": ("user", "mcs", "topo"),
    "export": ("ALL", "NIL", "NONE"),
    "gpu-bind": ("closest", "none", "single:1", "verbose,"),
    "gres-flags": tuple(_GRES_FLAGS.split()),
    "hint": ("compute_bound", "memory_bound", "multithread", "nomultithread"),
    "kill-on-invalid-dep": ("no", "yes"),
    "mail-type": tuple(sorted(MAIL_EVENTS)),
    "open-mode": ("append", "truncate"),
    "wait-all-nodes": ("0", "1"),
}
_DIRECTIVE = "#SBATCH"
# The text before the cursor if the cursor is in the value of an option, such as --partition=gp or -p gp.
_VALUE_START = re.compile(r"\s(?:--(?P<long>[\w-]+)(?P<between>=|\s+)|-(?P<short>\w)\s*)(?P<value>[^\s=]*)$")
# The text before the cursor if the cursor is in a comment such as "# sbatchgen: disable=SB101,SB".
_RULE_START = re.compile(r"#\s*sbatchgen:\s*disable(?:-file)?=(?:[\w,]*,)?(?P<start>\w*)$")
_LAST_VALUE = re.compile(r"[^,&|]*$")  # the last value in a list of values
_COMMON_OPTIONS = {
    LONG_NAMES[name] for name, key in keys_of(SbatchOptions).items() if key.metadata.get("common")
}


@cache
def meanings() -> dict[str, str]:
    """Return the meaning of each option of sbatch, by its long name."""
    of_keys = {LONG_NAMES[name]: key.metadata["help"] for name, key in keys_of(SbatchOptions).items()}
    # The file has the meanings of the other options of sbatch, which are not keys of a job.
    lines = Path(__file__).with_name("option_meanings.txt").read_text().splitlines()
    rows = (row.split(maxsplit=1) for row in lines)
    return of_keys | {name: text for name, text in rows}  # noqa: C416


def note(
    script: JobScript, cluster: ClusterFacts | None, line: int, column: int, findings: Iterable[Finding]
) -> Note | None:
    """Return a note about the option and the findings at a place; None for a place without them."""
    texts, note_place = [], None  # the place is that of the first text
    for use in script.option_uses:
        place = script.at_use(use)
        if isinstance(use, Option) and place.line == line and place.column <= column <= place.end:
            texts.append(option_text(use.name, use.spec, use.value or "", cluster, partitions_of(script)))
            note_place = place
    for finding in findings:
        place = finding.place
        if place.line == line and place.column <= column <= (place.end or column):
            page = pages().get(finding.rule)
            reason = page.text.partition("\n```")[0] if page else ""  # without the examples
            # The heading of the page becomes a bold line.
            texts.append(reason.replace("## ", "**", 1).replace("\n", "**\n", 1))
            note_place = note_place or place
    if not note_place:
        return None
    end = note_place.end or len(script.lines[line - 1]) + 1
    return Note("\n\n".join(filter(None, dict.fromkeys(texts))), line, note_place.column, end)


def option_text(
    name: str, spec: Spec | None, value: str, cluster: ClusterFacts | None, partitions: Iterable[str]
) -> str:
    """Return a text about an option of sbatch: its meaning, and the limits of the cluster."""
    short = f" (`-{spec.short}`)" if spec and spec.short else ""
    lines = [f"**--{name}**{short}: {meanings().get(name, 'An option of a plugin of the site.')}"]
    if cluster and (limits := cluster.limits(name, value, partitions)):
        lines += ["", f"{cluster.profile.name}:", "", *limits]
    return "\n".join(lines)


def choices(script: JobScript, cluster: ClusterFacts | None, line: int, column: int) -> Choices:
    """Return the choices at a place: options of sbatch, values of an option, or rules in a comment."""
    before = script.lines[line - 1][: column - 1]
    if comment := _RULE_START.search(before):
        start = comment["start"].upper()
        all_rules = (Choice(rule.id, "rule", rule.title) for rule in rules().values())
        return choices_with_start(all_rules, start, column - len(start))
    if not before.startswith(_DIRECTIVE):
        return Choices()
    known = known_specs(script.slurm, script.plugins)
    if value := _VALUE_START.search(before):
        by_letter = {spec.short: spec for spec in known.values()}
        spec = known.get(value["long"]) if value["long"] else by_letter.get(value["short"])
        # An option with an optional argument takes a value only after "=".
        arguments = [HasArgument.REQUIRED, *([HasArgument.OPTIONAL] if value["between"] == "=" else [])]
        if spec and spec.argument in arguments:
            return value_choices(spec.name, value["value"], cluster, partitions_of(script), column)
    start = re.search(r"\S*$", before)
    assert start is not None  # noqa: S101
    options = []
    # Options such as --help have no effect in a directive.
    for spec in (spec for spec in known.values() if not spec.early):
        equals = "=" if spec.argument is HasArgument.REQUIRED else ""
        meaning = meanings().get(spec.name, "An option of a plugin of the site.")
        options.append(Choice(f"--{spec.name}{equals}", "option", meaning, spec.name in _COMMON_OPTIONS))
    return choices_with_start(options, start[0], start.start() + 1)


def value_choices(
    name: str, written: str, cluster: ClusterFacts | None, partitions: Iterable[str], column: int
) -> Choices:
    """Return the choices for the value of an option.

    `written` is the part of the value before the cursor. If it is a list, the choices are for its last item.
    """
    last = _LAST_VALUE.search(written)
    start = last[0] if last else ""
    known = dict.fromkeys(VALUE_WORDS.get(name, ()), "") | (
        cluster.names(name, partitions) if cluster else {}
    )
    all_values = (Choice(text, "value", about) for text, about in known.items())
    return choices_with_start(all_values, start, column - len(start))


def partitions_of(script: JobScript) -> list[str]:
    """Return the partitions that a script names."""
    option = script.options.get("partition")
    return (option.value or "").split(",") if option else []
