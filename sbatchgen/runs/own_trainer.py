"""What is wrong with a trainer of one's own: what its text and its Python say of it here."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from sbatchgen import files
from sbatchgen.finding import Finding
from sbatchgen.inputs.settings import SETUPS
from sbatchgen.job.trainer_source import TrainerSource, read_trainer
from sbatchgen.plan.plan import Plan, trainer_is_file
from sbatchgen.quoting import word
from sbatchgen.runs.record import Record
from sbatchgen.runs.start import error
from sbatchgen.units import ShellPath

PAGE = "docs/how-to/own-trainer.md"
# Programs that start the processes of a training, which Python knows as no modules; and modules that do.
PROGRAMS = ("torchrun", "accelerate", "deepspeed", "horovodrun", "srun", "mpirun", "mpiexec")
MODULES = (
    *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
    *("deepspeed.launcher.runner", "horovod.runner.launch"),
)
_SHELLS = (b"bash", b"sh", b"zsh", b"env bash", b"env sh")
_HARMLESS = (
    "distutils-precedence.pth",
    "_virtualenv.pth",
)  # they add no folder


def source_of(plan: Plan, folder: Path, environment: Mapping[str, str]) -> TrainerSource | None:
    """Return what the trainer's text says; None if it can't be read from here, or is the bundled one's."""
    working = _working(plan, folder, environment)
    return read_trainer(plan.trainer, working) if plan.trainer and working else None


def _working(plan: Plan, folder: Path, environment: Mapping[str, str]) -> Path | None:
    """Return where the trainer is looked for; None if that is not here."""
    named = (plan.snapshot_dir if plan.slurm else None) or plan.options.chdir
    in_image = plan.runtime.is_container and (plan.trainer or "").startswith("/")
    if in_image or (named and ShellPath(named).unset(environment)):
        return None
    return folder / ShellPath(named).filled(environment) if named else folder


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
        yield from _starters(plan, plan.trainer, _working(plan, folder, environment))
    if source:
        yield from _processes(plan, source)
        yield from _restarts(plan, source)
    if source.needs_torch if source else not plan.trainer:
        yield from _python(plan, folder, environment)


def _starters(plan: Plan, trainer: str, folder: Path | None) -> Iterator[Finding]:
    """Yield a trainer that is a launcher or a script of shell, which python3 can't run."""
    several = plan.mode.several_processes and plan.launcher != "spawn"
    if trainer in PROGRAMS or (trainer in MODULES and several):
        what = f"a launcher, not a trainer: {trainer} starts processes, as sbatchgen does"
        finding = error(plan, "trainer", what, "name what it starts: --trainer train.py -- its arguments")
        yield finding if trainer in PROGRAMS else finding._replace(severity="warning")
    elif folder and trainer_is_file(trainer):
        try:
            first = files.read_file(folder / trainer, 200).partition(b"\n")[0]
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
        alone = f"sbatchgen submit single --trainer {word(plan.trainer or '')}"
        fix = f"start one process: {alone}; or in the trainer: {ddp} ({PAGE})"
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
    """Yield the environment of the job's Python if it is here, and has no torch; nothing of it is run."""
    changed = plan.settings.modules or any(getattr(plan.settings, name) for name in SETUPS)
    if changed or {"PATH", "PYTHONPATH"} & {*plan.env}:
        return
    key = {"venv": "venv", "conda": "conda_env"}.get(plan.runtime.name, "runtime")
    prefix = _prefix(plan, plan.software.get(key), folder, environment)
    if prefix and _lacks_torch(prefix, environment):
        fix = f"{word(str(prefix / 'bin/python3'))} -m pip install torch; or name another environment"
        what = f"the Python of the job has no torch: {prefix / 'bin/python3'}"
        yield error(plan, key, what, fix)._replace(severity="warning")


def _prefix(plan: Plan, name: str | None, folder: Path, environment: Mapping[str, str]) -> Path | None:
    """Return the environment whose Python the job will run, if that is certain."""
    if plan.runtime.name == "conda" and name and "/" not in name:
        root = plan.facts.root
        known = bool(root) and not root.unset(environment)
        return folder / root.filled(environment) / "envs" / name if known else None
    if plan.runtime.name != "host":
        path = ShellPath(name or "")
        return folder / path.filled(environment) if name and not path.unset(environment) else None
    prefix = Path(shutil.which("python3", path=environment.get("PATH")) or "/").parent.parent
    own = [environment.get(variable) for variable in ("HOME", "VIRTUAL_ENV", "CONDA_PREFIX")]
    is_own = any(base and prefix.is_relative_to(base) for base in own)
    is_same = not plan.slurm or "export" not in plan.directives  # the job gets the PATH of this shell
    return prefix if is_own and is_same and "PYTHONPATH" not in environment else None


def _lacks_torch(prefix: Path, environment: Mapping[str, str]) -> bool:
    """Whether an environment certainly has no torch: none of its own, and none of another place."""
    config = b""
    with contextlib.suppress(OSError):
        config = files.read_file(prefix / "pyvenv.cfg", 1 << 16).lower()
    places = [*prefix.glob("lib/python3*/site-packages")]
    local = Path(environment.get("HOME", "/"), ".local/lib").glob("python3*/site-packages")
    has_torch = any((place / name).exists() for place in (*places, *local) for name in ("torch", "torch.py"))
    adds = [path for place in places for path in place.glob("*.pth") if path.name not in _HARMLESS]
    shares = re.search(rb"include-system-site-packages\s*=\s*true", config)
    return bool(places) and (prefix / "bin/python3").exists() and not (has_torch or adds or shares)
