"""What rules say of tasks, of what these get and of how a job ends is what becomes of jobs on a real Slurm.

The jobs of all proofs run side by side. What Slurm does not decide is not here: how CPUs are bound, what torch does.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sbatchgen.check.lint.fix import apply_edits
from sbatchgen.check.lint.linter import lint
from sbatchgen.check.rules.rule_page import Example
from tests.cluster.fixtures import FIRST, VISIBLE
from tests.cluster.job import TERMINAL, parse_jobs
from tests.cluster.slurm import Cluster
from tests.rules.proofs import BINDINGS, PROGRAM, PROGRAMS, PROOFS, Proof
from tests.rules.test_rules import PAGES, subject
from tests.tables import hold

# Room for many jobs at once, whose programs only sleep.
SETTINGS = (
    "NodeName={nodes} Sockets=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=128000 Gres=gpu:a100:4,shard:64"
)
TWO_CPUS = """
TaskPlugin=task/affinity
NodeName={nodes} Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=128000 Gres=gpu:a100:4,shard:64
"""
FEWER_GPUS = ("--gpus-per-node=4", "--gpus-per-node=1")  # of jobs that do not look at them
SUBMIT = """
for folder in */submission; do
    cd ~/"$folder"; echo "$folder $(sbatch --parsable --output=log job.slurm 2>refusal)"
done
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A script of a proof, the outcome that it should have, and the folder in which its job runs."""

    proof: Proof
    kind: str
    text: str
    wanted: str
    folder: Path

    @property
    def record(self) -> list[list[str]]:
        """What its programs have noted."""
        file = self.folder.parent / "bin" / "record"
        return [line.split("|") for line in file.read_text().splitlines()] if file.exists() else []


def test_examples_and_fixes_do_what_the_rules_say(slurm_root: Path | None, slurm_release: str) -> None:
    hold_on_a_cluster(PROOFS, SETTINGS, slurm_root, slurm_release)


def test_tasks_are_bound_to_the_cpus_that_the_rules_say(slurm_root: Path | None, slurm_release: str) -> None:
    hold_on_a_cluster(BINDINGS, TWO_CPUS, slurm_root, slurm_release)


def hold_on_a_cluster(proofs: Iterable[Proof], settings: str, root: Path | None, slurm_release: str) -> None:
    with Cluster(visible=VISIBLE, settings=settings, root=root) as cluster:
        runs = [
            prepared(cluster, number, proof, kind, text, wanted)
            for number, proof in enumerate(proofs)
            for kind, text, wanted in scripts(proof, slurm_release)
            if wanted
        ]
        submitted = cluster.run(["bash", "-c", SUBMIT], check=True).stdout
        ids = dict(line.partition(" ")[::2] for line in submitted.splitlines())
        jobs = ended(cluster, runs, ids)
        hold(has_the_outcome, [(run, jobs[ids[f"{run.folder.parent.name}/submission"]]) for run in runs])


def scripts(proof: Proof, release: str) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the text and the wanted outcome of each script of a proof."""
    page = PAGES[proof.rule]
    bad, good = ([each for each in page.examples if each.is_good == which] for which in (False, True))
    of_release = [
        each if isinstance(each, str) else each[release != FIRST] for each in (proof.bad, proof.mended)
    ]
    example = bad[proof.examples[0]]
    others = proof.others if "GPUS" in proof.see else (*proof.others, FEWER_GPUS)
    example = replace(example, text=changed(example.text, others))
    yield "bad", example.text, of_release[0]
    yield "mended", mended(proof, example), of_release[1]
    if proof.good != "":
        text = changed(good[proof.examples[1]].text, others)
        yield "good", text, of_release[1] if proof.good is None else proof.good


def mended(proof: Proof, bad: Example) -> str:
    """A bad example with the fix of the rule."""
    findings = lint(subject(PAGES[proof.rule], bad, Path("/nonexistent")))
    fixes = [finding for finding in findings if finding.rule == proof.rule]
    if proof.fix:
        assert all(old in bad.text for old, _ in proof.fix), proof
        return changed(bad.text, proof.fix)
    assert any(finding.edits for finding in fixes), proof
    return apply_edits(bad.text.encode(), fixes).decode()


def changed(text: str, changes: tuple[tuple[str, str], ...]) -> str:
    for old, new in changes:
        text = text.replace(old, new)
    return text


def prepared(cluster: Cluster, number: int, proof: Proof, kind: str, text: str, wanted: str) -> Run:
    """A folder with a script that finds the programs, and their settings."""
    name, is_bad = f"{number}-{proof.rule}-{kind}", kind == "bad"
    settings = {
        "see": proof.see,
        "status": proof.status,
        "failing_rank": proof.failing_rank,
        "seconds": proof.seconds[not is_bad],
        "saves": proof.saves,
        "stops": "" if is_bad else "yes",
        "together": "yes" if proof.at_once and not is_bad else "",
    }
    lines = [f"{setting}={shlex.quote(str(value))}\n" for setting, value in settings.items()]
    cluster.put(f"{name}/bin/settings", "".join(lines))
    program = cluster.put(f"{name}/bin/program", PROGRAM, mode=0o755)
    for each in PROGRAMS:
        (program.parent / each).symlink_to(program)
    for file, content in {
        **proof.files,
        "job.slurm": with_start(text, f"export PATH={program.parent}:$PATH; {proof.first}"),
    }.items():
        cluster.put(f"{name}/submission/{file}", content)
    return Run(proof=proof, kind=kind, text=text, wanted=wanted, folder=cluster.home / name / "submission")


def with_start(text: str, command: str) -> str:
    """A script with another first command."""
    lines = text.split("\n")
    first = next(at for at, line in enumerate(lines) if not line.startswith("#"))
    return "\n".join([*lines[:first], command, *lines[first:]])


def ended(cluster: Cluster, runs: list[Run], ids: dict[str, str]) -> dict[str, dict[str, str]]:
    """The records of all jobs once they have ended; those whose programs wait for it are warned as Slurm does."""
    records: dict[str, dict[str, str]] = {"": {"JobState": "REFUSED"}}
    waiting = [run for run in runs if run.proof.warned]

    def have_ended() -> bool:
        for run in [run for run in waiting if run.record]:
            waiting.remove(run)
            to_script = ["--batch"] if "--signal=B:" in run.text else []
            job = ids[f"{run.folder.parent.name}/submission"]
            cluster.run(["scancel", "--signal=USR1", *to_script, job])  # which may have ended by now
        records.update(
            (job["JobId"], job) for job in parse_jobs(cluster.root(["scontrol", "show", "job"]).stdout)
        )
        return all(records[job]["JobState"] in {*TERMINAL, "REFUSED"} for job in ids.values())

    try:
        cluster.until(have_ended, "end of all jobs")
    except TimeoutError as error:
        left = [job for job in ids.values() if records[job]["JobState"] not in TERMINAL]
        raise TimeoutError("\n".join([str(error), *(cluster.describe(job) for job in left[:3])])) from None
    return records


def has_the_outcome(run: Run, job: dict[str, str]) -> None:
    log = run.folder / "log"
    assert outcome(run, job) == run.wanted, "\n".join(
        [run.text, log.read_text() if log.exists() else "no log"]
    )


def outcome(run: Run, job: dict[str, str]) -> str:
    """What became of a job, as a line of text (see proofs.py)."""
    record, words = run.record, []
    for name in sorted({line[0] for line in record if line[2] == "end" or is_killed(line, record)}):
        hosts = sorted({line[1] for line in record if line[0].split()[0] == name.split()[0]})
        ends = [line for line in record if line[0] == name and line[2] == "end"]
        counts = Counter(line[1] for line in ends)
        words += [name, "+".join(str(counts[host]) for host in hosts)]
        for at in range(4, 4 + len(run.proof.see.split()) if ends else 4):
            fact, _, _ = ends[0][at].partition("=")
            words.append(f"{fact}={','.join(sorted({line[at].partition('=')[2] for line in ends}))}")
    if run.proof.at_once:
        changes = [
            1 if event == "start" else -1 for _, event in sorted((line[3], line[2]) for line in record)
        ]
        words.append(f"{max(sum(changes[:end]) for end in range(len(changes) + 1))} at once")
    status, _, signal = job.get("ExitCode", "0:0").partition(":")
    if not words and job.get("Reason") == "BadConstraints":
        return "nothing; REFUSED"  # of a busy slurmctld, which takes the job before it looks
    ending = [job["JobState"], *[status] * (status != "0"), *["by signal", signal] * (signal != "0")]
    return " ".join(words or ["nothing"]) + f"; {' '.join(ending)}".removesuffix("; COMPLETED")


def is_killed(line: list[str], record: list[list[str]]) -> bool:
    """Whether no program of this name has ended by itself."""
    return not any(other[2] == "end" and other[0].split()[0] == line[0] for other in record)
