"""The program of the launch -> trainer, its arguments, and the Python that runs it."""

from __future__ import annotations

import posixpath
import re

from sbatchgen import quoting
from sbatchgen.adopt.draft import SUBMIT_DIR, Draft
from sbatchgen.job.launches import LAUNCHERS, Launch

# Launchers that are programs of Python to a job, which start the processes of one node.
_MODULES = {"accelerate launch": "accelerate.commands.launch", "deepspeed": "deepspeed.launcher.runner"}


def adopt_trainer(draft: Draft, launch: Launch) -> None:
    """Take over the interpreter, the trainer and its arguments."""
    _read_interpreter(draft, launch)
    python = next((tool for tool in launch.tools if tool.name == "python"), None)
    for option in python.given if python else ():
        if option.name not in ("m", "u"):
            draft.lose(f"-{option.name} of python")
    own_module = _MODULES.get(launch.launcher.name) if launch.launcher else None
    program, body = launch.program, launch.program.body
    words = program.rest if program.name == "python" else program.words
    if launch.launcher and own_module:  # the launcher is the trainer
        words = launch.launcher.words
        words = words[2 if words[0].text.endswith("accelerate") else 1 :]
    if not words:
        draft.lose("no trainer is started")
        return
    values = [draft.argument(word, body) for word in words]
    for word, value in zip(words, values, strict=True):
        if value is None:
            given = any(name.isdigit() or name in "@*" for name in body.followed(word).variables)
            what = "the script's own arguments" if given else "what is known only when the job runs"
            draft.lose(f"write out {what}", word.text if len(word.text) < 40 else f"{word.text[:36]}...")
    if own_module:
        draft.job["trainer"] = own_module
    elif (name := values.pop(0)) is not None:
        is_module = program.module or any(tool.module for tool in launch.tools)
        draft.job["trainer"] = name if is_module else _file(draft, name)
    draft.job["args"] = [value for value in values if value is not None]


def _read_interpreter(draft: Draft, launch: Launch) -> None:
    """Take over the folder of a Python, or a torchrun: here python3 is the first one on PATH."""
    tool = next(tool for tool in launch.tools if tool.name in ("python", "torchrun", *LAUNCHERS))
    path = draft.path(tool.words[0], tool.body) or ""
    if "/" in path:
        path = draft.file(tool.words[0], tool.body) or ""
    folder, slash, name = path.rpartition("/")
    if re.fullmatch(r"python3\.\d+", name) or not path:
        draft.lose(f"{tool.words[0].text}: python3 of an environment is started here")
    elif slash and draft.profile.get("runtime"):
        draft.lose(f"{path}: python3 of the image is started here")
    elif slash and folder.endswith("/bin") and "venv" in folder:
        environment = folder.removesuffix("/bin")
        draft.profile |= {"runtime": "venv", "runtimes": {"venv": {"path": environment}}}
        draft.add(draft.lines, "understood", f"runtime venv: {environment}")
    elif slash:
        absolute = folder if folder.startswith(("/", "${")) else f"{SUBMIT_DIR}/{folder}"
        draft.profile["runtime"] = "host"
        draft.step_setup.append(f"PATH={quoting.path(absolute)}:$PATH")
        draft.add(draft.lines, "understood", f"{absolute} comes first in PATH")


def _file(draft: Draft, name: str) -> str:
    """Return the trainer's file; in a container relative to where that starts."""
    workdir = draft.profile.get("runtimes", {}).get("enroot", {}).get("workdir")
    in_workdir = name.startswith("/") and isinstance(workdir, str) and workdir.startswith("/")
    if in_workdir:
        name = posixpath.relpath(name, workdir)
    return name if "/" in name or (name.endswith(".py") and not in_workdir) else f"./{name}"
