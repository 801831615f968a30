"""A command: its words, its redirections and its context."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.check.bash.grammar import EXPANSIONS, Node, unfold, word_set
from sbatchgen.check.bash.text import Placed, ShellText
from sbatchgen.check.bash.word import ASSIGNED, Word, read_word

DECLARATIONS = frozenset(("declare", "export", "local", "readonly", "typeset"))
# Kinds of nodes: tests, redirections, nodes with words inside, nodes that may hold an assignment, and words.
TESTS = frozenset(("test_command", "compound_statement"))
REDIRECTS = frozenset(("file_redirect", "heredoc_redirect", "herestring_redirect"))
_GROUPS = REDIRECTS | {"ERROR", "binary_expression", "unary_expression", "parenthesized_expression"}
_ASSIGNING_KINDS = _GROUPS | {"variable_assignment"}
_WORD_KINDS = (
    EXPANSIONS
    | DECLARATIONS
    | word_set(
        "unset $ == =~ word number string raw_string ansi_c_string translated_string concatenation "
        "brace_expression extglob_pattern regex test_operator command_name variable_name subscript "
        "variable_assignment heredoc_start"
    )
)


class Context(NamedTuple):
    """The constructs around a command."""

    function: str = ""  # the function's name; "" outside of functions
    loop: bool = False  # whether the command is in a loop
    # Whether the command runs only sometimes: in an if, a case, a loop, or on the right of && or ||.
    branch: bool = False
    # Whether the status is tested: in the test of if or while, after !, on the left of && or ||.
    condition: bool = False
    subshell: bool = False  # whether the command is in ( )
    substitution: bool = False  # whether the command is in $( ), backquotes or <( )
    trap: tuple[str, ...] = ()  # the signals of the trap whose string holds the command
    background: bool = False  # whether & follows the command, or a construct around the command

    @property
    def top(self) -> bool:
        """Whether the script's own shell always runs the command, outside of functions and branches."""
        return not (self.function or self.branch or self.subshell or self.substitution or self.trap)


@dataclass(slots=True)
class Pipe:
    """A pipeline: its stages, each a list of commands."""

    stages: list[list[Command]] = field(default_factory=list)

    def add(self, command: Command) -> None:
        """Add a command to its stage."""
        while len(self.stages) <= command.stage:
            self.stages.append([])
        self.stages[command.stage].append(command)


class Redirect(NamedTuple):
    """A redirection."""

    operator: str  # such as ">", "<<", or ">&" in 2>&1
    target: Word | None  # the file, the descriptor, the string of <<< or the delimiter of <<
    descriptor: str = ""  # the redirected descriptor, such as "2" in 2>; "" for the operator's default


@frozen(kw_only=True, slots=True)
class Assignment(Placed):
    """A variable that gets a value. Lines and columns count from 1."""

    name: str  # the variable's name
    word: Word | None = None  # the value as written; None for an array, and if a command sets the value
    items: tuple[Word, ...] | None = None  # the words of an array's value; None for other values
    append: bool = False  # whether the operator is +=
    subscript: str = ""  # the text in brackets after the name
    # The command or word that sets the variable: "export", "for", "read" and so on; "" for NAME=VALUE alone.
    setter: str = ""
    exported: bool = False  # whether the assignment exports the variable
    prefix: bool = False  # whether the assignment holds for one command only
    context: Context
    at: int  # the offset of its first character
    end: int  # the offset after its last character
    source: ShellText  # the text that holds the assignment

    @property
    def value(self) -> str | None:
        """The string that the variable gets; None if the text does not show the string."""
        return None if self.word is None or self.append else self.word.value


@frozen(slots=True)
class VariableUse(Placed):
    """An expansion of a variable. Lines and columns count from 1."""

    name: str  # the variable's name, or 1, @, ? and the like
    operator: str  # "#" and "!" before the name; ":-", ":?", "##" and the like after the name
    at: int  # the offset of its first character
    end: int  # the offset after its last character
    source: ShellText  # the text that holds the expansion


class ShellOption(NamedTuple):
    """An option of the shell that `set` or the first line turns on or off."""

    name: str  # its long name, such as "errexit"
    on: bool  # whether the option is turned on
    line: int
    context: Context  # the context of the `set`


class _Parts(NamedTuple):
    """The parts of a command, and the offset where the last part ends."""

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...]
    redirects: tuple[Redirect, ...]
    end: int


class Command(Placed):
    """A simple command, or a test: [[ ]], [ ] or (( )). The parts are read when they are first needed."""

    def __init__(  # noqa: PLR0917 (the command's place in the text)
        self,
        source: ShellText,
        node: Node,
        nodes: tuple[Node, ...],
        context: Context,
        pipe: Pipe | None,
        stage: int,
    ) -> None:
        self.source = source  # the script that holds the command; or the string of a trap
        self.at = node.start  # the offset of its first character
        self.context = context
        self.pipe = pipe  # the pipeline around the command; None without a pipeline
        self.stage = stage  # the number of the stage in the pipeline, from 0
        self.is_test = node.kind in TESTS
        self.ends_script = False  # whether the script ends with this command and has its status
        self._node = node
        self._nodes = nodes  # the children of the node, and redirections outside of the node

    @property
    def background(self) -> bool:
        """Whether & follows the command, or a construct around the command."""
        return self.context.background

    @cached_property
    def _parts(self) -> _Parts:
        return _read_parts(self, self._nodes)

    @property
    def words(self) -> tuple[Word, ...]:
        """The words: the name and the arguments, without redirections and assignments before the name.

        The words of a test are [[, [ or ((, and the operands.
        """
        return self._parts.words

    @property
    def prefix(self) -> tuple[Assignment, ...]:
        """The assignments before the command's name."""
        return tuple(assignment for assignment in self.assignments if assignment.prefix)

    @cached_property
    def assignments(self) -> tuple[Assignment, ...]:
        """The assignments before the command's name, and assignments by export, declare and the like."""
        # Most commands have no assignments: their parts need not be read.
        return self._parts.assignments if any(node.kind in _ASSIGNING_KINDS for node in self._nodes) else ()

    @property
    def redirects(self) -> tuple[Redirect, ...]:
        """The command's own redirections, in order."""
        return self._parts.redirects

    @property
    def end(self) -> int:  # type: ignore[override] # known only when its parts are read
        """The offset after the last character."""
        return self._node.end if self.is_test else self._parts.end

    @property
    def text(self) -> str:
        """The command as it is written."""
        return self.source.text[self.at : self.end]

    @cached_property
    def path(self) -> str:
        """The first word; "" if the word is an expansion or missing."""
        if self.is_test:
            return self.words[0].text
        if match := _NAME.match(self.source.text, self.at, self._node.end):
            return match[1]  # without reading its parts
        return (self.words[0].value or "") if self.words else ""

    @property
    def arguments(self) -> list[str]:
        """The values of the words after the first; "" for a value that only the running bash knows."""
        return [word.value or "" for word in self.words[1:]]

    @cached_property
    def name(self) -> str:
        """The first word without the folder."""
        return self.path.rpartition("/")[2]

    @property
    def trap_words(self) -> tuple[Word, ...]:
        """The action and the signals of a `trap`; () if the trap only prints, or resets a single signal."""
        if self.name != "trap" or any(word.text in ("-l", "-p", "-lp") for word in self.words[1:2]):
            return ()
        words = self.words[2:] if len(self.words) > 1 and self.words[1].text == "--" else self.words[1:]
        return words if len(words) > 1 else ()


_NAME = re.compile(r"([\w./+-]+)(?=[ \t\n;]|\Z)")  # a command's name without quotes and expansions
_OPENER = re.compile(r"\[\[?|\(\(")  # the first word of a test
# The descriptor and the operator of a redirection.
_OPERATOR = re.compile(r"(\d+|\{[A-Za-z_]\w*\})?(&>>|&>|<<<|<<-?|<>|<&-?|>&-?|>>|>\||<|>)")


class Span(NamedTuple):
    """Neighbouring nodes that form one word, or the node of a redirection."""

    node: Node
    at: int
    end: int


def spans(text: str, nodes: Iterable[Node]) -> list[Span]:
    """Return a span for each word and each redirection among nodes.

    The grammar makes several nodes of one word such as $a/$b/$c.
    """
    joined: list[Span] = []
    for node in nodes:
        if node.kind in REDIRECTS:
            joined.append(Span(node, node.start, node.start))
        elif node.kind in _WORD_KINDS:
            last = joined[-1] if joined and joined[-1].node.kind in _WORD_KINDS else None
            gap = node.start - last.end if last else 1
            # A gap of at least two characters may be a continued line within the word.
            if last and (not gap or (gap > 1 and not text[last.end : node.start].replace("\\\n", ""))):
                joined[-1] = last._replace(end=node.end)
            else:
                joined.append(Span(node, node.start, node.end))
    return joined


def _read_parts(command: Command, nodes: Iterable[Node]) -> _Parts:
    """Return the parts of a command; in the grammar, words after a redirection belong to the redirection."""
    source, end = command.source, command.at
    operator = descriptor = ""  # of a redirection whose target is the next word
    words: list[Word] = []
    assignments: list[Assignment] = []
    redirects: list[Redirect] = []
    if command.is_test and (opener := _OPENER.match(source.text, command.at)):
        words.append(read_word(source, *opener.span()))
    for node, at, span_end in spans(source.text, unfold(nodes, _GROUPS)):
        gap = source.text[end:at]
        if gap not in (" ", "") and not command.is_test and "\n" in gap.replace("\\\n", ""):
            break  # after an error, the grammar adds the next line to the command
        if node.kind in REDIRECTS:
            match = _OPERATOR.match(source.text, node.start)
            operator, end = (match[2], match.end()) if match else ("", at)
            descriptor = (match[1] or "") if match else ""
            if operator.endswith("&-"):  # closes the descriptor, and has no target
                redirects.append(Redirect(operator, None, descriptor))
                operator = ""
            continue
        end = span_end
        is_assignment = node.kind == "variable_assignment" and ASSIGNED.match(source.text, at)
        if operator:
            redirects.append(Redirect(operator, read_word(source, at, end), descriptor))
            operator = ""
            continue
        if is_assignment:
            setter = words[0].text if words else ""
            assignments.append(
                read_assignment(source, node, end, command.context, setter=setter, prefix=not words)
            )
        if words or not is_assignment:
            words.append(read_word(source, at, end))
    return _Parts(tuple(words), tuple(assignments), tuple(redirects), end)


def read_assignment(
    source: ShellText, node: Node, end: int, context: Context, *, setter: str = "", prefix: bool = False
) -> Assignment:
    """Return the assignment in a node."""
    match = ASSIGNED.match(source.text, node.start, end)
    name, subscript, append = match.groups() if match else (source.text[node.start : end], "", "")
    items, value = None, read_word(source, match.end() if match else end, end)
    for child in node.children:
        if child.kind == "array":
            words = spans(source.text, child.children)
            items = tuple(read_word(source, word.at, word.end) for word in words)
    return Assignment(
        name=name,
        word=value if items is None else None,
        items=items,
        append=bool(append),
        subscript=subscript or "",
        setter=setter,
        exported=setter == "export",
        prefix=prefix,
        context=context,
        at=node.start,
        end=end,
        source=source,
    )
