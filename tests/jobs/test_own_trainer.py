"""The trainers that pages of docs/how-to show, run as they are there, with the real libraries, on the CPU.

Each is trained in one go, and once more with a stop half way. The stop file is made in a certain step of the
optimizer, by a hook, so that nothing depends on how long anything takes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.conftest import REPOSITORY, Command
from tests.training.forks import QUICKLY

HOW_TO = REPOSITORY / "docs/how-to"
PAGES = [
    (HOW_TO / f"{page}.md").read_text()
    for page in "own-trainer resume-own-trainer plain-pytorch lightning hugging-face accelerate".split()
]
PLAIN, LIGHTNING, TRAINER, ACCELERATE = "Plain PyTorch", "Lightning", "Hugging Face Trainer", "Accelerate"
LIBRARIES = {
    PLAIN: "torch",
    LIGHTNING: "lightning",
    TRAINER: "transformers.trainer",
    ACCELERATE: "accelerate torch.distributed.tensor",  # the second when it prepares a model
}
LONGEST = 15  # lines of an example for a library
STEPS, STOP_AT = 24, 5  # of one process; of two, each does half as many
LIMIT_S = 600  # for runs that take ten seconds on an idle machine

# Before the code of the page: each optimizer step is counted, and the stop file is made in one of them.
BEFORE = """
import os
from pathlib import Path

import torch
from tests.training import vision
from torch.optim.optimizer import register_optimizer_step_post_hook

vision.fit()  # a torchvision for GPUs beside a torch for CPUs: torchmetrics, which Lightning needs, imports it
left = Path(os.environ["LEFT"])
rank = int(os.environ.get("RANK", 0))
steps = 0


def count(*args):
    global steps
    steps += 1
    if rank == 0 and steps == int(os.environ["STOP_AT"]):
        Path(os.environ["SBATCHGEN_STOP_FILE"]).write_text("limit\\n")
    left.with_suffix(f".steps{rank}").write_text(f"{steps}")


left.with_suffix(f".steps{rank}").write_text("0")
register_optimizer_step_post_hook(count)
torch.manual_seed(0)
"""
# What the page leaves to its reader.
YOURS = {
    PLAIN: "",
    LIGHTNING: """
import lightning
from torch.utils.data import DataLoader, TensorDataset


class Resumable(DataLoader):
    read = skip = 0

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.skip = state["read"] % len(self)

    def __iter__(self):
        skip, self.skip = self.skip, 0
        for self.read, batch in enumerate(super().__iter__(), 1):
            if self.read > skip:
                yield batch


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def val_dataloader(self):
        return DataLoader(data, batch_size=8)

    def validation_step(self, batch, index):
        if not self.trainer.sanity_checking:
            left.with_suffix(".validated").touch()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)


data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model, loader = Model(), Resumable(data, batch_size=8)
""",
    TRAINER: """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": (self.net(x) - labels).square().mean()}


model = Model()
data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(64)]
""",
    ACCELERATE: """
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset


def train(batch):
    accelerator.backward((model(batch[0]) - batch[1]).square().mean())
    optimizer.step()
    optimizer.zero_grad()


epochs = 3
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, shuffle=True)
accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
""",
}
AFTER = """
if rank == 0:
    weights = {name.removeprefix("module."): weight for name, weight in model.state_dict().items()}
    torch.save(weights, left.with_suffix(".pt"))
"""
# Many runs by one process, which forks their ranks, as srun would start them: imports take longest, then the
# end of an interpreter.
FORK = """
import importlib
import json
import os
import runpy
import socket
import sys

import torch._dynamo  # what an optimizer imports with its first step
from tests.training import vision

vision.fit()
for module in sys.argv[1].split():
    importlib.import_module(module)
for ranks in json.loads(sys.argv[2]):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        os.environ["MASTER_PORT"] = str(probe.getsockname()[1])
    children = []
    for environment in ranks:
        child = os.fork()
        if not child:
            os.environ.update(environment)
            status = 0
            try:
                runpy.run_path("train.py", run_name="__main__")
            except SystemExit as end:
                status = end.code or 0
            os._exit(status)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        sys.exit(f"{ranks} ended with {statuses}")
"""


@dataclass(frozen=True)
class Left:
    """What a run left."""

    path: Path
    again_file: Path

    @property
    def steps(self) -> list[int]:
        """Of each rank."""
        return [int(file.read_text()) for file in sorted(self.path.parent.glob(f"{self.path.name}.steps*"))]

    @property
    def again(self) -> bool:
        return self.again_file.exists()

    @property
    def validated(self) -> bool:
        return self.path.with_suffix(".validated").exists()

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        weights: dict[str, torch.Tensor] = torch.load(self.path.with_suffix(".pt"), weights_only=True)
        return weights


@dataclass(frozen=True)
class Runs:
    """A trainer's runs: `whole`, or `first` up to the stop and `second` from there; `asked` has no again file."""

    folder: Path
    name: str

    def left(self, run: str, processes: int) -> Left:
        said = self.said(run, processes)
        return Left(Path(said["LEFT"]), Path(said["RUN_DIR"], f"again.{run}"))

    def said(self, run: str, processes: int) -> dict[str, str]:
        """What the job script says, and what this test says to the trainer."""
        left = self.folder / f"{run}{processes}"
        run_dir = self.folder / f"{'parts' if run in {'first', 'second'} else run}{processes}"
        run_dir.mkdir(exist_ok=True)
        stop_at = STOP_AT if run in {"first", "asked"} else 0
        said = {"LEFT": f"{left}", "STOP_AT": f"{stop_at}", "PL_TRAINER_DEVICES": f"{processes}"}
        said["RUN_DIR"] = f"{run_dir}"
        if run != "whole":
            said["SBATCHGEN_STOP_FILE"] = f"{run_dir}/stop.{run}"
        if run in {"first", "second"}:
            said["SBATCHGEN_AGAIN_FILE"] = f"{run_dir}/again.{run}"
        return said

    def ranks(self, run: str, processes: int) -> list[dict[str, str]]:
        """What each rank finds in its environment."""
        said = self.said(run, processes)
        if processes == 1 and self.name != PLAIN:
            return [said]
        said |= {"WORLD_SIZE": f"{processes}", "LOCAL_WORLD_SIZE": f"{processes}", "MASTER_ADDR": "localhost"}
        return [said | {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} for rank in range(processes)]

    def fork(self, *runs: tuple[str, int]) -> None:
        """Do these runs, one after the other."""
        ranks = [self.ranks(run, processes) for run, processes in runs]
        self._python("-c", FORK, LIBRARIES[self.name], json.dumps(ranks))

    def torchrun(self, run: str) -> None:
        """Do this run with two processes of torchrun."""
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        self._python(*launcher, "train.py", **self.said(run, 2))

    def _python(self, *arguments: str, **said: str) -> None:
        others = ("PYTHON", "SLURM_", "SBATCHGEN_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        quiet = dict.fromkeys(("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "TRANSFORMERS_OFFLINE"), "1")
        cpu = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true", "PL_TRAINER_ACCELERATOR": "cpu"}
        own = {"PYTHONPATH": f"{REPOSITORY}:{QUICKLY}", "HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=kept | quiet | cpu | own | said,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=LIMIT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        assert process.returncode == 0, out


def code(name: str) -> str:
    """The example in this section."""
    (page,) = (page for page in PAGES if page.startswith(f"# {name}\n"))
    return page.partition("```python\n")[2].partition("```")[0]


@pytest.fixture(scope="module", params=LIBRARIES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    name: str = request.param
    done = Runs(tmp_path_factory.mktemp("own"), name)
    (done.folder / "train.py").write_text(BEFORE + YOURS[name] + code(name) + AFTER)
    forked = [
        ("whole", 1),
        ("first", 1),
        ("second", 1),
        ("asked", 1),
        ("whole", 2),
        ("first", 2),
        ("second", 2),
    ]
    if name in {PLAIN, LIGHTNING}:  # which looks for torchrun's own variables, as the others do not
        forked.remove(("first", 2))
        done.torchrun("first")
    done.fork(*forked)
    return done


@pytest.mark.parametrize("processes", [1, 2])
def test_without_the_variables_it_trains_to_the_end(runs: Runs, processes: int) -> None:
    whole = runs.left("whole", processes)
    assert whole.steps == [STEPS // processes] * processes
    assert whole.validated == (runs.name == LIGHTNING)


@pytest.mark.parametrize("processes", [1, 2])
def test_asked_to_stop_all_ranks_save_at_one_step_and_ask_to_be_started_again(
    runs: Runs, processes: int
) -> None:
    first = runs.left("first", processes)
    assert first.steps == [STOP_AT] * processes
    assert first.again


@pytest.mark.parametrize("processes", [1, 2])
def test_started_again_it_goes_on_to_the_same_weights(runs: Runs, processes: int) -> None:
    second, whole = runs.left("second", processes), runs.left("whole", processes)
    assert second.steps == [STEPS // processes - STOP_AT] * processes
    assert not second.again
    assert second.weights.keys() == whole.weights.keys()
    assert all(torch.equal(second.weights[name], whole.weights[name]) for name in whole.weights)


def test_it_stops_where_nothing_starts_it_again(runs: Runs) -> None:
    """Without an again file; and a stop takes no time for a validation."""
    asked = runs.left("asked", 1)
    assert asked.steps == [STOP_AT]
    assert not asked.validated


@pytest.mark.parametrize("name", [name for name in LIBRARIES if name != PLAIN])
def test_an_example_for_a_library_is_short(name: str) -> None:
    lines = [line for line in code(name).splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) <= LONGEST
    assert max(map(len, lines)) <= 110


@pytest.mark.usefixtures("mycluster")
def test_what_the_page_says_can_be_rendered(command: Command) -> None:
    lines = [line.strip() for page in PAGES for line in page.splitlines() if "--trainer" in line]
    lines = [line for line in lines if line.startswith("sbatchgen ")]
    assert len(lines) > 9
    for line in lines:
        words = [re.sub(r"^~(?=/)", str(Path.home()), word) for word in shlex.split(line)]  # as a shell does
        result = command("render", *words[2:])
        assert (result.status, result.err) == (0, ""), line
        assert "train.py" in result.out
