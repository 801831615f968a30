"""A hostile program changes nothing outside, reaches no socket, sees nothing of the user, and ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path

import pytest

from sbatchgen.lab.plan import installed
from sbatchgen.lab.sandbox.box import Box, _result_of_report, run
from tests.cluster.fixtures import _need
from tests.plan.boxes import PLACES, Place, boxed, home
from tests.plan.plans import HEAD, needs_sandbox, planned, said

pytestmark = needs_sandbox
BOX = Box(home="/home/someone", hostname="node1", folder="/usr")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    """Who runs the program, and whether layers are possible."""
    lacks = [name for name in ("unshare", "setpriv") if not shutil.which(name)]
    _need(
        "needs root" if os.getuid() else f"needs {', '.join(lacks)}" if lacks else None,
        what="sandboxes of two users",
    )
    return PLACES[request.param]


@pytest.fixture
def folder() -> Iterator[Path]:
    """The folder that is seen, with a file."""
    with home() as path:
        (path / "kept").write_text("mine")
        (path / "below").mkdir()
        (path / "below/kept").write_text("mine")
        yield path


ATTACKS = [
    "rm -rf ./* ; echo changed >kept; mkdir -p new/new",
    "echo changed >below/kept; echo changed >below/new; rm -rf below; mv below other",
    "mount -o remount,rw . ; umount -l . ; echo changed >kept",
    "unshare --user --mount --map-root-user sh -c 'umount -l . ; mount -o remount,rw / ; rm -f $PWD/kept'",
    "nsenter --target 1 --mount rm -f $PWD/kept",
    "rm -f /proc/1/root$PWD/kept /proc/1/cwd/kept /proc/1/fd/*/kept; echo changed >>/proc/1/fd/3/kept",
    "for link in /proc/*/fd/*; do echo changed >$link/../new; echo changed >$link/kept; done",
    "ln -s $PWD/kept /run/plan/starts/1 ; rm -f /run/plan/out ; ln -s $PWD/kept /run/plan/out",
    "chmod 777 . kept; touch -d 2001-01-01 kept; chown 1:1 kept; setfattr -n user.x -v y kept; ln kept other",
    "echo changed >/usr/new; rm -f /etc/passwd; echo 7 >/proc/sys/kernel/printk_ratelimit; chmod 600 /dev/full",
]  # fmt: skip


@pytest.mark.sampled(12)
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_file_changes(folder: Path, place: Place, attack: str) -> None:
    outside = [Path("/etc/passwd"), Path("/dev/full"), Path("/usr")]
    before = [(path.stat().st_mode, path.stat().st_mtime_ns) for path in outside]
    setting = Path("/proc/sys/kernel/printk_ratelimit").read_text()
    assert boxed(attack, folder, place).changed == []
    assert [(path.stat().st_mode, path.stat().st_mtime_ns) for path in outside] == before
    assert Path("/proc/sys/kernel/printk_ratelimit").read_text() == setting


@pytest.mark.sampled(4)
def test_files_of_the_folder_are_read_and_others_made_in_memory(folder: Path, place: Place) -> None:
    lines = "cat kept; mkdir new; echo more >new/file; cat new/file; echo more >>below/kept; cat below/kept"
    seen = boxed(lines, folder, place)
    assert seen.ended.files["out"] == "minemore\nminemore\n"
    assert seen.changed == []


@pytest.mark.sampled(4)
def test_a_lock_of_a_file_is_not_that_of_the_file_outside(folder: Path, place: Place) -> None:
    with (folder / "below/kept").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert boxed("flock -n below/kept echo locked", folder, place).ended.files["out"] == "locked\n"


@pytest.mark.sampled(4)
def test_no_descriptor_of_the_machine_is_open(folder: Path, place: Place) -> None:
    done = boxed(
        "ls /proc/1/fd; readlink /proc/self/fd/*; ls /proc/1/cwd/ /proc/1/root/", folder, place
    ).ended
    assert {line for line in done.files["out"].splitlines() if str(folder) in line} == set()
    assert "Permission denied" in done.files["err"]


@pytest.mark.sampled(4)
def test_home_and_temporary_folders_are_empty_and_its_own(folder: Path, place: Place) -> None:
    done = boxed(
        "ls -A /tmp /var/tmp /dev/shm /home/someone; echo x >/tmp/file; cat /tmp/file; ls /run",
        folder,
        place,
    )
    assert [line for line in done.ended.files["out"].split() if not line.endswith(":")] == ["x", "plan"]
    assert not Path("/tmp/file").exists()  # noqa: S108


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_no_socket_is_reached(folder: Path, place: Place, kind: str) -> None:
    family = socket.AF_INET if kind == "tcp" else socket.AF_UNIX
    address = ("127.0.0.1", 0) if kind == "tcp" else str(folder / "below/s")
    with socket.socket(family) as server:
        server.bind(address)
        server.listen()
        server.setblocking(False)
        reach = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        if kind == "unix":
            reach = "perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); connect(S, sockaddr_un(\"below/s\")) or exit 7'"
        assert boxed(reach, folder, place).ended.status != 0
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_pipe_in_the_folder_is_not_the_one_outside(folder: Path, place: Place) -> None:
    os.mkfifo(folder / "below/pipe", 0o666)
    with os.fdopen(os.open(folder / "below/pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        boxed(
            'perl -e \'use Fcntl; sysopen(P, "below/pipe", O_WRONLY | O_NONBLOCK) and print P "changed"\'',
            folder,
            place,
        )
        assert reader.read() == b""


def test_only_the_loopback_interface_is_there(folder: Path, place: Place) -> None:
    out = boxed("cat /proc/net/route; grep -c : /proc/net/dev", folder, place).ended.files["out"]
    assert out.split()[-1] == "1"


def test_no_process_outside_is_seen_or_ended(folder: Path, place: Place) -> None:
    with subprocess.Popen(["sleep", "infinity"]) as other:
        seen = boxed(
            f"echo /proc/[0-9]*; kill -9 {other.pid}; kill -9 -1; renice 10 {other.pid}", folder, place
        ).ended
        assert {*seen.files["out"].split()} <= {"/proc/1", "/proc/2"}
        assert other.poll() is None
        assert os.getpriority(os.PRIO_PROCESS, other.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        other.kill()


@pytest.mark.sampled(2)
def test_there_is_no_terminal(folder: Path, place: Place) -> None:
    done = boxed("ls /dev; ps -o tty= $$; ls -l /proc/self/fd", folder, place).ended
    assert not {"tty", "pts"} & {*done.files["out"].split()}
    assert "/dev/pts" not in done.files["out"]


def test_the_users_variables_and_home_are_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "very-secret")
    user = tmp_path / "home"
    (user / ".ssh").mkdir(parents=True)
    (user / ".ssh/id").write_text("very-secret")
    (user / "work").mkdir()
    text = "printenv; cat ~/.ssh/id; cat /proc/*/environ; ls -A ~\n"
    done, _ = planned(HEAD + text, user / "work", environment={"HOME": str(user)})
    assert "very-secret" not in str(done.result)
    assert "work" in done.result.files["out"]


# Each holds much memory at once, of another kind; what it holds comes to 1.2 GiB at most.
HOGS = {
    "processes": "for n in 1 2 3 4; do perl -e '$x = \"x\" x 300e6; sleep 20' & done; wait",
    "files": "for n in {1..80}; do head -c 15M /dev/zero >/tmp/$n || break; done; sleep 20",
    "files of the folder": "for n in {1..80}; do head -c 15M /dev/zero >new$n || break; done; sleep 20",
    "shared memory": "for n in {1..80}; do head -c 15M /dev/zero >/dev/shm/$n || break; done; sleep 20",
    "memory that processes share": "for n in 1 2 3; do perl -e 'open(Z, \"<\", \"/dev/zero\"); my $a = syscall(9, 0, 200 << 20, 3, 0x21, -1, 0); syscall(0, fileno(Z), $a, 200 << 20); sleep 20' & done; wait",
    "memory of a device": "for n in 1 2 3; do perl -e 'open(Z, \"+<\", \"/dev/zero\"); my $a = syscall(9, 0, 200 << 20, 3, 1, fileno(Z), 0); syscall(0, fileno(Z), $a, 200 << 20); sleep 20' & done; wait",
    "files and processes": "for n in {1..40}; do head -c 15M /dev/zero >/tmp/$n; done; perl -e '$x = \"x\" x 600e6; sleep 20'",
    "many small files": "perl -e 'for (1 .. 3e6) { open(F, \">/tmp/$_\") or last }; sleep 20'",
    "many folders": "perl -e 'for (1 .. 3e6) { mkdir(\"/tmp/$_\") or last }; sleep 20'",
}  # fmt: skip


# In a place each, by turns. Files of the folder lie elsewhere without layers, and shared memory is asked of each user's /proc.
IN = {
    "files of the folder": [*PLACES],
    "memory that processes share": ["user", "root"],
    "memory of a device": ["user", "root"],
}
HOGGED = [(hog, place) for hog, turn in zip(HOGS, cycle(PLACES)) for place in IN.get(hog, [turn])]


@pytest.mark.proof
@pytest.mark.parametrize(("hog", "place"), HOGGED, indirect=["place"])
def test_memory_ends_at_its_limit(folder: Path, place: Place, hog: str) -> None:
    limits = {"memory": 256 << 20, "seconds": 120.0, "cpu": 60.0, "idle": 20.0}
    done = boxed(HOGS[hog], folder, place, limits).ended
    assert done.limit == "memory"
    assert done.peak_bytes <= 2 * limits["memory"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("call", ["memfd_create", "shmget"])
def test_there_is_no_memory_that_is_not_counted(folder: Path, place: Place, call: str) -> None:
    text = {"memfd_create": "syscall(319, my $x = 'x', 0)", "shmget": "syscall(29, 0, 1 << 20, 512 | 0600)"}[
        call
    ]
    if os.uname().machine != "x86_64":
        pytest.skip("numbers of x86_64")
    done = boxed(
        f'perl -e \'$! = 0; my $n = {text.replace(chr(39), chr(34))}; print $n < 0 ? "no" : "yes"\'',
        folder,
        place,
    )
    assert done.ended.files["out"] == "no"


@pytest.mark.sampled(2)
def test_memory_that_processes_share_counts_once(folder: Path, place: Place) -> None:
    many = "for n in {1..60}; do sleep 1 & done; wait; echo done"
    done = boxed(many, folder, place, {"memory": 48 << 20, "seconds": 30.0}).ended
    assert (done.limit, done.files["out"]) == ("", "done\n")


MANY = ("perl -e 'for (1 .. 11) { fork } sleep 1000'", "for n in {1..600}; do sleep 1000 & done; wait")


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("attack", "limit", "place"),
    [
        ("while :; do :; done", "time", "user"),
        ("sleep 1000", "time", "root"),
        ("trap '' TERM INT HUP; (trap '' TERM; sleep 1000) & wait", "time", "user without layers"),
        ("setsid sleep 1000 & disown; sleep 1000", "time", "root without layers"),
        ("for n in {1..4}; do (while :; do :; done) & done; wait", "time", "root"),
        *product(MANY, ["processes"], ["user", "root"]),  # of root's processes the kernel has no limit
    ],
    indirect=["place"],
)
def test_it_ends_at_its_limits(folder: Path, place: Place, attack: str, limit: str) -> None:
    limits = {"cpu": 0.4, "seconds": 20.0, "idle": 1.0}
    done = boxed(
        attack, folder, place, limits if limit == "time" else {"cpu": 20.0, "seconds": 60.0, "idle": 20.0}
    ).ended
    assert done.limit == limit
    assert done.status == 137


@pytest.mark.sampled(4)
def test_what_is_left_in_the_background_ends_too(folder: Path, place: Place) -> None:
    done = boxed(
        "(while :; do :; done) & sleep 1000 & echo done", folder, place, {"cpu": 0.4, "seconds": 60.0}
    ).ended
    assert (done.status, done.limit, done.files["out"]) == (0, "", "done\n")


# Where the report lies is the same with layers and without.
@pytest.mark.sampled(12)
@pytest.mark.parametrize("place", ["user", "root"], indirect=True)
@pytest.mark.parametrize(
    "attack",
    [
        "kill -9 1; kill -INT 1; kill -STOP 1; kill -TERM 1; echo done",
        "prlimit --pid 1 --nofile=0; prlimit --pid 1 --as=1 --cpu=1; echo done",
        "renice 19 1; taskset -p 1 1 >/dev/null; chrt --idle -p 0 1; echo done",
        "echo '+0 0' >/proc/1/fd/1; echo done >/proc/1/fd/2; echo done",
        "rm -rf /run/plan/starts; echo done",
        "rm -rf /run/plan; ln -s /etc /run/plan; echo done",
        "rm -f /run/plan/err; mkfifo /run/plan/err; ln -sf /dev/zero /run/plan/trace; echo done",
        "for n in {1..20}; do truncate -s 16M /run/plan/starts/$n; done; echo done",
        'perl -e \'for (1 .. 2e4) { open(F, ">/run/plan/starts/$_") or last; print F "x" }\'; echo done',
    ],
)
def test_a_damaged_report_is_no_traceback(folder: Path, place: Place, attack: str) -> None:
    done = boxed(attack, folder, place, {"cpu": 10.0, "seconds": 60.0}).ended
    assert done.limit or done.files.get("out", "done\n") == "done\n"
    assert sum(map(len, done.files.values())) <= (64 << 20) + 100


@pytest.mark.parametrize(
    "report",
    [
        b"+", b"+\n\n", b"+0 0 \n5 \n\n", b"+0 0 \n-5 out\n\nx", b"+" + b"9" * 5000 + b" 0 \n\n", b"+0 0 \n" + b"9" * 5000 + b" out\n\n",
        b"+x y z\n\n", b"+0 0 \n1 a b\n\nx", b"+\xff\n\n", b"+0 0 nonsense\n\n", b"\0" * 100, b"+0 0 \n" * 1000 + b"\n\n",
    ],
)  # fmt: skip
def test_a_forged_report_is_read(report: bytes) -> None:
    done = _result_of_report(report, 1.0, 1.0)
    assert done.limit in ("", "time", "memory", "processes", "damage")
    assert all(done.files)


def test_a_name_that_no_file_can_have_is_left_out() -> None:
    files = {
        "/a\0b": (b"x", 0o644),
        "/" + "b" * 300: (b"x", 0o644),
        "/c/--bind": (b"x", 0o644),
        "/d\n/e": (b"x", 0o644),
        "/f\0g": None,
        "/h" * 2000: None,
    }
    box = BOX._replace(files=files)
    done = run(["/bin/bash", "-c", "ls / /c | grep -c ."], {"PATH": "/usr/bin:/bin"}, box)
    assert (done.status, done.limit) == (0, "")


@pytest.mark.proof
def test_all_runs_of_a_plan_together_have_a_limit(tmp_path: Path) -> None:
    loop = "for ((n = 0; n < 300; n++)); do /bin/true; done; cat missing$RANDOM$RANDOM\nexit 1\n"
    done, _ = planned(HEAD + loop, tmp_path)
    assert done.budget.processes > -100
    assert done.runs < 5
    waits, _ = planned(
        HEAD + "sleep() { /bin/sleep 1; }; sleep; cat missing$RANDOM$RANDOM\nexit 1\n", tmp_path
    )
    assert waits.budget.seconds > -1.0
    assert waits.runs < 12


@pytest.mark.proof
def test_records_that_are_not_read_are_told(tmp_path: Path) -> None:
    commands = "x=$(printf '%09999d' 0)\nfor n in {1..500}; do : $x; done\npython train.py\n"
    starts = "srun -n 512 python train.py\n" * 8
    for text in (f"{HEAD}{commands}", f"{HEAD}#SBATCH --ntasks=512\n{starts}"):
        done, findings = planned(text, tmp_path)
        assert (done.result.status, done.result.limit) == (0, "records")
        (what,) = [each.problem.what for each in findings if each.rule == "SB336"]
        assert what.endswith("runs more commands, or starts more programs, than a plan reads")


def test_a_report_that_is_damaged_is_a_finding(tmp_path: Path) -> None:
    done, findings = planned(HEAD + "kill -INT 1\nsrun true\n", tmp_path)
    if done.result.limit:  # else the first process is out of reach
        assert "damages the sandbox" in said(findings)[0]
    assert done.result.limit in ("", "damage")


def test_folders_of_programs_are_found_in_a_time_that_grows_with_the_text() -> None:
    """A search from each letter of a word of a million would take hours."""
    text = f"{'x' * 1_000_000} /opt/a/bin:/opt/b/bin/python {'./' * 500_000}"
    folders = [*installed.named_bin_folders(text, "/work")]
    assert folders[:2] == ["/opt/a/bin", "/opt/b/bin"]


@pytest.mark.proof
@pytest.mark.parametrize("line", ["script: line 1: a: ", "cat: cannot open ", ": line 9: x: ", "x: line 1: "])
def test_long_lines_are_read_in_a_time_that_grows_with_them(tmp_path: Path, line: str) -> None:
    """Quadratic searches of a million characters would take hours."""
    text = f"perl -e 'print \"{line}\" x 50000' >&2; perl -e 'print \"\\n\" x 500000' >>/run/plan/trace\nexit 1\n"
    done, findings = planned(HEAD + text, tmp_path)
    assert (done.result.status, len(findings)) == (1, 1)
