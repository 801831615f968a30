"""The launch of the training -> mode, launcher, runtime, trainer and its arguments.

Sources: srun(1), INPUT ENVIRONMENT VARIABLES; torch/distributed/run.py, whose options each have a variable
PET_NAME; the README of pyxis.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

from sbatchgen import quoting
from sbatchgen.adopt.draft import SUBMIT_DIR, Draft, parsed
from sbatchgen.bash import Word
from sbatchgen.bash.body import SHELLS
from sbatchgen.bash.command import Command
from sbatchgen.bash.launch import Tool, ToolOption
from sbatchgen.job.launches import CONTAINERS, LAUNCHERS, Launch, fixed_nodes

# Options of srun that it takes from the environment as well.
_VARIABLES = {
    "cpu-bind": "SLURM_CPU_BIND",
    "error": "SLURM_STDERRMODE",
    "gpu-bind": "SLURM_GPU_BIND",
    "hint": "SLURM_HINT",
    "input": "SLURM_STDINMODE",
    "label": "SLURM_LABELIO",
    "mem-bind": "SLURM_MEM_BIND",
    "mpi": "SLURM_MPI_TYPE",
    "network": "SLURM_NETWORK",
    "output": "SLURM_STDOUTMODE",
    "overlap": "SLURM_OVERLAP",
    "task-epilog": "SLURM_TASK_EPILOG",
    "task-prolog": "SLURM_TASK_PROLOG",
    "unbuffered": "SLURM_UNBUFFEREDIO",
}
_COUNTS = ("nodes", "ntasks", "ntasks-per-node")
# What the rendered srun does in any case, or what is the default.
_SAME = frozenset(("cpus-per-task", "jobid", "job-name", "kill-on-bad-exit", "quiet", "verbose", "wait"))
_OF_MEETING = """
master-addr master-port nnodes node-rank nproc-per-node rdzv-backend rdzv-conf rdzv-endpoint rdzv-id
standalone use-env
"""
_MEETING = frozenset(_OF_MEETING.split())
_WRAPPERS = frozenset(("command", "env", "exec", "time"))
_NAMES = "LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT NODE_RANK RANK WORLD_SIZE"
_RANKS = frozenset(_NAMES.split())


def read(draft: Draft, launch: Launch, lines: range) -> None:
    """Take over a launch that stands in these lines."""
    _Reader(draft, launch, lines).read()


class _Reader:
    """Reads one launch."""

    def __init__(self, draft: Draft, launch: Launch, lines: range) -> None:
        self.draft = draft
        self.launch = launch
        self.lines = lines
        self.resources = draft.script.resources

    def lose(self, what: str) -> None:
        self.draft.add(self.lines, "lost", what)

    def read(self) -> None:
        self._wrappers()
        self._shape()
        self._step()
        self._container()
        self._launcher()
        self._interpreter()
        self._program()
        self._around(self.launch.command)
        how = self.draft.job.get("launcher") or self.draft.job["mode"]
        self.draft.add(
            self.lines, "understood", f"{how}: {self.draft.job.get('trainer', self.launch.program.name)}"
        )

    def _wrappers(self) -> None:
        """What stands between the tools that matter."""
        for tool in self.launch.tools[:-1]:
            if tool.name in ("srun", "torchrun", "python") or tool.name in CONTAINERS:
                continue
            if tool.name in SHELLS:
                self._shell(tool)
            elif tool.name not in _WRAPPERS or (tool.name == "env" and tool.given):
                self.lose(f"{tool.name} around the trainer")
        for tool in self.launch.tools:
            if tool.name == "env":
                for word in tool.words[1 : len(tool.words) - len(tool.rest)]:
                    self._variable(word.text)
        for one in self.launch.command.prefix:
            value = self.launch.tools[0].body.value(one.word) if one.word else None
            self._set(one.name, value)

    def _variable(self, text: str) -> None:
        name, equals, value = text.partition("=")
        self._set(name, value if equals and "$" not in value else None)

    def _set(self, name: str, value: str | None) -> None:
        """A variable that is set for the launch alone."""
        if name in _RANKS:
            self.draft.add(self.lines, "understood", f"{name} as the script has it")
        elif value is None or not _may_be_set(name):
            self.lose(f"{name} is set for the launch, to what the text does not tell")
        else:
            self.draft.env[name] = value

    def _shell(self, tool: Tool) -> None:
        """Of bash -c: nothing may stand in it besides the launch and what every rank is given anyway."""
        from sbatchgen.bash.body import string_body

        command = tool.option("command")
        if command is None or command.value_word is None:
            self.lose(f"{tool.name} starts a script that is not read")
            return
        inner = string_body(tool.body, command.value_word)
        own = [
            one
            for one in inner.commands
            if not one.context.substitution and one.name not in ("export", "exec")
        ]
        others = len(own) > 1 or any(one.name not in _RANKS for one in inner.sets)
        if others or (not own and not any(one.name == "exec" for one in inner.commands)):
            self.lose(f"{tool.name} -c with more than the launch in it")

    def _shape(self) -> None:
        """Mode, launcher and the numbers of processes."""
        launch, draft = self.launch, self.draft
        nodes = fixed_nodes(self.resources)
        if nodes is None or launch.tasks is None:
            self.lose("how many processes are started on how many nodes is not told by the text")
            nodes = nodes or 1
        given = "nodes" in self.resources.options
        if not given and (self.resources.ntasks or 1) > 1 and not self.resources.ntasks_per_node:
            self.lose(
                f"--ntasks={self.resources.ntasks} without --nodes: add '#SBATCH --nodes=N' to the script"
            )
        elif not given and nodes > 1:
            draft.options["nodes"] = nodes
            draft.changed.add("nodes")
            draft.add(self.lines, "understood", f"nodes: {nodes}, which follows from the tasks")
        self._as_per_node(nodes)
        if launch.mpi or (launch.launcher and launch.launcher.name != "torchrun"):
            name = (launch.mpi or launch.launcher or launch.program).name
            self.lose(f"{name}: processes are started by torchrun or srun here")
        if launch.launcher:
            self._of_torchrun(nodes)
        elif launch.step and (launch.tasks or 1) > 1:
            self._of_srun(nodes)
        else:
            self._alone(nodes)

    def _as_per_node(self, nodes: int) -> None:
        """The tasks of --ntasks, as those of each node."""
        options, tasks = self.draft.options, self.resources.ntasks
        if "ntasks" not in options or not tasks:
            return
        if tasks % nodes:
            self.lose(f"--ntasks={tasks} on {nodes} nodes: not as many on each")
            return
        del options["ntasks"]
        options["ntasks_per_node"] = tasks // nodes
        line = self.resources.place("ntasks").line
        self.draft.add((line,), "understood", f"ntasks_per_node: {tasks // nodes}")
        self.draft.changed |= {"ntasks", "ntasks-per-node"}

    def _of_torchrun(self, nodes: int) -> None:
        launch, job = self.launch, self.draft.job
        told = launch.told_nodes
        workers = launch.workers or self._all_gpus()
        job |= {"mode": "ddp", "launcher": "torchrun"}
        if workers is None:
            self.lose("how many processes torchrun starts is not told by the text")
        else:
            job["nproc_per_node"] = workers
        agents = launch.tasks or 1
        if agents < nodes and told != nodes:
            self.lose(f"{nodes} nodes are asked for, and torchrun runs on {agents}: correct --nodes")
        elif told not in (nodes, None) and nodes > 1:
            self.lose(f"torchrun is told of {told} nodes, and the job has {nodes}: correct one of them")
        self._one_task()

    def _all_gpus(self) -> int | None:
        """The processes of --nproc-per-node=gpu."""
        launcher = self.launch.launcher
        option = launcher.option("nproc-per-node") if launcher else None
        return self.resources.gpu_count or None if option and option.value in ("gpu", "auto") else None

    def _of_srun(self, nodes: int) -> None:
        launch, draft = self.launch, self.draft
        tasks, per_node = launch.tasks or 1, launch.tasks_per_node or 1
        draft.job |= {"mode": "ddp", "launcher": "srun", "nproc_per_node": per_node}
        if self.resources.gpus_per_task and per_node > 1:
            self.lose(
                "--gpus-per-task showed each process its own GPU; here it sees all, and chooses by LOCAL_RANK"
            )
        asked = nodes * self.resources.tasks_per_node
        step = launch.step
        partly = (
            step and any(step.option(name) for name in _COUNTS) and (self.resources.ntasks or asked > nodes)
        )
        if tasks != nodes * per_node or (partly and tasks != (self.resources.ntasks or asked)):
            self.lose(f"srun starts {tasks} tasks, not as many on each of the job's {nodes} nodes")

    def _alone(self, nodes: int) -> None:
        """One process."""
        asked = self.resources.gpu_count or self.resources.shards
        container = self.launch.container or self._is_pyxis()
        mode = (
            "dataparallel" if self.resources.gpu_count > 1 else "single" if asked or not container else "cpu"
        )
        if self.launch.container and any(one.name in ("nv", "rocm") for one in self.launch.container.given):
            mode = "single" if mode == "cpu" else mode
        self.draft.job["mode"] = mode
        if mode == "cpu":
            self.draft.job.pop("gpu_request", None)
        if nodes > 1:
            self.lose(f"{nodes} nodes are asked for, and one process runs: correct --nodes")
        self._one_task()

    def _one_task(self) -> None:
        """One task a node starts everything: it gets the CPUs of all."""
        resources, options = self.resources, self.draft.options
        each = resources.tasks_per_node
        if each <= 1:
            return
        cpus = each * (resources.cpus_per_task or 1)
        options |= {"ntasks_per_node": 1, "cpus_per_task": cpus}
        self.draft.changed |= {"ntasks", "ntasks-per-node", "cpus-per-task"}
        if resources.gpus_per_task:
            (kind, count), *_ = resources.gpus_per_task
            options["gpus_per_task"] = f"{kind}:{each * count}" if kind else str(each * count)
            self.draft.changed.add("gpus-per-task")
        lines = {resources.place(name).line for name in ("ntasks", "ntasks-per-node", "cpus-per-task")} - {
            0,
            1,
        }
        what = f"one task of {cpus} CPUs on each node, for the {each} tasks: one process is started there"
        self.draft.add(tuple(sorted(lines)), "mended", what)

    def _step(self) -> None:
        """The options of srun."""
        step = self.launch.step
        for option in step.given if step else ():
            name, value = option.name, option.value
            if name in _COUNTS or name in _SAME or name.startswith(("container-", "no-container-")):
                continue
            if (name, value) in (("export", "ALL"), ("distribution", "block"), ("gpu-bind", "none")):
                continue
            if name in _VARIABLES and value is not None:
                line = f"export {_VARIABLES[name]}={quoting.word(value or '1')}"
                self.draft.step_setup.append(line)
                self.draft.add(self.lines, "kept", f"--{name} of srun, as {line}")
            else:
                self.lose(f"--{name} of srun")

    def _is_pyxis(self) -> bool:
        step = self.launch.step
        return bool(step and step.option("container-image"))

    def _container(self) -> None:
        """The image, its mounts and its working folder."""
        if self.launch.container:
            self._apptainer(self.launch.container)
        elif self._is_pyxis() and self.launch.step:
            self._enroot(self.launch.step)

    def _enroot(self, step: Tool) -> None:
        enroot: dict[str, object] = {}
        for option in step.given:
            if option.name == "container-image":
                image = self._path(option, file=True)
                if image:
                    enroot["image"] = image
            elif option.name == "container-mounts":
                enroot["mounts"] = [*self._list(option)]
            elif option.name == "container-workdir":
                enroot["workdir"] = self._path(option)
            elif option.name.removeprefix("no-").startswith("container-") and option.name not in (
                "container-env",  # all that the script exports gets in
                "no-container-mount-home",
            ):
                self.lose(f"--{option.name} of srun")
        program = self.launch.program
        if "workdir" not in enroot and not program.module and not program.name.startswith("/"):
            self.lose("the image's own working folder counts, which is not known: add --container-workdir")
        self.draft.profile["runtime"] = "enroot"
        self.draft.profile["runtimes"] = {"enroot": enroot}
        self.draft.add(self.lines, "understood", f"enroot: {enroot.get('image', '')}")

    def _apptainer(self, tool: Tool) -> None:
        flags = {one.name for one in tool.given} & {"nv", "rocm"}
        gpu_flag = f"--{min(flags)}" if flags else ""
        made: dict[str, object] = {}
        if tool.name.endswith(" run"):
            self.lose(f"{tool.name}: what the image starts is not known; write exec")
        image = self.draft.file(tool.operands[0], tool.body) if tool.operands else None
        if image is None:
            self.lose("which image is started is not told by the text")
        else:
            made["image"] = image
        binds: list[str] = []
        for option in tool.given:
            if option.name == "bind":
                binds += self._list(option)
            elif option.name not in flags:
                self.lose(f"--{option.name} of {tool.name}")
        if binds:
            made["binds"] = binds
        if self.draft.job["mode"] != "cpu" and gpu_flag != "--nv":
            made["gpu_flag"] = gpu_flag
        self.draft.profile["runtime"] = "apptainer"
        self.draft.profile["runtimes"] = {"apptainer": made}
        self.draft.add(self.lines, "understood", f"apptainer: {made.get('image', '')}")

    def _path(self, option: ToolOption, *, file: bool = False) -> str | None:
        """The path that an option gives."""
        word = _value_of(option, self.launch.tools[0])
        take = self.draft.file if file else self.draft.path
        found = option.value if option.value and not file else None
        found = found or (take(word, self.launch.tools[0].body) if word else None)
        if found is None:
            self.lose(f"--{option.name}: a path that the text does not tell")
        return found

    def _list(self, option: ToolOption) -> Iterator[str]:
        found = self._path(option)
        yield from (one for one in (found or "").split(",") if one)

    def _launcher(self) -> None:
        """The options of torchrun; those that are no meeting point are variables of its own."""
        launcher = self.launch.launcher
        python = any(tool.name == "python" for tool in self.launch.tools)
        old = python and launcher is not None and "distributed.launch" in self.draft.script.text
        if old and launcher and not launcher.option("use-env"):
            self.lose(
                "torch.distributed.launch gives the program --local-rank; torchrun sets LOCAL_RANK instead"
            )
        for option in launcher.given if launcher and launcher.name == "torchrun" else ():
            if option.name in _MEETING or option.name in ("module", "m"):
                continue
            if option.name == "no-python" or option.value is None:
                self.lose(f"--{option.name} of torchrun")
            else:
                self.draft.env[f"PET_{option.name.upper().replace('-', '_')}"] = option.value or "1"

    def _interpreter(self) -> None:
        """A Python, or a torchrun, that is named with its folder: here python3 is the first one on PATH."""
        tool = next(tool for tool in self.launch.tools if tool.name in ("python", "torchrun", *LAUNCHERS))
        path = self.draft.path(tool.words[0], tool.body) or ""
        if "/" in path:
            path = self.draft.file(tool.words[0], tool.body) or ""
        folder, slash, name = path.rpartition("/")
        if re.fullmatch(r"python3\.\d+", name) or not path:
            self.lose(f"{tool.words[0].text}: python3 of an environment is started here")
        elif slash and self.draft.profile.get("runtime"):
            self.lose(f"{path}: python3 of the image is started here")
        elif slash:
            absolute = folder if folder.startswith(("/", "${")) else f"{SUBMIT_DIR}/{folder}"
            self.draft.profile["runtime"] = "host"
            self.draft.step_setup.append(f"PATH={quoting.path(absolute)}:$PATH")
            self.draft.add(self.lines, "understood", f"{absolute} comes first in PATH")

    def _program(self) -> None:
        """The trainer and its arguments."""
        tools, draft = self.launch.tools, self.draft
        python = next((tool for tool in tools if tool.name == "python"), None)
        for option in python.given if python else ():
            if option.name not in ("m", "u"):
                self.lose(f"-{option.name} of python")
        program = self._trainer_words(tools)
        if not program:
            self.lose("no trainer is started")
            return
        body = self.launch.program.body
        name = draft.argument(program[0], body)
        module = self.launch.program.module or any(tool.module for tool in tools)
        if name is None:
            self.lose(f"the trainer {program[0].text} is not told by the text")
        else:
            draft.job["trainer"] = self._trainer(name, module=module)
        args: list[str] = []
        for one in program[1:]:
            value = draft.argument(one, body)
            if value is None:
                value = self._folder_of_run(one, args)
            if value is None:
                self.lose(
                    f"{one.text}: an argument of a job is plain text; the trainer can read the environment"
                )
            else:
                args.append(value)
        draft.job["args"] = args

    def _trainer_words(self, tools: Sequence[Tool]) -> Sequence[Word]:
        last = tools[-1]
        if last.name == "python":
            return last.rest
        return last.words

    def _trainer(self, name: str, *, module: bool) -> str:
        """The trainer, as a file or a module; in a container relative to where that starts."""
        if module:
            return name
        workdir = self.draft.profile.get("runtimes", {}).get("enroot", {}).get("workdir")
        if name.startswith("/") and isinstance(workdir, str) and workdir.startswith("/"):
            return (
                posixpath.relpath(name, workdir)
                if "/" in posixpath.relpath(name, workdir)
                else f"./{name.rpartition('/')[2]}"
            )
        return name if "/" in name or name.endswith(".py") else f"./{name}"

    def _folder_of_run(self, word: Word, args: Sequence[str]) -> str | None:
        """An argument that is a folder of the job, by {data_dir} or {run_dir}; None if that is not sure."""
        text = self.draft.expandable(word, self.launch.program.body)
        option, equals, path = text.partition("=") if text.startswith("-") else ("", "", text)
        if parsed(path) is None or not path.startswith(("/", "${")) or "/" not in path:
            return None
        about = (option or (args[-1] if args else "")).lower()
        key, name = ("data", "{data_dir}") if "data" in about else ("run_dir", "{run_dir}")
        if self.draft.job.setdefault(key, path) != path:
            return None
        self.draft.add(self.lines, "understood", f"{name}: {path}")
        return f"{option}{equals}{name}"

    def _around(self, command: Command) -> None:
        """Redirections, pipes and the background."""
        for one in command.redirects:
            if one.operator.startswith((">", "&>")):
                self.draft.add(
                    self.lines, "dropped", "its redirection: the log of the job has what it prints"
                )
            else:
                self.lose(f"{one.operator} into the trainer")
        if command.pipe and command.pipe.stages:
            first = command.pipe.stages[0]
            others = [one for stage in command.pipe.stages for one in stage if one is not command]
            if command in first and all(one.name == "tee" for one in others):
                self.draft.add(self.lines, "dropped", "tee: the log of the job has what it prints")
            else:
                self.lose("a pipe at the trainer")


def _value_of(option: ToolOption, tool: Tool) -> Word | None:
    """The word of an option's value; of --name=VALUE, what follows the equals sign."""
    word = option.value_word
    if word is None or word is not option.word:
        return word
    from dataclasses import replace

    pieces = list(tool.body.followed(word).pieces)
    _, equals, rest = pieces[0].text.partition("=")
    if not equals:
        return None
    kept = [pieces[0]._replace(text=rest)] if rest else []
    return replace(word, pieces=(*kept, *pieces[1:]))


def _may_be_set(name: str) -> bool:
    from sbatchgen.units import EnvName

    try:
        EnvName.parse(name)
    except ValueError:
        return False
    return True
