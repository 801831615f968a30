"""Forty broken jobs and a fixer that reads the JSON alone, and types `argv`: how many reach a job that runs."""

from __future__ import annotations

from tests.budget.broken import BROKEN, mend
from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import Cluster

# What a person must decide, or write into the file: no command line says it.
NOT_MENDED = {
    "spaces around =", "space before the value", "spaces around = of memory", "a dash that is long",  # edit the line
    "shards of more GPUs", "too many GPUs of a mode",  # what the job is for
    "ambiguous time", "a budget and no end",  # how long
    "mistyped profile",  # which cluster
}  # fmt: skip


@on_one_release
def test_a_fixer_that_reads_json_alone_mends_most_jobs(cluster: Cluster) -> None:
    assert len(BROKEN) == 40
    mended = {name: mend(cluster, name, words, files) for name, (words, files) in BROKEN.items()}
    assert {name for name, (job, _) in mended.items() if not job} == NOT_MENDED
    assert [name for name, (_, said) in mended.items() if not said] == [], "these were not broken"
    for job, _ in mended.values():
        if job:
            assert cluster.wait(job)["JobState"] == "COMPLETED", job
