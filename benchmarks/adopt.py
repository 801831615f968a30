#!/usr/bin/env python3
"""How many published training scripts `adopt` turns into a job without loss.

    python benchmarks/adopt.py CHECKOUTS                     # the table, and why scripts are not adopted
    python benchmarks/adopt.py CHECKOUTS --each              # and a line for each of these scripts

CHECKOUTS holds checkouts or bare repositories as OWNER/NAME or OWNER+NAME/repo. The documented scripts are
those of the centres' repositories that request GPUs and start Python on something that trains. The public
ones are the 300 of benchmarks/trainings.tsv: repository, commit and path, no two of the same content, at
most 10 of a repository, in the order of their hashes. Those whose repository or commit is missing are
counted apart.

Without loss: `adopt` writes both files, and the script that they render asks Slurm for the same and starts
the same, which it compares itself. Partly: `--partly` does. Refused: no job can be made of the script.

Exit status: 0; 1 if less than 75 % are adopted without loss; 2 if CHECKOUTS holds no repository.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.documented.examples import checkout, git_of, scripts, whole
from sbatchgen.adopt.adoption import adopt
from sbatchgen.adopt.training import REST
from sbatchgen.errors import SbatchgenError

GOAL = 0.75
CENTRES = """
AaltoRSE/pytorch-ddp-imagenet AaltoSciComp/scicomp-docs accre/SLURM amd/HPCTrainingExamples
ARCHER2-HPC/archer2-docs argonne-lcf/ALCF_Hands_on_HPC_Workshop aws-samples/awsome-distributed-training
Azure/ai-infrastructure-on-azure Azure/azurehpc c3se/alvis-intro CSCfi/csc-user-guide
CSCfi/machine-learning-scripts CSCfi/pytorch-ddp-examples eth-cscs/cscs-docs fasrc/User_Codes
GoogleCloudPlatform/cluster-toolkit hpcleuven/VscDocumentation idriscnrs/idr_torch
isambard-sc/ieee_cluster2025 jean-zay-users/jean-zay-doc Lumi-supercomputer/Getting_Started_with_AI_workshop
Lumi-supercomputer/LUMI-AI-Guide Lumi-supercomputer/lumi-userguide mila-iqia/mila-docs
N8-CIR-Bede/documentation ncsa/Delta_doc nebius/ml-cookbook NERSC/nersc-dl-wandb
NERSC/Perlmutter_Training_Jan2022 NERSC/pytorch-examples NERSC/sc24-dl-tutorial nesi/support-docs NREL/HPC
nuitrcs/examplejobs olcf/ai-training-series olcf/olcf-user-docs PDC-support/PDC-support-web
PrincetonUniversity/hpc_beginning_workshop PrincetonUniversity/multi_gpu_training rcc-uchicago/user-guide
SouthernMethodistUniversity/hpc_docs stanford-rc/www.sherlock.stanford.edu ubccr/ccr-examples
uchicago-ssd-sscs/sbatch_examples ULHPC/tutorials ULHPC/ulhpc-docs UNINETTSigma2/documentation
UPPMAX/UPPMAX-documentation UTS-eResearch/hpc_examples willfurnass/sheffield_hpc
"""
# --cpus-per-gpu and --mem-per-gpu alone request no GPU, and Slurm refuses them.
_GPUS = re.compile(r"^#SBATCH\b.*(?:(?<!-per-)gpu|--gres)", re.MULTILINE)
_START = re.compile(r"\b(?:i?python[\d.]*|torchrun|accelerate|deepspeed|lightning|composer)\b.*")
_TRAINS = re.compile(
    r"train|main\.py|ddp|fsdp|mnist|cifar|imagenet|resnet|gpt|bert|llama|finetun|fine[-_]tun|\bfit\b|\b(?:sft|dpo|grpo)\b|distill|learn",
    re.IGNORECASE,
)
# What differs from script to script in a reason: names, numbers, paths.
_OWN = re.compile(r"\(.*?\)|: .*|'.*?'|(?<![\w-])(?:\$|\./|/)\S+|\b\d+\b")


class Script(NamedTuple):
    """A published script."""

    where: str
    text: str


class Result(NamedTuple):
    """What `adopt` makes of a script, and why that is not a job without loss."""

    outcome: str
    reason: str


def main() -> int:
    """Adopt all scripts, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", type=Path, metavar="CHECKOUTS")
    parser.add_argument(
        "--each", action="store_true", help="name each script that is not adopted without loss"
    )
    flags = parser.parse_args()
    print(f"{'scripts':<12} {'number':>6}  {'without loss':>14}  {'by --partly':>11}  refused  missing")
    shares, reasons = [], Counter[Result]()
    for name, source in (("documented", documented), ("public", public)):
        counts = Counter[str]()
        for script in source(flags.checkouts):
            result = adopted(script)
            counts[result.outcome] += 1
            if result.reason:
                reasons[Result(result.outcome, _OWN.sub("", result.reason).strip())] += 1
                if flags.each:
                    print(f"  {result.outcome}: {script.where}: {result.reason}")
        number = counts.total() - counts["missing"]
        shares.append(counts["without loss"] / number if number else 0)
        whole = f"{counts['without loss']} ({shares[-1]:.0%})"
        print(
            f"{name:<12} {number:>6}  {whole:>14}  {counts['partly']:>11}  {counts['refused']:>7}"
            f"  {counts['missing']:>7}"
        )
    for result, number in reasons.most_common():
        print(f"  {number:>4} {result.outcome}: {result.reason}")
    return 2 if not any(shares) else int(min(shares) < GOAL)


def trains(text: str) -> bool:
    """Whether a script requests GPUs and starts Python on something that trains."""
    lines = text.replace("\\\n", " ").split("\n")
    starts = (_START.search(line) for line in lines if not line.lstrip().startswith("#"))
    return bool(_GPUS.search(text)) and any(start and _TRAINS.search(start[0]) for start in starts)


def documented(checkouts: Path) -> Iterator[Script]:
    """Yield the trainings of the centres' documentation, each text once."""
    seen = set()
    for name in CENTRES.split():
        repository = checkout(checkouts, name)
        listed = git_of(repository, "grep", "-lI", "#SBATCH", "HEAD") if repository else None
        if repository is None or not listed:
            continue
        for file in (line.partition(":")[2] for line in listed.split("\n")):
            text = git_of(repository, "cat-file", "blob", f"HEAD:{file}") or ""
            for line, script in scripts(whole(text, repository, "HEAD"), file):
                content = "".join(script.split())
                if trains(script) and content not in seen:
                    seen.add(content)
                    yield Script(f"{name}:{line}/{file}", script)


def public(checkouts: Path) -> Iterator[Script]:
    """Yield the listed trainings; the text is empty if the repository is missing."""
    for row in (Path(__file__).parent / "trainings.tsv").read_text().splitlines():
        name, commit, file = row.split("\t")
        repository = checkout(checkouts, name)
        text = git_of(repository, "cat-file", "blob", f"{commit}:{file}") if repository else None
        yield Script(f"{name}/{file}", text or "")


def adopted(script: Script) -> Result:
    """Adopt a script as the command does."""
    if not script.text:
        return Result("missing", "")
    user = {"HOME": "/home/me", "USER": "me"}
    try:
        adoption = adopt(script.text, file=script.where.rpartition("/")[2], user=user, day="2026-01-31")
    except SbatchgenError as error:
        return Result("refused", error.problems[0].what)
    reasons = [row.what for row in adoption.lost]
    reason = next((what for what in reasons if what != REST), "".join(reasons[:1]))
    return Result("refused" if not adoption.job else "partly" if adoption.lost else "without loss", reason)


if __name__ == "__main__":
    sys.exit(main())
