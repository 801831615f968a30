"""What mpirun starts on the nodes of a job, as Open MPI 4.1.4 did on Slurm 22.05 with the same scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plan.plans import needs_sandbox, planned

pytestmark = needs_sandbox

# Directives, and for each command the processes on each node; () where none can be said.
SEEN: dict[str, dict[str, tuple[int, ...]]] = {
    "--nodes=3 --ntasks=8": {
        "mpirun": (6, 1, 1),
        "mpirun -np 4": (4,),
        "mpirun --npernode 1": (1, 1, 1),
        "mpirun -n 3 --npernode 2": (2, 1),
    },
    "--nodes=2 --ntasks-per-node=4": {
        "mpirun": (4, 4),
        "mpiexec -np 4": (4,),
        "mpirun -n 3 --npernode 2 --bind-to none": (2, 1),
    },
    "--nodes=3 --ntasks=3": {
        "mpirun": (1, 1, 1),
        "mpirun -np 4": (),  # it refuses, or begins again at the first node: --oversubscribe
        "mpirun -np 2": (1, 1),
        "mpirun -np 2 --map-by node": (),
        "mpirun -np 1 ./a : -np 2": (),
        "ibrun -n 2": (1, 1),  # by TACC's guide
        "srun": (),
    },
}


@pytest.mark.parametrize("shape", SEEN)
def test_processes_are_on_the_nodes_where_mpi_starts_them(tmp_path: Path, shape: str) -> None:
    lines = [f"#SBATCH {option}" for option in shape.split()] + [f"{call} ./b" for call in SEEN[shape]]
    done, _ = planned("\n".join(["#!/bin/bash", *lines, ""]), tmp_path)
    nodes = done.grant.nodes
    expected = [dict(zip(nodes, counts, strict=False)) for counts in SEEN[shape].values()]
    assert [step.by_mpi for step in done.steps] == expected
