"""Rules about values in directives that sbatch refuses or ignores."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.check.rules.directive_options import accepted_options, broken_values, option_refusal
from sbatchgen.check.rules.option_values import BAD_VALUE
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.sbatch.rivals import hint_rivals
from sbatchgen.check.sbatch.values import MAIL_EVENTS
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

# An address that the author of an example left to fill in, such as <your email> or NetID@example.edu.
_PLACEHOLDER = re.compile(r"<[^<>@]+>|\byour[-_.]?\w*@|\byour[-_]\w|\bNetID\b|CHANGE_?ME", re.IGNORECASE)


@RULES.add(*BAD_VALUE)
def _bad_value(script: JobScript) -> Iterator[Hit]:
    if script.sbatch.refusal is None:
        return
    broken = [option for option, _ in broken_values(script)]  # SB112 reports these
    for use in accepted_options(script):
        is_ignored_hint = use.name == "hint" and hint_rivals(
            script.options, script.release
        )  # SB137 reports it
        refusal = None if is_ignored_hint else option_refusal(script, use)
        is_letter_with_equals = re.match(r"-\w=", use.word.text)  # SB111 reports it
        if refusal and use not in broken and not is_letter_with_equals:
            yield Hit(script.at_use(use), *refusal)


@RULES.add(
    "SB129",
    "warning",
    "mail that is not sent",
    applies=Applies.USUALLY | Applies.PLACEHOLDERS,
    words=("mail",),
)
def _unsent_mail(script: JobScript) -> Iterator[Hit]:
    for use in accepted_options(script):
        events = [event.strip() for event in (use.value or "").split(",")]
        unknown = [event for event in events if event and event.upper() not in MAIL_EVENTS]
        if use.name == "mail-type" and unknown and len(unknown) < len(events):
            what = f"--mail-type ignores '{', '.join(unknown)}', which is not an event"
            yield Hit(script.at_use(use), what, "use BEGIN, END, FAIL, REQUEUE, TIME_LIMIT_90 or ALL")
    user = script.option("mail-user")
    if user and "mail-type" not in script.options:
        yield Hit("mail-user", "--mail-user without --mail-type: no mail is sent", "add --mail-type=END,FAIL")
    if user and _PLACEHOLDER.search(user):
        what = f"--mail-user={user} is a placeholder: you get no mail"
        yield Hit(script.at_value("mail-user"), what, "write your address")


@RULES.add("SB137", "warning", "a hint that is ignored")
def _ignored_hint(script: JobScript) -> Iterator[Hit]:
    # The options for which sbatch ignores --hint.
    rivals = hint_rivals(script.options, script.release) if "hint" in script.options else ()
    if rivals:
        what = f"sbatch ignores --hint together with --{rivals[0]}, and says so only with -v"
        yield Hit("hint", what, "keep one of them")
