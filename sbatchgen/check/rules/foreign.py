"""Rules about directives of other schedulers: sbatch translates PBS and LSF, and skips the others.

tests/rules/test_foreign.py asks sbatch 22.05 and 26.05 about each option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.base.finding import Place
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.sbatch.header import FOREIGN_KINDS, Directive, Kind, OtherScheduler, Token
from sbatchgen.check.sbatch.values import RefusedError, check_value
from sbatchgen.check.script.job import OLD_SLURM
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

# The letters of options with and without a value that sbatch knows. -d of PBS came after 22.05.
VALUE_LETTERS = {Kind.PBS: "aAcCdeJjklmMNopqrStuvW", Kind.BSUB: "ceJmMnoqW"}
FLAG_LETTERS = {Kind.PBS: "hIVz", Kind.BSUB: "x"}
_SCHEDULER_NAMES = {Kind.PBS: "PBS", Kind.BSUB: "LSF"}
# The resources of a list (-l) that sbatch drops, with the option of Slurm for each.
_DROPPED_RESOURCES = "gpus=--gpus-per-node ngpus=--gpus-per-node procs=--ntasks vmem=--mem pmem=--mem-per-cpu"
DROPPED_RESOURCES = dict(pair.split("=") for pair in _DROPPED_RESOURCES.split())
# A list of resources (-l), as sbatch reads it: values of the first kind end at a colon, others at a comma.
_RESOURCE = re.compile(
    r"(select|ncpus|mpiprocs)=([^:]+)|(mem|walltime|cput|file|accelerator|arch|gres|host|mpp\w+|nice|nodes"
    r"|opsys|other|procs?|pv?mem|vmem|software)=([^,]*)",
    re.IGNORECASE,
)
# The resources whose values sbatch checks, with the option of Slurm for each.
_RESOURCE_OPTIONS = "cput=time file=tmp mem=mem mpiprocs=ntasks-per-node ncpus=mincpus select=nodes "
_RESOURCE_OPTIONS += "walltime=time"
_OPTION_OF_RESOURCE = dict(pair.split("=") for pair in _RESOURCE_OPTIONS.split())
_HOURS_AND_MINUTES = re.compile(r"(\d{1,3}):(\d\d)")  # such as 12:30


@RULES.add("SB122", "warning", "directives of PBS or LSF", words=("#PBS", "#BSUB"))
def _obeyed_lines(script: JobScript) -> Iterator[Hit]:
    lines = _foreign_lines(script)
    if lines and not any(map(_refused_word, lines)):
        what = f"sbatch obeys #{lines[0].kind.name} lines too, even after commands, and they win over #SBATCH"
        fix = "remove them, or add #SBATCH --ignore-pbs"
        if other := script.other_scheduler:
            what = f"{_not_slurm_message(other)}: sbatch would take its {other.mark} lines for its own"
            fix = _other_scheduler_fix(other)
        yield Hit(script.at(lines[0].line), what, fix)


def _not_slurm_message(other: OtherScheduler) -> str:
    """Return the start of a message about a script of another scheduler."""
    return f"this is a script of {other.name}, not of Slurm"


def _other_scheduler_fix(other: OtherScheduler) -> str:
    return f"submit it where {other.name} runs; for Slurm write its options as #SBATCH lines"


@RULES.add("SB148", "warning", "directives of a scheduler that sbatch does not know", source="sbatch(1)")
def _skipped_lines(script: JobScript) -> Iterator[Hit]:
    other = script.other_scheduler
    if other and other.name not in _SCHEDULER_NAMES.values():
        what = f"{_not_slurm_message(other)}: sbatch takes its {other.mark} lines for comments"
        yield Hit(script.at(other.lines[0]), what, _other_scheduler_fix(other))


@RULES.add(
    "SB142",
    "error",
    "a line of PBS or LSF that sbatch refuses",
    source="src/sbatch/xlate.c of Slurm",
    words=("#PBS", "#BSUB"),
)
def _refused_lines(script: JobScript) -> Iterator[Hit]:
    for line in _foreign_lines(script):
        if line.line not in script.program_placeholders and (refused := _refused_word(line)):
            word, why = refused
            what = f"sbatch reads #{line.kind.name} lines too, and refuses the script: {why}"
            other = script.other_scheduler
            fix = _other_scheduler_fix(other) if other else "remove the line, or add #SBATCH --ignore-pbs"
            yield Hit(_place(script, word), what, fix)


@RULES.add(
    "SB143",
    "warning",
    "a request of PBS or LSF that sbatch drops or misreads",
    source="src/sbatch/xlate.c of Slurm",
    words=("#PBS", "#BSUB"),
)
def _lost_requests(script: JobScript) -> Iterator[Hit]:
    for line in _foreign_lines(script):
        options = list(_line_options(line))
        has_nodes = any(letter == "l" and "nodes=" in value for letter, value, _ in options)
        for letter, value, word in options:
            hours = _HOURS_AND_MINUTES.fullmatch(value) if (line.kind, letter) == (Kind.BSUB, "W") else None
            if hours:
                what = f"LSF's {value} is hours and minutes, but sbatch reads minutes and seconds"
                yield Hit(_place(script, word), what, f"#SBATCH --time={int(hours[1]):02}:{hours[2]}:00")
            for item in value.split(",") if (line.kind, letter) == (Kind.PBS, "l") else ():
                name, _, amount = item.partition("=")
                option = DROPPED_RESOURCES.get(name)
                if option and not (has_nodes and name == "gpus"):  # sbatch may read gpus beside nodes
                    what = f"sbatch drops {item} of the #PBS line: the job does not get it"
                    yield Hit(_place(script, word), what, f"#SBATCH {option}={amount or 'N'}")


def _foreign_lines(script: JobScript) -> list[Directive]:
    """Return the lines that sbatch translates: the lines of LSF, or else the lines of PBS."""
    lines = [line for line in script.sbatch.directives if line.kind in FOREIGN_KINDS]
    lsf_lines = [line for line in lines if line.kind is Kind.BSUB]
    return [] if "ignore-pbs" in script.options else lsf_lines or lines


def _refused_word(line: Directive) -> tuple[Token, str] | None:
    """Return the first word of a line that sbatch refuses, and the reason; None without such a word.

    The result is also None for an open quote, which SB108 reports.
    """
    if line.fault:
        return None
    for letter, value, word in _line_options(line):
        if not letter:
            return word, f"'{value}' is not an option"
        if letter not in VALUE_LETTERS[line.kind] + FLAG_LETTERS[line.kind]:
            return word, f"it does not know the option -{letter} of {_SCHEDULER_NAMES[line.kind]}"
        if (line.kind, letter) == (Kind.PBS, "l") and (why := _refused_resources(value)):
            return word, why
    last = line.words[-1] if line.words else None
    if last and len(last.text) == 2 and last.text[0] == "-" and last.text[1] in VALUE_LETTERS[line.kind]:
        return last, f"{last.text} has no value"
    return None


def _refused_resources(text: str) -> str:
    """Return the reason why sbatch refuses a list of resources; "" if sbatch takes the list."""
    for match in _RESOURCE.finditer(text):
        name, value = (match[1] or match[3]).lower(), match[2] or match[4] or ""
        try:
            if name in _OPTION_OF_RESOURCE:
                size = re.sub("[bB]$", "", value) if name == "mem" else value
                check_value(_OPTION_OF_RESOURCE[name], size, slurm=OLD_SLURM)
        except RefusedError as error:
            return f'of {name}={value} it says "{error}"'
    return ""


def _line_options(line: Directive) -> Iterator[tuple[str, str, Token]]:
    """Yield the letter, value and word of each option, as getopt(3) reads them.

    A word other than an option has "" for its letter, and ends the options.
    """
    words = iter(line.words)
    for word in words:
        text = word.text
        if text in ("-cwd", "--cwd") and line.kind is Kind.BSUB:
            next(words, None)
            continue
        if len(text) < 2 or text[0] != "-" or text[1] == "-":
            yield "", text, word
            return
        for at, letter in enumerate(text[1:], start=2):
            if letter in VALUE_LETTERS[line.kind]:
                following = None if text[at:] else next(words, None)
                yield letter, text[at:] or (following.text if following else ""), following or word
                break
            yield letter, "", word


def _place(script: JobScript, word: Token) -> Place:
    return script.at(word.line, word.column, word.end)
