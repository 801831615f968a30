"""The points of a sweep: grids, random parts of them, files; and the arrays that run them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbatchgen.base.errors import SbatchgenError
from sbatchgen.base.quoting import numbers_as_text
from sbatchgen.base.units import Resume, ShellPath
from sbatchgen.check.sbatch.array import indices
from sbatchgen.jobs.resolved.sweep import (
    MOST_ARRAY_CHARS,
    MOST_POINTS,
    Sweep,
    SweepArray,
    divide_into_arrays,
    grid,
    parse_points,
    read_points,
)
from tests.scripts import resolved, script


def test_a_grid_has_every_combination() -> None:
    sweep = grid(["lr=0.1,0.01", "batch-size=64,128"])
    assert sweep.names == ("lr", "batch-size")
    assert sweep.points == (("0.1", "64"), ("0.1", "128"), ("0.01", "64"), ("0.01", "128"))
    assert sweep.arguments(sweep.points[1]) == ("--lr=0.1", "--batch-size=128")


def test_a_random_part_is_of_the_grid_and_the_same_again() -> None:
    params = [f"{name}={','.join(map(str, range(100)))}" for name in "abcdef"]  # 10**12 combinations
    first, again, other = grid(params, 50), grid(params, 50), grid(params, 50, seed=1)
    assert first == again != other
    assert len(set(first.points)) == 50
    assert all(len(point) == 6 and {*point} <= {*map(str, range(100))} for point in first.points)
    small = grid(["a=1,2,3", "b=x,y"], 6)
    assert set(small.points) == set(grid(["a=1,2,3", "b=x,y"]).points)


@pytest.mark.parametrize(
    ("params", "most", "said"),
    [
        (["lr"], None, "'lr' is not a parameter"),
        (["=1"], None, "'=1' is not a parameter"),
        (["l r=1"], None, "'l r=1' is not a parameter"),
        (["lr=1,2,1"], None, "lr has the value '1' twice"),
        (["lr=1", "lr=2"], None, "a parameter is there twice"),
        (["lr=1,2"], 3, "--random 3 of 2 combinations"),
        ([f"{name}={','.join(map(str, range(400)))}" for name in "ab"], None, "160,000 points are more"),
    ],
)
def test_a_wrong_grid_is_reported(params: list[str], most: int | None, said: str) -> None:
    with pytest.raises(SbatchgenError, match=said):
        grid(params, most)


def test_a_file_of_points(tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_bytes(b'\xef\xbb\xbflr, opt\r\n0.1,"adam, fast"\r\n\r\n 0.2,sgd\r\n')
    sweep = read_points(file)
    assert sweep == Sweep(("lr", "opt"), (("0.1", "adam, fast"), ("0.2", "sgd")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no points"),
        ("lr\n", "no points"),
        ("lr,lr\n1,2\n", "'lr' twice"),
        ("lr,\n1,2\n", "'' is not a name"),
        ("lr,b\n1,2\n3\n", "1 values for 2 parameters"),
        ('lr\n"1\n', "unexpected end of data"),
    ],
)
def test_a_wrong_file_is_reported(text: str, said: str) -> None:
    with pytest.raises(SbatchgenError, match=said):
        parse_points(text, "points.csv")


def test_a_file_with_too_many_points_is_not_read_in_part(tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_text("lr\n" + f"0.1{'0' * 1000}\n" * 20_000)
    with pytest.raises(SbatchgenError, match="larger than 16 MiB") as raised:
        read_points(file)
    assert raised.value.problems[0].fix == "divide the points among several files, each with a sweep"
    file.write_text("lr\n" + "0.1\n" * (MOST_POINTS + 1))
    with pytest.raises(SbatchgenError, match="50,001 points are more than a script can hold, 50,000"):
        read_points(file)


@given(
    st.lists(st.text(min_size=1, alphabet=st.characters(exclude_characters="\0", codec="utf-8")), min_size=1)
)
def test_points_survive_their_file(values: list[str]) -> None:
    sweep = Sweep(("a", "b"), tuple((value.strip() or "x", "1") for value in values))
    assert parse_points(sweep.as_csv(), "points.csv") == sweep


@given(st.sets(st.integers(0, 5000)), st.integers(1, 1001))
def test_arrays_hold_each_point_once(points: set[int], most: int) -> None:
    covered = []
    for array in divide_into_arrays(sorted(points), most):
        text = array.text(3)
        assert text.endswith("%3")
        assert len(text) <= MOST_ARRAY_CHARS + 2
        ranges = indices(text)
        assert ranges is not None
        elements = [index for several in ranges for index in several]
        assert max(elements) < most
        covered += [array.first_point + index for index in elements]
    assert covered == sorted(points)


def test_arrays_are_halved() -> None:
    assert SweepArray(6, (0, 1, 5)).halves() == [SweepArray(6, (0, 1)), SweepArray(6, (5,))]
    assert SweepArray(6, (4,)).halves() == [SweepArray(6, (4,))]
    assert numbers_as_text([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


HOSTILE = ("plain", "a b", "$(touch gone)", "`id`", "'", '"', "\\", "*", "a\nb", "-1", "é", "{run_dir}")
SRUN = '#!/bin/bash\nprintf "%s\\0" "$RUN_DIR" "${@: -1}" >>"$SEEN"\nexit 5\n'


@pytest.mark.sampled(2)
@pytest.mark.parametrize("resume", ["auto", "off"])
@pytest.mark.parametrize("array", ["0-11", "0-11%1"])
def test_the_script_gives_each_point_its_arguments_and_its_folder(
    tmp_path: Path, array: str, resume: str
) -> None:
    sweep = Sweep(
        ("value",), tuple((value,) for value in HOSTILE), submitted_points=12, gets_first_point=True
    )
    job = resolved(
        "cpu", trainer="t.py", runtime="host", array=array, run_dir=ShellPath("runs"), resume=Resume(resume)
    )
    text = script(replace(job, sweep=sweep))
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "srun").write_text(SRUN)
    (bin_ / "srun").chmod(0o755)
    seen = tmp_path / "seen"
    for point in range(len(HOSTILE) + 1):  # the last is outside the sweep
        env = {
            "SLURM_ARRAY_TASK_ID": str(point % 5),
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_CPUS_PER_TASK": "1",
            "SLURM_JOB_ID": "1",
            "SEEN": str(seen),
            "USER": "alice",
            "PATH": f"{bin_}:/usr/bin:/bin",
        }
        done = subprocess.run(
            ["bash", "-s", str(point // 5 * 5)], input=text, text=True, env=env, cwd=tmp_path, capture_output=True, check=False,
        )  # fmt: skip
        if point == len(HOSTILE):
            assert (done.returncode, done.stderr) == (1, "error: the sweep has no point 12\n")
            break
        folder, argument = seen.read_text().split("\0")[:2]
        seen.unlink()
        assert folder == str(tmp_path / "runs" / str(point))
        assert argument == f"--value={HOSTILE[point]}".replace("{run_dir}", folder)
        assert done.returncode == 5
        assert Path(folder, "exit").read_text() == "5\n"
    assert not (tmp_path / "gone").exists()
