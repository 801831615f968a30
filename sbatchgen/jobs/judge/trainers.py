"""Rules for the user's own trainer, its source, its Python and its folders: SB045 to SB060.

The rules read the trainer's source. They neither import nor run the trainer.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.machine.search_path import in_shell
from sbatchgen.base.quoting import ALSO, OR, word
from sbatchgen.base.units import ShellPath
from sbatchgen.check.cluster_facts import OLD_DAYS
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.script.own_options import refused_options
from sbatchgen.check.script.rank_need import RANK_VARIABLES
from sbatchgen.check.script.trainer_name import trainer_is_file
from sbatchgen.check.script.trainer_source import WELL_KNOWN_PACKAGES
from sbatchgen.jobs.inputs.layers import Level
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.inputs.start_settings import SETUPS
from sbatchgen.jobs.judge.trainer import (
    MAY_OVERWRITE,
    TrainerJob,
    checkpoint_fault,
    promises_restarts,
    work_lost,
)
from sbatchgen.jobs.render.launch import needed_folders
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.runtimes import edf

RULES: Rules[TrainerJob] = Rules(source="docs/reference/job.md")

_EDF_PAGE = "https://docs.cscs.ch/software/container-engine/edf/"
_SYSTEM_FOLDERS = (Path("/usr/bin"), Path("/bin"), Path("/usr/local/bin"))
# A Python in one of these prefixes may also find packages in the other, for example on Debian.
_SYSTEM_PREFIXES = (Path("/usr"), Path("/usr/local"))
# Files of setuptools and virtualenv that add no folder to Python's search path, as other .pth files do.
_HARMLESS_PTH = ("distutils-precedence.pth", "_virtualenv.pth")


@RULES.add("SB045", "error", "a launcher or a script of shell in place of a trainer")
def _not_a_trainer(job: TrainerJob) -> Iterator[Hit]:
    from sbatchgen.check.executables.program import MODULES, RANK_STARTERS, SHELLS

    resolved, trainer, folder = job.resolved, job.resolved.trainer or "", job.working_folder
    has_launcher = resolved.mode.several_processes and resolved.launcher != "spawn"
    if trainer in RANK_STARTERS or (trainer in MODULES and has_launcher):
        what = f"a launcher, not a trainer: {trainer} starts processes, as sbatchgen does"
        fix = "name what it starts: --trainer train.py -- its arguments"
        yield Hit(job.at("trainer"), what, fix, None if trainer in RANK_STARTERS else "warning")
    elif trainer and folder and trainer_is_file(trainer):
        try:
            first_line = files.read_start(folder / trainer, 200).partition(b"\n")[0]
        except OSError:
            return
        # "#!/usr/bin/env bash" -> "env", "bash"
        programs = [part.rpartition("/")[2] for part in first_line.decode("latin-1")[2:].split()[:2]]
        if first_line.startswith(b"#!") and not SHELLS.isdisjoint(programs):
            what = f"{trainer} is a script of shell: python3 can't run it"
            fix = (
                f"name the Python program that it starts{OR}if it is a job: sbatchgen submit {word(trainer)}"
            )
            yield Hit(job.at("trainer"), what, fix)


def _number_of_starts(resolved: ResolvedJob) -> int:
    """Return how often the launcher starts the trainer, on all nodes together."""
    starts_per_node = 1 if resolved.launcher == "spawn" else resolved.nproc_per_node
    return resolved.nodes * starts_per_node if resolved.mode.several_processes else 1


@RULES.add("SB046", "warning", "several copies of the same training")
def _copies_of_training(job: TrainerJob) -> Iterator[Hit]:
    trainer, count = job.resolved.trainer or "", _number_of_starts(job.resolved)
    if job.source and job.source.trains_alone and count > 1:
        what = f"{count} copies of the same training: {trainer} uses no torch.distributed"
        ddp_calls = "init_process_group(), set_device(LOCAL_RANK), DistributedDataParallel(model)"
        one_process = f"sbatchgen submit single --trainer {word(trainer)}"
        fix = f"start one process: {one_process}{OR}in the trainer: {ddp_calls}"
        yield Hit(job.at("trainer"), what, fix)


@RULES.add("SB047", "warning", "a launcher inside a launcher")
def _starts_its_own(job: TrainerJob) -> Iterator[Hit]:
    resolved, count = job.resolved, _number_of_starts(job.resolved)
    if job.source and job.source.spawns_always and count > 1 and resolved.launcher != "spawn":
        what = f"{resolved.trainer} starts its own processes (mp.spawn), "
        what += f"and {resolved.launcher} starts it {count} times"
        yield Hit(job.at("launcher"), what, "--launcher spawn")


@RULES.add("SB058", "warning", "a trainer of several processes that no launcher starts")
def _has_no_rank(job: TrainerJob) -> Iterator[Hit]:
    resolved = job.resolved
    need = job.source.rank_need if job.source else None
    if not need or resolved.mode.several_processes or resolved.is_command:
        return
    setups = " ".join(str(getattr(resolved.settings, name)) for name in SETUPS)
    if "RANK" in setups or not RANK_VARIABLES.isdisjoint(job.environment):
        return
    place = f"{Path(need.file).name}:{need.line}"
    what = f"{resolved.trainer} needs {need.variable} ({place}), and mode {resolved.mode} sets none: "
    what += "it ends there"
    yield Hit(job.at("trainer"), what, f"mode ddp sets it, also for one process: {resolved.mode.as_group}")


@RULES.add("SB059", "warning", "another number of processes in Lightning's Trainer than in the job")
def _lightning(job: TrainerJob) -> Iterator[Hit]:
    resolved = job.resolved
    if not job.source or not resolved.mode.several_processes or resolved.launcher == "spawn":
        return
    job_sizes = {"devices": resolved.nproc_per_node, "num_nodes": resolved.nodes}
    options = {"devices": "--nproc-per-node", "num_nodes": "--nodes"}
    arguments = {"devices": 'devices="auto"', "num_nodes": 'num_nodes=int(os.environ["SLURM_NNODES"])'}
    for name, value in job.source.lightning_size.items():
        if value != job_sizes[name]:
            what = f"Trainer() of {resolved.trainer} has {name}={value}, and the job {job_sizes[name]}: "
            fix = f"{arguments[name]} in {resolved.trainer}; or {options[name]} {value}"
            yield Hit(job.at("trainer"), f"{what}it ends there", fix)


@RULES.add("SB060", "warning", "an argument that the trainer does not take")
def _own_options(job: TrainerJob) -> Iterator[Hit]:
    resolved = job.resolved
    options = job.source.options if job.source else None
    if options is None or resolved.is_command:
        return
    for name in dict.fromkeys(refused_options(resolved.args, options)):
        what = f"{resolved.trainer} does not take {name}, and ends there"
        yield Hit(
            job.at("args"), what, "write it before the --, if it is an option of sbatchgen; else leave it out"
        )


@RULES.add("SB048", "warning", "a trainer that saves nothing")
def _saves_nothing(job: TrainerJob) -> Iterator[Hit]:
    resolved = job.resolved
    if job.source and job.source.saves_nothing and (resolved.restartable or resolved.never_asks_for_restart):
        starts_again = promises_restarts(resolved)
        fix = f"save to $RUN_DIR, and load that file at the start{job.source.lines_that_load}"
        if starts_again and resolved.chain > 1:
            fix += f"{ALSO}without --chain nothing starts it again"
        elif starts_again:
            fix += f"{ALSO}--max-restarts 0 promises no restart"
        yield Hit(job.at("trainer"), work_lost(resolved, job.source), fix, None if starts_again else "info")


@RULES.add("SB050", "warning", "a trainer that saves and never loads")
def _never_loads(job: TrainerJob) -> Iterator[Hit]:
    resolved, source = job.resolved, job.source
    if not source or not source.never_loads or not job.starts_again:
        return
    when = "it begins" if job.has_earlier_job else "each restart begins"
    what = f"{checkpoint_fault(str(resolved.trainer), source)}: {when} at the first step"
    fix = f"load the checkpoint at the start of the trainer{source.lines_that_load}"
    if resolved.chain > 1:
        fix += f"{ALSO}without --chain nothing starts it again"
    elif promises_restarts(resolved):
        fix += f"{ALSO}--max-restarts 0 promises no restart"
    yield Hit(job.at("trainer"), what + MAY_OVERWRITE, fix)


@RULES.add("SB051", "warning", "several trainings that save to one file")
def _shared_file(job: TrainerJob) -> Iterator[Hit]:
    resolved, file = job.resolved, job.shared_file
    trainings = "the elements of the array" if resolved.options.array and not resolved.consecutive else ""
    if resolved.sweep:
        points = resolved.sweep.submitted_points
        trainings = f"{points} points" if points > 1 else ""
    if not file or not trainings:
        return
    name = file.name.rpartition("/")[2]
    fix = f'in {resolved.trainer}: os.path.join(os.environ["RUN_DIR"], "{name}"), which each has for itself'
    if file.option:
        fix = f"-- {file.option} {{run_dir}}/{name}"
    what = f"{trainings} save to {file.name}, each over what the others have saved"
    yield Hit(job.at("trainer"), what, fix)


@RULES.add("SB049", "warning", "a Python without torch")
def _python_without_torch(job: TrainerJob) -> Iterator[Hit]:
    resolved = job.resolved
    needs_torch = job.source.needs_torch if job.source else resolved.is_bundled
    prefix = _python_prefix(job) if needs_torch else None
    if prefix and _lacks_torch(prefix, job.environment):
        key = _ENVIRONMENT_KEYS.get(resolved.runtime.name, "runtime")
        fix = f"{word(str(prefix / 'bin/python3'))} -m pip install torch; or name another environment"
        yield Hit(job.at(key), f"the Python of the job has no torch: {prefix / 'bin/python3'}", fix)
    python = _system_python(job) if needs_torch and not prefix else None
    if python and _system_lacks_torch(python.parent.parent, job.environment):
        what = f"the job starts {python}, which has no torch on this machine: "
        what += "if the nodes have none either, the job ends there"
        fix = f"name an environment with torch: --venv FOLDER or --conda-env NAME{OR}--set modules=NAME"
        yield Hit(job.at("runtime"), what, fix, "info")


@RULES.add("SB052", "warning", "packages of pip install --user that the job does not find")
def _user_packages(job: TrainerJob) -> Iterator[Hit]:
    resolved, environment = job.resolved, job.environment
    hides_packages = resolved.hides_user_packages and resolved.runtime.finds_user_packages
    base = environment.get("PYTHONUSERBASE") or f"{environment.get('HOME', '')}/.local"
    if not job.source or not hides_packages or "PYTHONNOUSERSITE" in {*resolved.env, *environment}:
        return
    prefix = _python_prefix(job)
    # The packages of a module or an image are not known: it may have those that torch usually brings.
    available = WELL_KNOWN_PACKAGES if prefix is None else job.source.packages & {*_packages(prefix)}
    if names := sorted((job.source.packages & {*_packages(Path(base))}) - available):
        what = f"the job does not find {', '.join(names)}, which {resolved.trainer} imports: packages in "
        what += f"{base} are hidden from it, because they may replace packages of the environment"
        fix = "--set user_packages=true (or user_packages: true); or install them into the environment"
        yield Hit(job.at("trainer"), what, fix)


@RULES.add("SB053", "warning", "a folder that the container does not mount", source=_EDF_PAGE)
def _mounted(job: TrainerJob) -> Iterator[Hit]:
    resolved, environment = job.resolved, job.environment
    edf_name = str(resolved.software.get("edf") or "")
    mounts = (
        edf.mounted_folders(edf_name, job.submit_folder, environment)
        if resolved.runtime is edf.RUNTIME and edf_name
        else None
    )
    if mounts is None or not job.working_folder:
        return
    folders_of_script = {
        "$PWD": job.working_folder,
        "$RUN_DIR": _local_path(resolved.run_dir, job),
        "$DATA_DIR": _local_path(resolved.data, job),
        "$CODE_DIR": _local_path(resolved.code or str(bundled("code")), job),
    }
    needed = {path for name in needed_folders(resolved, "") if (path := folders_of_script.get(name))}
    mounted = [Path(mount) for mount in mounts]
    missing: list[Path] = []
    for folder in sorted(needed):
        paths = (folder, folder.resolve())
        if not any(path.is_relative_to(mount) for path in paths for mount in (*mounted, *missing)):
            missing.append(folder)
    if missing:
        what = f"the container does not mount {', '.join(map(str, missing))}, which the job needs in it"
        lines = ", ".join(f'"{path}:{path}"' for path in missing)
        yield Hit(job.at("edf"), what, f"add to mounts in {edf_name}: mounts = [{lines}]")


@RULES.add("SB054", "info", "a profile that was checked long ago")
def _old_profile(job: TrainerJob) -> Iterator[Hit]:
    profile = job.resolved.profile
    if profile.age_days > OLD_DAYS and job.resolved.uses_slurm:
        what = f"the facts of profile '{profile.name}' were last verified {profile.age_days} days ago, on "
        what += f"{profile.checked}: partitions and limits may have changed"
        check = f"sbatchgen profile check {_profile_to_type(job.resolved)} --live, on the cluster"
        yield Hit(job.at("profile"), what, check)


def _profile_to_type(resolved: ResolvedJob) -> str:
    """Return a job's profile as a word to type: its name, or its file if the search finds no such name."""
    name = str(resolved.profile.name)
    places = (origin.where for origin in resolved.origins.values() if origin.level is Level.PROFILE)
    parts = (place.rpartition(":") for place in places)  # "/home/ann/mycluster.yaml:4"
    file = Path(next((file for file, _, line in parts if file and line), name))
    is_found_by_name = file.is_absolute() and file.parent.name == "profiles" and file.stem == name
    return word(name if is_found_by_name else str(file))


def _local_path(path: str, job: TrainerJob) -> Path | None:
    """Return a path of the job as a path on this machine; None if only the running job knows the path."""
    shell_path = ShellPath(path)
    if shell_path.unset(job.environment):
        return None
    return job.submit_folder / shell_path.filled(job.environment)


def _packages(prefix: Path) -> Iterator[str]:
    """Yield the names of the packages and modules in site-packages below a prefix such as a venv."""
    for path in prefix.glob("lib/python3*/site-packages/*"):
        yield path.name.removesuffix(".py")


_ENVIRONMENT_KEYS = {"venv": "venv", "conda": "conda_env"}  # runtime -> the key that names its environment


def _python_prefix(job: TrainerJob) -> Path | None:
    """Return the folder of the environment whose Python the job will run; None if it is not certain.

    For runtime host it is the environment of this shell's python3, such as an activated venv.
    """
    resolved, folder, environment = job.resolved, job.submit_folder, job.environment
    if _job_changes_python(job):
        return None
    name = resolved.software.get(_ENVIRONMENT_KEYS.get(resolved.runtime.name, ""))
    if resolved.runtime.name == "conda" and name and "/" not in name:
        conda_root = resolved.facts.root
        is_known = bool(conda_root) and not conda_root.unset(environment)
        return folder / conda_root.filled(environment) / "envs" / name if is_known else None
    if resolved.runtime.name != "host":
        path = ShellPath(name or "")
        return folder / path.filled(environment) if name and not path.unset(environment) else None
    prefix = Path(in_shell("python3", environment) or "/").parent.parent
    user_folders = [environment.get(variable) for variable in ("HOME", "VIRTUAL_ENV", "CONDA_PREFIX")]
    is_of_user = any(folder and prefix.is_relative_to(folder) for folder in user_folders)
    return prefix if is_of_user and _keeps_python_of_shell(job) else None


def _job_changes_python(job: TrainerJob) -> bool:
    """Return whether modules, setup lines or variables of the job may change its Python or packages."""
    settings = job.resolved.settings
    has_setup = settings.modules or any(getattr(settings, name) for name in SETUPS)
    return bool(has_setup or settings.python) or bool({"PATH", "PYTHONPATH"} & {*job.resolved.env})


def _keeps_python_of_shell(job: TrainerJob) -> bool:
    """Return whether the job gets the PATH of this shell, and no PYTHONPATH adds folders of packages."""
    gets_all_variables = not job.resolved.uses_slurm or "export" not in job.resolved.directives
    return gets_all_variables and "PYTHONPATH" not in job.environment


def _system_python(job: TrainerJob) -> Path | None:
    """Return the system's Python if the job will certainly run it; None otherwise."""
    python = Path(in_shell("python3", job.environment) or "/")
    is_host = job.resolved.runtime.name == "host" and python.parent in _SYSTEM_FOLDERS
    return python if is_host and not _job_changes_python(job) and _keeps_python_of_shell(job) else None


def _system_lacks_torch(prefix: Path, environment: Mapping[str, str]) -> bool:
    """Return whether the system's Python certainly finds no torch.

    That is so if its folders and ~/.local have neither torch nor a .pth file that adds folders.
    """
    roots = {prefix, *_SYSTEM_PREFIXES, Path(environment.get("HOME", "/"), ".local")}
    libraries = [library for root in roots for library in root.glob("lib*/python3*/*-packages")]
    return bool(libraries) and not (_has_torch(libraries) or _adds_folders(libraries))


def _lacks_torch(prefix: Path, environment: Mapping[str, str]) -> bool:
    """Return whether the Python of an environment certainly finds no torch.

    That is so if neither the environment nor ~/.local has torch, no .pth file of the environment adds
    folders, and the environment does not share the system's packages.
    """
    config = b""
    with contextlib.suppress(OSError):
        config = files.read_start(prefix / "pyvenv.cfg", 1 << 16).lower()
    libraries = [*prefix.glob("lib/python3*/site-packages")]
    user_libraries = Path(environment.get("HOME", "/"), ".local/lib").glob("python3*/site-packages")
    may_have_torch = _has_torch((*libraries, *user_libraries)) or _adds_folders(libraries)
    shares_system_packages = re.search(rb"include-system-site-packages\s*=\s*true", config)
    is_environment = bool(libraries) and (prefix / "bin/python3").exists()
    return is_environment and not (may_have_torch or shares_system_packages)


def _has_torch(libraries: Iterable[Path]) -> bool:
    """Return whether one of these folders holds torch."""
    return any((library / name).exists() for library in libraries for name in ("torch", "torch.py"))


def _adds_folders(libraries: Iterable[Path]) -> bool:
    """Return whether a .pth file in these folders may add folders to Python's search path."""
    return any(path.name not in _HARMLESS_PTH for library in libraries for path in library.glob("*.pth"))
