"""Commands beside `sbatchgen resume` in the fixes of diagnose, typed where they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import REPOSITORY, Command
from tests.fixes import of_tables
from tests.runs.test_failure import RECORDED
from tests.runs.test_remedy import fixes
from tests.runs.test_typed_fixes import end, submit
from tests.slurm import fakes

LOGS = {
    "gloo-interface": "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] . Unable to find address for: ib9",
    "dos-lines": r"job.sh: line 3: $'\r': command not found",
    "exec-format": "job.sh: line 3: ./a: cannot execute binary file: Exec format error",
    "requeued": "Requeueing: restart 1 of at most 10",
} | {each["cause"]: each["log"] for each in RECORDED["seen"]}
BY_SBATCHGEN = re.compile(r"(?:env -u LC_ALL )?sbatchgen res(?:ume|ubmit)\b")  # typed by test_typed_fixes.py


class Row(NamedTuple):
    """A command in a fix.

    Attributes:
        cause: Whose fix has it.
        command: The command as it is printed, but for the name of a file.
        typed: What is typed, where the fix says in words what comes after it.
        shows: What it prints.
        before: What bash does first: the state after such a failure.
        kind: The kind of the run.
    """

    cause: str
    command: str
    typed: str = ""
    shows: str = ""
    before: str = ""
    kind: str = "own"


# Programs of other machines, which answer here to the words that their manuals have.
ELSEWHERE = {
    "nvidia-smi": '[ $# = 0 ] && echo "CUDA Version: 12.4"',
    "apptainer": '[ "$1 $2" = "registry login" ] && echo Usage',
    "conda": 'case "$*" in "env list") echo "# conda environments:" ;; "info --base") echo /opt/conda ;; *) exit 2 ;; esac',
    "unsquashfs": '[ "$1" = -l ] && [ -f "$2" ] && echo squashfs-root/bin/sh',
}
MODULE = 'module() { [[ " avail spider " == *" $1 "* ]] && echo cuda/12.4; }'
ROWS = (
    Row("shared-memory", "df -h /dev/shm", shows="Mounted on"),
    Row("disk-full", "df -h .", shows="Mounted on"),
    Row("disk-full", "df -h /tmp", shows="Mounted on"),
    Row("open-files", "ulimit -n 65536", "ulimit -n 256; ulimit -n", "256", kind="script"),
    Row("permission", "ls -ld", "ls -ld train.py", "train.py"),
    Row("dos-lines", r"sed -i 's/\r$//'", "sed -i 's/\\r$//' dos.sh; bash dos.sh", "hi", r"printf 'echo hi\r\n' >dos.sh", "script"),
    Row("exec-format", "uname -m", shows=os.uname().machine),
    Row("module-missing", "module avail", shows="cuda", before=MODULE),
    Row("module-missing", "module spider", "module spider cuda", "cuda", MODULE),
    Row("conda-not-set-up", "conda info --base", shows="/opt/conda"),
    Row("conda-activation", "conda env list", shows="environments"),
    Row("conda-environment", "conda env list", shows="environments"),
    Row("step-binding", "unset SLURM_CPU_BIND", "unset SLURM_CPU_BIND; env | grep -c ^SLURM_CPU_BIND= || true", "0", "export SLURM_CPU_BIND=none"),
    Row("container-missing", "ls -l {}", "ls -l torch.sqsh", "torch.sqsh", "touch torch.sqsh"),
    Row("container-missing", "sbatchgen image import", "sbatchgen image import --help", "--to FILE"),
    Row("container-missing", "sbatchgen image pull", "sbatchgen image pull --help", "--to FILE"),
    Row("container-network", "sbatchgen image import", "sbatchgen image import --help", "--to FILE"),
    Row("container-network", "sbatchgen image pull", "sbatchgen image pull --help", "--to FILE"),
    Row("container-refused", "apptainer registry login", "apptainer registry login --help", "Usage"),
    Row("no-pyxis", "sbatchgen image pull", "sbatchgen image pull --help", "--to FILE"),
    Row("container-image", "sbatchgen image import", "sbatchgen image import --help", "--force"),
    Row("container-empty", "unsquashfs -l", "unsquashfs -l torch.sqsh", "squashfs-root", "touch torch.sqsh"),
    Row("container-empty", "sbatchgen image import", "sbatchgen image import --help", "--to FILE"),
    Row("nccl-library", "echo $LD_LIBRARY_PATH", shows="/opt/nccl", before="export LD_LIBRARY_PATH=/opt/nccl"),
    Row("nccl-library", "pip list | grep nccl", "pip list", "pytest"),
    Row("numpy-build", 'pip install "numpy<2"', 'pip install --dry-run --no-index "numpy<2" || true'),
    Row("own-module", "mv {}.py my_{}.py", "mv torch.py my_torch.py; ls", "my_torch.py", "touch torch.py"),
    Row("address-in-use", "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000", "SLURM_JOB_ID=14711; MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)); echo $MASTER_PORT", "24711", kind="script"),
    Row("syntax", "python3 -m py_compile", "python3 -m py_compile bad.py 2>&1 || true", "SyntaxError", "echo 'x = (' >bad.py"),
    Row("no-gpu", "nvidia-smi", shows="CUDA Version"),
    Row("gpu-driver", "nvidia-smi", shows="CUDA Version"),
    Row("nccl-interface", "ip -brief address", shows="lo "),
    Row("gloo-interface", "ip -brief address", shows="lo "),
    Row("gloo-connect", "ip -brief address", shows="lo "),
    Row("crashed", "export PYTHONFAULTHANDLER=1", "export PYTHONFAULTHANDLER=1; python3 -c 'import faulthandler; print(faulthandler.is_enabled())'", "True", kind="script"),
    Row("peer-gone", "sinfo -R", shows="REASON"),
    Row("killed", "sacct -j {} -o JobID,MaxRSS,ReqMem", "sacct -j 4711 -o JobID,MaxRSS,ReqMem", "MaxRSS"),
    Row("requeued", "sbatchgen status {}", "sbatchgen status job", "job 4711"),
)  # fmt: skip


def test_each_command_of_the_table_is_typed() -> None:
    lines = (REPOSITORY / "sbatchgen/jobs/runs/failures.yaml").read_text().splitlines()
    own = [fix for fix in of_tables() if "runs/failures.yaml" in fix.at]
    assert len(own) > 50
    known = {row.cause: tuple(each.command for each in ROWS if each.cause == row.cause) for row in ROWS}
    for fix in own:
        above = reversed(lines[: int(fix.at.rpartition(":")[2])])
        cause = next(line.split()[-1] for line in above if "- cause:" in line)
        for command in fix.commands:
            if not BY_SBATCHGEN.match(command):
                typed = known.get(cause, ())
                is_typed = any(each.startswith(command.replace("JOB ", "{} ")) for each in typed)
                assert command in typed or is_typed, (cause, command)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.cause} {row.command}")
def test_a_command_is_typed_where_it_is_printed(
    row: Row, folder: Path, programs: Path, command: Command
) -> None:
    submit(row.kind, folder, programs, command)
    end(row.kind, folder, programs, "FAILED 1:0", LOGS.get(row.cause, ""))
    if row.cause == "requeued":  # its log alone says so, once Slurm has forgotten the job
        fakes.squeue(programs, [])
    fakes.saying(programs, "sinfo", "REASON USER TIMESTAMP NODELIST\n")
    fakes.saying(programs, "sacct", "JobID MaxRSS ReqMem\n")
    printed = fixes(command).get(row.cause, "")
    if row.cause != "killed":  # whose sacct is printed only where a database answers: test_remedy.py
        pattern = re.escape(row.command).replace(re.escape("{}"), r"\S+")
        assert re.search(pattern, printed), printed
    for name, does in ELSEWHERE.items():
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    for name in ("python3", "pip", "sbatchgen"):
        beside = Path(sys.executable).with_name(name)
        (programs / name).symlink_to(beside)
    text = f"set -e\n{row.before}\n{row.typed or row.command}\n"
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert row.shows in done.stdout
