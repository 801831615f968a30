"""YAML text -> dataclass, strict, with the file and line of every value.

The type of a field decides what a scalar means, not YAML 1.1: `24:00:00`, `no` and `010` stay text where
text is wanted. All problems of a file are reported at once.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin

from sbatchgen import files
from sbatchgen.errors import DocumentError, did_you_mean
from sbatchgen.inputs.nodes import (
    MappingNode,
    Node,
    Problems,
    ScalarNode,
    SequenceNode,
    compose,
    cut,
    is_nothing,
)
from sbatchgen.keys import keys_of
from sbatchgen.units import whole_number

T = TypeVar("T")

MAX_BYTES = 1 << 20
MAX_KEY = 200  # characters
_BOOLS = {"true": True, "false": False}


@dataclass(eq=False, repr=False)
class Document(Generic[T]):
    """A decoded file, and the place of each of its values: "options.nodes" -> "job.yaml:4"."""

    value: T
    places: Mapping[str, str]


def read(path: Path, kind: type[T]) -> Document[T]:
    """The file as a `kind`, a dataclass.

    Raises:
        DocumentError: It can't be read, is not YAML, or does not fit the dataclass.
    """
    return decode(_text(path), kind, name=str(path))


def _text(path: Path) -> str:
    try:
        data = files.read(path, MAX_BYTES + 1)
    except OSError as error:
        raise DocumentError.of(f"can't read {path}: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        what = f"{path} is larger than {MAX_BYTES >> 20} MiB: is it the right file?"
        raise DocumentError.of(what, fix="name a profile or a job")
    try:
        return data.decode()  # `compose` removes the byte order mark
    except UnicodeDecodeError as error:
        utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        found, encoding = (
            ("it is UTF-16", "UTF-16") if utf16 else (f"byte {data[error.start]:#04x}", "LATIN1")
        )
        line = data[: error.start].count(b"\n") + 1
        fix = f"save it as UTF-8: iconv -f {encoding} -t UTF-8 FILE > NEW"
        raise DocumentError.of(f"the file is not UTF-8: {found}", at=f"{path}:{line}", fix=fix) from error


def decode(text: str, kind: type[T], *, name: str) -> Document[T]:
    """The text as a `kind`; `name` is what errors call the file.

    Raises:
        DocumentError: It is not YAML, or does not fit the dataclass.
    """
    problems = Problems(name)
    root = compose(text, problems)
    decoder = _Decoder(problems)
    value = decoder.decode(root, kind, "")
    if problems.count:
        raise problems.error()
    return Document(value, decoder.places)


class _Decoder:
    """One walk over the nodes of a document and the types of a dataclass; None stands for what failed."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.places: dict[str, str] = {}

    def place(self, node: Node) -> str:
        return f"{self.problems.name}:{node.line}"

    def fail(self, node: Node, what: str, fix: str | Callable[[], str] = "") -> None:
        self.problems.add(node.line, what, fix)

    def decode(self, node: Node, kind: Any, path: str) -> Any:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return self.decode(node, without_none(kind), path)
        if is_dataclass(kind):
            return self.record(node, kind, path)
        if origin is tuple:
            return self.sequence(node, arguments[0], path)
        if origin is Mapping:
            return self.mapping(node, arguments[0], arguments[1], path)
        return self.scalar(node, kind, path)

    def entries(self, node: Node, path: str, wants: str) -> list[tuple[str, ScalarNode, Node]]:
        """Key, key node and value node of a mapping."""
        if not isinstance(node, MappingNode):
            below = f", indented below {_leaf(path)}:" if path else ""
            self.fail(node, f"{path or 'the file'} must be {wants}", f"write lines KEY: VALUE{below}")
            return []
        found: list[tuple[str, ScalarNode, Node]] = []
        first: dict[str, int] = {}
        for key, value in node.pairs:
            if not isinstance(key, ScalarNode):
                self.fail(key, f"a key of {path or 'the file'} must be a plain word")
            elif key.text == "<<" and key.plain:
                self.fail(key, "the merge key << is not supported", "write out the keys that it stands for")
            elif len(key.text) > MAX_KEY:
                self.fail(key, f"a key is longer than {MAX_KEY} characters: '{key.text[:20]}...'")
            elif key.text in first:
                what = f"duplicate key '{key.text}' (first on line {first[key.text]})"
                self.fail(key, what, "keep one of them")
            else:
                first[key.text] = key.line
                found.append((key.text, key, value))
        return found

    def record(self, node: Node, kind: Any, path: str) -> Any:
        known = keys_of(kind)
        values: dict[str, Any] = {}
        before = self.problems.count
        where = f" in {path}" if path else ""
        for key, key_node, value in self.entries(node, path, "a mapping of keys to values"):
            here = f"{path}.{key}" if path else key
            if key not in known:
                self.fail(key_node, f"unknown key '{key}'{where}", partial(did_you_mean, key, known))
                continue
            self.places[here] = self.place(key_node)
            values[known[key].name] = self.decode(value, known[key].type, here)
        required = [
            field.name
            for field in known.values()
            if field.default is MISSING and field.default_factory is MISSING and field.name not in values
        ]
        for name in required:
            self.fail(node, f"missing key '{name}'{where}", f"add {name}:")
        if required:
            return None
        made = kind(**values)
        if isinstance(node, MappingNode) and self.problems.count == before and hasattr(made, "faults"):
            self.faults(node, made, path)
        return made

    def faults(self, node: MappingNode, made: Any, path: str) -> None:
        """What the record finds wrong with its values together."""
        keys = {key.text: key for key, _ in node.pairs if isinstance(key, ScalarNode)}
        for key, what, fix in made.faults():
            self.fail(keys.get(key, node), f"{path}.{key}: {what}" if path else f"{key}: {what}", fix)

    def sequence(self, node: Node, kind: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(node, SequenceNode):
            self.fail(node, f"{path} must be a list", f"write {_leaf(path)}: [...]")
            return ()
        return tuple(self.decode(item, kind, f"{path}[{index}]") for index, item in enumerate(node.items))

    def mapping(self, node: Node, key_kind: Any, kind: Any, path: str) -> dict[Any, Any]:
        values = {}
        for key, key_node, value in self.entries(node, path, "a mapping of names to values"):
            here = f"{path}.{key}"
            self.places[here] = self.place(key_node)
            name = self.scalar(key_node, key_kind, here)
            nothing = type(None) in get_args(kind) and is_nothing(value)
            values[name] = None if nothing else self.decode(value, kind, here)
        return values

    def scalar(self, node: Node, kind: Any, path: str) -> Any:
        if not isinstance(node, ScalarNode):
            self.fail(node, f"{path} must be a single value")
            return None
        if is_nothing(node):
            self.fail(node, f"{path} has no value", "give it one, or remove the key")
            return None
        try:
            return parse_scalar(node.text, kind)
        except ValueError as error:
            self.fail(node, f"{path}: {error}")
            return None


def _leaf(path: str) -> str:
    return path.rsplit(".", maxsplit=1)[-1]


def without_none(kind: Any) -> Any:
    """The type of an optional value; any other type as it is."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    return next(one for one in get_args(kind) if one is not type(None))


def parse_scalar(text: str, kind: Any) -> Any:
    """The text as a `kind`: str, int, bool, a Literal of words, or a type with a `parse` of its own.

    Raises:
        ValueError: With one sentence that says what is expected.
    """
    try:
        return _parsed(text, kind)
    except ValueError as error:
        raise ValueError(cut(str(error))) from error


def _parsed(text: str, kind: Any) -> Any:
    if hasattr(kind, "parse"):
        return kind.parse(text)
    if get_origin(kind) is Literal:
        if text in get_args(kind):
            return text
        raise ValueError(f"'{text}' is not one of {', '.join(get_args(kind))}")
    if kind is int:
        return whole_number(text)
    if kind is bool:
        if text in _BOOLS:
            return _BOOLS[text]
        raise ValueError(f"'{text}' is not true or false")
    return text
