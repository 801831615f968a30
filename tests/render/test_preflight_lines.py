"""What the check of nodes adds to a script: a function and its call where it is asked for, else nothing."""

from __future__ import annotations

import difflib
import subprocess
from pathlib import Path

import pytest

from sbatchgen.base.texts import Preflight
from sbatchgen.base.units import Gres
from sbatchgen.jobs.runtimes import RUNTIMES
from tests.conftest import Command
from tests.scripts import NEEDS, resolved, script


def added(mode: str, profile: str = "msu", **said: object) -> list[str]:
    """The lines that the check adds to a script, without braces; it takes away nothing but the digest."""
    wanted = said.pop("preflight", True)
    before = script(resolved(mode, profile, **said)).splitlines()  # type: ignore[arg-type]
    after = script(resolved(mode, profile, **said, preflight=wanted)).splitlines()  # type: ignore[arg-type]
    assert max(map(len, after)) <= max(120, *map(len, before))
    lines = [line for line in difflib.ndiff(before, after) if line[:1] in "+-"]
    lines = [line for line in lines if not line[2:].startswith(("# sbatchgen ", "CODE_DIR="))]
    assert not [line for line in lines if line.startswith("-")]
    text = "\n".join(line[2:] for line in lines).replace(" \\\n        ", " ")
    return [line for line in text.splitlines() if line not in ("", "}")]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("mode", ["ddp", "single", "cpu"])
def test_it_is_a_function_and_its_call_under_every_runtime(mode: str, runtime: str) -> None:
    lines = added(mode, runtime=runtime, **NEEDS.get(runtime, {}))
    assert len(lines) == 3
    assert lines[0].startswith("check_nodes() { # each node and each GPU")
    assert lines[1].startswith('    python3 "$CODE_DIR/training/preflight.py" "$RUN_DIR" --gpus ')
    assert lines[2] == "check_nodes || exit"
    assert subprocess.run(["bash", "-n"], input=lines[1], text=True, check=False).returncode == 0


def test_how_many_gpus_are_checked() -> None:
    assert "--gpus 4 -- srun python3" in added("ddp", runtime="host")[1]
    assert "--gpus 0 -- srun python3" in added("cpu", runtime="host")[1]
    assert "--gpus 1 --shared -- srun" in added("single", runtime="host", gres=Gres("shard:2"))[1]
    one_each = added("ddp", runtime="host", launcher="srun", gpu_request="gpus_per_task")[1]
    assert "--gpus 1 -- srun python3" in one_each  # srun takes --gpus-per-task over
    assert added("ddp", "local")[1].endswith('"$RUN_DIR" --gpus 0 -- python3')  # one machine, no srun


def test_a_job_that_leaves_nodes_out_ignores_the_end_that_a_requeue_brings() -> None:
    lines = added("ddp", runtime="host", preflight=Preflight("exclude"))
    command = 'python3 "$CODE_DIR/training/preflight.py" "$RUN_DIR" --gpus 4 --exclude "$SLURM_JOB_ID" -- srun python3'
    assert lines[1] == f"    {command}"
    assert lines[2].startswith("trap '' TERM # ")
    assert lines[3:] == ["check_nodes || exit", "trap - TERM"]
    array = added("ddp", runtime="host", preflight=Preflight("exclude"), array="0-3")
    assert '--exclude "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' in array[1]


def test_a_profile_may_ask_for_it(command: Command, tmp_path: Path) -> None:
    profile = tmp_path / "here.yaml"
    text = (
        "name: here\nurl: https://example.org\nchecked: 2026-01-01\npartitions: {gpu: {gpus_per_node: 4}}\n"
    )
    profile.write_text(f"{text}preflight: true\n")
    assert "preflight.py" in command("render", "ddp", "--profile", str(profile)).out
    off = command("render", "ddp", "--profile", str(profile), "--preflight", "false").out
    assert "preflight.py" not in off


def test_the_command_submits_a_job_that_trains_nothing(command: Command) -> None:
    shown = command("preflight", "--profile", "torchrun", "--nodes", "2", "--dry-run")
    assert shown.status == 0, shown.err
    assert "training/preflight.py" in shown.err
    assert "torchrun.py" not in shown.err
    assert "#SBATCH --job-name=preflight\n" in shown.err


def test_a_job_that_starts_again_after_a_hang_may_leave_a_node_out() -> None:
    plain, hangs = (script(resolved("ddp", "msu", hang=hang)).splitlines() for hang in (None, "requeue"))
    assert '        scontrol requeue "$SLURM_JOB_ID" && exit 0' in plain
    call = 'python3 "$CODE_DIR/training/preflight.py" "$RUN_DIR" --exclude "$SLURM_JOB_ID"'
    assert f"        {call} && exit 0" in hangs
