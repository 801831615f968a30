"""Input that tries to break a reader: YAML bombs, huge scripts and numbers, FIFOs, Ctrl-C, and a rule that fails."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.errors import DocumentError
from sbatchgen.check.lint.workers import spread
from sbatchgen.check.rules import judge
from sbatchgen.jobs.inputs.document import decode
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.yaml_nodes import MAX_DEPTH, MAX_SHOWN
from tests.conftest import Command

CPU_S = 20  # of processor time, which other work on the machine does not use up; a bomb took minutes
MEMORY = 1 << 30
SBATCHGEN = ("-m", "sbatchgen")
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=01:00:00\nhostname\n"


def bounded(*args: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, killed if it takes more than CPU_S of processor time or MEMORY."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    command = [sys.executable, *args]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, preexec_fn=limit, check=False
    )
    return subprocess.CompletedProcess(
        command, done.returncode, done.stdout.decode(), done.stderr.decode("utf-8", "replace")
    )


# --- YAML

BOMBS = {
    "brackets": ("[" * 30_000, f"nested more than {MAX_DEPTH} deep"),
    "closed brackets": ("args: " + "[" * 30_000 + "]" * 30_000, f"nested more than {MAX_DEPTH} deep"),
    "braces": ("{a: " * 30_000, f"nested more than {MAX_DEPTH} deep"),
    "indentation": (
        "".join(f"{' ' * depth}a:\n" for depth in range(1000)),
        f"nested more than {MAX_DEPTH} deep",
    ),
    "aliases": (
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
        "more than 50000 keys and values, including those of aliases",
    ),
    "an alias in itself": ("args: &a [*a]\n", "*a is not defined"),
    "unknown keys": ("".join(f"key{n}: x\n" for n in range(40_000)), "more than 50000 keys and values"),
    "duplicate keys": ("mode: ddp\n" * 20_000, "duplicate key 'mode'"),
    "long keys": (
        "".join(f"{'k' * 800}{n}: x\n" for n in range(1200)),
        "a key is longer than 200 characters",
    ),
    "anchors": ("".join(f"- &a{n} x\n" for n in range(30_000)), "the file must be a mapping"),
    "directives": ("%TAG !e! tag:x\n" * 20_000 + "---\nmode: ddp\n", "a line starts with %"),
    "a tag": ("mode: !!python/object/apply:os.system [true]\n", "the tag !!python/object/apply:os.system"),
    "a tag of YAML": ("args: !!set {a, b}\n", "the tag !!set is not supported"),
    "a merge key": ("env: {<<: {A: x}}\n", "the merge key << is not supported"),
    "a control character": ("mode: ddp\nargs: [a,\n  b\x07]\n", "the control character U+0007 in column 4"),
    "more than 1 MiB": ("mode: ddp # " + "x" * (1 << 20), "larger than 1 MiB"),
}


RENDER_EACH = """
import sys
from sbatchgen.cli import main
for name in sys.argv[1:]:
    try:
        main(["render", name, "--profile", "msu"])
    except SystemExit as ended:
        print(f"exit status {ended.code}", file=sys.stderr)
"""


def test_a_yaml_bomb_is_a_short_error(folder: Path) -> None:
    for name, (text, _) in BOMBS.items():
        Path(f"{name}.yaml").write_text(text)
    done = bounded("-c", RENDER_EACH, *(f"{name}.yaml" for name in BOMBS))
    said = done.stderr.split("exit status 3\n")
    assert len(said) == len(BOMBS) + 1, done.stderr[-500:]
    for (name, (_, says)), error in zip(BOMBS.items(), said, strict=False):
        assert says in error or "exceeded maximum nesting depth" in error, name  # of PyYAML 6.0.4
        assert len(error) < 500 * (MAX_SHOWN + 1), name


def test_of_very_many_problems_the_first_are_shown_and_the_rest_counted() -> None:
    text = "".join(f"key{n}: x\n" for n in range(1000))
    with pytest.raises(DocumentError) as caught:
        decode(text, JobSpec, name="job.yaml")
    problems = caught.value.problems
    assert len(problems) == MAX_SHOWN + 1
    assert problems[0].at == "job.yaml:1"
    assert problems[-1].what == f"and {1000 - MAX_SHOWN} more problems"


def test_a_control_character_is_named_with_its_line() -> None:
    with pytest.raises(DocumentError) as caught:
        decode("mode: ddp\nname: a\x1bb\n", JobSpec, name="job.yaml")
    assert [problem.at for problem in caught.value.problems] == ["job.yaml:2"]


def test_anchors_and_aliases_of_a_few_values_are_read() -> None:
    job = decode("env: {A: &a x, B: *a}\n", JobSpec, name="job.yaml").value
    assert dict(job.env) == {"A": "x", "B": "x"}


# --- numbers

SPEC = "mode: ddp\nprofile: torchrun\n"
PROFILE = "name: x\nurl: x\nchecked: 2026-01-01\n"
NUMBERS = [
    (JobSpec, f"options: {{nodes: {'9' * 40}}}", "is out of range"),
    (JobSpec, f"options: {{nodes: {'9' * 5000}}}", "is out of range"),
    (JobSpec, f"options: {{time: {'9' * 5000}}}", "99"),
    (JobSpec, f"options: {{mem: {'9' * 5000}G}}", "99"),
    (JobSpec, f"options: {{gpus_per_node: 'a100:{'9' * 5000}'}}", "holds a number of 1000 digits or more"),
    (JobSpec, f"options: {{array: '0-{'9' * 5000}'}}", "holds a number of 1000 digits or more"),
    (Profile, "network: {port_base: 65536}", "'65536' is not a port for jobs"),
    (Profile, "network: {port_base: 80}", "'80' is not a port for jobs"),
    (Profile, "network: {port_base: 0}", "'0' is not a port for jobs"),
    (Profile, f"network: {{port_base: {'9' * 40}}}", "is out of range"),
    (Profile, "network: {port_count: 0}", "'0' must be 1 or more"),
    (Profile, "network: {port_base: 60000, port_count: 6000}", "port_count"),
    (Profile, 'slurm: "24.5"', "'24.5' is not a release of Slurm that is known here"),
    (Profile, "slurm: 24", "'24' is not a release of Slurm"),
    (Profile, "slurm: latest", "'latest' is not a release of Slurm"),
]


@pytest.mark.parametrize(
    ("kind", "line", "says"), NUMBERS, ids=[f"{n}-{line[:30]}" for n, (_, line, _) in enumerate(NUMBERS)]
)
def test_a_number_that_nothing_can_count_is_refused_where_it_stands(kind: type, line: str, says: str) -> None:
    text = (SPEC if kind is JobSpec else PROFILE) + line + "\n"
    with pytest.raises(DocumentError) as caught:
        decode(text, kind, name="file.yaml")
    (problem,) = caught.value.problems
    assert says in problem.what
    assert len(problem.what) < 400
    assert problem.at == f"file.yaml:{text.count(chr(10))}"


@pytest.mark.parametrize(
    "option", ["--nodes", "--gres", "--gpus-per-node", "--time", "--mem", "--array", "--mem-per-gpu"]
)
@pytest.mark.parametrize("form", ["{}", "gpu:{}", "0-{}", "1:{}"])
def test_a_flag_of_5000_digits_is_an_error_and_no_traceback(command: Command, option: str, form: str) -> None:
    done = command("review", "ddp", "--profile", "torchrun", option, form.format("9" * 5000))
    assert done.status in (2, 3)
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err


def test_a_script_may_hold_any_number(command: Command) -> None:
    options = (
        "nodes",
        "ntasks",
        "mem",
        "time",
        "array",
        "gres",
        "gpus",
        "begin",
        "signal",
        "nodelist",
        "port",
    )
    forms = ("{}", "gpu:{}", "0-{}", "1:{}", "n[{}]", "B:1@{}", "uts{}", "now+{}", "{}G")
    for number, (option, form) in enumerate((option, form) for option in options for form in forms):
        value = form.format("9" * 5000)
        text = f"#!/bin/bash\n#SBATCH --{option}={value}\nsrun -n {value} python train.py\n"
        Path(f"{number}.slurm").write_text(text)
    done = command("lint", ".", "--no-shellcheck", "--fail-on", "never")
    assert done.status == 0
    assert "failed on this script" not in done.out


# --- scripts


def test_a_rule_that_fails_costs_its_own_finding(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.slurm").write_text(SCRIPT.replace("--nodes=1", "--nodes=1.5"))
    Path("b.slurm").write_text(SCRIPT.replace("--nodes=1", "--nodes=1.5"))
    before = command("lint", ".", "--no-shellcheck").out
    real = judge.findings

    def findings(rule: Any, *args: Any) -> Any:
        if rule.id in ("SB205", "SB301"):
            raise ZeroDivisionError("a bug")
        return real(rule, *args)

    monkeypatch.setattr(judge, "findings", findings)
    after = command("lint", ".", "--no-shellcheck")
    failures = [line for line in after.out.splitlines() if "failed on this script" in line]
    assert len(failures) == 2  # one for each file: the same bug in both rules
    assert "and 1 more failed on this script (ZeroDivisionError: a bug" in failures[0]
    kept = [line for line in before.splitlines() if "--nodes" in line and "slurm:" in line]
    assert kept
    assert all(line in after.out for line in kept)


def test_a_fault_in_the_reading_of_a_directive_costs_its_line_only(command: Command) -> None:
    Path("a.slurm").write_text(SCRIPT.replace("--nodes=1", "--begin=uts99999999999999999999"))
    Path("b.slurm").write_text(SCRIPT.replace("--nodes=1", "--nodes=1.5"))
    done = command("lint", "a.slurm", "b.slurm", "--no-shellcheck")
    assert "b.slurm:2" in done.out
    assert "failed on this script" not in done.out


def long_scripts() -> dict[str, str]:
    component = "#SBATCH hetjob\n#SBATCH --ntasks=2 --mem=1G\n"
    return {
        "heterogeneous": "#!/bin/bash\n" + component * (200_000 // len(component)),
        "options": "#!/bin/bash\n" + "#SBATCH --ntasks=2\n" * 10_000,
        "one line": "#!/bin/bash\n#SBATCH " + "--ntasks=2 " * 18_000 + "\n",
        "steps": SCRIPT + "srun -n 1 ./a &\n" * 12_000,
        "variables": SCRIPT + "".join(f'A{n}="${{A{n - 1}}}x"\n' for n in range(1, 10_000)),
        "backquotes": SCRIPT + "echo " + "`" * 100_001 + "\n",
        "open brackets": SCRIPT + "a=" + "$(" * 50_000 + "\n",
        "open braces": SCRIPT + "a=" + "${" * 50_000 + "\n",
        "suppressions": SCRIPT + "# sbatchgen: disable=SB205\nhostname\n" * 5_000,
    }


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("name", long_scripts())
def test_a_script_of_200_kb_is_read_in_bounded_time(folder: Path, name: str) -> None:
    Path("job.slurm").write_text(long_scripts()[name])
    done = bounded(
        *SBATCHGEN, "lint", "job.slurm", "--no-shellcheck", "--fail-on", "never", "--format", "json"
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert "failed on this script" not in done.stdout


# --- paths that are not files


@pytest.mark.sampled(12)
@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, lambda name: Path(name).symlink_to("/dev/zero")],
    ids=["fifo", "folder", "zero"],
)
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("job.slurm", ("lint", "job.slurm")),
        ("job.slurm", ("submit", "job.slurm", "--yes")),
        ("job.yaml", ("render", "job.yaml")),
        ("own.yaml", ("render", "ddp", "--profile", "./own.yaml")),
        ("own.yaml", ("profile", "check", "./own.yaml")),
        ("sbatchgen.yaml", ("render", "ddp", "--profile", "local")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_what_is_no_regular_file_hangs_nothing(
    folder: Path, make: Callable[[str], None], name: str, args: tuple[str, ...]
) -> None:
    make(name)
    done = bounded(*SBATCHGEN, *args)
    assert "Traceback" not in done.stderr
    if name == "sbatchgen.yaml":  # found, not named: it is passed over
        assert done.returncode == 0
    elif args == ("lint", "job.slurm") and make is os.mkdir:  # a folder without scripts
        assert done.returncode in (0, 3)
    else:
        assert done.returncode in (2, 3), done.stderr
        assert done.stderr.startswith("error: ")
        assert name in done.stderr


# --- Ctrl-C and the end of a process


@pytest.mark.proof
@pytest.mark.slow
def test_ctrl_c_ends_lint_of_many_files_and_all_its_processes(folder: Path) -> None:
    for number in range(100):
        Path(f"{number}.slurm").write_text(SCRIPT * 20)
    moments = random.Random(7)  # noqa: S311
    for _ in range(12):
        mark = f"sbatchgen-test-{os.getpid()}-{moments.random()}"
        process = subprocess.Popen(
            [sys.executable, "-m", "sbatchgen", "lint", ".", "--no-shellcheck"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | {"MARK": mark},
        )
        time.sleep(moments.uniform(0.05, 1.5))
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=600)  # a hang, not a slow end
        if b"Failed to import the site module" in said:
            continue  # on a busy machine: Python itself had not begun yet
        assert process.returncode in (0, 130, -signal.SIGINT), said.decode()
        # Python itself ignores an interrupt, and says so, that comes in a callback of its import system
        tracebacks = said.count(b"Traceback") - said.count(b"Exception ignored in: ")
        assert not tracebacks or process.returncode == -signal.SIGINT
        assert not [pid for pid in Path("/proc").glob("[0-9]*") if mark.encode() in environment(pid)]


def children() -> set[str]:
    """The processes that this one has started, with those that are not waited for."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def test_spread_gives_all_answers_in_order_or_an_error_that_says_why() -> None:
    names, before = [str(number) for number in range(50)], children()
    assert spread(int, names, 3) == list(range(50))
    with pytest.raises(ValueError, match="invalid literal"):
        spread(int, ["1", "x", "3"], 2)
    with pytest.raises(DocumentError, match="was killed"):
        spread(killed_at_7, names, 2)
    assert children() == before


def killed_at_7(name: str) -> str:
    if name == "7":
        os.kill(os.getpid(), signal.SIGKILL)
    return name


@pytest.mark.slow
def test_a_killed_lint_leaves_no_process(folder: Path) -> None:
    for number in range(100):
        Path(f"{number}.slurm").write_text(SCRIPT * 20)
    mark = f"sbatchgen-test-{os.getpid()}-killed"
    call = [sys.executable, "-m", "sbatchgen", "lint", ".", "--no-shellcheck"]
    process = subprocess.Popen(call, stdout=subprocess.DEVNULL, env=os.environ | {"MARK": mark})

    def alive() -> list[Path]:
        return [pid for pid in Path("/proc").glob("[0-9]*") if mark.encode() in environment(pid)]

    until = time.monotonic() + 60
    while process.poll() is None and len(alive()) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.wait()
    while alive() and time.monotonic() < until:
        time.sleep(0.01)
    assert alive() == []
