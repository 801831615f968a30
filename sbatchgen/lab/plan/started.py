"""The steps of a dry run and their processes.

In the sandbox, stand-ins record the starts of programs. `read_record` reads a record, and `steps` makes the
steps of a plan from all records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.check.executables.command_options import ReadOption, read_options
from sbatchgen.check.executables.launcher import LauncherCall
from sbatchgen.check.executables.program import PROGRAMS, programs
from sbatchgen.check.script.launches import STEP_WATCHER
from sbatchgen.lab.plan.batch_job import Grant
from sbatchgen.lab.plan.mpi import processes_on_nodes
from sbatchgen.lab.plan.step_tasks import GPU_VARIABLES, number_of
from sbatchgen.lab.sandbox.box import PLAN_FOLDER

BIN = f"{PLAN_FOLDER}/bin/"  # the folder of the stand-ins
_UNSHOWN = programs("unshown")  # programs such as mkdir and squeue, whose starts a plan does not show
_NODE_SHARE = re.compile(r"(\w+):(\d{1,6}):(\d{1,4})")  # NAME:CPUS:GPUS of a node, such as node1:4:1
# Variables that the dry run or bash itself changes in each process. A plan does not show them.
_HIDDEN_PREFIXES = ("__plan", "BASH_", "LC_CTYPE")
_SHELL_VARIABLES = frozenset(("_", "SHLVL", "PWD", "OLDPWD"))


class NodeShare(NamedTuple):
    """The numbers of CPUs and GPUs that a step takes of a node."""

    cpus: int
    gpus: int


@frozen(kw_only=True)
class StartRecord:
    """The start of a program, as its stand-in recorded it."""

    name: str  # the name or path by which the program was called
    line: int  # the line of the script
    waits: int  # the number of `wait` commands that the script ran before the start
    background: bool  # whether the script continues while the program runs
    folder: str  # the working folder
    words: tuple[str, ...]  # the arguments of the program
    # the whole environment, with variables __plan_* by which step.py describes a step
    environment: Mapping[str, str]

    @property
    def step(self) -> str:
        """The number of the program's step; "" for a program that the batch script started itself."""
        return self.environment.get("__plan_step", "")

    @property
    def step_name(self) -> str:
        """The name of a step of srun, which is the same in each run of the script; "" for other starts."""
        return self.environment.get("__plan_name", "")

    @property
    def sharing(self) -> str:
        """How a step of srun shares its nodes: "overlap", "exact" or "whole"; "" for other starts."""
        return self._share_words[0]

    @property
    def moves_next_node(self) -> bool:
        """Whether the next step's nodes come after the nodes of this step, in Slurm 24.05 and later."""
        return self._share_words[1] == "takes"

    @cached_property
    def excluded_nodes(self) -> frozenset[str]:
        """The nodes that a step of srun excludes."""
        return frozenset(self._share_words[2].split(","))

    @cached_property
    def takes(self) -> dict[str, NodeShare]:
        """The CPUs and GPUs that a step of srun takes of each of its nodes; {} for other starts."""
        matches = (_NODE_SHARE.fullmatch(text) for text in self._share_words[3:])
        return {match[1]: NodeShare(int(match[2]), int(match[3])) for match in matches if match}

    @cached_property
    def _share_words(self) -> tuple[str, ...]:
        """The words of `node_shares_text` in step_tasks.py, and three empty words for starts without them."""
        return (*self.environment.get("__plan_takes", "").split(), "", "", "")


@frozen(kw_only=True)
class StartedProcess:
    """A process that a job would start."""

    node: str  # the name of its node
    rank: int  # its rank in the step
    argv: tuple[str, ...]  # the words of its command
    cwd: str  # its working folder
    # the variables that differ from the batch script's variables; null for a variable that is missing
    env: Mapping[str, str | None]
    gpus: tuple[int, ...]  # the numbers of its GPUs on the node
    cpus: int  # the number of its CPUs
    container: str  # the image of its container; "" for no container


@frozen(kw_only=True)
class Step:
    """A step of srun, or a program that the batch script starts itself."""

    line: int  # the line of the script
    command: tuple[str, ...]  # the words of the command, expanded
    background: bool  # whether the script continues while the step runs
    tasks: int  # the number of its tasks
    refusal: str  # why Slurm refuses the step; "" for a step that starts
    waits: int  # how many times the script called wait before
    processes: tuple[StartedProcess, ...] = field(default=())  # the processes that it starts
    sharing: str = ""  # how the step shares its nodes: "overlap", "exact" or "whole"
    # the CPUs and GPUs that it takes of each node
    takes: Mapping[str, NodeShare] = field(default_factory=dict)
    # for a launcher of MPI, the number of processes on each node
    by_mpi: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_srun(self) -> bool:
        """Whether srun starts the step."""
        return self.command[0] == "srun"


@frozen(kw_only=True)
class StartedLauncher(LauncherCall):
    """A launcher of PyTorch that a step starts, with its process."""

    process: StartedProcess


def launchers_of(step: Step, nodes: int) -> Iterator[StartedLauncher]:
    """Yield the launchers among the processes of a step, in a job of `nodes` nodes."""
    for process in step.processes:
        if call := StartedLauncher.from_argv(process.argv, process=process, job_nodes=nodes):
            yield call


def options_of_srun(command: Sequence[str]) -> list[ReadOption]:
    """Return the options in a command of srun, in their order."""
    return read_options(command, 1, PROGRAMS["srun"])[0]


def read_record(text: str) -> StartRecord | None:
    """Return the start in the text of a stand-in's record; None for any other text.

    The head of stand_in.sh describes the text.
    """
    # Six empty texts are added, so that a damaged record can also be unpacked.
    name, line, waits, background, folder, word_count, *rest = (*text.split("\0"), *[""] * 6)
    if not (line.isdecimal() and waits.isdecimal() and word_count.isdecimal()):
        return None
    words, variables = rest[: number_of(word_count)], rest[number_of(word_count) :]
    if words and "/bin/" in words[0] and name.rpartition("/")[2].startswith("python"):
        name, *words = words  # Python was started by the #! of a script such as .venv/bin/torchrun
    environment = dict(text.split("=", 1) for text in variables if "=" in text)
    return StartRecord(
        name=name.removeprefix(BIN),
        line=number_of(line),
        waits=number_of(waits),
        background=background == "1",
        folder=folder,
        words=tuple(_without_bin(word) for word in words),
        environment=environment,
    )


def _without_bin(text: str) -> str:
    """Return a text without the folder of the stand-ins."""
    return text.replace(BIN, "").replace(f"{BIN.rstrip('/')}:", "")


def steps(
    starts: Sequence[StartRecord], grant: Grant, batch_environment: Mapping[str, str]
) -> Iterator[Step]:
    """Yield the steps of a script in the order of their starts, without programs such as mkdir.

    `batch_environment` is the environment in which the batch script starts.
    """
    # If the start of the program in a container is recorded, a plan shows this program, not the container.
    entered_marks = {start.environment.get("__plan_within") for start in starts} - {None}
    starts = [start for start in starts if start.environment.get("__plan_holds") not in entered_marks]
    starts = [*_with_step_numbers(starts)]
    sruns = {start.step: start for start in starts if "__plan_tasks" in start.environment}
    for start in starts:
        srun = sruns.get(start.step)
        if srun is start:
            tasks = [other for other in starts if other.step == start.step and other is not start]
            processes = [_process(task, grant, batch_environment, srun) for task in tasks if _is_shown(task)]
            yield _step(start, grant, processes)
        elif srun is None and _is_shown(start):
            yield _step(start, grant, [_process(start, grant, batch_environment, None)])


def _with_step_numbers(starts: Sequence[StartRecord]) -> Iterator[StartRecord]:
    """Yield the starts, with SLURM_STEP_ID of each task by the order of the steps in the script.

    While the script runs, steps in the background get their numbers by chance.
    """
    steps_of_srun = (start for start in starts if start.takes)
    numbers = {start.step: str(number) for number, start in enumerate(steps_of_srun)}
    for start in starts:
        if "__plan_rank" in start.environment and start.step in numbers:
            variables = dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), numbers[start.step])
            yield replace(start, environment={**start.environment, **variables})
        else:
            yield start


def _is_shown(start: StartRecord) -> bool:
    """Return whether a plan shows a start. It hides programs such as mkdir, and the watcher of steps."""
    is_watcher = any(word.endswith(STEP_WATCHER) for word in start.words[:1])
    return not is_watcher and start.name.rpartition("/")[2] not in _UNSHOWN


def _step(start: StartRecord, grant: Grant, processes: Sequence[StartedProcess]) -> Step:
    return Step(
        line=start.line,
        command=(start.name, *start.words),
        background=start.background,
        tasks=number_of(start.environment.get("__plan_tasks", "1")),
        refusal=start.environment.get("__plan_refusal", ""),
        waits=start.waits,
        processes=tuple(sorted(processes, key=lambda process: process.rank)),
        sharing=start.sharing,
        takes={node: share for node, share in start.takes.items() if node in grant.nodes},
        by_mpi={} if start.takes else processes_on_nodes((start.name, *start.words), grant),
    )


def _process(
    start: StartRecord, grant: Grant, batch_environment: Mapping[str, str], srun: StartRecord | None
) -> StartedProcess:
    """Return the process of a start. `srun` is the step that starts it, or None for the batch script."""
    environment = start.environment
    visible_gpus = next((environment[name] for name in GPU_VARIABLES if name in environment), "")
    gpus = [number for number in visible_gpus.split(",") if number.isdecimal()]
    options = options_of_srun((srun.name, *srun.words)) if srun else ()
    images = (value for name, value, *_ in options if name == "container-image")  # the option of pyxis
    cpus = grant.cpus[0]
    if srun:  # the CPUs of a task: as requested, or its share of the node
        task_count = environment.get("SLURM_GTIDS", "0").count(",") + 1  # on the node
        node_cpus = number_of(environment.get("SLURM_CPUS_ON_NODE")) or cpus
        cpus = number_of(environment.get("SLURM_CPUS_PER_TASK")) or max(node_cpus // task_count, 1)
    return StartedProcess(
        node=environment.get("SLURMD_NODENAME", grant.nodes[0]),
        rank=number_of(environment.get("__plan_rank")) if srun else 0,
        argv=(start.name, *start.words),
        cwd=start.folder,
        env=dict(_differences(environment, batch_environment)),
        gpus=tuple(map(number_of, gpus)),
        cpus=cpus,
        container=environment.get("__plan_container") or next(images, ""),
    )


def _differences(
    environment: Mapping[str, str], batch_environment: Mapping[str, str]
) -> Iterator[tuple[str, str | None]]:
    """Yield the variables in which an environment differs from the batch script's, with their values.

    The value is None for a variable that only the batch script has.
    """
    for name in sorted({*environment, *batch_environment}):
        value = _without_bin(environment[name]) if name in environment else None
        batch_value = _without_bin(batch_environment[name]) if name in batch_environment else None
        if value != batch_value and not name.startswith(_HIDDEN_PREFIXES) and name not in _SHELL_VARIABLES:
            yield name, value
