"""status, logs, cancel and resume: on a real Slurm, without one, and with answers of other releases."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.jobs.runs import seen_jobs, status
from sbatchgen.jobs.runs.index import Index, RunJob, index_file
from sbatchgen.jobs.runs.record import Record, ResolvedValue, write_accepted
from sbatchgen.jobs.runs.status import RunState
from sbatchgen.jobs.slurm.queue import SlurmJob, squeue_jobs
from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.conftest import Command, fit_the_schema
from tests.jobs.jobs import SBATCHGEN
from tests.slurm import fakes

SCRIPT = """#!/bin/bash
#SBATCH --job-name={name} --time=5 --mem=100M --output=logs/%x-%j.out {more}
printf 'one\\ntwo \\033[2Jx\\377\\n'
until [ -e {name}-end ]; do sleep 0.2; done
echo three
"""


class Site:
    """A cluster of its own: its controller is killed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.work = cluster.home / "work"

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = self.cluster.run([SBATCHGEN, *arguments], cwd=self.work)
        fit_the_schema(arguments, done.stdout)
        return done

    def submit(self, name: str, more: str = "") -> str:
        self.cluster.put(f"work/{name}.sh", SCRIPT.format(name=name, more=more))
        done = self("submit", f"{name}.sh", "--yes")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def runs(self, *names: str) -> dict[str, Any]:
        said = json.loads(self("status", *names, "--format", "json").stdout)
        return {run["name"]: run for run in said["runs"]}

    def until(self, name: str, state: str) -> None:
        self.cluster.until(lambda: self.runs(name)[name]["jobs"][-1]["state"] == state, f"{name} {state}")


@pytest.fixture(scope="module")
def site(slurm_root: Path | None) -> Iterator[Site]:
    with Cluster(visible=VISIBLE, root=slurm_root) as running:
        running.put("work/empty", "")
        yield Site(running)


@pytest.mark.slow
def test_a_run_from_its_submission_to_its_end(site: Site) -> None:
    job = site.submit("plain")
    site.until("plain", "RUNNING")
    line = site("status").stdout.splitlines()[1]
    assert line.split()[:3] == ["plain", job, "running"]
    assert " of 0:05:00 on n" in line
    site.cluster.until(lambda: "two" in site("logs", "plain").stdout, "a log")
    following = site.cluster  # the log is followed while the job runs
    following.put("work/plain-end", "")
    done = site("logs", "plain", "--follow")
    assert done.stdout.splitlines()[0] == "one"
    assert done.stdout.splitlines()[-1] == "three"
    assert "note: job" in done.stderr
    assert site.runs("plain")["plain"]["jobs"][0]["state"] == "COMPLETED"
    page = site("status", "plain").stdout
    assert f"job {job}" in page
    assert f"{site.work}/logs/plain-{job}.out" in page


@pytest.mark.slow
def test_a_command_runs_on_each_node_beside_the_training(site: Site) -> None:
    refused = site("exec", "plain", "--", "hostname")
    assert (refused.returncode, refused.stdout) == (5, "")
    assert "run plain has no running job: completed" in refused.stderr
    site.submit("wide", "--nodes=2 --exclusive")
    site.until("wide", "RUNNING")
    done = site("exec", "wide", "--", "bash", "-c", "hostname; exit 3")
    assert done.returncode == 3
    (queued,) = site.runs("wide")["wide"]["queue"]
    assert len(set(done.stdout.split())) == 2
    assert (queued["state"], queued["kind"], queued["means"]) == ("RUNNING", None, "")
    assert site("exec", "wide").returncode == 2
    site("cancel", "--yes", "wide")


@pytest.mark.slow
def test_a_job_that_waits_says_why_and_what_to_do(site: Site) -> None:
    job = site.submit("held", "--hold")
    done = site("status", "held")
    assert "waiting: it is held" in done.stdout
    assert f"fix: scontrol release {job}" in done.stderr
    (queued,) = site.runs("held")["held"]["queue"]
    assert (queued["reason"], queued["kind"]) == ("JobHeldUser", "person")
    no_task = site("cancel", "--yes", "held", "--task", "3")
    assert (no_task.returncode, "run held that waits or runs has a task 3" in no_task.stderr) == (2, True)
    assert site("cancel", "--yes", "held").returncode == 0
    site.until("held", "CANCELLED")
    again = site("cancel", "--yes", "held")
    assert (again.returncode, again.stderr) == (0, "note: run held has ended already\n")


@pytest.mark.proof
@pytest.mark.slow
def test_hostile_names_and_comments_stay_in_their_cells(site: Site) -> None:
    words = "a|b \x1b[31m\u009b2J %n;'c"
    script = f'#!/bin/bash\n#SBATCH --job-name="{words}" --comment="{words}" --hold --time=5\nhostname\n'
    site.cluster.put("work/hostile.sh", script)
    done = site("submit", "hostile.sh", "--yes")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    shown = [
        done,
        *(site(*verb) for verb in (("status",), ("status", job), ("logs", job), ("exec", job, "--", "true"))),
    ]
    assert [process.returncode for process in shown] == [0, 0, 0, 3, 5]
    (name,) = [line.split()[0] for line in shown[1].stdout.splitlines() if f" {job} " in line]
    assert site.runs(name)[name]["queue"][0]["reason"] == "JobHeldUser"
    assert site("cancel", "--yes", name).returncode == 0
    shown.append(site("resume", name, "--yes"))
    assert not [process.args for process in shown if {"\x1b", "\x9b"} & {*process.stdout, *process.stderr}]
    site("cancel", "--yes", name)


@pytest.mark.proof
@pytest.mark.slow
def test_a_finished_script_is_resumed_as_it_was_or_not_at_all(site: Site) -> None:
    first = site.submit("again")
    twice = site("resume", "again", "--yes")
    assert (twice.returncode, f"job {first} uses this run folder too" in twice.stderr) == (2, True)
    site.cluster.put("work/again-end", "")
    site.until("again", "COMPLETED")
    done = site("resume", "again", "--yes")
    assert done.returncode == 0, done.stderr
    second = done.stdout.strip()
    assert [job["id"] for job in site.runs("again")["again"]["jobs"]] == [first, second]
    refused = site("resume", "again", "--yes", "--trainer", "a.py")
    assert refused.returncode == 2
    assert "is a finished script: --trainer can't change it" in refused.stderr
    longer = site("resume", "again", "--yes", "--time", "0:07:00")
    assert longer.returncode == 0, longer.stderr
    second = longer.stdout.strip()
    assert "TimeLimit=00:07:00" in site.cluster.run(["scontrol", "show", "job", second]).stdout
    site.until("again", "COMPLETED")
    site.cluster.put("work/again.sh", "#!/bin/bash\ntrue\n")
    refused = site("resume", "again", "--yes")
    assert refused.returncode == 3
    assert f"has changed since job {second} ran it" in refused.stderr


@pytest.mark.proof
@pytest.mark.slow
def test_after_a_run_that_failed_nothing_starts(site: Site) -> None:
    site.cluster.put(
        "work/bad.sh", "#!/bin/bash\n#SBATCH --job-name=bad --time=5 --mem=100M --hold\nexit 3\n"
    )
    bad = site("submit", "bad.sh", "--yes").stdout.strip()
    site.cluster.put("work/next.sh", SCRIPT.format(name="next", more=""))
    done = site("submit", "next.sh", "--yes", "--after", "bad")
    assert done.returncode == 0, done.stderr
    site.cluster.run(["scontrol", "release", bad], check=True)
    site.until("bad", "FAILED")
    assert site.runs("bad")["bad"]["jobs"][0]["says"] == "exit status 3"
    site.cluster.until(
        lambda: site.runs("next")["next"]["queue"][0]["kind"] == "never", "a broken dependency"
    )
    assert site("submit", "next.sh", "--yes", "--after", "nobody").returncode == 2
    site("cancel", "--yes", "next")


@pytest.mark.proof
@pytest.mark.slow
def test_a_job_waits_for_one_element_of_an_array(site: Site) -> None:
    array = "#!/bin/bash\n#SBATCH --job-name=many --array=0-1 --time=5 --mem=100M --hold\nexit $SLURM_ARRAY_TASK_ID\n"
    site.cluster.put("work/many.sh", array)
    many = site("submit", "many.sh", "--yes").stdout.strip()
    later = "#!/bin/bash\n#SBATCH --job-name=later --time=5 --mem=100M\ntrue\n"
    site.cluster.put("work/later.sh", later)
    done = site("submit", "later.sh", "--yes", "--after", "many/0")
    assert done.returncode == 0, done.stderr
    record = site.cluster.run(["scontrol", "show", "job", done.stdout.strip()]).stdout
    assert f"Dependency=afterok:{many}_0(" in record
    says = f"it waits for another job: afterok {many}_0 of run many"
    site.cluster.until(lambda: says in site("status", "later").stdout, "what it waits for")
    site.cluster.run(["scontrol", "release", many], check=True)
    site.until("later", "COMPLETED")  # though the other element fails
    assert site("submit", "later.sh", "--yes", "--after", "later/0").returncode == 2


@pytest.mark.proof
@pytest.mark.slow
def test_a_job_waits_for_its_start_time(site: Site) -> None:
    site.cluster.put(
        "work/begin.sh", "#!/bin/bash\n#SBATCH --job-name=begin --time=5 --begin=2099-01-02T03:04\ntrue\n"
    )
    assert site("submit", "begin.sh", "--yes").returncode == 0
    shown = "waiting: its start time has not come yet; expected 2099-01-02 03:04"
    site.cluster.until(lambda: shown in site("status", "begin").stdout, "why it waits")
    site("cancel", "--yes", "begin")


@pytest.mark.slow
def test_a_job_that_slurm_has_forgotten_is_not_shown_as_running(site: Site) -> None:
    """Without accounting, what squeue forgets has ended; how is not known."""
    os.seteuid(site.work.stat().st_uid)
    try:
        index = Index(index_file({"HOME": str(site.cluster.home)}))
        index.begin("dead", site.work / "x", "forgotten", shared=False)
        index.accept("dead", "999999")
    finally:
        os.seteuid(os.getuid())
    (shown,) = site.runs("forgotten")["forgotten"]["jobs"]
    assert (shown["state"], shown["ended"], shown["says"]) == ("", True, "no longer in the queue")


@pytest.mark.proof
@pytest.mark.slow
def test_with_the_controller_down_it_lists_what_was_seen(site: Site) -> None:
    site.submit("seen", "--hold")
    site.cluster.until(lambda: "waiting: it is held" in site("status", "seen").stdout, "a job that is held")
    site.cluster.stop_controller()
    try:
        done = site("status")
    finally:
        site.cluster.start_controller()
    assert done.returncode == 0
    assert "waiting: it is held" in done.stdout
    assert "Slurm's controller does not answer" in done.stderr
    assert "; states are those of " in done.stderr
    site("cancel", "--yes", "seen")


HOSTILE = "a|b\x1b[2J\n\t\udcffc"


def test_hostile_words_of_slurm_stay_in_their_cells(folder: Path, programs: Path, command: Command) -> None:
    index = Index(index_file(os.environ))
    index.begin("c0ffee", folder / "x", "ddp", shared=False)
    index.accept("c0ffee", "4711")
    row = {"JobArrayID": "4711", "State": "PENDING", "Reason": HOSTILE, "Name": HOSTILE, "Command": HOSTILE}
    fakes.squeue(programs, [row])
    shown = command("status")
    assert shown.status == 0, shown.err
    assert shown.out.splitlines()[0].split() == ["RUN", "JOB", "STATE", "TRAINING"]
    assert len(shown.out.splitlines()) == 2
    assert "\x1b" not in shown.out + shown.err
    (run,) = json.loads(command("status", "--format", "json").out)["runs"]
    assert run["name"] == "ddp"


def test_a_job_whose_id_is_another_jobs_by_now_was_lost_by_slurm(
    folder: Path, programs: Path, command: Command
) -> None:
    """As after slurmctld was killed before it had saved the job."""
    index = Index(index_file(os.environ))
    for key in ("c0ffee", "ab12"):
        index.begin(key, folder / key, "ddp", shared=False)
        index.accept(key, "4711")
    row = {"JobArrayID": "4711", "State": "RUNNING", "Command": "/home/ann/tmp/sbatchgen-ab12-x/job.slurm"}
    fakes.squeue(programs, [row])
    runs = json.loads(command("status", "--format", "json").out)["runs"]
    assert [(run["name"], run["jobs"][0]["state"], run["jobs"][0]["ended"]) for run in runs] == [
        ("ddp", "LOST", True),
        ("ddp-2", "RUNNING", False),
    ]
    assert "Slurm has lost it" in command("status").out


def test_a_run_without_slurm_has_the_same_verbs(folder: Path, command: Command) -> None:
    (folder / "train.py").write_text(
        "import os, pathlib, signal, sys, time\n"
        "def stop(*_): print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('began', flush=True)\n"
        "while not pathlib.Path('end').exists(): time.sleep(0.05)\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-m", "sbatchgen", "submit", "cpu", "--profile", "local", "--yes", "--trainer", "train.py", "--job-name", "here"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert started.stdout
    assert "began\n" in iter(started.stdout.readline, "")
    started.kill()  # as a terminal that is closed
    started.wait()
    started.stdout.close()

    def state() -> str:
        (run,) = json.loads(command("status", "here", "--format", "json").out)["runs"]
        return str(run["jobs"][-1]["state"])

    assert state() == "RUNNING"
    assert "began\n" in command("logs", "here").out
    assert command("cancel", "--yes", "here").status == 0
    while state() == "RUNNING":
        time.sleep(0.05)
    assert "saved\n" in command("logs", "here").out
    (folder / "end").touch()
    assert command("resume", "here", "--yes").status == 0
    assert state() == "COMPLETED"
    (run,) = json.loads(command("status", "here", "--format", "json").out)["runs"]
    assert len(run["jobs"]) == 2
    assert len({job["id"] for job in run["jobs"]}) == 2


def test_a_checkpoint_that_is_gone_is_not_named(folder: Path, command: Command) -> None:
    (folder / "train.py").write_text("import os, pathlib\npathlib.Path(os.environ['RUN_DIR'], 'b').touch()\n")
    command("submit", "cpu", "--yes", "--trainer", "train.py")
    for name, is_named in (("a", False), ("b", True)):
        (folder / "runs/cpu/status.json").write_text(json.dumps({"state": "failed", "checkpoint": name}))
        assert ("\n  checkpoint " in command("status", "cpu").out) == is_named


def test_a_killed_run_without_slurm_is_not_shown_as_running(folder: Path, command: Command) -> None:
    (folder / "train.py").write_text("import os, signal\nos.killpg(0, signal.SIGKILL)\n")
    command("submit", "cpu", "--yes", "--trainer", "train.py")
    (run,) = json.loads(command("status", "cpu", "--format", "json").out)["runs"]
    assert [(job["state"], job["says"]) for job in run["jobs"]] == [("FAILED", "killed")]
    (folder / "train.py").write_text("raise SystemExit(75)\n")
    command("submit", "cpu", "--yes", "--trainer", "train.py", "--job-name", "stopped")
    shown = command("status", "stopped")
    assert " stopped and saved, with more to do; submitted" in shown.out
    assert "failed" not in shown.out + shown.err


def test_what_a_step_costs_is_shown(folder: Path, command: Command) -> None:
    costs = {"lr": 0.1, "grad_norm": 2.5, "step_s": 0.25, "data_wait": 0.04, "gpu_allocated_bytes": 3e9}
    (folder / "train.py").write_text(f"print({json.dumps({'step': 7, 'loss': 0.5} | costs)!r})\n")
    assert command("submit", "cpu", "--yes", "--trainer", "train.py").status == 0
    shown = command("status", "cpu").out

    assert "0.25 s a step, 4% of it waiting for data, lr 0.1, gradient norm 2.5, GPU memory 3 GB" in shown


def test_runs_come_back_when_the_index_is_lost(folder: Path, command: Command) -> None:
    (folder / "train.py").write_text("print('trained')\n")
    for name in ("one", "two"):
        assert command("submit", "cpu", "--yes", "--trainer", "train.py", "--job-name", name).status == 0
    before = command("status").out
    index_file(os.environ).unlink()
    assert command("status").out == ""
    assert command("status", "--scan", ".").out == before
    assert command("status", "--scan", ".").out == before
    (folder / "runs" / "one").rename(folder / "runs" / "moved")
    assert command("status", "--scan", "runs", "one").out.splitlines()[1].split()[-1] == str(
        folder / "runs/moved"
    )


def test_a_word_that_is_no_run(folder: Path, command: Command) -> None:
    result = command("status", "ddp")
    assert result.status == 2
    assert "there is no run 'ddp'\n  fix: sbatchgen status --all lists your runs" in result.err
    for verb in ("logs", "cancel", "resume"):
        assert command(verb, "ddp").status == 2


def test_a_run_whose_folder_is_gone_is_still_told(folder: Path, command: Command) -> None:
    (folder / "train.py").write_text("print('trained')\n")
    command("submit", "cpu", "--yes", "--trainer", "train.py", "--job-name", "gone")
    (folder / "runs/gone").rename(folder / "elsewhere")
    assert command("status", "gone").status == 0
    assert command("status").out.splitlines()[1].split()[0] == "gone"
    assert command("logs", "gone").status == 3
    refused = command("resume", "gone", "--yes")
    assert refused.status == 3
    assert "the folder of run gone is gone" in refused.err


def test_ten_thousand_runs_are_one_question(
    folder: Path, programs: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {
            "JobArrayID": str(number),
            "State": "RUNNING",
            "Command": f"/home/ann/tmp/sbatchgen-{number:x}-x/job.slurm",
        }
        for number in range(1, 101)
    ]
    fakes.squeue(programs, rows)
    fakes.failing(programs, "sacct", "Slurm accounting storage is disabled")
    index = Index(index_file(os.environ))
    for number in range(1, 301):
        key = f"{number:x}"
        index.begin(key, folder / "runs" / key, "ddp", shared=False)
        index.accept(key, str(number))
    asked: list[int] = []

    def ask(environment: Mapping[str, str], *, cluster: str) -> list[SlurmJob]:
        asked.append(1)
        return squeue_jobs(environment, cluster=cluster)

    monkeypatch.setattr(seen_jobs, "squeue_jobs", ask)
    states, problems = status.run_states(index, os.environ, index.runs())
    status.run_states(index, os.environ, index.runs()[100:])
    assert (len(asked), problems) == (1, [])
    assert [run_state.last_job.state for run_state in states if run_state.last_job] == ["RUNNING"] * 100 + [
        ""
    ] * 200


def test_an_array_is_told_by_the_number_of_its_tasks(folder: Path, programs: Path, command: Command) -> None:
    states = {"7_1": "COMPLETED", "7_2": "RUNNING", "7_3": "RUNNING", "7_[4-9%2]": "PENDING"}
    fakes.squeue(programs, [{"JobArrayID": task, "State": state} for task, state in states.items()])
    index = Index(index_file(os.environ))
    index.begin("c0ffee", folder, "sweep", shared=False)
    index.accept("c0ffee", "7")
    assert "running: 6 waiting, 2 running, 1 completed" in command("status").out


CHAINS = {
    "runs": (["TIMEOUT", "RUNNING", "PENDING"], "2", "running"),
    "is done": (["FAILED:75", "COMPLETED", "CANCELLED"], "2", "completed"),
    "has failed": (["FAILED:1", "CANCELLED", "CANCELLED"], "1", "failed: exit status 1"),
    "was cancelled": (["CANCELLED"] * 3, "3", "cancelled: it has never started"),
}


@pytest.mark.parametrize("name", CHAINS)
def test_of_several_jobs_of_a_run_one_tells_its_state(
    folder: Path, programs: Path, command: Command, name: str
) -> None:
    states, wanted, words = CHAINS[name]
    rows = []
    for number, (state, _, code) in enumerate((text.partition(":") for text in states), 1):
        nodes = (
            {"NodeList": "", "TimeUsed": "0:00"} if state in ("PENDING", "CANCELLED") else {"NodeList": "n1"}
        )
        row = {"JobArrayID": str(number), "State": state, "exit_code": str(256 * int(code or 0))}
        rows.append({**row, "Command": f"/home/ann/tmp/sbatchgen-{number}-x/job.slurm", **nodes})
        index = Index(index_file(os.environ))
        index.begin(str(number), folder, "long", shared=False)
        index.accept(str(number), str(number))
    fakes.squeue(programs, rows)
    shown = command("status").out.splitlines()[1]
    assert shown.split()[:2] == ["long", wanted]
    assert words in shown


def test_of_an_array_that_has_ended_the_last_task_that_ran_tells_its_state(
    folder: Path, programs: Path, command: Command
) -> None:
    rows = [
        {"JobArrayID": "7_[3-9%1]", "State": "CANCELLED", "NodeList": "", "TimeUsed": "0:00"},
        {"JobArrayID": "7_1", "State": "FAILED", "NodeList": "n1", "StartTime": "2026-11-22T10:00:00"},
        {"JobArrayID": "7_2", "State": "COMPLETED", "NodeList": "n1", "StartTime": "2026-11-22T11:00:00"},
    ]
    other = {"Command": "/home/ann/tmp/sbatchgen-ab12-x/job.slurm"}
    fakes.squeue(
        programs, [*rows, *({**row, **other, "JobArrayID": f"8{row['JobArrayID'][1:]}"} for row in rows)]
    )
    index = Index(index_file(os.environ))
    index.begin("c0ffee", folder, "long", shared=False)
    index.accept("c0ffee", "7")
    index.begin("ab12", folder / "sweep", "sweep", shared=False)
    index.accept("ab12", "8")
    about = Record(
        name="long", job="7", shared=False, folder=str(folder), command=("sbatchgen", "render", "single")
    )
    write_accepted(folder, replace(about, array="1-9%1"))
    (folder / "sweep").mkdir()
    write_accepted(
        folder / "sweep", replace(about, job="8", array="1-9%1", command=("sbatchgen", "sweep", "single"))
    )
    shown = command("status").out
    assert "completed: 7 cancelled, 1 failed, 1 completed" in shown
    assert "cancelled: 7 cancelled, 1 failed, 1 completed" in shown


SQUEUE_OF_CLUSTERS = """#!{python} -S
import sys
KEYS = {{"": "0a", "east": "0b", "west": "0c", "south": "0d"}}
(cluster,) = [word.partition("=")[2] for word in sys.argv if word.startswith("--clusters=")] or [""]
print("asked", cluster, file=open("asked", "a"))
if cluster == "south":
    sys.exit("squeue: error: 'south' can't be reached now, or it is an invalid entry for --cluster.")
fields = next(word for word in sys.argv if word.startswith("--Format=")).removeprefix("--Format=").split(",")
states = {{"": "PENDING", "east": "RUNNING", "west": "COMPLETED"}}
if cluster:
    print("CLUSTER:", cluster)
values = {{"JobArrayID": "4711", "State": states[cluster], "NumNodes": "2"}}
values["Command"] = f"/home/ann/tmp/sbatchgen-{{KEYS[cluster]}}-x/job.slurm"
print("".join(values.get(name, "N/A") + end for name, _, end in (field.partition(":") for field in fields)))
"""


def test_each_job_is_asked_for_in_its_cluster(folder: Path, programs: Path, command: Command) -> None:
    """One id in several clusters. Older squeue print a line with the cluster, also with --noheader."""
    (programs / "squeue").write_text(SQUEUE_OF_CLUSTERS.format(python=sys.executable))
    for name in ("scancel", "srun"):
        (programs / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >>asked\n')
    (programs / "scontrol").write_text("#!/bin/sh\necho 'ClusterName             = east'\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    fakes.failing(programs, "sacct", "Slurm accounting storage is disabled")
    index = Index(index_file(os.environ))
    for key, name in {"0a": "here", "0b": "east", "0c": "west", "0d": "south"}.items():
        index.begin(key, folder / name, name, shared=False)
        index.accept(key, "4711", "" if name == "here" else name)
    runs = json.loads(command("status", "--format", "json").out)["runs"]
    assert {run["name"]: run["jobs"][0]["state"] for run in runs} == {
        "here": "PENDING", "east": "RUNNING", "west": "COMPLETED", "south": "",
    }  # fmt: skip
    shown = command("status")
    assert (
        "warning: squeue ended with exit status 1: squeue: error: 'south' can't be reached now" in shown.err
    )
    assert (folder / "asked").read_text().splitlines()[:4] == [
        "asked ",
        "asked east",
        "asked south",
        "asked west",
    ]
    assert command("exec", "east", "--", "hostname").status == 0
    assert command("cancel", "--yes", "here", "east").status == 0
    asked = [line for line in (folder / "asked").read_text().splitlines() if not line.startswith("asked")]
    step = "--jobid=4711 --overlap --nodes=2 --ntasks=2 --ntasks-per-node=1 -- hostname"
    assert asked == [f"srun {step}", "scancel 4711", "scancel --clusters=east 4711"]
    (programs / "scontrol").write_text("#!/bin/sh\necho 'ClusterName             = west'\n")
    refused = command("exec", "east", "--", "hostname")
    assert (refused.status, "run east is on cluster east" in refused.err) == (5, True)


@pytest.mark.parametrize(
    ("asked", "seen", "warned"), [("a100:2", "1", True), ("2", "2", False), ("", "1", False)]
)
def test_a_command_with_fewer_gpus_than_its_job_is_told_so(
    folder: Path,
    programs: Path,
    command: Command,
    capfd: pytest.CaptureFixture[str],
    asked: str,
    seen: str,
    *,
    warned: bool,
) -> None:
    """As a step that overlaps another gets them of Slurm 26.05.0 to 26.05.2."""
    fakes.squeue(programs, [{"JobArrayID": "7", "State": "RUNNING", "NodeList": "n1", "NumNodes": "1"}])
    starts = 'while [ "$1" != -- ]; do shift; done; shift; SLURM_GPUS_ON_NODE=' + seen + ' exec "$@"'
    (programs / "srun").write_text(f"#!/bin/sh\n{starts}\n")
    (programs / "srun").chmod(0o755)
    values = (ResolvedValue(name="--gpus-per-node", value=asked, by="", at=""),) if asked else ()
    write_accepted(
        folder,
        Record(
            name="long",
            job="7",
            shared=False,
            folder=str(folder),
            command=("sbatchgen", "submit", "single"),
            values=values,
        ),
    )
    index = Index(index_file(os.environ))
    index.begin("c0ffee", folder, "long", shared=False)
    index.accept("c0ffee", "7")
    assert command("exec", "long", "--", "sh", "-c", "echo here; exit 3").status == 3
    printed = capfd.readouterr()
    assert "here" in printed.out
    assert (f"this command has 1 of the job's 2 GPUs on {socket.gethostname()}" in printed.err) == warned


def test_states_are_words(folder: Path) -> None:
    job = RunJob(
        key="a", run="r", id="1", cluster="", submitted=0.0, state="", ended=False, says="", seen=0.0
    )
    assert seen_jobs.state_in_words(job) == "submitted"
    assert (
        seen_jobs.state_in_words(job._replace(state="OUT_OF_MEMORY", ended=True))
        == "ended for lack of memory"
    )
    assert seen_jobs.state_in_words(job._replace(state="SOMETHING_NEW")) == "something new"
    assert RunState(run=None, jobs=()).last_job is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("state", "said"), [("COMPLETED", True), ("TIMEOUT", False)])
def test_resume_says_that_a_run_has_completed(
    folder: Path, programs: Path, command: Command, state: str, *, said: bool
) -> None:
    (folder / "train.py").write_text("print(1)\n")
    fakes.saying(programs, "sbatch", "4711")
    words = ("--profile", "public_cluster", "--job-name", "job", "--trainer", "train.py", "--yes")
    assert command("submit", "single", *words).status == 0
    (job,) = Index(index_file(os.environ)).jobs()
    row = {"JobArrayID": "4711", "State": state, "Command": f"{folder}/sbatchgen-{job.key}-x/job.slurm"}
    fakes.squeue(programs, [row])
    says = "job 4711 of run job has completed; resume starts the run again\n"
    assert (says in command("resume", "job", "--dry-run").err) is said
