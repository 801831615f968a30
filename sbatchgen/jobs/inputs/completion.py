"""Shell completion of names in profiles, folders and lists. It offers no names of a broken file.

bash puts a completed name on the command line without quotes, and other users choose the names in shared
folders. So only words without characters that a shell interprets are offered.
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
    """Complete names of profiles with their descriptions; for the start of a path, names of files."""
    from click.shell_completion import CompletionItem

    from sbatchgen.jobs.inputs.search import is_file_name

    if is_file_name(incomplete):
        return files(ctx, param, incomplete)
    items = []
    for name, file in _places().profiles():
        if matching_names([name], incomplete):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text = file.read_text()  # reading the text is faster than decoding the profile
                about = re.search(r"(?m)^description: *(.*)", text)
                if re.search(r"(?m)^name:", text):
                    items.append(CompletionItem(name, help=about and about[1]))
    return items


def names_in_profile(kind: str, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Complete the profile's names of a kind, such as "accounts"; with --partition, in that partition."""
    partitions = str(ctx.params.get("partition") or "").split(",")
    with contextlib.suppress(SbatchgenError):
        return matching_names(known_names(_profile(ctx), kind, partitions), incomplete)
    return []


def known_names(profile: Profile, kind: str, partitions: Iterable[str] = ()) -> list[str]:
    """Return the names of a kind, such as "accounts", in a profile and in these partitions.

    If the profile has none of these partitions, the names in all partitions are included.
    """
    known: Mapping[Any, Partition] = profile.partitions
    chosen = [known[name] for name in partitions if name in known] or known.values()
    names = (name for record in (profile, *chosen) for name in _NAMES_OF_KIND[kind](record))
    return [*dict.fromkeys(str(name) for name in names if name)]


def _accounts_of(record: Any) -> Iterator[str | None]:
    """Yield the accounts in a profile or a partition."""
    yield record.options.account
    yield from getattr(record, "accounts", ())
    yield from getattr(getattr(record, "user", None), "accounts", ())


def _features_of(record: Any) -> Iterator[str | None]:
    """Yield the features of nodes in a profile or a partition, also those of its shapes of nodes."""
    yield record.options.constraint
    for nodes in (record, *getattr(record, "shapes", ())):
        yield from getattr(nodes, "features", None) or ()


# The kind of names -> the function that returns these names in a profile or a partition.
_NAMES_OF_KIND: Mapping[str, Callable[[Any], Iterable[str | None]]] = {
    "accounts": _accounts_of,
    "qos": lambda record: (record.options.qos, *record.qos),
    "features": _features_of,
    "partitions": lambda record: getattr(record, "partitions", ()),
    "reservations": lambda record: getattr(record, "reservations", ()),
    "licenses": lambda record: getattr(record, "licenses", None) or (),
}


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Complete modes, or job files if no mode begins with the typed text."""
    from sbatchgen.jobs.modes import MODES

    return matching_names(MODES, incomplete) or files(ctx, param, incomplete)


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Let the user's shell complete names of files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Complete run folders, which have an events.jsonl, in this folder and one level below it.

    The search ends after SEARCH_S.
    """
    parent, slash, name_start = incomplete.rpartition("/")
    end_time = time.monotonic() + SEARCH_S
    outer = _folders(parent + slash, name_start, end_time)
    folders = (path for folder in outer for path in (folder, *_folders(f"{folder}/", "", end_time)))
    names = matching_names(folders, incomplete)
    return sorted(name for name in names if os.path.isfile(f"{name}/events.jsonl"))  # noqa: PTH113


def matching_names(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that begin with `incomplete` and are plain words of a shell."""
    return [name for name in names if name.startswith(incomplete) and is_plain(name) and name[0] != "-"]


def _folders(parent: str, name_start: str, end_time: float) -> Iterator[str]:
    """Yield the folders in `parent` whose names begin with `name_start`, until the time `end_time`.

    `parent` is "" or ends with a slash.
    """
    with contextlib.suppress(OSError), os.scandir(parent or ".") as entries:
        for entry in entries:
            if time.monotonic() > end_time:
                return
            if entry.name.startswith(name_start) and entry.is_dir():
                yield parent + entry.name


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
    """Return the places of the search from the current folder."""
    from sbatchgen.jobs.inputs.search import Places

    return Places(Path.cwd(), os.environ)
