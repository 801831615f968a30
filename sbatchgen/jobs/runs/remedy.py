"""Completes the fixes of failures.yaml with facts of this machine and of Slurm, so that they can be typed.

Such facts are the name of the failed node, the memory of the largest node, or the folder of conda. A fix
names a package only for a well-known module. For any other module, a package with its name may be malicious.
"""

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.errors import SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import ALSO, OR, word
from sbatchgen.base.units import mebibytes
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.check.sbatch.reader import read_script
from sbatchgen.check.script.script import JobScript
from sbatchgen.check.script.trainer_source import WELL_KNOWN_PACKAGES
from sbatchgen.jobs.runs.failure import Failure, NextStart
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.runs.submitted_scripts import MAX_BYTES
from sbatchgen.jobs.slurm.accounting import sacct_jobs
from sbatchgen.jobs.slurm.gpu_nodes import why_unavailable
from sbatchgen.jobs.slurm.node import nodes
from sbatchgen.jobs.slurm.partition import partitions
from sbatchgen.jobs.slurm.queue import SlurmJob

MAX_NAMES = 4  # the most nodes or partitions that a fix names
# The package of each well-known module that has another name than its package
_PACKAGES = {
    "PIL": "pillow", "cv2": "opencv-python-headless", "skimage": "scikit-image", "sklearn": "scikit-learn",
    "yaml": "pyyaml", "pytorch_lightning": "pytorch-lightning", "open_clip": "open-clip-torch",
    "hydra": "hydra-core", "lightning_fabric": "lightning-fabric", "ignite": "pytorch-ignite",
    "sentence_transformers": "sentence-transformers",
}  # fmt: skip
# Well-known modules whose names on PyPI belong to other packages; no fix names a package for them.
_OTHER_PACKAGES = frozenset(("apex", "megatron", "detectron2", "mmcv", "composer"))
_MODULE_INIT_FILES = ("/etc/profile.d/modules.sh", "/etc/profile.d/lmod.sh", "/etc/profile.d/z00_lmod.sh")
# A fix has several parts: "sbatchgen resume ddp --mem 64G; sacct -j 4711 shows what it used".
_SEPARATOR = re.compile(f"(; |{ALSO}|{OR})")
# A command of sbatchgen or Slurm: "sacct ". If more memory can't help, the parts with other commands stay.
_COMMAND = re.compile(r"\bs(?:batchgen|batch|acct) ")
_MEM_OPTION = re.compile(r"(--mem[ =])(\d+[MG]?)\b")  # "--mem=64G"
# The part of a fix that asks Slurm's database: "; sacct -j JOB shows what it used"
_SACCT_PART = re.compile(r"; sacct [^;]*")
_NODE_SLOT = re.compile(r"\bNODE\b")  # stands for a node's name; SLURM_NNODES is another word
# A part of a fix that needs a node's name: "; without that node: sbatchgen resume ddp --exclude NODE"
_PART_WITH_NODE = re.compile(r"; [^;]*NODE\b[^;]*|(?: with|,)? --exclude[ =]NODE\b")


@frozen(kw_only=True)
class FailedRun:
    """A failed run, with the facts that complete its fixes."""

    next_start: NextStart  # the command that starts the run again
    record: Record
    row: SlurmJob | None  # the job as Slurm knows it; None if Slurm has forgotten it
    environment: Mapping[str, str]


def with_local_fix(cause: Failure, run: FailedRun) -> Failure:
    """Return a cause with a fix that can be typed on this machine, without parts that need unknown values."""
    if _NODE_SLOT.search(cause.fix):
        cause = _with_nodes(cause, run)
    if "sacct " in cause.fix:
        cause = replace(cause, fix=_with_accounting(cause.fix, run))
    is_rendered = bool(run.record.values) and not run.record.script
    make_fix = (_RENDERED_FIXES if is_rendered else _SCRIPT_FIXES).get(cause.cause)
    fix = make_fix(cause, run) if make_fix else ""
    return replace(cause, fix=fix) if fix else cause


def drop_parts(fix: str, unwanted: re.Pattern[str]) -> str:
    """Return a fix without the parts that a pattern matches."""
    parts = [(separator, text) for separator, text in _parts(fix) if not unwanted.search(text)]
    return "".join(separator * bool(number) + text for number, (separator, text) in enumerate(parts))


def _parts(fix: str) -> list[tuple[str, str]]:
    """Return the parts of a fix, each after the separator that precedes it."""
    texts = _SEPARATOR.split(fix)  # the parts, with the separators between them
    return [*zip(["", *texts[1::2]], texts[::2], strict=True)]


def limit_memory(cause: Failure, script: JobScript | None, environment: Mapping[str, str]) -> Failure:
    """Return a cause whose fix asks for at most the memory of the largest node in the job's partition.

    If the job had all memory of this node, the fix advises how to use less. A job that names no partition
    runs in Slurm's default partition.
    """
    match = _MEM_OPTION.search(cause.fix)
    if not match or script is None:
        return cause
    names = {*(script.option("partition") or "").split(",")} - {""}
    try:
        all_nodes = nodes(environment)
        names = names or {partition.name for partition in partitions(environment) if partition.default}
    except SlurmError:
        return cause
    memory_mib = {node.name: node.memory - node.memory_reserved for node in all_nodes}
    usable = [node for node in all_nodes if not names or names.intersection(node.partitions)]
    most_mib = max((memory_mib[node.name] for node in usable), default=0)
    if not most_mib or (mebibytes(match[2]) or 0) <= most_mib:
        return cause
    requested = script.option("mem") or ""
    had_mib = most_mib if requested == "0" else mebibytes(requested) or 0  # 0 stands for all memory
    if had_mib < most_mib:
        return replace(cause, fix=cause.fix.replace(match[0], f"{match[1]}{most_mib}M"))
    larger = sorted(
        {name for node in all_nodes if memory_mib[node.name] > most_mib for name in node.partitions}
    )
    fix = "use a smaller batch, or fewer workers that load data"
    fix += f"{ALSO}the job had all memory of a node, {had_mib}M"
    if larger:
        fix += f"{ALSO}the nodes of partition {', '.join(larger[:MAX_NAMES])} have more"
    for separator, text in _parts(cause.fix):
        if _COMMAND.search(text) and not _MEM_OPTION.search(text):
            fix += separator + text
    return replace(cause, fix=fix)


def _with_nodes(cause: Failure, run: FailedRun) -> Failure:
    """Return a cause with the names of the failed nodes in its fix.

    The failed node is the job's only node. Of several nodes, those that Slurm does not use now have failed.
    """
    job_nodes = hosts(run.row.node_list) if run.row else []
    names = job_nodes if len(job_nodes) == 1 else []
    if len(job_nodes) > 1 and cause.rank == "outside":
        try:
            all_nodes = nodes(run.environment)
            names = [node.name for node in all_nodes if node.name in job_nodes and why_unavailable(node)]
        except SlurmError:
            names = []
    if not names or len(names) > MAX_NAMES:
        return replace(cause, fix=_PART_WITH_NODE.sub("", cause.fix))
    failed = ",".join(names)
    means = f"{cause.means} ({failed})" if cause.rank == "outside" else cause.means
    # Slurm refuses --exclude of a node in --nodelist, and without --exclude the job would wait for the node.
    if requested := _requested_nodes(run.record).intersection(names):
        fix = f"take {','.join(sorted(requested))} out of --nodelist, and submit the job again"
        return replace(cause, means=means, fix=fix)
    return replace(cause, means=means, fix=_NODE_SLOT.sub(failed, cause.fix))


def _requested_nodes(record: Record) -> set[str]:
    """Return the nodes in the job's --nodelist: in its settings, else its command line, else its script."""
    directives = "".join(f"#SBATCH {option}\n" for option in record.options)  # of the command line
    scripts = [f"#!/bin/bash\n{directives}".encode("utf-8", "surrogateescape")]
    with contextlib.suppress(OSError):
        scripts += [files.read_file(Path(record.folder, record.script), MAX_BYTES)] * bool(record.script)
    node_lists = [record.value("--nodelist")]
    for script in scripts:
        with contextlib.suppress(ValueError):
            if option := read_script(script).options.get("nodelist"):
                node_lists.append(option.value or "")
    return set(hosts(next(filter(None, node_lists), "")))


def _with_accounting(fix: str, run: FailedRun) -> str:
    """Return a fix with the job's id in its sacct command; without this part if Slurm has no database."""
    job = run.row.id if run.row else run.record.job
    # A day earlier: a job that ended before `since` is excluded, and the clock of Slurm's machine may differ.
    since = datetime.fromtimestamp(max(run.record.submitted - 86400, 86400), timezone.utc)
    try:
        has_database = sacct_jobs({job: ""}, since, run.environment, cluster=run.record.cluster) is not None
    except SlurmError:
        has_database = False
    return fix.replace(" -j JOB", f" -j {job}") if has_database and job else _SACCT_PART.sub("", fix)


def _conda_root(run: FailedRun) -> str:
    """Return the folder in which this shell's conda is installed; "" without conda."""
    program = Path(run.environment.get("CONDA_EXE", ""))
    root = program.parent.parent
    return str(root) if program.is_absolute() and (root / "bin/conda").is_file() else ""


def _fix_for_conda(_: Failure, run: FailedRun) -> str:
    """Return how to tell a rendered script where conda is installed; "" if this shell has no conda."""
    root = _conda_root(run)
    return f"{run.next_start:--set runtimes.conda.root={word(root)}}" if root else ""


def _fix_for_conda_in_script(_: Failure, run: FailedRun) -> str:
    """Return a line that lets a finished script call `conda activate`; "" if this shell has no conda."""
    root = _conda_root(run)
    return f'write before conda activate: eval "$({word(root)}/bin/conda shell.bash hook)"' if root else ""


def _modules_file(run: FailedRun) -> str:
    """Return the file that defines the shell function `module` on this machine; "" without one."""
    home = run.environment.get("MODULESHOME", "")
    candidates = [f"{home}/init/bash"] * home.startswith("/") + [*_MODULE_INIT_FILES]
    return next((file for file in candidates if Path(file).is_file()), "")


def _fix_for_modules(_: Failure, run: FailedRun) -> str:
    """Return how to define the function `module` in a rendered script; "" if this machine has none."""
    file = _modules_file(run)
    line = word(f"setup_before_modules=source {word(file)}")
    return f"{run.next_start:--set {line}}" if file else ""


def _fix_for_modules_in_script(_: Failure, run: FailedRun) -> str:
    """Return how to define the function `module` in a finished script; "" if this machine has none."""
    file = _modules_file(run)
    return (
        f"begin the script with #!/bin/bash -l, or write before module: source {word(file)}" if file else ""
    )


def _fix_for_package(cause: Failure, run: FailedRun) -> str:
    """Return how to add the missing module to the run's environment; "" if the environment is not known.

    The fix is a command, or names the environment if the package of the module is not known.
    """
    match = re.search(r"No module named '?([\w.]+)", cause.says)
    runtime = run.record.value("runtime")
    key = _ENVIRONMENT_KEYS.get(runtime, "")
    name = run.record.value(key) if key else ""  # the environment: a folder, a name, or an image
    if not match or not name:
        return ""
    module = match[1].partition(".")[0]
    package = _PACKAGES.get(module, module) if module in WELL_KNOWN_PACKAGES - _OTHER_PACKAGES else ""
    if runtime == "venv":
        folder = Path(run.record.folder, os.path.expanduser(_with_values_of_variables(name, run.environment)))  # noqa: PTH111
        if package and (pip := _pip_command(folder)):
            return f"{pip} {package}"
        return f"the job ran in {folder}: install the package of {module} there, or name another by --venv"
    if runtime in ("conda", "uv"):
        where = f"the {runtime} environment {name}"
        return f"the job ran in {where}: add the package of {module} there, or name another"
    return f"the image {name} has no {module}: name an image that has it, by --image"


# The key of a job that names its environment, by the runtime
_ENVIRONMENT_KEYS = {"venv": "venv", "conda": "conda_env", "uv": "uv_project"} | dict.fromkeys(
    ("apptainer", "enroot", "podman-hpc", "shifter"), "image"
)
# The functions that make a fix for this machine, by the names of causes, for finished and rendered scripts
_SCRIPT_FIXES = {"conda-not-set-up": _fix_for_conda_in_script, "no-modules": _fix_for_modules_in_script}
_RENDERED_FIXES = {
    "conda-not-set-up": _fix_for_conda,
    "no-modules": _fix_for_modules,
    "package-missing": _fix_for_package,
}


def _with_values_of_variables(path: str, environment: Mapping[str, str]) -> str:
    """Return a path with the values of its variables, such as ${HOME}; unset variables stay unchanged."""
    return re.sub(r"\$\{(\w+)\}", lambda match: environment.get(match[1], match[0]), path)


def _pip_command(folder: Path) -> str:
    """Return the command that installs packages into a virtual environment; "" without such a folder."""
    python = folder / "bin/python3"
    if not python.exists():
        return ""
    has_pip = any(folder.glob("lib/python3*/site-packages/pip/__init__.py"))
    return (
        f"{word(str(python))} -m pip install" if has_pip else f"uv pip install --python {word(str(python))}"
    )
