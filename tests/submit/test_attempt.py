"""What submit does when Slurm's answers get lost, on programs that lose them; and on a real Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sbatchgen.jobs.runs.index import LOST, Index, index_file
from sbatchgen.jobs.runs.record import records
from sbatchgen.jobs.submit import attempt
from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.conftest import Command
from tests.jobs.jobs import SBATCHGEN

TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
DOWN = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
REFUSED = "sbatch: error: Batch job submission failed: Invalid qos specification"
# Each call takes the next line of the plan: "accept", "drop" (accepted, but the answer is lost), "lose", or an error.
FAKE_SBATCH = """#!/bin/bash
calls=$(cat calls 2>/dev/null || echo 0)
echo $((calls + 1)) >calls
mapfile -t plan <plan
case ${plan[calls]} in
accept) echo "${!#}" >>queue; echo "${@:2:$#-2}" >>options; echo $((4710 + $(wc -l <queue))) ;;
drop) echo "${!#}" >>queue; echo 'TIMED_OUT' >&2; exit 1 ;;
late) (sleep 1; echo "${!#}" >>queue) >/dev/null 2>&1 & echo 'TIMED_OUT' >&2; exit 1 ;;
restart) echo 2 >boot; echo 'TIMED_OUT' >&2; exit 1 ;;
killed) kill -KILL $$ ;;
murder) echo "${!#}" >>queue; kill -KILL $PPID ;;
orphan) kill -KILL $PPID; sleep 1; echo "${!#}" >>queue ;;
*) echo "${plan[calls]}" >&2; exit 1 ;;
esac
""".replace("TIMED_OUT", TIMED_OUT)
FAKE_SQUEUE = """#!{python} -S
import sys
with open("clusters", "a") as asked_of:
    print(*(word for word in sys.argv if word.startswith("--clusters=")), file=asked_of)
if "--clusters=west" in sys.argv:
    sys.exit()
asked = next(word for word in sys.argv if word.startswith("--Format=")).removeprefix("--Format=")
try:
    scripts = open("queue").read().split("\\n")[:-1]
except OSError:
    scripts = []
for number, script in enumerate(scripts):
    values = {{"JobArrayID": str(4711 + number), "State": "PENDING", "Command": script}}
    print("".join(values.get(name, "N/A") + end for name, _, end in (one.partition(":") for one in asked.split(","))))
"""
FAKE_SCONTROL = """#!/bin/bash
boot=$(cat boot 2>/dev/null || echo 1)
if [ "$boot" = 1 ]; then echo "BOOT_TIME               = 2020-01-01T00:00:00"; else
    echo "BOOT_TIME               = $(date -d '+1 second' +%Y-%m-%dT%H:%M:%S)"; fi
"""


@pytest.fixture
def slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that stand for Slurm's; `plan` says what sbatch does."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (
        ("sbatch", FAKE_SBATCH),
        ("squeue", FAKE_SQUEUE.format(python=sys.executable)),
        ("scontrol", FAKE_SCONTROL),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (folder / "job.sh").write_text("#!/bin/bash\n#SBATCH --time=1:00\n#SBATCH --mem=1G\ntrue\n")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(attempt, "SEARCH_S", 3.0)
    monkeypatch.setattr(attempt, "RETRY_S", 600.0)
    monkeypatch.setattr(attempt, "LONGEST_PAUSE_S", 0.1)
    return folder


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        (["accept"], 1),
        (["drop"], 1),
        (["late"], 1),
        ([DOWN, DOWN, DOWN, "accept"], 4),
        ([DOWN, "drop"], 2),
        (["restart", "accept"], 2),  # what the earlier controller had not saved is gone
        (
            ["sbatch: error: Batch job submission failed: Slurm backup controller in standby mode", "accept"],
            2,
        ),
    ],
)
def test_a_job_is_submitted_exactly_once(
    slurm: Path, command: Command, monkeypatch: pytest.MonkeyPatch, answers: list[str], calls: int
) -> None:
    monkeypatch.setattr(attempt, "SEARCH_S", 600.0)
    (slurm / "plan").write_text("\n".join(answers))
    result = command("submit", "job.sh", "--yes")
    assert (result.status, result.out) == (0, "4711\n"), result.err
    assert int((slurm / "calls").read_text()) == calls
    assert len((slurm / "queue").read_text().splitlines()) == 1
    index = Index(index_file(os.environ))
    assert [(job.id, job.ended) for job in index.jobs()] == [("4711", False)]


@pytest.mark.slow
def test_a_lost_job_is_looked_for_in_each_cluster_that_it_may_be_in(slurm: Path, command: Command) -> None:
    (slurm / "plan").write_text("drop\n")
    (slurm / "job.sh").write_text("#!/bin/bash\n#SBATCH --time=1:00 --mem=1G -M west,east\ntrue\n")
    result = command("submit", "job.sh", "--yes")
    assert (result.status, result.out) == (0, "4711;east\n"), result.err
    assert (slurm / "clusters").read_text() == "--clusters=west\n--clusters=east\n"
    (run,) = json.loads(command("status", "--format", "json").out)["runs"]
    assert run["jobs"][0]["cluster"] == "east"


@pytest.mark.slow
@pytest.mark.parametrize("first", [TIMED_OUT, "killed"])
def test_where_nobody_knows_nothing_is_submitted_again(slurm: Path, command: Command, first: str) -> None:
    (slurm / "plan").write_text(f"{first}\naccept\n")
    result = command("submit", "job.sh", "--yes")
    assert (result.status, result.out) == (5, "")
    assert "the queue has no such job\n  fix: the job may still appear in the queue" in result.err
    assert (slurm / "calls").read_text() == "1\n"
    index = Index(index_file(os.environ))
    (job,) = index.jobs()
    assert (job.id, job.state) == ("", LOST)
    (slurm / "queue").write_text(f"/home/ann/tmp/sbatchgen-{job.key}-abc/job.sh\n")  # it came after all
    (row,) = json.loads(command("status", "--format", "json").out)["runs"]
    assert [(job["id"], job["state"]) for job in row["jobs"]] == [("4711", "PENDING")]


def test_a_refused_job_is_in_no_index(slurm: Path, command: Command) -> None:
    (slurm / "plan").write_text(f"{REFUSED}\naccept\n")
    result = command("submit", "job.sh", "--yes")
    assert (result.status, result.out) == (5, "")
    assert "Invalid qos specification" in result.err
    assert (slurm / "calls").read_text() == "1\n"
    index = Index(index_file(os.environ))
    assert (index.jobs(), index.runs()) == ([], [])


@pytest.mark.slow
def test_a_controller_that_stays_down_ends_with_5_and_nothing_half_done(
    slurm: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    clock = SimpleNamespace(time=time.time, monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(attempt, "time", clock)
    monkeypatch.setattr(attempt, "RETRY_S", 1.0)
    (slurm / "plan").write_text("\n".join([DOWN] * 1000))
    result = command("submit", "job.sh", "--yes")
    assert (result.status, result.out) == (5, "")
    assert "note: Slurm's controller does not answer: trying again for 1 s\n" in result.err
    assert "Slurm's controller can't be reached from here" in result.err
    assert int((slurm / "calls").read_text()) == len(pauses) + 1 > 2
    assert 1 <= sum(pauses) < 2
    index = Index(index_file(os.environ))
    assert (index.jobs(), index.runs()) == ([], [])


CHAIN = ("submit", "single", "--profile", "troila", "--chain", "3", "--yes")


def test_each_job_of_a_chain_waits_for_all_before_it(slurm: Path, command: Command) -> None:
    (slurm / "plan").write_text("accept\n" * 3)
    result = command(*CHAIN, "--dependency", "afterok:7")
    assert (result.status, result.out) == (0, "4711\n4712\n4713\n"), result.err
    assert "3 jobs of at most 0-01:00:00, one after the other, until the training is done" in result.err
    before = "--dependency=afterok:7,afternotok"
    end = "--kill-on-invalid-dep=yes"
    assert (slurm / "options").read_text() == f"\n{before}:4711 {end}\n{before}:4711:4712 {end}\n"
    keys = [record.key for record in records(slurm / "runs/single")]
    assert [key[16:] for key in keys] == ["00", "01", "02"]
    assert len({key[:16] for key in keys}) == 1
    index = Index(index_file(os.environ))
    assert [(job.run, job.id) for job in index.jobs()] == [("single", str(4711 + n)) for n in range(3)]
    assert len([*(slurm / "runs/single").glob("job-*.json")]) == 3


# The command is killed when it knows the id of the job: before it keeps the script, or the record.
KILLED_AT = """
import os, sys
from sbatchgen.__main__ import main
from sbatchgen.jobs.runs import record, submitted_scripts
FUNCTION = lambda *_: os.kill(os.getpid(), 9)
main()
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("moment", "program"),
    [
        ("murder", ("-m", "sbatchgen")),
        ("orphan", ("-m", "sbatchgen")),
        ("accept", ("-c", KILLED_AT.replace("FUNCTION", "submitted_scripts.keep_script"))),
        ("accept", ("-c", KILLED_AT.replace("FUNCTION", "record.write_accepted"))),
    ],
)
def test_a_job_of_a_killed_command_is_known_to_the_next_one(
    slurm: Path, command: Command, moment: str, program: tuple[str, ...]
) -> None:
    """Killed before it had the id, while sbatch, which continues, holds the lock, and before it kept all."""
    words = ("submit", "single", "--profile", "troila", "--yes")
    (slurm / "plan").write_text(f"{moment}\naccept\n")
    killed = subprocess.run([sys.executable, *program, *words], capture_output=True, check=False)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, b"")
    again = command(*words)
    assert (again.status, again.out) == (3, "")
    assert "job 4711 uses this run folder too, and is waiting" in again.err
    (kept,) = records(slurm / "runs/single")
    assert (kept.job, kept.command[:2]) == ("4711", ("sbatchgen", "render"))
    assert (slurm / "runs/single/job-4711.slurm").read_text().startswith("#!/bin/bash\n# sbatchgen ")
    assert "4711" in command("status").out
    assert int((slurm / "calls").read_text()) == 1
    assert not (slurm / "runs/single/submitting.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("third", "why"), [(REFUSED, "Invalid qos"), (TIMED_OUT, "Socket timed out")])
def test_a_chain_of_which_a_job_is_refused_is_shorter_and_says_so(
    slurm: Path, command: Command, third: str, why: str
) -> None:
    (slurm / "plan").write_text(f"accept\naccept\n{third}\n")
    result = command(*CHAIN)
    assert (result.status, result.out) == (5, "4711\n4712\n")
    assert why in result.err
    assert "2 of 3 jobs of the chain are submitted, and continue the training" in result.err
    index = Index(index_file(os.environ))
    known = [(job.id, job.state) for job in index.jobs()]
    assert known == [("4711", ""), ("4712", ""), *([("", LOST)] if third == TIMED_OUT else [])]


def test_a_script_can_not_be_found_by_its_own_folder(slurm: Path, command: Command) -> None:
    """Only folders that submit makes count, wherever the user keeps a script."""
    (slurm / "plan").write_text("accept")
    (slurm / "queue").write_text("/home/ann/sbatchgen-c0ffee/job.sh\n/home/ann/sbatchgen-/x/job.sh\n")
    assert command("submit", "job.sh", "--yes").out == "4713\n"
    index = Index(index_file(os.environ))
    assert [job.id for job in index.jobs()] == ["4713"]


@pytest.fixture(scope="module")
def real(slurm_root: Path | None) -> Iterator[Cluster]:
    """A cluster of its own: its controller is killed."""
    with Cluster(visible=VISIBLE, root=slurm_root) as running:
        running.put("work/job.sh", "#!/bin/bash\n#SBATCH --hold --time=5 --mem=100M\ntrue\n")
        yield running


@pytest.mark.slow
def test_on_a_real_slurm_a_controller_that_comes_back_gets_the_job(real: Cluster) -> None:
    real.stop_controller()
    comes_back = threading.Timer(2, real.start_controller)
    comes_back.start()
    done = real.run([SBATCHGEN, "submit", "job.sh", "--yes"], cwd=real.home / "work")
    comes_back.join()
    assert done.returncode == 0, done.stderr
    assert real.job(int(done.stdout))["JobState"] == "PENDING"
    assert len(real.run(["squeue", "--noheader"], check=True).stdout.splitlines()) == 1
    real.run(["scancel", done.stdout.strip()], check=True)


@pytest.mark.slow
def test_on_a_real_slurm_a_job_is_found_by_its_command(real: Cluster) -> None:
    """An sbatch that submits, and then loses the answer."""
    real.put(
        "bin/sbatch",
        f'#!/bin/bash\n/usr/bin/sbatch "$@" >/dev/null\necho "{TIMED_OUT}" >&2\nexit 1\n',
        mode=0o755,
    )
    before = set(real.run(["squeue", "-h", "-o", "%i"], check=True).stdout.split())
    path = {"PATH": f"{real.home}/bin:/usr/bin:/bin"}
    done = real.run([SBATCHGEN, "submit", "job.sh", "--yes"], cwd=real.home / "work", env=path)
    assert done.returncode == 0, done.stderr
    now = set(real.run(["squeue", "-h", "-o", "%i"], check=True).stdout.split())
    assert now - before == {done.stdout.strip()}
