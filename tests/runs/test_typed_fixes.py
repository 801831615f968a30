"""The fix of each cause that diagnose knows, typed, for each kind of run."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from sbatchgen.jobs.runs.failure import FailureText, FixFacts, known_causes
from sbatchgen.jobs.runs.index import Index, index_file
from sbatchgen.jobs.runs.record import read_record
from tests.cluster.slurm import Cluster
from tests.conftest import Command
from tests.jobs.jobs import site_on
from tests.runs.test_failure import ENDED, RECORDED
from tests.slurm import fakes

TYPED = re.compile(r"sbatchgen (?:resume|resubmit) [^,;()]+?(?= continues| makes| starts|[,;()]|$)")
SCRIPT = "#!/bin/bash\n#SBATCH --job-name=job --time=5 --output=%x-%j.out\npython3 train.py\n"
SLURM = ("--profile", "public_cluster", "--job-name", "job", "--time", "0:10:00", "--yes")
KINDS = {
    "bundled": ("submit", "single", *SLURM),
    "own": ("submit", "single", *SLURM, "--trainer", "train.py"),
    "without-gpus": ("submit", "cpu", *SLURM, "--trainer", "train.py"),
    "script": ("submit", "job.sh", "--yes"),
    "sweep": ("sweep", "single", *SLURM, "--param", "lr=0.1,0.2"),
    "chain": ("submit", "single", *SLURM, "--chain", "2"),
    "local": (
        "submit",
        "single",
        "--profile",
        "local",
        "--job-name",
        "job",
        "--trainer",
        "train.py",
        "--yes",
    ),
}
TO_TYPE = {known.cause for known in known_causes() if "{resume" in f"{known.fix}{known.fix_without_gpus}"}
# Causes that Slurm shows, whatever the log says
BY_SLURM = {known.cause for known in known_causes() if known.rank in ("outside", "limit")}
SEEN = {each["cause"]: ("FAILED 1:0", each["log"]) for each in RECORDED["seen"]}
ENDS = {cause: (ended, "") for cause, ended in ENDED}
CAUSES = {cause: (ENDS | SEEN if cause not in BY_SLURM else ENDS)[cause] for cause in sorted(TO_TYPE)}


@pytest.mark.parametrize("known", known_causes(), ids=lambda known: known.cause)
def test_the_fix_for_a_finished_script_names_nothing_of_a_rendered_job(known: FailureText) -> None:
    fix = known.fix_for(FixFacts(is_script=True)).replace("{resume:--env", "")  # export in the script
    assert not re.search(r"--(?:env|launcher|runtime|bind|workers|resume)\b|in the profile,", fix)


def submit(kind: str, folder: Path, programs: Path, command: Command, *options: str) -> None:
    """A run called job, whose job has ended."""
    (folder / "train.py").write_text("raise SystemExit(1)\n")
    (folder / "job.sh").write_text(SCRIPT)
    (folder / "data").mkdir()
    numbers = folder / "numbers"
    numbers.write_text("4710")
    (programs / "sbatch").write_text(
        f"#!/bin/sh\nread -r last <{numbers}\necho $((last + 1)) | tee {numbers}\n"
    )
    (programs / "sbatch").chmod(0o755)
    done = command(*KINDS[kind], *options)
    assert done.status == (1 if kind == "local" else 0), done.err


def end(kind: str, folder: Path, programs: Path, ended: str, log: str) -> None:
    """Let the newest job of the run end so, with this log."""
    index = Index(index_file(os.environ))
    (run,) = index.runs()
    job = index.jobs("job")[-1]
    kept = read_record(run.folder, job.id)
    assert kept
    state, _, codes = ended.partition(" ")
    status, signal = map(int, codes.split(":"))
    row = {"JobArrayID": job.id, "State": state, "exit_code": str(status * 256 + signal), "NodeList": "n7"}
    rows = [row | {"JobArrayID": f"{job.id}_{task}" if kind == "sweep" else job.id} for task in (0,)]
    script = f"{folder}/sbatchgen-{job.key}-x/job.slurm"
    fakes.squeue(programs, [each | {"Command": script, "NumNodes": "1", "Nodes": "1"} for each in rows])
    name = kept.log.replace("%%", "%").replace("%x", "job").replace("%j", job.id)
    Path(name.replace("%A", job.id).replace("%a", "0")).write_text(log + "\n")


def typed(fix: str) -> list[list[str]]:
    """The commands in the lines of a fix."""
    return [shlex.split(match[0]) for line in fix.splitlines() for match in TYPED.finditer(line)]


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_fix_works_when_it_is_typed(kind: str, folder: Path, programs: Path, command: Command) -> None:
    submit(kind, folder, programs, command)
    tried: set[tuple[str, ...]] = set()
    for cause, (ended, log) in CAUSES.items():
        if kind == "local" and ended != "FAILED 1:0":
            continue
        end(kind, folder, programs, ended, log)
        words = ("diagnose", "job", *(("--task", "0") if kind == "sweep" else ()), "--format", "json")
        said = json.loads(command(*words).out)
        fixes = {each["cause"]: each["fix"] for each in said["causes"]}
        assert cause in fixes, (cause, said)
        fix = fixes[cause]
        assert "NODE" not in fix.split()
        if kind == "script":
            assert not re.search(r"--(?:env|launcher|runtime|bind)\b|in the profile", fix), fix
        if kind == "sweep":
            assert "sbatchgen resume" not in fix
        for _, *each in typed(fix):
            if tuple(each) not in tried:
                tried.add(tuple(each))
                done = command(*each, "--dry-run")
                assert done.status in (0, None), (cause, fix, done.err)
                if mode := re.search(r"--set mode=(\w+)", fix):
                    assert f": mode {mode[1]}," in done.err, (cause, fix)
    assert tried


EATS = """#!/bin/bash
#SBATCH --job-name=eats --time=5 --mem=150M --output=%x-%j.log
ulimit -v 400000
python3 -u -c "x = [bytearray(10**8) for _ in range(100)]"
"""


@pytest.mark.slow
def test_the_fix_of_an_old_script_is_typed_on_a_real_slurm(cluster: Cluster) -> None:
    site = site_on(cluster)
    cluster.put("work/eats.sh", EATS)
    job = int(site.sbatchgen("submit", "eats.sh", "--yes", check=True).stdout)
    cluster.wait(job, {"FAILED"})
    (cause,) = json.loads(site.sbatchgen("diagnose", "eats", "--format", "json").stdout)["causes"]
    assert cause["cause"] == "host-memory"
    ((_, *fix),) = typed(cause["fix"])
    again = int(site.sbatchgen(*fix, "--yes", check=True).stdout)
    assert "MinMemoryNode=300M" in cluster.run(["scontrol", "show", "job", str(again)]).stdout
    assert "--mem=300M" in site.sbatchgen("status", "eats", check=True).stdout
    cluster.wait(again, {"FAILED"})


@pytest.mark.proof
@pytest.mark.slow
def test_a_job_that_was_requeued_and_cancelled_has_started(cluster: Cluster) -> None:
    site = site_on(cluster)
    cluster.put("work/again.sh", "#!/bin/bash\n#SBATCH --job-name=requeued --time=5 --requeue\nsleep 300\n")
    job = int(site.sbatchgen("submit", "again.sh", "--yes", check=True).stdout)
    cluster.wait(job, {"RUNNING"})
    cluster.run(["scontrol", "requeue", str(job)], check=True)
    cluster.wait(job, {"PENDING"})
    site.sbatchgen("cancel", "--yes", "requeued", check=True)
    cluster.wait(job, {"CANCELLED"})
    assert "never started" not in site.sbatchgen("status", "requeued", check=True).stdout
    said = site.sbatchgen("diagnose", "requeued", check=True).stdout
    assert said.startswith(
        f"requeued: job {job} cancelled; the start before: it was put back into the queue\n"
    )


@pytest.mark.proof
@pytest.mark.slow
def test_a_job_that_lost_its_node_says_so_when_it_runs_again(cluster: Cluster) -> None:
    site = site_on(cluster)
    script = "#!/bin/bash\n#SBATCH --job-name=lost --time=5 --requeue\nsleep 300\n"
    cluster.put("work/lost.sh", script)
    job = int(site.sbatchgen("submit", "lost.sh", "--yes", check=True).stdout)
    cluster.wait(job, {"RUNNING"})
    (run,) = json.loads(site.sbatchgen("status", "lost", "--format", "json", check=True).stdout)["runs"]
    node = run["queue"][0]["node_list"]
    cluster.declare_down(node)
    try:
        cluster.wait(job, {"PENDING"})
        assert "start before  a node of the job failed" in site.sbatchgen("status", "lost", check=True).stdout
    finally:
        cluster.root(["scontrol", "update", f"nodename={node}", "state=idle"])
        site.sbatchgen("cancel", "--yes", "lost", check=True)
