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
VISIBLE = [Path(sys.base_prefix), Path(sys.prefix), CHECKOUT]
JOBS = "jobs on a real Slurm"
RELEASES = FIRST, LATER = ("22.05", "26.05")
# Of a test whose subject does not depend on the release: what is in a job, not what Slurm makes of it.
on_one_release = pytest.mark.parametrize("slurm_release", [FIRST], indirect=True)


@pytest.fixture(scope="session")
def real_slurm() -> None:
    """This machine can run a Slurm."""
    _need(site.why_not(), what=JOBS)


@pytest.fixture(scope="session", params=RELEASES)
def slurm_release(request: pytest.FixtureRequest) -> str:
    """The Slurm that runs the jobs: Debian 12's, which is installed here, and that of the folder of `make sid`."""
    return str(request.param)


@pytest.fixture(scope="session")
def slurm_root(request: pytest.FixtureRequest, slurm_release: str) -> Path | None:
    """The folder of the system with this Slurm, None for this machine's own."""
    _need(site.why_not(), what=JOBS)
    return None if slurm_release == FIRST else Path(request.getfixturevalue("later_root"))


@pytest.fixture(scope="session")
def running_cluster(slurm_root: Path | None) -> Iterator[Cluster]:
    """Four nodes with an ordinary user who can reach this checkout and this interpreter."""
    with Cluster(visible=VISIBLE, root=slurm_root) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(running_cluster: Cluster) -> Cluster:
    """The same nodes for all files of tests, each with a home of its own: two files may name runs alike."""
    running_cluster.empty_home()
    return running_cluster


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
    """The folder of a system with a later Slurm, and Apptainer, which `make sid` makes of Debian unstable.

    That moves on, and is not on every mirror: without it nothing fails. What such an sbatch said is recorded and
    always tested, and jobs run on this machine's Slurm.
    """
    root = CHECKOUT / "build" / "sid"
    lacking = "needs root" if os.getuid() else None
    programs = ("bin/sbatch", "sbin/slurmd", "sbin/slurmdbd", "bin/apptainer")
    if not all((root / "usr" / program).exists() for program in programs):
        lacking = "needs `make sid`"
    elif not lacking and " 26.05." not in (release := parse_only.version(root)):
        lacking = f"Debian unstable has another Slurm by now, {release}"
    if lacking:
        pytest.skip(f"left out: Slurm 26.05: {lacking}")
    return root


def _need(lacking: str | None, *, what: str) -> None:
    """Skip what this machine cannot do; on CI, where it must be able to, fail."""
    if lacking:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"left out: {what}: {lacking}")
