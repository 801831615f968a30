"""Values arrive as they were given: in bash words, in paths that bash expands, in directives."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sbatchgen.base import quoting
from sbatchgen.base.units import VARIABLE, ShellPath
from sbatchgen.jobs.runtimes import base

ANY_WORD = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
ONE_LINE = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=60)
HOSTILE = (
    "a b", "it's", '"', "'", "\\", "a\\", "$(touch /tmp/pwned)", "`id`", "${HOME}", "$HOME", "#x", "a#b", "%j",
    "*", "~", "-x", "--help", "a;b", "a&b", "a|b", "é", "\u202e", "hetjob", "PACKJOB", "=", "a=b", ":x", "!!", "{a,b}",
)  # fmt: skip


def bash(script: str, **environment: str) -> str:
    """What a script of bash prints."""
    return subprocess.run(
        ["bash", "-c", script], env=environment, check=True, capture_output=True
    ).stdout.decode()


@given(st.lists(ANY_WORD, min_size=1, max_size=20))
@settings(max_examples=100)
@example(list(HOSTILE))
@example(["a\nb", "tab\there", "\x1b[31m", "\r", "'\n'", "\\\n"])
def test_words_arrive_byte_for_byte(texts: list[str]) -> None:
    expected = "".join(f"{text}\0" for text in texts)
    assert bash(f"printf '%s\\0' {quoting.words(tuple(texts))}") == expected


@given(ONE_LINE)
@settings(max_examples=100)
def test_a_path_expands_its_variables_and_nothing_else(text: str) -> None:
    try:
        path = ShellPath.parse(f"/scratch/${{USER}}/{text}")
    except ValueError:
        return
    expected = VARIABLE.sub(lambda match: {"USER": "alice"}.get(match[1], ""), path)
    assert bash(f"printf %s {quoting.path(path)}", USER="alice", HOME="") == expected


@pytest.mark.parametrize("text", [text for text in HOSTILE if not text.startswith(("-", "~", "$H"))])
def test_a_relative_path_counts_from_the_folder_of_submission(text: str) -> None:
    path = base.path_in_bash(ShellPath.parse(text), "SLURM_SUBMIT_DIR")
    printed = bash(f"printf %s {quoting.path(path)}", HOME="/home/a", SLURM_SUBMIT_DIR="/home/a")
    assert printed == ("/home/a" if text == "${HOME}" else f"/home/a/{text}")


def test_a_path_with_blanks_in_a_variable_stays_one_word() -> None:
    script = f'set -- {quoting.path("${HOME}/x")}; echo "$#:$1"'
    assert bash(script, HOME="/a b") == "1:/a b/x\n"


@pytest.mark.slow
@given(ONE_LINE)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_directives_are_read_back_by_the_real_sbatch(oracle: Callable[..., Any], value: str) -> None:
    reading = oracle(f"#!/bin/bash\n#SBATCH {quoting.directive('comment', value)}\nhostname\n")
    assert reading.options.get("comment") == value, reading.messages


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_directives_are_read_back_by_the_real_sbatch(oracle: Callable[..., Any], value: str) -> None:
    line = f"#SBATCH {quoting.directive('comment', value)}\n#SBATCH {quoting.directive('account', 'after')}\n"
    reading = oracle(f"#!/bin/bash\n{line}hostname\n")
    assert (reading.options.get("comment"), reading.options.get("account")) == (value, "after"), (
        reading.messages
    )


@pytest.mark.parametrize("value", ["a\nb", "a\r", "\0", "\x1b[0m", "\x7f"])
def test_a_control_character_never_reaches_a_directive(value: str) -> None:
    with pytest.raises(ValueError, match="control character"):
        quoting.directive("comment", value)
