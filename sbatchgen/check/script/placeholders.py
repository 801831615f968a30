"""Placeholders: parts of a script that a program or a person has yet to fill in, for all rules."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from sbatchgen.check.sbatch.getopt import Option, Stop
from sbatchgen.check.sbatch.option_table import value_kinds
from sbatchgen.check.sbatch.values import RefusedError, check_value

# Two quick tests. A line with a placeholder of a program matches both, or starts with a dot and matches
# the first.
_MARKS = re.compile(r"[{<@!]|%[A-Z]{2}|%[%(]|_R_|__|XXX|\$\$|[=:\s]#|^\.")
_MARK_STARTS = re.compile(r"[{<@!%_X$#]")  # after the first character
# Placeholders of programs: Jinja, CMake's @NAME@, %NAME%, {name}, <<<name>>>, %(name)s, __NAME__, and marks
# of public generators: PIConGPU's !TBG_name and .TBG_name=, %%name%%, _R_NAME_, $${name} in texts of
# string.Template, RELION's XXXnameXXX and JUBE's #NAME#.
# Each shape for a body begins with a literal, for which the search is fast.
_BODY_SHAPES = (
    r"\{\{-?[ \t]*[A-Za-z_][^{}$\n]*\}\}",
    r"\{%-?[ \t]*\w[^%\n]*%\}",
    r"@(?<![\w@]@)[A-Z][A-Z0-9_]+@",
    r"!(?<![\w{]!)[A-Z]{2,5}_\w+",
    r"\.(?m:(?<=^\.))[A-Z]{2,5}_\w+=",
    r"<<<[A-Za-z_]\w*>>>",
)
_BODY_SEARCHES = [re.compile(shape) for shape in _BODY_SHAPES]
_BODY_PLACEHOLDER = re.compile("|".join(_BODY_SHAPES))
_DIRECTIVE_PLACEHOLDER = re.compile(
    _BODY_PLACEHOLDER.pattern
    + r"|\{\{[^\n]{0,200}?\}\}|(?<![$\w])\{[A-Za-z_][\w.]*\}|(?<![\w%])%[A-Z]{2}[A-Z0-9_]*%"
    r"|%%\w+%%|%\([A-Za-z_]\w*\)[\d.]*[dfs]|\$\$\{\w+\}|(?<![A-Za-z0-9])_R_[A-Z0-9]+_(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9])__[A-Z][A-Z0-9_]*__(?![A-Za-z0-9])|=@[A-Z]+\b|\bXXX[a-z][a-z0-9]*XXX\b"
    r"|(?<=[=:\s])#[A-Z][A-Z0-9_]*#(?!\S)"
)
# Placeholders of people, such as <your account>, <N> or [budget code].
PERSON_PLACEHOLDER = re.compile(r"<(?<![$<]<)(?:[A-Za-z0-9][^<>\n@]{0,60})?>|\[[A-Za-z]+(?: [A-Za-z]+)+\]")
# Kinds of values that hold a number, so that a word in such a value may be a placeholder.
_NUMERIC_KINDS = frozenset(("array", "count", "gpus", "gres", "memory", "nodes", "time"))
# Placeholders for a number: YYY, HH:MM:SS, 0-N, XXG, NTASKS, ?. Excluded are the letters I, O and l, which
# are mistyped digits, and words such as MAX or UNLIMITED, values that people believe Slurm has.
_NUMBER_PLACEHOLDER = re.compile(
    r"(?![KMGT]B?$)([a-hjkmnp-zA-HJ-NP-Z])\1*(?:[KMGT]B?)?|[?#_]+|\.{2,}"
    r"|(?!ALL|AUTO|DEFAULT|FULL|INF|MAX|MIN|NONE|UNLIM|[IO]+$|[KMGT]B$)[A-Z][A-Z_]+"
)
_ELLIPSIS = re.compile(r"-{0,2}(?:\.{3}|\u2026)|\[[\w. -]*\]")  # ... or [more options] in place of options
# A variable that Slurm does not set.
_VARIABLE = re.compile(r"\$(?!\{?SLURM)(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)[^}\s]*\})")
# Names of programs that fill in scripts. Each begins with a literal, for which the search is fast.
_FILLERS = [
    re.compile(shape) for shape in (r"envsubst(?<=\benvsubst)\b", r"jinja(?<=\bjinja)", r"\n#.*\bsed\b")
]
# A program fills in a script with so many variables. People who believe that sbatch expands them write fewer.
_MANY_VARIABLES = 3


def program_placeholders(text: str, directives: Collection[int]) -> dict[int, re.Match[str]]:
    """Return the placeholders of programs, such as {{ nodes }} or @NODES@, by the number of the line.

    `directives` are the numbers of the lines with directives, where more shapes count.
    """
    matches: dict[int, re.Match[str]] = {}
    lines, numbers = text.split("\n"), {*directives}
    starts = (match.start() for shape in _BODY_SEARCHES for match in shape.finditer(text))
    numbers |= {text.count("\n", 0, start) + 1 for start in starts}
    for number in sorted(numbers):
        line = lines[number - 1]
        if not (line.startswith(".") or _MARK_STARTS.search(line, 1)) or not _MARKS.search(line):
            continue
        shape = _DIRECTIVE_PLACEHOLDER if number in directives else _BODY_PLACEHOLDER
        if "--mail-user" not in line and (match := shape.search(line)):  # people fill in addresses
            matches[number] = match
    return matches


def person_placeholders(
    directives: Mapping[int, str], uses: Sequence[Option | Stop], is_set: Callable[[str], bool], slurm: str
) -> dict[int, re.Match[str]]:
    """Return the placeholders of people in directives, such as <project id>, by the number of the line.

    `directives` are the texts of the lines by their numbers, and `uses` their options. `is_set` returns
    whether the script sets a variable.

    A variable in place of a number is a placeholder for a program such as envsubst, unless the script sets
    the variable: then somebody believes that sbatch expands variables.
    """
    matches = dict(_blank_values(directives, uses, is_set, slurm))
    if any("$" in match[0] for match in matches.values()):
        matches |= _first_matches(directives, _VARIABLE)
    return dict(sorted((matches | _first_matches(directives, PERSON_PLACEHOLDER)).items()))


def may_be_filled_by_program(text: str, directives: int, unfilled: Mapping[int, re.Match[str]]) -> bool:
    """Return whether a program may fill in the script: it has many variables, or names such a program.

    `directives` is the number of directives, `unfilled` are the placeholders of people in them.
    """
    variables = sum("$" in match[0] for match in unfilled.values())
    if variables >= _MANY_VARIABLES and 2 * variables > directives:
        return True
    lowered = f"\n{text.lower()}"
    return any(filler.search(lowered) for filler in _FILLERS)


def _first_matches(directives: Mapping[int, str], shape: re.Pattern[str]) -> dict[int, re.Match[str]]:
    """Return the first match of a shape in each directive, by the number of the line."""
    return {number: match for number, text in directives.items() if (match := shape.search(text))}


def _blank_values(
    directives: Mapping[int, str], uses: Sequence[Option | Stop], is_set: Callable[[str], bool], slurm: str
) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the number of the line and the text of each option whose value somebody has yet to fill in.

    A single empty value counts as a slip, not as a placeholder.
    """
    empty = {id(use) for use in uses if _is_empty(use)}
    for use in uses:
        column, end = use.word.column, use.word.end
        if id(use) in empty:
            is_blank = len(empty) > 1 and _is_refused(use, slurm)
        elif isinstance(use, Stop):
            is_blank = bool(_ELLIPSIS.fullmatch(use.word.text))
        else:
            is_blank = _is_without_number(use, is_set)
            column, end = use.value_word.span(use.value_start) if use.value_word else (column, end)
        if not is_blank:
            continue
        if match := re.compile(".+").match(directives[use.word.line], column - 1, end - 1):
            yield use.word.line, match


def _is_empty(use: Option | Stop) -> bool:
    """Return whether an option has no value, or takes the next line for its value."""
    if isinstance(use, Stop):
        return "requires an argument" in use.complaint
    return use.value == "" or use.takes_next_line or (use.name == "gres" and (use.value or "").endswith(":"))


def _is_refused(use: Option | Stop, slurm: str) -> bool:
    """Return whether sbatch refuses an option without its value."""
    if isinstance(use, Stop) or use.name == "gres":
        return True
    try:
        check_value(use.spec.name, use.value or "", slurm=slurm)
    except RefusedError:
        return True
    return False


def _is_without_number(use: Option, is_set: Callable[[str], bool]) -> bool:
    """Return whether the value is a placeholder for a number."""
    kind, value = value_kinds().get(use.spec.name, ""), use.value or ""
    if kind not in _NUMERIC_KINDS:
        return False
    if "$" in value:
        names = [match[1] or match[2] for match in _VARIABLE.finditer(value)]
        return bool(names) and not any(map(is_set, names))
    if kind in ("gres", "gpus"):  # any word is a type of GPU
        return value.endswith(("?", "#"))
    return any(_NUMBER_PLACEHOLDER.fullmatch(piece) for piece in re.split("[-:,=%]", value))
