"""Options that sbatch does not have, or no longer: srun's, plugins', renamed ones.

Sources: srun(1) of Slurm 22.05; pyxis' README and args.c; the option tables of Slurm 16.05 to 26.05.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import chain

from sbatchgen.errors import nearest
from sbatchgen.sbatch.option_table import HasArgument, Spec, specs
from sbatchgen.units import RELEASES

_OF_SRUN = """
accel-bind bcast bcast-exclude compress cpu-bind disable-status epilog exact external-launcher het-group
immediate interactive jobid kill-on-bad-exit label mpi msg-timeout multi-prog no-allocate overlap
preserve-env prolog pty quit-on-interrupt relative send-libs slurmd-debug task-epilog task-prolog threads
treewidth unbuffered whole x11
"""
SRUN_ONLY = frozenset(_OF_SRUN.split())
_RENAMED = """
workdir=chdir share=oversubscribe mem_bind=mem-bind minnodes=nodes walltime=time queue=partition
project=account name=job-name cpus=cpus-per-task memory=mem gpu=gpus email=mail-user
"""
RENAMED = dict(pair.split("=") for pair in _RENAMED.split())

_OF_PYXIS = """
container-entrypoint-log= container-env= container-image= container-mounts= container-name= container-save=
container-workdir= container-entrypoint container-mount-home container-readonly container-remap-root
container-writable no-container-entrypoint no-container-mount-home no-container-remap-root
"""
# Options of other plugins: where they come from, then the names; name= for one with a value.
_KNOWN_PLUGINS = """
shifter: image= volume= module= ccm
CSCS: environment= uenv= uenv-file= view=
EAR: ear= ear-policy= ear-policy-th= ear-cpufreq= ear-user-db= ear-mpi-dist= ear-verbose= ear-tag=
Paderborn: fpgalink=
SenseTime: quotatype=
Stanford: gpu_cmode= gpu-cmode=
MPS: gpu-mps cuda-mps
BeeOND: beeond
CEA: auks=
Dresden: disable-perfparanoid
"""


def of_plugins(names: Iterable[str]) -> tuple[Spec, ...]:
    """Options of a site's plugins; a name that ends in = has a value."""
    kinds = {True: HasArgument.REQUIRED, False: HasArgument.NONE}
    return tuple(Spec(name.rstrip("="), "", kinds[name.endswith("=")]) for name in names)


PYXIS = of_plugins(_OF_PYXIS.split())
PYXIS_NAMES = frozenset(spec.name for spec in PYXIS)


@cache
def known_plugins() -> tuple[Spec, ...]:
    """Options of plugins that several sites or a well-known one have, except pyxis."""
    lines = (line.partition(":")[2].split() for line in _KNOWN_PLUGINS.strip().split("\n"))
    return of_plugins(chain.from_iterable(lines))


def is_near(name: str, slurm: str) -> bool:
    """Return whether a name is one of sbatch's own options with a slip or two of the keyboard."""
    plain = name.replace("_", "").replace("-", "")
    return len(plain) >= 5 and bool(nearest(plain, (known.replace("-", "") for known in specs(slurm)), 0.8))


def table(slurm: str, plugins: Iterable[Spec] = ()) -> dict[str, Spec]:
    """The options that a directive may hold if pyxis is installed, by long name."""
    return specs(slurm) | {spec.name: spec for spec in (*PYXIS, *plugins)}


def releases(name: str) -> tuple[str, ...]:
    """The releases that have an option, oldest first."""
    return tuple(release for release in RELEASES if name in specs(release))
