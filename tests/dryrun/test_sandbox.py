"""A hostile script changes nothing outside, reaches no socket, sees nothing of the user, and ends."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from sbatchgen.dryrun.sandbox import Box, BoxLimits, Ended, run
from tests.dryrun.plans import HEAD, needs_sandbox, planned

pytestmark = needs_sandbox


def boxed(command: str, folder: Path, *, seconds: float = 5) -> Ended:
    box = Box(home="/home/nobody", hostname="node1", folder=str(folder), limits=BoxLimits(seconds=seconds))
    return run(["/bin/bash", "-c", command], {"PATH": "/usr/bin:/bin"}, box)


@pytest.mark.parametrize(
    "attack",
    [
        "rm -rf ./* ; echo changed >kept",
        "mount -o remount,rw . ; echo changed >kept",
        "umount -l . ; rm -f kept",
        "unshare --user --mount --map-root-user sh -c 'umount -l . ; mount -o remount,rw / ; rm -f $PWD/kept'",
        "nsenter --target 1 --mount rm -f $PWD/kept",
        "rm -f /proc/1/root$PWD/kept /proc/1/cwd/kept",
        "for link in /proc/*/fd/*; do echo changed >$link; done",
        "ln -s $PWD/kept /run/plan/starts/1 ; rm -f /run/plan/out ; ln -s $PWD/kept /run/plan/out",
        "chmod 777 . ; mv kept other ; chmod 777 /usr /etc",
    ],
)
def test_no_file_changes(tmp_path: Path, attack: str) -> None:
    (tmp_path / "kept").write_text("mine")
    before = tmp_path.stat()
    boxed(attack, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_text() == "mine"
    assert (tmp_path.stat().st_mode, tmp_path.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_the_system_does_not_change(tmp_path: Path) -> None:
    before = Path("/proc/sys/kernel/domainname").read_text()
    boxed(
        "echo x >/usr/new; echo x >/etc/new; echo x >/proc/sys/kernel/domainname; rm -f /etc/passwd", tmp_path
    )
    assert not Path("/usr/new").exists()
    assert not Path("/etc/new").exists()
    assert Path("/etc/passwd").exists()
    assert Path("/proc/sys/kernel/domainname").read_text() == before


def test_files_of_the_folder_can_be_read_and_written_in_memory(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("seen")
    assert (
        boxed("cat data; echo more >>data; mkdir new; tail -n 1 data", tmp_path).files["out"]
        == "seenseenmore\n"
    )
    assert (tmp_path / "data").read_text() == "seen"


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_no_socket_is_reached(tmp_path: Path, kind: str) -> None:
    family = socket.AF_INET if kind == "tcp" else socket.AF_UNIX
    address = ("127.0.0.1", 0) if kind == "tcp" else str(tmp_path / "s")
    with socket.socket(family) as server:
        server.bind(address)
        server.listen()
        server.setblocking(False)
        reach = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        if kind == "unix":
            reach = "perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); connect(S, sockaddr_un(\"s\")) or exit 7'"
        assert boxed(reach, tmp_path).status != 0
        with pytest.raises(BlockingIOError):
            server.accept()


def test_only_the_loopback_interface_is_there_and_it_is_down(tmp_path: Path) -> None:
    assert boxed("cat /proc/net/route; grep -c : /proc/net/dev", tmp_path).files["out"].split()[-1] == "1"


def test_the_users_variables_and_home_are_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "very-secret")
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("very-secret")
    (home / "work").mkdir()
    text = "printenv; cat ~/.ssh/id; cat /proc/*/environ; ls -A ~\n"
    done, _ = planned(HEAD + text, home / "work", environment={"HOME": str(home)})
    assert "very-secret" not in str(done.ended)
    assert "work" in done.ended.files["out"]


def test_the_users_processes_are_not_seen(tmp_path: Path) -> None:
    assert set(boxed("kill -9 -1; echo /proc/[0-9]*", tmp_path).files["out"].split()) <= {
        "/proc/1",
        "/proc/2",
    }


def test_there_is_no_terminal(tmp_path: Path) -> None:
    done = boxed("ls /dev; ps -o tty= $$; ls -l /proc/self/fd", tmp_path)
    assert not {"tty", "pts"} & {*done.files["out"].split()}
    assert "/dev/pts" not in done.files["out"]


@pytest.mark.parametrize(
    ("attack", "limit"),
    [
        ("while :; do :; done", "time"),
        ("sleep 1000", "time"),
        ("trap '' TERM INT HUP; (trap '' TERM; sleep 1000) & wait", "time"),
        ("setsid sleep 1000 & disown; sleep 1000", "time"),
        ("f() { f | f & }; f; sleep 1000", "time"),
        ("for n in 1 2 3 4; do head -c 500M /dev/zero | tail & done; wait; sleep 1000", "memory"),
    ],
)
def test_it_ends_at_its_limits(tmp_path: Path, attack: str, limit: str) -> None:
    began = time.monotonic()
    done = boxed(attack, tmp_path, seconds=2)
    assert done.limit in {limit, "time", "processes"}
    assert time.monotonic() - began < 60


def test_what_it_prints_is_cut(tmp_path: Path) -> None:
    assert len(boxed("yes", tmp_path, seconds=2).files["out"]) <= 1 << 20
    assert boxed("head -c 500M /dev/zero >/tmp/large", tmp_path).status != 0


def test_it_holds_few_processes(tmp_path: Path) -> None:
    many = "for n in {1..2000}; do sleep 50 & done 2>/dev/null; jobs -p | wc -l"
    assert int((boxed(many, tmp_path).files["out"] or "0").split()[0]) < 300
