"""The argv of a fix, for programs that read JSON documents of sbatchgen.

A fix is a sentence for people, such as "set --time 2:00:00". This module makes a command line of it: the
command that the sentence names, or the typed command with the option that the sentence names.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sbatchgen.jobs.outputs.json_document import ArgvOfFix

# A command that a program may run: "sbatchgen status lr" of "sbatchgen status lr shows why".
_COMMAND_IN_FIX = re.compile(
    r"(?:^|[:;,] |\b(?:or|see|in) )((?:sbatchgen(?! cancel)|chmod|mkdir|ls|scontrol show) [^;()]+?)"
    r"(?= (?:shows|lists|says|makes)\b|[;()]|, |,?$|\. )"
)
# A value such as debug or 'a b'. A comma between other characters is part of the value: lr=0.1,0.01.
_OPTION_VALUE = r"'[^']*'|(?:[^\s;,()]|,(?=[^\s;,()]))+"
# An option to remove ("leave --exclusive out"), or to set ("--time 2:00:00", "--mode, one of: single").
_OPTION_IN_FIX = re.compile(rf"(leave )?(?<![\w-])(--[a-z][a-z-]*)(?:[ =]({_OPTION_VALUE})|, one of: (\w+))?")
_NAMED_OPTION = re.compile(r"(?:use|name) (partition|account|qos) (\w+)")  # "use partition debug"
_AT_MOST = re.compile(r"ask for at most (\d+) (nodes|CPUs a node)")  # "ask for at most 4 nodes"
_COUNT_OPTIONS = {"nodes": "--nodes", "CPUs a node": "--cpus-per-task"}  # the option of a noun in _AT_MOST
# The end of a message that proposes a value: "'5 h' is not a time; write 05:00:00".
_PROPOSED_VALUE = re.compile(r"; write (\S+)$")
# A message and its fix: "no such option -N" and "write --nodes."
_SHORT_OPTION = re.compile(r"no such option (-\w)\nwrite (--[a-z-]+)\.")
_SUGGESTION = re.compile(r"did you mean '([^']+)'")  # "did you mean 'debug'?"
# The option or noun in a message, to which the suggested value belongs: "there is no partition 'debgu'".
_TOPIC = re.compile(r"--([a-z][a-z-]*)|\b(partition|account|qos|reservation|feature)\b")
_USER_DECISIONS = ("--yes", "--again", "--reviewed")  # only a user may add these options, and no program
# Commands that also take the options of another command.
_TAKES_OPTIONS_OF = {"resume": "submit", "resubmit": "sweep"}
# A word after an option that is not its value: a placeholder such as HH:MM:SS, an example such as
# 123, or the next word of the sentence, as in "--time and --nodes".
_PLACEHOLDER = re.compile(
    r"[A-Z][A-Z_|]*(?:=[A-Z]+)?|HH:MM:SS|.*\.\.\..*|.*\b(?:123|FILE|ID|JOB|KEY|NAME|PATH|RUN|VALUE)\b.*"
    r"|and|as|before|for|in|is|of|or|to|with"
)


def asks_for_json(typed: Sequence[str]) -> bool:
    """Return whether a command line has --format json or --format=json before the trainer's arguments."""
    before_trainer = typed[: typed.index("--")] if "--" in typed else typed
    return " --format json " in f" {' '.join(before_trainer)} ".replace("=", " ")


def argv_maker(root: click.Context, typed: Sequence[str]) -> ArgvOfFix:
    """Return a function that makes the argv of a problem's fix, for a problem of the `typed` command line."""
    takes_value = _options_of_command(root, [*_command_names(root, typed)])

    def make_argv(problem: Mapping[str, str]) -> list[str]:
        argv = argv_of_fix(problem, typed, takes_value)
        return _with_json_format(root, argv) if asks_for_json(typed) else argv

    return make_argv


def _command_names(root: click.Context, words: Sequence[str]) -> Iterator[str]:
    """Yield the words that name the called command, such as profile and check of: profile check --live x."""
    command, context = root.command, root
    for word in words:
        if not isinstance(command, click.Group) or not (called := command.get_command(context, word)):
            return
        yield word
        command, context = called, click.Context(called, parent=context)


def _with_json_format(root: click.Context, argv: list[str]) -> list[str]:
    """Return a command with --format json added, if it is one of sbatchgen that has this option."""
    names = [*_command_names(root, argv[1:])] if argv[:1] == ["sbatchgen"] else []
    # lint refuses --fix and --diff with JSON.
    may_add_json = names and not asks_for_json(argv) and not {"--fix", "--diff"}.intersection(argv)
    if not may_add_json or "--format" not in _options_of_command(root, names):
        return argv
    options_end = argv.index("--") if "--" in argv else len(argv)
    return [*argv[:options_end], "--format", "json", *argv[options_end:]]


def _options_of_command(root: click.Context, names: Sequence[str]) -> dict[str, bool]:
    """Return the options of a command and of its groups, each with whether it takes a value.

    `names` are those of the groups and of the command, such as profile and check.
    """
    command, context, takes_value = root.command, root, dict[str, bool]()
    for name in names:
        assert isinstance(command, click.Group)  # noqa: S101 - as `_command_names` has seen
        for called_name in (_TAKES_OPTIONS_OF.get(name, name), name):
            called = command.get_command(context, called_name) or command
            takes_value |= _own_options(called, click.Context(called, parent=context))
        command, context = called, click.Context(called, parent=context)
    return takes_value


def _own_options(command: click.Command, context: click.Context) -> dict[str, bool]:
    """Return the options of one command or group, each with whether it takes a value."""
    options = [option for option in command.get_params(context) if isinstance(option, click.Option)]
    return {name: not option.is_flag for option in options for name in (*option.opts, *option.secondary_opts)}


def argv_of_fix(
    problem: Mapping[str, str], typed: Sequence[str], takes_value: Mapping[str, bool]
) -> list[str]:
    """Return the command line that does what a problem's fix says; [] if a person must decide.

    If a fix names several ways, only the first counts. The command line never ends a job or submits one: if
    --yes was typed, the changed command line reviews the job again. `takes_value` has the options of the
    `typed` command.
    """
    fix, what = (problem["fix"] or "").partition("\n")[0], problem.get("what") or ""
    for match in _COMMAND_IN_FIX.finditer(fix):
        with contextlib.suppress(ValueError):  # quotes that do not match
            words = shlex.split(match[1])
            if not any(_PLACEHOLDER.fullmatch(word) or word in _USER_DECISIONS for word in words):
                return words
    changed = [*typed]
    for name, value in _options_to_change(problem, fix):
        new_words = _words_of_option(name, value, takes_value)
        if new_words is not None:
            changed = _replace_option(changed, name, new_words, takes_value, what)
    if short := _SHORT_OPTION.match(f"{what}\n{fix}"):
        changed = [_with_long_option(word, short[1], short[2]) for word in typed]
    suggestion = _SUGGESTION.search(fix)
    if suggestion and changed == [*typed]:  # the suggestion replaces the mistyped word, which `what` names
        mistyped = [word for word in typed if f"'{word}'" in what or f" {word}" in what]
        changed = [suggestion[1] if word in mistyped[:1] else word for word in typed]
    return ["sbatchgen", *_review_again(changed, takes_value)] if changed != [*typed] else []


def _words_of_option(name: str, value: str | None, takes_value: Mapping[str, bool]) -> list[str] | None:
    """Return the words that set an option to a value, or no words to remove the option (value None).

    Return None if the command has no such option, or if a person must fill in the value.
    """
    if name not in takes_value:
        return None
    if value is None:
        return []
    if not takes_value[name]:
        return [name]
    return [name, value] if value and not _PLACEHOLDER.fullmatch(value) else None


def _with_long_option(word: str, short: str, long: str) -> str:
    """Return a word with the long option in place of the short one: --nodes for -N, --nodes=2 for -N2."""
    if word == short:
        return long
    if not word.startswith(short):
        return word
    return f"{long}={word.removeprefix(short).removeprefix('=')}"


def _review_again(typed: Sequence[str], takes_value: Mapping[str, bool]) -> Sequence[str]:
    """Return a command line with --dry-run in place of --yes, if it has --yes.

    The user has agreed to the typed job, and has not seen the changed job.
    """
    before_trainer = typed[: typed.index("--")] if "--" in typed else typed
    if "--dry-run" not in takes_value or not {"--yes", "-y"}.intersection(before_trainer):
        return typed
    for name in ("--yes", "-y", "--reviewed"):
        typed = _replace_option(typed, name, [], {name: False, **takes_value})
    return _replace_option(typed, "--dry-run", ["--dry-run"], takes_value)


def _options_to_change(problem: Mapping[str, str], fix: str) -> Iterator[tuple[str, str | None]]:
    """Yield the options that a fix changes, each with its new value, or None to remove the option."""
    if suggestion := _SUGGESTION.search(fix):
        topic = _TOPIC.search(f"{problem.get('at', '')} {problem.get('what', '')}")
        if topic and not suggestion[1].startswith("-"):
            yield f"--{(topic[1] or topic[2]).replace('feature', 'constraint')}", suggestion[1]
        return
    if proposed := _PROPOSED_VALUE.search(problem.get("what", "")):
        yield problem.get("at", ""), proposed[1]
    fix = fix.partition("as in: --")[0]  # an example does not have the user's values
    for value, noun in _AT_MOST.findall(fix):
        yield _COUNT_OPTIONS[noun], value
    for noun, value in _NAMED_OPTION.findall(fix):
        yield f"--{noun}", value
    # "set --nodes 2, or --time 5" names two ways. The first way with an option that a program may set counts.
    for way in re.split(r",? or |; ", fix):
        matches = [match for match in _OPTION_IN_FIX.findall(way) if match[1] not in _USER_DECISIONS]
        for leave, name, value, only_choice in matches:
            yield name, None if leave else value.strip("'") or only_choice
        if matches:
            return


def _replace_option(
    typed: Sequence[str],
    name: str,
    new_words: Sequence[str],
    takes_value: Mapping[str, bool],
    what: str = "",
) -> list[str]:
    """Return a command line with new words in place of an option and its value.

    If the option was typed several times, such as --param, only the value that the message `what` names is
    replaced. The trainer's arguments stay.
    """
    options_end = typed.index("--") if "--" in typed else len(typed)
    uses = sum(word.partition("=")[0] == name for word in typed[:options_end])
    is_repeated = bool(new_words) and uses > 1
    kept_words: list[str] = []
    at = 0
    while at < options_end:
        has_value_after = typed[at] == name and takes_value[name]  # --time 5; in --time=5 it is one word
        words = typed[at : min(at + 1 + has_value_after, options_end)]
        at += len(words)
        is_other_option = words[0].partition("=")[0] != name
        if is_other_option or (is_repeated and words[-1].removeprefix(f"{name}=") not in what):
            kept_words += words
    return [*kept_words, *new_words, *typed[options_end:]]
