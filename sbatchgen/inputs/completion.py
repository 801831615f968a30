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
    """Names of profiles with their descriptions; files for a path."""
    from sbatchgen.inputs.document import read
    from sbatchgen.inputs.profile import Profile
    from sbatchgen.inputs.search import is_file_name

    if is_file_name(incomplete):
        return [CompletionItem(incomplete, type="file")]
    found = []
    for name, file in _places().profiles():
        if offered([name], incomplete):
            try:
                found.append(CompletionItem(name, help=read(file, Profile).value.description))
            except SbatchgenError:
                continue
    return found


def partitions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """The partitions of the profile that the command line or the environment names."""
    from sbatchgen.inputs.document import read
    from sbatchgen.inputs.profile import Profile

    name = ctx.params.get("profile") or os.environ.get("SBATCHGEN_PROFILE") or "local"
    try:
        known = read(_places().profile(name), Profile).value.partitions
    except SbatchgenError:
        return []
    return offered(known, incomplete)


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """The modes, and job files."""
    from sbatchgen.modes import MODES

    found = [CompletionItem(mode) for mode in MODES if mode.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Run folders: those that hold events, here or one folder below, if they are found soon."""
    above, slash, start = incomplete.rpartition("/")
    end = time.monotonic() + SEARCH_S
    pairs = ((one, *_folders(f"{one}/", "", end)) for one in _folders(above + slash, start, end))
    found = offered((one for some in pairs for one in some), incomplete)
    return sorted(one for one in found if os.path.isfile(f"{one}/events.jsonl"))  # noqa: PTH113


def offered(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that start so, without those that a shell would not take as one plain word."""
    return [one for one in names if one.startswith(incomplete) and is_plain(one) and one[0] != "-"]


def _folders(above: str, start: str, end: float) -> Iterator[str]:
    """The folders whose names start so, as far as they are found in time."""
    with contextlib.suppress(OSError), os.scandir(above or ".") as entries:
        for one in entries:
            if time.monotonic() > end:
                return
            if one.name.startswith(start) and one.is_dir():
                yield above + one.name


def _places() -> Places:
    from sbatchgen.inputs.search import Places

    return Places(Path.cwd(), os.environ)
