"""Reads options as sbatch does with getopt_long: it stops at the first word that is not an option.

Source: glibc's getopt_long(3), with the option string "+" and the options of a release of Slurm.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.header import Token
from sbatchgen.check.sbatch.option_table import ALIASES, HasArgument, Spec
from sbatchgen.check.sbatch.values import fold

MAIL_TYPES_REPLACE = "25.05"  # from this release on, a later --mail-type replaces an earlier one


@frozen(kw_only=True, slots=True)
class Option:
    """One use of an option."""

    spec: Spec  # the row of the option in the table of options
    word: Token  # the word that names the option, such as -t10 or --part=gpu
    value: str | None = None  # None without a value
    value_word: Token | None = None  # the word with the value, which is `word` for --name=VALUE and -nVALUE
    value_start: int = 0  # the offset of the value in the text of `value_word`

    @property
    def name(self) -> str:
        """The long name of the option, whatever short form the script uses."""
        return ALIASES.get(self.spec.name, self.spec.name)

    @property
    def line(self) -> int:
        """The number of the line with the option's name."""
        return self.word.line

    @property
    def takes_next_line(self) -> bool:
        """Whether the value is on a later line than the name."""
        return self.value_word is not None and self.value_word.line != self.word.line


@frozen(kw_only=True, slots=True)
class Stop:
    """A word at which getopt stops: an option that it refuses, or a word that is not an option."""

    word: Token
    complaint: str = ""  # getopt's message; "" for a word that is not an option


def winning_use(earlier: Option | None, use: Option, slurm: str) -> Option:
    """Return the use that counts for sbatch after two uses of the same option.

    This is the later use. However, a release before MAIL_TYPES_REPLACE joins the events of two --mail-type,
    such as BEGIN and END, and --mail-type=NONE adds no event to the other use. The result then has the events
    of both uses. Source: arg_set_mail_type of slurm_opt.c.
    """
    if earlier is None or use.name != "mail-type" or slurm >= MAIL_TYPES_REPLACE:
        return use
    values = [option.value for option in (earlier, use) if option.value]
    events = [value for value in values if "none" not in fold(value).split(",")]
    return replace(use, value=",".join(dict.fromkeys(",".join(events).split(",")))) if events else use


def scan(
    words: Sequence[Token], table: Mapping[str, Spec], *, past_stops: bool = False
) -> Iterator[Option | Stop]:
    """Yield the options in words, and a Stop for the word at which getopt stops.

    sbatch reads no further word. With `past_stops`, the words after a Stop are also read, so that a rule can
    report options that sbatch ignores.
    """
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        following = words[index] if index < len(words) else None
        if word.text == "--":
            items: list[Option | Stop] = [Stop(word=following)] if following else []
        elif len(word.text) < 2 or word.text[0] != "-":
            items = [Stop(word=word)]
        elif word.text.startswith("--"):
            items = [_long_option(word, following, table)]
        else:
            items = [*_letter_options(word, following, table)]
        yield from items
        if items:
            last = items[-1]
            if isinstance(last, Stop) and not past_stops:
                return
            last_word = last.word if isinstance(last, Stop) else last.value_word
            if last_word is following:  # the following word is the value of the option, or comes after --
                index += 1


def _long_option(word: Token, following: Token | None, table: Mapping[str, Spec]) -> Option | Stop:
    """Return the option in a word such as --nodes=2; `following` is the next word, which may be its value."""
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
    """Yield the options in a word of letters, such as -HO or -n4.

    The text after a letter whose option takes a value is the value. A letter that names no option is a Stop.
    """
    for end, letter in enumerate(word.text[1:], start=2):
        spec = next((spec for spec in table.values() if spec.short == letter), None)
        if spec is None:
            yield Stop(word=word, complaint=f"invalid option -- '{letter}'")
            return
        may_have_argument = spec.argument is not HasArgument.NONE
        # In -n4, the value 4 is attached to the letter. In -n 4, it is the following word.
        attached = word.text[end:] if may_have_argument and word.text[end:] else None
        yield _option(spec, word, following, attached, f"option requires an argument -- '{letter}'")
        if may_have_argument:
            return


def _option(
    spec: Spec, word: Token, following: Token | None, attached: str | None, complaint: str
) -> Option | Stop:
    """Return an option with its value: `attached`, which is the end of its word, or else the following word.

    If an option needs a value and has none, the result is a Stop with the complaint. An option that may do
    without a value never takes the following word.
    """
    if attached is not None:
        start = len(word.text) - len(attached)
        return Option(spec=spec, word=word, value=attached, value_word=word, value_start=start)
    if spec.argument is not HasArgument.REQUIRED:
        return Option(spec=spec, word=word)
    if following is None:
        return Stop(word=word, complaint=complaint)
    return Option(spec=spec, word=word, value=following.text, value_word=following)
