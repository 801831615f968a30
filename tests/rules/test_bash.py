"""Rules of what bash makes of a line, beside the bash of this machine, which runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from sbatchgen.check.lint.linter import lint
from sbatchgen.check.rules import syntax
from sbatchgen.check.script.script import JobScript

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


STATUSES = [
    "python train.py\nif [ $? -eq 0 ]; then echo trained; else echo failed; fi",
    "python train.py\nif [ $? -eq 0 ]; then echo trained; else echo failed; exit 1; fi",
    "python train.py\nif [ $? -eq 0 ]; then echo trained; elif [ -e log ]; then date; fi",
    "python train.py\nrc=$?\necho $rc\nif [ $rc -ne 0 ]; then echo failed; fi\necho end",
    "python train.py\nrc=$?\necho $rc\n[ $rc -eq 0 ] && echo trained",
    "python train.py\nrc=$?\necho $rc\n[ $rc -eq 0 ] && echo trained || echo failed",
    "python train.py\nrc=$?\nif [ $rc -ne 0 ]; then echo failed; fi\nexit $rc",
    "python train.py || echo failed",
    "python train.py || { echo failed; exit 1; }",
    "python train.py || { echo failed; date; }",
    "python train.py && echo trained",
    "python train.py && echo trained || echo failed",
    "python train.py && echo trained\necho end",
    "set -e\npython train.py && echo trained\necho end",
    "set -e\npython train.py\necho $?",
    "if python train.py; then echo trained; else echo failed; fi",
    "if ! python train.py; then echo failed; fi",
    "if ! python train.py; then echo failed; exit 3; fi",
    "if python train.py; then echo trained; else exit 4; fi",
    "set -o pipefail\npython train.py | tee log || echo failed",
    "set -o pipefail\npython train.py | tee log && echo trained",
]


@pytest.mark.parametrize("body", STATUSES)
def test_a_hidden_failure_is_one_that_ends_with_0(body: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 5\n")
    python.chmod(0o755)
    text = f"#!/bin/bash\n#SBATCH --time=01:00:00\n{body}\n"
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc"],
        input=text,
        cwd=tmp_path,
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    hidden = "SB312" in {finding.rule for finding in lint(JobScript(file="a", text=text))}
    assert (done.returncode == 0) == hidden


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        ("python train.py || echo failed", ""),
        ("python train.py || { echo failed >&2; }", ""),
        ("python train.py || { echo failed > /nonexistent/log; }", " and echo succeeds"),
        ("python train.py\nif [ $? -ne 0 ]; then echo failed; fi\nls /nonexistent", " and ls succeeds"),
        ("if ! python train.py; then ls logs; else cp log /archive/; fi", " and ls and cp succeed"),
    ],
)
def test_a_last_command_that_may_fail_is_named(body: str, condition: str) -> None:
    text = f"#!/bin/bash\n#SBATCH --time=01:00:00\n{body}\n"
    messages = [finding.problem.what for finding in lint(JobScript(file="a", text=text))]
    end = "the script still ends with 0: the job is shown as COMPLETED"
    assert f"if python in line 3 fails{condition}, {end}" in messages


@pytest.mark.parametrize(
    ("last", "condition"),
    [
        ("echo done", ""),
        ("echo done >/nonexistent/log", " and echo succeeds"),
        ("ls /nonexistent", " and ls succeeds"),
    ],
)
def test_a_last_command_decides_with_its_own_status(last: str, condition: str) -> None:
    text = f"#!/bin/bash\n#SBATCH --time=01:00:00\npython train.py\n{last}\n"
    messages = [finding.problem.what for finding in lint(JobScript(file="a", text=text))]
    name = last.partition(" ")[0]
    start = f"the script ends with the status of {name}: if python in line 3 fails{condition}"
    assert f"{start}, the job is shown as COMPLETED" in messages


KILLS = [
    "pkill -f NAME; echo end",
    "pkill -9 -f 'python.*NAME'; echo end",
    "pkill --full --signal KILL NAME; echo end",
    "pkill -f '[N]AME'; echo end",
    "pkill -f '[N]AME'; echo NAME; echo end",
    "pkill -x -f NAME; echo end",
    "pkill -P $$ -f NAME; echo end",
    "pkill -0 -f NAME; echo end",
    "pkill NAME; echo end",
]


@pytest.mark.skipif(not shutil.which("pkill"), reason="no pkill")
@pytest.mark.parametrize("string", KILLS)
def test_a_pkill_that_ends_its_own_shell(string: str) -> None:
    """By a name that no other process has."""
    name = f"z{uuid.uuid4().hex[:12]}"
    string = string.replace("[N]AME", f"[z]{name[1:]}").replace("NAME", name)
    done = subprocess.run(["bash", "-c", string], capture_output=True, text=True, check=False)
    quoted = string.replace("'", '"')
    text = f"#!/bin/bash\n#SBATCH --time=01:00:00 --exclusive\nsrun bash -c '{quoted}'\n"
    rules = {finding.rule for finding in lint(JobScript(file="a", text=text))}
    assert (not done.stdout.endswith("end\n")) == ("SB624" in rules)


def test_a_bash_that_takes_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syntax, "SECONDS_MAX", 0.0)
    script = JobScript(file="job.slurm", text="#!/bin/bash\n#SBATCH --time=1:00:00\nif true; then\n")
    (finding,) = [each for each in lint(script) if each.rule in ("SB814", "SB820")]
    assert (finding.rule, finding.severity) == ("SB820", "error")
    assert "its syntax was not checked" in finding.problem.what
