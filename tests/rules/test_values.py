"""What lint says of options' values, beside what a real slurmctld said, and says, of the same requests."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from sbatchgen.check.lint.linter import lint
from sbatchgen.check.script.script import JobScript
from tests.cluster.controller import Controller
from tests.conftest import FIXTURES
from tests.rules import values
from tests.rules.public_options import Request, counted, requests
from tests.rules.values import Answers, Difference

RELEASES = ("22.05", "26.05")
AGAIN = 200  # recorded requests that are asked once more
NEW = 100  # others, as written and mistyped; benchmarks/values.py asks thousands


@pytest.fixture(autouse=True)
def _utc() -> Iterator[None]:
    """Clocks are read as where the answers were recorded."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@cache
def recorded(release: str) -> Answers:
    return Answers.read(FIXTURES / f"controller_{release}.json.gz")


@cache
def sample(release: str) -> Answers:
    """One in eight, and all that there may be a reason for; benchmarks/values.py --recorded goes through all."""
    chance, answers = random.Random(2026), recorded(release)  # noqa: S311 (no secret)
    pairs = zip(answers.requests, answers.said, strict=True)
    chosen = [pair for pair in pairs if values.reason_of(*pair) or chance.randrange(8) == 0]
    return replace(
        answers, requests=tuple(request for request, _ in chosen), said=tuple(said for _, said in chosen)
    )


@cache
def differences(release: str) -> tuple[Difference, ...]:
    return tuple(values.differences(sample(release)))


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_lint_agrees_with_what_slurmctld_said_or_it_is_known_why_not(release: str) -> None:
    """A sample of 3,000 requests as people write them and 3,000 with a slip; no reason is one for a false error."""
    answers = recorded(release)
    mistyped = sum(bool(request.mistyped) for request in answers.requests)
    assert mistyped == len(answers.requests) - mistyped == 3000
    assert len({request.shown for request in answers.requests}) > 5900
    assert 0.2 < sum(map(bool, answers.said)) / len(answers.said) < 0.5
    assert len(sample(release).requests) > len(answers.requests) / 8
    assert [row for row in differences(release) if not row.reason] == []


@pytest.mark.proof
@pytest.mark.slow
def test_every_reason_is_one() -> None:
    """Each reason explains a recorded request."""
    used = {row.reason for release in RELEASES for row in differences(release)}
    assert {reason for _, _, reason in values.REASONS} <= used


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    answers = recorded("22.05")
    answers.write(tmp_path / "again")
    assert Answers.read(tmp_path / "again") == answers
    # Python 3.13 packs it otherwise.
    again, first = tmp_path / "again", FIXTURES / "controller_22.05.json.gz"
    assert gzip.decompress(again.read_bytes()) == gzip.decompress(first.read_bytes())


def test_requests_are_the_same_for_the_same_seed() -> None:
    for slips in (False, True):
        assert [*requests(5, 90, slips=slips)] == [*requests(5, 90, slips=slips)]
        assert [*requests(5, 90, slips=slips)] != [*requests(6, 90, slips=slips)]


def test_frequencies_hold_no_names_of_a_site(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    options = "--account=abc --partition=long --gres=gpu:h100:2 --constraint='x&y' --time=5 --mem={{ mem }}"
    script.write_text(f"#!/bin/bash\n#SBATCH {options}\n")
    counts = {"partition": {"gpu": 1}, "gres": {"gpu:a100:2": 1}, "constraint": {"a&b": 1}, "time": {"5": 1}}
    data = json.loads(counted([script, script]))
    assert data["values"] == counts
    assert data["together"] == [[1, "constraint gres partition time"]]


@pytest.mark.proof
@pytest.mark.usefixtures("real_slurm")
def test_a_slurmctld_that_runs_says_the_same() -> None:
    check("22.05", None)


@pytest.mark.proof
def test_the_slurmctld_of_a_later_release_says_the_same(later_root: Path) -> None:
    check("26.05", later_root)


# What Slurm refuses in a script for its text alone, a line for each directive; releases differ in the last two.
REFUSED = (
    *("--grep=gpu:1", "--gres:gpu", "--mem-per-task=4G", "--group=x", "--partition==debug"),
    *("--array=1-N", "--array=1-<N>", "--array=1-X", "--dependency=afterok:<id>"),
    *("--gpus-per-node=1\n--gres=gpu:a100:1", "--core-spec=X", "--profile=X", "--cpu-freq=X", "--gpu-freq=X"),
    *("--gpu-bind=X", "--gpu-bind=<x>", "--propagate=X", "--no-kill=X", "--uid=1000", "--gid=1000"),
)
BY_RELEASE = ("--nodes=1\n--nodelist=node[1-2]", "--output=a\\ b")
TAKES = {"22.05": (), "26.05": BY_RELEASE}


@pytest.mark.usefixtures("real_slurm")
def test_what_slurm_refuses_is_an_error() -> None:
    agree_on_refusals("22.05", None)


def test_what_a_later_slurm_refuses_is_an_error(later_root: Path) -> None:
    agree_on_refusals("26.05", later_root)


def agree_on_refusals(release: str, root: Path | None) -> None:
    """Slurm refuses each of these scripts as an ordinary user, and lint has an error; both take the others."""
    answers: dict[str, tuple[bool, bool]] = {}
    with Controller(
        nodes="NodeName=node[1-2] CPUs=8 RealMemory=16000 Gres=gpu:a100:4",
        partitions="PartitionName=debug Nodes=ALL Default=YES",
        extra="GresTypes=gpu",
        root=root,
    ) as controller:
        for options in (*REFUSED, *BY_RELEASE):
            lines = "".join(f"#SBATCH {option}\n" for option in options.split("\n"))
            text = f"#!/bin/bash\n#SBATCH --time=10\n{lines}hostname\n"
            errors = [
                each
                for each in lint(JobScript(file="job.slurm", text=text, slurm=release))
                if each.severity == "error"
            ]
            answers[options] = controller.test_only(text).returncode != 0, bool(errors)
    taken = set(TAKES[release])
    assert {options: each for options, each in answers.items() if each != ((options not in taken),) * 2} == {}


def check(release: str, root: Path | None) -> None:
    """Ask some of the recorded requests again, and new ones."""
    before = recorded(release)
    step = len(before.requests) // AGAIN
    old = before.requests[::step]
    known = set(before.requests)
    new = [
        request
        for slips in (False, True)
        for request in itertools.islice(
            (row for row in requests(3, 200, slips=slips) if row not in known), NEW
        )
    ]
    answers = values.asked([*old, *new], release=release, root=root)
    assert [answers.said[at] for at in range(len(old))] == [before.said[at * step] for at in range(len(old))]
    assert [row for row in values.differences(answers) if not row.reason] == []


@pytest.mark.parametrize(
    ("option", "value", "release"),
    [
        ("array", "5-1", "22.05"),
        ("dependency", "afterfoo:1", "22.05"),
        ("gres", "gres/gpu:2", "22.05"),
        ("gres", "gres:gpu:2", "26.05"),
        ("nodelist", "n[1-", "22.05"),
        ("constraint", "[a", "22.05"),
        ("segment", "1", "22.05"),
        ("power", "level", "26.05"),
    ],
)
def test_values_that_no_cluster_takes(option: str, value: str, release: str) -> None:
    """A profile is not needed; the release is, where others take it."""
    assert values.errors(Request(((option, value),)), release, None) != ()


@pytest.mark.parametrize(
    ("option", "value", "release"),
    [
        ("gres", "gres:gpu:2", "22.05"),
        ("gres", "gres/gpu:2", "26.05"),
        ("dependency", "afterany:1,after:2?afterany:3", "22.05"),
        ("constraint", "(a)b", "22.05"),
        ("array", "[0-29]%10", "22.05"),
        ("licenses", "matlab|ansys", "26.05"),
        ("nodelist", "n[1-99]", "26.05"),
    ],
)
def test_values_that_some_cluster_takes(option: str, value: str, release: str) -> None:
    assert values.errors(Request(((option, value),)), release, None) == ()


def test_only_a_release_that_is_named_makes_its_lack_of_an_option_an_error() -> None:
    script = "#!/bin/bash\n#SBATCH --time=10:00:00 --segment=2\n"

    def severities(subject: JobScript) -> list[str]:
        return [finding.severity for finding in lint(subject) if finding.rule == "SB130"]

    assert severities(JobScript(file="a", text=script, slurm="22.05", is_release_assumed=True)) == ["warning"]
    assert severities(JobScript(file="a", text=script, slurm="22.05")) == ["error"]
    assert severities(JobScript(file="a", text=script, slurm="26.05")) == []
