"""Rules about text that bash can't parse.

`bash -n` reads a script without running it, and reports errors. It is started only if something in the
script looks wrong. The grammar of `sbatchgen.check.bash` can't decide, because it refuses some texts that
bash takes. On a machine without bash, these rules therefore report nothing. Source: bash(1), the option -n.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from sbatchgen.base.machine import child
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.script.placeholders import PERSON_PLACEHOLDER
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

SECONDS_MAX = 10.0  # seconds for which `bash -n` may read a script
BYTES_MAX = 4 << 20  # `lint` reads no larger script
# A line that `bash -n` prints, such as: bash: line 3: syntax error near unexpected token `fi'
_COMPLAINT = re.compile(r"^\S*bash: line (\d+): (.*)$", re.MULTILINE)
# The message for a here-document without its last line. It names the first line and the delimiter:
# warning: here-document at line 3 delimited by end-of-file (wanted `END')
_UNTERMINATED = re.compile(r"here-document at line (\d+) delimited by end-of-file \(wanted `(.*)'\)")
_COMMENT = re.compile(r"#(?<!\S#).*")  # begins with the literal #, for which the search is fast
# Words that bash reads as parts of a construct. Where the rest of the construct is missing, the grammar takes
# such a word for a command.
_KEYWORDS = frozenset(("if", "then", "elif", "else", "fi", "for", "while", "do", "done", "case", "esac", "}"))
# A redirection without a file: `> ;`, `< |` or a > at the end of a line.
_NO_TARGET = re.compile(r"[<>][&|]?[ \t]*(?:$|[;)])|[<>]&?[ \t]+[|&]", re.MULTILINE)
# The start of a here-document, with its delimiter as group 1: <<END, <<-END or <<'END'.
_HEREDOC_START = re.compile(r"<<-?[ \t]*\\?['\"]?([\w.!-]+)")


@RULES.add(
    "SB814",
    "error",
    "a bash syntax error",
    applies=Applies.USUALLY & ~(Applies.PARTS | Applies.NEAR_PLACEHOLDERS) | Applies.PURE_WRITERS,
)
def _syntax_errors(script: JobScript) -> Iterator[Hit]:
    for line, message in _first_complaint(script):
        is_other_rule = "here-document" in message or placeholders_refused_by_bash(script)  # SB815, SB812
        if message and not is_other_rule:
            what = f"bash can't parse this, and runs nothing from here on: {message}"
            yield Hit(script.at(line), what, _syntax_fix(message))


@RULES.add("SB820", "error", "a body that is not checked", applies=Applies.ANY_TEXT, source="slurm.conf(5)")
def _unread_body(script: JobScript) -> Iterator[Hit]:
    if line := script.body.source.first_unread_line:
        why = "it is too long or too tangled, or one pipeline has too many programs"
        what = f"the body was not checked from line {line} on: {why}"
        yield Hit(script.at(line), what, "move generated lines into a file, and read them in a loop")
    if _TIMED_OUT in _first_complaint(script):
        what = f"bash takes more than {SECONDS_MAX:.0f} s to read this script: its syntax was not checked"
        yield Hit(script.at(1), what, "run bash -n FILE on a machine that is less busy")


def placeholders_refused_by_bash(script: JobScript) -> dict[int, re.Match[str]]:
    """Return the placeholder that bash can't parse, such as <your account>, by the number of its line.

    The result has at most one item, as bash stops at the first error.
    """
    lines = [line for line, _ in _first_complaint(script)]
    matches = {line: PERSON_PLACEHOLDER.search(script.lines[line - 1]) for line in lines}
    return {line: match for line, match in matches.items() if match}


def _syntax_fix(message: str) -> str:
    """Return the fix for an error that bash reports with this message."""
    if re.search(r"unexpected token `(?:done|fi|esac|then|do|else|elif|;;|[)}])'", message):
        return "remove it, or add the for, while, if, case, { or ( that it belongs to"
    if "conditional" in message:  # such as: syntax error in conditional expression
        return "write spaces around [[ and ]], and around each operator between them"
    if "unexpected token `newline'" in message:
        return "complete the line: a word is missing after a <, a > or a |"
    return "close the quote, if, do, { or ( that is open before this line"


@RULES.add("SB815", "warning", "an unterminated here-document", applies=Applies.ANY_TEXT, source="bash(1)")
def _unterminated_heredoc(script: JobScript) -> Iterator[Hit]:
    for line, message in _first_complaint(script):
        match = _UNTERMINATED.search(message)
        if match:
            what = f"the here-document has no line {match[2]}: the rest of the script is part of it"
            yield Hit(script.at(line), what, f"write {match[2]} alone on a line, without spaces around it")


@lru_cache(maxsize=1)  # several rules ask about the same script, before the next script comes
def _first_complaint(script: JobScript) -> list[tuple[int, str]]:
    """Return the line and the message of the first error that bash reports, in a list; [] without an error.

    Text after an exit that always runs is not checked, as bash never reads it.
    """
    text = script.body.source.text if script.body.language in ("bash", "sh") else ""
    if not text or len(text) > BYTES_MAX or not _looks_wrong(script):
        return []
    last_line = script.text.count("\n") + 1
    complaints = bash_complaints(text.partition("\0")[0])
    if complaints and script.body.end < len(text):
        complaints = bash_complaints(text[: script.body.end].partition("\0")[0])
    return [(min(line, last_line), message) for line, message in complaints[:1]]


def _looks_wrong(script: JobScript) -> bool:
    """Return whether bash may find an error in a script. Otherwise, starting bash would only take time."""
    text = _COMMENT.sub("", script.text)
    if script.body.faults or _NO_TARGET.search(text) or text.count('"') % 2 or text.count("'") % 2:
        return True
    if any(command.name in _KEYWORDS for command in script.body.commands):
        return True
    possible_ends = {line.lstrip("\t") for line in script.lines} if "<<" in text else set()
    return any(match[1] not in possible_ends for match in _HEREDOC_START.finditer(text))


_TIMED_OUT = (1, "")  # stands for the complaints about a script that bash does not read in time


def bash_complaints(text: str) -> list[tuple[int, str]]:
    """Return the line and the message of each error that `bash -n` reports; [] on a machine without bash.

    If bash does not read the text in time, the result is one item with an empty message.
    """
    options = ["-O", "extglob"] if "extglob" in text else []
    try:
        ended = child.run(
            ["bash", "--norc", "--noprofile", *options, "-n"],
            # The environment has no BASH_ENV, which names a file for bash to run first.
            {"LC_ALL": "C", "PATH": "/bin:/usr/bin:/usr/local/bin"},
            data=text.encode("utf-8", "surrogateescape"),
            timeout=SECONDS_MAX,
        )
    except child.LateError:
        return [_TIMED_OUT]
    except OSError:
        return []
    output = ended.stderr.decode("ascii", "replace")
    complaints = [(int(match[1]), match[2]) for match in _COMPLAINT.finditer(output)]
    # For a here-document, bash prints the last line of the text, and names the first line in the message.
    heredocs = [
        (int(match[1]), match[0]) for _, message in complaints if (match := _UNTERMINATED.search(message))
    ]
    others = [(line, message) for line, message in complaints if "here-document" not in message]
    # For a broken [[ ]] such as [[ -z "$1"]], bash reports an error and still has status 0.
    if others and (ended.returncode or "conditional" in others[0][1]):
        return others
    return heredocs
