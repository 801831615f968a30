"""One job a run folder: a second one is turned away while the first lives, and only then.

The lock is a file with the name of its holder, whose time of change the holder moves on. It must never keep
out the run it belongs to: what a killed job left is taken over, at once where it is known to be dead (its
process is gone from this machine, or Slurm has started the same job anew), else once it has stopped moving.
All times compared are the file system's own: clocks of two machines need not agree.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from training.errors import FolderError
from training.files import SMALL, create, opened, read_small

LOCK = "lock.json"
BEAT_S = 10.0
STALE_S = 60.0  # without a beat: six were missed, and NFS may show the last ones late
WATCH_EVERY_S = 1.0

Holder = dict[str, Any]


class RunLock:
    """The lock of a run folder, for rank 0."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / LOCK
        self._me = _myself(os.environ)
        self._ended = threading.Event()
        self._beating: threading.Thread | None = None

    def take(self, tell: Callable[[str], None]) -> None:
        """Take it, from a dead holder too; `tell` is given a line if that takes long or was needed.

        Raises:
            FolderError: If another job has it.
            OSError: If the folder cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while not self._made():
            holder, seen = self._read()
            if seen is None:
                continue  # released meanwhile
            why = self._why_dead(holder, seen, tell)
            if not why:
                raise FolderError(
                    f"another job is running in this folder: {_name(holder)}",
                    at=str(self.path),
                    fix="another --run-dir, or wait for it, or stop it by touching RUN_DIR/stop",
                )
            if self._cleared(holder):
                tell(f"Taking over the run folder from {_name(holder)}: {why}")
        self._beating = threading.Thread(target=self._beat, name="run lock", daemon=True)
        self._beating.start()

    def check(self) -> None:
        """See that the lock is still this process's, before anything is written that another may rely on.

        Raises:
            FolderError: If another job took it over, as after a long suspension of this one.
        """
        if self._beating is None:
            return  # not taken: nothing is recorded here
        with contextlib.suppress(OSError):  # a file system out of reach says nothing of who holds the lock
            holder, seen = self._read()
            if seen is not None and holder.get("key") != self._me["key"]:
                raise FolderError(f"this run was taken over by {_name(holder)}", at=str(self.path))

    def release(self) -> None:
        """Give it back, if it is held."""
        self._ended.set()
        if self._beating is not None:
            self._beating.join()
            self._beating = None
            with contextlib.suppress(OSError):
                if self._read()[0].get("key") == self._me["key"]:
                    self.path.unlink()

    def _made(self) -> bool:
        try:
            descriptor = create(self.path)
        except FileExistsError:
            return False
        try:
            os.write(descriptor, json.dumps(self._me).encode())
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return True

    def _read(self) -> tuple[Holder, float | None]:
        """Who holds it, and the time of the last beat; None if nobody does.

        It is opened each time: NFS looks at the server only then.
        """
        try:
            with os.fdopen(opened(self.path, os.O_RDONLY), "rb") as file:
                beat = os.fstat(file.fileno()).st_mtime
                return _parsed(file.read(SMALL)), beat
        except FileNotFoundError:
            return {}, None

    def _why_dead(self, holder: Holder, seen: float, tell: Callable[[str], None]) -> str:
        """What shows that the holder is gone, or nothing if it lives; this may take STALE_S to find out."""
        me = self._me
        if holder.get("job") and holder.get("job") == me["job"] and holder.get("restart") != me["restart"]:
            return "it is an earlier life of this job"
        if holder.get("machine") == me["machine"]:
            born = _born(holder.get("pid"))
            return "" if born is not None and born == holder.get("born") else "its process is gone"
        beat: float | None = seen
        if self._age(seen) <= STALE_S:
            tell(f"Waiting up to {STALE_S:.0f} s to see whether {_name(holder)} still runs in this folder")
        while beat == seen:
            if self._age(seen) > STALE_S:
                return f"no sign of life for {STALE_S:.0f} s"
            time.sleep(WATCH_EVERY_S)
            _, beat = self._read()
        return "" if beat is not None else "it has ended"

    def _age(self, beat: float) -> float:
        """Seconds since a beat, by the clock that stamps the files of this folder."""
        probe = self.path.with_name(f"{LOCK}.tmp-{self._me['key']}")
        descriptor = create(probe)
        now = os.fstat(descriptor).st_mtime
        os.close(descriptor)
        probe.unlink()
        return now - beat

    def _cleared(self, holder: Holder) -> bool:
        """Whether the dead holder's file was moved away: of two that want to, one alone gets it."""
        aside = self.path.with_name(f"{LOCK}.tmp-{self._me['key']}")
        try:
            self.path.rename(aside)
        except FileNotFoundError:
            return False
        found = _parsed(read_small(aside))
        if found.get("key") != holder.get("key"):  # a third one was quicker, and lives
            with contextlib.suppress(OSError):
                os.link(aside, self.path)
        aside.unlink(missing_ok=True)
        return bool(found.get("key") == holder.get("key"))

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            with contextlib.suppress(OSError):  # the next one may succeed
                if self._read()[0].get("key") == self._me["key"]:
                    os.utime(self.path)


def holder(run_dir: Path) -> str:
    """Who has the folder and lives, as far as can be seen from here without a wait; "" if nobody does."""
    try:
        with os.fdopen(opened(run_dir / LOCK, os.O_RDONLY), "rb") as file:
            age = time.time() - os.fstat(file.fileno()).st_mtime
            found = _parsed(file.read(SMALL))
    except OSError:
        return ""
    if found.get("machine") == _machine():
        born = _born(found.get("pid"))
        return _name(found) if born is not None and born == found.get("born") else ""
    return _name(found) if age <= STALE_S else ""


def _myself(environ: Mapping[str, str]) -> Holder:
    return {
        "host": environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "pid": os.getpid(),
        "job": environ.get("SLURM_JOB_ID", ""),
        "restart": environ.get("SLURM_RESTART_COUNT", "0"),
        "machine": _machine(),
        "born": _born(os.getpid()),
        "key": secrets.token_hex(8),
    }


def _parsed(text: bytes) -> Holder:
    """The holder; nothing where the file was just made, or its maker died before it wrote its name."""
    try:
        holder = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _machine() -> str:
    """Where a process number means the same: this start of this kernel, this container's processes.

    Where that cannot be told it equals nobody's, so that only the beat counts.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return secrets.token_hex(8)


def _born(pid: Any) -> int | None:
    """When a process of this machine started, in clock ticks since the boot: numbers are used again.

    None if there is no such process, or it has ended and only waits to be collected.
    """
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _name(holder: Holder) -> str:
    """The holder as people look for it."""
    if not holder:
        return "a job that has not said its name"
    job = f", job {holder['job']}" if holder.get("job") else ""
    return f"process {holder.get('pid')} on {holder.get('host')}{job}"
