"""Fixtures of all tests: the command in this process, and the real Slurm."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import itertools
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

import click
import pytest

from sbatchgen.cli import cli, main
from tests import leftovers

pytest_plugins = ["tests.cluster.fixtures"]

REPOSITORY = Path(__file__).parents[1]
SLOW_FIXTURES = {"controller_factory", "later_root", "real_slurm", "slurm_root", "trained"}
LATER = "26.05"
DURATIONS = REPOSITORY / "tests/durations.json"  # seconds of each part, so that the longest begin
# Long trainings, rehearsals, containers, tutorials, hostile users, what the tests' own cluster and the rules say beside
# Slurm, and what runs in a browser; all that needs another Slurm is a proof too. The mark `proof`
# is also for single tests that take more than 2 s of CPU time, if a shorter test tells most of what would break.
# A test of many cases that are alike has the mark `sampled(4)`: each fourth case is in make test, the others are proofs.
PROOFS = frozenset(
    f"tests/{file}"
    for file in """
    budget/test_bytes.py budget/test_fixer.py budget/test_hostile_calls.py cluster/test_cluster.py discover/test_matrix.py resolved/test_split.py docs/test_first_hour.py docs/test_own.py
    plan/test_memory.py plan/test_memory_of_gpus.py plan/test_order.py plan/test_rehearsal.py plan/test_tasks.py plan/test_truth.py
    jobs/test_apptainer.py jobs/test_chains.py jobs/test_bad_nodes.py jobs/test_containers.py jobs/test_engines.py
    jobs/test_kinds_of_programs.py jobs/test_late_imports.py jobs/test_own_trainer.py jobs/test_survival.py
    jobs/test_tutorials.py lint/test_action.py page/test_identity.py page/test_walks.py rules/test_proofs.py
    starts/test_benchmark.py starts/test_pieces.py training/test_exact.py training/test_finetuned.py training/test_moments.py training/test_plain_loop.py training/test_seen.py training/test_starts.py
    trust/test_battery.py trust/test_colleague.py trust/test_ways.py
    """.split()
)
# Left out by make test-fast: folders and files whose tests train, and those that take long with no Slurm.
TORCH = ("docs/test_own.py", "jobs/", "plan/test_memory", "test_benchmark.py", "training/")
SLOW = ("adopt/test_long.py", "page/", "plan/test_healthy.py", "plan/test_sandbox.py", "trust/")
HOMES = itertools.count()
FIXTURES, GOLDEN = REPOSITORY / "tests/fixtures", REPOSITORY / "tests/golden"


def commands_of(group: click.Group) -> dict[str, click.Command]:
    """The commands of a group by name."""
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in commands.items() if command}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that write what tests compare with."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden again, and fail")
    parser.addoption("--update-durations", action="store_true", help="write tests/durations.json again")


def pytest_configure() -> None:
    """Let programs of the tests receive SIGHUP under nohup, and SIGINT in the background of a shell.

    What is ignored here would be ignored there. Programs that are started get the default back.
    What is left of them when this process ends, in any way, another process ends.
    """
    ending = [sys.executable, str(REPOSITORY / "tests/leftovers.py"), str(os.getpid())]
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    os.posix_spawn(sys.executable, ending, {}, file_actions=silent, setsid=True)
    os.environ[leftovers.NAME] = str(os.getpid())
    # jsonschema would load a grammar of addresses, in 2 to 4 s of CPU time, for formats that no schema here has.
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    with contextlib.suppress(ModuleNotFoundError):  # as in the environment of make test-oldest
        import hypothesis

        hypothesis.settings.register_profile("any-load", deadline=None)
        hypothesis.settings.load_profile("any-load")
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not load files that are left out whole: those that need torch take longer than all others to load."""
    left_out, name = config.option.markexpr, _name(collection_path)
    no_torch = "not torch" in left_out and _is_in(TORCH, name)
    no_proofs = "not proof" in left_out and f"tests/{name}" in PROOFS
    return True if no_torch or no_proofs else None  # None: as the other options say


@functools.cache  # asked for each test
def _name(path: Path) -> str:
    """Return the name of a test file, from tests/ on."""
    return (
        path.relative_to(REPOSITORY / "tests").as_posix() if path.is_relative_to(REPOSITORY / "tests") else ""
    )


def _is_in(places: Sequence[str], name: str) -> bool:
    return any(name.startswith(place) for place in places)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a real Slurm or takes long as slow, what needs torch, and proofs; put the longest parts first."""
    numbers = Counter[tuple[Path, str, bool]]()  # how many cases of a test were there before
    for item in items:
        name = _name(item.path)
        if _is_in(SLOW, name) or (
            isinstance(item, pytest.Function) and SLOW_FIXTURES & set(item.fixturenames)
        ):
            item.add_marker("slow")
        if _is_in(TORCH, name):
            item.add_marker("torch")
        file, _, later = part(item.nodeid).partition("@")
        sampled = item.get_closest_marker("sampled")
        case = (item.path, getattr(item, "originalname", item.name), bool(later))
        if (
            later
            or file in PROOFS
            or (sampled and _is_left_out(numbers[case], *sampled.args, **sampled.kwargs))
        ):
            item.add_marker("proof")
        numbers[case] += 1
    durations = json.loads(DURATIONS.read_text())

    def duration(item: pytest.Item) -> float:
        """Of a part that was not measured, as on the other Slurm; what is new goes first, since it may be long."""
        name = part(item.nodeid)
        return float(durations.get(name, durations.get(name.partition("@")[0], inf)))

    items.sort(key=duration, reverse=True)


def _is_left_out(number: int, every: int, first: int = 0) -> bool:
    """Return whether make test leaves a case out: it has the first case, and each one that is `every` later."""
    return number % every != first


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
    if terminalreporter.config.getoption("update_durations"):
        every = [report for reports in terminalreporter.stats.values() for report in reports]
        measured = Counter[str]()
        for report in every:
            if hasattr(report, "duration"):
                measured[part(report.nodeid)] += report.duration
        durations = json.loads(DURATIONS.read_text()) | {name: round(each) for name, each in measured.items()}
        DURATIONS.write_text(json.dumps(dict(sorted(durations.items())), indent=0) + "\n")


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
    monkeypatch.setattr("sbatchgen.jobs.budget.allowance.account_home_folder", lambda: os.environ["HOME"])
    # The tests' Slurm is installed here, which makes this no login node: a job without a profile is local.
    monkeypatch.setattr("sbatchgen.jobs.resolved.request.in_shell", lambda *_: "")


@pytest.fixture
def mycluster() -> None:
    """Give the user of the test the profile that the examples of pages name."""
    profiles = Path(os.environ["HOME"], ".config/sbatchgen/profiles")
    profiles.mkdir(parents=True)
    (profiles / "mycluster.yaml").write_text((FIXTURES / "mycluster.yaml").read_text())


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
    words += ["sum"] * bool({"--month", "--below"} & {*args})
    words += ["rules"] * bool({"--rules", "--explain"} & {*args})
    words += ["brief"] * (args[0] == "status" and "--brief" in args)
    documents = {"output/" + "-".join(words): json.loads(out)}
    error = next(iter(documents.values()))
    if "error" in error:
        assert {*error["error"]} == {"status", "problems"}
        assert all({*each} == {"what", "at", "fix", "argv"} for each in error["error"]["problems"])
        if {*error} == {"schema", "error"}:
            return
    if words == ["profile", "show"]:
        documents["profile"] = documents["output/profile-show"]["profile"]
    for name, document in documents.items():
        schema = json.loads((REPOSITORY / f"schemas/{name}.json").read_text())
        jsonschema.validate(document, schema, jsonschema.Draft7Validator)
