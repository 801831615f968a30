"""Explains the refusals of sbatch: the meaning, the options that may be at fault, and the fix.

A text that refusals.yaml does not have is shown unchanged, because a site's own plugin may print any text.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from sbatchgen.base.errors import Problem
from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.reader import Script
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.slurm.explanation import TextExplanation, Texts, filled, read_table


@frozen()
class OptionSource:
    """An option of the job, its value, and the place where it was written."""

    option: str  # the long name, without dashes
    value: str
    at: str = ""  # the place; "" if it is not known

    def __str__(self) -> str:
        text = f"--{self.option}={self.value}" if self.value else f"--{self.option}"
        return f"{text} ({self.at})" if self.at else text


@frozen(kw_only=True)
class Refusal:
    """A refusal of a job by Slurm."""

    says: str  # the text of Slurm
    means: str = ""  # the explanation; "" if refusals.yaml does not have the text
    options: tuple[OptionSource, ...] = ()  # the options of the job that may be at fault
    fix: str = ""  # what to do; "" if refusals.yaml does not have the text

    @property
    def problem(self) -> Problem:
        """The refusal as an error."""
        what = f"{self.means}\n  Slurm said: {self.says}" if self.means else self.says
        return Problem(what, ", ".join(map(str, self.options)), self.fix)


@frozen(kw_only=True)
class Answer:
    """The answer of `sbatch --test-only`."""

    accepted: bool  # whether Slurm would accept the job
    says: str  # the text of Slurm
    warnings: tuple[str, ...] = ()  # the warnings of sbatch
    start: str = ""  # when the job would start, as Slurm prints it, if all running jobs used up their time
    nodes: str = ""  # the nodes where the job would start
    refusals: tuple[Refusal, ...] = ()  # why Slurm would refuse the job


@frozen(kw_only=True)
class RefusalText(TextExplanation):
    """A text of Slurm with its explanation in refusals.yaml."""

    options: str = ""  # the options that may be at fault, or names of groups of options
    general: bool = False  # whether it says so little that it is hidden beside other explained texts


@frozen(kw_only=True)
class RefusalTexts:
    """The contents of refusals.yaml."""

    groups: Mapping[str, str]  # the options of each group
    texts: tuple[RefusalText, ...]


@functools.cache
def texts() -> Texts[RefusalText]:
    """Return the texts of refusals.yaml."""
    return Texts(_table().texts)


def _table() -> RefusalTexts:
    return read_table(Path(__file__).with_name("refusals.yaml"), RefusalTexts)


def options_at_fault(entry: RefusalText) -> list[str]:
    """Return the long names of the options that may be at fault, with groups replaced by their members."""
    names = entry.options
    for group, members in [*_table().groups.items()][::-1]:  # a group may hold groups before it
        names = names.replace(group, members)
    return names.split()


# The facts that Slurm 22.05 does not check for `--test-only`, as trials showed.
UNCHECKED = (
    "the body of the script, its paths and images",
    "whether the folders of the logs are there",
    "limits that only make a job wait, as a partition's MaxTime where EnforcePartLimits is NO",
    "whether the partition is DOWN",
)
# The text before a message: "sbatch: error: Batch job submission failed: ".
_BEFORE_MESSAGE = re.compile(
    r"(?:sbatch: )?(?:error: |fatal: )?(?:Batch job submission failed: |allocation failure: )?"
    r"(?:\S+: line \d+: )?"
)
# Lines of sbatch that only explain the line before.
_ADDITIONS = re.compile(
    r"Try \"sbatch --help\"|sbatch: (?:error: )?(?:line must start with|For instance|instead of)"
)
# The answer of `sbatch --test-only` for a job that Slurm would accept.
_STARTS = re.compile(
    r"Job \d+ to start at (?P<start>\S+)(?: \S+)? using \d+ processors on nodes (?P<nodes>\S+)"
)


def options_of_job(resolved: ResolvedJob) -> dict[str, OptionSource]:
    """Return the options of a resolved job by their long names, with their places."""
    job = resolved.resources
    return {name: OptionSource(name, value, job.place(name).text) for name, value in job.options.items()}


def options_of_script(script: Script, file: str) -> dict[str, OptionSource]:
    """Return the options of a script by their long names, also options that sbatch does not know."""
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
    """Return the refusals in the stderr of sbatch, or one with its exit status if stderr has none.

    `options` has the options of the job by their long names.
    """
    explained = [pair for line in stderr.splitlines() if (pair := _explained(line, options))]
    has_specific = any(refusal.means for refusal, is_general in explained if not is_general)
    shown = [refusal for refusal, is_general in explained if not (is_general and has_specific)]
    # Each explanation once, with its first refusal: a dict keeps the last value, and the list is reversed.
    once = {refusal.means or refusal.says: refusal for refusal in reversed(shown)}
    return [*reversed(once.values())] or [Refusal(says=f"sbatch ended with exit status {exit_status}")]


def read_test_answer(exit_status: int, stderr: str, options: Mapping[str, OptionSource]) -> Answer:
    """Return the answer of `sbatch --test-only` from its exit status and its stderr."""
    match = _STARTS.search(stderr)
    if exit_status == 0:
        start, nodes = (match["start"], match["nodes"]) if match else ("", "")
        warnings = tuple(line for line in stderr.splitlines() if line.strip() and not _STARTS.search(line))
        return Answer(accepted=True, says=stderr.strip(), warnings=warnings, start=start, nodes=nodes)
    return Answer(accepted=False, says=stderr.strip(), refusals=tuple(refusals(exit_status, stderr, options)))


def _explained(line: str, options: Mapping[str, OptionSource]) -> tuple[Refusal, bool] | None:
    """Return the refusal in a line, and whether its text is general; None for a line without a refusal."""
    text = line[match.end() :] if (match := _BEFORE_MESSAGE.match(line)) else line
    if not text.strip() or _ADDITIONS.match(line):
        return None
    match_of_text = texts().find(text)
    if match_of_text is None:
        return Refusal(says=text), False
    explanation, groups = match_of_text
    words = [word for word in groups if word]
    # A name may be "{0}", for the option that Slurm's text names; "" fills slots without a word.
    names = [name.format(*words, *[""] * 3) for name in options_at_fault(explanation)]
    at_fault = tuple(options[name] for name in dict.fromkeys(names) if name in options)
    means, fix = filled(explanation, words)
    return Refusal(says=text, means=means, options=at_fault, fix=fix), explanation.general
