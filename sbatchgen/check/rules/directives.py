"""Rules about lines that sbatch reads as directives, or ignores: SB101 to SB106, and others up to SB147.

These rules are exact, as the reader reads scripts as sbatch does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.base.errors import nearest
from sbatchgen.base.finding import Edit, Place
from sbatchgen.check.executables.program import SHELLS
from sbatchgen.check.rules.directive_options import unknown_options, uses
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.sbatch.header import FOREIGN_KINDS, READ_KINDS, Directive, Kind
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

_MISSPELT = re.compile(r"[ \t]*#[ \t]*([A-Za-z]{4,8})[ \t]+-{1,2}[A-Za-z]")
_OPTION_FOLLOWS = re.compile(r"SBATCH[ \t]*-", re.IGNORECASE)
_SWITCHED_OFF = re.compile(r"[a-z]+SBATCH|[A-RT-Z]BATCH")  # such as #xSBATCH and #YBATCH
_OTHER_MARKS = {"SBATCH", "SLURM", "BSUB"}
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_TYPOGRAPHIC = re.compile(f"(?:(?<=\\s)[{_DASHES}])|[\u00a0\u2007\u202f\u201c\u201d\u2018\u2019\u00ab\u00bb]")
_IS_OPTION = re.compile(r"[# \t]*SBATCH[ \t]*(?:-|hetjob|packjob)", re.IGNORECASE)  # and no prose
_USAGE = re.compile(r"[ \t]*#+[ \t]+sbatch\b")  # a comment about the call of the script
_SLIP = re.compile(r"[ \t]+#SBATCH[ \t]|#(?:sbatch|Sbatch)[ \t]+-|#SBATCH(?=-)")


@RULES.add("SB101", "error", "the first line does not start with #!", applies=Applies.NOT_WRITERS)
def _shebang(script: JobScript) -> Iterator[Hit]:
    if not script.text.startswith("#!"):
        if script.text.lstrip().startswith("#!"):
            what = "blanks before #!: sbatch refuses the script"
            yield Hit(script.at(1), what, "remove them, and those before each #SBATCH")
        elif script.text.startswith("\ufeff#!"):
            what = "a byte order mark before #!: sbatch refuses the script"
            yield Hit(script.at(1), what, "remove it", edits=(Edit(1, 1, 2, ""),))
        else:
            what = "the first line does not start with #!: sbatch refuses the script"
            yield Hit(script.at(1), what, "write #!/bin/bash in the first line")


@RULES.add("SB102", "error", "DOS line ends or a NUL byte", words=("\0", "\r"))
def _line_ends(script: JobScript) -> Iterator[Hit]:
    if "\0" in script.text:
        line = script.text.count("\n", 0, script.text.index("\0")) + 1
        what = "a NUL byte: Slurm refuses the script"
        yield Hit(script.at(line), what, f"tr -d '\\0' < {script.file} > NEW")
    numbers = [number for number, line in enumerate(script.lines, start=1) if line.endswith("\r")]
    if numbers and "\r\n" in script.text:
        edits = tuple(Edit(number, len(script.lines[number - 1]), 0, "") for number in numbers)
        many = f"{len(numbers)} lines end" if len(numbers) > 1 else "a line ends"
        what = f"{many} in a carriage return (DOS line ends): sbatch refuses the script"
        yield Hit(script.at(numbers[0]), what, f"sed -i 's/\\r$//' {script.file}", edits=edits)


@RULES.add(
    "SB104",
    "warning",
    "a directive after the first command is ignored",
    applies=Applies.USUALLY & ~(Applies.PARTS | Applies.UNFILLED | Applies.WRITERS),
)
def _late_directives(script: JobScript) -> Iterator[Hit]:
    lines = (line for line in script.sbatch.directives if line.kind is Kind.LATE)
    late = [line.line for line in lines if not line.text.startswith("#SLURM_")]  # a variable
    if not late:
        return  # saves reading the body
    comments = {number for number, _ in script.body.comments} if script.body.language in SHELLS else None
    late = [line for line in late if comments is None or line in comments]  # else the line is text
    if late:
        what = "this directive comes after the first command: Slurm silently ignores it"
        if len(late) > 1:
            what = f"this directive and {len(late) - 1} more come after the first command: "
            what += "Slurm silently ignores them"
        stripped = enumerate(map(str.strip, script.lines), start=1)
        commands = (number for number, line in stripped if line and line[0] != "#")
        pronoun = "it" if len(late) == 1 else "them"
        yield Hit(
            script.at(late[0]), what, f"move {pronoun} above line {next(commands, 2)}, the first command"
        )


@RULES.add("SB105", "warning", "a comment that looks like a directive")
def _lookalikes(script: JobScript) -> Iterator[Hit]:
    has_directives = any(line.kind in READ_KINDS for line in script.sbatch.directives)
    comments = [*_header(script)]
    header = {number for number, _ in comments}
    for line in script.sbatch.directives:
        if line.kind is not Kind.LOOKALIKE or line.line not in header or script.text[0].isspace():
            continue  # SB101 reports a blank before #!
        if _OPTION_FOLLOWS.search(line.text) and not _USAGE.match(line.text):
            what = "this looks like a directive, but is a comment to Slurm"
            fix = "start the line with #SBATCH"
            is_meant = not has_directives or _is_slip(script, line)
            yield Hit(script.at(line.line), what, fix, None if is_meant else "info")
    for number, text in comments:
        match = _MISSPELT.match(text)
        if not match or match[1].upper() in _OTHER_MARKS or _SWITCHED_OFF.fullmatch(match[1]):
            continue
        if nearest(match[1].upper(), ("SBATCH",), 0.8):
            what = f"#{match[1]} is a comment to Slurm"
            yield Hit(script.at(number, match.start(1), match.end(1) + 1), what, "write #SBATCH")


def unread_lines(script: JobScript) -> Iterator[str]:
    """Yield the texts of lines that were meant as directives, but that sbatch ignores or refuses."""
    for check in (_late_directives, _lookalikes, unknown_options):
        for hit in check(script):
            yield script.lines[hit.at.line - 1] if isinstance(hit.at, Place) else ""


@RULES.add("SB106", "info", "a directive that is commented out", words=("##",))
def _disabled_directives(script: JobScript) -> Iterator[Hit]:
    for line in script.sbatch.directives:
        if line.kind is Kind.DISABLED and _IS_OPTION.match(line.text):
            fix = "remove one # to use the option, or remove the line"
            yield Hit(script.at(line.line, line.column), "##SBATCH is a comment to Slurm", fix)


@RULES.add("SB108", "error", "an unclosed quote, or a colon that starts a word")
def _quotes_and_colons(script: JobScript) -> Iterator[Hit]:
    foreign = () if "ignore-pbs" in script.options else FOREIGN_KINDS
    for line in script.sbatch.directives:
        if line.kind in (*READ_KINDS, *foreign) and line.fault:
            at = script.at(line.line, line.fault.column)
            if "Unmatched" in line.fault.text:
                what, fix = "a quote is not closed", "close it, or write \\' for an apostrophe"
            else:
                what = "a word starts with a colon"
                fix = "separate the components of a heterogeneous job with a line #SBATCH hetjob"
            yield Hit(at, f"{what}: sbatch refuses the script", fix)


@RULES.add("SB146", "warning", "a # that ends the value of an option", source="sbatch(1)")
def _value_cut_short(script: JobScript) -> Iterator[Hit]:
    """Find a # within a word, such as nvcr.io#nvidia/pytorch: sbatch starts a comment there."""
    for directive in script.sbatch.directives:
        word = directive.words[-1] if directive.kind in READ_KINDS and directive.words else None
        rest = directive.text[word.end - 1 :] if word else ""
        if word and rest.startswith("#") and (whole := re.match(r"#\S+", rest)):
            name, equals, value = word.text.partition("=")
            what = f"sbatch reads {word.text} only: a # without a blank before it starts a comment too"
            written = f'{name}{equals}"{value}{whole[0]}"' if equals else f'"{name}{whole[0]}"'
            edits: tuple[Edit, ...] = ()
            if word.end - word.column == len(word.text) and "$" not in written:
                edits = (Edit(directive.line, word.column, word.end + len(whole[0]), written),)
            at = script.at(directive.line, word.column, word.end + len(whole[0]))
            yield Hit(at, what, f"quote it: {written}", edits=edits)


@RULES.add(
    "SB147",
    "info",
    "a heterogeneous job",
    source="https://slurm.schedmd.com/heterogeneous_jobs.html",
    words=("hetjob", "packjob"),
)
def _heterogeneous_job(script: JobScript) -> Iterator[Hit]:
    separator = next(
        (directive for directive in script.sbatch.directives if directive.kind is Kind.SEPARATOR), None
    )
    if separator:
        what = "only the first component of this heterogeneous job is checked and planned"
        yield Hit(script.at(separator.line), what, "check each component as a script of its own")


@RULES.add("SB125", "warning", "a typographic character in a directive")
def _typographic_characters(script: JobScript) -> Iterator[Hit]:
    for line in script.sbatch.directives:
        may_match = line.kind in READ_KINDS and not line.text.isascii()
        match = _TYPOGRAPHIC.search(line.text) if may_match else None
        if match and (line.fault or (line.words and match.start() + 1 < line.words[-1].end)):
            code = f"U+{ord(match[0]):04X}"
            plain = "dash" if match[0] in _DASHES else "space" if match[0].isspace() else "quote"
            what = f"{code} looks like a {plain}, but is another character to sbatch"
            at = script.at(line.line, match.start() + 1, match.end() + 1)
            yield Hit(at, what, f"type a plain {plain}")


@RULES.add(
    "SB136",
    "info",
    "a template with placeholders",
    applies=Applies.USUALLY | Applies.PLACEHOLDERS | Applies.TEMPLATES,
)
def _unfilled_template(script: JobScript) -> Iterator[Hit]:
    lines = script.placeholders
    first = next(iter(sorted(lines, key=lambda number: number not in script.directive_lines)), None)
    if first is not None:
        match = lines[first]
        subject = f"{len(lines)} such lines are" if len(lines) > 1 else "this line is"
        subject = "the script is" if script.is_template else subject
        what = f"{match[0]} is a placeholder that a program fills in: {subject} not checked"
        at = script.at(first, match.start() + 1, match.end() + 1)
        yield Hit(at, what, "lint the rendered script")


@RULES.add("SB144", "info", "a script that writes job scripts", applies=Applies.ANY_TEXT)
def _writes_scripts(script: JobScript) -> Iterator[Hit]:
    for number in script.written_directives[:1]:
        what = "all #SBATCH lines are text that this script writes: it is not checked as a job script"
        yield Hit(script.at(number), what, "lint the script that it writes")


def _is_slip(script: JobScript, line: Directive) -> bool:
    """Return whether a line was meant as a directive: no blank follows its #, and the option is new.

    With a blank after the #, people switch a directive off on purpose.
    """
    match = _SLIP.match(line.text)
    option = re.search(r"-{1,2}([A-Za-z][\w-]*)", line.text)
    if match is None or option is None:
        return False
    name = option[1]
    given = {name for use in uses(script) for name in (use.spec.short, use.spec.name)}
    words = line.text[match.end() :].split("#")[0].split()
    is_usage = bool(words) and not words[-1].startswith("-") and "=" not in words[-1] and len(words) > 2
    return name not in given and not is_usage


def _header(script: JobScript) -> Iterator[tuple[int, str]]:
    """Yield the comments before the first command, with the numbers of their lines."""
    for number, line in enumerate(script.lines[1:], start=2):
        if (stripped := line.lstrip()) and stripped[0] != "#":
            return
        yield number, line
