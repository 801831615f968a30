"""Shell completion: what is offered, that it is harmless to a shell, and that it ends soon and says nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from sbatchgen.base.keys import keys_of, without_none
from sbatchgen.base.units import Count
from sbatchgen.jobs.inputs import completion
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.options import VALUES, SbatchOptions
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.runtimes import RUNTIMES
from sbatchgen.lab.editor.cluster import ClusterFacts
from tests.conftest import Command

HEAD = "name: x\nurl: x\nchecked: 2026-01-01\n"


def completed(words: str, folder: Path, shell: str = "bash") -> list[str]:
    """What a shell offers for the last word."""
    parts = words.split(" ")
    environment = os.environ | {
        "_SBATCHGEN_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(parts) - 1),
    }
    command = [sys.executable, "-m", "sbatchgen"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    assert not done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_a_shell_completes_modes_profiles_partitions_and_runs(folder: Path) -> None:
    assert completed("sbatchgen re", folder) == [
        "render",
        "review",
        "resume",
        "resubmit",
        "report",
        "rehearse",
    ]
    assert completed("sbatchgen render d", folder) == ["dataparallel", "ddp"]
    assert completed("sbatchgen render ddp --nod", folder) == ["--nodes", "--nodelist"]
    assert completed("sbatchgen render ddp --profile t", folder) == ["tamia", "torchrun", "triton", "troila"]
    assert completed("sbatchgen render ddp --profile public_cluster --partition ", folder) == ["gpu"]
    assert completed("sbatchgen render ddp --profile nope --partition ", folder) == []
    for name in ("runs/a", "runs/b", "other"):
        Path(name).mkdir(parents=True)
    Path("runs/a/events.jsonl").touch()
    assert completed("sbatchgen plot ", folder) == ["runs/a"]
    Path(".sbatchgen/profiles").mkdir(parents=True)
    Path("sbatchgen.yaml").touch()
    Path(".sbatchgen/profiles/tiny.yaml").write_text(HEAD)
    Path(".sbatchgen/profiles/torn.yaml").write_text("[")
    assert completed("sbatchgen render ddp --profile t", folder) == [
        "tiny",
        "tamia",
        "torchrun",
        "triton",
        "troila",
    ]


SITE = (
    HEAD
    + """
options: {account: all, qos: normal}
qos: {long: {}}
user: {name: me, accounts: {mine: [normal]}}
licenses: {matlab: 5}
reservations: {course: {}}
partitions:
  gpu: {accounts: [lab], qos: [fast], features: [a100, nvlink], shapes: [{features: [h100]}]}
  cpu: {accounts: [other], features: [avx]}
"""
)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("render ddp --profile ./site.yaml --account ", "all mine lab other"),
        ("render ddp --profile ./site.yaml --partition cpu --account ", "all mine other"),
        ("render ddp --profile ./site.yaml --qos ", "normal long fast"),
        ("render ddp --profile ./site.yaml --constraint ", "a100 nvlink h100 avx"),
        ("render ddp --profile ./site.yaml --constraint n", "nvlink"),
        ("submit job.yaml --partition ", "gpu cpu"),
        ("sweep job.yaml --partition c", "cpu"),
        ("gpus --for job.yaml --partition ", "gpu cpu"),
        ("render ddp --partition ", "gpu cpu"),
        ("render ddp --runtime ", " ".join(sorted(RUNTIMES))),
        ("render ddp --launcher s", "srun spawn"),
        ("render ddp --gpu-request gpus", "gpus_per_node gpus_per_task gpus"),
        ("render ddp --resume a", "auto"),
        ("render ddp --open-mode ", "append truncate"),
        ("render ddp --resume ./c", "./c"),
        ("render ddp --venv x", "x"),
        ("render ddp --output x", "x"),
        ("render job", "job"),
        ("lint job", "job"),
        ("adopt job", "job"),
        ("lint --explain SB80", "SB802 SB803 SB804 SB805 SB806 SB807"),
        ("lint --disable sb802", "SB802"),
        ("lint --slurm 26", "26.05"),
        ("lint --profile lu", "lumi"),
        ("lint --fail-on w", "warning"),
        ("profile show lu", "lumi"),
        ("profile check msu lu", "lumi"),
        ("profile discover --update lu", "lumi"),
        ("image pull --profile lu", "lumi"),
        ("help pro", "profile"),
        ("help profile ch", "check"),
        ("help render ", ""),
        ("schema prof", "profile"),
    ],
)
def test_each_value_that_a_list_has_is_offered(folder: Path, words: str, offered: str) -> None:
    (folder / "site.yaml").write_text(SITE)
    (folder / "job.yaml").write_text("mode: ddp\nprofile: ./site.yaml\n")
    (folder / "sbatchgen.yaml").write_text("profile: ./site.yaml\n")
    assert completed(f"sbatchgen {words}", folder) == offered.split()


# Options of which a profile has facts of the same name, and which are not completed.
NOT_COMPLETED = {
    "gpus_per_node": "a number of the profile",
    "gres": "bash takes the colon in gpu:a100:4 for the end of a word",
}


def test_each_option_whose_names_a_profile_has_is_completed() -> None:
    known = {*keys_of(Profile), *keys_of(Partition)}
    named = {
        option.name
        for option in dataclasses.fields(SbatchOptions)
        if {option.name, f"{option.name}s"} & known and without_none(option.type) not in (int, bool, Count)
    }
    assert named - {name.replace("-", "_") for name in VALUES} == {*NOT_COMPLETED}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("option", VALUES)
def test_a_shell_and_an_editor_offer_the_same_names(folder: Path, option: str) -> None:
    (folder / "site.yaml").write_text(SITE)
    cluster = ClusterFacts(document=read_document(folder / "site.yaml", Profile), folder=folder)
    offered = completed(f"sbatchgen render ddp --profile ./site.yaml --{option} ", folder)
    assert offered == [*cluster.names(option)]
    assert offered


HARMFUL = (
    "$(touch bad)",
    "`touch bad`",
    "; touch bad",
    "a b",
    "a\nb",
    "'",
    "*",
    "~",
    "\\x",
    "é",
    "&",
    "|x",
    "<x",
    "$HOME",
)


def test_names_that_a_shell_would_read_are_not_offered(folder: Path) -> None:
    Path("sbatchgen.yaml").touch()
    profiles = Path(".sbatchgen/profiles")
    profiles.mkdir(parents=True)
    for name in HARMFUL:
        for run in (f"zz{name}", f"zy/{name}", f"--{name}"):
            Path(run).mkdir(parents=True)
            Path(run, "events.jsonl").touch()
        (profiles / f"zz{name}.yaml").write_text(HEAD)
    partitions = "".join(f"  {json.dumps(f'zz{name}')}: {{}}\n" for name in HARMFUL if "\n" not in name)
    (profiles / "zz.yaml").write_text(f"{HEAD}partitions:\n  zz.1: {{}}\n{partitions}")
    for name in ("zz-1", "zy/1", "--yes"):
        Path(name).mkdir()
        Path(name, "events.jsonl").touch()
    assert completed("sbatchgen logs ", folder) == ["zy/1", "zz-1"]
    assert completed("sbatchgen logs ./z", folder) == ["./zy/1", "./zz-1"]
    assert completed(f"sbatchgen logs {folder}/zz", folder) == [f"{folder}/zz-1"]
    assert completed("sbatchgen render ddp --profile zz", folder) == ["zz"]
    assert completed("sbatchgen render ddp --profile zz --partition ", folder) == ["zz.1"]


def test_completion_is_silent_about_failures(folder: Path) -> None:
    for words in ("sbatchgen logs /**/", "sbatchgen logs [", "sbatchgen logs '"):
        assert completed(words, folder) == []
    gone = folder / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m sbatchgen"
    asked = {"COMP_WORDS": "sbatchgen render ddp --profile t", "COMP_CWORD": "4"}
    environment = os.environ | asked | {"_SBATCHGEN_COMPLETE": "bash_complete"}
    done = subprocess.run(
        ["/bin/sh", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_completion_of_a_large_folder_ends_soon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted is what is looked at, by a clock that moves with it."""
    looks = itertools.count()
    monkeypatch.setattr("sbatchgen.jobs.inputs.completion.time.monotonic", lambda: next(looks) / 1000)
    for number in range(1000):
        Path(f"{number:04}").mkdir()
        Path(f"{number:04}", "events.jsonl").touch()
    runs = completion.runs(click.Context(click.Command("x")), click.Argument(["run"]), "")
    assert 100 < len(runs) <= 1000 * completion.SEARCH_S
    assert next(looks) < 2000


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_runs_nothing_that_a_folder_is_named(folder: Path) -> None:
    """On a terminal: `sbatchgen logs zz<TAB><Enter>`, and files, which bash completes itself."""
    for name in ("zz$(touch bad)", "yy$(touch bad)"):
        Path(name).mkdir()
        Path(name, "events.jsonl").touch()
    Path("xx$(touch bad).yaml").touch()
    program = Path("bin/sbatchgen")
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sbatchgen "$@"\n')
    program.chmod(0o755)
    typed = 'eval "$(sbatchgen completion bash)"\nsbatchgen logs zz\t\nsbatchgen render xx\t\nexit\n'
    bash = ["bash", "--norc", "--noprofile", "-i"]
    environment = os.environ | {"PATH": f"{program.parent.resolve()}:{os.environ['PATH']}", "TERM": "dumb"}
    said = on_terminal(bash, typed, environment)
    assert "there is no run 'zz'" in said
    assert "xx\\$\\(touch\\ bad\\).yaml" in said
    assert not Path("bad").exists()


SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D -u\n"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_inserts_the_only_value_that_fits(folder: Path, shell: str) -> None:
    """On a terminal: `sbatchgen profile show clarid<TAB><Enter>`, with the script that the command prints."""
    program, first = SHELLS[shell]
    if shutil.which(program[0]) is None:
        pytest.skip(f"needs {shell}")
    own = Path("bin/sbatchgen")
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\nexec {sys.executable} -m sbatchgen "$@"\n')
    own.chmod(0o755)
    typed = f'{first}eval "$(sbatchgen completion {shell})"\nsbatchgen profile show clarid\t\nexit\n'
    environment = os.environ | {"PATH": f"{own.parent.resolve()}:{os.environ['PATH']}", "TERM": "dumb"}
    assert "name: clariden" in on_terminal(program, typed, environment)


def test_bash_completes_a_value_after_an_equals_sign(folder: Path) -> None:
    """On a terminal, where bash makes three words of --format=js."""
    own = Path("bin/sbatchgen")
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\nexec {sys.executable} -m sbatchgen "$@"\n')
    own.chmod(0o755)
    typed = 'eval "$(sbatchgen completion bash)"\nsbatchgen lint --format=js\t--explain=sb10\t4\nexit\n'
    environment = os.environ | {"PATH": f"{own.parent.resolve()}:{os.environ['PATH']}", "TERM": "dumb"}
    assert '"rule": "SB104"' in on_terminal(SHELLS["bash"][0], typed, environment)


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_offers_values_with_their_descriptions(folder: Path) -> None:
    own = folder / "sbatchgen"
    own.write_text(f'#!/bin/sh\nexec {sys.executable} -m sbatchgen "$@"\n')
    own.chmod(0o755)
    line = "sbatchgen completion fish | source; complete -C 'sbatchgen lint --explain SB104'"
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    said = subprocess.check_output(["fish", "--no-config", "-c", line], env=environment, text=True)
    assert said.startswith("SB104\t")


def on_terminal(program: list[str], typed: str, environment: Mapping[str, str]) -> str:
    """What a program shows on a terminal of its own on which lines are typed, each once the last has its prompt."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        program, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    ) as running:
        os.close(theirs)
        os.write(ours, typed.encode())
        said = b""
        with contextlib.suppress(OSError):  # no process has the terminal any more
            while piece := os.read(ours, 4096):
                said += piece
        running.wait()
    os.close(ours)
    return said.decode()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(command: Command, shell: str) -> None:
    done = command("completion", shell)
    assert done.status == 0
    assert f"_SBATCHGEN_COMPLETE={shell}_complete" in done.out
