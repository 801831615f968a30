"""However Slurm ends a job of several programs, its server starts again and its trainer loses nothing.

A job with a server beside the bundled trainer is requeued, reaches its time limit, or loses a node; its weights are
those of one left alone, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.fixtures import VISIBLE, on_one_release
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import TRAINING, Site, site_on
from tests.jobs.test_survival import PACE, SLOWLY, as_soon_as_possible, at_the_end, lost
from tests.training.forks import QUICKLY
from tests.training.states import equal

# How Slurm ends a job on each release is in test_survival, how it starts and ends programs in test_several_programs.
pytestmark = [pytest.mark.proof, on_one_release]
JOB = """
options: {{nodelist: "{nodes}", signal: "B:USR1@120", mem: 500M}}
programs:
  server:
    command: [python3, -m, http.server, "{{port}}", --directory, "{{run_dir}}"]
    nodes: 1
    cpus: 1
    gpus: 1
    ready: {{url: "http://{{host}}:{{port}}/"}}
    grace: 2s
  trainer:
    mode: ddp
    args: [{args}, --deadline, "off"]
    env: {{PYTHONPATH: "{python}", UNTIL: "{until}"}}
    nodes: 2
    cpus: 1
    gpus: 1
    needs: [server]
    main: true
"""
# The trainer has the first two nodes of each list, the server the last one, which dies in one case.
NODES = {"alone": "n1,n2,n3", "requeued": "n1,n2,n3", "limited": "n1,n2,n3", "lost": "n1,n2,n4"}


@pytest.fixture(scope="module")
def site(slurm_root: Path | None) -> Iterator[Site]:
    with Cluster(visible=VISIBLE, root=slurm_root) as cluster:
        cluster.put("work/slowly/sitecustomize.py", SLOWLY)
        yield site_on(cluster)


def start(site: Site, name: str) -> str:
    """Submit the job of a case, which trains slowly until it is interrupted."""
    text = JOB.format(
        nodes=NODES[name],
        args=", ".join(f'"{word}"' for word in (*TRAINING, *PACE)),
        python=f"{site.folder / 'slowly'}:{QUICKLY}",
        until="" if name == "alone" else interrupted(site, name),
    )
    site.cluster.put(f"work/{name}.yaml", text)
    return site.sbatchgen("submit", f"{name}.yaml", "--yes", check=True).stdout.strip()


def interrupted(site: Site, name: str) -> Path:
    """The file that is there from the interruption of a job on."""
    return site.folder / f"interrupted-{name}"


@pytest.fixture(scope="module", autouse=True)
def jobs(site: Site) -> dict[str, str]:
    """All jobs, each interrupted once."""
    cluster = site.cluster
    ids = {name: start(site, name) for name in NODES}

    def trains(name: str) -> Callable[[], bool]:
        return lambda: any(int(str(event["step"])) >= 10 for event in site.events(name, "train"))

    def interrupt(name: str, *how: Callable[[], object]) -> Callable[[], None]:
        def do() -> None:
            interrupted(site, name).touch()
            for each in how:
                each()

        return do

    def limit() -> None:
        hours, minutes, _ = map(int, cluster.job(ids["limited"])["RunTime"].split(":"))
        change("limited", f"timelimit={60 * hours + minutes + 2}")

    def change(name: str, setting: str) -> None:
        cluster.root(["scontrol", "update", f"jobid={ids[name]}", setting])

    as_soon_as_possible(cluster, {
        trains("requeued"): interrupt(
            "requeued", lambda: cluster.run(["scontrol", "requeue", ids["requeued"]], check=True)
        ),
        trains("limited"): limit,
        lambda: "Stopped by time limit" in site.log("limited"): interrupt(
            "limited", lambda: change("limited", "timelimit=60")
        ),
        trains("lost"): interrupt(
            "lost", lambda: cluster.stop_node("n4", declare=True), lambda: cluster.start_node("n4")
        ),
    })  # fmt: skip
    return ids


@pytest.mark.parametrize("name", [name for name in NODES if name != "alone"])
def test_it_ends_as_one_that_was_left_alone(site: Site, jobs: dict[str, str], name: str) -> None:
    for run in ("alone", name):
        record = site.cluster.wait(jobs[run], {"COMPLETED"})
    assert record["Restarts"] == "1"
    states = (site.folder / f"runs/{name}/programs/state").read_text().splitlines()
    starts = [line.split()[2] for line in states if line.endswith((" starts", " starts "))]
    assert starts == ["job", "server", "trainer"] * 2
    assert states[-1].split()[2:] == ["trainer", "ended", "with", "0"] or "server ended" in states[-1]
    assert equal(at_the_end(site, name), at_the_end(site, "alone"))
    assert max(lost(site, name)) <= (0 if name != "lost" else 7)


def test_nothing_is_left(site: Site, jobs: dict[str, str]) -> None:
    cluster = site.cluster
    for job in jobs.values():
        cluster.wait(job)

    def running() -> str:
        numbers = (
            cluster.root(["pgrep", "-u", cluster.user], on=name, check=False).stdout for name in cluster.nodes
        )
        return "".join(numbers)

    cluster.until(lambda: not running(), "end of all processes of the user")
    assert not running()
