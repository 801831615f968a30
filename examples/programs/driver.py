"""Runs tasks on a Ray cluster, whose address is in RAY_ADDRESS.

python driver.py WORKERS
"""

import socket
import sys
import time

import ray


def cpus() -> float:
    """Return the CPUs of the cluster."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get("CPU", 0)


ray.init()
while cpus() <= int(sys.argv[1]):  # a CPU of the head, and more of each worker
    time.sleep(0.5)


@ray.remote(num_cpus=1)
def place() -> str:
    """Say where it runs, after a second."""
    time.sleep(1)
    return socket.gethostname()


hosts = ray.get([place.remote() for _ in range(4)])
print(f"{cpus():.0f} CPUs; tasks ran on {', '.join(sorted({*hosts}))}")
