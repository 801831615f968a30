"""A shell with what a job has, on a real Slurm: its environment, its terminal, and what is left when it ends."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.cluster import conda
from tests.cluster.fixtures import on_one_release
from tests.cluster.job import TERMINAL
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import PROFILE, SBATCHGEN, Site

PROBE = """
import json, os, resource, sys, time
limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
mounts = sorted(line.split()[4] for line in open("/proc/self/mountinfo"))
seen = {"env": dict(os.environ), "limits": limits, "cpus": sorted(os.sched_getaffinity(0)), "mounts": mounts,
        "folder": os.getcwd(), "python": sys.prefix, "args": sys.argv[1:]}
job, rank = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_PROCID", "0")
with open(f"seen-{job}-{rank}.json", "w") as file:
    json.dump(seen, file)
print("trained", flush=True)
time.sleep(600 if "sleep" in sys.argv else 0)
"""
# What two jobs never have in common. MASTER_PORT follows from the job's id.
OF_A_JOB = re.compile(
    r"_|MASTER_PORT|SLURM_(JOB_?ID|JOB_NAME|JOB_SLUID|JOB_(START|END)_TIME|SRUN_COMM_PORT|STEP_?ID"
    r"|STEP_LAUNCHER_PORT|TASK_PID|LAUNCH_NODE_IPADDR)"
)
PROMPT = r"\$ $"
SINGLE = ("single", "--trainer", "probe.py")
TWO_NODES = ("ddp", "--trainer", "probe.py", "--nodes", "2", "--gpus-per-node", "2", "--launcher", "srun")
HOUR = ("--time", "1:00:00")


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Site:
    """A folder with a trainer that tells what it finds."""
    cluster.put("work/testing.yaml", PROFILE)
    cluster.put("work/sbatchgen.yaml", "profile: ./testing.yaml\n")
    cluster.put("work/probe.py", PROBE)
    cluster.put("anaconda3/bin/conda", f"#!{sys.executable}\n{Path(conda.__file__).read_text()}", mode=0o755)
    cluster.put("anaconda3/conda-meta/history", "")
    cluster.put("anaconda3/envs/train/conda-meta/history", "")
    cluster.put("anaconda3/envs/train/etc/conda/activate.d/x.sh", "export OF_TRAIN=1\n")
    cluster.put("anaconda3/envs/train/bin/python3", f'#!/bin/bash\nexec {sys.executable} "$@"\n', mode=0o755)
    cluster.put("work/setup.sh", "declare -x OF_SETUP=1\nnot_exported=2\ntrain() { echo of setup; }\n")
    return Site(cluster, cluster.home / "work")


@pytest.fixture
def terminals(site: Site) -> Iterator[Terminals]:
    """Shells on terminals, which end with the test."""
    opened = Terminals(site)
    yield opened
    opened.close()


class Terminals:
    """The terminals of a test."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.opened: list[pexpect.spawn[str]] = []

    def shell(self, *words: str) -> pexpect.spawn[str]:
        """A shell, once it has printed its prompt."""
        terminal = self.site.cluster.terminal([SBATCHGEN, "shell", *words], cwd=self.site.folder)
        self.opened.append(terminal)
        terminal.expect(PROMPT)
        return terminal

    def close(self) -> None:
        for each in self.opened:
            each.close(force=True)
        self.site.cluster.run(["scancel", "--me"])
        no_job(self.site)


def typed(terminal: pexpect.spawn[str], line: str, answer: str = PROMPT) -> str:
    """What a line prints up to an answer, by default the next prompt."""
    terminal.sendline(line)
    terminal.expect(answer)
    return f"{terminal.before}{terminal.after}"


def job_of(terminal: pexpect.spawn[str]) -> int:
    """The job of a shell that has just printed its first prompt."""
    first = re.search(r"Job (\d+) on ", str(terminal.before))
    assert first
    return int(first[1])


def no_job(site: Site) -> None:
    """Nothing of the user's is left, neither in the queue nor on the nodes."""
    queue = ["squeue", "--all", "--noheader", "--format=%i %T"]
    site.cluster.until(lambda: not site.cluster.root(queue).stdout.strip(), "an empty queue")
    for node in site.cluster.nodes:
        site.cluster.until(partial(is_free, site, node), f"nothing on {node}")


def is_free(site: Site, node: str) -> bool:
    """Whether the user has no process on a node."""
    words = ["pgrep", "--list-full", "--uid", str(site.folder.stat().st_uid)]
    return not site.cluster.root(words, on=node, check=False).stdout


def seen(site: Site, job: int) -> dict[str, dict[str, Any]]:
    """What the ranks of a job have found, by rank."""
    files = site.folder.glob(f"seen-{job}-*.json")
    return {file.stem.rpartition("-")[2]: json.loads(file.read_text()) for file in files}


def last_job(site: Site) -> int:
    return max(int(file.stem.split("-")[1]) for file in site.folder.glob("seen-*.json"))


SHAPES = {
    "two nodes": (*TWO_NODES, *HOUR),
    "host": (*SINGLE, *HOUR, "--runtime", "host"),
    "conda": (*SINGLE, *HOUR, "--runtime", "conda", "--conda-env", "train"),
}


@pytest.mark.proof
@pytest.mark.parametrize("name", SHAPES)
def test_the_training_of_a_shell_finds_what_the_job_finds(site: Site, name: str) -> None:
    """From a shell that is in a job of its own, with other variables of Slurm."""
    root = f"{site.cluster.home}/anaconda3"
    lines = "setup: ['. ./setup.sh']\nruntimes:\n  conda: {root: ROOT}\n".replace("ROOT", root)
    site.cluster.put("work/other.yaml", PROFILE.partition("runtime: venv")[0] + lines + "runtime: host\n")
    words = (*SHAPES[name], *["--profile", "./other.yaml"] * (name != "two nodes"))
    finds_the_same(site, *words, ranks=4 if name == "two nodes" else 1)


def finds_the_same(site: Site, *words: str, ranks: int) -> None:
    """A job with PROBE as its trainer and its training in a shell are the same, but for their ids and arguments."""
    job = int(site.sbatchgen("submit", *words, "--job-name", "same", "--yes", check=True).stdout)
    site.cluster.wait(job, {"COMPLETED"})
    within = {"SLURM_NTASKS": "9", "SLURM_JOB_ID": "1", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1"}
    shell = ("shell", *words, "--job-name", "same", "--yes", "--", "train", "--epochs", "1")
    done = site.sbatchgen(*shell, env=within, check=True)
    assert done.stdout == "trained\n" * ranks
    before, after = seen(site, job), seen(site, last_job(site))
    assert last_job(site) > job
    assert before.keys() == after.keys()
    assert len(before) == ranks
    for rank, there in before.items():
        here = after[rank]
        assert (there.pop("args"), here.pop("args")) == ([], ["--epochs", "1"])
        names = {*there["env"], *here["env"]}
        others = {each for each in names if there["env"].get(each) != here["env"].get(each)}
        assert not [each for each in others if not OF_A_JOB.fullmatch(each)]
        assert there.pop("env").get("RUN_DIR") == here.pop("env").get("RUN_DIR")
        assert there == here


@pytest.mark.proof
@on_one_release
def test_a_job_is_mended_in_its_shell(site: Site, terminals: Terminals) -> None:
    """It fails as the job does, until the file is changed in the shell; then the job does what it did there."""
    site.cluster.put(
        "work/fails.py", "import os\nsteps = 3\nprint('steps', steps / os.environ['OMP_NUM_THREADS'])\n"
    )
    words = ("single", "--trainer", "fails.py", "--job-name", "mended", "--yes")
    site.cluster.wait(int(site.sbatchgen("submit", *words, check=True).stdout), {"FAILED"})
    error = "TypeError: unsupported operand"
    assert error in site.log("mended")
    terminal = terminals.shell(*words)
    assert error in typed(terminal, "train; echo status $?", "status 1")
    typed(terminal, "sed -i 's|/ .*)|* 2)|' fails.py")
    assert "steps 6" in typed(terminal, "train; echo status $?", "status 0")
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    site.cluster.wait(int(site.sbatchgen("submit", *words, check=True).stdout), {"COMPLETED"})
    assert "steps 6" in site.log("mended")


def test_a_shell_is_a_terminal(site: Site, terminals: Terminals) -> None:
    """Ctrl-C ends the training and not the shell, the window has a size, and the status is that of the shell."""
    terminal = terminals.shell(*SINGLE, "--yes")
    assert "`train` starts the training" in str(terminal.before)
    assert "33 111" in typed(terminal, "stty size")
    terminal.setwinsize(44, 122)
    site.cluster.until(lambda: "44 122" in typed(terminal, "stty size"), "the new size")
    typed(terminal, "train sleep", "trained")
    terminal.sendintr()
    terminal.expect(PROMPT)
    assert "status 130" in typed(terminal, "echo status $?")
    assert "[1]+  Stopped" in typed(
        terminal, "sleep 60 & kill -STOP $!; sleep 1; jobs"
    )  # jobs as in any shell
    typed(terminal, "kill -KILL %1")
    terminal.sendline("exit 5")
    terminal.expect(pexpect.EOF)
    assert terminal.wait() == 5
    no_job(site)


def test_the_shell_knows_the_job(site: Site, terminals: Terminals) -> None:
    """Variables that are not exported, functions of setup, and the folder; a job's `train` is no other's."""
    site.cluster.put("work/setup.yaml", PROFILE.replace("[set -euo pipefail]", "['. ./setup.sh']"))
    terminal = terminals.shell(*TWO_NODES, "--profile", "./setup.yaml", "--yes")
    says = typed(terminal, "echo =$not_exported $OF_SETUP $RUN_DIR $MASTER_ADDR ${MASTER_PORT:+port} $PWD=")
    folder = site.folder
    assert f"=2 1 {folder}/runs/ddp n1 port {folder}=" in says.replace("\r\n", "")
    assert "of setup" not in typed(terminal, "train")


def test_a_lost_terminal_gives_the_nodes_back(site: Site, terminals: Terminals) -> None:
    terminal = terminals.shell(*SINGLE, "--yes")
    typed(terminal, "nohup sleep 600 & sleep 1")
    typed(terminal, "train sleep", "trained")
    began = time.monotonic()
    terminal.close(force=True)
    no_job(site)
    assert time.monotonic() - began < 60  # KillWait


def test_a_killed_command_gives_the_nodes_back(site: Site, terminals: Terminals) -> None:
    terminal = terminals.shell(*SINGLE, "--yes")
    job = job_of(terminal)
    typed(terminal, "train sleep", "trained")
    site.cluster.root(["pkill", "--signal", "KILL", "--full", "bin/sbatchgen shell"])
    site.cluster.root(
        ["pkill", "--signal", "KILL", "--oldest", "srun"]
    )  # its other process then ends the step
    no_job(site)
    assert site.cluster.job(job)["JobState"] in TERMINAL


def test_a_kept_job_outlives_its_terminal(site: Site, terminals: Terminals) -> None:
    """A second terminal finds what was started with nohup; the job ends when no terminal is there for so long."""
    terminal = terminals.shell(*SINGLE, "--yes", "--job-name", "kept", "--keep", "8s")
    assert "sbatchgen shell kept-shell" in str(terminal.before)
    typed(terminal, "nohup sleep 601 & sleep 1")
    typed(terminal, "train sleep", "trained")
    job = site.cluster.job(last_job(site))
    dry_run = site.sbatchgen("shell", "kept-shell", "--dry-run", "--", "touch", "must-not-be", check=True)
    assert dry_run.stderr == (
        f"note: this would use job {job['JobId']} of run kept-shell, which is RUNNING, and submit no job\n"
    )
    for options in ("--keep 1h", "--time 2:00:00", "--keep 1h --nodes 2"):
        refused = site.sbatchgen("shell", "kept-shell", *options.split())
        names = " and ".join(options.split()[::2])
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"which can't get another {names}\n" in refused.stderr
        assert f"fix: leave {names} out\n" in refused.stderr
    assert not (site.folder / "must-not-be").exists()
    terminal.close(force=True)
    other = terminals.shell("kept-shell")
    assert "sleep 601" in typed(other, "pgrep --list-full sleep")
    other.sendeof()
    other.expect(pexpect.EOF)
    no_job(site)
    for words in ([], ["--ssh-config"]):
        done = site.sbatchgen("shell", "kept-shell", *words)
        assert (done.stdout, done.returncode) == ("", 5)
        assert "has ended: there is no shell any more" in done.stderr
    fix = re.search(r"fix: sbatchgen (diagnose \d+)\n", done.stderr)
    assert fix
    assert "kept-shell" in site.sbatchgen(*fix[1].split(), check=True).stdout


@pytest.mark.proof
def test_a_kept_job_is_cancelled(site: Site, terminals: Terminals) -> None:
    terminal = terminals.shell(*SINGLE, "--yes", "--job-name", "ended", "--keep", "1h")
    job = job_of(terminal)
    typed(terminal, "nohup sleep 602 & sleep 1")
    site.sbatchgen("cancel", "ended-shell", "--yes", check=True)
    terminal.expect(pexpect.EOF)
    no_job(site)
    assert site.cluster.job(job)["JobState"] == "CANCELLED"
    fix = re.search(r"fix: sbatchgen (shell .*)\n", site.sbatchgen("diagnose", "ended-shell").stdout)
    assert fix
    assert site.sbatchgen(*shlex.split(fix[1]), "--dry-run").returncode == 0


@on_one_release
def test_the_status_of_one_terminal_ends_no_other(site: Site, terminals: Terminals) -> None:
    """255 is also the status of srun that could not connect, and of ssh, whose status a shell ends with."""
    terminal = terminals.shell(*SINGLE, "--yes", "--job-name", "shared")
    other = terminals.shell("shared-shell")
    job = job_of(other)
    terminal.sendline("exit 255")
    terminal.expect(pexpect.EOF)
    assert terminal.wait() == 255
    assert "still here" in typed(other, "sleep 2; echo still here", r"still here\r\n")
    assert site.cluster.job(job)["JobState"] == "RUNNING"


@on_one_release
def test_errors_of_setup_do_not_count_once_a_shell_is_there(site: Site) -> None:
    setup = "['echo \"error: no license\" >&2']"
    site.cluster.put("work/warns.yaml", PROFILE.replace("[set -euo pipefail]", setup))
    done = site.sbatchgen("shell", *SINGLE, "--profile", "./warns.yaml", "--yes", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert "before its shell" not in done.stderr


@pytest.mark.proof
@on_one_release
def test_terminals_that_come_first_leave_the_job_to_the_command_that_asked_for_it(
    site: Site, terminals: Terminals
) -> None:
    """Without --keep; and a relay whose ssh was given up does not wait for the job."""
    site.cluster.sbatch("--nodes=4", "--exclusive", "--output=/dev/null", script="#!/bin/bash\nsleep 900\n")
    terminal = site.cluster.terminal(
        [SBATCHGEN, "shell", *SINGLE, "--yes", "--job-name", "early"], cwd=site.folder
    )
    terminals.opened.append(terminal)
    terminal.expect(r"note: job (\d+) waits")
    job = int(terminal.match[1])  # type: ignore[index]
    assert site.sbatchgen("shell", "early-shell", "--relay").returncode == 255
    assert site.cluster.job(job)["JobState"] == "PENDING"
    asked = ["--full", "sbatchgen shell single .*early"]
    site.cluster.root(["pkill", "--signal", "STOP", *asked])
    site.cluster.run(["scancel", "--state", "RUNNING", "--me"])
    site.cluster.wait(job, {"RUNNING"})
    assert site.sbatchgen("shell", "early-shell", "--", "sh", "-c", "echo $RUN_DIR", check=True).stdout
    time.sleep(3)  # a session looks five times a second whether a terminal is left
    site.cluster.root(["pkill", "--signal", "CONT", *asked])
    terminal.expect(PROMPT)
    assert "still here" in typed(terminal, "echo still here", r"still here\r\n")
    terminal.sendline("exit 0")
    no_job(site)


@on_one_release
def test_a_terminal_that_closes_in_the_queue_takes_its_job_along(site: Site) -> None:
    site.cluster.sbatch("--nodes=4", "--exclusive", "--output=/dev/null", script="#!/bin/bash\nsleep 900\n")
    terminal = site.cluster.terminal(["bash", "--norc", "-i"], cwd=site.folder)
    terminal.sendline(f"{SBATCHGEN} shell {' '.join(SINGLE)} --yes --job-name unseen")
    terminal.expect(r"note: job (\d+) waits")
    job = int(terminal.match[1])  # type: ignore[index]
    terminal.close(force=True)
    assert site.cluster.wait(job)["JobState"] == "CANCELLED"
    site.cluster.run(["scancel", "--me"])
    no_job(site)


STRANGER = """
import array, os, socket, sys
os.setgid(65534)
os.setuid(65534)
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(50)
peer.connect("\\0sbatchgen-shell-" + sys.argv[1])
asked = b'{"words": ["touch", "stranger"], "lends": false, "tty": false, "term": ""}\\n'
try:
    peer.sendmsg([asked], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", range(3)))])
    print("answer", peer.recv(1))
except ConnectionError:
    print("answer", b"")
"""


@on_one_release
def test_another_user_of_the_node_is_refused_at_once(site: Site, terminals: Terminals) -> None:
    terminal = terminals.shell(*SINGLE, "--yes")
    words = ["python3", "-c", STRANGER, str(job_of(terminal))]
    assert site.cluster.root(words, on="n1").stdout == "answer b''\n"
    assert not (site.folder / "stranger").exists()
    assert "still here" in typed(terminal, "echo still here", r"still here\r\n")


@on_one_release
def test_a_command_has_its_input_and_gives_its_status(site: Site) -> None:
    done = site.sbatchgen("shell", *SINGLE, "--yes", "--", "sh", "-c", "cat; exit 7", input="in\n")
    assert (done.stdout, done.returncode) == ("in\n", 7)
    element = ("--array", "2", "--", "sh", "-c", "echo $SLURM_ARRAY_TASK_ID $RUN_DIR")
    done = site.sbatchgen("shell", *SINGLE, "--yes", *element, check=True)
    assert done.stdout == f"2 {site.folder}/runs/single/2\n"
    done = site.sbatchgen("shell", *SINGLE, "--yes", input="train; echo $?; exit 8\n")
    assert (done.stdout, done.returncode) == ("trained\n0\n", 8)


@pytest.mark.proof
@on_one_release
def test_a_job_that_can_not_start_says_why(site: Site) -> None:
    done = site.sbatchgen("shell", *SINGLE, "--yes", "--runtime", "conda", "--conda-env", "none")
    assert done.returncode == 5
    assert re.search(r"error: .* has ended.*: can't activate the conda environment none\n", done.stderr)
    refused = site.sbatchgen(
        "shell", *SINGLE, "--yes", "--partition", "cpu", "--time", "9:00:00", "--", "true"
    )
    by_submit = site.sbatchgen("submit", *SINGLE, "--yes", "--partition", "cpu", "--time", "9:00:00")
    site.cluster.run(["scancel", "--me"])
    assert refused.returncode == by_submit.returncode
    no_job(site)


def test_a_command_beside_the_training_has_all_gpus_of_the_job(site: Site) -> None:
    """And runs once on each node, though the job has several tasks there."""
    done = site.sbatchgen("submit", *TWO_NODES, "--yes", "--job-name", "beside", "--", "sleep", check=True)
    job = int(done.stdout)
    site.cluster.until(lambda: len(seen(site, job)) == 4, "start of all ranks")
    sees = 'echo "$(hostname) $CUDA_VISIBLE_DEVICES"'
    beside = site.sbatchgen("exec", "beside", "--", "sh", "-c", sees, check=True)
    site.cluster.run(["scancel", str(job)], check=True)
    lines = [line.split() for line in beside.stdout.splitlines()]
    assert len({host for host, _ in lines}) == len(lines) == 2
    assert {gpus.count(",") for _, gpus in lines} == {1}
    assert "of the job's" not in beside.stderr


PROGRAMS = """
mode: single
programs:
  server: {command: [python3, -m, http.server, "{server.port}"], gpus: 0, ready: {port: "{port}"}}
  client: {command: [python3, asks.py], main: true, needs: [server]}
"""
ASKS = """
import os, time, urllib.request
host, port = (os.environ[f"SBATCHGEN_SERVER_{name}"] for name in ("HOST", "PORT"))
print("answer of", len(urllib.request.urlopen(f"http://{host}:{port}").read()) > 0, flush=True)
time.sleep(600 * os.path.exists("long"))
"""


@pytest.mark.proof
def test_several_programs_start_in_a_shell(site: Site, terminals: Terminals) -> None:
    """As often as one likes; Ctrl-C ends them, and not the shell."""
    site.cluster.put("work/several.yaml", PROGRAMS)
    site.cluster.put("work/asks.py", ASKS)
    terminal = terminals.shell("several.yaml", "--yes")
    assert "answer of True" in typed(terminal, "train; echo ended with $?", "ended with 0")
    assert "takes no arguments" in typed(terminal, "train more; echo ended with $?", "ended with 1")
    typed(terminal, "touch long; train; echo ended with $?", "answer of True")
    terminal.sendintr()
    terminal.expect("ended with 130")
    steps = typed(terminal, "rm long; squeue --me --steps --noheader --format=%j; pgrep --list-full sleep")
    assert not re.search(r"server|client|sleep 60", steps)


@pytest.mark.proof
@on_one_release
def test_a_shell_is_charged(site: Site) -> None:
    """An hour of one GPU unless it says otherwise, whatever restarts the job may have."""
    site.cluster.put("work/budget.yaml", "gpu_hours: 1\n")
    budget = (*SINGLE, "--yes", "--budget", "budget.yaml", "--requeue-on-timeout", "--max-restarts", "3")
    refused = site.sbatchgen("shell", *budget, "--time", "2:00:00", "--", "true")
    assert refused.returncode == 7
    assert "this job may take 2 GPU-hours; 1 of 1 are left" in refused.stderr
    assert site.sbatchgen("shell", *budget, "--", "true").returncode == 0


# Its collectives wait 3 s; a program that they start may fail.
STOPS = """
import datetime, os, subprocess, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))
rank = dist.get_rank()
subprocess.run([sys.executable, "-c", "import no_such_module"], stderr=subprocess.DEVNULL)
def step():
    breakpoint()
    total = torch.ones(1)
    dist.all_reduce(total)
    if "crash" in sys.argv:
        {}[rank]
    print(f"trained by {int(total)}\\n", end="", flush=True)  # one write, even without a buffer
step()
dist.destroy_process_group()
"""
# After the end of the group, in which an interrupt may be lost.
SLEEPS = """
if "sleep" in sys.argv:
    import time
    time.sleep(2)
    print("sleeps", flush=True)
    time.sleep(600)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_a_rank_stops_in_the_terminal(site: Site, terminals: Terminals, launcher: str) -> None:
    """While the other one waits for it in a collective; then a crash does, and the shell works on."""
    site.cluster.put("work/stops.py", STOPS)
    job = ("ddp", "--trainer", "stops.py", "--nodes", "1", "--gpus-per-node", "2", "--launcher", launcher)
    terminal = terminals.shell(*job, *HOUR, "--yes", "--debug", "1")
    assert "Rank 1 stops here" in str(terminal.before)
    pdb = r"\(Pdb\) "
    assert "stops.py(8)step()" in typed(terminal, "train", pdb)
    time.sleep(5)  # longer than collectives wait by themselves
    assert "1" in typed(terminal, "p rank", pdb).splitlines()
    terminal.send("p rank")
    terminal.sendintr()  # of this line alone
    terminal.expect(pdb)
    assert "--KeyboardInterrupt--" in str(terminal.before)
    assert "trained by 2" in typed(terminal, "c")
    typed(terminal, "SBATCHGEN_DEBUG=0 train crash", pdb)
    assert "KeyError: 0" in typed(terminal, "c", pdb)
    time.sleep(12)  # longer than a rank that has crashed waits
    assert "0" in typed(terminal, "p rank", pdb).splitlines()
    typed(terminal, "q")
    typed(terminal, "train", pdb)
    assert "BdbQuit" in typed(terminal, "q")
    typed(terminal, "train", pdb)
    typed(terminal, "c", "trained by 2")
    terminal.expect(PROMPT)
    assert "isig" in typed(terminal, "stty -a").split()
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    assert not [*site.folder.glob("runs/*/debug-*")]
    no_job(site)


@pytest.mark.proof
@on_one_release
def test_only_a_rank_of_the_first_node_stops(site: Site, terminals: Terminals) -> None:
    """Ctrl-C ends a training that has continued; a warning says that no rank can stop."""
    site.cluster.put("work/stops.py", STOPS + SLEEPS)
    job = [word.replace("probe", "stops") for word in TWO_NODES]
    refused = site.cluster.terminal([SBATCHGEN, "shell", *job, "--yes", "--debug", "2"], cwd=site.folder)
    refused.expect("the first node, where the shell is, has the ranks 0 to 1\r\n  at:  --debug 2\r\n")
    terminal = terminals.shell(*job, *HOUR, "--yes", "--debug", "--job-name", "debugged")
    says = typed(terminal, "SBATCHGEN_DEBUG=2 train")
    assert says.count("warning: rank 2 can't stop in this terminal: it is on n2, and this shell on n1") == 1
    assert says.count("trained by 4") == 4
    typed(terminal, "train sleep", r"\(Pdb\) ")
    typed(terminal, "c", "sleeps")
    terminal.sendintr()
    terminal.expect(PROMPT)
    assert "status 130" in typed(terminal, "echo status $?")
    assert "nothing stops" in typed(terminal, "ln -s /usr/bin/true srun; PATH=$PWD:$PATH train")
    assert not [*site.folder.glob("runs/*/debug-*")]
