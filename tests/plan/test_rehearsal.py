"""Jobs that are rehearsed on this machine: trainers that keep the contract, and those that break it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sbatchgen.lab.rehearsal.added_folders import added_folders
from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import SBATCHGEN, site_on
from tests.plan.plans import needs_sandbox
from tests.plan.rehearsal_faults import FAULTS, KEEPS, NEVER_END, PROFILE, TWO, Fault
from tests.training.forks import QUICKLY

OWN_PROFILE = PROFILE.format(path=QUICKLY) + "modules: [cuda/12]\nnetwork: {gloo_socket_ifname: hsn0}\n"
DRAWING = ("--synthetic", "--train", "400", "--test", "100")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a profile."""
    (tmp_path / "testing.yaml").write_text(OWN_PROFILE)
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
def test_a_chain_resumes_in_its_next_job(place: Path) -> None:
    status, rows = rehearsed(place, "--chain", "2", "single", trainer=KEEPS)
    assert (status, {outcome for outcome, _ in rows.values()}) == (0, {"ok"}), rows
    assert "exit status 75, so the next job starts; it continues from step" in rows["restart"][1]


@needs_sandbox
def test_a_job_that_is_not_to_restart_is_not_blamed_for_it(place: Path) -> None:
    trains = "import json, time\nfor step in range(40):\n    time.sleep(0.1)\n"
    trains += "    print(json.dumps({'step': step}), flush=True)\n"
    words = ("--resume", "off", "single")
    status, rows = rehearsed(place, *words, trainer=trains)
    assert status == 0, rows
    assert list(rows) == ["start", "first steps", "time limit", "requeue", "scancel", "end"]


OWN_CHECKPOINT = """
import json, sys, time
from pathlib import Path

first = json.loads(Path(sys.argv[2]).read_text()) if sys.argv[1:] else 0
for step in range(first + 1, 61):
    time.sleep(0.1)
    print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
    Path("new.json").write_text(str(step))
    Path("new.json").rename("state.json")
"""


@needs_sandbox
def test_a_job_that_is_requeued_while_it_trains_is_ended_as_slurm_does(place: Path) -> None:
    """`scontrol requeue` ends the job: a trainer with a checkpoint of its own knows of no stop."""
    (place / "own.yaml").write_text(
        "mode: single\ntrainer: train.py\nrequeue_on_timeout: true\n"
        "checkpoint: state.json\nresume_args: [--resume, '{checkpoint}']\n"
    )
    (place / "train.py").write_text(OWN_CHECKPOINT)
    status, rows = rehearsed(place, "./own.yaml")
    assert (status, rows["restart"][0]) == (0, "ok"), rows
    assert "continues from step" in rows["restart"][1]
    assert (rows["time limit"][0], "saved" in rows["time limit"][1]) == ("ok", True)


SERVER = """
import sys
from http.server import SimpleHTTPRequestHandler, test

test(SimpleHTTPRequestHandler, port=int(sys.argv[1]))
"""
PROGRAMS = """
programs:
  server:
    command: [python3, {server}, "{{port}}"]
    gpus: 0
    cpus: 1
    ready: {{url: "http://{{host}}:{{port}}/"}}
    grace: 1s
  logger:
    command: [bash, -c, "trap 'echo over; exit 0' TERM; echo up; sleep 1000 & wait"]
    gpus: 0
    cpus: 1
    ready: {{log: up}}
  trainer: {{trainer: train.py, needs: [server, logger], gpus: 0, main: true}}
"""


@needs_sandbox
def test_each_of_several_programs_starts_is_ready_and_ends(place: Path) -> None:
    (place / "serve.py").write_text(SERVER)
    (place / "train.py").write_text(KEEPS)
    (place / "rl.yaml").write_text(PROGRAMS.format(server="serve.py"))
    status, rows = rehearsed(place, "./rl.yaml")
    assert (status, {outcome for outcome, _ in rows.values()}) == (0, {"ok"}), rows
    assert rows["server"][1] == rows["logger"][1] == "it was ready, and ran until the job ended it"
    assert rows["restart"][1].startswith("the script requeued itself; it continues from step ")

    (place / "rl.yaml").write_text(PROGRAMS.format(server="nothing.py"))
    status, rows = rehearsed(place, "./rl.yaml")
    assert (status, rows["server"]) == (1, ("failed", "it ended with 2")), rows


@needs_sandbox
def test_two_rehearsals_at_a_time_meet_at_different_ports(place: Path) -> None:
    trainer = KEEPS.replace(
        "kept = ", "print('error: port', os.environ['MASTER_PORT'])\nsys.exit(1)\nkept = "
    )
    said = [rehearsed(place, *TWO[1:], TWO[0], trainer=trainer)[1]["start"][1] for _ in range(2)]
    assert said[0] != said[1], said


@needs_sandbox
def test_the_bundled_trainer_passes_all_on_two_nodes(place: Path) -> None:
    words = ["ddp", "--nodes", "2", "--gpus-per-node", "1", "--data-dir", "data"]
    subprocess.run([SBATCHGEN, "data", "mnist", "--to", "data", *DRAWING], cwd=place, check=True)
    training = ("--batch-size", "16", "--epochs", "60", "--model", "small_model:make", "--tensorboard", "off")
    done = subprocess.run(
        [SBATCHGEN, "rehearse", *words, "--seconds", "300", "--", *training],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes on 2 nodes" in done.stdout
    assert "module commands do nothing here: cuda/12" in done.stdout
    for line in done.stdout.split("\n\n")[0].splitlines():
        assert " ok " in line, done.stdout
    assert re.search(
        r"GPU memory +ok +8 images \(1x28x28, \w+\) take about \d+ MiB of tensors, .* on the card",
        done.stdout,
    )


@needs_sandbox
def test_a_batch_that_no_gpu_holds_is_a_failure(place: Path) -> None:
    text = (place / "testing.yaml").read_text()
    (place / "testing.yaml").write_text(text.replace("gpus_per_node: 4", "gpus_per_node: 4, gpu_memory: 16M"))
    subprocess.run([SBATCHGEN, "data", "mnist", "--to", "data", *DRAWING], cwd=place, check=True)
    words = ["rehearse", "single", "--resume", "off", "--data-dir", "data", "--seconds", "60"]
    done = subprocess.run(
        [SBATCHGEN, *words, "--", "--epochs", "1"],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    match = re.search(
        r"GPU memory +failed +64 images .* take about (\d+) MiB of tensors, .* of 16 MiB on the card",
        done.stdout,
    )
    assert match, done.stdout + done.stderr
    assert (done.returncode, int(match[1]) > 16) == (1, True)


@needs_sandbox
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_named(place: Path, fault: Fault) -> None:
    assert fault.old in fault.trainer
    trainer = fault.trainer.replace(fault.old, fault.new)
    first, *others = fault.words
    seconds = "12" if fault.name in NEVER_END else "120"
    status, rows = rehearsed(place, "--seconds", seconds, *others, first, trainer=trainer)
    assert next(row for row, (outcome, _) in rows.items() if outcome != "ok") == fault.row, rows
    outcome, says = rows[fault.row]
    assert (outcome, fault.says in says) == (fault.outcome, True), rows
    assert status == ("failed" in {outcome for outcome, _ in rows.values()})


@needs_sandbox
def test_the_files_of_the_user_stay_as_they_are(place: Path) -> None:
    writes = "import shutil\nshutil.rmtree('keep', ignore_errors=True)\nopen('new', 'w').write('x')\n"
    (place / "keep").mkdir()
    (place / "keep/file").write_text("text")
    of_itself = "import os\nshutil.rmtree(os.path.dirname(os.path.abspath(__file__)), ignore_errors=True)\n"
    rehearsed(place, "--seconds", "10", "single", trainer=writes + of_itself)
    assert (place / "train.py").read_text() == writes + of_itself
    assert (place / "keep/file").read_text() == "text"
    assert not (place / "new").exists()


def test_folders_that_an_environment_adds_are_known(tmp_path: Path) -> None:
    """By paths in a .pth file, and as an editable package has them."""
    packages = tmp_path / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "first.pth").write_text("# a comment\n/data/first\n\n../beside\n")
    (packages / "second.pth").write_text("import of_second; of_second.install()\nimport not_there\n")
    (packages / "of_second.py").write_text('MAPPING = {"second": "/data/second"}\nfrom sys import path\n')
    added = [*added_folders(tmp_path)]
    assert added == ["/data/first", str(packages / "../beside"), "/data/second"]


@needs_sandbox
def test_a_job_in_the_home_folder_is_told_that_it_does_not_see_it(place: Path) -> None:
    (place / "home").mkdir(exist_ok=True)
    (place / "home/train.py").write_text("print(1)\n")
    (place / "home/venv").symlink_to("environment")
    (place / "home/environment/bin").mkdir(parents=True)
    (place / "home/environment/bin/python3").symlink_to(sys.executable)
    (place / "home/environment/pyvenv.cfg").touch()
    words = [SBATCHGEN, "rehearse", "single", "--profile", place / "testing.yaml", "--trainer", "train.py"]
    options = ["--venv", "venv", "--seconds", "20", "--stop-after", "1"]
    environment = os.environ | {"HOME": str(place / "home")}

    def printed(*more: str) -> str:
        return subprocess.run(
            [str(word) for word in (*words, *options, *more)],
            cwd=place / "home",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    hidden = printed()
    assert (
        f"the job does not see your home folder {place}/home, where it starts: exit status 1: no virtual"
        in hidden
    )
    assert "fix: show the folder to the job: --see .\n" in hidden
    assert "home folder  the job starts in it" in hidden
    shown = printed("--see", ".")
    assert "does not see" not in shown
    assert "start        ok" in shown, shown


@needs_sandbox
def test_a_module_that_is_hidden_is_shown_by_an_option(place: Path) -> None:
    """A folder of /tmp is not shown for a .pth file, which others may have made: the fix is typed."""
    hidden = place.parent / f"{place.name}-hidden"
    hidden.mkdir()
    (hidden / "fancy.py").touch()
    packages = place / "venv/lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True)
    (packages / "fancy.pth").write_text(f"{hidden}\n")
    (place / "train.py").write_text("import fancy\n" + KEEPS)
    words = ["--runtime", "venv", "--venv", str(place / "venv"), "--seconds", "20", "--trainer", "train.py"]
    done = subprocess.run(
        [SBATCHGEN, "rehearse", "cpu", *words], cwd=place, capture_output=True, text=True, check=False
    )
    assert "if it is in a folder that the job does not see here: --see FOLDER\n" in done.stdout
    status, rows = rehearsed(place, *words, "--see", str(hidden), "cpu")
    assert (status, {outcome for outcome, _ in rows.values()}) == (0, {"ok"}), rows


@needs_sandbox
def test_a_job_that_is_too_large_is_refused_with_a_smaller_one(place: Path) -> None:
    words = ("rehearse", "ddp", "--nodes", str(2 * (os.cpu_count() or 1)))
    done = subprocess.run([SBATCHGEN, *words], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "fix: rehearse a smaller job: --nodes 2 --gpus-per-node 1" in done.stderr


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
    cluster.put("work/train.py", "import nothing_such\n")
    done = site.sbatchgen("rehearse", *words, "--on", "./testing.yaml", "--yes")
    assert "start  failed  this Python has no module 'nothing_such' (train.py:1)" in done.stdout, done.stderr
    assert done.returncode == 1
