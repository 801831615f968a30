"""What a step and a start cost beside those of torch: C9 and C10."""

from __future__ import annotations

from benchmarks.speed.figures import Figure, guarded, in_rounds
from benchmarks.speed.runs import Bench, launch, ours

# A model whose own step takes less time than Python around it.
TINY = """
import torch
from torch import nn

def data(config):
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(8 * STEPS, 1, 8, 8, generator=generator)
    return (images, torch.arange(8 * STEPS) % 2), (images[:8], torch.arange(8) % 2)

def model(config):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))

if __name__ == "__main__":
    images, labels = data(None)[0]
    torch.set_num_threads(1)
    net = model(None)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)
    for index in torch.randperm(len(images)).split(8):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images[index]), labels[index])
        loss.backward()
        optimizer.step()
"""
# What torch itself needs: the first optimizer imports its compiler.
ONE_STEP = """
import torch
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01).step()
"""


def part_steps(bench: Bench) -> list[Figure]:
    """A step of a tiny model against a bare loop, and the first one against that of torch alone."""
    step = Figure("C9 a tiny step over a bare loop", "CPU us", 100, higher=False, against="1 us")
    start = Figure("C10 first step over torch's own", "CPU s", 0.4, higher=False, against="1 s")
    steps = 300 if bench.options.quick else 3000
    script, empty = bench.scratch / "site" / "tiny.py", bench.scratch / "empty.py"

    def work() -> None:
        script.write_text(TINY.replace("STEPS", str(steps)), encoding="utf-8")
        empty.write_text(ONE_STEP, encoding="utf-8")
        flags = ("--dataset", "tiny:data", "--model", "tiny:model", "--batch-size", "8", "--optimizer", "sgd")
        contenders = {
            "ours": lambda _: launch(bench, ours(bench, *flags), threads=1, end=steps),
            "bare": lambda _: launch(bench, [str(script)], threads=1, end=steps),
            "first": lambda _: launch(bench, [str(empty)], threads=1, end=1),
        }
        for run in in_rounds(bench.rounds, contenders):
            mine, bare = (
                1e6 / run[name].rate(1, skip=100, last=steps, cpu=True) for name in ("ours", "bare")
            )
            step.ours.append(mine - bare)
            start.ours.append(run["ours"].cpu_s[0] - run["first"].cpu_s[0])
        step.theirs, start.theirs = [1.0] * len(step.ours), [1.0] * len(start.ours)

    return guarded([step, start], work)
