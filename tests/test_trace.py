"""Each line of a script is traced to the template line that it came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.errors import DocumentError
from sbatchgen.plan import Plan
from sbatchgen.render import render
from sbatchgen.search import bundled
from sbatchgen.trace import Place, trace
from tests.scripts import CODE, errors, matrix, plan

BUNDLED = bundled("templates")


def traced(of: Plan, *folders: Path) -> list[tuple[str, Place]]:
    where = [*folders, BUNDLED]
    text = render(of, code=CODE, rerun=("x",), folders=where)
    places = trace(of, text, code=CODE, rerun=("x",), folders=where)
    return list(zip(text.splitlines(), places, strict=True))


def test_every_line_of_every_script_has_the_line_of_a_template_that_says_it() -> None:
    """A line without a value is written in its template as it stands in the script."""
    sources: dict[Path, list[str]] = {}
    seen = set()
    for number, (name, of) in enumerate(matrix()):
        if errors(of) or number % 7:  # a seventh of the matrix still renders every template
            continue
        for line, place in traced(of):
            source = sources.setdefault(place.file, place.file.read_text().splitlines())[place.line - 1]
            seen.add(place.file)
            if "{{" not in source and "{%" not in source:
                assert source == line, f"{name}: {place}"
            else:
                assert source.partition("{")[0] == line[: len(source.partition("{")[0])], f"{name}: {place}"
    assert seen == {*BUNDLED.rglob("*.j2")} - {BUNDLED / "runtime/host.sh.j2"}  # which has no line


def test_a_line_knows_its_block_through_an_include() -> None:
    blocks = dict(traced(plan("ddp", "msu")))
    assert blocks["NNODES=2"] == Place(BUNDLED / "facts/counts.sh.j2", 3, "facts")
    assert blocks["#SBATCH --nodes=2"].block == "directives"
    assert blocks["# --- Signals ---"].file == BUNDLED / "job.sh.j2"
    assert blocks["#!/bin/bash"].block == ""


def test_a_line_of_a_sites_template_is_its_own(tmp_path: Path) -> None:
    own = tmp_path / "job.sh.j2"
    own.write_text(
        '{% extends "bundled:job.sh.j2" %}\n'
        "{% block modules %}\n"
        "module load site/1\n"
        "{{ super() }}\n"
        "{% for line in setup %}{{ line }}{% endfor %}\n"
        "echo{% if slurm %} on {{ nnodes }}{% endif %} nodes\n"
        "{% endblock %}\n"
        "{% block nothing required %}{% endblock %}\n"
    )
    of = plan("ddp", "torchrun")
    found = dict(traced(of, tmp_path))
    assert found["module load site/1"] == Place(own, 3, "modules")
    assert found["echo on 2 nodes"] == Place(own, 6, "modules")
    assert found["module purge"].file == BUNDLED / "modules.sh.j2"
    assert found["NNODES=2"] == Place(BUNDLED / "facts/counts.sh.j2", 3, "facts")
    assert found["#!/bin/bash"] == Place(BUNDLED / "job.sh.j2", 2)


def test_what_can_not_be_traced_is_told_and_never_guessed(tmp_path: Path) -> None:
    (tmp_path / "job.sh.j2").write_text("{% set x %}abc{% endset %}echo {{ x | length }}\n")
    with pytest.raises(DocumentError, match="can't be traced"):
        traced(plan("ddp"), tmp_path)
