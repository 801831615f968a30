"""The program that is started in the end -> trainer, its arguments, and the Python that runs it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from sbatchgen import quoting
from sbatchgen.adopt.draft import SUBMIT_DIR, Draft
from sbatchgen.bash import Word
from sbatchgen.job.launches import LAUNCHERS, Launch

# Launchers that are programs of Python to a job, which start the processes of one node.
_MODULES = {"accelerate launch": "accelerate.commands.launch", "deepspeed": "deepspeed.launcher.runner"}


def read(draft: Draft, launch: Launch) -> None:
    """Take over the interpreter, the trainer and its arguments."""
    _interpreter(draft, launch)
    python = next((tool for tool in launch.tools if tool.name == "python"), None)
    for option in python.given if python else ():
        if option.name not in ("m", "u"):
            draft.lose(f"-{option.name} of python")
    words, body = _words(launch), launch.program.body
    if not words:
        draft.lose("no trainer is started")
        return
    values = [draft.argument(word, body) for word in words]
    for word, value in zip(words, values, strict=True):
        if value is None:
            given = any(name.isdigit() or name in "@*" for name in body.followed(word).variables)
            what = "what the script is given as arguments" if given else "what the text does not tell"
            text = word.text if len(word.text) < 40 else f"{word.text[:36]}..."
            draft.lose(f"write out {what}", text)
    if launch.launcher and launch.launcher.name in _MODULES:
        draft.job["trainer"] = _MODULES[launch.launcher.name]
    elif (name := values.pop(0)) is not None:
        module = launch.program.module or any(tool.module for tool in launch.tools)
        draft.job["trainer"] = _trainer(draft, name, module=module)
    draft.job["args"] = [value for value in values if value is not None]


def _interpreter(draft: Draft, launch: Launch) -> None:
    """A Python, or a torchrun, that is named with its folder: here python3 is the first one on PATH."""
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


def _words(launch: Launch) -> Sequence[Word]:
    """The trainer and its arguments; of a launcher that is the trainer, its own."""
    if launch.launcher and launch.launcher.name in _MODULES:
        words = launch.launcher.words
        return words[2 if words[0].text.endswith("accelerate") else 1 :]
    last = launch.tools[-1]
    return last.rest if last.name == "python" else last.words


def _trainer(draft: Draft, name: str, *, module: bool) -> str:
    """The trainer, as a file or a module; in a container relative to where that starts."""
    if module:
        return name
    workdir = draft.profile.get("runtimes", {}).get("enroot", {}).get("workdir")
    if name.startswith("/") and isinstance(workdir, str) and workdir.startswith("/"):
        name = posixpath.relpath(name, workdir)
        return name if "/" in name else f"./{name}"
    return name if "/" in name or name.endswith(".py") else f"./{name}"
