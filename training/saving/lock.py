"""The lock of a run folder: a file with the name of the only job that may use the folder.

docs/design/training.md explains when a holder counts as dead.
"""

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
from training.files import LOCK, SMALL_BYTES, open_regular, parse, reachable, read_small
from training.processes.proc import read

BEAT_S = 10.0  # seconds between two updates of the lock by its holder
STALE_S = 60.0  # a holder without updates for so long is dead; NFS may show updates late
WATCH_EVERY_S = 1.0  # between two looks for an update

Holder = dict[str, Any]  # the facts about a holder in the lock's file, as from `_own_facts`


class RunLock:
    """The lock of a run folder, which rank 0 takes."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / LOCK
        self._own = _own_facts(os.environ)
        self._temporary = run_dir / f"{LOCK}.tmp-{self._own['key']}"
        self._ended = threading.Event()
        self._updater: threading.Thread | None = None

    def take(self, tell: Callable[[str], None]) -> None:
        """Take the lock, also from a dead holder; raise FolderError if another job holds the lock.

        `tell` gets a line about a dead holder.
        """
        while not self._create():
            holder, updated = _read(self.path)
            if updated is None:
                continue  # the holder released the lock meanwhile
            why = self._why_dead(holder, updated, tell)
            if not why:
                fix = "another --run-dir, or wait for it, or stop it by touching RUN_DIR/stop"
                what = f"another job is running in this folder: {_name(holder)}"
                raise FolderError(what, at=str(self.path), fix=fix)
            if self._remove(holder):
                tell(f"Taking over the run folder from {_name(holder)}: {why}")
        self._updater = threading.Thread(target=self._keep_updating, name="run lock", daemon=True)
        self._updater.start()

    def check(self) -> None:
        """Raise FolderError before a write if another job took over while this job was suspended."""
        if self._updater is None:
            return  # the lock was never taken, so nothing is recorded
        with contextlib.suppress(OSError):  # an unreachable file system does not show the holder
            holder, updated = _read(reachable(self.path))
            if updated is not None and holder.get("key") != self._own["key"]:
                raise FolderError(f"this run was taken over by {_name(holder)}", at=str(self.path))

    def release(self) -> None:
        """Remove the lock if this process holds it."""
        self._ended.set()
        if self._updater is not None:
            self._updater.join()
            self._updater = None
            with contextlib.suppress(OSError):
                if _read(reachable(self.path))[0].get("key") == self._own["key"]:
                    reachable(self.path).unlink()

    def _create(self) -> bool:
        """Create the lock's file; return False if it exists."""
        try:
            with self.path.open("x") as file:
                json.dump(self._own, file)
        except FileExistsError:
            return False
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        return True

    def _why_dead(self, holder: Holder, updated: float, tell: Callable[[str], None]) -> str:
        """Return why the holder must be dead, or "" if it runs; wait up to STALE_S for an update."""
        own = self._own
        if holder.get("job") and holder.get("job") == own["job"] and holder.get("restart") != own["restart"]:
            return "it is an earlier start of this job"
        if holder.get("machine") == own["machine"]:
            return "" if _is_alive(holder) else "its process is gone"
        if self._age(updated) <= STALE_S:
            tell(f"Waiting up to {STALE_S:.0f} s to see whether {_name(holder)} still runs in this folder")
        while self._age(updated) <= STALE_S:
            time.sleep(WATCH_EVERY_S)
            _, latest = _read(self.path)
            if latest != updated:
                return "" if latest is not None else "it has ended"
        return f"no sign of life for {STALE_S:.0f} s"

    def _age(self, updated: float) -> float:
        """Return the seconds since an update of the lock, by the clock of the file system."""
        with self._temporary.open("x") as file:  # a new file has the time of the file system
            now = os.fstat(file.fileno()).st_mtime
        self._temporary.unlink()
        return now - updated

    def _remove(self, holder: Holder) -> bool:
        """Remove a dead holder's file; return whether this process did, because only one process succeeds."""
        try:
            self.path.rename(self._temporary)
        except FileNotFoundError:
            return False
        was_holders = parse(read_small(self._temporary)).get("key") == holder.get("key")
        if not was_holders:  # another process was faster, and holds the lock now: put its file back
            with contextlib.suppress(OSError):
                os.link(self._temporary, self.path)
        self._temporary.unlink(missing_ok=True)
        return was_holders

    def _keep_updating(self) -> None:
        """Update the time of the lock's file every BEAT_S, until `release`."""
        while not self._ended.wait(BEAT_S):
            with contextlib.suppress(OSError):  # the next update may succeed
                if _read(reachable(self.path))[0].get("key") == self._own["key"]:
                    os.utime(reachable(self.path))


def current_holder(run_dir: Path) -> str:
    """Return the words for the holder of a run folder; "" if the folder is free.

    The function does not wait for an update of the lock.
    """
    with contextlib.suppress(OSError):
        holder, updated = _read(run_dir / LOCK)
        here = holder.get("machine") == _machine()
        if updated is not None and (_is_alive(holder) if here else time.time() - updated <= STALE_S):
            return _name(holder)
    return ""


def _read(path: Path) -> tuple[Holder, float | None]:
    """Return the holder and the time of its last update; the time is None without a lock.

    The holder is {} if its facts are not written yet.
    """
    try:
        with open_regular(path) as file:  # opening the file makes NFS ask the server
            updated = os.fstat(file.fileno()).st_mtime
            return parse(file.read(SMALL_BYTES)), updated
    except FileNotFoundError:
        return {}, None


def _own_facts(environ: Mapping[str, str]) -> Holder:
    """Return the facts about this process as a holder."""
    return {
        "host": environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "pid": os.getpid(),
        "job": environ.get("SLURM_JOB_ID", ""),
        "restart": environ.get("SLURM_RESTART_COUNT", "0"),
        "machine": _machine(),
        "born": _start_ticks(os.getpid()),
        "key": secrets.token_hex(8),
    }


def _machine() -> str:
    """Return an id of this boot and this process namespace, in which process numbers are unique."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # a random id: then only updates of the lock show that the holder runs
        return secrets.token_hex(8)


def _is_alive(holder: Holder) -> bool:
    """Return whether a holder on this machine runs.

    Process numbers are reused, so the start times must also match.
    """
    start = _start_ticks(holder.get("pid"))
    return start is not None and start == holder.get("born")


def _start_ticks(pid: Any) -> int | None:
    """Return the start of a process on this machine, in clock ticks since boot; None if it has ended."""
    fields = read(pid, "stat").rpartition(")")[2].split() if isinstance(pid, int) else []
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def _name(holder: Holder) -> str:
    """Return the words for a holder in messages."""
    if not holder:
        return "an unknown job"
    job = f", job {holder['job']}" if holder.get("job") else ""
    return f"process {holder.get('pid')} on {holder.get('host')}{job}"
