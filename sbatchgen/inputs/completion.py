"""Shell completion of jobs, profiles, partitions and run folders; a broken file completes to nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from sbatchgen.errors import SbatchgenError

if TYPE_CHECKING:
    from sbatchgen.inputs.search import Places


def profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Names of profiles with their descriptions; files for a path."""
    from sbatchgen.inputs.document import read
    from sbatchgen.inputs.profile import Profile
    from sbatchgen.inputs.search import is_file_name

    if is_file_name(incomplete):
        return [CompletionItem(incomplete, type="file")]
    found = []
    for name, file in _places().profiles():
        if name.startswith(incomplete):
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
    return [one for one in known if one.startswith(incomplete)]


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """The modes, and job files."""
    from sbatchgen.inputs.job import MODES

    found = [CompletionItem(mode) for mode in MODES if mode.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Run folders: those that hold events, here or one folder below."""
    folders = (one for pattern in (f"{incomplete}*", f"{incomplete}*/*") for one in Path().glob(pattern))
    return sorted({str(one) for one in folders if (one / "events.jsonl").is_file()})


def _places() -> Places:
    from sbatchgen.inputs.search import Places

    return Places(Path.cwd(), os.environ)
