"""Prepares container images with Apptainer or Enroot, before a job holds GPUs."""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.machine import child, search_path
from sbatchgen.base.machine.temporary import lock_of, temporary_folder
from sbatchgen.base.quoting import word, words
from sbatchgen.jobs.runtimes.base import ImageTool

ENOUGH_BYTES = 1 << 30  # if a folder has fewer free bytes, most likely it was too full for the image


def prepare(tool: ImageTool, source: str, target: Path, *, force: bool, note: Callable[[str], None]) -> None:
    """Make the image `target` from `source` with the program of `tool`.

    Only a complete image gets the name `target`. `note` prints a line for the user.

    Raises:
        CommandLineError: The source is not valid.
        DocumentError: The program is missing or fails, or the target exists and `force` is not set.
    """
    uri = tool.uri(source)
    program, *verb = tool.words
    if not search_path.find(program, os.environ) and tool.older and search_path.find(tool.older, os.environ):
        program = tool.older
    rerun = ("sbatchgen", "image", tool.verb, source, "--to", str(target), *["--force"] * force)
    if not search_path.find(program, os.environ):
        fix = f"load its module, or run it where jobs run: srun --cpus-per-task=8 --mem=16G {words(rerun)}"
        raise DocumentError.of(f"there is no {program} on this machine's PATH", fix=fix)
    if os.path.lexists(target) and not force:
        raise DocumentError.of(f"{target} is there already", fix="--force replaces it")
    # A signal raises SystemExit, so that the temporary folder is removed.
    with _signal_handler(lambda number, _: sys.exit(128 + number)), _new_file_beside(target) as new:
        _run(tool, (program, *verb, str(new), uri), target, note, lock_of(new.parent), rerun=rerun)
        if not new.exists():
            raise DocumentError.of(f"{program} ended well, but made no image", at=str(target))
        with new.open("rb") as file:
            os.fsync(file.fileno())
        if os.path.lexists(target) and not force:
            raise DocumentError.of(f"another process has made {target} meanwhile: it was not replaced")
        new.replace(target)


@contextlib.contextmanager
def _new_file_beside(target: Path) -> Iterator[Path]:
    """Yield a path for a new file in a temporary folder beside `target`; remove the folder at the end."""
    cleanup = contextlib.ExitStack()
    try:
        folder = cleanup.enter_context(temporary_folder(".sbatchgen-", within=target.parent))
    except OSError as error:
        what = f"can't write into {target.parent}: {error.strerror}"
        raise DocumentError.of(what, fix="name another file: --to FILE") from error
    with cleanup:
        yield folder / target.name


def _run(
    tool: ImageTool,
    command: Sequence[str],
    target: Path,
    note: Callable[[str], None],
    lock: int,
    *,
    rerun: tuple[str, ...],
) -> None:
    """Run a command that makes an image, and pass signals on to it; raise DocumentError if it fails.

    The command inherits the descriptor `lock`, so that its temporary folder counts as used until it ends. A
    fix names `rerun`, the command of sbatchgen.
    """
    program = command[0]
    note(f"$ {words(tuple(command))}")
    process: child.Child | None = None
    signals: list[int] = []

    def pass_on_signal(number: int, _: FrameType | None) -> None:
        signals.append(number)
        # Ctrl-C in a terminal also reaches the program, but other signals reach only this process.
        if process:  # None while the program is being started
            process.kill() if len(signals) > 1 else process.terminate()

    with _signal_handler(pass_on_signal):
        process = child.begin(command, os.environ, stdout=2, keep_open=[lock])
        if signals:  # a signal came while the program started
            process.terminate()
        status = process.wait()
    if signals:
        sys.exit(128 + signals[0])
    if status == -signal.SIGKILL:
        fix = f"most likely it ran out of memory: run it where jobs run: srun --mem=16G {words(rerun)}"
        raise DocumentError.of(f"{program} was killed", at=str(target), fix=fix)
    if status:
        fix = _full_folder_fix(tool, target) or f"see {program}'s output above"
        raise DocumentError.of(f"{program} ended with status {status}", at=str(target), fix=fix)


def _full_folder_fix(tool: ImageTool, target: Path) -> str:
    """Return the fix for a full folder into which the program writes; "" if no folder is full."""
    scratch, cache = tool.scratch
    for folder, setting in (
        (str(target.parent), "--to"),
        (os.environ.get(scratch) or os.environ.get("TMPDIR") or "/tmp", scratch),  # noqa: S108 - the default of these programs
        (os.environ.get(cache) or os.environ.get("HOME", "/"), cache),
    ):
        with contextlib.suppress(OSError):
            if (free := shutil.disk_usage(folder).free) < ENOUGH_BYTES:
                room = f"{free >> 20} MiB are left in {word(folder)}"
                return f"most likely there is no room: {room}; {setting} names another folder"
    return ""


@contextlib.contextmanager
def _signal_handler(function: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the block, call `function` for each of SIGINT, SIGTERM and SIGHUP.

    A signal that this process ignores, for example SIGHUP under nohup, stays ignored.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    replaced = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    for number in replaced:
        signal.signal(number, function)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
