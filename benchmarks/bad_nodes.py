#!/usr/bin/env python3
"""Nodes made bad on a real Slurm, each kind at each of four places: is the node named, and no other?

    python benchmarks/bad_nodes.py [--healthy 200] [--load 8] [--sid] [KIND...]

As root, with what tests/cluster needs. GPUs are stand-ins: a torch and an nvidia-smi that read their faults
from a file on the node (tests/gpu_stand_in.py). All else is really broken there, which is proven before each
start. Starts of healthy nodes follow, half of them beside busy processes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests import gpu_stand_in  # noqa: E402
from tests.cluster import fixtures  # noqa: E402
from tests.cluster.slurm import NODES, Cluster  # noqa: E402

SCRIPT = """#!/bin/bash
export MASTER_PORT=29511 NCCL_SOCKET_IFNAME=ib0 PATH={home}/stand-in:{python}:$PATH PYTHONPATH={home}/stand-in
export PYTHONDONTWRITEBYTECODE=1
python3 {root}/training/preflight.py {home}/run --gpus 4 -- srun {home}/python || exit
echo training begins
"""


class Kind(NamedTuple):
    """A way to break a node: commands of root there; what proves it, and what mends it."""

    breaks: str
    proof: str  # succeeds only on a broken node
    mends: str
    part: str  # that is to be named


def gpu(kind: str, part: str = "GPU 2") -> Kind:
    """A fault of GPU 2, which the stand-ins read."""
    path = gpu_stand_in.FAULT
    return Kind(f"echo 2 {kind} >{path}; chmod 644 {path}", f"grep -qx '2 {kind}' {path}", f"rm {path}", part)


SHM, TMP = "/dev/shm", "/tmp"  # noqa: S108
FULL = "mount -o remount,size=64m {0}; head -c 48M /dev/zero >{0}/left; chown alice {0}/left"
LESS = "test $(df --output=avail -k {0} | tail -n 1) -lt {1}"
KINDS = {
    "shm full": Kind(FULL.format(SHM), LESS.format(SHM, 32768), f"rm {SHM}/left", SHM),
    "tmp read-only": Kind(
        "mount -o remount,ro /tmp", "! touch /tmp/x", "mount -o remount,rw /tmp", TMP
    ),
    "tmp full": Kind(
        "mount -o remount,size=64m /tmp", LESS.format(TMP, 102400), "mount -o remount,size=50% /tmp", TMP
    ),
    "tmp without inodes": Kind(
        "mount -o remount,nr_inodes=60 /tmp",
        "test $(df --output=iavail /tmp | tail -n 1) -lt 100",
        "mount -o remount,nr_inodes=100k /tmp",
        TMP,
    ),
    "run folder read-only": Kind(
        "mount --bind {home}/run {home}/run; mount -o remount,ro,bind {home}/run",
        "! touch {home}/run/x",
        "umount {home}/run",
        "{home}/run",
    ),
    "interface missing": Kind(
        "ip link set ib0 name ib9", "! ip link show ib0",
        "ip link set ib9 name ib0; ip link set ib0 up", "interface ib0",
    ),
    "interface down": Kind(
        "ip link set ib0 down", "! ip link show ib0 up | grep -q ib0",
        "ip link set ib0 up", "interface ib0",
    ),
    "unreachable": Kind(
        "ip address flush dev ib0; ip address add 10.99.9.9/24 dev ib0",
        "! ping -c 1 -W 1 10.77.1.250",
        "ip address flush dev ib0; ip address add {address}/24 dev ib0",
        "network",
    ),
    "left-over process": Kind(
        "setsid setpriv --reuid=20001 --regid=20001 --clear-groups env SLURM_JOB_ID=99999 sha1sum /dev/zero &"
        " sleep 1",
        "pgrep -x sha1sum", "pkill -x sha1sum", "left over",
    ),
    "no Python": Kind(
        "mount --bind /dev/null {home}/python", "! test -s {home}/python", "umount {home}/python", "start"
    ),
    "torch without a library": gpu("import", "torch"),
    "GPU missing": gpu("missing", "GPU 3"),
    "GPU computes wrong": gpu("wrong"),
    "GPU error": gpu("error"),
    "GPU hangs": gpu("hangs"),
    "GPU memory in use": gpu("full"),
    "GPU memory broken": gpu("memory"),
    "GPU too hot": gpu("hot"),
    "GPU with a stranger": gpu("stranger"),
}  # fmt: skip


def address(node: str) -> str:
    """The address of a node in the second network."""
    return f"10.77.1.{NODES.index(node) + 10}"


@contextmanager
def cluster(*, sid: bool) -> Iterator[Cluster]:
    """Four nodes with a second network, ib0, and the stand-ins."""
    root = ROOT / "build" / "sid" if sid else None
    with Cluster(visible=[*fixtures.VISIBLE, ROOT], root=root.resolve() if root else None) as running:
        stand_in, python = running.home / "stand-in", running.home / "python"
        stand_in.mkdir()
        gpu_stand_in.write(stand_in)
        (running.home / "run").mkdir()
        running.root(["chown", running.user, str(running.home / "run")])
        python.write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        for node in NODES:  # a second address of the same wire
            running.root(
                ["ip", "link", "add", "ib0", "link", running.interface, "type", "macvlan", "mode", "bridge"],
                on=node,
            )
            running.root(["ip", "address", "add", f"{address(node)}/24", "dev", "ib0"], on=node)
            running.root(["ip", "link", "set", "ib0", "up"], on=node)
        yield running


def check(running: Cluster) -> tuple[dict[str, set[str]], dict[str, str], float]:
    """Run the check as a job of four nodes; the parts that it named, by node, the job, and the seconds."""
    words = {"home": running.home, "root": ROOT, "python": Path(sys.executable).parent}
    script = running.put("job.sh", SCRIPT.format(**words), mode=0o755)
    log = running.home / "job.out"
    log.unlink(missing_ok=True)
    job = running.wait(running.sbatch("--nodes=4", "--gpus-per-node=4", f"--output={log}", script))
    text = log.read_text()
    took = re.search(r"Preflight of .* in (\d+) s", text)
    named: dict[str, set[str]] = {}
    for node, part in re.findall(r"(?m)^error: preflight: (all nodes|\S+): (.*?): ", text):
        named.setdefault(node, set()).add(part)
    return named, job, float(took[1]) if took else 0.0


def planted(running: Cluster, name: str) -> int:
    """Break each node in one way; print a row, and return how many were not named right."""
    right, longest, wrong = 0, 0.0, []
    for node in NODES:
        kind = Kind(
            *(
                text.replace("{home}", str(running.home)).replace("{address}", address(node))
                for text in KINDS[name]
            )
        )
        running.root(["bash", "-c", f"{{ {kind.breaks}; }} >/dev/null 2>&1 </dev/null"], on=node)
        running.root(["bash", "-c", kind.proof], on=node)
        named, job, took = check(running)
        running.root(["bash", "-c", kind.mends], on=node)
        is_right = {*named} == {node} and kind.part in named[node] and job["ExitCode"] == "69:0"
        right, longest = right + is_right, max(longest, took)
        wrong += [] if is_right else [f"    {node}: {named} {job['JobState']} {job['ExitCode']}"]
    print(f"{name:26} {right} of {len(NODES)}, {longest:.0f} s", *wrong, sep="\n", flush=True)
    return len(NODES) - right


def healthy(running: Cluster, starts: int, load: int) -> int:
    """Check nodes that are healthy, the second half beside busy processes; return how often one was named."""
    longest, wrong = 0.0, []
    busy: list[subprocess.Popen[bytes]] = []
    for start in range(starts):
        if start == starts // 2:
            busy = [subprocess.Popen(["sha1sum", "/dev/zero"]) for _ in range(load)]
        named, job, took = check(running)
        longest = max(longest, took)
        wrong += [] if not named and job["JobState"] == "COMPLETED" else [f"    {named} {job['ExitCode']}"]
    for process in busy:
        process.kill()
    print(f"healthy                    {len(wrong)} of {starts} named, {longest:.0f} s", *wrong, sep="\n")
    return len(wrong)


def main() -> int:
    """Print a table; return 1 if a node was not named right, or a healthy one was."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--healthy", type=int, default=200, help="starts of healthy nodes")
    parser.add_argument("--load", type=int, default=8, help="busy processes beside the second half of them")
    parser.add_argument("--sid", action="store_true", help="on the Slurm of `make sid`")
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    asked = parser.parse_args()
    with cluster(sid=asked.sid) as running:
        failures = sum(planted(running, name) for name in asked.kinds or KINDS)
        failures += healthy(running, asked.healthy, asked.load) if asked.healthy else 0
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
