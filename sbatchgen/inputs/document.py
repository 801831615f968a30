"""YAML text -> dataclass, strict, with the file and line of every value.

The type of a field decides what a scalar means, not YAML 1.1: `24:00:00`, `no` and `010` stay text where
text is wanted. All problems of a file are reported at once. So that no file takes long to read, its size,
depth and number of values have limits; tags, merge keys and directives are refused.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import yaml

from sbatchgen import files
from sbatchgen.errors import DocumentError, Problem, did_you_mean
from sbatchgen.units import whole_number

T = TypeVar("T")

MAX_BYTES = 1 << 20
MAX_DEPTH = 50  # of lists and mappings in each other
MAX_VALUES = 50_000  # with the keys
MAX_KEY = 200  # characters
MAX_SHOWN = 20  # problems
MAX_TEXT = 300  # characters of a message
_BOOLS = {"true": True, "false": False}
_DIRECTIVE = re.compile(r"(?:\A|[\n\r\x85\u2028\u2029])%")  # libyaml takes time squared for %TAG lines


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
        return data.decode()  # `decode` removes the mark of UTF-8
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
    text = text.removeprefix("\ufeff")
    problems = _Problems(name)
    _refuse_characters(text, problems)
    root = _Composer(text, problems).document()
    decoder = _Decoder(problems)
    value = decoder.decode(root, kind, "")
    if problems.count:
        raise problems.error()
    return Document(value, decoder.places)


class _Problems:
    """What is wrong with a file; the first MAX_SHOWN problems are kept."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self._kept: list[Problem] = []

    def add(self, line: int, what: str, fix: str | Callable[[], str] = "") -> None:
        """Note a problem; `fix` is a function if it takes time to find."""
        self.count += 1
        if self.count <= MAX_SHOWN:
            text = fix if isinstance(fix, str) else fix()
            self._kept.append(Problem(_cut(what), f"{self.name}:{line}", _cut(text)))

    def error(self) -> DocumentError:
        """All of them as one error."""
        more = self.count - len(self._kept)
        rest = [Problem(f"and {more} more problems", self.name, "fix the first ones and try again")]
        return DocumentError(self._kept + rest * bool(more))

    def end(self, line: int, what: str, fix: str = "") -> DocumentError:
        """The error of a problem after which nothing more can be read."""
        self.add(line, what, fix)
        return self.error()


def _cut(text: str) -> str:
    """A message without the middle of a very long value."""
    half = MAX_TEXT // 2
    return text if len(text) <= MAX_TEXT else f"{text[:half]} ... {text[-half:]}"


def _refuse_characters(text: str, problems: _Problems) -> None:
    """Refuse what the parser reports without a line, or is too slow for."""
    if found := yaml.reader.Reader.NON_PRINTABLE.search(text):
        line, column = (
            text.count("\n", 0, found.start()) + 1,
            found.start() - text.rfind("\n", 0, found.start()),
        )
        what = f"not valid YAML: the control character U+{ord(found[0]):04X} in column {column}"
        raise problems.end(line, what, "save it as UTF-8 text" if found[0] == "\0" else "remove it")
    if found := _DIRECTIVE.search(text):
        line = text.count("\n", 0, found.end()) + 1
        raise problems.end(line, "a line starts with %: YAML directives are not supported", "remove the line")


class _Scalar(NamedTuple):
    line: int
    text: str
    plain: bool  # without quotes


class _List(NamedTuple):
    line: int
    items: list[_Node]


class _Map(NamedTuple):
    line: int
    pairs: list[tuple[_Node, _Node]]


_Node = _Scalar | _List | _Map


class _Composer:
    """Makes nodes of the parser's events."""

    def __init__(self, text: str, problems: _Problems) -> None:
        self.problems = problems
        self.anchors: dict[str, tuple[_Node, int]] = {}  # with the number of its values
        self.count = 0
        self.events = self._events(text)

    def _events(self, text: str) -> Iterator[Any]:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            yield from yaml.parse(text, Loader=loader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = f"not valid YAML: {error.problem or error.context}"
            fix = "look for an open quote or bracket, or a wrong indentation, in this line or above it"
            raise self.problems.end(mark.line + 1 if mark else 1, what, fix) from error

    def document(self) -> _Node:
        """The document of the text; an empty mapping if there is none."""
        root: _Node = _Map(1, [])
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    what = "not valid YAML for this file: a second document starts here"
                    fix = "remove the --- before it, or put it into a file of its own"
                    self.problems.add(_line(event), what, fix)
                    break
            elif isinstance(event, yaml.NodeEvent):
                found = self.node(event, 0)
                if not _is_nothing(found):
                    root = found
        return root

    def node(self, event: Any, depth: int) -> _Node:
        """The node that starts with an event."""
        line = _line(event)
        self._limit(1, line)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, line)
        if depth >= MAX_DEPTH:
            what = f"lists and mappings are nested more than {MAX_DEPTH} deep"
            raise self.problems.end(line, what, "is it the right file?")
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.problems.add(line, f"the tag {tag} is not supported: the key decides the type", "remove it")
        before = self.count
        node = self._made(event, line, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = node, self.count - before
        return node

    def _made(self, event: Any, line: int, depth: int) -> _Node:
        if isinstance(event, yaml.ScalarEvent):
            return _Scalar(line, event.value, not event.style)
        inside = self._inside(depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return _List(line, list(inside))
        return _Map(line, list(zip(inside, inside, strict=True)))

    def _inside(self, depth: int) -> Iterator[_Node]:
        """The nodes up to the end of the list or mapping."""
        for event in self.events:
            if isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
                return
            yield self.node(event, depth + 1)

    def _alias(self, event: Any, line: int) -> _Node:
        """The value of an alias. Its values count again: aliases of aliases grow fast."""
        node, count = self.anchors.get(event.anchor, (None, 0))
        if node is None:
            what = f"*{event.anchor} is not defined: no value before it has the anchor &{event.anchor}"
            self.problems.add(line, what, "write the value itself")
            return _Scalar(line, "", plain=False)
        self._limit(count, line)
        return node

    def _limit(self, more: int, line: int) -> None:
        self.count += more
        if self.count > MAX_VALUES:
            what = f"more than {MAX_VALUES} keys and values, including those of aliases"
            raise self.problems.end(line, what, "is it the right file?")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


class _Decoder:
    """One walk over the nodes of a document and the types of a dataclass; None stands for what failed."""

    def __init__(self, problems: _Problems) -> None:
        self.problems = problems
        self.places: dict[str, str] = {}

    def place(self, node: _Node) -> str:
        return f"{self.problems.name}:{node.line}"

    def fail(self, node: _Node, what: str, fix: str | Callable[[], str] = "") -> None:
        self.problems.add(node.line, what, fix)

    def decode(self, node: _Node, kind: Any, path: str) -> Any:
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

    def entries(self, node: _Node, path: str, wants: str) -> list[tuple[str, _Scalar, _Node]]:
        """Key, key node and value node of a mapping."""
        if not isinstance(node, _Map):
            below = f", indented below {_leaf(path)}:" if path else ""
            self.fail(node, f"{path or 'the file'} must be {wants}", f"write lines KEY: VALUE{below}")
            return []
        found: list[tuple[str, _Scalar, _Node]] = []
        first: dict[str, int] = {}
        for key, value in node.pairs:
            if not isinstance(key, _Scalar):
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

    def record(self, node: _Node, kind: Any, path: str) -> Any:
        known = {field.name: field for field in fields(kind)}  # of types, not text: as the schema modules say
        values: dict[str, Any] = {}
        before = self.problems.count
        where = f" in {path}" if path else ""
        for key, key_node, value in self.entries(node, path, "a mapping of keys to values"):
            here = f"{path}.{key}" if path else key
            if key not in known:
                self.fail(key_node, f"unknown key '{key}'{where}", partial(did_you_mean, key, known))
                continue
            self.places[here] = self.place(key_node)
            values[key] = self.decode(value, known[key].type, here)
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
        if isinstance(node, _Map) and self.problems.count == before and hasattr(made, "faults"):
            self.faults(node, made, path)
        return made

    def faults(self, node: _Map, made: Any, path: str) -> None:
        """What the record finds wrong with its values together."""
        keys = {key.text: key for key, _ in node.pairs if isinstance(key, _Scalar)}
        for key, what, fix in made.faults():
            self.fail(keys.get(key, node), f"{path}.{key}: {what}" if path else f"{key}: {what}", fix)

    def sequence(self, node: _Node, kind: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(node, _List):
            self.fail(node, f"{path} must be a list", f"write {_leaf(path)}: [...]")
            return ()
        return tuple(self.decode(item, kind, f"{path}[{index}]") for index, item in enumerate(node.items))

    def mapping(self, node: _Node, key_kind: Any, kind: Any, path: str) -> dict[Any, Any]:
        values = {}
        for key, key_node, value in self.entries(node, path, "a mapping of names to values"):
            here = f"{path}.{key}"
            self.places[here] = self.place(key_node)
            name = self.scalar(key_node, key_kind, here)
            nothing = type(None) in get_args(kind) and _is_nothing(value)
            values[name] = None if nothing else self.decode(value, kind, here)
        return values

    def scalar(self, node: _Node, kind: Any, path: str) -> Any:
        if not isinstance(node, _Scalar):
            self.fail(node, f"{path} must be a single value")
            return None
        if _is_nothing(node):
            self.fail(node, f"{path} has no value", "give it one, or remove the key")
            return None
        try:
            return parse_scalar(node.text, kind)
        except ValueError as error:
            self.fail(node, f"{path}: {error}")
            return None


def _is_nothing(node: _Node) -> bool:
    """Whether a value is written as nothing, not as ""."""
    return isinstance(node, _Scalar) and node.text == "" and node.plain


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
        raise ValueError(_cut(str(error))) from error


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
