"""The table of programs: what its rows say, and that all commands read them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sbatchgen.check.executables import program, word_table
from sbatchgen.check.executables.command_options import program_name, read_options
from sbatchgen.check.executables.launcher import LauncherCall
from sbatchgen.check.executables.program import (
    LAUNCHERS,
    MODULES,
    PROGRAMS,
    SHELLS,
    Program,
    commands,
    programs,
)
from sbatchgen.check.script.script import JobScript
from tests.conftest import REPOSITORY
from tests.plan.plans import needs_sandbox

WRAPPER = "wrapper: acmewrap | o,opt= verbose"
LAUNCHER = "launcher underscores: acmerun | nnodes=NODES workers=PROCESSES"
WITH_ROW = """
import sys
from sbatchgen.check.executables import word_table
head, _, words = sys.argv.pop(1).partition(": ")
rows = word_table.rows
word_table.rows = lambda module, name: [*rows(module, name), *[(head, words)] * (name == "programs.txt")]
from sbatchgen.cli import main
main()
"""
HEAD = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\n#SBATCH --time=1:00:00\n"


def with_row(row: str, folder: Path, *arguments: str) -> str:
    """What a command prints where the table has one more row."""
    call = [sys.executable, "-c", WITH_ROW, row, *arguments]
    environment = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def script(folder: Path, line: str) -> str:
    (folder / "job.sh").write_text(f"{HEAD}{line}\n")
    return "job.sh"


RULES = REPOSITORY / "sbatchgen/check/rules"
KINDS = {
    kind
    for heads, _ in word_table.rows(program.__file__, "programs.txt")
    for kind in heads.split()
    if not kind.isdecimal()
}
TRAINING = "torchrun --nproc-per-node=8 train.py"


@pytest.mark.parametrize("row", ["stand-in: other", WRAPPER])
def test_lint_sees_through_a_wrapper_of_the_table_alone(row: str, tmp_path: Path) -> None:
    name = script(tmp_path, f"srun acmewrap --opt 2 {TRAINING}")
    assert ("SB304" in with_row(row, tmp_path, "lint", name)) == (row == WRAPPER)  # 8 processes for 4 GPUs


@pytest.mark.sampled(4)
@needs_sandbox
@pytest.mark.parametrize("step", ["srun ", ""])
@pytest.mark.parametrize("row", ["stand-in: acmewrap", WRAPPER])
def test_a_plan_sees_through_a_wrapper_of_the_table_alone(row: str, step: str, tmp_path: Path) -> None:
    name = script(tmp_path, f"{step}acmewrap --opt 2 {TRAINING}")
    plan = with_row(row, tmp_path, "plan", "--format", "json", name)
    (process,) = (process for step in json.loads(plan)["steps"] for process in step["processes"])
    assert process["argv"] == [*(["acmewrap", "--opt", "2"] if row != WRAPPER else []), *TRAINING.split()]
    assert ("SB304" in plan) == (row == WRAPPER)


@pytest.mark.parametrize("row", ["stand-in: other", WRAPPER])
def test_adopt_sees_through_a_wrapper_of_the_table_alone(row: str, tmp_path: Path) -> None:
    name = script(tmp_path, "srun acmewrap --opt 2 bash -c 'python train.py'")
    adopted = with_row(row, tmp_path, "adopt", name)
    assert ("    command:\n    - acmewrap\n    - --opt\n    - '2'\n" in adopted) == (row == WRAPPER)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", ["stand-in: other", LAUNCHER])
def test_a_launcher_of_the_table_is_no_trainer_and_no_prefix(row: str, tmp_path: Path) -> None:
    prefixed = "trainer: t.py\nruntime: prefix\nprefix: [acmerun]\n"
    (tmp_path / "t.py").touch()
    for what, text in (("SB045", "trainer: acmerun\n"), ("'acmerun' starts the tasks itself", prefixed)):
        (tmp_path / "job.yaml").write_text(f"mode: ddp\nprofile: msu\n{text}")
        assert (what in with_row(row, tmp_path, "review", "job.yaml")) == (row == LAUNCHER)


@pytest.mark.parametrize(
    ("command", "nodes", "workers"),
    [
        ("torchrun --nnodes=2 --nproc_per_node 4 t.py", 2, 4),
        ("torchrun t.py", 1, 1),
        ("python3.11 -u -m torch.distributed.run --nproc-per-node=2 -m t", 1, 2),
        ("accelerate launch --num_processes=8 --num_machines 2 t.py", 2, 4),
        ("python -m accelerate.commands.launch --num_processes 3 t.py", 1, 3),
        ("deepspeed --num_gpus 4 t.py", 1, 4),
        ("deepspeed t.py", 1, 0),
        ("fabric run --devices 4 --num_nodes=2 t.py", 2, 4),
        ("composer -n 4 --world_size 8 t.py", 1, 4),
        ("torchrun --nnodes 1:4 t.py", 0, 1),
    ],
)
def test_a_launcher_says_the_same_in_a_script_and_started(command: str, nodes: int, workers: int) -> None:
    started = LauncherCall.from_argv(command.split())
    (launch,) = JobScript(file="job.sh", text=f"{HEAD}{command}\n").launches
    assert started is not None
    assert (started.nodes, started.workers) == (nodes, workers)
    assert (launch.launcher_nodes or 0, launch.workers or 0) == (nodes, workers)


@pytest.mark.parametrize("command", ["python t.py", "python -m torch.nn", "srun torchrun t.py", "tune ls"])
def test_other_programs_are_no_launchers(command: str) -> None:
    assert LauncherCall.from_argv(command.split()) is None


@pytest.mark.parametrize(
    ("command", "options", "rest"),
    [
        ("srun -n2 --gres=gpu:1 -c 4 -K1 python t.py", "ntasks=2 gres=gpu:1 cpus-per-task=4 kill-on-bad-exit=1", "python t.py"),
        ("srun -lN 2 --kill-on-bad-exit hostname", "label= nodes=2 kill-on-bad-exit=", "hostname"),
        ("srun -- -x", "", "-x"),
        ("srun --ntasks", "ntasks=", ""),
        ("mpirun -np 2 --mca btl tcp t", "np=2 mca=btl", "t"),
        ("python -Wd -m t -m u", "W=d m=t", "-m u"),
        ("python -c print() -u", "c=print()", "-u"),
        ("torchrun --nproc_per_node=2 t.py --lr 1", "nproc-per-node=2", "t.py --lr 1"),
        ("bash +e -x t.sh", "x=", "t.sh"),
        ("nice -n 5 make", "adjustment=5", "make"),
        ("apptainer exec --nv -B /x i.sif t", "nv= bind=/x", "i.sif t"),
    ],
)  # fmt: skip
def test_options_are_read_by_the_row(command: str, options: str, rest: str) -> None:
    words = command.split()
    name, at = program_name(words, PROGRAMS)
    given, end = read_options(words, at, PROGRAMS[name])
    assert " ".join(f"{name}={value}" for name, value, *_ in given) == options
    assert words[end:] == rest.split()


def test_a_program_with_the_options_of_another_keeps_its_own_roles() -> None:
    own = Program(name="my-torchrun", kinds=frozenset(("launcher",)))
    for option in ("workers=PROCESSES", "=torchrun", "gpus=PROCESSES"):
        own.add_option(option)
    names = PROGRAMS["torchrun"].roles["PROCESSES"]
    assert own.roles["PROCESSES"] == ["workers", *names, "gpus"]
    assert "gpus" not in names


def test_a_program_with_the_options_of_another_has_those_that_end_the_options() -> None:
    own = Program(name="my-python", kinds=frozenset(("interpreter",)))
    own.add_option("=python")
    assert own.ending_options == PROGRAMS["python"].ending_options != set()


def test_rows_hold_together() -> None:
    """Each launcher says how many processes it starts, each module is one of a row, each shell is one."""
    assert all(PROGRAMS[name].option_with_role("PROCESSES") for name in LAUNCHERS)
    assert {*MODULES.values()} <= PROGRAMS.keys() | programs("starter")
    assert programs("posix") <= SHELLS
    assert programs("system") <= programs("wrapper")
    assert commands("wrapper") >= {"nice", "uv"}
    for each in PROGRAMS.values():
        assert not each.values & each.flags, each.name
        assert {*each.name_of_letter.values()} <= each.values | each.flags, each.name


def _lists_of_programs(text: str) -> list[str]:
    """Return the top-level constants of a module that list names of the table: three names or more."""
    known = {name.split()[0] for kind in KINDS for name in programs(kind)}
    lists = []
    for node in ast.parse(text).body:
        value = node.value if isinstance(node, ast.Assign) else None
        if isinstance(value, ast.Call) and value.args:
            value = value.args[0]
        if isinstance(value, (ast.Tuple, ast.List, ast.Set)) and isinstance(node, ast.Assign):
            words = {each.value for each in value.elts if isinstance(each, ast.Constant)}
            lists += [ast.unparse(node.targets[0])] if len(words & known) >= 3 else []
    return lists


@pytest.mark.parametrize("module", sorted(RULES.glob("*.py")), ids=lambda module: str(module.stem))
def test_rules_keep_their_lists_of_programs_in_the_table(module: Path) -> None:
    assert _lists_of_programs('_COPY = frozenset(("cp", "mv", "rsync"))\n') == ["_COPY"]
    assert _lists_of_programs(module.read_text()) == [], "a kind of programs.txt"
