"""Slurm's refusals in plain words, held against what a real one says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from sbatchgen.check.sbatch.reader import read_script
from sbatchgen.jobs.slurm.refusal import (
    OptionSource,
    Refusal,
    known_texts,
    options_at_fault,
    options_of_job,
    options_of_script,
    read_test_answer,
    refusals,
)
from tests.cluster.controller import Controller
from tests.conftest import FIXTURES
from tests.scripts import resolved

# Directives, a part of the explanation, and the options at fault. The real sbatch says why in each case.
REFUSED = (
    ("--partition=nope", "no partition 'nope'", "partition"),
    ("--partition=closed", "groups that you are not in", "partition"),
    ("--partition=drain", "takes no jobs at present", "partition"),
    ("--partition=vip", "can't charge a job here", "partition"),
    ("--nodes=4", "than the partition allows", "nodes"),
    ("--time=2-00:00:00", "over the limit of the partition", "time"),
    ("--time=10 --time-min=20", "shortest time is longer", "time-min time"),
    ("--mem=220G", "more memory than a job may have", "mem"),
    ("--cpus-per-task=100", "no node of the partition has all of this", "cpus-per-task"),
    ("--gpus-per-node=5", "no node of the partition has all of this", "gpus-per-node"),
    ("--gpus-per-node=h100:1", "no node of the partition has all of this", "gpus-per-node"),
    ("--gres=shard:65", "no node of the partition has all of this", "gres"),
    ("--gres=gpus:1", "in a way that the cluster does not know", "gres"),
    ("--gres=gpu:1,shard:2", "or both together", "gres"),
    ("--mem=1G --mem-per-cpu=1G", "in more than one way", "mem mem-per-cpu"),
    ("--mem-per-gpu=1G", "no GPU is asked for", "mem-per-gpu"),
    ("--constraint=slow", "no node has this feature", "constraint"),
    ("--prefer=slow", "no node has this feature", "prefer"),
    ("--nodelist=x9", "no node of this name", "nodelist"),
    ("--nodelist=d1", "not in the partition", "nodelist"),
    ("--reservation=none", "no such reservation", "reservation"),
    ("--licenses=matlab:1", "no such license", "licenses"),
    ("--array=0-5000", "MaxArraySize", "array"),
    ("--dependency=foo", "names an unknown job", "dependency"),
    ("--nice=-5", "only the site's staff", "nice"),
    ("--gpus=1 --nodes=2", "fewer GPUs than nodes", "gpus nodes"),
    ("--gpus=3 --gpus-per-node=2", "contradict each other", "gpus gpus-per-node"),
    ("--gpus-per-task=1 --nodes=2 --cpus-per-task=1", "GPUs per task", "gpus-per-task nodes cpus-per-task"),
    ("--cpus-per-gpu=2 --cpus-per-task=2 --gpus=1", "--cpus-per-gpu and --cpus-per-task exclude", "cpus-per-gpu cpus-per-task"),
    ("--ntasks-per-gpu=2 --gpus-per-task=1", "exclude each other", "gpus-per-task ntasks-per-gpu"),
    ("--time=24h", "not one that --time takes", "time"),
    ("--mem=16GiB", "not one that --mem takes", "mem"),
    ("--nodes=4-2", "wrong way round", "nodes"),
    ("--ntasks=2x", "not one that --ntasks takes", "ntasks"),
    ("--job-name=my run", "'run' in an #SBATCH line", ""),
    ("--foo=1", "this Slurm has no --foo", "foo"),
    ("--gpu=1", "several options start so", "gpu"),
    ("--requeue=1", "--requeue takes no value", "requeue"),
    ("--time", "--time needs a value", "time"),
    ('--job-name="x', "not closed", ""),
    ("--begin=2099-01-01 --deadline=2020-01-01", "before its deadline", "begin deadline"),
    ("--hint=foo", "'foo' is not a value of --hint", "hint"),
    ("--clusters=nope", "no cluster 'nope'", "clusters"),
)  # fmt: skip


@pytest.fixture(scope="module")
def controller(controller_factory: Callable[..., Controller]) -> Controller:
    return controller_factory(
        nodes="NodeName=n[1-4] CPUs=64 RealMemory=256000 Gres=gpu:a100:4,shard:64 Feature=fast\nNodeName=d1 CPUs=4",
        partitions="PartitionName=gpu Nodes=n[1-4] Default=YES MaxTime=1-00:00:00 MaxNodes=3 MaxMemPerNode=200000\n"
        "PartitionName=closed Nodes=n1 AllowGroups=root\nPartitionName=drain Nodes=n1 State=DRAIN\n"
        "PartitionName=vip Nodes=n1 AllowAccounts=vip",
        gres="NodeName=n[1-4] Name=gpu Type=a100 File=/dev/gpu[0-3]\nNodeName=n[1-4] Name=shard Count=64",
        extra="EnforcePartLimits=ALL\nMaxArraySize=1000",
    )


@pytest.mark.parametrize(("directives", "words", "options"), REFUSED, ids=lambda text: text[:30])
def test_what_slurm_refuses_is_explained_with_the_option_at_fault(
    controller: Controller, directives: str, words: str, options: str
) -> None:
    script = f"#!/bin/bash\n#SBATCH {directives}\nhostname\n"
    verdict = controller.test_only(script)
    answer = read_test_answer(
        verdict.returncode, verdict.stderr, options_of_script(read_script(script), "job.slurm")
    )
    assert not answer.accepted
    (refusal,) = answer.refusals
    assert words in refusal.means, verdict.stderr
    assert refusal.fix
    assert {asked.option for asked in refusal.options} == set(options.split())
    assert all(asked.at == "job.slurm:2" for asked in refusal.options)


def test_what_slurm_accepts_is_told_with_its_start_and_its_warnings(controller: Controller) -> None:
    verdict = controller.test_only("#!/bin/bash\n#SBATCH --ntasks=1 --nodes=3\nhostname\n")
    answer = read_test_answer(verdict.returncode, verdict.stderr, {})
    assert answer.accepted
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", answer.start)
    assert answer.nodes == "n1"
    assert answer.warnings == ("sbatch: Warning: can't run 1 processes on 3 nodes, setting nnodes to 1",)


# Errors of Slurm that a batch job can be refused with; the others are about steps, daemons and other requests.
def errors_of_a_submission() -> list[str]:
    rows = [line.split("\t") for line in (FIXTURES / "slurm_errno_submit.tsv").read_text().splitlines()]
    return [text for number, _, text in rows if not number.startswith("#")]


@pytest.mark.parametrize("text", errors_of_a_submission())
def test_every_error_of_a_submission_is_known(text: str) -> None:
    """Names and texts: slurm_errno.c of Slurm 26.05.3."""
    (refusal,) = refusals(1, f"sbatch: error: Batch job submission failed: {text}\n", {})
    assert refusal.says == text
    assert refusal.means


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("AssocGrpBillingMinutes", "budget is used up"),
        ("QOSMaxGRESPerUser", "GPUs are over the limit QOSMaxGRESPerUser"),
        ("QOSMaxWallDurationPerJobLimit", "time limit is over the limit"),
        ("AssocMaxSubmitJobLimit", "as many jobs as"),
        ("QOSMaxSubmitJobPerUserLimit", "as many jobs as"),
        ("QOSMaxCpuPerUserLimit", "CPUs are over"),
        ("QOSMinGRES", "asks for less than its QOS requires: limit QOSMinGRES"),
        ("AssocGrpMemLimit", "memory is over"),
        ("QOSMaxNodePerUserLimit", "nodes are over"),
        ("MaxGRESPerAccount", "GPUs are over"),
    ],
)
def test_a_limit_is_told_by_its_name_and_not_twice(reason: str, words: str) -> None:
    said = f"sbatch: error: {reason}\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n"
    (refusal,) = refusals(1, said, {})
    assert words in refusal.means
    assert refusal.says == reason


def test_an_option_is_shown_with_the_place_where_it_was_written() -> None:
    asked = options_of_job(resolved("ddp", "torchrun", account="abc"))
    assert str(asked["account"]) == "--account=abc (--account)"
    assert asked["time"].at.endswith("profiles/torchrun.yaml:14")
    assert str(asked["exclusive"]).startswith("--exclusive (")
    (refusal,) = refusals(
        1,
        "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
        asked,
    )
    assert refusal.options == (OptionSource("account", "abc", "--account"),)
    assert refusal.problem.at == "--account=abc (--account)"
    assert "Slurm said: Invalid account" in refusal.problem.what


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            (
                "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
                "sbatch: error: fetch_config: DNS SRV lookup failed\n"
                "sbatch: error: _establish_config_source: failed to fetch config\n"
                "sbatch: fatal: Could not establish a configuration source\n"
            ),
            "not the configuration of a cluster",
        ),
        (
            (
                "sbatch: error: get_addr_info: getaddrinfo() failed: Name or service not known: No error, attempt number 5\n"
                'sbatch: error: slurm_set_addr: Unable to resolve "nohost"\n'
                "sbatch: error: Unable to establish control machine address\n"
                "allocation failure: No error\n"
            ),
            "can't be reached from here",
        ),
        (
            "allocation failure: Unable to contact slurm controller (connect failure)\n",
            "can't be reached from here",
        ),
    ],
)
def test_a_slurm_that_is_not_there_is_told_once(said: str, words: str) -> None:
    """What sbatch 22.05 says without a configuration, with a controller of no address, and with one that is down."""
    (refusal,) = refusals(1, said, {})
    assert words in refusal.means
    assert refusal.says in said.splitlines()[0]


def test_what_a_site_says_is_passed_on_as_it_is() -> None:
    said = "sbatch: error: Please name your grant\nsbatch: error: Batch job submission failed: Unspecified error\n"
    assert refusals(1, said, {}) == [
        Refusal(says="Please name your grant"),
        Refusal(says="Unspecified error"),
    ]


def test_an_sbatch_that_fails_without_a_word_is_told() -> None:
    answer = read_test_answer(9, "", {})
    assert answer.refusals == (Refusal(says="sbatch ended with exit status 9"),)


def test_the_texts_of_a_real_sbatch_are_known() -> None:
    cases = json.loads((FIXTURES / "sbatch_offline_parse_22.05.8.json").read_text())
    said = {text for case in cases for text in case["messages"] if text.startswith(("error: ", "fatal: "))}
    assert len(said) > 10
    for text in said:
        assert all(refusal.means for refusal in refusals(1, f"sbatch: {text}", {})), text


def test_a_refusal_names_options_that_there_are() -> None:
    from sbatchgen.check.sbatch.option_table import specs

    known = {*specs("22.05"), *specs("26.05")}
    for _, known_text in known_texts().patterns:
        assert {name for name in options_at_fault(known_text) if not name.startswith("{")} <= known, (
            known_text
        )
