"""Where attacks are made: a folder of its own with stand-ins for Slurm's commands."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SBATCHGEN = (sys.executable, "-m", "sbatchgen")
ALPHABET = " \t'\"\\$`(){}[];&|<>*?!#~%=,:@^-\n\x1b\x7f\u202e\u2028é漢ab1/."
WORDS = (
    "$(touch pwned)",
    "`touch pwned`",
    ";touch pwned;",
    "x[$(touch pwned)]",
    "\n#SBATCH --nodes=99\n",
    "-x",
    "${HOME}",
)
STAND_INS = {
    "srun": 'while [[ $1 == -* ]]; do shift; done; exec "$@"',
    "scontrol": "echo n1",
    "sbatch": 'to=$SENT/$$.slurm; cat -- "${!#}" >"$to"; sleep 0.05; cmp -s "${!#}" "$to" || exit 9; echo $$',
}
OF_SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_CPUS_PER_TASK": "1",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "1",
}
TEMPLATE = "mkdir -p .sbatchgen/templates; touch sbatchgen.yaml; "
TRAINER = (
    "import json, os, sys; print('SEEN', json.dumps([sys.argv[1:], os.environ.get('VALUE')]), flush=True)\n"
)


@dataclass
class Place:
    """A folder of its own, stand-ins on PATH, and how much to do."""

    folder: Path
    chance: random.Random
    scale: float

    def times(self, count: int) -> int:
        """The number of attacks: `count` in a whole run."""
        return max(3, round(count * self.scale))

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[bytes]:
        """A command in the folder."""
        return subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment(**more),
            capture_output=True,
            timeout=120,
            check=False,
        )

    def environment(self, **more: str) -> dict[str, str]:
        """Only the variables that programs need to start."""
        paths = [self.folder / "bin", Path(sys.executable).parent, "/usr/bin", "/bin"]
        folders = {
            "PATH": ":".join(map(str, paths)),
            "HOME": str(self.folder),
            "USER": "alice",
            "LANG": "C.UTF-8",
        }
        return folders | {"PYTHONPATH": str(CHECKOUT), "SENT": str(self.folder / "sent")} | more

    def text(self) -> str:
        """A hostile text."""
        if self.chance.random() < 0.3:
            return self.chance.choice(WORDS)
        return "".join(self.chance.choice(ALPHABET) for _ in range(self.chance.randint(0, 20)))

    def line(self) -> str:
        """A hostile text of one line."""
        return "".join(char for char in self.text() if char.isprintable() or char == "\t") or "x"


Attack = Callable[[Place], Iterator[str]]  # yields "" for an attack that failed, else what got through
REFUSED = "-"  # what sbatchgen did not take, with a clear error
