"""What is wrong with a trainer of one's own: what its text and its Python say of it here."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from sbatchgen.finding import Finding
from sbatchgen.inputs.settings import SETUPS
from sbatchgen.job.trainer_source import TrainerSource, read_trainer
from sbatchgen.plan.plan import Plan
from sbatchgen.quoting import word
from sbatchgen.render import launch
from sbatchgen.runs.record import Record
from sbatchgen.runs.start import error
from sbatchgen.units import ShellPath

ASK_S = 20.0  # for a Python on a slow file system
PAGE = "docs/how-to/own-trainer.md"
# Programs that start the processes of a training, which Python knows as no modules; and modules that do.
PROGRAMS = ("torchrun", "accelerate", "deepspeed", "horovodrun", "srun", "mpirun", "mpiexec")
MODULES = (
    *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
    *("deepspeed.launcher.runner", "horovod.runner.launch"),
)
_SHELLS = (b"bash", b"sh", b"zsh", b"env bash", b"env sh")
_HAS_TORCH = "import importlib.util as u; print(u.find_spec('torch') is not None)"


def source_of(plan: Plan, folder: Path, environment: Mapping[str, str]) -> TrainerSource | None:
    """Return what the trainer's text says; None if it can't be read from here, or the bundled one is used."""
    working = (plan.snapshot_dir if plan.slurm else None) or plan.options.chdir
    if not plan.trainer or (plan.runtime.is_container and plan.trainer.startswith("/")):
        return None
    if working and ShellPath(working).unset(environment):
        return None
    return read_trainer(plan.trainer, folder / ShellPath(working).filled(environment) if working else folder)


def forgets(kept: Record) -> str:
    """Say that the trainer of a submission saves nothing, and what follows; "" if it may resume."""
    values = {value.name: value.value for value in kept.values}
    code = kept.code.snapshot if kept.code else ""
    trainer, folder = values.get("trainer"), Path(kept.folder, code or values.get("--chdir", ""))
    source = read_trainer(trainer, folder) if trainer else None
    return f"{trainer} saves nothing: it begins at the beginning" if source and source.saves_nothing else ""


def judge(
    plan: Plan, source: TrainerSource | None, folder: Path, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield what is certainly wrong with the trainer of a plan; `source` is its text."""
    if plan.trainer:
        yield from _starters(plan, plan.trainer, folder)
    if source:
        yield from _processes(plan, source)
        yield from _restarts(plan, source)
    if source.needs_torch if source else not plan.trainer:
        yield from _python(plan, folder, environment)


def _starters(plan: Plan, trainer: str, folder: Path) -> Iterator[Finding]:
    """Yield a trainer that is a launcher or a script of shell, which python3 can't run."""
    several = plan.mode.several_processes and plan.launcher != "spawn"
    if trainer in PROGRAMS or (trainer in MODULES and several):
        what = f"a launcher, not a trainer: {trainer} starts processes, as sbatchgen does"
        finding = error(plan, "trainer", what, "name what it starts: --trainer train.py -- its arguments")
        yield finding if trainer in PROGRAMS else finding._replace(severity="warning")
    elif launch.trainer_is_file(trainer):
        try:
            with (folder / trainer).open("rb") as file:
                first = file.readline(200)
        except OSError:
            return
        if first.startswith(b"#!") and first[2:].strip().rpartition(b"/")[2].split(b" -")[0] in _SHELLS:
            what = f"{trainer} is a script of shell: python3 can't run it"
            fix = f"name the Python program that it starts; or, if it is a job: sbatchgen submit {trainer}"
            yield error(plan, "trainer", what, fix)


def _processes(plan: Plan, source: TrainerSource) -> Iterator[Finding]:
    """Yield a trainer that does not share its work with the other processes."""
    count = plan.nodes * (1 if plan.launcher == "spawn" else plan.nproc_per_node)
    if not plan.mode.several_processes or count < 2:
        return
    if source.trains_alone:
        what = f"{count} copies of the same training: {plan.trainer} uses no torch.distributed"
        ddp = "init_process_group(), set_device(LOCAL_RANK), DistributedDataParallel(model)"
        fix = f"start one process: sbatchgen submit single; or in the trainer: {ddp} ({PAGE})"
        yield error(plan, "trainer", what, fix)._replace(severity="warning")
    elif source.spawns_always and plan.launcher != "spawn":
        what = (
            f"{plan.trainer} starts its own processes (mp.spawn), and {plan.launcher} starts it {count} times"
        )
        yield error(plan, "launcher", what, "--launcher spawn")._replace(severity="warning")


def promises_restarts(plan: Plan) -> bool:
    """Whether the job is started again whatever the trainer says: at its time limit, or in the next job."""
    return plan.restartable and (plan.consecutive or not plan.asks_to_stop)


def fate(plan: Plan, source: TrainerSource | None) -> str:
    """Say what happens to a training at its time limit where it is not resumed; "" if it may be."""
    if source is None or not plan.restartable:
        return ""
    if source.saves_nothing and promises_restarts(plan):
        return f"{plan.trainer} saves nothing: each restart begins at the beginning"
    if source.saves_nothing:
        return f"{plan.trainer} saves nothing: at the time limit its work is lost"
    if source.never_asks and not promises_restarts(plan):
        return f"{plan.trainer} asks for none: at the time limit the job ends; see --requeue-on-timeout"
    return ""


def _restarts(plan: Plan, source: TrainerSource) -> Iterator[Finding]:
    """Yield a trainer whose work is lost at the time limit, though the job may be started again."""
    if source.saves_nothing and plan.restartable:
        promised = promises_restarts(plan)
        off = "leave out --chain" if plan.chain > 1 else "--max-restarts 0"
        fix = f"save to $RUN_DIR, and load that at the start ({PAGE})" + (f"; or {off}" if promised else "")
        finding = error(plan, "trainer", fate(plan, source), fix)
        yield finding._replace(severity="warning" if promised else "info")


def _python(plan: Plan, folder: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the Python of the job if it is here, and has no torch."""
    changed = plan.settings.modules or any(getattr(plan.settings, name) for name in SETUPS)
    if changed or {"PATH", "PYTHONPATH"} & {*plan.env}:
        return
    python, fix = _python_of(plan, folder, environment)
    if python is None:
        return
    clean = {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            [python, "-c", _HAS_TORCH],
            env=environment if plan.runtime.name == "host" else clean,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.stdout.strip() == b"False":
        at = (
            "venv"
            if plan.runtime.name == "venv"
            else "conda_env"
            if plan.runtime.name == "conda"
            else "runtime"
        )
        yield error(plan, at, f"the Python of the job has no torch: {python}", fix)._replace(
            severity="warning"
        )


def _python_of(plan: Plan, folder: Path, environment: Mapping[str, str]) -> tuple[Path | None, str]:
    """Return the Python that the job will run, if that is certain and it is here, and how it gets torch."""
    name = plan.software.get({"venv": "venv", "conda": "conda_env"}.get(plan.runtime.name, ""))
    if name and not ShellPath(name).unset(environment):
        env = folder / ShellPath(name).filled(environment)
        if plan.runtime.name == "conda" and "/" not in name:
            root = plan.facts.root
            if not root or root.unset(environment):
                return None, ""
            env = Path(root.filled(environment), "envs", name)
        python = env / "bin/python3"
        fix = f"{word(str(env / 'bin/pip'))} install torch; or another environment"
        return (python if os.access(python, os.X_OK) else None), fix
    if plan.runtime.name != "host":
        return None, ""
    path = shutil.which("python3", path=environment.get("PATH"))
    own = [environment.get(name) for name in ("HOME", "VIRTUAL_ENV", "CONDA_PREFIX")]
    is_own = path is not None and any(base and path.startswith(f"{base}/") for base in own)
    if path is None or (plan.slurm and (not is_own or "export" in plan.directives)):
        return None, ""  # the nodes may have another one
    return Path(
        path
    ), "name an environment that has it: --venv PATH, --conda-env NAME with --runtime; or pip install torch"
