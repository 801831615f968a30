"""The keys of a job YAML and of sbatchgen.yaml: `JobSpec`, and `ProgramSpec` for each program of a job."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from sbatchgen.base.keys import described, make_record, record
from sbatchgen.base.texts import EnvName, EnvValue, LinePattern, ProgramName, StepOption, TrainerName
from sbatchgen.base.units import Argument, Count, OptionValue, Period, Restarts, Resume, ShellPath, Text
from sbatchgen.jobs.inputs.options import ExtraOption, SbatchOptions
from sbatchgen.jobs.inputs.start_settings import GpuRequest, PlaceSettings, list_key
from sbatchgen.jobs.modes import Launcher, ModeName
from sbatchgen.jobs.runtimes import RUNTIMES, RuntimeName

launch_key, training_key = partial(described, group="Launch"), partial(described, group="Training")


@record
class LintSpec:
    """Rules that are off or have another severity, by id or by the start of an id, such as SB4."""

    disable: tuple[Text, ...] = described("Rules that are off, by id or the start of one.", make=tuple)
    severity: Mapping[Text, Literal["error", "warning", "info"]] = described(
        "Severity of rules, by id or the start of one.", make=dict
    )


@record
class _CommonKeys:
    """Keys of a job that are not in `PlaceSettings` and not of a runtime; None means "not set here"."""

    profile: Text | None = described(
        "Profile of the cluster.", group="Job", metavar="NAME|FILE", common=True, values="profiles"
    )
    mode: ModeName | None = described("Which processes the job starts.")
    launcher: Launcher | None = launch_key("How the processes of mode ddp start.", common=True)
    runtime: RuntimeName | None = described(
        "Software environment that the training runs in.", group="Runtime", common=True
    )
    gpu_request: GpuRequest | None = launch_key("How the script asks for GPUs.")
    nproc_per_node: Count | None = launch_key("Processes on each node (mode ddp).", metavar="N")
    run_dir: ShellPath | None = training_key(
        "Run folder: checkpoints, status, log. [default: runs/NAME]", metavar="PATH", common=True
    )
    data: ShellPath | None = training_key("Data set.", flag="--data-dir", metavar="PATH", common=True)
    resume: Resume | None = training_key(
        "Resume from the newest checkpoint, not at all, or from a file.", metavar="auto|off|FILE", common=True
    )
    max_restarts: Restarts | None = training_key("Maximum number of automatic requeues.", metavar="N")
    chain: Count | None = training_key(
        "Split the run into N jobs, which need no requeue.",
        metavar="N",
        common=True,
    )
    trainer: TrainerName | None = training_key(
        "Your own program instead of the bundled trainer.", metavar="FILE|MODULE", common=True
    )
    args: tuple[Argument, ...] | None = list_key("Arguments of the trainer.")
    checkpoint: Argument | None = described("Your trainer's checkpoints: a file, or a pattern with * and ?.")
    resume_args: tuple[Argument, ...] | None = list_key(
        "Arguments once there is a checkpoint: {checkpoint}, the newest one; {checkpoint_dir}, its folder."
    )
    hang: Literal["report", "stop", "requeue"] | None = training_key(
        "When a rank hangs: only say which (report), end the job (stop), or start it again from its newest "
        "checkpoint (requeue). [default: report]",
        metavar="report|stop|requeue",
    )
    metrics: LinePattern | None = training_key(
        "Regular expression for the losses that your own trainer prints, with groups as (?P<loss>[0-9.]+).",
        metavar="REGEX",
    )
    snapshot_dir: ShellPath | None = training_key(
        "Copy of the code to run, as submit --snapshot makes it.", metavar="PATH"
    )
    template: Text | None = described("Template of the script.", group="Job", metavar="NAME")
    env: Mapping[EnvName, EnvValue | None] = training_key(
        "Variable of the job; without =VALUE, its value in the submitting shell. null in a file removes it.",
        make=dict,
        metavar="NAME[=VALUE]",
        common=True,
    )
    step: Mapping[StepOption, Text] = launch_key(
        "Option of srun for the training; without =VALUE, a flag.", make=dict, metavar="NAME[=VALUE]"
    )
    launcher_args: tuple[Argument, ...] | None = list_key(
        "Arguments of torchrun, as --tee=3, after the profile's; [] removes those. {env:NAME} as in args."
    )
    requeue_on_timeout: bool | None = training_key(
        "Requeue the job at its time limit, for a trainer that loads its newest checkpoint by itself. "
        "Any other trainer starts again and overwrites its checkpoints."
    )
    requeue_on_node_fail: bool | None = training_key(
        "When a node fails, wait until Slurm notices it and requeues the job."
    )
    options: SbatchOptions = described("Options of sbatch.", make=SbatchOptions)
    extra_options: Mapping[ExtraOption, OptionValue] = described(
        "Other options of sbatch, by their long names; true for one without a value.", make=dict
    )
    lint: LintSpec = described("Settings of lint.", make=LintSpec)


@record
class Ready:
    """The sign that a program is ready: a URL, a port, a file or a line of its log.

    Without a sign, a program counts as ready once it has started.
    """

    url: Argument | None = described("A URL that answers, such as http://{host}:{port}/health.")
    port: Argument | None = described("A port that is open on the program's nodes, such as {port}.")
    file: Argument | None = described("A file that the program writes after its start.")
    log: Text | None = described(
        "A line that the program prints, as an extended regular expression (grep -E)."
    )
    within: Period = described(
        "Longest time from the program's start until it is ready. The job fails after that.",
        make=lambda: Period(600),
    )
    hosts: Literal["all", "first"] = described(
        "Which of the program's nodes must show the sign: all, or first if only the first can show it.", "all"
    )

    @property
    def signs(self) -> list[str]:
        """The names of the keys among url, port, file and log that are set."""
        return [name for name in ("url", "port", "file", "log") if getattr(self, name)]

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield values that contradict each other: the key, what is wrong, and a fix."""
        if len(self.signs) != 1:
            yield "within", "a program needs exactly one of url, port, file and log", "keep one of them"
        if self.file and self.hosts == "first":
            yield "hosts", "all nodes see the same file", "remove hosts"
        is_number = self.port and self.port.isdecimal() and 0 < int(self.port) < 65536
        if self.port and not is_number and not {"{", "$"} & {*self.port}:
            yield "port", f"{self.port!r} is not a port", "write '{port}', or a number from 1 to 65535"


# Keys that the main program can't have, each with the reason.
_NOT_FOR_MAIN = {
    "once": "the main program ends the job",
    "optional": "the main program ends the job",
    "replicas": "the job ends with one program",
    "beside": "the main program has nodes of its own",
}
_ONE_PARTITION = (
    "all programs share the job's partition and options, because sbatchgen makes no heterogeneous jobs: give "
    "the program cpus and no nodes, or submit it as a job of its own"
)


@record
class _ProgramKeys:
    """The keys of a program that a job does not have."""

    OTHER_WORDS = {  # noqa: RUF012 - hints for unknown keys, not a key
        **dict.fromkeys(("gpus_per_node", "gpu", "gres"), "gpus: N"),
        **dict.fromkeys(("cpus_per_task", "cpu", "cores"), "cpus: N"),
        **dict.fromkeys(("count", "copies", "instances", "num_replicas"), "replicas: N"),
        **dict.fromkeys(("depends_on", "after", "requires"), "needs: [NAME]"),
        **dict.fromkeys(("with", "alongside", "per_node"), "beside: NAME"),
    }
    NOT_HERE = dict.fromkeys(
        ("options", "extra_options", "partition", "constraint", "qos", "account", "mem", "het"),
        _ONE_PARTITION,
    )
    command: tuple[Argument, ...] | None = described("The program and its arguments, unless it is a trainer.")
    preset: Literal["ray"] | None = described(
        "ray starts Ray on each of its nodes. The command runs on the first node, once all nodes have joined."
    )
    nodes: Count | None = described(
        "Number of nodes of its own. By default it shares the first node of the main program."
    )
    beside: ProgramName | None = described(
        "Run on each node of this other program, with the same GPUs, as an exporter of metrics does."
    )
    replicas: Count | None = described(
        "Number of copies that run at once, spread over its nodes. Each has its own port, GPUs and CPUs."
    )
    gpus: int | None = described(
        "GPUs that it uses on each of its nodes. [default: all GPUs of its own nodes]"
    )
    cpus: Count | None = described("CPUs that it uses on each of its nodes.")
    ready: Ready = described("The sign that the program is ready.", make=Ready)
    needs: tuple[ProgramName, ...] = described("Programs that must be ready before it starts.", ())
    main: bool = described(
        "Whether the job ends when this program ends, with the program's exit status.", False
    )
    once: bool = described("Whether it may end with status 0 before the other programs.", False)
    optional: bool = described(
        "Whether the job continues after the program has ended, with any status. The end is only reported.",
        False,
    )
    restarts: int = described("How often the program is started again after it has ended.", 0)
    grace: Period = described(
        "Time that the program has to finish after SIGTERM, before SIGKILL.", make=lambda: Period(60)
    )

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield values that contradict each other: the key, what is wrong, and a fix."""
        yield from self._start_faults()
        yield from self._placement_faults()

    def _start_faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield faults of the keys that decide what the program starts."""
        values = vars(self)
        starts = [name for name in ("command", "trainer", "mode") if values[name]]
        if "command" in starts and len(starts) > 1:
            yield "command", f"a program has a command or a {starts[-1]}, not both", "remove one of them"
        if not starts:
            yield "main", "the program has nothing to start", "add command: [...], or mode: and trainer:"
        if self.preset and not self.command:
            yield "preset", f"there is nothing to run on {self.preset}", "add command: [python3, driver.py]"
        if self.command and values["args"]:
            yield "args", "a command has its arguments in it", "move them into command: [...]"

    def _placement_faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield faults of the keys that decide where and how often the program runs."""
        values = vars(self)
        for key in [key for key in _NOT_FOR_MAIN if self.main and values[key]]:
            yield key, _NOT_FOR_MAIN[key], f"remove {key} or main"
        for key in [key for key in ("nodes", "replicas", "preset") if self.beside and values[key]]:
            what = f"a program beside {self.beside} runs once on each node of {self.beside}"
            yield key, what, f"remove {key} or beside"
        if self.replicas and self.preset:
            yield "replicas", f"{self.preset} is one cluster", "name two programs, or remove replicas"
        if self.main and self.ready.log:
            what = "the main program writes to the job's log, which also holds lines of other programs"
            yield "ready", what, "use url, port or file"


class _JobKeyHints:
    """Fixes for unknown keys of a job: a word that people write -> the line that they need.

    VALUE stands for the value that was written, and KEY for the key.
    """

    SCHEMA = "sbatchgen schema job"
    OTHER_WORDS = {  # noqa: RUF012 - hints for unknown keys, not a key
        **dict.fromkeys(("gpu", "gpu_count", "num_gpus", "n_gpus"), "options: {gpus_per_node: VALUE}"),
        **dict.fromkeys(("cpu", "cpus", "cores", "num_cpus"), "options: {cpus_per_task: VALUE}"),
        **dict.fromkeys(("memory", "ram"), "options: {mem: VALUE}"),
        **dict.fromkeys(("walltime", "time_limit", "timeout", "duration"), 'options: {time: "VALUE"}'),
        **dict.fromkeys(("queue",), "options: {partition: VALUE}"),
        **dict.fromkeys(("name",), "options: {job_name: VALUE}"),
        **dict.fromkeys(("nproc", "num_processes", "processes"), "nproc_per_node: VALUE"),
        **dict.fromkeys(("script", "program", "entrypoint", "main", "run"), "trainer: VALUE"),
        **dict.fromkeys(("command", "cmd"), "trainer: FILE and args: [...]"),
        **dict.fromkeys(("container", "container_image", "sif", "docker"), "image: VALUE"),
        **dict.fromkeys(("conda", "conda_environment"), "conda_env: VALUE"),
        **dict.fromkeys(("virtualenv", "virtual_env"), "venv: VALUE"),
        **dict.fromkeys(("environment", "variables", "exports"), "env: {NAME: VALUE}"),
        **dict.fromkeys(
            ("epochs", "batch_size", "lr", "learning_rate", "model", "seed", "workers", "num_workers"),
            'args: [--KEY, "VALUE"]',
        ),
        **dict.fromkeys(("pre_commands", "prologue", "before", "commands"), "setup: [...]"),
    }


# Keys that a runtime requires, such as `image`. Such a key chooses the runtime of a job that names none.
KEYS_CHOOSING_RUNTIME = tuple(
    dict.fromkeys(runtime.requires.key for runtime in RUNTIMES.values() if runtime.requires)
)
RUNTIME_KEYS = {key.name: key for runtime in RUNTIMES.values() for key in runtime.keys}


def _all_keys() -> list[tuple[str, Any, Any]]:
    """Return name, type and field of each key of a job.

    A runtime's key has the name of another key in its metadata, and comes after that key.
    """
    keys = [
        (field.name, field.type, field) for kind in (_CommonKeys, PlaceSettings) for field in fields(kind)
    ]
    for key in reversed(RUNTIME_KEYS.values()):
        names = [name for name, _, _ in keys]
        keys.insert(names.index(key.field.metadata["after"]) + 1, (key.name, key.kind, key.field))
    return keys


# The keys of a job that each of its programs may have as well.
KEYS_OF_PROGRAMS = (
    *("mode", "launcher", "nproc_per_node", "trainer", "args", "checkpoint", "resume_args"),
    *("env", "step", "launcher_args", "runtime", *RUNTIME_KEYS),
)


if TYPE_CHECKING:

    class ProgramSpec(_ProgramKeys, _CommonKeys):
        """One of several programs of a job."""

    class JobSpec(_CommonKeys, PlaceSettings, _JobKeyHints):
        """Everything a job may set."""

        programs: Mapping[ProgramName, ProgramSpec]
else:
    keys = _all_keys()
    program_keys = [(name, kind, field) for name, kind, field in keys if name in KEYS_OF_PROGRAMS]
    docstring = "One of several programs of a job."
    ProgramSpec = make_record("ProgramSpec", docstring, program_keys, __name__, _ProgramKeys)
    programs_field = described("Programs that run side by side, by name.", make=dict)
    options_index = [name for name, _, _ in keys].index("options")
    # `programs` comes before `options` in the schema and the reference
    keys.insert(options_index, ("programs", Mapping[ProgramName, ProgramSpec], programs_field))
    JobSpec = make_record("JobSpec", "Everything a job may set.", keys, __name__, _JobKeyHints)
