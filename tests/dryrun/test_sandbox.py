"""A hostile script changes nothing outside, reaches no socket, sees nothing of the user, and ends."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from sbatchgen.dryrun.sandbox import Box, BoxLimits, Ended, NoSandboxError, run

from sbatchgen.dryrun import sandbox
from tests.dryrun.plans import HEAD, needs_sandbox, planned

pytestmark = needs_sandbox
KINDS = {name: (name, lacks, runs) for name, lacks, runs in sandbox.kinds()}
USER, PYTHON = 54321, "/usr/bin/python3"
Runs = Callable[[Sequence[str], Mapping[str, str], Box], Ended]


@pytest.fixture(params=KINDS, autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the kind of sandbox that `run` uses."""
    name, lacks, runs = KINDS[request.param]
    if os.getuid() == 0 and lacks:  # they refuse root
        runs = partial(as_user, runs)
    try:
        runs(["/bin/true"], {}, Box(home="/home/nobody", hostname="node1", folder="/usr"))
    except NoSandboxError as error:
        pytest.skip(f"{name}: {error.problems[0].what}")
    monkeypatch.setattr(sandbox, "kinds", lambda: iter([(name, lacks, runs)]))
    return str(name)


def as_user(runs: Runs, argv: Sequence[str], environment: Mapping[str, str], box: Box) -> Ended:
    """What a kind of sandbox does for an ordinary user, who has the folder, with a Python for all users."""
    folder = Path(box.folder)
    box = replace(box, interpreter=os.path.realpath(PYTHON), shown=())
    for path in [folder, *folder.rglob("*")] if str(folder) != "/usr" else []:
        os.chown(path, USER, USER)
    code = (
        "import pickle, sys; runs, args = pickle.load(sys.stdin.buffer); runs = pickle.dumps(runs(*args)); "
    )
    code += "sys.stdout.buffer.write(runs)"
    words = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", PYTHON, "-c", code]
    around = {"PATH": os.defpath, "PYTHONPATH": str(Path(sandbox.__file__).parents[2])}
    task = pickle.dumps((runs, (argv, dict(environment), box)))
    done = subprocess.run(words, input=task, env=around, cwd="/", capture_output=True, check=False)
    if done.returncode:
        raise NoSandboxError.of(done.stderr.decode().strip().splitlines()[-1])
    return pickle.loads(done.stdout)  # type: ignore[no-any-return]  # noqa: S301


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that an ordinary user may reach."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)


def boxed(command: str, folder: Path, *, seconds: float = 5) -> Ended:
    box = Box(home="/home/nobody", hostname="node1", folder=str(folder), limits=BoxLimits(seconds=seconds))
    return run(["/bin/bash", "-c", command], {"PATH": "/usr/bin:/bin"}, box)


HALF_A_SECOND = "while read -r -a stat </proc/self/stat; ((stat[13] + stat[14] < 50)); do :; done; echo done"


def test_a_busy_machine_costs_a_script_nothing(tmp_path: Path) -> None:
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    loop = ["/bin/bash", "-c", "while :; do :; done"]
    busy = [subprocess.Popen(loop, start_new_session=True) for _ in range(4)]  # a session has its share
    try:
        done = boxed(HALF_A_SECOND, tmp_path, seconds=1)
    finally:
        os.sched_setaffinity(0, processors)
        for program in busy:
            program.kill()
            program.wait()
    assert (done.limit, done.files["out"]) == ("", "done\n")
    assert done.seconds > 1


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


def test_files_of_the_folder_can_be_read_and_others_made_in_memory(tmp_path: Path, kind: str) -> None:
    (tmp_path / "data").write_text("seen")
    done = boxed(
        "cat data; mkdir new; echo more >new/file; cat new/file; echo more >>data; cat data", tmp_path
    )
    assert done.files["out"] == "seenmore\nseen" + ("more\n" if kind == "user namespaces" else "")
    assert (tmp_path / "data").read_text() == "seen"
    assert not (tmp_path / "new").exists()


def test_home_and_temporary_folders_are_empty_and_its_own(tmp_path: Path) -> None:
    done = boxed(
        "ls -A /tmp | grep -vx ${PWD#/tmp/}; echo x >/tmp/file; cat /tmp/file; cd /dev/shm; echo $PWD",
        tmp_path,
    )
    assert done.files["out"] == "x\n/dev/shm\n"
    assert not Path("/tmp/file").exists()  # noqa: S108


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


@pytest.mark.parametrize("kind", ["user namespaces", "bubblewrap"], indirect=True)  # Landlock shows others
def test_only_the_loopback_interface_is_there(tmp_path: Path) -> None:
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
    seen = boxed("echo /proc/[0-9]*; kill -9 -1", tmp_path).files["out"].split()
    assert set(seen) <= {"/proc/1", "/proc/2", "/proc/[0-9]*"}


def test_there_is_no_terminal(tmp_path: Path) -> None:
    done = boxed("ls /dev; ps -o tty= $$; ls -l /proc/self/fd", tmp_path)
    assert not {"tty", "pts"} & {*done.files["out"].split()}
    assert "/dev/pts" not in done.files["out"]


@pytest.mark.parametrize(
    "attack",
    [
        "while :; do :; done",
        "sleep 1000",
        "trap '' TERM INT HUP; (trap '' TERM; sleep 1000) & wait",
        "setsid sleep 1000 & disown; sleep 1000",
        "f() { f | f & }; f; sleep 1000",
        "for n in 1 2 3 4; do head -c 500M /dev/zero | tail & done; wait; sleep 1000",
    ],
)
def test_it_ends_at_its_limits(tmp_path: Path, attack: str) -> None:
    assert boxed(attack, tmp_path, seconds=2).limit


def test_memory_that_processes_share_counts_once(tmp_path: Path) -> None:
    limits = BoxLimits(seconds=10, memory=48 << 20)
    box = Box(home="/home/nobody", hostname="node1", folder=str(tmp_path), limits=limits)
    many = "for n in {1..60}; do sleep 1 & done; wait; echo done"
    done = run(["/bin/bash", "-c", many], {"PATH": "/usr/bin:/bin"}, box)
    assert (done.limit, done.files["out"]) == ("", "done\n")


def test_what_it_prints_is_cut(tmp_path: Path) -> None:
    assert len(boxed("yes", tmp_path, seconds=2).files["out"]) <= 1 << 20
    assert boxed("head -c 500M /dev/zero >/tmp/large", tmp_path).status != 0


def test_it_holds_few_processes(tmp_path: Path) -> None:
    many = "for n in {1..2000}; do sleep 50 & done 2>/dev/null; jobs -p | wc -l"
    assert int((boxed(many, tmp_path).files["out"] or "0").split()[0]) < 300


def test_no_process_outside_is_ended_or_slowed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as other:
        boxed(
            f"kill -9 {other.pid}; kill -9 -1; renice 10 {other.pid}; prlimit --pid {other.pid} --cpu=1",
            tmp_path,
        )
        assert other.poll() is None
        assert os.getpriority(os.PRIO_PROCESS, other.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        assert "100" in Path(f"/proc/{other.pid}/cmdline").read_text()
        assert (
            resource.prlimit(other.pid, resource.RLIMIT_CPU)[0] == resource.getrlimit(resource.RLIMIT_CPU)[0]
        )
        other.kill()


def test_modes_owners_and_times_of_files_outside_stay(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    (tmp_path / "kept").chmod(0o640)
    before = (tmp_path / "kept").stat()
    boxed("chmod 777 kept; touch -d 2001-01-01 kept; chown 1:1 kept; setfattr -n user.x -v y kept", tmp_path)
    after = (tmp_path / "kept").stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert after.st_uid != 1


@pytest.mark.parametrize(
    ("kind", "rights"),
    [("bubblewrap", ""), ("Landlock", "setpriv --bounding-set=-all --inh-caps=-all ")],
    indirect=["kind"],
)
def test_where_namespaces_are_forbidden_another_kind_is_taken(rights: str, kind: str) -> None:
    """In a child namespace that has no others: bubblewrap works by its rights there, Landlock without."""
    code = "from sbatchgen.dryrun.sandbox import *; box = Box(home='/home/me', hostname='n', folder='/usr'); "
    code += "print(run(['/bin/echo', 'x'], {}, box))"
    inner = f'echo 0 >/proc/sys/user/max_user_namespaces && exec {rights}{PYTHON} -c "{code}"'
    words = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if os.getuid() == 0 else []
    done = subprocess.run(
        [*words, "unshare", "--user", "--map-root-user", "bash", "-c", inner],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(sandbox.__file__).parents[2])},
        cwd="/", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "'out': 'x\\n'" in done.stdout
    assert f"lacks='{kind}: " in done.stdout.replace('"', "'")


def test_a_script_is_planned_in_each(tmp_path: Path, kind: str) -> None:
    text = "#SBATCH -N2 --ntasks-per-node=1\nmkdir -p ~/runs /scratch/x\nsource /opt/setup.sh\n"
    text += "srun /usr/bin/python3 $SLURM_SUBMIT_DIR/train.py --to $HOME/runs --tmp /tmp/x\n"
    done, _ = planned(text, tmp_path)
    assert [process.argv for process in done.steps[0].processes] == [
        ("/usr/bin/python3", f"{tmp_path}/train.py", "--to", f"{done.batch['HOME']}/runs", "--tmp", "/tmp/x")  # noqa: S108
    ] * 2
    assert {process.cwd for process in done.steps[0].processes} == {str(tmp_path)}
    assert [need.name for need in done.needed] == ["/opt/setup.sh"]
    assert done.ended.lacks.startswith(kind if kind != "user namespaces" else "")
