"""A router: it asks each of its workers in turn, and ends.

python route.py --port PORT --workers URL...
"""

import argparse
from urllib.request import urlopen

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--workers", nargs="+")
flags = parser.parse_args()
for number, worker in enumerate(flags.workers):
    with urlopen(f"{worker}/prompt-{number}") as answer:  # noqa: S310 - of this job
        print(f"worker {number}: {answer.read().decode()}", flush=True)
