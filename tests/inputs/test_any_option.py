"""--sbatch: any option of sbatch, for a job and for a finished script."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.base.errors import CommandLineError
from sbatchgen.base.units import NEWEST
from sbatchgen.check.sbatch.option_table import HasArgument, specs
from sbatchgen.jobs.inputs.flags import layer_of
from sbatchgen.jobs.inputs.options import NOT_IN_A_SCRIPT
from tests.conftest import Command

VALUES = {
    "gres": "gpu:1",
    "open-mode": "append",
    "requeue": "expedite",
}  # of options whose values are checked at once
RENDER = ("render", "single", "--profile", "torchrun", "--runtime", "host")


def test_every_option_of_sbatch_is_a_key() -> None:
    for name, spec in specs(NEWEST).items():
        text = name if spec.argument is HasArgument.NONE else f"{name}={VALUES.get(name, 1)}"
        if name in (*NOT_IN_A_SCRIPT, "exclusive"):  # whose values are not those of options.exclusive
            with pytest.raises(CommandLineError, match=r"does not belong|sbatchgen knows"):
                layer_of((), {"sbatch": (text,)})
            continue
        (key,) = layer_of((), {"sbatch": (text,)}).values
        assert key in (f"options.{name.replace('-', '_')}", f"extra_options.{name}")


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("hold", "--hold"),
        ("--hold", "--hold"),
        ("nice=5", "--nice=5"),
        ("mem=4G", "--mem=4G"),
        ("spread-job", "--spread-job"),
        ("switches=1@00:10:00", "--switches=1@00:10:00"),
    ],
)
def test_an_option_goes_into_the_script_or_beside_it(
    command: Command, folder: Path, given: str, written: str
) -> None:
    assert f"#SBATCH {written}\n" in command(*RENDER, "--sbatch", given).out
    (folder / "job.sh").write_text("#!/bin/bash\n#SBATCH --time=5\nhostname\n")
    said = command("submit", "job.sh", "--sbatch", given, "--dry-run")
    assert f"sbatch gets {written}, which overrides" in said.err + said.out


def test_an_option_that_no_sbatch_has_is_told(command: Command) -> None:
    done = command(*RENDER, "--sbatch", "hodl")
    assert "warning: sbatch itself has no option --hodl" in done.err
    done = command("render", "single", "--profile", "perlmutter", "--sbatch", "hodl")
    assert "error: sbatch has no option --hodl on cluster 'perlmutter'" in done.err


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (("--hold",), ("--sbatch", "hold")),
        (("--thread-spec=5",), ("--sbatch", "thread-spec=VALUE")),
        (("--gpu-type", "h100"), ("--gpus-per-node", "TYPE:N")),
        (("--conda-root", "/x"), ("--set", "runtimes.conda.root=FOLDER")),
    ],
)
def test_an_option_that_is_not_there_names_what_does_the_same(
    command: Command, typed: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert f"fix: write {' '.join(words)}\n" in command(*RENDER, *typed).err
    value = words[1].replace("VALUE", "5").replace("TYPE:N", "h100:1").replace("FOLDER", "/x")
    assert "no such option" not in command(*RENDER, words[0], value).err


@pytest.mark.parametrize("where", ["flag", "file"])
def test_a_requeue_in_a_chain_is_left_out_as_its_fix_says(command: Command, folder: Path, where: str) -> None:
    (folder / "train.py").write_text("import own_library\n")
    text = "mode: single\ntrainer: train.py\n" + "requeue_on_timeout: true\n" * (where == "file")
    (folder / "job.yaml").write_text(text)
    words = ["render", "job.yaml", *RENDER[2:], "--chain", "3"]
    done = command(*words, *(["--requeue-on-timeout"] if where == "flag" else []))
    fix = done.err.partition("fix: ")[2].splitlines()[0]
    assert "in a chain" in done.err
    assert fix == ("leave the option out" if where == "flag" else "--set requeue_on_timeout=false")
    assert "in a chain" not in command(*words, *(fix.split() if where == "file" else [])).err
