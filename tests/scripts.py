"""Plans and scripts for tests, made as the command makes them, but with a fixed place of the trainer."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sbatchgen.base.finding import Finding
from sbatchgen.base.units import ShellPath, Text
from sbatchgen.jobs.inputs.document import Document, decode, read_document
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.layers import Layer, Level, job_layer
from sbatchgen.jobs.inputs.options import NAMES
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.render import SECOND_PART
from sbatchgen.jobs.render.render import render
from sbatchgen.jobs.resolved.programs import resolve_programs
from sbatchgen.jobs.resolved.resolve import resolve
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.runtimes import RUNTIMES
from sbatchgen.jobs.runtimes.base import Runtime
from tests.conftest import REPOSITORY

CODE = Path("/opt/sbatchgen/code")
PROFILES = ("local", "msu", "princeton", "public_cluster", "sensecore", "sensetime", "torchrun", "troila")
# Those of centres, from their documentation: a test for each launcher, not the matrix.
CENTRES = tuple(
    "alvis anvil azure-ndv5 berzelius cannon clariden coreweave dardel delta deltaai fir frontier "
    "gcp-a3 gcp-a3-ultra iris isambard-ai jean-zay jureca juwels kestrel leonardo leuven lonestar6 "
    "lumi mahti marenostrum5 midway3 mila nebius oci-h100 olivia parallelcluster-p5 perlmutter roihu "
    "rorqual setonix sherlock snellius tamia triton vista".split()
)
_COMPILED = tempfile.TemporaryDirectory(prefix="templates-")


def _required(runtime: Runtime) -> dict[str, Any]:
    """The key that a runtime requires, with the value of the example in the reference."""
    example = read_document(REPOSITORY / "docs/reference/profile-example.yaml", Profile).value
    facts = example.facts(runtime)
    name = runtime.requires and runtime.requires.key
    return {key.name: getattr(facts, key.fact) for key in runtime.keys if key.name == name}


# What a runtime needs where the profile does not bring it: an example, or one of these.
NEEDS: dict[str, dict[str, Any]] = {
    **{name: _required(runtime) for name, runtime in RUNTIMES.items() if runtime.requires},
    "venv": {"venv": ShellPath("/opt/venv")},
    "conda": {"conda_env": ShellPath("train")},
    "apptainer": {"image": ShellPath("/opt/train.sif")},
    "enroot": {"image": ShellPath("/opt/train.sqsh")},
    "podman-hpc": {"image": ShellPath("localhost/train:1")},
    "edf": {"edf": ShellPath("/opt/train.toml")},
    "shifter": {"image": ShellPath("nersc/pytorch:24.08.01")},
    "prefix": {"prefix": (Text("site-python"), Text("--gpu"))},
    "uv": {"uv_project": ShellPath("/opt/project")},
}
# A profile of somebody's cluster, for attacks on its users.
PUBLIC = """
name: public
url: https://example.org
checked: 2026-01-01
default_partition: gpu
partitions: {gpu: {gpus_per_node: 1, cpus_per_node: 8}}
runtime: host
"""


def resolved(
    mode: str, profile: str | Path = "msu", *, args: tuple[str, ...] = (), **said: Any
) -> ResolvedJob:
    """The plan of a mode with job keys and Slurm options as a command line would give them."""
    file = bundled("profiles") / f"{profile}.yaml" if isinstance(profile, str) else profile
    values: dict[str, Any] = {"args": args} if args else {}
    for key, value in said.items():
        if isinstance(value, dict):
            values |= {f"{key}.{name}": inner for name, inner in value.items()}
        elif value is not None:
            values[f"options.{key}" if key in NAMES else key] = value
    places = {key: f"--{key.removeprefix('options.').replace('_', '-')}" for key in values}
    layers = [Layer(Level.COMMAND_LINE, values, places)]
    return resolve(_profile(file), layers, mode_name=mode, name=mode)


SEVERAL = """
programs:
  server:
    command: [vllm, serve, /models/qwen, --port, "{port}"]
    nodes: 1
    ready: {url: "http://{host}:{port}/health", within: 10m}
  trainer:
    mode: ddp
    trainer: train_rl.py
    args: [--server, "http://{server.host}:{server.port}"]
    nodes: 2
    needs: [server]
    main: true
"""


def several(text: str = SEVERAL, profile: str | Path = "msu", name: str = "rl") -> ResolvedJob:
    """The job of a job file that has several programs."""
    document = decode(text, JobSpec, name=f"{name}.yaml")
    file = bundled("profiles") / f"{profile}.yaml" if isinstance(profile, str) else profile
    layers = [job_layer(Level.JOB, document.value, document.places)]
    return resolve_programs(_profile(file), layers, mode_name="single", name=name)


@functools.cache
def _profile(file: Path) -> Document[Profile]:
    return read_document(file, Profile)


def script(of: ResolvedJob) -> str:
    """The script of a resolved job."""
    return render(
        of,
        code=CODE,
        rerun=("sbatchgen", "render", of.mode.name),
        folders=[bundled("templates")],
        cache=Path(_COMPILED.name),
    )


def errors(of: ResolvedJob) -> list[Finding]:
    """The findings that stop a resolved job."""
    return [finding for finding in check(of) if finding.severity == "error"]


def matrix() -> Iterator[tuple[str, ResolvedJob]]:
    """Every mode, runtime, launcher and way of resuming on every profile, with a name for each."""
    for profile in PROFILES:
        for mode in MODES:
            for runtime in RUNTIMES:
                for launcher in MODES[mode].launchers or (None,):
                    for resume in ("auto", "off", *(["step-100.pt"] if profile in ("msu", "local") else [])):
                        said: dict[str, Any] = {"runtime": runtime, "resume": Text(resume)}
                        said |= NEEDS.get(runtime, {})
                        said |= {"launcher": launcher} if launcher else {}
                        name = "-".join(str(x) for x in (profile, mode, runtime, launcher, resume) if x)
                        yield name, resolved(mode, profile, **said)


def first_part(script: str) -> str:
    """The part of a script that the job decides."""
    first, mark, _ = script.partition(SECOND_PART)
    assert mark
    return first


def script_shown(out: str) -> str:
    """The first part of the script of a review, which a line on the second one follows."""
    shown = out[out.index("#!/bin/bash\n") :]
    first, mark, count = shown.partition("and ")
    while mark and not re.match(r"\d+ lines that are the same in every job of this kind, with ", count):
        more, mark, count = count.partition("and ")
        first += f"and {more}"
    assert mark
    return first
