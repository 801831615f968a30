"""Rules about empty variables, SB335, and about indexes outside of lists, SB434.

The environment of the submission, a site or a module may set variables, and is not known. An unset variable
is therefore reported only in three cases:
- The script sets the variable later.
- The script sets a variable with nearly the same name.
- The script sets all other variables, and can't work without this variable.

Source: bash(1), PARAMETERS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sbatchgen.base.errors import nearest
from sbatchgen.check.bash import Assignment, Body, Command, VariableUse
from sbatchgen.check.executables.program import SHELLS, programs
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.rules.safety import ALWAYS_SET, SITE_VARIABLES
from sbatchgen.check.rules.software import PREPARES
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

SHORTEST_NAME = 5  # shorter names (in characters) do not count as misspelt
LEAST_RATIO = 0.9  # the ratio of difflib from which on two names are alike
PAIRS_MAX = 20_000  # pairs of names; a program wrote a script with more pairs, and mistypes no name
# Operators of ${NAME...} without a default value or a message, such as ${NAME%.txt}.
_NO_DEFAULT = ("", "#", "##", "%", "%%", "/", "//", "^", "^^", ",", ",,", "@")
# Variables that Slurm, bash, the login shell, a module or a site sets.
_SET_ELSEWHERE = re.compile(
    r"SLURM|SBATCH|SRUN|CUDA_|ROCR_|HIP_|PMI|OMPI_|LSB_|PBS|SGE_|[0-9@*#?$!-]|BASH|RANDOM$|LINENO$|EPOCH[RS]E"
    r"|_?LMFILES|LMOD|MODULE[SD]|LD_|CONDA|PYTHON[A-Z]|VIRTUAL_ENV|EB(?:ROOT|VERSION)|LANG$|LC_|TERM$|DISPLAY$"
    r"|PS[1-4]$|IFS$|REPLY$|OPT(?:ARG|IND)|PIPESTATUS$|FUNCNAME$|\w*PATH$"
)
# Names in capitals that sites like to give their variables, such as MYSCRATCH or DATA_ROOT.
_SITE_NAME = re.compile(r"\w*(?:SCRATCH|WORK|WRK|HOME|STORE|PROJ|TMP|DATA|ROOT|CLUSTER|VERSION|DIR$)")
_OPENERS = programs("opens")  # programs that fail if their file or folder is missing
_INTERPRETERS = re.compile(r"python[\d.]*|bash|sh|Rscript|julia|perl|torchrun")


@RULES.add("SB335", "warning", "a variable that is empty where it is used", source="bash(1)")
def _empty_variables(script: JobScript) -> Iterator[Hit]:
    body = script.body
    if body.language not in SHELLS or body.faults or not script.directive_lines:
        return
    sets: dict[str, list[Assignment]] = {}
    for assignment in body.assignments:
        sets.setdefault(assignment.name, []).append(assignment)
    unset: dict[str, VariableUse] = {}  # the first use of each variable that the script does not set
    seen = set(ALWAYS_SET | SITE_VARIABLES)  # variables that are set, tested or already reported
    for word in (word for test in body.tests for word in test.words):
        seen.add(word.only_piece.name if word.only_piece else word.text)
    for use in body.variable_uses:
        name = use.name
        may_have_value = use.operator not in _NO_DEFAULT or _SET_ELSEWHERE.match(name)
        if name in seen or name in unset or may_have_value:
            continue
        if name not in sets:
            if name not in script.tested:
                unset[name] = use
        elif hit := _use_before_set(script, use, sets[name]):
            seen.add(name)
            yield hit
    if unset and not (script.sources_commands or script.is_wrapped):
        yield from _misnamed(script, unset, sets)
        yield from _only_unset_variable(script, unset)


@RULES.add(
    "SB434",
    "warning",
    "an index of the array that a list of the script does not have",
    source="bash(1)",
    words=("SLURM_ARRAY_TASK_ID",),
    report="https://github.com/RILAB/lab-docs/issues/2",
)
def _index_outside_list(script: JobScript) -> Iterator[Hit]:
    """Find tasks of the array whose index, NUMBER or NUMBER + N, is outside of a list in the text."""
    body, text = script.body, script.body.source.text
    if body.language not in ("bash", "sh") or not script.array:
        return
    for use in body.variable_uses:
        list_use = _INDEXED.fullmatch(text, use.at, use.end) if use.source is body.source else None
        offset = _offset(body, list_use[2]) if list_use else None
        count = _list_length(body, use.name) if offset is not None else 0
        checks_length = f"{{#{use.name}[" in text  # ${#NAME[@]}
        if offset is None or not count or checks_length:
            continue
        tasks = [number for indices in script.array for number in (indices[0], indices[-1])]
        worst = max(tasks) if max(tasks) + offset >= count else min(tasks)
        index = worst + offset
        if index >= count or index < 0:
            what = f"task {worst} of the array takes {use.name}[{index}], and {use.name} has {count} "
            what += f"elements, 0 to {count - 1}: " + (
                "it is empty" if index >= 0 else "bash counts from the end"
            )
            fix = f"--array={-offset}-{count - 1 - offset}"
            yield Hit(script.at_start(use), what, fix)
            return


_INDEXED = re.compile(r"\$\{(\w+)\[([^\]]+)\]\}")  # ${NAME[INDEX]}
_TASK_ID = r"\$?\{?SLURM_ARRAY_TASK_ID\}?"
# SLURM_ARRAY_TASK_ID, $((SLURM_ARRAY_TASK_ID - 1)) and the like.
_SUM = re.compile(rf"(?:\$\(\( *)?{_TASK_ID} *(?:([+-]) *(\d{{1,8}}) *)?(?:\)\))?")


def _offset(body: Body, index: str, depth: int = 3) -> int | None:
    """Return the N of an index NUMBER + N, where NUMBER is the task's number; None for other indexes.

    An index may be a variable that holds the sum. `depth` is how many such variables may follow.
    """
    match = _SUM.fullmatch(index.strip().strip('"'))
    if match:
        return int(f"{match[1]}{match[2]}") if match[2] else 0
    name = index.strip().strip('"').lstrip("$").strip("{}")
    sets = body.assignments_of(name)
    is_certain = len(sets) == 1 and sets[0].context.is_top_level and not sets[0].is_append
    value = sets[0].word if is_certain else None
    return _offset(body, value.text, depth - 1) if value and depth else None


def _list_length(body: Body, name: str) -> int:
    """Return the number of elements of a list; 0 if the text does not show the number."""
    sets = body.assignments_of(name)
    items = (
        sets[0].items if len(sets) == 1 and sets[0].context.is_top_level and not sets[0].is_append else None
    )
    for item in items or ():
        is_one_element = all(piece.is_quoted or piece.kind == "text" for piece in item.pieces)
        if not is_one_element or "@" in item.text or item.text.startswith("["):
            return 0
    return len(items or ())


def _use_before_set(script: JobScript, use: VariableUse, sets: list[Assignment]) -> Hit | None:
    """Return the hit for a use above all lines that set the variable; None for other uses."""
    if any(
        assignment.at <= use.at or assignment.context.function or assignment.is_prefix for assignment in sets
    ):
        return None
    command = script.body.command_around(use.at)
    is_file_test = command is not None and command.is_test and re.search(r"-[defsrwxL][ \t]", command.text)
    if command is None or not (
        is_file_test or (command.context.is_top_level and sets[0].context.is_top_level)
    ):
        return None
    if command.context.function or command.context.in_loop or _only_shows(command):
        return None
    line = sets[0].line
    what = f"${use.name} is empty here, as line {line} sets it"
    if script.body.is_option_on("nounset", use.line):
        what = f"${use.name} is not set here, as line {line} sets it: with set -u the script ends here"
    fix = f"move line {line} above this one"
    if command.name == "trap":
        fix = "single quotes: bash then expands it when the trap runs"
    return Hit(script.at_start(use), what, fix)


class _SetName(NamedTuple):
    """The name of a variable that the script sets."""

    normalized: str
    name: str
    stem: str  # the name without digits


def _misnamed(
    script: JobScript, unset: dict[str, VariableUse], sets: dict[str, list[Assignment]]
) -> Iterator[Hit]:
    """Find unset variables with nearly the name of a variable that the script sets."""
    normalized_names = {_normalized(name): name for name in sets if len(name) >= SHORTEST_NAME}
    if len(unset) * len(normalized_names) > PAIRS_MAX:
        return
    # A script may set thousands of names, so names are compared only if their lengths are similar.
    by_length: dict[int, list[_SetName]] = {}
    for normalized, name in normalized_names.items():
        entry = _SetName(normalized, name, re.sub(r"\d", "", name))
        by_length.setdefault(len(normalized), []).append(entry)
    for name, use in unset.items():
        if len(name) < SHORTEST_NAME or not normalized_names:
            continue
        stem, normalized = re.sub(r"\d", "", name), _normalized(name)
        similar: dict[str, str] = {}  # normalized name -> name, of the names that may be alike
        for length, entries in by_length.items():
            if _may_be_alike(len(normalized), length):
                # The next name of a series, such as A2 after A1, is not a misspelt name.
                similar |= {entry.normalized: entry.name for entry in entries if entry.stem != stem}
        other = similar.get(normalized) or similar.get(nearest(normalized, similar, LEAST_RATIO), "")
        if not other:
            continue
        if any(assignment.word and name in assignment.word.variables for assignment in sets[other]):
            continue  # the script's variable takes its value from this variable
        command = script.body.command_around(use.at)
        if command is None or not _only_shows(command):
            what = f"nothing in the script sets ${name}: it is empty, unless the environment has it"
            yield Hit(script.at_start(use), what, f"write ${other}, which the script sets")


def _only_unset_variable(script: JobScript, unset: dict[str, VariableUse]) -> Iterator[Hit]:
    """Find the only unset variable of a script, if a command can't work without it.

    The variable stands for the program, for the script of an interpreter, or for a file or folder.
    """
    names = [name for name in unset if not _SITE_NAME.match(name.upper())]
    prepares = script.named("module", "ml", "source", ".", "conda", "spack", *PREPARES)
    if len(unset) != 1 or len(names) != 1 or not script.assigned:
        return
    if prepares and names[0].isupper():
        return  # a module or a sourced file may set the variable
    name, use = names[0], unset[names[0]]
    command = script.body.command_around(use.at)
    lines_with_name = (line for line in script.lines if name in line)
    is_in_comment = any(re.search(rf"#.*\b{name}\b", line) for line in lines_with_name)
    if command is None or is_in_comment or "--export" in script.text:
        return  # a comment or an option explains the variable
    holders = (index for index, word in enumerate(command.words) if word.at <= use.at < word.end)
    index = next(holders, None)
    if index is None or command.context.function or command.is_test:
        return
    word = command.words[index]
    is_only_word = word.text.strip('"') in (f"${name}", f"${{{name}}}")
    is_script = is_only_word and index == 1 and _INTERPRETERS.fullmatch(command.name)
    is_program = index == 0 and len(command.words) > 1
    # The word is $NAME/x, "${NAME}/x" or ./$NAME. In pre$NAME, an empty value may be meant.
    starts_word = word.text[: use.at - word.at].strip('"') in ("", "./")
    is_path = command.name in _OPENERS and starts_word
    if is_script or is_program or is_path:
        what = f"nothing in the script sets ${name}: it is empty, unless the environment has it"
        yield Hit(script.at_start(use), what, f"set {name} before it, or write ${{{name}:?}}")


def _only_shows(command: Command) -> bool:
    """Return whether a command only shows a variable, such as echo without a pipe or a redirection."""
    is_read = command.context.in_substitution or command.pipe or command.redirects
    return command.name in ("echo", "printf", "unset") and not is_read


def _may_be_alike(first: int, second: int) -> bool:
    """Return whether difflib may find a ratio of LEAST_RATIO for two texts of these lengths."""
    return 2.0 * min(first, second) / (first + second) >= LEAST_RATIO


def _normalized(name: str) -> str:
    """Return a name without the differences that people overlook: case and underscores."""
    return name.lower().replace("_", "")
