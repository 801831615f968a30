"""What pages tell people to type works, and what they show is what they get.

`pytest --update-golden tests/docs` writes the output into the pages again, and fails. Output with `...`, for a part that
differs from run to run, must be corrected by hand.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from sbatchgen.base.errors import DocumentError
from sbatchgen.cli import cli
from sbatchgen.cli.jobs import JobCommand
from sbatchgen.jobs.budget.allowance import Allowance
from sbatchgen.jobs.inputs.document import decode
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.render import SECOND_PART
from sbatchgen.lab.page.site import Site
from tests.conftest import REPOSITORY, Command, commands_of
from tests.docs.pages import PAGES, blocks, commands
from tests.plan.plans import needs_sandbox
from tests.scripts import PROFILES
from tests.training.forks import QUICKLY
from training.config import parse

pytestmark = pytest.mark.usefixtures("mycluster")


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


MARKS = {"tutorial": [pytest.mark.slow, pytest.mark.proof], "plan": [needs_sandbox]}
CONSOLES = [
    pytest.param(page, id=name(page), marks=MARKS.get(page.stem, ()))
    for page in PAGES
    if page.stem != "first-hour" and any(block.kind == "console" for block in blocks(page))
]
HEAD = "name: x\nurl: x\nchecked: x\n"


@pytest.fixture
def typed(folder: Path) -> dict[str, str]:
    """The environment of somebody who types commands in an empty folder."""
    (folder / "bin").mkdir()
    for program, line in (("sbatchgen", f"{sys.executable} -m sbatchgen"), ("python3", sys.executable)):
        file = folder / "bin" / program
        file.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        file.chmod(0o755)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{QUICKLY}:{REPOSITORY}"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("page", CONSOLES)
def test_what_a_page_shows_is_what_its_commands_print(
    page: Path, folder: Path, typed: dict[str, str], request: pytest.FixtureRequest
) -> None:
    text = page.read_text()
    stale = []
    for block in blocks(page):
        if block.file:
            file = folder / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        for shown in block.shown if block.kind == "console" else ():
            printed = run(shown.command, typed)
            if not shown.fits(printed):
                stale.append((shown.command, printed))
            if not shown.fits(printed) and "..." not in shown.output:  # which is cut by hand
                text = text.replace(f"$ {shown.command}\n{shown.output}", f"$ {shown.command}\n{printed}")
        if block.kind == "run":
            run(block.text, typed)
    if stale and request.config.getoption("--update-golden"):
        page.write_text(text)
    assert stale == [], "pytest --update-golden tests/docs"


def run(line: str, environment: dict[str, str]) -> str:
    """Return what a terminal shows of a command. A training is stopped once it has printed its first loss."""
    printed = []
    with subprocess.Popen(
        ["bash", "-c", line],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for printed_line in process.stdout:
            printed.append(printed_line)
            if re.match(r"Epoch \d+: step ", printed_line):
                Path("runs/cpu/stop").touch()
    return "".join(printed)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_commands_and_options_that_a_page_names_exist(page: Path, command: Command) -> None:
    assert all(commands(page))
    for words in commands(page):
        if words[0] == "sbatchgen" and len(words) > 1:
            check_sbatchgen(words[1:], command)
        elif words[0] == "make":
            targets = {word for word in words[1:] if "=" not in word}
            assert targets <= set(
                re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
            )
        elif words[0].endswith("python") and words[1:2] and words[1].startswith("benchmarks/"):
            program = (REPOSITORY / words[1]).read_text()
            assert all(word in program for word in words[2:] if word.startswith("--"))
        elif words[0].endswith("python") and words[1:3] == ["-m", "pytest"]:
            assert all((REPOSITORY / word).exists() for word in words[3:] if word.startswith("tests"))


def check_sbatchgen(words: list[str], command: Command) -> None:
    """Whether there is such a command with such options; a job of a bundled mode is rendered."""
    if words[0].isupper() or words == ["--version"]:
        return
    cut = words.index("--") if "--" in words else len(words)
    own, args = words[:cut], words[cut + 1 :]
    called: click.Command = cli
    while isinstance(called, click.Group) and own:
        called = commands_of(called)[own.pop(0)]
    if not own or set(own) & {"-h", "[OPTIONS]"}:
        return
    context = called.make_context("sbatchgen", [*own])
    if called.name == "sweep":
        own = own[: next(place for place, word in enumerate(own) if word == "--param")]
    job = context.params.get("job")
    if (
        isinstance(called, JobCommand)
        and {*(job if isinstance(job, tuple) else (job,))} <= {*MODES}
        and context.params["profile"] != "./example.yaml"
    ):
        of_others = {"--yes", "--lines", "--test-only", "--snapshot", "--plan", "--fit", "--for"}
        after = zip(("", *own), own, strict=False)
        of_render = [word for before, word in after if not {before, word} & {"--needs"}]
        of_render = [word for word in of_render if word not in of_others]
        of_render = ["--profile" if word == "--on" else word for word in of_render]
        done = command("render", *of_render, *(["--", *args] if args else []))
        assert (done.status, "error" in done.err) == (0, False), done.err
        if "--trainer" not in own:
            parse(args)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_yaml_that_a_page_shows_is_a_job_or_a_profile(page: Path) -> None:
    for block in blocks(page):
        if block.kind != "yaml":
            continue
        if block.file.startswith("."):  # of other programs
            assert yaml.safe_load(block.text)
            continue
        if block.file == "site.yaml":
            assert decode(block.text, Site, name=block.file)
            continue
        if block.file == "budget.yaml":
            assert decode(block.text, Allowance, name=block.file)
            continue
        head = "" if "\nurl:" in block.text else HEAD
        try:
            decoded: object = decode(block.text, JobSpec, name=page.name)
        except DocumentError:
            decoded = decode(head + block.text, Profile, name=page.name)
        assert decoded


def test_every_profile_and_command_is_shown() -> None:
    typed = [words for page in PAGES for words in commands(page) if words[0] == "sbatchgen"]
    assert {word for words in typed for word in words} >= {*PROFILES, *commands_of(cli)}


def test_the_scripts_that_are_shown_are_the_golden_one() -> None:
    golden = (REPOSITORY / "tests/golden/ddp-torchrun.sh").read_text()
    own = golden.partition(SECOND_PART)[0].count("\n")
    page = (REPOSITORY / "docs/reference/script.md").read_text()
    assert re.findall(r"```bash\n(.*?)```", page, re.DOTALL) == [golden]
    assert (
        f"[{own} lines that the job decides, of {len(golden.splitlines())}](reference/script.md)"
        in (REPOSITORY / "docs/index.md").read_text()
    )
