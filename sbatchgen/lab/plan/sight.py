"""The folders of this machine that a script sees in the sandbox: the user's, and those that the script names.

No folder has secrets, or sockets of other programs.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field, replace
from pathlib import PurePath
from typing import NamedTuple, TypeVar

from sbatchgen.base.frozen import frozen
from sbatchgen.base.machine.mounts import Mount, above, below, mounts, within
from sbatchgen.base.machine.temporary import temporary_folder
from sbatchgen.lab.plan.copies import Files, copy, danger, folder_in, piece, pieces, to_copy
from sbatchgen.lab.sandbox.box import Box, LayersRefusedError, Mark

_SECRET_FOLDERS = ("/run", "/proc", "/sys", "/dev", "/etc", "/boot")
_SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
_KERNEL_FACTS = "/sys"  # of the machine, which has no files of users
_PROGRAM_FOLDERS = ("/usr", "/nix", "/gnu")  # which each sandbox shows as they are
_SYSTEM_FOLDERS = ("/usr", "/var")  # of which the sandbox shows what there is to show
_MAX_FOLDERS = 64  # folders, and mounts below each
_ATTEMPTS = 4  # of a sandbox, each with less to show
_MARKS, _MAX_NAMES = 8, 5000  # entries by which a folder is known, and names
_MAX_LAYERS = 300  # of all folders together
_MAX_ENTRIES = 1000  # of a folder whose links are followed
_PATH = re.compile(r"(?<![\w.:/}])(?:/[\w.+@=-]+)+", re.ASCII)


T = TypeVar("T")


class Shown(NamedTuple):
    """What a sandbox shows of this machine."""

    layers: dict[str, list[int]]  # descriptors of folders and of copies that lie over them, by path
    marks: dict[str, Mark]  # by which the sandbox knows them
    files: Files  # in place of folders that can't have a layer
    readable: dict[str, int]  # descriptors of folders that are shown as they are
    left_out: dict[str, str]  # what is not shown, and why, as the rest of "PATH: not shown: "
    refused: frozenset[str]  # what the system lays nothing over

    def in_box(self, box: Box) -> Box:
        """Return a sandbox that shows this."""
        laid = {path: layer for path, layer in box.laid.items() if path not in self.refused}
        return box._replace(
            shown=self.layers,
            marks=self.marks,
            readable=self.readable,
            files={**self.files, **box.files},
            laid=laid,
        )


@frozen()
class Sight:
    """What is shown, with a layer in memory over it."""

    homes: dict[str, int | None]  # descriptors of the user's home folders, which are never shown themselves
    chosen: tuple[str, ...]  # folders of the user's choice, such as that of the submission
    kept: ExitStack  # holds the copies and descriptors as long as they are needed
    given: tuple[str, ...] = ()  # folders that are shown wherever they are
    named: tuple[str, ...] = ()  # folders that the script names
    text: str = ""  # the script, with the home folder in place of ~ and $HOME
    # descriptors of copies that lie over folders, by their paths
    copies: dict[str, int | None] = field(default_factory=dict)
    # what the system lays nothing over, and why
    refused: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()  # of this machine

    def run(self, start: Callable[[Shown], T]) -> T:
        """Call a function that runs a sandbox; again with less to show, where folders can't have a layer."""
        for number in range(_ATTEMPTS):
            with self.opened() as shown:
                try:
                    return start(shown)
                except LayersRefusedError as error:
                    why = "others move it" if error.moved else "its file system allows no layer"
                    if number or not error.moved:  # a new file in it looks the same
                        self.refused.update(dict.fromkeys(error.paths, why))
        with self.opened() as shown:
            return start(shown)

    def wider(self, paths: Iterable[str]) -> Sight:
        """Return a sight of these paths too, where something is there that may be shown."""
        folders = dict.fromkeys(self.named)
        for path in paths:
            if len(folders) < _MAX_FOLDERS and (folder := self._holding(path, [*self.chosen, *folders])):
                folders[folder] = None
        return replace(self, named=tuple(folders))

    def _holding(self, path: str, others: Sequence[str]) -> str:
        """Return the outermost folder that may be shown and holds a path; "" if it is shown, or not there.

        Of folders with mounts below, the innermost one: it can't be shown as a whole.
        """
        end, seen = path_of(path), others
        others = [each for each in others if each == path or not self._has_mounts(each)]
        is_inside = _is_in_one(path, others)
        if not end or (is_inside and _is_in_one(end, others)):
            return ""
        parts = (end if is_inside else os.path.normpath(path)).split("/")[1:]
        holder = ""
        for count in range(min(2, len(parts)), len(parts) + 1):
            folder = "/" + "/".join(parts[:count])
            if self.may_be_seen(folder, chosen=False):
                holder = folder
                if not self._has_mounts(folder):
                    break
        return "" if holder in seen else holder

    def _has_mounts(self, path: str) -> bool:
        if (number := _descriptor(path)) is None:
            return False
        try:
            return bool(below(number, self.mounts))
        finally:
            os.close(number)

    def may_be_seen(self, path: str, *, chosen: bool) -> bool:
        """Return whether there is a folder that may be shown; `chosen`: the user chose it, not the script."""
        number = self.folder(path, chosen=chosen)
        if number is not None:
            os.close(number)
        return number is not None

    def folder(self, path: str, *, chosen: bool) -> int | None:
        """Return a descriptor of a folder that may be shown; None of any other one."""
        if (number := _descriptor(path)) is None:
            return None
        is_readable = os.access(f"/proc/self/fd/{number}", os.R_OK | os.X_OK)
        if is_readable and self.allows(number, chosen=chosen):
            return number
        os.close(number)
        return None

    def allows(self, number: int, *, chosen: bool) -> bool:  # noqa: PLR0911 - a rule each
        """Return whether an open folder may be shown."""
        path, about = _real(number), os.fstat(number)
        if any(
            _is_in(place, path) for place in (*self.homes, *_SECRET_FOLDERS, *_SHARED_FOLDERS)
        ):  # it holds them
            return False
        homes = [home for home in self.homes.values() if home is not None]
        if any(within(number, home, self.mounts) is not None for home in homes):
            return False
        is_mine, is_shared = about.st_uid == os.getuid(), _is_in_one(path, _SHARED_FOLDERS)
        if (self._is_hidden_at_home(number, homes) or _is_in_one(path, _SECRET_FOLDERS)) and not (
            is_shared and chosen
        ):
            return False
        if chosen:
            return is_mine or not is_shared
        if is_shared or _is_in_one(path, _SYSTEM_FOLDERS):
            return False
        if os.getuid() == 0:  # in the sandbox root has no capabilities: each folder above must be open to it
            parts = [os.stat(part) for part in (path, *map(str, PurePath(path).parents))]
            if not all(part.st_uid == 0 or part.st_mode & 0o1 for part in parts):
                return False
        return is_mine or about.st_uid == 0 or about.st_mode & 0o5 == 0o5

    def _is_hidden_at_home(self, number: int, homes: Sequence[int]) -> bool:
        """Return whether an open folder is in one of the home whose name begins with a dot.

        The home is known by its device and inode, also where it or the folder is mounted a second time.
        """
        path = _real(number)
        if any(path.startswith(f"{home}/.") for home in self.homes):
            return True
        if any((within(home, number, self.mounts) or "").startswith(".") for home in homes):
            return True
        places, name = [(about.st_dev, about.st_ino) for about in map(os.fstat, homes)], ""
        for folder in above(path):
            with suppress(OSError):
                about = os.stat(folder)
                if (about.st_dev, about.st_ino) in places and name.startswith("."):
                    return True
            name = folder.rpartition("/")[2]
        return False

    @contextmanager
    def opened(self) -> Iterator[Shown]:
        """Give descriptors of what is shown, until the end of the block."""
        with ExitStack() as stack:
            yield _Opening(self, stack).shown()


class _Opening:
    """Opens what a sight shows, outer folders first."""

    def __init__(self, sight: Sight, stack: ExitStack) -> None:
        self.sight, self.stack = sight, stack
        self.all = Shown({}, {}, {}, {}, {}, frozenset(sight.refused))
        self.places: dict[str, tuple[int, bool]] = {}  # folders to show, and whether the user chose them

    def shown(self) -> Shown:
        """Return what is shown."""
        sight = self.sight
        wanted = {path: path in sight.chosen for path in (*sight.named, *sight.chosen)}
        todo = sorted(wanted.items())
        while todo and len(self.places) < _MAX_LAYERS:
            path, chosen = todo.pop(0)
            if (number := sight.folder(path, chosen=chosen)) is None:
                continue
            self.stack.callback(os.close, number)
            end, outer = _real(number), [place for place in self.places if path.startswith(f"{place}/")]
            is_link = any(_real(self.places[place][0]) + path[len(place) :] != end for place in outer)
            # The outer one has the link.
            place = end if is_link else os.path.normpath(path)
            if place in self.places:
                continue
            self.places[place] = number, chosen
            more = [path + each[len(end) :] for each in below(number, sight.mounts)[:_MAX_FOLDERS]]
            todo = sorted({**dict.fromkeys(more, chosen), **dict(todo)}.items())
        for path in sorted(self.places):
            self._show(path, *self.places[path])
        for path in sorted({*sight.given}):
            self._give(path)
        return self.all

    def _show(self, path: str, number: int, chosen: bool) -> None:  # noqa: FBT001 - of places
        sight = self.sight
        if path in sight.refused:
            files, large = pieces(number, path, self.places)
            self.all.files.update(files)
            if large or not files:
                but = "; the small files in it are" if files else ""
                self.all.left_out[path] = f"{sight.refused[path]}{but}"
        elif below(number, sight.mounts):
            self._show_parts(path, number, chosen=chosen)
        else:
            self._lay(path, number, chosen=chosen)

    def _lay(self, path: str, number: int, *, chosen: bool) -> None:
        sight = self.sight
        if path not in sight.copies:
            sight.copies[path] = self._copied(number, chosen=chosen)
        copied = sight.copies[path]
        self.all.layers[path] = [number] if copied is None else [number, copied]
        self._mark(path, number, is_covered=copied is not None)

    def _copied(self, number: int, *, chosen: bool) -> int | None:
        """Return a descriptor of a folder with copies that lie over an open one; None if it needs none."""
        if (part := to_copy(number, chosen=chosen)) == "none":
            return None
        place = self.sight.kept.enter_context(temporary_folder("sbatchgen-plan-")) / "copy"
        place.mkdir()
        copy(number, str(place), some=part == "some")
        copied = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.sight.kept.callback(os.close, copied)
        return copied

    def _mark(self, path: str, number: int, *, is_covered: bool = False) -> None:
        """Keep what an open folder is known by; of one that is covered by copies, all names in it."""
        most = _MAX_NAMES if is_covered else _MARKS
        try:
            at = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=number)
        except OSError:  # the script can't read it either
            return
        try:
            with os.scandir(at) as entries:
                some = [entry for entry, _ in zip(entries, range(most), strict=False)]
            known = []
            for entry in some[:_MARKS]:
                with suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    known.append((entry.name, about.st_ctime_ns, about.st_ino))
        finally:
            os.close(at)
        if not is_covered or len(some) < most:
            self.all.marks[path] = known, [entry.name for entry in some] if is_covered else None

    def _show_parts(self, path: str, number: int, *, chosen: bool) -> None:
        """Show the folders in a folder with mounts below, which can't have a layer as a whole, one by one."""
        try:
            part = piece(number, path)
        except OSError:
            return
        self.all.files.update(part.files if chosen else {path: None})
        if not chosen and not _is_in_one(path, self.all.left_out):
            self.all.left_out[path] = "has mounts below; the folders in it are"
        left = 0
        for name in part.folders:
            place = f"{path}/{name}"
            if place in self.places:
                continue
            if len(self.all.layers) >= _MAX_LAYERS:
                left += 1
                continue
            with suppress(OSError):
                inner = folder_in(number, name)
                self.stack.callback(os.close, inner)
                is_readable = os.access(f"/proc/self/fd/{inner}", os.R_OK | os.X_OK)
                if is_readable and self.sight.allows(inner, chosen=True):
                    self._show(place, inner, chosen)
        if chosen and (part.large or left):
            self.all.left_out[path] = "has mounts below; the folders and small files in it are"

    def _give(self, path: str) -> None:
        """Show a folder wherever it is, as it is if it can have no layer and nothing in it is a danger."""
        shown = (*self.all.layers, *self.all.readable, *_PROGRAM_FOLDERS)
        if (number := _descriptor(path)) is None:
            return
        self.stack.callback(os.close, number)
        has_mounts = below(number, self.sight.mounts)
        if path in self.all.files or (_is_in_one(path, shown) and not has_mounts):
            return
        if path == _KERNEL_FACTS:
            self.all.readable[path] = number
        elif path not in self.sight.refused and not has_mounts:
            self.all.layers[path] = [number]
            self._mark(path, number)
        elif why := danger(number):
            self.all.left_out[path] = why
        else:
            self.all.readable[path] = number


def sight_of(
    text: str,
    workdir: str,
    chosen: Sequence[str],
    kept: ExitStack,
    *,
    home: str,
    user: str,
    given: Sequence[str] = (),
) -> Sight:
    """Return what a script with this text sees that starts in `workdir`; `kept` holds what is made for it."""
    homes: dict[str, int | None] = {}
    for place in (home, _home_of_user()):
        if place.strip("/"):
            homes[os.path.realpath(place)] = number = _descriptor(place)
            if number is not None:
                kept.callback(os.close, number)
    sight = Sight(homes, (), kept, tuple(given), mounts=mounts())
    sight = replace(sight, chosen=tuple(path for path in chosen if sight.may_be_seen(path, chosen=True)))
    links = [target for folder in sight.chosen for target in _links(folder)]
    for name, value in (("HOME", home), ("USER", user)):
        text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
    text = re.sub(r"(?<![\w/])~(?=/)", lambda _: home, text)
    named = dict.fromkeys(match[0] for match in _PATH.finditer(text))  # up to the first other variable
    return replace(sight.wider([workdir, *links, *named]), text=text)


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


def _descriptor(path: str) -> int | None:
    """Return a descriptor of a folder, with which it is not read; None of anything else."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None


def _real(number: int) -> str:
    return os.readlink(f"/proc/self/fd/{number}")


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


def _links(folder: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False):
            if entry.is_symlink():
                yield os.path.realpath(entry.path)
