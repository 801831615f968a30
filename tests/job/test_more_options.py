"""Options of a command line as a script would say them."""

from __future__ import annotations

import pytest

from sbatchgen.check.sbatch.reader import read_script
from sbatchgen.check.script.more_options import with_options


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("#!/bin/bash\n#SBATCH --time=5 --mem=1G # a comment\nhostname\n", 2),
        ("#!/bin/bash\n#SBATCH --time=5\n#SBATCH\nhostname\n", 3),
        ("#!/bin/bash\n##SBATCH --mem=3\n#SBATCH -J x --mem 1G\nhostname\n#SBATCH --mem=9G\n", 3),
        ("#!/bin/bash\n#SBATCH --mem=1G\n#SBATCH hetjob\n#SBATCH --mem=2G\nhostname\n", 2),
    ],
)
def test_an_option_counts_over_the_scripts_own_and_no_line_moves(text: str, line: int) -> None:
    more = with_options(text, ["--mem=64G", '--comment=a # "b"', "--no-requeue"])
    assert more.count("\n") == text.count("\n")
    options = read_script(more).options
    assert [options[name].value for name in ("mem", "comment")] == ["64G", 'a # "b"']
    assert "no-requeue" in options
    assert options["mem"].line == line
    assert with_options(text, []) == text


def test_a_script_without_directives_gets_one() -> None:
    more = with_options("#!/bin/bash\nhostname\n", ["--mem=64G"])
    assert more == "#!/bin/bash\n#SBATCH --mem=64G\nhostname\n"
