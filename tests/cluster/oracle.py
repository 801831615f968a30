"""What the real sbatch reads in a script, without a cluster: about 10 ms a script, as any user.

With -v, sbatch prints the options it understood before it looks for slurmctld. Ours is on a port without a
listener, so nothing can be submitted, and sbatch is ended once it has tried. It reports values as it keeps
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
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
AuthType=auth/munge
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu,shard
NodeName=x[1-2] CPUs=8 RealMemory=16000 Gres=gpu:a100:4,shard:64
PartitionName=gpu Nodes=ALL Default=YES
"""
LEAVE = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_")
DEADLINE_S = 30.0  # what ends an sbatch that hides the sign which we wait for

# sbatch is through with the script once it looks for slurmctld
_SUBMITS = re.compile(r"failed to connect|Unable to contact")
_OURS = re.compile(r"debug\d*: |select/|-{20}")
_COMPLAINT = re.compile("(error|warning): ")  # while it prints the options
_OPTION = re.compile(r"(\S+)\s*: (.*)")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What sbatch made of a script.

    Attributes:
        components: The options of each component of a heterogeneous job, by their long names; one for other
            jobs, none if sbatch stopped before.
        messages: All else it said, like "error: Invalid --time specification".
        returncode: Its exit status if it refused the script, None if it was about to submit it.
    """

    components: list[dict[str, str]]
    messages: list[str]
    returncode: int | None

    @property
    def options(self) -> dict[str, str]:
        """The options of the first component."""
        return self.components[0] if self.components else {}


def read(
    script: str, *arguments: str, env: Mapping[str, str] | None = None, root: Path | None = None
) -> Reading:
    """What sbatch reads in a script.

    Args:
        script: The script.
        arguments: Options before it.
        env: SBATCH_ variables.
        root: The folder of another system, whose sbatch is asked; that needs root.
    """
    with tempfile.TemporaryDirectory(prefix="oracle-", dir=root and root / "tmp") as folder:
        Path(folder, "slurm.conf").write_text(CONFIG)
        Path(folder, "job.sh").write_text(script, encoding="utf-8", errors="surrogateescape", newline="")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(LEAVE)}
        inside = f"/{Path(folder).relative_to(root)}" if root else folder
        process = subprocess.Popen(
            [*_enter(root, inside), "sbatch", "-vvv", *arguments, "job.sh"],
            cwd=folder,
            env={**clean, "SLURM_CONF": f"{inside}/slurm.conf", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogateescape",
        )
        deadline = threading.Timer(DEADLINE_S, process.kill)
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


def version(root: Path | None = None) -> str:
    """What the sbatch of this machine, or of another system's folder, says it is; "" without an sbatch."""
    with tempfile.TemporaryDirectory(prefix="oracle-", dir=root and root / "tmp") as folder:
        Path(folder, "slurm.conf").write_text(CONFIG)
        inside = f"/{Path(folder).relative_to(root)}" if root else folder
        try:
            done = subprocess.run(
                [*_enter(root, inside), "sbatch", "--version"],
                env={**os.environ, "SLURM_CONF": f"{inside}/slurm.conf"},
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            return ""
        return done.stdout.strip()


def _enter(root: Path | None, folder: str) -> list[str]:
    """The command that runs another one in a folder of another system."""
    return ["chroot", str(root), "env", "-C", folder] if root else []


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
        elif inside and not _COMPLAINT.match(line) and (option := _OPTION.fullmatch(line)):
            components[-1][option[1]] = option[2]
        elif not _OURS.match(line):
            messages.append(line)
    for component in components:
        component.pop("verbose", None)
    return Reading(components=components, messages=messages, returncode=returncode)
