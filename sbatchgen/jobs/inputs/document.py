"""The strict reader of YAML files: it makes a dataclass of a text, and notes the place of every key.

The type of a field decides what a scalar means. YAML 1.1 does not: `24:00:00`, `no` and `010` stay text if
the field is a text. One error reports all problems of a file.
"""

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin

from yaml import MappingNode, Node, ScalarNode, SequenceNode

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError, did_you_mean, nearest
from sbatchgen.base.frozen import frozen
from sbatchgen.base.keys import key_of, keys_of, without_none
from sbatchgen.base.units import RefusedValueError, whole_number
from sbatchgen.jobs.inputs.yaml_nodes import Problems, compose, is_nothing, is_null, line_of, shortened

T = TypeVar("T")

MAX_BYTES = 1 << 20  # of a file
MAX_KEY = 200  # characters of a key
_BOOLS = {"true": True, "false": False}


@frozen(eq=False)
class Document(Generic[T]):
    """A decoded file, and the place of each of its keys: "options.nodes" -> "job.yaml:4"."""

    value: T
    places: Mapping[str, str]


def read_document(
    path: Path, kind: type[T], text: str | None = None, *, folder: Path = Path()
) -> Document[T]:
    """Return the file as the dataclass `kind`. `text` replaces the file's text, for example in an editor.

    `path` is relative to `folder`, which is by default the current folder. Messages show `path` as it is.

    Raises DocumentError: the file can't be read, is not YAML, or does not fit the dataclass.
    """
    return decode(_text(path, folder) if text is None else text, kind, name=str(path))


def _text(path: Path, folder: Path) -> str:
    """Return the text of a UTF-8 file in a folder; raises DocumentError if it can't be read."""
    try:
        data = files.read_file(folder / path, MAX_BYTES)
    except OSError as error:
        what = f"can't read {path}: {error.strerror or error}"
        fix = "name a profile or a job" if error.errno == errno.EFBIG else ""
        raise DocumentError.of(what, fix=fix) from error
    try:
        return data.decode()  # with a byte order mark, if there is one, which `compose` removes
    except UnicodeDecodeError as error:
        is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        what = "the file is UTF-16" if is_utf16 else f"byte {data[error.start]:#04x} is not UTF-8"
        line = data.count(b"\n", 0, error.start) + 1
        fix = f"save it as UTF-8: iconv -f {'UTF-16' if is_utf16 else 'LATIN1'} -t UTF-8 FILE > NEW"
        raise DocumentError.of(what, at=f"{path}:{line}", fix=fix) from error


def decode(text: str, kind: type[T], *, name: str) -> Document[T]:
    """Return the text as the dataclass `kind`. Errors call the file `name`. Raises like `read_document`."""
    problems = Problems(name)
    decoder = _Decoder(problems)
    value = decoder.decode(compose(text, problems), kind, "")
    if problems.count:
        raise problems.error()
    if hasattr(value, "places"):
        value.places = decoder.places
    return Document(value, decoder.places)


class _Entry(NamedTuple):
    """A key of a mapping, with its value."""

    path: str  # the keys that lead to the value: "options.nodes"
    key: str
    key_node: Node
    value_node: Node


class _Decoder:
    """Decodes the nodes of a document by the types of a dataclass's fields.

    For a node of a wrong kind, a method `decode_...` adds a problem and returns None or an empty value.
    `path` has the keys that lead to the node, such as "options.nodes".
    """

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.places: dict[str, str] = {}

    def add_problem(self, node: Node, what: str, fix: str | Callable[[], str] = "") -> None:
        """Add a problem at a node."""
        self.problems.add(line_of(node), what, fix)

    def decode(self, node: Node, kind: Any, path: str) -> Any:
        """Return the value of a node by its type: a dataclass, tuple, Mapping or a type of scalars."""
        kind = without_none(kind)
        origin, arguments = get_origin(kind), get_args(kind)
        if is_dataclass(kind):
            return self.decode_record(node, kind, path)
        if origin is tuple:
            return self.decode_list(node, arguments[0], path)
        if origin is Mapping:
            return self.decode_mapping(node, arguments[0], arguments[1], path)
        return self.decode_scalar(node, kind, path)

    def entries(self, node: Node, path: str, expected: str) -> Iterator[_Entry]:
        """Yield the entries of a mapping, and note the place of each key.

        `expected` describes the mapping in the problem of a node that is not a mapping.
        """
        if not isinstance(node, MappingNode):
            below = f", indented below {_last_key(path)}:" if path else ""
            self.add_problem(
                node, f"{path or 'the file'} must be {expected}", f"write lines KEY: VALUE{below}"
            )
            return
        lines: dict[str, int] = {}  # key -> its line
        for key, value in node.value:
            text = key.value
            if not isinstance(key, ScalarNode):
                self.add_problem(key, f"a key of {path or 'the file'} must be a plain word")
            elif text == "<<" and not key.style:
                self.add_problem(
                    key, "the merge key << is not supported", "write out the keys that it replaces"
                )
            elif len(text) > MAX_KEY:
                self.add_problem(key, f"a key is longer than {MAX_KEY} characters: '{text[:20]}...'")
            elif text in lines:
                what = f"duplicate key '{text}' (first on line {lines[text]})"
                self.add_problem(key, what, "keep one of them")
            else:
                lines[text] = line_of(key)
                key_path = f"{path}.{text}" if path else text
                self.places[key_path] = f"{self.problems.file}:{lines[text]}"
                yield _Entry(key_path, text, key, value)

    def decode_record(self, node: Node, kind: Any, path: str) -> Any:
        """Return a mapping as the dataclass `kind`."""
        known = keys_of(kind)
        values: dict[str, Any] = {}
        problems_before = self.problems.count
        where = f" in {path}" if path else ""
        for entry in self.entries(node, path, "a mapping of keys to values"):
            field = key_of(kind, entry.key)
            if field and field.name in values:  # `KEY` and `KEY+` are one field
                name = entry.key.rstrip("+")
                self.add_problem(entry.key_node, f"both {name} and {name}+{where}", "keep one of them")
            elif field:
                values[field.name] = self.decode(entry.value_node, field.type, entry.path)
            else:
                fix = partial(_fix_for_unknown_key, entry.key, entry.value_node, kind)
                self.add_problem(entry.key_node, f"unknown key '{entry.key}'{where}", fix)
        missing = [name for name, field in known.items() if is_required(field) and field.name not in values]
        for name in missing:
            self.add_problem(node, f"missing key '{name}'{where}", f"add {name}:")
        if missing:
            return None
        record = kind(**values)
        has_valid_values = self.problems.count == problems_before
        if isinstance(node, MappingNode) and has_valid_values and hasattr(record, "faults"):
            self.add_faults(node, record, path)
        return record

    def add_faults(self, node: MappingNode, record: Any, path: str) -> None:
        """Add the problems of values that contradict each other, which the record's method `faults` finds."""
        keys = {key.value: key for key, _ in node.value}
        for key, what, fix in record.faults():
            self.add_problem(keys.get(key, node), f"{path}.{key}: {what}" if path else f"{key}: {what}", fix)

    def decode_list(self, node: Node, kind: Any, path: str) -> tuple[Any, ...]:
        """Return a list, each of its items as a `kind`."""
        if not isinstance(node, SequenceNode):
            self.add_problem(node, f"{path} must be a list", f"write {_last_key(path)}: [...]")
            return ()
        return tuple(self.decode(item, kind, f"{path}[{index}]") for index, item in enumerate(node.value))

    def decode_mapping(self, node: Node, key_kind: Any, kind: Any, path: str) -> dict[Any, Any]:
        """Return a mapping, each of its names as a `key_kind` and each of its values as a `kind`."""
        values = {}
        for entry in self.entries(node, path, "a mapping of names to values"):
            name = self.decode_scalar(entry.key_node, key_kind, entry.path)
            is_none = type(None) in get_args(kind) and is_null(entry.value_node)
            values[name] = None if is_none else self.decode(entry.value_node, kind, entry.path)
        return values

    def decode_scalar(self, node: Node, kind: Any, path: str) -> Any:
        """Return a single value as a `kind`."""
        if not isinstance(node, ScalarNode):
            # A list for an option of sbatch, such as [a100, h100], is probably meant as a100,h100.
            items = [item.value for item in node.value] if isinstance(node, SequenceNode) else []
            can_join = path.startswith("options.") and all(isinstance(item, str) for item in items)
            value = ",".join(items) if items and can_join else "VALUE"
            self.add_problem(node, f"{path} must be a single value", f"write {_last_key(path)}: {value}")
        elif is_nothing(node):
            self.add_problem(node, f"{path} has no value", "give it one, or remove the key")
        else:
            try:
                return parse_scalar(node.value, kind)
            except ValueError as error:
                fix = getattr(error, "fix", "")
                fix = f"write {_last_key(path)}: N" if str(error).endswith("whole number") else fix
                meant = _MEANT_VALUES.get(node.value, "")
                if get_origin(kind) is Literal:
                    meant = meant if meant in get_args(kind) else nearest(node.value, get_args(kind))
                    fix = f"did you mean '{meant}'?" if meant else ""
                self.add_problem(node, f"{path}: {error}", fix)
        return None


# Values that people write, each with the value that they probably mean: `runtime: docker` means apptainer.
_MEANT_VALUES = {
    "singularity": "apptainer",
    "docker": "apptainer",
    "pyxis": "enroot",
    "mamba": "conda",
    "none": "host",
}


def is_required(field: Field[Any]) -> bool:
    """Return whether a key must be set, because it has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def _fix_for_unknown_key(key: str, value: Node, kind: Any) -> str:
    """Return a fix for an unknown key of a record: the place where the key belongs, or the key that is meant.

    The class of a record may list fixes for words that people often write (OTHER_WORDS), and reasons why a
    key does not belong here (NOT_HERE).
    """
    name, known = key.replace("-", "_").lower(), keys_of(kind)
    text = value.value if isinstance(value, ScalarNode) else "..."
    if name in known:
        return f"write {name}:"
    if meant := getattr(kind, "OTHER_WORDS", {}).get(name):
        return f"write {meant.replace('VALUE', text).replace('KEY', name.replace('_', '-'))}"
    if why := getattr(kind, "NOT_HERE", {}).get(name):
        return str(why)
    for holder, field in known.items():
        inner = without_none(field.type)
        if is_dataclass(inner) and name in keys_of(inner):
            return f"write {holder}: {{{name}: {text}}}"
    schema = getattr(kind, "SCHEMA", "")
    return did_you_mean(key, known) if not schema or nearest(key, known) else f"{schema} shows the keys"


def _last_key(path: str) -> str:
    """Return the last key of a path: "options.nodes" -> "nodes"."""
    return path.rsplit(".", maxsplit=1)[-1]


def parse_scalar(text: str, kind: Any) -> Any:
    """Return the text as a `kind`: str, int, bool, a Literal of words, or a type that has a method `parse`.

    Raises ValueError with one sentence about the expected value, and perhaps a fix (RefusedValueError).
    """
    if get_origin(kind) is Literal and text not in get_args(kind):
        raise ValueError(shortened(f"'{text}' is not one of {', '.join(get_args(kind))}"))
    if kind is bool and text not in _BOOLS:
        raise ValueError(shortened(f"'{text}' is not true or false"))
    if kind is bool:
        return _BOOLS[text]
    try:
        if hasattr(kind, "parse"):
            return kind.parse(text)
        return whole_number(text) if kind is int else text
    except ValueError as error:
        raise RefusedValueError(shortened(str(error)), getattr(error, "fix", "")) from error


def parse_value(text: str, kind: Any) -> Any:
    """Return the text as a `kind`. A list is written as [A, B]; a list of one item also as the item alone.

    Raises ValueError with one sentence about the expected value.
    """
    if get_origin(kind) is not tuple:
        return parse_scalar(text, kind)
    if not text.startswith("["):
        return (parse_scalar(text, get_args(kind)[0]),)
    problems = Problems("")
    try:
        value = _Decoder(problems).decode(compose(text, problems), kind, "the list")
    except DocumentError as error:
        raise ValueError(error.problems[0].what) from error
    if problems.count:
        raise ValueError(problems.error().problems[0].what)
    return value


def as_data(value: Any) -> Any:
    """Return the values of a record as JSON data, without keys that have their default."""
    if is_dataclass(value):
        known = keys_of(value)
        values = {name: as_data(getattr(value, field.name)) for name, field in known.items()}
        defaults = {
            name: as_data(field.default if field.default_factory is MISSING else field.default_factory())
            for name, field in known.items()
            if not is_required(field)
        }
        return {name: data for name, data in values.items() if name not in defaults or data != defaults[name]}
    if isinstance(value, Mapping):
        return {str(key): as_data(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [*map(as_data, value)]
    if value is None or isinstance(value, bool):
        return value
    is_number = isinstance(value, int) and str(value).isdecimal()  # a Duration prints as HH:MM:SS
    return int(value) if is_number else str(value)
