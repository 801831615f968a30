"""Values that mean something else to Slurm than to people."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.job.script import JobScript
from sbatchgen.rules.option_values import BAD_VALUE
from sbatchgen.rules.rule import Hit, Rules
from sbatchgen.rules.words import broken_values, refusal, uses
from sbatchgen.sbatch.rivals import hint_rivals
from sbatchgen.sbatch.values import MAIL_EVENTS

RULES: Rules[JobScript] = Rules()

PLAIN_HOURS = 96  # a bare number up to this one, and no multiple of five, is most often meant as hours
FULL_HOURS = frozenset((100, 120))  # minutes of a --time=N:00 which is mostly meant as hours
FEW_MIB = 128  # a plain number up to this one is most often meant as gigabytes
_PLACEHOLDER = re.compile(r"<[^<>@]+>|\byour[-_.]?\w*@|\byour[-_]\w|\bNetID\b|CHANGE_?ME", re.IGNORECASE)


@RULES.add(*BAD_VALUE)
def _bad_value(script: JobScript) -> Iterator[Hit]:
    if script.sbatch.refusal is None:
        return
    broken = [option for option, _ in broken_values(script)]
    for use in uses(script):
        ignored = use.name == "hint" and hint_rivals(script.options, script.release)  # SB137
        refused = None if ignored else refusal(script, use)
        if refused and use not in broken and not re.match(r"-\w=", use.word.text):  # SB112, SB111
            yield Hit(script.at_use(use), *refused)


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


@RULES.add("SB129", "warning", "mail that is not sent")
def _mail(script: JobScript) -> Iterator[Hit]:
    for use in uses(script):
        events = [event.strip() for event in (use.value or "").split(",")]
        unknown = [event for event in events if event and event.upper() not in MAIL_EVENTS]
        if use.name == "mail-type" and unknown and len(unknown) < len(events):
            what = f"--mail-type ignores '{', '.join(unknown)}', which is not an event"
            yield Hit(script.at_use(use), what, "use BEGIN, END, FAIL, REQUEUE, TIME_LIMIT_90 or ALL")
    user = script.option("mail-user")
    if user and "mail-type" not in script.options:
        yield Hit("mail-user", "--mail-user without --mail-type: no mail is sent", "add --mail-type=END,FAIL")
    if user and _PLACEHOLDER.search(user):
        yield Hit(script.at_value("mail-user"), f"--mail-user={user} is a placeholder", "write your address")


@RULES.add("SB137", "warning", "a hint that is ignored")
def _hint(script: JobScript) -> Iterator[Hit]:
    rivals = hint_rivals(script.options, script.release)
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
