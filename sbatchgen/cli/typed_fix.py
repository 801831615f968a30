"""A fix as a command line to run: the command in the fix, or the typed command with another option."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sbatchgen.jobs.outputs.json_document import Run

_COMMAND = re.compile(
    r"(?:^|[:;,] |\b(?:or|see|in) )((?:sbatchgen(?! cancel)|chmod|mkdir|ls|scontrol show) [^;()]+?)"
    r"(?= (?:shows|lists|says|makes)\b|[;()]|, |,?$|\. )"
)
_VALUE = r"'[^']*'|(?:[^\s;,()]|,(?=[^\s;,()]))+"  # a comma between other characters is part of the value
_OPTION = re.compile(rf"(leave )?(?<![\w-])(--[a-z][a-z-]*)(?:[ =]({_VALUE})|, one of: (\w+))?")
_NAMED = re.compile(r"(?:use|name) (partition|account|qos) (\w+)")
_MOST = re.compile(r"ask for at most (\d+) (nodes|CPUs a node)")
_COUNTED = {"nodes": "--nodes", "CPUs a node": "--cpus-per-task"}
_WRITTEN = re.compile(r"; write (\S+)$")  # in a message about the value of an option
_SHORT = re.compile(r"no such option (-\w)\nwrite (--[a-z-]+)\.")  # a message of sbatch
_MEANT = re.compile(r"did you mean '([^']+)'")
_ABOUT = re.compile(r"--([a-z][a-z-]*)|\b(partition|account|qos|reservation|feature)\b")
_DECISIONS = ("--yes", "--again", "--reviewed")  # options that only a user may decide, and no program
_TAKES_OPTIONS_OF = {"resume": "submit", "resubmit": "sweep"}
# A value that a person must fill in: a placeholder, an example, or nothing.
_OPEN = re.compile(
    r"[A-Z][A-Z_|]*(?:=[A-Z]+)?|HH:MM:SS|.*\.\.\..*|.*\b(?:123|FILE|ID|JOB|KEY|NAME|PATH|RUN|VALUE)\b.*"
    r"|and|as|before|for|in|is|of|or|to|with"
)


def asks_for_json(typed: Sequence[str]) -> bool:
    """Return whether words ask for a document, before the arguments of the trainer."""
    own = typed[: typed.index("--")] if "--" in typed else typed
    return " --format json " in f" {' '.join(own)} ".replace("=", " ")


def runner(root: click.Context, typed: Sequence[str]) -> Run:
    """Return the function that returns the words to run for a problem of the typed command."""
    options = _options_called(root, [*_names(root, typed)])

    def run(problem: Mapping[str, str]) -> list[str]:
        words = arguments(problem, typed, options)
        return _in_json(root, words) if asks_for_json(typed) else words

    return run


def _names(root: click.Context, words: Sequence[str]) -> Iterator[str]:
    """Yield the names of the command that words call, as profile and check."""
    command, context = root.command, root
    for word in words:
        if not isinstance(command, click.Group) or not (called := command.get_command(context, word)):
            return
        yield word
        command, context = called, click.Context(called, parent=context)


def _in_json(root: click.Context, words: list[str]) -> list[str]:
    """Return words that print a document too, if their command has --format json."""
    names = [*_names(root, words[1:])] if words[:1] == ["sbatchgen"] else []
    ends_in_json = names and not asks_for_json(words) and not {"--fix", "--diff"}.intersection(words)
    if not ends_in_json or "--format" not in _options_called(root, names):
        return words
    cut = words.index("--") if "--" in words else len(words)
    return [*words[:cut], "--format", "json", *words[cut:]]


def _options_called(root: click.Context, names: Sequence[str]) -> dict[str, bool]:
    """Return the options of the command with these names."""
    command, context, taken = root.command, root, dict[str, bool]()
    for name in names:
        assert isinstance(command, click.Group)  # noqa: S101 - as `_names` has seen
        for each in (_TAKES_OPTIONS_OF.get(name, name), name):
            called = command.get_command(context, each) or command
            taken |= options_of(called, click.Context(called, parent=context))
        command, context = called, click.Context(called, parent=context)
    return taken


def arguments(problem: Mapping[str, str], typed: Sequence[str], options: Mapping[str, bool]) -> list[str]:
    """Return the words to run; no words if a person must decide.

    Of several ways only the first counts. No command ends a job, and none submits: where --yes was typed, the
    changed command line reviews again. `options` are those of the command that was `typed`, each with whether
    it takes a value.
    """
    fix, what = (problem["fix"] or "").partition("\n")[0], problem.get("what") or ""
    for match in _COMMAND.finditer(fix):
        with contextlib.suppress(ValueError):
            words = shlex.split(match[1])
            if not any(_OPEN.fullmatch(word) or word in _DECISIONS for word in words):
                return words
    changed = [*typed]
    for name, value in _changes(problem, fix):
        if name in options and (value is None or not options[name] or (value and not _OPEN.fullmatch(value))):
            changed = _with(
                changed,
                name,
                [] if value is None else [name, value][: 1 + options[name]],
                options,
                what,
            )
    if short := _SHORT.match(f"{what}\n{fix}"):
        changed = [_spelled_out(word, short[1], short[2]) for word in typed]
    meant = _MEANT.search(fix)
    if meant and changed == [*typed]:  # a mistyped word
        near = [word for word in typed if f"'{word}'" in what or f" {word}" in what]
        changed = [meant[1] if word in near[:1] else word for word in typed]
    return ["sbatchgen", *_reviewed_again(changed, options)] if changed != [*typed] else []


def _spelled_out(word: str, short: str, long: str) -> str:
    """Return a word with a long option in place of a short one, as --nodes=2 for -N2."""
    if word == short or not word.startswith(short):
        return long if word == short else word
    return f"{long}={word.removeprefix(short).removeprefix('=')}"


def _reviewed_again(typed: Sequence[str], options: Mapping[str, bool]) -> Sequence[str]:
    """Return the words with review in place of submit: the user has not seen the changed job."""
    own = typed[: typed.index("--")] if "--" in typed else typed
    if "--dry-run" not in options or not {"--yes", "-y"}.intersection(own):
        return typed
    for name in ("--yes", "-y", "--reviewed"):
        typed = _with(typed, name, [], {name: False, **options})
    return _with(typed, "--dry-run", ["--dry-run"], options)


def _changes(problem: Mapping[str, str], fix: str) -> Iterator[tuple[str, str | None]]:
    """Yield the options that a fix sets, with their values; None for an option to leave out."""
    if meant := _MEANT.search(fix):
        about = _ABOUT.search(f"{problem.get('at', '')} {problem.get('what', '')}")
        if about and not meant[1].startswith("-"):
            yield f"--{(about[1] or about[2]).replace('feature', 'constraint')}", meant[1]
        return
    if written := _WRITTEN.search(problem.get("what", "")):
        yield problem.get("at", ""), written[1]
    fix = fix.partition("as in: --")[0]  # an example has no values of the user
    for value, noun in _MOST.findall(fix):
        yield _COUNTED[noun], value
    for noun, value in _NAMED.findall(fix):
        yield f"--{noun}", value
    for part in re.split(r",? or |; ", fix):  # the first part of the fix that does not decide for the user
        matches = [each for each in _OPTION.findall(part) if each[1] not in _DECISIONS]
        yield from (
            (name, None if leave else value.strip("'") or only) for leave, name, value, only in matches
        )
        if matches:
            return


def _with(
    typed: Sequence[str], name: str, new: Sequence[str], options: Mapping[str, bool], what: str = ""
) -> list[str]:
    """Return words with an option in place of its earlier values, before the arguments of the trainer.

    Of an option that is there several times, as --param, only the value in `what` is wrong.
    """
    cut = typed.index("--") if "--" in typed else len(typed)
    several = bool(new) and sum(word.partition("=")[0] == name for word in typed[:cut]) > 1
    kept: list[str] = []
    at = 0
    while at < cut:
        words = typed[at : min(at + 1 + (typed[at] == name and options[name]), cut)]
        at += len(words)
        if words[0].partition("=")[0] != name or (several and words[-1].removeprefix(f"{name}=") not in what):
            kept += words
    return [*kept, *new, *typed[cut:]]


def options_of(command: click.Command, context: click.Context) -> dict[str, bool]:
    """Return the options of a command, each with whether it takes a value."""
    known = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    return {name: not each.is_flag for each in known for name in (*each.opts, *each.secondary_opts)}
