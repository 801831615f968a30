"""Shell completion of jobs, profiles, partitions and run folders; a broken file completes to nothing.

bash puts what is offered on the command line as it is: others may choose the names of shared folders.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from sbatchgen.errors import SbatchgenError
from sbatchgen.quoting import is_plain

if TYPE_CHECKING:
    from sbatchgen.inputs.search import Places

SEARCH_S = 0.5  # a shell waits


def profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Complete names of profiles with their descriptions; files for a path."""
    from sbatchgen.inputs.document import read_document
    from sbatchgen.inputs.profile import Profile
    from sbatchgen.inputs.search import is_file_name

    if is_file_name(incomplete):
        return [CompletionItem(incomplete, type="file")]
    items = []
    for name, file in _places().profiles():
        if offered([name], incomplete):
            with contextlib.suppress(SbatchgenError):
                items.append(CompletionItem(name, help=read_document(file, Profile).value.description))
    return items


def partitions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Complete partitions of the profile that the command line or the environment names."""
    from sbatchgen.inputs.document import read_document
    from sbatchgen.inputs.profile import Profile

    name = ctx.params.get("profile") or os.environ.get("SBATCHGEN_PROFILE") or "local"
    try:
        known = read_document(_places().profile(name), Profile).value.partitions
    except SbatchgenError:
        return []
    return offered(known, incomplete)


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Complete modes, and job files."""
    from sbatchgen.modes import MODES

    items = [CompletionItem(mode) for mode in MODES if mode.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="file")]


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Complete run folders: those that hold events, here or one folder below, if they are found soon."""
    above, slash, start = incomplete.rpartition("/")
    end = time.monotonic() + SEARCH_S
    outer = _folders(above + slash, start, end)
    folders = (folder for parent in outer for folder in (parent, *_folders(f"{parent}/", "", end)))
    names = offered(folders, incomplete)
    return sorted(name for name in names if os.path.isfile(f"{name}/events.jsonl"))  # noqa: PTH113


def offered(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that start so, without those that a shell would not take as one plain word."""
    return [name for name in names if name.startswith(incomplete) and is_plain(name) and name[0] != "-"]


def _folders(above: str, start: str, end: float) -> Iterator[str]:
    """The folders whose names start so, if they are found in time."""
    with contextlib.suppress(OSError), os.scandir(above or ".") as entries:
        for entry in entries:
            if time.monotonic() > end:
                return
            if entry.name.startswith(start) and entry.is_dir():
                yield above + entry.name


def _places() -> Places:
    from sbatchgen.inputs.search import Places

    return Places(Path.cwd(), os.environ)
