#!/usr/bin/env python3
"""Attack the promises of docs/about/trust.md, with a seed, and count successes: all should be 0.

    python benchmarks/hostile.py                      # about ten minutes on two cores
    python benchmarks/hostile.py --quick              # a tenth of it
    python benchmarks/hostile.py --seed 7 renders yaml

Each line shows the numbers of attacks and of successes, and each success. Jobs run under
bash with stand-ins for srun and scontrol, and submissions end at a stand-in for sbatch; the headers are read
by the real sbatch, where there is one. The GPU, NCCL and real container runtimes are not part of it.
Exit status: 1 if any attack succeeds.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.attacks.files import adopts, checkpoints, completions
from benchmarks.attacks.place import (
    CHECKOUT,
    OF_SLURM,
    REFUSED,
    SBATCHGEN,
    STAND_INS,
    TEMPLATE,
    TRAINER,
    Attack,
    Place,
)
from benchmarks.attacks.runs import chains, folders, index
from sbatchgen.base.errors import DocumentError
from sbatchgen.check.lint.linter import lint
from sbatchgen.check.rules.rule_page import PROFILE
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.profile import Profile
from tests.cluster import oracle, site
from tests.lint.test_scripts import PIECES, SEEDS
from tests.scripts import PUBLIC, errors, resolved, script


def renders(place: Place) -> Iterator[str]:
    """Hostile arguments, variables, names and paths in jobs that bash runs."""
    import json

    (place.folder / "dump.py").write_text(TRAINER)
    for _ in range(place.times(600)):
        mode = place.chance.choice(("single", "ddp", "cpu"))
        profile = place.chance.choice(("local", "public"))
        args, value = [place.text() for _ in range(3)], place.text()
        odd = place.chance.random() < 0.2
        name, folder = (place.line(), place.line()) if odd else ("job", "runs/job")
        flags = [
            "--env",
            f"VALUE={value}",
            "--job-name",
            name,
            "--comment",
            place.line(),
            "--run-dir",
            folder,
        ]
        flags += ["--launcher", "spawn"] if mode == "ddp" else []
        flags += ["--profile", profile if profile == "local" else "./public.yaml", "--trainer", "./dump.py"]
        done = place.run(*SBATCHGEN, "render", mode, *flags, "--", *args)
        if done.returncode in {2, 3, 4} and b"Traceback" not in done.stderr:
            yield REFUSED
            continue
        job = subprocess.run(
            ["bash", "-s"],
            input=done.stdout,
            cwd=place.folder,
            env=place.environment(SLURM_SUBMIT_DIR=str(place.folder), **OF_SLURM),
            capture_output=True,
            timeout=60,
            check=False,
        )
        seen = [line for line in job.stdout.split(b"\n") if line.startswith(b"SEEN ")]
        outcome = json.loads(seen[0][5:]) if seen else None
        pwned = list(place.folder.rglob("pwned"))
        fine = outcome == [args, value] and not pwned and done.returncode == 0
        yield "" if fine else f"{mode} {args!r} {value!r} {name!r}: {outcome} {job.stderr[-200:]!r} {pwned}"


def headers(place: Place) -> Iterator[str]:
    """Hostile values of directives, read back by the real sbatch."""
    if site.why_not():
        print(f"    headers: left out: {site.why_not()}")
        return
    for _ in range(place.times(400)):
        texts = {name: place.line() for name in ("comment", "account", "constraint")}
        try:
            made = resolved("ddp", "msu", **dict[str, Any](texts))
            text = "" if errors(made) else script(made)
        except ValueError:
            text = ""
        if not text:
            yield REFUSED
            continue
        options = oracle.read(text).options
        wrong = {name: options.get(name) for name, value in texts.items() if options.get(name) != value}
        yield "" if options.get("nodes") == "2" and not wrong else f"{texts!r}: {wrong}"


def yaml(place: Place) -> Iterator[str]:
    """Broken, deep, long and strange YAML: a clear error or a value, in two seconds of CPU."""
    shapes = [
        "[",
        "{a: ",
        "- ",
        "&a [*a, ",
        "? ",
        "!!python/object:os.system ",
        "'",
        '"',
        "|\n ",
        "a: b\n",
        "\0",
        "%YAML ",
        "---\n",
    ]
    path = place.folder / "job.yaml"
    for _ in range(place.times(600)):
        pieces = place.chance.choices(
            [*shapes, place.text(), "mode: ddp\n", "options: {nodes: " + "9" * 50 + "}\n"], k=4
        )
        size = place.chance.choice((1, 10, 1000, 20000))
        path.write_bytes(
            "".join(piece * place.chance.randint(1, size) for piece in pieces)[: 1 << 20].encode()
        )
        began = time.process_time()
        try:
            read_document(path, JobSpec)
        except DocumentError:
            pass
        except Exception as error:  # noqa: BLE001 - that is what is counted
            yield f"{pieces!r}: {type(error).__name__}"
            continue
        took = time.process_time() - began
        yield "" if took < 2 else f"{pieces!r}: {took:.1f} s"


def mutants(place: Place) -> Iterator[str]:
    """Mutated scripts: every rule ends, and none fails."""
    cluster = read_document(PROFILE, Profile).value
    for _ in range(place.times(1500)):
        data = place.chance.choice(SEEDS)
        for _ in range(place.chance.randint(1, 6)):
            start = place.chance.randint(0, len(data))
            data = data[:start] + place.chance.choice(PIECES) + data[start + place.chance.randint(0, 40) :]
        began = time.process_time()
        text = data.decode("utf-8", "surrogateescape")
        findings = lint(JobScript(file="job.slurm", text=text, profile=cluster))
        failed = [
            finding.problem.what for finding in findings if "failed on this script" in finding.problem.what
        ]
        took = time.process_time() - began
        yield "" if took < 5 and not failed else f"{data[:80]!r}: {took:.1f} s {failed[:1]}"


def submits(place: Place) -> Iterator[str]:
    """Parallel submissions into one run folder: each sends the script that it shows."""
    (place.folder / "sent").mkdir(exist_ok=True)

    def submit(number: int) -> str:
        flags = (
            "--profile",
            "./public.yaml",
            "--yes",
            "--run-dir",
            "runs/shared",
            "--",
            "--seed",
            str(number),
        )
        done = place.run(*SBATCHGEN, "submit", "single", *flags)
        job = done.stdout.decode().strip()
        if done.returncode or not job.isdecimal():
            return f"{number}: {done.returncode} {done.stderr[-300:]!r}"
        sent = (place.folder / "sent" / f"{job}.slurm").read_bytes()
        kept = (place.folder / "runs/shared" / f"job-{job}.slurm").read_bytes()
        return (
            ""
            if sent == kept and f"--seed {number}".encode() in sent
            else f"{number}: another script was sent"
        )

    with ThreadPoolExecutor(8) as pool:
        yield from pool.map(submit, range(place.times(200)))


def interrupts(place: Place) -> Iterator[str]:
    """Ctrl-C in lint of 100 files: it ends, and leaves no process and no file."""
    folder = place.folder / "many"
    folder.mkdir(exist_ok=True)
    for number in range(100):
        (folder / f"{number}.slurm").write_bytes(SEEDS[number % len(SEEDS)])
    for _ in range(place.times(50)):
        process = subprocess.Popen(
            [*SBATCHGEN, "lint", str(folder)], cwd=place.folder, env=place.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        time.sleep(place.chance.uniform(0, 1.5))
        os.killpg(process.pid, signal.SIGINT)
        try:
            _, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            yield "it hangs"
            continue
        fine = process.returncode in {0, 3, 130} and b"Traceback" not in err
        early = process.returncode in {1, -signal.SIGINT} and b"/sbatchgen/" not in err  # Python's own start
        yield "" if fine or early else f"{process.returncode} {err[-300:]!r}"


def situations(place: Place) -> Iterator[str]:
    """Commands where files are missing, unreadable, full or of another kind."""
    commands = (
        "render ddp --profile local",
        "review ddp --profile local",
        "explain ddp --profile local",
        "lint job.slurm",
        "submit job.slurm --yes",
        "plot run",
        "profile list",
    )
    made: dict[str, str] = {
        "plain": "true",
        "the script is a FIFO": "rm -f job.slurm; mkfifo job.slurm",
        "the script is a folder": "rm -f job.slurm; mkdir job.slurm",
        "the script is random": "head -c 4096 /dev/urandom >job.slurm",
        "sbatchgen.yaml is random": "head -c 4096 /dev/urandom >sbatchgen.yaml",
        "sbatchgen.yaml is a FIFO": "mkfifo sbatchgen.yaml",
        "sbatchgen.yaml is a folder": "mkdir sbatchgen.yaml",
        "a template is random": f"{TEMPLATE}head -c 999 /dev/urandom >.sbatchgen/templates/job.sh.j2",
        "a template divides by zero": f"{TEMPLATE}echo '{{{{ 1 / 0 }}}}' >.sbatchgen/templates/job.sh.j2",
        "a template asks for Python": f"{TEMPLATE}echo '{{{{ ().mro }}}}' >.sbatchgen/templates/job.sh.j2",
        "events are a FIFO": "rm -f run/events.jsonl; mkfifo run/events.jsonl",
        "events are deep": "python3 -c \"print('[' * 10**6)\" >run/events.jsonl",
        "sbatch can't run": "chmod -x bin/sbatch",
        "sbatch is a folder": "rm bin/sbatch; mkdir bin/sbatch",
        "sbatch says bytes": "printf '#!/bin/bash\\nprintf \"\\\\xff\\\\xfe\\\\n12\\\\n\"\\n' >bin/sbatch",
        "the folder is gone": "true; rmdir_self=1",
    }
    tails = {"": "", "stdout full": " >/dev/full", "stdout closed": " >&-", "no columns": ""}
    for situation, setup in made.items():
        for command in commands:
            for tail, words in tails.items():
                yield from _in_situation(place, situation, setup, command, tail, words)


def _in_situation(  # noqa: PLR0917 - a row of a table
    place: Place, situation: str, setup: str, command: str, tail: str, words: str
) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=place.folder) as name:
        here = Place(Path(name), place.chance, place.scale)
        furnish(here.folder)
        (here.folder / "job.slurm").write_text(
            "#!/bin/bash\n#SBATCH --time=01:00:00\nsrun python3 train.py\n"
        )
        (here.folder / "run").mkdir()
        (here.folder / "run/events.jsonl").write_text('{"event": "train", "step": 1, "loss": 2.0}\n')
        gone = "mkdir gone; cd gone; rmdir ../gone; " if "rmdir_self" in setup else ""
        line = f"{setup}; {gone}{' '.join(SBATCHGEN)} {command}{words}"
        more = {"COLUMNS": "0"} if tail == "no columns" else {}
        try:
            done = here.run("bash", "-c", line, **more)
        except subprocess.TimeoutExpired:
            yield f"{command}, {situation}, {tail}: it hangs"
            return
        fine = done.returncode in {0, 2, 3, 4, 5, 141} and b"Traceback" not in done.stderr
        yield "" if fine else f"{command}, {situation}, {tail}: {done.returncode} {done.stderr[-300:]!r}"


def kills(place: Place) -> Iterator[str]:
    """Kill the process that starts the ranks, at any moment: no rank survives."""
    run = (sys.executable, str(CHECKOUT / "training"))
    data = (
        "--dataset",
        "fake",
        "--fake-samples",
        "64",
        "--epochs",
        "500",
        "--device",
        "cpu",
        "--model",
        "convnet",
    )
    starts = {
        "torchrun": (
            sys.executable,
            str(CHECKOUT / "training/torchrun.py"),
            "--nproc-per-node=2",
            "--",
            run[1],
        ),
        "spawn": (*run, "--launcher", "spawn", "--nproc-per-node", "2"),
    }
    for number in range(place.times(34)):
        launcher = place.chance.choice(sorted(starts))
        folder = place.folder / f"killed-{number}"
        process = subprocess.Popen(
            [*starts[launcher], *data, "--run-dir", str(folder)], env=place.environment(OMP_NUM_THREADS="1"),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        time.sleep(place.chance.uniform(0, 8))
        process.kill()
        process.wait()
        deadline = time.monotonic() + 10
        while (left := _using(folder)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        yield "" if not left else f"{launcher}: {len(left)} processes left"


def _using(folder: Path) -> list[int]:
    """The processes whose command names the folder."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            pids += [int(entry.name)] if str(folder).encode() in words else []
    return pids


ATTACKS: tuple[Attack, ...] = (
    renders, headers, yaml, mutants, submits, interrupts, situations, kills,
    folders, index, chains, checkpoints, adopts, completions,
)  # fmt: skip


def furnish(folder: Path) -> None:
    """Stand-ins and a profile."""
    (folder / "bin").mkdir()
    for name, line in STAND_INS.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{line}\n")
        (folder / "bin" / name).chmod(stat.S_IRWXU)
    (folder / "bin" / "python3").symlink_to(sys.executable)
    (folder / "public.yaml").write_text(PUBLIC)


def main() -> int:
    """Attack, and print a line for each kind."""
    names = [attack.__name__ for attack in ATTACKS]
    parser = argparse.ArgumentParser(description="Attack sbatchgen and count what gets through.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a tenth of the attacks")
    parser.add_argument("attacks", nargs="*", choices=[*names, []], metavar="ATTACK", help=", ".join(names))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    through = 0
    for attack in ATTACKS:
        if options.attacks and attack.__name__ not in options.attacks:
            continue
        with tempfile.TemporaryDirectory(prefix="hostile-") as name:
            place = Place(Path(name), random.Random(options.seed), 0.1 if options.quick else 1.0)  # noqa: S311
            furnish(place.folder)
            began = time.monotonic()
            results = list(attack(place))
        wrong = [result for result in results if result not in {"", REFUSED}]
        through += len(wrong)
        took = f"{time.monotonic() - began:.0f} s"
        print(
            f"{attack.__name__:<12}{len(wrong):>6} of {len(results):>5} got through, "
            f"{results.count(REFUSED)} refused, {took}",
            flush=True,
        )
        for result in wrong[:5]:
            print(f"    {re.sub(r'[^ -~]', '?', result)[:500]}")
    return int(through > 0)


if __name__ == "__main__":
    sys.exit(main())
