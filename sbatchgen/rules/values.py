"""Values that sbatch refuses, or passes on and slurmctld refuses, whatever the cluster has: SB140 and SB141.

What only the cluster decides, such as whether a node or a licence is there, is left to the rules about its
profile. Each verdict is compared with a real slurmctld by benchmarks/values.py. Sources: slurmctld 22.05 to
26.05, as named in the readers of `script`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from sbatchgen.finding import Severity
from sbatchgen.job.job import Job
from sbatchgen.plan.resources import UNLIMITED
from sbatchgen.rules.rule import Hit, Rules
from sbatchgen.units import Duration

RULES: Rules[Job] = Rules()

BAD_VALUE: tuple[str, Severity, str] = ("SB126", "error", "a value that sbatch refuses")
EXAMPLES = {
    "begin": "--begin=2026-01-31T20:00",
    "cpus-per-task": "--cpus-per-task=8",
    "gpus": "--gpus=8, or --gpus=a100:8",
    "gpus-per-node": "--gpus-per-node=4, or --gpus-per-node=a100:4",
    "gres": "--gres=gpu:4, or --gres=gpu:a100:4",
    "mem": "--mem=64G",
    "mem-per-cpu": "--mem-per-cpu=4G",
    "mem-per-gpu": "--mem-per-gpu=64G",
    "nodes": "--nodes=2",
    "signal": "--signal=B:USR1@300",
    "time": "--time=24:00:00",
    "mail-type": "--mail-type=END,FAIL",
}
LARGEST_ARRAY = 4000001  # the largest MaxArraySize that slurm.conf may have: slurm.conf(5)
# The longest values, in bytes; job_mgr.c of slurmctld, the same in all releases.
_KIB = """
account cluster-constraint comment constraint extra job-name licenses mail-user mcs-label network partition
prefer qos reservation tres-bind wckey
"""
_PATHS = ("chdir", "error", "input", "output")
LONGEST = {"array": 4096, "bb": 8192, "dependency": 131072}
LONGEST |= dict.fromkeys(_KIB.split(), 1024) | dict.fromkeys(_PATHS, 4096)
_FIX = {
    "array": "write --array=0-9%2, or 1,3,5",
    "batch": "name features of --constraint, as --constraint=a&b --batch=a",
    "constraint": 'write --constraint=a, "a&b", "a|b" or "[a*2&b*4]"',
    "dependency": "write --dependency=afterok:123, afterany:123:124 or singleton",
    "exclude": "write --exclude=n1,n[3-5]",
    "gres": "write --gres=gpu:4, or --gres=gpu:a100:4",
    "licenses": "write --licenses=NAME:2,OTHER",
    "nodelist": "write --nodelist=n1,n[3-5]",
    "prefer": 'write --prefer=a, "a&b" or "a|b"',
    "tres-bind": "write --tres-bind=gres/gpu:closest",
    "tres-per-task": "write --tres-per-task=cpu=4,gres/gpu=1",
}
_GPUS = ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task")
_TRES = ("bb", "billing", "cpu", "energy", "fs", "gres", "ic", "license", "mem", "node", "pages", "vmem")


def refused(name: str, value: str, slurm: str) -> tuple[str, str] | None:
    """What sbatch says of an option with this value, and a fix; None if it accepts it (SB126)."""
    said = _said(name, value, slurm)
    if not said:
        return None
    example = EXAMPLES.get(name)
    return (
        f"'{value}' is not a value for --{name}: sbatch says \"{said}\"",
        f"write it as in {example}" if example else "see sbatch(1)",
    )


@lru_cache(maxsize=256)
def _said(name: str, value: str, slurm: str) -> str:
    from sbatchgen.job.known_options import PYXIS
    from sbatchgen.sbatch.reader import read

    value = value.replace("\\", "\\\\").replace('"', '\\"')
    answer = read(f'#!/bin/sh\n#SBATCH --{name}="{value}"\n', slurm=slurm, plugin_options=PYXIS)
    if answer.refusal is None or (answer.components and answer.components[-1].settled):
        return ""
    return answer.refusal.text


@RULES.add("SB140", "error", "a value that slurmctld refuses")
def _refused_value(job: Job) -> Iterator[Hit]:
    options = job.resources.options
    for option, text in options.items():
        check = _CHECKS.get(option)
        try:
            if check:
                check(text, job)
        except ValueError as error:
            what = f"Slurm refuses --{option}={text[:80]}: {error}"
            yield Hit(option, what, _FIX.get(option, "see sbatch(1)"))
        longest = LONGEST.get(option)
        if longest and (size := len(text.encode("utf-8", "surrogateescape"))) > longest:
            what = f"--{option} has {size} bytes: Slurm refuses more than {longest}"
            yield Hit(option, what, "make it shorter")
    if "array" in options and options["array"] and job.resources.nodes_min == 0:
        yield Hit("nodes", "an array with no nodes: Slurm refuses the job", "set --nodes=1 or more")
    if "external" in options:
        what = "--external is for jobs without a script: Slurm refuses this one"
        yield Hit("external", what, "remove it")


@RULES.add("SB141", "error", "times that contradict each other")
def _contradicting_times(job: Job) -> Iterator[Hit]:
    most, least = job.resources.time, job.resources.time_min
    if most is not None and least is not None and least > most:
        what = (
            f"--time-min {time_limit(least)} is longer than --time {time_limit(most)}: Slurm refuses the job"
        )
        yield Hit("time-min", what, f"set --time-min {time_limit(most)} or less")


def time_limit(seconds: int) -> str:
    """A time limit as Slurm shows it."""
    return "UNLIMITED" if seconds >= UNLIMITED else str(Duration(seconds))


def _array(text: str, _: Job) -> None:
    from sbatchgen.sbatch.array import indices

    found = indices(text)
    if found is None:
        raise ValueError("not a list of indices")
    if any(one[-1] >= LARGEST_ARRAY or one.step >= LARGEST_ARRAY for one in found):
        raise ValueError(f"no cluster has indices of {LARGEST_ARRAY} or more")


def _dependency(text: str, job: Job) -> None:
    from sbatchgen.sbatch.dependency import check

    check(text, slurm=job.slurm)


def _features(text: str, job: Job) -> None:
    from sbatchgen.sbatch.features import names

    names(text, slurm=job.slurm)


def _batch(text: str, job: Job) -> None:
    from sbatchgen.sbatch.features import batch_names, names

    lists = [job.resources.options[name] for name in ("constraint", "prefer") if name in job.resources]
    if not lists:
        raise ValueError("--batch needs features of --constraint")
    asked = batch_names(text)
    for one in lists:
        try:
            known = names(one, slurm=job.slurm)
        except ValueError:
            return  # told there
        missing = next((name for name in asked if name not in known), None)
        if missing is not None and ("|" not in text or missing == asked[0]):
            raise ValueError(f"'{missing}' is not in --constraint")


def _licenses(text: str, job: Job) -> None:
    from sbatchgen.sbatch.licenses import counts

    counts(text, slurm=job.slurm)


def _hosts(option: str) -> Callable[[str, Job], None]:
    def check(text: str, job: Job) -> None:
        from sbatchgen.sbatch.hostlist import hosts_of, items

        if "/" in text or (job.slurm >= "24.11" and "{" in text):
            return  # a file, or what slurmctld expands
        if option == "exclude" and job.slurm >= "23.11" and any(one.count("[") > 1 for one in items(text)):
            return  # of several brackets in a name, slurmctld takes some that sbatch refuses
        hosts = hosts_of(text, slurm=job.slurm, passed=option == "nodelist")
        if hosts is None:
            if option == "nodelist" and job.is_script and hosts_of(text, slurm=job.slurm) is None:
                return  # SB126
            raise ValueError("not a list of nodes")
        if any("[" in host or "]" in host for host in hosts):
            raise ValueError("a bracket is not closed, or not opened")
        if option == "exclude" and (both := set(hosts) & _asked_for(job)):
            raise ValueError(f"{', '.join(sorted(both)[:3])} is in --nodelist too")

    return check


def _asked_for(job: Job) -> set[str]:
    """The nodes of --nodelist; none if Slurm may leave some of them out."""
    from sbatchgen.sbatch.hostlist import hosts_of

    resources = job.resources
    hosts = hosts_of(job.option("nodelist"), slurm=job.slurm, passed=True) or []
    if job.slurm < "23.02":
        return set(hosts[: resources.ntasks])  # of more nodes than tasks, the last ones are left out
    fewer = any(size is not None and size < len(hosts) for size in (resources.ntasks, resources.nodes_min))
    return set() if fewer else set(hosts)


def _resources(text: str, job: Job) -> None:
    if not job.is_script:
        return  # a plan holds nothing but words and counts
    from sbatchgen.sbatch import gres

    if text.lower() != "none":
        gres.check(gres.with_prefix(text, slurm=job.slurm), slurm=job.slurm)


def _gpus(text: str, job: Job) -> None:
    if items := [f"gpu:{item}" for item in text.split(",") if item]:
        _resources(",".join(items), job)


def _tres_per_task(text: str, job: Job) -> None:
    for item in filter(None, text.split(",") if job.slurm >= "24.05" else ()):
        kind = re.split("[/:=]", item, maxsplit=1)[0]
        if kind not in _TRES:
            raise ValueError(
                f"'{kind}' is not a kind of resource" + (": write gres/gpu" if kind == "gpu" else "")
            )


def _tres_bind(text: str, _: Job) -> None:
    from sbatchgen.sbatch.binding import is_resource_binding

    if not is_resource_binding(text):
        raise ValueError("not a binding of a resource")


_CHECKS: dict[str, Callable[[str, Job], None]] = {
    "array": _array,
    "batch": _batch,
    "constraint": _features,
    "dependency": _dependency,
    "exclude": _hosts("exclude"),
    "gres": _resources,
    "licenses": _licenses,
    "nodelist": _hosts("nodelist"),
    "prefer": _features,
    "tres-bind": _tres_bind,
    "tres-per-task": _tres_per_task,
    **dict.fromkeys(_GPUS, _gpus),
}
