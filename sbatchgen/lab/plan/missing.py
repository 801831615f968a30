"""The needs of a script: files, programs and variables that the script looked for and did not find.

Messages of bash and of programs name the needs, and false tests show them.
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
from sbatchgen.lab.plan.step_tasks import number_of

_MAX_NEEDS = 40  # messages of each kind that are read; also commands at the end in which tests are looked for
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
    # The lines of several tasks mix, so "Cannot open" may be in the place of a name.
    r"['\"`\u2018]?(?!Cannot )([^'\"\u2019\n:]+)"
    f"['\"\u2019]?(?: for reading|: Cannot (?:stat|open))?: {_NOT_FOUND}",
    re.MULTILINE,
)
_STARTERS = {"srun", "exec", "time"}  # commands that fail if the program which they start is missing
_FOLDER_PROGRAMS = frozenset(("ls", "find", "du", "cd", "pushd", "df", "mkdir"))  # they usually get folders
# A test of a file such as -f 'data.txt': the letter of the test, and the path.
_FILE_TEST = re.compile(r"(?:^|[\s!(])-([defghrswxL])\s+('[^']*'|\"[^\"]*\"|[^\s)\]]+)")
# Commands whose status tells whether a file exists.
_LOOKING_COMMAND = re.compile(r"(?:ls|stat|head|tail|wc|realpath|readlink) ")
# Commands of a script that gives up: they print a message, end the script, or test something.
_EXIT_COMMAND = re.compile(
    r"exit\b|die\b|return\b|kill\b|usage\b|echo\b|printf\b|cat\b|error|log|>&2|'?\[|test |! "
)


class Need(NamedTuple):
    """A thing that a script needs and that is not here."""

    kind: str  # "file", "folder", "program", "output", "variable" or "arguments"
    name: str  # the name or path of the thing; for arguments, their number
    line: int  # the first line of the script that needs the thing; 0 for an unknown line


class TracedCommand(NamedTuple):
    """A command that bash ran."""

    line: int  # the line of the script
    command: str  # the words of the command, expanded
    folder: str  # the working folder


def read_trace(text: str) -> tuple[TracedCommand, ...]:
    """Return the commands in a trace of bash up to the trap on EXIT, without the commands of prelude.sh.

    bash traces the commands of the trap as line 1. Line 1 of a script is #!, and never a command.
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

    `err` is the stderr of the script, with "script" for its path. Processes in the background print in any
    order, so the order of messages does not count.
    """
    failed_cds = [number_of(match[1]) for match in _BASH_MESSAGE.finditer(err) if match[2] in ("cd", "pushd")]
    first_failed_cd = min(failed_cds, default=0)
    for path, need in _paths_and_needs(err, trace):
        # After a cd that failed, the script looks for relative paths in a wrong folder.
        if path.startswith("/") or not first_failed_cd or need.line <= first_failed_cd:
            yield need


def first_needs(needs: Iterable[Need]) -> dict[tuple[str, str], Need]:
    """Return needs by kind and name, each with its first line.

    The order of the result does not depend on the order of processes that run at the same time.
    """
    first: dict[tuple[str, str], Need] = {}
    for need in sorted(needs, key=lambda need: (need.line == 0, need.line, need)):
        first.setdefault(need[:2], need)
    return first


def _paths_and_needs(err: str, trace: Sequence[TracedCommand]) -> Iterator[tuple[str, Need]]:
    """Yield the path of each need, as the script writes the path, and the need."""
    bash_messages = sorted(
        (number_of(match[1]), match[3], match[2] or "") for match in _BASH_MESSAGE.finditer(err)
    )
    for line, path, builtin in bash_messages[:_MAX_NEEDS]:
        line_entries = [entry for entry in trace if entry.line == line]
        if is_path(path):
            yield path, _need(_kind(builtin, path, line_entries), path, line, line_entries)
    messages = [(match[1] or "", match[2]) for match in _TASK_MESSAGE.finditer(err)]
    messages += [("sh", match[1]) for match in _INTERPRETER_MESSAGE.finditer(err)]
    messages += [(match[1], match[2].strip()) for match in _PROGRAM_MESSAGE.finditer(err)]
    for program, path in sorted(messages)[:_MAX_NEEDS]:
        if program != "script" and is_path(path):
            path_entries = sorted(entry for entry in trace if path in entry.command)  # the trace has no order
            kind = "output" if program in ("tee", "touch") else "file"
            kind = "folder" if program in _FOLDER_PROGRAMS and "*" not in path else kind
            # mkdir fails because the folder around the new folder is missing.
            needed = os.path.dirname(path) or "." if program == "mkdir" else path  # noqa: PTH120
            yield path, _need(kind, needed, path_entries[0].line if path_entries else 0, path_entries)
    programs = [(entry.command.partition(" ")[0], entry.folder, entry.line) for entry in trace]
    for need in missing_programs(programs):  # the messages about programs may be in a log of the script
        yield need.name, need


def missing_programs(programs: Iterable[tuple[str, str, int]]) -> Iterator[Need]:
    """Yield the programs that do not exist.

    `programs` has the path of each program, the working folder, and the line of the script. Names without a
    slash are skipped, because the modules of a cluster may provide them.
    """
    for name, folder, line in programs:
        if "/" in name and name[:1] in "./" and is_path(name) and name.isprintable() and "'" not in name:
            need = _need("program", name, line, [TracedCommand(line, name, folder)])
            if not os.path.exists(need.name):  # noqa: PTH110 - a path of the job's nodes
                yield need


def expected_needs(body: Body, text: str, folder: str) -> Iterator[Need]:
    """Yield the programs and the sourced files that a script names once, by a path, before any cd.

    Most of these files are missing on this machine. Stand-ins from the start save a run of the script.
    """
    for command in body.commands:
        if command.name in ("cd", "pushd"):
            return
        if command.name in ("source", "."):
            kind, words = "file", command.words[1:2]
        else:
            links = chain(command, body)  # of `srun train.sh`: srun and train.sh; empty without any word
            kind, words = "program", tuple(link.words[0] for link in links[-1:])
            if not {link.name for link in links[:-1]} <= _STARTERS:
                continue
        path = words[0].value if words and not command.is_test else None
        if path and "/" in path and path[0] in "./" and is_path(path) and text.count(path) == 1:
            yield _need(kind, path, command.line, [TracedCommand(command.line, path, folder)])


def _need(kind: str, path: str, line: int, entries: Sequence[TracedCommand]) -> Need:
    """Return a need, with its path in the working folder of the last of `entries`."""
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
    return "output"  # a redirection, which reads the file or lacks its folder


def option_of(variable: str) -> str:
    """Return the option of sbatch for which Slurm sets a variable; "" for any other variable."""
    if variable.startswith("SLURM_ARRAY_"):
        return "array"
    name = variable.removeprefix("SLURM_").lower().replace("_", "-")
    return name if variable.startswith("SLURM_") and name in specs(DEFAULT_SLURM) else ""


def false_test(trace: Sequence[TracedCommand], functions: Functions) -> Need | None:
    """Return the file or folder whose test was false before the script gave up; None without such a test."""
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
    """Return the line of the test for an empty value before the script gave up; 0 without such a test."""
    tests = [*_last_tests(trace, functions)]
    line = tests[0].line if tests else 0  # of the last test
    return line if any("-z ''" in test.command for test in tests if test.line == line) else 0


def tested_variable(trace: Sequence[TracedCommand], functions: Functions) -> tuple[str, int]:
    """Return the variable of the `-v` test before the script gave up, and the line of the test.

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


def last_line(trace: Sequence[TracedCommand], functions: Functions) -> int:
    """Return the line of the last command. If a function such as `die` ends the script, return its call's."""
    for entry in reversed(trace):
        if entry.line not in functions.lines or _is_test(entry) or not _EXIT_COMMAND.match(entry.command):
            return entry.line
    return trace[-1].line if trace else 0


def _is_test(entry: TracedCommand) -> bool:
    return entry.command.startswith(("[[ ", "'['", "[ ", "test "))


def _last_tests(trace: Sequence[TracedCommand], functions: Functions) -> Iterator[TracedCommand]:
    """Yield the tests right before the script gave up, the last test first.

    If a function such as `die` ends the script, the tests right before its call are also yielded. Tests in a
    function that has returned are not yielded.
    """
    # The functions of the commands read so far, in which the script ended; "" outside of functions.
    ending: set[str] = set()
    has_reason = False  # whether a command was found that may have failed
    for entry in reversed(trace[-_MAX_NEEDS:]):
        function, called = functions.lines.get(entry.line, ""), entry.command.partition(" ")[0]
        is_test = bool(_is_test(entry) or _LOOKING_COMMAND.match(entry.command))
        gives_up = bool(_EXIT_COMMAND.match(entry.command))
        is_in_ending = function in ending or called in ending
        if not is_in_ending and (has_reason or (function and not (is_test or gives_up))):
            return  # an earlier command, or a function that has returned
        if is_test:
            yield entry
        elif not (gives_up or functions.has(entry)):
            return
        has_reason = has_reason or is_test or not (gives_up or called in functions.names)
        ending.add(function)
