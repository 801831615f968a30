"""Why jobs wait, in plain words: every reason of Slurm 26.05, and the texts in place of one."""

from __future__ import annotations

import re

import pytest

from sbatchgen.jobs.slurm.state import Reason, explain_reason
from tests.conftest import FIXTURES
from tests.tables import hold


def reasons() -> list[tuple[str, str]]:
    """The kind and the name of each."""
    lines = (FIXTURES / "job_reasons.tsv").read_text().splitlines()
    return [(kind, name) for kind, _, name in (line.partition("\t") for line in lines) if name]


def test_every_reason_is_explained() -> None:
    hold(is_explained, reasons())


def is_explained(kind: str, name: str) -> None:
    known = explain_reason(name, "4711")
    assert (known.name, known.kind) == (name, kind)
    assert known.means != name
    assert known.fix
    assert not re.search(r"[{}]|\(\)|: $|JOB\b", known.means + known.fix)
    if name.startswith(("QOSMax", "QOSMin", "QOSGrp", "AssocGrp", "AssocMax")):
        assert name in known.means  # which the site's staff will ask for


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "starts", "out of service: n[1-2]"),
        ("(ReqNodeNotAvail, UnavailableNodes:n[1-2])", "starts", "out of service: n[1-2]"),
        ("ReqNodeNotAvail, May be reserved for other job", "starts", "in use, reserved"),
        ("ReqNodeNotAvail, Reserved for maintenance", "starts", "maintenance"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "starts",
            "down, drained, or reserved",
        ),
        ("(launch failed requeued held)", "person", "start failed on a node"),
        ("launch failure limit exceeded requeued held", "person", "failed too often"),
        ("user env retrieval failed requeued held", "person", "login shell"),
        ("job requeued in held state", "person", "held"),
        ("burst_buffer/lua: slurm_bb_data_in: no space", "person", "burst buffer failed"),
        ("RaisedSignal:53(Real-time_signal_19)", "ended", "could not start it"),
        ("RaisedSignal:53(Real-time signal 19)", "ended", "could not start it"),
        ("RaisedSignal:9(Killed)", "ended", "by a signal: Killed"),
        ("QOSMaxGRESPerUser", "starts", "running jobs use up the GPUs of the limit QOSMaxGRESPerUser"),
        ("AssocMaxGRESPerJob", "never", "more GPUs than the limit AssocMaxGRESPerJob"),
        ("AssocGrpBillingMinutes", "starts", "budget of the account or QOS is used up"),
    ],
)
def test_texts_with_more_than_a_name(name: str, kind: str, words: str) -> None:
    known = explain_reason(name, "4711")
    assert known.kind == kind
    assert words in known.means


def test_what_to_type_names_the_job() -> None:
    assert explain_reason("JobHeldUser", "4711_3").fix == "scontrol release 4711_3"


@pytest.mark.parametrize("text", ["a plugin's own words {0} {job}", "", "x" * 100_000])
def test_other_texts_are_passed_on(text: str) -> None:
    assert explain_reason(text, "4711") == Reason(name=text, means=text)
