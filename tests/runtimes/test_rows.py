"""Each runtime has all that the others have: keys, a template part, a row of its page, tests."""

from __future__ import annotations

import dataclasses

import pytest

from sbatchgen.check.executables.program import PROGRAMS
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.runtimes import RUNTIMES
from sbatchgen.jobs.runtimes.base import NoFacts, Runtime
from sbatchgen.lab.page import form
from tests.conftest import REPOSITORY
from tests.scripts import NEEDS, resolved, script

PAGE = REPOSITORY / "docs/how-to/use-containers.md"
SECTION_PAGES = [
    PAGE.with_name(f"{name}.md") for name in ("environments", "apptainer", "enroot", "other-containers")
]
EXAMPLE = REPOSITORY / "docs/reference/profile-example.yaml"
SECTIONS = {"venv": "A virtual environment", "conda": "Conda", "apptainer": "Apptainer", "enroot": "Enroot"}
# Keys that the page has not among its first fields, and why.
NOT_ON_THE_PAGE = {"prefix": "a wrapper of the site, which its profile names"}
each = pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=str)


@each
def test_it_has_a_page_section_and_a_row(runtime: Runtime) -> None:
    text, section = PAGE.read_text(), f"\n## {SECTIONS.get(runtime.name, runtime.name)}"
    sections = "".join(page.read_text() for page in SECTION_PAGES)
    assert f"| `{runtime.name}` |" in text, f"a row of {PAGE}"
    assert runtime.requires is None or section in sections, f"a section of one of {SECTION_PAGES}"


@each
def test_what_it_requires_is_a_key_of_jobs_and_of_profiles(runtime: Runtime) -> None:
    facts = {key.name for key in dataclasses.fields(runtime.Facts)}
    for key in runtime.keys:
        assert key.name in {field.name for field in dataclasses.fields(JobSpec)}
        assert key.fact in facts
    if runtime.requires is None:
        assert (runtime.keys, runtime.Facts) == ((), NoFacts)
        return
    assert runtime.requires.key in {key.name for key in runtime.keys}
    assert f"\n  {runtime.name}:" in EXAMPLE.read_text(), EXAMPLE
    assert NEEDS[runtime.name].get(runtime.requires.key), EXAMPLE
    assert isinstance(resolved("cpu", "local", runtime=runtime.name).facts, runtime.Facts)


@each
def test_the_page_offers_it_with_the_key_that_it_requires(runtime: Runtime) -> None:
    fields = {field["name"]: field for field in form.model({}, {}, has_code=False)["fields"]}
    assert runtime.name in fields["runtime"]["choices"]
    key = runtime.requires and runtime.requires.key
    if key is None or key in NOT_ON_THE_PAGE:
        return
    assert fields[key]["main"], "MAIN in sbatchgen/lab/page/form.py, or NOT_ON_THE_PAGE here"
    assert runtime.name in fields[key]["runtimes"]


def test_the_page_leaves_out_no_key_without_need() -> None:
    assert {*NOT_ON_THE_PAGE} <= {runtime.requires.key for runtime in RUNTIMES.values() if runtime.requires}
    assert not {*NOT_ON_THE_PAGE} & {*form.MAIN}


@each
def test_it_sets_itself_up_and_starts_the_training(runtime: Runtime) -> None:
    if runtime.requires is None:
        assert runtime.function == ""
        return
    assert (REPOSITORY / f"templates/mechanics/{runtime.function}.sh.j2").is_file()
    text = script(resolved("ddp", "msu", runtime=runtime.name, **NEEDS[runtime.name]))  # a row of the matrix
    assert f"    {runtime.function}" in text.partition("environment() {")[2].partition("\n}\n")[0]
    assert "die " in text.partition(f"\n{runtime.function}() {{")[2].partition("\n}\n")[0]
    assert not runtime.is_container or "$RUN_DIR" in text.partition("\ntrain() {")[2].partition("\n}\n")[0]


@each
def test_adopt_knows_it(runtime: Runtime) -> None:
    """It recognises what activates it, or what starts the training in it."""
    own = {*vars(type(runtime))}
    known = (
        runtime.requires is not None and runtime.name != "prefix"
    )  # which looks like a program of the user's
    assert not known or own & {"facts_of_command", "srun_option", "starts"}
    assert bool(own & {"srun_option", "starts"}) == ("adopt" in own)
    assert {*runtime.starts} <= {*PROGRAMS}, "a row of sbatchgen/check/executables/programs.txt"
