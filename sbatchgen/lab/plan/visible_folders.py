"""The folders of this machine that a script sees in the sandbox.

The user chooses some of these folders, and the script names others. No folder is shown if it holds secrets,
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
from sbatchgen.lab.plan.copies import Files, copied_part, copied_tree, copy, danger, folder_in, part_to_copy
from sbatchgen.lab.sandbox.box import Box, LayersRefusedError, Mark

_SECRET_FOLDERS = ("/run", "/proc", "/sys", "/dev", "/etc", "/boot")
_SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
_KERNEL_FACTS = "/sys"  # facts of the kernel, without files of users
_PROGRAM_FOLDERS = ("/usr", "/nix", "/gnu")  # folders that each sandbox shows
_SYSTEM_FOLDERS = ("/usr", "/var")  # box.py, not this module, decides what the sandbox shows of them
_MAX_FOLDERS = 64  # folders that the script names, and mounts below each folder
_ATTEMPTS = 4  # starts of a sandbox, each without the layers that the system refused before
_MARKING_ENTRIES = 8  # entries by which the sandbox knows a folder again
_MARKING_NAMES = 5000  # names by which the sandbox knows a folder that copies cover
_MAX_LAYERS = 300  # layers of all folders together
_MAX_ENTRIES = 1000  # entries of a folder whose links are followed
# An absolute path in a script, such as /data/train, but not the end of a relative path or a URL.
_PATH = re.compile(r"(?<![\w.:/}])(?:/[\w.+@=-]+)+", re.ASCII)


T = TypeVar("T")


class ShownFolders(NamedTuple):
    """The folders and files of this machine that a sandbox shows."""

    layers: dict[str, list[int]]  # by path: the descriptors of a folder and of the copies over it
    marks: dict[str, Mark]  # by path: what the sandbox compares, in case another folder is now there
    files: Files  # copies of small files, for folders that can't have a layer
    readable: dict[str, int]  # by path: the descriptor of a folder that is shown without a layer
    not_shown: dict[str, str]  # by path: the reason why a folder is not shown
    refused: frozenset[str]  # folders over which the system allows no layer

    def in_box(self, box: Box) -> Box:
        """Return a box that also shows these folders and files."""
        allowed = {path: layer for path, layer in box.system_layers.items() if path not in self.refused}
        return box._replace(
            shown=self.layers,
            marks=self.marks,
            readable=self.readable,
            files={**self.files, **box.files},
            system_layers=allowed,
        )


@frozen()
class VisibleFolders:
    """The folders that a script sees, and the rules that a folder must pass.

    Each folder gets a layer in memory, so that the script does not change the folder.
    """

    # by path: the descriptor of a home folder of the user, or None; a home is never shown as a whole
    homes: dict[str, int | None]
    by_user: tuple[str, ...]  # folders that the user chose, such as the folder of submission
    cleanup: ExitStack  # closes the descriptors and removes the copies at its end
    unchecked: tuple[str, ...] = ()  # folders that are shown although no rule was applied
    by_script: tuple[str, ...] = ()  # folders that the script names
    text: str = ""  # the script, with the home folder in place of ~ and $HOME
    # by the path of a folder: the descriptor of the copies over it; None for a folder without copies
    copies: dict[str, int | None] = field(default_factory=dict)
    # by path: the reason why a folder gets no layer
    refused: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()  # the mounts of this machine

    def run(self, start: Callable[[ShownFolders], T]) -> T:
        """Return the result of `start`, which runs a sandbox; start again without layers that it refuses."""
        for attempt in range(_ATTEMPTS):
            with self.open() as shown:
                try:
                    return start(shown)
                except LayersRefusedError as error:
                    why = "others move it" if error.moved else "its file system allows no layer"
                    # At the first attempt, a new file in the folder may look like a move.
                    if attempt or not error.moved:
                        self.refused.update(dict.fromkeys(error.paths, why))
        with self.open() as shown:
            return start(shown)

    def with_paths(self, paths: Iterable[str]) -> VisibleFolders:
        """Return these folders, and the folders of `paths` that exist and may be shown."""
        folders = dict.fromkeys(self.by_script)
        for path in paths:
            if len(folders) < _MAX_FOLDERS and (folder := self._outermost(path, [*self.by_user, *folders])):
                folders[folder] = None
        return replace(self, by_script=tuple(folders))

    def _outermost(self, path: str, shown: Sequence[str]) -> str:
        """Return the outermost folder around a path that may be shown as a whole.

        A folder with mounts below can't be shown as a whole. If all folders around the path have mounts
        below, the innermost of these folders is returned. Returns "" if the path is already shown, does not
        exist, or may not be shown.
        """
        real = path_of(path)
        shown_whole = [folder for folder in shown if folder == path or not self._has_mounts(folder)]
        is_inside = _is_in_one(path, shown_whole)
        if not real or (is_inside and _is_in_one(real, shown_whole)):
            return ""
        # A path inside a shown folder is a link here, whose target needs a folder of its own.
        parts = (real if is_inside else os.path.normpath(path)).split("/")[1:]
        outermost = ""
        for depth in range(min(2, len(parts)), len(parts) + 1):  # not /data for /data/x
            folder = "/" + "/".join(parts[:depth])
            if self.may_be_shown(folder, by_user=False):
                outermost = folder
                if not self._has_mounts(folder):
                    break
        return "" if outermost in shown else outermost

    def _has_mounts(self, path: str) -> bool:
        """Return whether other file systems are mounted below a folder."""
        if (descriptor := _folder_descriptor(path)) is None:
            return False
        try:
            return bool(below(descriptor, self.mounts))
        finally:
            os.close(descriptor)

    def may_be_shown(self, path: str, *, by_user: bool) -> bool:
        """Return whether a folder exists and may be shown; `by_user`: the user chose it."""
        descriptor = self.open_folder(path, by_user=by_user)
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is not None

    def open_folder(self, path: str, *, by_user: bool) -> int | None:
        """Return a descriptor of a folder that may be shown; None for any other path."""
        if (descriptor := _folder_descriptor(path)) is None:
            return None
        is_readable = os.access(f"/proc/self/fd/{descriptor}", os.R_OK | os.X_OK)
        if is_readable and self.allows(descriptor, by_user=by_user):
            return descriptor
        os.close(descriptor)
        return None

    def allows(self, descriptor: int, *, by_user: bool) -> bool:  # noqa: PLR0911 - a return for each rule
        """Return whether an open folder may be shown; `by_user`: the user chose the folder."""
        path, status = _real_path(descriptor), os.fstat(descriptor)
        # A folder around a hidden folder stays hidden.
        if any(_is_in(hidden, path) for hidden in (*self.homes, *_SECRET_FOLDERS, *_SHARED_FOLDERS)):
            return False
        homes = [home for home in self.homes.values() if home is not None]
        if any(within(descriptor, home, self.mounts) is not None for home in homes):
            return False
        is_mine, is_shared = status.st_uid == os.getuid(), _is_in_one(path, _SHARED_FOLDERS)
        is_secret = self._is_hidden_at_home(descriptor, homes) or _is_in_one(path, _SECRET_FOLDERS)
        if is_secret and not (is_shared and by_user):  # /dev/shm is in /dev
            return False
        if by_user:
            return is_mine or not is_shared
        if is_shared or _is_in_one(path, _SYSTEM_FOLDERS):
            return False
        # Root has no capabilities in the sandbox, and enters a folder of others only by the rights of all.
        if os.getuid() == 0:
            parts = [os.stat(part) for part in (path, *map(str, PurePath(path).parents))]
            if not all(part.st_uid == 0 or part.st_mode & 0o1 for part in parts):
                return False
        return is_mine or status.st_uid == 0 or status.st_mode & 0o5 == 0o5

    def _is_hidden_at_home(self, descriptor: int, homes: Sequence[int]) -> bool:
        """Return whether an open folder is in a hidden folder of a home folder, such as ~/.ssh.

        Devices and inodes are compared too, in case the home folder is mounted under a second path.
        """
        path = _real_path(descriptor)
        if any(path.startswith(f"{home}/.") for home in self.homes):
            return True
        if any((within(home, descriptor, self.mounts) or "").startswith(".") for home in homes):
            return True
        home_ids = [(status.st_dev, status.st_ino) for status in map(os.fstat, homes)]
        name_below = ""  # the name of the folder before, which is in `folder`
        for folder in above(path):
            with suppress(OSError):
                status = os.stat(folder)
                if (status.st_dev, status.st_ino) in home_ids and name_below.startswith("."):
                    return True
            name_below = folder.rpartition("/")[2]
        return False

    @contextmanager
    def open(self) -> Iterator[ShownFolders]:
        """Open the folders to show; yield their descriptors, which are closed at the end of the block."""
        with ExitStack() as stack:
            yield _Opening(self, stack).open_all()


class _Opening:
    """Opens visible folders, outer folders first, and collects them as `ShownFolders`."""

    def __init__(self, visible: VisibleFolders, stack: ExitStack) -> None:
        self.visible, self.stack = visible, stack
        self.result = ShownFolders({}, {}, {}, {}, {}, frozenset(visible.refused))
        # by the path of a folder to show: its descriptor, and whether the user chose it
        self.opened: dict[str, tuple[int, bool]] = {}

    def open_all(self) -> ShownFolders:
        """Open the folders and return their descriptors."""
        visible = self.visible
        is_by_user = {path: path in visible.by_user for path in (*visible.by_script, *visible.by_user)}
        todo = sorted(is_by_user.items())
        while todo and len(self.opened) < _MAX_LAYERS:
            path, by_user = todo.pop(0)
            if (descriptor := visible.open_folder(path, by_user=by_user)) is None:
                continue
            self.stack.callback(os.close, descriptor)
            real = _real_path(descriptor)
            outer = [folder for folder in self.opened if path.startswith(f"{folder}/")]
            is_link = any(
                _real_path(self.opened[folder][0]) + path[len(folder) :] != real for folder in outer
            )
            # The layer of the outer folder has the link, so the target of the link needs a layer.
            shown_path = real if is_link else os.path.normpath(path)
            if shown_path in self.opened:
                continue
            self.opened[shown_path] = descriptor, by_user
            mounted = [
                path + mount[len(real) :] for mount in below(descriptor, visible.mounts)[:_MAX_FOLDERS]
            ]
            todo = sorted({**dict.fromkeys(mounted, by_user), **dict(todo)}.items())
        for path in sorted(self.opened):
            self._show(path, *self.opened[path])
        for path in sorted({*visible.unchecked}):
            self._show_unchecked(path)
        return self.result

    def _show(self, path: str, descriptor: int, by_user: bool) -> None:  # noqa: FBT001 - from `opened`
        """Show an open folder by a layer, by its parts, or by copies of its small files."""
        visible = self.visible
        if path in visible.refused:
            files, large = copied_tree(descriptor, path, self.opened)
            self.result.files.update(files)
            if large or not files:
                but = "; the small files in it are" if files else ""
                self.result.not_shown[path] = f"{visible.refused[path]}{but}"
        elif below(descriptor, visible.mounts):
            self._show_parts(path, descriptor, by_user=by_user)
        else:
            self._add_layer(path, descriptor, by_user=by_user)

    def _add_layer(self, path: str, descriptor: int, *, by_user: bool) -> None:
        copies = self.visible.copies
        if path not in copies:
            copies[path] = self._make_copies(descriptor, by_user=by_user)
        copied = copies[path]
        self.result.layers[path] = [descriptor] if copied is None else [descriptor, copied]
        self._mark(path, descriptor, is_covered=copied is not None)

    def _make_copies(self, descriptor: int, *, by_user: bool) -> int | None:
        """Copy the files of an open folder that need a copy.

        Returns a descriptor of the folder with the copies; None if no file needs a copy.
        """
        if (part := part_to_copy(descriptor, by_user=by_user)) == "none":
            return None
        cleanup = self.visible.cleanup
        to = cleanup.enter_context(temporary_folder("sbatchgen-plan-")) / "copy"
        to.mkdir()
        copy(descriptor, str(to), only_unknown=part == "some")
        copied = os.open(to, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        cleanup.callback(os.close, copied)
        return copied

    def _mark(self, path: str, descriptor: int, *, is_covered: bool = False) -> None:
        """Record the mark by which the sandbox knows an open folder again.

        The names of all entries mark a folder that copies cover. The first entries mark any other folder.
        """
        most = _MARKING_NAMES if is_covered else _MARKING_ENTRIES
        try:
            at = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
        except OSError:  # the script can't read the folder either
            return
        try:
            with os.scandir(at) as entries:
                first = [entry for entry, _ in zip(entries, range(most), strict=False)]
            compared = []
            for entry in first[:_MARKING_ENTRIES]:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    compared.append((entry.name, status.st_ctime_ns, status.st_ino))
        finally:
            os.close(at)
        if not is_covered or len(first) < most:  # else the folder has more names than the mark may hold
            self.result.marks[path] = compared, [entry.name for entry in first] if is_covered else None

    def _show_parts(self, path: str, descriptor: int, *, by_user: bool) -> None:
        """Show each folder in a folder, because mounts below it allow no layer over the whole."""
        try:
            part = copied_part(descriptor, path)
        except OSError:
            return
        self.result.files.update(part.files if by_user else {path: None})
        if not by_user and not _is_in_one(path, self.result.not_shown):
            self.result.not_shown[path] = "has mounts below; the folders in it are"
        hidden = 0  # folders that are not shown, because there are too many layers
        for name in part.folders:
            inner_path = f"{path}/{name}"
            if inner_path in self.opened:
                continue
            if len(self.result.layers) >= _MAX_LAYERS:
                hidden += 1
                continue
            with suppress(OSError):
                inner = folder_in(descriptor, name)
                self.stack.callback(os.close, inner)
                is_readable = os.access(f"/proc/self/fd/{inner}", os.R_OK | os.X_OK)
                if is_readable and self.visible.allows(inner, by_user=True):
                    self._show(inner_path, inner, by_user)
        if by_user and (part.large or hidden):
            self.result.not_shown[path] = "has mounts below; the folders and small files in it are"

    def _show_unchecked(self, path: str) -> None:
        """Show a folder that is shown whatever the rules say.

        If no layer is possible, the script sees the folder itself, unless that is a danger.
        """
        shown = (*self.result.layers, *self.result.readable, *_PROGRAM_FOLDERS)
        if (descriptor := _folder_descriptor(path)) is None:
            return
        self.stack.callback(os.close, descriptor)
        has_mounts = below(descriptor, self.visible.mounts)
        if path in self.result.files or (_is_in_one(path, shown) and not has_mounts):
            return
        if path == _KERNEL_FACTS:
            self.result.readable[path] = descriptor
        elif path not in self.visible.refused and not has_mounts:
            self.result.layers[path] = [descriptor]
            self._mark(path, descriptor)
        elif why := danger(descriptor):
            self.result.not_shown[path] = why
        else:
            self.result.readable[path] = descriptor


def visible_folders(
    text: str,
    workdir: str,
    by_user: Sequence[str],
    cleanup: ExitStack,
    *,
    home: str,
    user: str,
    unchecked: Sequence[str] = (),
) -> VisibleFolders:
    """Return the folders that a script with this text sees if it starts in `workdir`.

    The folders in `by_user` are shown if the rules allow it, the folders in `unchecked` always. `cleanup`
    closes the descriptors and removes the copies.
    """
    homes: dict[str, int | None] = {}
    for place in (home, account_home()):
        if place.strip("/"):
            homes[os.path.realpath(place)] = descriptor = _folder_descriptor(place)
            if descriptor is not None:
                cleanup.callback(os.close, descriptor)
    visible = VisibleFolders(homes, (), cleanup, tuple(unchecked), mounts=mounts())
    visible = replace(
        visible, by_user=tuple(path for path in by_user if visible.may_be_shown(path, by_user=True))
    )
    links = [target for folder in visible.by_user for target in _link_targets(folder)]
    for name, value in (("HOME", home), ("USER", user)):
        text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
    text = re.sub(r"(?<![\w/])~(?=/)", lambda _: home, text)
    # A path ends at the first variable whose value is not known.
    named = dict.fromkeys(match[0] for match in _PATH.finditer(text))
    return replace(visible.with_paths([workdir, *links, *named]), text=text)


def path_of(path: str) -> str:
    """Return an existing path with its links resolved, without opening the file; "" for a missing path."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        return _real_path(descriptor)
    finally:
        os.close(descriptor)


def _folder_descriptor(path: str) -> int | None:
    """Return a descriptor of a folder, opened with O_PATH; None for any other path."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None


def _real_path(descriptor: int) -> str:
    """Return the path of an open file or folder, without links."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _is_in(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def _is_in_one(path: str, folders: Iterable[str]) -> bool:
    return any(_is_in(path, folder) for folder in folders)


def _link_targets(folder: str) -> Iterator[str]:
    """Yield the paths to which the links in a folder lead."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False):
            if entry.is_symlink():
                yield os.path.realpath(entry.path)
