"""The draft of an adoption, which the other modules fill while they read a script.

The draft has the keys of the job and of the profile, and the outcome of each line that was read so far.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from sbatchgen.base.keys import record
from sbatchgen.base.texts import EnvName
from sbatchgen.base.units import ShellPath
from sbatchgen.check.bash import Body, Piece, Word
from sbatchgen.check.bash.chain import Tool, ToolOption
from sbatchgen.check.bash.word import LITERAL_KINDS
from sbatchgen.check.script.launches import slurm_variable_number
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.adopt.block import Block
from sbatchgen.lab.adopt.remarks import OUTCOME_ORDER, Outcome, Remark

_USER_VARIABLES = ("HOME", "USER", "LOGNAME")  # variables with the same value on all machines of a cluster
# Operators with which an expansion such as ${NAME:-DEFAULT} gives the value of a variable that is set.
_PLAIN_OPERATORS = ("", ":-", "-", ":?", "?")
_POSITIONAL_PARAMETERS = frozenset("#@*123456789")  # the names of the variables $#, $@, $* and $1 to $9
SUBMIT_DIR = "${SLURM_SUBMIT_DIR}"  # the folder in which the user submits, as paths of a job name it


@record
class Draft:
    """The job and the profile that the lines read so far give, and the outcomes of these lines."""

    script: JobScript
    environment: Mapping[str, str]  # the user's environment, for HOME and USER
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    remarks: dict[Remark, None] = field(default_factory=dict)  # an ordered set of outcomes with reasons
    job: dict[str, Any] = field(default_factory=dict)  # keys of the job YAML
    profile: dict[str, Any] = field(default_factory=dict)  # keys of the profile's YAML
    options: dict[str, Any] = field(default_factory=dict)  # the key `options` of the job
    # the key `env` of the job; None stands for a variable that users export where they submit
    env: dict[str, str | None] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)  # the first lines of the profile's setup
    # later lines of the setup, right before the launch: variables of srun and of the trainer
    step_setup: list[str] = field(default_factory=list)
    launch_names: set[str] = field(default_factory=set)  # variables that the launch itself sets
    # names of the old script's variables for the master address and the ranks
    rendezvous_names: frozenset[str] = frozenset()
    needed_names: set[str] = field(default_factory=set)  # variables that the launch or the kept lines expand
    launch_lines: range = range(0)  # the numbers of the lines of the launch's statement
    # the long names of sbatch options whose values the new script changes on purpose; a remark says why
    changed_options: set[str] = field(default_factory=set)
    # the working folder at the launch; None if only the running job knows the folder
    folder: str | None = SUBMIT_DIR
    secrets: frozenset[int] = frozenset()  # the lines that hold passwords, tokens or keys
    notes: list[str] = field(default_factory=list)
    # by a value that only the running job knows: the name of its shell variable, such as argument_1
    argument_variables: dict[str, str] = field(default_factory=dict)
    argument_names: set[str] = field(default_factory=set)  # the names of these shell variables
    # the lines and outcomes that `add` has noted already
    _added: set[tuple[Sequence[int], Outcome]] = field(default_factory=set)

    @property
    def body(self) -> Body:
        """The script's commands as bash reads them."""
        return self.script.body

    def add(self, lines: Iterable[int], outcome: Outcome, reason: str, *names: str) -> None:
        """Note the outcome of lines with its reason. The last outcome of a line in OUTCOME_ORDER counts."""
        numbers = lines if isinstance(lines, range) and len(lines) > 1 else tuple(lines)
        if (numbers, outcome) not in self._added:  # a long statement gets the same outcome many times
            self._added.add((numbers, outcome))
            for line in numbers:
                self.outcomes[line] = max(outcome, self.outcomes.get(line, outcome), key=OUTCOME_ORDER.index)
        self.remarks[Remark(numbers, outcome, reason, names)] = None

    def lose(self, reason: str, *names: str) -> None:
        """Note the launch as lost, because no key of a job expresses a part of it."""
        self.add(self.launch_lines, "lost", reason, *names)

    def keep_shell(self, block: Block, where: str) -> list[str]:
        """Return the lines of a block for a key of the profile, and note the lines as kept there.

        `where` names the key, such as "in setup". Lines that a profile can't hold are noted as lost.
        """
        # A job has no positional parameters. In a function, $1 is an argument of the function.
        if (parameters := _POSITIONAL_PARAMETERS & block.used_names) and not block.defines_function:
            if block.only_prints_harmlessly:
                self.add(block.lines, "dropped", "it only prints the script's own arguments")
                return []
            names = (f"${name}" for name in sorted(parameters))
            self.add(block.lines, "lost", "the script's own arguments, to be written out", *names)
            return []
        lines = []
        for number, text in zip(block.lines, block.text.split("\n"), strict=True):
            unindented = text.lstrip("\t")
            line = "    " * (len(text) - len(unindented)) + unindented  # a profile can't hold tabs
            if any(ord(char) < 32 or ord(char) == 127 for char in line):
                reason = "a tab or another control character: a profile can't hold the line"
                self.add((number,), "lost", reason)
            else:
                lines.append(line)
                ending = ": if it fails, the job ends" if line.endswith("|| exit") else ", unchanged"
                self.add((number,), "kept", f"{where}{ending}")
        return lines

    def argument_variable(self, value: str) -> str:
        """Return the name of the shell variable for a value that only the running job knows.

        The name is new, such as "argument_1", or the name that the value has already.
        """
        name = self.argument_variables.setdefault(value, f"argument_{len(self.argument_variables) + 1}")
        self.argument_names.add(name)
        return name

    def note(self, text: str) -> None:
        """Add a note about a difference of the new script; the same note is added only once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def argument_lines(self) -> list[str]:
        """The lines of shell that set the variables of arguments."""
        return [f"{name}={value}" for value, name in self.argument_variables.items()]

    def known_text(self, word: Word, body: Body) -> str | None:
        """Return the text that a word expands to in the job; None if only the running job knows the text.

        HOME and USER expand to the values of the user, and variables such as SLURM_NNODES to the numbers
        of the directives.
        """
        pieces = [(self.text_of(piece), piece) for piece in body.resolve(word).pieces]
        texts = [self.user_value(piece) if text is None else text for text, piece in pieces]
        return None if None in texts else "".join(filter(None, texts))

    def text_of(self, piece: Piece) -> str | None:
        """Return the string that a piece of a word expands to; None if it does not follow from the script.

        A variable such as SLURM_NNODES follows from the directives of the script.
        """
        if piece.kind in LITERAL_KINDS:
            return None if piece.kind == "glob" else piece.text
        if piece.kind != "variable" or piece.subscript or piece.operator not in _PLAIN_OPERATORS:
            return None
        number = slurm_variable_number(piece.name, self.script.resources)
        return None if number is None else str(number)

    def user_value(self, piece: Piece) -> str | None:
        """Return the user's value for a piece that is HOME, USER or LOGNAME; None for another piece."""
        name = "HOME" if piece.kind == "tilde" and piece.text == "~" else piece.name
        is_plain = piece.kind in ("tilde", "variable") and not piece.subscript
        is_plain = is_plain and piece.operator in _PLAIN_OPERATORS
        value = self.environment.get(name) if is_plain and name in _USER_VARIABLES else None
        if value is None or name in self.script.assigned_names:  # the script may set another value
            return None
        self.note(f"{name} is {value}, as plain text")
        return value

    def path(self, word: Word, body: Body) -> str | None:
        """Return a path as jobs and profiles write it, such as ${HOME}/x.

        Returns None if only the running job knows the path.
        """
        try:
            text = self._text_with_variables(word, body)
            return None if text is None else str(ShellPath.parse(text))
        except ValueError:
            return None

    def _text_with_variables(self, word: Word, body: Body) -> str | None:
        """Return a word with ${NAME} for its variables; None if a piece is neither text nor a variable."""
        pieces = body.resolve(word).pieces  # with the known values of the script's variables
        texts = [_path_text(piece) for piece in pieces]
        if (not pieces or None in texts) and body is self.body:
            pieces = word.pieces  # with the variables themselves, which the job can expand
            texts = [_path_text(piece) for piece in pieces]
        if not pieces or None in texts:
            return None
        self.needed_names |= {piece.name for piece in pieces}
        return "".join(filter(None, texts))

    def adopt_env_option(self, tool: Tool, option: ToolOption) -> None:
        """Put the variables of a container's option, such as `--env A=1,B=2`, into the job's env."""
        word = option.value_as_word(tool.body)
        text = (self._text_with_variables(word, tool.body) or "") if word else ""
        values: dict[str, str] = {}
        names, is_in_env = [], True
        for entry in text.split(","):
            name, equals, value = entry.partition("=")
            # NAME=$NAME and NAME without a value give the container a variable of the script. A job gives the
            # container all variables of Slurm and of the script, so these entries are left out.
            is_of_job = name in self.script.assigned_names or name.startswith("SLURM_")
            if value == f"${{{name}}}" or (is_of_job and not equals):
                continue
            values[name] = value
            names.append(name or option.word.text)
            is_in_env = is_in_env and bool(equals) and can_be_in_env(name) and "PATH" not in name
        if is_in_env:
            self.env |= values
        else:
            self.lose(f"--{option.name} of {tool.name}: export it before the launch", *names)

    def file(self, word: Word, body: Body) -> str | None:
        """Return a path of the launch, relative to the folder in which the user submits.

        Returns None if only the running job knows the path.
        """
        path = self.path(word, body)
        if path is None or path.startswith(("/", "${")) or "://" in path:
            return path
        if self.folder is None:
            return None
        path = path.removeprefix("./")
        return path if self.folder == SUBMIT_DIR else f"{self.folder}/{path}"

    def option_path(self, tool: Tool, option: ToolOption, *, file: bool = False) -> str | None:
        """Return the path that an option gives.

        If only the running job knows the path, the option is noted as lost, and the result is None. With
        `file`, a relative path begins in the folder of the launch, as with `Draft.file`.
        """
        path = option.value if option.value and not file else None
        if path is None and (word := option.value_as_word(tool.body)):
            path = (self.file if file else self.path)(word, tool.body)
        if path is None:
            self.lose(f"--{option.name}: the path is known only when the job runs")
        return path

    def option_paths(self, tool: Tool, option: ToolOption) -> list[str]:
        """Return the paths of an option such as `--bind /data,/scratch`."""
        return [path for path in (self.option_path(tool, option) or "").split(",") if path]


def can_be_in_env(name: str) -> bool:
    """Return whether `env` of a job may set a variable of this name."""
    try:
        EnvName.parse(name)
    except ValueError:
        return False
    return True


def _path_text(piece: Piece) -> str | None:
    """Return a piece of a path as jobs and profiles write it; None if they can't express the piece."""
    if piece.kind == "text":
        return None if "${" in piece.text else piece.text
    if piece.kind == "tilde" and piece.text == "~":
        return "${HOME}"
    # In a job SLURM_SUBMIT_DIR is always set, so the default in ${SLURM_SUBMIT_DIR:-.} is never used.
    is_always_set = piece.operator in _PLAIN_OPERATORS and piece.name == "SLURM_SUBMIT_DIR"
    if piece.kind == "variable" and (piece.operator == "" or is_always_set) and not piece.subscript:
        if piece.name == "PWD":
            return SUBMIT_DIR
        return f"${{{piece.name}}}"  # ShellPath checks the name
    return SUBMIT_DIR if piece.text in ("$(pwd)", "`pwd`") else None
