"""Rules about directives of other schedulers: sbatch translates those of PBS and LSF, and skips the others.

tests/rules/test_foreign.py asks sbatch 22.05 and 26.05 about each option of PBS and LSF.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sbatchgen.base.finding import Place
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.sbatch.header import FOREIGN_KINDS, Directive, Kind, OtherScheduler, Token
from sbatchgen.check.sbatch.values import RefusedError, check_value
from sbatchgen.check.script.job import OLD_SLURM
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

# The letters of options with a value. -d of PBS came after 22.05.
VALUE_LETTERS = {Kind.PBS: "aAcCdeJjklmMNopqrStuvW", Kind.BSUB: "ceJmMnoqW"}
FLAG_LETTERS = {Kind.PBS: "hIVz", Kind.BSUB: "x"}  # the letters of options without a value
_SCHEDULER_NAMES = {Kind.PBS: "PBS", Kind.BSUB: "LSF"}
# The resources that sbatch drops from the list of -l, with the option of Slurm for each.
_DROPPED_RESOURCES = "gpus=--gpus-per-node ngpus=--gpus-per-node procs=--ntasks vmem=--mem pmem=--mem-per-cpu"
DROPPED_RESOURCES = dict(pair.split("=") for pair in _DROPPED_RESOURCES.split())
# A resource in the list of -l, as sbatch reads the list: select=2:ncpus=4 or mem=8gb,walltime=1:00:00.
# The value of select, ncpus or mpiprocs ends at a colon, and the value of another resource at a comma.
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


class _ForeignOption(NamedTuple):
    """An option in a directive of PBS or LSF, such as -N 2."""

    letter: str  # "" for a word that is not an option
    value: str  # "" for an option without a value; the word itself, if the word is not an option
    word: Token  # the word that holds the value; without a value, the word of the option


class _RefusedWord(NamedTuple):
    """A word of a directive that sbatch refuses."""

    word: Token
    reason: str  # the end of a message


@RULES.add("SB122", "warning", "directives of PBS or LSF", words=("#PBS", "#BSUB"))
def _translated_directives(script: JobScript) -> Iterator[Hit]:
    directives = _foreign_directives(script)
    if directives and not any(map(_refused_word, directives)):  # else SB142 reports the refused word
        first = directives[0]
        what = f"sbatch obeys #{first.kind.name} lines too, even after commands, and they win over #SBATCH"
        fix = "remove them, or add #SBATCH --ignore-pbs"
        if other := script.other_scheduler:
            what = f"{_not_slurm_message(other)}: sbatch would take its {other.mark} lines for its own"
            fix = _other_scheduler_fix(other)
        yield Hit(script.at(first.line), what, fix)


def _not_slurm_message(other: OtherScheduler) -> str:
    """Return the start of a message about a script of another scheduler."""
    return f"this is a script of {other.name}, not of Slurm"


def _other_scheduler_fix(other: OtherScheduler) -> str:
    """Return the fix for a script of another scheduler: another cluster, or other directives."""
    return f"submit it where {other.name} runs; for Slurm write its options as #SBATCH lines"


@RULES.add("SB148", "warning", "directives of a scheduler that sbatch does not know", source="sbatch(1)")
def _skipped_directives(script: JobScript) -> Iterator[Hit]:
    other = script.other_scheduler
    if other and other.name not in _SCHEDULER_NAMES.values():
        first_line = other.lines[0]
        what = f"{_not_slurm_message(other)}: sbatch takes its {other.mark} lines for comments"
        yield Hit(script.at(first_line), what, _other_scheduler_fix(other))


@RULES.add(
    "SB142",
    "error",
    "a line of PBS or LSF that sbatch refuses",
    source="src/sbatch/xlate.c of Slurm",
    words=("#PBS", "#BSUB"),
)
def _refused_directives(script: JobScript) -> Iterator[Hit]:
    for directive in _foreign_directives(script):
        if directive.line not in script.program_placeholders and (refused := _refused_word(directive)):
            what = f"sbatch reads #{directive.kind.name} lines too, and refuses the script: {refused.reason}"
            other = script.other_scheduler
            fix = _other_scheduler_fix(other) if other else "remove the line, or add #SBATCH --ignore-pbs"
            yield Hit(_place(script, refused.word), what, fix)


@RULES.add(
    "SB143",
    "warning",
    "a request of PBS or LSF that sbatch drops or misreads",
    source="src/sbatch/xlate.c of Slurm",
    words=("#PBS", "#BSUB"),
)
def _lost_requests(script: JobScript) -> Iterator[Hit]:
    for directive in _foreign_directives(script):
        is_pbs, is_lsf = directive.kind is Kind.PBS, directive.kind is Kind.BSUB
        options = [*_options_of(directive)]
        has_nodes = any(letter == "l" and "nodes=" in value for letter, value, _ in options)
        for letter, value, word in options:
            hours_and_minutes = _HOURS_AND_MINUTES.fullmatch(value) if is_lsf and letter == "W" else None
            if hours_and_minutes:
                hours, minutes = hours_and_minutes.groups()
                what = f"LSF's {value} is hours and minutes, but sbatch reads minutes and seconds"
                yield Hit(_place(script, word), what, f"#SBATCH --time={int(hours):02}:{minutes}:00")
            if not (is_pbs and letter == "l"):
                continue
            for item in value.split(","):
                name, _, amount = item.partition("=")
                option = DROPPED_RESOURCES.get(name)
                if option and not (has_nodes and name == "gpus"):  # sbatch may read gpus beside nodes
                    what = f"sbatch drops {item} of the #PBS line: the job does not get it"
                    yield Hit(_place(script, word), what, f"#SBATCH {option}={amount or 'N'}")


def _foreign_directives(script: JobScript) -> list[Directive]:
    """Return the directives that sbatch translates: those of LSF, or without any, those of PBS."""
    directives = [directive for directive in script.sbatch.directives if directive.kind in FOREIGN_KINDS]
    lsf_directives = [directive for directive in directives if directive.kind is Kind.BSUB]
    return [] if "ignore-pbs" in script.options else lsf_directives or directives


def _refused_word(directive: Directive) -> _RefusedWord | None:
    """Return the first word of a directive that sbatch refuses; None without such a word.

    The result is also None for an open quote, which SB108 reports.
    """
    if directive.fault:
        return None
    value_letters = VALUE_LETTERS[directive.kind]
    scheduler = _SCHEDULER_NAMES[directive.kind]
    for letter, value, word in _options_of(directive):
        if not letter:
            return _RefusedWord(word, f"'{value}' is not an option")
        if letter not in value_letters + FLAG_LETTERS[directive.kind]:
            return _RefusedWord(word, f"it does not know the option -{letter} of {scheduler}")
        is_resource_list = directive.kind is Kind.PBS and letter == "l"
        if is_resource_list and (reason := _resource_refusal(value)):
            return _RefusedWord(word, reason)
    last = directive.words[-1] if directive.words else None
    if last and len(last.text) == 2 and last.text[0] == "-" and last.text[1] in value_letters:
        return _RefusedWord(last, f"{last.text} has no value")
    return None


def _resource_refusal(resources: str) -> str:
    """Return the reason why sbatch refuses a list of resources; "" if sbatch takes the list."""
    for match in _RESOURCE.finditer(resources):
        colon_name, colon_value, comma_name, comma_value = match.groups()
        name, value = (colon_name or comma_name).lower(), colon_value or comma_value or ""
        try:
            if name in _OPTION_OF_RESOURCE:
                # sbatch drops the b of a size such as 8gb.
                slurm_value = re.sub("[bB]$", "", value) if name == "mem" else value
                check_value(_OPTION_OF_RESOURCE[name], slurm_value, slurm=OLD_SLURM)
        except RefusedError as error:
            return f'of {name}={value} it says "{error}"'
    return ""


def _options_of(directive: Directive) -> Iterator[_ForeignOption]:
    """Yield the options of a directive, as getopt(3) reads them.

    A word other than an option has "" for its letter, and ends the options.
    """
    words = iter(directive.words)
    for word in words:
        text = word.text
        if text in ("-cwd", "--cwd") and directive.kind is Kind.BSUB:
            next(words, None)  # the folder, which is the value of the option
            continue
        if len(text) < 2 or text[0] != "-" or text[1] == "-":
            yield _ForeignOption("", text, word)
            return
        for value_start, letter in enumerate(text[1:], start=2):  # -hI has two options, and -N2 has one
            if letter not in VALUE_LETTERS[directive.kind]:
                yield _ForeignOption(letter, "", word)
                continue
            if value := text[value_start:]:
                yield _ForeignOption(letter, value, word)
            else:
                value_word = next(words, None)
                yield _ForeignOption(letter, value_word.text if value_word else "", value_word or word)
            break


def _place(script: JobScript, word: Token) -> Place:
    """Return the place of a word of a directive."""
    return script.at(word.line, word.column, word.end)
