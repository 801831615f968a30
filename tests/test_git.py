"""git starts nothing that a repository names: each trap goes off under git alone, and not here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.git import git
from sbatchgen.base.machine.ignored import take_problems
from sbatchgen.jobs.runs.record import code_in
from sbatchgen.jobs.runs.snapshot import plan_snapshot
from tests.conftest import REPOSITORY, Command
from tests.runs.test_snapshot import git as run_git
from tests.runs.test_snapshot import put

MARK = "../mark"  # from the root of a repository


@pytest.fixture
def repository(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit, whose file has another time since: git reads it to compare."""
    root = folder / "repo"
    monkeypatch.setenv("HOME", str(folder))
    put(root / "train.py", "1\n")
    put(root / ".gitattributes", "* filter=x diff=x\n")
    run_git(folder, "init", "--quiet", str(root))
    run_git(root, "add", ".")
    run_git(root, "commit", "--quiet", "--message", "first")
    put(root / "train.py", "2\n")
    return root


def monitor(root: Path) -> None:
    run_git(root, "config", "core.fsmonitor", f"touch {MARK}; false")


def clean_filter(root: Path) -> None:
    run_git(root, "config", "filter.x.clean", f"touch {MARK}; cat")


def filter_process(root: Path) -> None:
    run_git(root, "config", "filter.x.process", f"touch {MARK}; false")
    run_git(root, "config", "filter.x.required", "true")


def filter_of_included_file(root: Path) -> None:
    run_git(root, "config", "include.path", "more")
    put(root / ".git/more", f'[filter "x"]\n\tclean = "touch {MARK}; cat"\n')


def hook(root: Path) -> None:
    put(root / "hooks/post-index-change", f"#!/bin/sh\ntouch {MARK}\n", 0o755)
    run_git(root, "config", "core.hooksPath", "hooks")
    put(root / "train.py", "1\n")  # the index gets its new time


def transport(root: Path) -> None:
    """A partial clone fetches what it lacks."""
    run_git(root, "config", "remote.origin.url", str(root))
    run_git(root, "config", "remote.origin.promisor", "true")
    run_git(root, "config", "remote.origin.uploadpack", f"touch {root.parent}/mark; false")
    run_git(root, "config", "extensions.partialClone", "origin")
    run_git(root, "config", "core.repositoryFormatVersion", "1")
    tree = subprocess.check_output(["git", "-C", str(root), "rev-parse", "HEAD^{tree}"], text=True).strip()
    (root / f".git/objects/{tree[:2]}/{tree[2:]}").unlink()


def submodule(root: Path) -> None:
    """The filter of a submodule, which has a configuration of its own."""
    library = root.parent / "library"
    run_git(root.parent, "init", "--quiet", str(library))
    put(library / "lib.py", "1\n")
    put(library / ".gitattributes", "* filter=y\n")
    run_git(library, "add", ".")
    run_git(library, "commit", "--quiet", "--message", "first")
    run_git(root, "submodule", "--quiet", "add", str(library), "lib")
    run_git(root / "lib", "config", "filter.y.clean", f"touch {root.parent}/mark; cat")
    put(root / "lib/lib.py", "2\n")


def filter_without_a_name(root: Path) -> None:
    put(root / ".git/info/attributes", "* filter=\n")
    with (root / ".git/config").open("a") as file:
        file.write(f'[filter ""]\n\tclean = "touch {MARK}; cat"\n')


def filter_with_a_sign(root: Path) -> None:
    put(root / ".git/info/attributes", "* filter=a=b\n")
    with (root / ".git/config").open("a") as file:
        file.write(f'[filter "a=b"]\n\tclean = "touch {MARK}; cat"\n')


def filter_of_a_branch(root: Path) -> None:
    filter_of_included_file(root)
    run_git(root, "config", "--unset", "include.path")
    run_git(root, "config", "includeIf.onbranch:**.path", "more")


def filter_of_a_working_tree(root: Path) -> None:
    run_git(root, "config", "extensions.worktreeConfig", "true")
    run_git(root, "config", "--worktree", "filter.x.clean", f"touch {MARK}; cat")


def filter_of_a_common_folder(root: Path) -> None:
    shutil.copytree(root / ".git", root.parent / "common")
    put(root / ".git/commondir", f"{root.parent}/common\n")
    run_git(root, "config", "--file", "../common/config", "filter.x.clean", f"touch {MARK}; cat")


def filter_of_all_repositories(root: Path) -> None:
    run_git(root, "config", "--global", "filter.x.clean", f"touch {MARK}; cat")


FILTERS = [
    clean_filter,
    filter_process,
    filter_of_included_file,
    filter_without_a_name,
    filter_with_a_sign,
    filter_of_a_branch,
    filter_of_a_working_tree,
    filter_of_a_common_folder,
    filter_of_all_repositories,
]
TRAPS = [monitor, *FILTERS, hook, transport, submodule]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("trap", TRAPS)
def test_nothing_of_a_repository_is_started(repository: Path, trap: Callable[[Path], None]) -> None:
    mark = repository.parent / "mark"
    trap(repository)
    assert code_in(repository).folder == str(repository)
    code = plan_snapshot(repository, repository.parent / "run/code-1", (), None)
    assert "train.py" in code.sources
    assert not mark.exists()
    subprocess.run(["git", "status"], cwd=repository, capture_output=True, check=False)
    assert mark.exists()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("trap", [trap for trap in TRAPS if trap not in (hook, transport)])
def test_what_git_says_is_still_true(repository: Path, trap: Callable[[Path], None]) -> None:
    trap(repository)
    code = code_in(repository)
    commit = subprocess.check_output(["git", "-C", str(repository), "rev-parse", "HEAD"], text=True)
    assert (code.commit, code.dirty) == (commit.strip(), True)
    put(repository / "train.py", "1\n")
    put(repository / "lib/lib.py", "1\n")
    for path in ("lib", ".gitmodules"):
        subprocess.run(["git", "rm", "-rfq", "--cached", path], cwd=repository, check=False)
    assert not code_in(repository).dirty


def test_no_other_module_starts_git() -> None:
    words = re.compile(r"""\[\s*["'](?:\S*/)?git["']""")
    files = [path for path in (REPOSITORY / "sbatchgen").rglob("*.py") if words.search(path.read_text())]
    assert [path.name for path in files] == ["git.py"]


def test_files_are_copied_as_they_are(repository: Path) -> None:
    """Not as a filter would write them."""
    run_git(repository, "config", "filter.x.smudge", "tr 2 3")
    run_git(repository, "config", "core.autocrlf", "true")
    (repository.parent / "run").mkdir()
    code = plan_snapshot(repository, repository.parent / "run/code-1", (), None)
    code.copy()
    assert (code.copy_folder / "train.py").read_bytes() == b"2\n"


def test_a_change_in_a_submodule_is_a_change(repository: Path) -> None:
    submodule(repository)
    run_git(repository, "-c", "filter.x.clean=cat", "commit", "--quiet", "--all", "--message", "second")
    assert code_in(repository).dirty
    put(repository / "lib/lib.py", "1\n")
    assert not code_in(repository).dirty


def test_submodules_in_a_circle_of_links_end(repository: Path) -> None:
    submodule(repository)
    (repository / "lib/again").symlink_to("..")
    entry = f"160000,{code_in(repository).commit},again/lib"
    run_git(repository / "lib", "update-index", "--add", "--cacheinfo", entry)
    assert code_in(repository).dirty


def test_a_folder_that_looks_like_a_repository_is_none(repository: Path) -> None:
    """A clone may hold one, with a configuration in it."""
    embedded = repository / "data"
    run_git(repository, "init", "--quiet", "--bare", str(embedded))
    for name, value in {
        "bare": "false",
        "worktree": ".",
        "fsmonitor": f"touch {repository.parent}/mark",
    }.items():
        run_git(repository, "config", "--file", str(embedded / "config"), f"core.{name}", value)
    assert code_in(embedded).folder == str(repository)
    assert git(embedded, "status", "--porcelain") is not None
    assert not (repository.parent / "mark").exists()
    subprocess.run(["git", "status"], cwd=embedded, capture_output=True, check=False)
    assert (repository.parent / "mark").exists()


@pytest.mark.parametrize("part", [".", ".git"])
def test_a_repository_that_others_can_write_is_left_out(repository: Path, part: str) -> None:
    (repository / part).chmod(0o777)
    assert code_in(repository).commit == ""
    with pytest.raises(DocumentError, match="git is not asked: ignored") as refused:
        plan_snapshot(repository, repository.parent / "run/code-1", (), None)
    (problem,) = take_problems()
    assert refused.value.problems[0].fix == problem.fix
    assert problem.what.startswith("ignored .git: ")
    assert problem.what.endswith("can be written by everybody")
    assert problem.fix.startswith("chmod go-w ")
    assert f"export SBATCHGEN_TRUST={repository}" in problem.fix


def test_where_the_commits_are_is_judged_too(repository: Path) -> None:
    shared = repository.parent / "shared"
    shutil.copytree(repository / ".git", shared)
    put(repository / ".git/commondir", f"{shared}\n")
    assert code_in(repository).commit
    shared.chmod(0o777)
    assert code_in(repository).commit == ""


@pytest.mark.parametrize("name", ["HEAD", "commondir", "config", "index", "packed-refs"])
def test_a_pipe_in_a_repository_is_not_waited_for(repository: Path, name: str) -> None:
    (repository / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(repository / ".git" / name)
    assert code_in(repository) is not None


def test_a_second_working_tree_and_an_index_in_two_parts_are_read(repository: Path) -> None:
    run_git(repository, "worktree", "add", "--quiet", "../second")
    second = repository.parent / "second"
    put(second / "new.py")
    run_git(second, "add", "new.py")
    run_git(second, "update-index", "--split-index")
    run_git(second, "pack-refs", "--all")
    code = plan_snapshot(second, repository.parent / "run/code-1", (), None)
    assert ({*code.sources}, code.code.dirty) == ({".gitattributes", "train.py", "new.py"}, True)
    assert code.code.commit == code_in(repository).commit


def test_a_repository_of_a_trusted_folder_is_used(
    repository: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / ".git").chmod(0o777)
    monkeypatch.chdir(repository)
    words = ("submit", "single", "--profile", "torchrun", "--trainer", "train.py", "--snapshot", "--dry-run")
    refused = command(*words)
    assert (refused.status, "warning: ignored .git: it can be written by everybody" in refused.err) == (
        3,
        True,
    )
    monkeypatch.setenv("SBATCHGEN_TRUST", str(repository))
    assert command(*words).status == 0


def test_the_git_of_the_folder_is_not_started(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(repository / "git", f"#!/bin/sh\ntouch {MARK}\n", 0o755)
    monkeypatch.chdir(repository)
    monkeypatch.setenv("PATH", ".:", prepend=":")
    assert code_in(repository).commit
    (problem,) = take_problems()  # else the next command would say so
    assert problem.what.startswith("ignored ./git: PATH has the entry")
    assert not (repository.parent / "mark").exists()
