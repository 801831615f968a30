"""Reader of options that works like getopt_long for sbatch: it stops at the first word without a dash.

Source: glibc's getopt_long(3), with the option string "+" and the table of Slurm's release.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.header import Token
from sbatchgen.check.sbatch.option_table import ALIASES, HasArgument, Spec
from sbatchgen.check.sbatch.values import fold

MAIL_TYPES_REPLACE = "25.05"  # before this release, the events of several --mail-type add up


@frozen(kw_only=True, slots=True)
class Option:
    """One use of an option."""

    spec: Spec  # the row of the option in the table of options
    word: Token  # the word that names the option, such as -t10 or --part=gpu
    value: str | None = None  # its argument; None without an argument
    # The word that holds the argument; `word` in --name=VALUE and -nVALUE.
    value_word: Token | None = None
    value_start: int = 0  # the offset of the argument in value_word's text

    @property
    def name(self) -> str:
        """The long name, also for a shortened name or a letter."""
        return ALIASES.get(self.spec.name, self.spec.name)

    @property
    def line(self) -> int:
        """The line of the option."""
        return self.word.line

    @property
    def takes_next_line(self) -> bool:
        """Whether the value is on a later line than the name."""
        return self.value_word is not None and self.value_word.line != self.word.line


@frozen(kw_only=True, slots=True)
class Stop:
    """The place where getopt stops: its complaint, or a word that is not an option."""

    word: Token
    complaint: str = ""  # getopt's message; "" for a word that is not an option


def winning_use(before: Option | None, use: Option, slurm: str) -> Option:
    """Return the use that counts of two uses of an option: the later one, or for --mail-type both together.

    NONE in a list asks for no event. Source: arg_set_mail_type of slurm_opt.c.
    """
    if before is None or use.name != "mail-type" or slurm >= MAIL_TYPES_REPLACE:
        return use
    values = [option.value for option in (before, use) if option.value]
    events = [value for value in values if "none" not in fold(value).split(",")]
    return replace(use, value=",".join(dict.fromkeys(",".join(events).split(",")))) if events else use


def scan(
    words: Sequence[Token], table: Mapping[str, Spec], *, past_stops: bool = False
) -> Iterator[Option | Stop]:
    """Yield the options in words, and a Stop where getopt stops; with `past_stops`, continue after a Stop."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        following = words[at] if at < len(words) else None
        if word.text == "--":
            items: list[Option | Stop] = [Stop(word=following)] if following else []
        elif len(word.text) < 2 or word.text[0] != "-":
            items = [Stop(word=word)]
        elif word.text.startswith("--"):
            items = [_long_option(word, following, table)]
        else:
            items = [*_letter_options(word, following, table)]
        yield from items
        for last in items[-1:]:
            if isinstance(last, Stop) and not past_stops:
                return
            last_word = last.word if isinstance(last, Stop) else last.value_word
            at += last_word is following  # the next word was the argument, or the word after --


def _long_option(word: Token, following: Token | None, table: Mapping[str, Spec]) -> Option | Stop:
    """Return the option in a word such as --nodes=2; `following` is the next word."""
    name, equals, value = word.text[2:].partition("=")
    exact = table.get(name)
    matching = [exact] if exact else [spec for spec in table.values() if spec.name.startswith(name)]
    if not matching:
        return Stop(word=word, complaint=f"unrecognized option '{word.text}'")
    if len(matching) > 1:
        names = "".join(f" '--{spec.name}'" for spec in matching)
        return Stop(word=word, complaint=f"option '{word.text}' is ambiguous; possibilities:{names}")
    spec = matching[0]
    if equals and spec.argument is HasArgument.NONE:
        return Stop(word=word, complaint=f"option '--{spec.name}' doesn't allow an argument")
    complaint = f"option '--{spec.name}' requires an argument"
    return _option(spec, word, following, value if equals else None, complaint)


def _letter_options(
    word: Token, following: Token | None, table: Mapping[str, Spec]
) -> Iterator[Option | Stop]:
    """Yield the options in a word of letters, such as -HO or -n4, up to a letter that names none."""
    for end, letter in enumerate(word.text[1:], start=2):
        spec = next((spec for spec in table.values() if spec.short == letter), None)
        if spec is None:
            yield Stop(word=word, complaint=f"invalid option -- '{letter}'")
            return
        may_have_argument = spec.argument is not HasArgument.NONE
        attached = (may_have_argument and word.text[end:]) or None  # 4 in -n4
        yield _option(spec, word, following, attached, f"option requires an argument -- '{letter}'")
        if may_have_argument:
            return


def _option(
    spec: Spec, word: Token, following: Token | None, attached: str | None, complaint: str
) -> Option | Stop:
    """Return an option with its argument: `attached` to its word, or the following word.

    If neither is there, the result is a Stop with the complaint.
    """
    if attached is not None:
        start = len(word.text) - len(attached)
        return Option(spec=spec, word=word, value=attached, value_word=word, value_start=start)
    if spec.argument is not HasArgument.REQUIRED:
        return Option(spec=spec, word=word)
    if following is None:
        return Stop(word=word, complaint=complaint)
    return Option(spec=spec, word=word, value=following.text, value_word=following)
