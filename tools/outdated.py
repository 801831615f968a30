"""A report of the lines that the bundled profiles cite and that have changed since.

    python -m tools.outdated FOLDER

A monthly run of .github/workflows/profiles.yml opens the report as an issue.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.finding import Finding
from sbatchgen.base.quoting import visible
from sbatchgen.base.texts import Citation
from sbatchgen.cli import main
from sbatchgen.cli.output import current_folder, put
from sbatchgen.jobs.inputs.document import Document, read_document
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import Places, bundled
from tools.sources import SourceState, compare

_CLONE = ("git", "clone", "--quiet", "--bare", "--depth=1", "--no-single-branch", "--filter=blob:limit=1m")


class Cited(NamedTuple):
    """A profile, with the repositories that it cites."""

    profile: Document[Profile]
    repositories: tuple[str, ...]


@click.command("python -m tools.outdated")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("names", metavar="[PROFILE]...", nargs=-1)
def cli(folder: Path, names: Sequence[str]) -> None:
    """Report in Markdown which cited lines of profiles have changed, all bundled ones by default.

    FOLDER gets a clone of each repository that it lacks, without its past. Exit status: 3 if there is a
    report.
    """
    names = names or sorted(path.stem for path in bundled("profiles").glob("*.yaml"))
    cited = [_cited(name) for name in names]
    wanted = dict.fromkeys(repository for each in cited for repository in each.repositories)
    unread = [repository for repository in wanted if not _clone(repository, folder)]
    report = [line for each in cited for line in _of_profile(each, folder, unread)]
    report += [f"- {repository} can't be cloned: is it gone?" for repository in unread]
    for line in report:
        put(visible(line))
    if report:
        click.get_current_context().exit(DocumentError.exit_status)


def _cited(name: str) -> Cited:
    document = read_document(Places(current_folder(), os.environ).profile(name), Profile)
    matches = (re.fullmatch(Citation.LINES, source.at) for source in document.value.sources)
    return Cited(document, tuple(dict.fromkeys(match["repository"] for match in matches if match)))


def _clone(repository: str, folder: Path) -> bool:
    """Clone a repository without its past, if the folder lacks it; return whether the folder has it then."""
    target = folder / repository.replace("/", "+")
    if target.exists():
        return True
    host = "" if repository.count("/") > 1 else "github.com/"
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0"}  # github.com asks for a name where none is
    words = [*_CLONE, f"https://{host}{repository}", str(target)]
    return subprocess.run(words, env=environment, check=False).returncode == 0


def _of_profile(cited: Cited, folder: Path, unread: Iterable[str]) -> Iterator[str]:
    """Yield the changed lines of a profile, below its name."""
    if not {*cited.repositories} - {*unread}:
        return
    findings = [
        each.finding
        for each in compare(cited.profile, folder)
        if each.finding and each.state is SourceState.CHANGED
    ]
    if findings:
        yield f"## {cited.profile.value.name}"
        yield ""
        yield from map(_line, findings)
        yield ""


def _line(finding: Finding) -> str:
    problem = finding.problem
    return f"- {problem.what} ({Path(problem.at).name}): {problem.fix}"


if __name__ == "__main__":
    main(program=cli)
