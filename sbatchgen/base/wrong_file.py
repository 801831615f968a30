"""Files of a kind that a command does not accept: the problem, and the command that accepts the file."""

import re
from pathlib import Path

from sbatchgen.base.errors import Problem
from sbatchgen.base.files import read_start
from sbatchgen.base.quoting import word

HEAD = 1 << 16  # bytes at the start of a file by which its kind is known
_DIRECTIVE = re.compile(rb"^#SBATCH", re.MULTILINE)
_PROFILE_KEY = re.compile(rb"^(?:url|checked|partitions|scheduler):", re.MULTILINE)
_JOB_KEY = re.compile(rb"^mode:", re.MULTILINE)
_NOUNS = {
    "program": "a Python program",
    "script": "a script",
    "profile": "the profile of a cluster",
    "settings": "a file of defaults for all jobs in its folder",
    "job": "a job YAML",
    "yaml": "a YAML file",
    "folder": "a folder",
    "run": "a run folder",
    "special": "a pipe or a device",
}
# The command to type instead, by the kind of the file. {verb} is the typed command, {file} the file, {mode}
# the mode that was typed with the file.
_COMMANDS = {
    "program": "sbatchgen review single --trainer {file}",
    "script": "sbatchgen lint {file}",
    "profile": "sbatchgen profile check {file}",
    "settings": "sbatchgen review single",
    "job": "sbatchgen review {file}",
    "yaml": "name a script, or a folder with scripts",
    "run": "sbatchgen status {file}",
    "special": "write its text to a file, and name that file",
}
_MODE_FLAGS = {"program": " --trainer {file}", "profile": " --profile {file}", "settings": ""}
_MODE_COMMANDS = {name: f"sbatchgen {{verb}} {{mode}}{flag}" for name, flag in _MODE_FLAGS.items()}
_COMMANDS_BY_WANTED = {
    "job": {**_COMMANDS, **_MODE_COMMANDS, "folder": "name a job YAML in it"},
    "script": {**_COMMANDS, "folder": "name a script in it"},
    "profile": {
        **{name: _COMMANDS[name] for name in _COMMANDS if name != "yaml"},
        "folder": "name a profile's file in it",
    },
}
# The command in place of `sweep` and `explain`, which need a job: adopt makes a job of a script.
_ADOPT_COMMANDS = dict.fromkeys(("sweep", "explain"), "sbatchgen adopt {file} --to .")


def wrong_kind(
    name: str, wanted: str, verb: str, mode: str = "single", folder: Path = Path()
) -> Problem | None:
    """Return the problem of a file or folder of the wrong kind; None if the kind is right or not known.

    `wanted` is the kind of file that the command accepts: "job", "script" or "profile". `verb` is the name of
    the command. `mode` was typed with the file. `name` is relative to `folder`.
    """
    kind = _kind(folder / name)
    accepts_script = verb in ("submit", "review", "plan")
    is_accepted = wanted == "job" and (kind == "yaml" or (kind == "script" and accepts_script))
    if kind in ("", wanted) or is_accepted:
        return None
    if (kind, wanted) == ("run", "job") and verb == "submit":
        instead = "sbatchgen resume {file}"
    elif (kind, wanted) == ("script", "job"):
        instead = _ADOPT_COMMANDS.get(verb, _COMMANDS[kind])
    else:
        instead = _COMMANDS_BY_WANTED[wanted].get(kind, "")
    what = f"{name} is {_NOUNS[kind]}, not a {wanted}"
    return Problem(what, fix=instead.format(verb=verb, mode=mode, file=word(name))) if instead else None


def _kind(path: Path) -> str:
    """Return the kind of a file or folder, a key of _NOUNS; "" if it is not clear."""
    if path.is_dir():
        return "run" if any(path.glob("job-*.json")) or (path / "checkpoints").is_dir() else "folder"
    if path.exists() and not path.is_file():
        return "special"
    try:
        return kind_of(path, read_start(path, HEAD) if path.is_file() else b"")
    except OSError:
        return ""


def kind_of(path: Path, data: bytes) -> str:
    """Return the kind of a file, by its name and its content; "" if the kind is not clear."""
    if path.suffix in (".yaml", ".yml"):
        if _PROFILE_KEY.search(data):
            return "profile"
        if _JOB_KEY.search(data):
            return "job"
        return "settings" if path.name == "sbatchgen.yaml" else "yaml"
    first = data.partition(b"\n")[0]
    if _DIRECTIVE.search(data):
        return "script"
    if (path.suffix == ".py" and data) or (first.startswith(b"#!") and b"python" in first):
        return "program"
    return "script" if first.startswith(b"#!") or path.suffix in (".slurm", ".sbatch", ".sh") else ""
