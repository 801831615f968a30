"""`sbatchgen lsp` with a real client over stdin and stdout, as an editor uses it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lsprotocol import types

from sbatchgen.base.machine.packages import to_install
from sbatchgen.jobs.modes import MODES
from tests.conftest import Command
from tests.editor.client import Editor, editor

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --time=24
#SBATCH --partition=normal
#SBATCH --account=a1
srun python -u train.py
"""
JOB = "profile: clariden\nmode: ddp\nruntime: edf\noptions: {nodes: 2, account: a1, time: 02:00:00}\n"
PROFILE = """\
name: mine
url: https://example.com
checked: 2026-11-24
partitions:
  gpu:
    time_max: 1-00:00:00
    gpus_per_node: 4
    cpus_per_node: 64
    features: [a100, nvme]
    qos: [normal, long]
  cpu: {time_max: 04:00:00}
qos:
  long: {time_max: 7-00:00:00}
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    with editor(tmp_path_factory.mktemp("bare")) as made:
        yield made


@pytest.fixture(scope="module")
def clariden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    with editor(tmp_path_factory.mktemp("clariden"), "--profile", "clariden") as made:
        yield made


@pytest.fixture
def mine(bare: Editor, tmp_path: Path) -> Editor:
    """An editor in a folder whose sbatchgen.yaml names a profile."""
    (tmp_path / "mine.yaml").write_text(PROFILE)
    (tmp_path / "sbatchgen.yaml").write_text("profile: ./mine.yaml\n")
    return bare


def labels(items: list[types.CompletionItem]) -> list[str]:
    return [item.label for item in items]


# --- Scripts ---


def test_a_finding_is_shown_where_it_is_and_goes_once_it_is_mended(bare: Editor, tmp_path: Path) -> None:
    (finding,) = bare.open(tmp_path / "job.slurm", SCRIPT)
    assert (finding.code, finding.range) == (
        "SB127",
        types.Range(types.Position(2, 15), types.Position(2, 17)),
    )
    assert finding.message == "--time=24 is 24 minutes\nfix: write 24:00:00 for hours, or 00:24:00"
    assert bare.type(SCRIPT.replace("=24", "=02:00:00")) == []


def test_a_quick_fix_makes_the_edits_of_the_rule(bare: Editor, tmp_path: Path) -> None:
    bare.open(tmp_path / "job.slurm", SCRIPT.replace("--nodes=1", "-N=1"))
    fix, *_ = bare.actions("-N=")
    assert (fix.title, fix.is_preferred) == ("SB111: write --nodes=1", True)
    assert bare.made(fix) == SCRIPT
    every = bare.actions("-N=")[-1]
    assert every.kind == types.CodeActionKind.SourceFixAll
    assert bare.made(every) == SCRIPT


def test_a_rule_is_turned_off_in_a_line(bare: Editor, tmp_path: Path) -> None:
    bare.open(tmp_path / "job.slurm", SCRIPT)
    (off,) = bare.actions("--time=2")
    assert off.title == "Turn SB127 off in this line"
    assert bare.type(bare.made(off)) == []


def test_columns_are_those_of_the_editor_after_characters_of_two_units(bare: Editor, tmp_path: Path) -> None:
    bare.open(tmp_path / "job.slurm", SCRIPT.replace("--time", "--comment=\U0001f600 --time"))
    (finding,) = bare.type(SCRIPT.replace("--time", "--comment=\U0001f600 --time"))
    assert finding.range.start.character == 15 + len("--comment= ") + 2


def test_hover_tells_the_meaning_the_limits_and_where_they_are_from(clariden: Editor, tmp_path: Path) -> None:
    clariden.open(tmp_path / "job.slurm", SCRIPT)
    said = clariden.hover("--ti")
    assert said.startswith("**--time** (`-t`): Time limit, HH:MM:SS or D-HH:MM:SS.\n\nclariden:")
    assert "- `normal.time_max: 0-12:00:00`: Longest time limit (MaxTime). (profiles/clariden.yaml:" in said
    assert "[documented](https://github.com/eth-cscs/cscs-docs/blob/" in said
    assert "debug" not in said


def test_hover_explains_the_rule_of_a_finding(bare: Editor, tmp_path: Path) -> None:
    bare.open(tmp_path / "job.slurm", SCRIPT)
    assert "**SB127 " in bare.hover("--time=2")


def test_hover_is_silent_where_there_is_nothing_to_say(bare: Editor, tmp_path: Path) -> None:
    bare.open(tmp_path / "job.slurm", SCRIPT)
    assert bare.hover("srun") == ""


def test_limits_of_a_quality_of_service_and_of_the_named_partition(mine: Editor, tmp_path: Path) -> None:
    mine.open(tmp_path / "job.slurm", "#!/bin/bash\n#SBATCH -p gpu\n#SBATCH --qos=long\nhostname\n")
    assert "- `qos.long.time_max: 7-00:00:00`: Longest time limit. (mine.yaml:13)" in mine.hover("--qos=l")
    assert "`gpu.gpus_per_node: 4`" in mine.hover("-p g")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("#SBATCH --part", ["--partition="]),
        ("#SBATCH -p ", ["gpu", "cpu"]),
        ("#SBATCH --partition=c", ["cpu"]),
        ("#SBATCH --partition=gpu,", ["gpu", "cpu"]),
        ("#SBATCH --partition cp", ["cpu"]),
        ("#SBATCH --qos=", ["long", "normal"]),
        ("#SBATCH -C a", ["a100"]),
        ("#SBATCH --constraint=a100&", ["a100", "nvme"]),
        ("#SBATCH --gres=", ["gpu:4"]),
        ("#SBATCH --mail-type=END,F", ["FAIL"]),
        ("#SBATCH --exclu", ["--exclude=", "--exclusive"]),
        ("#SBATCH --wrap", []),
        ("#SBATCH --exclusive --nodel", ["--nodelist="]),
        ("# sbatchgen: disable=SB127,SB10", ["SB101", "SB102"]),
        ("srun --part", []),
    ],
)
def test_what_may_be_written_is_offered(mine: Editor, tmp_path: Path, line: str, offered: list[str]) -> None:
    mine.open(tmp_path / "job.slurm", f"#!/bin/bash\n{line}\nhostname\n")
    assert labels(mine.complete(line))[: len(offered) or 1] == offered


def test_a_choice_replaces_the_word_before_the_cursor(mine: Editor, tmp_path: Path) -> None:
    mine.open(tmp_path / "job.slurm", "#!/bin/bash\n#SBATCH --qos=normal,lo\nhostname\n")
    (item,) = mine.complete("normal,lo")
    assert item.text_edit == types.TextEdit(types.Range(types.Position(1, 21), types.Position(1, 23)), "long")
    assert item.detail == "time_max: 7-00:00:00"


def test_scripts_of_a_document_are_checked(bare: Editor, tmp_path: Path) -> None:
    text = f"# A page\n\n```bash\n{SCRIPT}```\n"
    (finding,) = bare.open(tmp_path / "page.md", text)
    assert (finding.code, finding.range.start) == ("SB127", types.Position(5, 15))


@pytest.mark.parametrize("name", ["compose.yaml", "train.py", "notes.txt"])
def test_other_files_are_left_alone(bare: Editor, tmp_path: Path, name: str) -> None:
    assert bare.open(tmp_path / name, "services: {web: {image: x}}\n") == []
    assert bare.hover("serv") == ""
    assert bare.complete("serv") == []


# --- Jobs and profiles ---


def test_a_job_has_the_findings_of_its_review(bare: Editor, tmp_path: Path) -> None:
    assert bare.open(tmp_path / "job.yaml", JOB) == []
    findings = bare.type(JOB.replace("02:00:00", "2-00:00:00"))
    assert ("SB204", types.Position(3, 0)) in [(each.code, each.range.start) for each in findings]


def test_an_unknown_key_is_shown_in_its_line(bare: Editor, tmp_path: Path) -> None:
    (finding,) = bare.open(tmp_path / "job.yaml", JOB + "nodes: 3\n")
    assert finding.message == "unknown key 'nodes'\nfix: write options: {nodes: 3}"
    assert finding.range == types.Range(types.Position(4, 0), types.Position(4, 8))


def test_a_job_tells_the_limits_and_the_layer_of_a_value(bare: Editor, tmp_path: Path) -> None:
    bare.open(tmp_path / "job.yaml", JOB)
    said = bare.hover("a1, tim")
    assert "`normal.time_max: 0-12:00:00`" in said
    assert f"Here `0-02:00:00`, by the job: {tmp_path}/job.yaml:4" in said
    assert "- `launcher srun`: " in bare.hover("mod")


@pytest.mark.parametrize(
    ("text", "at", "offered"),
    [
        ("mode: ", "mode: ", [*MODES]),
        ("mode: ddp\nlaun", "laun", ["launcher:", "launcher_args:"]),
        ("mode: ddp\noptions:\n  part", "part", ["partition:"]),
        ("mode: ddp\noptions: {nodes: 2, q", ", q", ["qos:"]),
        ("mode: ddp\noptions: {partition: ", "partition: ", ["gpu", "cpu"]),
        ("mode: ddp\noptions:\n  constraint: nv", "nv", ["nvme"]),
        ("mode: ddp\noptions:\n  exclusive: ", "exclusive: ", ["true", "false"]),
        ("mode: ddp\nlint: {severity: {SB127", "SB127", ["SB127:"]),
        ("mode: ddp\nargs: [--epochs, ", "epochs, ", []),
    ],
)
def test_keys_and_values_of_a_job_are_offered(
    mine: Editor, tmp_path: Path, text: str, at: str, offered: list[str]
) -> None:
    mine.open(tmp_path / "job.yaml", text)
    assert labels(mine.complete(at)) == offered


def test_a_profile_is_checked_as_it_is_typed_and_tried_out_when_it_is_saved(
    bare: Editor, tmp_path: Path
) -> None:
    assert bare.open(tmp_path / "mine.yaml", PROFILE) == []
    (typed,) = bare.type(PROFILE.replace("time_max: 04", "time_may: 04"))
    assert typed.message.startswith("unknown key 'time_may' in partitions.cpu")
    (tried,) = bare.open(tmp_path / "mine.yaml", PROFILE + "setup: ['if true']\n")
    assert "bash can't read it" in tried.message
    assert tried.range.start.line == PROFILE.count("\n")


def test_a_profile_tells_its_keys_and_where_they_are_documented(bare: Editor, tmp_path: Path) -> None:
    source = "sources:\n  - {at: https://example.com/gpu, keys: [partitions.gpu]}\n"
    bare.open(tmp_path / "mine.yaml", PROFILE + source)
    assert bare.hover("time_m") == (
        "**time_max**: Longest time limit (MaxTime).\n\n[documented](https://example.com/gpu)"
    )
    (tmp_path / "mine.yaml").write_text(PROFILE)
    bare.type(PROFILE + "default_partition: g")
    assert labels(bare.complete("default_partition: ")) == ["gpu", "cpu"]
    bare.type(PROFILE.replace("    qos: [normal", "    exc\n    qos: [normal"))
    assert labels(bare.complete("    exc")) == ["exclusive:"]


def test_a_broken_profile_is_told_and_scripts_are_still_checked(mine: Editor, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: [\n")
    assert [each.code for each in mine.open(tmp_path / "job.slurm", SCRIPT)] == ["SB127"]
    assert "not valid YAML" in mine.messages[-1]


# --- The command ---


def test_without_pygls_it_says_what_to_install(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sbatchgen.lab.editor.server", raising=False)
    monkeypatch.setitem(sys.modules, "lsprotocol", None)
    result = command("lsp")
    assert result.status == 2
    assert result.err == (
        f"error: lsp needs pygls, and this Python has no lsprotocol\n  fix: {to_install('pygls>=2')}\n"
    )
