#!/usr/bin/env python3
"""How fast `sbatchgen render` is, compared with the imports it needs and with other tools.

    python benchmarks/render.py                  # installs the others from the package index that pip uses
    python benchmarks/render.py --no-peers

Every tool is measured as a user has it: installed from a wheel (sbatchgen's is built from this checkout)
into its own environment, and started as a whole process. Rounds are interleaved, every other one
backwards, and a ratio is taken within its round, because a machine that slows down slows all tools.

Exit status: 1 if sbatchgen takes more than 1.2 times the time of the imports, 2 if either can't be
measured. Other tools do not change it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.peers import FLOOR, LATER, OURS, PEERS, Contender, is_script, script_in

LIMIT = 1.2
CHECKOUT = Path(__file__).resolve().parents[1]
# Variables that would change what is measured. PYTHONDONTWRITEBYTECODE above all: machines that build
# software set it, users don't, and a tool that may not store its .pyc files compiles them at every start.
DROPPED = ("PYTHON", "SBATCH", "SLURM", "TORCHX", "VIRTUAL_ENV", "XDG_")
# In place of Slurm, so that no time is a controller's: submitit wants to find srun, torchx asks sinfo.
STAND_INS = {"srun": "exit 1", "sinfo": "printf 'PARTITION,MEMORY\\nbatch*,256000\\n'"}
WARM_RUNS = 3

COUNT = """
import atexit, sys
def count():
    # Not getrusage's maximum: that one includes the memory of the process which started this one.
    with open("/proc/self/status") as file:
        peak = next(line.split()[1] for line in file if line.startswith("VmHWM"))
    with open("figures", "w") as file:
        print(len(sys.modules), peak, file=file)
atexit.register(count)
"""
RUN_FILE = """
del sys.argv[0]
exec(compile(open(sys.argv[0]).read(), sys.argv[0], "exec"), {"__name__": "__main__"})
"""
RATE = """
import sys, time
script(0)
made, start = 0, time.perf_counter()
while time.perf_counter() - start < float(sys.argv[1]):
    made += 1
    text = script(made)
with open("figures", "w") as file:
    print(made / (time.perf_counter() - start), file=file)
print(text)
"""


class UnmeasurableError(Exception):
    """Why a contender has no figures, in one line."""


@dataclass
class Result:
    """The measurements of a contender; lists have an item for each round."""

    name: str
    failed: str = ""
    version: str = ""
    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)  # user and system, of all its processes
    scripts_per_s: list[float] = field(default_factory=list)
    peak_kib: int = 0
    modules: int = 0
    distributions: int = 0
    installed_bytes: int = 0


@dataclass(frozen=True)
class Bench:
    """The folders: environments, which may be kept, and files of this run."""

    environments: Path
    scratch: Path

    def program(self, contender: Contender, name: str) -> str:
        """A program of the contender's environment."""
        return str(self.environments / contender.package / "bin" / name)

    def figures(self) -> list[str]:
        """What the Python put before or after a contender's own has written."""
        return (self.scratch / "work" / "figures").read_text(encoding="utf-8").split()

    def home(self, contender: Contender) -> Path:
        """The contender's home, made empty for one that forgets."""
        home = self.scratch / "homes" / contender.name
        if contender.forgets:
            shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True, exist_ok=True)
        return home


Step = Callable[[Bench, Contender, Result, argparse.Namespace], None]


def main() -> int:
    """Install, measure and print; the exit status."""
    options = _options()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="render-benchmark-") as folder:
        scratch = Path(folder)
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        bench = Bench((options.environments or scratch / "environments").resolve() / python, scratch)
        results = _measure(bench, OURS if options.no_peers else (*OURS, *PEERS), options)
    machine = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
        "load": [load, os.getloadavg()[0]],
        "rounds": options.rounds,
    }
    if options.json:
        report = {
            "machine": machine,
            "limit": LIMIT,
            "results": [asdict(result) for result in results.values()],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(_report(results, machine))
    if results[FLOOR].failed or results[LATER].failed:
        return 2
    return int(_over_limit(results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how fast `sbatchgen render` is.")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="starts of each command [15]")
    parser.add_argument("--seconds", type=float, default=0.5, metavar="S", help="of the warm figure [0.5]")
    parser.add_argument("--no-peers", action="store_true", help="only sbatchgen and the floor")
    parser.add_argument("--environments", type=Path, metavar="DIR", help="keep what is installed in DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single figure to FILE")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def _measure(bench: Bench, contenders: Sequence[Contender], options: argparse.Namespace) -> dict[str, Result]:
    _stand_ins(bench.scratch)
    results = {contender.name: Result(contender.name) for contender in contenders}
    steps: list[Step] = [_install, _count, *[_start] * options.rounds, *[_rate] * WARM_RUNS]
    for number, step in enumerate(steps):
        print(f"\r{step.__name__[1:]} {number + 1}/{len(steps)} ", end="", file=sys.stderr, flush=True)
        for contender in contenders if number % 2 == 0 else contenders[::-1]:
            result = results[contender.name]
            try:
                if not result.failed:
                    step(bench, contender, result, options)
            except UnmeasurableError as reason:
                result.failed = str(reason)
    print(file=sys.stderr)
    return results


def _stand_ins(scratch: Path) -> None:
    for folder in ("bin", "work"):
        (scratch / folder).mkdir()
    for name, line in STAND_INS.items():
        file = scratch / "bin" / name
        file.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        file.chmod(0o755)


def _install(bench: Bench, contender: Contender, result: Result, _: argparse.Namespace) -> None:
    """Put the contender's package into its environment, once for all that share it."""
    folder = bench.environments / contender.package
    tried = bench.scratch / f"tried-{contender.package}"  # holds why it went wrong
    if not tried.exists():
        tried.write_text(_why_not_installed(bench, contender.package), encoding="utf-8")
    if reason := tried.read_text(encoding="utf-8"):
        raise UnmeasurableError(f"not installed: {reason}")
    if contender.makes_script:
        site = next(folder.glob("lib/python*/site-packages"))
        installed = {package.name: package.version for package in distributions(path=[str(site)])}
        result.version = installed[contender.package]
        result.distributions = len(installed)
        result.installed_bytes = sum(file.stat().st_size for file in site.rglob("*") if file.is_file())


def _why_not_installed(bench: Bench, package: str) -> str:
    """Why it could not be installed; empty if it could."""
    folder = bench.environments / package
    if not (folder / "bin" / "python").exists():
        venv.create(folder, symlinks=True)
    install = ["--python", str(folder), "install"]
    if package != "sbatchgen":
        return _pip(*install, package)
    wheels = bench.scratch / "wheel"
    # Without isolation pip needs no index for it: the environment of a developer has hatchling.
    isolation = ["--no-build-isolation"] if find_spec("hatchling") else []
    if failed := _pip("wheel", "--no-deps", *isolation, "--wheel-dir", str(wheels), str(CHECKOUT)):
        return failed
    wheel = str(next(wheels.glob("*.whl")))
    return _pip(*install, "--force-reinstall", "--no-deps", wheel) or _pip(*install, wheel)


def _pip(*words: str) -> str:
    """Run pip; the last error that it reports, or nothing."""
    command = [sys.executable, "-m", "pip", "--retries=1", "--disable-pip-version-check", *words]
    done = subprocess.run(command, env=_environ(), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["pip failed"]
    errors = [line for line in lines if line.startswith("ERROR: ")] or lines
    return errors[-1].removeprefix("ERROR: ")


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}


def _count(bench: Bench, contender: Contender, result: Result, _: argparse.Namespace) -> None:
    """Modules and memory of a run that is not timed; it also loads files into memory for later runs."""
    first, *rest = contender.command
    if first == "python":
        words = ["-c", COUNT + rest[1]]
    else:
        words = ["-c", COUNT + RUN_FILE, bench.program(contender, first), *rest]
    _run(bench, contender, [bench.program(contender, "python"), *words])
    result.modules, result.peak_kib = map(int, bench.figures())


def _start(bench: Bench, contender: Contender, result: Result, _: argparse.Namespace) -> None:
    """One whole process."""
    first, *rest = contender.command
    wall_ms, cpu_ms = _run(bench, contender, [bench.program(contender, first), *rest])
    result.wall_ms.append(wall_ms)
    result.cpu_ms.append(cpu_ms)


def _rate(bench: Bench, contender: Contender, result: Result, options: argparse.Namespace) -> None:
    """Scripts per second in one process."""
    if contender.python:
        python = bench.program(contender, "python")
        _run(bench, contender, [python, "-c", contender.python + RATE, str(options.seconds)])
        result.scripts_per_s += map(float, bench.figures())


def _run(bench: Bench, contender: Contender, command: list[str]) -> tuple[float, float]:
    """Wall and CPU time in milliseconds, in the contender's surroundings.

    Raises:
        UnmeasurableError: It failed, or printed no script: that must not pass for fast.
    """
    paths = [bench.scratch / "bin", Path(command[0]).parent, os.environ["PATH"]]
    home = bench.home(contender)
    environ = _environ() | {"HOME": str(home), "PATH": os.pathsep.join(map(str, paths))}
    files = [bench.scratch / "stdout", bench.scratch / "stderr"]
    with files[0].open("w") as stdout, files[1].open("w") as stderr:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=bench.scratch / "work", env=environ, stdout=stdout, stderr=stderr
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_ms = (time.perf_counter() - start) * 1000
        process.returncode = os.waitstatus_to_exitcode(status)
    output, errors = (file.read_text(encoding="utf-8", errors="replace") for file in files)
    if process.returncode:
        last = (errors.strip() or "it said nothing").splitlines()[-1]
        raise UnmeasurableError(f"failed with exit status {process.returncode}: {last}")
    if contender.makes_script and not is_script(script_in(output)):
        raise UnmeasurableError("failed: its output is not a script for 2 nodes")
    return wall_ms, (usage.ru_utime + usage.ru_stime) * 1000


def _ratio(results: dict[str, Result], name: str, figure: str) -> float:
    """The time divided by that of the imports, as the median of the rounds."""
    ours: list[float] = getattr(results[name], figure)
    floors: list[float] = getattr(results[FLOOR], figure)
    return float(median(time / floor for time, floor in zip(ours, floors, strict=True)))


def _over_limit(results: dict[str, Result]) -> bool:
    return any(_ratio(results, LATER, figure) > LIMIT for figure in ("wall_ms", "cpu_ms"))


def _report(results: dict[str, Result], machine: dict[str, Any]) -> str:
    before, after = machine["load"]
    head = (
        f"Python {machine['python']}, {machine['system']}, {machine['cpus']} CPUs,"
        f" load {before:.1f} before and {after:.1f} after, {machine['rounds']} rounds\n"
    )
    return "\n".join([head, *_table(results), "", *_notes(results)])


def _table(results: dict[str, Result]) -> Iterator[str]:
    heads = [*("", "version", "wall ms", "min", "max", "CPU ms", "x wall", "x CPU")]
    heads += ["RSS MiB", "modules", "dists", "disk MiB", "warm/s"]
    rows = [heads, *(_row(results, result) for result in results.values() if not result.failed)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    widths[0] = max(map(len, results))
    for row in rows:
        name, *figures = row
        cells = [text.rjust(width) for text, width in zip(figures, widths[1:], strict=True)]
        yield "  ".join([name.ljust(widths[0]), *cells])
    for result in results.values():
        if result.failed:
            yield f"{result.name.ljust(widths[0])}  {result.failed}"


def _row(results: dict[str, Result], result: Result) -> list[str]:
    walls = result.wall_ms
    floor = not results[FLOOR].failed
    return [
        result.name,
        result.version or "-",
        *(f"{ms:.1f}" for ms in (median(walls), min(walls), max(walls), median(result.cpu_ms))),
        *(f"{_ratio(results, result.name, of):.2f}" if floor else "-" for of in ("wall_ms", "cpu_ms")),
        f"{result.peak_kib / 1024:.1f}",
        str(result.modules),
        str(result.distributions or "-"),
        f"{result.installed_bytes / 2**20:.1f}" if result.installed_bytes else "-",
        f"{median(result.scripts_per_s):.0f}" if result.scripts_per_s else "-",
    ]


def _notes(results: dict[str, Result]) -> Iterator[str]:
    for contender in (*OURS, *PEERS):
        if contender.name in results:
            yield f"{contender.name}: {contender.note}"
    yield "wall and CPU: medians; x: times the floor, the median of the rounds; RSS: the peak; warm: scripts"
    yield "per second in one process. Files are in memory and Slurm is a stand-in: neither's time is here."
    if not (results[FLOOR].failed or results[LATER].failed):
        verdict = "over the limit" if _over_limit(results) else "within the limit"
        yield f"sbatchgen is {verdict} of {LIMIT} times the floor."


if __name__ == "__main__":
    sys.exit(main())
