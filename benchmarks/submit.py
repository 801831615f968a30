#!/usr/bin/env python3
"""Submissions in parallel while the controller is killed and restarted: is a job lost or submitted twice?

    python benchmarks/submit.py                 # the controller is killed: SIGKILL
    python benchmarks/submit.py --signal TERM   # it ends regularly, and saves its jobs

slurmctld saves accepted jobs some seconds later. If it is killed before, it loses them, and the next one
gives their ids to other jobs: `sbatchgen status` must report these.

Boots a Slurm of its own, as the tests do: needs root and Debian's slurm-wlm and munge.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sbatchgen.jobs.runs.index import LOST, Index, RunJob, index_file  # noqa: E402
from sbatchgen.jobs.slurm.queue import key_of  # noqa: E402
from tests.cluster.slurm import Cluster  # noqa: E402
from tests.jobs.jobs import SBATCHGEN  # noqa: E402

SCRIPT = "#!/bin/bash\n#SBATCH --job-name=parallel --hold --time=5 --mem=100M\ntrue\n"


def main() -> int:
    """Print the figures; return 1 if a job was lost, or submitted twice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--submissions", type=int, default=200)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--signal", choices=["KILL", "TERM"], default="KILL")
    asked = parser.parse_args()
    with Cluster(visible=[Path(sys.base_prefix), Path(sys.prefix), ROOT]) as cluster:
        cluster.put("work/job.sh", SCRIPT)
        done = [0]
        began = time.monotonic()

        def submit(_: int) -> tuple[int, str, str]:
            answer = cluster.run([SBATCHGEN, "submit", "job.sh", "--yes"], cwd=cluster.home / "work")
            done[0] += 1
            return answer.returncode, answer.stdout.strip(), answer.stderr

        def kill() -> None:
            for number in range(asked.kills):
                while done[0] < asked.submissions * (number + 1) // (asked.kills + 1):
                    time.sleep(0.01)
                cluster.stop_controller(asked.signal)
                time.sleep(random.uniform(1, 3))  # noqa: S311
                cluster.start_controller()

        killer = threading.Thread(target=kill)
        killer.start()
        with ThreadPoolExecutor(asked.processes) as threads:
            answers = list(threads.map(submit, range(asked.submissions)))
        killer.join()
        seconds = time.monotonic() - began
        where = ["squeue", "--noheader", "--format=%i %o"]
        rows = [row.split(" ", 1) for row in cluster.run(where, check=True).stdout.splitlines()]
        queued = Counter((job, key_of(command)) for job, command in rows)
        cluster.run([SBATCHGEN, "status"], check=True)
        index = Index(index_file({"HOME": str(cluster.home)}))
        return tell(answers, queued, index.jobs(), seconds)


def tell(
    answers: list[tuple[int, str, str]],
    queued: Counter[tuple[str, str]],
    entered: list[RunJob],
    seconds: float,
) -> int:
    """Print what became of the submissions."""
    accepted = Counter(job for status, job, _ in answers if status == 0)
    known = Counter((job.id, job.key) for job in entered if job.state != LOST)
    lost = [job for job in entered if job.state == LOST]
    wrong: dict[str, Counter[Any]] = {
        "in the queue, but not in the index": queued - known,
        "in the index, but not in the queue": known - queued,
        "in the queue twice": queued - Counter(set(queued)),
        "accepted, but not in the index": accepted - Counter(job.id for job in entered),
        "in the index, but not accepted": Counter(job.id for job in entered) - accepted,
    }
    waited = sum("trying again" in said for _, _, said in answers)
    searched = sum("answer was lost" in said for _, _, said in answers)
    print(f"{len(answers)} submissions in {seconds:.0f} s")
    print(f"exit statuses: {dict(Counter(status for status, _, _ in answers))}")
    print(f"waited for the controller: {waited}; looked for a job whose answer was lost: {searched}")
    print(f"accepted: {sum(accepted.values())}; in the queue: {len(queued)}")
    print(f"accepted and then lost by Slurm, as status says: {len(lost)}")
    for what, jobs in wrong.items():
        print(f"{what}: {sum(jobs.values())} {list(jobs)[:5] or ''}")
    for status, _, said in answers:
        if status:
            print(said.strip().splitlines()[-2:])
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
