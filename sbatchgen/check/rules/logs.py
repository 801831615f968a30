"""Rules about the options of a job for its logs and for its signal before the time limit.

SB117 also judges other options whose values sbatch takes as written.
"""

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
_JOB_PATTERN = re.compile(r"(?<!%)%\d*[jJAaNnst]")  # a pattern that only the running job knows, such as %j
MAKES_LOG_FOLDERS = "23.02"  # the first release that makes the folders of logs


@RULES.add("SB117", "warning", "a variable or ~ in a directive, which sbatch does not expand")
def _not_expanded(job: Job) -> Iterator[Hit]:
    """Find a variable or ~ that Slurm does not expand.

    Paths of a resolved job may hold ${NAME}, which its script expands. In a directive nothing expands it.
    """
    unexpanded = _SHELL_EXPANSION if job.is_script else VARIABLE
    for option in LITERAL_OPTIONS if job.is_script else (*LOGS, "chdir"):
        value = job.option(option)
        if unexpanded.search(value) is None:
            continue
        what = f"Slurm expands neither variables nor ~ in directives: --{option} is literally '{value}'"
        fix = "write the path out; %x, %j and %u work" if option in LOGS else "write the value out"
        yield Hit(option, what, fix, None if job.is_script else "error")


@RULES.add("SB604", "error", "a signal that comes too soon after the start", source="sbatch(1)")
def _too_early_signal(job: Job) -> Iterator[Hit]:
    time_s = job.resources.time
    signal, at_sign, lead_text = job.option("signal").partition("@")  # such as B:USR1@300
    if not signal or (at_sign and not re.fullmatch("[0-9]{1,9}", lead_text)):
        return  # no signal, or SB126 reports a signal that sbatch refuses
    lead_s = int(lead_text) if at_sign else DEFAULT_LEAD_S  # from the signal to the time limit
    # Whether the signal comes in the first half of the job, or earlier than --signal allows.
    is_too_early = 2 * lead_s > (time_s or 0) or lead_s > MAX_LEAD_S
    if time_s and time_s < UNLIMITED and is_too_early:
        what = f"the signal comes {lead_s} s before the time limit of {time_s} s: "
        what += "the job would hardly have begun"
        fix = f"set {signal}@{max(1, time_s // 4)}, or a longer time"
        yield Hit("signal", what, fix, None if lead_s >= time_s or not job.is_script else "warning")
    elif lead_s < DEFAULT_LEAD_S:
        what = f"the signal comes {lead_s} s before the time limit; Slurm may send it up to a minute earlier"
        safe_lead_s = max(lead_s, min(300, time_s // 4 if time_s else 300))
        change = f"{signal}@{safe_lead_s}" if safe_lead_s > lead_s else "a longer time limit"
        yield Hit("signal", what, f"leave time to save: {change}", "warning", pedantic=job.is_script)


@RULES.add("SB606", "warning", "a requeue that overwrites the log")
def _overwritten_log_of_requeue(job: Job) -> Iterator[Hit]:
    options = job.resources.options
    appends = options.get("open-mode", "").startswith("a")
    has_log_per_run = "%r" in options.get("output", "") and job.slurm >= "25.11"  # %r: number of restarts
    if "requeue" in options and not appends and not has_log_per_run:
        what = "a requeued job overwrites its log: what it wrote before is lost"
        yield Hit("requeue", what, "add --open-mode=append")


@RULES.add("SB701", "warning", "a log folder that may not exist")
def _missing_log_folder(job: Job) -> Iterator[Hit]:
    # Source of the release: io.c of slurmstepd, slurm-23-02-8-1.
    slurm_makes_folders = not job.is_release_assumed and job.slurm >= MAKES_LOG_FOLDERS
    if job.makes_log_folders or slurm_makes_folders:
        return
    reported_folders = set()
    for option in LOGS:
        path = job.option(option).replace("%x", job.option("job-name") or "%x")  # %x is the job's name
        folder, _, _ = path.rpartition("/")
        if folder.strip("./") == "" or folder in reported_folders:
            continue
        if _exists(job, folder):
            continue
        if job.is_script and (folder.startswith("/") or _SHELL_EXPANSION.search(folder)):
            continue  # a folder that only the cluster has, or SB117 reports the variable
        reported_folders.add(folder)
        what = f"Slurm before {MAKES_LOG_FOLDERS} does not create the log folder '{folder}': "
        what += "if it is missing, the job fails without a log"
        severity = (
            _milder_in_script(job) if job.is_release_assumed else None
        )  # most sites have a later release
        fix = f"mkdir -p {quoting.word(folder)} first, as sbatchgen submit does"
        if line := _line_of_mkdir(job, folder):
            what += f". The mkdir in line {line} comes too late: Slurm opens the log before the script starts"
            fix = f"mkdir -p {quoting.word(folder)} in your shell, before sbatch"
        if _JOB_PATTERN.search(folder):  # no user can make the folder before the submission
            fix = "a folder that is there, with the number in the name of the file"
        yield Hit(option, what, fix, severity)


def _exists(job: Job, folder: str) -> bool:
    """Return whether the folder of a log exists, as seen from the folder of submission."""
    has_pattern = "%" in folder.replace("%%", "")  # such as %j; %% is a plain %
    if job.folder is None or has_pattern:
        return False
    path = job.folder / job.option("chdir") / folder.replace("%%", "%")
    return os.path.isdir(path)  # noqa: PTH112 - any name


def _line_of_mkdir(job: Job, folder: str) -> int:
    """Return the line in which a script makes this folder; 0 without such a line."""
    commands = cast("JobScript", job).body.commands if job.is_script else ()
    for command in commands:
        made_folders = {os.path.normpath(word) for word in command.arguments if command.name == "mkdir"}
        if os.path.normpath(folder) in made_folders:
            return command.line
    return 0


@RULES.add("SB702", "warning", "a log file that every job overwrites")
def _log_of_all_jobs(job: Job) -> Iterator[Hit]:
    has_hit = False
    appends = job.option("open-mode").startswith("a")
    consequence = "their lines mix" if appends else "they overwrite each other"
    for option in LOGS:
        path, fix, severity = job.option(option), "add %j to it", _milder_in_script(job)
        has_job_id = re.search(r"%\d*[jsJ]", path)
        if not path or path == "none" or path.startswith("/dev/") or has_job_id:
            continue
        what = f"{option} '{path}' is the same for every job: {consequence}"
        has_array_id = re.search(r"%\d*A", path)
        if job.array_tasks > 1 and not re.search(r"%\d*a", path):
            what, severity = f"{option} '{path}' is the same for all tasks of the array: {consequence}", None
            fix = "add %a to it, as in %A_%a" if has_array_id else fix
        elif has_array_id:
            continue
        if not (has_hit and job.is_script):  # one hit is enough for a script with both options
            yield Hit(option, what, fix, severity)
        has_hit = True


@RULES.add("SB704", "warning", "%a in a job that is not an array")
def _array_pattern_without_array(job: Job) -> Iterator[Hit]:
    if "array" in job.resources:
        return
    for option in LOGS:
        if re.search(r"(?<!%)(?:%%)*%\d*a", job.option(option)):
            what = f"%a in {option} becomes 4294967294, as the job is not an array"
            severity = _milder_in_script(job)  # people may submit the script with sbatch --array
            yield Hit(option, what, "remove it, or add --array", severity)


@RULES.add("SB705", "warning", "a per-node pattern in the only log", pedantic=True)
def _pattern_of_node(job: Job) -> Iterator[Hit]:
    for option in LOGS:
        match = re.search(r"(?<!%)(?:%%)*(%\d*[Nnt])", job.option(option))
        if match and (job.resources.nodes > 1 or job.resources.tasks_per_node > 1):
            what = f"{match[1]} in {option} stands for the first node: the batch script has only one log"
            yield Hit(option, what, f"remove it; for a log of each node or task, srun --{option}")


@RULES.add("SB710", "warning", "a log on a node's local disk", source=_LOCAL_DISK_PAGE)
def _log_on_local_disk(job: Job) -> Iterator[Hit]:
    for option in LOGS:
        path = job.option(option)
        if path.startswith(("/tmp/", "/var/tmp/", "/dev/shm/")):  # noqa: S108 - that is what is warned of
            what = f"{option} '{path}' is on the node's own disk: you can't see it from the login node"
            yield Hit(option, what, "use a folder that all nodes share", _milder_in_script(job))


@RULES.add("SB711", "info", "a job without a log", source="sbatch(1)")
def _discarded_log(job: Job) -> Iterator[Hit]:
    path = job.option("output")
    if path in ("none", "/dev/null"):
        yield Hit("output", f"--output={path}: the output of the job is lost", "use %x-%j.out")


def _milder_in_script(job: Job) -> Severity | None:
    """Return the severity of a hit that is a mistake in a resolved job, but often on purpose in a script.

    None stands for the rule's severity.
    """
    return "info" if job.is_script else None
