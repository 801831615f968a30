"""Read words as options, as the C library's getopt_long does for sbatch: it stops at the first other word.

Source: glibc's getopt_long(3), with the option string "+" and the table of Slurm's release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sbatchgen.sbatch.header import Token
from sbatchgen.sbatch.option_table import ALIASES, HasArgument, Spec
from sbatchgen.sbatch.values import fold

MAIL_TYPES_REPLACE = "25.05"  # until then, the events of several --mail-type add up


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """An option where it is given.

    Attributes:
        spec: Its row in the table of options.
        word: The word that names it, such as -t10 or --part=gpu.
        value: Its argument, or None.
        value_word: The word that holds the argument; the same word where it is glued to the option.
        value_start: Where in value_word's text it starts.
    """

    spec: Spec
    word: Token
    value: str | None = None
    value_word: Token | None = None
    value_start: int = 0

    @property
    def name(self) -> str:
        """Return the long name, also of a shortened name or a letter."""
        return ALIASES.get(self.spec.name, self.spec.name)

    @property
    def line(self) -> int:
        """Return the line of the option."""
        return self.word.line

    @property
    def column(self) -> int:
        """Return the column in which the option starts."""
        return self.word.column


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """The end of the reading: the complaint of getopt, or the word that is not an option."""

    word: Token
    complaint: str = ""


def counting(before: Option | None, use: Option, slurm: str) -> Option:
    """Return the use that counts of an option given again: the last one, or the events of both --mail-type.

    NONE asks for no event, even in a list. Source: arg_set_mail_type of slurm_opt.c.
    """
    if before is None or use.name != "mail-type" or slurm >= MAIL_TYPES_REPLACE:
        return use
    values = [option.value for option in (before, use) if option.value]
    events = [value for value in values if "none" not in fold(value).split(",")]
    return replace(use, value=",".join(dict.fromkeys(",".join(events).split(",")))) if events else use


def scan(
    words: Sequence[Token],
    table: Mapping[str, Spec],
    shorts: Mapping[str, Spec] | None = None,
    start: int = 0,
) -> Iterator[Option | Stop]:
    """Yield the options in these words, and at the end a Stop where getopt stops.

    Args:
        words: The words.
        table: The options by long name.
        shorts: The options by letter; by default those of the table.
        start: The first word that is read.
    """
    if shorts is None:
        shorts = {spec.short: spec for spec in table.values() if spec.short}
    at = start
    while at < len(words):
        word = words[at]
        at += 1
        if word.text == "--":
            if at < len(words):
                yield Stop(word=words[at])
            return
        if len(word.text) < 2 or word.text[0] != "-":
            yield Stop(word=word)
            return
        following = words[at] if at < len(words) else None
        items = (
            [_long(word, following, table)]
            if word.text.startswith("--")
            else list(_cluster(word, following, shorts))
        )
        yield from items
        last = items[-1]
        if isinstance(last, Stop):
            return
        at += last.value_word is not None and last.value_word is following


def _long(word: Token, following: Token | None, table: Mapping[str, Spec]) -> Option | Stop:
    name, equals, value = word.text[2:].partition("=")
    exact = table.get(name)
    matching = [exact] if exact else [spec for spec in table.values() if spec.name.startswith(name)]
    if not matching:
        return Stop(word=word, complaint=f"unrecognized option '{word.text}'")
    if len(matching) > 1:
        names = "".join(f" '--{spec.name}'" for spec in matching)
        return Stop(word=word, complaint=f"option '{word.text}' is ambiguous; possibilities:{names}")
    if equals:
        return _with_value(matching[0], word, value)
    return _without_value(matching[0], word, following)


def _with_value(spec: Spec, word: Token, value: str) -> Option | Stop:
    if spec.argument is HasArgument.NONE:
        return Stop(word=word, complaint=f"option '--{spec.name}' doesn't allow an argument")
    start = len(word.text) - len(value)
    return Option(spec=spec, word=word, value=value, value_word=word, value_start=start)


def _without_value(spec: Spec, word: Token, following: Token | None) -> Option | Stop:
    if spec.argument is not HasArgument.REQUIRED:
        return Option(spec=spec, word=word)
    if following is None:
        return Stop(word=word, complaint=f"option '--{spec.name}' requires an argument")
    return Option(spec=spec, word=word, value=following.text, value_word=following)


def _cluster(word: Token, following: Token | None, shorts: Mapping[str, Spec]) -> Iterator[Option | Stop]:
    """Yield the options of a word like -HO or -n4."""
    for at in range(1, len(word.text)):
        letter = word.text[at]
        spec = shorts.get(letter)
        if spec is None:
            yield Stop(word=word, complaint=f"invalid option -- '{letter}'")
            return
        if spec.argument is HasArgument.NONE:
            yield Option(spec=spec, word=word)
            continue
        if at + 1 < len(word.text):
            yield Option(spec=spec, word=word, value=word.text[at + 1 :], value_word=word, value_start=at + 1)
        elif spec.argument is HasArgument.OPTIONAL:
            yield Option(spec=spec, word=word)
        elif following is None:
            yield Stop(word=word, complaint=f"option requires an argument -- '{letter}'")
        else:
            yield Option(spec=spec, word=word, value=following.text, value_word=following)
        return
