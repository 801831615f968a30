"""A lab: a project folder of a group, and two of its members with a private home each, known to Linux by numbers.

Slurm's commands are stand-ins: sbatch keeps the script and puts the job into a queue, scancel takes notes, and srun runs
the line in TRAINS in place of the trainer.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import mounts
from tests.cluster.fixtures import VISIBLE
from tests.cluster.site import HANGS_S
from tests.conftest import REPOSITORY
from tests.scripts import PUBLIC

GROUP, UMASK = 30000, 0o002
PROGRAMS = ("unshare", "setpriv", "namei")
STAND_INS = {
    "sbatch": """
sleep "${TAKES:-0}"
for word; do [[ -f $word ]] && script=$word; done
exec 9>>"$QUEUE" && flock 9
job=$((1000 + $(wc -l <"$QUEUE"))) && cp -- "$script" "$QUEUE-$job" && echo "$job PENDING $script" >&9 && echo "$job"
""",
    "squeue": """
for word; do
    case $word in
        --jobs=*) jobs=,${word#*=}, ;;
        --states=PENDING) state=PENDING ;;
        --format=*) format=${word#*=} ;;
        --Format=*) fields=${word#*=} ;;
    esac
done
while read -r job is command; do
    [[ ! -v jobs || $jobs == *",$job,"* ]] && [[ ! -v state || $is == "$state" ]] || continue
    [[ -v format ]] && line=${format//%A/$job} && echo "${line//%o/$command}" && continue
    while read -r -d , field; do
        between=${field#*:}
        case $field in
            JobArrayID:*) value=$job ;; State:*) value=$is ;; Command:*) value=$command ;; *) value=N/A ;;
        esac
        printf '%s' "$value$between"
    done <<<"$fields," && echo
done <"$QUEUE"
""",
    "scancel": """for word; do [[ $word == -* ]] || echo "$word" >>"$QUEUE-cancelled"; done""",
    "sacct": "echo 'Slurm accounting storage is disabled' >&2; exit 1",
    "scontrol": "echo n1",
    "srun": 'exec bash -c "$TRAINS"',
}
OF_SLURM = ("CPUS_PER_TASK=1", "NTASKS=1", "NNODES=1", "JOB_NODELIST=n1", "JOB_NUM_NODES=1")


def why_not() -> str | None:
    """What this machine lacks for two users, or None."""
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    return "needs root" if os.geteuid() else f"needs {', '.join(missing)}" if missing else None


def put(path: Path, text: str = "", *, owner: int, mode: int = 0o644) -> Path:
    """Write a file of a user."""
    path.write_text(text)
    os.chown(path, owner, owner)
    path.chmod(mode)
    return path


@dataclass(frozen=True)
class User:
    """A member of the lab, whose umask leaves files writable to the group."""

    uid: int
    home: Path
    lab: Path

    @property
    def project(self) -> Path:
        """Where all members work."""
        return self.lab / "project"

    @property
    def queue(self) -> Path:
        """The lines of the stand-in for Slurm's queue; its other files have names that start like this one's."""
        return self.home / "queue"

    @contextlib.contextmanager
    def start(
        self, *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, setup: str = ""
    ) -> Iterator[subprocess.Popen[str]]:
        """A command in the project, which ends with the block; root runs the lines `setup` before."""
        identity = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", f"--groups={GROUP}"]
        sight = "\n".join(mounts.reveal(VISIBLE, stage=self.lab / "stage"))
        paths = [self.lab / "bin", Path(sys.prefix, "bin"), "/usr/bin", "/bin"]
        environment = {
            "PATH": ":".join(map(str, paths)),
            "HOME": str(self.home),
            "USER": str(self.uid),
            "QUEUE": str(self.queue),
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
        }
        enter = [
            "unshare",
            "--mount",
            "sh",
            "-ec",
            f'{sight}\n{setup}\ncd "$0"\nexec "$@"',
            cwd or self.project,
        ]
        with subprocess.Popen(
            [*map(str, enter), *identity, *map(str, words)],
            env={**environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            umask=UMASK,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(
        self, *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, setup: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the project to its end."""
        with self.start(*words, cwd=cwd, env=env, setup=setup) as process:
            out, err = process.communicate(timeout=HANGS_S)
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess([*map(str, words)], process.returncode, out, err)

    def bash(self, line: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run("bash", "-c", line, env=env)

    def sbatchgen(self, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run("sbatchgen", *words, env=env)

    def submit(
        self, job: str, *words: object, check: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Submit or sweep a job of the project with the profile of this user."""
        verb = "sweep" if "--param" in words else "submit"
        done = self.sbatchgen(verb, job, "--yes", "--profile", self.home / "public.yaml", *words, **env)
        assert not check or done.returncode == 0, done.stderr
        return done

    def queued(self, script: str, key: str) -> int:
        """Put a job into the queue; its id."""
        job = 1000 + len(self.queue.read_text().splitlines())
        put(self.home / f"queue-{job}", script, owner=self.uid)
        with self.queue.open("a") as file:
            file.write(f"{job} PENDING /tmp/sbatchgen-{key}-x/job.slurm\n")
        return job

    def job(self, number: int, trains: str = "true", **env: str) -> subprocess.CompletedProcess[str]:
        """Run the script of a job as Slurm would."""
        self.bash(f'sed -i "s/^{number} PENDING/{number} RUNNING/" "$QUEUE"')
        of_slurm = dict(f"SLURM_{word}".split("=") for word in (*OF_SLURM, f"JOB_ID={number}"))
        more = {"SLURM_SUBMIT_DIR": str(self.project), "SLURM_ARRAY_TASK_ID": "0", "TRAINS": trains}
        return self.run("timeout", "60", "bash", f"{self.queue}-{number}", env={**of_slurm, **more, **env})

    def jobs(self) -> list[str]:
        """The scripts that sbatch got."""
        return [path.read_text() for path in sorted(self.home.glob("queue-1*"))]

    def cancelled(self) -> list[str]:
        """What scancel was asked for."""
        notes = self.home / "queue-cancelled"
        return notes.read_text().split() if notes.exists() else []

    def ends(self) -> None:
        """All jobs leave the queue."""
        lines = self.queue.read_text().splitlines()
        self.queue.write_text("".join(f"{line.split()[0]} COMPLETED /gone\n" for line in lines))


def make(lab: Path) -> tuple[User, User]:
    """Make the lab in a folder; its members."""
    lab.chmod(0o755)
    for name, mode in {"bin": 0o755, "stage": 0o755, "project": 0o2775, "scratch": 0o1777}.items():
        (lab / name).mkdir()
        os.chown(lab / name, 0, GROUP if name == "project" else 0)
        (lab / name).chmod(mode)
    for name, lines in STAND_INS.items():
        put(lab / "bin" / name, f"#!/bin/bash\n{lines}\n", owner=0, mode=0o755)
    members = [User(uid, lab / f"home-{uid}", lab) for uid in (20011, 20012)]
    for member in members:
        member.home.mkdir()
        put(member.home / "public.yaml", PUBLIC, owner=member.uid)
        put(member.home / "precious", "mine", owner=member.uid)
        put(member.queue, owner=member.uid)
        os.chown(member.home, member.uid, member.uid)
        member.home.chmod(0o700)
    return members[0], members[1]


def wait(condition: Callable[[], object]) -> None:
    """Wait until something is true."""
    late = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < late
        time.sleep(0.02)
