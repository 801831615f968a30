"""Long scripts: the work that they make grows as their length does."""

from __future__ import annotations

import cProfile
import pstats
from collections import Counter

import pytest

from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.lab.adopt.adoption import adopt

HEAD = "#!/bin/bash\n#SBATCH --gpus=1 --time=10\n"
LONG = {  # what repeats, with the number of the line, between its beginning and its end
    "comments": ("", "# {}\n", "python t.py\n"),
    "directives": ("", "#SBATCH --comment={}\n", "python t.py\n"),
    "mail types": ("", "#SBATCH --mail-type=END\n", "python t.py\n"),
    "an unknown argument a line": ("python t.py", " \\\n $X{}", "\n"),
}
LINES = 1000


def script(kind: str, lines: int) -> str:
    start, repeated, end = LONG[kind]
    return HEAD + start + "".join(repeated.format(number) for number in range(lines)) + end


def calls(text: str) -> int:
    """The calls of functions, of Python and of C: the same number on each machine, however busy."""
    profile = cProfile.Profile()
    profile.runcall(adopt, text, file="long.sh", user={}, day="2026-01-31")
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined] # typeshed lacks the name


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", LONG)
def test_four_times_the_lines_make_about_four_times_the_calls(kind: str) -> None:
    """Work squared would be 16 times."""
    adopt(script(kind, 1), file="long.sh", user={}, day="2026-01-31")  # what is loaded once
    short, long = (calls(script(kind, lines)) for lines in (LINES, 4 * LINES))
    assert long < 5 * short


def test_the_variables_of_a_job_are_listed_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each variable."""
    asked = Counter[str]()

    def counted(resolved: ResolvedJob) -> tuple[str, ...]:
        asked["inherited"] += 1
        return tuple(name for name, value in resolved.env.items() if value is None)

    monkeypatch.setattr(ResolvedJob, "inherited", property(counted))
    text = HEAD + "".join(f"export A{number}=x\n" for number in range(100)) + "python t.py\n"
    assert adopt(text, file="long.sh", user={}, day="2026-01-31").job
    assert asked["inherited"] < 50
