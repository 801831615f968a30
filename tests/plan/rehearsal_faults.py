"""Faults planted in a trainer that keeps the contract, each with the row of a rehearsal that names it.

What programs say of other errors at their start is known as in each log: tests/runs/test_failing_jobs.py.
"""

from __future__ import annotations

from typing import NamedTuple

PROFILE = """
name: testing
url: https://slurm.schedmd.com
checked: 2026-11-20
partitions:
  gpu: {{time_max: 1-00:00:00, nodes_max: 4000, cpus_per_node: 8, gpus_per_node: 4}}
default_partition: gpu
options: {{time: 00:10:00, cpus_per_task: 2}}
runtime: host
env: {{PYTHONPATH: "{path}", OMP_NUM_THREADS: 1}}
"""
# A trainer that keeps the contract of docs/how-to/resume-own-trainer.md; the faults are changes of it.
KEEPS = """
import json, os, signal, sys, time
from pathlib import Path

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the stop file says it too
kept = Path(os.environ["RUN_DIR"], "kept.json")
first = json.loads(kept.read_text()) if kept.exists() else 0
for step in range(first + 1, 61):
    time.sleep(0.1)
    print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
    if os.path.exists(os.environ["SBATCHGEN_STOP_FILE"]):
        kept.write_text(str(step))
        Path(os.environ["SBATCHGEN_AGAIN_FILE"]).touch()
        sys.exit(0)
"""
# The same for rank 0 of several processes, which the others follow.
RANKS = KEEPS.replace("first = ", "rank = int(os.environ['RANK'])\nfirst = ")


class Fault(NamedTuple):
    """A fault: what is changed to plant it, and what the rehearsal has to say.

    Attributes:
        name: What is wrong.
        old: A part of the trainer.
        new: What takes its place.
        row: The first row that is not ok.
        outcome: Its outcome.
        says: A part of its detail.
        words: Words of the command line.
        trainer: The trainer before the change.
    """

    name: str
    old: str
    new: str
    row: str
    outcome: str
    says: str
    words: tuple[str, ...] = ("single",)
    trainer: str = KEEPS


TWO = ("ddp", "--nodes", "2", "--gpus-per-node", "1")
SAVE = "kept.write_text(str(step))"
FAULTS = (
    Fault("a missing package", "import json", "import nothing_such, json", "start", "failed", "no module 'nothing_such' (train.py:2)"),
    Fault("missing data", "kept = ", "open('/data/set')\nkept = ", "start", "failed", "there is no '/data/set' (train.py:6)"),
    Fault("no network", "kept = ", "import socket; socket.create_connection(('1.2.3.4', 80))\nkept = ", "start", "failed", "nreach"),
    Fault("an error with status 0", "kept = ", "import traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc(); sys.exit(0)\nkept = ", "start", "failed", "exit status 0, but ZeroDivisionError"),
    Fault("another number of processes", "kept = ", "if os.environ['WORLD_SIZE'] != '4': sys.exit('made for 4 processes')\nkept = ", "start", "failed", "made for 4 processes (rank ", TWO, RANKS),
    Fault("an error on one rank", "    time.sleep(0.1)", "    if rank == 1 and step > 40: raise ValueError('an image is broken')\n    time.sleep(0.1)", "end", "failed", "an image is broken (train.py:10) (rank 1)", TWO, RANKS),
    Fault("it asks for a GPU", "kept = ", "raise RuntimeError('Found no NVIDIA driver on your system.')\nkept = ", "start", "unknown", "this machine has none"),
    Fault("it ends too early", "range(first + 1, 61)", "range(first + 1, 2)", "time limit", "unknown", "ended before"),
    Fault("the stop is ignored", 'os.path.exists(os.environ["SBATCHGEN_STOP_FILE"])', "False", "time limit", "failed", "still running", ("single", "--signal", "B:USR1@2")),
    Fault("a full disk", SAVE, "open('/dev/full', 'w').write('x' * 100000)", "time limit", "failed", "a disk is full (train.py:12)"),
    Fault("a folder of checkpoints that can't be written", SAVE, "Path('/sys/kept.json').write_text(str(step))", "time limit", "failed", "/sys/kept.json"),
    Fault("no request for a restart", '        Path(os.environ["SBATCHGEN_AGAIN_FILE"]).touch()\n', "", "restart", "failed", "the trainer has not asked for it"),
    Fault("a checkpoint that can't be read", SAVE, "kept.write_text('{')", "restart", "failed", "JSONDecodeError"),
    Fault("no resume", "if kept.exists()", "if False", "restart", "failed", "begins again at step 1"),
    Fault("a folder of checkpoints for each start", '"kept.json")', '"kept-" + os.environ.get("SLURM_RESTART_COUNT", "0"))', "restart", "failed", "begins again at step 1"),
    Fault("SIGTERM ends it", "signal.SIG_IGN", "signal.SIG_DFL", "requeue", "lost", "ended in"),
    Fault("a failure at the end", "    time.sleep(0.1)", "    time.sleep(0.1); step == 50 and sys.exit(3)", "end", "failed", "status 3"),
    Fault("it hangs at the end", "    time.sleep(0.1)", "    time.sleep(0.1 if step < 50 else 99)", "end", "unknown", "at step 49; nothing printed for"),
)  # fmt: skip
NEVER_END = ("it hangs at the end", "the stop is ignored")
