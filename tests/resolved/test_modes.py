"""A mode is a row: a new one works on every profile, as does one GPU where a partition has a default of several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sbatchgen.jobs.modes import LAUNCHERS, MODES, Mode
from tests.conftest import REPOSITORY, Command
from tests.scripts import PROFILES, errors, resolved, script
from training.config import parse


@pytest.mark.parametrize("profile", PROFILES)
def test_a_new_mode_works_on_every_profile(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a profile says of the mode ddp alone is a choice, as exclusive nodes; the job runs without it."""
    monkeypatch.setitem(MODES, "fsdp", replace(MODES["ddp"], name="fsdp", flag="--fsdp"))
    ddp, fsdp = resolved("ddp", profile), resolved("fsdp", profile)
    assert errors(fsdp) == []
    assert (fsdp.nodes, fsdp.launcher) == (ddp.nodes, ddp.launcher)
    assert fsdp.nproc_per_node >= ddp.nproc_per_node
    assert "--fsdp" in script(fsdp)


@pytest.mark.parametrize("name", [*MODES, *LAUNCHERS])
def test_each_mode_and_launcher_has_a_row_of_its_page(name: str) -> None:
    page = REPOSITORY / "docs/how-to/choose-gpus.md"
    assert f"\n| `{name}` |" in page.read_text(), page


@pytest.mark.parametrize("mode", MODES.values(), ids=lambda mode: mode.name)
def test_the_bundled_trainer_has_the_flag_of_each_mode(mode: Mode) -> None:
    assert parse(mode.flag.split()) != parse([]) or not mode.flag


@pytest.mark.parametrize(
    ("profile", "option", "value"),
    [("msu", "gpus_per_node", "1"), ("princeton", "gres", "gpu:1"), ("sensetime", "gpus_per_task", "1")],
)
def test_single_asks_for_one_gpu_of_a_partitions_default(profile: str, option: str, value: str) -> None:
    assert getattr(resolved("single", profile).options, option) == value


def test_a_mode_over_that_of_the_job_file_is_shown(command: Command, folder: Path) -> None:
    (folder / "job.yaml").write_text("mode: ddp\n")
    review = command("review", "job.yaml", "--profile", "troila", "--set", "mode=single").out
    assert "  mode single " in review
    assert "--set mode, over ddp of job.yaml:1" in review


def test_a_type_stays_where_fewer_gpus_are_asked_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("profile") / "typed.yaml"
    file.write_text(
        "name: typed\nurl: https://example.org\nchecked: 2026-01-01\ndefault_partition: gpu\n"
        "partitions: {gpu: {options: {gres: 'gpu:a100:4'}}}\ngpu_request: gres\n"
    )
    assert resolved("single", file).options.gres == "gpu:a100:1"
    assert resolved("ddp", file).options.gres == "gpu:a100:4"
    assert resolved("single", file, gres="gpu:a100:2").options.gres == "gpu:a100:2"  # the user's own stays
