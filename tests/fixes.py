"""All fixes that the code can print, read from it: where each is, its text, and the commands in it.

`python -m tests.fixes` prints them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple

import yaml

from sbatchgen.base.quoting import ALSO, CODE, OR
from sbatchgen.cli import GROUPS
from tests.conftest import REPOSITORY

UNKNOWN = "{}"  # in a text: a value that is known only when the fix is printed
_MOST = 64  # texts of one expression
_PLACE = {
    "Problem": 2,
    "Hit": 2,
    "error": 3,
    "Row": 3,
    "KeyFault": 2,
}  # the position of a fix among the arguments of a function
TABLES = (
    "jobs/runs/failures.yaml",
    "jobs/slurm/reasons.yaml",
    "jobs/slurm/states.yaml",
    "jobs/slurm/refusals.yaml",
)
_VERBS = "|".join(sorted(name for group in GROUPS.values() for name in group))
_PROGRAMS = (
    rf"sbatchgen (?:{_VERBS})\b|(?:scontrol|sacctmgr) \w+|sacct -|squeue -|sinfo -|sprio|sshare|sbatch -|srun -|scancel \S|"
    r"git (?:-C|add|init|config) \S|ls -|ln -|rm [-{]|mv \{|cd \S+$|chmod \S|chown \S|cp -|sed -|df -|du -|ulimit -|eval \S|module \w+|ml \w|"
    r"conda \w+ \S|apptainer \w+ \S|enroot \w+ \S|podman(?:-hpc)? \w+ \S|shifterimg \S|docker \w+ \S|npm ci|uv \w+ -|unset [A-Z]|"
    r"source [/{]|touch \S|quota -|pip \w+ \S|python3? -|\{\} -m pip|nvidia-smi|rocm-smi|unsquashfs -|uname -|echo \S|"
    r"env -|export [A-Z{][A-Z_{}]*=|munge -|ip -|file [A-Z]|namei -|man \w|set -[eux]|set -o|mkdir (?:-p )?\S|MASTER_PORT="
)
# At the start of a text or of a part of it, or after a word that leads to a command; its end is the next mark.
_COMMAND = re.compile(
    rf"(?:^|[;:,(\"] ?|\b(?:or|and|see|with|then|by|as|in|once|type|write|use|it,) )((?:{_PROGRAMS})(?:[^;:,()]|[:,](?=\S)|\((?=\S))*)"
)
# What the text says of a command, after it.
_ABOUT = re.compile(
    r" (?:shows|show (?=which|the )|lists|says|shown|removes|does|there|takes|whether|cancels|submits|continues|starts|makes|changes|unpacks|on the node|on one node|in the|if |"
    r"makes|may|once|before|which|instead|for |of |to |and |or |with(?!out)|as\b|has).*$"
)


class Fix(NamedTuple):
    """A text that may be printed after "fix:"."""

    at: str  # file:line
    text: str

    @property
    def lines(self) -> list[str]:
        """What is printed in the line of the fix, and in each line below it that holds no code."""
        return [line for line in self.text.split("\n") if not line.startswith(CODE[1:])]

    @property
    def commands(self) -> list[str]:
        """What in it looks like something to type at a prompt."""
        matches = [
            _ABOUT.sub("", match[1]).rstrip(" .")
            for line in self.lines
            for match in _COMMAND.finditer(line.removeprefix(ALSO[1:]).removeprefix(OR[1:]))
        ]
        return [text.rstrip('"') if text.count('"') % 2 else text for text in matches]


class Module:
    """A module, and what its names stand for."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.tree = ast.parse(file.read_text())
        self.nodes: list[ast.AST] = [self.tree]  # all of them, the outer ones first: walking takes a second
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in self.nodes:  # which grows
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                self.nodes.append(child)

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in self.nodes if isinstance(node, ast.FunctionDef)}

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """The module and the name there of each name that is imported from this package."""
        froms = [node for node in self.nodes if isinstance(node, ast.ImportFrom) and node.module]
        return {
            each.asname or each.name: (node.module or "", each.name) for node in froms for each in node.names
        }

    def scope(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, (ast.FunctionDef, ast.Module)):
            node = self.parents[node]
        return node

    def values(self, name: str, node: ast.AST) -> Iterator[ast.expr]:
        """Yield what is assigned to a name in the function of a node, or in the module."""
        for scope in dict.fromkeys((self.scope(node), self.tree)):
            matches = [*_assigned(scope, name)]
            yield from matches
            if matches:
                return

    def texts(self, node: ast.AST | None, seen: tuple[ast.AST, ...] = ()) -> list[str]:
        """Return the texts that an expression may give, with UNKNOWN in the place of what is not known."""
        if node is None or node in seen or len(seen) > 40:
            return [UNKNOWN]
        return list(dict.fromkeys(self._texts(node, (*seen, node))))[:_MOST]

    def _texts(self, node: ast.AST, seen: tuple[ast.AST, ...]) -> list[str]:  # noqa: C901, PLR0911, PLR0912 - a case each
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.Constant(value=None | False):
                return [""]
            case ast.JoinedStr(values=parts):
                return self._joined([self.texts(part, seen) for part in parts])
            case ast.FormattedValue(
                value=ast.Name(id="resume") | ast.Attribute(attr="resume"),
                format_spec=ast.JoinedStr(values=parts),
            ):
                options = self._joined([self.texts(part, seen) for part in parts])
                return [f"sbatchgen resume {UNKNOWN} {each}" for each in options]
            case ast.FormattedValue(value=value) | ast.NamedExpr(value=value) | ast.Starred(value=value):
                return self.texts(value, seen)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._joined([self.texts(left, seen), self.texts(right, seen)])
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                texts = [text for side in (left, right) for text in self.texts(side, seen) if text != UNKNOWN]
                return ["", *texts]
            case ast.BoolOp(values=values):
                return [text for value in values for text in self.texts(value, seen)]
            case ast.IfExp(body=body, orelse=orelse):
                return [*self.texts(body, seen), *self.texts(orelse, seen)]
            case ast.Name(id=name):
                return self._named(name, node, seen)
            case ast.Call(
                func=ast.Attribute(value=value, attr="format" | "replace" | "removesuffix" | "rstrip")
            ):
                return [re.sub(r"\{[^{}]*\}", UNKNOWN, text) for text in self.texts(value, seen)]
            case ast.Call(func=ast.Name(id=name)):
                return self._returned(name, seen)
            case ast.Subscript(value=value):
                return self.texts(value, seen)
            case ast.Dict(values=values) | ast.Tuple(elts=values) | ast.List(elts=values):
                return [text for value in values for text in self.texts(value, seen)]
        return [UNKNOWN]

    @staticmethod
    def _joined(parts: list[list[str]]) -> list[str]:
        return ["".join(each) for _, each in zip(range(_MOST), product(*parts), strict=False)]

    def _named(self, name: str, node: ast.AST, seen: tuple[ast.AST, ...]) -> list[str]:
        matches = [text for value in self.values(name, node) for text in self.texts(value, seen)]
        if not matches and name in self.imported:
            where, its = self.imported[name]
            other = module(where)
            matches = (
                [text for value in _assigned(other.tree, its) for text in other.texts(value, seen)]
                if other
                else []
            )
        return matches or [UNKNOWN]

    def _returned(self, name: str, seen: tuple[ast.AST, ...]) -> list[str]:
        """The texts that a function of the package returns."""
        here, its = self, name
        if name in self.imported:
            where, its = self.imported[name]
            if where == "sbatchgen.base.quoting":  # a value
                return [UNKNOWN]
            here = module(where) or self
        if its not in here.functions:
            return [UNKNOWN]
        values = [node.value for node in ast.walk(here.functions[its]) if isinstance(node, ast.Return)]
        return [text for value in values if value for text in here.texts(value, seen)] or [UNKNOWN]

    def fixes(self) -> Iterator[Fix]:
        """Yield the fixes that the module names."""
        at = self.file.relative_to(REPOSITORY)
        for node in self.nodes:
            for value in self._given(node):
                for text in self.texts(value):
                    if text.replace(UNKNOWN, "").strip():
                        yield Fix(f"{at}:{value.lineno}", text)

    def _given(self, node: ast.AST) -> Iterator[ast.expr]:
        match node:
            case ast.Call(func=function, args=arguments, keywords=keywords):
                name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
                place = _PLACE.get(name, 99)
                yield from arguments[place : place + 1]
                yield from (each.value for each in keywords if each.arg == "fix")
            case ast.FunctionDef() if (
                "fix" in (ast.get_docstring(node) or "").split("\n")[0].replace(",", " ").split()
            ):
                for inner in ast.walk(node):
                    if isinstance(inner, (ast.Return, ast.Yield)) and inner.value:
                        value = inner.value
                        yield value.elts[-1] if isinstance(value, ast.Tuple) else value
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                yield from _assigned_by(node, "fix")


def _assigned(scope: ast.AST, name: str) -> Iterator[ast.expr]:
    for node in _assignments(scope):
        yield from _assigned_by(node, name)


@cache
def _assignments(scope: ast.AST) -> list[ast.AST]:
    """Return what assigns in a function or a module, without the functions in it."""
    assignments: list[ast.AST] = []
    inner = [scope]
    while inner:
        node = inner.pop()
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
            assignments.append(node)
        inner += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.FunctionDef)]
    return assignments


def _assigned_by(node: ast.AST, name: str) -> Iterator[ast.expr]:
    match node:
        case ast.Assign(targets=[ast.Name(id=its)], value=value) if its == name:
            yield value
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(
            values
        ):
            yield from (
                value for each, value in zip(names, values, strict=True) if getattr(each, "id", "") == name
            )
        case ast.AugAssign(target=ast.Name(id=its), value=value) if its == name:
            yield value
        case ast.AnnAssign(target=ast.Name(id=its), value=ast.expr() as value) if its == name:
            yield value
        case ast.NamedExpr(target=ast.Name(id=its), value=value) if its == name:
            yield value


@cache
def module(name: str) -> Module | None:
    """A module of this repository, by its name with dots."""
    path = REPOSITORY / name.replace(".", "/")
    file = next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
    return module_of(file) if file else None


@cache
def module_of(file: Path) -> Module:
    """A module of this repository, taken apart once."""
    return Module(file)


def with_resume(text: str) -> str:
    """A fix of a table with the command that its slot {resume}, or {resume:OPTIONS}, mostly stands for."""
    slot = re.compile(r"\{resume(?::((?:[^{}]|\{[^{}]*\})*))?\}")
    return slot.sub(lambda match: f"sbatchgen resume {{run}} {match[1] or ''}".rstrip(), text)


def of_tables() -> Iterator[Fix]:
    """Yield the fixes of the tables of texts."""
    for name in TABLES:
        file = REPOSITORY / "sbatchgen" / name
        root = yaml.compose(file.read_text())
        nodes: list[yaml.Node] = [root] if root else []
        while nodes:
            node = nodes.pop()
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    nodes.append(value)
                    if key.value.startswith("fix") and isinstance(value, yaml.ScalarNode):
                        text = re.sub(r"\{[^{}]*\}", UNKNOWN, with_resume(value.value))
                        yield Fix(f"sbatchgen/{name}:{value.start_mark.line + 1}", text)
            elif isinstance(node, yaml.SequenceNode):
                nodes += node.value


@cache
def fixes() -> tuple[Fix, ...]:
    """All fixes, each text of a line once."""
    matches: list[Fix] = [*of_tables()]
    for file in sorted((REPOSITORY / "sbatchgen").rglob("*.py")):
        name = ".".join(file.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
        if its := module(name):
            matches += its.fixes()
    return tuple(dict.fromkeys(matches))


if __name__ == "__main__":
    for fix in fixes():
        print("command " if fix.commands else "sentence", fix.at, fix.text, fix.commands or "", sep="\t")
