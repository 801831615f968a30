"""Rules about the lines of a script that are directives, or that people take for directives.

The rules judge the lines as sbatch reads them. `directive_options` has the rules about the options in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.base.errors import nearest
from sbatchgen.base.finding import Edit, Place
from sbatchgen.check.executables.program import SHELLS
from sbatchgen.check.rules.directive_options import accepted_options, unknown_options
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.sbatch.header import FOREIGN_KINDS, READ_KINDS, Directive, Kind
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

# A comment whose first word may be a misspelt SBATCH before an option, such as #SBTACH --nodes=2.
_MISSPELT = re.compile(r"[ \t]*#[ \t]*([A-Za-z]{4,8})[ \t]+-{1,2}[A-Za-z]")
_SBATCH_OPTION = re.compile(r"SBATCH[ \t]*-", re.IGNORECASE)  # such as SBATCH --nodes=2
_SWITCHED_OFF = re.compile(r"[a-z]+SBATCH|[A-RT-Z]BATCH")  # people write #xSBATCH and #YBATCH on purpose
_CORRECT_WORDS = {"SBATCH", "SLURM", "BSUB"}
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # such as the en dash
# A dash at the start of a word, a space other than a blank, or a curly quote.
_TYPOGRAPHIC = re.compile(f"(?:(?<=\\s)[{_DASHES}])|[\u00a0\u2007\u202f\u201c\u201d\u2018\u2019\u00ab\u00bb]")
# A directive that is switched off, such as ##SBATCH --nodes=2. A sentence about SBATCH has no dash there.
_DISABLED_OPTION = re.compile(r"[# \t]*SBATCH[ \t]*(?:-|hetjob|packjob)", re.IGNORECASE)
# A comment that shows how to submit the script, such as # sbatch -N 2 job.sh.
_SBATCH_CALL = re.compile(r"[ \t]*#+[ \t]+sbatch\b")
# A slip of the pen: a blank before #SBATCH, #sbatch in lower case, or no blank before the dash.
_SLIP = re.compile(r"[ \t]+#SBATCH[ \t]|#(?:sbatch|Sbatch)[ \t]+-|#SBATCH(?=-)")


@RULES.add("SB101", "error", "the first line does not start with #!", applies=Applies.JOB_SCRIPTS)
def _missing_shebang(script: JobScript) -> Iterator[Hit]:
    if script.text.startswith("#!"):
        return
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
def _refused_characters(script: JobScript) -> Iterator[Hit]:
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
    late_directives = (directive for directive in script.sbatch.directives if directive.kind is Kind.LATE)
    # A comment such as #SLURM_JOB_ID is about a variable.
    numbers = [directive.line for directive in late_directives if not directive.text.startswith("#SLURM_")]
    if not numbers:
        return  # the body, which takes time to read, is not needed
    if script.body.language in SHELLS:  # lines of a here-document are no comments
        comment_numbers = {number for number, _ in script.body.comments}
        numbers = [number for number in numbers if number in comment_numbers]
    if numbers:
        pronoun = "it" if len(numbers) == 1 else "them"
        what = "this directive comes after the first command: Slurm silently ignores it"
        if len(numbers) > 1:
            what = f"this directive and {len(numbers) - 1} more come after the first command: "
            what += "Slurm silently ignores them"
        stripped_lines = enumerate(map(str.strip, script.lines), start=1)
        first_command = next((number for number, line in stripped_lines if line and line[0] != "#"), 2)
        fix = f"move {pronoun} above line {first_command}, the first command"
        yield Hit(script.at(numbers[0]), what, fix)


@RULES.add("SB105", "warning", "a comment that looks like a directive")
def _lookalikes(script: JobScript) -> Iterator[Hit]:
    has_directives = any(directive.kind in READ_KINDS for directive in script.sbatch.directives)
    header = [*_header_comments(script)]
    header_numbers = {number for number, _ in header}
    starts_with_blank = script.text[:1].isspace()  # SB101 reports the script
    for lookalike in script.sbatch.directives:
        if lookalike.kind is not Kind.LOOKALIKE or lookalike.line not in header_numbers or starts_with_blank:
            continue
        if _SBATCH_OPTION.search(lookalike.text) and not _SBATCH_CALL.match(lookalike.text):
            what = "this looks like a directive, but is a comment to Slurm"
            fix = "start the line with #SBATCH"
            is_mistake = not has_directives or _is_slip(script, lookalike)
            yield Hit(script.at(lookalike.line), what, fix, None if is_mistake else "info")
    for number, text in header:
        match = _MISSPELT.match(text)
        word = match[1] if match else ""
        if not match or word.upper() in _CORRECT_WORDS or _SWITCHED_OFF.fullmatch(word):
            continue
        if nearest(word.upper(), ("SBATCH",), 0.8):
            at = script.at(number, match.start(1), match.end(1) + 1)
            yield Hit(at, f"#{word} is a comment to Slurm", "write #SBATCH")


def unread_lines(script: JobScript) -> Iterator[str]:
    """Yield the texts of lines that were meant as directives, but that sbatch ignores or refuses."""
    for rule in (_late_directives, _lookalikes, unknown_options):
        for hit in rule(script):
            yield script.lines[hit.at.line - 1] if isinstance(hit.at, Place) else ""


@RULES.add("SB106", "info", "a directive that is commented out", words=("##",))
def _disabled_directives(script: JobScript) -> Iterator[Hit]:
    for directive in script.sbatch.directives:
        if directive.kind is Kind.DISABLED and _DISABLED_OPTION.match(directive.text):
            fix = "remove one # to use the option, or remove the line"
            at = script.at(directive.line, directive.column)
            yield Hit(at, "##SBATCH is a comment to Slurm", fix)


@RULES.add("SB108", "error", "an unclosed quote, or a colon that starts a word")
def _quotes_and_colons(script: JobScript) -> Iterator[Hit]:
    kinds = READ_KINDS if "ignore-pbs" in script.options else (*READ_KINDS, *FOREIGN_KINDS)
    for directive in script.sbatch.directives:
        if directive.kind in kinds and directive.fault:
            at = script.at(directive.line, directive.fault.column)
            if "Unmatched" in directive.fault.text:
                what, fix = "a quote is not closed", "close it, or write \\' for an apostrophe"
            else:
                what = "a word starts with a colon"
                fix = "separate the components of a heterogeneous job with a line #SBATCH hetjob"
            yield Hit(at, f"{what}: sbatch refuses the script", fix)


@RULES.add("SB146", "warning", "a # that ends the value of an option", source="sbatch(1)")
def _value_cut_short(script: JobScript) -> Iterator[Hit]:
    """Find a # within a word, such as nvcr.io#nvidia/pytorch: sbatch starts a comment there."""
    for directive in script.sbatch.directives:
        if directive.kind not in READ_KINDS or not directive.words:
            continue
        word = directive.words[-1]
        if match := re.match(r"#\S+", directive.text[word.end - 1 :]):
            lost_text = match[0]
            name, equals, value = word.text.partition("=")
            what = f"sbatch reads {word.text} only: a # without a blank before it also starts a comment"
            quoted = f'{name}{equals}"{value}{lost_text}"' if equals else f'"{name}{lost_text}"'
            end = word.end + len(lost_text)
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
    for directive in script.sbatch.directives:
        may_match = directive.kind in READ_KINDS and not directive.text.isascii()
        match = _TYPOGRAPHIC.search(directive.text) if may_match else None
        if match is None:
            continue
        # A comment after the options may hold any character.
        is_in_options = directive.words and match.start() + 1 < directive.words[-1].end
        if directive.fault or is_in_options:
            code_point = f"U+{ord(match[0]):04X}"
            plain_name = "dash" if match[0] in _DASHES else "space" if match[0].isspace() else "quote"
            what = f"{code_point} looks like a {plain_name}, but is another character to sbatch"
            at = script.at(directive.line, match.start() + 1, match.end() + 1)
            yield Hit(at, what, f"type a plain {plain_name}")


@RULES.add(
    "SB136",
    "info",
    "a template with placeholders",
    applies=Applies.USUALLY | Applies.PLACEHOLDERS | Applies.TEMPLATES,
)
def _unfilled_template(script: JobScript) -> Iterator[Hit]:
    matches = script.program_placeholders  # by the number of the line
    # The first line with a placeholder, but a directive if there is one.
    number = min(matches, key=lambda line: line not in script.directive_lines, default=None)
    if number is not None:
        match = matches[number]
        subject = f"{len(matches)} such lines are" if len(matches) > 1 else "this line is"
        subject = "the script is" if script.is_template else subject
        what = f"{match[0]} is a placeholder that a program fills in: {subject} not checked"
        at = script.at(number, match.start() + 1, match.end() + 1)
        yield Hit(at, what, "lint the rendered script")


@RULES.add("SB144", "info", "a script that writes job scripts", applies=Applies.ANY_TEXT)
def _writes_scripts(script: JobScript) -> Iterator[Hit]:
    for number in script.written_directives[:1]:
        what = "all #SBATCH lines are text that this script writes: it is not checked as a job script"
        yield Hit(script.at(number), what, "lint the script that it writes")


def _is_slip(script: JobScript, lookalike: Directive) -> bool:
    """Return whether a line was meant as a directive: no blank follows its #, and its option is not given.

    With a blank after the #, people switch a directive off on purpose.
    """
    match = _SLIP.match(lookalike.text)
    option_match = re.search(r"-{1,2}([A-Za-z][\w-]*)", lookalike.text)
    if match is None or option_match is None:
        return False
    given_names = {
        name for option in accepted_options(script) for name in (option.spec.short, option.spec.name)
    }
    words = lookalike.text[match.end() :].split("#")[0].split()
    # The line may show a call of the script, such as #sbatch -N 2 job.sh.
    is_call = len(words) > 2 and not words[-1].startswith("-") and "=" not in words[-1]
    return option_match[1] not in given_names and not is_call


def _header_comments(script: JobScript) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line between the first line and the first command."""
    for number, line in enumerate(script.lines[1:], start=2):
        if (stripped := line.lstrip()) and stripped[0] != "#":
            return
        yield number, line
