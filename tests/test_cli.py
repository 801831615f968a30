"""The command line: what goes where, and the exit statuses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from sbatchgen.cli import cli
from tests.conftest import Command, commands_of
from tests.scripts import PROFILES


def test_the_script_is_on_stdout_and_findings_are_on_stderr(command: Command) -> None:
    result = command("render", "dataparallel", "--profile", "msu")
    assert result.status == 0
    assert result.out.startswith("#!/bin/bash\n# sbatchgen ")
    assert result.err.startswith("warning: DataParallel is slower")


def test_write_puts_the_same_bytes_into_a_file(folder: Path, command: Command) -> None:
    shown = command("render", "ddp", "--profile", "msu").out
    result = command("render", "ddp", "--profile", "msu", "--write", "job.slurm")
    assert (result.status, result.out) == (0, "")
    assert (folder / "job.slurm").read_text() == shown
    result = command("render", "ddp", "--profile", "msu", "--write", "no/such/job.slurm")
    assert result.status == 3
    assert "can't write no/such/job.slurm" in result.err


def test_the_first_comment_renders_the_script_again(folder: Path, command: Command) -> None:
    arguments = ("--nodes", "4", "--env", "A=a b", "--no-requeue", "--bind", "/x", "--bind", "/y:/z")
    first = command("render", "ddp", "--profile", "msu", *arguments, "--", "--epochs", "3", "it's").out
    line = first.splitlines()[1].split(": ", 1)[1]
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True
    ).stdout.split("\0")[:-1]
    assert words[0] == "sbatchgen"
    assert command(*words[1:]).out == first


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "Usage"),
        (("render",), 2, "missing argument JOB"),
        (("rendr", "ddp"), 2, "did you mean 'render'?"),
        (("render", "ddp", "--node", "2"), 2, "did you mean '--nodes'"),
        (("render", "ddp", "--epochs", "2"), 2, "Arguments of the trainer come after --"),
        (("statu",), 2, "did you mean 'status'?"),
        (("render", "ddp", "--profile", "msu", "--partition", "bach"), 4, "did you mean 'batch'?"),
        (("render", "ddp", "msu"), 2, "unexpected extra argument"),
        (("render", "dpp"), 2, "did you mean 'ddp'?"),
        (("render", "missing.yaml"), 2, "neither a mode nor a file"),
        (("render", "ddp", "--nodes", "two"), 2, "not a whole number"),
        (("render", "ddp", "--env", "no value"), 2, "can't name a variable"),
        (("render", "ddp", "--set", "nodes=2"), 2, "unknown key 'nodes'"),
        (
            ("render", "ddp", "--set", "runtimes.conda.path=x"),
            2,
            "unknown key 'path' in runtimes.conda: known: env",
        ),
        (("render", "ddp", "--set", "options.nodez=2"), 2, "unknown option 'nodez': did you mean 'nodes'?"),
        (("render", "ddp", "--launcher", "mpirun"), 2, "not one of torchrun, srun, spawn"),
        (("render", "ddp", "--profile", "msuu"), 3, "did you mean 'msu'?"),
        (("render", "ddp", "--profile", "./nothing.yaml"), 3, "no profile at"),
        (
            ("render", "ddp", "--profile", "msu", "--template", "nothing.j2"),
            3,
            "put it into .sbatchgen/templates, ~/",
        ),
        (("render", "single", "--profile", "troila", "--gres", "shard:65"), 4, "must lie on one GPU"),
        (("data", "mnist"), 2, "--to"),
        (("data", "mnist", "--to", "d", "--train", "5"), 2, "--train needs --synthetic"),
        (("profile", "show", "nothing"), 3, "no profile 'nothing'"),
    ],
)
def test_exit_statuses_and_messages(
    command: Command, arguments: tuple[str, ...], status: int, words: str
) -> None:
    result = command(*arguments)
    assert (result.status, result.out if words != "Usage" else "") == (status, "")
    assert words in result.err + result.out
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("rendr ddp", ("no such command 'rendr'", "did you mean 'render'?")),
        ("profile chek", ("no such command 'chek'", "did you mean 'check'?")),
        ("render ddp --node 2", ("no such option --node", "did you mean '--nodes' or '--nodelist'? Arguments of the trainer come after --")),
        ("render ddp --gpu 1", ("no such option --gpu", "did you mean '--gpus'? Arguments of the trainer come after --")),
        ("render ddp --walltime 1", ("no such option --walltime", "did you mean '--time'? Arguments of the trainer come after --")),
        ("render ddp --epochs 1", ("no such option --epochs", "see sbatchgen render --help. Arguments of the trainer come after --")),
        ("submit ddp --json", ("no such option --json", "write --format json. Arguments of the trainer come after --")),
        ("status --json", ("no such option --json", "write --format json")),
        ("gpus --follow", ("no such option --follow", "write --watch")),
        ("update", ("no such command 'update'", "sbatchgen profile discover --update")),
        ("profile update", ("no such command 'update'", "sbatchgen profile discover --update")),
        ("lint --formt json", ("no such option --formt", "did you mean '--format'?")),
        ("lint --xxxxx", ("no such option --xxxxx", "see sbatchgen lint --help")),
        ("render", ("missing argument JOB", "name a mode or a file, as in: sbatchgen render single")),
        ("completion", ("missing argument bash|zsh|fish", "write sbatchgen completion [OPTIONS] bash|zsh|fish")),
        ("data mnist", ("missing option --to", "add --to DIRECTORY")),
        ("completion bash x", ("unexpected extra argument (x)", "write sbatchgen completion [OPTIONS] bash|zsh|fish")),
        ("render ddp --nodes", ("--nodes needs a value", "write --nodes VALUE")),
        ("submit ddp --yes=1", ("--yes takes no value", "write --yes")),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_one_error_with_its_fix(
    command: Command, arguments: str, expected: tuple[str, str]
) -> None:
    what, fix = expected
    result = command(*arguments.split())
    assert (result.status, result.out, result.err) == (2, "", f"error: {what}\n  fix: {fix}\n")


@pytest.mark.parametrize(
    ("arguments", "what", "at", "fix"),
    [
        ("lint --format xml a", "'xml' is not one of text, json, sarif, github", "--format", "write --format text|json|sarif|github"),
        ("completion tcsh", "'tcsh' is not one of bash, zsh, fish", "bash|zsh|fish", "write sbatchgen completion [OPTIONS] bash|zsh|fish"),
        ("data mnist --to d --seed x", "'x' is not a whole number", "--seed", "write --seed N"),
        ("data mnist --to d --train 0", "0 is not a whole number from 1 to 1000000", "--train", "write --train N"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_option(
    command: Command, arguments: str, what: str, at: str, fix: str
) -> None:
    result = command(*arguments.split())
    assert (result.status, result.err) == (2, f"error: {what}\n  at:  {at}\n  fix: {fix}\n")


def test_all_problems_of_a_command_line_are_reported_at_once(command: Command) -> None:
    result = command("render", "ddp", "--nodes", "x", "--time", "12:30", "--env", "1=2", "--", "a\0b")
    assert result.status == 2
    assert result.err.count("error: ") == 4


def test_a_job_file_without_a_mode_is_refused(folder: Path, command: Command) -> None:
    (folder / "job.yaml").write_text("options: {nodes: 2}\n")
    result = command("render", "job.yaml")
    assert result.status == 2
    assert "does not set a mode" in result.err
    assert command("render", "job.yaml", "--set", "mode=ddp", "--profile", "msu").status == 0


def test_set_reaches_every_key(command: Command) -> None:
    script = command(
        "render", "ddp", "--profile", "msu", "--set", "options.nodes=3", "--set", "env.A=b c",
        "--set", "extra_options.gres-flags=disable-binding", "--set", "max_restarts=2",
    ).out  # fmt: skip
    assert "#SBATCH --nodes=3\n" in script
    assert "export A='b c'\n" in script
    assert "#SBATCH --gres-flags=disable-binding\n" in script
    assert "max_restarts=2\n" in script


@pytest.mark.parametrize("profile", PROFILES)
def test_bundled_profiles_are_listed_shown_and_sound(command: Command, profile: str) -> None:
    assert f"* {profile} " in command("profile", "list").out
    assert f"name: {profile}\n" in command("profile", "show", profile).out
    assert command("profile", "check", profile).out == f"{profile}: no errors\n"


def test_a_broken_profile_is_checked_with_all_its_lines(folder: Path, command: Command) -> None:
    (folder / "bad.yaml").write_text("name: bad\nurll: x\npartitions: {gpu: {time_max: 12:30}}\n")
    result = command("profile", "check", "msu", "./bad.yaml")
    assert result.status == 3
    assert "bad.yaml:2" in result.err
    assert "bad.yaml:3" in result.err
    assert "missing key 'url'" in result.err


def test_review_shows_what_is_asked_for_and_the_script(command: Command) -> None:
    result = command("review", "ddp", "--profile", "msu")
    assert "processes   8 on 2 nodes\n" in result.out
    assert "each node   4 GPUs, 16 CPUs, the cluster's default memory\n" in result.out
    assert "time        0-02:00:00\n" in result.out
    assert "cost        16 GPU-hours, 64 CPU-hours at the time limit; " in result.out


def test_the_help_of_a_job_is_short_and_grouped(command: Command) -> None:
    short, whole = command("render", "--help").out, command("render", "--help-all").out
    groups = ["Options", "Job", "Launch", "Runtime", "Training", "Slurm"]
    for text in (short, whole):
        assert re.findall(r"^(\w+):$", text, re.MULTILINE) == groups
    flags = {
        name: set(re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE))
        for name, text in (("short", short), ("whole", whole))
    }
    every = {parameter.opts[0] for parameter in commands_of(cli)["render"].get_params(click.Context(cli))} - {
        "job"
    }
    assert flags["whole"] == every - {"-h"}
    assert flags["short"] < flags["whole"]
    assert len(short.splitlines()) <= 50
    for flag in ("--profile", "--nodes", "--gpus-per-node", "--time", "--partition", "--resume", "--trainer"):
        assert flag in flags["short"]
    assert "Slurm:" not in whole.replace("\nSlurm:\n", "")


def test_every_command_and_every_option_has_help() -> None:
    def walk(group: click.Group) -> None:
        for command in commands_of(group).values():
            assert command.help, command.name
            for parameter in command.get_params(click.Context(command)):
                assert not isinstance(parameter, click.Option) or parameter.help, parameter.name
            if isinstance(command, click.Group):
                walk(command)

    walk(cli)
    assert set(commands_of(cli)) == set(
        "render review explain plan lint lsp rehearse preflight adopt submit resume sweep resubmit status logs report diagnose cancel exec shell plot gpus when data image profile page trust schema completion help".split()
    )


def test_a_reader_that_stops_early_is_not_an_error(folder: Path) -> None:
    command = f"{sys.executable} -m sbatchgen render ddp --profile msu | head -n 1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    assert result.stdout == "#!/bin/bash\n"
    assert result.stderr == ""
    assert result.returncode in (0, 141)


def test_a_read_only_home_changes_nothing(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = command("render", "ddp", "--profile", "msu").out
    (folder / "file").write_text("")
    for home in (str(folder / "file"), "/proc/nothing", ""):
        monkeypatch.setenv("HOME", home)
        assert command("render", "ddp", "--profile", "msu").out == expected
