"""How Slurm's commands are asked: what of the environment they see, and what their failures become."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sbatchgen.base.errors import SlurmError
from sbatchgen.jobs.slurm import client
from sbatchgen.jobs.slurm.client import Output, query, query_environment, status_in_shell, submit_environment


def program(folder: Path, text: str) -> dict[str, str]:
    """The environment in which squeue is this program."""
    (folder / "squeue").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "squeue").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_a_query_is_not_changed_by_the_environment() -> None:
    asked = {
        "HOME": "/home/me",
        "SLURM_CONF": "/etc/slurm.conf",
        "LC_ALL": "de_DE.UTF-8",
        **dict.fromkeys(("SQUEUE_FORMAT", "SINFO_FORMAT", "SACCT_FEDERATION", "SCONTROL_ALL"), "x"),
        **dict.fromkeys(("SLURM_TIME_FORMAT", "SLURM_CLUSTERS", "SLURM_JSON", "SLURM_YAML"), "x"),
        "SLURM_BITSTR_LEN": "9",
        "SLURM_JOB_ID": "1",
    }
    assert query_environment(asked) == {
        "HOME": "/home/me",
        "SLURM_CONF": "/etc/slurm.conf",
        "LC_ALL": "C",
        "SLURM_BITSTR_LEN": "0",
    }


def test_a_submission_keeps_what_does_not_change_the_job() -> None:
    asked = {"HOME": "/home/me", "SLURM_CONF": "x", "SQUEUE_ALL": "x", "SBATCH_QOS": "x", "SLURM_JOB_ID": "1"}
    kept = {"HOME": "/home/me", "SLURM_CONF": "x", "SQUEUE_ALL": "x"}
    left_out = ["PYXIS_CONTAINER_IMAGE", "SBATCH_QOS", "SLURM_JOB_ID"]
    assert submit_environment(asked | {"PYXIS_CONTAINER_IMAGE": "x"}) == (kept, left_out)


def test_an_answer_is_text_whatever_its_bytes(tmp_path: Path) -> None:
    answer = query(
        ["squeue", "-h"], program(tmp_path, r"printf 'a\377b'; printf '\351' >&2; cat; echo $1; exit 3")
    )
    assert answer == Output("squeue", 3, "a\ufffdb-h\n", "\ufffd", client.QUERY_TIMEOUT_S)
    assert answer.failure == "squeue ended with exit status 3"
    assert not answer.is_controller_down


def test_a_command_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "QUERY_TIMEOUT_S", 0.5)
    begun = time.monotonic()
    answer = query(["squeue"], program(tmp_path, "echo first; exec sleep 500"))
    assert time.monotonic() - begun < 400
    assert (answer.status, answer.out) == (None, "first\n")
    assert answer.failure == "squeue did not end within 0.5 s"
    assert answer.is_controller_down


@pytest.mark.parametrize(
    ("says", "unreachable"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", True),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", True),
        ("squeue: error: Invalid job id: abc", False),
    ],
)
def test_a_controller_that_does_not_answer_is_known(says: str, *, unreachable: bool) -> None:
    answer = Output("squeue", 1, "", f"{says}\n", 30)
    assert answer.is_controller_down == unreachable
    (problem,) = answer.error.problems
    assert problem.what.endswith(says)
    assert ("scontrol ping" in problem.fix) == unreachable
    assert not Output("squeue", 0, "", says, 30).is_controller_down


NOT_CONFIGURED = """\
scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
scontrol: error: fetch_config: DNS SRV lookup failed
scontrol: error: _establish_config_source: failed to fetch config
scontrol: fatal: Could not establish a configuration source
"""


def test_a_machine_without_a_cluster_is_told_in_a_line() -> None:
    (problem,) = Output("scontrol", 1, "", NOT_CONFIGURED, 30).error.problems
    assert problem.what == "scontrol finds no slurm.conf: Could not establish a configuration source"
    assert problem.fix == "use a login node of the cluster"


@pytest.mark.parametrize("named", [True, False])
def test_a_missing_slurm_conf_is_told_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    """Slurm itself looks a minute long for the file that SLURM_CONF names."""
    monkeypatch.setattr(client, "MISSING_CONF_S", 0.5)
    monkeypatch.setattr(client, "QUERY_TIMEOUT_S", 1)
    lost = "s_p_parse_file: cannot stat file /none/slurm.conf: No such file or directory"
    environment = program(
        tmp_path, f"echo 'squeue: error: {lost}, retrying in 1sec up to 60sec' >&2; exec sleep 500"
    )
    answer = query(["squeue"], environment | ({"SLURM_CONF": "/none/slurm.conf"} if named else {}))
    assert (answer.status, answer.timeout) == (None, 0.5 if named else 1)
    (problem,) = answer.error.problems
    assert problem.what == f"squeue finds no slurm.conf: {lost.partition(': ')[2]}"
    assert problem.fix.endswith("unset SLURM_CONF")


def test_what_slurm_hides_is_told() -> None:
    answer = Output("scontrol", 1, "", "slurm_load_node error: Access/permission denied\n", 30)
    assert "PrivateData" in answer.error.problems[0].fix


def test_a_command_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="there is no squeue here") as caught:
        query(["squeue"], {"PATH": str(tmp_path)})
    assert "login node" in caught.value.problems[0].fix
    environment = program(tmp_path, "")
    (tmp_path / "squeue").chmod(0o644)
    with pytest.raises(SlurmError, match=f"can't start {tmp_path}/squeue: Permission denied"):
        query(["squeue"], {**environment, "PATH": str(tmp_path)})


def test_a_signal_is_an_exit_status_as_in_a_shell(tmp_path: Path) -> None:
    assert query(["squeue"], program(tmp_path, "kill -TERM $$")).status == 143
    assert [status_in_shell(status) for status in (0, 3, -9)] == [0, 3, 137]
