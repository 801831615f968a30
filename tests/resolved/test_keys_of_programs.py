"""Each key of a job has an effect in a job with several programs, or a finding that says why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import yaml

from sbatchgen.base.errors import SbatchgenError
from sbatchgen.jobs.judge.job_check import check
from tests.conftest import REPOSITORY
from tests.scripts import script, several

MAINS = {
    "a command": "{command: [python3, train.py], nodes: 2, gpus: 1, cpus: 2, main: true}",
    "a trainer": "{mode: ddp, trainer: train.py, nodes: 2, gpus: 1, cpus: 2, main: true}",
    "the bundled trainer": "{mode: ddp, nodes: 2, gpus: 1, cpus: 2, main: true}",
}
# Where the example of the reference says what holds anyway, another value.
OTHERS: dict[str, Any] = {
    "runtime": "host",
    "gpu_request": "gpus_per_node",
    "resume": "off",
    "open_mode": "truncate",
}
# Keys that are no matter of the script, or that do nothing in a job with one program either.
ELSEWHERE = {
    "metrics": "status and plots read the log by it",
    "module_start": "what the profile has",
    "port_count": "a part of port_base",
    "lint": "findings",
    "profile": "all of it",
    "template": "another script",
    "runtimes": "facts of runtimes, most of which the job does not use",
}


def values() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key of the example of the reference, those of options and network one by one, with its value."""
    example = yaml.safe_load((REPOSITORY / "docs/reference/job-example.yaml").read_text())
    for key, value in example.items():
        if isinstance(value, Mapping) and key in ("options", "network", "extra_options"):
            for name, inner in value.items():
                yield name, {key: {name: OTHERS.get(name, inner)}}
        elif key != "programs":
            yield key, {key: OTHERS.get(key, value)}


@cache
def rendered(text: str) -> tuple[str, frozenset[str]]:
    """The script of a job without its comment, and what is found."""
    job = several(text, "princeton")
    return script(job).partition("\n#SBATCH")[2], frozenset(str(each.problem) for each in check(job))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("main", MAINS)
def test_no_key_of_a_job_is_without_effect(main: str) -> None:
    base = f"programs:\n  server: {{command: [python3, serve.py], nodes: 1, gpus: 1, cpus: 2}}\n  main: {MAINS[main]}\n"
    before, seen = rendered(base), []
    for key, value in values():
        try:
            after = rendered(base + yaml.safe_dump(value))
        except SbatchgenError:
            continue  # it is refused, with a sentence
        if key == "resume" and main == "a command":
            continue  # that it is off holds anyway
        if key not in ELSEWHERE and after[0] == before[0] and after[1] <= before[1]:
            seen.append(key)
    assert seen == []


@pytest.mark.parametrize(
    ("program", "key"),
    [
        ("{command: [a], launcher: srun}", "launcher"),
        ("{command: [a], nproc_per_node: 2}", "nproc_per_node"),
        ("{command: [a], launcher_args: [--tee=3]}", "launcher_args"),
        ("{command: [a], checkpoint: x.pt, resume_args: [--r]}", "checkpoint"),
        ("{trainer: a.py, mode: single, checkpoint: x.pt, resume_args: [--r]}", "resume_args"),
    ],
)
def test_a_key_that_does_nothing_in_a_program_is_told(program: str, key: str) -> None:
    job = several(
        f"programs:\n  main: {{command: [b], main: true, restarts: 2}}\n  other: {program}\n", "princeton"
    )
    whats = [each.problem.what for each in check(job) if each.rule == "SB057"]
    assert any(what.startswith(f"{key} of other does nothing") for what in whats)
    assert "restarts of main does nothing: main is the main program, whose end is that of the job" in whats
