"""YAML text -> dataclass, strict, with the file and line of every value.

The type of a field decides what a scalar means, not YAML 1.1: `24:00:00`, `no` and `010` stay the text
that was written where a text is wanted. All problems of a file are reported at once.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import yaml

from sbatchgen.errors import DocumentError, Problem, did_you_mean

if TYPE_CHECKING:
    from yaml.nodes import Node

T = TypeVar("T")

MAX_BYTES = 1 << 20
_BOOLS = {"true": True, "false": False}


@dataclass(frozen=True)
class Document(Generic[T]):
    """A decoded file, and where each of its values stands: "options.nodes" -> "job.yaml:4"."""

    value: T
    places: Mapping[str, str]


def read(path: Path, kind: type[T]) -> Document[T]:
    """The file as a `kind`, a dataclass.

    Raises:
        DocumentError: It can't be read, is no YAML, or does not fit the dataclass.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise DocumentError.of(f"can't read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DocumentError.of("the file is not UTF-8", at=f"{path}:{line}") from error
    if len(data) > MAX_BYTES:
        raise DocumentError.of(f"{path} is larger than {MAX_BYTES >> 10} KiB: is it the right file?")
    return decode(text, kind, name=str(path))


def decode(text: str, kind: type[T], *, name: str) -> Document[T]:
    """The text as a `kind`; `name` is what errors call the file."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{name}:{mark.line + 1}" if mark else name
        raise DocumentError.of(f"not valid YAML: {error.problem or error.context}", at=at) from error
    except yaml.YAMLError as error:  # a control character: the reader has no mark
        raise DocumentError.of(f"not valid YAML: {str(error).splitlines()[0]}", at=name) from error
    decoder = _Decoder(name)
    if root is None:
        mark = yaml.Mark(name, 0, 0, 0, "", 0)
        root = yaml.MappingNode("tag:yaml.org,2002:map", [], mark, mark)
    value = decoder.decode(root, kind, "")
    if decoder.problems:
        raise DocumentError(decoder.problems)
    return Document(value, decoder.places)


class _Decoder:
    """One walk over the nodes of a document, beside the types; `None` stands for what failed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Problem] = []
        self.places: dict[str, str] = {}

    def place(self, node: Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}"

    def fail(self, node: Node, what: str, fix: str = "") -> None:
        self.problems.append(Problem(what, self.place(node), fix))

    def decode(self, node: Node, kind: Any, path: str) -> Any:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return self.decode(node, next(a for a in arguments if a is not type(None)), path)
        if is_dataclass(kind):
            return self.record(node, kind, path)
        if origin is tuple:
            return self.sequence(node, arguments[0], path)
        if origin is not None and issubclass_safe(origin, Mapping):
            return self.mapping(node, arguments[0], arguments[1], path)
        return self.scalar(node, kind, path)

    def entries(self, node: Node, path: str, wants: str) -> list[tuple[str, Node, Node]]:
        """Key, key node and value node of a mapping; complains of what is none, and of duplicates."""
        if not isinstance(node, yaml.MappingNode):
            self.fail(node, f"{path or 'the file'} must be {wants}")
            return []
        found: list[tuple[str, Node, Node]] = []
        first: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.fail(key, f"a key of {path or 'the file'} must be a plain word")
            elif key.value in first:
                line = first[key.value].start_mark.line + 1
                self.fail(key, f"duplicate key '{key.value}' (first on line {line})", "keep one of them")
            else:
                first[key.value] = key
                found.append((key.value, key, value))
        return found

    def record(self, node: Node, kind: Any, path: str) -> Any:
        hints = kind.__annotations__  # types, not text: the schema modules see to that
        known = {field.name: field for field in fields(kind)}
        values: dict[str, Any] = {}
        for key, key_node, value in self.entries(node, path, "a mapping of keys to values"):
            here = f"{path}.{key}" if path else key
            if key not in known:
                where = f" in {path}" if path else ""
                self.fail(key_node, f"unknown key '{key}'{where}", did_you_mean(key, known))
                continue
            self.places[here] = self.place(key_node)
            values[key] = self.decode(value, hints[key], here)
        required = [
            field.name
            for field in known.values()
            if field.default is MISSING and field.default_factory is MISSING and field.name not in values
        ]
        for name in required:
            where = f" in {path}" if path else ""
            self.fail(node, f"missing key '{name}'{where}", f"add {name}:")
        return None if required else kind(**values)

    def sequence(self, node: Node, kind: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(node, yaml.SequenceNode):
            self.fail(node, f"{path} must be a list", f"write {path.rsplit('.', maxsplit=1)[-1]}: [...]")
            return ()
        return tuple(self.decode(item, kind, f"{path}[{index}]") for index, item in enumerate(node.value))

    def mapping(self, node: Node, key_kind: Any, kind: Any, path: str) -> dict[Any, Any]:
        values = {}
        for key, key_node, value in self.entries(node, path, "a mapping of names to values"):
            here = f"{path}.{key}"
            self.places[here] = self.place(key_node)
            values[self.scalar(key_node, key_kind, here)] = self.decode(value, kind, here)
        return values

    def scalar(self, node: Node, kind: Any, path: str) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            self.fail(node, f"{path} must be a single value")
            return None
        if node.value == "" and not node.style:  # written as nothing, not as ""
            self.fail(node, f"{path} has no value", "give it one, or remove the key")
            return None
        try:
            return parse_scalar(node.value, kind)
        except ValueError as error:
            self.fail(node, f"{path}: {error}")
            return None


def issubclass_safe(kind: Any, base: type) -> bool:
    """`issubclass` that is false for what is no class."""
    return isinstance(kind, type) and issubclass(kind, base)


def parse_scalar(text: str, kind: Any) -> Any:
    """The text as a `kind`: str, int, bool, a Literal of words, or a type with a `parse` of its own.

    Raises:
        ValueError: With one sentence that says what is wanted.
    """
    if hasattr(kind, "parse"):
        return kind.parse(text)
    if get_origin(kind) is Literal:
        if text in get_args(kind):
            return text
        raise ValueError(f"'{text}' is not one of {', '.join(get_args(kind))}")
    if kind is int:
        if text.lstrip("-").isdecimal() and text.isascii() and text.count("-") <= 1:
            return int(text)
        raise ValueError(f"'{text}' is not a whole number")
    if kind is bool:
        if text in _BOOLS:
            return _BOOLS[text]
        raise ValueError(f"'{text}' is not true or false")
    return text
