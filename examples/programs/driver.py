"""Runs tasks on a Ray cluster, whose address is in RAY_ADDRESS.

python driver.py WORKERS
"""

import socket
import sys
import time

import ray

ray.init()
while ray.cluster_resources().get("CPU", 0) <= int(sys.argv[1]):  # a CPU of the head, and more of each worker
    time.sleep(0.5)


@ray.remote(num_cpus=1)
def place() -> str:
    """Say where it runs, after a second."""
    time.sleep(1)
    return socket.gethostname()


hosts = ray.get([place.remote() for _ in range(4)])
print(f"{ray.cluster_resources()['CPU']:.0f} CPUs; tasks ran on {', '.join(sorted({*hosts}))}")
