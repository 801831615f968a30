"""The launchers of PyTorch that a script starts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from sbatchgen.bash.tools import SYNTAX
from sbatchgen.dryrun.starts import StartedProcess
from sbatchgen.dryrun.step import number_of
from sbatchgen.job.launches import LAUNCHERS

RANKS = ("node-rank", "machine-rank")
ADDRESSES = ("rdzv-endpoint", "master-addr", "main-process-ip")
PORTS = ("master-port", "main-process-port")
_DEFAULT_PORT = "29500"  # of torchrun and deepspeed
_MODULES = {  # of python -m
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}


class StartedLauncher:
    """A launcher of PyTorch in a process: its name and its options."""

    def __init__(self, process: StartedProcess) -> None:
        """Read the words of a process; `name` is "" if it is not a launcher."""
        words = list(process.argv)
        self.process = process
        program = words[0].rpartition("/")[2]
        if program.startswith("python"):
            rest = [word for word in words[1:] if word not in ("-u", "-m")]
            first = rest[0] if rest else ""
            program = _MODULES.get(first, "torchrun" if first.endswith("training/torchrun.py") else "")
            words = rest
        verb = f"{program} {words[1]}" if len(words) > 1 else program
        self.name = next((name for name in (program, verb) if name in LAUNCHERS), "")
        self.options: dict[str, str] = {}
        self.rest: Sequence[str] = ()
        if self.name:
            self._read(words[1 + (self.name == verb and verb != program) :])

    def _read(self, words: Sequence[str]) -> None:
        syntax = SYNTAX[self.name]
        at = 0
        while at < len(words) and words[at].startswith("-") and words[at] != "--":
            name, equals, value = words[at].lstrip("-").partition("=")
            name = name.replace("_", "-")
            at += 1
            if name in syntax.values and not equals and at < len(words):
                value = words[at]
                at += 1
            self.options[name] = value
        self.rest = words[at:]

    @cached_property
    def nodes(self) -> int:
        """The number of nodes for which it waits; 0 if its options do not say."""
        if not self.name or "standalone" in self.options:
            return 0
        return number_of(self.options.get(LAUNCHERS[self.name].nodes, "1"))

    @cached_property
    def workers(self) -> int:
        """How many processes it starts on its node; 0 if its options do not say."""
        asked = number_of(self.options.get(LAUNCHERS[self.name].processes)) if self.name else 0
        return asked // max(self.nodes, 1) if self.name == "accelerate launch" else asked

    @property
    def starts_nothing(self) -> bool:
        """Whether its command ends before the program that it should start."""
        shows = {"help", "h", "version"} & {*self.options}
        return bool(self.name) and not self.rest and not shows

    @property
    def port(self) -> str:
        """The port on which it listens on its node; "" if it takes a free one."""
        is_static = self.options.get("rdzv-backend", "static") == "static"  # c10d may use another's port
        if self.name not in ("torchrun", "deepspeed") or not is_static or self.nodes != 1:
            return ""
        _, colon, port = self.options.get("rdzv-endpoint", "").rpartition(":")
        port = port if colon else self.options.get("master-port", _DEFAULT_PORT)
        return port if port != "0" else ""

    def first(self, names: Sequence[str]) -> tuple[str, str]:
        """The first of these options that it has, and its value."""
        return next(((name, self.options[name]) for name in names if name in self.options), ("", ""))
