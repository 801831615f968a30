"""Placeholders and patterns in the arguments of a trainer."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.units import Argument, ShellPath, Text
from sbatchgen.jobs.render import arguments
from tests.scripts import resolved, script

PLACES = "{nnodes},{node_rank},{nproc},{master_addr}:{master_port}"


@pytest.mark.parametrize(
    ("mode", "profile", "word"),
    [
        ("ddp", "msu", '"$SLURM_NNODES",@node_rank@,"$SLURM_GPUS_ON_NODE","$MASTER_ADDR":"$MASTER_PORT"'),
        ("single", "msu", '"$SLURM_NNODES",0,"$SLURM_GPUS_ON_NODE","$MASTER_ADDR":"$MASTER_PORT"'),
        ("ddp", "sensecore", '"$WORLD_SIZE","$RANK",4,"$MASTER_ADDR":"$MASTER_PORT"'),
        ("ddp", "local", "1,0,2,localhost:20000"),
    ],
)
def test_nodes_and_their_meeting_point_are_words_of_the_job(mode: str, profile: str, word: str) -> None:
    assert arguments.word(PLACES, resolved(mode, profile)) == word


def test_a_script_whose_arguments_name_the_meeting_point_makes_it() -> None:
    spawn: dict[str, Any] = {"nodes": 1, "launcher": "spawn", "trainer": Text("train.py")}
    assert "MASTER_ADDR=" not in script(resolved("ddp", **spawn))
    assert "MASTER_ADDR=" in script(resolved("ddp", **spawn, args=("tcp://{master_addr}:{master_port}",)))


@pytest.mark.parametrize(
    "text",
    [
        "{epoch:03d}",
        '{"nodes": {"a": 1}}',
        "{{ messages }}",
        "{}",
        "{run dir}",
        "${run_dir",
        "{a,b}",
        "{Run_Dirs}",
    ],
)
def test_other_braces_stay_as_they_are(text: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"printf %s {arguments.word(text, resolved('single'))}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == text


def test_double_braces_are_the_text_itself() -> None:
    assert arguments.word("{{run_dir}}/{run_dir}", resolved("single")) == """'{run_dir}'/"$RUN_DIR\""""


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("{rundir}", "{run_dir}"),
        ("--x={NODE-RANK}", "{node_rank}"),
        ("{nprocs}", "{nproc}"),
        ("{env:A-B}", "{env:NAME}"),
    ],
)
def test_a_mistyped_placeholder_is_named(text: str, meant: str) -> None:
    assert [right for _, right in arguments.mistyped(text)] == [meant]


@pytest.mark.parametrize(
    "text", ["{epoch}", "{node}", "{rank}", "{{rundir}}", '{"rundir": 1}', "{run_dir}", "{0}"]
)
def test_other_words_in_braces_are_no_mistakes(text: str) -> None:
    assert not [*arguments.mistyped(text)]


def test_a_pattern_is_expanded_as_it_is_written(tmp_path: Path) -> None:
    """Blanks, quotes and dollars are text; a name that begins with a dash is not an option."""
    odd = tmp_path / "-$(touch x) 'a\""
    for name in ("1", "22", "b"):
        (odd / name).mkdir(parents=True)
        (odd / name / "last.pt").touch()
    pattern = arguments.checkpoints(resolved("single", checkpoint=Argument(f"{odd.name}/[0-9]*/l?st.pt")))
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {pattern}"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"./{odd.name}/{number}/last.pt" for number in ("1", "22")]


RESUMING: dict[str, Any] = {
    "trainer": Text("train.py"),
    "checkpoint": Argument("{run_dir}/last.pt"),
    "resume_args": (Argument("--resume"), Argument("{checkpoint}")),
}


def test_a_job_that_resumes_by_arguments_is_requeued_at_its_limit() -> None:
    assert "repeats.py" in script(resolved("ddp", **RESUMING))
    assert "repeats.py" not in script(resolved("ddp", **RESUMING, requeue_on_timeout=False))
    assert "repeats.py" not in script(resolved("ddp", **RESUMING, chain=3))


def test_with_resume_off_nothing_is_looked_for() -> None:
    assert "last.pt" not in script(resolved("ddp", **RESUMING, resume=Text("off")))


def test_a_checkpoint_that_was_named_is_for_the_first_start() -> None:
    text = script(resolved("single", **RESUMING, resume=ShellPath("/scratch/big.pt")))
    assert '    find_checkpoint "/scratch/big.pt" # for the first start\n' in text
    assert "    checkpoint=${checkpoint:-$1}\n" in text


def test_ft_launcher_starts_what_torchrun_does() -> None:
    text = script(resolved("ddp", "troila", launcher="ft_launcher", trainer="t.py"))
    assert 'ft_launcher --nnodes="$SLURM_NNODES" --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:' in text
    assert "torchrun.py" not in text
    alone = script(resolved("ddp", "troila", launcher="ft_launcher", nodes=1))
    assert re.search(r" ft_launcher --standalone \\\n *--nproc-per-node=", alone)
    spares = ("--nnodes=6:8",)
    text = script(resolved("ddp", "troila", launcher="ft_launcher", nodes=8, launcher_args=spares))
    assert text.count("--nnodes") == text.count("--nnodes=6:8") == 1
