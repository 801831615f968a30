"""An adopted job starts its trainer with the arguments and the environment of the old script, or is refused.

Both scripts run among stand-ins, which note each start. Variables that a script does not set have two words, as in
MEGATRON_PARAMS="--num-layers 4", or no word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from sbatchgen.base.errors import SbatchgenError
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.planning import plan_of, read_inputs
from tests.adopt.adopted import adopted
from tests.conftest import FIXTURES
from tests.plan.plans import needs_sandbox

pytestmark = needs_sandbox

HOME = {"HOME": "/home/me", "USER": "me"}
# What each job has, and what a value of two words would break in both scripts.
_OF_JOBS = re.compile(
    r"SLURM|HOME$|USER$|PATH$|PWD|HOSTNAME|CUDA|TMPDIR|RANDOM|SECONDS|LD_|PYTHON|BASH|SHELL|UID"
)
# Variables that the new script sets for itself.
_OF_NEW = re.compile(
    r"SLURM\w*|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS|MASTER_\w+|\w*RANK|WORLD_SIZE|PATH|PYTHON\w*|_|PET_\w+|CODE_DIR|RUN_DIR"
)
# What starts the modules that are trainers of jobs.
_COMMANDS = {"accelerate.commands.launch": ("launch",), "deepspeed.launcher.runner": ("deepspeed",)}
HEAD = "#!/bin/bash\n#SBATCH --time=5\n"
# Bodies of scripts, with whether a job can be made of each.
IDIOMS = {
    "python3 train.py $EXTRA_ARGS": True,
    'python3 train.py "$EXTRA_ARGS"': True,
    "python3 train.py --lr 1 $EXTRA_ARGS --end": True,
    "python3 train.py --name=$NAME/x": True,
    "python3 train.py ${EXTRA_ARGS}": True,
    "python3 train.py ${EXTRA_ARGS:-}": True,
    "python3 train.py ${DEBUG:+--debug}": True,
    "python3 train.py ${DEBUG:+--level $DEBUG}": True,
    'ARGS="--lr 1 --name $NAME"\npython3 train.py $ARGS': False,
    'ARGS="--lr 1"\nARGS="$ARGS $EXTRA_ARGS"\npython3 train.py $ARGS': False,
    'ARGS=""\npython3 train.py $ARGS --end': True,
    "if [ -n \"$FAST\" ]; then ARGS='--fast 1'; fi\npython3 train.py $ARGS": True,
    "DATA=/data/$NAME\npython3 train.py --data $DATA": True,
    "DATA=/data/x\npython3 train.py --data $DATA": True,
    'ARGS=(--lr 1 --name "$NAME")\npython3 train.py "${ARGS[@]}"': True,
    "ARGS=(--lr 1 $EXTRA_ARGS)\npython3 train.py ${ARGS[@]}": True,
    "srun python3 train.py $EXTRA_ARGS": True,
    "torchrun --nproc_per_node=2 train.py $EXTRA_ARGS": True,
    'CMD="python3 train.py $EXTRA_ARGS"\n$CMD': False,
    'CMD="python3 train.py $EXTRA_ARGS"\nsrun sh -c "$CMD"': False,
    'CMD="python3 -u $CODE/train.py $EXTRA_ARGS"\nsrun -l sh -c "${CMD}"': False,
    'srun bash -c "python3 train.py $EXTRA_ARGS"': False,
    "srun bash -c 'python3 train.py $EXTRA_ARGS'": False,
    'eval "python3 train.py $EXTRA_ARGS"': False,
    "python3 $SCRIPT --lr 1": False,
}


@pytest.mark.proof
def test_scripts_of_others_start_as_before_or_are_refused(tmp_path: Path) -> None:
    """Public and documented scripts."""
    files = sorted((FIXTURES / "corpus").glob("*.sh"))
    counts: Counter[str] = Counter()
    wrong = []
    for file in files:
        text = file.read_bytes().decode("utf-8", "surrogateescape")
        differing = differences(text, file.name, tmp_path)
        counts["refused" if differing is None else "compared"] += 1
        wrong += [f"{file.name}: {each}" for each in differing or ()]
    print(f"{len(files)} scripts: {dict(counts)}")
    assert not wrong, "\n".join(wrong)
    assert len(files) > 200
    assert counts["compared"] > 30


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("body", "adoptable"), IDIOMS.items())
def test_a_word_that_bash_splits_stays_split(tmp_path: Path, body: str, adoptable: object) -> None:
    differing = differences(f"{HEAD}{body}\n", "old.slurm", tmp_path)
    assert not differing
    assert (differing is not None) is adoptable


def differences(text: str, file: str, folder: Path) -> list[str] | None:
    """How the starts of an adopted script differ from its own; None if no job is made of it without a loss."""
    try:
        adoption = adopted(text, file)
    except SbatchgenError:
        return None
    if not adoption.job or adoption.lost:
        return None
    old = JobScript(file=file, text=text, is_release_assumed=True)
    new = JobScript(file="job.slurm", text=adoption.rendered, is_release_assumed=True)
    used = {use.name for use in old.body.variable_uses if use.name.isidentifier()} - old.assigned_names
    names = sorted(name for name in used if not _OF_JOBS.match(name))
    env = yaml.safe_load(adoption.job).get("env", {})
    of_user = {
        name for name, value in env.items() if value is None
    }  # secrets, exported where it is submitted
    exported = {each.name for each in old.body.assignments if each.is_exported} - of_user
    differing = []
    for value in ("--num-layers 4", "") if names else ("",):  # the same runs, where no variable has a value
        paths = {name for name in names if re.search(rf"\$\{{?{name}\}}?/", text)}
        given = read_inputs([], [f"{name}={'/data/x' if name in paths else value}" for name in names], [])
        before, after = (plan_of(script, HOME, folder, given) for script in (old, new))
        pairs = [[*starts(done, adoption.job, exported)] for done in (before, after)]
        stops = (
            not after.steps and after.result.status
        )  # it says what the site has yet to put there, as an image
        if pairs[0] != pairs[1] and not stops:
            differing.append(f"{names} = {value!r}: {pairs[0]}, adopted {pairs[1]}")
    return differing


def starts(
    done: DryRun, job: str, exported: Sequence[str] | set[str]
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The arguments of each start of the trainer, and the variables that the old script exports."""
    name = re.findall(r"^trainer: '?(.*?)'?$", job, re.MULTILINE)[0].rpartition("/")[2]
    names = (name, *_COMMANDS.get(name, ()))
    for step in done.steps:
        for process in step.processes:
            places = [at for at, word in enumerate(process.argv) if word.rpartition("/")[2] in names]
            around = {**done.batch_environment, **process.env}
            kept = {key: str(around.get(key)) for key in sorted(exported) if not _OF_NEW.fullmatch(key)}
            yield from ((list(process.argv[at + 1 :]), kept) for at in places[:1])
