"""Writes the job and the profile of a draft as YAML, and resolves the job that they give together."""

from collections.abc import Mapping
from typing import Any

import yaml

from sbatchgen.jobs.inputs.document import decode
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.layers import Level, job_layer
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.resolved.programs import resolve_programs
from sbatchgen.jobs.resolved.resolve import resolve
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.lab.adopt.draft import Draft

# Options that a rendered script always has, unless the key `omit` of the profile names them.
_DEFAULT_OPTIONS = ("output", "nodes", "ntasks_per_node", "cpus_per_task", "time", "requeue", "job_name")
# The first keys of the job, in the order in which people read them.
_FIRST_KEYS = (
    "mode",
    "launcher",
    "nproc_per_node",
    "gpu_request",
    "trainer",
    "args",
    "launcher_args",
    "programs",
)


def profile(draft: Draft, name: str, day: str) -> str:
    """Return the profile of a draft as YAML; `day` is the date that the profile says it was checked."""
    keys: dict[str, Any] = {
        "name": f"{name}-cluster",
        "url": draft.script.file,
        "checked": day,
        "description": f"the cluster of {draft.script.file.rpartition('/')[2]}",
        **draft.profile,
        "setup": [*draft.setup, *draft.step_setup, *draft.argument_lines],
        "omit": [key for key in _DEFAULT_OPTIONS if key not in draft.options],
    }
    content = "the facts of its cluster, and lines of shell (setup)"
    return f"# Adopted from {draft.script.file}: {content}.\n{_yaml(keys)}"


def job(draft: Draft, name: str) -> str:
    """Return the job of a draft as YAML. Its profile is the file NAME-cluster.yaml."""
    keys = {
        "profile": f"./{name}-cluster.yaml",
        **{key: draft.job[key] for key in _FIRST_KEYS if key in draft.job},
        "resume": "off",
        "env": draft.env,
        "options": draft.options,
        "extra_options": draft.job.get("extra_options", {}),
    }
    return f"# Adopted from {draft.script.file}.\n{_yaml(keys)}"


def _yaml(keys: Mapping[str, Any]) -> str:
    """Return keys as YAML, without keys whose value is an empty list or mapping."""
    filled = {key: value for key, value in keys.items() if value not in ({}, [])}
    return str(yaml.dump(filled, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6))


class _Dumper(yaml.SafeDumper):
    """A writer of YAML that writes None as an empty value, because a job would read `null` as a word."""


_Dumper.add_representer(type(None), lambda dumper, _: dumper.represent_scalar("tag:yaml.org,2002:null", ""))


def resolved_job(job: str, profile: str, name: str) -> ResolvedJob:
    """Return the resolved job of a job and a profile in YAML.

    Raises DocumentError for a wrong key or value.
    """
    cluster = decode(profile, Profile, name=f"{name}-cluster.yaml")
    spec = decode(job, JobSpec, name=f"{name}.yaml")
    layers = [job_layer(Level.JOB, spec.value, spec.places)]
    mode = spec.value.mode or "single"
    if spec.value.programs:
        return resolve_programs(cluster, layers, mode_name=mode, name=name)
    return resolve(cluster, layers, mode_name=mode, name=name)
