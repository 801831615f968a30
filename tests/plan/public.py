"""Scripts of others as jobs of the real Slurm, among the same stand-ins as in a plan; only Slurm is real.

A script keeps its body and what it asks Slurm for; what is of its site (partition, account, paths) becomes the
cluster's. Programs that are not here are stand-ins in the job and in the plan.
"""

from __future__ import annotations

import marshal
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from sbatchgen.base.quoting import directive
from sbatchgen.check.script.job import DEFAULT_SLURM, NO_CLUSTER
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.lab.plan import dry_run as dry
from sbatchgen.lab.plan import stand_ins
from sbatchgen.lab.plan.batch_job import grant_of
from sbatchgen.lab.plan.dry_run import DryRun, DryRunInputs
from sbatchgen.lab.plan.planning import is_planned
from sbatchgen.lab.plan.started import StartedProcess, StartRecord, Step, read_record, steps
from sbatchgen.lab.sandbox.box import PLAN_FOLDER
from tests.cluster.slurm import Cluster
from tests.plan import truth

# Nodes as large as those of centres, in place of the tests' own.
CLUSTER = "NodeName={nodes} Sockets=2 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=4000000 Gres=gpu:a100:4,shard:64"
PROFILE = truth.SITE.replace("CPUS", "128")
MOST_TASKS = 32  # of a job, which this machine starts one by one
_KEPT = """
    array cpus-per-gpu cpus-per-task distribution exclusive gpus gpus-per-node gpus-per-task gres job-name mem mem-per-cpu
    mem-per-gpu nodes ntasks ntasks-per-node open-mode overcommit requeue no-requeue signal
""".split()
_GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
# What the system of every machine has; other folders at the top are made below the user's home.
_OF_SYSTEM = "bin|boot|dev|etc|lib|lib64|proc|run|sbin|sys|usr|var"
_PATH = re.compile(
    rf"(?<![\w/.:$}}~\\*^|)])/(?!(?:{_OF_SYSTEM})\b)(?=[A-Za-z][\w.-]*/?(?:[\w$.{{-]|[\s\"';]|$))"
)
_BY_PATH = re.compile(
    r"/(?:usr/)?(?:local/)?bin/(python[\d.]*|srun|mpirun|mpiexec|scontrol|nvidia-smi|sleep)\b"
)
_GPU = re.compile(r"\b(gpu:)(?:([A-Za-z][\w.-]*):)?(\d+)")
_REAL = ("srun", "scontrol")


@dataclass
class Stage:
    """A cluster with the stand-ins of a plan, and the script that runs there."""

    cluster: Cluster
    release: str
    profile: Profile
    number: int = 0
    tasks: int = 0
    place: Path = field(init=False)

    def __post_init__(self) -> None:
        """Put the stand-ins where all nodes see them."""
        self.place = self.cluster.home / "plan"
        here = Path(stand_ins.__file__).parent
        of_node = {  # numbers of processes are those of a node
            "stand_in.sh": ("/starts/%09d", "/starts/'\"${SLURM_JOB_ID-}-${SLURMD_NODENAME-}\"'.%09d"),
            "step.py": (
                "/starts/{count:09}",
                "/starts/{os.environ.get('SLURM_JOB_ID')}-{os.environ.get('SLURMD_NODENAME')}.{count:09}",
            ),
            "prelude.sh": ("if [[ ! -v __plan_line ]]", "if false"),  # no trace: it is the plan's alone
        }
        for name, (own, other) in of_node.items():
            text = (here / name).read_text()
            assert own in text
            text = (
                text.replace(own, other)
                .replace("sleep 0.02", "sleep 0.3")
                .replace(str(PLAN_FOLDER), str(self.place))
            )
            self.cluster.put(f"plan/{name}", text.replace("wait() {", "wait_() {"), mode=0o755)
        self.cluster.put("plan/python", str(Path(sys.executable).resolve()))
        self.cluster.put("plan/bin/unknown", "")
        self.cluster.put("plan/starts/none", "").parent.chmod(0o777)
        for name in stand_ins.STAND_INS:
            if name not in _REAL:
                (self.place / "bin" / name).unlink(missing_ok=True)
                (self.place / "bin" / name).symlink_to(self.place / "stand_in.sh")

    def script(self, text: str) -> JobScript:
        """A text as a script of this cluster."""
        return JobScript(file="job.sh", text=text, profile=self.profile, slurm=self.release)

    def home(self) -> Path:
        """A new home, in which nothing is."""
        self.number += 1
        return self.cluster.put(f"{self.number}/work/job.sh", "").parents[1]


def stage(cluster: Cluster, release: str, folder: Path) -> Stage:
    """The stand-ins on a cluster, and a profile of it in a folder."""
    file = folder / f"public-{release}.yaml"
    file.write_text(PROFILE.format(release=release))
    return Stage(cluster, release, read_document(file, Profile).value)


def fitted(text: str, on: Stage, home: Path) -> str:
    """A script with what it asks for, on this cluster; "" for one that it can't hold."""
    text = _GPU.sub(lambda match: f"{match[1]}{'a100:' if match[2] else ''}{min(int(match[3][:4]), 4)}", text)
    text = _PATH.sub(f"{home}/root/", _BY_PATH.sub(r"\1", re.sub(r"--mpi[= ]\w+", "", text)))
    script = on.script(text)
    if (
        not is_planned(script)
        or script.sbatch.refusal
        or script.program_placeholders
        or "--container-" in text
    ):
        return ""  # --container-image is of a plugin that this cluster lacks
    asked = script.resources
    tasks = asked.ntasks or asked.tasks_per_node * asked.nodes
    wide = asked.tasks_per_node * (asked.cpus_per_task or 1) > 128
    if asked.nodes > len(on.cluster.nodes) or tasks > MOST_TASKS or wide:
        return ""
    options = {name: value for name, value in asked.options.items() if name in _KEPT}
    if not options.keys() - {"nodes", "job-name", "array", "mem", "open-mode", "signal"}:
        options["exclusive"] = ""  # its site gives whole nodes
    if "gres" in options:
        of_gpus = [item for item in options["gres"].split(",") if item.startswith("gpu")]
        options |= {"gres": of_gpus[0]} if of_gpus else {}
        if not of_gpus:
            del options["gres"]
    for name in _GPUS:
        if name in options and name != "gres":
            options[name] = re.sub(r"^[A-Za-z][\w.-]*:(?=\d+$)", "a100:", options[name])
            kind, colon, count = options[name].rpartition(":")
            most = 4 * (asked.nodes if name == "gpus" else 1)
            options[name] = f"{kind}{colon}{min(int(count), most) if count.isdigit() else count}"
    if script.array:
        options["array"] = ",".join(
            str(number) for number in [n for run in script.array for n in run[:2]][:2]
        )
    letters = "".join(flag[1] for flag in dry.shebang_flags(script))
    lines = [
        f"#!/bin/bash {f'-{letters}' if letters else ''}".strip(),
        "#SBATCH --partition=gpu --time=00:02:00",
    ]
    lines += [f"#SBATCH {directive(name, value)}" for name, value in options.items()]
    body = re.sub(r"(?m)^#SBATCH", "##SBATCH", text.partition("\n")[2])
    return "\n".join([*lines, body, "wait", ""])  # a job ends with its script, whatever it has started


def kind(text: str) -> str:
    """Of which kind a script is, so that some of each are drawn."""
    script = JobScript(file="job.sh", text=text, profile=NO_CLUSTER, slurm=DEFAULT_SLURM)
    if script.resources.nodes > 1:
        return "several nodes"
    if script.option("array"):
        return "an array"
    starts = (
        "a launcher"
        if re.search(r"(?m)^[^#\n]*\b(srun|torchrun|mpirun|mpiexec|accelerate)\b", text)
        else "no launcher"
    )
    return f"{'GPUs' if script.resources.gpu_count else 'CPUs'}, {starts}"


def planned(on: Stage, script: JobScript, home: Path, given: DryRunInputs) -> DryRun:
    """The plan of a script in its folder."""
    held = grant_of(script, user=on.cluster.user, uid=0, gid=0)
    return dry.dry_run(script, held, str(home / "work"), given, home=str(home), user=on.cluster.user)


def provided(on: Stage, done: DryRun, home: Path) -> DryRunInputs:
    """Make for the job what the plan made up; what it is given for a plan after the job."""
    files = {name.replace("*", "1"): data for name, data in done.inputs.files.items()}
    for name, data in files.items():
        path = Path(name if name.startswith("/") else f"{home}/work/{name}")
        if path.is_relative_to(on.cluster.home) and not path.exists():
            if name.endswith("/"):
                on.cluster.put(str((path / ".made").relative_to(on.cluster.home)), "")
                (path / ".made").unlink()
            else:
                program = (on.place / "stand_in.sh").read_text() if data else ""
                on.cluster.put(str(path.relative_to(on.cluster.home)), program, mode=0o755)
    for process in (process for step in done.steps for process in step.processes):
        name = process.argv[0]
        if "/" not in name and not shutil.which(name) and not (on.place / "bin" / name).is_symlink():
            (on.place / "bin" / name).symlink_to(on.place / "stand_in.sh")
        path = Path(process.cwd, name)
        if "/" in name and path.is_relative_to(home) and not (path.exists() and path.stat().st_size):
            text = (on.place / "stand_in.sh").read_text()
            on.cluster.put(str(path.relative_to(on.cluster.home)), text, mode=0o755)
    return done.inputs


def really(
    on: Stage, script: JobScript, home: Path, done: DryRun
) -> tuple[list[StartRecord], dict[str, str]]:
    """The starts of the same script as a job, and the numbers of the job."""
    job = on.cluster.put(f"{home.name}/work/job.sh", script.text)
    (on.place / "job").write_bytes(marshal.dumps(stand_ins.facts_of_steps(script, done.grant)))
    env = {
        "HOME": str(home),
        "PATH": f"{on.place}/bin:/usr/local/bin:/usr/bin:/bin",
        "BASH_ENV": f"{on.place}/prelude.sh",
        **{name: value for name, value in done.inputs.variables.items() if name not in _IDS},
    }
    command: list[str | Path] = [
        "/usr/bin/sbatch",
        "--parsable",
        f"--output={home}/log",
        job,
        *done.inputs.arguments,
    ]
    number = int(on.cluster.run(command, cwd=job.parent, env=env, check=True).stdout)
    on.cluster.wait(number, timeout=300)
    starts: list[StartRecord] = []
    first = done.batch_environment.get("SLURM_ARRAY_TASK_ID", "")
    ids = {"SLURM_JOB_ID": str(number), "SLURM_JOBID": str(number), "SLURM_ARRAY_JOB_ID": str(number)}
    for file in sorted((on.place / "starts").glob("*-*")):
        text = file.read_bytes().decode("utf-8", "surrogateescape").replace(str(on.place), str(PLAN_FOLDER))
        file.unlink()
        spool = rf"{on.cluster.home.parents[1]}/spool/\w+/job\d+"  # where Slurm's copy of the script is
        start = read_record(re.sub(spool, stand_ins.SCRIPT.rpartition("/")[0], truth.named(text, on.cluster)))
        if start is None or start.environment.get("SLURM_ARRAY_TASK_ID", first) != first:
            continue
        starts.append(start)
        ids |= {name: start.environment[name] for name in ids if name in start.environment}
    return starts, ids if first else {name: ids[name] for name in _IDS}


def steps_of(starts: list[StartRecord], done: DryRun) -> tuple[Step, ...]:
    """Starts in a job as the steps of a plan."""
    known: dict[str, StartRecord] = {}
    every: list[StartRecord] = []
    for start in starts:
        number = start.environment.get("SLURM_STEP_ID", "")
        if number.isdecimal():
            own = {"__plan_step": number, "__plan_rank": start.environment.get("SLURM_PROCID", "0")}
            start = replace(start, environment={**start.environment, **own})  # noqa: PLW2901
            tasks = {"__plan_step": number, "__plan_tasks": start.environment.get("SLURM_NTASKS", "1")}
            known.setdefault(number, replace(start, name="srun", words=(), environment=tasks))
        every.append(start)
    launching = [known[number] for number in sorted(known, key=int)]
    return tuple(steps([*launching, *every], done.grant, done.batch_environment))


def differences(on: Stage, text: str) -> list[str] | None:
    """How a script's job differs from its plan, a line for each difference; None if it does not fit or starts nothing.

    Raises:
        RuntimeError: Slurm refuses the script.
    """
    home = on.home()
    script = on.script(fitted(text, on, home))
    if not script.text:
        return None
    config = on.cluster.root(["scontrol", "show", "config"]).stdout
    ids = dict.fromkeys(_IDS, re.findall(r"NEXT_JOB_ID *= (\d+)", config)[0])  # a name may hold it
    software = {use.name: f"{home}/{use.name}" for use in script.first_uses(_OF_MODULES.fullmatch)}
    first = planned(on, script, home, DryRunInputs(variables=_USER | ids | software))
    if first.result.limit or not any(step.processes for step in first.steps):
        return None
    names = [need.name for need in first.needed if need.kind == "variable"]
    if any(name.startswith("SLURM_") for name in names):
        return None  # it is submitted with more options than it has
    if names:
        more = dict(first.inputs.variables) | {name: name for name in names}
        first = planned(on, script, home, DryRunInputs(variables=more))
    given = provided(on, first, home)
    starts, ids = really(on, script, home, first)
    on.tasks += len(starts)
    given = given._replace(variables={**given.variables, **ids})
    own, again = (planned(on, script, home, given) for _ in range(2))
    return [*compared(own, again, steps_of(starts, own), on.cluster)]


_OF_MODULES = re.compile(r"EBROOT\w+|\w+_(HOME|ROOT)")  # folders that modules set
_IDS = ("SLURM_JOB_ID", "SLURM_JOBID")
_USER = {"USER": "alice", "LOGNAME": "alice"}


def compared(own: DryRun, again: DryRun, real: tuple[Step, ...], cluster: Cluster) -> Iterator[str]:
    """Each difference of a plan and a job; what two plans don't share is random or a time, and left out."""
    mine, others, theirs = (
        [_flat(step) for step in _ordered(steps)] for steps in (own.steps, again.steps, real)
    )
    if [len(step) for step in mine] != [len(step) for step in theirs]:
        yield f"tasks of steps: {[*map(_short, mine)]}, really {[*map(_short, theirs)]}"
        return
    race = (
        {"SLURM_STEP_ID", "SLURM_STEPID"} if any(step.background for step in own.steps) else set()
    )  # for numbers
    for step, other, seen in zip(mine, others, theirs, strict=True):
        for process, twin, task in zip(step, other, seen, strict=True):
            for what in sorted({*process, *task} - race):
                values = [truth.named(each.get(what, ""), cluster) for each in (process, twin, task)]
                is_user = (values[0], values[2]) in {
                    ("root", cluster.user),
                    ("0", "20001"),
                }  # plans are of root
                if values[0] != values[2] and values[0] == values[1] and not is_user:
                    yield f"{process['word 0']} {process['command']}: {what}: {values[0]!r}, really {values[2]!r}"


def _short(step: list[dict[str, str]]) -> str:
    return f"{len(step)} {step[0]['word 0']} {step[0]['command']}"


def _ordered(steps: tuple[Step, ...]) -> list[Step]:
    """Steps with processes, in an order that does not depend on which of several at the same time was first."""
    started = [step for step in steps if step.processes]
    return sorted(
        started, key=lambda step: [(each.node, _program(each), each.argv) for each in step.processes]
    )


def _program(process: StartedProcess) -> str:
    """The program of a process, with its whole path, which a task has already."""
    name = process.argv[0]
    return str(Path(process.cwd, name)) if "/" in name else name


def _flat(step: Step) -> list[dict[str, str]]:
    """The processes of a step: texts by what they are."""
    flat: list[dict[str, str]] = []
    for process in sorted(step.processes, key=lambda process: (process.rank, process.argv)):
        words = (_program(process), *process.argv[1:])
        argv = {f"word {number}": word for number, word in enumerate(words)}
        env = {name: "(unset)" if value is None else value for name, value in process.env.items()}
        shown = {name: value for name, value in env.items() if not truth.is_left_out(name)}
        flat.append(
            {
                **argv,
                **shown,
                "command": shlex.join(process.argv[1:])[:60],
                "node": process.node,
                "rank": str(process.rank),
                "folder": process.cwd,
                "GPUs": str(process.gpus),
                "image": process.container,
            }
        )
    return flat
