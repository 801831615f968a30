#!/usr/bin/env python3
"""How many published training scripts `adopt` turns into a job without loss.

    python benchmarks/adopt.py CHECKOUTS                     # the table, and why scripts are not adopted
    python benchmarks/adopt.py CHECKOUTS --each              # and a line for each of these scripts

CHECKOUTS holds checkouts or bare repositories as OWNER/NAME or OWNER+NAME/repo. The documented scripts are
those of the centres' repositories that mention torch, or a launcher of its processes, and start Python or
such a launcher. The public ones are the 300 of benchmarks/trainings.tsv: repository, commit and path, no two
of the same content, at most 10 of a repository, in the order of their hashes. Those whose repository or
commit is missing are counted apart.

Without loss: `adopt` writes both files, and the script that they render asks Slurm for the same and starts
the same, which it compares itself. Partly: `--partly` does. Refused: no job can be made of the script.

Exit status: 0; 1 if less than 70 % are adopted without loss; 2 if CHECKOUTS holds no repository.
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
from sbatchgen.base.errors import SbatchgenError
from sbatchgen.lab.adopt.adoption import adopt
from sbatchgen.lab.adopt.training import NO_TRAINING

GOAL = 0.70
CENTRES = """
AaltoRSE/pytorch-ddp-imagenet AaltoSciComp/scicomp-docs accre/SLURM amd/HPCTrainingExamples
ARCHER2-HPC/archer2-docs argonne-lcf/ALCF_Hands_on_HPC_Workshop argonne-lcf/user-guides
aws-samples/awsome-distributed-training awsdocs/aws-parallelcluster-user-guide
Azure/ai-infrastructure-on-azure Azure/azurehpc Azure/cyclecloud-slurm c3se/alvis-intro
coreweave/ml-containers CSCfi/csc-user-guide CSCfi/machine-learning-scripts CSCfi/pytorch-ddp-examples
EPCCed/eidf-docs eth-cscs/cscs-docs fasrc/User_Codes GoogleCloudPlatform/cluster-toolkit
GoogleCloudPlatform/slurm-gcp gw4-isambard/docs hpc2n/intro-course hpcleuven/VscDocumentation
idriscnrs/idr_torch isambard-sc/ieee_cluster2025 jean-zay-users/jean-zay-doc
Lumi-supercomputer/Getting_Started_with_AI_workshop Lumi-supercomputer/LUMI-AI-Guide
Lumi-supercomputer/lumi-userguide mila-iqia/mila-docs N8-CIR-Bede/documentation NCAR/HPC-Docs ncsa/Delta_doc
nebius/ml-cookbook nebius/soperator NERSC/nersc-dl-wandb NERSC/Perlmutter_Training_Jan2022
NERSC/pytorch-examples NERSC/sc24-dl-tutorial nesi/support-docs nf-core/configs NREL/HPC nuitrcs/examplejobs
NYU-RTS/rts-docs-dev olcf/ai-training-series olcf/olcf-user-docs oracle-quickstart/oci-hpc
PDC-support/PDC-support-web PrincetonUniversity/hpc_beginning_workshop PrincetonUniversity/multi_gpu_training
PurdueRCAC/RCAC-Docs rcc-uchicago/user-guide sdsc-hpc-training-org/hpctr-examples
SouthernMethodistUniversity/hpc_docs stanford-rc/www.sherlock.stanford.edu stas00/ml-engineering
TACC/TACC-Docs ubccr/ccr-examples uchicago-ssd-sscs/sbatch_examples ULHPC/tutorials ULHPC/ulhpc-docs
UNINETTSigma2/documentation UPPMAX/UPPMAX-documentation UQ-RCC/hpc-docs UTS-eResearch/hpc_examples
willfurnass/sheffield_hpc ycrc/ycrc.github.io
"""
_TORCH = re.compile(r"torch|accelerate|deepspeed|lightning|composer", re.IGNORECASE)
_START = re.compile(r"\b(?:python[\d.]*|torchrun|accelerate|deepspeed|lightning|composer)\b")
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


def starts_torch(text: str) -> bool:
    """Whether a script mentions torch, and starts Python or a launcher."""
    commands = [line for line in text.split("\n") if not line.lstrip().startswith("#")]
    return text.startswith("#!") and bool(_TORCH.search(text)) and any(map(_START.search, commands))


def documented(checkouts: Path) -> Iterator[Script]:
    """Yield the scripts of the centres' documentation, each text once."""
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
                if starts_torch(script) and content not in seen:
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
    reasons = [row.reason for row in adoption.lost]
    reason = next((what for what in reasons if what != NO_TRAINING), "".join(reasons[:1]))
    return Result("refused" if not adoption.job else "partly" if adoption.lost else "without loss", reason)


if __name__ == "__main__":
    sys.exit(main())
