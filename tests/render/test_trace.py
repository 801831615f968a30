"""Each line of a script is traced to the template line that it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.units import Argument, Count, ShellPath, Text
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.render.render import render
from sbatchgen.jobs.render.templates import environment_of
from sbatchgen.jobs.render.trace import TemplateLine, trace
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from tests.conftest import Command
from tests.scripts import CODE, errors, matrix, resolved, several

BUNDLED = bundled("templates")
EVENTS = BUNDLED / "mechanics/events.sh.j2"
TRAINS = next(at for at, line in enumerate(EVENTS.read_text().splitlines(), 1) if line.startswith("train &"))


def traced(of: ResolvedJob, *folders: Path) -> list[tuple[str, TemplateLine]]:
    where = [*folders, BUNDLED]
    text, lines = trace(of, code=CODE, rerun=("x",), folders=where)
    assert text == render(of, code=CODE, rerun=("x",), folders=where)
    assert lines is not None
    return list(zip(text.splitlines(), lines, strict=True))


OWN: dict[str, Any] = {
    "trainer": Text("t.py"), "checkpoint": Argument("a.pt"), "resume_args": (Argument("{checkpoint}"),), "env": {"A": None},
    "run_dir": ShellPath("${WRKDIR}/a"), "preflight": True,
}  # fmt: skip
OTHERS = {"own": resolved("ddp", "msu", **OWN), "chain": resolved("ddp", "msu", chain=Count(2))}


@pytest.mark.proof
def test_every_line_of_every_script_has_the_line_of_a_template_that_says_it() -> None:
    """A line without a value is written in its template as it is in the script."""
    sources: dict[Path, list[str]] = {}
    seen = set()
    few = [each for number, each in enumerate(matrix()) if not number % 7]  # still renders every runtime
    for name, of in [("programs", several()), *OTHERS.items(), *few]:
        if errors(of):
            continue
        for line, place in traced(of):
            source = sources.setdefault(place.file, place.file.read_text().splitlines())[place.line - 1]
            seen.add(place.file)
            if "{{" not in source and "{%" not in source:
                assert source == line, f"{name}: {place}"
            elif "| join(" not in source:  # which makes several lines of one
                assert source.partition("{")[0] == line[: len(source.partition("{")[0])], f"{name}: {place}"
    unseen = (
        "mechanics/declare",
        "mechanics/enter_snapshot",
        "mechanics/source_activate",
        "mechanics/wait_for_slurm",
        "own_runtime",
        "preflight",
        "shell/mechanics/events",
    )
    assert {*BUNDLED.rglob("*.j2")} - seen == {BUNDLED / f"{name}.sh.j2" for name in unseen}


def test_the_lines_of_a_runtime_of_one_program_are_traced() -> None:
    job = """
programs:
  evaluator: {command: [python3, evaluate.py], venv: /envs/eval}
  trainer: {trainer: train.py, main: true}
"""
    files = {line.strip(): place.file.name for line, place in traced(several(job, "princeton"))}
    assert files['VIRTUAL_ENV="/envs/eval"'] == "own_runtime.sh.j2"
    assert files["activate_venv"] == "own_runtime.sh.j2"


def test_a_line_knows_its_block_through_an_include() -> None:
    blocks = dict(traced(resolved("ddp", "msu")))
    (train,) = [line for line in blocks if line.startswith("train &")]
    assert blocks[train] == TemplateLine(EVENTS, TRAINS, "events")
    assert blocks["#SBATCH --nodes=2"].block == "directives"
    assert blocks["environment() {"].file == BUNDLED / "job.sh.j2"
    assert blocks["#!/bin/bash"].block == ""


def test_a_line_with_a_value_differs_from_one_that_is_the_same_in_every_script() -> None:
    first, second = (
        traced(resolved("ddp", "msu", nodes=nodes, account=account))
        for nodes, account in ((2, "a"), (3, "b"))
    )
    fixed = [[line for line, place in lines if not place.has_value] for lines in (first, second)]
    assert fixed[0] == fixed[1]
    decided = [{line for line, place in lines if place.has_value} for lines in (first, second)]
    assert {"#SBATCH --nodes=2", "#SBATCH --account=a"} <= decided[0] - decided[1]
    command = [
        place.has_value
        for line, place in first
        if line.strip().startswith(("exec srun", "--container", "--dataset"))
    ]
    assert command == [True] * 5


def test_a_line_of_a_sites_template_is_its_own(tmp_path: Path) -> None:
    own = tmp_path / "job.sh.j2"
    own.write_text(
        '{% extends "bundled:job.sh.j2" %}\n'
        "{% block modules %}\n"
        "module load site/1\n"
        "{{ super() }}\n"
        "{% for line in setup %}{{ line }}{% endfor %}\n"
        "echo{% if slurm %} on {{ max_restarts }}{% endif %} nodes\n"
        "{% endblock %}\n"
        "{% block nothing required %}{% endblock %}\n"
    )
    of = resolved("ddp", "torchrun")
    places = {line.strip(): place for line, place in traced(of, tmp_path)}
    assert places["module load site/1"] == TemplateLine(own, 3, "modules")
    assert places["echo on 10 nodes"] == TemplateLine(own, 6, "modules", has_value=True)
    assert places["module purge"].file == BUNDLED / "job.sh.j2"
    assert places["environment"] == TemplateLine(EVENTS, places["environment"].line, "events")
    assert places["#!/bin/bash"] == TemplateLine(BUNDLED / "job.sh.j2", 2)


KEPT_TEXT = {
    "{% set x %}abc{% endset %}echo {{ x | length }}": "echo 3",
    "{% set x | length %}abc{% endset %}echo {{ x }}": "echo 3",
    "{%- macro m() %}abc{% endmacro -%}echo {{ m() | length }}": "echo 3",
    "{% macro m() %}{{ caller() | length }}{% endmacro %}echo {% call m() %}abc{% endcall %}": "echo 3",
    "{% filter center(9) %}abc{% endfilter %}": "   abc   ",
    "{% block a %}abc{% endblock %}{{ self.a() | length }}": "abc3",
    "{% for x in [[1]] recursive %}{% if x == 1 %}abc{% else %}{{ loop(x) | length }}{% endif %}{% endfor %}": "3",
    "{% import 'm.j2' as m %}echo {{ m ~ '' | length }}{{ m.a() | length }}": "echo abc03",
    "{% from 'm.j2' import a %}echo {{ a() | length }}": "echo 3",
    "{% extends 'base.j2' %}{% block a %}{{ super() | length }}{% endblock %}": "3",
    "{% set x %}abc{% endset %}{{ x.split('b')[1] }}{{ x.index('a') }}": "c0",
    "{% set x %}a{% endset %}{{ [5][x.index('a')] }}": "5",
}


@pytest.mark.parametrize("text", KEPT_TEXT)
def test_a_template_that_changes_its_own_text_makes_the_same_script(tmp_path: Path, text: str) -> None:
    """Where a mark would change the script, no line is traced, also if the template is compiled already."""
    (tmp_path / "job.sh.j2").write_text(f"#!/bin/bash\n{text}\n")
    (tmp_path / "m.j2").write_text("abc{% macro a() %}abc{% endmacro %}")
    (tmp_path / "base.j2").write_text("{% block a %}abc{% endblock %}\n")
    where: Any = {"code": CODE, "rerun": ("x",), "folders": [tmp_path, BUNDLED], "cache": tmp_path}
    for _ in range(2):
        environment_of.cache_clear()
        script, lines = trace(resolved("ddp"), **where)
        assert (script, lines) == (render(resolved("ddp"), **where), None)
        assert KEPT_TEXT[text] in script


@pytest.mark.parametrize(
    "text", ["{% set x %}abc{% endset %}echo {{ x }}", "{% set x = 'abc' %}echo {{ x }}"]
)
def test_a_text_that_a_template_keeps_as_it_is_has_its_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.sh.j2").write_text(f"#!/bin/bash\n{text}\n")
    (first, second) = traced(resolved("ddp"), tmp_path)
    assert (first[1].line, second[0]) == (1, "echo abc")
    assert (second[1].file, second[1].line) == (tmp_path / "job.sh.j2", 2)


def test_what_can_not_be_traced_is_reported_and_never_guessed(folder: Path, command: Command) -> None:
    own = folder / ".sbatchgen/templates/job.sh.j2"
    own.parent.mkdir(parents=True)
    own.write_text("{% set x %}abc{% endset %}echo {{ x | length }}\n")
    (folder / "sbatchgen.yaml").write_text("profile: torchrun\n")
    refused = command("explain", "ddp", "--lines")
    assert (refused.status, "can't be traced" in refused.err) == (3, True)


def test_explain_shows_the_template_line_and_the_block_of_each_line(folder: Path, command: Command) -> None:
    own = folder / ".sbatchgen/templates/job.sh.j2"
    own.parent.mkdir(parents=True)
    own.write_text(
        '{% extends "bundled:job.sh.j2" %}\n{% block modules %}\nmodule load site/1\n{% endblock %}\n'
    )
    (folder / "sbatchgen.yaml").write_text("profile: torchrun\n")
    script = command("render", "ddp").out.splitlines()
    shown = command("explain", "ddp", "--lines").out.splitlines()
    assert [line[5:].split(None, 1)[0] for line in shown][:2] == [
        "templates/job.sh.j2:2",
        "templates/job.sh.j2:3",
    ]
    at = script.index("module load site/1")
    number, place, block, text = shown[at].split(None, 3)
    assert (number, place, block) == (str(at + 1), ".sbatchgen/templates/job.sh.j2:3", "modules")
    assert text == "module load site/1"
    data = json.loads(command("explain", "ddp", "--lines", "--format", "json").out)
    assert [line["text"] for line in data["lines"]] == script
    assert data["lines"][at] == {
        "text": script[at], "file": str(own), "line": 3, "block": "modules", "value": False,
    }  # fmt: skip


def test_explain_as_json_holds_every_option_with_its_origin(folder: Path, command: Command) -> None:
    (folder / "sbatchgen.yaml").write_text("profile: torchrun\noptions: {gpus_per_node: 3}\n")
    data = json.loads(command("explain", "ddp", "--gpus-per-node", "4", "--format", "json").out)
    assert sorted(data) == ["schema", "settings"]
    (gpus,) = (row for row in data["settings"] if row["name"] == "--gpus-per-node")
    assert (gpus["value"], gpus["by"], gpus["at"]) == ("4", "command line", "--gpus-per-node")
    assert [(other["value"], other["by"]) for other in gpus["overrode"]] == [
        ("3", "project"),
        ("8", "partition"),
    ]
    assert gpus["overrode"][0]["at"] == "sbatchgen.yaml:2"


def test_explain_with_errors_shows_the_options_and_no_lines(command: Command) -> None:
    result = command("explain", "single", "--profile", "troila", "--gres", "shard:65", "--lines")
    assert result.status == 4
    assert "--gres" in result.out
    assert "job.sh.j2:" not in result.out
    result = command(
        "explain", "single", "--profile", "troila", "--gres", "shard:65", "--lines", "--format", "json"
    )
    assert (result.status, json.loads(result.out).get("lines")) == (4, None)
