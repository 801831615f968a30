"""A trainer that asks a server for completions, as GRPO does.

python train_rl.py --server URL --steps N
"""

import argparse
from urllib.request import urlopen

parser = argparse.ArgumentParser()
parser.add_argument("--server")
parser.add_argument("--steps", type=int, default=3)
flags = parser.parse_args()
for step in range(1, flags.steps + 1):
    with urlopen(f"{flags.server}/prompt-{step}") as answer:  # noqa: S310 - of this job
        print(f"step {step}: {answer.read().decode()}", flush=True)
