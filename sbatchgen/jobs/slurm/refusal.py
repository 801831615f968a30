"""Explains why sbatch refuses a job: what its message means, which options may be at fault, and the fix.

The explanations are in refusals.yaml. Other messages are shown unchanged, because the plugin of a site may
print any text.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from sbatchgen.base.errors import Problem
from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.reader import Script
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.slurm.explanation import TextExplanation, Texts, filled_texts, read_table


@frozen()
class OptionSource:
    """An option of the job, its value, and the place where it was written."""

    option: str  # the long name, without dashes
    value: str
    at: str = ""  # the place, such as "job.yaml:4"; "" if it is not known

    def __str__(self) -> str:
        text = f"--{self.option}={self.value}" if self.value else f"--{self.option}"
        return f"{text} ({self.at})" if self.at else text


@frozen(kw_only=True)
class Refusal:
    """A message with which Slurm refuses a job, and its explanation."""

    says: str  # the message of Slurm
    means: str = ""  # the explanation; "" if refusals.yaml does not have the message
    options: tuple[OptionSource, ...] = ()  # the options of the job that may be at fault
    fix: str = ""  # what the user can do; "" if refusals.yaml does not have the message

    @property
    def problem(self) -> Problem:
        """The refusal as a problem that is shown to the user."""
        what = f"{self.means}\n  Slurm said: {self.says}" if self.means else self.says
        return Problem(what, ", ".join(map(str, self.options)), self.fix)


@frozen(kw_only=True)
class Answer:
    """The answer of `sbatch --test-only`."""

    accepted: bool  # whether Slurm would accept the job
    says: str  # all that sbatch has printed
    warnings: tuple[str, ...] = ()  # the warnings of sbatch about an accepted job
    # When the job would start, as Slurm prints it, if each running job ran until its time limit
    start: str = ""
    nodes: str = ""  # the nodes on which the job would start: "n[1-2]"
    refusals: tuple[Refusal, ...] = ()  # why Slurm would refuse the job


@frozen(kw_only=True)
class RefusalText(TextExplanation):
    """An entry of refusals.yaml: a message of Slurm and its explanation."""

    options: str = ""  # the long names of options that may be at fault, and names of groups such as GPUS
    # Whether the message says little. If Slurm also prints another message that is explained, only the other
    # message is shown.
    general: bool = False


@frozen(kw_only=True)
class RefusalTexts:
    """The contents of refusals.yaml."""

    groups: Mapping[str, str]  # the options of each group, such as GPUS: "gpus gpus-per-node"
    texts: tuple[RefusalText, ...]  # an entry for each message


@functools.cache
def known_texts() -> Texts[RefusalText]:
    """Return the entries of refusals.yaml, which can be searched for a message."""
    return Texts(_refusal_table().texts)


def _refusal_table() -> RefusalTexts:
    """Return the contents of refusals.yaml; the file is read only once."""
    return read_table(Path(__file__).with_name("refusals.yaml"), RefusalTexts)


def options_at_fault(entry: RefusalText) -> list[str]:
    """Return the long names of the options that an entry blames, with each group replaced by its options."""
    names = entry.options
    # The last group comes first, because a group may contain groups that are written before it.
    for group, members in reversed([*_refusal_table().groups.items()]):
        names = names.replace(group, members)
    return names.split()


# The review lists these things, because `sbatch --test-only` does not check them. Tests with Slurm 22.05 have
# shown this.
UNCHECKED = (
    "the body of the script, its paths and images",
    "whether the folders of the logs are there",
    "limits that only make a job wait, such as MaxTime of a partition, if EnforcePartLimits is NO",
    "whether the partition is DOWN",
)
# The text before a message: "sbatch: error: Batch job submission failed: ".
_BEFORE_MESSAGE = re.compile(
    r"(?:sbatch: )?(?:error: |fatal: )?(?:Batch job submission failed: |allocation failure: )?"
    r"(?:\S+: line \d+: )?"
)
# Lines of sbatch that only explain the line before them: "Try "sbatch --help" for more information".
_ADDITIONS = re.compile(
    r"Try \"sbatch --help\"|sbatch: (?:error: )?(?:line must start with|For instance|instead of)"
)
# The answer of `sbatch --test-only` for a job that Slurm would accept:
#     sbatch: Job 4711 to start at 2026-01-31T12:00:00 using 8 processors on nodes n[1-2] in partition gpu
_STARTS = re.compile(
    r"Job \d+ to start at (?P<start>\S+)(?: \S+)? using \d+ processors on nodes (?P<nodes>\S+)"
)


def options_of_job(resolved: ResolvedJob) -> dict[str, OptionSource]:
    """Return the options of a resolved job by their long names, with their places."""
    job = resolved.resources
    return {name: OptionSource(name, value, job.place(name).text) for name, value in job.options.items()}


def options_of_script(script: Script, file: str) -> dict[str, OptionSource]:
    """Return the options of a script by their long names, with their places in the file.

    Options that sbatch does not know are included, because sbatch may refuse them.
    """
    options: dict[str, OptionSource] = {}
    for word in (word for directive in script.directives for word in directive.words):
        name, _, value = word.text.removeprefix("--").partition("=")
        if word.text.startswith("--"):
            options[name] = OptionSource(name, value, f"{file}:{word.line}")
    for component in script.components:
        for option in (*component.uses, *component.options.values()):
            options[option.name] = OptionSource(option.name, option.value or "", f"{file}:{option.line}")
    return options


def refusals(exit_status: int, stderr: str, options: Mapping[str, OptionSource]) -> list[Refusal]:
    """Return the refusals in the stderr of sbatch; without such lines, one refusal with the exit status.

    `options` has the options of the job by their long names.
    """
    lines = stderr.splitlines()
    explained = [refusal for line in lines if (refusal := _explained_line(line, options))]
    has_specific = any(refusal.means for refusal, is_general in explained if not is_general)
    shown = [refusal for refusal, is_general in explained if not (is_general and has_specific)]
    # If two messages have the same explanation, only the first is shown. A dict keeps the last value of a
    # key, so it is filled in reversed order.
    by_explanation = {refusal.means or refusal.says: refusal for refusal in reversed(shown)}
    distinct = [*reversed(by_explanation.values())]
    return distinct or [Refusal(says=f"sbatch ended with exit status {exit_status}")]


def read_test_answer(exit_status: int, stderr: str, options: Mapping[str, OptionSource]) -> Answer:
    """Return the answer of `sbatch --test-only` from its exit status and its stderr."""
    match = _STARTS.search(stderr)
    if exit_status == 0:
        start, nodes = (match["start"], match["nodes"]) if match else ("", "")
        warnings = tuple(line for line in stderr.splitlines() if line.strip() and not _STARTS.search(line))
        return Answer(accepted=True, says=stderr.strip(), warnings=warnings, start=start, nodes=nodes)
    return Answer(accepted=False, says=stderr.strip(), refusals=tuple(refusals(exit_status, stderr, options)))


def _explained_line(line: str, options: Mapping[str, OptionSource]) -> tuple[Refusal, bool] | None:
    """Return the refusal in a line, and whether its message is general; None for a line without a message."""
    message = line[match.end() :] if (match := _BEFORE_MESSAGE.match(line)) else line
    if not message.strip() or _ADDITIONS.match(line):
        return None
    entry_and_groups = known_texts().find(message)
    if entry_and_groups is None:
        return Refusal(says=message), False
    entry, groups = entry_and_groups
    words = [word for word in groups if word]
    # An entry may blame "{0}": the option that the message itself names. Slots without a word in the message
    # become empty, and an empty name is not an option of the job.
    names = [name.format(*words, *[""] * 3) for name in options_at_fault(entry)]
    at_fault = tuple(options[name] for name in dict.fromkeys(names) if name in options)
    means, fix = filled_texts(entry, words)
    return Refusal(says=message, means=means, options=at_fault, fix=fix), entry.general
