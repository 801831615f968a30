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

# A comment whose first word may be a misspelt SBATCH before an option, such as #SBTACH --nodes=2.
_MISSPELT = re.compile(r"[ \t]*#[ \t]*([A-Za-z]{4,8})[ \t]+-{1,2}[A-Za-z]")
_OPTION_FOLLOWS = re.compile(r"SBATCH[ \t]*-", re.IGNORECASE)
_SWITCHED_OFF = re.compile(r"[a-z]+SBATCH|[A-RT-Z]BATCH")  # such as #xSBATCH and #YBATCH
_CORRECT_WORDS = {"SBATCH", "SLURM", "BSUB"}
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
# A dash at the start of a word, a space other than a blank, or a curly quote.
_TYPOGRAPHIC = re.compile(f"(?:(?<=\\s)[{_DASHES}])|[\u00a0\u2007\u202f\u201c\u201d\u2018\u2019\u00ab\u00bb]")
_HOLDS_OPTION = re.compile(r"[# \t]*SBATCH[ \t]*(?:-|hetjob|packjob)", re.IGNORECASE)  # not a sentence
_USAGE = re.compile(r"[ \t]*#+[ \t]+sbatch\b")  # a comment about the call of the script
# A slip of the pen: a blank before #SBATCH, #sbatch in lower case, or no blank before the dash.
_SLIP = re.compile(r"[ \t]+#SBATCH[ \t]|#(?:sbatch|Sbatch)[ \t]+-|#SBATCH(?=-)")


@RULES.add("SB101", "error", "the first line does not start with #!", applies=Applies.JOB_SCRIPTS)
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
        lines_end = f"{len(numbers)} lines end" if len(numbers) > 1 else "a line ends"
        what = f"{lines_end} in a carriage return (DOS line ends): sbatch refuses the script"
        yield Hit(script.at(numbers[0]), what, f"sed -i 's/\\r$//' {script.file}", edits=edits)


@RULES.add(
    "SB104",
    "warning",
    "a directive after the first command is ignored",
    applies=Applies.USUALLY & ~(Applies.PARTS | Applies.NEAR_PLACEHOLDERS | Applies.WRITERS),
)
def _late_directives(script: JobScript) -> Iterator[Hit]:
    lines = (line for line in script.sbatch.directives if line.kind is Kind.LATE)
    late = [line.line for line in lines if not line.text.startswith("#SLURM_")]  # not a variable's name
    if not late:
        return  # saves reading the body
    comments = {number for number, _ in script.body.comments} if script.body.language in SHELLS else None
    late = [number for number in late if comments is None or number in comments]  # no text of a here-document
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
    comments = [*_header_comments(script)]
    header_lines = {number for number, _ in comments}
    for line in script.sbatch.directives:
        if line.kind is not Kind.LOOKALIKE or line.line not in header_lines or script.text[0].isspace():
            continue  # SB101 reports a blank before #!
        if _OPTION_FOLLOWS.search(line.text) and not _USAGE.match(line.text):
            what = "this looks like a directive, but is a comment to Slurm"
            fix = "start the line with #SBATCH"
            is_mistake = not has_directives or _is_slip(script, line)
            yield Hit(script.at(line.line), what, fix, None if is_mistake else "info")
    for number, text in comments:
        match = _MISSPELT.match(text)
        if not match or match[1].upper() in _CORRECT_WORDS or _SWITCHED_OFF.fullmatch(match[1]):
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
        if line.kind is Kind.DISABLED and _HOLDS_OPTION.match(line.text):
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
        if word and (cut := re.match(r"#\S+", rest)):
            name, equals, value = word.text.partition("=")
            what = f"sbatch reads {word.text} only: a # without a blank before it starts a comment too"
            quoted = f'{name}{equals}"{value}{cut[0]}"' if equals else f'"{name}{cut[0]}"'
            end = word.end + len(cut[0])
            edits: tuple[Edit, ...] = ()
            is_plain = word.end - word.column == len(word.text)  # without quotes and escapes
            if is_plain and "$" not in quoted:
                edits = (Edit(directive.line, word.column, end, quoted),)
            at = script.at(directive.line, word.column, end)
            yield Hit(at, what, f"quote it: {quoted}", edits=edits)


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
            code_point = f"U+{ord(match[0]):04X}"
            lookalike = "dash" if match[0] in _DASHES else "space" if match[0].isspace() else "quote"
            what = f"{code_point} looks like a {lookalike}, but is another character to sbatch"
            at = script.at(line.line, match.start() + 1, match.end() + 1)
            yield Hit(at, what, f"type a plain {lookalike}")


@RULES.add(
    "SB136",
    "info",
    "a template with placeholders",
    applies=Applies.USUALLY | Applies.PLACEHOLDERS | Applies.TEMPLATES,
)
def _unfilled_template(script: JobScript) -> Iterator[Hit]:
    matches = script.placeholders
    first = min(matches, key=lambda number: number not in script.directive_lines, default=None)
    if first is not None:
        match = matches[first]
        subject = f"{len(matches)} such lines are" if len(matches) > 1 else "this line is"
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
    """Return whether a line was meant as a directive: no blank follows its #, and its option is not given.

    With a blank after the #, people switch a directive off on purpose.
    """
    match = _SLIP.match(line.text)
    option = re.search(r"-{1,2}([A-Za-z][\w-]*)", line.text)
    if match is None or option is None:
        return False
    given_names = {name for use in uses(script) for name in (use.spec.short, use.spec.name)}
    words = line.text[match.end() :].split("#")[0].split()
    # The line may show a call of the script, such as #sbatch -N 2 job.sh.
    is_call = len(words) > 2 and not words[-1].startswith("-") and "=" not in words[-1]
    return option[1] not in given_names and not is_call


def _header_comments(script: JobScript) -> Iterator[tuple[int, str]]:
    """Yield the lines between the first line and the first command, with their numbers."""
    for number, line in enumerate(script.lines[1:], start=2):
        if (stripped := line.lstrip()) and stripped[0] != "#":
            return
        yield number, line
