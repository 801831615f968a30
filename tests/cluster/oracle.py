"""What the real sbatch reads in a script, without a cluster: about 10 ms a script, as any user.

With -v, sbatch prints the options it understood before it looks for slurmctld. Ours is on a port where nobody
listens, so nothing can be submitted, and sbatch is ended once it has tried. It reports values as it keeps
them: "24" minutes become 00:24:00, paths become absolute.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONFIG = """\
ClusterName=nowhere
SlurmctldHost=localhost
SlurmctldPort=1
AuthType=auth/munge
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu,shard
NodeName=x[1-2] CPUs=8 RealMemory=16000 Gres=gpu:a100:4,shard:64
PartitionName=gpu Nodes=ALL Default=YES
"""
LEAVE = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_")
DEADLINE_S = 3.0

# sbatch is through with the script once it looks for slurmctld
_SUBMITS = re.compile(r"failed to connect|Unable to contact")
_OURS = re.compile(r"debug\d*: |select/|-{20}")
_OPTION = re.compile(r"(\S+)\s*: (.*)")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What sbatch made of a script.

    Attributes:
        components: The options of each component of a heterogeneous job, by their long names; one for other
            jobs, none if sbatch stopped before.
        messages: All else it said, like "error: Invalid --time specification".
        returncode: Its exit status if it refused the script, None if it went on to submit it.
    """

    components: list[dict[str, str]]
    messages: list[str]
    returncode: int | None

    @property
    def options(self) -> dict[str, str]:
        """The options of the first component."""
        return self.components[0] if self.components else {}


def read(script: str, *arguments: str, env: Mapping[str, str] | None = None) -> Reading:
    """What sbatch reads in a script, given these options before it and these SBATCH_ variables."""
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        Path(folder, "slurm.conf").write_text(CONFIG)
        Path(folder, "job.sh").write_text(script, encoding="utf-8", errors="surrogateescape", newline="")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(LEAVE)}
        process = subprocess.Popen(
            ["sbatch", "-vvv", *arguments, "job.sh"],
            cwd=folder,
            env={**clean, "SLURM_CONF": f"{folder}/slurm.conf", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogateescape",
        )
        deadline = threading.Timer(
            DEADLINE_S, process.kill
        )  # a script with --quiet hides the sign that we wait for
        deadline.start()
        lines = []
        assert process.stderr
        with process.stderr:
            for line in process.stderr:
                if _SUBMITS.search(line):
                    process.kill()
                    break
                lines.append(line.rstrip("\n").removeprefix("sbatch: "))
        returncode = process.wait()
        deadline.cancel()
    return _parse(lines, returncode=None if returncode < 0 else returncode)


def _parse(lines: list[str], *, returncode: int | None) -> Reading:
    components: list[dict[str, str]] = []
    messages = []
    inside = False
    for line in lines:
        if line == "defined options":
            inside = True
            components.append({})
        elif line == "end of defined options":
            inside = False
        elif inside and (option := _OPTION.fullmatch(line)):
            components[-1][option[1]] = option[2]
        elif not _OURS.match(line):
            messages.append(line)
    for component in components:
        component.pop("verbose", None)
    return Reading(components=components, messages=messages, returncode=returncode)
