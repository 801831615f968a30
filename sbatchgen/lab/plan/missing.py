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

from sbatchgen.check.bash import Body
from sbatchgen.check.bash.chain import chain
from sbatchgen.check.sbatch.option_table import specs
from sbatchgen.check.script.job import DEFAULT_SLURM
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.plan.step_tasks import number_of
from sbatchgen.lab.plan.visible_folders import path_of

_MAX_MESSAGES = 40  # messages of each kind that are read
_TRACE_END_LENGTH = 40  # commands at the end of a trace in which a false test is looked for
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
    # Tasks that print at the same time mix their lines, so "Cannot open" may be where a name should be.
    r"['\"`\u2018]?(?!Cannot )([^'\"\u2019\n:]+)"
    f"['\"\u2019]?(?: for reading|: Cannot (?:stat|open))?: {_NOT_FOUND}",
    re.MULTILINE,
)
_STARTERS = {"srun", "exec", "time"}  # commands that start another program, and fail if it is missing
_FOLDER_PROGRAMS = frozenset(("ls", "find", "du", "cd", "pushd", "df", "mkdir"))  # usually given a folder
# A test of a file such as -f 'data.txt': the letter of the test, and the path.
_FILE_TEST = re.compile(r"(?:^|[\s!(])-([defghrswxL])\s+('[^']*'|\"[^\"]*\"|[^\s)\]]+)")
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


class TracedCommand(NamedTuple):
    """A command that bash ran."""

    line: int  # the line of the script
    command: str  # the words of the command, expanded
    folder: str  # the working folder


def read_trace(text: str) -> tuple[TracedCommand, ...]:
    """Return the commands in a trace of bash, without the commands of prelude.sh.

    The trace ends at the script's trap on EXIT, whose commands bash traces as line 1. Line 1 of a script is
    #!, and never a command.
    """
    entries: list[tuple[int, list[str], str]] = []  # line number, lines of the command, folder
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
                entries.append((number_of(number), [command], folder))
        elif entries and not rest and is_of_script:  # a further line of the command
            entries[-1][1].append(line)
    return tuple(TracedCommand(number, "\n".join(lines), folder) for number, lines, folder in entries)


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
        line_entries = [entry for entry in trace if entry.line == line]
        if is_path(path):
            yield path, _need(_kind(builtin, path, line_entries), path, line, line_entries)
    messages = [(match[1] or "", match[2]) for match in _TASK_MESSAGE.finditer(err)]
    messages += [("sh", match[1]) for match in _INTERPRETER_MESSAGE.finditer(err)]
    messages += [(match[1], match[2].strip()) for match in _PROGRAM_MESSAGE.finditer(err)]
    for program, path in sorted(messages)[:_MAX_MESSAGES]:
        if program != "script" and is_path(path):
            path_entries = sorted(entry for entry in trace if path in entry.command)
            kind = "output" if program in ("tee", "touch") else "file"
            kind = "folder" if program in _FOLDER_PROGRAMS and "*" not in path else kind
            # mkdir fails because the folder around the new folder is missing.
            needed = os.path.dirname(path) or "." if program == "mkdir" else path  # noqa: PTH120
            yield path, _need(kind, needed, path_entries[0].line if path_entries else 0, path_entries)
    programs = [(entry.command.partition(" ")[0], entry.folder, entry.line) for entry in trace]
    # The script may write the messages about programs to a log of its own, so the trace is read too.
    for need in missing_programs(programs):
        yield need.name, need


def missing_log_folders(script: JobScript, workdir: str) -> Iterator[Need]:
    """Yield the missing folders of --output and --error.

    The script finds these folders if it runs at all: Slurm makes them, or does not start the job.
    """
    for option in ("output", "error"):
        folder = os.path.dirname(script.option(option))  # noqa: PTH120 - it may be empty
        has_pattern = bool(set("%$\\") & set(folder))  # such as logs/%j, which only Slurm can fill in
        if folder and not has_pattern and not path_of(path := os.path.join(workdir, folder)):  # noqa: PTH118
            yield Need("folder", os.path.normpath(path), 0)


def missing_programs(programs: Iterable[tuple[str, str, int]]) -> Iterator[Need]:
    """Yield the programs that do not exist.

    `programs` has the path of each program, the working folder, and the line of the script. A name without a
    slash is skipped, because modules of the cluster may provide the program.
    """
    for name, folder, line in programs:
        if "/" in name and name[:1] in "./" and is_path(name) and name.isprintable() and "'" not in name:
            need = _need("program", name, line, [TracedCommand(line, name, folder)])
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
            links = chain(command, body)  # for `srun train.sh`: srun and train.sh
            kind, words = "program", tuple(link.words[0] for link in links[-1:])
            if not {link.name for link in links[:-1]} <= _STARTERS:
                continue
        path = words[0].value if words and not command.is_test else None
        if path and "/" in path and path[0] in "./" and is_path(path) and text.count(path) == 1:
            yield _need(kind, path, command.line, [TracedCommand(command.line, path, folder)])


def _need(kind: str, path: str, line: int, entries: Sequence[TracedCommand]) -> Need:
    """Return the need of a path, which is relative to the working folder of the last of `entries`."""
    folder = entries[-1].folder if entries else ""
    return Need(kind, os.path.normpath(os.path.join(folder, path)) if folder else path, line)  # noqa: PTH118


def is_path(path: str) -> bool:
    """Return whether a text may be the path of a file for which the sandbox can have a stand-in."""
    is_of_system = path.startswith(("/dev/", "/proc/", "/sys/", "/run/plan/"))
    return bool(path) and len(path) < 1000 and not {*path} & {"\n", "\0"} and not is_of_system


def _kind(builtin: str, path: str, entries: Sequence[TracedCommand]) -> str:
    """Return the kind of a need, by the builtin in bash's message and by the commands of its line."""
    if builtin in ("cd", "pushd"):
        return "folder"
    if builtin in ("source", "."):
        return "file"
    for entry in entries:
        words = entry.command.split()
        if words and words[0].strip("'") == path:
            return "program"
        if words and words[0] in ("source", ".") and path in entry.command:
            return "file"
    return "output"  # a redirection: the file to read, or the folder of the file to write, is missing


def option_of(variable: str) -> str:
    """Return the option of sbatch for which Slurm sets a variable; "" for any other variable."""
    if variable.startswith("SLURM_ARRAY_"):
        return "array"
    name = variable.removeprefix("SLURM_").lower().replace("_", "-")
    return name if variable.startswith("SLURM_") and name in specs(DEFAULT_SLURM) else ""


def false_test(trace: Sequence[TracedCommand], functions: Functions) -> Need | None:
    """Return the need of a path whose test was false before the script gave up; None without such a test."""
    for entry in _last_tests(trace, functions):
        words = entry.command.split()[1:] if _LOOKING_COMMAND.match(entry.command) else ()
        paths_of_command = [("f", word) for word in words if word[0] != "-"]
        for letter, quoted in reversed(_FILE_TEST.findall(entry.command) or paths_of_command):
            try:
                path = shlex.split(quoted)[0]
            except (ValueError, IndexError):
                continue
            if is_path(path):
                kind = {"d": "folder", "x": "program"}.get(letter, "file")
                return _need(kind, path, entry.line, [entry])
    return None


def false_tests_of_subshells(trace: Sequence[TracedCommand], functions: Functions) -> Iterator[Need]:
    """Yield the files whose tests were false before a subshell of the script gave up."""
    for number, entry in enumerate(trace, 1):
        if re.match("exit [1-9]", entry.command) and (need := false_test(trace[:number], functions)):
            yield need


def empty_test_line(trace: Sequence[TracedCommand], functions: Functions) -> int:
    """Return the line of the test that found an empty value before the script gave up; 0 without one."""
    tests = [*_last_tests(trace, functions)]
    line = tests[0].line if tests else 0  # the line of the last test, because the tests are in reverse order
    return line if any("-z ''" in test.command for test in tests if test.line == line) else 0


def tested_variable(trace: Sequence[TracedCommand], functions: Functions) -> tuple[str, int]:
    """Return the variable of a test such as [[ -v NAME ]] before the script gave up, and the test's line.

    Returns ("", 0) if the last test is of another kind.
    """
    for test in _last_tests(trace, functions):
        if match := re.fullmatch(r"\[\[ -v (\w+) \]\]|(?:test|\[|'\[') -v (\w+)(?: '?\]'?)?", test.command):
            return match[1] or match[2], test.line
        break
    return "", 0


class Functions(NamedTuple):
    """The functions of a script."""

    names: frozenset[str]
    lines: Mapping[int, str]  # by line: the function that the line belongs to

    def has(self, entry: TracedCommand) -> bool:
        """Return whether a command calls a function, or is a line of a function."""
        return entry.line in self.lines or entry.command.partition(" ")[0] in self.names


def functions_of(body: Body) -> Functions:
    """Return the functions that a script defines."""
    return Functions(frozenset(body.function_by_line.values()), body.function_by_line)


def function_spans(body: Body) -> list[tuple[int, int]]:
    """Return the offsets of the start and the end of each function in a script."""
    parts = [(part.context.function, part.at, part.end) for part in body.commands]
    parts += [(part.context.function, part.at, part.end) for part in body.assignments]
    spans: dict[str, tuple[int, int]] = {}
    for name, at, end in parts:
        if name:
            first, last = spans.get(name, (at, end))
            spans[name] = min(first, at), max(last, end)
    return [*spans.values()]


def last_line(trace: Sequence[TracedCommand], functions: Functions) -> int:
    """Return the line at which a script ended, or the line that called a function such as `die` to end it."""
    for entry in reversed(trace):
        if (
            entry.line not in functions.lines
            or _is_test(entry)
            or not _GIVING_UP_COMMAND.match(entry.command)
        ):
            return entry.line
    return trace[-1].line if trace else 0


def _is_test(entry: TracedCommand) -> bool:
    return entry.command.startswith(("[[ ", "'['", "[ ", "test "))


def _last_tests(trace: Sequence[TracedCommand], functions: Functions) -> Iterator[TracedCommand]:
    """Yield the tests right before the script gave up, the last test first.

    If a function such as `die` ends the script, the tests right before its call are also yielded. Tests in a
    function that has returned are not yielded.
    """
    # The functions in which the script ended, by the commands read so far; "" outside of functions.
    ending_functions: set[str] = set()
    found_cause = False  # whether the loop has passed a command that may have failed
    for entry in reversed(trace[-_TRACE_END_LENGTH:]):
        function, called = functions.lines.get(entry.line, ""), entry.command.partition(" ")[0]
        is_test = bool(_is_test(entry) or _LOOKING_COMMAND.match(entry.command))
        gives_up = bool(_GIVING_UP_COMMAND.match(entry.command))
        belongs_to_end = function in ending_functions or called in ending_functions
        if not belongs_to_end and (found_cause or (function and not (is_test or gives_up))):
            return  # a command before the cause, or in a function that has returned
        if is_test:
            yield entry
        elif not (gives_up or functions.has(entry)):
            return
        found_cause = found_cause or is_test or not (gives_up or called in functions.names)
        ending_functions.add(function)
