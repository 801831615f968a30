"""`sbatchgen image`: what it makes of programs that do well, fail, are killed, or are not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import fixtures
from tests.cluster.slurm import Cluster
from tests.conftest import Command, Result
from tests.jobs.jobs import SBATCHGEN

IMAGE = (sys.executable, "-m", "sbatchgen", "image")
URI = "docker://nvcr.io/nvidia/pytorch:24.04-py3"
# Half of the image is there while the test looks on; it continues when the test has made the file `go`.
STAND_IN = """\
#!/bin/bash
echo "$0 $*" >>"$SAID"
[[ $1 == import ]] && new=$3 || new=$2
echo half >"$new"
echo 'Copying blob' >&2
%s
echo whole >"$new"
"""
SLOW = "touch started; while [[ ! -e go ]]; do sleep 0.05; done"


@pytest.fixture
def said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file into which the stand-ins write their command lines."""
    monkeypatch.setenv("SAID", f"{folder}/said")
    return folder / "said"


@pytest.fixture
def programs(folder: Path, said: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts an apptainer and an enroot on PATH that do this in between."""
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")

    def make(meanwhile: str) -> None:
        (folder / "bin").mkdir(exist_ok=True)
        for name in ("apptainer", "enroot"):
            program = folder / "bin" / name
            program.write_text(STAND_IN % meanwhile)
            program.chmod(0o755)

    make("")
    return make


def asked(said: Path) -> list[str]:
    """The command line of a stand-in, without what differs from run to run."""
    program, *words = said.read_text().split()
    return [Path(program).name, *(word for word in words if ".sbatchgen-" not in word)]


def images(folder: Path) -> dict[str, str]:
    """All files and folders but those of the tests."""
    others = ("bin", "said", "go", "started")
    return {file.name: file.read_text() for file in folder.iterdir() if file.name not in others}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("pull", URI), ["apptainer", "pull", URI]),
        (("import", URI), ["enroot", "import", "--output", "docker://nvcr.io#nvidia/pytorch:24.04-py3"]),
        (("import", "ubuntu:24.04"), ["enroot", "import", "--output", "docker://ubuntu:24.04"]),
        (("import", "dockerd://a.b/c"), ["enroot", "import", "--output", "dockerd://a.b/c"]),
        (("build", URI), ["apptainer", "build", URI]),
        (("pull", "./x.tar"), ["apptainer", "pull", "docker-archive:{folder}/x.tar"]),
        (("build", "x.tar"), ["apptainer", "build", "docker-archive:{folder}/x.tar"]),
        (("pull", "oci-archive:x.tar"), ["apptainer", "pull", "oci-archive:x.tar"]),
    ],
)
@pytest.mark.usefixtures("programs")
def test_the_image_gets_the_name_that_is_given(
    command: Command, folder: Path, said: Path, words: tuple[str, ...], expected: list[str]
) -> None:
    (folder / "x.tar").touch()
    result = command("image", *words, "--to", "sub.d")
    assert (result.status, result.out) == (0, "sub.d\n")
    assert result.err.startswith(f"$ {expected[0]} {expected[1]} ")
    assert asked(said) == [word.format(folder=folder) for word in expected]
    assert images(folder) == {"sub.d": "whole\n", "x.tar": ""}


@pytest.mark.usefixtures("programs")
def test_a_file_that_can_not_be_pulled_is_built(command: Command, folder: Path) -> None:
    (folder / "x.def").touch()
    result = command("image", "pull", "x.def", "--to", "x.sif")
    assert (result.status, "fix: sbatchgen image build x.def --to x.sif" in result.err) == (2, True)


@pytest.mark.usefixtures("programs")
def test_where_only_its_earlier_name_is_there_that_is_used(
    command: Command, folder: Path, said: Path
) -> None:
    (folder / "bin/apptainer").rename(folder / "bin/singularity")
    assert command("image", "pull", URI, "--to", "x.sif").err.startswith("$ singularity pull ")
    assert asked(said) == ["singularity", "pull", URI]


@pytest.mark.usefixtures("programs")
def test_a_folder_is_built(command: Command, folder: Path, said: Path) -> None:
    (folder / "-root").mkdir()
    command("image", "build", "./-root", "--to", "x.sif")
    assert asked(said) == ["apptainer", "build", f"{folder}/-root"]
    wrong = command("image", "build", "nothing.def", "--to", "y.sif")
    assert (wrong.status, f"no file or folder {folder}/nothing.def" in wrong.err) == (2, True)
    assert not (folder / "y.sif").exists()


@pytest.mark.parametrize(
    ("verb", "profile", "name"),
    [
        ("pull", "troila", "pytorch-24.01.sif"),
        ("pull", "princeton", "{home}/software/pytorch_25.08-py3.sif"),
        ("import", "./own.yaml", "{folder}/alice.sqsh"),
    ],
)
@pytest.mark.usefixtures("programs")
def test_file_and_source_come_from_the_profile(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str, profile: str, name: str
) -> None:
    monkeypatch.setenv("USER", "alice")
    (folder / "own.yaml").write_text(
        "name: own\nurl: https://x.org\nchecked: 2026-01-31\nruntimes:\n"
        f"  enroot: {{image: '{folder}/${{USER}}.sqsh', source: 'docker://x.org#y'}}\n"
    )
    home = Path(os.environ["HOME"])
    (home / "software").mkdir()
    expected = name.format(home=home, folder=folder)
    result = command("image", verb, "--profile", profile)
    assert (result.status, result.out) == (0, f"{expected}\n")
    assert Path(expected).read_text() == "whole\n"


@pytest.mark.parametrize("verb", ["pull", "import"])
@pytest.mark.usefixtures("programs")
def test_a_source_is_no_option(command: Command, folder: Path, said: Path, verb: str) -> None:
    (folder / "own.yaml").write_text(
        "name: own\nurl: https://x.org\nchecked: 2026-01-31\nruntimes:\n"
        "  apptainer: {source: '--force=://x'}\n  enroot: {source: '--output=://x'}\n"
    )
    result = command("image", verb, "--profile", "./own.yaml", "--to", "x")
    assert (result.status, said.exists()) == (2, False)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("pull", URI), "--to FILE, or write runtimes.apptainer.image into the profile"),
        (("import", "--to", "x"), "give the URI, as docker://pytorch/pytorch, or write it into the profile"),
        (("import", "--profile", "msu"), "export USER with its value, or name the file: --to FILE"),
        (("build", "--to", "x"), "missing argument"),
    ],
)
@pytest.mark.usefixtures("programs")
def test_what_nobody_says_is_asked_for(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], fix: str
) -> None:
    monkeypatch.delenv("USER", raising=False)
    result = command("image", *words)
    assert result.status == 2
    assert fix in result.err


@pytest.mark.parametrize(("verb", "program"), [("pull", "apptainer"), ("import", "enroot")])
def test_a_program_that_is_absent(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str, program: str
) -> None:
    monkeypatch.setenv("PATH", f"{folder}/bin")
    result = command("image", verb, URI, "--to", "x y")
    assert result.status == 3
    assert result.err == (
        f"error: there is no {program} on this machine's PATH\n"
        "  fix: load its module, or run it where jobs run: srun --cpus-per-task=8 --mem=16G "
        f"sbatchgen image {verb} {URI} --to 'x y'\n"
    )


@pytest.mark.usefixtures("programs")
def test_an_image_that_is_there_is_kept(command: Command, folder: Path, said: Path) -> None:
    (folder / "x.sif").write_text("old")
    result = command("image", "pull", URI, "--to", "x.sif")
    assert (result.status, "x.sif is there already" in result.err) == (3, True)
    assert not said.exists()
    assert images(folder) == {"x.sif": "old"}
    assert command("image", "pull", URI, "--to", "x.sif", "--force").status == 0
    assert images(folder) == {"x.sif": "whole\n"}


def test_a_folder_that_is_not_there_or_not_yours(
    command: Command, folder: Path, programs: Callable[[str], None]
) -> None:
    result = command("image", "pull", URI, "--to", "nowhere/x.sif")
    assert (result.status, "can't write into nowhere: No such file" in result.err) == (3, True)
    programs("")
    assert command("image", "pull", URI, "--to", "/proc/x.sif").status == 3
    assert images(folder) == {}


@pytest.mark.parametrize(
    ("meanwhile", "what"),
    [
        ("exit 255", "apptainer ended with status 255"),
        ("kill -KILL $$", "most likely it ran out of memory"),
        ('rm "$new"; exit 0', "ended well, but made no image"),
    ],
)
def test_a_failure_leaves_nothing(
    command: Command, folder: Path, programs: Callable[[str], None], meanwhile: str, what: str
) -> None:
    programs(meanwhile)
    result = command("image", "pull", URI, "--to", "x.sif")
    assert (result.status, what in result.err) == (3, True)
    assert images(folder) == {}


def test_a_full_disk_is_named(command: Command, programs: Callable[[str], None], tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("left out: a full disk: needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    programs('head -c 2000000 /dev/zero >"$new" || exit 1')
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "none", disk], check=True)
    try:
        result = command("image", "pull", URI, "--to", f"{disk}/x.sif")
        left = list(disk.iterdir())
    finally:
        subprocess.run(["umount", disk], check=True)
    assert result.status == 3
    assert f"most likely there is no room: 0 MiB are left in {disk}; --to names another folder" in result.err
    assert left == []


@contextmanager
def at_work(*words: str) -> Iterator[subprocess.Popen[str]]:
    """The command, once half of its image is there."""
    started = Path("started")
    started.unlink(missing_ok=True)
    with subprocess.Popen(
        [*IMAGE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until(lambda: started.exists() or process.poll() is not None)
        yield process


def until(predicate: Callable[[], bool]) -> None:
    end = time.monotonic() + 600
    while not predicate():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_one_leaves_nothing(
    folder: Path, programs: Callable[[str], None], number: signal.Signals
) -> None:
    programs(f"{SLOW}; touch went_on")
    with at_work("pull", URI, "--to", "x.sif") as process:
        assert [file.suffix for file in folder.glob(".sbatchgen-*/[!.]*")] == [".sif"]
        process.send_signal(number)
        process.communicate()
    assert process.returncode == 128 + number
    assert images(folder) == {}


def test_interrupted_while_its_program_starts(
    command: Command, folder: Path, programs: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            started.append(self)
            signal.raise_signal(signal.SIGTERM)

    programs(SLOW)
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    assert command("image", "pull", URI, "--to", "x.sif").status == 128 + signal.SIGTERM
    assert [process.returncode for process in started] == [-signal.SIGTERM]
    assert images(folder) == {}


def test_of_two_at_once_one_wins(folder: Path, programs: Callable[[str], None]) -> None:
    programs(SLOW)
    with at_work("pull", URI, "--to", "x.sif") as first, at_work("pull", URI, "--to", "x.sif") as second:
        assert len(list(folder.glob(".sbatchgen-*/x.sif"))) == 2
        (folder / "go").touch()
        ends = [(process.communicate()[1], process.returncode) for process in (first, second)]
    assert sorted(status for _, status in ends) in ([0, 3], [0, 0])  # both, if they ended in the same moment
    assert images(folder) == {"x.sif": "whole\n"}


def test_progress_goes_to_stderr(folder: Path, programs: Callable[[str], None]) -> None:
    programs("echo on stdout")
    done = subprocess.run([*IMAGE, "pull", URI, "--to", "x"], check=True, capture_output=True, text=True)
    assert done.stdout == "x\n"
    assert done.stderr.splitlines()[1:] == ["Copying blob", "on stdout"]
    assert images(folder) == {"x": "whole\n"}


def test_a_session_without_a_stderr(folder: Path, programs: Callable[[str], None]) -> None:
    programs("")
    script = f"exec 2>&-; {sys.executable} -m sbatchgen image pull {URI} --to x"
    done = subprocess.run(["bash", "-c", script], check=False, capture_output=True, text=True)
    assert Result(done.returncode, done.stdout, done.stderr) == Result(0, "x\n", "")
    assert images(folder) == {"x": "whole\n"}


def test_a_real_apptainer(later_root: Path) -> None:
    """As an ordinary user: an image is built, and one that can't be built leaves nothing."""
    with Cluster(visible=fixtures.VISIBLE, root=later_root) as cluster:
        work = cluster.put("work/root/etc/hello", "").parents[2]
        cluster.put("work/wrong.def", "Bootstrap: nothing\n")
        ends = [
            cluster.run([SBATCHGEN, "image", "build", source, "--to", "x.sif", *words], cwd=work)
            for source, words in (("root", []), ("root", []), ("wrong.def", ["--force"]))
        ]
        made = (work / "x.sif").read_bytes()
        left = sorted(file.name for file in work.iterdir())
    assert [end.returncode for end in ends] == [0, 3, 3]
    assert ends[0].stdout == "x.sif\n"
    assert "INFO:    Build complete" in ends[0].stderr
    assert "invalid build source nothing\nerror: apptainer ended with status 255" in ends[2].stderr
    assert made[32:41] == b"SIF_MAGIC"
    assert left == ["root", "wrong.def", "x.sif"]
