"""The signals that Slurm sends to a script or its steps, and those for which the script sets a trap.

`survival` and `kills` have the rules about them.
"""

from __future__ import annotations

from signal import Signals

from sbatchgen.check.executables.program import SHELLS
from sbatchgen.check.sbatch.values import read_signal
from sbatchgen.check.script.script import JobScript

HARMLESS_SIGNALS = frozenset(("CONT", "CHLD", "WINCH", "URG"))  # a process without a handler ignores these
_SIGNAL_NAMES = {str(int(signal)): signal.name for signal in Signals}  # "15" -> "SIGTERM"


def signal_of(script: JobScript, *, to_batch_shell: bool) -> str | None:
    """Return the name of the signal that --signal asks for, such as USR1.

    With B: in the option, Slurm sends the signal to the batch shell, and otherwise to the steps. The result
    is None if the option has the other receiver, is missing, or is malformed (SB126).
    """
    option = read_signal(script.option("signal"))
    has_receiver = option is not None and ("B" in option.flags) == to_batch_shell
    return signal_name(str(option.number)) if option and has_receiver else None


def signal_name(signal: str) -> str:
    """Return the name of a signal in capitals and without SIG, such as TERM for SIGTERM, term or 15."""
    return _SIGNAL_NAMES.get(signal, signal.upper()).removeprefix("SIG")


def trapped_signals(script: JobScript) -> set[str]:
    """Return the signals for which the script sets a trap; "?" for an unknown signal."""
    signals: set[str] = set()
    for command in script.named("trap"):
        words = command.trap_words
        if words and words[0].text != "-":
            signals |= {signal_name(script.body.value(word) or "?") for word in words[1:]}
    return signals


def runs_only_its_text(script: JobScript) -> bool:
    """Return whether a shell runs the script, and no sourced file or `exec` decides what it does.

    Only then does the text show all traps.
    """
    if script.body.language not in SHELLS:
        return False
    if any(len(command.words) > 1 and command.context.is_top_level for command in script.named("exec")):
        return False
    return not script.sources_commands
