"""What a slurmctld says of requests, what lint says of them, and why they differ.

The imaginary cluster is large, so that what slurmctld refuses it mostly refuses for how a value is written.
"""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from sbatchgen.check.lint.linter import lint
from sbatchgen.check.script.job import NO_CLUSTER
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.document import decode
from sbatchgen.jobs.inputs.profile import Profile
from tests.cluster.controller import Controller
from tests.rules.public_options import Request

NODES = "NodeName=n[1-64] Sockets=2 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=1000000 TmpDisk=900000 Gres=gpu:a100:8 Feature=a,b,c,d"
PARTITIONS = "PartitionName=gpu Nodes=ALL Default=YES MaxTime=14-00:00:00\nPartitionName=cpu Nodes=ALL MaxTime=14-00:00:00"
GRES = "Name=gpu Type=a100 File=/dev/nvidia[0-7]"
EXTRA = "EnforcePartLimits=ALL\nLicenses=matlab:8\nFirstJobId=1000000"  # ids that no request names


BLIND, INFORMED = "without a profile", "with the profile"
PROFILE = """
name: imaginary
url: https://slurm.schedmd.com
checked: 2026-11-24
default_partition: gpu
gres_types: [gpu]
licenses: {matlab: 10}
limits: {enforce_part_limits: all, max_array_size: 1001}
partitions:
  gpu: &gpu {time_max: 14-00:00:00, nodes: "n[1-64]", nodes_max: 64, cpus_per_node: 128, gpus_per_node: 8, gpu_type: a100,
             mem_per_node: 1000000M, features: [a, b, c, d]}
  cpu: *gpu
"""
# Errors of lint about what Slurm takes, and what then goes wrong.
NOT_REFUSED = frozenset({"SB604"})


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What slurmctld said of requests.

    Attributes:
        slurm: The line of its release.
        now: When it was asked, in seconds since 1970.
        requests: What it was asked.
        said: Why it refused each, in its own words; "" where it did not.
    """

    slurm: str
    now: int
    requests: tuple[Request, ...]
    said: tuple[str, ...]

    def write(self, file: Path) -> None:
        """Write them into a file, which is the same for the same answers."""
        words = sorted(set(self.said))
        rows = [
            [words.index(said), request.mistyped, request.options]
            for request, said in zip(self.requests, self.said, strict=True)
        ]
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        head = json.dumps({"slurm": self.slurm, "now": self.now, "words": words})[:-1]
        file.write_bytes(gzip.compress(f'{head},"answers":[\n{lines}\n]}}\n'.encode(), 9, mtime=0))

    @classmethod
    def read(cls, file: Path) -> Answers:
        """Return those of a file."""
        data = json.loads(gzip.decompress(file.read_bytes()))
        requests = tuple(
            Request(tuple((name, value) for name, value in options), mistyped)
            for _, mistyped, options in data["answers"]
        )
        said = tuple(data["words"][place] for place, _, _ in data["answers"])
        return cls(slurm=data["slurm"], now=data["now"], requests=requests, said=said)


def asked(requests: Sequence[Request], *, release: str, root: Path | None = None) -> Answers:
    """Ask a slurmctld of the imaginary cluster."""
    with Controller(nodes=NODES, partitions=PARTITIONS, gres=GRES, extra=EXTRA, root=root) as controller:
        now = int(time.time())
        verdicts = list(controller.ask([request.script for request in requests]))
    said = tuple(
        verdict.stderr.strip().rpartition("\n")[2] if verdict.returncode else "" for verdict in verdicts
    )
    return Answers(slurm=release, now=now, requests=tuple(requests), said=said)


class Difference(NamedTuple):
    """A request that lint and slurmctld judge differently.

    Attributes:
        kind: What lint knew: BLIND or INFORMED.
        request: What was asked.
        said: Why slurmctld refused it; "" where lint alone does.
        rules: The rules of lint that have an error.
        reason: Why they differ; "" where that is not known.
    """

    kind: str
    request: Request
    said: str
    rules: tuple[str, ...]
    reason: str


def differences(answers: Answers) -> Iterator[Difference]:
    """Yield where lint says something else. What it reports without a profile, it reports with one too."""
    with mock.patch("time.time", return_value=float(answers.now)):
        for request, said in zip(answers.requests, answers.said, strict=True):
            blind = errors(request, answers.slurm, None) if said else ()
            informed = blind or errors(request, answers.slurm, _profile(answers.slurm))
            if informed and not said:
                blind = errors(request, answers.slurm, None)
            why = reason_of(request, said)
            if bool(informed) != bool(said):
                yield Difference(INFORMED, request, said, informed, why)
            if bool(blind) != bool(said):
                yield Difference(BLIND, request, said, blind, OF_CLUSTER if said and informed else why)


OF_CLUSTER = "what the cluster has: reported with its profile"


@cache
def _profile(slurm: str) -> Profile:
    return decode(f"{PROFILE}slurm: '{slurm}'\n", Profile, name="imaginary").value


def errors(request: Request, slurm: str, profile: Profile | None) -> tuple[str, ...]:
    """Return the rules with an error that says: Slurm refuses this."""
    subject = JobScript(
        file="job.sh",
        text=request.script,
        slurm=slurm,
        profile=profile or NO_CLUSTER,
        makes_log_folders=True,
    )
    rules = {finding.rule for finding in lint(subject) if finding.severity == "error"}
    return tuple(sorted(rules - NOT_REFUSED))


def reason_of(request: Request, said: str) -> str:
    """Return why slurmctld refuses what lint takes; "" without a reason, and where it takes what lint refuses."""
    for words, pattern, reason in REASONS:
        if said and words in said and re.search(pattern, request.shown):
            return reason
    return ""


_NO_NODES = "node configuration is not available"
# What slurmctld says, a pattern of the request that it says it of, and why lint has no error.
REASONS = (
    (
        _NO_NODES,
        "--ntasks=.*--ntasks-per-node=|--ntasks-per-socket=",
        "tasks that do not fit on the nodes: a warning of lint (SB132), or taken by other releases",
    ),
    (
        _NO_NODES,
        "--nodelist=",
        "--test-only alone refuses more nodes than the named ones: submitted, it is taken",
    ),
    ("", "--gpus-per-task=|--ntasks-per-gpu=|--gpus=.*--nodes=.*--ntasks=", "GPUs of tasks"),
)
