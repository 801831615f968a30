"""What the text of a trainer says: only what is certain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sbatchgen.check.script.own_options import refused_options
from sbatchgen.check.script.trainer_source import MAX_BYTES, TrainerSource, read_trainer
from tests.conftest import REPOSITORY

PLAIN = """
import torch
from torch.utils.data import DataLoader
from helper import batches

model = torch.nn.Linear(8, 1)
compiled = torch.compile(model)
model.eval()  # no checkpoint is saved
with open("config.txt") as file:
    print(file.read())
"""
HELPER = "import numpy as np\n\ndef batches():\n    return np.zeros(3)\n"
FACTS = ("trains_alone", "spawns_always", "saves_nothing", "never_asks_for_restart")


def write(folder: Path, text: str, helper: str = HELPER) -> None:
    (folder / "helper.py").write_text(helper)
    (folder / "train.py").write_text(text)


def source(folder: Path, trainer: str = "train.py") -> TrainerSource:
    read = read_trainer(trainer, folder)
    assert read
    return read


def certain(folder: Path, trainer: str = "train.py") -> set[str]:
    read = source(folder, trainer)
    return {fact for fact in FACTS if getattr(read, fact)}


def test_a_plain_trainer_trains_alone_and_saves_nothing(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    assert certain(tmp_path) == {"trains_alone", "saves_nothing", "never_asks_for_restart"}
    assert source(tmp_path).needs_torch


@pytest.mark.parametrize(
    "line",
    [
        "import torch.distributed as dist",
        "from torch.nn.parallel import DistributedDataParallel",
        "import lightning",
        "import own_library",
        "from src.models import net",
        "import subprocess",
        "rank = os.environ['RANK']",
        "part = data[int(os.environ['SLURM_PROCID']) :: 4]",
        "importlib.import_module('torch.' + 'distributed')",
        "from . import parts",
        "exec(open('configurator.py').read())",
    ],
)
def test_what_may_share_the_work_is_not_said_to_train_alone(tmp_path: Path, line: str) -> None:
    (tmp_path / "src").mkdir()
    write(tmp_path, f"{PLAIN}{line}\n")
    assert "trains_alone" not in certain(tmp_path)
    write(tmp_path, PLAIN, helper=f"{HELPER}{line}\n")
    assert "trains_alone" not in certain(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch.save(model.state_dict(), 'last.pt')", False),
        ("data = torch.load('data.pt')\ntorch.save(model.state_dict(), 'last.pt')", False),
        ("from sklearn.datasets import load_digits\nload_digits()\ntorch.save(model, 'last.pt')", None),
        ("torch.save(model.state_dict(), 'last.pt')\nmodel.load_state_dict(torch.load('last.pt'))", True),
        ("model = torch.load('last.pt')\ntorch.save(model, 'last.pt')", None),
        ("parser.add_argument('--resume')\ntorch.save(model, 'last.pt')", None),
        ("torch.save(model.state_dict(), 'a.pt')\nimport own_library", None),
        ("import torch.distributed.checkpoint as dcp\ndcp.save(model.state_dict())\ndcp.load(state)", None),
        ("from safetensors.torch import save_file\nsave_file(model.state_dict(), 'a.safetensors')", False),
        ("from safetensors import safe_open\nsafe_open('a.safetensors', 'pt')", True),
        ("from safetensors.torch import load_file\nload_file('a.safetensors')", True),
        ("import lightning as L\nL.Trainer(max_epochs=3).fit(model, data)", False),
        ("import lightning as L\nL.Trainer(max_epochs=3).fit(model, data, ckpt_path='last')", True),
        ("from lightning.pytorch.cli import LightningCLI\nLightningCLI(Model)", None),
        ("from transformers import Trainer\nTrainer(m, a).train()", False),
        ("from transformers import Trainer\nTrainer(m, a).train(resume_from_checkpoint=True)", True),
        ("from transformers import AutoModel\nAutoModel.from_pretrained(x).save_pretrained(x)", None),
        ("from accelerate import Accelerator\nAccelerator().save_state('a')", False),
        ("from accelerate import Accelerator\nAccelerator().load_state('a')", True),
        ("import ultralytics\nYOLO().train()", None),
    ],
)
def test_whether_a_trainer_loads_what_it_has_saved(
    tmp_path: Path,
    text: str,
    expected: bool | None,  # noqa: FBT001
) -> None:
    write(tmp_path, f"import torch\n{text}\n")
    assert source(tmp_path).loads_checkpoint is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch.save(model, 'a/model.pt')", [("a/model.pt", "")]),
        ("OUT = 'ckpt'\nLAST = Path(OUT) / 'last.pt'\ntorch.save(model, LAST)", [("ckpt/last.pt", "")]),
        ("torch.save(model, os.path.join('ckpt', 'last.pt'))", [("ckpt/last.pt", "")]),
        (
            "p.add_argument('-o', '--out-file', default='m.pt')\ntorch.save(m, a.out_file)",
            [("m.pt", "--out-file")],
        ),
        ("torch.save(model, Path(os.environ['RUN_DIR']) / 'last.pt')", []),
        ("torch.save(model, f'model-{lr}.pt')", []),
        ("for name in ('a.pt', 'b.pt'):\n    torch.save(model, name)", []),
        ("name = 'a.pt'\nfor name in names:\n    torch.save(model, name)", []),
        ("name = 'a.pt'\ndef save(name):\n    torch.save(model, name)", []),
        ("name = 'a.pt'\nname = where()\ntorch.save(model, name)", []),
        ("json.dump(facts, 'facts.json')", []),
        ("import os\nos.chdir(where)\ntorch.save(model, 'model.pt')", []),
        ("a = b\nb = a\ntorch.save(model, a)", []),
    ],
)
def test_which_files_have_a_fixed_name(tmp_path: Path, text: str, expected: list[tuple[str, str]]) -> None:
    write(tmp_path, f"import torch\n{text}\n")
    assert [(file.name, file.option) for file in source(tmp_path).saved_files] == expected


@pytest.mark.parametrize(
    "line",
    [
        "torch.save(model.state_dict(), 'last.pt')",
        "trainer.save_model()",
        "pickle.dump(model, file)",
        "with open(path, 'wb') as file: pass",
        "with Path('a').open('w') as file: pass",
        "with open(path, mode) as file: pass",
        "Path('a').write_bytes(b'')",
        "np.savez('weights.npz', w=w)",
        "from transformers import Trainer",
        "import own_library",
        "os.environ['SBATCHGEN_STOP_FILE']",
    ],
)
def test_what_may_save_is_not_said_to_save_nothing(tmp_path: Path, line: str) -> None:
    write(tmp_path, f"{PLAIN}{line}\n")
    assert "saves_nothing" not in certain(tmp_path)


@pytest.mark.parametrize(
    ("reads", "known"),
    [
        ("first = int(open('step.txt').read())", None),
        ("first = int(open('step.txt', 'rt').read())", None),
        ("first = int(Path('step.txt').read_text())", None),
        ("first = Path('step.txt').read_bytes()", None),
        ("model.load_state_dict(torch.load('a.pt'))", True),
        ("open('log', 'a').write('started')", False),
        ("torch.save(model.state_dict(), open('config').read())", False),
    ],
)
def test_a_file_that_is_read_may_be_what_was_saved(tmp_path: Path, reads: str, known: object) -> None:
    """Not the state of a model: only load_state_dict takes it."""
    write(tmp_path, f"import torch\nopen('step.txt', 'w').write('1')\n{reads}\n", helper="")
    assert source(tmp_path).loads_checkpoint is known


def test_a_framework_asks_for_no_restart_and_an_unknown_package_may(tmp_path: Path) -> None:
    write(tmp_path, "from transformers import Trainer\n")
    assert certain(tmp_path) == {"never_asks_for_restart"}
    write(tmp_path, "import own_library\n")
    assert certain(tmp_path) == set()
    write(tmp_path, "import os\nagain = os.environ['SBATCHGEN_AGAIN_FILE']\n")
    assert "never_asks_for_restart" not in certain(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch.multiprocessing as mp\nmp.spawn(main, nprocs=4)", True),
        ("import torch\ntorch.multiprocessing.spawn(main, nprocs=4)", True),
        ("from torch.multiprocessing import spawn\nspawn(main, nprocs=4)", True),
        ("import torch.multiprocessing as mp\nif not os.environ.get('RANK'):\n    mp.spawn(main)", False),
        ("import torch\nrace.spawn(main)", False),
        ("import torch.multiprocessing as mp\nos.environ['RANK'] = '0'\nmp.spawn(main)", True),
    ],
)
def test_who_always_starts_processes(tmp_path: Path, text: str, expected: bool) -> None:  # noqa: FBT001
    write(tmp_path, text)
    assert source(tmp_path).spawns_always == expected


def test_a_module_is_read_with_the_package_around_it(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/__init__.py").write_text("")
    (tmp_path / "project/train.py").write_text("from project.parts import x\n")
    (tmp_path / "project/parts.py").write_text("import torch\n")
    assert "trains_alone" in certain(tmp_path, "project.train")
    (tmp_path / "project/__init__.py").write_text("import torch.distributed\n")
    assert "trains_alone" not in certain(tmp_path, "project.train")


def test_what_is_no_python_says_nothing(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, helper="def (")
    assert certain(tmp_path) == set()
    for text in ("def (", "\0", "x = " + "(" * 9999, "#" * (MAX_BYTES + 1)):
        (tmp_path / "train.py").write_text(text)
        assert read_trainer("train.py", tmp_path) is None
    assert read_trainer("missing.py", tmp_path) is None
    assert read_trainer("no.module", tmp_path) is None
    (tmp_path / "pipe.py").mkdir()
    assert read_trainer("pipe.py", tmp_path) is None


def test_modules_that_import_each_other_are_read_once(tmp_path: Path) -> None:
    write(tmp_path, "import helper\n", helper="import train\n")
    assert source(tmp_path).is_complete


def test_of_a_project_with_many_modules_nothing_is_certain(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"m{number}.py").write_text(f"import m{number + 1}\n" if number < 199 else "")
    assert certain(tmp_path, "m0.py") == set()


def test_the_trainers_of_the_page_share_their_work_and_save(tmp_path: Path) -> None:
    pages = [
        REPOSITORY / f"docs/how-to/{name}.md"
        for name in ("plain-pytorch", "lightning", "hugging-face", "accelerate")
    ]
    shown = [
        text for page in pages for text in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    assert len(shown) == len(pages)
    for text in shown:
        write(tmp_path, text)
        assert certain(tmp_path) == set()


PARSER = "import argparse, torch\np = argparse.ArgumentParser()\n"
ONE = PARSER + "p.add_argument('-e', '--epochs', type=int)\n"


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        (ONE + "p.parse_args()", ["--time", "--lr"]),
        (ONE + "from helper import add\nadd(p)\np.parse_args()", ["--time"]),
        (ONE + "p.parse_known_args()", []),
        (ONE + "p.parse_args(['--epochs', '3'])", []),
        (ONE + "for name in 'lr', 'time':\n    p.add_argument(f'--{name}')\np.parse_args()", []),
        (ONE + "import sys\nsys.argv.remove('--time')\np.parse_args()", []),
        (ONE + "p.add_argument('rest', nargs=argparse.REMAINDER)\np.parse_args()", []),
        (ONE + "import lightning\nlightning.Trainer.add_argparse_args(p)\np.parse_args()", []),
        ("import click\n", []),
    ],
)
def test_what_a_parser_certainly_refuses(tmp_path: Path, text: str, refuses: list[str]) -> None:
    write(tmp_path, text, helper="def add(p):\n    p.add_argument('--lr')\n")
    options = source(tmp_path).options
    args = ["--epoch=3", "-x", "--time", "3", "--lr", "--", "--any"]
    assert (refused_options(args, options) if options else []) == refuses


HANDLES = "import signal, torch\nsignal.signal(signal.SIGTERM, print)\n"
LOADS = "loader = torch.utils.data.DataLoader([1], num_workers=4)\n"


@pytest.mark.parametrize(
    ("text", "lacks", "loses"),
    [
        ("import torch\ntorch.zeros(1)\n", True, False),
        ("import torch\n" + LOADS, True, False),
        (HANDLES, False, False),
        (HANDLES + LOADS, False, True),
        (HANDLES + LOADS.replace("=4", "=4, worker_init_fn=print"), False, False),
        ("import lightning, torch\n" + LOADS, False, False),
    ],
)
def test_what_survives_a_signal(tmp_path: Path, text: str, lacks: bool, loses: bool) -> None:  # noqa: FBT001
    (tmp_path / "train.py").write_text(text)
    source = read_trainer("train.py", tmp_path)
    assert source
    assert (source.lacks_signal_handlers, source.loses_data_workers) == (lacks, loses)


IN_MAIN = "import os\nimport torch\n\n\ndef main():\n    {}\n\n\nif __name__ == '__main__':\n    main()\n"


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("torch.distributed.init_process_group('nccl')", "RANK"),
        ("torch.distributed.init_process_group('nccl', init_method='env://', timeout=3)", "RANK"),
        ("torch.cuda.set_device(int(os.environ['LOCAL_RANK']))", "LOCAL_RANK"),
        ("try:\n        size = int(os.environ['WORLD_SIZE'])\n    finally:\n        print()", "WORLD_SIZE"),
        ("with torch.no_grad():\n        print(os.environ['RANK'])", "RANK"),
        ("print('RANK' in os.environ, os.environ.get('RANK'), os.environ['RANK'])", "RANK"),
        ("torch.distributed.init_process_group('gloo', 'tcp://localhost:1')", ""),
        ("torch.distributed.init_process_group('gloo', init_method='tcp://a:1', rank=0, world_size=1)", ""),
        ("if torch.cuda.device_count() > 1:\n        torch.distributed.init_process_group('nccl')", ""),
        ("local = int(os.environ['LOCAL_RANK']) if 'LOCAL_RANK' in os.environ else 0", ""),
        ("'RANK' in os.environ and print(os.environ['RANK'])", ""),
        ("if 'RANK' not in os.environ:\n        return\n    print(os.environ['RANK'])", ""),
        ("try:\n        rank = os.environ['RANK']\n    except KeyError:\n        rank = 0", ""),
        ("os.environ.setdefault('RANK', '0')\n    print(os.environ['RANK'])", ""),
        ("os.environ['RANK'] = '0'\n    print(os.environ['RANK'])", ""),
        ("os.environ |= {'RANK': '0'}\n    print(os.environ['RANK'])", ""),
        ("import own_library\n    print(os.environ['RANK'])", ""),
        ("show = lambda: os.environ['RANK']", ""),
        ("raise SystemExit\n    print(os.environ['RANK'])", ""),
        ("import contextlib\n    with contextlib.suppress(KeyError):\n        print(os.environ['RANK'])", ""),
        ("for name in os.environ:\n        print(os.environ['RANK'])", ""),
        ("def worker():\n        print(os.environ['RANK'])", ""),
        ("torch.multiprocessing.spawn(print)", ""),
    ],
)
def test_where_a_trainer_certainly_needs_its_rank(tmp_path: Path, text: str, needed: str) -> None:
    write(tmp_path, IN_MAIN.format(text))
    need = source(tmp_path).rank_need
    assert (need.variable if need else "") == needed


def test_a_rank_is_needed_in_a_function_of_a_module_beside_the_trainer(tmp_path: Path) -> None:
    helper = "import os\nfrom torch.distributed.elastic.multiprocessing.errors import record\n"
    helper += "@record\ndef setup(rank=None):\n    return os.environ['RANK']\n"
    write(tmp_path, "from helper import setup\nprint(setup())\n", helper)
    need = source(tmp_path).rank_need
    assert need
    assert (need.file.name, need.line) == ("helper.py", 5)
    write(tmp_path, "from helper import setup\nprint(setup)\n", helper)
    assert source(tmp_path).rank_need is None
