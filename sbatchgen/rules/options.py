"""What options say about logs and signals, in a plan or a script: SB117, SB604, SB606, SB701 to SB711."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sbatchgen.finding import Severity
from sbatchgen.plan.resources import UNLIMITED
from sbatchgen.rules.rule import Hit, Rules
from sbatchgen.subject.ask import Ask
from sbatchgen.units import ShellPath

RULES: Rules[Ask] = Rules()

LOGS = ("output", "error")
PATHS = (*LOGS, "chdir", "input")
DEFAULT_LEAD_S = 60  # of --signal without @
MAX_LEAD_S = 65535
NEW_PATTERNS = {"b": "24.11", "r": "25.11", "S": "25.11"}
LITERAL_OPTIONS = (
    "account",
    "chdir",
    "comment",
    "error",
    "input",
    "job-name",
    "mail-user",
    "output",
    "partition",
    "qos",
    "time",
)
_SHELL = re.compile(r"\$\{?[A-Za-z_]\w*\}?|\$\(|`|^~(?=/|$)")
_PATTERN = re.compile(r"%(\d*)(.)")


@RULES.add("SB117", "warning", "a variable or ~ in a directive, which sbatch does not expand")
def _not_expanded(ask: Ask) -> Iterator[Hit]:
    """In a plan a dollar is a dollar, but for the variables that a path of ours may hold."""
    literal = _SHELL if ask.script else ShellPath.VARIABLE
    for name in LITERAL_OPTIONS if ask.script else (*LOGS, "chdir"):
        value = ask.job.options.get(name, "")
        if literal.search(value) is None:
            continue
        what = f"{name} '{value}': Slurm expands no variables in a directive, "
        what += f"a folder '{value}' is looked for" if name in PATHS else f"'{value}' itself is used"
        fix = "write the path out, or use %x, %j and %u" if name in LOGS else "write the value out"
        yield Hit(name, what, fix, None if ask.script else "error")


@RULES.add("SB604", "error", "a signal that comes when the job has hardly begun")
def _signal_leaves_time(ask: Ask) -> Iterator[Hit]:
    signal, time = ask.job.options.get("signal"), ask.job.time
    to, at, seconds = (signal or "").partition("@")
    if not to or (at and not re.fullmatch("[0-9]{1,9}", seconds)):
        return  # none, or one that sbatch refuses: SB126
    lead = int(seconds) if at else DEFAULT_LEAD_S
    if time and time < UNLIMITED and (2 * lead > time or lead > MAX_LEAD_S):
        what = f"the signal comes {lead} s before the end of {time} s: the job would hardly begin"
        fix = f"set {to}@{max(1, time // 4)}, or a longer time"
        yield Hit("signal", what, fix, None if lead >= time or not ask.script else "warning")
    elif lead < DEFAULT_LEAD_S:
        what = f"the signal comes {lead} s before the end, and Slurm may send it up to 60 s early or as "
        what += "late as it looks"
        yield Hit("signal", what, f"leave time to save: {to}@300", "warning", pedantic=ask.script)


@RULES.add("SB606", "warning", "a restart that erases the log")
def _requeue_keeps_log(ask: Ask) -> Iterator[Hit]:
    options = ask.job.options
    mode = options.get("open-mode", "")[:1]
    own_log = "%r" in options.get("output", "") and ask.slurm >= "25.11"
    if "requeue" in options and mode != "a" and not own_log:
        what = "a requeued job starts its log anew: what the run before wrote is lost"
        yield Hit("requeue", what, "add --open-mode=append")


@RULES.add("SB701", "warning", "a folder for the log that may not be there")
def _log_folder_exists(ask: Ask) -> Iterator[Hit]:
    if ask.makes_log_folders:
        return
    told = set()
    for name in LOGS:
        folder = ask.job.options.get(name, "").rpartition("/")[0]
        if not folder or folder.strip("./") == "" or folder in told or _is_there(ask, folder):
            continue
        if ask.script and (folder.startswith("/") or _SHELL.search(folder)):
            continue  # a folder of the cluster, not of this machine; SB117
        told.add(folder)
        what = f"the log folder '{folder}' must be there before the job starts, or it dies without a word"
        yield Hit(name, what, f"mkdir -p {folder} first; sbatchgen submit does")


@RULES.add("SB702", "warning", "a log that every run writes over")
def _log_varies(ask: Ask) -> Iterator[Hit]:
    told = False
    for name in LOGS:
        path = ask.job.options.get(name, "")
        kept = ask.job.options.get("open-mode", "").startswith("a")
        if path and path != "none" and not path.startswith("/dev/") and not re.search(r"%\d*[jAsJ]", path):
            does = "they write into each other" if kept else "they write over each other"
            if _tasks_of_array(ask) > 1 and not re.search(r"%\d*a", path):
                what, severity = f"{name} '{path}' is the same for all tasks of the array: {does}", None
            else:
                what, severity = f"{name} '{path}' is the same for every job: {does}", _in_script(ask)
            if not (told and ask.script):
                yield Hit(name, what, "put %j into it", severity)
            told = True


@RULES.add("SB703", "warning", "one log for all tasks of an array")
def _log_of_each_task(ask: Ask) -> Iterator[Hit]:
    for name in LOGS if _tasks_of_array(ask) > 1 else ():
        path = ask.job.options.get(name, "")
        if re.search(r"%\d*A", path) and not re.search(r"%\d*[ajJ]", path):
            what = f"{name} '{path}' is the same for all tasks of the array: they write over each other"
            yield Hit(name, what, "put %a into it, as %A_%a")


@RULES.add("SB704", "warning", "the index of an array in a job that is not an array")
def _log_of_no_array(ask: Ask) -> Iterator[Hit]:
    for name in LOGS if "array" not in ask.job else ():
        if re.search(r"(?<!%)(?:%%)*%\d*a", ask.job.options.get(name, "")):
            what = f"%a in {name} is 4294967294 in a job that is no array"
            yield Hit(name, what, "remove it, or add --array", _in_script(ask))  # sbatch --array may be meant


@RULES.add("SB705", "warning", "a log for each node, where there is one", pedantic=True)
def _log_of_node(ask: Ask) -> Iterator[Hit]:
    for name in LOGS:
        match = re.search(r"(?<!%)(?:%%)*(%\d*[Nnt])", ask.job.options.get(name, ""))
        if match and (ask.job.nodes > 1 or ask.job.tasks_per_node > 1):
            what = f"{match[1]} in {name} is that of the first node: the batch script has one log"
            yield Hit(name, what, f"remove it; for a log of each node or task, srun --{name}")


@RULES.add("SB706", "warning", "a pattern that this release does not know")
def _pattern_known(ask: Ask) -> Iterator[Hit]:
    for name in LOGS:
        for _, letter in _PATTERN.findall(ask.job.options.get(name, "").replace("%%", "")):
            since = NEW_PATTERNS.get(letter, "")
            if since > ask.slurm or letter not in "AaJjNnstuxbrS":
                why = f"needs Slurm {since}" if since else "is no pattern"
                yield Hit(name, f"%{letter} in {name} {why}: it stays as it is", "use %j, %A, %a, %x or %u")


@RULES.add("SB707", "error", "a backslash in the name of a log")
def _no_backslash(ask: Ask) -> Iterator[Hit]:
    for name in LOGS:
        path = ask.job.options.get(name, "")
        if "\\" in path:
            what = f"{name} '{path}': a backslash turns off %j and all other patterns"
            yield Hit(name, what, "use a path without it", "warning" if ask.script else None)


@RULES.add("SB708", "warning", "a job name that leads the log into another folder")
def _name_in_log(ask: Ask) -> Iterator[Hit]:
    job_name = ask.job.options.get("job-name", "")
    for name in LOGS if "/" in job_name else ():
        if "%x" in ask.job.options.get(name, ""):
            what = f"%x in {name} is '{job_name}': the slash makes a folder of it, which Slurm does not "
            what += "make"
            yield Hit(name, what, "use a job name without a slash")


@RULES.add("SB710", "warning", "a log on a disk of the node")
def _log_is_shared(ask: Ask) -> Iterator[Hit]:
    for name in LOGS:
        path = ask.job.options.get(name, "")
        if path.startswith(("/tmp/", "/var/tmp/", "/dev/shm/")):  # noqa: S108 - that is what is warned of
            what = (
                f"{name} '{path}' is on the node's own disk: nobody sees it from where the job was submitted"
            )
            yield Hit(name, what, "use a folder that all nodes share", _in_script(ask))


@RULES.add("SB711", "info", "a job without a log")
def _log_is_kept(ask: Ask) -> Iterator[Hit]:
    path = ask.job.options.get("output", "")
    if path in ("none", "/dev/null"):
        yield Hit("output", f"--output={path}: nothing that the job says is kept", "use %x-%j.out")


def _tasks_of_array(ask: Ask) -> int:
    array = ask.job.options.get("array")
    if not array:
        return 0
    from sbatchgen.sbatch.array import indices  # only jobs with an array need the reader

    return sum(map(len, indices(array) or ()))


def _in_script(ask: Ask) -> Severity | None:
    """What is meant in many scripts of others, and would be a mistake in a plan, is worth knowing there."""
    return "info" if ask.script else None


def _is_there(ask: Ask, folder: str) -> bool:
    """Whether the folder is there; where nobody knows the place of submission, it is not."""
    if ask.folder is None or "%" in folder.replace("%%", ""):
        return False
    start = ask.folder / ask.job.options.get("chdir", "")
    try:
        return (start / Path(folder.replace("%%", "%"))).is_dir()
    except (OSError, ValueError):
        return False
