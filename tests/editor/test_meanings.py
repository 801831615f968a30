"""The meanings of options, beside the table of options."""

from __future__ import annotations

import pytest

from sbatchgen.base.units import NEWEST, RELEASES
from sbatchgen.check.sbatch.option_table import specs
from sbatchgen.check.sbatch.reader import read_script
from sbatchgen.lab.editor.cluster import LIMITS
from sbatchgen.lab.editor.script_file import VALUE_WORDS, meanings


def test_each_option_of_each_release_has_a_meaning() -> None:
    known = {name for release in RELEASES for name in specs(release)}
    missing, unknown = known - {*meanings()}, {*meanings()} - known
    assert not missing, (
        "a help in sbatchgen/jobs/inputs/options.py, or a row of sbatchgen/lab/editor/option_meanings.txt"
    )
    assert not unknown, "a row in sbatchgen/check/sbatch/option_table.py"


def test_limits_and_words_are_of_options_that_exist() -> None:
    assert {*LIMITS["partition"], *LIMITS["profile"], *VALUE_WORDS} <= set(specs(NEWEST))


@pytest.mark.parametrize(
    ("name", "word"), [(name, word) for name, words in VALUE_WORDS.items() for word in words]
)
def test_sbatch_takes_each_word_that_is_offered(name: str, word: str) -> None:
    assert read_script(f"#!/bin/bash\n#SBATCH --{name}={word}\n", slurm=NEWEST).refusal is None
