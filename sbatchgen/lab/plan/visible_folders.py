"""Decides which folders of this machine a script sees in the sandbox, and opens them.

The user chooses some of these folders, and the script names others. A folder with secrets, or with sockets of
other programs, is not shown. A layer in memory over each folder takes the changes that the script makes.
Folders stay open and are named by their descriptors, so that others can't replace them before they are shown.
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
from sbatchgen.lab.plan.copies import (
    Files,
    copy_folder,
    files_to_copy,
    folder_contents,
    open_subfolder,
    tree_contents,
    why_unsafe,
)
from sbatchgen.lab.sandbox.box import Box, LayersRefusedError, Mark

# Folders with secrets or with files of the running system. A script sees nothing in them.
_SECRET_FOLDERS = ("/run", "/proc", "/sys", "/dev", "/etc", "/boot")
_SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - folders that all users write
_KERNEL_FACTS = "/sys"  # shown without a layer, because it has facts of the kernel and no files of users
_PROGRAM_FOLDERS = ("/usr", "/nix", "/gnu")  # folders that each sandbox shows
_SYSTEM_FOLDERS = ("/usr", "/var")  # box.py decides which of their folders a sandbox shows
_MAX_FOLDERS = 64  # the limit for folders that the script names, and for the mounts below each folder
_SANDBOX_STARTS = 4  # starts of a sandbox, each without the layers that the system refused before
_MARK_ENTRIES = 8  # entries in the mark by which the sandbox recognizes a folder
_MARK_NAMES = 5000  # names in the mark of a folder with copies over it
_MAX_LAYERS = 300  # layers of all folders together
_MAX_ENTRIES = 1000  # entries of a folder whose links are followed
# An absolute path in a script, such as /data/train, but not the end of a relative path or a URL.
_PATH = re.compile(r"(?<![\w.:/}])(?:/[\w.+@=-]+)+", re.ASCII)


T = TypeVar("T")


class ShownFolders(NamedTuple):
    """The folders and files of this machine that a sandbox shows."""

    layers: dict[str, list[int]]  # by path: the descriptors of a folder and of the copies over it
    # by path: the mark by which the sandbox recognizes the folder, in case other users have moved it
    marks: dict[str, Mark]
    files: Files  # copies of small files, for folders that can't have a layer
    read_only: dict[str, int]  # by path: the descriptor of a folder that is shown without a layer
    not_shown: dict[str, str]  # by path: the reason why a folder is not shown, or is shown only in parts
    without_layer: frozenset[str]  # folders over which the system allows no layer

    def in_box(self, box: Box) -> Box:
        """Return a box that also shows these folders and files."""
        system_layers = box.system_layers.items()
        return box._replace(
            layered_folders=self.layers,
            marks=self.marks,
            read_only_folders=self.read_only,
            files={**self.files, **box.files},
            system_layers={path: layer for path, layer in system_layers if path not in self.without_layer},
        )


@frozen()
class VisibleFolders:
    """The folders that a script sees, and the rules by which a folder may be shown."""

    # by the path of a home folder: its descriptor, or None if it does not exist; never shown as a whole
    homes: dict[str, int | None]
    chosen_folders: tuple[str, ...]  # folders that the user chose, such as the folder of submission
    cleanup: ExitStack  # closes the descriptors and removes the copies at its end
    always_shown: tuple[str, ...] = ()  # folders that are shown whatever the rules say
    named_folders: tuple[str, ...] = ()  # folders that the script names
    text: str = ""  # the script, with the home folder in place of ~ and $HOME
    # by the path of a folder: the descriptor of the copies over it; None for a folder without copies
    copies: dict[str, int | None] = field(default_factory=dict)
    # by path: the reason why a folder gets no layer; `run` fills it
    layer_refusals: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()  # the mounts of this machine

    def run(self, run_sandbox: Callable[[ShownFolders], T]) -> T:
        """Call `run_sandbox` with the opened folders, and return its result.

        If the system refuses some layers, `run_sandbox` is called again without these layers.
        """
        for attempt in range(_SANDBOX_STARTS):
            with self.open() as shown:
                try:
                    return run_sandbox(shown)
                except LayersRefusedError as error:
                    reason = "others move it" if error.is_moved else "its file system allows no layer"
                    # A file that was made meanwhile may look like a move, so the first move is ignored.
                    if attempt or not error.is_moved:
                        self.layer_refusals.update(dict.fromkeys(error.paths, reason))
        with self.open() as shown:
            return run_sandbox(shown)

    def with_paths(self, paths: Iterable[str]) -> VisibleFolders:
        """Return these folders, and the folders of `paths` that exist and may be shown."""
        folders = dict.fromkeys(self.named_folders)
        for path in paths:
            if len(folders) >= _MAX_FOLDERS:
                break
            if folder := self._outermost_folder(path, [*self.chosen_folders, *folders]):
                folders[folder] = None
        return replace(self, named_folders=tuple(folders))

    def _outermost_folder(self, path: str, shown_folders: Sequence[str]) -> str:
        """Return the outermost folder around a path that may be shown as a whole.

        A folder with mounts below can't be shown as a whole. If all folders around the path have mounts
        below, the innermost of these folders is returned. Returns "" if the path is already shown, does not
        exist, or may not be shown.
        """
        real_path = path_of(path)
        whole_folders = [folder for folder in shown_folders if folder == path or not self._has_mounts(folder)]
        is_in_shown_folder = _is_in_one(path, whole_folders)
        if not real_path or (is_in_shown_folder and _is_in_one(real_path, whole_folders)):
            return ""
        # A path in a shown folder is here a link to a target outside. So the target must be shown.
        parts = (real_path if is_in_shown_folder else os.path.normpath(path)).split("/")[1:]
        outermost = ""
        # The search begins at the second folder: for /data/project/run, at /data/project, not at /data.
        for depth in range(min(2, len(parts)), len(parts) + 1):
            folder = "/" + "/".join(parts[:depth])
            if self.may_be_shown(folder, is_chosen=False):
                outermost = folder
                if not self._has_mounts(folder):
                    break
        return "" if outermost in shown_folders else outermost

    def _has_mounts(self, path: str) -> bool:
        """Return whether other file systems are mounted below a folder."""
        if (descriptor := _folder_descriptor(path)) is None:
            return False
        try:
            return bool(below(descriptor, self.mounts))
        finally:
            os.close(descriptor)

    def may_be_shown(self, path: str, *, is_chosen: bool) -> bool:
        """Return whether a folder exists and may be shown; `is_chosen`: the user chose the folder."""
        descriptor = self.open_folder(path, is_chosen=is_chosen)
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is not None

    def open_folder(self, path: str, *, is_chosen: bool) -> int | None:
        """Return a descriptor of a folder that may be shown; None for any other path."""
        if (descriptor := _folder_descriptor(path)) is None:
            return None
        is_readable = os.access(f"/proc/self/fd/{descriptor}", os.R_OK | os.X_OK)
        if is_readable and self.allows(descriptor, is_chosen=is_chosen):
            return descriptor
        os.close(descriptor)
        return None

    def allows(self, descriptor: int, *, is_chosen: bool) -> bool:  # noqa: PLR0911 - a return for each rule
        """Return whether an open folder may be shown; `is_chosen`: the user chose the folder."""
        path, status = _real_path(descriptor), os.fstat(descriptor)
        # A folder that holds a home, secret or shared folder is not shown.
        if any(_is_in(hidden, path) for hidden in (*self.homes, *_SECRET_FOLDERS, *_SHARED_FOLDERS)):
            return False
        homes = [home for home in self.homes.values() if home is not None]
        if any(within(descriptor, home, self.mounts) is not None for home in homes):
            return False
        is_own, is_shared = status.st_uid == os.getuid(), _is_in_one(path, _SHARED_FOLDERS)
        is_secret = self._is_hidden_at_home(descriptor, homes) or _is_in_one(path, _SECRET_FOLDERS)
        if is_secret and not (is_shared and is_chosen):  # the shared folder /dev/shm is in the secret /dev
            return False
        if is_chosen:
            return is_own or not is_shared
        if is_shared or _is_in_one(path, _SYSTEM_FOLDERS):
            return False
        # Root has no special rights in the sandbox. It enters a folder of another user only if all users can.
        if os.getuid() == 0:
            statuses = [os.stat(folder) for folder in (path, *map(str, PurePath(path).parents))]
            if not all(each.st_uid == 0 or each.st_mode & 0o1 for each in statuses):
                return False
        can_all_read = status.st_mode & 0o5 == 0o5
        return is_own or status.st_uid == 0 or can_all_read

    def _is_hidden_at_home(self, descriptor: int, homes: Sequence[int]) -> bool:
        """Return whether an open folder is in a hidden folder of a home folder, such as ~/.ssh.

        Devices and inodes are also compared, because the home folder may be mounted under a second path.
        """
        path = _real_path(descriptor)
        if any(path.startswith(f"{home}/.") for home in self.homes):
            return True
        if any((within(home, descriptor, self.mounts) or "").startswith(".") for home in homes):
            return True
        home_ids = [(status.st_dev, status.st_ino) for status in map(os.fstat, homes)]
        inner_name = ""  # the name of the folder in `folder` that is around the path, such as .ssh
        for folder in above(path):
            with suppress(OSError):
                status = os.stat(folder)
                if (status.st_dev, status.st_ino) in home_ids and inner_name.startswith("."):
                    return True
            inner_name = folder.rpartition("/")[2]
        return False

    @contextmanager
    def open(self) -> Iterator[ShownFolders]:
        """Open the folders to show; yield their descriptors, which are closed at the end of the block."""
        with ExitStack() as stack:
            yield _Opening(self, stack).open_all()


class _Opening:
    """The opening of visible folders, outer folders first. `open_all` returns them as `ShownFolders`."""

    def __init__(self, visible: VisibleFolders, stack: ExitStack) -> None:
        self.visible, self.stack = visible, stack
        self.result = ShownFolders({}, {}, {}, {}, {}, frozenset(visible.layer_refusals))
        # by the path of a folder to show: its descriptor, and whether the user chose it
        self.opened: dict[str, tuple[int, bool]] = {}

    def open_all(self) -> ShownFolders:
        """Open the folders and return their descriptors."""
        visible = self.visible
        paths = (*visible.named_folders, *visible.chosen_folders)
        # The folders to open, outer folders first: the path, and whether the user chose it.
        queue = sorted((path, path in visible.chosen_folders) for path in {*paths})
        while queue and len(self.opened) < _MAX_LAYERS:
            path, is_chosen = queue.pop(0)
            if (descriptor := visible.open_folder(path, is_chosen=is_chosen)) is None:
                continue
            self.stack.callback(os.close, descriptor)
            real_path = _real_path(descriptor)
            outer_folders = [folder for folder in self.opened if path.startswith(f"{folder}/")]
            is_link = any(
                _real_path(self.opened[folder][0]) + path[len(folder) :] != real_path
                for folder in outer_folders
            )
            # The layer of the outer folder shows the link itself, so the target of the link needs a layer.
            shown_path = real_path if is_link else os.path.normpath(path)
            if shown_path in self.opened:
                continue
            self.opened[shown_path] = descriptor, is_chosen
            # Each mount below the folder needs a layer of its own.
            mount_points = below(descriptor, visible.mounts)[:_MAX_FOLDERS]
            mounted = [path + mount_point[len(real_path) :] for mount_point in mount_points]
            queue = sorted({**dict.fromkeys(mounted, is_chosen), **dict(queue)}.items())
        for path in sorted(self.opened):
            self._show(path, *self.opened[path])
        for path in sorted({*visible.always_shown}):
            self._show_always(path)
        return self.result

    def _show(self, path: str, descriptor: int, is_chosen: bool) -> None:  # noqa: FBT001 - from `opened`
        """Show an open folder by a layer, by its parts, or by copies of its small files."""
        visible = self.visible
        if path in visible.layer_refusals:
            files, omitted_count = tree_contents(descriptor, path, excluded_paths=self.opened)
            self.result.files.update(files)
            if omitted_count or not files:
                exception = "; the small files in it are" if files else ""
                self.result.not_shown[path] = f"{visible.layer_refusals[path]}{exception}"
        elif below(descriptor, visible.mounts):
            self._show_parts(path, descriptor, is_chosen=is_chosen)
        else:
            self._add_layer(path, descriptor, is_chosen=is_chosen)

    def _add_layer(self, path: str, descriptor: int, *, is_chosen: bool) -> None:
        copies = self.visible.copies
        if path not in copies:  # each folder is copied once, however often the sandbox starts
            copies[path] = self._make_copies(descriptor, is_chosen=is_chosen)
        copies_descriptor = copies[path]
        parts = [descriptor] if copies_descriptor is None else [descriptor, copies_descriptor]
        self.result.layers[path] = parts
        self._mark(path, descriptor, has_copies=copies_descriptor is not None)

    def _make_copies(self, descriptor: int, *, is_chosen: bool) -> int | None:
        """Copy the files of an open folder that need a copy.

        Returns a descriptor of the folder with the copies; None if no file needs a copy.
        """
        if (needed_copies := files_to_copy(descriptor, is_chosen=is_chosen)) == "none":
            return None
        cleanup = self.visible.cleanup
        target = cleanup.enter_context(temporary_folder("sbatchgen-plan-")) / "copy"
        target.mkdir()
        copy_folder(descriptor, str(target), only_unknown=needed_copies == "some")
        copies_descriptor = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        cleanup.callback(os.close, copies_descriptor)
        return copies_descriptor

    def _mark(self, path: str, descriptor: int, *, has_copies: bool = False) -> None:
        """Record the mark by which the sandbox recognizes an open folder.

        If the folder has copies over it, its mark also has the names of all entries.
        """
        limit = _MARK_NAMES if has_copies else _MARK_ENTRIES
        try:
            readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
        except OSError:  # the script can't read the folder either
            return
        try:
            with os.scandir(readable) as entries:
                first_entries = [entry for entry, _ in zip(entries, range(limit), strict=False)]
            marked_entries = []
            for entry in first_entries[:_MARK_ENTRIES]:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    marked_entries.append((entry.name, status.st_ctime_ns, status.st_ino))
        finally:
            os.close(readable)
        if not has_copies:
            self.result.marks[path] = marked_entries, None
        elif len(first_entries) < limit:  # these are all entries
            self.result.marks[path] = marked_entries, [entry.name for entry in first_entries]

    def _show_parts(self, path: str, descriptor: int, *, is_chosen: bool) -> None:
        """Show each folder in a folder by itself, because a folder with mounts below can't have a layer."""
        try:
            contents = folder_contents(descriptor, path)
        except OSError:
            return
        self.result.files.update(contents.files if is_chosen else {path: None})
        if not is_chosen and not _is_in_one(path, self.result.not_shown):
            self.result.not_shown[path] = "has mounts below; the folders in it are"
        hidden_count = 0  # folders that are not shown, because there are too many layers
        for name in contents.folder_names:
            inner_path = f"{path}/{name}"
            if inner_path in self.opened:
                continue
            if len(self.result.layers) >= _MAX_LAYERS:
                hidden_count += 1
                continue
            with suppress(OSError):
                inner = open_subfolder(descriptor, name)
                self.stack.callback(os.close, inner)
                is_readable = os.access(f"/proc/self/fd/{inner}", os.R_OK | os.X_OK)
                if is_readable and self.visible.allows(inner, is_chosen=True):
                    self._show(inner_path, inner, is_chosen)
        if is_chosen and (contents.large_count or hidden_count):
            self.result.not_shown[path] = "has mounts below; the folders and small files in it are"

    def _show_always(self, path: str) -> None:
        """Show a folder whatever the rules say.

        If the folder can't have a layer, the script sees the folder itself, read-only, unless it is unsafe.
        """
        shown_folders = (*self.result.layers, *self.result.read_only, *_PROGRAM_FOLDERS)
        if (descriptor := _folder_descriptor(path)) is None:
            return
        self.stack.callback(os.close, descriptor)
        has_mounts = below(descriptor, self.visible.mounts)
        if path in self.result.files or (_is_in_one(path, shown_folders) and not has_mounts):
            return
        if path == _KERNEL_FACTS:
            self.result.read_only[path] = descriptor
        elif path not in self.visible.layer_refusals and not has_mounts:
            self.result.layers[path] = [descriptor]
            self._mark(path, descriptor)
        elif reason := why_unsafe(descriptor):
            self.result.not_shown[path] = reason
        else:
            self.result.read_only[path] = descriptor


def visible_folders(
    text: str,
    workdir: str,
    chosen_folders: Sequence[str],
    cleanup: ExitStack,
    *,
    home: str,
    user: str,
    always_shown: Sequence[str] = (),
) -> VisibleFolders:
    """Return the folders that a script with this text sees if it starts in `workdir`.

    The rules decide which of `chosen_folders` are shown. The folders in `always_shown` are shown whatever the
    rules say. `cleanup` closes the descriptors and removes the copies at its end.
    """
    homes: dict[str, int | None] = {}
    for path in (home, account_home()):
        if path.strip("/"):
            homes[os.path.realpath(path)] = descriptor = _folder_descriptor(path)
            if descriptor is not None:
                cleanup.callback(os.close, descriptor)
    visible = VisibleFolders(homes, (), cleanup, tuple(always_shown), mounts=mounts())
    chosen = tuple(path for path in chosen_folders if visible.may_be_shown(path, is_chosen=True))
    visible = replace(visible, chosen_folders=chosen)
    links = [target for folder in visible.chosen_folders for target in _link_targets(folder)]
    for name, value in (("HOME", home), ("USER", user)):
        text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
    text = re.sub(r"(?<![\w/])~(?=/)", lambda _: home, text)
    # A path ends at a variable of unknown value: /data/$NAME/train names /data.
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
