"""Rules about logs and signals in the options of a job: SB117, SB604, SB606, SB701 to SB711."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from sbatchgen.base import quoting
from sbatchgen.base.finding import Severity
from sbatchgen.base.units import VARIABLE
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.script.job import Job
from sbatchgen.check.script.resource_request import UNLIMITED

if TYPE_CHECKING:
    from sbatchgen.check.script.script import JobScript

RULES: Rules[Job] = Rules()

_LOCAL_DISK_PAGE = "https://docs.computecanada.ca/wiki/Using_$SLURM_TMPDIR"
LOGS = ("output", "error")  # the options that name a log
DEFAULT_LEAD_S = 60  # seconds before the time limit in a --signal without @
MAX_LEAD_S = 65535  # the most seconds that --signal takes
_LITERAL_OPTIONS = """
account chdir comment container-image container-mounts container-workdir error input job-name mail-user output
partition qos
"""
LITERAL_OPTIONS = tuple(_LITERAL_OPTIONS.split())  # options whose values sbatch takes as written
_SHELL_EXPANSION = re.compile(r"\$\{?[A-Za-z_]\w*\}?|\$\(|`|^~(?=/|$)")  # such as $HOME/logs and ~/logs
MAKES_FOLDERS = "23.02"  # the first release that makes the folders of logs


@RULES.add("SB117", "warning", "a variable or ~ in a directive, which sbatch does not expand")
def _not_expanded(job: Job) -> Iterator[Hit]:
    """Find a variable or ~ that Slurm does not expand. Paths of a resolved job may hold some variables."""
    unexpanded = _SHELL_EXPANSION if job.is_script else VARIABLE
    for name in LITERAL_OPTIONS if job.is_script else (*LOGS, "chdir"):
        value = job.option(name)
        if unexpanded.search(value) is None:
            continue
        what = f"Slurm expands neither variables nor ~ in directives: --{name} is literally '{value}'"
        fix = "write the path out; %x, %j and %u work" if name in LOGS else "write the value out"
        yield Hit(name, what, fix, None if job.is_script else "error")


@RULES.add("SB604", "error", "a signal that comes too soon after the start", source="sbatch(1)")
def _signal_leaves_time(job: Job) -> Iterator[Hit]:
    signal, time = job.resources.options.get("signal"), job.resources.time
    target, at, seconds = (signal or "").partition("@")
    if not target or (at and not re.fullmatch("[0-9]{1,9}", seconds)):
        return  # no signal, or SB126 reports a signal that sbatch refuses
    lead = int(seconds) if at else DEFAULT_LEAD_S
    if time and time < UNLIMITED and (2 * lead > time or lead > MAX_LEAD_S):
        what = f"the signal comes {lead} s before the time limit of {time} s: the job would hardly have begun"
        fix = f"set {target}@{max(1, time // 4)}, or a longer time"
        yield Hit("signal", what, fix, None if lead >= time or not job.is_script else "warning")
    elif lead < DEFAULT_LEAD_S:
        what = f"the signal comes {lead} s before the time limit; Slurm may send it up to a minute earlier"
        safe_lead = max(lead, min(300, time // 4 if time else 300))
        change = f"{target}@{safe_lead}" if safe_lead > lead else "a longer time limit"
        yield Hit("signal", what, f"leave time to save: {change}", "warning", pedantic=job.is_script)


@RULES.add("SB606", "warning", "a requeue that overwrites the log")
def _requeue_keeps_log(job: Job) -> Iterator[Hit]:
    options = job.resources.options
    appends = options.get("open-mode", "").startswith("a")
    has_log_per_run = "%r" in options.get("output", "") and job.slurm >= "25.11"  # %r: number of restarts
    if "requeue" in options and not appends and not has_log_per_run:
        what = "a requeued job overwrites its log: what it wrote before is lost"
        yield Hit("requeue", what, "add --open-mode=append")


@RULES.add("SB701", "warning", "a log folder that may not exist")
def _log_folder_exists(job: Job) -> Iterator[Hit]:
    makes_folders = (
        not job.is_release_assumed and job.slurm >= MAKES_FOLDERS
    )  # io.c of slurmstepd, slurm-23-02-8-1
    if job.makes_log_folders or makes_folders:
        return
    reported = set()
    for name in LOGS:
        folder = job.option(name).replace("%x", job.option("job-name") or "%x").rpartition("/")[0]
        if folder.strip("./") == "" or folder in reported:
            continue
        path = job.folder and job.folder / job.option("chdir") / folder.replace("%%", "%")
        has_pattern = "%" in folder.replace("%%", "")  # such as %j
        if path and not has_pattern and os.path.isdir(path):  # noqa: PTH112 - any name
            continue
        if job.is_script and (folder.startswith("/") or _SHELL_EXPANSION.search(folder)):
            continue  # a folder that only the cluster has, or SB117 reports the variable
        reported.add(folder)
        what = f"Slurm before {MAKES_FOLDERS} does not create the log folder '{folder}': if it is missing, "
        what += "the job fails without a log"
        severity = (
            _milder_in_script(job) if job.is_release_assumed else None
        )  # most sites have a later release
        fix = f"mkdir -p {quoting.word(folder)} first, as sbatchgen submit does"
        if line := _line_of_mkdir(job, folder):
            what += f". The mkdir in line {line} comes too late: Slurm opens the log before the script starts"
            fix = f"mkdir -p {quoting.word(folder)} in your shell, before sbatch"
        if _JOB_PATTERN.search(folder):  # the job id is not known before the submission
            fix = "a folder that is there, with the number in the name of the file"
        yield Hit(name, what, fix, severity)


def _line_of_mkdir(job: Job, folder: str) -> int:
    """Return the line in which a script makes this folder; 0 without such a line."""
    commands = cast("JobScript", job).body.commands if job.is_script else ()
    for command in commands:
        folders = {os.path.normpath(word) for word in command.arguments if command.name == "mkdir"}
        if os.path.normpath(folder) in folders:
            return command.line
    return 0


_JOB_PATTERN = re.compile(r"(?<!%)%\d*[jJAaNnst]")  # a pattern that only the running job knows, such as %j


@RULES.add("SB702", "warning", "a log file that every job overwrites")
def _log_varies(job: Job) -> Iterator[Hit]:
    reported = False
    for name in LOGS:
        path, fix, severity = job.option(name), "add %j to it", _milder_in_script(job)
        appends = job.option("open-mode").startswith("a")
        consequence = "their lines mix" if appends else "they overwrite each other"
        if not path or path == "none" or path.startswith("/dev/") or re.search(r"%\d*[jsJ]", path):
            continue
        what = f"{name} '{path}' is the same for every job: {consequence}"
        has_array_id = re.search(r"%\d*A", path)
        if job.array_tasks > 1 and not re.search(r"%\d*a", path):
            what, severity = f"{name} '{path}' is the same for all tasks of the array: {consequence}", None
            fix = "add %a to it, as in %A_%a" if has_array_id else fix
        elif has_array_id:
            continue
        if not (reported and job.is_script):
            yield Hit(name, what, fix, severity)
        reported = True


@RULES.add("SB704", "warning", "%a in a job that is not an array")
def _log_of_no_array(job: Job) -> Iterator[Hit]:
    for name in LOGS if "array" not in job.resources else ():
        if re.search(r"(?<!%)(?:%%)*%\d*a", job.option(name)):
            what = f"%a in {name} becomes 4294967294, as the job is not an array"
            severity = _milder_in_script(job)  # `sbatch --array` may be meant
            yield Hit(name, what, "remove it, or add --array", severity)


@RULES.add("SB705", "warning", "a per-node pattern in the only log", pedantic=True)
def _log_of_node(job: Job) -> Iterator[Hit]:
    for name in LOGS:
        match = re.search(r"(?<!%)(?:%%)*(%\d*[Nnt])", job.option(name))
        if match and (job.resources.nodes > 1 or job.resources.tasks_per_node > 1):
            what = f"{match[1]} in {name} stands for the first node: the batch script has only one log"
            yield Hit(name, what, f"remove it; for a log of each node or task, srun --{name}")


@RULES.add("SB710", "warning", "a log on a node's local disk", source=_LOCAL_DISK_PAGE)
def _log_is_shared(job: Job) -> Iterator[Hit]:
    for name in LOGS:
        path = job.option(name)
        if path.startswith(("/tmp/", "/var/tmp/", "/dev/shm/")):  # noqa: S108 - that is what is warned of
            what = f"{name} '{path}' is on the node's own disk: you can't see it from the login node"
            yield Hit(name, what, "use a folder that all nodes share", _milder_in_script(job))


@RULES.add("SB711", "info", "a job without a log", source="sbatch(1)")
def _log_is_kept(job: Job) -> Iterator[Hit]:
    path = job.option("output")
    if path in ("none", "/dev/null"):
        yield Hit("output", f"--output={path}: the output of the job is lost", "use %x-%j.out")


def _milder_in_script(job: Job) -> Severity | None:
    """Return the severity of an option that is a mistake in a resolved job, but meant in many scripts."""
    return "info" if job.is_script else None
