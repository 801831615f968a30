"""What each option of sbatch means, in a line, and the words that some of them take."""

from functools import cache
from pathlib import Path

from sbatchgen.inputs.options import LONG_NAMES, SbatchOptions
from sbatchgen.keys import keys_of
from sbatchgen.sbatch.values import MAIL_EVENTS

_DISTRIBUTIONS = "block cyclic plane= arbitrary block:block block:cyclic cyclic:cyclic"
_GRES_FLAGS = "disable-binding enforce-binding one-task-per-sharing multiple-tasks-per-sharing"
WORDS = {
    "distribution": tuple(_DISTRIBUTIONS.split()),
    "exclusive": ("user", "mcs", "topo"),
    "export": ("ALL", "NIL", "NONE"),
    "gpu-bind": ("closest", "none", "single:1", "verbose,"),
    "gres-flags": tuple(_GRES_FLAGS.split()),
    "hint": ("compute_bound", "memory_bound", "multithread", "nomultithread"),
    "kill-on-invalid-dep": ("no", "yes"),
    "mail-type": tuple(sorted(MAIL_EVENTS)),
    "open-mode": ("append", "truncate"),
    "wait-all-nodes": ("0", "1"),
}


@cache
def meanings() -> dict[str, str]:
    """Return what each option of sbatch means, by its long name."""
    known = {LONG_NAMES[name]: key.metadata["help"] for name, key in keys_of(SbatchOptions).items()}
    table = Path(__file__).with_suffix(".txt").read_text()  # of options that a job's `options` lack
    rows = (row.split(maxsplit=1) for row in table.splitlines())
    return known | {name: text for name, text in rows}  # noqa: C416
