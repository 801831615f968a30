"""Rules about texts that bash can't parse, as `bash -n` reports them without running anything.

Source: bash(1), the option -n. Without bash on this machine these rules are silent, as the grammar of
`sbatchgen.check.bash` takes a little less than bash.
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

SECONDS_MAX = 10.0  # seconds of `bash -n`
BYTES_MAX = 4 << 20  # `lint` reads no larger script
_COMPLAINT = re.compile(r"^\S*bash: line (\d+): (.*)$", re.MULTILINE)  # a line that `bash -n` prints
_HEREDOC_FAULT = re.compile(r"here-document at line (\d+) delimited by end-of-file \(wanted `(.*)'\)")
_COMMENT = re.compile(r"#(?<!\S#).*")  # begins with the literal #, for which the search is fast
# If a part of a construct is missing, the grammar takes such a word for a command.
_KEYWORDS = frozenset(("if", "then", "elif", "else", "fi", "for", "while", "do", "done", "case", "esac", "}"))
# A redirection without a file.
_NO_TARGET = re.compile(r"[<>][&|]?[ \t]*(?:$|[;)])|[<>]&?[ \t]+[|&]", re.MULTILINE)
_HEREDOC_START = re.compile(r"<<-?[ \t]*\\?['\"]?([\w.!-]+)")


@RULES.add(
    "SB814",
    "error",
    "a bash syntax error",
    applies=Applies.USUALLY & ~(Applies.PARTS | Applies.UNFILLED) | Applies.PURE_WRITERS,
)
def _syntax_errors(script: JobScript) -> Iterator[Hit]:
    for line, message in _faults(script):
        if message and "here-document" not in message and not unfilled_commands(script):  # SB812
            what = f"bash can't parse this, and runs nothing from here on: {message}"
            yield Hit(script.at(line), what, _syntax_fix(message))


@RULES.add("SB820", "error", "a body that is not checked", applies=Applies.ANY_TEXT, source="slurm.conf(5)")
def _unread_body(script: JobScript) -> Iterator[Hit]:
    if line := script.body.source.unread:
        why = "it is too long or too tangled, or one pipeline has too many programs"
        what = f"the body was not checked from line {line} on: {why}"
        yield Hit(script.at(line), what, "move what is generated into a file, and read it in a loop")
    if _TIMED_OUT in _faults(script):
        what = f"bash takes more than {SECONDS_MAX:.0f} s to read this script: its syntax was not checked"
        yield Hit(script.at(1), what, "bash -n FILE, on a machine with less to do")


def unfilled_commands(script: JobScript) -> dict[int, re.Match[str]]:
    """Return the placeholder of a person that bash can't parse, by the number of the line."""
    faults = {line: PERSON_PLACEHOLDER.search(script.lines[line - 1]) for line, _ in _faults(script)}
    return {line: match for line, match in faults.items() if match}


def _syntax_fix(message: str) -> str:
    """Return the fix for a complaint of bash."""
    if re.search(r"unexpected token `(?:done|fi|esac|then|do|else|elif|;;|[)}])'", message):
        return "remove it, or add the for, while, if, case, { or ( that it belongs to"
    if "conditional" in message:
        return "write spaces around [[ and ]], and around each operator between them"
    if "unexpected token `newline'" in message:
        return "complete the line: a word is missing after <, >, | or the like"
    return "close what is open before it: a quote, if, do, { or ("


@RULES.add("SB815", "warning", "an unterminated here-document", applies=Applies.ANY_TEXT, source="bash(1)")
def _unterminated_heredoc(script: JobScript) -> Iterator[Hit]:
    for line, message in _faults(script):
        match = _HEREDOC_FAULT.search(message)
        if match:
            what = f"the here-document has no line {match[2]}: the rest of the script is part of it"
            yield Hit(script.at(line), what, f"write {match[2]} alone on a line, without spaces around it")


@lru_cache(maxsize=1)  # several rules ask about the same script, before the next script comes
def _faults(script: JobScript) -> list[tuple[int, str]]:
    """Return the line and the text of bash's first complaint up to an unconditional exit; [] without one."""
    text = script.body.source.text if script.body.language in ("bash", "sh") else ""
    if not text or len(text) > BYTES_MAX or not _is_doubtful(script):
        return []
    last_line = script.text.count("\n") + 1
    faults = faults_of_bash(text.partition("\0")[0])
    if faults and script.body.end < len(text):  # any text may follow an exit
        faults = faults_of_bash(text[: script.body.end].partition("\0")[0])
    return [(min(line, last_line), message) for line, message in faults[:1]]


def _is_doubtful(script: JobScript) -> bool:
    """Return whether bash may find a fault. Without such a sign in the text, no bash need be started."""
    text = _COMMENT.sub("", script.text)
    if script.body.faults or _NO_TARGET.search(text) or text.count('"') % 2 or text.count("'") % 2:
        return True
    if any(command.name in _KEYWORDS for command in script.body.commands):
        return True
    ends = {line.lstrip("\t") for line in script.lines} if "<<" in text else set()
    return any(match[1] not in ends for match in _HEREDOC_START.finditer(text))


_TIMED_OUT = (1, "")  # the complaint for a script that bash does not read in time


def faults_of_bash(text: str) -> list[tuple[int, str]]:
    """Return the line and the text of each complaint of bash; [] without bash."""
    options = ["-O", "extglob"] if "extglob" in text else []
    try:
        done = child.run(
            ["bash", "--norc", "--noprofile", *options, "-n"],
            {"LC_ALL": "C", "PATH": "/bin:/usr/bin:/usr/local/bin"},  # without BASH_ENV, a file to run
            data=text.encode("utf-8", "surrogateescape"),
            timeout=SECONDS_MAX,
        )
    except child.LateError:
        return [_TIMED_OUT]
    except OSError:
        return []
    output = done.stderr.decode("ascii", "replace")
    faults = [(int(match[1]), match[2]) for match in _COMPLAINT.finditer(output)]
    # For these, the line is the start of the here-document, not the end of the text.
    heredocs = [(int(match[1]), match[0]) for _, text in faults if (match := _HEREDOC_FAULT.search(text))]
    others = [(line, text) for line, text in faults if "here-document" not in text]
    if others and (done.returncode or "conditional" in others[0][1]):  # [[ -z "$1"]] has status 0
        return others
    return heredocs
