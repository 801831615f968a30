"""What ends a script before its programs is needed, or passed; what looks for a port finds one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.lab.plan import listing
from tests.plan.plans import needs_sandbox, planned, said

pytestmark = needs_sandbox

LAST = "srun python train.py $PORT\n"
NEXT = "PORT=$((PORT + 1))"
CHECKS = {
    "a function": ('fail() { echo "no: $*"; exit 1; }\n[ -d ~/envs/v ] || fail "no venv"\n', "folder", "v"),
    "functions that call others": (
        'die() {\n  log "$1"\n  exit 1\n}\nlog() { [[ $1 ]] && printf "%s\\n" "$1"; }\n[[ -f /data/x ]] || die x\n',
        "file", "x",
    ),
    "a function that tests": (
        'need() {\n  if [ ! -f "$1" ]; then\n    echo "no $1"\n    exit 1\n  fi\n}\nneed data/a.txt\n', "file", "a.txt",
    ),
    "a function that returns": ("set -e\ncheck() { [[ -d $1 ]] || return 1; }\ncheck /data/set\n", "folder", "set"),
    "main": (
        'err() { echo "$@" >&2; }\nmain() {\n  [[ -d /sets/q ]] || { err "no"; return 1; }\n}\nmain || exit $?\n',
        "folder", "q",
    ),
    "a usage": ("usage() {\n  cat <<EOF\nusage\nEOF\n  exit 1\n}\n[ $# -ge 1 ] || usage\n: $1\n", "arguments", "1"),
    "a trap of a function": (
        "end() {\n  rc=$?\n  rm -rf /x\n  [ ! -f log ] || cat log\n}\ntrap end EXIT\n[ -d /data/x ] || exit 1\n",
        "folder", "x",
    ),
    "a trap of commands": (
        "trap 'rc=$?; rm -f /tmp/x; [ -f done ] && touch ok' EXIT INT TERM\nset -e\ntest -f /data/x\n", "file", "x",
    ),
    "a trap, and a variable": (
        'trap "rm -rf ~/tmp" 0\nif [ -z "${DATA:-}" ]; then\n  echo "set DATA"\n  exit 1\nfi\n', "variable", "DATA",
    ),
    "a trap on errors": ("set -Ee\ntrap 'echo $LINENO; exit 1' ERR\n[ -f /data/y ]\n", "file", "y"),
    "a list of files": ("if ! ls /sets/q/*.bin >/dev/null 2>&1; then exit 1; fi\n", "file", "*.bin"),
    "a variable that must be set": ("[[ -v TOKEN ]] || exit 1\n", "variable", "TOKEN"),
    "a variable for a function": (
        "need() {\n  [[ -v $1 ]] || exit 1\n}\nown() {\n  [[ ! -L runs/x ]]\n}\nown\nneed TOKEN\n", "variable", "TOKEN",
    ),
    "a new folder": ("set -e\nmkdir /scratch9/me/out\n", "folder", "me"),
}  # fmt: skip
PORTS = {
    "nc": f"while nc -z localhost $PORT; do {NEXT}; done\n",
    "nc, until": f"until ! nc -zv 127.0.0.1 $PORT 2>/dev/null; do {NEXT}; done\n",
    "nc, if": f"while true; do\n  if ! nc -w 1 -z $(hostname) $PORT; then break; fi\n  {NEXT}\ndone\n",
    "ncat": f"while ncat -z localhost $PORT; do {NEXT}; done\n",
    "telnet": f"while telnet localhost $PORT </dev/null; do {NEXT}; done\n",
    "a file of bash": f"while (echo >/dev/tcp/localhost/$PORT) 2>/dev/null; do {NEXT}; done\n",
    "bash, in time": f'while timeout 1 bash -c "</dev/tcp/localhost/$PORT"; do {NEXT}; done\n',
    "lsof": f"while lsof -Pi :$PORT -sTCP:LISTEN -t >/dev/null; do {NEXT}; done\n",
    "lsof, its words": f'while [ -n "$(lsof -i:$PORT)" ]; do {NEXT}; done\n',
    "fuser": f"while fuser $PORT/tcp >/dev/null 2>&1; do {NEXT}; done\n",
    "ss": f'while ss -tuln | grep -q ":$PORT "; do {NEXT}; done\n',
    "ss, its words": f'while [ -n "$(ss -Hltn "sport = :$PORT")" ]; do {NEXT}; done\n',
    "netstat": f"while netstat -tuln | grep $PORT; do {NEXT}; done\n",
}
SERVERS = {
    "nc": "python server.py &\nuntil nc -z $(hostname) 8000; do sleep 1; done\n",
    "nc, some times": "python server.py &\nfor i in {1..9}; do nc -z localhost 8000 && break; sleep 1; done\n",
    "lsof": "python server.py &\nuntil lsof -i :8000; do sleep 1; done\n",
    "curl": "python server.py &\nuntil curl -sf http://localhost:8000/health; do sleep 1; done\n",
    "another machine's": "nc -z licences.example.org 27000 || exit 1\n",
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", CHECKS)
def test_what_a_check_misses_is_needed(tmp_path: Path, case: str) -> None:
    text, kind, name = CHECKS[case]
    done, _ = planned(text + LAST, tmp_path)
    assert done.steps
    assert done.steps[-1].processes[0].argv[:2] == ("python", "train.py")
    assert (kind, name) in {(need.kind, need.name.rpartition("/")[2]) for need in done.needed}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", PORTS)
def test_a_port_that_is_looked_for_is_free(tmp_path: Path, case: str) -> None:
    done, findings = planned(f"PORT=20000\n{PORTS[case]}{LAST}", tmp_path)
    assert [step.processes[0].argv for step in done.steps] == [("python", "train.py", "20000")]
    assert not said(findings)


@pytest.mark.parametrize("case", SERVERS)
def test_a_server_that_is_waited_for_comes(tmp_path: Path, case: str) -> None:
    done, findings = planned(SERVERS[case] + LAST, tmp_path)
    assert done.steps[-1].processes[0].argv == ("python", "train.py")
    assert not said(findings)


def test_an_end_in_a_function_is_told_at_its_call_with_what_it_printed(tmp_path: Path) -> None:
    text = 'fail() {\n  echo "no: $*"\n  exit 7\n}\n[ "$(date +%Y)" = 1999 ] || fail "too late"\n'
    _, (first, *_) = planned(f"{text}python train.py\n", tmp_path)
    assert first.problem.what == "the script ends with 7 before it starts a program: no: too late"
    assert first.place.line == 6


def test_a_variable_that_this_release_does_not_set_is_told_with_the_release(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=1 --ntasks=1 --gpus-per-task=2\n"
    text += "srun torchrun --standalone --nproc_per_node=$SLURM_GPUS_PER_TASK train.py\n"
    done, findings = planned(text, tmp_path, slurm="26.05")
    assert [(each.problem.what, each.problem.fix) for each in findings] == [
        (
            "--nproc_per_node has no value: SLURM_GPUS_PER_TASK is empty, because Slurm 26.05 does not set it",
            "--nproc_per_node $SLURM_GPUS_ON_NODE",
        )
    ]
    assert "SLURM_GPUS_PER_TASK, which Slurm 26.05 does not set: --var" in listing.as_text(done)
    assert not planned(text, tmp_path, slurm="23.02")[1]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("python a.py\nbash train.sh\n", ""),
        ("python a.py\nsource ./run.sh\n", ""),
        ("python a.py\nperl run.pl\n", ""),
        ("python a.py\nssh node1 python b.py\n", ""),
        ("#!/bin/bash -ex\npython a.py\necho done\n", ""),
        ("#!/bin/bash -x\npython a.py\necho done\n", "echo comes last"),
        ("trap 'rm -f x' EXIT\npython a.py\n", ""),
        ("trap 'rm -f x' EXIT\npython a.py\necho done\n", "echo comes last"),
        ("python a.py\nbash train.sh | tee log\n", "the pipe to tee hides it"),
        ("python a.py\ncat log\n", "cat comes last"),
    ],
)
def test_a_status_is_lost_only_where_that_is_sure(tmp_path: Path, text: str, says: str) -> None:
    lost = [each.problem.what for each in planned(text, tmp_path)[1] if "ends with 0" in each.problem.what]
    assert [what.partition(": ")[2] for what in lost] == ([says] if says else [])
