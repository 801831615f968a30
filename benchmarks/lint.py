#!/usr/bin/env python3
"""How fast `sbatchgen lint` is: one script beside a render, and a thousand scripts in one call.

    python benchmarks/lint.py
    python benchmarks/lint.py --beside CHECKOUT  # a thousand scripts, here and with another version in turns

It times whole processes of the Python that runs it. Starts of `lint` with one script and of `render`
alternate (lint, render, render, lint), because a machine that slows down slows both. A thousand scripts are
made of those in tests/fixtures/scripts, three to one; another thousand, three times as long and full of
traps and arrays, of golden scripts and the examples of the rules. No two are alike; shellcheck is not run.

Exit status: 1 if a start of `lint` takes more than 2.5 times the time of `render`, or fewer than 500 scripts
of the first thousand are linted in a second.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

CHECKOUT = Path(__file__).resolve().parents[1]
LIMIT = 2.5
RATE = 500
PROFILE = "msu"
HEAD_LINES = 12  # of a golden script: its directives, which an example's lines replace


def main() -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(description="Measure how fast `sbatchgen lint` is.")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="of four starts each [10]")
    parser.add_argument("--scripts", type=int, default=1000, metavar="N", help="in one call [1000]")
    parser.add_argument("--calls", type=int, default=3, metavar="N", help="with all scripts [3]")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="compare with another version")
    options = parser.parse_args()
    if options.beside:
        beside(options.beside, options.scripts, options.calls)
        return 0
    with tempfile.TemporaryDirectory(prefix="lint-benchmark-") as folder:
        field, rendered = Path(folder) / "field", Path(folder) / "rendered"
        lengths = [_write_field(field, options.scripts), _write_rendered(rendered, options.scripts)]
        script = CHECKOUT / "tests" / "golden" / f"ddp-{PROFILE}.sh"
        lint, render = _starts(
            ["lint", str(script)], ["render", "ddp", "--profile", "local"], options.rounds, folder
        )
        many = [
            [_run(["lint", "--fail-on", "never", str(scripts)], folder) for _ in range(options.calls)]
            for scripts in (field, rendered)
        ]
    ratios = [median(a[at] / b[at] for a, b in zip(lint, render, strict=True)) for at in (0, 1)]
    rates = [options.scripts / median(wall for wall, _ in times) for times in many]
    cpus, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {cpus} CPUs, load {load:.1f}")
    for name, times in (("lint", lint), ("render", render)):
        wall, cpu = (median(seconds[at] for seconds in times) * 1000 for at in (0, 1))
        print(f"{name:<8} {wall:6.0f} ms wall, {cpu:6.0f} ms CPU")
    print(f"ratio    {ratios[0]:6.2f} wall,    {ratios[1]:6.2f} CPU (at most {LIMIT})")
    for name, lines, rate, least in zip(("field", "rendered"), lengths, rates, (RATE, 0), strict=True):
        wanted = f" (at least {least})" if least else ""
        size = lines // options.scripts
        print(f"{options.scripts} scripts, {name}, {size} lines: {rate:.0f} a second{wanted}")
    return int(max(ratios) > LIMIT or rates[0] < RATE)


def beside(checkout: Path, scripts: int, calls: int) -> None:
    """Lint the same scripts here and with another version, in turns; print CPU seconds and ratios."""
    with tempfile.TemporaryDirectory(prefix="lint-benchmark-") as folder:
        field, script = Path(folder) / "field", Path(folder) / "script.slurm"
        _write_field(field, scripts)
        script.write_bytes(next(field.iterdir()).read_bytes())
        for what, path in (("one script", script), (f"{scripts} scripts", field)):
            pairs = []
            for _ in range(calls):
                words = ["lint", "--fail-on", "never", str(path)]
                pairs.append([_run(words, folder, tree)[1] for tree in (CHECKOUT, checkout)])
            here, there = (min(row) for row in zip(*pairs, strict=True))
            ratio = median(first / second for first, second in pairs)
            print(f"{what}: {here:.2f} s of processors here, {there:.2f} s there: ratio {ratio:.2f}")


def _write_field(folder: Path, count: int) -> int:
    """Write scripts as people have them, each made of three; return the number of lines."""
    folder.mkdir()
    texts = [
        path.read_text("utf-8") for path in sorted((CHECKOUT / "tests/fixtures/scripts").glob("*.slurm"))
    ]
    lines = 0
    for number in range(count):
        parts = [texts[(number + step) % len(texts)] for step in (0, 3, 7)]
        text = "\n".join([parts[0], f"NUMBER={number}", *parts[1:]])
        lines += text.count("\n")
        (folder / f"{number:05}.slurm").write_text(text, encoding="utf-8")
    return lines


def _write_rendered(folder: Path, count: int) -> int:
    """Write scripts as sbatchgen renders them; return the number of lines."""
    from sbatchgen.check.rules.rule_page import pages

    folder.mkdir()
    golden = [path.read_text(encoding="utf-8") for path in sorted((CHECKOUT / "tests/golden").glob("*.sh"))]
    examples = [example.text for page in pages().values() for example in page.examples]
    lines = 0
    for number in range(count):
        base = golden[number % len(golden)]
        if number % 2:
            text = re.sub(r"--job-name=\S+", f"--job-name=job{number}", base)
        else:
            body = base.split("\n")[HEAD_LINES : HEAD_LINES + 100]
            text = "\n".join([examples[number // 2 % len(examples)], f"NUMBER={number}", *body, ""])
        lines += text.count("\n")
        (folder / f"{number:05}.slurm").write_text(text, encoding="utf-8", errors="surrogateescape")
    return lines


Times = list[tuple[float, float]]


def _starts(lint: list[str], render: list[str], rounds: int, folder: str) -> tuple[Times, Times]:
    """Wall and CPU seconds of each start but the first, which loads files into memory."""
    _run(lint, folder)
    _run(render, folder)
    linted: Times = []
    rendered: Times = []
    for _ in range(rounds):
        linted.append(_run(lint, folder))
        rendered += [_run(render, folder), _run(render, folder)]
        linted.append(_run(lint, folder))
    return linted, rendered


def _run(words: list[str], folder: str, checkout: Path = CHECKOUT) -> tuple[float, float]:
    """Wall and CPU seconds of one process with its children, with the code of a checkout."""
    command = [sys.executable, "-m", "sbatchgen", *words, "--profile", PROFILE]
    command += ["--no-shellcheck"] if words[0] == "lint" else []
    before = time.perf_counter()
    # Without what would change the measure: PYTHONDONTWRITEBYTECODE makes each start compile all modules.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SBATCH"))}
    env["PYTHONPATH"] = str(checkout)
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        said = process.stderr.read() if process.stderr else b""
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - before
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: {said.decode()}")
    return wall, usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
