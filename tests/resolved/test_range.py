"""Ranges of a random sweep: within the ends, reproducible, whole numbers whole."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sbatchgen.base.errors import SbatchgenError
from sbatchgen.jobs.resolved.sweep import grid


def drawn(text: str, most: int = 400, seed: int = 0) -> list[str]:
    return [value for (value,) in grid([text], most, seed).points]


def test_a_range_gives_numbers_between_its_ends() -> None:
    values = [*map(float, drawn("lr=0.1:1.0"))]
    assert len({*values}) == 400
    assert all(0.1 <= value <= 1.0 for value in values)
    assert sum(value < 0.55 for value in values) == pytest.approx(200, abs=40)


def test_a_log_range_has_as_many_numbers_in_each_power_of_ten() -> None:
    values = [*map(float, drawn("lr=log:1e-4:1e-1"))]
    assert all(1e-4 <= value <= 1e-1 for value in values)
    for power in (-4, -3, -2):
        assert sum(math.floor(math.log10(value)) == power for value in values) == pytest.approx(133, abs=40)


def test_whole_ends_give_whole_numbers_both_ends_included() -> None:
    assert {*drawn("depth=2:8", 7)} == {*"2345678"}
    assert {*drawn("width=log:16:19", 4)} == {"16", "17", "18", "19"}
    assert {*drawn("shift=-1:1", 3)} == {"-1", "0", "1"}


def test_the_same_seed_draws_the_same_points_in_every_release_of_python() -> None:
    params = ["lr=log:1e-4:1e-1", "depth=2:8", "opt=adam,sgd"]
    assert grid(params, 3).points == (
        ("0.0341402", "7", "adam"), ("0.000598068", "5", "adam"), ("0.0224593", "4", "adam"),
    )  # fmt: skip
    assert grid(params, 3, seed=1) != grid(params, 3)


@given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9), st.booleans())
def test_no_number_is_outside_its_range(first: float, second: float, log: bool) -> None:  # noqa: FBT001
    low, high = sorted((float(f"{first:.4g}"), float(f"{second:.4g}")))
    assume(low < high)
    text = f"x={'log:' * log}{low!r}:{high!r}"
    assert all(low <= float(value) <= high for value in drawn(text, 2))


@pytest.mark.parametrize(
    ("param", "most", "said"),
    [
        ("lr=0.1:1.0", None, "lr is a range, and a grid needs values"),
        ("lr=log:1e-4:1e-1", None, "lr is a range, and a grid needs values"),
        ("lr=1.0:0.1", 9, "'lr=1.0:0.1' is no range: 1.0 is not below 0.1"),
        ("lr=1:1e999", 9, "1 is not below 1e999"),
        ("lr=log:0:1", 9, "log:LOW:HIGH starts above 0"),
        ("depth=2:8", 9, "--random 9 of 7 combinations"),
    ],
)
def test_a_wrong_range_is_reported(param: str, most: int | None, said: str) -> None:
    with pytest.raises(SbatchgenError, match=said):
        grid([param], most)


@pytest.mark.parametrize("values", ["1:30,2:00", "log:a:b,c", "a:1,b:2", "repo:1.0,repo:2.0"])
def test_other_colons_are_values(values: str) -> None:
    assert [value for (value,) in grid([f"x={values}"]).points] == values.split(",")
