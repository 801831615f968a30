"""What Slurm says when it refuses a job -> what that means, the options at fault, and what to do.

A site's own plugin may say anything: what `reasons` does not know is passed on as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sbatchgen.errors import Problem
from sbatchgen.plan.plan import Plan
from sbatchgen.plan.resources import of_plan, written
from sbatchgen.sbatch import Script
from sbatchgen.slurm.reasons import RULES


@dataclass(frozen=True)
class Asked:
    """An option of the job: its value, and where it was written."""

    option: str
    value: str
    at: str = ""

    def __str__(self) -> str:
        text = f"--{self.option}={self.value}" if self.value else f"--{self.option}"
        return f"{text} ({self.at})" if self.at else text


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A reason of Slurm's.

    Attributes:
        says: Slurm's own words.
        means: The same in plain words; "" where the text is not known here.
        options: The options of the job that it can be about; empty where it is about one that is not there.
        fix: What to do.
    """

    says: str
    means: str = ""
    options: tuple[Asked, ...] = ()
    fix: str = ""

    @property
    def problem(self) -> Problem:
        """As an error shows it."""
        what = f"{self.means}\n  Slurm said: {self.says}" if self.means else self.says
        return Problem(what, ", ".join(map(str, self.options)), self.fix)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the live Slurm says of a job, by `sbatch --test-only`.

    Attributes:
        accepted: Whether it would take the job.
        says: Its own words.
        warnings: What it says besides.
        start: When the job would start, as Slurm prints it, if all running jobs used up their time.
        nodes: Where it would start.
        refusals: Why it would not take it.
    """

    accepted: bool
    says: str
    warnings: tuple[str, ...] = ()
    start: str = ""
    nodes: str = ""
    refusals: tuple[Refusal, ...] = ()


_COMPILED = tuple((re.compile(rule.text), rule) for rule in RULES)
# What nobody has looked at when `--test-only` is answered: Slurm 22.05, by trial.
UNCHECKED = (
    "the body of the script, its paths and images",
    "whether the folders of the logs are there",
    "limits that only make a job wait, as a partition's MaxTime where EnforcePartLimits is NO",
    "whether the partition is DOWN",
)
# What comes before the text: who speaks, and of what.
_SPEAKER = re.compile(
    r"(?:sbatch: )?(?:error: |fatal: )?(?:Batch job submission failed: |allocation failure: )?"
    r"(?:\S+: line \d+: )?"
)
_CHATTER = re.compile(
    r"Try \"sbatch --help\"|sbatch: (?:error: )?(?:line must start with|For instance|instead of)"
)
_STARTS = re.compile(r"Job \d+ to start at (?P<start>\S+) using \d+ processors on nodes (?P<nodes>\S+)")


def asked_by(plan: Plan) -> dict[str, Asked]:
    """The options of a plan by their long names."""
    job = of_plan(plan)
    extra = {name: written(plan.origin(f"extra_options.{name}")) for name in plan.extra_options}
    return {
        name: Asked(name, value, extra.get(name) or job.place(name).text)
        for name, value in job.options.items()
    }


def asked_in(script: Script, file: str) -> dict[str, Asked]:
    """The options of a script by their long names, also those that sbatch does not take."""
    found: dict[str, Asked] = {}
    for word in (word for directive in script.directives for word in directive.words):
        name, _, value = word.text.removeprefix("--").partition("=")
        if word.text.startswith("--"):
            found[name] = Asked(name, value, f"{file}:{word.line}")
    for component in script.components:
        for option in (*component.given, *component.options.values()):
            at = f"{file}:{option.line}" if option.line else ""
            found[option.name] = Asked(option.name, option.value or "", at)
    return found


def explain(said: str, asked: Mapping[str, Asked]) -> list[Refusal]:
    """What Slurm's words mean for a job.

    Args:
        said: What sbatch wrote to stderr.
        asked: The job's options by long name.
    """
    found = [one for line in said.splitlines() if (one := _explained(line, asked))]
    special = [refusal for refusal, general in found if not general and refusal.means]
    telling = [refusal for refusal, general in found if not (general and special)]
    once = {refusal.means or refusal.says: refusal for refusal in reversed(telling)}
    return list(reversed(once.values()))


def reasons(returncode: int, said: str, asked: Mapping[str, Asked]) -> list[Refusal]:
    """Like `explain`, but never empty: what there is to say of an sbatch that failed without a word."""
    return explain(said, asked) or [Refusal(says=f"sbatch ended with exit status {returncode}")]


def understand(returncode: int, said: str, asked: Mapping[str, Asked]) -> Answer:
    """The answer of `sbatch --test-only`, by its exit status and what it wrote to stderr."""
    starts = _STARTS.search(said)
    if returncode == 0:
        start, nodes = (starts["start"], starts["nodes"]) if starts else ("", "")
        warnings = tuple(line for line in said.splitlines() if line.strip() and not _STARTS.search(line))
        return Answer(accepted=True, says=said.strip(), warnings=warnings, start=start, nodes=nodes)
    return Answer(accepted=False, says=said.strip(), refusals=tuple(reasons(returncode, said, asked)))


def _explained(line: str, asked: Mapping[str, Asked]) -> tuple[Refusal, bool] | None:
    """What a line means, and whether the text is a general one; None for what is no reason."""
    text = line[match.end() :] if (match := _SPEAKER.match(line)) else line
    if not text.strip() or _CHATTER.match(line):
        return None
    for pattern, rule in _COMPILED:
        if match := pattern.fullmatch(text):
            words = [word or "" for word in match.groups() if word]
            names = rule.options.format(*words, *[""] * 3).split()
            options = tuple(asked[name] for name in dict.fromkeys(names) if name in asked)
            means, fix = rule.means.format(*words), rule.fix.format(*words)
            return Refusal(says=text, means=means, options=options, fix=fix), rule.general
    return Refusal(says=text), False
