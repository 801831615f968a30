"""What sbatch makes of the directives of a script: SB101 to SB135. Exact: the reader does as sbatch does."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.bash.tools import SHELLS
from sbatchgen.errors import did_you_mean
from sbatchgen.finding import Edit, Severity
from sbatchgen.job.known_options import PYXIS_NAMES, RENAMED, SRUN_ONLY, releases, table
from sbatchgen.job.script import JobScript
from sbatchgen.rules.rule import Hit, Rules
from sbatchgen.rules.values import BAD_VALUE, EXAMPLES, refused
from sbatchgen.sbatch.combination import hint_rivals
from sbatchgen.sbatch.grammar import MAIL_EVENTS
from sbatchgen.sbatch.header import FOREIGN, READ, Directive, Kind
from sbatchgen.sbatch.options import MAIL_TYPES_REPLACE, Option, Stop
from sbatchgen.sbatch.releases import RELEASES, HasArgument

RULES: Rules[JobScript] = Rules()

PLAIN_HOURS = 96  # a bare number up to this one, and no multiple of five, is most often meant as hours
FULL_HOURS = frozenset((100, 120))  # minutes of a --time=N:00 which is mostly meant as hours
_MISSPELT = re.compile(r"[ \t]*#[ \t]*([A-Za-z]{4,8})[ \t]+-{1,2}[A-Za-z]")
_OPTION_FOLLOWS = re.compile(r"SBATCH[ \t]*-", re.IGNORECASE)
_NO_DIRECTIVES = {"SBATCH", "SLURM", "BSUB"}
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_TYPOGRAPHIC = re.compile(f"(?:(?<=\\s)[{_DASHES}])|[\u00a0\u2007\u202f\u201c\u201d\u2018\u2019\u00ab\u00bb]")
_PLACEHOLDER = re.compile(r"<[^<>@]+>|\byour[-_.]?\w*@|\bNetID\b", re.IGNORECASE)


@RULES.add("SB101", "error", "the first line does not start with #!")
def _shebang(script: JobScript) -> Iterator[Hit]:
    if script.text.strip() and not script.text.startswith("#!"):
        why = (
            "a byte order mark comes first"
            if script.text.startswith("\ufeff")
            else "it starts with other characters"
        )
        what = f"the script does not start with #! ({why}): sbatch refuses it"
        edits = (Edit(1, 1, 2, ""),) if script.text.startswith("\ufeff#!") else ()
        yield Hit(script.at(1), what, "write #!/bin/bash in the first line", edits=edits)


@RULES.add("SB102", "error", "DOS line ends")
def _line_ends(script: JobScript) -> Iterator[Hit]:
    numbers = [number for number, line in enumerate(script.lines, start=1) if line.endswith("\r")]
    if numbers and "\r\n" in script.text:
        edits = tuple(Edit(number, len(script.lines[number - 1]), 0, "") for number in numbers)
        many = f"{len(numbers)} lines end" if len(numbers) > 1 else "a line ends"
        what = f"{many} in a carriage return (DOS line ends): sbatch refuses the script"
        yield Hit(script.at(numbers[0]), what, f"sed -i 's/\\r$//' {script.file}", edits=edits)


@RULES.add("SB103", "error", "an empty script, or one with a NUL character")
def _content(script: JobScript) -> Iterator[Hit]:
    if not script.text.strip(" \t\n\v\f\r"):
        yield Hit(
            script.at(1), "the script is empty: sbatch refuses it", "write #!/bin/bash and the commands"
        )
    at = script.text.find("\0")
    if at >= 0:
        line = script.text.count("\n", 0, at) + 1
        column = at - script.text.rfind("\n", 0, at)
        what = "a NUL character: sbatch refuses the script; is it a text file?"
        yield Hit(script.at(line, column, column + 1), what, "remove it")


@RULES.add("SB104", "warning", "a directive after the first command is ignored")
def _late(script: JobScript) -> Iterator[Hit]:
    comments = {number for number, _ in script.body.comments} if script.body.language in SHELLS else None
    late = [
        line.line
        for line in script.sbatch.directives
        if line.kind is Kind.LATE
        and (comments is None or line.line in comments)  # else a script writes it
        and not line.text.startswith("#SLURM_")  # a variable
    ]
    if late:
        what = "this directive comes after the first command: Slurm silently ignores it"
        if len(late) > 1:
            what = f"this directive and {len(late) - 1} more come after the first command: "
            what += "Slurm silently ignores them"
        yield Hit(script.at(late[0]), what, "move it above the first command")


@RULES.add("SB105", "warning", "a comment that looks like a directive")
def _lookalike(script: JobScript) -> Iterator[Hit]:
    none = not any(line.kind in READ for line in script.sbatch.directives)
    header = {number for number, _ in _header(script)}
    for line in script.sbatch.directives:
        is_one = line.kind is Kind.LOOKALIKE and line.line in header
        if is_one and _OPTION_FOLLOWS.search(line.text) and not _USAGE.match(line.text):
            what = "this looks like a directive, but is a comment to Slurm"
            fix = "start the line with #SBATCH"
            yield Hit(script.at(line.line), what, fix, None if none or _is_slip(script, line) else "info")
    for number, text in _header(script):
        match = _MISSPELT.match(text)
        if match and match[1].upper() not in _NO_DIRECTIVES and _is_near(match[1].upper()):
            what = f"#{match[1]} is a comment to Slurm"
            yield Hit(script.at(number, match.start(1), match.end(1) + 1), what, "write #SBATCH")


@RULES.add("SB106", "info", "a directive that is commented out")
def _disabled(script: JobScript) -> Iterator[Hit]:
    for line in script.sbatch.directives:
        if line.kind is Kind.DISABLED:
            yield Hit(
                script.at(line.line, line.column), "##SBATCH is a comment to Slurm", "remove it, or one #"
            )


@RULES.add("SB107", "error", "a word that is not an option")
def _stray(script: JobScript) -> Iterator[Hit]:
    for before, strays in _strays(script):
        word = strays[0].word.text
        if before and _is_apart(before, word):
            continue  # SB112
        if before and before.spec.argument is HasArgument.OPTIONAL and before.value is None:
            continue  # SB123
        what = f"'{word}' is not an option: sbatch refuses the script, "
        what += f'"Invalid directive found in batch script: {word}"'
        fix = "remove it, or put a # before it"
        if before and before.value_word and before.word.line != strays[0].word.line:  # SB110
            fix = f"write the value of {before.word.text} on its line"
        elif before and before.value and before.spec.name in _WITH_BLANKS:
            value = " ".join((before.value, *(stray.word.text for stray in strays)))
            fix = f'quote the value: --{before.spec.name}="{value}"'
        yield Hit(script.at_use(strays[0]), what, fix)


_WITH_BLANKS = frozenset(("job-name", "comment", "output", "error", "input", "chdir"))


@RULES.add("SB108", "error", "an unclosed quote, or a colon that starts a word")
def _fault(script: JobScript) -> Iterator[Hit]:
    foreign = () if "ignore-pbs" in script.options else FOREIGN
    for line in script.sbatch.directives:
        if line.kind in (*READ, *foreign) and line.fault:
            at = script.at(line.line, line.fault.column)
            if "Unmatched" in line.fault.text:
                yield Hit(
                    at, "a quote is not closed: sbatch ends here", "close it, or write \\' for an apostrophe"
                )
            else:
                what = "a word that starts with a colon: sbatch ends here"
                yield Hit(
                    at, what, "separate the components of a heterogeneous job with a line #SBATCH hetjob"
                )


@RULES.add("SB109", "warning", "a # that cuts off a value", pedantic=True)
def _cut_value(script: JobScript) -> Iterator[Hit]:
    for use in _uses(script):
        word = use.value_word
        line = script.lines[word.line - 1] if word and word.line else ""
        if word is not None and line[word.end - 1 : word.end] == "#":
            rest = line[word.end - 1 :].split()[0]
            what = f"# starts a comment: --{use.spec.name} is '{use.value}', without '{rest}'"
            fix = f'quote it: --{use.spec.name}="{use.value}{rest}"'
            loss = use.spec.name in PYXIS_NAMES  # as in nvcr.io#nvidia/pytorch
            at = script.at(word.line, word.end, word.end + len(rest))
            yield Hit(at, what, fix, pedantic=None if not loss else False)


@RULES.add("SB110", "warning", "an option that takes its value from the next line")
def _value_from_next_line(script: JobScript) -> Iterator[Hit]:
    for use in _uses(script):
        if use.value_word is not None and use.value_word.line != use.word.line:
            what = f"{use.word.text} has no value on its line and takes '{use.value}' from line "
            what += f"{use.value_word.line}"
            yield Hit(script.at_use(use), what, "write the value on the same line")


@RULES.add("SB111", "warning", "a short option with an equals sign")
def _short_equals(script: JobScript) -> Iterator[Hit]:
    for use in _uses(script):
        text = use.word.text
        if re.match(r"-\w=", text) and use.value_word is use.word and (use.value or "").startswith("="):
            name, value = use.spec.name, (use.value or "")[1:]
            what = f"{text}: the value of a short option starts right after its letter, so it is "
            what += f"'{use.value}'"
            word, plain = use.word, re.fullmatch(r"[\w.:/@%+,-]+", value)
            edits = (
                (Edit(word.line, word.column, word.end, f"--{name}={value}"),) if plain and word.line else ()
            )
            refused = name in NAMES_OF_CLUSTER or _refusal(script, use)  # by slurmctld, or by sbatch
            severity: Severity | None = "error" if refused else None
            yield Hit(script.at_use(use), what, f"write --{name}={value}", severity, edits)


NAMES_OF_CLUSTER = frozenset(("partition", "clusters", "reservation", "constraint", "nodelist"))


@RULES.add("SB112", "error", "spaces in a value")
def _blanks(script: JobScript) -> Iterator[Hit]:
    for before, strays in _strays(script):
        word = strays[0].word.text
        if before is None or not _is_apart(before, word):
            continue
        name, value = before.spec.name, before.value or ""
        joined = "".join((value.removeprefix("="), *(stray.word.text for stray in strays)))
        if value.endswith(","):
            what = f"the space after the comma ends the value of --{name}: sbatch refuses the script"
        else:
            what = f"the spaces around = make '{word}' a separate word: sbatch refuses the script"
        yield Hit(script.at_use(strays[0]), what, f"write --{name}={joined.removeprefix('=')}")


def _is_apart(before: Option, stray: str) -> bool:
    """Whether a word that is no option is a part of the value before it, but for a blank."""
    value = before.value
    return stray == "=" or value == "=" or before.word.text.endswith("=") or (value or "").endswith(",")


@RULES.add("SB113", "error", "an option that sbatch does not know")
def _unknown(script: JobScript) -> Iterator[Hit]:
    for stop in _complaints(script):
        name = _long_name(stop.word.text)
        other = "unrecognized" in stop.complaint and (name in SRUN_ONLY or releases(name))  # SB114, SB130
        if other or "ambiguous" in stop.complaint:  # SB116
            continue
        at = script.at_use(stop)
        if "requires an argument" in stop.complaint or "doesn't allow" in stop.complaint:
            yield Hit(at, f"sbatch refuses the script: {stop.complaint}", "give it as sbatch --help shows it")
        elif re.match(r"-[A-Za-z]{2,}[-=]?", stop.word.text) and not stop.word.text.startswith("--"):
            what = f"{stop.word.text} starts with one dash, so sbatch reads its letters as short options: "
            what += "sbatch refuses it"
            yield Hit(at, what, f"write -{stop.word.text}")
        else:
            given = stop.word.text.partition("=")[0]
            if script.may_be_of_plugin(name):
                what = f"sbatch itself has no option {given}: unless a plugin of the site adds it, it "
                what += "refuses the script"
                yield Hit(at, what, f"sbatch --help | grep -e {given}, on the cluster", "warning")
                continue
            what = f"sbatch {script.slurm} has no option {given}: it refuses the script"
            fix = (
                f"write --{RENAMED[name]}"
                if name in RENAMED
                else did_you_mean(name, table(script.slurm, script.plugins))
            )
            yield Hit(at, what, fix if len(fix) < 100 else "remove it")


@RULES.add("SB114", "error", "an option of srun")
def _of_srun(script: JobScript) -> Iterator[Hit]:
    for stop in _complaints(script):
        name = _long_name(stop.word.text)
        if name in SRUN_ONLY:
            what = f"--{name} is an option of srun: sbatch refuses the script"
            yield Hit(script.at_use(stop), what, f"give it to srun: srun {stop.word.text} ...")


@RULES.add("SB115", "warning", "an abbreviated option", pedantic=True)
def _shortened(script: JobScript) -> Iterator[Hit]:
    for use in _uses(script):
        given, equals, _ = use.word.text.partition("=")
        if given.startswith("--") and given[2:] != use.spec.name:
            what = f"{given} stands for --{use.spec.name} until a release adds another option with this start"
            edits = (
                Edit(use.word.line, use.word.column, use.word.column + len(given), f"--{use.spec.name}"),
            )
            straight = _source(script, use).startswith(given)
            yield Hit(
                script.at_use(use), what, f"write --{use.spec.name}{equals}", edits=edits if straight else ()
            )


@RULES.add("SB116", "error", "an ambiguous abbreviation of an option")
def _ambiguous(script: JobScript) -> Iterator[Hit]:
    for stop in _complaints(script):
        if "ambiguous" in stop.complaint:
            names = re.findall(r"'(--[\w-]+)'", stop.complaint.partition("possibilities")[2])
            rest = names[-1] if len(names) <= 4 else f"{len(names) - 3} others"
            what = (
                f"{stop.word.text} can mean {', '.join(names[:-1][:3])} or {rest}: sbatch refuses the script"
            )
            yield Hit(script.at_use(stop), what, "write the whole option")


@RULES.add("SB118", "warning", "a directive that continues on the next line", pedantic=True)
def _continued(script: JobScript) -> Iterator[Hit]:
    for line in script.sbatch.directives:
        if line.kind in READ and re.search(r"\\[ \t]*$", line.text) and "#" not in line.text[1:]:
            column = len(line.text.rstrip()) if line.text.rstrip().endswith("\\") else len(line.text)
            what = "directives do not continue on the next line: sbatch drops the backslash, the next line "
            what += "stands alone"
            edits = (Edit(line.line, len(line.text.rstrip("\\ \t")) + 1, 0, ""),)
            yield Hit(script.at(line.line, column), what, "write one directive per line", edits=edits)


@RULES.add("SB119", "warning", "an option that is given twice")
def _repeated(script: JobScript) -> Iterator[Hit]:
    first: dict[str, Option] = {}
    for use in _uses(script):
        before = first.setdefault(use.spec.name, use)
        if before is use or before.value == use.value:
            continue
        severity: Severity | None = None
        if use.spec.name == "mail-type":
            if script.release < MAIL_TYPES_REPLACE:
                continue
            what = f"since Slurm {MAIL_TYPES_REPLACE} only the last --mail-type counts; before, they add up"
            severity = "info" if script.assumed else None
        else:
            what = f"--{use.spec.name} is already given in line {before.word.line}: the last one counts, "
            what += f"'{use.value}'"
        one = (
            f"--mail-type={before.value},{use.value}" if use.spec.name == "mail-type" else "keep one of them"
        )
        yield Hit(script.at_use(use), what, one, severity)


@RULES.add("SB120", "warning", "an option that does nothing in a script", pedantic=True)
def _early(script: JobScript) -> Iterator[Hit]:
    for use in _uses(script):
        if use.spec.early and use.spec.name != "test-only":
            what = f"--{use.spec.name} works only on sbatch's command line"
            yield Hit(script.at_use(use), what, "remove it, or give it to sbatch")


@RULES.add("SB121", "error", "--test-only in a script")
def _test_only(script: JobScript) -> Iterator[Hit]:
    use = script.options.get("test-only")
    if use:
        what = "--test-only works in a directive, too: the job is never submitted"
        yield Hit(script.at_use(use), what, "remove it, and give it to sbatch for a test")


@RULES.add("SB122", "warning", "directives of PBS or LSF")
def _foreign(script: JobScript) -> Iterator[Hit]:
    lines = [line for line in script.sbatch.directives if line.kind in FOREIGN]
    if lines and "ignore-pbs" not in script.options:
        name = "PBS" if lines[0].kind is Kind.PBS else "BSUB"
        what = f"sbatch obeys #{name} lines too, also after commands, and they beat #SBATCH"
        yield Hit(script.at(lines[0].line), what, "remove them, or add #SBATCH --ignore-pbs")


@RULES.add("SB123", "error", "a value that needs an = before it")
def _glued(script: JobScript) -> Iterator[Hit]:
    for before, (stop, *_) in _strays(script):
        if before and before.spec.argument is HasArgument.OPTIONAL and before.value is None:
            name, value = before.spec.name, stop.word.text
            what = f"--{name} takes a value only after =, so '{value}' is a separate word: sbatch refuses "
            what += "the script"
            same = before.word.line == stop.word.line
            plain = re.fullmatch(r"[\w.:,-]+", value)
            edit = Edit(stop.word.line, before.word.column, stop.word.end, f"--{name}={value}")
            yield Hit(
                script.at_use(stop), what, f"write --{name}={value}", edits=(edit,) if same and plain else ()
            )


@RULES.add("SB124", "warning", "an empty value", pedantic=True)
def _empty(script: JobScript) -> Iterator[Hit]:
    for use in _uses(script):
        if use.value == "":
            yield Hit(
                script.at_use(use), f"--{use.spec.name} has an empty value", "remove it, or give a value"
            )
    for line in script.sbatch.directives:
        if line.kind not in READ or line.fault:
            continue
        end = line.words[-1].end - 1 if line.words else 7
        match = re.match(r"[ \t]*(\"\"|'')", line.text[end:])
        if match and not line.text[end:].startswith(('"', "'")):
            at = script.at(line.line, end + match.start(1) + 1, end + match.end(1) + 1)
            yield Hit(at, "sbatch stops reading the line at an empty pair of quotes", "remove the option")


@RULES.add("SB125", "warning", "a typographic character in a directive")
def _typographic(script: JobScript) -> Iterator[Hit]:
    for line in script.sbatch.directives:
        odd = line.kind in READ and not line.text.isascii()
        match = _TYPOGRAPHIC.search(line.text) if odd else None
        if match and (line.fault or (line.words and match.start() + 1 < line.words[-1].end)):
            code = f"U+{ord(match[0]):04X}"
            what = f"{code} looks like a plain {_plain_name(match[0])}, but not to sbatch"
            yield Hit(script.at(line.line, match.start() + 1, match.end() + 1), what, "type it again")


@RULES.add(*BAD_VALUE)
def _bad_value(script: JobScript) -> Iterator[Hit]:
    if script.sbatch.returncode is None:
        return
    apart = [
        before for before, strays in _strays(script) if before and _is_apart(before, strays[0].word.text)
    ]
    for use in _uses(script):
        found = _refusal(script, use)
        if found and use not in apart and not re.match(r"-\w=", use.word.text):  # SB112, SB111
            yield Hit(script.at_use(use), *found)


@RULES.add("SB127", "warning", "a time limit that is read as minutes")
def _minutes(script: JobScript) -> Iterator[Hit]:
    for name in ("time", "time-min"):
        value = script.option(name)
        match = re.fullmatch(r"(\d{1,6})(?::(\d{1,2}))?", value)
        if match is None:
            continue
        minutes = int(match[1])
        if match[2] is not None:
            if int(match[2]) == 0 and minutes and minutes % 5 == 0 and minutes not in FULL_HOURS:
                continue  # 30:00 is half an hour, and meant so
            what = f"--{name}={value} is {minutes} minutes and {match[2]} seconds"
            yield Hit(script.at_value(name), what, f"write {value}:00 for hours, or 00:{value}")
        elif 1 < minutes <= PLAIN_HOURS and minutes % 5:
            what = f"--{name}={value} is {minutes} minutes"
            yield Hit(script.at_value(name), what, f"write {minutes}:00:00 for hours, or 00:{minutes:02}:00")


@RULES.add("SB128", "warning", "a negative time limit")
def _strange_time(script: JobScript) -> Iterator[Hit]:
    for name in ("time", "time-min"):
        value = script.option(name)
        use = script.options.get(name)
        apart = (
            use is not None and use.value_word is not None and use.value_word.line != use.word.line
        )  # SB110
        if value.startswith("-") and value != "-1" and not apart:
            what = f"--{name}={value} is negative: Slurm accepts it and reads it as thousands of years"
            yield Hit(script.at_value(name), what, f"as in {EXAMPLES['time']}")


@RULES.add("SB129", "warning", "mail that is not sent")
def _mail(script: JobScript) -> Iterator[Hit]:
    for use in _uses(script):
        events = [event.strip() for event in (use.value or "").split(",")]
        unknown = [event for event in events if event and event.upper() not in MAIL_EVENTS]
        if use.name == "mail-type" and unknown and len(unknown) < len(events):
            what = f"--mail-type ignores '{', '.join(unknown)}', which is not an event"
            yield Hit(script.at_use(use), what, "use BEGIN, END, FAIL, REQUEUE, TIME_LIMIT_90 or ALL")
    user = script.option("mail-user")
    if user and "mail-type" not in script.options:
        yield Hit("mail-user", "--mail-user without --mail-type: no mail is sent", "add --mail-type=END,FAIL")
    if user and _PLACEHOLDER.search(user):
        yield Hit(script.at_value("mail-user"), f"'{user}' is a placeholder", "write your address")


OLD = "22.05"  # still in wide use: what came later is told of where nobody names a release


@RULES.add("SB130", "warning", "an option of another release")
def _release(script: JobScript) -> Iterator[Hit]:
    for use in _uses(script) if script.assumed else ():
        since = use.word.line and releases(use.spec.name)[:1]
        if since and RELEASES.index(since[0]) > RELEASES.index(OLD):
            what = f"--{use.spec.name} came with Slurm {since[0]}: an older sbatch refuses the script"
            yield Hit(script.at_use(use), what, "name your release: lint --slurm RELEASE", "info")
    for stop in _complaints(script):
        known = releases(_long_name(stop.word.text))
        if not known or "unrecognized" not in stop.complaint:
            continue
        newer = RELEASES.index(known[0]) > RELEASES.index(script.release)
        when = f"came with Slurm {known[0]}" if newer else f"is not in any Slurm after {known[-1]}"
        what = f"{stop.word.text.partition('=')[0]} {when}: sbatch {script.slurm} refuses the script"
        fix = "remove it" if not script.assumed else "remove it, or name your release: lint --slurm RELEASE"
        yield Hit(script.at_use(stop), what, fix, "warning" if script.assumed else "error")


@RULES.add("SB134", "warning", "an old or misplaced separator of a heterogeneous job")
def _hetjob(script: JobScript) -> Iterator[Hit]:
    for line in script.sbatch.directives:
        if line.deprecated:
            yield Hit(script.at(line.line), "packjob is the old name of hetjob", "write #SBATCH hetjob")
        if (
            line.kind in READ
            and line.words
            and re.search(r"(?:\s)(?:het|pack)job(?:\s|$)", line.text, re.IGNORECASE)
        ):
            what = "sbatch stops reading a line at the word hetjob, even where it is meant as a value"
            yield Hit(
                script.at(line.line), what, "write --option=value for values, and hetjob on its own line"
            )


@RULES.add("SB135", "error", "a combination that sbatch refuses")
def _combination(script: JobScript) -> Iterator[Hit]:
    """What no other rule reports: each option alone is fine."""
    said = script.sbatch
    resources = script.resources
    if said.returncode is None or not said.components or not said.messages:
        return
    told = any(isinstance(use, Stop) for use in script.uses) or any(line.fault for line in said.directives)
    shared = any(name in ("shard", "mps") for name, _, _ in resources.gres) and (
        resources.gpu_count or resources.gpu_option != "gres"
    )
    text = [message.text for message in said.messages if message.level in ("fatal", "error")]
    alone = len(said.components) == 1 and text and "mutually exclusive" in text[-1]
    if told or shared or not text or alone:
        return  # SB131
    if "cpus-per-gpu" in script.options and not resources.gpu_option and "any GPU" in text[0]:
        return  # SB131
    if any(_refusal(script, use) for use in _uses(script)):
        return
    yield Hit(
        script.at(said.messages[-1].line or 1),
        f'sbatch refuses the job: "{"; ".join(text)}"',
        "see sbatch(1)",
    )


_USAGE = re.compile(r"[ \t]*#+[ \t]+sbatch\b")  # how the script is called
_SLIP = re.compile(r"[ \t]+#SBATCH[ \t]|#(?:sbatch|Sbatch)[ \t]+-|#SBATCH(?=-)")


@RULES.add("SB136", "info", "a template with placeholders")
def _template(script: JobScript) -> Iterator[Hit]:
    from sbatchgen.rules.safety import UNFILLED

    lines = script.placeholders
    told = (number for number in lines if not UNFILLED.search(script.lines[number - 1]))
    first = next(told, None)
    if first is not None:
        match = lines[first]
        many = f"{len(lines)} such lines are" if len(lines) > 1 else "1 such line is"
        what = f"{match[0]} is a placeholder for a program to fill in: {many} not checked"
        at = script.at(first, match.start() + 1, match.end() + 1)
        yield Hit(at, what, "lint the rendered script")


@RULES.add("SB137", "warning", "a hint that is ignored")
def _hint(script: JobScript) -> Iterator[Hit]:
    rivals = [name for name in hint_rivals(script.release) if name in script.options]
    if "hint" in script.options and rivals:
        what = f"sbatch ignores --hint together with --{rivals[0]}, and says so only with -v"
        yield Hit("hint", what, "keep one of them")


@RULES.add("SB138", "warning", "memory that is read as megabytes")
def _megabytes(script: JobScript) -> Iterator[Hit]:
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        value = script.option(name)
        if re.fullmatch(r"0*[1-9]\d{0,2}", value) and int(value) <= (
            FEW_MIB if name == "mem" else FEW_MIB // 4
        ):
            what = f"--{name}={value} is {value} megabytes"
            yield Hit(script.at_value(name), what, f"write {value}G for gigabytes, or {value}M")


FEW_MIB = 128  # a plain number up to this one is most often meant as gigabytes


@RULES.add("SB139", "warning", "a filename pattern in the job name")
def _pattern_in_name(script: JobScript) -> Iterator[Hit]:
    match = re.search(r"%\d*[jJAaxNu](?![A-Za-z0-9])", script.option("job-name"))
    if match:
        what = f"{match[0]} in --job-name is not replaced: patterns work in --output, --error and --input"
        yield Hit(script.at_value("job-name"), what, "a name without it; squeue shows the id beside the name")


def _is_slip(script: JobScript, line: Directive) -> bool:
    """Whether a line was meant as a directive: # and word stand together, and no other line gives the option.

    With a blank between them it is mostly switched off on purpose.
    """
    match = _SLIP.match(line.text)
    option = re.search(r"-{1,2}([A-Za-z][\w-]*)", line.text)
    if match is None or option is None:
        return False
    name = option[1]
    given = {use.spec.short for use in _uses(script)} | {use.spec.name for use in _uses(script)}
    words = line.text[match.end() :].split("#")[0].split()
    usage = bool(words) and not words[-1].startswith("-") and "=" not in words[-1] and len(words) > 2
    return name not in given and not usage


def _header(script: JobScript) -> Iterator[tuple[int, str]]:
    """The comments before the first command, with their numbers."""
    for number, line in enumerate(script.lines[1:], start=2):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        yield number, line


def _is_near(word: str) -> bool:
    """Whether a word is SBATCH with two letters swapped, or one too many, too few or wrong."""
    import difflib

    same = sorted(word) == sorted("SBATCH")
    return same or difflib.SequenceMatcher(None, word, "SBATCH").ratio() >= 0.8


def _uses(script: JobScript) -> Iterator[Option]:
    return (use for use in script.uses if isinstance(use, Option))


def _complaints(script: JobScript) -> Iterator[Stop]:
    """Where sbatch ends at an option that it can't take."""
    return (use for use in script.uses if isinstance(use, Stop) and use.complaint)


def _strays(script: JobScript) -> Iterator[tuple[Option | None, list[Stop]]]:
    """Words of a line in a row that are not options, with the option that ends in this line before them.

    What follows an option that sbatch does not know is most likely its value.
    """
    before: Option | None = None
    strays: list[Stop] = []
    unknown: Stop | None = None
    for use in script.uses:
        if strays and (isinstance(use, Option) or use.complaint or use.word.line != strays[0].word.line):
            yield before, strays
            strays = []
        if isinstance(use, Option):
            before, unknown = use, None
        elif use.complaint:
            before, unknown = None, use if "=" not in use.word.text else None
        elif unknown is None or unknown.word.line != use.word.line:
            end = before and (before.value_word or before.word)
            before = before if end and end.line == use.word.line else None
            strays.append(use)
    if strays:
        yield before, strays


def _long_name(text: str) -> str:
    return text.partition("=")[0].removeprefix("--")


def _source(script: JobScript, use: Option) -> str:
    """The line of the script from an option on."""
    return script.lines[use.word.line - 1][use.word.column - 1 :] if use.word.line else ""


def _refusal(script: JobScript, use: Option) -> tuple[str, str] | None:
    """What sbatch says of an option alone, if it ends there, and a fix."""
    own = use.spec.name not in PYXIS_NAMES and use.spec not in script.plugins
    if use.value is None or not own or any(char in use.value for char in "\n\r\0"):
        return None
    return refused(use.spec.name, use.value, script.slurm)


def _plain_name(char: str) -> str:
    if char in _DASHES:
        return "dash"
    return "blank" if char.isspace() else "quote"
