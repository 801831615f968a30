"""Rules of what bash makes of a line, beside the bash of this machine, which runs it."""

from __future__ import annotations

import subprocess

import pytest

from sbatchgen.job.script import JobScript
from sbatchgen.lint.linter import lint

CASES = [
    ("SB802", "lr=1\n$lr = 0.1\necho $lr"),
    ("SB802", "lr=1\n$lr=0.1\necho $lr"),
    ("SB802", "lr=1\n[ $lr = 0.1 ] || export lr=0.1\necho $lr"),
    ("SB802", "seeds = [1, 2]"),
    ("SB802", "seeds=[1,2]"),
    ("SB813", "echo --lr 0.1 # was 0.2 \\\n  --batch 8"),
    ("SB813", "echo \\\n  --lr #0.2 \\\n  --batch 8"),
    ("SB813", "echo --lr '# 0.1' \\\n  --batch 8"),
    ("SB813", "echo --lr 0.1#2 \\\n  --batch 8"),
    ("SB814", '[[ -z "$1"]] && echo none'),
    ("SB814", '[[ -z "$1" ]] && echo none'),
    ("SB818", 'set -- x\n[ -z "$1"] && echo none'),
    ("SB818", '[ -z "$1" ] && echo none'),
    ("SB818", "if [ -d data]; then echo data; fi"),
    ("SB818", "if [ a = b\\] ]; then echo data; fi"),
    ("SB819", "set -e\nn=0\n((n++))"),
    ("SB819", "set -e\nn=0\nlet n++"),
    ("SB819", "set -e\nn=1\n((n++))"),
    ("SB819", "set -e\nn=0\n((++n))"),
    ("SB819", "set -e\nn=0\n((n++)) || true"),
    ("SB819", "set -e\nn=0\nif ((n++)); then echo 1; fi"),
    ("SB819", "set -e\nn=0\nfor i in 1 2; do ((n++)); done"),
    ("SB819", "n=0\n((n++))"),
    ("SB819", 'set -e\nn=0\ncheck() { [ -e "$1" ] || ((n++)); }\ncheck /nonexistent'),
    ("SB819", 'set -e\nn=0\ncheck() { [ -e "$1" ] || ((n++)); }\ncheck /nonexistent || true'),
    ("SB819", "set -e\nn=0\nadd() { ((n++)); echo $n; }\nx=$(add)"),
]


@pytest.mark.parametrize(("rule", "body"), CASES)
def test_a_rule_finds_what_bash_does_not_do(rule: str, body: str) -> None:
    """What bash complains of, or does not get past."""
    text = f"#!/bin/bash\n#SBATCH --time=01:00:00\n{body}\necho end\n"
    done = subprocess.run(
        ["bash", "--norc"], input=text, capture_output=True, text=True, check=False, env={"LC_ALL": "C"}
    )
    is_wrong = bool(done.stderr) or not done.stdout.endswith("end\n")
    assert is_wrong == (rule in {finding.rule for finding in lint(JobScript(file="a", text=text))})
