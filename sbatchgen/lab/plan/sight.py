"""The folders of this machine that a script sees in the sandbox.

These are the folders that the user chose, and folders that the script names. None of them may show secrets,
or sockets of other programs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field, replace
from pathlib import PurePath
from typing import NamedTuple, TypeVar

from sbatchgen.base.files import account_home
from sbatchgen.base.frozen import frozen
from sbatchgen.base.machine.mounts import Mount, above, below, mounts, within
from sbatchgen.base.machine.temporary import temporary_folder
from sbatchgen.lab.plan.copies import Files, copy, danger, folder_in, piece, pieces, to_copy
from sbatchgen.lab.sandbox.box import Box, LayersRefusedError, Mark

_SECRET_FOLDERS = ("/run", "/proc", "/sys", "/dev", "/etc", "/boot")
_SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
_KERNEL_FACTS = "/sys"  # facts of the kernel, without files of users
_PROGRAM_FOLDERS = ("/usr", "/nix", "/gnu")  # folders that each sandbox shows
_SYSTEM_FOLDERS = ("/usr", "/var")  # folders whose parts the sandbox itself decides on
_MAX_FOLDERS = 64  # folders, and mounts below each folder
_ATTEMPTS = 4  # starts of a sandbox, each with fewer folders
_MARKS, _MAX_NAMES = 8, 5000  # entries, and names, by which a folder is known
_MAX_LAYERS = 300  # layers of all folders together
_MAX_ENTRIES = 1000  # entries of a folder whose links are followed
_PATH = re.compile(r"(?<![\w.:/}])(?:/[\w.+@=-]+)+", re.ASCII)


T = TypeVar("T")


class Shown(NamedTuple):
    """The folders and files of this machine that a sandbox shows."""

    layers: dict[str, list[int]]  # descriptors of folders and of the copies over them, by path
    marks: dict[str, Mark]  # marks by which the sandbox knows these folders
    files: Files  # copies of small files, for folders that can't have a layer
    readable: dict[str, int]  # descriptors of folders that are shown without a layer
    left_out: dict[str, str]  # folders that are not shown, with the reason
    refused: frozenset[str]  # folders over which the system allows no layer

    def in_box(self, box: Box) -> Box:
        """Return a box that shows these folders and files too."""
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
    """The folders that a script sees, and the rules that decide on them. Each folder gets a layer."""

    homes: dict[str, int | None]  # descriptors of the user's home folders, which are never shown as a whole
    chosen: tuple[str, ...]  # folders that the user chose, such as the folder of submission
    kept: ExitStack  # closes the descriptors and removes the copies at its end
    given: tuple[str, ...] = ()  # folders that are shown without further checks
    named: tuple[str, ...] = ()  # folders that the script names
    text: str = ""  # the script, with the home folder in place of ~ and $HOME
    # descriptors of the copies over folders, by the paths of the folders
    copies: dict[str, int | None] = field(default_factory=dict)
    # folders over which the system allows no layer, with the reason
    refused: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()  # the mounts of this machine

    def run(self, start: Callable[[Shown], T]) -> T:
        """Call a function that runs a sandbox; call it again without layers that the system refuses."""
        for number in range(_ATTEMPTS):
            with self.opened() as shown:
                try:
                    return start(shown)
                except LayersRefusedError as error:
                    why = "others move it" if error.moved else "its file system allows no layer"
                    if number or not error.moved:  # at first a new file in the folder may look like a move
                        self.refused.update(dict.fromkeys(error.paths, why))
        with self.opened() as shown:
            return start(shown)

    def wider(self, paths: Iterable[str]) -> Sight:
        """Return a sight that also shows `paths`, if they exist and may be shown."""
        folders = dict.fromkeys(self.named)
        for path in paths:
            if len(folders) < _MAX_FOLDERS and (folder := self._holding(path, [*self.chosen, *folders])):
                folders[folder] = None
        return replace(self, named=tuple(folders))

    def _holding(self, path: str, others: Sequence[str]) -> str:
        """Return the outermost folder that holds a path and may be shown.

        A folder with mounts below can't be shown as a whole, so the innermost folder of such folders counts.
        Returns "" if the path is already shown, does not exist, or may not be shown.
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
        """Return whether a folder exists and may be shown; `chosen`: the user chose it, not the script."""
        number = self.folder(path, chosen=chosen)
        if number is not None:
            os.close(number)
        return number is not None

    def folder(self, path: str, *, chosen: bool) -> int | None:
        """Return a descriptor of a folder that may be shown; None for any other path."""
        if (number := _descriptor(path)) is None:
            return None
        is_readable = os.access(f"/proc/self/fd/{number}", os.R_OK | os.X_OK)
        if is_readable and self.allows(number, chosen=chosen):
            return number
        os.close(number)
        return None

    def allows(self, number: int, *, chosen: bool) -> bool:  # noqa: PLR0911 - a rule each
        """Return whether an open folder may be shown; `chosen`: the user chose it, not the script."""
        path, about = _real(number), os.fstat(number)
        # A folder that holds a hidden folder stays hidden.
        if any(_is_in(place, path) for place in (*self.homes, *_SECRET_FOLDERS, *_SHARED_FOLDERS)):
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
        # Root has no capabilities in the sandbox, so root needs the right to enter each folder above.
        if os.getuid() == 0:
            parts = [os.stat(part) for part in (path, *map(str, PurePath(path).parents))]
            if not all(part.st_uid == 0 or part.st_mode & 0o1 for part in parts):
                return False
        return is_mine or about.st_uid == 0 or about.st_mode & 0o5 == 0o5

    def _is_hidden_at_home(self, number: int, homes: Sequence[int]) -> bool:
        """Return whether an open folder is in a folder .NAME of a home folder.

        The home folder is known by its device and inode, in case a folder is mounted a second time.
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
        """Open the folders to show, until the end of the block."""
        with ExitStack() as stack:
            yield _Opening(self, stack).shown()


class _Opening:
    """The opening of the folders that a sight shows, outer folders first."""

    def __init__(self, sight: Sight, stack: ExitStack) -> None:
        self.sight, self.stack = sight, stack
        self.all = Shown({}, {}, {}, {}, {}, frozenset(sight.refused))
        self.places: dict[str, tuple[int, bool]] = {}  # folders to show, and whether the user chose them

    def shown(self) -> Shown:
        """Open the folders and return them."""
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
            # the layer of the outer folder has the link
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

    def _show(self, path: str, number: int, chosen: bool) -> None:  # noqa: FBT001 - a value of places
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
        """Return a descriptor of a folder with copies for an open folder; None if it needs no copies."""
        if (part := to_copy(number, chosen=chosen)) == "none":
            return None
        place = self.sight.kept.enter_context(temporary_folder("sbatchgen-plan-")) / "copy"
        place.mkdir()
        copy(number, str(place), some=part == "some")
        copied = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.sight.kept.callback(os.close, copied)
        return copied

    def _mark(self, path: str, number: int, *, is_covered: bool = False) -> None:
        """Keep the mark of an open folder; a folder that copies cover is marked by all names in it."""
        most = _MAX_NAMES if is_covered else _MARKS
        try:
            at = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=number)
        except OSError:  # the script can't read the folder either
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
        """Show each folder in a folder, because mounts below it allow no layer over the whole."""
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
        """Show a folder of `given`; without a layer only if no layer is possible and the folder is safe."""
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
    """Return the sight of a script with this text that starts in `workdir`.

    `kept` closes the descriptors and removes the copies.
    """
    homes: dict[str, int | None] = {}
    for place in (home, account_home()):
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
    # A path ends at the first other variable.
    named = dict.fromkeys(match[0] for match in _PATH.finditer(text))
    return replace(sight.wider([workdir, *links, *named]), text=text)


def path_of(path: str) -> str:
    """Return a path without links; "" for a missing path. The file is not opened for reading."""
    try:
        number = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        return _real(number)
    finally:
        os.close(number)


def _descriptor(path: str) -> int | None:
    """Return a descriptor of a folder that can't read the folder; None for any other path."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None


def _real(number: int) -> str:
    return os.readlink(f"/proc/self/fd/{number}")


def _is_in(path: str, place: str) -> bool:
    return f"{path}/".startswith(f"{place.rstrip('/')}/")


def _is_in_one(path: str, places: Iterable[str]) -> bool:
    return any(_is_in(path, place) for place in places)


def _links(folder: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False):
            if entry.is_symlink():
                yield os.path.realpath(entry.path)
