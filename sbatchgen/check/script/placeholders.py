"""Finds placeholders in scripts: parts such as {{ nodes }} or <account> that a program or person fills in.

Rules judge a line with a placeholder less severely.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from sbatchgen.check.sbatch.getopt import Option, Stop
from sbatchgen.check.sbatch.option_table import value_kinds
from sbatchgen.check.sbatch.values import RefusedError, check_value

# Two quick tests, before the slow search. A line with a placeholder for a program matches both, or it starts
# with a dot and matches the first.
_LINE_MARKS = re.compile(r"[{<@!]|%[A-Z]{2}|%[%(]|_R_|__|XXX|\$\$|[=:\s]#|^\.")
_LATER_MARK_STARTS = re.compile(r"[{<@!%_X$#]")  # searched after the first character
# Shapes of placeholders for programs: {{ name }} and {% name %} of Jinja, @NAME@ of CMake, %NAME%, {name},
# <<<name>>>, %(name)s, __NAME__, and those of public generators: !TBG_name and .TBG_name= of PIConGPU,
# %%name%%, _R_NAME_, $${name} of string.Template, XXXnameXXX of RELION and #NAME# of JUBE.
# Outside directives, only these shapes count. Each begins with a literal, for which the search is fast.
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
# Placeholders for people, such as <your account>, <N> or [budget code].
PERSON_PLACEHOLDER = re.compile(r"<(?<![$<]<)(?:[A-Za-z0-9][^<>\n@]{0,60})?>|\[[A-Za-z]+(?: [A-Za-z]+)+\]")
# Kinds of values that need a number. A word in such a value may be a placeholder.
_NUMERIC_KINDS = frozenset(("array", "count", "gpus", "gres", "memory", "nodes", "time"))
# A piece of a placeholder for a number, such as HH of HH:MM:SS, N of 0-N, YYY, XXG, NTASKS and ?. The pattern
# excludes I, O and l, which are mistyped digits, and words such as MAX, which people think that Slurm knows.
_NUMBER_PLACEHOLDER = re.compile(
    r"(?![KMGT]B?$)([a-hjkmnp-zA-HJ-NP-Z])\1*(?:[KMGT]B?)?|[?#_]+|\.{2,}"
    r"|(?!ALL|AUTO|DEFAULT|FULL|INF|MAX|MIN|NONE|UNLIM|[IO]+$|[KMGT]B$)[A-Z][A-Z_]+"
)
_ELLIPSIS = re.compile(r"-{0,2}(?:\.{3}|\u2026)|\[[\w. -]*\]")  # ... or [more options] in place of options
# A variable that Slurm does not set, such as $NODES and ${NODES:-1}.
_VARIABLE = re.compile(r"\$(?!\{?SLURM)(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)[^}\s]*\})")
# Names of programs that fill in scripts. Each begins with a literal, for which the search is fast.
_FILLERS = [
    re.compile(shape) for shape in (r"envsubst(?<=\benvsubst)\b", r"jinja(?<=\bjinja)", r"\n#.*\bsed\b")
]
# A script with this number of variables in its directives is filled in by a program. The author of fewer
# variables may believe that sbatch expands them.
_MANY_VARIABLES = 3


def program_placeholders(text: str, directives: Collection[int]) -> dict[int, re.Match[str]]:
    """Return the first placeholder for programs in each line, such as {{ nodes }}, by the number of the line.

    `directives` are the numbers of the lines with directives, where more shapes count.
    """
    matches: dict[int, re.Match[str]] = {}
    lines, numbers = text.split("\n"), {*directives}  # numbers of lines that may have a placeholder
    starts = (match.start() for shape in _BODY_SEARCHES for match in shape.finditer(text))
    numbers |= {text.count("\n", 0, start) + 1 for start in starts}
    for number in sorted(numbers):
        line = lines[number - 1]
        if not (line.startswith(".") or _LATER_MARK_STARTS.search(line, 1)) or not _LINE_MARKS.search(line):
            continue
        shape = _DIRECTIVE_PLACEHOLDER if number in directives else _BODY_PLACEHOLDER
        if "--mail-user" not in line and (match := shape.search(line)):  # a person fills in the address
            matches[number] = match
    return matches


def person_placeholders(
    directives: Mapping[int, str],
    option_uses: Sequence[Option | Stop],
    is_set: Callable[[str], bool],
    slurm: str,
) -> dict[int, re.Match[str]]:
    """Return the first placeholder for people in each directive, such as <project id>, by the line's number.

    `directives` are the texts of the lines by their numbers, and `option_uses` the options in them. `is_set`
    returns whether the script sets a variable.

    A variable in place of a number is also a placeholder, unless the script sets the variable. If the script
    sets it, the author believes that sbatch expands variables, which is another mistake.
    """
    matches = dict(_missing_values(directives, option_uses, is_set, slurm))
    if any("$" in match[0] for match in matches.values()):
        # A variable stands for a number, so variables in other directives are also placeholders.
        matches |= _first_matches(directives, _VARIABLE)
    return dict(sorted((matches | _first_matches(directives, PERSON_PLACEHOLDER)).items()))


def may_be_filled_by_program(
    text: str, directive_count: int, placeholders: Mapping[int, re.Match[str]]
) -> bool:
    """Return whether a program may fill in the script: it has many variables, or names such a program.

    `placeholders` are the result of `person_placeholders`.
    """
    variables = sum("$" in match[0] for match in placeholders.values())
    if variables >= _MANY_VARIABLES and 2 * variables > directive_count:
        return True
    lowercase_text = f"\n{text.lower()}"
    return any(filler.search(lowercase_text) for filler in _FILLERS)


def _first_matches(directives: Mapping[int, str], shape: re.Pattern[str]) -> dict[int, re.Match[str]]:
    """Return the first match of a shape in each directive, by the number of the line."""
    return {number: match for number, text in directives.items() if (match := shape.search(text))}


def _missing_values(
    directives: Mapping[int, str],
    option_uses: Sequence[Option | Stop],
    is_set: Callable[[str], bool],
    slurm: str,
) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield each option whose value somebody has yet to fill in: the number of its line, and its text.

    A single empty value in a script is a slip, and no placeholder.
    """
    empty_ids = {id(use) for use in option_uses if _is_empty(use)}
    for use in option_uses:
        column, end = use.word.column, use.word.end
        if id(use) in empty_ids:
            is_missing = len(empty_ids) > 1 and _is_refused(use, slurm)
        elif isinstance(use, Stop):
            is_missing = bool(_ELLIPSIS.fullmatch(use.word.text))
        else:
            is_missing = _lacks_number(use, is_set)
            column, end = use.value_word.span(use.value_start) if use.value_word else (column, end)
        if not is_missing:
            continue
        # The text of the option as a match, like the other placeholders.
        if match := re.compile(".+").match(directives[use.word.line], column - 1, end - 1):
            yield use.word.line, match


def _is_empty(use: Option | Stop) -> bool:
    """Return whether an option is written without its value, even if getopt takes the next line for it."""
    if isinstance(use, Stop):
        return "requires an argument" in use.complaint
    lacks_gres_count = use.name == "gres" and (use.value or "").endswith(":")  # --gres=gpu:
    return use.value == "" or use.takes_next_line or lacks_gres_count


def _is_refused(use: Option | Stop, slurm: str) -> bool:
    """Return whether sbatch refuses an empty option of `_is_empty`."""
    if isinstance(use, Stop) or use.name == "gres":
        return True
    try:
        check_value(use.spec.name, use.value or "", slurm=slurm)
    except RefusedError:
        return True
    return False


def _lacks_number(use: Option, is_set: Callable[[str], bool]) -> bool:
    """Return whether the value of an option has a placeholder in place of its number."""
    kind, value = value_kinds().get(use.spec.name, ""), use.value or ""
    if kind not in _NUMERIC_KINDS:
        return False
    if "$" in value:
        names = [match[1] or match[2] for match in _VARIABLE.finditer(value)]
        return bool(names) and not any(map(is_set, names))
    if kind in ("gres", "gpus"):  # any word is a type of GPU
        return value.endswith(("?", "#"))
    return any(_NUMBER_PLACEHOLDER.fullmatch(piece) for piece in re.split("[-:,=%]", value))
