"""Slurm's quantities and the texts that a job may hold."""

from __future__ import annotations

import pytest

from sbatchgen.base.texts import EnvName, JobName
from sbatchgen.base.units import (
    Argument,
    Duration,
    Gres,
    Memory,
    Moment,
    ShellPath,
    Text,
    meant_time,
)
from sbatchgen.check.sbatch.gres import gres_amounts


@pytest.mark.parametrize(
    ("text", "seconds", "printed"),
    [
        ("30", 1800, "0-00:30:00"),
        ("24:00:00", 86400, "1-00:00:00"),
        ("1-12", 129600, "1-12:00:00"),
        ("2-03:04", 183840, "2-03:04:00"),
        ("2-03:04:05", 183845, "2-03:04:05"),
        ("100:00:00", 360000, "4-04:00:00"),
    ],
)
def test_time_is_read_as_slurm_reads_it(text: str, seconds: int, printed: str) -> None:
    value = Duration.parse(text)
    assert (int(value), str(value)) == (seconds, printed)


@pytest.mark.parametrize("text", ["24:00", "1:61:00", "2h", "", "-5", "1.5", "UNLIMITED", "٣"])
def test_a_time_that_people_and_slurm_read_differently_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Duration.parse(text)


def test_the_two_part_time_shows_both_spellings() -> None:
    with pytest.raises(ValueError, match=r"12:30:00 or 00:12:30"):
        Duration.parse("12:30")


@pytest.mark.parametrize(
    ("text", "mib", "printed"),
    [
        ("500", 500, "500M"),
        ("64G", 65536, "64G"),
        ("1T", 1 << 20, "1T"),
        ("1536M", 1536, "1536M"),
        ("1K", 1, "1M"),
        ("0", 0, "0"),
        ("2gb", 2048, "2G"),
    ],
)
def test_memory_is_read_as_slurm_reads_it(text: str, mib: int, printed: str) -> None:
    value = Memory.parse(text)
    assert (int(value), str(value)) == (mib, printed)


@pytest.mark.parametrize("text", ["16GiB", "1.5G", "-1", "G", "10 G", ""])
def test_what_slurm_refuses_as_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a memory size"):
        Memory.parse(text)


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "\0", "a\x1b[31m", "\x7f", "\u2028", "\udcff"])
def test_one_line_text_refuses_control_characters(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Text.parse(text)


def test_an_argument_may_hold_a_line_break_but_no_nul() -> None:
    assert Argument.parse("a\nb") == "a\nb"
    with pytest.raises(ValueError, match="NUL"):
        Argument.parse("a\0b")


@pytest.mark.parametrize(
    "text", ["/scratch/${USER}/x", "${HOME}/a b", "${WRKDIR}/x", "./$(id)", "a#b", "100%"]
)
def test_a_path_may_hold_what_folders_hold(text: str) -> None:
    assert ShellPath.parse(text) == text


@pytest.mark.parametrize("text", ["~/x", "$HOME/x", "${PWD:-x}/x", "-x", "", "a\nb", "${9}/x"])
def test_a_path_refuses_what_would_not_be_expanded(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        ShellPath.parse(text)


@pytest.mark.parametrize("text", ["a/b", "-x", ".x", "50%", "a\\b", "${HOME}", "", " x", "x" * 201, "a\nb"])
def test_a_job_name_that_would_change_the_log_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        JobName.parse(text)


@pytest.mark.parametrize("text", ["1A", "A-B", "", "A B", "SLURM_CPUS_PER_TASK", "SBATCH_PARTITION"])
def test_a_name_that_is_no_variable_or_is_slurms_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        EnvName.parse(text)


@pytest.mark.parametrize(
    ("text", "gpus", "shards"),
    [("gpu:4", 4, 0), ("gpu:a100:2", 2, 0), ("gpu", 1, 0), ("shard:16", 0, 16), ("gpu:a:1,gpu:b:2", 3, 0)],
)
def test_gres_counts_over_all_types(text: str, gpus: int, shards: int) -> None:
    counted = {"gpu": 0, "shard": 0}
    for name, _, count in gres_amounts(Gres.parse(text)):
        counted[name] += count
    assert counted == {"gpu": gpus, "shard": shards}


@pytest.mark.parametrize("text", ["gres:gpu:2", "gpu:", "gpu=2", "gpu:2, shard:1", ""])
def test_gres_that_slurm_releases_read_differently_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a gres request"):
        Gres.parse(text)


def test_a_moment_counts_its_zone() -> None:
    assert Moment.parse("2026-01-31T12:00:00+01:00").epoch == 1769857200
    for text in ("monday", "2026-13-01T00:00:00", "0001-01-01T00:00:00+14:00x"):
        with pytest.raises(ValueError, match="is not a time"):
            Moment.parse(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2h", "0-02:00:00"),
        ("30 min", "0-00:30:00"),
        ("1day", "1-00:00:00"),
        ("90s", "0-00:01:30"),
        ("2 months", ""),
    ],
)
def test_a_time_with_its_unit_is_written_as_slurm_has_it(text: str, meant: str) -> None:
    assert meant_time(text) == meant
    with pytest.raises(ValueError, match=meant or "HH:MM:SS"):
        Duration.parse(text)
