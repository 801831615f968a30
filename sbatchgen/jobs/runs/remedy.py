"""What to type about a cause, with what this machine and Slurm know: a node, an environment, a folder.

failures.yaml says what to do where that is not known. A package is named only if it is well known: a package
with the name of any other module may be anybody's.
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
from sbatchgen.check.script.trainer_source import WELL_KNOWN
from sbatchgen.jobs.runs.failure import Failure, NextStart
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.runs.submitted_scripts import MAX_BYTES
from sbatchgen.jobs.slurm.accounting import accounting
from sbatchgen.jobs.slurm.gpu_nodes import unavailable
from sbatchgen.jobs.slurm.node import nodes
from sbatchgen.jobs.slurm.queue import SlurmJob

MOST_NODES = 4  # nodes that are named
# Packages with another name than their module.
_PACKAGES = {
    "PIL": "pillow", "cv2": "opencv-python-headless", "skimage": "scikit-image", "sklearn": "scikit-learn",
    "yaml": "pyyaml", "pytorch_lightning": "pytorch-lightning", "open_clip": "open-clip-torch",
    "hydra": "hydra-core", "lightning_fabric": "lightning-fabric", "ignite": "pytorch-ignite",
    "sentence_transformers": "sentence-transformers",
}  # fmt: skip
_NO_PACKAGES = frozenset(("apex", "megatron", "detectron2", "mmcv", "composer"))  # others have their names
_INIT = ("/etc/profile.d/modules.sh", "/etc/profile.d/lmod.sh", "/etc/profile.d/z00_lmod.sh")
_PARTS = re.compile(f"(; |{ALSO}|{OR})")
_COMMAND = re.compile(r"\bs(?:batchgen|batch|acct) ")
_MEM = re.compile(r"(--mem[ =])(\d+[MG]?)\b")
_SACCT = re.compile(r"; sacct [^;]*")
_ON_NODE = re.compile(r"; [^;]*NODE\b[^;]*|(?: with|,)? --exclude[ =]NODE\b")


@frozen(kw_only=True)
class Case:
    """A run that failed, and what may be asked about it."""

    resume: NextStart  # what starts it again
    record: Record
    row: SlurmJob | None  # the job as Slurm knows it
    environment: Mapping[str, str]


def at_hand(cause: Failure, case: Case) -> Failure:
    """Return a cause with the fix that can be typed here; parts that are not known are left out."""
    if "NODE" in cause.fix:
        cause = _with_nodes(cause, case)
    if "sacct " in cause.fix:
        cause = replace(cause, fix=_with_accounting(cause.fix, case))
    rendered = bool(case.record.values) and not case.record.script
    own = (_RENDERED_FIXES if rendered else _SCRIPT_FIXES).get(cause.cause)
    fix = own(cause, case) if own else ""
    return replace(cause, fix=fix) if fix else cause


def without(fix: str, unwanted: re.Pattern[str]) -> str:
    """Return a fix without the parts in which a pattern is found."""
    kept = [part for part in _parts(fix) if not unwanted.search(part[1])]
    return "".join(before * bool(place) + text for place, (before, text) in enumerate(kept))


def _parts(fix: str) -> list[tuple[str, str]]:
    """Return the parts of a fix, each with what separates it from the part before."""
    each = _PARTS.split(fix)
    return [*zip(["", *each[1::2]], each[::2], strict=True)]


def within_nodes(cause: Failure, script: JobScript | None, environment: Mapping[str, str]) -> Failure:
    """Return a cause whose fix asks for no more memory than the largest node of the job's partition has."""
    match = _MEM.search(cause.fix)
    if not match or script is None:
        return cause
    try:
        known = nodes(environment)
    except SlurmError:
        return cause
    partitions = {*(script.option("partition") or "").split(",")} - {""}
    sizes = {node.name: node.memory - node.memory_reserved for node in known}
    its = [node for node in known if not partitions or partitions.intersection(node.partitions)]
    most = max((sizes[node.name] for node in its), default=0)
    if not most or (mebibytes(match[2]) or 0) <= most:
        return cause
    asked = script.option("mem") or ""
    had = most if asked == "0" else mebibytes(asked) or 0  # 0 stands for all memory of the node
    if had < most:
        return replace(cause, fix=cause.fix.replace(match[0], f"{match[1]}{most}M"))
    larger = sorted({name for node in known if sizes[node.name] > most for name in node.partitions})
    what = (
        f"use a smaller batch, or fewer workers that load data{ALSO}the job had all memory of a node, {had}M"
    )
    if larger:
        what += f"{ALSO}the nodes of partition {', '.join(larger[:MOST_NODES])} have more"
    rest = (part for part in _parts(cause.fix) if not _MEM.search(part[1]) and _COMMAND.search(part[1]))
    return replace(cause, fix=what + "".join(before + text for before, text in rest))


def _with_nodes(cause: Failure, case: Case) -> Failure:
    """Return a cause with the nodes that failed: the only node of the job, or those that are out now."""
    its = hosts(case.row.node_list) if case.row else []
    names = its if len(its) == 1 else []
    if len(its) > 1 and cause.rank == "outside":
        try:
            names = [node.name for node in nodes(case.environment) if node.name in its and unavailable(node)]
        except SlurmError:
            names = []
    if not names or len(names) > MOST_NODES:
        return replace(cause, fix=_ON_NODE.sub("", cause.fix))
    which = ",".join(names)
    means = f"{cause.means} ({which})" if cause.rank == "outside" else cause.means
    if named := _named(case.record).intersection(
        names
    ):  # Slurm refuses --exclude beside it; as it is, the job waits
        what = ",".join(sorted(named))
        return replace(cause, means=means, fix=f"take {what} out of --nodelist, and submit the job again")
    return replace(cause, means=means, fix=re.sub(r"\bNODE\b", which, cause.fix))


def _named(record: Record) -> set[str]:
    """Return the nodes that a job asks for by name."""
    typed = "".join(f"#SBATCH {option}\n" for option in record.options)
    texts = [f"#!/bin/bash\n{typed}".encode("utf-8", "surrogateescape")]
    with contextlib.suppress(OSError):
        texts += [files.read_file(Path(record.folder, record.script), MAX_BYTES)] * bool(record.script)
    lists = [record.value("--nodelist")]
    for text in texts:
        with contextlib.suppress(ValueError):
            lists += [use.value or "" for use in [read_script(text).options.get("nodelist")] if use]
    return set(hosts(next(filter(None, lists), "")))


def _with_accounting(fix: str, case: Case) -> str:
    """Return a fix with the job that sacct is asked about; without sacct where no database answers."""
    job = case.row.id if case.row else case.record.job
    since = datetime.fromtimestamp(max(case.record.submitted - 86400, 86400), timezone.utc)
    try:
        is_kept = accounting({job: ""}, since, case.environment, cluster=case.record.cluster) is not None
    except SlurmError:
        is_kept = False
    return fix.replace(" -j JOB", f" -j {job}") if is_kept and job else _SACCT.sub("", fix)


def _conda_root(case: Case) -> str:
    """Return the folder of this shell's conda; "" without one."""
    program = Path(case.environment.get("CONDA_EXE", ""))
    root = program.parent.parent
    return str(root) if program.is_absolute() and (root / "bin/conda").is_file() else ""


def _conda(_: Failure, case: Case) -> str:
    root = _conda_root(case)
    return f"{case.resume:--set runtimes.conda.root={word(root)}}" if root else ""


def _conda_of_script(_: Failure, case: Case) -> str:
    root = _conda_root(case)
    return f'write before conda activate: eval "$({word(root)}/bin/conda shell.bash hook)"' if root else ""


def _modules_file(case: Case) -> str:
    """Return the file that defines `module` on this machine; "" without one."""
    home = case.environment.get("MODULESHOME", "")
    files = [f"{home}/init/bash"] * home.startswith("/") + [*_INIT]
    return next((file for file in files if Path(file).is_file()), "")


def _modules(_: Failure, case: Case) -> str:
    file = _modules_file(case)
    line = word(f"setup_before_modules=source {word(file)}")
    return f"{case.resume:--set {line}}" if file else ""


def _modules_of_script(_: Failure, case: Case) -> str:
    file = _modules_file(case)
    return (
        f"begin the script with #!/bin/bash -l, or write before module: source {word(file)}" if file else ""
    )


def _package(cause: Failure, case: Case) -> str:
    """Return the command by which the environment of the run gets the module that it lacks."""
    match = re.search(r"No module named '?([\w.]+)", cause.says)
    runtime = case.record.value("runtime")
    key = _NAMES.get(runtime, "")
    name = case.record.value(key) if key else ""
    if not match or not name:
        return ""
    module = match[1].partition(".")[0]
    package = _PACKAGES.get(module, module) if module in WELL_KNOWN - _NO_PACKAGES else ""
    if runtime == "venv":
        folder = Path(case.record.folder, os.path.expanduser(_expanded(name, case.environment)))  # noqa: PTH111
        if package and (pip := _pip(folder)):
            return f"{pip} {package}"
        return f"the job ran in {folder}: install the package of {module} there, or name another by --venv"
    if runtime in ("conda", "uv"):
        where = f"the {runtime} environment {name}"
        return f"the job ran in {where}: add the package of {module} there, or name another"
    return f"the image {name} has no {module}: name an image that has it, by --image"


_NAMES = {"venv": "venv", "conda": "conda_env", "uv": "uv_project"} | dict.fromkeys(
    ("apptainer", "enroot", "podman-hpc", "shifter"), "image"
)
_SCRIPT_FIXES = {"conda-not-set-up": _conda_of_script, "no-modules": _modules_of_script}
_RENDERED_FIXES = {"conda-not-set-up": _conda, "no-modules": _modules, "package-missing": _package}


def _expanded(path: str, environment: Mapping[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda match: environment.get(match[1], match[0]), path)


def _pip(folder: Path) -> str:
    """Return the command that installs a package into a virtual environment; "" without one."""
    python = folder / "bin/python3"
    if not python.exists():
        return ""
    has_pip = any(folder.glob("lib/python3*/site-packages/pip/__init__.py"))
    return (
        f"{word(str(python))} -m pip install" if has_pip else f"uv pip install --python {word(str(python))}"
    )
