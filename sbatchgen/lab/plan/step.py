"""The stand-in for srun, wrappers and commands of containers, in the sandbox of a dry run.

It records that the command started, and starts the programs that the command would start. It is loaded for
each step, so it imports little of this package and little of Python.
"""

from __future__ import annotations

import marshal
import os
import sys

from sbatchgen.check.executables.command_options import program_name, read_options
from sbatchgen.lab.plan.step_tasks import (
    GPU_VARIABLES,
    Options,
    node_shares_text,
    number_of,
    task_variables,
    tasks_of_step,
)

TYPE_CHECKING = False  # loading typing takes longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from sbatchgen.lab.plan.step_tasks import Job, Task

PLAN_FOLDER = "/run/plan"  # as in box.py, which this program does not load
BIN = f"{PLAN_FOLDER}/bin"
MOST_TASKS = 64  # tasks of a step that run. If the step has more, the first tasks and the last task run.
MOST_RECORDS = 512  # the same limit for tasks whose starts are only recorded
# Folders of the system. All of their programs run in the sandbox, but only the scripts of other folders.
SYSTEM_FOLDERS = ("/usr/", "/bin/", "/sbin/")
_SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh")
_STEP_GPU_VARIABLES = (*GPU_VARIABLES, "SLURM_GPUS_ON_NODE")  # Slurm does not set them in a step without GPUs
_COMMA_RUNTIMES = ("apptainer", "singularity")  # commands whose --env takes NAME=VALUE,NAME=VALUE
_CONTAINER_NUMBERS = iter(range(1 << 30))  # the next item is the number of the next container
SimpleNamespace = type(sys.implementation)  # the class of the module `types`, which takes longer to load


def main() -> int:
    """Record the start of the command in argv, start the programs that it starts, and return its status."""
    name, *words = sys.argv[1:]
    with open(f"{PLAN_FOLDER}/job", "rb") as stream:
        job: Job = marshal.load(stream)  # noqa: S302 - this package wrote it
    # Python itself sets LC_CTYPE=C.UTF-8 in an environment without a locale.
    environment = {key: value for key, value in os.environ.items() if key != "LC_CTYPE" or value != "C.UTF-8"}
    program, at = program_name([name, *words], job["programs"])
    if program not in job["programs"]:
        record(name, words, environment)
        return 0
    if name == "srun":
        options, command = read_command([name, *words], at, job["programs"][program])
        return start_steps(words, options, command, job, environment)
    return start_commands([([name, *words], environment)], job)


def read_command(words: list[str], at: int, row: dict[str, Any]) -> tuple[Options, list[str]]:
    """Read the options of a command from the word `at` on; return them, and the words after them.

    `row` is the program's row in programs.txt.
    """
    read, end = read_options(words, at, SimpleNamespace(**row))  # type: ignore[arg-type]
    return {name: value for name, value, *_ in read}, words[end:]


def start_steps(
    words: list[str], options: Options, command: list[str], job: Job, environment: Options
) -> int:
    """Start the step of an srun; return its exit status.

    `srun -n1 a : -n2 b` starts a step for each part, and the highest status is returned. `words` has all
    words after srun, and `command` has the words after the first options.
    """
    if ":" not in command:
        return start_step(words, options, command, job, environment)
    colon = command.index(":")
    later_parts = command[colon + 1 :]
    first_part = words[: len(words) - len(command) + colon]
    status = start_step(first_part, options, command[:colon], job, environment)
    if not later_parts:
        return status
    next_options, next_command = read_command(["srun", *later_parts], 1, job["programs"]["srun"])
    return max(status, start_steps(later_parts, next_options, next_command, job, environment))


def start_step(words: list[str], options: Options, command: list[str], job: Job, environment: Options) -> int:
    """Start the tasks of a step on the nodes that the step gets; return the highest exit status."""
    if _print_information(options, job):
        return 0
    exported = exported_variables(
        options.get("export") or environment.get("SLURM_EXPORT_ENV") or "ALL", environment
    )
    line = environment.get("__plan_at") or environment.get("__plan_line", "0")
    # The name of the step has the number, the line and the words of its command. It is the same in each run.
    name = " ".join([environment.get("__plan_count", "0"), line, *words])
    # By node: the step's GPUs; {} for a step that gets the first nodes of the job.
    gpus_by_node = job.get("placements", {}).get(name, {})
    tasks, refusal = tasks_of_step(options, job, environment, list(gpus_by_node))
    # Slurm gives a refused step no number. So refused steps are counted apart from the others.
    prefix = "refused." if refusal else ""
    if command and "/" not in command[0] and "PATH" not in exported:
        refusal = f"execve(): {command[0]}: No such file or directory, without PATH (--export)"
    number = _next_number(prefix)
    marks = {"__plan_step": f"{prefix}{number}", "__plan_tasks": str(len(tasks)), "__plan_refusal": refusal}
    if tasks:
        marks |= {"__plan_name": name, "__plan_takes": node_shares_text(tasks, options, job, environment)}
    record("srun", words, environment | marks)
    if refusal:
        sys.stderr.write(f"srun: error: {refusal}\n")
        return 1
    if options.get("chdir"):
        os.chdir(options["chdir"])
    if not command:
        return 0
    tasks_to_start = _tasks_to_start(tasks, _file_to_run(command[0], exported))
    exported_without_gpus = {key: value for key, value in exported.items() if key not in _STEP_GPU_VARIABLES}
    commands = []
    for task in tasks_to_start:
        task_with_gpus = task | {"gpus": gpus_by_node.get(task["host"])}
        slurm_variables = task_variables(task_with_gpus, tasks, options, job, exported)
        inherited = exported if "CUDA_VISIBLE_DEVICES" in slurm_variables else exported_without_gpus
        marks = {"__plan_step": str(number), "__plan_rank": str(task["rank"])}
        marks |= dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), str(number))
        commands.append((command, inherited | slurm_variables | marks))
    return start_commands(commands, job)


def _tasks_to_start(tasks: list[Task], program: str | None) -> list[Task]:
    """Return the tasks of a step that start: all tasks, or the first tasks and the last task of a large step.

    `program` is the file of their program; None if its start is only recorded.
    """
    limit = MOST_TASKS if program and not program.startswith(BIN) else MOST_RECORDS
    return tasks if len(tasks) <= limit else tasks[: limit - 1] + tasks[-1:]


def _print_information(options: Options, job: Job) -> bool:
    """Print srun's help or version if an option asks for it; return whether an option does."""
    if "help" in options or "usage" in options:
        sys.stdout.write("".join(f"      --{name}\n" for name in sorted(job["programs"]["srun"]["values"])))
    elif "version" in options:
        sys.stdout.write(f"slurm {job['release']}\n")
    else:
        return False
    return True


def _next_number(prefix: str) -> int:
    """Return the first free number for a step; `prefix` is "refused." for a refused step, else "".

    Each number has a file, so that steps which start at the same time do not get the same number.
    """
    number = 0
    while True:
        try:
            open(f"{PLAN_FOLDER}/step.{prefix}{number}", "x").close()
        except FileExistsError:
            number += 1
        else:
            return number


def exported_variables(export: str, environment: Options) -> Options:
    """Return the variables that --export passes to a step. `export` is its value, such as ALL,SEED=1."""
    words = [word for word in export.split(",") if word]
    names = {"ALL" if word.upper() == "ALL" else word for word in words if "=" not in word}
    passed_variables = {
        name: value
        for name, value in environment.items()
        if "ALL" in names or name in names or name.startswith(("SLURM", "__plan", "BASH_ENV"))
    }
    return passed_variables | dict(word.split("=", 1) for word in words if "=" in word)


def start_commands(commands: list[tuple[list[str], Options]], job: Job) -> int:
    """Start all commands at once, each in its environment; return the highest exit status.

    A command whose program does not run in the sandbox is only recorded.
    """
    children = []
    file_actions = []
    shell, *arguments = commands[0][0] if len(commands) > 1 else [""]
    # srun sends its input to each task, and these shells read their commands from the input.
    if shell in _SHELLS and arguments in ([], ["-s"]):
        path = f"{PLAN_FOLDER}/input.{os.getpid()}"
        with open(0, "rb", closefd=False) as stream, open(path, "xb") as copy:
            copy.write(stream.read())
        file_actions = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)]
    for command, environment in commands:
        words, inner_environment = unwrap(command, environment, job)
        if not words:
            continue
        program = _file_to_run(words[0], inner_environment)
        is_stand_in = program is not None and program.startswith(BIN)
        # Most stand-ins do nothing but record their start, which this process does faster.
        only_records = is_stand_in and words[0].rpartition("/")[2] not in job["answers"]
        if program is None or only_records:
            record(words[0], words[1:], inner_environment)
            continue
        try:
            # The variable tells stand_in.sh that this is a task.
            task_environment = inner_environment | {"__plan_starter": str(os.getpid())}
            children.append(os.posix_spawn(program, words, task_environment, file_actions=file_actions))
        except OSError:  # a script whose interpreter is missing
            record(words[0], words[1:], inner_environment)
    highest = number_of(os.environ.get("__plan_status"))  # noqa: SIM112 - no name of a script
    for child in children:
        # The status is -N for signal N, and the signal counts as the status N.
        highest = max(highest, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), key=abs)
    return abs(highest)


def unwrap(words: list[str], environment: Options, job: Job) -> tuple[list[str], Options]:
    """Return the command that containers and wrappers start, and its environment.

    A container is recorded. A wrapper without a command is also recorded, and the result is [].
    """
    while words:
        program, at = program_name(words, job["programs"])
        row = job["programs"].get(program)
        if row is None or program == "srun":
            break
        read, end = read_options(words, at, SimpleNamespace(**row))  # type: ignore[arg-type]
        options = {name: value for name, value, *_ in read}
        operands, command = words[end : end + row["operands"]], words[end + row["operands"] :]
        if "container" in row["kinds"]:
            mark = f"{os.getpid()}.{next(_CONTAINER_NUMBERS)}"
            record(words[0], words[1:], environment | {"__plan_holds": mark})
            image = options.get("image") or " ".join(operands) or program.partition(" ")[0]
            env_values = [value for name, value, *_ in read if name == "env"]
            environment = environment | dict(_container_variables(env_values, program))
            environment |= {"__plan_container": image, "__plan_within": mark}
        elif not command:
            record(words[0], words[1:], environment)
        words = command
    return words, environment


def _container_variables(values: list[str], command: str) -> Iterable[tuple[str, str]]:
    """Yield the names and values of the variables that a container's --env sets.

    With Apptainer, one --env has several variables with commas between them.
    """
    for value in values:
        entries = value.split(",") if command.startswith(_COMMA_RUNTIMES) else [value]
        for name, equals, text in (entry.partition("=") for entry in entries):
            if equals and name not in ("PATH", "BASH_ENV"):  # the sandbox needs its own values of these
                yield name, text


def _file_to_run(name: str, environment: Options) -> str | None:
    """Return the file of a program that runs in the sandbox; None if only its start is recorded."""
    folders = environment.get("PATH", "").split(":")
    paths = [name] if "/" in name else [f"{folder}/{name}" for folder in folders]
    for path in paths:
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            if path.startswith((BIN, *SYSTEM_FOLDERS)):
                return path
            with open(path, "rb") as stream:
                return path if stream.read(2) == b"#!" else None  # only scripts run, not compiled programs
    return None


def record(name: str, words: list[str], environment: Options) -> None:
    """Record the start of a program, as stand_in.sh does."""
    with open("/proc/self/status", encoding="ascii") as stream:
        ignored_signals = next((line.split()[1] for line in stream if line.startswith("SigIgn:")), "0")
    head = (
        name,
        environment.get("__plan_at") or environment.get("__plan_line", "0"),
        environment.get("__plan_waits", "0"),
        str(int(ignored_signals, 16) >> 1 & 1),  # "1" if SIGINT is ignored, which bash does in the background
        os.getcwd(),
        str(len(words)),
        *words,
    )
    texts = (*head, *(f"{key}={value}" for key, value in environment.items()))
    count, number = number_of(environment.get("__plan_count")), 0
    while os.path.exists(path := f"{PLAN_FOLDER}/starts/{count:09}.{os.getpid():09}.{number}"):
        number += 1  # this process has recorded other starts
    with open(path, "xb") as stream:
        stream.write(b"".join(os.fsencode(text) + b"\0" for text in texts))
