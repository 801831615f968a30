"""Finds the jobs that a script submits with sbatch --wrap, and returns them as scripts that rules can judge.

Source: sbatch(1), --wrap.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbatchgen.check.bash import Command, Word
    from sbatchgen.check.script.script import JobScript

# The starts of options on which the number of a job's processes depends.
_COUNT_OPTIONS = (
    "--n",
    "-n",
    "-N",
    "--tasks",
    "-c",
    "--cpus",
    "--mincpus",
    "--g",
    "-G",
    "--exclusive",
    "-a",
    "--array",
)


def wrapped_jobs(script: JobScript) -> Iterator[tuple[Word, JobScript]]:
    """Yield the string of each --wrap, as a word and as a script for sh with the options of its sbatch.

    A --wrap is skipped if the text hides an option of its sbatch.
    """
    for command in script.named("sbatch"):
        wrap_options = _wrap_options(script, command)
        if wrap_options is not None:
            options, string = wrap_options
            body = script.body.text_of(string).removeprefix("--wrap=")
            yield string, replace(script, text=f"#!/bin/sh\n#SBATCH {options}\n{body}\n", environment={})


def _wrap_options(script: JobScript, command: Command) -> tuple[str, Word] | None:
    """Return the options of an sbatch as the text of a directive, and the word with the string of --wrap.

    The result is None without --wrap, and if the text hides an option of _COUNT_OPTIONS.
    """
    options: list[str] = []
    string, previous = None, ""  # `previous` is the text of the previous word
    for word in (word for written in command.words[1:] for word in script.body.expand(written)):
        value = script.body.value(word)
        name, equals, _ = word.text.partition("=")
        is_value = (
            previous.startswith("-") and "=" not in previous and not previous.startswith(_COUNT_OPTIONS)
        )
        if previous == "--wrap" or (equals and name == "--wrap"):
            string = word
        elif value is not None:
            options += [shlex.quote(value)] if name != "--wrap" else []
        elif is_value:  # the option is not in _COUNT_OPTIONS, so any value may replace the unknown one
            options.append("1")
        elif not (equals and name.startswith("--")) or name.startswith(_COUNT_OPTIONS):
            return None
        previous = word.text
    return (" ".join(options), string) if string else None
