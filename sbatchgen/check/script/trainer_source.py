"""Facts about the user's trainer from the source of its modules, which are read, and never imported or run.

A fact counts only if the source proves it. Many facts are unknown if the trainer imports a package that
packages.txt does not list.
"""

import ast
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.base.quoting import CODE
from sbatchgen.check.executables.word_table import rows
from sbatchgen.check.script.own_options import accepted_options
from sbatchgen.check.script.rank_need import RankNeed, first_rank_need
from sbatchgen.check.script.saved_files import SavedFile, called_name, saved_files
from sbatchgen.check.script.trainer_name import trainer_is_file

MAX_BYTES = 1 << 19  # bytes of the largest module that is read
MODULES_MAX = 100  # modules of a trainer that are read

# Kind of package, such as "plain" -> the names of packages. packages.txt explains the kinds.
_PACKAGES = {kind: frozenset(names.split()) for kind, names in rows(__file__, "packages.txt")}
WELL_KNOWN_PACKAGES = _PACKAGES["plain"] | _PACKAGES["frameworks"] | _PACKAGES["loading"]
_LIGHTNING = ("lightning", "pytorch_lightning")
_STDLIB = sys.stdlib_module_names - _PACKAGES["hidden"]  # without modules that may do anything
# Packages that do not set RANK and the other variables of a rank.
_RANKLESS_PACKAGES = _PACKAGES["plain"] | _PACKAGES["frameworks"] | sys.stdlib_module_names
# The patterns below search TrainerSource.words. Each line is a name or a text of the source. The name of
# a call ends with "(".

# Calls that may run code that the modules do not show.
_DYNAMIC = re.compile(r"(?m)^(?:__import__|exec|eval|system|popen|fork|exec[lv]p?e?|posix_spawn\w*)\(")
# Words that a trainer has if it knows of other processes.
_GROUP_SIGN = re.compile(
    r"(?i)distribut|ddp|fsdp|rank|world_?size|slurm|process_group|nccl|gloo|\bmpi|pmi_|multiprocessing"
)
# Words that a trainer has if it saves something.
_SAVE_SIGN = re.compile(
    r"(?im)save|saving|dump|checkpoint|ckpt|write_|^write\b|snapshot|to_(?:csv|json|pickle|parquet|hdf)"
    r"|export|h5py|sqlite|shelve|artifact|copyfile|memmap|tofile"
)
# Calls and arguments of torch, safetensors, Accelerate, Lightning and the Trainer of transformers that load a
# checkpoint.
_LOAD_CALL = re.compile(
    r"(?m)^(?:load_(?:state_dict|state|model|weights|checkpoint|from_checkpoint|file)\(|safe_open\(|ckpt_path$"
    r"|set_\w*state_dict\(|resume_from_checkpoint$|get_last_checkpoint)"
)
# Names that may load a checkpoint, and ways to set single weights.
_LOAD_SIGN = re.compile(
    r"(?im)resum|restor|continu|load_(?!data|digits|iris|wine|breast|diabetes)|^copy_\(|functional_call"
    r"|auto_requeue|LightningCLI|torch\.distributed\.checkpoint"
)
# Calls that read a model, data, or the text or bytes of a file, which an earlier start may have written.
_READ_CALL = re.compile(
    r"(?im)^(?!DataLoader)\w*load\w*\(|^from_pretrained|^read_(?:text|bytes)\(|^opens to read$"
)
# Options that take a checkpoint.
_RESUME_OPTION = re.compile(r"(?m)^--(?:resume(?:[-_]from(?:[-_]checkpoint)?)?|(?:ckpt|checkpoint)[-_]path)$")
# A call that reads the state of a model. Only load_state_dict, a _LOAD_CALL, can give such a state back.
_STATE_CALL = re.compile(r"(?m)^state_dict\(")
_FIT_CALL = re.compile(r"(?m)^(?:\w*Trainer|fit\()$")  # calls of Lightning and transformers that train
# Variables and files by which a trainer asks the rendered script for a restart.
_RESTART_REQUEST = re.compile(r"SBATCHGEN_|(?m:^(?:\S*/)?again$)")
# Names that a trainer has if it takes its rank from a launcher.
_RANK_SIGN = re.compile(
    r"(?m)^(?:RANK|LOCAL_RANK|WORLD_SIZE|SLURM_\w+|OMPI_\w+|PMI_\w+)$|env://|local[_-]rank"
)
# The variables from which torch takes a rank, and other places from which a trainer may take its rank.
_RANK_SOURCES = re.compile(r"(?m)^RANK$|env://")
_OTHER_RANK_SOURCES = re.compile(
    r"(?i)slurm_procid|ompi_comm|pmix?_rank|mpi4py|spawn|ArgumentParser[\s\S]*^--(?:global[-_])?rank$",
    re.MULTILINE,
)


@frozen()
class TrainerSource:
    """The facts about a trainer that the source of its modules shows."""

    # The first parts of the names of imported packages, without modules in the folder of the trainer.
    packages: frozenset[str] = frozenset()
    # The names and texts in the modules, one per line. The name of a call ends with "(".
    words: str = ""
    calls_spawn: bool = False  # whether the modules call torch.multiprocessing.spawn
    is_complete: bool = True  # whether all modules of the trainer could be read
    saved_files: tuple[SavedFile, ...] = ()  # the files with fixed names into which the modules save
    # The arguments of each call of Lightning's Trainer(), such as devices. None stands for another value than
    # a positive number.
    trainer_calls: tuple[Mapping[str, int | None], ...] = ()
    # The trainer's options, if its parser certainly refuses other options; else None.
    options: frozenset[str] | None = None
    rank_need: RankNeed | None = None  # the place where the trainer certainly fails without a rank
    files: tuple[Path, ...] = ()  # the modules that could be read

    @cached_property
    def _is_plain(self) -> bool:
        """Whether the source shows all that the trainer does: no unknown package, and no hidden code."""
        is_known = self.packages <= _PACKAGES["plain"] | _STDLIB
        return self.is_complete and is_known and not _DYNAMIC.search(self.words)

    @property
    def lacks_signal_handlers(self) -> bool:
        """Whether the trainer certainly handles no signal."""
        return self._is_plain and "signal" not in self.words

    @property
    def loses_data_workers(self) -> bool:
        """Whether the trainer handles TERM itself, but TERM ends its processes that load data."""
        handles_term = re.search(r"(?m)^signal\(", self.words) and "SIGTERM" in self.words
        has_workers = re.search(r"(?m)^DataLoader\(", self.words) and "num_workers" in self.words
        return bool(self.is_complete and handles_term and has_workers and "worker_init_fn" not in self.words)

    @property
    def trains_alone(self) -> bool:
        """Whether the trainer certainly knows nothing of other processes."""
        return self._is_plain and not _GROUP_SIGN.search(self.words)

    @property
    def takes_rank_from_variables(self) -> bool:
        """Whether the trainer certainly takes its rank only from RANK and WORLD_SIZE."""
        words = self.words
        return self._is_plain and bool(_RANK_SOURCES.search(words)) and not _OTHER_RANK_SOURCES.search(words)

    @property
    def spawns_always(self) -> bool:
        """Whether the trainer starts its own processes, and certainly takes no rank from a launcher."""
        return self.is_complete and self.calls_spawn and not _RANK_SIGN.search(self.words)

    @property
    def saves_nothing(self) -> bool:
        """Whether the trainer certainly writes no checkpoint."""
        may_save = _SAVE_SIGN.search(self.words) or _RESTART_REQUEST.search(self.words)
        return self._is_plain and not may_save

    @cached_property
    def loads_checkpoint(self) -> bool | None:
        """Whether the trainer loads the checkpoint of an earlier start; None if unknown."""
        if _LOAD_CALL.search(self.words):
            return True
        known = _PACKAGES["plain"] | _PACKAGES["loading"] | _STDLIB
        may_hide_load = not self.is_complete or self.packages - known or _DYNAMIC.search(self.words)
        if may_hide_load or _LOAD_SIGN.search(self.words):
            return None
        # A library that trains loads a checkpoint only if a call asks for one, and no call does.
        leaves_to_library = self.packages & _PACKAGES["loading"] and _FIT_CALL.search(self.words)
        saves_state = _STATE_CALL.search(self.words)
        reads_nothing = not _READ_CALL.search(self.words)
        return False if leaves_to_library or saves_state or reads_nothing else None

    @property
    def lightning_size(self) -> Mapping[str, int]:
        """The numbers `devices` and `num_nodes` of Lightning's Trainer; {} if other code may change them."""
        if len(self.trainer_calls) != 1 or not self.is_complete or "LightningCLI" in self.words:
            return {}
        numbers = {"num_nodes": 1, **self.trainer_calls[0]}  # Lightning takes one node by default
        if "**" in numbers:  # a mapping, which may hold any argument
            return {}
        sizes = {name: numbers.get(name) for name in ("devices", "num_nodes")}
        return {name: value for name, value in sizes.items() if value}

    @property
    def never_loads(self) -> bool:
        """Whether the trainer saves, but certainly begins at the first step each time."""
        return self.loads_checkpoint is False and not self.saves_nothing

    @property
    def lines_that_load(self) -> str:
        """The lines that load a checkpoint with the trainer's libraries, as printed below a fix."""
        if "transformers" in self.packages:
            return (
                f"{CODE}trainer.train(resume_from_checkpoint=os.path.isdir(OUT) and get_last_checkpoint(OUT))"
            )
        if not self.packages.isdisjoint(_LIGHTNING):
            return f'{CODE}trainer.fit(..., ckpt_path="last")  # and ModelCheckpoint(FOLDER, save_last=True)'
        file = f'"{self.saved_files[0].name}"' if len(self.saved_files) == 1 else "FILE"
        lines = (
            f"if os.path.exists({file}):",
            f"    state = torch.load({file})",
            '    model.load_state_dict(state["model"])',
            '    first = state["epoch"] + 1',
            f'# of torch.save({{"model": model.state_dict(), "epoch": epoch}}, {file})',
        )
        return CODE + CODE.join(lines)

    @property
    def resume_fix(self) -> str:
        """The fix for a job that never resumes its trainer: keys for the trainer's --resume, or an option."""
        option = _RESUME_OPTION.search(self.words)
        keys = f'set checkpoint, and resume_args: [{option[0]}, "{{checkpoint}}"]' if option else ""
        return keys or "add --requeue-on-timeout, if the trainer finds its checkpoint by itself"

    @property
    def never_asks_for_restart(self) -> bool:
        """Whether the trainer certainly never asks the rendered script for a restart."""
        known = _PACKAGES["plain"] | _PACKAGES["frameworks"] | _STDLIB | {"multiprocessing"}
        is_known = self.is_complete and self.packages <= known and not _DYNAMIC.search(self.words)
        return is_known and not _RESTART_REQUEST.search(self.words)

    @property
    def needs_torch(self) -> bool:
        """Whether the trainer imports torch."""
        return "torch" in self.packages


def read_trainer(trainer: str, folder: Path) -> TrainerSource | None:
    """Return the source of a trainer; None if its main module can't be read as Python.

    `trainer` is a file or the name of a module, as Python finds it if it is started in the folder.
    """
    is_file = trainer_is_file(trainer)
    parts = trainer.split(".")
    if is_file:
        main_file: Path | None = folder / trainer
    else:
        main_file = _module_file(folder, [*parts, "__main__"]) or _module_file(folder, parts)
    reader = _Reader(root=main_file.parent if is_file and main_file else folder)
    if main_file is None or not reader.read(main_file):
        return None
    if not is_file:
        reader.add_import(folder, parts)
    while reader.modules_to_read and len(reader.seen) <= MODULES_MAX:
        if not reader.read(reader.modules_to_read.pop()):
            reader.is_complete = False
    words, packages = "\n".join(reader.words), frozenset(reader.packages)
    is_complete = reader.is_complete and not reader.modules_to_read
    # After a chdir, the names of files mean other files.
    changes_folder = re.search(r"(?m)^chdir\($", words)
    parses_options = "argparse" in packages and packages <= _PACKAGES["plain"] | sys.stdlib_module_names
    shows_options = is_complete and parses_options and not _DYNAMIC.search(words)
    shows_rank = is_complete and packages <= _RANKLESS_PACKAGES
    return TrainerSource(
        options=accepted_options(reader.trees.values()) if shows_options else None,
        packages=packages,
        words=words,
        calls_spawn=reader.calls_spawn,
        is_complete=is_complete,
        saved_files=() if changes_folder else tuple(dict.fromkeys(reader.saved_files)),
        trainer_calls=tuple(reader.trainer_calls),
        files=tuple(reader.trees),
        rank_need=first_rank_need(main_file, reader.trees) if shows_rank else None,
    )


def _module_file(folder: Path, parts: list[str]) -> Path | None:
    """Return the file of a module below a folder; None if no file has its name."""
    path = folder.joinpath(*parts)
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


@dataclass
class _Reader:
    """Reads the modules of a trainer, one after the other, and collects the facts of a TrainerSource.

    Attributes without a comment are as in TrainerSource.
    """

    root: Path  # the folder where Python looks first for modules
    packages: set[str] = field(default_factory=set)
    words: list[str] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)  # the modules that were read, also without success
    modules_to_read: list[Path] = field(default_factory=list)
    saved_files: list[SavedFile] = field(default_factory=list)
    trees: dict[Path, ast.Module] = field(
        default_factory=dict
    )  # module that could be read -> its syntax tree
    trainer_calls: list[Mapping[str, int | None]] = field(default_factory=list)
    calls_spawn: bool = False
    is_complete: bool = True

    def read(self, file: Path) -> bool:
        """Collect the facts of a file; return False if the file is not Python, or too large."""
        self.seen.add(file)
        try:
            text = files.read_file(file, MAX_BYTES)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return False
        self.trees[file] = tree
        self.saved_files += saved_files(tree)
        # The key in os.environ["RANK"] = "0" is no word, as the program does not read the variable there.
        assigned_keys = {*_assigned_key_ids(tree)}
        self.trainer_calls += _trainer_calls(tree)
        for node in ast.walk(tree):
            if id(node) in assigned_keys:
                continue
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.add_import(self.root, alias.name.split("."))
            elif isinstance(node, ast.ImportFrom):
                self._add_imports_from(node, file)
            else:
                self.words += _words(node)
                self.calls_spawn |= _is_spawn(node)
        return True

    def _add_imports_from(self, node: ast.ImportFrom, file: Path) -> None:
        """Record the imports of `from MODULE import NAMES` in a file."""
        parts = node.module.split(".") if node.module else []
        folder = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else self.root
        for alias in node.names:
            self.calls_spawn |= node.module == "torch.multiprocessing" and alias.name == "spawn"
            self.words.append(alias.name)
            self.add_import(folder, [*parts, alias.name], is_relative=node.level > 0)

    def add_import(self, folder: Path, parts: list[str], *, is_relative: bool = False) -> None:
        """Record an import of the name `parts`: as modules to read below the folder, or as a package.

        `is_relative` is true for an import such as `from . import x`, which never imports a package.
        """
        # For a.b.c, Python loads a, a.b and a.b.c.
        candidates = [_module_file(folder, parts[:count]) for count in range(1, len(parts) + 1)]
        local_files = [file for file in candidates if file]
        if not local_files and not is_relative and not (folder / parts[0]).is_dir():
            self.packages.add(parts[0])
            self.words.append(".".join(parts))
        elif not local_files:  # a module of the trainer that was not found
            self.is_complete = False
        known = (*self.seen, *self.modules_to_read)
        self.modules_to_read += [file for file in local_files if file not in known]


def _assigned_key_ids(tree: ast.AST) -> Iterator[int]:
    """Yield the id() of each node that is an assigned key, such as "RANK" in os.environ["RANK"] = "0"."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                yield id(target.slice)


def _words(node: ast.AST) -> Iterator[str]:
    """Yield the names and texts in a node, without its children, as TrainerSource.words has them."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.keyword | ast.arg):
        yield node.arg or ""
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Call):
        name = called_name(node)
        if name != "eval" or isinstance(node.func, ast.Name):  # not model.eval()
            yield f"{name}("
        if name == "open":
            yield "save" if _may_write(node) else "opens to read"


def _may_write(node: ast.Call) -> bool:
    """Return whether open(FILE, MODE) or FILE.open(MODE) may open a file for writing."""
    modes = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg in ("mode", None))]
    if any(not isinstance(mode, ast.Constant) for mode in modes):
        return True  # the program computes the mode
    modes += node.args[:1] if isinstance(node.func, ast.Attribute) else []  # the MODE of FILE.open(MODE)
    texts = [str(mode.value) for mode in modes if isinstance(mode, ast.Constant)]
    # A text of other letters is not a mode, but for example an encoding.
    return any(re.fullmatch("[rwaxbt+]*", text) and {*text} & {*"wax+"} for text in texts)


def _trainer_calls(tree: ast.AST) -> Iterator[dict[str, int | None]]:
    """Yield the arguments of each call of Lightning's Trainer in a module, as `trainer_calls` has them."""
    modules, classes = set(), set()  # the module's names for Lightning, and for its Trainer
    for node in ast.walk(tree):
        is_lightning = (
            isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _LIGHTNING
        )
        if not (is_lightning or isinstance(node, ast.Import)):
            continue
        for alias in node.names:  # type: ignore[attr-defined]
            if is_lightning and alias.name == "Trainer":
                classes.add(alias.asname or alias.name)
            elif is_lightning or alias.name.partition(".")[0] in _LIGHTNING:
                modules.add(alias.asname or alias.name.partition(".")[0])
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            is_attribute = isinstance(function, ast.Attribute) and function.attr == "Trainer"
            owner = ast.unparse(function).partition(".")[0] if is_attribute else ""
            if owner in modules or (isinstance(function, ast.Name) and function.id in classes):
                yield _keyword_numbers(node)


def _keyword_numbers(call: ast.Call) -> dict[str, int | None]:
    """Return the keyword arguments of a call; None for a value that is not a positive number.

    The name "**" stands for a mapping of arguments.
    """
    values = {keyword.arg or "**": getattr(keyword.value, "value", None) for keyword in call.keywords}
    return {name: value if type(value) is int and value > 0 else None for name, value in values.items()}


def _is_spawn(node: ast.AST) -> bool:
    """Return whether a node is mp.spawn(...) or torch.multiprocessing.spawn(...)."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    module = node.func.value
    is_module = getattr(module, "id", "") == "mp" or getattr(module, "attr", "") == "multiprocessing"
    return node.func.attr == "spawn" and is_module
