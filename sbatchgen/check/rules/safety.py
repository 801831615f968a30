"""Rules about lines that can do harm, such as rm -r, and about lines that do not do what they seem to do.

The second kind is, for example, an assignment with blanks around its =. Source: bash(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from sbatchgen.base.finding import Edit, Severity
from sbatchgen.base.quoting import first_names
from sbatchgen.check.bash import Command, Word
from sbatchgen.check.executables.program import SHELLS, programs
from sbatchgen.check.rules.names import VARIABLES
from sbatchgen.check.rules.option_values import slurmctld_refuses
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.rules.syntax import placeholders_refused_by_bash
from sbatchgen.check.sbatch.header import READ_KINDS
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ANY_ASSIGNMENT = re.compile(r"([\w.-]+)\+?=")  # also to a name that no variable can have, such as MY-DIR=
# NAME =VALUE or NAME = VALUE, also after assignments such as A=1. This search saves reading the words.
_SPACED_ASSIGNMENT = re.compile(r"(?:[A-Za-z_]\w*\+?=\S*[ \t]+)*[A-Za-z_]\w*(?:[ \t]|\\\n)+=")
_ASSIGNMENT_TO_EXPANSION = re.compile(r"\$\{?([A-Za-z_]\w*)\}?[ \t]*=(?![=~])")  # $NAME=VALUE
# A variable that names a file to load or run -> its effect, as the end of a message.
_LOADING_VARIABLES = {
    "LD_PRELOAD": "every program from here on loads it, srun and the shell too",
    "LD_AUDIT": "every program from here on loads it, srun and the shell too",
    "BASH_ENV": "every bash that the job starts runs that file first",
    "PROMPT_COMMAND": "an interactive shell in the job runs it",
}
_WATCHED_PREFIXES = ("LD_", "BASH_ENV", "PROMPT_COMMAND", "PATH", "SBATCH_")  # names that SB803 looks at
SITE_VARIABLES = frozenset(VARIABLES["of-sites"])  # variables that many sites set in each job
ALWAYS_SET = frozenset(VARIABLES["always-set"])  # variables that Slurm or bash sets in each job
_OPTION_LINE = re.compile(r"\n[ \t]*-")  # a line that begins with an option
_SHARED_FOLDER = re.compile(r"(/tmp|/var/tmp|/dev/shm)/?(?:\*+|\*\.\*)?")  # /tmp or /tmp/*, all of it
_TEMPORARY_VARIABLES = frozenset(("TMPDIR", "TMP", "TEMP"))  # set by some sites, but not by Slurm or bash
WHOLE_NODE_GPUS = 8  # a job with this number of GPUs on a node most likely has whole nodes
# Placeholders such as /path/to/data, CHANGEME, <your account>, your-project-here and -A xxx.
_PLACEHOLDER = re.compile(
    r"/path/to\b[\w./-]*|\bCHANGE_?ME\b|<your[\w -]+>"
    r"|(?<![\w$/{])your[-_](?:[a-z0-9]{1,20}[-_]){0,4}(?:account|project|partition|allocation|email|key|token|username|netid)(?:[-_](?:here|name|id))?(?!\w)"
    r"|(?:--account[= ]|-A ?)[\w-]*(?-i:XXX)[\w-]*",
    re.IGNORECASE,
)
_COMMENT_START = re.compile(r"#(?<!\S#)")  # begins with the literal #, for which the search is fast
# Each match of _PLACEHOLDER holds one of these words. Most scripts hold none, and need no search.
_PLACEHOLDER_WORDS = ("/path/to", "<your", "changeme", "change_me", "your_", "your-", "xxx")


@RULES.add("SB802", "error", "an assignment that sets nothing", applies=Applies.ANY_TEXT)
def _useless_assignment(script: JobScript) -> Iterator[Hit]:
    for command in script.named("export"):
        for word in command.words[1:]:
            match = _ANY_ASSIGNMENT.match(word.text)
            if match and not _NAME.fullmatch(match[1]) and word.text[0] != "-":
                what = f"'{match[1]}' is not a variable name: bash refuses to export it"
                yield Hit(script.at_word(word), what, f"{_valid_name(match[1])}=...")
    if script.body.faults:
        return  # a line that the grammar takes for a command may be text
    yield from _values_run_as_commands(script)
    for command in script.commands:
        text = command.source.text
        if "=" in command.path:
            match = _ANY_ASSIGNMENT.match(command.path)
            if match and not match[1].startswith("-") and not _NAME.fullmatch(match[1]):
                what = f"'{match[1]}' is not a variable name: bash looks for a command of this name"
                yield Hit(script.at_word(command), what, f"{_valid_name(match[1])}=...")
        elif (match := _ASSIGNMENT_TO_EXPANSION.match(text, command.at)) and match.end() <= command.end:
            what = f"bash expands ${match[1]} before it looks for an assignment, runs what is left as a "
            what += "command, and sets nothing"
            yield Hit(script.at_word(command), what, f"{match[1]}=..., without $ and spaces")
        elif _SPACED_ASSIGNMENT.match(text, command.at) and _is_assignment(script, command):
            what = f"a space before =: bash runs a command '{command.path}' and sets nothing"
            yield Hit(script.at_word(command), what, f"{command.path}=..., without spaces")


def _values_run_as_commands(script: JobScript) -> Iterator[Hit]:
    """Find a loop variable that bash runs as a command, although it is meant as input: $($file | cut ...)."""
    loop_variables = {assignment.name for assignment in script.body.assignments if assignment.setter == "for"}
    if not loop_variables:
        return
    for command in script.commands:
        piece = command.words[0].only_piece if len(command.words) == 1 else None
        if piece and piece.name in loop_variables and command.context.in_substitution and command.pipe:
            # The first program after the first |, such as cut.
            reader = next((other.name for stage in command.pipe.stages[1:2] for other in stage), "")
            if reader in _TEXT_READERS and command.stage == 0:
                what = f"bash runs the value of ${piece.name} as a command, and {reader} gets nothing to read"
                yield Hit(script.at_word(command), what, f'echo "${piece.name}" | {reader} ...', "warning")


def _is_assignment(script: JobScript, command: Command) -> bool:
    """Return whether a command such as NAME = VALUE or NAME =VALUE is meant as an assignment.

    The script then expands a variable of this name, the value begins with [, or the name is in capitals.
    """
    second = command.words[1].text if len(command.words) > 1 and _NAME.fullmatch(command.path) else ""
    if not second.startswith("=") or second.startswith(("==", "=~")) or command.name in TEXT_PROGRAMS:
        return False
    is_used = any(use.name == command.path for use in script.body.variable_uses)
    is_list = second == "=" and any(word.text.startswith("[") for word in command.words[2:3])
    return is_used or is_list or re.fullmatch(r"[A-Z][A-Z0-9_]*", command.path) is not None


_TEXT_READERS = programs("reads-text")  # programs that print a part of their input, such as cut
TEXT_PROGRAMS = programs("takes-text")  # programs for which = is a text or a comparison, such as echo


def _valid_name(name: str) -> str:
    """Return the name of a variable that is as similar as possible to a name that bash refuses."""
    name = re.sub(r"\W", "_", name)
    return f"_{name}" if name[:1].isdigit() else name


@RULES.add("SB817", "warning", "a pattern in quotes", source="bash(1)", words=("*",))
def _quoted_pattern(script: JobScript) -> Iterator[Hit]:
    for command in script.named(*_FILE_PROGRAMS):
        for previous, word in pairwise(command.words):
            if previous.text.startswith("--") and "=" not in previous.text:
                continue  # the word is the value of an option, such as --exclude
            has_quoted_star = any(piece.is_quoted and "*" in piece.text for piece in word.pieces)
            literal = "".join(piece.text for piece in word.pieces if piece.kind in ("text", "glob"))
            # An option, a path on another host, or a text with blanks keeps its *.
            is_meant_as_written = (
                "=" in word.text or ":" in literal or literal.startswith("-") or " " in literal
            )
            if not has_quoted_star or is_meant_as_written:
                continue
            fate = "-rf removes nothing" if command.name == "rm" else f"{command.name} finds no such file"
            what = f"{word.text} is one name with a *, not a pattern, as the * is in quotes: {fate}"
            # "*.txt" -> *.txt, but "$DIR/*.txt" -> "$DIR/"*.txt
            with_quoted_start = re.sub(r"([\w.-]*\*[\w.*-]*)\"$", r'"\1', word.text)
            corrected = with_quoted_start if "$" in word.text else word.text[1:-1]
            yield Hit(script.at_word(word), what, f"write {corrected}")


_FILE_PROGRAMS = programs("files")  # programs that take names of files


@RULES.add(
    "SB803",
    "warning",
    "a variable that changes the shell or the loader",
    pedantic=True,
    words=_WATCHED_PREFIXES,
)
def _loader_variables(script: JobScript) -> Iterator[Hit]:
    for assignment in script.body.assignments:
        if not assignment.name.startswith(_WATCHED_PREFIXES):
            continue
        if assignment.setter == "unset" or assignment.setter.startswith("$"):
            continue  # `unset NAME` removes the variable, and ${NAME:=VALUE} keeps the value of a set one
        if assignment.is_prefix or assignment.context.in_branch:
            continue
        at = script.at_start(assignment)
        if assignment.name in _LOADING_VARIABLES:
            severity: Severity | None = "info" if assignment.name.startswith("LD_") else None
            fix = f"set it for one command alone: {assignment.name}=... python train.py"
            yield Hit(at, f"{assignment.name}: {_LOADING_VARIABLES[assignment.name]}", fix, severity)
        elif (
            assignment.name == "PATH"
            and assignment.value
            and not assignment.is_append
            and assignment.context.is_top_level
        ):
            if {"/usr/bin", "/bin"}.isdisjoint(assignment.value.split(":")):
                what = f"PATH is now {assignment.value} alone: srun, scontrol etc. are no longer found"
                fix = (
                    f'PATH="{assignment.value}"'
                    if "$PATH" in assignment.value
                    else f"PATH={assignment.value}:$PATH"
                )
                yield Hit(at, what, fix, pedantic=False)
        elif assignment.name.startswith("SBATCH_") and "sbatch " not in script.text:
            what = f"{assignment.name} is read by sbatch when a job is submitted: here it does nothing"
            yield Hit(at, what, "write a directive")


@RULES.add(
    "SB804", "warning", "rm -r that may remove more than it should", applies=Applies.ANY_TEXT, words=("rm",)
)
def _removes_too_much(script: JobScript) -> Iterator[Hit]:
    has_whole_nodes = script.resources.is_exclusive or script.resources.gpu_count >= WHOLE_NODE_GPUS
    for command in script.named("rm"):
        options = [script.body.text_of(word) for word in command.words[1:] if word.text.startswith("-")]
        if not any(option == "--recursive" or re.match("-(?!-).*[rR]", option) for option in options):
            continue
        for word in command.words[1:]:
            if (shared := _SHARED_FOLDER.fullmatch(word.text)) and not has_whole_nodes:
                folder = shared[1]
                what = f"{folder} belongs to all jobs on the node: this removes the files of your other jobs"
                yield Hit(script.at_word(word), what, f"rm -rf {folder}/NAME, or --exclusive")
                continue
            # Below, the word is like $DIR/data: if DIR is unset, rm gets /data.
            piece, *following = word.pieces
            if piece.kind != "variable" or piece.operator or not _NAME.fullmatch(piece.name):
                continue
            if piece.name in script.assigned_names or piece.name in ALWAYS_SET:
                continue
            is_path = following and following[0].text.startswith("/")
            if not is_path or script.body.is_option_on("nounset", command.line):
                continue
            removed = "".join(part.text for part in following)
            is_site_variable = piece.name in SITE_VARIABLES and piece.name not in _TEMPORARY_VARIABLES
            if is_site_variable or removed not in ("/*", "/**"):
                continue
            what = f"the script does not set {piece.name}: if it is unset, this removes {removed}"
            if piece.name in _TEMPORARY_VARIABLES:
                what = f"{piece.name} is unset unless the site sets it, and this then removes {removed}"
            yield Hit(script.at_word(word), what, f'rm -r -- "${{{piece.name}:?}}"{removed}')


@RULES.add(
    "SB807",
    "warning",
    "files or downloads that others can change",
    applies=Applies.ANY_TEXT,
    source="chmod(1)",
    words=("chmod", "curl", "wget"),
)
def _writable_by_all(script: JobScript) -> Iterator[Hit]:
    for command in script.named("chmod"):
        modes = [word for word in command.words[1:] if not word.text.startswith("-")][:1]
        if modes and _WRITABLE_MODE.fullmatch(modes[0].value or ""):
            what = f"chmod {modes[0].value} lets everybody on the cluster change the files"
            yield Hit(script.at_word(modes[0]), what, "chmod g+w, or 770")
    for command in script.named("curl", "wget"):
        stages = command.pipe.stages[command.stage + 1 :] if command.pipe else []
        if any(stage and stage[0].name in SHELLS for stage in stages):
            what = f"{command.name} | bash runs whatever the server sends, in each job again"
            yield Hit(script.at_word(command), what, "download it once, read it, and run the file")


# Modes of chmod with which everybody may write: 777, 0666, o+w, a+rwx.
_WRITABLE_MODE = re.compile(r"0?[0-7]{2}[2367]|[ugoa]*[oa][ugoa]*\+\w*w\w*")


@RULES.add(
    "SB805",
    "warning",
    "text from outside the script that is run as commands",
    pedantic=True,
    words=("eval", " -c"),
)
def _runs_foreign_text(script: JobScript) -> Iterator[Hit]:
    if "eval" not in script.text and " -c" not in script.text:
        return
    for runner, word in _texts_run_as_commands(script):
        names = [
            name for name in word.variables if name not in script.assigned_names and name not in ALWAYS_SET
        ]
        if names and not word.text.startswith("'"):
            name = names[0]
            what = f"${name} comes from outside the script and is run as commands: it decides what the job "
            what += "does"
            is_argument = name in ("@", "*") or name.isdigit()
            fix = '"$@"' if is_argument else 'an array: "${command[@]}"'
            yield Hit(script.at_word(word), what, f"run {fix} without {runner}")


def _texts_run_as_commands(script: JobScript) -> Iterator[tuple[str, Word]]:
    """Yield the program that runs a text as commands, such as eval or bash -c, and the word of the text."""
    for command in script.named("eval"):
        yield from (("eval", word) for word in command.words[1:])
    for launch in script.launches:
        for tool in launch.tools:
            option = tool.option("command") if tool.name in SHELLS else None
            if option and option.value is None and option.value_word and tool.body is script.body:
                yield f"{tool.name} -c", option.value_word


@RULES.add(
    "SB812",
    "warning",
    "an unfilled placeholder",
    applies=Applies.USUALLY & ~(Applies.EXAMPLES | Applies.PARTS) | Applies.PLACEHOLDERS,
)
def _unfilled_placeholder(script: JobScript) -> Iterator[Hit]:
    """Find the placeholders of a script, in one hit. If Slurm or bash refuses one, the hit is an error."""
    is_refused_by_sbatch = script.is_refused_for_placeholder
    # Placeholders by the numbers of their lines.
    refused_by_bash = {} if is_refused_by_sbatch else placeholders_refused_by_bash(script)
    matches = dict(_placeholders(script)) | refused_by_bash
    if not matches:
        return
    shown_line = next(
        iter(script.person_placeholders if is_refused_by_sbatch else refused_by_bash or matches)
    )
    fate = ": bash can't parse the line" if refused_by_bash else ""
    fate = ": sbatch refuses the script" if is_refused_by_sbatch else fate
    if not fate:
        for option in ("array", "dependency"):  # options that slurmctld checks
            line = script.at_option(option).line if option in script.options else 0
            if line in matches and slurmctld_refuses(option, script.option(option), script):
                shown_line, fate = line, ": Slurm refuses the script"
    match, other_lines = matches[shown_line], [str(line) for line in matches if line != shown_line]
    what = f"'{match[0]}' is a placeholder{fate}"
    lines_word = "lines" if len(other_lines) > 1 else "line"
    also = f", also in {lines_word} {first_names(other_lines, 5)}" if other_lines else ""
    place = script.at(shown_line, match.start() + 1, match.end() + 1)
    severity: Severity = "info" if script.is_for_program else "error"
    yield Hit(place, what, f"fill it in{also}", severity if fate else None)


def _placeholders(script: JobScript) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the number of each line with a placeholder that a person fills in, and the placeholder.

    Placeholders in comments and in messages of the script do not count.
    """
    text = script.text.lower()
    words = [word for word in _PLACEHOLDER_WORDS if word in text]
    starts = (match.start() for word in words for match in re.finditer(re.escape(word), text))
    numbers = {text.count("\n", 0, at) + 1 for at in starts}
    directives = {line.line: line for line in script.sbatch.directives if line.kind in READ_KINDS}
    mail_line = script.at_value("mail-user").line if "mail-user" in script.options else 0
    for number in sorted(numbers | script.person_placeholders.keys()):
        line = script.lines[number - 1]
        comment = None if number in directives else _COMMENT_START.search(line)
        end = comment.start() if comment else len(line)
        if number in directives and directives[number].words:
            end = directives[number].words[-1].end - 1
        match = script.person_placeholders.get(number) or _PLACEHOLDER.search(line, 0, end)
        is_mail = number == mail_line and not script.is_refused_for_placeholder  # SB129 reports it
        before = line[: match.start()] if match else ""
        # In a script that submits jobs, all lines but directives may be a help text.
        is_in_message = number not in script.person_placeholders and (
            "echo" in before or _MESSAGE_START.search(before) or (script.submits and number not in directives)
        )
        if match and not is_mail and not is_in_message:
            yield number, match


# The start of ${NAME:?message}. A placeholder in such a message tells users what to give.
_MESSAGE_START = re.compile(r"\$\{\w+:?\?[^}]*$")


@RULES.add(
    "SB818",
    "error",
    "a test without a space before its ]",
    applies=Applies.ANY_TEXT,
    source="bash(1)",
    words=("]",),
)
def _unclosed_test(script: JobScript) -> Iterator[Hit]:
    if script.body.faults:
        return
    for command in script.body.tests:
        if re.match(r"\[\s.*[^\s\\]\]$", command.text, re.DOTALL):
            last = command.words[-1].text
            asks_if_empty = [word.text for word in command.words[1:-1]] == ["-z"]
            what = f"bash takes {last}] for one word and does not find the ] of this test: "
            what += "it is false, with a message, unless the value is empty" if asks_if_empty else "it fails"
            yield Hit(script.at_word(command), what, f"write {last} ]", "warning" if asks_if_empty else None)


@RULES.add("SB819", "warning", "a sum of 0 that set -e takes for a failure", source="bash(1)", words=("++",))
def _increment_of_zero(script: JobScript) -> Iterator[Hit]:
    body, seen = script.body, set()
    # The names of commands that run where set -e is off, or in another shell. Some may be functions.
    tested = {
        command.name
        for command in body.commands
        if command.context.is_tested or command.context.in_substitution
    }
    for command in (*body.tests, *script.named("let")):
        match = _INCREMENT.fullmatch(command.text)
        context = command.context
        is_tested = context.is_tested or context.in_substitution or context.function in tested
        if not match or match[1] in seen or is_tested:
            continue
        seen.add(match[1])
        earlier = [assignment for assignment in body.assignments_of(match[1]) if assignment.at < command.at]
        is_zero = bool(earlier) and all(
            assignment.value == "0" and not assignment.is_append for assignment in earlier
        )
        if is_zero and body.is_option_on("errexit", command.line):
            what = f"while {match[1]} is 0 this has status 1, and set -e ends the job without a word"
            yield Hit(script.at(command.line, command.column), what, f"{match[1]}=$(({match[1]} + 1))")


# ((NAME++)) or let NAME++.
_INCREMENT = re.compile(r"(?:\(\(|let)[ \t]*\"?([A-Za-z_]\w*)\+\+\"?[ \t]*(?:\)\))?")


@RULES.add("SB813", "error", "an option line that bash takes for a command", applies=Applies.ANY_TEXT)
def _option_as_command(script: JobScript) -> Iterator[Hit]:
    if not _OPTION_LINE.search(script.text) or script.body.language not in SHELLS:
        return  # then no commands need be read
    command_starts = {command.at for command in script.body.commands if command.at < script.body.end}
    dashes = (match.end() - 1 for match in _OPTION_LINE.finditer(script.text))  # offsets of the first dash
    option_starts = [at for at in dashes if at in command_starts]
    command_ends: set[int] = set()  # the last lines of all commands, found when first needed
    comment_lines = {line for line, _ in script.body.comments} if option_starts else set()
    for at in option_starts:
        number, column = script.body.source.position(at)
        previous, line = script.lines[number - 2 : number]
        stripped = previous.rstrip(" \t")
        is_after_comment = number - 1 in comment_lines
        what = f"bash takes '{line.split()[0]}' for a command: the previous line "
        place = script.at(number, column)
        if stripped.endswith("\\") and stripped != previous and not is_after_comment:
            what += "has a space after its backslash, so it does not continue"
            edits = (Edit(number - 1, len(stripped) + 1, 0, ""),)
            yield Hit(place, what, "remove the space", edits=edits)
        elif (is_after_comment or not previous.endswith("\\")) and not script.body.faults:
            command_ends = command_ends or {
                command.end_line for command in script.body.commands if not command.is_test
            }
            if not _may_continue(script, number - 1, command_ends):
                if (not previous.strip() or previous.lstrip().startswith("#")) and _OPTION_START.match(line):
                    what = f"bash takes '{line.split()[0]}' for a command: a command starts with a program"
                    yield Hit(place, what, "write the program before its options, or remove the line")
                continue
            if is_after_comment:
                fix = "move the comment above the command: a comment ends it, also before a backslash"
                verb = "is" if previous.lstrip().startswith("#") else "ends in"
                yield Hit(place, f"{what}{verb} a comment, which does not continue", fix)
            else:
                yield Hit(place, f"{what}is not continued", "end the previous line with a backslash")


_OPTION_START = re.compile(r"\s*-{1,2}[A-Za-z][\w-]*(?:[ =]|$)")  # unlike a line of text such as "- first"


def _may_continue(script: JobScript, number: int, command_ends: set[int]) -> bool:
    """Return whether the option in the next line may be meant for a command that ends at this line.

    The command may also end one line earlier, if this line is a comment between the command and its option.
    `command_ends` are the last lines of all commands.
    """
    line = script.lines[number - 1].strip()
    if line.startswith("#") and number not in command_ends:
        return number > 1 and script.lines[number - 2].endswith("\\")
    return number in command_ends
