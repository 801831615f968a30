"""Ranks that mpirun or ibrun tells, by the variables of the MPI that it starts."""

from __future__ import annotations

import pytest

from training.errors import UserError
from training.processes.ranks import MPI, Place, detect
from training.task import environment_of_task

MEETING = {"MASTER_ADDR": "n1", "MASTER_PORT": "20001"}
# What the batch script has, and each task inherits; these are not its rank.
OF_BATCH = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}


@pytest.mark.parametrize("names", MPI, ids=[names[0].partition("_")[0] for names in MPI])
def test_a_process_has_the_rank_that_its_mpi_tells(names: tuple[str, ...]) -> None:
    environ = {**OF_BATCH, **MEETING, **dict(zip(names, ("5", "1", "8", "4"), strict=True))}
    assert detect(environ, "mpi") == Place("mpi", rank=5, size=8, local_rank=1, local_size=4)
    of_trainer = environment_of_task(environ, "mpi")
    given = [of_trainer[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    assert given == ["5", "1", "8", "4"]


def test_a_process_without_mpi_is_refused() -> None:
    with pytest.raises(UserError, match=r"OMPI_COMM_WORLD_RANK and .* not set"):
        detect({**OF_BATCH, **MEETING}, "mpi")


def test_several_processes_need_a_meeting_place() -> None:
    environ = dict(zip(MPI[0], ("0", "0", "2", "1"), strict=True))
    with pytest.raises(UserError, match="MASTER_ADDR and MASTER_PORT not set"):
        detect(environ, "mpi")
    assert detect({**environ, MPI[0][2]: "1"}, "mpi").size == 1
