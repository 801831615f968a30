"""The first place where a Python program certainly fails without the variables of its rank, such as RANK.

A launcher sets these variables. A program may work without a variable that it reads in a condition or in a
try, or in a function that it may not call. So this module looks only at statements that run in any case.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base.frozen import frozen
from sbatchgen.check.script.saved_files import called_name

# torchrun sets these variables, and so do rendered scripts in which srun starts the ranks.
RANK_VARIABLES = frozenset(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
DEPTH_MAX = 12  # calls within calls that are followed
# Functions that end the program, or replace it by another.
_ENDING_CALLS = frozenset(
    ("exit", "_exit", "abort", "execv", "execve", "execvp", "execvpe", "execl", "execlp")
)
# Decorators that do not keep a call of the function from running its body at once.
_HARMLESS_DECORATORS = frozenset(("record", "main", "command", "option", "cache", "lru_cache"))
_CATCHING_CONTEXTS = frozenset(("suppress", "raises", "assertRaises"))  # a `with` of these catches exceptions
# With these arguments, init_process_group does not take the rank from the environment. None stands for **.
_OTHER_RANK_ARGUMENTS = frozenset(("init_method", "store", "rank", "world_size", None))
# Statements with blocks that may not run.
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)


@frozen()
class RankNeed:
    """A place where a program fails unless a variable is set."""

    variable: str  # such as "RANK"
    line: int
    file: Path


class _Function(NamedTuple):
    """A function of the program, and the file that defines it."""

    definition: ast.FunctionDef
    file: Path


def first_rank_need(main_file: Path, trees: Mapping[Path, ast.Module]) -> RankNeed | None:
    """Return the first place where a program certainly needs its rank; None without such a place.

    `main_file` is the module that is started. `trees` are all modules of the program, by their files.
    """
    if main_file not in trees or any(map(_may_set_variable, trees.values())):
        return None
    functions = [
        _Function(node, file)
        for file, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    ]
    counts = Counter(function.definition.name for function in functions)
    # A call of a name that several modules define is not followed.
    followed_functions = {
        function.definition.name: function
        for function in functions
        if counts[function.definition.name] == 1 and _runs_at_once(function.definition)
    }
    return _Walk(followed_functions).first_need(trees[main_file].body, main_file)


def _may_set_variable(tree: ast.Module) -> bool:
    """Return whether a module may set a variable of the rank: not each mention of its name is a read."""
    reads = Counter[str]()  # how often the module reads or tests each variable
    for node in ast.walk(tree):
        if (name := _variable_read_by(node)) in RANK_VARIABLES:
            reads[name] += 1
        elif isinstance(node, ast.Call) and called_name(node) in ("get", "getenv") and node.args:
            reads[_string(node.args[0])] += 1
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            reads[_string(node.left)] += 1
    mentions = Counter(_string(node) for node in ast.walk(tree))
    return any(mentions[name] != reads[name] for name in RANK_VARIABLES)


def _runs_at_once(function: ast.FunctionDef) -> bool:
    """Return whether a call of a function runs its body at once: no generator, and no unknown decorator."""
    yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
    names = {_last_name(decorator) for decorator in function.decorator_list}
    return not yields and names <= _HARMLESS_DECORATORS


def _last_name(node: ast.expr) -> str:
    """Return the last name of an expression or of the function that it calls: environ for os.environ."""
    node = node.func if isinstance(node, ast.Call) else node
    return str(getattr(node, "attr", None) or getattr(node, "id", ""))


class _MayLeaveError(Exception):
    """Raised at a statement that may leave the function or end the program: later statements may not run."""


class _Walk:
    """A walk through the statements and expressions that certainly run, in their order.

    The methods yield the needs of a rank that they meet.
    """

    def __init__(self, functions: Mapping[str, _Function]) -> None:
        self.functions = functions  # the functions that are followed in calls, by their names
        self.call_stack: list[str] = []  # the names of the functions that the walk has entered

    def first_need(self, body: Sequence[ast.stmt], file: Path) -> RankNeed | None:
        """Return the first need of a rank in the statements of a file; None without such a need."""
        try:
            return next(self._statements(body, file), None)
        except _MayLeaveError:
            return None

    def _statements(self, body: Sequence[ast.stmt], file: Path) -> Iterator[RankNeed]:
        for statement in body:
            yield from self._statement(statement, file)

    def _statement(self, statement: ast.stmt, file: Path) -> Iterator[RankNeed]:
        """Yield the needs in the parts of a statement that certainly run.

        Raises:
            _MayLeaveError: No later statement certainly runs.
        """
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        if isinstance(statement, ast.With):
            items = [item.context_expr for item in statement.items]
            yield from self._expressions(items, file)
            if not _CATCHING_CONTEXTS.isdisjoint(map(_last_name, items)):
                return  # in this block, the error of a missing variable is caught
            yield from self._statements(statement.body, file)
        elif isinstance(statement, ast.If) and _is_main(statement.test):
            yield from self._statements(statement.body, file)
        elif isinstance(statement, ast.Try) and not statement.handlers:
            yield from self._statements([*statement.body, *statement.orelse, *statement.finalbody], file)
        elif isinstance(statement, _BRANCHES):
            # The blocks may not run, but Python always evaluates the test of an if and the iterable of a for.
            header = getattr(statement, "test", None) or getattr(statement, "iter", None)
            yield from self._expressions([header] if header else [], file)
            if any(map(_leaves_function, ast.walk(statement))):
                raise _MayLeaveError
        else:
            yield from self._expressions(ast.iter_child_nodes(statement), file)
            if isinstance(statement, ast.Return | ast.Raise) or any(
                map(_leaves_function, ast.walk(statement))
            ):
                raise _MayLeaveError

    def _expressions(self, nodes: Iterable[ast.AST], file: Path) -> Iterator[RankNeed]:
        for node in nodes:
            yield from self._expression(node, file)

    def _expression(self, node: ast.AST, file: Path) -> Iterator[RankNeed]:
        """Yield the needs in an expression, and in the function that it calls."""
        # `parts` are the parts of the expression that Python always evaluates.
        if isinstance(node, ast.Lambda | ast.GeneratorExp):
            return
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
            parts: Iterable[ast.AST] = [node.generators[0].iter]
        elif isinstance(node, ast.IfExp):
            parts = [node.test]
        elif isinstance(node, ast.BoolOp):
            parts = node.values[:1]
        elif isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators[:1]]
        else:
            parts = ast.iter_child_nodes(node)
        yield from self._expressions(parts, file)
        variable = _variable_read_by(node)
        if variable in RANK_VARIABLES:
            yield RankNeed(variable, getattr(node, "lineno", 0), file)
        if isinstance(node, ast.Call):
            if _joins_group(node):
                yield RankNeed("RANK", node.lineno, file)
            yield from self._call(node)

    def _call(self, node: ast.Call) -> Iterator[RankNeed]:
        """Yield the first need of a rank in the function of the program that a call runs."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in self.functions and name not in self.call_stack and len(self.call_stack) < DEPTH_MAX:
            function = self.functions[name]
            self.call_stack.append(name)
            need = self.first_need(function.definition.body, function.file)
            self.call_stack.pop()
            if need:
                yield need
            if any(map(_ends_program, ast.walk(function.definition))):
                raise _MayLeaveError


def _is_main(test: ast.expr) -> bool:
    """Return whether a condition is __name__ == "__main__"."""
    return isinstance(test, ast.Compare) and getattr(test.left, "id", "") == "__name__"


def _leaves_function(node: ast.AST) -> bool:
    """Return whether a node leaves its function or ends the program."""
    return isinstance(node, ast.Return | ast.Raise) or _ends_program(node)


def _ends_program(node: ast.AST) -> bool:
    """Return whether a node ends the program, such as sys.exit() or os.execv()."""
    return isinstance(node, ast.Call) and called_name(node) in _ENDING_CALLS


def _variable_read_by(node: ast.AST) -> str:
    """Return the NAME that os.environ[NAME] reads; "" for other expressions."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return ""
    return _string(node.slice) if _last_name(node.value) == "environ" else ""


def _string(node: ast.AST) -> str:
    """Return the text of a node that is a string; "" for other nodes."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _joins_group(call: ast.Call) -> bool:
    """Return whether a call is an init_process_group() that takes the rank from the environment."""
    arguments = {keyword.arg: keyword.value for keyword in call.keywords}
    if "init_method" in arguments and _string(arguments["init_method"]) == "env://":
        del arguments["init_method"]
    has_other_source = len(call.args) > 1 or not _OTHER_RANK_ARGUMENTS.isdisjoint(arguments)
    return called_name(call) == "init_process_group" and not has_other_source
