"""A stand-in for conda in tests: the protocol of its hook, as conda 26.7 was seen to answer.

`conda shell.bash hook` prints a function `conda`, and activates base. The function asks `conda shell.posix activate
ENV` for lines to evaluate: scripts of the environment that was active are run, the new one takes its place in PATH,
wherever that is, and its own scripts are run. An environment that does not exist is reported, with status 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

ROOT = Path(__file__).absolute().parents[1]  # this file is bin/conda there
HOOK = f"""
export CONDA_EXE={quote(str(ROOT / "bin/conda"))}
conda() {{
    local asked
    asked="$("$CONDA_EXE" shell.posix "$@")" || return
    eval "$asked"
}}
if [ -z "${{CONDA_SHLVL+x}}" ]; then
    export CONDA_SHLVL=0 PATH={quote(str(ROOT / "condabin"))}:"$PATH"
fi
conda activate 'base'
"""


def main(words: list[str]) -> None:
    if words == ["shell.bash", "hook"]:
        print(HOOK)
    elif words[:2] == ["shell.posix", "activate"] and len(words) == 3:
        print("\n".join(activated(words[2])))
    else:
        sys.exit("CondaError: only the hook and its activate are known here")


def activated(name: str) -> Iterator[str]:
    """Lines that activate an environment, by name or by path."""
    new = ROOT if name == "base" else Path(name) if "/" in name else ROOT / "envs" / name
    if not (new / "conda-meta/history").is_file():
        sys.exit(f"EnvironmentNameNotFound: Could not find conda environment: {name}")
    level, old = int(os.environ["CONDA_SHLVL"]), os.environ.get("CONDA_PREFIX")
    path = os.environ["PATH"].split(":")
    if level and old:
        yield from scripts(Path(old), "deactivate.d")
    if f"{old}/bin" in path:
        path[path.index(f"{old}/bin")] = f"{new}/bin"
    else:
        path.insert(0, f"{new}/bin")
    yield f"export PATH={quote(':'.join(path))}"
    if old != str(new):
        yield f"export CONDA_PREFIX={quote(str(new))} CONDA_DEFAULT_ENV={quote(name)} CONDA_SHLVL={level + 1}"
        if level and old:
            yield f"export CONDA_PREFIX_{level}={quote(old)}"
    yield from scripts(new, "activate.d")


def scripts(prefix: Path, kind: str) -> Iterator[str]:
    for file in sorted((prefix / "etc/conda" / kind).glob("*.sh")):
        yield f'. "{file}"'


if __name__ == "__main__":
    main(sys.argv[1:])
