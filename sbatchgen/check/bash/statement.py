"""Commands and assignments, with their words, their redirections and the constructs around them.

`find_statements` makes the commands of a script. A command reads its words from the syntax tree when they are
first asked for, because most rules ask for the words of few commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.check.bash.grammar import EXPANSIONS, Node, unfold, word_set
from sbatchgen.check.bash.text import ShellText, TextRange
from sbatchgen.check.bash.word import ASSIGNMENT_START, Word, read_word

DECLARATIONS = frozenset(("declare", "export", "local", "readonly", "typeset"))
# The sets below are kinds of nodes in the syntax tree.
TESTS = frozenset(("test_command", "compound_statement"))  # [[ ]], [ ] and (( ))
REDIRECTS = frozenset(("file_redirect", "heredoc_redirect", "herestring_redirect"))
# Nodes whose children are words of the command.
_WORD_HOLDERS = REDIRECTS | {"ERROR", "binary_expression", "unary_expression", "parenthesized_expression"}
_ASSIGNMENT_HOLDERS = _WORD_HOLDERS | {"variable_assignment"}  # nodes that are or hold an assignment
_WORD_KINDS = (  # nodes that are words or parts of words
    EXPANSIONS
    | DECLARATIONS
    | word_set(
        "unset $ == =~ word number string raw_string ansi_c_string translated_string concatenation "
        "brace_expression extglob_pattern regex test_operator command_name variable_name subscript "
        "variable_assignment heredoc_start"
    )
)


class Context(NamedTuple):
    """The constructs of bash around a command, such as functions and loops."""

    function: str = ""  # the function's name; "" outside of functions
    in_loop: bool = False  # whether the command is in a loop
    # Whether the command may not run: in an if, a case, a loop, or on the right of && or ||.
    in_branch: bool = False
    # Whether bash tests the command's status: in the test of if or while, after !, on the left of && or ||.
    is_tested: bool = False
    in_subshell: bool = False  # whether the command is in ( )
    in_substitution: bool = False  # whether the command is in $( ), backquotes or <( )
    # The signals of the trap that runs the command. The command is then in the string of the trap.
    trap_signals: tuple[str, ...] = ()
    in_background: bool = False  # whether & follows the command, or a construct around the command

    @property
    def is_top_level(self) -> bool:
        """Whether the script's own shell always runs the command, outside of functions and branches."""
        runs_elsewhere = self.function or self.trap_signals or self.in_subshell or self.in_substitution
        return not (runs_elsewhere or self.in_branch)


@dataclass(slots=True)
class Pipe:
    """A pipeline: its stages, which | separates. A stage such as { A; B; } has several commands."""

    stages: list[list[Command]] = field(default_factory=list)

    def add(self, command: Command) -> None:
        """Add a command to its stage, whose index is `command.stage`."""
        while len(self.stages) <= command.stage:
            self.stages.append([])
        self.stages[command.stage].append(command)


class Redirect(NamedTuple):
    """A redirection of a command, such as 2>&1 or <<END."""

    operator: str  # such as ">", "<<", or ">&" in 2>&1
    # The word after the operator: a file, a descriptor, the string of <<< or the delimiter of <<. None for
    # an operator such as >&-, which has no word.
    target: Word | None
    descriptor: str = (
        ""  # the descriptor before the operator, such as "2" in 2>&1; "" if a descriptor is not written
    )


@frozen(kw_only=True, slots=True)
class Assignment(TextRange):
    """A place where a variable gets or loses a value: NAME=VALUE, `read NAME`, `unset NAME` and so on."""

    name: str  # the variable's name
    # The value as written. None for an array, and if the text does not show the value, as with `read`.
    word: Word | None = None
    items: tuple[Word, ...] | None = None  # the elements of NAME=(...); None for other values
    is_append: bool = False  # whether the operator is +=
    subscript: str = ""  # the INDEX of NAME[INDEX]=VALUE
    # The command or keyword that sets the variable, such as "export", "for" or "read"; "" for a plain
    # NAME=VALUE.
    setter: str = ""
    is_exported: bool = False  # whether the assignment exports the variable
    is_prefix: bool = False  # whether only one command gets the value, as in NAME=VALUE COMMAND
    context: Context
    at: int  # the offset of its first character
    end: int  # the offset after its last character
    source: ShellText  # the text that holds the assignment

    @property
    def value(self) -> str | None:
        """The string that the variable then has; None if the assignment alone does not show the string."""
        return None if self.word is None or self.is_append else self.word.value


@frozen(slots=True)
class VariableUse(TextRange):
    """An expansion of a variable, such as $NAME or ${NAME:-x}."""

    name: str  # the variable's name, or 1, @, ? and the like
    operator: str  # in ${ }: "#" or "!" before the name, ":-", ":?", "##" and the like after the name
    at: int  # the offset of its first character
    end: int  # the offset after its last character
    source: ShellText  # the text that holds the expansion


class ShellOption(NamedTuple):
    """A change of a shell option, such as errexit, by `set` or by the first line."""

    name: str  # the long name, such as "errexit"
    is_on: bool  # whether the option is on from here on
    line: int
    context: Context  # the constructs around the `set`


class _Parts(NamedTuple):
    """The parts of a command."""

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...]
    redirects: tuple[Redirect, ...]
    end: int  # the offset where the last part ends


class Command(TextRange):
    """A simple command such as `srun python train.py`, or a test: [[ ]], [ ] or (( ))."""

    def __init__(  # noqa: PLR0917 (the command's place in the text)
        self,
        source: ShellText,
        node: Node,
        nodes: tuple[Node, ...],
        context: Context,
        pipe: Pipe | None,
        stage: int,
    ) -> None:
        self.source = source  # the script that holds the command, or a string, such as that of bash -c
        self.at = node.start  # the offset of its first character
        self.context = context
        self.pipe = pipe  # the pipeline around the command; None without a pipeline
        self.stage = stage  # the index of the command's stage in the pipeline
        self.is_test = node.kind in TESTS
        self.ends_script = (
            False  # whether the script has the status of this command; `walk` and `body` set it
        )
        self._node = node
        self._part_nodes = nodes  # the children of the node, and redirections outside of the node

    @property
    def in_background(self) -> bool:
        """Whether & follows the command, or a construct around the command."""
        return self.context.in_background

    @cached_property
    def _parts(self) -> _Parts:
        return _read_parts(self, self._part_nodes)

    @property
    def words(self) -> tuple[Word, ...]:
        """The name and the arguments, without redirections, and without assignments before the name.

        The words of a test are [[, [ or ((, and then the operators and operands.
        """
        return self._parts.words

    @property
    def prefix_assignments(self) -> tuple[Assignment, ...]:
        """The assignments before the command's name, which only this command sees."""
        return tuple(assignment for assignment in self.assignments if assignment.is_prefix)

    @cached_property
    def assignments(self) -> tuple[Assignment, ...]:
        """The assignments before the command's name, and those of export, declare and the like."""
        # Most commands have no assignments: their parts need not be read.
        may_assign = any(node.kind in _ASSIGNMENT_HOLDERS for node in self._part_nodes)
        return self._parts.assignments if may_assign else ()

    @property
    def redirects(self) -> tuple[Redirect, ...]:
        """The redirections of the command, not those of a construct around it, in their order."""
        return self._parts.redirects

    @property
    def end(self) -> int:  # type: ignore[override] # a property, as the parts are read late
        """The offset after the last character."""
        return self._node.end if self.is_test else self._parts.end

    @property
    def text(self) -> str:
        """The command as it is written."""
        return self.source.text[self.at : self.end]

    @cached_property
    def path(self) -> str:
        """The program as the script names it, such as ./run.sh; "" if the name is an expansion or missing."""
        if self.is_test:
            return self.words[0].text
        if match := _PLAIN_NAME.match(self.source.text, self.at, self._node.end):
            return match[1]  # without reading the parts, which takes time
        return (self.words[0].value or "") if self.words else ""

    @property
    def arguments(self) -> list[str]:
        """The values of the words after the first; "" for a word with an expansion."""
        return [word.value or "" for word in self.words[1:]]

    @cached_property
    def name(self) -> str:
        """The name of the program without its folder, such as run.sh of ./run.sh."""
        return self.path.rpartition("/")[2]

    @property
    def trap_words(self) -> tuple[Word, ...]:
        """The action and the signals of a `trap` command.

        The result is () for other commands, and for a trap that only prints or resets a single signal.
        """
        if self.name != "trap" or any(word.text in ("-l", "-p", "-lp") for word in self.words[1:2]):
            return ()
        words = self.words[2:] if len(self.words) > 1 and self.words[1].text == "--" else self.words[1:]
        return words if len(words) > 1 else ()


_PLAIN_NAME = re.compile(r"([\w./+-]+)(?=[ \t\n;]|\Z)")  # a command's name without quotes and expansions
_TEST_OPENER = re.compile(r"\[\[?|\(\(")  # the first word of a test
# The descriptor and the operator of a redirection: 2 and > of 2>FILE, {lock} and > of {lock}>FILE.
_REDIRECT_START = re.compile(r"(\d+|\{[A-Za-z_]\w*\})?(&>>|&>|<<<|<<-?|<>|<&-?|>&-?|>>|>\||<|>)")


class NodeSpan(NamedTuple):
    """The place of a word, for which the grammar may have several nodes; or the start of a redirection."""

    node: Node  # the first node of the word, or the node of the redirection
    at: int
    end: int


def word_spans(text: str, nodes: Iterable[Node]) -> list[NodeSpan]:
    """Return a span for each word and each redirection among nodes.

    The grammar makes several nodes of one word such as $a/$b/$c. They get one span.
    """
    joined: list[NodeSpan] = []
    for node in nodes:
        if node.kind in REDIRECTS:
            joined.append(NodeSpan(node, node.start, node.start))
        elif node.kind in _WORD_KINDS:
            last = joined[-1] if joined and joined[-1].node.kind in _WORD_KINDS else None
            gap = node.start - last.end if last else 1
            # A word may continue after a backslash and a line break, which are two characters.
            if last and (not gap or (gap > 1 and not text[last.end : node.start].replace("\\\n", ""))):
                joined[-1] = last._replace(end=node.end)
            else:
                joined.append(NodeSpan(node, node.start, node.end))
    return joined


def _read_parts(command: Command, nodes: Iterable[Node]) -> _Parts:
    """Return the parts of a command from its nodes.

    In the grammar, words after a redirection are children of the redirection. Here they are words of the
    command.
    """
    source, end = command.source, command.at
    operator = descriptor = ""  # of the redirection whose target is the next word; "" without one
    words: list[Word] = []
    assignments: list[Assignment] = []
    redirects: list[Redirect] = []
    if command.is_test and (opener := _TEST_OPENER.match(source.text, command.at)):
        words.append(read_word(source, *opener.span()))
    for node, at, span_end in word_spans(source.text, unfold(nodes, _WORD_HOLDERS)):
        gap = source.text[end:at]
        if gap not in (" ", "") and not command.is_test and "\n" in gap.replace("\\\n", ""):
            break  # after an error, the grammar adds the next line to the command
        if node.kind in REDIRECTS:
            match = _REDIRECT_START.match(source.text, node.start)
            operator, end = (match[2], match.end()) if match else ("", at)
            descriptor = (match[1] or "") if match else ""
            if operator.endswith("&-"):  # the operator closes the descriptor, and has no target
                redirects.append(Redirect(operator, None, descriptor))
                operator = ""
            continue
        end = span_end
        is_assignment = node.kind == "variable_assignment" and ASSIGNMENT_START.match(source.text, at)
        if operator:
            redirects.append(Redirect(operator, read_word(source, at, end), descriptor))
            operator = ""
            continue
        if is_assignment:
            setter = words[0].text if words else ""
            assignments.append(
                read_assignment(source, node, end, command.context, setter=setter, is_prefix=not words)
            )
        if words or not is_assignment:  # `export NAME=VALUE` has the word, `NAME=VALUE COMMAND` has not
            words.append(read_word(source, at, end))
    return _Parts(tuple(words), tuple(assignments), tuple(redirects), end)


def read_assignment(
    source: ShellText, node: Node, end: int, context: Context, *, setter: str = "", is_prefix: bool = False
) -> Assignment:
    """Return the assignment that starts with a node and ends at the offset `end`.

    The value may need several nodes of the grammar, so `end` may be after the end of the node.
    """
    match = ASSIGNMENT_START.match(source.text, node.start, end)
    name, subscript, plus = match.groups() if match else (source.text[node.start : end], "", "")
    items, value = None, read_word(source, match.end() if match else end, end)
    for child in node.children:
        if child.kind == "array":
            elements = word_spans(source.text, child.children)
            items = tuple(read_word(source, element.at, element.end) for element in elements)
    return Assignment(
        name=name,
        word=value if items is None else None,
        items=items,
        is_append=bool(plus),
        subscript=subscript or "",
        setter=setter,
        is_exported=setter == "export",
        is_prefix=is_prefix,
        context=context,
        at=node.start,
        end=end,
        source=source,
    )
