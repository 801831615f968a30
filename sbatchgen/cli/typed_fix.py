"""Fixes as command lines to run: the command in a fix, or the typed command with another option."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sbatchgen.jobs.outputs.json_document import ArgvOfFix

# A command in a fix that a program may run: "sbatchgen status lr" of "sbatchgen status lr shows why".
_COMMAND = re.compile(
    r"(?:^|[:;,] |\b(?:or|see|in) )((?:sbatchgen(?! cancel)|chmod|mkdir|ls|scontrol show) [^;()]+?)"
    r"(?= (?:shows|lists|says|makes)\b|[;()]|, |,?$|\. )"
)
# A value such as debug or 'a b'. A comma between other characters is part of the value: lr=0.1,0.01.
_OPTION_VALUE = r"'[^']*'|(?:[^\s;,()]|,(?=[^\s;,()]))+"
# "leave --exclusive" out, "--time 2:00:00", or "--mode, one of: single".
_OPTION = re.compile(rf"(leave )?(?<![\w-])(--[a-z][a-z-]*)(?:[ =]({_OPTION_VALUE})|, one of: (\w+))?")
_NAMED_OPTION = re.compile(r"(?:use|name) (partition|account|qos) (\w+)")  # "use partition debug"
_AT_MOST = re.compile(r"ask for at most (\d+) (nodes|CPUs a node)")
_COUNT_OPTIONS = {"nodes": "--nodes", "CPUs a node": "--cpus-per-task"}
_PROPOSED_VALUE = re.compile(r"; write (\S+)$")  # the end of a message about an option's value
_SHORT_OPTION = re.compile(r"no such option (-\w)\nwrite (--[a-z-]+)\.")  # a message and its fix
_SUGGESTION = re.compile(r"did you mean '([^']+)'")
# What a suggestion is about: the option or the noun in a message.
_TOPIC = re.compile(r"--([a-z][a-z-]*)|\b(partition|account|qos|reservation|feature)\b")
_USER_DECISIONS = ("--yes", "--again", "--reviewed")  # options that only a user may decide, and no program
# Commands that also take the options of another command.
_TAKES_OPTIONS_OF = {"resume": "submit", "resubmit": "sweep"}
# A value that a person must fill in: a placeholder, an example, or nothing.
_PLACEHOLDER = re.compile(
    r"[A-Z][A-Z_|]*(?:=[A-Z]+)?|HH:MM:SS|.*\.\.\..*|.*\b(?:123|FILE|ID|JOB|KEY|NAME|PATH|RUN|VALUE)\b.*"
    r"|and|as|before|for|in|is|of|or|to|with"
)


def asks_for_json(typed: Sequence[str]) -> bool:
    """Return whether a command line has --format json before the arguments of the trainer."""
    before_trainer = typed[: typed.index("--")] if "--" in typed else typed
    return " --format json " in f" {' '.join(before_trainer)} ".replace("=", " ")


def runner(root: click.Context, typed: Sequence[str]) -> ArgvOfFix:
    """Return a function that makes the words to run from a problem of the typed command."""
    options = _options_called(root, [*_command_names(root, typed)])

    def run(problem: Mapping[str, str]) -> list[str]:
        words = arguments(problem, typed, options)
        return _in_json(root, words) if asks_for_json(typed) else words

    return run


def _command_names(root: click.Context, words: Sequence[str]) -> Iterator[str]:
    """Yield the names of the command that words call, such as profile and check."""
    command, context = root.command, root
    for word in words:
        if not isinstance(command, click.Group) or not (called := command.get_command(context, word)):
            return
        yield word
        command, context = called, click.Context(called, parent=context)


def _in_json(root: click.Context, words: list[str]) -> list[str]:
    """Return the words of a command with --format json, if the command has that option; else unchanged."""
    names = [*_command_names(root, words[1:])] if words[:1] == ["sbatchgen"] else []
    may_add_json = names and not asks_for_json(words) and not {"--fix", "--diff"}.intersection(words)
    if not may_add_json or "--format" not in _options_called(root, names):
        return words
    cut = words.index("--") if "--" in words else len(words)
    return [*words[:cut], "--format", "json", *words[cut:]]


def _options_called(root: click.Context, names: Sequence[str]) -> dict[str, bool]:
    """Return the options of the command with these names, each with whether it takes a value."""
    command, context, takes_value = root.command, root, dict[str, bool]()
    for name in names:
        assert isinstance(command, click.Group)  # noqa: S101 - as `_command_names` has seen
        for called_name in (_TAKES_OPTIONS_OF.get(name, name), name):
            called = command.get_command(context, called_name) or command
            takes_value |= options_of(called, click.Context(called, parent=context))
        command, context = called, click.Context(called, parent=context)
    return takes_value


def arguments(problem: Mapping[str, str], typed: Sequence[str], options: Mapping[str, bool]) -> list[str]:
    """Return the words to run; [] if a person must decide.

    If a fix names several ways, only the first counts. The words never end a job or submit one: if --yes was
    typed, the changed command line reviews the job again. `options` are the options of the `typed` command,
    each with whether it takes a value.
    """
    fix, what = (problem["fix"] or "").partition("\n")[0], problem.get("what") or ""
    for match in _COMMAND.finditer(fix):
        with contextlib.suppress(ValueError):
            words = shlex.split(match[1])
            if not any(_PLACEHOLDER.fullmatch(word) or word in _USER_DECISIONS for word in words):
                return words
    changed = [*typed]
    for name, value in _changed_options(problem, fix):
        is_known_value = value is None or (value and not _PLACEHOLDER.fullmatch(value))
        if name in options and (is_known_value or not options[name]):
            changed = _with_option(
                changed,
                name,
                [] if value is None else [name, value][: 1 + options[name]],
                options,
                what,
            )
    if short := _SHORT_OPTION.match(f"{what}\n{fix}"):
        changed = [_spelled_out(word, short[1], short[2]) for word in typed]
    suggestion = _SUGGESTION.search(fix)
    if suggestion and changed == [*typed]:  # the suggestion replaces the mistyped word, which `what` names
        mistyped = [word for word in typed if f"'{word}'" in what or f" {word}" in what]
        changed = [suggestion[1] if word in mistyped[:1] else word for word in typed]
    return ["sbatchgen", *_reviewed_again(changed, options)] if changed != [*typed] else []


def _spelled_out(word: str, short: str, long: str) -> str:
    """Return a word with a long option in place of a short option, such as --nodes=2 for -N2."""
    if word == short or not word.startswith(short):
        return long if word == short else word
    return f"{long}={word.removeprefix(short).removeprefix('=')}"


def _reviewed_again(typed: Sequence[str], options: Mapping[str, bool]) -> Sequence[str]:
    """Return the words with --dry-run in place of --yes, because the user has not seen the changed job."""
    before_trainer = typed[: typed.index("--")] if "--" in typed else typed
    if "--dry-run" not in options or not {"--yes", "-y"}.intersection(before_trainer):
        return typed
    for name in ("--yes", "-y", "--reviewed"):
        typed = _with_option(typed, name, [], {name: False, **options})
    return _with_option(typed, "--dry-run", ["--dry-run"], options)


def _changed_options(problem: Mapping[str, str], fix: str) -> Iterator[tuple[str, str | None]]:
    """Yield the options that a fix sets, with their values; None is for an option to remove."""
    if suggestion := _SUGGESTION.search(fix):
        topic = _TOPIC.search(f"{problem.get('at', '')} {problem.get('what', '')}")
        if topic and not suggestion[1].startswith("-"):
            yield f"--{(topic[1] or topic[2]).replace('feature', 'constraint')}", suggestion[1]
        return
    if written := _PROPOSED_VALUE.search(problem.get("what", "")):
        yield problem.get("at", ""), written[1]
    fix = fix.partition("as in: --")[0]  # an example does not have the user's values
    for value, noun in _AT_MOST.findall(fix):
        yield _COUNT_OPTIONS[noun], value
    for noun, value in _NAMED_OPTION.findall(fix):
        yield f"--{noun}", value
    # Only the first way of several counts that has options which need no decision of a user.
    for way in re.split(r",? or |; ", fix):
        matches = [option for option in _OPTION.findall(way) if option[1] not in _USER_DECISIONS]
        yield from (
            (name, None if leave else value.strip("'") or only) for leave, name, value, only in matches
        )
        if matches:
            return


def _with_option(
    typed: Sequence[str], name: str, new: Sequence[str], options: Mapping[str, bool], what: str = ""
) -> list[str]:
    """Return a command line in which the words `new` replace the option `name` and its values.

    If the option is there several times, such as --param, only the value that the message `what` names is
    replaced. The trainer's arguments stay.
    """
    cut = typed.index("--") if "--" in typed else len(typed)
    is_repeated = bool(new) and sum(word.partition("=")[0] == name for word in typed[:cut]) > 1
    other_words: list[str] = []
    at = 0
    while at < cut:
        words = typed[at : min(at + 1 + (typed[at] == name and options[name]), cut)]
        at += len(words)
        is_other = words[0].partition("=")[0] != name
        if is_other or (is_repeated and words[-1].removeprefix(f"{name}=") not in what):
            other_words += words
    return [*other_words, *new, *typed[cut:]]


def options_of(command: click.Command, context: click.Context) -> dict[str, bool]:
    """Return the options of a command, each with whether it takes a value."""
    known = [option for option in command.get_params(context) if isinstance(option, click.Option)]
    return {name: not option.is_flag for option in known for name in (*option.opts, *option.secondary_opts)}
