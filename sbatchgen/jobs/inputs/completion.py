"""Shell completion of names in profiles, folders and lists. A broken file gives no names.

bash puts a completed name on the command line without quotes, and other users choose the names in shared
folders. So only plain words are offered.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbatchgen.base.errors import SbatchgenError
from sbatchgen.base.quoting import is_plain

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from sbatchgen.jobs.inputs.profile import Partition, Profile
    from sbatchgen.jobs.inputs.search import Places

SEARCH_S = 0.5  # seconds that a search may take, because the user's shell waits for it


def profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of profiles with their descriptions; files for a path."""
    from click.shell_completion import CompletionItem

    from sbatchgen.jobs.inputs.search import is_file_name

    if is_file_name(incomplete):
        return files(ctx, param, incomplete)
    items = []
    for name, file in _places().profiles():
        if offered([name], incomplete):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text = file.read_text()  # reading the text is faster than decoding the profile
                about = re.search(r"(?m)^description: *(.*)", text)
                if re.search(r"(?m)^name:", text):
                    items.append(CompletionItem(name, help=about and about[1]))
    return items


def names_in_profile(kind: str, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Complete names of a kind in the profile, such as "accounts"; with --partition, of this partition."""
    partitions = str(ctx.params.get("partition") or "").split(",")
    with contextlib.suppress(SbatchgenError):
        return offered(known_names(_profile(ctx), kind, partitions), incomplete)
    return []


def known_names(profile: Profile, kind: str, partitions: Iterable[str] = ()) -> list[str]:
    """Return the names of a kind, such as "accounts", in a profile and in these partitions.

    Without a known partition, the names in all partitions are included.
    """
    known: Mapping[Any, Partition] = profile.partitions
    chosen = [known[name] for name in partitions if name in known] or known.values()
    names = (value for part in (profile, *chosen) for value in _KINDS[kind](part))
    return [*dict.fromkeys(str(name) for name in names if name)]


def _accounts_of(part: Any) -> Iterator[str | None]:
    yield part.options.account
    yield from getattr(part, "accounts", ())
    yield from getattr(getattr(part, "user", None), "accounts", ())


def _features_of(part: Any) -> Iterator[str | None]:
    yield part.options.constraint
    for kind in (part, *getattr(part, "shapes", ())):
        yield from getattr(kind, "features", None) or ()


_KINDS: Mapping[str, Callable[[Any], Iterable[str | None]]] = {
    "accounts": _accounts_of,
    "qos": lambda part: (part.options.qos, *part.qos),
    "features": _features_of,
    "partitions": lambda part: getattr(part, "partitions", ()),
    "reservations": lambda part: getattr(part, "reservations", ()),
    "licenses": lambda part: getattr(part, "licenses", None) or (),
}


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Complete modes, or job files if no mode begins with the typed text."""
    from sbatchgen.jobs.modes import MODES

    return offered(MODES, incomplete) or files(ctx, param, incomplete)


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Complete names of files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Complete run folders, which have an events.jsonl, in this folder and one level below it.

    The search ends after SEARCH_S.
    """
    above, slash, start = incomplete.rpartition("/")
    end = time.monotonic() + SEARCH_S
    outer = _folders(above + slash, start, end)
    folders = (folder for parent in outer for folder in (parent, *_folders(f"{parent}/", "", end)))
    names = offered(folders, incomplete)
    return sorted(name for name in names if os.path.isfile(f"{name}/events.jsonl"))  # noqa: PTH113


def offered(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that begin with `incomplete` and are plain words of a shell."""
    return [name for name in names if name.startswith(incomplete) and is_plain(name) and name[0] != "-"]


def _folders(above: str, start: str, end: float) -> Iterator[str]:
    """Yield the folders in `above` whose names begin with `start`, until the time `end`."""
    with contextlib.suppress(OSError), os.scandir(above or ".") as entries:
        for entry in entries:
            if time.monotonic() > end:
                return
            if entry.name.startswith(start) and entry.is_dir():
                yield above + entry.name


def _profile(ctx: click.Context) -> Profile:
    """Return the profile that the command line, the environment, the job or sbatchgen.yaml names."""
    from sbatchgen.jobs.inputs.document import read_document
    from sbatchgen.jobs.inputs.job_file import JobSpec
    from sbatchgen.jobs.inputs.profile import Profile
    from sbatchgen.jobs.inputs.search import profile_named_in

    places, job = _places(), ctx.params.get("job") or ctx.params.get("of_job") or ()
    name = ctx.params.get("profile") or os.environ.get("SBATCHGEN_PROFILE")
    for file in (*([job] if isinstance(job, str) else job), places.project):
        if not name and file and os.path.isfile(file):  # noqa: PTH113
            named = read_document(Path(file), JobSpec).value.profile
            name = named and profile_named_in(Path(file), named)
    return read_document(places.profile(name or "local"), Profile).value


def _places() -> Places:
    from sbatchgen.jobs.inputs.search import Places

    return Places(Path.cwd(), os.environ)
