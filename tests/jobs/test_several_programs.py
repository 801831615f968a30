"""Several programs in one job, on the real Slurm: every fault of each, and what is left of it."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.render.render import render_request
from sbatchgen.jobs.resolved.request import read_request
from tests.cluster.fixtures import CHECKOUT, VISIBLE, on_one_release
from tests.cluster.slurm import Cluster
from tests.tables import hold
from tests.training.forks import QUICKLY

GRACE_S, SHARED_MEMORY = 4, "/dev/shm"  # noqa: S108
PROFILE = """
name: Test
url: https://example.org
checked: 2026-11-01
partitions: {gpu: {gpus_per_node: 4, cpus_per_node: 8, mem_per_node: 16000M}}
default_partition: gpu
"""
JOB = f"""
profile: profile.yaml
options: {{time: "{{time}}", requeue: {{requeue}}}}
programs:
  server:
    command: [bash, program.sh, server, "{{server}}", "{{port}}"]
    gpus: 1
    cpus: 1
    ready: {{url: "http://{{host}}:{{port}}/", within: 8s}}
    grace: {GRACE_S}s
  client:
    command: [bash, program.sh, client, "{{client}}", "http://{{server.host}}:{{server.port}}/"]
    gpus: 2
    cpus: 1
    needs: [server]
    main: true
    grace: {GRACE_S}s
  evaluator:
    command: [bash, program.sh, evaluator, "{{evaluator}}"]
    gpus: 1
    cpus: 1
    grace: {GRACE_S}s
"""
# A program that is well, or has a fault. A child that outlives it is lost to a Slurm without cgroups, for two minutes.
PROGRAM = r"""
name=$1 fault=$2 long=120
[[ $fault != crash* ]] || long=20
echo "$name on $(hostname) with GPUs $CUDA_VISIBLE_DEVICES"
[[ $name == client ]] || setsid sleep 20 & # holds the output
case $fault in
    "crash at start") exit 3 ;;
    "never ready") sleep 120 ;;
    "crash later") (sleep 4; kill -9 $$) & ;;
    "end too early") (sleep 4; kill -USR1 $$) & trap 'kill $child; exit 0' USR1 ;;
    hang) kill -STOP $$ ;;
    "TERM ignored") trap '' TERM ;;
esac
case $name in
    server) timeout $long python3 -m http.server "$3" >/dev/null 2>&1 & child=$! ;;
    client)
        for _ in 1 2 3 4 5 6; do curl -fs -m 5 "$3" >/dev/null && sleep 1; done & child=$! ;;
    evaluator) [[ $fault == TERM* ]] || trap 'echo evaluated; exit 0' TERM; sleep $long & child=$! ;;
esac
wait $child; status=$?
[[ $fault == TERM* ]] && sleep 120
exit $status
"""


class Case(NamedTuple):
    """A fault of one program, and how the job ends with it."""

    program: str
    fault: str
    status: int
    last: str = ""  # what the last line of the log holds


CASES = [
    Case("client", "", 0, "client ended with 0"),
    Case("server", "crash at start", 3, "error: server on n"),
    Case("server", "never ready", 1, "was not ready after 8 s: http://n"),
    Case("server", "crash later", 137, "error: server on n"),
    Case("server", "end too early", 1, "ended with 0, which ends the job"),
    Case("server", "TERM ignored", 0, "client ended with 0"),
    Case("client", "crash at start", 3, "client ended with 3"),
    Case("client", "crash later", 137, "client ended with 137"),
    Case("client", "end too early", 0, "client ended with 0"),
    Case("evaluator", "crash at start", 3, "error: evaluator on n"),
    Case("evaluator", "crash later", 137, "error: evaluator on n"),
    Case("evaluator", "end too early", 1, "error: evaluator on n"),
    Case("evaluator", "hang", 0, "client ended with 0"),
    Case("evaluator", "TERM ignored", 0, "client ended with 0"),
]


def job_of(folder: Path, *, time: str = "00:05:00", requeue: str = "false", **faults: str) -> str:
    """The script of a job whose programs have these faults."""
    text = JOB
    for name in ("server", "client", "evaluator"):
        text = text.replace(f'{name}, "{{{name}}}"', f'{name}, "{faults.get(name, "")}"')
    text = text.replace("{time}", time).replace("{requeue}", requeue)
    (folder / "profile.yaml").write_text(textwrap.dedent(PROFILE))
    (folder / "job.yaml").write_text(textwrap.dedent(text))
    request = read_request("job.yaml", (), {}, environment={}, folder=folder, check=check)
    assert not [finding for finding in check(request.resolved) if finding.severity == "error"]
    return render_request(request)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submitted(cluster: Cluster, name: str, script: str) -> int:
    cluster.put(f"{name}/program.sh", PROGRAM)
    return cluster.sbatch("--output=log", cwd=cluster.home / name, script=script)


def left(cluster: Cluster) -> Iterator[str]:
    """Processes of the user, whatever their session, and what they left in memory."""
    for node in cluster.nodes:
        running = cluster.root(["pgrep", "-a", "-u", cluster.user], on=node, check=False).stdout
        yield from (f"{node}: {line}" for line in running.splitlines())
        yield from cluster.root(["find", SHARED_MEMORY, "-type", "f"], on=node).stdout.splitlines()


def ends_as_it_should(case: Case, cluster: Cluster, job: int) -> None:
    record = cluster.job(job)
    folder = Path(record["WorkDir"])
    log = (folder / "log").read_text(errors="replace").splitlines()
    assert record["ExitCode"].partition(":")[0] == str(case.status), log[-5:]
    lines = [line for line in log if not line.startswith(("srun:", "slurmstepd", "["))]
    assert case.last in lines[-1], lines[-3:]
    states = (folder / "runs/job/programs/state").read_text().splitlines()
    decided = next(line for line in states if " client ended" in line or " failed" in line)
    since = datetime.strptime(decided[:19], "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007 - as Slurm says it
    assert (datetime.fromisoformat(record["EndTime"]) - since).total_seconds() <= GRACE_S + 10, states
    if not case.fault:
        logs = [
            folder / "log",
            *(folder / f"runs/job/programs/{name}.0.log" for name in ("server", "evaluator")),
        ]
        lines = [line for path in logs for line in path.read_text().splitlines() if " with GPUs " in line]
        gpus = ",".join(line.rpartition(" ")[2] for line in lines)
        assert sorted(gpus.split(",")) == ["0", "1", "2", "3"], lines


@pytest.mark.proof
def test_each_fault_of_a_program_ends_the_job_as_it_should(cluster: Cluster, in_folder: Path) -> None:
    jobs = [
        submitted(cluster, f"several-{number}", job_of(in_folder, **{case.program: case.fault}))
        for number, case in enumerate(CASES)
    ]
    for job in jobs:
        cluster.wait(job)
    hold(ends_as_it_should, [(case, cluster, job) for case, job in zip(CASES, jobs, strict=True)])
    cluster.until(lambda: not [*left(cluster)], "nothing of the programs left on any node")


@pytest.fixture
def impatient(slurm_root: Path | None) -> Iterator[Cluster]:
    """A cluster that kills a cancelled job after 5 s, and not after a minute."""
    with Cluster(visible=VISIBLE, settings="KillWait=5", root=slurm_root) as running:
        yield running


def test_a_cancelled_job_leaves_nothing(impatient: Cluster, in_folder: Path) -> None:
    cluster = impatient
    job = submitted(cluster, "several-cancelled", job_of(in_folder, client="hang", server="TERM ignored"))
    folder = cluster.home / "several-cancelled"
    cluster.until(lambda: "client starts" in text_of(folder / "log"), "start of the client")
    cluster.run(["scancel", str(job)], check=True)
    assert cluster.wait(job)["JobState"] == "CANCELLED"
    cluster.until(lambda: not [*left(cluster)], "nothing of the programs left on any node")


FIELD = """
profile: profile.yaml
options: {time: "00:05:00"}
programs:
  inference:
    command: [bash, -c, "sleep 3; exec python3 -m http.server {port}"]
    nodes: 1
    gpus: 1
    cpus: 1
    ready: {port: "{port}"}
    grace: 4s
  orchestrator:
    command: [bash, -c, "curl -fs http://$SBATCHGEN_INFERENCE_HOST:$SBATCHGEN_INFERENCE_PORT/ | tee -a answers >/dev/null; sleep 3; exit 5"]
    gpus: 0
    cpus: 1
    needs: [inference]
    grace: 4s
  trainer:
    command: [bash, -c, "echo asks $SERVER of $SLURM_JOB_NUM_NODES; sleep 3600 | tee -a trainer.log"]
    env: {SERVER: "nats://{inference.host}:{inference.port}"}
    nodes: 2
    gpus: 1
    cpus: 1
    main: true
    grace: 4s
"""


@pytest.mark.proof
def test_what_holds_a_job_of_others_until_its_limit_ends_this_one(cluster: Cluster, in_folder: Path) -> None:
    """Forms of public reports: a program in the background dies in a pipe, an address holds a message of srun."""
    (in_folder / "profile.yaml").write_text(textwrap.dedent(PROFILE))
    (in_folder / "field.yaml").write_text(FIELD)
    request = read_request("field.yaml", (), {}, environment={}, folder=in_folder, check=check)
    job = submitted(cluster, "several-field", render_request(request))
    record = cluster.wait(job)
    log = text_of(cluster.home / "several-field/log")
    assert record["ExitCode"] == "5:0", log
    assert "error: orchestrator on n1 ended with 5" in log.splitlines()[-1]
    assert re.search(r"^asks nats://n3:\d+ of \d$", log, re.MULTILINE), log
    cluster.until(lambda: not [*left(cluster)], "nothing of the programs left on any node")


# Torch without its compiler, and no threads that spin while they wait for one of few cores.
QUICK = f"env: {{OMP_NUM_THREADS: 1, PYTHONPATH: {QUICKLY}}}\n"
EXAMPLES = {
    "server": "step 3: /PROMPT-3",
    "evaluator": "evaluated step-",
    "metrics": "trainer ended with 0",
    "router": "worker 3: /PROMPT-3",
    "sidecar": "exporter ready",
    "ray": "CPUs; tasks ran on n",
}


@pytest.mark.proof
@on_one_release  # how Slurm starts and ends steps of programs is in the table of faults, on both
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_run_as_the_docs_show_them(name: str, cluster: Cluster, in_folder: Path) -> None:
    text = (CHECKOUT / f"examples/programs/{name}.yaml").read_text()
    page = (CHECKOUT / "docs/how-to/several-programs.md").read_text()
    assert f"```yaml\n# {name}.yaml\n{text}```" in page
    (in_folder / "profile.yaml").write_text(PROFILE + QUICK)
    (in_folder / f"{name}.yaml").write_text(
        f"profile: profile.yaml\nruntime: venv\nvenv: {sys.prefix}\n{text}"
    )
    (in_folder / "train_rl.py").touch()
    request = read_request(f"{name}.yaml", (), {}, environment={}, folder=in_folder, check=check)
    assert not [finding for finding in check(request.resolved) if finding.severity == "error"]
    folder = cluster.home / f"example-{name}"
    for file in (CHECKOUT / "examples/programs").glob("*.py"):
        cluster.put(f"{folder.name}/{file.name}", file.read_text())
    script = render_request(request).replace("--device cuda", "--device cpu")  # there is no GPU
    job = cluster.sbatch("--output=log", cwd=folder, script=script)
    record = cluster.wait(job)
    logs = [folder / "log", *(folder / f"runs/{name}/programs").glob("*.log")]
    said = "\n".join(text_of(path) for path in logs)
    assert record["JobState"] == "COMPLETED", said
    assert EXAMPLES[name] in said


def text_of(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
