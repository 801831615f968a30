"""Jobs that are rehearsed on this machine: trainers that keep the contract, and those that break it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import Cluster
from tests.dryrun.plans import needs_sandbox
from tests.jobs.jobs import SBATCHGEN, site_on
from tests.training.forks import QUICKLY

PROFILE = f"""
name: testing
url: https://slurm.schedmd.com
checked: 2026-11-20
partitions:
  gpu: {{time_max: 1-00:00:00, nodes_max: 4000, cpus_per_node: 8, gpus_per_node: 4}}
default_partition: gpu
options: {{time: 00:10:00, cpus_per_task: 2}}
runtime: host
modules: [cuda/12]
env: {{PYTHONPATH: {QUICKLY}, OMP_NUM_THREADS: 1}}
network: {{gloo_socket_ifname: hsn0}}
"""
DRAWING = ("--synthetic", "--train", "400", "--test", "100")
# A trainer that keeps the contract of docs/how-to/own-trainer.md; MARK is what a test changes.
KEEPS = """
import json, os, signal, sys, time
from pathlib import Path

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the stop file says it too
kept = Path(os.environ["RUN_DIR"], "kept.json")
first = json.loads(kept.read_text()) if kept.exists() else 0
for step in range(first + 1, 61):
    time.sleep(0.1)
    print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
    if os.path.exists(os.environ["SBATCHGEN_STOP_FILE"]):
        kept.write_text(str(step))
        Path(os.environ["SBATCHGEN_AGAIN_FILE"]).touch()
        sys.exit(0)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a profile."""
    (tmp_path / "testing.yaml").write_text(PROFILE)
    (tmp_path / "sbatchgen.yaml").write_text("profile: ./testing.yaml\n")
    return tmp_path


def rehearsed(place: Path, *words: str, trainer: str = "") -> tuple[int, dict[str, tuple[str, str]]]:
    """Rehearse a job; return the exit status, and the outcome and detail of each row."""
    if trainer:
        (place / "train.py").write_text(trainer)
        words = ("--trainer", "train.py", *words)
    done = subprocess.run(
        [SBATCHGEN, "rehearse", words[-1], *words[:-1], "--format", "json"],
        cwd=place, capture_output=True, text=True, env=os.environ | {"USER": "me"}, check=False,
    )  # fmt: skip
    shown = json.loads(done.stdout or '{"rows": []}')
    assert shown["rows"], done.stderr
    return done.returncode, {row["what"]: (row["outcome"], row["detail"]) for row in shown["rows"]}


@needs_sandbox
def test_a_trainer_that_keeps_the_contract_passes_all(place: Path) -> None:
    status, rows = rehearsed(place, "single", trainer=KEEPS)
    assert (status, {outcome for outcome, _ in rows.values()}) == (0, {"ok"}), rows
    assert list(rows) == [
        "start", "first steps", "time limit", "restart", "requeue", "restart after it",
        "scancel", "submitted again", "end",
    ]  # fmt: skip
    assert not (place / "runs").exists()


@needs_sandbox
def test_the_bundled_trainer_passes_all_on_two_nodes(place: Path) -> None:
    words = ["ddp", "--nodes", "2", "--gpus-per-node", "1", "--data-dir", "data"]
    subprocess.run([SBATCHGEN, "data", "mnist", "--to", "data", *DRAWING], cwd=place, check=True)
    training = ("--batch-size", "16", "--epochs", "60", "--model", "small_model:make", "--tensorboard", "off")
    done = subprocess.run(
        [SBATCHGEN, "rehearse", *words, "--offline", "--seconds", "300", "--", *training],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes on 2 nodes" in done.stdout
    assert "module commands do nothing here: cuda/12" in done.stdout
    for line in done.stdout.split("\n\n")[0].splitlines():
        assert " ok " in line, done.stdout


@needs_sandbox
@pytest.mark.parametrize(
    ("change", "row", "outcome", "says"),
    [
        (("import json, os", "import nothing_such\nimport os"), "start", "failed", "nothing_such"),
        (("if kept.exists()", "if False"), "restart", "failed", "begins again at step 1"),
        (
            ('        Path(os.environ["SBATCHGEN_AGAIN_FILE"]).touch()\n', ""),
            "restart",
            "failed",
            "no requeue",
        ),
        (("signal.SIG_IGN", "signal.SIG_DFL"), "requeue", "lost", "ended in"),
        (("json.loads(kept.read_text())", "1 / 0"), "restart", "failed", "ZeroDivisionError"),
        (
            ("        kept.write_text(str(step))\n", "        os.stat('/none')\n"),
            "restart",
            "failed",
            "no requeue",
        ),
        (("range(first + 1, 61)", "range(first + 1, 2)"), "time limit", "unknown", "ended before"),
        (
            ("    time.sleep(0.1)", "    time.sleep(0.1); step == 50 and sys.exit(3)"),
            "end",
            "failed",
            "status 3",
        ),
        (('["RUN_DIR"]', '["RUN_DIRECTORY"]'), "start", "failed", "RUN_DIRECTORY"),
        (("import json", "import json)"), "start", "failed", "unmatched ')'"),
        (
            ("kept = ", "import argparse; argparse.ArgumentParser().parse_args(['--lr'])\nkept = "),
            "start",
            "failed",
            "--lr",
        ),
        (
            ("kept.write_text(str(step))", "raise OSError(28, 'No space left on device')"),
            "restart",
            "failed",
            "No space left",
        ),
        (("kept = ", "open('/data/set')\nkept = "), "start", "failed", "/data/set"),
        (
            ("kept = ", "import socket; socket.create_connection(('1.2.3.4', 80))\nkept = "),
            "start",
            "failed",
            "nreach",
        ),
    ],
)
def test_a_planted_fault_is_named(
    place: Path, change: tuple[str, str], row: str, outcome: str, says: str
) -> None:
    assert change[0] in KEEPS
    status, rows = rehearsed(place, "--offline", "--seconds", "30", "single", trainer=KEEPS.replace(*change))
    assert rows[row][0] == outcome, rows
    assert says in rows[row][1], rows
    assert status == (outcome == "failed")


@needs_sandbox
def test_a_trainer_that_ignores_the_limit_is_killed(place: Path) -> None:
    ignores = KEEPS.replace("SBATCHGEN_STOP_FILE", "HOME").replace("range(first + 1, 61)", "range(1, 9999)")
    ignores = ignores.replace("os.path.exists", "'/none' == ")
    status, rows = rehearsed(place, "--signal", "B:USR1@2", "--seconds", "5", "single", trainer=ignores)
    assert rows["time limit"][0] == "failed", rows
    assert "still running" in rows["time limit"][1]
    assert status == 1


@needs_sandbox
def test_the_files_of_the_user_stay_as_they_are(place: Path) -> None:
    writes = "import shutil\nshutil.rmtree('keep', ignore_errors=True)\nopen('new', 'w').write('x')\n"
    (place / "keep").mkdir()
    (place / "keep/file").write_text("text")
    rehearsed(place, "--seconds", "10", "single", trainer=writes)
    assert (place / "keep/file").read_text() == "text"
    assert not (place / "new").exists()


@needs_sandbox
def test_a_job_that_is_too_large_is_refused_with_a_smaller_one(place: Path) -> None:
    words = ("rehearse", "ddp", "--nodes", str(2 * (os.cpu_count() or 1)))
    done = subprocess.run([SBATCHGEN, *words], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "fix: rehearse a smaller one: --nodes 2 --gpus-per-node 1" in done.stderr


@on_one_release
def test_it_runs_on_the_cluster_for_a_short_time(cluster: Cluster) -> None:
    site = site_on(cluster)
    cluster.put("work/train.py", KEEPS.replace("61", "900"))
    words = (
        "single",
        "--trainer",
        "train.py",
        "--runtime",
        "host",
        "--time",
        "00:01:00",
        "--signal",
        "B:USR1@25",
    )
    done = site.sbatchgen("rehearse", *words, "--on", "./testing.yaml", "--yes", "--format", "json")
    assert "{" in done.stdout, done.stderr
    rows = {row["what"]: row["outcome"] for row in json.loads(done.stdout)["rows"]}
    assert (done.returncode, set(rows.values())) == (0, {"ok"}), done.stdout + done.stderr
