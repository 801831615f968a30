"""The folders of this machine that a script sees in the sandbox: the user's, and those that the script names.

No folder has secrets, or sockets of other programs.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field, replace
from pathlib import PurePath

from sbatchgen.frozen import frozen
from sbatchgen.machine.temporary import temporary_folder
from sbatchgen.plan.copies import copy, needs_copy

_SECRET = ("/run", "/proc", "/sys", "/dev", "/etc", "/boot")
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
_OF_SYSTEM = ("/usr", "/var")  # of which the sandbox shows what there is to show
_MOST = 64  # folders, and mounts below each
_MOST_ENTRIES = 1000  # of a folder whose links are followed
_PATH = re.compile(r"(?<![\w.:/}])(?:/[\w.+@=-]+)+", re.ASCII)


@frozen()
class Sight:
    """What is shown, with a layer in memory over it."""

    home: str  # the user's home folder, which is never shown itself
    chosen: tuple[str, ...]  # folders of the user's choice, such as that of the submission
    kept: ExitStack  # holds the copies as long as they are needed
    named: tuple[str, ...] = ()  # folders that the script names
    # descriptors of copies that lie over folders, by their paths
    copies: dict[str, int] = field(default_factory=dict)

    def wider(self, paths: Iterable[str]) -> Sight:
        """Return a sight of these paths too, where something is there that may be shown."""
        folders = dict.fromkeys(self.named)
        for path in paths:
            if len(folders) < _MOST and (folder := self._holding(path, [*self.chosen, *folders])):
                folders[folder] = None
        return replace(self, named=tuple(folders))

    def _holding(self, path: str, others: Sequence[str]) -> str:
        """Return the outermost folder that may be shown and holds a path; "" if it is shown, or not there."""
        end = path_of(path)
        is_inside = _is_in_one(path, others)
        if not end or (is_inside and _is_in_one(end, others)):
            return ""
        parts = (end if is_inside else os.path.normpath(path)).split("/")[1:]
        for count in range(min(2, len(parts)), len(parts) + 1):
            folder = "/" + "/".join(parts[:count])
            if _is_shown(folder, self.home, chosen=False):
                return folder
        return ""

    @contextmanager
    def opened(self) -> Iterator[dict[str, list[int]]]:
        """Give descriptors of each folder that is shown and of its copy, by path; also of mounts below."""
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.split()[4] for line in file]
        mounts = sorted(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), row) for row in rows)
        places = {
            place: path in self.chosen
            for path in (*self.named, *self.chosen)
            for place in (path, *_below(path, mounts))
        }
        folders: dict[str, int] = {}
        with ExitStack() as stack:
            for path, chosen in sorted(places.items()):
                if (number := _opened(path, self.home, chosen=chosen)) is None:
                    continue
                stack.callback(os.close, number)
                end = _real(number)
                outer = [place for place in folders if path.startswith(f"{place}/")]
                is_link = any(_real(folders[place]) + path[len(place) :] != end for place in outer)
                # The outer one has the link.
                folders.setdefault(end if is_link else os.path.normpath(path), number)
            for path, number in folders.items():
                if path not in self.copies and needs_copy(number, chosen=path in self.chosen):
                    place = self.kept.enter_context(temporary_folder("sbatchgen-plan-")) / "copy"
                    place.mkdir()
                    copy(number, str(place))
                    self.copies[path] = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                    self.kept.callback(os.close, self.copies[path])
            copied = {path: [self.copies[path]] for path in folders if path in self.copies}
            yield {path: [folders[path], *copied.get(path, ())] for path in sorted(folders)}


def sight_of(
    text: str, workdir: str, chosen: Sequence[str], kept: ExitStack, *, home: str, user: str
) -> Sight:
    """Return what a script with this text sees that starts in `workdir`; `kept` holds what is made for it."""
    sight = Sight(home, tuple(path for path in chosen if _is_shown(path, home, chosen=True)), kept)
    links = [target for folder in sight.chosen for target in _links(folder)]
    for name, value in (("HOME", home), ("USER", user)):
        text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
    text = re.sub(r"(?<![\w/])~(?=/)", lambda _: home, text)
    named = dict.fromkeys(match[0] for match in _PATH.finditer(text))  # up to the first other variable
    return sight.wider([workdir, *links, *named])


def path_of(path: str) -> str:
    """Return a path of the machine without links; "" if nothing is there. What is there is not opened."""
    try:
        number = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        return _real(number)
    finally:
        os.close(number)


def _real(number: int) -> str:
    return os.readlink(f"/proc/self/fd/{number}")


def _is_shown(path: str, home: str, *, chosen: bool) -> bool:
    number = _opened(path, home, chosen=chosen)
    if number is not None:
        os.close(number)
    return number is not None


def _opened(path: str, home: str, *, chosen: bool) -> int | None:
    """Return a descriptor of a folder that may be shown; None of any other one."""
    try:
        number = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    is_readable = os.access(f"/proc/self/fd/{number}", os.R_OK | os.X_OK)
    if is_readable and _may_be_shown(_real(number), os.fstat(number), home, chosen=chosen):
        return number
    os.close(number)
    return None


def _may_be_shown(path: str, about: os.stat_result, home: str, *, chosen: bool) -> bool:
    homes = {os.path.realpath(name) for name in (home, _home_of_user()) if name.strip("/")}
    if any(_is_in(place, path) for place in (*homes, *_SECRET, *_SHARED)):  # it holds them
        return False
    is_mine, is_shared = about.st_uid == os.getuid(), _is_in_one(path, _SHARED)
    is_secret = any(path.startswith(f"{place}/.") for place in homes) or _is_in_one(path, _SECRET)
    if is_secret and not (is_shared and chosen):
        return False
    if chosen:
        return is_mine or not is_shared
    if is_shared or _is_in_one(path, _OF_SYSTEM):
        return False
    if os.getuid() == 0:  # in the sandbox root has no capabilities: each folder above must be open to it
        above = [os.stat(part) for part in (path, *map(str, PurePath(path).parents))]
        if not all(part.st_uid == 0 or part.st_mode & 0o1 for part in above):
            return False
    return is_mine or about.st_uid == 0 or about.st_mode & 0o5 == 0o5


@functools.cache  # it may be asked of a server
def _home_of_user() -> str:
    with suppress(KeyError):
        import pwd  # a browser has none

        return pwd.getpwuid(os.getuid()).pw_dir
    return ""


def _is_in(path: str, place: str) -> bool:
    return f"{path}/".startswith(f"{place.rstrip('/')}/")


def _is_in_one(path: str, places: Iterable[str]) -> bool:
    return any(_is_in(path, place) for place in places)


def _below(path: str, mounts: Sequence[str]) -> list[str]:
    """Return the paths of the mounts below a folder, which a layer over it would hide."""
    start = os.path.realpath(path)
    return [path + place[len(start) :] for place in mounts if place.startswith(f"{start}/")][:_MOST]


def _links(folder: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False):
            if entry.is_symlink():
                yield os.path.realpath(entry.path)
