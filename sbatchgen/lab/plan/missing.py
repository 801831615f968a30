"""Finds the needs of a script: files, programs and variables that it looked for and that are missing.

The messages of bash and of programs name missing things. So does a test such as `[ -f data ]` that was false
just before the script gave up.
"""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sbatchgen.check.bash import Assignment, Body, Command
from sbatchgen.check.bash.chain import chain
from sbatchgen.check.sbatch.option_table import specs
from sbatchgen.check.script.job import DEFAULT_SLURM
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.plan.step_tasks import number_of
from sbatchgen.lab.plan.visible_folders import path_of

_MAX_MESSAGES = 40  # messages of each kind that are read
_TRACE_END_LENGTH = 40  # commands at the end of a trace, among which this module looks for a false test
_NOT_FOUND = "(?:No such file or directory|Not a directory)"
# script: line 3: cd: data: No such file or directory
_BASH_MESSAGE = re.compile(rf"script: line (\d+): (?:(cd|pushd|source|\.): )?(.{{1,999}}): {_NOT_FOUND}")
# /usr/bin/torchrun: line 3: data: No such file or directory, from a bash that is not the batch script's
_TASK_MESSAGE = re.compile(
    rf"^(?!script: )\S+: line \d+: (?:(cd|pushd|source|\.): )?(.{{1,999}}): {_NOT_FOUND}", re.MULTILINE
)
# sh: 0: cannot open run.sh: No such file
_INTERPRETER_MESSAGE = re.compile(
    r"^(?:(?:da)?sh: 0: cannot open|Can't open perl script) \"?(.+?)\"?: No such file", re.MULTILINE
)
# cat: config.txt: No such file or directory; tar: data.tar: Cannot open: No such file or directory
_PROGRAM_MESSAGE = re.compile(
    r"^(\w[\w.-]*): (?:fatal: )?"
    r"(?:cannot (?:access|stat|open|open file|create regular file|create directory) |can't (?:read|open) "
    r"|error: )?"
    # Tasks that print at the same time mix their lines, so "Cannot open" may be in the place of the name.
    r"['\"`\u2018]?(?!Cannot )([^'\"\u2019\n:]+)"
    f"['\"\u2019]?(?: for reading|: Cannot (?:stat|open))?: {_NOT_FOUND}",
    re.MULTILINE,
)
_STARTERS = {"srun", "exec", "time"}  # commands that start another program, and fail if it is missing
_FOLDER_PROGRAMS = frozenset(("ls", "find", "du", "cd", "pushd", "df", "mkdir"))  # they usually get a folder
# A test of a file such as -f 'data.txt': the letter of the test, and the path.
_FILE_TEST = re.compile(r"(?:^|[\s!(])-([defghrswxL])\s+('[^']*'|\"[^\"]*\"|[^\s)\]]+)")
# A test such as [[ -v NAME ]] or [ -v NAME ], as bash traces it.
_VARIABLE_TEST = re.compile(r"\[\[ -v (\w+) \]\]|(?:test|\[|'\[') -v (\w+)(?: '?\]'?)?")
# Commands whose status tells whether a file exists.
_LOOKING_COMMAND = re.compile(r"(?:ls|stat|head|tail|wc|realpath|readlink) ")
# A command by which a script gives up: it prints a message, ends the script, or tests something.
_GIVING_UP_COMMAND = re.compile(
    r"exit\b|die\b|return\b|kill\b|usage\b|echo\b|printf\b|cat\b|error|log|>&2|'?\[|test |! "
)


NeedKey = tuple[str, str]  # the kind and the name of a need


class Need(NamedTuple):
    """A thing that a script needs and that is not here."""

    kind: str  # "file", "folder", "program", "output", "variable" or "arguments"
    name: str  # the name or path of the thing; for arguments, their number
    line: int  # the first line of the script that needs the thing; 0 for an unknown line

    @property
    def key(self) -> NeedKey:
        """The kind and the name, which two needs of the same thing have in common."""
        return self.kind, self.name


class StartedProgram(NamedTuple):
    """A program that a script started, or tried to start."""

    path: str  # the path or name by which the script called the program
    folder: str  # the working folder
    line: int  # the line of the script


class TracedCommand(NamedTuple):
    """A command that bash ran."""

    line: int  # the line of the script
    text: str  # the words of the command, expanded
    folder: str  # the working folder


def read_trace(text: str) -> tuple[TracedCommand, ...]:
    """Return the commands in a trace of bash, without the commands of prelude.sh.

    The commands of the script's trap on EXIT are left out. Bash traces them as line 1, which is #! in a
    script, and never a command.
    """
    commands: list[tuple[int, list[str], str]] = []  # line number, lines of the command, folder
    is_of_script = True  # whether the last command belongs to the script
    for line in text.splitlines():
        head, *rest = line.split("\x1f", 3)  # PS4 of prelude.sh: +LINE, the file, the folder, the command
        number = head.lstrip("+")
        if len(rest) == 3 and number.isdecimal():
            file, folder, command = rest
            is_of_script = not file.endswith(("/run/plan/prelude.sh", "/run/plan/clock.sh"))
            if is_of_script and head == "+1":
                break
            if is_of_script:
                commands.append((number_of(number), [command], folder))
        elif commands and not rest and is_of_script:  # a further line of the last command
            _, last_lines, _ = commands[-1]
            last_lines.append(line)
    return tuple(TracedCommand(number, "\n".join(lines), folder) for number, lines, folder in commands)


def missing_paths(err: str, trace: Sequence[TracedCommand]) -> Iterator[Need]:
    """Yield the files, folders and programs that a script did not find.

    `err` is the stderr of the script, with "script" in place of its path. Processes in the background print
    in any order, so the order of the messages must not matter.
    """
    failed_cds = [number_of(match[1]) for match in _BASH_MESSAGE.finditer(err) if match[2] in ("cd", "pushd")]
    first_failed_cd = min(failed_cds, default=0)
    for path, need in _paths_and_needs(err, trace):
        # After a cd that failed, the script looks for relative paths in a wrong folder.
        if path.startswith("/") or not first_failed_cd or need.line <= first_failed_cd:
            yield need


def first_needs(needs: Iterable[Need]) -> dict[NeedKey, Need]:
    """Return each need once, with the first line that needs the thing, sorted by this line.

    Programs that run at the same time print in any order, and the sorted result is the same in each run.
    """
    first: dict[NeedKey, Need] = {}
    for need in sorted(needs, key=lambda need: (need.line == 0, need.line, need)):
        first.setdefault(need.key, need)
    return first


def _paths_and_needs(err: str, trace: Sequence[TracedCommand]) -> Iterator[tuple[str, Need]]:
    """Yield the path of each need, as the script writes the path, and the need."""
    bash_messages = sorted(
        (number_of(match[1]), match[3], match[2] or "") for match in _BASH_MESSAGE.finditer(err)
    )
    for line, path, builtin in bash_messages[:_MAX_MESSAGES]:
        commands_of_line = [command for command in trace if command.line == line]
        if is_path(path):
            yield path, _need(_kind(builtin, path, commands_of_line), path, line, commands_of_line)
    messages = [(match[1] or "", match[2]) for match in _TASK_MESSAGE.finditer(err)]
    messages += [("sh", match[1]) for match in _INTERPRETER_MESSAGE.finditer(err)]
    messages += [(match[1], match[2].strip()) for match in _PROGRAM_MESSAGE.finditer(err)]
    for program, path in sorted(messages)[:_MAX_MESSAGES]:
        if program != "script" and is_path(path):
            commands_with_path = sorted(command for command in trace if path in command.text)
            line = commands_with_path[0].line if commands_with_path else 0
            kind = "output" if program in ("tee", "touch") else "file"
            kind = "folder" if program in _FOLDER_PROGRAMS and "*" not in path else kind
            # mkdir fails because the folder around the new folder is missing.
            missing_path = os.path.dirname(path) or "." if program == "mkdir" else path  # noqa: PTH120
            yield path, _need(kind, missing_path, line, commands_with_path)
    programs = [
        StartedProgram(command.text.partition(" ")[0], command.folder, command.line) for command in trace
    ]
    # The script may write the messages about programs to a log of its own, so the trace is also read.
    for need in missing_programs(programs):
        yield need.name, need


def missing_log_folders(script: JobScript, workdir: str) -> Iterator[Need]:
    """Yield the missing folders of --output and --error, for which the sandbox then has stand-ins.

    In a real job the folders always exist: Slurm makes them, or does not start the script.
    """
    for option in ("output", "error"):
        folder = os.path.dirname(script.option(option))  # noqa: PTH120 - it may be empty
        has_pattern = bool(set("%$\\") & set(folder))  # such as logs/%j, which only Slurm can fill in
        if folder and not has_pattern and not path_of(path := os.path.join(workdir, folder)):  # noqa: PTH118
            yield Need("folder", os.path.normpath(path), 0)


def missing_programs(programs: Iterable[StartedProgram]) -> Iterator[Need]:
    """Yield the programs that do not exist.

    A name without a slash is skipped, because modules of the cluster may provide the program.
    """
    for path, folder, line in programs:
        if "/" in path and path[:1] in "./" and is_path(path) and path.isprintable() and "'" not in path:
            need = _need("program", path, line, [TracedCommand(line, path, folder)])
            if not os.path.exists(need.name):  # noqa: PTH110 - a path of the job's nodes
                yield need


def expected_needs(body: Body, text: str, folder: str) -> Iterator[Need]:
    """Yield the programs and the sourced files that a script names by a path, before any cd.

    A stand-in for such a file from the start often saves a run of the script. A path that the text has more
    than once is skipped, because the script may make or test the file.
    """
    for command in body.commands:
        if command.name in ("cd", "pushd"):
            return
        if command.name in ("source", "."):
            kind, words = "file", command.words[1:2]
        else:
            tools = chain(command, body)  # for `srun train.sh`: srun and train.sh
            kind, words = "program", tuple(tool.words[0] for tool in tools[-1:])
            if not {tool.name for tool in tools[:-1]} <= _STARTERS:
                continue
        path = words[0].value if words and not command.is_test else None
        if path and "/" in path and path[0] in "./" and is_path(path) and text.count(path) == 1:
            yield _need(kind, path, command.line, [TracedCommand(command.line, path, folder)])


def _need(kind: str, path: str, line: int, commands: Sequence[TracedCommand]) -> Need:
    """Return the need of a path, which is relative to the working folder of the last of `commands`."""
    folder = commands[-1].folder if commands else ""
    return Need(kind, os.path.normpath(os.path.join(folder, path)) if folder else path, line)  # noqa: PTH118


def is_path(path: str) -> bool:
    """Return whether a text may be the path of a file for which the sandbox can have a stand-in."""
    is_of_system = path.startswith(("/dev/", "/proc/", "/sys/", "/run/plan/"))
    return bool(path) and len(path) < 1000 and not {*path} & {"\n", "\0"} and not is_of_system


def _kind(builtin: str, path: str, commands: Sequence[TracedCommand]) -> str:
    """Return the kind of a need.

    `builtin` is the builtin that bash names in its message, or "". `commands` are the commands of the line.
    """
    if builtin in ("cd", "pushd"):
        return "folder"
    if builtin in ("source", "."):
        return "file"
    for command in commands:
        words = command.text.split()
        if words and words[0].strip("'") == path:
            return "program"
        if words and words[0] in ("source", ".") and path in command.text:
            return "file"
    return "output"  # a redirection: the file to read, or the folder of the file to write, is missing


def option_of(variable: str) -> str:
    """Return the option of sbatch for which Slurm sets a variable; "" for any other variable."""
    if variable.startswith("SLURM_ARRAY_"):
        return "array"
    name = variable.removeprefix("SLURM_").lower().replace("_", "-")
    return name if variable.startswith("SLURM_") and name in specs(DEFAULT_SLURM) else ""


def need_of_false_test(trace: Sequence[TracedCommand], functions: Functions) -> Need | None:
    """Return the path whose test was false before the script gave up; None without such a test.

    An example is data.txt for the script `[ -f data.txt ] || exit 1`.
    """
    for test in _last_tests(trace, functions):
        words = test.text.split()[1:] if _LOOKING_COMMAND.match(test.text) else ()
        paths_of_command = [("f", word) for word in words if word[0] != "-"]
        for letter, quoted_path in reversed(_FILE_TEST.findall(test.text) or paths_of_command):
            try:
                path = shlex.split(quoted_path)[0]
            except (ValueError, IndexError):
                continue
            if is_path(path):
                kind = {"d": "folder", "x": "program"}.get(letter, "file")
                return _need(kind, path, test.line, [test])
    return None


def needs_of_subshells(trace: Sequence[TracedCommand], functions: Functions) -> Iterator[Need]:
    """Yield the paths whose tests were false before a subshell of the script gave up."""
    for number, command in enumerate(trace, 1):
        if re.match("exit [1-9]", command.text):
            need = need_of_false_test(trace[:number], functions)
            if need:
                yield need


def empty_test_line(trace: Sequence[TracedCommand], functions: Functions) -> int:
    """Return the line of the test, such as [ -z "$DATA" ], that was true for an empty value.

    Returns 0 if the script did not give up because of such a test.
    """
    tests = [*_last_tests(trace, functions)]
    if not tests:
        return 0
    line = tests[0].line  # the line of the last test, because the tests are in reverse order
    return line if any("-z ''" in test.text for test in tests if test.line == line) else 0


def tested_variable(trace: Sequence[TracedCommand], functions: Functions) -> tuple[str, int]:
    """Return the variable of a test such as [[ -v NAME ]] before the script gave up, and the test's line.

    Returns ("", 0) if the last test is of another kind.
    """
    test = next(_last_tests(trace, functions), None)
    match = _VARIABLE_TEST.fullmatch(test.text) if test else None
    return (match[1] or match[2], test.line) if match and test else ("", 0)


class Functions(NamedTuple):
    """The functions that a script defines."""

    names: frozenset[str]
    name_by_line: Mapping[int, str]  # the name of the function around each line

    def has(self, command: TracedCommand) -> bool:
        """Return whether a command calls a function, or is a line of a function."""
        return command.line in self.name_by_line or command.text.partition(" ")[0] in self.names


def functions_of(body: Body) -> Functions:
    """Return the functions that a script defines."""
    return Functions(frozenset(body.function_by_line.values()), body.function_by_line)


def function_spans(body: Body) -> list[tuple[int, int]]:
    """Return the offsets of the start and the end of each function in a script."""
    spans: dict[str, tuple[int, int]] = {}  # by name: the span of all commands and assignments so far
    parts: list[Command | Assignment] = [*body.commands, *body.assignments]
    for part in parts:
        if name := part.context.function:
            start, end = spans.get(name, (part.at, part.end))
            spans[name] = min(start, part.at), max(end, part.end)
    return [*spans.values()]


def last_line(trace: Sequence[TracedCommand], functions: Functions) -> int:
    """Return the line at which a script ended, or the line that called a function such as `die` to end it."""
    for command in reversed(trace):
        is_in_function = command.line in functions.name_by_line
        gives_up = bool(_GIVING_UP_COMMAND.match(command.text)) and not _is_test(command)
        if not is_in_function or not gives_up:
            return command.line
    return trace[-1].line if trace else 0


def _is_test(command: TracedCommand) -> bool:
    return command.text.startswith(("[[ ", "'['", "[ ", "test "))


def _last_tests(trace: Sequence[TracedCommand], functions: Functions) -> Iterator[TracedCommand]:
    """Yield the tests right before the script gave up, the last test first.

    If a function such as `die` ends the script, the tests right before its call are also yielded. Tests in a
    function that has returned are not yielded.
    """
    # The functions of the commands that the loop has passed, in which the script ended; "" for no function.
    ending_functions: set[str] = set()
    found_cause = False  # whether the loop has passed a command that may have failed
    for command in reversed(trace[-_TRACE_END_LENGTH:]):
        function, called = functions.name_by_line.get(command.line, ""), command.text.partition(" ")[0]
        is_test = bool(_is_test(command) or _LOOKING_COMMAND.match(command.text))
        gives_up = bool(_GIVING_UP_COMMAND.match(command.text))
        belongs_to_end = function in ending_functions or called in ending_functions
        if not belongs_to_end and (found_cause or (function and not (is_test or gives_up))):
            return  # a command before the cause, or in a function that has returned
        if is_test:
            yield command
        elif not (gives_up or functions.has(command)):
            return
        found_cause = found_cause or is_test or not (gives_up or called in functions.names)
        ending_functions.add(function)
