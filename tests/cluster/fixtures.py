"""Session fixtures of a real Slurm; a conftest.py names this module in pytest_plugins."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from . import oracle as parse_only
from . import site
from .controller import Controller
from .slurm import Cluster

CHECKOUT = Path(__file__).resolve().parents[2]
JOBS = "jobs on a real Slurm"


@pytest.fixture(scope="session")
def real_slurm() -> None:
    """This machine can run a Slurm."""
    _need(site.why_not(), what=JOBS)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four nodes with an ordinary user who can reach this checkout and this interpreter."""
    _need(site.why_not(), what=JOBS)
    with Cluster(visible=[Path(sys.base_prefix), Path(sys.prefix), CHECKOUT]) as running:
        yield running


@pytest.fixture(scope="session")
def controller_factory() -> Iterator[Callable[..., Controller]]:
    """Makes a running Controller from its keyword arguments; all end with the session."""
    _need(site.why_not(), what=JOBS)
    with ExitStack() as stack:
        yield lambda **lines: stack.enter_context(Controller(**lines))


@pytest.fixture(scope="session")
def oracle() -> Callable[..., parse_only.Reading]:
    """What the real sbatch reads in a script: oracle.read."""
    _need(
        None if shutil.which("sbatch") else "needs the Debian package slurm-client",
        what="scripts read by a real sbatch",
    )
    return parse_only.read


@pytest.fixture(scope="session")
def later_root() -> Path:
    """The folder of a system with a later Slurm, which `make sid` makes of Debian unstable.

    That moves on, and is not on every mirror: without it nothing fails, since what such an sbatch said is
    recorded and always tested.
    """
    root = CHECKOUT / "build" / "sid"
    lacking = "needs root" if os.getuid() else None
    if not (root / "usr/bin/sbatch").exists():
        lacking = "needs `make sid`"
    elif not lacking and " 26.05." not in (found := parse_only.version(root)):
        lacking = f"Debian unstable has another Slurm by now, {found}"
    if lacking:
        pytest.skip(f"left out: scripts read by the sbatch of Slurm 26.05: {lacking}")
    return root


@pytest.fixture(scope="session")
def later_slurmctld(later_root: Path) -> Path:
    """The same folder, where its slurmctld can run."""
    _need(site.why_not(), what=JOBS)
    if not (later_root / "usr/sbin/slurmctld").exists():
        pytest.skip("left out: values judged by the slurmctld of 26.05: needs `make sid` once more")
    return later_root


def _need(lacking: str | None, *, what: str) -> None:
    """Skip what this machine cannot do; on CI, where it must be able to, fail."""
    if lacking:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"left out: {what}: {lacking}")
