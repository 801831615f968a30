"""Rules about the options in directives: unknown, misspelt, repeated and refused ones.

The rules judge the options as sbatch reads them. An error of these rules is also an error for sbatch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from sbatchgen.base.errors import did_you_mean
from sbatchgen.base.finding import Edit, Severity
from sbatchgen.base.quoting import first_names
from sbatchgen.base.units import RELEASES
from sbatchgen.check.rules.demands import exclusive_options
from sbatchgen.check.rules.option_values import sbatch_refusal
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.sbatch.getopt import MAIL_TYPES_REPLACE, Option, Stop
from sbatchgen.check.sbatch.option_table import HasArgument
from sbatchgen.check.script.job import OLD_SLURM
from sbatchgen.check.script.known_options import (
    PYXIS_NAMES,
    RENAMED,
    SRUN_ONLY,
    known_specs,
    releases_with_option,
)
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

# Options whose values may hold blanks.
_TEXT_OPTIONS = frozenset(("job-name", "comment", "output", "error", "input", "chdir"))
# A call of sbatch with a number of nodes, tasks or GPUs, such as sbatch --nodes=2 job.sh.
_CALL_WITH_COUNT = re.compile(r"\bsbatch[ \t]+(?:\S+[ \t]+){0,9}?(?:-[nNG]|--(?:ntasks|nodes|gpus)\b)")
COMPLAINTS_MAX = 100  # refused options of a script that are judged, as each is compared with all options
# Options whose value names a thing of the cluster, so that slurmctld refuses a value such as =gpu.
OPTIONS_WITH_NAMES = frozenset(("partition", "clusters", "reservation", "constraint", "nodelist"))


class _StrayWords(NamedTuple):
    """Words of a line that follow each other, and that are no options."""

    option: Option | None  # the option before the words in their line; None without an option
    stops: list[Stop]  # the places of the words


@RULES.add("SB107", "error", "a word that is not an option")
def _stray_word(script: JobScript) -> Iterator[Hit]:
    for option, stops in _stray_words(script):
        word = stops[0].word.text
        if option and _belongs_to_value(option, word):
            continue  # SB112 reports a value with blanks
        what = f"'{word}' is not an option: sbatch refuses the script, "
        what += f'"Invalid directive found in batch script: {word}"'
        fix = "remove it, or put a # before it"
        if option and option.takes_next_line:  # SB110 also reports the option
            fix = f"write the value of {option.word.text} on its line"
        elif option and option.spec.argument is HasArgument.OPTIONAL and option.value is None:
            fix = f"write --{option.spec.name}={word}"  # an optional value needs =
        elif option and option.value and option.spec.name in _TEXT_OPTIONS:
            value = " ".join((option.value, *(stop.word.text for stop in stops)))
            fix = f'quote the value: --{option.spec.name}="{value}"'
        yield Hit(script.at_use(stops[0]), what, fix)


@RULES.add("SB110", "warning", "an option that takes its value from the next line")
def _value_from_next_line(script: JobScript) -> Iterator[Hit]:
    for option in accepted_options(script):
        if option.value_word and option.takes_next_line:
            what = f"{option.word.text} has no value on its line and takes '{option.value}' from line "
            what += f"{option.value_word.line}"
            yield Hit(script.at_use(option), what, "write the value on the same line")


@RULES.add("SB111", "warning", "a short option with an equals sign")
def _short_equals(script: JobScript) -> Iterator[Hit]:
    """Find a short option such as -p=gpu, whose value is =gpu for sbatch."""
    for option in accepted_options(script):
        word, value = option.word, option.value or ""
        if word.text[2:3] == "=" and option.value_word is word and value.startswith("="):
            name, meant_value = option.spec.name, value[1:]
            what = f"sbatch reads {word.text} as --{name} with the value '{value}'"
            fixed_word = f"--{name}={meant_value}"
            needs_no_quotes = re.fullmatch(r"[\w.:/@%+,-]+", meant_value)
            edits = (Edit(word.line, word.column, word.end, fixed_word),) if needs_no_quotes else ()
            is_refused = name in OPTIONS_WITH_NAMES or option_refusal(script, option)
            severity: Severity | None = "error" if is_refused else None
            yield Hit(script.at_use(option), what, f"write {fixed_word}", severity, edits)


@RULES.add("SB112", "error", "spaces in a value")
def _spaces_in_value(script: JobScript) -> Iterator[Hit]:
    for option, stops in broken_values(script):
        name, value = option.spec.name, option.value or ""
        joined = "".join((value.removeprefix("="), *(stop.word.text for stop in stops)))
        if value.endswith(","):
            what = f"the space after the comma ends the value of --{name}: sbatch refuses the script"
        else:
            what = f"the spaces around = make '{stops[0].word.text}' a separate word: "
            what += "sbatch refuses the script"
        yield Hit(script.at_use(stops[0]), what, f"write --{name}={joined.removeprefix('=')}")


@RULES.add("SB113", "error", "an option that sbatch does not know")
def unknown_options(script: JobScript) -> Iterator[Hit]:
    """Find options that sbatch does not know."""
    for stop in _refused_options(script):
        word, complaint, at = stop.word.text, stop.complaint, script.at_use(stop)
        name = _long_name(word)
        if "unrecognized" in complaint and (name in SRUN_ONLY or releases_with_option(name)):
            continue  # SB114 or SB130 reports the option
        if "ambiguous" in complaint:
            names = re.findall(r"'(--[\w-]+)'", complaint.partition("possibilities")[2])
            what = f"{word} can mean {first_names(names, 3)}: sbatch refuses the script"
            yield Hit(at, what, "write the full name of the option")
        elif "requires an argument" in complaint or "doesn't allow" in complaint:
            fix = "add a value: --NAME=VALUE" if "requires" in complaint else "remove the value"
            yield Hit(at, f"sbatch refuses the script: {complaint}", fix)
        elif re.match(r"-[A-Za-z]{2,}", word):  # such as -nodes=2
            what = f"{word} starts with one dash, so sbatch reads its letters as short options: "
            what += "sbatch refuses it"
            yield Hit(at, what, f"write -{word}")
        else:
            yield _unrecognized_option(script, stop)


def _unrecognized_option(script: JobScript, stop: Stop) -> Hit:
    """Return the hit for an option that sbatch does not know: a warning if a plugin may add the option."""
    word, at = stop.word.text, script.at_use(stop)
    option, name = word.partition("=")[0], _long_name(word)
    if option.startswith("--") and script.may_be_plugin_option(name):  # plugins add no short options
        what = f"sbatch itself has no option {option}: unless a plugin of the site adds it, sbatch "
        what += "refuses the script"
        return Hit(at, what, f"sbatch --help | grep -e {option}, on the cluster", "warning")
    what = f"sbatch {script.slurm} has no option {option}: it refuses the script"
    known = known_specs(script.slurm, script.plugins)
    fix = did_you_mean(name, known)
    parts = re.fullmatch(r"--([\w-]+):(.+)", word)  # such as --nodes:2
    if parts and parts[1] in known:
        fix = f"write --{parts[1]}={parts[2]}"
    fix = f"write --{RENAMED[name]}" if name in RENAMED else fix
    return Hit(at, what, fix if len(fix) < 100 else "remove it")  # a longer fix is hard to read


@RULES.add("SB114", "error", "an option of srun")
def _srun_options(script: JobScript) -> Iterator[Hit]:
    for stop in _refused_options(script):
        name = _long_name(stop.word.text)
        if name in SRUN_ONLY:
            what = f"--{name} is an option of srun: sbatch refuses the script"
            yield Hit(script.at_use(stop), what, f"give it to srun: srun {stop.word.text} ...")


@RULES.add("SB115", "warning", "an abbreviated option", pedantic=True)
def _abbreviated_option(script: JobScript) -> Iterator[Hit]:
    for option in accepted_options(script):
        written, full_name = option.word.text.partition("=")[0], f"--{option.spec.name}"
        if written.startswith("--") and written != full_name:
            what = f"{written} is short for {full_name}: in a later Slurm, another option may start so"
            line, column = option.word.line, option.word.column
            is_verbatim = script.lines[line - 1].startswith(written, column - 1)  # without quotes
            edits = (Edit(line, column, column + len(written), full_name),) if is_verbatim else ()
            yield Hit(script.at_use(option), what, f"write {full_name}", edits=edits)


@RULES.add("SB119", "warning", "an option that is given twice", applies=Applies.USUALLY & ~Applies.PARTS)
def _repeated_option(script: JobScript) -> Iterator[Hit]:
    hits = [*_repetitions(script)]
    if len(hits) > 1 and not script.body.commands:  # a collection of headers to copy
        what = f"options are given again {len(hits)} times, and the last value counts"
        hits = [
            hits[0]._replace(what=f"{what}: no command follows these headers", fix="write a file for each")
        ]
    yield from hits


def _repetitions(script: JobScript) -> Iterator[Hit]:
    """Find options that are given again with another value."""
    first_uses: dict[str, Option] = {}  # the first use of each option, by name
    mail_types = [option.value for option in accepted_options(script) if option.spec.name == "mail-type"]
    for option in accepted_options(script):
        name, value = option.spec.name, option.value
        first_use = first_uses.setdefault(name, option)
        if first_use is option or first_use.value == value or name == "fpgalink":
            continue  # --fpgalink of a site's plugin may be given several times
        severity: Severity | None = None
        fix = "keep one of them"
        if name == "mail-type":
            if script.release < MAIL_TYPES_REPLACE:
                continue
            what = f"since Slurm {MAIL_TYPES_REPLACE} only the last --mail-type counts; before, they add up"
            severity = "info" if script.is_release_assumed else None
            fix = f"--mail-type={','.join(dict.fromkeys(filter(None, mail_types)))}"
        else:
            what = f"--{name} is given in line {first_use.word.line} too: the last value counts, '{value}'"
        yield Hit(script.at_use(option), what, fix, severity)


@RULES.add("SB130", "warning", "an option of another release")
def _option_of_other_release(script: JobScript) -> Iterator[Hit]:
    fix_release = "name your release: lint --slurm RELEASE"
    if script.is_release_assumed:
        for option in accepted_options(script):
            since = next(iter(releases_with_option(option.spec.name)), None)
            if since and RELEASES.index(since) > RELEASES.index(OLD_SLURM):
                what = f"--{option.spec.name} came with Slurm {since}: an older sbatch refuses the script"
                yield Hit(script.at_use(option), what, fix_release, "info")
    for stop in _refused_options(script):
        known_releases = releases_with_option(_long_name(stop.word.text))
        if not known_releases or "unrecognized" not in stop.complaint:
            continue
        oldest, newest = known_releases[0], known_releases[-1]
        is_newer = RELEASES.index(oldest) > RELEASES.index(script.release)
        reason = f"came with Slurm {oldest}" if is_newer else f"is not in any Slurm after {newest}"
        what = f"{stop.word.text.partition('=')[0]} {reason}: sbatch {script.slurm} refuses the script"
        fix = f"remove it, or {fix_release}" if script.is_release_assumed else "remove it"
        yield Hit(script.at_use(stop), what, fix, "warning" if script.is_release_assumed else "error")


@RULES.add(
    "SB135",
    "error",
    "a combination that sbatch refuses",
    applies=Applies.USUALLY & ~Applies.NEAR_PLACEHOLDERS,
)
def _refused_combination(script: JobScript) -> Iterator[Hit]:
    """Find options that sbatch refuses together, if no other rule reports them."""
    sbatch, refusal = script.sbatch, script.sbatch.refusal
    if refusal is None or not refusal.text or not sbatch.components:
        return
    if any(name.startswith("SBATCH_") for name in script.environment):
        return  # the variables may add the missing option
    has_refused_word = any(isinstance(use, Stop) for use in script.option_uses)
    has_fault = any(line.fault for line in sbatch.directives)
    is_reported_by_sb131 = any(
        hit.severity is None or hit.at in ("mem-per-gpu", "cpus-per-gpu") for hit in exclusive_options(script)
    )
    if has_refused_word or has_fault or is_reported_by_sb131:
        return
    if any(option_refusal(script, option) for option in accepted_options(script)):
        return
    at, what = script.at(refusal.line or 1), f'sbatch refuses the job: "{refusal.text}"'
    if "used without either" in refusal.text:  # such as --gpus-per-task without --gpus or --ntasks
        # The text may show a call of sbatch with the missing option.
        may_be_added_by_caller = "nodes" not in script.options and bool(_CALL_WITH_COUNT.search(script.text))
        fix = f"add --ntasks=N{', unless the command line of sbatch gives it' * may_be_added_by_caller}"
        yield Hit(at, what, fix, "warning" if may_be_added_by_caller else None)
    else:
        yield Hit(at, what, "change the options that it names")


def accepted_options(script: JobScript) -> Iterator[Option]:
    """Yield the uses of options that getopt accepts."""
    return (use for use in script.option_uses if isinstance(use, Option))


def _refused_options(script: JobScript) -> Iterator[Stop]:
    """Yield the options that getopt refuses, up to COMPLAINTS_MAX."""
    stops = (use for use in script.option_uses if isinstance(use, Stop) and use.complaint)
    return islice(stops, COMPLAINTS_MAX)


def _stray_words(script: JobScript) -> Iterator[_StrayWords]:
    """Yield each group of stray words that follow each other in a line.

    Words after an unknown option without = are skipped, as they are most likely its value.
    """
    option: Option | None = None  # the accepted option before the group
    unknown_option: Stop | None = None  # the refused option before the group, if its value may follow
    stops: list[Stop] = []  # the group so far
    for use in script.option_uses:
        if stops and (isinstance(use, Option) or use.complaint or use.word.line != stops[0].word.line):
            yield _StrayWords(option, stops)
            stops = []
        if isinstance(use, Option):
            option, unknown_option = use, None
        elif use.complaint:
            option, unknown_option = None, use if "=" not in use.word.text else None
        elif unknown_option is None or unknown_option.word.line != use.word.line:
            last_word = option and (option.value_word or option.word)
            option = option if last_word and last_word.line == use.word.line else None
            stops.append(use)
    if stops:
        yield _StrayWords(option, stops)


def broken_values(script: JobScript) -> Iterator[tuple[Option, list[Stop]]]:
    """Yield options with a blank in their value, each with the stray words that belong to the value."""
    for option, stops in _stray_words(script):
        if option and _belongs_to_value(option, stops[0].word.text):
            yield option, stops


def _belongs_to_value(option: Option, stray_word: str) -> bool:
    """Return whether a stray word belongs to the value of the option before it, as in --time = 1."""
    has_open_value = option.value == "=" or option.word.text.endswith("=")
    return stray_word == "=" or has_open_value or (option.value or "").endswith(",")


def _long_name(word: str) -> str:
    """Return the name of the option in a word such as --nodes=2."""
    return word.partition("=")[0].removeprefix("--")


def option_refusal(script: JobScript, option: Option) -> tuple[str, str] | None:
    """Return the message and the fix for an option whose value sbatch refuses; None for other options."""
    runs_rank_per_task = option.spec.name not in PYXIS_NAMES and option.spec not in script.plugins
    if option.value is None or not runs_rank_per_task or any(char in option.value for char in "\n\r\0"):
        return None
    return sbatch_refusal(option.spec.name, option.value, script.slurm)
