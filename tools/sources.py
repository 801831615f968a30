"""The documentation that a profile's facts are from, compared with a newer checkout of it.

    python -m tools.sources PROFILE FOLDER

A source has a digest of the lines that it cites, so that a shallow checkout is enough. Blanks don't count:
tables are aligned again when a row is added.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import click

from sbatchgen.base.errors import DocumentError, Problem
from sbatchgen.base.finding import Finding, Severity
from sbatchgen.base.git import git
from sbatchgen.base.quoting import first_names, visible
from sbatchgen.base.texts import Citation
from sbatchgen.check.cluster_facts import OLD_DAYS, FactSource
from sbatchgen.cli import main
from sbatchgen.cli.output import current_folder, put, report
from sbatchgen.jobs.inputs.document import Document, read_document
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import Places

_SHOWN = 100  # characters of a line


class SourceState(Enum):
    """What became of the cited lines."""

    SAME = "unchanged"
    MOVED = "moved"
    CHANGED = "changed"
    ELSEWHERE = "not in the folder"  # a page, or a repository that the folder lacks


class Comparison(NamedTuple):
    """A source and what became of its lines, with a finding unless they are unchanged or elsewhere."""

    source: FactSource
    state: SourceState
    finding: Finding | None = None


@click.command("python -m tools.sources")
@click.argument("name", metavar="PROFILE")
@click.argument("folder", type=click.Path(path_type=Path))
def cli(name: str, folder: Path) -> None:
    """Compare the cited lines of a profile with newer documentation.

    PROFILE is a name or a file. FOLDER is a git checkout of the documentation, a bare repository, or a folder
    with several; its newest commit counts. Exit status: 3 if cited lines changed, else 0.
    """
    document = read_document(Places(current_folder(), os.environ).profile(name), Profile)
    compared = compare(document, folder)
    counts = Counter(each.state for each in compared)
    states = ", ".join(f"{counts[state]} {state.value}" for state in SourceState if counts[state])
    put(visible(f"{name}: {states or 'no sources'}"))
    report([*(each.finding for each in compared if each.finding), *_old(name, document.value)])


def _old(name: str, profile: Profile) -> Iterator[Finding]:
    """Yield that somebody has to read the sources: lines that are the same may have been misread."""
    if profile.age_days > OLD_DAYS:
        what = f"{name}: the sources were last read {profile.age_days} days ago, on {profile.checked}"
        yield Finding(
            "warning", Problem(what, fix="compare the facts with them, and write the day as checked")
        )


def digest(lines: Sequence[str]) -> str:
    """Return eight hexadecimal digits that stand for lines of text."""
    text = "\n".join(" ".join(line.split()) for line in lines)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def compare(profile: Document[Profile], folder: Path) -> list[Comparison]:
    """Compare each source of a profile with the checkouts of its documentation in a folder, or that it is.

    Raises:
        DocumentError: There is no repository of them.
    """
    cited = [re.fullmatch(Citation.LINES, source.at) for source in profile.value.sources]
    names = dict.fromkeys(match["repository"] for match in cited if match)
    checkouts = _repositories(folder, [*names])
    if names and not checkouts:
        what = f"{folder} holds no repository of {first_names([*names], 3)}"
        raise DocumentError.of(what, fix=f"git clone https://github.com/{next(iter(names))} in it")
    return [
        _compare(
            source, match, checkouts[match["repository"]], profile.places.get(f"sources[{number}].at", "")
        )
        if match and match["repository"] in checkouts
        else Comparison(source, SourceState.ELSEWHERE)
        for number, (source, match) in enumerate(zip(profile.value.sources, cited, strict=True))
    ]


def _repositories(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the repositories of these names that a folder is or holds, by their origin or their folder."""
    candidates = [path for path in (folder, *folder.glob("*"), *folder.glob("*/*")) if _is_repository(path)]
    checkouts: dict[str, Path] = {}
    for path in candidates:
        file = path / (".git/config" if (path / ".git").exists() else "config")
        named = _git(path, "config", "--file", str(file), "--get", "remote.origin.url") or ""
        origin = named.removesuffix(".git").lower()
        for name in names:
            known_as = {name.lower().replace("/", mark) for mark in "+-_"} | {name.rpartition("/")[2].lower()}
            folders = {path.name.lower(), path.parent.name.lower()} if path != folder else set()
            if re.search(rf"(?:^|[/:]){re.escape(name.lower())}$", origin) or known_as & folders:
                checkouts.setdefault(name, path)
    if len(names) == 1 and candidates == [folder]:
        checkouts.setdefault(names[0], folder)
    return checkouts


def _is_repository(path: Path) -> bool:
    return (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir())


def _git(repository: Path, *arguments: str) -> str | None:
    return git(repository, *arguments, bare=not (repository / ".git").exists())


def _compare(source: FactSource, cited: re.Match[str], repository: Path, at: str) -> Comparison:
    """Compare the lines of a source with those of the newest commit."""
    path, first = cited["path"], int(cited["first"])
    count = int(cited["last"] or first) - first + 1
    newest = _newest(repository, cited["commit"], path)
    now, before = _lines(repository, newest, path), _lines(repository, cited["commit"], path)
    old = before[first - 1 : first - 1 + count]
    known = cited["digest"] or (digest(old) if old else "")
    where = f"{path}:{cited['first']}" + (f"-{cited['last']}" if cited["last"] else "")
    if not now:
        what = f"{where} is gone: {cited['repository']} has no such file now"
        fix = "find the facts elsewhere, and correct or remove the source"
        return _result(source, SourceState.CHANGED, what, at, fix)
    starts = [start for start in range(len(now)) if known and digest(now[start : start + count]) == known]
    start = min(starts, key=lambda start: abs(start - first + 1), default=None)
    if start == first - 1 and cited["digest"]:
        return Comparison(source, SourceState.SAME)
    commit = (_git(repository, "rev-parse", newest) or "")[:10]
    if start is not None:
        what = f"{where} is line {start + 1} now" if start != first - 1 else f"{where} has no digest"
        new = _citation(cited, commit, start + 1, now[start : start + count])
        return _result(source, SourceState.MOVED, what, at, f"write at: {new}")
    start = _nearest(now, old, first - 1)
    new = _citation(cited, commit, start + 1, now[start : start + count])
    was = f", it was '{_short(_first_change(old, now[start : start + count]))}'" if old else ""
    line = _short(_first_change(now[start : start + count], old))
    what = f"{where} changed{was}; line {start + 1} is now '{line}'"
    return _result(source, SourceState.CHANGED, what, at, f"correct the values, then write at: {new}")


def _newest(repository: Path, commit: str, path: str) -> str:
    """Return HEAD, or if that is another branch than the commit's, the newest commit of its branches.

    A shallow clone lacks the commit: there it is the newest commit that has the file.
    """
    if _git(repository, "merge-base", "--is-ancestor", commit, "HEAD") is not None:
        return "HEAD"
    listed = ("for-each-ref", "--sort=-committerdate", "--format=%(objectname)", "refs/heads", "refs/remotes")
    if holding := (_git(repository, *listed, "--contains", commit) or "").split():
        return holding[0]
    newest = ["HEAD", *(_git(repository, *listed) or "").split()]
    return next((each for each in newest if _lines(repository, each, path)), "HEAD")


def _lines(repository: Path, commit: str, path: str) -> list[str]:
    """Return the lines of a file in a commit; none if either is not in the repository."""
    text = _git(repository, "cat-file", "blob", f"{commit}:{path}")
    return text.split("\n") if text is not None else []


def _nearest(now: Sequence[str], old: Sequence[str], start: int) -> int:
    """Return the line that is most like the first of the old lines; the same number if nothing is like it."""
    like = get_close_matches(old[0], now, 1) if old and old[0].strip() else []
    return now.index(like[0]) if like else min(start, len(now) - 1)


def _first_change(lines: Sequence[str], others: Sequence[str]) -> str:
    """Return the first line that the others lack."""
    theirs = {" ".join(line.split()) for line in others}
    return next((line for line in lines if " ".join(line.split()) not in theirs), lines[0] if lines else "")


def _citation(cited: re.Match[str], commit: str, first: int, lines: Sequence[str]) -> str:
    until = f"-{first + len(lines) - 1}" if len(lines) > 1 else ""
    return f"{cited['repository']}@{commit} {cited['path']}:{first}{until} {digest(lines)}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _result(source: FactSource, state: SourceState, what: str, at: str, fix: str) -> Comparison:
    severity: Severity = "error" if state is SourceState.CHANGED else "info"
    about = f"{first_names(source.keys, 2)}: " if source.keys else ""
    return Comparison(source, state, Finding(severity, Problem(about + what, at, fix)))


if __name__ == "__main__":
    main(program=cli)
