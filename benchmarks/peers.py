"""The tools that are measured, and how each makes one job: 2 nodes of 4 GPUs, 2 hours, partition batch.

Each is used as its own documentation shows, up to the text of the script; no program submits.
"""

# ruff: noqa: INP001 - a folder of scripts, not a package

from __future__ import annotations

from dataclasses import dataclass

FLOOR = "click, jinja2, yaml"
LATER = "sbatchgen"  # every run but the first, whose figures have a row of their own


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A command to measure, and the Python that makes the same script without a new process."""

    name: str
    package: str  # what pip installs; the contenders of one package share an environment
    command: tuple[str, ...]  # its first word lies in the environment's bin
    python: str = ""  # defines script(number), the text of the job "ddpNUMBER"; empty: not measured
    makes_script: bool = True
    forgets: bool = False  # runs with an empty home each time
    note: str = ""


def script_in(output: str) -> str:
    """The script in the output of a command: torchx prints the job in its own form before it."""
    return output[output.find("#!") :] if "#!" in output else ""


def is_script(text: str) -> bool:
    """Whether the text is a script for two nodes: one job of two nodes, or torchx's two components of one."""
    lines = text.splitlines()
    directives = [line.split() for line in lines if line.startswith("#SBATCH ")]
    two_nodes = any("--nodes=2" in words or words[1:3] == ["--nodes", "2"] for words in directives)
    two_components = sum(words[1:2] == ["hetjob"] for words in directives) == 1
    return text.startswith("#!/bin/") and (two_nodes or two_components)


SBATCHGEN = """
import os
from pathlib import Path
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.layers import Level, job_layer
from sbatchgen.jobs.inputs.options import SbatchOptions
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import Places, bundled
from sbatchgen.jobs.resolved.resolve import resolve
from sbatchgen.jobs.render.render import render
from sbatchgen.jobs.judge.job_check import check

places = Places(Path.cwd(), os.environ)
profile = read_document(places.profile("msu"), Profile)

def script(number):
    job = JobSpec(options=SbatchOptions(job_name=f"ddp{number}"))
    plan = resolve(profile, [job_layer(Level.JOB, job, {})], mode_name="ddp", name="ddp")
    if any(finding.severity == "error" for finding in check(plan)):
        raise SystemExit("the plan has errors")
    folders = places.folders("templates")
    return render(plan, code=bundled("code"), rerun=("benchmark",), folders=folders, cache=places.cache)
"""

SUBMITIT = """
import submitit

def script(number):
    executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
    executor.update_parameters(
        name=f"ddp{number}", nodes=2, tasks_per_node=4, gpus_per_node=4, timeout_min=120,
        slurm_partition="batch",
    )
    slurm = executor._executor
    return slurm._make_submission_file_text(slurm._submitit_command_str, "0")
"""

SIMPLE_SLURM = """
from simple_slurm import Slurm

def script(number):
    slurm = Slurm(
        job_name=f"ddp{number}", nodes=2, ntasks_per_node=4, gpus_per_node=4, time="02:00:00",
        partition="batch",
    )
    slurm.add_cmd("srun python train.py")
    return str(slurm)
"""

SLURM_SCRIPT_GENERATOR = """
from slurm_script_generator.slurm_script import SlurmScript

def script(number):
    return SlurmScript(
        job_name=f"ddp{number}", nodes=2, ntasks_per_node=4, gpus_per_node=4, time="02:00:00",
        partition="batch", custom_commands=["srun python train.py"],
    ).generate_script()
"""

TORCHX = """
import logging
from torchx.components.dist import ddp
from torchx.runner import get_runner

logging.disable()
runner = get_runner()

def script(number):
    job = ddp(name=f"ddp{number}", script="train.py", j="2x4", gpu=4)
    asked = runner.dryrun(job, "slurm", cfg={"partition": "batch", "time": "02:00:00"})
    return asked.request.materialize()
"""

OURS = (
    Contender(
        name="python",
        package="sbatchgen",
        command=("python", "-c", "pass"),
        makes_script=False,
        note="an interpreter that starts and ends",
    ),
    Contender(
        name=FLOOR,
        package="sbatchgen",
        command=("python", "-c", "import click, jinja2, yaml"),
        makes_script=False,
        note="the floor: what sbatchgen is built on, imported and no more",
    ),
    Contender(
        name=LATER,
        package="sbatchgen",
        command=("sbatchgen", "render", "ddp", "--profile", "msu"),
        python=SBATCHGEN,
        note="with the compiled templates that the first run has left in the user's cache",
    ),
    Contender(
        name="sbatchgen, first run",
        package="sbatchgen",
        command=("sbatchgen", "render", "ddp", "--profile", "msu"),
        forgets=True,
        note="a user's first: templates are compiled and stored (Python's own .pyc files are there)",
    ),
)

PEERS = (
    Contender(
        name="submitit",
        package="submitit",
        command=("python", "-c", f"{SUBMITIT}\nprint(script(0))"),
        python=SUBMITIT,
        note="no command: AutoExecutor up to the text that submit() writes, a private method; no pickling",
    ),
    Contender(
        name="simple_slurm",
        package="simple_slurm",
        command=("python", "-c", f"{SIMPLE_SLURM}\nprint(script(0))"),
        python=SIMPLE_SLURM,
        note="its command submits, so its Slurm class",
    ),
    Contender(
        name="slurm-script-generator",
        package="slurm-script-generator",
        command=(
            *("generate-slurm-script", "--job-name", "ddp0", "--nodes", "2", "--ntasks-per-node", "4"),
            *("--gpus-per-node", "4", "--time", "02:00:00", "--partition", "batch"),
            *("--custom-commands", "srun python train.py"),
        ),
        python=SLURM_SCRIPT_GENERATOR,
        note="its command",
    ),
    Contender(
        name="torchx",
        package="torchx",
        command=(
            *("torchx", "run", "--dryrun", "--scheduler", "slurm"),
            *("--scheduler_args", "partition=batch,time=02:00:00"),
            *("dist.ddp", "--name", "ddp0", "-j", "2x4", "--gpu", "4", "--script", "train.py"),
        ),
        python=TORCHX,
        note="its dry run asks sinfo, here a stand-in that answers at once; two components of one node each",
    ),
)
