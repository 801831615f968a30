"""A program whose frames come and go all the time, in a way of the kind in its first argument; see ../stacks.py.

It prints the result of each round: all are equal. Another thread waits for a lock, as in each rank of torch.
With WAY=old a signal has faulthandler write the stacks of all threads, whichever thread gets it.
"""

import faulthandler
import hashlib
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import zlib

OLD = 5  # counted from SIGRTMAX
if os.environ.get("WAY") == "old":
    memory = os.memfd_create("sbatchgen-old")
    faulthandler.register(signal.SIGRTMAX - OLD, file=memory, all_threads=True)


def numbers(count):
    for number in range(count):
        yield from (each + number for each in (number, number * 2))


def nested(depth):
    """Run new code inside of new code, with generators half way."""
    names = {"nested": nested, "numbers": numbers, "depth": depth}
    code = "total = sum(numbers(9))\nif depth: total += nested(depth - 1)\nopen_ = [next(numbers(3)) for _ in range(9)]"
    exec(compile(code, f"<generated {depth}>", "exec"), names)
    return names["total"] + sum(names["open_"])


def execs():
    return sum(nested(12) for _ in range(20))


def thread_each():
    """Start many threads that end at once."""
    results = []
    for _ in range(30):
        started = [threading.Thread(target=lambda: results.append(nested(3))) for _ in range(3)]
        for each in started:
            each.start()
        for each in started:
            each.join()
    return sum(results)


def released():
    """Call C that releases the GIL, in two threads, with frames of Python around it."""
    data, results = bytes(range(256)) * 400, []

    def work():
        for _ in range(30):
            results.append(zlib.crc32(hashlib.sha256(data).digest()) + nested(2))

    other = threading.Thread(target=work)
    other.start()
    work()
    other.join()
    return sum(results)


def square(number):
    return nested(2) * number


def loaders():
    """Fork workers that compute and end, as a loader does."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return sum(pool.map(square, range(20)))


def imports():
    """Import in a program of its own, which is asked as well."""
    code = "import sys, json, decimal, asyncio, unittest.mock, xml.dom.minidom\nprint(len(sys.modules) > 99)"
    return (
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
        .stdout.decode()
        .strip()
    )


def import_torch():
    return (
        subprocess.run(
            [sys.executable, "-c", "import torch; print(int(torch.ones(9).sum()))"],
            check=True,
            stdout=subprocess.PIPE,
        )
        .stdout.decode()
        .strip()
    )


def compiled(backend):
    """Compile a model again, with a break of its graph, and take a step."""
    import torch
    import torch._dynamo

    def forward(weights, values):
        for number in range(4):
            values = torch.tanh(values @ weights) + number
        torch._dynamo.graph_break()
        return (values + sum(numbers(20))).sum()

    def once():
        torch._dynamo.reset()
        weights = torch.full((8, 8), 0.01, requires_grad=True)
        made = torch.compile(forward, backend=backend)
        for _ in range(5):
            loss = made(weights, torch.ones(2, 8))
            loss.backward()
        counters = torch._dynamo.utils.counters["frames"]
        frames = dict(counters)
        counters.clear()
        return f"{loss.item():.6f} {weights.grad.sum().item():.6f} {sorted(frames.items())}"

    return once


ROUNDS = {
    "exec": execs,
    "threads": thread_each,
    "released GIL": released,
    "loaders": loaders,
    "imports": imports,
    "import torch": import_torch,
}


def main():
    kind = sys.argv[1]
    once = compiled(kind.rpartition(" ")[2]) if kind.startswith("compile") else ROUNDS[kind]
    held = threading.Lock()
    held.acquire()
    threading.Thread(target=held.acquire, daemon=True).start()
    once()  # what is imported late
    while not select.select([sys.stdin], [], [], 0)[0]:  # until the other end is closed
        print(once(), flush=True)
    print("end", flush=True)
    sys.stdout.flush()
    os._exit(0)  # the thread still waits


if __name__ == "__main__":
    main()
