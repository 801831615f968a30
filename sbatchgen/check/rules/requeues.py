"""Rules about jobs that start again: jobs that requeue themselves, and files that the next run lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.rules.survival import BRIEF_PROGRAMS
from sbatchgen.check.script.script import JobScript

if TYPE_CHECKING:
    from sbatchgen.check.bash import Command, Word

RULES: Rules[JobScript] = Rules()


@RULES.add("SB616", "warning", "a requeue without a limit", source="scontrol(1)", words=("requeue",))
def _unbounded_requeue(script: JobScript) -> Iterator[Hit]:
    """Find a requeue after each failure. A job that fails at its start would then start again for ever."""
    counts_restarts = "RESTART" in script.text or re.search(r"(?i)retr(?:y|ies)|attempt|max_", script.text)
    if counts_restarts:
        return
    for command in _requeues(script):
        follows_failure = command.source.text[: command.at].rstrip().endswith("||")
        if follows_failure or "EXIT" in command.context.trap_signals:
            what = "the job is requeued after each failure: if it fails at its start, this never ends"
            fix = f"{{ ((${{SLURM_RESTART_COUNT:-0}} > 4)) && exit 1; {command.text}; }}"
            yield Hit(script.at_word(command), what, fix)


@RULES.add("SB618", "warning", "a requeue of the whole array", source="scontrol(1)", words=("requeue",))
def _whole_array(script: JobScript) -> Iterator[Hit]:
    if script.array_tasks <= 1:
        return
    for command in _requeues(script):
        text = " ".join(script.body.text_of(word) for word in command.words[1:])
        if "ARRAY" not in text and re.search(r"SLURM_JOB_?ID", text):
            what = "scontrol takes SLURM_JOB_ID for the whole array in one of its tasks, and requeues all "
            what += "tasks"
            fix = 'scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"'
            yield Hit(script.at_word(command), what, fix)


def _requeues(script: JobScript) -> list[Command]:
    """Return the `scontrol requeue` commands, also those in the string of a task's shell."""
    commands = [*script.named("scontrol")]
    commands += [
        command for launch in script.steps for _, body in launch.shell_strings for command in body.commands
    ]
    return [command for command in commands if command.arguments[:1] == ["requeue"]]


@RULES.add(
    "SB627",
    "warning",
    "a restart that deletes what the job has written",
    source="sbatch(1)",
    words=("--req",),
    report="https://github.com/NVIDIA/TensorRT-LLM/pull/17654",
)
def _deleted_results(script: JobScript) -> Iterator[Hit]:
    """Find a folder of the program's results that a job with --requeue removes at its start."""
    # A script with such a text tests whether it was restarted, or has a new folder for each start.
    expects_restarts = re.search(r"RESTART|mktemp|TMP", script.text)
    if "requeue" not in script.options or expects_restarts:
        return
    yield from _deleted_input(script)
    for command in script.named("rm"):
        options = "".join(word.text for word in command.words[1:] if word.text.startswith("-"))
        if not re.search("[rR]", options) or not command.context.is_top_level:
            continue
        for word in command.words[1:]:
            folder = script.body.text_of(word).rstrip("/*")
            if len(folder) < 3 or re.match(r"-|/(?:tmp|dev)(?:/|$)", folder) or "cache" in folder.lower():
                continue  # an option, or a folder that the next start makes again
            folder_in_text = re.compile(rf"(?:^|[\s=\"']){re.escape(folder)}(?:[/\s\"']|$)")
            for launch in script.launches:
                if not (launch.is_training or (launch.step and not launch.is_helper)):
                    continue
                texts = [script.body.text_of(argument) for argument in launch.program.words[1:]]
                if launch.command.at > command.at and any(map(folder_in_text.search, texts)):
                    what = f"--requeue starts the script again from its first line: this removes {folder}, "
                    what += "and what the job has written there"
                    fix = f"((${{SLURM_RESTART_COUNT:-0}})) || {command.text}"
                    yield Hit(script.at_word(command), what, fix)
                    return


def _deleted_input(script: JobScript) -> Iterator[Hit]:
    """Find a file that the script reads and later removes, so that a second run lacks the file."""
    readers = _readers_by_file(script)
    for command in script.named("rm"):
        work_follows = any(
            other.at > command.end and other.name not in BRIEF_PROGRAMS for other in script.body.commands
        )
        if not (work_follows and command.context.is_top_level):
            continue
        for word in command.words[1:]:
            reader = readers.get(word.text)
            if reader is None or reader.name == "mv" or reader.at >= command.at:
                continue  # nothing reads the file before, or mv has moved it already
            if not _is_made_before(word, reader, script):
                what = "--requeue starts the script again from its first line: then "
                what += f"{script.body.text_of(word)}, which line {reader.line} reads, is gone"
                yield Hit(script.at_word(word), what, "remove it at the end, when the work is done")
                return


def _readers_by_file(script: JobScript) -> dict[str, Command]:
    """Return for each input of the job the last command that reads the file before the first program.

    A file that is read after the first program may be a result of this program, which a second run makes
    again.
    """
    readers: dict[str, Command] = {}
    work_starts = min((launch.command.at for launch in script.launches), default=len(script.text))
    for command in script.named("cp", "mv", "rsync", "tar", "unzip", "gunzip", "source", "."):
        if command.at > work_starts or not command.context.is_top_level or _packs(command):
            continue
        has_target = command.name in ("cp", "mv", "rsync")  # the last word is not an input
        inputs = command.words[1:-1] if has_target else command.words[1:]
        readers |= {word.text: command for word in inputs if not word.text.startswith("-")}
    return readers


def _packs(command: Command) -> bool:
    """Return whether a command writes an archive, as `tar czf results.tgz results` does."""
    options = command.arguments[0] if command.arguments else ""
    is_short = not options.startswith("--")
    return command.name == "tar" and bool(
        (is_short and re.fullmatch("-?[A-Za-z]*[cru][A-Za-z]*", options))
        or {"-c", "--create", "--append", "--update"} & {*command.arguments}
    )


def _is_made_before(word: Word, reader: Command, script: JobScript) -> bool:
    """Return whether the script itself makes the file that `word` names, before `reader` reads it.

    A second run then has the file again.
    """
    earlier = script.body.source.text[: reader.at]
    name = re.escape(word.text.strip('"'))
    return bool(
        re.search(rf"(?:>|-[oOP]|touch|mkdir|wget|curl|git clone|mktemp)[^\n]*{name}", earlier)
    ) or any(
        command.words[-1].text == word.text
        for command in script.named("cp", "rsync", "ln")
        if command.at < reader.at
    )
