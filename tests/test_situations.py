"""Every command in every ordinary mishap: a message and an exit status that fits, and no traceback."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import pty
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

import pytest

from sbatchgen.base.errors import DocumentError, NestedSandboxError
from sbatchgen.cli import output
from sbatchgen.jobs.runs import events as events_module
from sbatchgen.jobs.runs.plot import read_history
from sbatchgen.lab.prepare import dataset
from tests.conftest import REPOSITORY, Command

TIMEOUT_S = 600  # nothing takes so long, whatever else the machine does
ANOTHER_USER = 54321
SBATCH = '#!/bin/bash\ncat -- "${!#}" >"$RECORD"\necho 4711\n'
SCONTROL = "#!/bin/bash\necho PartitionName=default Default=YES State=UP TotalNodes=1 MaxTime=UNLIMITED\n"
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=01:00:00\nhostname\n"
EVENTS = '{"event": "start", "step": 0}\n{"event": "train", "step": 2, "loss": 0.5}\n'
COMMANDS = {
    "help": ("--help",),
    "render": ("render", "ddp", "--profile", "msu"),
    "write": ("render", "job.yaml", "--write", "out.slurm"),
    "review": ("review", "ddp", "--profile", "torchrun"),
    "test-only": ("review", "job.yaml", "--test-only"),
    "explain": ("explain", "job.yaml", "--lines"),
    "plan": ("plan", "job.slurm"),
    "when": ("when", "job.yaml"),
    "submit": ("submit", "job.yaml", "--yes"),
    "shell": ("shell", "ddp", "--profile", "local", "--data-dir", ".", "--dry-run"),
    "submit script": ("submit", "job.slurm", "--yes"),
    "lint": ("lint", "job.slurm", "job.md"),
    "lint --fix": ("lint", "--fix", "bad.slurm"),
    "adopt": ("adopt", "old.slurm", "--to", "new"),
    "list": ("profile", "list"),
    "check": ("profile", "check", "./here.yaml", "msu"),
    "show": ("profile", "show", "./here.yaml"),
    "sources": ("profile", "sources", "./here.yaml"),
    "data": ("data", "mnist", "--to", "data", "--synthetic", "--train", "5", "--test", "5"),
    "image": ("image", "pull", "docker://x.org/y", "--to", "image.sif"),
    "plot": ("plot", "runs/drawn"),
    "trust": ("trust", "."),
}


@dataclass
class World:
    """A folder in which every command works, and how its process is started; both can be changed."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    streams: dict[int, str] = field(default_factory=dict)  # a file, or "closed", or "unread": a pipe
    encoding: str = "utf-8"
    leaves: str = ""  # what happens to the working folder once the process is in it: "gone" or "closed"
    home: Path = field(init=False)
    work: Path = field(init=False)

    def __post_init__(self) -> None:
        self.home, self.work = self.root / "home", self.root / "work"
        for folder in (self.home, self.work / "runs/drawn", self.root / "bin"):
            folder.mkdir(parents=True)
        for program in ("bash", "cat", "tee"):  # no sbatch of this machine
            (self.root / "bin" / program).symlink_to(str(shutil.which(program)))
        (self.root / "bin/sbatch").write_text(SBATCH)
        (self.root / "bin/apptainer").write_text('#!/bin/bash\necho whole >"$2"\n')
        for program in ("squeue", "sinfo"):
            (self.root / "bin" / program).write_text("#!/bin/bash\n")
        (self.root / "bin/scontrol").write_text(SCONTROL)
        for program in ("sbatch", "squeue", "sinfo", "scontrol", "apptainer"):
            (self.root / "bin" / program).chmod(0o755)
        profile = (REPOSITORY / "profiles/torchrun.yaml").read_text()
        (self.work / "here.yaml").write_text(profile)
        (self.work / "job.yaml").write_text("mode: ddp\nprofile: ./here.yaml\ntrainer: train.py\n")
        (self.work / "train.py").touch()
        (self.work / "job.slurm").write_text(SCRIPT)
        (self.work / "bad.slurm").write_text(SCRIPT.replace("--time", "-t"))
        (self.work / "old.slurm").write_text(SCRIPT.replace("hostname", "python train.py"))
        (self.work / "job.md").write_text(f"```bash\n{SCRIPT}```\n")
        (self.work / "runs/drawn/events.jsonl").write_text(EVENTS)
        self.env = {
            "PATH": str(self.root / "bin"),
            "HOME": str(self.home),
            "USER": "alice",
            "RECORD": str(self.root / "record"),
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def task(self, *arguments: str) -> dict[str, Any]:
        """A command of sbatchgen here, for `serve`."""
        streams = {0: os.devnull, 1: str(self.root / "out"), 2: str(self.root / "err")} | self.streams
        return {
            "argv": ["sbatchgen", *arguments], "cwd": str(self.work), "env": self.env, "leaves": self.leaves,
            "streams": [streams[number] for number in range(3)], "encoding": self.encoding,
        }  # fmt: skip


# Root may do anything, unless it gives that up; it stays the owner of what the tests have made.
BOUND = [] if os.getuid() else ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
Change = Callable[[World], object]


def serve() -> None:
    """Do the tasks of stdin, each in its own process, which has all modules loaded."""
    import gc

    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401

    import sbatchgen.check.lint.linting
    import sbatchgen.jobs.review.screen
    import sbatchgen.jobs.runs.plot
    import sbatchgen.jobs.submit.local  # noqa: F401
    from sbatchgen.jobs.submit import attempt

    attempt.SEARCH_S = 2.0  # a minute is too long to look for the job of a killed sbatch, which is not there
    gc.freeze()
    for line in sys.stdin:
        process = os.fork()
        if not process:
            start(**json.loads(line))
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def sbatchgen_main() -> None:
    from sbatchgen.__main__ import main

    main()


def start(
    argv: list[str], cwd: str, env: dict[str, str], leaves: str, streams: list[str], encoding: str
) -> NoReturn:
    """Run a command as its process."""
    signal.alarm(TIMEOUT_S)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if leaves:
        Path(leaves).mkdir()
        os.chdir(leaves)
        Path("../gone").rmdir() if leaves == "gone" else Path().chmod(0)
    for number, where in enumerate(streams):
        put_stream(number, where)
    sys.stdin, sys.stdout, sys.stderr = (
        None if where == "closed" else open(number, "w" if number else "r", encoding=encoding, closefd=False)  # noqa: SIM115
        for number, where in enumerate(streams)
    )
    sys.argv, tempfile.tempdir = argv, None
    os._exit(status_of(sbatchgen_main))  # without a last look through all modules, which takes a while


def status_of(main: Callable[[], None]) -> int:
    """The exit status of a process; as the interpreter has it."""
    status: object = 0
    try:
        main()
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:  # noqa: BLE001 - printed as the interpreter does
        traceback.print_exc()
        status = 1
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream:
                stream.flush()
    except OSError:
        return 120
    return status if isinstance(status, int) else 1


def put_stream(number: int, where: str) -> None:
    if where == "closed":
        os.close(number)
    elif where == "unread":
        reader, writer = os.pipe()
        os.dup2(writer, number)
        os.close(reader)
    else:
        os.dup2(os.open(where, os.O_RDWR | os.O_CREAT), number)


class Server:
    """A process of an ordinary user with sbatchgen and its libraries loaded: see `serve`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*BOUND, sys.executable, "-m", __name__],
            cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def do(self, task: dict[str, Any]) -> int:
        """The exit status of a task."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{json.dumps(task)}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate(timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def servers() -> Iterator[SimpleQueue[Server]]:
    """A server for each CPU; a test takes one and puts it back."""
    started = [Server() for _ in os.sched_getaffinity(0)]
    free: SimpleQueue[Server] = SimpleQueue()
    for server in started:
        free.put(server)
    yield free
    for server in started:
        server.end()


def at(act: Callable[[Path], object], *names: str) -> Change:
    """A change of files and folders of the working folder."""

    def change(world: World) -> None:
        for name in names:
            act(world.work / name)

    return change


def written(text: bytes) -> Callable[[Path], object]:
    def act(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)

    return act


def instead(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """In the place of a file, if there is one."""

    def act(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)

    return act


def linked(to: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(to)


def closed(path: Path) -> None:
    path.chmod(0)


def read_only(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o500)


XDG = ("CONFIG_HOME", "CONFIG_DIRS", "CACHE_HOME")


def of_another(path: Path) -> None:
    """A folder that another user has closed."""
    for inside in ("sbatchgen/profiles", ".config/sbatchgen/profiles"):
        (path / inside).mkdir(parents=True)
    path.chmod(0o700 if os.getuid() == 0 else 0)
    if os.getuid() == 0:
        os.chown(path, ANOTHER_USER, ANOTHER_USER)


def having(**values: Any) -> Change:
    """Other attributes of the world."""

    def change(world: World) -> None:
        for name, value in values.items():
            setattr(world, name, value)

    return change


def env(**values: str) -> Change:
    return lambda world: world.env.update(values)


def all_of(*changes: Change) -> Change:
    def change(world: World) -> None:
        for change in changes:
            change(world)

    return change


def named(name: bytes) -> Change:
    """The working folder has another name."""

    def change(world: World) -> None:
        world.work = world.work.rename(os.fsdecode(os.fsencode(world.root) + b"/" + name))

    return change


def template(text: bytes) -> Change:
    """A template of the site, which all its jobs are rendered with."""
    return all_of(
        at(written(b"template: mine.j2\n"), "sbatchgen.yaml"),
        at(written(text), ".sbatchgen/templates/mine.j2"),
    )


def sbatch(text: bytes, mode: int = 0o755) -> Change:
    return all_of(at(written(text), "../bin/sbatch"), at(lambda path: path.chmod(mode), "../bin/sbatch"))


# What a situation is about, by the start of its name; others are about all commands.
OF = {
    "sbatch ": ("test-only", "submit", "submit script"),
    "a template ": ("render", "write", "review", "explain", "submit"),
    "notes ": ("render", "review", "test-only", "submit", "plot"),
}
READ = ("job.yaml", "job.slurm", "bad.slurm", "old.slurm", "job.md", "here.yaml", "runs/drawn/events.jsonl")
NOTES = ("runs/drawn/status.json", "runs/drawn/config.json", "runs/job/job-1.slurm", "runs/ddp/job-1.slurm")
NUMBERS = [
    ("--nodes", "1"), ("--time", "1"), ("--mem", "1"), ("--gpus", "1"), ("--gpus-per-node", "a:1"),
    ("--gpus-per-task", "1"), ("--gres", "gpu:1"), ("--array", "0-1"), ("--cpus-per-task", "1"),
    ("--nproc-per-node", "1"), ("--max-restarts", "1"), ("--nice", "-1"), ("--signal", "B:USR1@1"),
    ("--mem-per-gpu", "1"), ("--set", "options.ntasks=1"),
]  # fmt: skip
SITUATIONS: dict[str, Change] = {
    "nothing is wrong": at(str),
    "run folders are read-only": at(read_only, "runs/job", "runs/drawn", "runs"),
    "run folders can't be made": at(read_only, "runs"),
    "the working folder is read-only": at(read_only, ""),
    "the working folder is closed": having(leaves="closed"),
    "the working folder is gone": having(leaves="gone"),
    "the working folder's name has a line break": named(b"a\nb"),
    "the working folder's name is not UTF-8": named(b"caf\xe9"),
    "files are closed": at(closed, *READ),
    "files are FIFOs": at(instead(os.mkfifo), *READ),
    "files are folders": at(instead(Path.mkdir), *READ),
    "files lead to devices": at(instead(linked("/dev/zero")), *READ),
    "files lead in circles": all_of(*(at(instead(linked(Path(name).name)), name) for name in READ)),
    "files are not UTF-8": at(written(b"#!/bin/bash\n#SBATCH --comment=\xff\n"), *READ),
    "files are deep": at(written(b"[" * 60_000), *READ),
    "notes are closed": all_of(at(written(b"{}"), *NOTES), at(closed, *NOTES)),
    "notes are FIFOs": at(instead(os.mkfifo), *NOTES),
    "notes lead to devices": at(instead(linked("/dev/zero")), *NOTES),
    "notes lead nowhere": at(instead(linked("nothing")), *NOTES, "sbatchgen.yaml"),
    "notes are not UTF-8": at(written(b'{"state": "\xff"}'), *NOTES),
    "notes are deep": at(written(b'{"lr":' * 9_000), *NOTES),
    "notes are of a time to come": all_of(
        at(written(b"{}"), *NOTES), at(lambda path: os.utime(path, (1 << 33, 1 << 33)), *NOTES)
    ),
    "results are folders": at(
        instead(Path.mkdir), "out.slurm", "runs/drawn/plot.png", "runs/job/job.slurm", "data/t10k-images-idx3-ubyte"
    ),
    "the home is another user's": at(of_another, "../home"),
    "the home can't be written": at(read_only, "../home"),
    "the home is a file": env(HOME="/etc/passwd"),
    "there is no home": lambda world: world.env.pop("HOME"),
    "XDG folders are another user's": all_of(
        at(of_another, "xdg"),
        lambda world: world.env.update({f"XDG_{of}": str(world.work / "xdg") for of in XDG}),
    ),
    "there is no place for temporary files": all_of(env(TMPDIR="/proc"), at(read_only, "")),
    "variables are not UTF-8": env(
        HOME=os.fsdecode(b"/\xff\n"), USER=os.fsdecode(b"\xff"), SBATCHGEN_PATH=os.fsdecode(b"/\xff")
    ),
    "stdout is full": having(streams={1: "/dev/full"}),
    "stdout is closed": having(streams={1: "closed"}),
    "stdout has no reader": having(streams={1: "unread"}),
    "stderr is full": having(streams={2: "/dev/full"}),
    "stderr is closed": having(streams={2: "closed"}),
    "stderr has no reader": having(streams={2: "unread"}),
    "all streams are closed": having(streams={0: "closed", 1: "closed", 2: "closed"}),
    "the terminal speaks latin-1": having(encoding="latin-1"),
    "the terminal speaks ASCII": having(encoding="ascii"),
    "sbatch is not executable": sbatch(SBATCH.encode(), 0o644),
    "sbatch is a folder": at(instead(Path.mkdir), "../bin/sbatch"),
    "sbatch is for another machine": sbatch(b"\x7fELF\x02\x01\x01"),
    "sbatch has no interpreter": sbatch(b"#!/no/such/shell\n"),
    "sbatch says what is not UTF-8": sbatch(b"#!/bin/bash\nprintf 'n\\xff\\n' | tee /dev/stderr\necho 4711\n"),
    "sbatch is killed": sbatch(b"#!/bin/bash\nkill -KILL $$\n"),
    "a template divides by zero": template(b"{{ 1 / 0 }}\n"),
    "a template includes itself": template(b"{% include 'mine.j2' %}\n"),
    "a template is not UTF-8": template(b"#!/bin/bash\n# \xff\n"),
    "a template calls what is not callable": template(b"{{ run_dir() }}\n"),
    "a template turns text round": template(b"#!/bin/bash\n{% filter reverse %}{{ run_dir }} 12\n{% endfilter %}\n"),
}  # fmt: skip


def sample(situation: str) -> Collection[str]:
    """A third of the commands, others in the next situation; with SITUATIONS=all in the environment, all of them."""
    first = [*SITUATIONS].index(situation)
    if first == 0 or os.environ.get("SITUATIONS") == "all":
        return COMMANDS
    return [*COMMANDS][first % 3 :: 3]


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS)
def test_no_situation_gives_a_traceback(tmp_path: Path, situation: str, servers: SimpleQueue[Server]) -> None:
    def outcome(command: str) -> str:
        world = World(tmp_path / command)
        SITUATIONS[situation](world)
        server = servers.get()
        status = server.do(world.task(*COMMANDS[command]))
        servers.put(server)
        err = world.root / "err"
        said = err.read_text(errors="replace") if err.exists() else ""
        if (
            status == NestedSandboxError.exit_status or "allows no sandbox" in said
        ):  # as for root without capabilities
            return ""
        expected = status == 0 if situation == "nothing is wrong" else status in {0, 2, 3, 4, 5, 141}
        return "" if expected and "Traceback" not in said else f"{command}: {status} {said}"

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        commands = next(
            (names for start, names in OF.items() if situation.startswith(start)), sample(situation)
        )
        wrong = [text for text in threads.map(outcome, commands) if text]
    assert not wrong, "\n".join(wrong)


def shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A line of bash in which sbatchgen is a command, with processes like those of a user."""
    call = f'sbatchgen() {{ {shlex.quote(sys.executable)} -m sbatchgen "$@"; }}\n{line}'
    return subprocess.run(
        ["bash", "-c", call], cwd=folder, env=os.environ | environment, capture_output=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        (
            "sbatchgen render ddp --profile local >/dev/full",
            3,
            "error: stdout: No space left on device\n  fix: make room there\n",
        ),
        (
            "sbatchgen --help >/dev/full",
            3,
            "error: stdout: No space left on device\n  fix: make room there\n",
        ),
        ("sbatchgen render ddp --profile local >&-", 3, "error: stdout: Bad file descriptor\n"),
        ("sbatchgen lint --rules >&-", 3, "error: stdout: Bad file descriptor\n"),
        ("sbatchgen render ddp --profile local 2>&- <&-", 0, ""),
        ("mkfifo p; sbatchgen render ddp --profile local >p & : <p; wait $!", 141, ""),
        ("mkfifo p; sbatchgen --help >p & : <p; wait $!", 141, ""),
        ("mkfifo p; sbatchgen lint --rules >p & : <p; wait $!", 141, ""),
        (
            "mkdir gone; cd gone; rmdir ../gone; sbatchgen render ddp --profile local",
            3,
            (
                "error: the current folder can't be used: No such file or directory\n  fix: cd to another folder, "
                "or to this one again\n"
            ),
        ),
        (
            "mkfifo job.slurm; sbatchgen submit job.slurm --yes",
            2,
            (
                "error: job.slurm is a pipe or a device, not a job\n"
                "  fix: write its text to a file, and name that file\n"
            ),
        ),
    ],
)
def test_what_a_shell_may_do_to_a_command(folder: Path, line: str, status: int, said: str) -> None:
    done = shell(line, folder)
    assert (done.returncode, done.stderr.decode()) == (status, said)


def test_an_interrupt_ends_with_130_also_during_the_imports(folder: Path) -> None:
    for library, arguments in (("click", ()), ("jinja2", ("render", "ddp")), ("rich", ("lint", "--help"))):
        module = folder / library / library / "__init__.py"
        module.parent.mkdir(parents=True)
        module.write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n")
        done = shell(
            "sbatchgen " + " ".join(arguments), folder, PYTHONPATH=f"{module.parents[1]}:{REPOSITORY}"
        )
        expected = 0 if library == "rich" else 130  # which that command does not load
        assert (done.returncode, done.stderr.strip()) == (expected, b""), library


@pytest.mark.proof
@pytest.mark.slow
def test_a_script_is_the_same_bytes_whatever_the_terminal_speaks(folder: Path) -> None:
    words = "--profile msu --comment caf\N{LATIN SMALL LETTER E WITH ACUTE} --account \N{GREEK SMALL LETTER ALPHA}"
    expected = shell(f"sbatchgen render ddp {words}", folder).stdout
    assert "caf\N{LATIN SMALL LETTER E WITH ACUTE}".encode() in expected
    for encoding in ("latin-1", "ascii", "utf-16"):
        done = shell(f"sbatchgen render ddp {words}", folder, PYTHONIOENCODING=encoding)
        assert (done.returncode, done.stdout) == (0, expected)
        shell(f"sbatchgen render ddp {words} --write job.slurm", folder, PYTHONIOENCODING=encoding)
        assert (folder / "job.slurm").read_bytes() == expected
        shown = shell(f"sbatchgen review ddp {words}", folder, PYTHONIOENCODING=encoding)
        assert (shown.returncode, b"Traceback" in shown.stderr) == (0, False)


@pytest.mark.parametrize("columns", ["0", "-5", "99999999999", "x", "\N{SUPERSCRIPT TWO}"])
def test_a_terminal_without_a_width_has_80_columns(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    widths: list[int] = []
    master, slave = pty.openpty()
    with os.fdopen(master), os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "__stdout__", terminal)
        monkeypatch.setattr(output, "is_screen", lambda _: True)
        monkeypatch.setattr("rich.console.Console.print", lambda console, _: widths.append(console.width))
        output.show_markdown("# A rule")
    assert widths == [80]


@pytest.mark.parametrize(
    "flags",
    [
        *((flag, value + "9" * 40) for flag, value in NUMBERS),
        ("--gpus-per-task", "0"),
        ("--gpus-per-task", "0", "--launcher", "srun"),
    ],
    ids=" ".join,
)
def test_no_number_is_a_bug(command: Command, flags: tuple[str, ...]) -> None:
    for name in ("render", "review", "explain"):
        assert command(name, "ddp", "--profile", "msu", *flags).status in {0, 2, 3, 4}, name


class Dropping(http.server.BaseHTTPRequestHandler):
    """A mirror that ends in the middle of each file, in one way or another."""

    how = ""

    def do_GET(self) -> None:
        self.send_response(200)
        if self.how == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"10\r\nhalf" if self.how == "chunked" else b"half")
        self.wfile.flush()
        if self.how == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif self.how == "silent":
            time.sleep(3)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def server(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        running.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["", "chunked", "reset", "silent"])
def test_a_download_that_breaks_off_goes_on_at_the_second_mirror(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    contents = {name: name.encode() for name in dataset.FILES}

    class Good(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = contents[self.path.strip("/")]
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    for name, data in contents.items():
        monkeypatch.setitem(dataset.FILES, name, hashlib.md5(data, usedforsecurity=False).hexdigest())
    monkeypatch.setattr(dataset, "TIMEOUT_S", 1.5 if how == "silent" else 60)
    monkeypatch.setattr(Dropping, "how", how)
    with server(Dropping) as first, server(Good) as second:
        monkeypatch.setattr(dataset, "MIRRORS", (first, second))
        result = command("data", "mnist", "--to", "data")
        monkeypatch.setattr(dataset, "MIRRORS", (first,))
        alone = command("data", "mnist", "--to", "other")
    assert result.status == 0, result.err
    assert {path.name: path.read_bytes() for path in (folder / "data").iterdir()} == contents
    assert (alone.status, "can't download train-images" in alone.err) == (3, True)


def events(folder: Path, *lines: str) -> Path:
    folder.mkdir()
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


GOOD = '{"event": "train", "step": 2, "loss": 0.5}'


@pytest.mark.parametrize(
    "line",
    [
        "[" * 50_000,
        '{"event":' * 5_000,
        GOOD.replace("0.5", "1" * 4000),
        GOOD.replace("2", "1" * 4000),
        GOOD.replace("2", "-1"),
        GOOD.replace("0.5", "true"),
        GOOD.replace("0.5", "1e308"),
        GOOD.replace('"train"', "[1]"),
        GOOD.replace('"train"', "{}"),
        GOOD.replace("}", f', "more": "{"x" * 100_000}"' + "}"),
    ],
    ids=range(10),
)
def test_events_that_are_none_are_passed_over(tmp_path: Path, line: str) -> None:
    history = read_history(events(tmp_path / "run", line, GOOD))
    assert history.curves["train loss"][-1] == (2, 0.5)
    assert len(history.curves["train loss"]) <= 2


def test_a_file_of_events_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "MAX_EVENTS", 2)
    assert read_history(events(tmp_path / "two", GOOD, GOOD)).last_step == 2
    with pytest.raises(DocumentError, match="lines of events"):
        read_history(events(tmp_path / "three", GOOD, GOOD, GOOD))
    monkeypatch.setattr(events_module, "MAX_BYTES", len(GOOD))
    with pytest.raises(DocumentError, match="lines of events"):
        read_history(events(tmp_path / "long", GOOD, GOOD))


@pytest.mark.slow
def test_starts_and_points_take_no_time_squared(tmp_path: Path) -> None:
    """A file of a few MB that once took hours."""
    count = 100_000
    points = [GOOD.replace("2", str(step)) for step in range(count)]
    starts = [json.dumps({"event": "start", "step": step}) for step in range(count, 1, -1)]
    begun = time.process_time()
    history = read_history(events(tmp_path / "run", *points, *starts))
    assert time.process_time() - begun < 20
    assert (history.last_step, len(history.curves["train loss"])) == (2, 3)


@pytest.mark.slow
def test_names_and_settings_of_others_are_drawn_as_text(command: Command, folder: Path) -> None:
    run = events(folder / "a\x1b\n$^{", GOOD)
    (run / "config.json").write_text(
        json.dumps({"model": "\ud800\x00$_{" + "x" * 9000, "lr": [[]], "seed": {}})
    )
    result = command("plot", str(run), "--output", "one.svg")
    assert (result.status, result.out) == (0, "one.svg\n")


if __name__ == "__main__":
    serve()
