"""Options that are not sbatch's own, or not any more: what to say where a script uses one.

Sources: srun(1) of Slurm 22.05; pyxis' README and args.c; the option tables of Slurm 16.05 to 26.05.
"""

from __future__ import annotations

from collections.abc import Iterable

from sbatchgen.script.releases import RELEASES, Argument, Spec, specs

_OF_SRUN = """
accel-bind bcast bcast-exclude compress cpu-bind disable-status epilog exact external-launcher het-group
immediate interactive jobid kill-on-bad-exit label mpi msg-timeout multi-prog no-allocate overlap
preserve-env prolog pty quit-on-interrupt relative send-libs slurmd-debug task-epilog task-prolog threads
treewidth unbuffered whole x11
"""
SRUN_ONLY = frozenset(_OF_SRUN.split())
RENAMED = {
    "workdir": "chdir",
    "share": "oversubscribe",
    "mem_bind": "mem-bind",
    "minnodes": "nodes",
    "walltime": "time",
    "queue": "partition",
    "project": "account",
    "name": "job-name",
    "cpus": "cpus-per-task",
    "memory": "mem",
    "gpu": "gpus",
    "email": "mail-user",
}

_PYXIS_VALUES = ("entrypoint-log", "env", "image", "mounts", "name", "save", "workdir")
_PYXIS_FLAGS = ("entrypoint", "mount-home", "readonly", "remap-root", "writable")
_PYXIS_NEGATED = ("entrypoint", "mount-home", "remap-root")


def _plugin(name: str, argument: Argument) -> Spec:
    return Spec(name=name, short="", argument=argument, early=False, per_component=False)


PYXIS = (
    *(_plugin(f"container-{name}", Argument.REQUIRED) for name in _PYXIS_VALUES),
    *(_plugin(f"container-{name}", Argument.NONE) for name in _PYXIS_FLAGS),
    *(_plugin(f"no-container-{name}", Argument.NONE) for name in _PYXIS_NEGATED),
)
PYXIS_NAMES = frozenset(spec.name for spec in PYXIS)


def of_plugins(names: Iterable[str]) -> tuple[Spec, ...]:
    """Options of a site's plugins; a name that ends in = has a value."""
    kinds = {True: Argument.REQUIRED, False: Argument.NONE}
    return tuple(_plugin(name.rstrip("="), kinds[name.endswith("=")]) for name in names)


def table(slurm: str, plugins: Iterable[Spec] = ()) -> dict[str, Spec]:
    """The options that a directive may hold where pyxis is there, by long name."""
    return specs(slurm) | {spec.name: spec for spec in (*PYXIS, *plugins)}


def releases(name: str) -> tuple[str, ...]:
    """The releases that know an option, oldest first; none if it never was one of those in the tables."""
    return tuple(release for release in RELEASES if name in specs(release))
