"""The job that corresponds to a documented script, and the script that its profile renders."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.documented.examples import Example
from benchmarks.documented.facts import Item, gpus, items
from benchmarks.documented.starts import Start
from sbatchgen.base.errors import SbatchgenError
from sbatchgen.base.units import Text
from sbatchgen.check.script.launches import Launch
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.options import NAMES
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.render.render import render_request
from sbatchgen.jobs.resolved.request import read_request
from sbatchgen.lab.adopt.shape import MODULES
from sbatchgen.lab.adopt.training import main_launch

Job = dict[str, Any]
_CONTAINERS = {"apptainer": "apptainer", "singularity": "apptainer", "shifter": "shifter"}
MASKS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_OF_USERS = {"account": "x", "time": "00:30:00"}


def job_of(example: Example) -> Job:
    """Return what only the author of a script decides: mode, launcher, nodes, GPUs, partition, software."""
    script, launch = example.script, main_launch(example.script)
    assert launch is not None  # noqa: S101 - an example starts a training
    profile = profile_of(example)
    launcher = launch.launcher.name if launch.launcher else ""
    module = (
        "" if launcher == "torchrun" else MODULES.get(launcher, "")
    )  # it is the trainer, as `adopt` says it
    whole = bool(launcher) or (launch.tasks or 1) > 1
    many = whole and not (module and launch.nodes == 1)
    partition = Text(script.resources.options.get("partition") or _with_constraint(script, profile))
    own = script.resources.options
    options: Job = {name: _OF_USERS.get(name) or own[name] for name in profile.required}
    options |= {"nodes": launch.nodes or script.resources.nodes} if many else {}
    options |= {"partition": partition} if partition in profile.partitions else {}
    mode = "ddp" if many else "dataparallel" if whole else "single"
    job: Job = {"mode": mode, "profile": example.place.profile, "trainer": module or "train.py"}
    job |= {"launcher": "torchrun" if launcher and not module else "srun"} if many else {}
    job |= {"nproc_per_node": 1} if many and module else {}
    place = profile.partitions.get(partition or profile.default_partition or Text(""))
    count = gpus(script, launch) or launch.workers or 0
    kind = "".join(f"{name}:" for name in script.resources.gpu_types)
    if count and (kind or count != (place.gpus_per_node if place and whole else 1)):
        request = profile.gpu_request or "gpus_per_node"
        asked = {"gres": f"gpu:{kind}{count}", "gpus": f"{kind}{count * options.get('nodes', 1)}"}
        if request == "none":
            job["nproc_per_node"] = count
        else:
            options[request if request in asked else "gpus_per_node"] = asked.get(request, f"{kind}{count}")
    return job | _software(script, launch, profile) | {"options": options}


def profile_of(example: Example) -> Profile:
    """Return the bundled profile of the machine that an example is for."""
    return read_document(bundled("profiles") / f"{example.place.profile}.yaml", Profile).value


def _with_constraint(script: JobScript, profile: Profile) -> str:
    """Return the partition that a script chooses by a feature of its nodes."""
    wanted = script.resources.options.get("constraint")
    places = profile.partitions.items()
    return next((name for name, facts in places if wanted and facts.options.constraint == wanted), "")


def _software(script: JobScript, launch: Launch, profile: Profile) -> Job:
    """Return the runtime, and the author's own image or environment."""
    words = {item.name: item.value for item in items(script) if item.kind in ("container", "program")}
    runtime, own = "host", Job()
    if "environment" in words:
        runtime, own = "edf", {"edf": f"./{words['environment']}"}
    elif launch.container:
        name = launch.container.name.split()
        runtime = _CONTAINERS.get(name[0], "prefix")
        own = {"prefix": name} if runtime == "prefix" else {}
        own |= {"image": "x.sif"} if runtime == "apptainer" and runtime != profile.runtime else {}
    elif launch.step and launch.step.option("container-image"):
        runtime = "enroot"
    elif "conda environment" in words:
        runtime, own = "conda", {"conda_env": "my_env"}
    elif "virtual environment" in words or "/bin/torchrun" in script.text:
        runtime, own = "venv", {"venv": "env"}
    return {"runtime": runtime} | own


def with_rest(job: Job, wanted: list[Item], missing: list[Item]) -> Job:
    """Return the job with all that it can say of what its profile does not say."""
    said: dict[str, Job] = {key: {} for key in ("extra_options", "env", "step")}
    options, more, binds = Job(job["options"]), _lists(wanted, missing), []
    for kind, name, value in missing:
        option = name.removeprefix("--")
        if kind == "variable":
            said["env"][name] = value.replace("...", "cache")
        elif kind == "step":
            said["step"][option] = value or True
        elif name.startswith("--"):
            known = option.replace("-", "_") in NAMES
            (options if known else said["extra_options"])[option.replace("-", "_") if known else option] = (
                value or "true"
            )
        elif name == "GPUs of a node":
            options["gpus_per_node"], more["gpu_request"] = value, "gpus_per_node"
        elif name == "mount":
            binds.append(f"/folder:{value}")
        elif name in ("CPUs of a task", "memory of a node"):
            options["mem" if name.startswith("mem") else "cpus_per_task"] = value
        elif name.startswith("gres "):
            options |= {"gres": name.removeprefix("gres ") + value, "gpus": 1}
    return job | more | said | {"options": options, "binds": binds}


def with_start(job: Job, documented: Sequence[Start], made: Start) -> Job:
    """Return the job with what its author decides of a start: trainer, arguments, image, mounts and such."""
    first = documented[0]
    name, module = first.launcher[0] if first.launcher else "", first.program[0] == "-m"
    trainer, *args = first.program[module:]
    said: Job = {"trainer": trainer if module or "/" in trainer else f"./{trainer}", "args": args}
    if name == "torchrun":
        more = [each for each in first.launcher[1:] if each not in made.launcher]
        said["launcher_args"] = [*job.get("launcher_args", []), *more]
        if not more and {*made.launcher} > {*first.launcher}:
            said["launcher_args"] = None  # those of the profile are not the author's
    elif name in MODULES:
        said |= {"trainer": MODULES[name], "args": _of_nodes(documented)}
        said["setup_per_task"] = ['set -- "${@//@SLURM_NODEID@/$SLURM_NODEID}"']
    if first.ranks not in (0, made.ranks) and first.gpus not in (0, first.ranks):
        said["nproc_per_node"] = first.ranks  # another number than the GPUs, as its author says
    if first.container not in ("", made.container):
        is_file = first.container.endswith(".sqsh") and first.container[0] not in "/."
        said["image"] = f"./{first.container}" if is_file else first.container
    said["binds"] = [*job.get("binds", []), *(each for each in first.mounts if each not in made.mounts)]
    # Slurm gives a step its own mask of GPUs in place of an exported one (seen on 22.05).
    env = {
        name: value
        for name, value in job.get("env", {}).items()
        if name not in MASKS or value.count(",") + 1 == first.gpus
    }
    said["env"] = env | {name: value for name, value in first.env.items() if made.env.get(name) != value}
    return job | said


def _of_nodes(documented: Sequence[Start]) -> list[str]:
    """Return the words after a launcher's name, with the node's number in those that have it."""
    columns = zip(*(start.words for start in documented), strict=True)
    return [
        words[0] if len({*words}) == 1 else re.sub(r"\d+$", "@SLURM_NODEID@", words[0]) for words in columns
    ]


def _lists(wanted: list[Item], missing: list[Item]) -> Job:
    """Return the modules, where one is missing, and the arguments of torchrun."""
    said, start = Job(), "torchrun --"
    modules = [item for item in wanted if item.kind == "module"]
    if not {*modules}.isdisjoint(missing):
        said["modules"] = [
            f"use {each.value}" * (each.name == "use") or each.value for each in modules if each.value
        ]
        said["module_start"] = next((each.name for each in modules if not each.value), "keep")
    arguments = [item for item in missing if item.name.startswith(start)]
    said["launcher_args"] = [f"{each.name[9:]}={each.value}".rstrip("=") for each in arguments]
    return said


def rendered(job: Job, folder: Path) -> JobScript:
    """Return the script of a job."""
    file = folder / "job.yaml"
    said = {key: [] if value is None else value for key, value in job.items() if value not in ({}, [])}
    file.write_text(json.dumps(said))
    try:
        request = read_request(str(file), (), {}, environment=os.environ, folder=folder, check=check)
        text = render_request(request)
    except SbatchgenError as error:
        sys.exit(f"{json.dumps(job)}\n{error}")
    for finding in check(request.resolved):
        if finding.severity == "error":
            print(f"{job['profile']}: {finding.problem.what}", file=sys.stderr)
    return JobScript(file="rendered", text=text, slurm="24.11", is_release_assumed=True)
