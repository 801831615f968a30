"""Rules about loops that wait for another program or job, and may wait until the job's time limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sbatchgen.check.executables.program import programs
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.script.script import JobScript

if TYPE_CHECKING:
    from sbatchgen.check.bash import Command, Word

RULES: Rules[JobScript] = Rules()

_PROBE_PROGRAMS = programs("probes")  # programs that ask whether a server answers, such as curl


@RULES.add(
    "SB628",
    "warning",
    "a wait for a server that may have ended",
    source="bash(1)",
    words=("while", "until"),
    report="https://github.com/SemiAnalysisAI/InferenceX/pull/348",
)
def _endless_wait(script: JobScript) -> Iterator[Hit]:
    """Find an unbounded wait for a server or another job that does not check whether this still runs."""
    yield from _missed_cancellation(script)
    commands = script.body.commands
    # The offsets of commands that start a server, and of commands that submit another job.
    server_starts = [
        command.at for command in commands if command.in_background and not command.context.in_substitution
    ]
    submissions = [command.at for command in script.named("sbatch") if not command.context.in_branch]
    if not (server_starts or submissions):
        return
    for command, loop_start in _unbounded_waits(script):
        is_probe = command.name in _PROBE_PROGRAMS
        if not is_probe and not _is_named_in(command.words[-1], script.body.source.text[:loop_start]):
            continue  # the loop waits for a file that a person may make
        if server_starts and server_starts[0] < loop_start:
            what = f"if the server has ended, {command.name} never succeeds: "
            if not is_probe:
                what = f"if the program that writes {command.words[-1].text} has ended, no file comes: "
            fix = "in the loop: kill -0 $! || exit 1"
        elif submissions and submissions[0] < loop_start and not is_probe:
            what = f"if sbatch fails, or the other job ends early, {command.words[-1].text} never comes: "
            fix = (
                'JOB=$(sbatch --parsable ...) || exit, and in the loop: squeue -hj "$JOB" | grep -q . || exit'
            )
        else:
            continue
        yield Hit(script.at_word(command), f"{what}the job waits until its time limit", fix)
        return


def _missed_cancellation(script: JobScript) -> Iterator[Hit]:
    """Find a loop that waits until sacct prints CANCELLED alone. sacct prints more after this word."""
    text = script.body.source.text
    for command in script.named("sacct"):
        if not (
            command.context.in_loop and command.context.in_substitution and "state" in command.text.lower()
        ):
            continue
        loops = [text[start:end] for start, end in script.body.loop_spans if start <= command.at < end]
        loop = loops[-1] if loops else ""  # the text of the innermost loop around the command
        if _CANCELLED_TEST.search(loop) and not _ALSO_ENDS.search(loop):
            what = "sacct prints 'CANCELLED by 1000' or 'CANCELLED+', which is not CANCELLED: after scancel "
            what += "the loop does not end"
            yield Hit(script.at_word(command), what, "compare the first word: ${STATE%%[ +]*}")
            return


# A comparison with the word CANCELLED, such as = "CANCELLED" or a branch of a case.
_CANCELLED_TEST = re.compile(r"(?:[|\s(]|=\s*[\"']?)CANCELLED(?:[|)\"']|\s*\]\])")
# A loop with such a text compares only the first word, or also ends after some time.
_ALSO_ENDS = re.compile(
    r"\b(?:cut|awk|sed|grep|timeout|SECONDS)\b|%%|CANCELLED[\"']?[*+]|=~|\(\(|-[lg][te] |\bfor\b"
)


def _is_named_in(file: Word, earlier_text: str) -> bool:
    """Return whether the earlier text of the script names a file, or sets a variable in the file's name."""
    return file.text.strip('"') in earlier_text or any(f"{name}=" in earlier_text for name in file.variables)


def _unbounded_waits(script: JobScript) -> Iterator[tuple[Command, int]]:
    """Yield each command that a loop repeats until it succeeds, and the offset of the loop.

    Loops that end after some time, or that check the program for which they wait, are left out.
    """
    for command in script.body.commands:
        context = command.context
        if not (context.in_loop and context.is_tested) or context.in_background or context.function:
            continue
        if not (command.name in _PROBE_PROGRAMS or _looks_for_a_file(command)):
            continue
        start, end = next(
            span for span in reversed(script.body.loop_spans) if span[0] <= command.at < span[1]
        )
        loop = script.body.source.text[start:end]
        is_negated = "!" in loop[: command.at - start + 5]  # before the command, or in [ ! -f FILE ]
        repeats_failure = loop.startswith("until") != is_negated  # `until COMMAND` or `while ! COMMAND`
        if not _LOOP_BOUND.search(loop) and (context.in_substitution or repeats_failure):
            yield command, start


def _looks_for_a_file(command: Command) -> bool:
    """Return whether a command fails as long as a file is missing, as do [ -f FILE ] and ls FILE."""
    words = [word.text for word in command.words]
    if command.pipe and len(command.pipe.stages) > 1:
        return False  # the pipe has the status of its last command
    is_test = (
        command.is_test and len(words) == _FILE_TEST_WORDS and words[1] in ("-e", "-f", "-s", "-d", "-r")
    )
    return is_test or (len(words) == _LIST_WORDS and words[0] in ("ls", "stat"))


_FILE_TEST_WORDS = 3  # the number of words in [ -f FILE, without the ]
_LIST_WORDS = 2  # the number of words in ls FILE
# A loop with such a text ends after some time, or checks the program for which it waits.
_LOOP_BOUND = re.compile(
    r"\b(?:break|exit|return|kill|timeout|SECONDS|let|wait|jobs|pgrep|ps|retry|retry-\w+)\b|\(\(|-[lg][te] "
)
