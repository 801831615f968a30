"""Rules about the options in directives.

These rules are exact, as the reader reads options as sbatch does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

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
from sbatchgen.check.script.known_options import PYXIS_NAMES, RENAMED, SRUN_ONLY, known_specs, releases
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

# Options whose values may hold blanks.
_TEXT_OPTIONS = frozenset(("job-name", "comment", "output", "error", "input", "chdir"))
# A call of sbatch with a number of nodes, tasks or GPUs, such as sbatch --nodes=2 job.sh.
_CALL_WITH_COUNT = re.compile(r"\bsbatch[ \t]+(?:\S+[ \t]+){0,9}?(?:-[nNG]|--(?:ntasks|nodes|gpus)\b)")
COMPLAINTS_MAX = 100  # refused options of a script that are judged, as each is compared with all options
# Options whose value names a thing of the cluster, so that slurmctld refuses a value such as =gpu.
CLUSTER_NAMES = frozenset(("partition", "clusters", "reservation", "constraint", "nodelist"))


@RULES.add("SB107", "error", "a word that is not an option")
def _stray_word(script: JobScript) -> Iterator[Hit]:
    for before, strays in _stray_words(script):
        word = strays[0].word.text
        if before and _belongs_to_value(before, word):
            continue  # SB112 reports a value with blanks
        what = f"'{word}' is not an option: sbatch refuses the script, "
        what += f'"Invalid directive found in batch script: {word}"'
        fix = "remove it, or put a # before it"
        if before and before.takes_next_line:  # SB110 reports the option too
            fix = f"write the value of {before.word.text} on its line"
        elif before and before.spec.argument is HasArgument.OPTIONAL and before.value is None:
            fix = f"write --{before.spec.name}={word}"  # an optional value needs =
        elif before and before.value and before.spec.name in _TEXT_OPTIONS:
            value = " ".join((before.value, *(stray.word.text for stray in strays)))
            fix = f'quote the value: --{before.spec.name}="{value}"'
        yield Hit(script.at_use(strays[0]), what, fix)


@RULES.add("SB110", "warning", "an option that takes its value from the next line")
def _value_from_next_line(script: JobScript) -> Iterator[Hit]:
    for use in uses(script):
        if use.value_word and use.takes_next_line:
            what = f"{use.word.text} has no value on its line and takes '{use.value}' from line "
            what += f"{use.value_word.line}"
            yield Hit(script.at_use(use), what, "write the value on the same line")


@RULES.add("SB111", "warning", "a short option with an equals sign")
def _short_equals(script: JobScript) -> Iterator[Hit]:
    for use in uses(script):
        text = use.word.text
        if text[2:3] == "=" and use.value_word is use.word and (use.value or "").startswith("="):
            name, value = use.spec.name, (use.value or "")[1:]
            what = f"sbatch reads {text} as --{name} with the value '{use.value}'"
            word, needs_no_quotes = use.word, re.fullmatch(r"[\w.:/@%+,-]+", value)
            edits = (Edit(word.line, word.column, word.end, f"--{name}={value}"),) if needs_no_quotes else ()
            is_refused = name in CLUSTER_NAMES or option_refusal(script, use)  # by slurmctld, or by sbatch
            severity: Severity | None = "error" if is_refused else None
            yield Hit(script.at_use(use), what, f"write --{name}={value}", severity, edits)


@RULES.add("SB112", "error", "spaces in a value")
def _spaces_in_value(script: JobScript) -> Iterator[Hit]:
    for option, strays in broken_values(script):
        name, value = option.spec.name, option.value or ""
        joined = "".join((value.removeprefix("="), *(stray.word.text for stray in strays)))
        if value.endswith(","):
            what = f"the space after the comma ends the value of --{name}: sbatch refuses the script"
        else:
            what = f"the spaces around = make '{strays[0].word.text}' a separate word: "
            what += "sbatch refuses the script"
        yield Hit(script.at_use(strays[0]), what, f"write --{name}={joined.removeprefix('=')}")


@RULES.add("SB113", "error", "an option that sbatch does not know")
def unknown_options(script: JobScript) -> Iterator[Hit]:
    """Find options that sbatch does not know."""
    for stop in _complaints(script):
        name = _long_name(stop.word.text)
        if "unrecognized" in stop.complaint and (name in SRUN_ONLY or releases(name)):
            continue  # SB114 or SB130 reports the option
        at = script.at_use(stop)
        if "ambiguous" in stop.complaint:
            names = re.findall(r"'(--[\w-]+)'", stop.complaint.partition("possibilities")[2])
            what = f"{stop.word.text} can mean {first_names(names, 3)}: sbatch refuses the script"
            yield Hit(at, what, "write the full name of the option")
        elif "requires an argument" in stop.complaint or "doesn't allow" in stop.complaint:
            fix = "add a value: --NAME=VALUE" if "requires" in stop.complaint else "remove the value"
            yield Hit(at, f"sbatch refuses the script: {stop.complaint}", fix)
        elif re.match(r"-[A-Za-z]{2,}", stop.word.text):  # such as -nodes=2
            what = f"{stop.word.text} starts with one dash, so sbatch reads its letters as short options: "
            what += "sbatch refuses it"
            yield Hit(at, what, f"write -{stop.word.text}")
        else:
            option = stop.word.text.partition("=")[0]
            if option.startswith("--") and script.may_be_plugin_option(name):  # plugins use no letters
                what = f"sbatch itself has no option {option}: unless a plugin of the site adds it, sbatch "
                what += "refuses the script"
                yield Hit(at, what, f"sbatch --help | grep -e {option}, on the cluster", "warning")
                continue
            what = f"sbatch {script.slurm} has no option {option}: it refuses the script"
            known = known_specs(script.slurm, script.plugins)
            fix = did_you_mean(name, known)
            if (parts := re.fullmatch(r"--([\w-]+):(.+)", stop.word.text)) and parts[1] in known:
                fix = f"write --{parts[1]}={parts[2]}"  # for --nodes:2
            fix = f"write --{RENAMED[name]}" if name in RENAMED else fix
            yield Hit(at, what, fix if len(fix) < 100 else "remove it")  # a longer fix is hard to read


@RULES.add("SB114", "error", "an option of srun")
def _srun_options(script: JobScript) -> Iterator[Hit]:
    for stop in _complaints(script):
        name = _long_name(stop.word.text)
        if name in SRUN_ONLY:
            what = f"--{name} is an option of srun: sbatch refuses the script"
            yield Hit(script.at_use(stop), what, f"give it to srun: srun {stop.word.text} ...")


@RULES.add("SB115", "warning", "an abbreviated option", pedantic=True)
def _abbreviated_option(script: JobScript) -> Iterator[Hit]:
    for use in uses(script):
        written = use.word.text.partition("=")[0]
        if written.startswith("--") and written[2:] != use.spec.name:
            what = f"{written} is short for --{use.spec.name}: in a later Slurm, another option may start so"
            line, column = use.word.line, use.word.column
            edits = (Edit(line, column, column + len(written), f"--{use.spec.name}"),)
            is_verbatim = script.lines[line - 1].startswith(written, column - 1)  # without quotes
            yield Hit(
                script.at_use(use), what, f"write --{use.spec.name}", edits=edits if is_verbatim else ()
            )


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
    first_uses: dict[str, Option] = {}
    mail_types = [use.value for use in uses(script) if use.spec.name == "mail-type"]
    for use in uses(script):
        first_use = first_uses.setdefault(use.spec.name, use)
        if first_use is use or first_use.value == use.value or use.spec.name == "fpgalink":
            continue  # --fpgalink of a site's plugin may be given several times
        severity: Severity | None = None
        fix = "keep one of them"
        if use.spec.name == "mail-type":
            if script.release < MAIL_TYPES_REPLACE:
                continue
            what = f"since Slurm {MAIL_TYPES_REPLACE} only the last --mail-type counts; before, they add up"
            severity = "info" if script.assumed else None
            fix = f"--mail-type={','.join(dict.fromkeys(filter(None, mail_types)))}"
        else:
            what = f"--{use.spec.name} is given in line {first_use.word.line} too: the last value counts, "
            what += f"'{use.value}'"
        yield Hit(script.at_use(use), what, fix, severity)


@RULES.add("SB130", "warning", "an option of another release")
def _option_of_other_release(script: JobScript) -> Iterator[Hit]:
    for use in uses(script) if script.assumed else ():
        since = releases(use.spec.name)[:1]
        if since and RELEASES.index(since[0]) > RELEASES.index(OLD_SLURM):
            what = f"--{use.spec.name} came with Slurm {since[0]}: an older sbatch refuses the script"
            yield Hit(script.at_use(use), what, "name your release: lint --slurm RELEASE", "info")
    for stop in _complaints(script):
        known = releases(_long_name(stop.word.text))
        if not known or "unrecognized" not in stop.complaint:
            continue
        is_newer = RELEASES.index(known[0]) > RELEASES.index(script.release)
        when = f"came with Slurm {known[0]}" if is_newer else f"is not in any Slurm after {known[-1]}"
        what = f"{stop.word.text.partition('=')[0]} {when}: sbatch {script.slurm} refuses the script"
        fix = "remove it" if not script.assumed else "remove it, or name your release: lint --slurm RELEASE"
        yield Hit(script.at_use(stop), what, fix, "warning" if script.assumed else "error")


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
    has_refused_word = any(isinstance(use, Stop) for use in script.uses)
    has_fault = any(line.fault for line in sbatch.directives)
    is_reported = any(
        hit.severity is None or hit.at in ("mem-per-gpu", "cpus-per-gpu")
        for hit in exclusive_options(script)  # the hits of SB131
    )
    if has_refused_word or has_fault or is_reported:
        return
    if any(option_refusal(script, use) for use in uses(script)):
        return
    at, what = script.at(refusal.line or 1), f'sbatch refuses the job: "{refusal.text}"'
    if "used without either" in refusal.text:
        # The text may show a call of sbatch with the missing option.
        may_be_added_by_caller = "nodes" not in script.options and bool(_CALL_WITH_COUNT.search(script.text))
        fix = f"add --ntasks=N{', unless the command line of sbatch gives it' * may_be_added_by_caller}"
        yield Hit(at, what, fix, "warning" if may_be_added_by_caller else None)
    else:
        yield Hit(at, what, "change the options that it names")


def uses(script: JobScript) -> Iterator[Option]:
    """Yield the uses of options that getopt accepts."""
    return (use for use in script.uses if isinstance(use, Option))


def _complaints(script: JobScript) -> Iterator[Stop]:
    """Yield the options that getopt refuses, up to COMPLAINTS_MAX."""
    stops = (use for use in script.uses if isinstance(use, Stop) and use.complaint)
    return islice(stops, COMPLAINTS_MAX)


def _stray_words(script: JobScript) -> Iterator[tuple[Option | None, list[Stop]]]:
    """Yield each group of stray words of a line, after the option before them; None without an option.

    Words after an unknown option are skipped, as they are most likely its value.
    """
    before: Option | None = None  # the option in this line before the stray words
    strays: list[Stop] = []
    unknown: Stop | None = None  # the unknown option in this line
    for use in script.uses:
        if strays and (isinstance(use, Option) or use.complaint or use.word.line != strays[0].word.line):
            yield before, strays
            strays = []
        if isinstance(use, Option):
            before, unknown = use, None
        elif use.complaint:
            before, unknown = None, use if "=" not in use.word.text else None
        elif unknown is None or unknown.word.line != use.word.line:
            last_word = before and (before.value_word or before.word)
            before = before if last_word and last_word.line == use.word.line else None
            strays.append(use)
    if strays:
        yield before, strays


def broken_values(script: JobScript) -> Iterator[tuple[Option, list[Stop]]]:
    """Yield options with a blank in their value, each with the stray words that belong to the value."""
    for before, strays in _stray_words(script):
        if before and _belongs_to_value(before, strays[0].word.text):
            yield before, strays


def _belongs_to_value(before: Option, stray: str) -> bool:
    """Return whether a stray word belongs to the value of the option before, as in --time = 1."""
    value = before.value
    return stray == "=" or value == "=" or before.word.text.endswith("=") or (value or "").endswith(",")


def _long_name(text: str) -> str:
    """Return the name in a word such as --nodes=2."""
    return text.partition("=")[0].removeprefix("--")


def option_refusal(script: JobScript, use: Option) -> tuple[str, str] | None:
    """Return the message and the fix for an option that sbatch refuses by itself; None for other options."""
    is_native = use.spec.name not in PYXIS_NAMES and use.spec not in script.plugins
    if use.value is None or not is_native or any(char in use.value for char in "\n\r\0"):
        return None
    return sbatch_refusal(use.spec.name, use.value, script.slurm)
