"""The states of jobs: squeue(1) and sacct(1), "JOB STATE CODES"."""

from __future__ import annotations

from sbatchgen.jobs.slurm.state import State, known_states, state_named
from tests.cluster.job import TERMINAL


def test_a_state_is_known_by_its_name() -> None:
    for name, known in known_states().items():
        assert state_named(name) is known
        assert known.words
        assert ":" not in known.words  # they are parts of sentences
    assert len(known_states()) == 29


def test_the_states_in_which_a_job_is_over() -> None:
    assert {known.name for known in known_states().values() if known.ended} == TERMINAL | {"REVOKED"}


def test_who_cancelled_a_job_is_not_part_of_its_state() -> None:
    assert state_named("CANCELLED by 1000") is state_named("CANCELLED")


def test_a_state_of_a_later_release_is_passed_on() -> None:
    assert state_named("DREAMING_DEEPLY") == State("DREAMING_DEEPLY", "dreaming deeply")
