"""A job that a script submits with sbatch --wrap: a script for sh with the options of that sbatch.

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

# The starts of options that decide how many processes a job starts.
_COUNTING = (
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
    """Yield each string of --wrap as a script, with its word, if the text shows the options of sbatch."""
    for command in script.named("sbatch"):
        read = _read(script, command)
        if read is not None:
            options, string = read
            body = script.body.text_of(string).removeprefix("--wrap=")
            yield string, replace(script, text=f"#!/bin/sh\n#SBATCH {options}\n{body}\n", environment={})


def _read(script: JobScript, command: Command) -> tuple[str, Word] | None:
    """Return the options of an sbatch in the form of a directive, and its --wrap; None if unknown."""
    given: list[str] = []
    string, before = None, ""
    for word in (word for written in command.words[1:] for word in script.body.expand(written)):
        value = script.body.value(word)
        name, equals, _ = word.text.partition("=")
        takes_it = before.startswith("-") and "=" not in before and not before.startswith(_COUNTING)
        if before == "--wrap" or (equals and name == "--wrap"):
            string = word
        elif value is not None:
            given += [shlex.quote(value)] if name != "--wrap" else []
        elif takes_it:
            given.append("1")
        elif not (equals and name.startswith("--")) or name.startswith(_COUNTING):
            return None
        before = word.text
    return (" ".join(given), string) if string else None
