"""Fixtures of all tests: the command in this process, and the real Slurm."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from sbatchgen.cli import cli, main

pytest_plugins = ["tests.cluster.fixtures"]

REPOSITORY = Path(__file__).parents[1]
SLOW_FIXTURES = {"controller_factory", "later_root", "real_slurm", "slurm_root", "trained"}
# Files and folders that begin, so that the processes which share the files end at about the same time. The longest
# is first, but no three with a Slurm whose jobs train run at once. Of a file, each Slurm's tests are a part of their own.
LATER = "26.05"
SLOWEST = f"""
    jobs/test_survival.py jobs/test_chains.py jobs/test_own_trainer.py jobs/test_survival.py@{LATER}
    jobs/test_tutorials.py jobs/test_jobs.py jobs/test_containers.py jobs/test_chains.py@{LATER}
    jobs/test_engines.py training/test_starts.py jobs/test_jobs.py@{LATER} training/test_moments.py training/test_runs.py
    jobs/test_apptainer.py jobs/test_containers.py@{LATER} runs/test_start.py runs/test_start.py@{LATER}
    rules/test_proofs.py rules/test_proofs.py@{LATER}
    page/test_walks.py page/test_identity.py docs/test_own.py docs/test_pages.py test_situations.py training/test_seen.py lint/test_scripts.py rules/test_values.py
    training runs docs rules lint
""".split()
HOMES = itertools.count()
FIXTURES, GOLDEN = REPOSITORY / "tests/fixtures", REPOSITORY / "tests/golden"


def commands_of(group: click.Group) -> dict[str, click.Command]:
    """The commands of a group by name."""
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in commands.items() if command}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes the golden scripts."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden again, and fail")


def pytest_configure() -> None:
    """Let programs of the tests receive SIGHUP under nohup, and SIGINT in the background of a shell.

    What is ignored here would be ignored there. Programs that are started get the default back.
    """
    with contextlib.suppress(ModuleNotFoundError):  # as in the environment of make test-oldest
        import hypothesis

        hypothesis.settings.register_profile("any-load", deadline=None)
        hypothesis.settings.load_profile("any-load")
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a real Slurm or a training as slow, and put the slowest files first."""
    for item in items:
        if isinstance(item, pytest.Function) and SLOW_FIXTURES & set(item.fixturenames):
            item.add_marker("slow")
    places = {name: number for number, name in enumerate(SLOWEST)}

    def place(item: pytest.Item) -> int:
        file, _, later = part(item.nodeid).removeprefix("tests/").partition("@")
        names = (f"{file}@{later}", file, str(Path(file).parent))
        return next((places[name] for name in names if name in places), len(places))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Keep the tests themselves, and their imports, out of each garbage collection.

    Walking over them takes a twentieth of the processor time of tests that run in this process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)


def part(nodeid: str) -> str:
    """The file that a test is in, and @26.05 if it needs this Slurm."""
    file, _, test = nodeid.partition("::")
    return f"{file}@{LATER}" if f"[{LATER}" in test else file


@pytest.hookimpl(optionalhook=True)  # xdist's own
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadfile, tests are shared out by parts."""
    if config.getoption("dist") != "loadfile":
        return None
    scheduler = import_module("xdist.scheduler").LoadFileScheduling(config, log)
    scheduler._split_scope = part
    return scheduler


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each group of tests that was left out, with the reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    for reason, tests in Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped).items():
        terminalreporter.write_line(f"{reason} ({tests} tests)")


@dataclass(frozen=True)
class Result:
    """What a command printed, and its status."""

    status: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hide the variables of the machine that runs the tests, and the files of its user."""
    base = tmp_path_factory.getbasetemp()
    home = base / f"home-{next(HOMES)}"  # not mktemp, which lists all that are there
    home.mkdir()
    for name in list(os.environ):
        if name.startswith(("SBATCH", "SLURM_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(home / "etc"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(base / "cache"))  # templates are compiled once, not by each test
    monkeypatch.setenv("NO_COLOR", "1")
    # The tests' Slurm is installed here, which makes this no login node: a job without a profile is local.
    monkeypatch.setattr("sbatchgen.plan.request.which", lambda *_, **__: None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _written(stream: io.TextIOWrapper[io.BytesIO]) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode("utf-8", "surrogateescape")


@pytest.fixture
def command(folder: Path) -> Command:
    """Runs `sbatchgen ARGS`, or another program, in an empty folder, in this process."""

    def run(*args: str, program: click.Command = cli) -> Result:
        # As a process has them: text that has no form in UTF-8 fails here too, and bytes pass.
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main(args, program)
        code = ended.value.code
        result = Result(code if isinstance(code, int) else 1, _written(out), _written(err))
        fit_the_schema(args, result.out)
        return result

    return run


def fit_the_schema(args: Sequence[str | Path], out: str) -> None:
    """What a command prints for programs, if it does, is as its schema says."""
    if not out or not {"json", "--json"} & {*args}:
        return
    import jsonschema  # not in the environment of make test-oldest

    words = [*map(str, args[: 2 if args[0] == "profile" else 1]), *["for"] * ("--for" in args)]
    words += ["rules"] * bool({"--rules", "--explain"} & {*args})
    documents = {"output/" + "-".join(words): json.loads(out)}
    if words == ["profile", "show"]:
        documents["profile"] = documents["output/profile-show"]["profile"]
    for name, document in documents.items():
        schema = json.loads((REPOSITORY / f"schemas/{name}.json").read_text())
        jsonschema.validate(document, schema, jsonschema.Draft7Validator)
