"""The rule about secrets in a script, such as tokens and passwords.

A message shows at most the first four characters of a secret. Sources of the shapes of tokens: the
documentation of GitHub, GitLab, Hugging Face, OpenAI, Slack and AWS IAM.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from sbatchgen.base.finding import Place
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.script.script import JobScript

if TYPE_CHECKING:
    from sbatchgen.check.bash import Command

RULES: Rules[JobScript] = Rules()

# A literal part of a token, mostly its start -> the token's kind in words, and its shape. A shape begins with
# literal text, for which the search is fast.
_TOKENS = {
    "hf_": ("a Hugging Face token", re.compile(r"hf_(?<!\whf_)[A-Za-z0-9]{30,}")),
    **{
        start: ("a GitHub token", re.compile(rf"{start}(?<!\w{start})[A-Za-z0-9]{{30,}}"))
        for start in ("gho_", "ghp_", "ghs_", "ghu_")
    },
    "github_pat_": ("a GitHub token", re.compile(r"github_pat_(?<!\wgithub_pat_)\w{22,}")),
    "glpat-": ("a GitLab token", re.compile(r"glpat-(?<!\wglpat-)[\w-]{20,}")),
    "sk-": ("an API key", re.compile(r"sk-(?<!\wsk-)[A-Za-z0-9_-]{0,40}[A-Za-z0-9]{20,}")),
    "AKIA": ("an AWS access key", re.compile(r"AKIA(?<!\wAKIA)[A-Z0-9]{16}\b")),
    "xox": ("a Slack token", re.compile(r"xox(?<!\wxox)[abeprs]-[A-Za-z0-9-]{10,}")),
    "PRIVATE KEY-----": ("a private key", re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")),
    "://": ("a password in a URL", re.compile(r"://([^\s/:@'\"$<>{}]+:[^\s/:@'\"$<>{}]{3,})@")),
}
# The last words of a name such as WANDB_API_KEY or --api-key, whose value is a secret.
_NAME_WORDS = r"(?:PASSWORD|PASSWD|TOKEN|API[_-]?KEY|SECRET|SECRET[_-]KEY|ACCESS[_-]KEY)"
_SECRET_NAME = re.compile(rf"(?:.*[_-])?{_NAME_WORDS}", re.IGNORECASE)
_NAME_ENDINGS = ("PASSWORD", "PASSWD", "TOKEN", "KEY", "SECRET")  # a quick test for such a name
# A quick test for a script with options that take a secret: it holds one of these texts.
_SECRET_OPTIONS = ("-password", "-passwd", "-token", "-api", "-secret", "-access")
# API_KEY=VALUE in the value of --export or --comment.
_SECRET_PAIR = re.compile(r"((?:\w{0,60}_)?" + _NAME_WORDS + r")=([^\s,;]+)", re.IGNORECASE)
# A text in a value that is not a secret, but takes its place.
_PLACEHOLDER = re.compile(
    r"x{4}|\*{3}|<|\.\.\.|your|change.?me|placeholder|example|dummy|redacted|none|null|empty", re.IGNORECASE
)
_KEY = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=.:-]{16,}")  # letters and digits, long enough for a key


@RULES.add("SB806", "warning", "a secret in the script", applies=Applies.ANY_TEXT, marks_secret=True)
def _secrets(script: JobScript) -> Iterator[Hit]:
    secrets = (*_shaped_secrets(script), *_variable_secrets(script), *_option_secrets(script))
    for kind, text, place, variable in secrets:
        what = f"{kind} ({text[:4]}...): Slurm keeps a copy of the script, and all who can read the "
        what += "file have it"
        fix = f"keep it in a file of mode 600: export {variable}=$(<~/.secrets/{variable.lower()})"
        yield Hit(place, what, fix)


class _Secret(NamedTuple):
    """A secret in the script."""

    kind: str  # the kind in words, such as "a GitHub token"
    text: str
    place: Place
    variable: str  # the variable that holds the secret in the fix


def _shaped_secrets(script: JobScript) -> Iterator[_Secret]:
    """Yield tokens with a known shape, even in comments and directives."""
    text = script.text
    for literal, (kind, shape) in _TOKENS.items():
        if literal not in text:
            continue
        for match in shape.finditer(text):
            group = match.lastindex or 0  # in a URL, group 1 is USER:PASSWORD; else 0, the whole match
            marked, at = match[group], match.start(group)
            secret = marked.rpartition(":")[2] if literal == "://" else marked
            if _PLACEHOLDER.search(secret) and literal != "PRIVATE KEY-----":
                continue
            line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
            yield _Secret(kind, secret, script.at(line, column, column + len(marked)), "TOKEN")


def _variable_secrets(script: JobScript) -> Iterator[_Secret]:
    """Yield the values of variables such as API_KEY, in the body and in options such as --export."""
    for assignment in script.body.assignments:
        value = assignment.value
        if value is None or assignment.word is None or not assignment.name.upper().endswith(_NAME_ENDINGS):
            continue
        if (
            _SECRET_NAME.fullmatch(assignment.name)
            and _is_secret(assignment.name, value)
            and not _has_shape(value)
        ):
            yield _Secret(
                f"the value of {assignment.name}", value, script.at_word(assignment.word), assignment.name
            )
    for name in ("export", "comment", "wckey"):
        for match in _SECRET_PAIR.finditer(script.option(name)):
            if _is_secret(match[1], match[2]) and not _has_shape(match[2]):
                yield _Secret(f"the value of {match[1]}", match[2], script.at_option(name), match[1])


def _option_secrets(script: JobScript) -> Iterator[_Secret]:
    """Yield the values of options such as --api-key, and the key of `wandb login`."""
    if any(word in script.text for word in _SECRET_OPTIONS):
        for command in script.commands:
            yield from _secrets_of_command(script, command)
    for command in script.named("wandb"):
        if command.arguments[:1] != ["login"]:
            continue
        for word in command.words[2:]:
            if _KEY.fullmatch(word.value or ""):
                key = word.value or ""
                yield _Secret("a key of Weights & Biases", key, script.at_word(word), "WANDB_API_KEY")


def _secrets_of_command(script: JobScript, command: Command) -> Iterator[_Secret]:
    """Yield the secrets in the options of a command, as --NAME=VALUE or --NAME VALUE."""
    words = command.words
    for index, word in enumerate(words[1:], start=1):
        if not word.text.startswith("-"):
            continue
        name, equals, _ = word.text.lstrip("-").partition("=")
        if not _SECRET_NAME.fullmatch(name):
            continue
        following = words[index + 1] if index + 1 < len(words) else None
        value_word = word if equals else following
        value = None if value_word is None else value_word.value
        if value_word is None or value is None:
            continue
        value = value.partition("=")[2] if equals else value
        if _is_secret(name, value) and not _has_shape(value):
            variable = name.upper().replace("-", "_")
            yield _Secret(f"the value of --{name}", value, script.at_word(value_word), variable)


def _is_secret(name: str, value: str) -> bool:
    """Return whether a value that belongs to a name such as API_KEY is a secret.

    Placeholders, paths and numbers are not passwords. A password may be any text of four characters or more.
    """
    if _PLACEHOLDER.search(value) or value[:1] in "/~.$" or "$" in value:
        return False
    if "PASS" in name.upper():
        return len(value) >= 4 and not value.startswith("-")
    return _KEY.fullmatch(value) is not None


def _has_shape(value: str) -> bool:
    """Return whether a value holds a token with a known shape, which `_shaped_secrets` yields."""
    return any(literal in value and shape.search(value) for literal, (_, shape) in _TOKENS.items())
