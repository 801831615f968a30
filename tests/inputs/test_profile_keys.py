"""Each key of a profile has a use, and whoever adds one knows where."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from sbatchgen.check.cluster_facts import Limits, NodeFacts, Qos
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.inputs.start_settings import JobSettings
from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "sbatchgen"
# What Slurm does not know: documentation says it.
NOT_DISCOVERED = {
    *("processes_per_gpu", "gpus_max_user", "gpus_max_account"),
    *(
        "gpu_cpus",
        "gpu_memory",
        "mem_installed",
        "gpu_type_required",
        "internet",
        "node_minutes_max",
        "time_by_nodes",
    ),
}


def words(files: Iterable[Path]) -> Iterator[str]:
    """Attributes, keywords and words of texts in modules."""
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                yield node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from node.value.split()
            elif isinstance(node, ast.keyword) and node.arg:
                yield node.arg


def test_each_key_is_read() -> None:
    keys = {field.name for record in (Profile, Partition, NodeFacts, Limits, Qos) for field in fields(record)}
    unused = keys - {*words(PACKAGE.rglob("*.py"))}
    assert unused == set(), "give them a use: mostly a line of sbatchgen/jobs/resolved/resolve.py, or a rule"


def test_discover_fills_in_what_slurm_knows_of_a_partition() -> None:
    own = {field.name for field in fields(Partition)} - {field.name for field in fields(JobSettings)}
    missing = own - {*words((PACKAGE / "lab/discover").glob("*.py"))}
    assert missing == NOT_DISCOVERED, "sbatchgen/lab/discover, or NOT_DISCOVERED here"
