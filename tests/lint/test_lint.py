"""`sbatchgen lint` as a command: what it reads, what it says in each format, what it fails on, what it leaves alone."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from sbatchgen.base.errors import LIMIT_STATUS
from sbatchgen.check.bash import grammar
from sbatchgen.check.lint import linting, shellcheck
from sbatchgen.check.lint.linter import rules
from sbatchgen.check.lint.source import read_sources
from sbatchgen.check.rules.comments import RETIRED
from tests.conftest import REPOSITORY, Command
from tests.plan.plans import needs_sandbox

GOOD = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=01:00:00\nhostname\n"
BAD = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=24\n#SBATCH -p=gpu\nhostname\n"


@pytest.fixture(autouse=True)
def _no_shellcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine; tests that want it bring their own."""
    monkeypatch.setattr("sbatchgen.base.machine.search_path.find", lambda *_: "")


def put(name: str, text: str | bytes = BAD) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def found(command: Command, *args: str) -> list[tuple[str, int, int, str]]:
    """File, line, column and rule of each finding."""
    report = json.loads(command("lint", "--format", "json", *args).out)
    return [(row["file"], row["line"], row["column"], row["rule"]) for row in report]


def ids(command: Command, *args: str) -> set[str]:
    return {rule for *_, rule in found(command, *args)}


# --- What it prints ---


_PIPE = "cat a | cat | cat | cat\nhostname\n"


@pytest.mark.parametrize(
    ("limit", "value", "body", "line"),
    [
        ("SIZE_MAX", 60, _PIPE, 4),
        ("PIPES_MAX", 2, _PIPE, 4),
        ("SECONDS_MAX", -1, "if a; then b; fi\n" * 4000, 1),
    ],
)
def test_a_body_that_is_not_read_whole_is_an_error(
    command: Command, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, body: str, line: int
) -> None:
    put("job.slurm", GOOD.replace("hostname\n", body))
    monkeypatch.setattr(grammar, limit, value)
    result = command("lint", "job.slurm")
    assert re.search(r"error SB820: the body was not checked from line \d+ on: ", result.out)
    assert (result.status, result.out.partition(":")[2].partition(":")[0]) == (3, str(line))


@pytest.mark.proof
@needs_sandbox
def test_a_plan_that_does_not_show_all_has_a_status_of_its_own(command: Command) -> None:
    put("job.slurm", GOOD + "for n in {1..1000}; do srun python $n.py; done\n")
    result = command("lint", "--plan", "job.slurm")
    assert "at least 970 others were not checked" in result.out
    assert result.status == command("plan", "job.slurm").status == LIMIT_STATUS
    assert command("lint", "--plan", "--fail-on", "never", "job.slurm").status == 0

    put("job.slurm", GOOD + "while :; do sleep 60; done\n")  # as one that watches others
    result = command("lint", "--plan", "job.slurm")
    assert ("info SB336" in result.out, result.status) == (True, 0)


def test_text_shows_the_place_the_line_and_the_fix(command: Command) -> None:
    put("job.slurm")
    result = command("lint", "job.slurm")
    assert result.out == (
        "job.slurm:3:16: warning SB127: --time=24 is 24 minutes\n"
        "    3 | #SBATCH --time=24\n"
        "      |                ^^\n"
        "    fix: write 24:00:00 for hours, or 00:24:00\n"
        "job.slurm:4:9: error SB111: sbatch reads -p=gpu as --partition with the value '=gpu'\n"
        "    4 | #SBATCH -p=gpu\n"
        "      |         ^^^^^^\n"
        "    fix: write --partition=gpu\n"
    )
    assert (result.status, result.err) == (3, "1 script: 1 error, 1 warning\n")


MISTAKES = {
    "--array=1, 2, 3": "SB112: write --array=1,2,3",
    "--nodes= 2": "SB112: write --nodes=2",
    "--mail-user = me --mail-type=END": "SB112: write --mail-user=me",
    "--comment a b c": 'SB107: quote the value: --comment="a b c"',
    "-n 2 ; tasks": "SB107: remove it, or put a # before it",
    "-J\n#SBATCH -p gpu": "SB107: write the value of -J on its line",
    "--workdir /scratch": "SB113: write --chdir",
    "--gres:gpu:1": "SB113: write --gres=gpu:1",
    "--c 1": "SB113: write the full name of the option",
    "--cpu-bind none": "SB114: give it to srun: srun --cpu-bind ...",
    "--image docker:me/torch": "",  # shifter's
}


@pytest.mark.parametrize("directive", MISTAKES)
def test_a_mistake_is_one_error_with_its_fix(command: Command, directive: str) -> None:
    """Also beside another, which makes sbatch end as well."""
    put("job.slurm", f"#!/bin/bash\n#SBATCH -t soon\n#SBATCH {directive}\nhostname\n")
    out = command("lint", "--select", "SB1", "--format", "json", "job.slurm").out
    errors = [row for row in json.loads(out) if row["severity"] == "error" and row["line"] > 2]
    assert "".join(f"{row['rule']}: {row['fix']}" for row in errors) == MISTAKES[directive]


@pytest.mark.parametrize(("made", "late"), [("mkdir -p ./logs/", True), ("mkdir -p results", False)])
def test_a_script_makes_the_folder_of_its_log_too_late(command: Command, made: str, *, late: bool) -> None:
    put("job.slurm", f"#!/bin/bash\n#SBATCH --time=1 --output=logs/%j.out\n{made}\nsrun hostname\n")
    (row,) = json.loads(command("lint", "--select", "SB701", "--format", "json", "job.slurm").out)
    assert ("The mkdir in line 3 comes too late" in row["message"]) == late
    assert row["fix"].startswith("mkdir -p logs in your shell, before" if late else "mkdir -p logs first")


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github"])
def test_a_secret_is_not_shown_again(command: Command, form: str) -> None:
    put("job.slurm", GOOD + "export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789 X=$(dirname $0)\n")
    result = command("lint", "--format", form, "job.slurm")
    assert "SB806" in result.out
    assert "SB401" in result.out
    assert "uvwxyz0123456789" not in result.out


def test_a_summary_says_that_nothing_was_found(command: Command) -> None:
    put("a.slurm", GOOD)
    put("b.slurm", GOOD)
    result = command("lint", "a.slurm", "b.slurm")
    assert (result.status, result.out, result.err) == (0, "", "2 scripts: nothing found\n")


def test_json_has_all_that_was_found(command: Command) -> None:
    put("job.slurm")
    result = command("lint", "--format", "json", "job.slurm", "gone.slurm")
    report = json.loads(result.out)
    assert report[1] == {
        "file": "job.slurm",
        "line": 4,
        "column": 9,
        "end_column": 15,
        "rule": "SB111",
        "severity": "error",
        "message": "sbatch reads -p=gpu as --partition with the value '=gpu'",
        "fix": "write --partition=gpu",
        "edits": [{"line": 4, "column": 9, "end_column": 15, "text": "--partition=gpu"}],
        "argv": ["sbatchgen", "lint", "--fix", "job.slurm"],
    }
    assert result.status == 3
    assert "can't read gone.slurm" in result.err


def test_github_reads_its_own_marks_only(command: Command) -> None:
    put("a,b:c%.slurm", "#!/bin/bash\n#SBATCH --time=24:00:00\n#SBATCH --foo%0A::error::x=\x1b[31m\n")
    line = command("lint", "--format", "github", "--select", "SB113", "a,b:c%.slurm").out
    assert line.startswith("::error file=a%2Cb%3Ac%25.slurm,line=3,col=9,endColumn=")
    assert line.count("\n") == 1
    assert ",title=SB113::" in line
    assert "%250A::error" in line  # the text between the marks is data
    assert "\x1b" not in line


def test_sarif_is_whole(command: Command) -> None:
    """By the required properties of SARIF 2.1.0, sections 3.13 to 3.59."""
    put("job one.slurm")
    result = command("lint", "--format", "sarif", "job one.slurm", "gone.slurm")
    log = json.loads(result.out)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "sbatchgen"
    assert [rule["id"] for rule in driver["rules"]] == ["SB111", "SB127"]
    assert all(rule["help"]["text"].startswith(f"## {rule['id']} ") for rule in driver["rules"])
    assert run["columnKind"] == "unicodeCodePoints"
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert "gone.slurm" in invocation["toolExecutionNotifications"][0]["message"]["text"]
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert unquote(place["artifactLocation"]["uri"]) == "job one.slurm"
        assert place["region"]["startLine"] >= 1
        assert place["region"]["startColumn"] >= 1
    (fix,) = run["results"][1]["fixes"]
    assert fix["artifactChanges"] == [
        {
            "artifactLocation": {"uri": "job%20one.slurm"},
            "replacements": [
                {
                    "deletedRegion": {"startLine": 4, "startColumn": 9, "endColumn": 15},
                    "insertedContent": {"text": "--partition=gpu"},
                }
            ],
        }
    ]


def test_a_sarif_fix_does_what_fix_does(command: Command) -> None:
    before = "#!/bin/bash\r\n#SBATCH --nodes=1\r\n#SBATCH --time=01:00:00\r\ntrue\r\n"
    put("job.slurm", before)
    log = json.loads(command("lint", "--format", "sarif", "--select", "SB102", "job.slurm").out)
    lines = before.split("\n")
    for replacement in log["runs"][0]["results"][0]["fixes"][0]["artifactChanges"][0]["replacements"]:
        region = replacement["deletedRegion"]
        line = lines[region["startLine"] - 1]
        end = region.get("endColumn", len(line) + 1)
        new = replacement["insertedContent"]["text"]
        lines[region["startLine"] - 1] = line[: region["startColumn"] - 1] + new + line[end - 1 :]
    command("lint", "--fix", "--select", "SB102", "job.slurm")
    assert Path("job.slurm").read_bytes() == "\n".join(lines).encode()


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github"])
def test_no_format_obeys_a_script(command: Command, form: str) -> None:
    put("\x1b]0;x.slurm", b"#!/bin/bash\n#SBATCH --time=\x1b[2J\x9b31m\xff\n#SBATCH \x1b[1m\n")
    result = command("lint", "--format", form, "\x1b]0;x.slurm")
    assert result.status == 3
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", result.out + result.err)
    result.out.encode()
    if form in ("json", "sarif"):
        json.dumps(json.loads(result.out), ensure_ascii=False).encode()  # no lone surrogates


def test_a_change_shown_on_a_terminal_is_visible_text(folder: Path) -> None:
    """As a patch in a file it is the bytes; `test_a_diff_is_a_patch`."""
    put("job.slurm", "#!/bin/bash\n#SBATCH -p=gpu\necho '\x1b[2J'\n")
    out = on_terminal("lint", "--diff", "--no-shellcheck", "job.slurm")
    assert "\\x1b[2J" in out
    assert "\x1b[2J" not in out


def on_terminal(*args: str, **environment: str) -> str:
    """What a command writes to a terminal."""
    master, slave = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "sbatchgen", *args],
        stdout=slave,
        stderr=slave,
        env=env | {"TERM": "xterm", **environment},
    )
    os.close(slave)
    read = b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not data:
            break
        read += data
    os.close(master)
    process.wait()
    return read.decode()


def test_colours_are_for_terminals_that_want_them(folder: Path) -> None:
    put("job.slurm")
    assert "\x1b[" in on_terminal("lint", "--no-shellcheck", "job.slurm")
    assert "\x1b[" not in on_terminal("lint", "--no-shellcheck", "job.slurm", NO_COLOR="1")


def test_a_long_line_is_quoted_around_the_place(command: Command) -> None:
    put("job.slurm", "#!/bin/bash\n#SBATCH --nodes=1 --comment=" + "x" * 500 + " --time=24\ntrue\n")
    lines = command("lint", "job.slurm").out.splitlines()
    mark = lines[2].index("^")
    assert lines[1][mark : mark + 2] == "24"
    assert max(map(len, lines[1:3])) < 120


# --- What it reads ---


def test_stdin(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
    result = command("lint", "-")
    assert result.out.startswith("<stdin>:3:16: warning SB127")
    assert result.status == 3


def test_folders_are_searched_for_scripts(command: Command) -> None:
    for name in ("a.slurm", "deep/er/b.sbatch", "c.sh", "d", "e.job"):
        put(f"jobs/{name}")
    put("jobs/plain.sh", "#!/bin/bash\necho no directives\n")
    put("jobs/data.csv", BAD)
    put("jobs/.hidden/f.slurm")
    put("jobs/.g.slurm")
    Path("jobs/loop").symlink_to(".", target_is_directory=True)
    os.mkfifo("jobs/pipe")
    assert sorted({file for file, *_ in found(command, "jobs")}) == [
        "jobs/a.slurm", "jobs/c.sh", "jobs/d", "jobs/deep/er/b.sbatch", "jobs/e.job",
    ]  # fmt: skip


def test_a_file_named_twice_is_read_once(command: Command) -> None:
    put("jobs/a.slurm")
    assert len(found(command, "jobs/a.slurm", "jobs", "jobs/a.slurm")) == 2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: None, "can't read x.slurm: No such file or directory"),
        (
            lambda: Path("x.slurm").symlink_to("x.slurm"),
            "can't read x.slurm: Too many levels of symbolic links",
        ),
        (lambda: os.mkfifo("x.slurm"), "can't read x.slurm: not a regular file"),
        (lambda: Path("x.slurm").symlink_to("/dev/zero"), "can't read x.slurm: not a regular file"),
        (lambda: put("x.slurm", b"#!/bin/sh\n" + b"x" * (4 << 20)), "x.slurm is larger than 4 MiB"),
    ],
    ids=["absent", "loop", "fifo", "device", "large"],
)
def test_what_is_no_script_is_one_line_and_the_rest_is_read(command: Command, make: Any, says: str) -> None:
    put("good.slurm", GOOD)
    make()
    result = command("lint", "x.slurm", "good.slurm", "--fail-on", "never")
    assert result.err.startswith(f"error: {says}")
    assert result.err.endswith("1 script: nothing found\n")
    assert result.status == 3


def test_a_closed_folder_is_reported(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    put("jobs/a.slurm", GOOD)
    put("jobs/closed/b.slurm")
    scandir = os.scandir

    def scan(path: str) -> Any:
        if str(path).endswith("closed"):  # root may read all, and tests may run as root
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    result = command("lint", "jobs")
    assert "error: can't read the folder jobs/closed: Permission denied\n" in result.err
    assert result.status == 3


DOCUMENT = """\
# Jobs

```bash
echo no directives here
```

```bash
#SBATCH --time=24
#SBATCH --nodes=1
python train.py
```

- in a list, indented:

  ~~~slurm title
  #!/bin/bash
  #SBATCH -p=gpu

  ```
  python train.py
  ~~~

> ````sh
> #SBATCH -N 1
> #SBATCH --time=24
> ````

```python
'''
#SBATCH --time=24
'''
```

``` not a `fence` ```

```{.bash}
#SBATCH --nodes=1
#SBATCH --mem=64GiB
"""


def test_scripts_in_a_document(command: Command) -> None:
    put("jobs.md", DOCUMENT)
    assert [row for row in found(command, "jobs.md") if row[3] in ("SB127", "SB111", "SB126", "SB101")] == [
        ("jobs.md", 8, 16, "SB127"),
        ("jobs.md", 17, 11, "SB111"),
        ("jobs.md", 25, 18, "SB127"),
        ("jobs.md", 38, 9, "SB126"),
    ]
    assert "    also in line 25\n" in command("lint", "jobs.md").out


def test_a_document_with_line_ends_of_dos_has_scripts_without(command: Command) -> None:
    put("jobs.md", "```bash\r\n#!/bin/bash\r\n#SBATCH --time=24\r\n#SBATCH --nodes=1\r\ntrue\r\n```\r\n")
    assert found(command, "jobs.md") == [("jobs.md", 3, 16, "SB127")]


def test_documents_are_never_changed(command: Command) -> None:
    put("jobs.md", DOCUMENT)
    assert command("lint", "--fix", "jobs.md").status == 3
    assert Path("jobs.md").read_text() == DOCUMENT


def test_many_files_are_read_in_order(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        put(f"jobs/{number:02}.slurm", BAD if number % 3 else GOOD)
    alone = command("lint", "jobs")
    monkeypatch.setattr(linting, "MANY_FILES", 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert command("lint", "jobs") == alone
    assert alone.err == "40 scripts: 26 errors, 26 warnings\n"


# --- What it fails on, and what is left out ---


@pytest.mark.parametrize(
    ("args", "status"),
    [
        ([], 3),
        (["--disable", "SB111"], 0),
        (["--disable", "SB111", "--fail-on", "warning"], 3),
        (["--disable", "SB1", "--fail-on", "info"], 0),
        (["--disable", "SB111", "--strict"], 3),
        (["--disable", "SB1", "--strict"], 0),
        (["--fail-on", "never"], 0),
        (["--select", "sb127"], 0),
        (["--select", "SB127", "--fail-on", "warning"], 3),
    ],
)
def test_exit_status(command: Command, args: list[str], status: int) -> None:
    put("job.slurm")
    assert command("lint", "job.slurm", *args).status == status


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--select", "SB999"], "no rule 'SB999'"),
        (["--disable", "S1"], "no rule 'S1'"),
        (["--slurm", "1.2"], "Slurm 1.2 is not known here"),
        (["--format", "xml"], "'xml' is not one of"),
        (["--fix", "--format", "json"], "--fix shows a change, which is text"),
        (["--explain", "SB999"], "no rule 'SB999'"),
        (["--explain", "SC2086"], "SC2086 is a rule of shellcheck"),
        (["--shellcheck"], "there is no shellcheck here"),
        (["--fix", "-"], "--fix can't change stdin"),
    ],
)
def test_flags_that_make_no_sense(command: Command, args: list[str], says: str) -> None:
    put("job.slurm")
    result = command("lint", "job.slurm", *args)
    assert result.status == 2
    assert says in result.err


def test_no_files_is_a_mistake(command: Command) -> None:
    assert command("lint").status == 2


def test_settings_of_the_project(command: Command) -> None:
    put("job.slurm")
    put("sbatchgen.yaml", "lint:\n  disable: [sb127]\n  severity: {SB1: info, SB111: warning}\n")
    report = json.loads(command("lint", "--format", "json", "job.slurm").out)
    assert [(row["rule"], row["severity"]) for row in report] == [("SB111", "warning")]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("lint:\n  disable: [SB999]\n", "sbatchgen.yaml:2"),
        ("lint:\n  severity:\n    SB999: info\n", "sbatchgen.yaml:3"),
    ],
)
def test_unknown_rules_in_the_project(command: Command, text: str, at: str) -> None:
    put("job.slurm")
    put("sbatchgen.yaml", text)
    result = command("lint", "job.slurm")
    assert result.status == 3
    assert "no rule 'SB999'" in result.err
    assert f"{at}\n" in result.err


def test_unknown_rules_in_a_profile(command: Command) -> None:
    put(
        "site.yaml",
        "name: site\nurl: https://example.edu\nchecked: 2026-01-01\npolicies:\n  SB204: 'off'\n  SB9999: error\n",
    )
    put("job.slurm")
    for args in (("profile", "check", "./site.yaml"), ("lint", "--profile", "./site.yaml", "job.slurm")):
        result = command(*args)
        assert result.status == 3
        assert "no rule 'SB9999'" in result.err
        assert "site.yaml:6" in result.err


@pytest.mark.parametrize(
    ("script", "left"),
    [
        ("#SBATCH --time=24 # sbatchgen: disable=SB127\n#SBATCH -p=gpu\n", {"SB111"}),
        ("# sbatchgen: disable=SB127\n#SBATCH --time=24\n#SBATCH -p=gpu\n", {"SB111"}),
        ("# sbatchgen: disable=SB127\n# shellcheck disable=SC2086\n#SBATCH --time=24\n", set()),
        ("# sbatchgen: disable=SB127\n\n#SBATCH --time=24\n", {"SB127"}),
        ("#SBATCH --time=24 -p=gpu # sbatchgen: disable=SB127, SB111\n", set()),
        ("#SBATCH --time=24\n#SBATCH -p=gpu\ntrue\n#  sbatchgen:disable-file=SB1\n", set()),
        ("#SBATCH --time=24 # sbatchgen: disable=SB9999\n", {"SB127", "SB001"}),
        ("#SBATCH --time=24 # sbatchgen: noqa=SB127\n", {"SB127", "SB001"}),
        ("#SBATCH --time=24 # sbatchgen: disable=\n", {"SB127", "SB001"}),
        ("#SBATCH --time=24 # sbatchgen: disable=SB127,SB001,SB9999\n", set()),
        ("#SBATCH --time=24\n# a word on sbatchgen: see the README\n", {"SB127"}),
        ("#SBATCH --time=1-0 # sbatchgen: disable=SB127\n", set()),  # no cluster is known: not certain
    ],
)
def test_comments_turn_rules_off(command: Command, script: str, left: set[str]) -> None:
    put("job.slurm", f"#!/bin/bash\n#SBATCH --nodes=1\n{script}true\n")
    assert ids(command, "job.slurm", "--select", "SB0,SB127,SB111") == left


def test_a_comment_covers_the_lines_that_a_command_goes_on_in(command: Command) -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=1:00:00\n# sbatchgen: disable=SB414\necho \\\n$SLURM_JOBID\necho $SLURM_JOBID\n"
    put("job.slurm", text)
    assert [line for _, line, _, rule in found(command, "job.slurm") if rule == "SB414"] == [7]


# --- Rules that were removed ---


def test_a_removed_rule_may_still_be_named(command: Command) -> None:
    """In comments, flags, settings and profiles: a note says that it was removed, and all else is as before."""
    put("job.slurm", GOOD + "true # sbatchgen: disable=SB123\n")
    put("sbatchgen.yaml", "lint:\n  disable: [SB109]\n  severity: {SB116: info}\n")
    facts = "name: site\nurl: https://example.edu\nchecked: 2026-01-01\n"
    put(
        "site.yaml", f"{facts}partitions: {{cpu: {{}}}}\ndefault_partition: cpu\npolicies: {{SB510: 'off'}}\n"
    )
    result = command("lint", "job.slurm", "--disable", "SB120", "--profile", "./site.yaml")
    assert result.status == 0
    assert "SB001: rule SB123 was removed" in result.out
    for rule in ("SB109", "SB116", "SB120", "SB510"):
        assert f"rule {rule} was removed\n" in result.err
    assert "rule SB510 was removed" in command("profile", "check", "./site.yaml").err
    assert "rule SB123 was removed" in command("lint", "--explain", "SB123").err
    assert command("lint", "job.slurm", "--disable", "SB91").status == 0  # the start of a removed id alone


def test_the_id_of_a_removed_rule_is_not_given_again() -> None:
    assert not RETIRED & rules().keys()


# --- Rules ---


def test_explain(command: Command) -> None:
    result = command("lint", "--explain", "sb104", "--explain", "SB101,SB102")
    assert result.status == 0
    assert re.findall(r"^## (SB\d+)", result.out, re.MULTILINE) == ["SB104", "SB101", "SB102"]
    screen = on_terminal("lint", "--explain", "SB104", NO_COLOR="")
    assert "a directive after the first command is ignored" in screen
    assert "```" not in screen


def test_all_rules_are_listed(command: Command) -> None:
    lines = command("lint", "--rules").out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(rules())


# --- shellcheck ---


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shellcheck that comes with the development requirements."""
    program = Path(sys.executable).with_name("shellcheck")
    assert program.exists()
    monkeypatch.setattr("sbatchgen.base.machine.search_path.find", lambda *_: str(program))


def test_shellcheck_is_asked_where_it_is(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    put("job.slurm", GOOD + "\tcd é$1\ncd $1 # sbatchgen: disable=SC2086,SC2164\n")
    put("job.md", "> ```\n> #SBATCH -N 1\n> echo $1\n> ```\n")
    put("job.py", "#!/usr/bin/env python3\n#SBATCH -N 1\n#SBATCH -t 1:00:00\nprint(1)\n")
    assert [row for row in found(command, "job.slurm", "job.md", "job.py") if row[3].startswith("SC")] == [
        ("job.slurm", 5, 2, "SC2164"),
        ("job.slurm", 5, 6, "SC2086"),
        ("job.md", 3, 8, "SC2086"),
    ]
    assert ids(command, "--no-shellcheck", "job.slurm") == set()
    assert ids(command, "job.slurm", "--disable", "SC2") == set()


def test_no_quotes_are_wanted_around_a_whole_command(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch)
    put("job.slurm", GOOD + "CMD='python -u train.py'\nsrun $CMD $1\n")
    assert [row[2:] for row in found(command, "job.slurm") if row[3] == "SC2086"] == [(11, "SC2086")]


@pytest.mark.parametrize(
    "place", ["sub/.shellcheckrc", "shellcheckrc", "home/.shellcheckrc", "config/shellcheckrc"]
)
def test_shellcheck_keeps_the_users_settings_but_opens_no_other_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A file that a directive names may be without end."""
    for name in ("sub", "home", "config"):
        (folder / name).mkdir()
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.chdir(folder / "sub")
    (folder / place).write_text(f"disable=SC2164 external-sources=true\nsource-path={folder}\n")
    put("job.slurm", GOOD + "# shellcheck source=/dev/zero\n. x\ncd $1\n")
    program = str(Path(sys.executable).with_name("shellcheck"))
    assert {each.rule for each in shellcheck.findings(read_sources("job.slurm")[0], program)} == {"SC2086"}


def test_shellcheck_alone_fails_nothing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    put("job.slurm", GOOD + "if true\n")
    report = json.loads(command("lint", "--format", "json", "job.slurm").out)
    assert {row["severity"] for row in report if row["rule"].startswith("SC")} <= {
        "warning",
        "info",
    }


def test_shellcheck_is_not_asked_of_many(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    for number in range(shellcheck.FILES_BY_DEFAULT + 1):
        put(f"jobs/{number}.slurm", GOOD + "echo $1\n")
    assert found(command, "jobs") == []
    assert len(found(command, "jobs", "--shellcheck")) == shellcheck.FILES_BY_DEFAULT + 1


def test_shellcheck_says_what_it_does_not_check(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    put("job.slurm", GOOD)
    monkeypatch.setattr(shellcheck, "MAX_BYTES", 10)
    (finding,) = shellcheck.findings(read_sources("job.slurm")[0], "/bin/true")
    assert finding.problem.what.startswith("shellcheck did not check this script: it has more than")
    monkeypatch.setattr(shellcheck, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(shellcheck, "TIMEOUT_S", 0.01)
    program = put("shellcheck", "#!/bin/sh\nsleep 60\n")
    program.chmod(0o755)
    (finding,) = shellcheck.findings(read_sources("job.slurm")[0], str(program.resolve()))
    assert finding.problem.what.startswith("shellcheck did not check this script: it takes more than")


def test_a_shellcheck_that_answers_nonsense_is_left_out(folder: Path) -> None:
    for answer in ("", "nonsense", "[]", '{"comments": [{}]}'):
        program = put("shellcheck", f"#!/bin/sh\nprintf '%s' '{answer}'\n")
        program.chmod(0o755)
        put("job.slurm", GOOD)
        assert shellcheck.findings(read_sources("job.slurm")[0], str(program.resolve())) == []
    assert shellcheck.findings(read_sources("job.slurm")[0], "/no/such/program") == []


def test_a_folder_has_submitters_scripts_and_pages_summed_up_in_five_lines(command: Command) -> None:
    put("a.slurm", "#!/bin/bash\n#SBATCH --time=24\nhostname\n")
    put(
        "submit.sh", "#!/bin/bash\nid=$(sbatch --parsable a.slurm)\nsbatch --dependency=afterok:$id a.slurm\n"
    )
    put("loop", "#!/bin/sh\nfor i in 1 2; do sbatch --dependency=after:$i a.slurm; done\n")
    put("usage.sh", '#!/bin/bash\n# sbatch a.slurm\necho "then: sbatch a.slurm"\necho --dependency=after:1\n')
    for number in range(1, 6):
        blocks = "```bash\n#!/bin/bash\n#SBATCH --time=24\nhostname\n```\n" * number
        put(f"docs/{number}.md", blocks + "```bash\n#SBATCH -p=gpu\n```\n" * (number == 2))
    result = command("lint", ".", "--no-shellcheck")
    assert {line.split(":")[0] for line in result.out.splitlines() if "SB611" in line} == {"submit.sh"}
    assert {line.split(":")[0] for line in result.out.splitlines() if "SB906" in line} == {"loop"}
    assert result.err.splitlines() == [
        "PAGE       FINDINGS",
        "docs/2.md  1 error, 2 warnings",
        "docs/5.md  5 warnings",
        "and 3 pages with fewer findings",
        "19 scripts, 2 of them submit others, in 5 pages: 1 error, 18 warnings",
    ]


def test_what_a_submitter_shows_is_not_what_a_job_does(command: Command) -> None:
    usage = "cat <<EOF\nCONFIG=/path/to/config.yaml $0\nEOF\nssh login true\nsbatch --export=ALL job.slurm\n"
    put("submit.sh", f"#!/bin/bash\n{usage}")
    assert ids(command, "submit.sh", "--no-shellcheck") == set()
    put("job.slurm", GOOD + ': "${ACCOUNT:?export ACCOUNT=<your account>}"\n')
    assert "SB812" not in ids(command, "job.slurm", "--no-shellcheck")


# --- pre-commit ---


def test_the_hook_is_one_that_runs(command: Command) -> None:
    """By pre-commit's documentation: id, name, entry and language are required."""
    (hook,) = yaml.safe_load((REPOSITORY / ".pre-commit-hooks.yaml").read_text())
    assert hook["id"] == "sbatchgen-lint"
    assert hook["language"] == "python"
    pattern = re.compile(hook["files"])
    assert [name for name in ("a.slurm", "b/c.sbatch", "d.sh", "slurm.py") if pattern.search(name)] == [
        "a.slurm",
        "b/c.sbatch",
    ]
    program, *words = hook["entry"].split()
    assert program == "sbatchgen"
    put("job.slurm")
    assert command(*words, "job.slurm").status == 3
    put("job.slurm", "#!/bin/bash\n#SBATCH --time=24\nhostname\n")
    assert "warning SB127" in command(*words, "job.slurm").out
    assert hook["verbose"], (
        "the hook passes, and pre-commit shows what a hook prints that passes only if it is verbose"
    )


def test_a_number_of_tasks_may_come_from_the_command_line(command: Command) -> None:
    text = "#!/bin/bash\n#SBATCH --time=1:00:00 --gpus-per-task=1\nsrun python train.py\n"
    put("a.slurm", text)
    refused = command("lint", "a.slurm", "--no-shellcheck")
    assert refused.status == 3
    assert "error SB135" in refused.out
    put("a.slurm", f"{text}# submit: sbatch -n 4 a.slurm\n")
    done = command("lint", "a.slurm", "--no-shellcheck")
    assert done.status == 0
    assert "warning SB135" in done.out


def test_tasks_of_whole_nodes_have_more_than_one_cpu(command: Command) -> None:
    head = "#!/bin/bash\n#SBATCH --time=1:00:00 --nodes=2 --ntasks-per-node=4 --partition=gpu\n"
    put("a.slurm", f"{head}export OMP_NUM_THREADS=8\nsrun python train.py\n")
    assert "SB407" in ids(command, "a.slurm")
    keys = "name: x\nurl: https://example.org\nchecked: 2026-01-01\npartitions: {gpu: {exclusive: true}}\n"
    put("x.yaml", keys)
    assert "SB407" not in ids(command, "a.slurm", "--profile", "./x.yaml")


def test_findings_that_say_the_same_are_shown_once(command: Command) -> None:
    put("job.slurm", GOOD + "ssh a true\nssh b true\necho\nssh c true\n")
    out = command("lint", "--no-shellcheck", "job.slurm").out
    assert out.count("SB318") == 1
    assert "    also in lines 6, 8\n" in out
    assert len([row for row in found(command, "job.slurm") if row[3] == "SB318"]) == 3


def test_an_annotation_of_mkdocs_is_not_part_of_a_directive(command: Command) -> None:
    put(
        "page.md",
        "```bash\n#!/bin/bash\n#SBATCH --nodes=2 # (1)!\n#SBATCH --time=1:00:00 (2)\nsrun ./x\n```\n",
    )
    assert ids(command, "--no-shellcheck", "page.md") == set()


def test_the_scripts_of_runs_are_left_out_of_a_folder(command: Command) -> None:
    for name in ("a.slurm", "runs/ddp/job.slurm", "runs/ddp/code-1/b.slurm", "other/job.slurm"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("#!/bin/bash\n#SBATCH -p=gpu\nhostname\n")
    Path("runs/ddp/submit.lock").touch()
    shown = command("lint", ".", "--no-shellcheck", "--select", "SB111").out
    assert [line.split(":")[0] for line in shown.splitlines() if "SB111" in line] == [
        "a.slurm",
        "other/job.slurm",
    ]
    assert "SB111" in command("lint", "runs/ddp", "--no-shellcheck").out


def test_scripts_of_a_folder_may_end_in_sb(command: Command) -> None:
    for name in ("jobs/a.sb", "jobs/b.run", "jobs/c.xyz"):
        put(name, "#!/bin/bash\n#SBATCH --time=1:00:00\n#SBATCH -N=2\nsrun ./a\n")
    assert {row[0] for row in found(command, "jobs")} == {"jobs/a.sb", "jobs/b.run"}


def test_no_script_with_a_nul_byte_is_taken(command: Command) -> None:
    put("job.slurm", GOOD.replace("hostname", "host\0name"))
    assert found(command, "job.slurm") == [("job.slurm", 4, 1, "SB102")]


def test_an_option_that_no_plugin_of_the_profile_has_is_an_error(command: Command) -> None:
    put(
        "mine.yaml",
        "name: x\nurl: https://example.org\nchecked: 2026-01-01\npartitions: {gpu: {}}\nplugin_options: []\n",
    )
    put("job.slurm", GOOD.replace("--nodes=1", "--nodes=1 --foo"))
    severities = {
        profile: [
            row["severity"]
            for row in json.loads(command("lint", "--format", "json", "job.slurm", *profile).out)
            if row["rule"] == "SB113"
        ]
        for profile in ((), ("--profile", "./mine.yaml"))
    }
    assert severities == {(): ["warning"], ("--profile", "./mine.yaml"): ["error"]}


def test_a_sheet_of_headers_has_one_finding_for_its_repetitions(command: Command) -> None:
    sheet = "#!/bin/bash\n" + "".join(
        f"#SBATCH --time=0{hours}:00:00 --mem={hours}G\n" for hours in (1, 2, 3)
    )
    put("sheet.slurm", sheet)
    put("job.slurm", f"{sheet}srun ./model\n")
    assert [rule for *_, rule in found(command, "sheet.slurm")].count("SB119") == 1
    assert [rule for *_, rule in found(command, "job.slurm")].count("SB119") == 4


@pytest.mark.parametrize(
    ("option", "awaited"),
    [("--node-rank=1", "a node with rank 0"), ("--node_rank 0", "the others until the time limit")],
)
def test_a_rank_that_all_nodes_share_is_named_as_it_is_written(
    command: Command, folder: Path, option: str, awaited: str
) -> None:
    resources = "#!/bin/bash\n#SBATCH --time=60 --nodes=2 --ntasks-per-node=1 --gpus-per-node=4\n"
    start = f"srun torchrun --nnodes=2 --nproc-per-node=4 {option} --master-addr=h train.py\n"
    (folder / "job.slurm").write_text(resources + start)
    shown = command("lint", "job.slurm").out
    (message,) = (line for line in shown.splitlines() if "SB355" in line)
    written = option.replace(" ", "=").replace("_", "-")
    assert f"SB355: {written} gives all 2 nodes the same rank: they wait for {awaited}" in message


HOUR = "#!/bin/bash\n#SBATCH --time=1:00:00 --nodes=1\n"


@pytest.mark.parametrize(
    ("script", "rule", "hits"),
    [
        (
            "#!/bin/bash\n#SBATCH --job-name=echo --nodes=<N>\n#SBATCH --account=<account>\nsrun hostname\n",
            "SB812",
            1,
        ),
        (HOUR + "trap 'touch stop' USR1\nsrun hostname\n", "SB619", 1),
        (HOUR + "trap -- 'touch stop' USR1\nsrun hostname\n", "SB619", 1),
        (HOUR + "trap -- '' USR1\nsrun hostname\n", "SB619", 0),
        (HOUR + "trap -- USR1\nsrun hostname\n", "SB619", 0),
        (HOUR + "trap -p USR1\nsrun hostname\n", "SB619", 0),
        (HOUR + "trap -- 'touch done' EXIT\nsrun hostname\n", "SB620", 1),
        (HOUR + "out=o\ncd $infolder\nsrun hostname > $out\n", "SB335", 1),
        (HOUR + "out=o\ncd ./$infolder\nsrun hostname > $out\n", "SB335", 1),
        (HOUR + "out=o\ncd ab$infolder\nsrun hostname > $out\n", "SB335", 0),
    ],
)
def test_a_word_counts_for_what_it_is(
    command: Command, folder: Path, script: str, rule: str, hits: int
) -> None:
    (folder / "job.slurm").write_text(script)
    shown = command("lint", "--no-shellcheck", "job.slurm").out
    assert "failed on this script" not in shown
    assert shown.count(f" {rule}: ") == hits


@pytest.mark.parametrize(
    ("options", "rule", "hits"),
    [
        ("--qos=NORMAL", "SB223", 0),
        ("--qos=high", "SB223", 1),
        ("--gpus-per-task=h100 --ntasks=1", "SB208", 0),
        ("--gpus-per-task=h100:1 --ntasks=1", "SB208", 1),
        ("--nodes=128 --time=2:00:00", "set fewer --nodes and less --time", 1),
        ("--output='my logs/x.out'", "fix: mkdir -p 'my logs' first", 1),
    ],
)
def test_a_value_is_compared_as_slurm_does(
    command: Command, folder: Path, options: str, rule: str, hits: int
) -> None:
    (folder / "site.yaml").write_text(
        "name: site\ndescription: a test\nurl: https://example.org\nchecked: 2026-11-01\nslurm: '22.05'\n"
        "partitions:\n  gpu: {gpus_per_node: 4, cpus_per_node: 32, nodes: 200, gpu_types: {a100: 4}, qos: [normal],"
        " node_minutes_max: 90}\n"
    )
    if "gpus-per-task" in options:
        (folder / "site.yaml").write_text((folder / "site.yaml").read_text().replace("22.05", "25.05"))
    (folder / "job.slurm").write_text(
        f"#!/bin/bash\n#SBATCH --partition=gpu --time=10 {options}\nsrun hostname\n"
    )
    shown = command("lint", "--no-shellcheck", "--profile", "./site.yaml", "job.slurm").out
    assert shown.count(rule) == hits, shown
