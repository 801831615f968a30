"""Rules about variables that are empty where the script uses them, and indexes that a list does not have.

A variable that the script does not set may come from the environment of the submission, from the site or from
a module, which are not known. SB335 therefore reports a variable only in three cases:
- The script sets the variable later.
- The script sets a variable with nearly the same name.
- The script sets all other variables, and can't work without this variable.

Source: bash(1), PARAMETERS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sbatchgen.base.errors import nearest
from sbatchgen.check.bash import Assignment, Body, Command, VariableUse
from sbatchgen.check.executables.program import SHELLS, programs
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.rules.safety import ALWAYS_SET, SITE_VARIABLES
from sbatchgen.check.rules.software import PREPARING_PROGRAMS
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

SHORTEST_NAME = 5  # the characters of the shortest name that may count as misspelt
LEAST_RATIO = 0.9  # the least ratio of difflib.SequenceMatcher for two names that are alike
# The most pairs of names that are compared. A script with more pairs was written by a program, which does not
# misspell names.
PAIRS_MAX = 20_000
# Operators of ${NAME...} that give no default value and no message, such as % in ${NAME%.txt}.
_NO_DEFAULT = ("", "#", "##", "%", "%%", "/", "//", "^", "^^", ",", ",,", "@")
# Names of variables that Slurm, bash, the login shell, a module or a site sets.
_SET_ELSEWHERE = re.compile(
    r"SLURM|SBATCH|SRUN|CUDA_|ROCR_|HIP_|PMI|OMPI_|LSB_|PBS|SGE_|[0-9@*#?$!-]|BASH|RANDOM$|LINENO$|EPOCH[RS]E"
    r"|_?LMFILES|LMOD|MODULE[SD]|LD_|CONDA|PYTHON[A-Z]|VIRTUAL_ENV|EB(?:ROOT|VERSION)|LANG$|LC_|TERM$|DISPLAY$"
    r"|PS[1-4]$|IFS$|REPLY$|OPT(?:ARG|IND)|PIPESTATUS$|FUNCNAME$|\w*PATH$"
)
# Names that sites like to give their variables, such as MYSCRATCH or DATA_ROOT, in capitals.
_SITE_NAME = re.compile(r"\w*(?:SCRATCH|WORK|WRK|HOME|STORE|PROJ|TMP|DATA|ROOT|CLUSTER|VERSION|DIR$)")
_OPENERS = programs("opens")  # programs that fail if their file or folder is missing
_INTERPRETERS = re.compile(r"python[\d.]*|bash|sh|Rscript|julia|perl|torchrun")


@RULES.add("SB335", "warning", "a variable that is empty where it is used", source="bash(1)")
def _empty_variables(script: JobScript) -> Iterator[Hit]:
    body = script.body
    if body.language not in SHELLS or body.faults or not script.directive_lines:
        return
    first_unset_uses: dict[str, VariableUse] = {}  # of each variable that the script does not set
    skipped = set(ALWAYS_SET | SITE_VARIABLES)  # variables that are set, tested or already reported
    for word in (word for test in body.tests for word in test.words):
        skipped.add(word.only_piece.name if word.only_piece else word.text)
    for use in body.variable_uses:
        name = use.name
        may_have_value = use.operator not in _NO_DEFAULT or _SET_ELSEWHERE.match(name)
        if name in skipped or name in first_unset_uses or may_have_value:
            continue
        assignments = body.assignments_of(name)
        if not assignments:
            if name not in script.tested_words:
                first_unset_uses[name] = use
        elif hit := _use_before_assignment(script, use, assignments):
            skipped.add(name)
            yield hit
    if first_unset_uses and not (script.sources_commands or script.is_submitted_by_script):
        yield from _misnamed(script, first_unset_uses)
        yield from _only_unset_variable(script, first_unset_uses)


@RULES.add(
    "SB434",
    "warning",
    "an index of the array that a list of the script does not have",
    source="bash(1)",
    words=("SLURM_ARRAY_TASK_ID",),
    report="https://github.com/RILAB/lab-docs/issues/2",
)
def _index_outside_list(script: JobScript) -> Iterator[Hit]:
    """Find a list that lacks the element which a task of the array asks for.

    The index of the element is the task's number, or a sum such as $((SLURM_ARRAY_TASK_ID - 1)).
    """
    body, text = script.body, script.body.source.text
    if body.language not in ("bash", "sh") or not script.array:
        return
    for use in body.variable_uses:
        element = _LIST_ELEMENT.fullmatch(text, use.at, use.end) if use.source is body.source else None
        offset = _index_offset(body, element[2]) if element else None
        count = _list_length(body, use.name) if offset is not None else 0
        checks_length = f"{{#{use.name}[" in text  # ${#NAME[@]}
        if offset is None or not count or checks_length:
            continue
        tasks = [number for indices in script.array for number in (indices[0], indices[-1])]
        task = max(tasks) if max(tasks) + offset >= count else min(tasks)
        index = task + offset
        if index >= count or index < 0:
            what = f"task {task} of the array takes {use.name}[{index}], and {use.name} has {count} "
            what += f"elements, 0 to {count - 1}: "
            what += "it is empty" if index >= 0 else "bash counts from the end"
            fix = f"--array={-offset}-{count - 1 - offset}"
            yield Hit(script.at_start(use), what, fix)
            return


_LIST_ELEMENT = re.compile(r"\$\{(\w+)\[([^\]]+)\]\}")  # ${NAME[INDEX]}
_TASK_ID = r"\$?\{?SLURM_ARRAY_TASK_ID\}?"
# SLURM_ARRAY_TASK_ID, $((SLURM_ARRAY_TASK_ID - 1)) and the like.
_TASK_ID_SUM = re.compile(rf"(?:\$\(\( *)?{_TASK_ID} *(?:([+-]) *(\d{{1,8}}) *)?(?:\)\))?")


def _index_offset(body: Body, index: str, depth: int = 3) -> int | None:
    """Return what an index adds to the number of the task, such as -1 for $((SLURM_ARRAY_TASK_ID - 1)).

    The result is None for other indexes. An index may be a variable with the sum as its value: `depth` is how
    many variables may hold one another.
    """
    match = _TASK_ID_SUM.fullmatch(index.strip().strip('"'))
    if match:
        return int(f"{match[1]}{match[2]}") if match[2] else 0
    name = index.strip().strip('"').lstrip("$").strip("{}")
    assignment = _certain_assignment(body, name)
    value = assignment.word if assignment else None
    return _index_offset(body, value.text, depth - 1) if value and depth else None


def _certain_assignment(body: Body, name: str) -> Assignment | None:
    """Return the only assignment of a variable, if the script always makes it; else None."""
    assignments = body.assignments_of(name)
    is_certain = (
        len(assignments) == 1 and assignments[0].context.is_top_level and not assignments[0].is_append
    )
    return assignments[0] if is_certain else None


def _list_length(body: Body, name: str) -> int:
    """Return the number of elements of a list; 0 if the text does not show the number."""
    assignment = _certain_assignment(body, name)
    items = (assignment.items if assignment else None) or ()
    for item in items:
        is_one_element = all(piece.is_quoted or piece.kind == "text" for piece in item.pieces)
        if not is_one_element or "@" in item.text or item.text.startswith("["):
            return 0
    return len(items)


def _use_before_assignment(
    script: JobScript, use: VariableUse, assignments: Sequence[Assignment]
) -> Hit | None:
    """Return the hit for a use above all lines that set the variable; None for other uses."""
    if any(
        assignment.at <= use.at or assignment.context.function or assignment.is_prefix
        for assignment in assignments
    ):
        return None
    command = script.body.command_around(use.at)
    if command is None:
        return None
    # A test such as [ -f $FILE ] with an empty FILE is a mistake even in a branch.
    is_file_test = command.is_test and re.search(r"-[defsrwxL][ \t]", command.text)
    are_certain = command.context.is_top_level and assignments[0].context.is_top_level
    if not (is_file_test or are_certain):
        return None
    if command.context.function or command.context.in_loop or _only_shows(command):
        return None
    line = assignments[0].line
    what = f"${use.name} is empty here, as line {line} sets it"
    if script.body.is_option_on("nounset", use.line):
        what = f"${use.name} is not set here, as line {line} sets it: with set -u the script ends here"
    fix = f"move line {line} above this one"
    if command.name == "trap":
        fix = "single quotes: bash then expands it when the trap runs"
    return Hit(script.at_start(use), what, fix)


class _AssignedName(NamedTuple):
    """The name of a variable that the script sets, in the forms in which it is compared."""

    name: str
    normalized: str  # the name in small letters without underscores
    without_digits: str


def _misnamed(script: JobScript, first_unset_uses: dict[str, VariableUse]) -> Iterator[Hit]:
    """Find unset variables with nearly the name of a variable that the script sets."""
    assigned = dict.fromkeys(assignment.name for assignment in script.body.assignments)
    normalized_names = {_normalized(name): name for name in assigned if len(name) >= SHORTEST_NAME}
    if len(first_unset_uses) * len(normalized_names) > PAIRS_MAX:
        return
    # A script may set thousands of names, so names are compared only if their lengths are similar.
    by_length: dict[int, list[_AssignedName]] = {}
    for normalized, name in normalized_names.items():
        assigned_name = _AssignedName(name, normalized, re.sub(r"\d", "", name))
        by_length.setdefault(len(normalized), []).append(assigned_name)
    for name, use in first_unset_uses.items():
        if len(name) < SHORTEST_NAME or not normalized_names:
            continue
        without_digits, normalized = re.sub(r"\d", "", name), _normalized(name)
        candidates: dict[str, str] = {}  # normalized name -> name, for the names that may be alike
        for length, names in by_length.items():
            if _may_be_alike(len(normalized), length):
                # The next name of a series, such as A2 after A1, is not a misspelt name.
                candidates |= {
                    known.normalized: known.name for known in names if known.without_digits != without_digits
                }
        other = candidates.get(normalized) or candidates.get(nearest(normalized, candidates, LEAST_RATIO), "")
        if not other:
            continue
        other_assignments = script.body.assignments_of(other)
        if any(assignment.word and name in assignment.word.variables for assignment in other_assignments):
            continue  # the script's variable takes its value from this variable
        command = script.body.command_around(use.at)
        if command is None or not _only_shows(command):
            what = f"nothing in the script sets ${name}: it is empty, unless the environment has it"
            yield Hit(script.at_start(use), what, f"write ${other}, which the script sets")


def _only_unset_variable(script: JobScript, first_unset_uses: dict[str, VariableUse]) -> Iterator[Hit]:
    """Find the only unset variable of a script, if a command can't work without it.

    The variable stands for the program, for the script of an interpreter, or for a file or folder.
    """
    names = [name for name in first_unset_uses if not _SITE_NAME.match(name.upper())]
    if len(first_unset_uses) != 1 or len(names) != 1 or not script.assigned_names:
        return
    name, use = names[0], first_unset_uses[names[0]]
    preparations = script.named("module", "ml", "source", ".", "conda", "spack", *PREPARING_PROGRAMS)
    if preparations and name.isupper():
        return  # a module or a sourced file may set the variable
    command = script.body.command_around(use.at)
    lines_with_name = (line for line in script.lines if name in line)
    is_in_comment = any(re.search(rf"#.*\b{name}\b", line) for line in lines_with_name)
    if command is None or is_in_comment or "--export" in script.text:
        return  # a comment or an option tells users to set the variable
    indices = (index for index, word in enumerate(command.words) if word.at <= use.at < word.end)
    index = next(indices, None)  # of the word that holds the variable
    if index is None or command.context.function or command.is_test:
        return
    word = command.words[index]
    is_whole_word = word.text.strip('"') in (f"${name}", f"${{{name}}}")
    is_script = is_whole_word and index == 1 and _INTERPRETERS.fullmatch(command.name)
    is_program = index == 0 and len(command.words) > 1
    # The word is $NAME/x, "${NAME}/x" or ./$NAME. In pre$NAME, an empty value may be meant.
    starts_word = word.text[: use.at - word.at].strip('"') in ("", "./")
    is_path = command.name in _OPENERS and starts_word
    if is_script or is_program or is_path:
        what = f"nothing in the script sets ${name}: it is empty, unless the environment has it"
        yield Hit(script.at_start(use), what, f"set {name} before it, or write ${{{name}:?}}")


def _only_shows(command: Command) -> bool:
    """Return whether a command only prints or removes a variable, so that an empty value does no harm.

    The output of echo in a $( ), in a pipe or in a file may matter.
    """
    may_be_used = command.context.in_substitution or command.pipe or command.redirects
    return command.name in ("echo", "printf", "unset") and not may_be_used


def _may_be_alike(first_length: int, second_length: int) -> bool:
    """Return whether difflib may find a ratio of LEAST_RATIO for two names of these lengths."""
    return 2.0 * min(first_length, second_length) / (first_length + second_length) >= LEAST_RATIO


def _normalized(name: str) -> str:
    """Return a name without the differences that people overlook: case and underscores."""
    return name.lower().replace("_", "")
