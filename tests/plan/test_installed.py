"""Launchers of real environments are known as those that are not there: by a script, a module, a copy, a wrapper."""

from __future__ import annotations

import shutil
import sys
import venv
from pathlib import Path

import pytest

from sbatchgen.lab.plan.listing import as_text
from tests.plan.plans import needs_sandbox, planned, said

pytestmark = needs_sandbox

SCRIPT = (
    "#!{python}\nimport sys\nfrom {module} import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
)
LONG = "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
MODULES = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
    "accelerate-launch": "accelerate.commands.launch",
    "deepspeed": "deepspeed.launcher.runner",
    "ft_launcher": "nvidia_resiliency_ext.fault_tolerance.launcher",
}
HEAD = "#!/bin/bash\n#SBATCH --nodes=1 --time=00:10:00 --gpus-per-node=4\n"
WAITS = "waits for 2 nodes"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the console scripts that pip writes, and some of other shapes."""
    folder = tmp_path_factory.mktemp("envs") / "own"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    for name, module in MODULES.items():
        write(folder / "bin" / name, SCRIPT.format(python=python, module=module))
    write(folder / "copy", SCRIPT.format(python=python, module=MODULES["torchrun"]))
    write(folder / "copy-long", LONG.format(python=python, module=MODULES["torchrun"]))
    (folder / "real").mkdir()
    shutil.copy(Path(sys.executable).resolve(), folder / "real" / "python3.11")  # as conda's, no link
    (folder / "conda" / "bin").mkdir(parents=True)
    (folder / "real" / "python3.11").rename(folder / "conda" / "bin" / "python3.11")
    write(
        folder / "conda" / "bin" / "torchrun",
        SCRIPT.format(python=folder / "conda/bin/python3.11", module=MODULES["torchrun"]),
    )
    return folder


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


WAYS = (
    "torchrun --nnodes=2 --nproc_per_node=4 train.py",
    "source {env}/bin/activate\ntorchrun --nnodes=2 --nproc_per_node=4 train.py",
    "export PATH={env}/bin:$PATH\nft_launcher --nnodes=2 --nproc_per_node=4 train.py",
    "E={env}\n$E/bin/python -m torch.distributed.run --nnodes=2 --nproc_per_node=4 train.py",
    "{env}/bin/python -u {env}/bin/torchrun --nnodes=2 --nproc_per_node=4 train.py",
    "{env}/copy --nnodes=2 --nproc_per_node=4 train.py",
    "{env}/copy-long --nnodes=2 --nproc_per_node=4 train.py",
    "python {env}/lib/python3.11/site-packages/torch/distributed/run.py --nnodes=2 --nproc_per_node=4 train.py",
    "cd {env}\n. bin/activate\naccelerate launch --num_machines 2 --machine_rank 1 --num_processes 8 train.py",
    "source {env}/bin/activate\naccelerate-launch --num_machines 2 --machine_rank 1 --num_processes 8 train.py",
    "source {env}/bin/activate\nsrun torchrun --nnodes=2 --nproc_per_node=4 train.py",
    "{env}/conda/bin/torchrun --nnodes=2 --nproc_per_node=4 train.py",
    "export PATH={env}/conda/bin:$PATH\nsrun torchrun --nnodes=2 --nproc_per_node=4 train.py",
    "conda run -n own torchrun --nnodes=2 --nproc_per_node=4 train.py",
    "source {env}/bin/activate\nuv run torchrun --nnodes=2 --nproc_per_node=4 train.py",
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", WAYS)
def test_a_launcher_is_known_by_what_it_runs(environment: Path, way: str) -> None:
    done, findings = planned(HEAD + way.format(env=environment) + "\n", environment.parent)
    assert any(WAITS in line for line in said(findings)), as_text(done)
    assert (len(done.steps), done.result.limit) == (1, "")


def test_other_programs_of_an_environment_are_started_as_without(environment: Path) -> None:
    text = "pip install x\ndeepspeed --num_gpus 4 a.py\npython b.py\n"
    plain, _ = planned(HEAD + text, environment.parent)
    done, _ = planned(f"{HEAD}source {environment}/bin/activate\n{text}", environment.parent)
    names = [[Path(step.command[0]).name, *step.command[1:]] for step in done.steps]
    assert names == [list(step.command) for step in plain.steps]
