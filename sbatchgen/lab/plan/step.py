"""The stand-in for srun and for the commands of containers, in the sandbox of a dry run.

Each step starts this program, so it loads little of this package and little of Python.
"""

from __future__ import annotations

import marshal
import os
import sys

from sbatchgen.check.executables.command_options import program_name, read_options
from sbatchgen.lab.plan.step_tasks import GPU_VARIABLES, Options, needs, number_of, spread, variables

TYPE_CHECKING = False  # loading typing takes longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PLACE = "/run/plan"
BIN = f"{PLACE}/bin"
MOST_TASKS = 64  # tasks of a step that run; a larger step runs only its first tasks and the last task
MOST_RECORDS = 512  # the same limit, if a task only records the start of its program
# Folders whose programs run in the sandbox. Programs of other folders run only if they are scripts.
SYSTEM = ("/usr/", "/bin/", "/sbin/")
_SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh")
_STEP_GPU_VARIABLES = (*GPU_VARIABLES, "SLURM_GPUS_ON_NODE")  # variables that a step without GPUs lacks
_COMMA_RUNTIMES = ("apptainer", "singularity")  # commands whose --env takes NAME=VALUE,NAME=VALUE
_MARKS = iter(range(1 << 30))  # numbers for the containers of this process
SimpleNamespace = type(sys.implementation)  # loading types takes longer


def main() -> int:
    """Record the start of the command in argv, and start the programs that it starts.

    Returns the exit status.
    """
    name, *words = sys.argv[1:]
    with open(f"{PLACE}/job", "rb") as stream:
        job: dict[str, Any] = marshal.load(stream)  # noqa: S302 - this package wrote it
    environment = {key: value for key, value in os.environ.items() if key != "LC_CTYPE" or value != "C.UTF-8"}
    known, at = program_name([name, *words], job["programs"])
    if known not in job["programs"]:
        record(name, words, environment)
        return 0
    if name == "srun":
        return srun(words, *parsed([name, *words], at, job["programs"][known]), job, environment)
    return start([([name, *words], environment)], job)


def parsed(words: list[str], at: int, row: dict[str, Any]) -> tuple[Options, list[str]]:
    """Return the options of a command from the word `at` on, and the words after the options.

    `row` is the program's row in programs.txt.
    """
    given, end = read_options(words, at, SimpleNamespace(**row))  # type: ignore[arg-type]
    return {name: value for name, value, *_ in given}, words[end:]


def srun(
    words: list[str], options: Options, command: list[str], job: dict[str, Any], environment: Options
) -> int:
    """Start the programs of an srun, which has several programs if colons divide its command.

    `words` are all words after srun, and `command` the words after the first options. Returns the worst exit
    status.
    """
    if ":" not in command:
        return step(words, options, command, job, environment)
    at = command.index(":")
    others = command[at + 1 :]
    status = step(words[: len(words) - len(command) + at], options, command[:at], job, environment)
    if not others:
        return status
    next_options, next_command = parsed(["srun", *others], 1, job["programs"]["srun"])
    return max(status, srun(others, next_options, next_command, job, environment))


def step(
    words: list[str], options: Options, command: list[str], job: dict[str, Any], environment: Options
) -> int:
    """Start the tasks of a step on the nodes that the step gets; return the worst exit status."""
    if _print_information(options, job):
        return 0
    exports = exported(options.get("export") or environment.get("SLURM_EXPORT_ENV") or "ALL", environment)
    line = environment.get("__plan_at") or environment.get("__plan_line", "0")
    # The name of the step, which is the same in each run of the script.
    place = " ".join([environment.get("__plan_count", "0"), line, *words])
    placed = job.get("placed", {}).get(place, {})
    tasks, refusal = spread(options, job, environment, list(placed))
    kind = "refused." if refusal else ""  # a refused step takes no number of the other steps
    if command and "/" not in command[0] and "PATH" not in exports:
        refusal = f"execve(): {command[0]}: No such file or directory, without PATH (--export)"
    number = _next_number(kind)
    marks = {"__plan_step": f"{kind}{number}", "__plan_tasks": str(len(tasks)), "__plan_refusal": refusal}
    if tasks:
        marks |= {"__plan_place": place, "__plan_needs": needs(tasks, options, job, environment)}
    record("srun", words, environment | marks)
    if refusal:
        sys.stderr.write(f"srun: error: {refusal}\n")
        return 1
    if options.get("chdir"):
        os.chdir(options["chdir"])
    commands = []
    program = _file_to_run(command[0], exports) if command else None
    limit = MOST_TASKS if program and not program.startswith(BIN) else MOST_RECORDS
    shown = tasks if len(tasks) <= limit else tasks[: limit - 1] + tasks[-1:]
    without_gpus = {key: value for key, value in exports.items() if key not in _STEP_GPU_VARIABLES}
    for task in shown:
        own = variables(task | {"gpus": placed.get(task["host"])}, tasks, options, job, exports)
        inherited = exports if "CUDA_VISIBLE_DEVICES" in own else without_gpus
        marks = {"__plan_step": str(number), "__plan_rank": str(task["rank"])}
        marks |= dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), str(number))
        commands.append((command, inherited | own | marks))
    return start(commands, job) if command else 0


def _print_information(options: Options, job: dict[str, Any]) -> bool:
    """Print the help or the version if an option asks for it; return whether an option does."""
    if "help" in options or "usage" in options:
        sys.stdout.write("".join(f"      --{name}\n" for name in sorted(job["programs"]["srun"]["values"])))
    elif "version" in options:
        sys.stdout.write(f"slurm {job['release']}\n")
    else:
        return False
    return True


def _next_number(kind: str) -> int:
    """Return the first free number for a kind of step.

    A file for each number prevents steps that start at the same time from getting the same number.
    """
    number = 0
    while True:
        try:
            open(f"{PLACE}/step.{kind}{number}", "x").close()
        except FileExistsError:
            number += 1
        else:
            return number


def exported(export: str, environment: Options) -> Options:
    """Return the variables that --export passes to a step."""
    words = [word for word in export.split(",") if word]
    names = {"ALL" if word.upper() == "ALL" else word for word in words if "=" not in word}
    passed = {
        key: value
        for key, value in environment.items()
        if "ALL" in names or key in names or key.startswith(("SLURM", "__plan", "BASH_ENV"))
    }
    return passed | dict(word.split("=", 1) for word in words if "=" in word)


def start(commands: list[tuple[list[str], Options]], job: dict[str, Any]) -> int:
    """Start all commands at once, each in its environment; return the worst exit status.

    A command whose program does not run in the sandbox is only recorded.
    """
    children = []
    inputs = []
    first, *others = commands[0][0] if len(commands) > 1 else [""]
    if first in _SHELLS and others in ([], ["-s"]):  # srun sends its input to each task
        path = f"{PLACE}/input.{os.getpid()}"
        with open(0, "rb", closefd=False) as stream, open(path, "xb") as copy:
            copy.write(stream.read())
        inputs = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)]
    for command, environment in commands:
        words, inner = unwrapped(command, environment, job)
        if not words:
            continue
        program = _file_to_run(words[0], inner)
        if program is None or (program.startswith(BIN) and words[0].rpartition("/")[2] not in job["answers"]):
            record(words[0], words[1:], inner)
            continue
        try:
            starter = {
                "__plan_starter": str(os.getpid())
            }  # stand_in.sh finds the tasks of a step by this number
            children.append(os.posix_spawn(program, words, inner | starter, file_actions=inputs))
        except OSError:  # a script whose interpreter is missing
            record(words[0], words[1:], inner)
    worst = number_of(os.environ.get("__plan_status"))  # noqa: SIM112 - no name of a script
    for child in children:
        worst = max(worst, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), key=abs)
    return abs(worst)


def unwrapped(words: list[str], environment: Options, job: dict[str, Any]) -> tuple[list[str], Options]:
    """Return the command inside containers and wrappers, and its environment; record the containers.

    A wrapper without a command is recorded, and the command is [].
    """
    while words:
        known, at = program_name(words, job["programs"])
        row = job["programs"].get(known)
        if row is None or known == "srun":
            break
        given, end = read_options(words, at, SimpleNamespace(**row))  # type: ignore[arg-type]
        options, rest = {name: value for name, value, *_ in given}, words[end:]
        image, rest = rest[: row["operands"]], rest[row["operands"] :]
        if "container" in row["kinds"]:
            mark = f"{os.getpid()}.{next(_MARKS)}"
            record(words[0], words[1:], environment | {"__plan_holds": mark})
            image_name = options.get("image") or " ".join(image) or known.partition(" ")[0]
            sets = dict(_container_variables([value for name, value, *_ in given if name == "env"], known))
            environment = environment | sets | {"__plan_container": image_name, "__plan_within": mark}
        elif not rest:
            record(words[0], words[1:], environment)
        words = rest
    return words, environment


def _container_variables(values: list[str], command: str) -> Iterable[tuple[str, str]]:
    """Yield the names and values that a container's --env sets; with Apptainer, commas divide them."""
    for value in values:
        parts = value.split(",") if command.startswith(_COMMA_RUNTIMES) else [value]
        for name, equals, text in (part.partition("=") for part in parts):
            if equals and name not in ("PATH", "BASH_ENV"):  # programs in the sandbox find stand-ins by these
                yield name, text


def _file_to_run(name: str, environment: Options) -> str | None:
    """Return the file of a program that runs in the sandbox; None if only its start is recorded."""
    paths = environment.get("PATH", "").split(":")
    for path in [name] if "/" in name else [f"{folder}/{name}" for folder in paths]:
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            if path.startswith((BIN, *SYSTEM)):
                return path
            with open(path, "rb") as stream:
                return path if stream.read(2) == b"#!" else None
    return None


def record(name: str, words: list[str], environment: Options) -> None:
    """Record the start of a program, as stand_in.sh does."""
    with open("/proc/self/status", encoding="ascii") as stream:
        ignored = next((line.split()[1] for line in stream if line.startswith("SigIgn:")), "0")
    head = (
        name,
        environment.get("__plan_at") or environment.get("__plan_line", "0"),
        environment.get("__plan_waits", "0"),
        str(int(ignored, 16) >> 1 & 1),
        os.getcwd(),
        str(len(words)),
        *words,
    )
    texts = (*head, *(f"{key}={value}" for key, value in environment.items()))
    number, at = 0, number_of(environment.get("__plan_count"))
    while os.path.exists(path := f"{PLACE}/starts/{at:09}.{os.getpid():09}.{number}"):
        number += 1
    with open(path, "xb") as stream:
        stream.write(b"".join(os.fsencode(text) + b"\0" for text in texts))
