"""Fixes of diagnose with what this machine and Slurm know, typed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.runs.failure import Failure
from sbatchgen.jobs.runs.remedy import limit_memory
from tests.conftest import Command
from tests.runs.test_typed_fixes import SLURM, end, submit
from tests.slurm import fakes

OWN = ("submit", "single", *SLURM, "--trainer", "train.py")
NODES = "NodeName={name} Arch=x86_64 CoresPerSocket=1 CPUTot=8 State={state} Partitions=gpu \n"


def fixes(command: Command) -> dict[str, str]:
    """What diagnose says to do, by cause."""
    said = json.loads(command("diagnose", "job", "--format", "json").out)
    return {each["cause"]: each["fix"] for each in said["causes"]}


def failed(folder: Path, programs: Path, command: Command, log: str, *options: str) -> None:
    """A run of one's own trainer, with this log."""
    (folder / "train.py").write_text("raise SystemExit(1)\n")
    (programs / "sbatch").write_text("#!/bin/sh\necho 4711\n")
    (programs / "sbatch").chmod(0o755)
    done = command(*OWN, *options)
    assert done.status == 0, done.err
    end("own", folder, programs, "FAILED 1:0", log)


def program(programs: Path, name: str, text: str) -> None:
    (programs / name).write_text(text)
    (programs / name).chmod(0o755)


# --- the environment of the run


@pytest.mark.proof
@pytest.mark.slow
def test_a_package_is_installed_where_the_run_looks_for_it(
    folder: Path, programs: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "torch env"], cwd=folder, check=True)
    failed(folder, programs, command, "ModuleNotFoundError: No module named 'yaml'", "--venv", "torch env")
    fix = fixes(command)["package-missing"]
    assert fix == f"'{folder}/torch env/bin/python3' -m pip install pyyaml"
    dry = subprocess.run(
        ["bash", "-c", f"{fix} --dry-run --no-index"], capture_output=True, text=True, check=False
    )
    assert (
        "No matching distribution found for pyyaml" in dry.stderr
    )  # pip has understood; nothing is downloaded


def test_a_package_of_an_unknown_name_is_not_named(folder: Path, programs: Path, command: Command) -> None:
    (folder / "env").mkdir()
    (folder / "env/pyvenv.cfg").touch()
    failed(folder, programs, command, "ModuleNotFoundError: No module named 'my_models.net'", "--venv", "env")
    assert fixes(command)["package-missing"] == (
        f"the job ran in {folder}/env: install the package of my_models there, or name another by --venv"
    )


def test_without_an_environment_the_question_stays(folder: Path, programs: Path, command: Command) -> None:
    failed(folder, programs, command, "ModuleNotFoundError: No module named 'yaml'", "--runtime", "host")
    assert fixes(command)["package-missing"].startswith("start an environment that has the package")


# --- conda and modules


def test_the_folder_of_conda_is_that_of_this_shell(
    folder: Path, programs: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONDA_EXE", raising=False)
    log = "CondaError: Run 'conda init' before 'conda activate'\nerror: can't activate the conda environment torch"
    failed(folder, programs, command, log, "--conda-env", "torch")
    assert "conda info --base shows" in fixes(command)["conda-not-set-up"]
    root = folder / "mini conda"
    (root / "bin").mkdir(parents=True)
    program(root / "bin", "conda", "#!/bin/sh\n")
    monkeypatch.setenv("CONDA_EXE", f"{root}/bin/conda")
    fix = fixes(command)["conda-not-set-up"].partition("\n")[0]
    assert fix == f"sbatchgen resume job --set runtimes.conda.root='{root}'"
    again = command(*shlex.split(fix)[1:], "--dry-run")
    assert again.status == 0, again.err
    assert f"{root}" in again.out + again.err, again.err


def test_a_script_gets_the_line_that_sets_conda_up(
    folder: Path, programs: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit("script", folder, programs, command)
    end("script", folder, programs, "FAILED 1:0", "/spool/slurm_script: line 3: conda: command not found")
    monkeypatch.delenv("CONDA_EXE", raising=False)
    assert "conda init" in fixes(command)["conda-not-set-up"]
    (folder / "conda/bin").mkdir(parents=True)
    program(folder / "conda/bin", "conda", "#!/bin/sh\necho 'conda() { echo activated; }'\n")
    monkeypatch.setenv("CONDA_EXE", f"{folder}/conda/bin/conda")
    line = fixes(command)["conda-not-set-up"].removeprefix("write before conda activate: ")
    typed = subprocess.run(
        ["bash", "-c", f"{line}\nconda activate torch"], capture_output=True, text=True, check=True
    )
    assert typed.stdout == "activated\n"


@pytest.mark.parametrize(
    ("kind", "log"),
    [
        ("own", "error: no command 'module' here"),
        ("script", "/spool/slurm_script: line 3: module: command not found"),
    ],
)
def test_the_file_that_defines_module_is_that_of_this_machine(
    folder: Path, programs: Path, command: Command, monkeypatch: pytest.MonkeyPatch, kind: str, log: str
) -> None:
    monkeypatch.setattr("sbatchgen.jobs.runs.remedy._MODULE_INIT_FILES", ())
    monkeypatch.delenv("MODULESHOME", raising=False)
    submit(kind, folder, programs, command)
    end(kind, folder, programs, "FAILED 1:0", log)
    assert "/etc/profile.d" in fixes(command)["no-modules"]
    (folder / "lmod/init").mkdir(parents=True)
    (folder / "lmod/init/bash").write_text("module() { echo loaded; }\n")
    monkeypatch.setenv("MODULESHOME", f"{folder}/lmod")
    fix = fixes(command)["no-modules"].partition("\n")[0]
    if kind == "own":
        again = command(*shlex.split(fix)[1:], "--dry-run")
        assert again.status == 0, again.err
        assert f"source {folder}/lmod/init/bash\n" in again.err
        return
    line = fix.rpartition(": ")[2]
    typed = subprocess.run(
        ["bash", "-c", f"{line}\nmodule load x"], capture_output=True, text=True, check=True
    )
    assert typed.stdout == "loaded\n"


# --- nodes and memory


def of_two_nodes(
    folder: Path, programs: Path, command: Command, *states: str, options: Sequence[str] = ()
) -> None:
    """A run of two nodes, of which a node has failed; the nodes of the cluster are in these states now."""
    submit("own", folder, programs, command, *options)
    end("own", folder, programs, "NODE_FAIL 0:0", "")
    row = {
        "JobArrayID": "4711",
        "State": "NODE_FAIL",
        "exit_code": "0",
        "NodeList": "n[1-2]",
        "NumNodes": "2",
    }
    fakes.squeue(programs, [row | {"Command": f"{folder}/sbatchgen-{key(folder)}-x/job.slurm"}])
    lines = [NODES.format(name=f"n{number}", state=state) for number, state in enumerate(states, 1)]
    program(programs, "scontrol", f"#!/bin/sh\nprintf '%s' {shlex.quote(''.join(lines))}\n")


def key(folder: Path) -> str:
    """The key of the only submission."""
    (record,) = folder.glob("runs/job/job-*.json")
    return str(json.loads(record.read_text())["key"])


@pytest.mark.parametrize(
    ("states", "name"), [(("IDLE", "DOWN", "DOWN"), "n2"), (("DOWN", "IDLE+DRAIN", "IDLE"), "n1,n2")]
)
def test_the_node_that_failed_is_named_and_can_be_left_out(
    folder: Path, programs: Path, command: Command, states: tuple[str, ...], name: str
) -> None:
    of_two_nodes(folder, programs, command, *states)
    said = command("diagnose", "job").out
    assert f"most likely: a node of the job failed ({name})\n" in said
    fix = fixes(command)["node-failure"]
    assert fix.startswith(f"sbatchgen resume job; without that node: sbatchgen resume job --exclude {name}")
    again = command("resume", "job", "--exclude", name, "--dry-run")
    assert again.status == 0
    assert f"--exclude={name}" in again.err


def test_a_node_that_the_job_asks_for_by_name_cannot_be_left_out(
    folder: Path, programs: Path, command: Command
) -> None:
    """Slurm refuses --exclude beside --nodelist, and without it the job waits for the node."""
    of_two_nodes(folder, programs, command, "IDLE", "DOWN", "DOWN", options=["--nodelist", "n2"])
    assert fixes(command)["node-failure"] == "take n2 out of --nodelist, and submit the job again"


def test_a_fix_with_slurm_nnodes_names_no_node(folder: Path, programs: Path, command: Command) -> None:
    said = "RuntimeError: You set `--ntasks=4` in your SLURM bash script, but this variable is not supported."
    failed(folder, programs, command, f"{said} HINT: Use `--ntasks-per-node=4`", "--nodelist", "n7")
    fix = fixes(command)["lightning-size"]
    assert fix.startswith("set --ntasks-per-node=4\n")
    assert "SLURM_NNODES" in fix


def test_a_node_that_is_back_is_not_named(folder: Path, programs: Path, command: Command) -> None:
    of_two_nodes(folder, programs, command, "IDLE", "IDLE")
    assert "a node of the job failed\n" in command("diagnose", "job").out
    assert "NODE" not in fixes(command)["node-failure"]
    assert "--exclude" not in fixes(command)["node-failure"]


def test_sacct_is_named_only_where_a_database_answers(folder: Path, programs: Path, command: Command) -> None:
    submit("own", folder, programs, command)
    end("own", folder, programs, "FAILED 0:9", "")
    fix = fixes(command)["killed"]
    assert "sacct" not in fix
    assert "sbatchgen resume job --mem" in fix
    program(programs, "sacct", "#!/bin/sh\n")
    (asked,) = re.findall(r"; (sacct -j 4711 -o JobID,MaxRSS,ReqMem) shows", fixes(command)["killed"])
    assert subprocess.run(asked.split(), check=False).returncode == 0


# --- what Slurm has forgotten


@pytest.mark.parametrize(
    ("said", "state", "cause"),
    [
        (" DUE TO TIME LIMIT ***", "ended by the time limit", "time-limit"),
        (
            " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
            "ended by the failure of a node",
            "node-failure",
        ),
        (" DUE TO PREEMPTION ***", "ended to make room for another job", "preempted"),
        (" ***", "cancelled", "cancelled"),
        (" DUE TO JOB REQUEUE ***", "ended", "requeued"),
    ],
)
def test_a_job_that_slurm_has_forgotten_ended_as_its_log_says(
    folder: Path, programs: Path, command: Command, said: str, state: str, cause: str
) -> None:
    submit("own", folder, programs, command)
    end(
        "own",
        folder,
        programs,
        "RUNNING 0:0",
        f"slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-29{said}",
    )
    fakes.squeue(programs, [])
    assert command("diagnose", "job").out.startswith(f"job: job 4711 {state}: ")
    assert cause in fixes(command)


def test_the_words_for_another_job_say_nothing(folder: Path, programs: Path, command: Command) -> None:
    submit("own", folder, programs, command)
    end(
        "own",
        folder,
        programs,
        "RUNNING 0:0",
        "slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***",
    )
    fakes.squeue(programs, [])
    assert command("status", "job").out.count("no longer in the queue") == 1


# --- no more memory than nodes have


SIZES = "".join(
    f"NodeName={name} Arch=x86_64 CoresPerSocket=1 CPUTot=8 RealMemory={memory} MemSpecLimit=500 "
    f"State=IDLE Partitions={partition} \n"
    for name, memory, partition in (("n1", 16000, "gpu"), ("n2", 12000, "gpu"), ("b1", 500000, "bigmem"))
)
ALL_MEMORY = (
    "use a smaller batch, or fewer workers that load data\n  also: the job had all memory of a node, 15500M"
    "\n  also: the nodes of partition bigmem have more"
)


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("2000M", "--mem 4000M\n  or: load the data with fewer workers"),
        ("9000M", "--mem 15500M\n  or: load the data with fewer workers"),
        ("15500M", ALL_MEMORY),
        ("0", ALL_MEMORY),
    ],
)
def test_no_fix_asks_for_more_memory_than_a_node_has(
    folder: Path, programs: Path, command: Command, typed: str, fix: str
) -> None:
    fakes.saying(programs, "scontrol", SIZES)
    more = ("--partition", "gpu", "--mem", typed)
    failed(folder, programs, command, "MemoryError", *more)
    says = fixes(command)["host-memory"]
    assert fix in says
    typed_again = re.findall(r"sbatchgen resume \S+ --mem \S+", says)
    assert len(typed_again) == ("--mem" in fix)
    for mem in typed_again:
        assert command(*shlex.split(mem)[1:], "--dry-run").status in (0, None)


def test_a_job_without_a_partition_gets_the_memory_of_the_default_partition(
    folder: Path, programs: Path, command: Command
) -> None:
    fakes.saying(programs, "scontrol", f"{SIZES}PartitionName=gpu Default=YES \nPartitionName=bigmem \n")
    script = JobScript(file="job.sh", text="#!/bin/bash\n#SBATCH --mem=9000M\npython3 train.py\n")
    cause = Failure(cause="host-memory", rank="cause", means="", fix="--mem 18000M")
    assert limit_memory(cause, script, os.environ).fix == "--mem 15500M"


def test_what_else_helps_is_said_where_a_node_has_no_more_memory(
    folder: Path, programs: Path, command: Command
) -> None:
    fakes.saying(programs, "scontrol", SIZES)
    failed(folder, programs, command, "Rank 1 of the training ended by SIGKILL", "--mem", "0")
    says = fixes(command)["killed"]
    assert says.startswith(ALL_MEMORY)
    assert "\n  or: run it again, if memory was not the cause: sbatchgen resume job" in says
