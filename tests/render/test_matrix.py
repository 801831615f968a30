"""Every mode, runtime, launcher and way of resuming, on every profile."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.units import Argument, Count, Duration, Memory, ShellPath, Text
from sbatchgen.check.lint.linter import lint
from sbatchgen.check.script.job import DEFAULT_SLURM
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.options import NAMES
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.render import SECOND_PART
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.runtimes import RUNTIMES
from tests.scripts import NEEDS, errors, matrix, resolved, script


@pytest.fixture(scope="module")
def rendered() -> dict[str, tuple[ResolvedJob, str]]:
    """Every plan of the matrix that can be rendered, and its script."""
    return {name: (of, script(of)) for name, of in matrix() if not errors(of)}


def with_each_line(rendered: dict[str, tuple[ResolvedJob, str]], *, of_each_profile: bool) -> list[str]:
    """The scripts that together have each line of all, or those that have each line that a profile has.

    Numbers in a line make no other line. With MATRIX=whole in the environment, all scripts.
    """
    seen: set[str] = set()
    chosen = []
    for name, (of, text) in rendered.items():
        start = of.profile.name if of_each_profile else ""
        own = [line for line in text.splitlines()[2:] if of_each_profile or line[:1] != "#"]
        lines = {start + re.sub(r"\d+", "0", line) for line in own}
        if os.environ.get("MATRIX") == "whole" or not lines <= seen:
            chosen.append(name)
            seen |= lines
    return chosen


def test_only_what_can_not_run_is_refused() -> None:
    plans = [*matrix()]
    refused = {name for name, of in plans if errors(of)}
    no_slurm = {"local", "sensecore"}
    expected = {
        name
        for name, of in plans
        if of.profile.name in no_slurm and (of.runtime.needs_slurm or of.launcher == "srun")
    }
    assert refused == expected
    needing = sum(1 for runtime in RUNTIMES.values() if runtime.needs_slurm)
    grouped = sum("srun" in mode.launchers for mode in MODES.values())
    ways = sum(len(mode.launchers) or 1 for mode in MODES.values())
    # of runtimes that need Slurm all ways, of others srun alone; each in five ways of resuming
    assert len(expected) == (ways * needing + grouped * (len(RUNTIMES) - needing)) * 5


@pytest.mark.proof
def test_bash_finds_nothing(rendered: dict[str, tuple[ResolvedJob, str]]) -> None:
    for name in with_each_line(rendered, of_each_profile=True):
        text = rendered[name][1]
        result = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, ""), name


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("quarter", range(4))
def test_shellcheck_finds_nothing(
    rendered: dict[str, tuple[ResolvedJob, str]], tmp_path: Path, quarter: int
) -> None:
    """With nothing disabled, and every optional severity."""
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    assert shellcheck, "shellcheck is one of the development requirements"
    assert not [name for name, (_, text) in rendered.items() if "shellcheck disable" in text]
    for name in with_each_line(rendered, of_each_profile=False):
        (tmp_path / f"{name}.sh").write_text(rendered[name][1])
    files = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run([shellcheck, *files[quarter::4]], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout[:3000]


@pytest.mark.slow
def test_lint_finds_nothing(rendered: dict[str, tuple[ResolvedJob, str]]) -> None:
    """On the cluster that each is for: one rule has something to tell, and no more than that."""
    for name in with_each_line(rendered, of_each_profile=True):
        of, text = rendered[name]
        release = of.profile.slurm or DEFAULT_SLURM
        findings = lint(JobScript(file="job.slurm", text=text, slurm=release, profile=of.profile))
        assert {finding.rule for finding in findings} <= {"SB214"}, (
            name
        )  # shards do not divide a GPU's memory
        assert {finding.severity for finding in findings} <= {"info"}, name


def test_scripts_are_plain(rendered: dict[str, tuple[ResolvedJob, str]]) -> None:
    for name, (of, text) in rendered.items():
        lines = text.splitlines()
        assert lines[0] == "#!/bin/bash", name
        assert "None" not in text, name
        assert "{{" not in text, name
        assert "{%" not in text, name
        assert text.endswith("\n"), name
        assert "\n\n\n" not in text, name
        assert not any(line != line.rstrip() for line in lines), name
        directives = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
        expected = list(range(2, 2 + len(directives)))
        assert directives == expected, f"{name}: all directives are together, after the second line"
        assert bool(directives) == of.uses_slurm, name


def parts(text: str) -> tuple[str, str]:
    """The part of a script that the job decides, and the part that is the same in every job of its kind."""
    first, mark, second = text.partition(SECOND_PART)
    assert mark, text
    return first, second


def test_what_the_job_decides_is_read_in_half_a_minute(rendered: dict[str, tuple[ResolvedJob, str]]) -> None:
    for name, (of, text) in rendered.items():
        lines = parts(text)[0].splitlines()
        assert len(lines) <= 40 + 8 * of.runtime.is_container, name
        comments = [line for line in lines if " # " in line and len(line) > 100]
        assert not comments, name
        assert re.findall(r"(?m)^(\w+)\(\)", parts(text)[0]) == ["environment", "train"], name


# What bash itself needs a semicolon for; a statement in quotes is another program's.
NOT_A_CHAIN = re.compile(r"""'[^']*'|"[^"]*"|\s#\s.*|^#.*|for \(\(.*?\)\)|; (?:then|do)(?=$|\s+#)|;;""")


def not_plain(second: str) -> list[str]:
    """The lines of a second part that are wide, or hold two statements."""
    lines = second.splitlines()[1:]
    return [line for line in lines if len(line) > 100 or ";" in NOT_A_CHAIN.sub("", line)]


def test_the_second_part_has_a_statement_on_each_line(rendered: dict[str, tuple[ResolvedJob, str]]) -> None:
    wrong = {line for _, text in rendered.values() for line in not_plain(parts(text)[1])}
    assert not wrong
    assert not_plain("\na; b\n" + "a" * 101) == ["a; b", "a" * 101]


KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "venv": ("ddp", "torchrun", {}),
    "enroot": ("ddp", "msu", {}),
    "apptainer": ("ddp", "troila", NEEDS["apptainer"] | {"runtime": "apptainer"}),
    "conda": ("single", "princeton", {}),
    "chain": ("ddp", "msu", {"chain": Count(3)}),
    "own": ("ddp", "torchrun", {"trainer": Text("train.py"), "checkpoint": Argument("{run_dir}/*.pt"),
            "resume_args": (Argument("--resume"), Argument("{checkpoint}"))}),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_the_second_part_is_the_same_in_every_job_of_a_kind(kind: str) -> None:
    """Of 200 jobs whose values differ."""
    mode, profile, said = KINDS[kind]
    chance = random.Random(60)  # noqa: S311 - values of tests
    seconds, firsts = set(), set()
    for number in range(200):
        values: dict[str, Any] = {
            "run_dir": ShellPath(f"/scratch/run {number}'{chance.random()}"),
            "time": Duration(chance.randrange(3600, 7200)),
            "job_name": Text(f"job{number}"),
            "max_restarts": Count(chance.randrange(1, 99)),
            "env": {f"A{chance.randrange(9)}": f"${{HOME}}/{number}", "OMP_NUM_THREADS": str(number)},
            "args": (f"--lr={chance.random()}",),
            "account": Text(f"group{number}"),
        }
        values |= {"nodes": chance.randrange(2, 9)} if mode == "ddp" else {}
        values |= {"image": ShellPath(f"/images/{number}.sif")} if "apptainer" in (kind, profile) else {}
        values |= {"image": ShellPath(f"/images/{number}.sqsh")} if profile == "msu" else {}
        values |= {"venv": ShellPath(f"/envs/{number}")} if profile == "torchrun" else {}
        first, second = parts(script(resolved(mode, profile, **(said | values))))
        firsts.add(first)
        seconds.add(second)
    assert len(firsts) == 200
    assert len(seconds) == 1


def test_what_was_not_asked_for_is_not_there(rendered: dict[str, tuple[ResolvedJob, str]]) -> None:
    words = ("trap", "stop", "again", "scontrol requeue", "--requeue", "--signal", "RESTART")
    for name, (of, text) in rendered.items():
        present = {word for word in words if word in text}
        if not of.stoppable:
            assert present == set(), name
        elif of.restartable:
            assert present == set(words), name
            assert "#SBATCH --signal=B:USR1@" in text, f"{name}: a step that is starting would be killed"
        else:
            assert present == {"trap", "stop"}, name


def test_nothing_in_a_script_reads_json_or_trusts_a_file_with_its_arithmetic(
    rendered: dict[str, tuple[ResolvedJob, str]],
) -> None:
    for name, (_, text) in rendered.items():
        assert "json" not in text, name
        assert set(re.findall(r"\(\((.+?)\)\)", text)) <= {
            "20000 + SLURM_JOB_ID % 10000",
            "above <= 8200",
            "above - 8 - SLURM_JOB_ID % 875 * 8",
            "restarts < max_restarts",
            "restarts + 1",
            "saved < 20 || restarts >= max_restarts",
            "++saved",
        }, name


@pytest.mark.proof
def test_the_same_plan_gives_the_same_bytes(rendered: dict[str, tuple[ResolvedJob, str]]) -> None:
    again = {name: script(of) for name, of in matrix() if name in rendered}
    assert again == {name: text for name, (_, text) in rendered.items()}


# What sbatch calls an option in its list of parsed ones, where it is not the option's own name.
SBATCH_NAMES = {
    "ntasks_per_node": "ntasks-per-node",
    "cpus_per_task": "cpus-per-task",
    "open_mode": "open-mode",
    "job_name": "job-name",
    "gpus_per_node": "gpus-per-node",
    "gpus_per_task": "gpus-per-task",
    "mail_type": "mail-type",
}


def test_directives_read_back_to_the_plan(
    rendered: dict[str, tuple[ResolvedJob, str]], oracle: Callable[..., Any]
) -> None:
    """By the real sbatch, which has no plugin: one script of each set of directives."""
    headers: dict[tuple[str, ...], str] = {}
    for name, (of, text) in rendered.items():
        if of.uses_slurm and not of.runtime.directives(of):
            header = tuple(line for line in text.splitlines() if line.startswith("#SBATCH"))
            headers.setdefault(header, name)
    assert len(headers) > 20
    for header, name in headers.items():
        of, text = rendered[name]
        reading = oracle(text)
        assert not [line for line in reading.messages if "error" in line or "fatal" in line], (
            name,
            reading.messages,
        )
        for option in NAMES:
            value = getattr(of.options, option)
            if value is not None:
                listed = (
                    "no-requeue" if option == "requeue" and not value else SBATCH_NAMES.get(option, option)
                )
                read = reading.options.get(listed)
                if option == "output":  # sbatch makes it absolute
                    read = str(read).rpartition("/")[2]
                assert read in accepted(option, value), (name, option, value, read, header)


def accepted(option: str, value: Any) -> tuple[str | None, ...]:
    """The forms in which sbatch 22.05 prints an option that it has read."""
    text = str(value)
    bare = text.removeprefix("gpu:")
    forms: dict[str, tuple[str | None, ...]] = {
        "requeue": ("requeue",) if value else ("no-requeue",),
        "exclusive": ("exclusive",),
        "open_mode": (text[0],),
    }
    if option in ("gres", "gpus_per_node", "gpus_per_task"):
        return (text, f"gres:gpu:{bare}")
    if isinstance(value, Duration):
        return (text, text.removeprefix("0-"))
    if isinstance(value, Memory):
        return (text,)
    return forms.get(option, (text,))
