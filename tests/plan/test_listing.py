"""The text of a plan is true of each step and of each process that shares a row."""

from __future__ import annotations

from pathlib import Path

from sbatchgen.lab.plan import listing
from tests.plan.plans import needs_sandbox, planned

pytestmark = needs_sandbox


def shown(folder: Path, *lines: str) -> list[str]:
    """The lines of a plan's text, without blanks around them."""
    text = listing.as_text(planned("".join(f"{line}\n" for line in lines), folder)[0])
    return [line.strip() for line in text.splitlines()]


def test_steps_of_different_sizes_share_no_text(tmp_path: Path) -> None:
    lines = shown(tmp_path, "#SBATCH --ntasks=6", "for n in 1 3 6; do srun -n $n python fit.py; done")
    heads = [line for line in lines if line.startswith("line ")]
    assert heads == [f"line 3: srun, {count}" for count in ("1 process", "3 processes", "6 processes")]
    assert "ranks 0-2 on node1: 2 CPUs" in lines


def test_a_step_that_the_script_waits_for_is_not_among_those_in_the_background(tmp_path: Path) -> None:
    lines = shown(
        tmp_path,
        "#SBATCH --ntasks=4",
        "for run in a b c d; do",
        "  if [ $run = d ]; then amp=''; else amp='&'; fi",
        '  eval "srun -n1 python fit.py $run $amp"',
        "done",
        "wait",
    )
    assert [line for line in lines if line.startswith("line ")] == [
        "line 5: srun, 3 steps of 1 process; the script continues meanwhile",
        "line 5: srun, 1 process",
    ]


def test_the_places_of_similar_steps_are_listed_between_the_words_that_they_share(tmp_path: Path) -> None:
    head = "#SBATCH --nodes=3 --ntasks-per-node=2 --gpus-per-node=2"
    lines = shown(tmp_path, head, "for n in 1 2 3; do srun -N1 -n1 -w node$n python fit.py & done", "wait")
    assert "rank 0 on {node1, node2, node3}: 2 CPUs, GPUs 0-1" in lines


def test_processes_whose_options_differ_are_shown_alone(tmp_path: Path) -> None:
    command = (
        'if [ "$SLURM_PROCID" = 0 ]; then exec python fit.py --head=0; else exec python fit.py --tail=1; fi'
    )
    lines = shown(tmp_path, "#SBATCH --ntasks=2", f"srun bash -c '{command}'")
    assert {"python fit.py --head=0", "python fit.py --tail=1"} <= {*lines}
    assert not [line for line in lines if "--head={" in line]


def test_a_variable_of_one_process_and_one_that_begins_as_another_are_listed(tmp_path: Path) -> None:
    command = '[ "$SLURM_PROCID" = 0 ] || export ONLY_HERE=1; exec python fit.py'
    lines = shown(tmp_path, "#SBATCH --ntasks=2", "export PATH_TO_DATA=/data", f"srun bash -c '{command}'")
    variables = " ".join(line for line in lines if line.startswith("env:"))
    assert "ONLY_HERE={...}" in variables
    assert "PATH_TO_DATA=/data" in variables
    assert " PATH=" not in variables


def test_an_argument_in_braces_keeps_its_quotes(tmp_path: Path) -> None:
    lines = shown(tmp_path, "srun -n1 python fit.py '--cfg={\"a\": 1}'")
    assert "python fit.py '--cfg={\"a\": 1}'" in lines


def test_words_that_differ_before_their_equals_sign_share_no_row(tmp_path: Path) -> None:
    body = (
        "o=--chief; [ $SLURM_PROCID = 0 ] || o=--peer; exec python fit.py $o=$SLURM_PROCID --of=$SLURM_PROCID"
    )
    lines = shown(tmp_path, "#SBATCH --ntasks=3", f"srun bash -c '{body}'")
    assert [line for line in lines if line.startswith("python")] == [
        "python fit.py --chief=0 --of=0",
        "python fit.py --peer={rank} --of={rank}",
    ]


def test_a_value_with_an_equals_sign_keeps_the_name_of_its_variable(tmp_path: Path) -> None:
    body = "export OPTS=a=$SLURM_PROCID; [ $SLURM_PROCID = 0 ] || OPTS=b=1; exec python fit.py"
    assert "env: OPTS={...}" in shown(tmp_path, "#SBATCH --ntasks=2", f"srun bash -c '{body}'")


def test_a_variable_of_a_later_rank_alone_is_listed(tmp_path: Path) -> None:
    body = "[ $SLURM_PROCID = 0 ] || export PEER=yes; [ $SLURM_PROCID = 1 ] || unset HOME; exec python fit.py"
    assert "env: HOME={...} PEER={...}" in shown(tmp_path, "#SBATCH --ntasks=2", f"srun bash -c '{body}'")


def test_a_variable_that_all_processes_lack_is_unset(tmp_path: Path) -> None:
    assert "env: HOME unset" in shown(tmp_path, "#SBATCH --ntasks=2", "unset HOME", "srun python fit.py")


def test_only_the_variables_that_each_job_has_are_hidden(tmp_path: Path) -> None:
    names = ("PATH", "PATHS", "ROCR_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES_OF_A", "SLURM_MINE")
    lines = shown(tmp_path, *(f"export {name}=/usr/bin:/bin" for name in names), "srun python fit.py")
    assert "env: PATHS=/usr/bin:/bin ROCR_VISIBLE_DEVICES_OF_A=/usr/bin:/bin" in lines


def test_a_word_with_braces_is_quoted_unless_it_is_a_mark(tmp_path: Path) -> None:
    lines = shown(
        tmp_path,
        "#SBATCH --ntasks=2",
        """srun bash -c 'exec python fit.py --set={"lr": 1} "{x y}" "{rank}" "a b=$SLURM_PROCID"'""".replace(
            '--set={"lr": 1}', '"--set={\\"lr\\": 1}"'
        ),
    )
    assert """python fit.py '--set={"lr": 1}' '{x y}' '{rank}' 'a b='{rank}""" in lines


def test_quotes_of_similar_steps_stay_in_pairs(tmp_path: Path) -> None:
    lines = shown(tmp_path, """for n in 1 2 3; do srun python fit.py --set="{a: $n}" --n=$n; done""")
    assert "python fit.py {'--set={a: 1}', '--set={a: 2}', '--set={a: 3}'} --n={1, 2, 3}" in lines
