"""The scripts of the documentation that start a training, by profile: where they are, and how they are read.

Nothing of them is kept: each run reads the newest commit of the checkouts.
"""

from __future__ import annotations

import re
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sbatchgen.base.git import git
from sbatchgen.check.lint.source import read_sources
from sbatchgen.check.script.script import JobScript

AWS, CSC = "aws-samples/awsome-distributed-training", "CSCfi/csc-user-guide"
LUMI, OLIVIA = "Lumi-supercomputer/LUMI-AI-Guide", "UNINETTSigma2/documentation"
_CSC_PAGES = r"docs/support/tutorials/ml-multi\.md|docs/apps/pytorch\.md"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the examples of a profile are.

    Attributes:
        profile: The profile.
        repository: OWNER/REPOSITORY.
        files: The files, as a regular expression.
        branch: The branch that holds them.
        having: What a script has if it is for this cluster, where a page has scripts for several.
    """

    profile: str
    repository: str
    files: str
    branch: str = "HEAD"
    having: str = ""


PLACES = (
    Place(profile="lumi", repository=LUMI, files=r"(01|04|05|06|07|08|09)-.*\.sh"),
    Place(profile="lumi", repository=CSC, files=_CSC_PAGES, having=r"laifs"),
    Place(
        profile="frontier",
        repository="olcf/olcf-user-docs",
        files=r"software/analytics/pytorch_frontier\.rst",
    ),
    Place(
        profile="clariden",
        repository="eth-cscs/cscs-docs",
        files=r"docs/(software/ml/pytorch|tutorials/ml/llm-nanotron-training|software/alps-extended-images)\.md",
    ),
    Place(
        profile="olivia", repository=OLIVIA, files=r"code_development/guides/pytorch_olivia/PyTorch\w+Gpu\.md"
    ),
    Place(
        profile="olivia",
        repository=OLIVIA,
        files=r"code_development/guides/pytorch_olivia/PyTorchMultiNode\.md",
    ),
    Place(profile="mahti", repository=CSC, files=_CSC_PAGES, having=r"gpu:a100"),
    Place(profile="roihu", repository=CSC, files=_CSC_PAGES, having=r"gpu:gh200"),
    Place(profile="triton", repository="AaltoSciComp/scicomp-docs", files=r"triton/examples/pytorch/.*\.sh"),
    Place(
        profile="triton",
        repository="AaltoSciComp/scicomp-docs",
        files=r"triton/usage/gracehopper\.rst",
        having="train",
    ),
    Place(profile="perlmutter", repository="NERSC/sc25-dl-tutorial", files=r"submit_pm\w*\.sh"),
    Place(profile="perlmutter", repository="NERSC/pytorch-examples", files=r"scripts/train_perlmutter\.sh"),
    Place(
        profile="kestrel",
        repository="NREL/HPC",
        branch="gh-pages",
        files=r"docs/Documentation/Machine_Learning/index\.md",
        having="gpus=",
    ),
    Place(
        profile="parallelcluster-p5",
        repository=AWS,
        files=r"3\.test_cases/pytorch/(FSDP|ddp|torchtitan|picotron/SmolLM-1\.7B)/slurm/.*\.(sbatch|sh)",
    ),
    Place(
        profile="gcp-a3",
        repository="GoogleCloudPlatform/cluster-toolkit",
        files=r"examples/machine-learning/a3-megagpu-8g/topological-pytorch/.*\.sh",
    ),
    Place(
        profile="cannon",
        repository="KempnerInstitute/kempner-computing-handbook",
        files=r"kempner_computing_handbook/s5_ai_scaling_and_engineering/scalability/distributed_gpu_computing\.md",
    ),
    Place(
        profile="cannon",
        repository="fasrc/User_Codes",
        files=r"AI/PyTorch/.*\.sbatch|GPU_Computing/.*/PyTorch/.*\.sh",
    ),
    Place(
        profile="mila",
        repository="mila-iqia/mila-docs",
        files=r"docs/(examples|userguides)/.*job\.sh|docs/technical_reference/general_theory/multinode\.md",
    ),
    Place(
        profile="alvis",
        repository="c3se/alvis-intro",
        files=r"(tutorial|examples)/.*\.sh",
        having="PyTorch",
    ),
    Place(
        profile="nebius",
        repository="nebius/ml-cookbook",
        files=r"(slurm/(hf-\w+|object-[\w-]+|torch\w+)|pytorch-dsv3-mxfp8)/.*\.(sh|slurm)",
    ),
    Place(
        profile="azure-ndv5",
        repository="Azure/ai-infrastructure-on-azure",
        files=r"examples/(llm-foundry|megatron-lm/GPT3-175B)/slurm/(launch\.sb|04-gpt175B\.sh)",
    ),
    Place(
        profile="jean-zay",
        repository="idriscnrs/picotron_tutorial_jean-zay",
        files=r"slurm/.*\.slurm",
    ),
    Place(
        profile="jean-zay",
        repository="idriscnrs/bench_fsdp_dlojz",
        files=r"slurm/bench_h100_cap\.slurm",
    ),
    Place(
        profile="jean-zay",
        repository="idriscnrs/Democratizing-LLM-FT",
        files=r"slurm/FSDP_sAC_[ah]100_14B_?\.slurm",
    ),
    Place(
        profile="jureca",
        repository="HelmholtzAI-FZJ/2025-12-course-Bringing-Deep-Learning-Workloads-to-JSC-supercomputers",
        files=r"code/(dataloading/run_loader|parallelize/\w+)\.sbatch|01-access-machines\.md",
        having=r"imagenet_loaders|_training\.py",
    ),
    Place(
        profile="snellius",
        repository="SURF-ML/Snellius-AI-Guide",
        files=r"(0[2-6]-.*|11-Bonus-data-storage)/run\w*\.sh",
    ),
    Place(
        profile="coreweave",
        repository="coreweave/reference-architecture",
        files=r"training/slurm/torch-allreduce/.*\.sbatch",
    ),
    Place(
        profile="delta",
        repository="ncsa/Delta_doc",
        files=r"docs/source/user_guide/(running_jobs|containers)\.rst",
        having=r"multinode\.py|/NGC/pytorch",
    ),
)


@dataclass(frozen=True)
class Example:
    """A documented script.

    Attributes:
        place: Where it is.
        file: Its file.
        line: Its first line there.
        commit: The commit that was read.
        script: What sbatch and bash read.
    """

    place: Place
    file: str
    line: int
    commit: str
    script: JobScript

    @property
    def file_name(self) -> str:
        """A name for files about it."""
        repository = self.place.repository.rpartition("/")[2]
        where = re.sub(r"[^\w.-]", "_", f"{repository}-{self.file}-{self.line}")
        return f"{self.place.profile}-{where}"


def examples(checkouts: Path) -> Iterator[Example]:
    """Yield the examples of the repositories that a folder holds."""
    for place in PLACES:
        repository = checkout(checkouts, place.repository)
        listed = git_of(repository, "ls-tree", "-r", "--name-only", place.branch) if repository else None
        if repository is None or listed is None:
            continue
        commit = (git_of(repository, "rev-parse", place.branch) or "")[:10]
        for file in listed.split("\n"):
            if re.fullmatch(place.files, file):
                text = git_of(repository, "cat-file", "blob", f"{commit}:{file}") or ""
                for line, script in scripts(whole(text, repository, commit), file):
                    read = JobScript(file=file, text=script, slurm="24.11", is_release_assumed=True)
                    if read.trainings and re.search(place.having, script):
                        yield Example(place, file, line, commit, read)


def git_of(repository: Path, *arguments: str) -> str | None:
    """Return what git prints of a checkout or a bare repository."""
    return git(repository, *arguments, bare=not (repository / ".git").exists())


def checkout(folder: Path, repository: str) -> Path | None:
    """Return the checkout or bare repository of OWNER/NAME in a folder."""
    owner, _, name = repository.partition("/")
    for path in (
        folder / f"{owner}+{name}" / "repo",
        folder / owner / name,
        folder / f"{owner}+{name}",
        folder / name,
    ):
        if (path / "HEAD").is_file() or (path / ".git").exists():
            return path
    return None


def whole(text: str, repository: Path, commit: str) -> str:
    """Return a page as its readers see it: with what it includes, without marks of tabs and annotations."""

    def included(match: re.Match[str]) -> str:
        return git_of(repository, "cat-file", "blob", f"{commit}:{match[1]}") or ""

    text = re.sub(r'^--8<-- "([\w./-]+)"$', included, text, flags=re.MULTILINE)
    text = re.sub(r"^`{4,}.*$|^:(?:linenos|name|caption):.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^```\{code-block\} ", "```", text, flags=re.MULTILINE)
    return re.sub(r"(\\?)[ \t]*#?[ \t]?\(\d+\)!?[ \t]*$", r"\1", text, flags=re.MULTILINE)


def scripts(text: str, file: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each script of a file."""
    if file.endswith(".md"):
        with tempfile.NamedTemporaryFile("w", suffix=".md") as page:
            page.write(text)
            page.flush()
            yield from ((source.line, _mended(source.text)) for source in read_sources(page.name))
    elif file.endswith(".rst"):
        yield from ((line, _mended(script)) for line, script in _literal_blocks(text))
    elif "#SBATCH" in text:
        yield 1, _mended(text)


def _literal_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield the indented blocks with directives of a page in reStructuredText."""
    lines = text.expandtabs().split("\n")
    starts = [number for number, line in enumerate(lines) if re.match(r"[ \t]+#!/bin/bash", line)]
    for start in starts:
        indent = len(lines[start]) - len(lines[start].lstrip())
        end = next(
            (
                n
                for n in range(start, len(lines))
                if lines[n].strip() and len(lines[n]) - len(lines[n].lstrip()) < indent
            ),
            len(lines),
        )
        block = textwrap.dedent("\n".join(lines[start:end]))
        if "#SBATCH" in block:
            yield start + 1, block


def _mended(script: str) -> str:
    """Return a script as a reader would run it.

    Placeholders are words, and a launch in a comment is a launch. What AWS adds on HyperPod alone is left
    out.
    """
    script = (
        script.replace("${AUTO_RESUME} ", "")
        .replace("${PROFILE_CMD} ", "")
        .replace("#export CONTAINER_IMAGE=", "export CONTAINER_IMAGE=")
    )
    script = re.sub(
        r"^if \[ ! -z \$CONTAINER_IMAGE \];\nthen\n(.*?)^fi\n", r"\1", script, flags=re.MULTILINE | re.DOTALL
    )
    script = re.sub(r"^(#SBATCH.*) <value>$", r"\1", script, flags=re.MULTILINE)  # the mark of read_sources()
    script = re.sub(r"^#SBATCH[ \t]+\[.*\]$", "#", script, flags=re.MULTILINE)  # [budget code]
    script = re.sub(r"[ \t]<[\w-]*(?:options|args)>", "", script)
    script = re.sub(r"<([A-Za-z][\w -]*)>", lambda match: re.sub(r"\W", "_", match[1]), script)
    if not re.search(r"^[ \t]*srun\b", script, re.MULTILINE):
        script = re.sub(r"^#[ \t]*(srun\b.*python)", r"\1", script, count=1, flags=re.MULTILINE)
    return script
