"""What others can write is not used: files that are found by searching, and the cache of compiled templates."""

from __future__ import annotations

import grp
import io
import marshal
import os
import pickle
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jinja2.bccache import bc_magic

from sbatchgen.base.machine import trust
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.render.render import render
from sbatchgen.jobs.render.templates import environment_of
from tests.conftest import Command
from tests.scripts import CODE, resolved

NOBODY = 65534
PROJECT = "profile: msu\noptions: {account: planted}\n"
TEMPLATE = (
    '{% extends "bundled:job.sh.j2" %}\n{% block modules %}\n{{ super() }}echo planted\n{% endblock %}\n'
)
PROFILE = (bundled("profiles") / "msu.yaml").read_text() + "setup: [echo planted]\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


def everybody(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


def give_away(path: Path) -> None:
    os.chown(path, NOBODY, -1, follow_symlinks=False)


def give_to_group(path: Path) -> None:
    os.chown(path, -1, NOBODY)
    path.chmod(path.stat().st_mode | 0o020)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def project(folder: Path) -> Path:
    """A project with a template and a profile of its own, all of which show in the script."""
    write(folder / "sbatchgen.yaml", PROJECT)
    write(folder / ".sbatchgen/templates/job.sh.j2", TEMPLATE)
    write(folder / ".sbatchgen/profiles/own.yaml", PROFILE.replace("name: msu", "name: own"))
    return folder


def test_what_is_the_users_own_is_used(project: Path, command: Command) -> None:
    result = command("render", "ddp")
    assert "--account=planted" in result.out
    assert "echo planted" in result.out
    assert (result.status, result.err) == (0, "")


@needs_root
def test_a_file_in_a_parent_folder_of_another_user_is_left_out(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = folder / "tmp" / "mine"
    here.mkdir(parents=True)
    give_away(write(here.parent / "sbatchgen.yaml", PROJECT).parent)
    monkeypatch.chdir(here)
    result = command("render", "ddp", "--profile", "msu")
    assert "planted" not in result.out
    assert result.err == (
        f"warning: ignored sbatchgen.yaml: its folder belongs to another user ({pwd.getpwuid(NOBODY).pw_name})\n"
        f"  at:  {here.parent}/sbatchgen.yaml\n"
        f"  fix: to trust it: sbatchgen trust {here.parent}\n"
    )
    assert result.status == 0


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (".", "sbatchgen.yaml: its folder"),
        ("sbatchgen.yaml", "sbatchgen.yaml: it"),
        (".sbatchgen", ".sbatchgen: it"),
        (".sbatchgen/templates", ".sbatchgen/templates: it"),
        (".sbatchgen/templates/job.sh.j2", ".sbatchgen/templates: job.sh.j2 in it"),
        (".sbatchgen/templates/sub", ".sbatchgen/templates: sub in it"),
        (".sbatchgen/templates/sub/part.j2", ".sbatchgen/templates: sub/part.j2 in it"),
        (".sbatchgen/profiles", ".sbatchgen/profiles: it"),
        (".sbatchgen/profiles/own.yaml", ".sbatchgen/profiles/own.yaml: it"),
    ],
)
def test_what_everybody_can_write_is_left_out_and_reported_once(
    project: Path, command: Command, path: str, why: str
) -> None:
    write(project / ".sbatchgen/templates/sub/part.j2", "")
    everybody(project / path)
    result = command("review", "ddp", "--profile", "own" if "own" in path else "msu")
    assert result.err.count("ignored ") == 1
    assert result.err.startswith(f"warning: ignored {why} can be written by everybody\n")
    assert f"  fix: chmod go-w {(project / path).resolve()}, or to trust it, export " in result.err
    assert f"export SBATCHGEN_TRUST={project}\n" in result.err
    assert ("--account=planted" in result.out) == (path not in (".", "sbatchgen.yaml") and "own" not in path)
    assert ("echo planted" in result.out) == ("profiles" in path and "own" not in path)


@needs_root
@pytest.mark.parametrize("path", ["sbatchgen.yaml", ".sbatchgen", ".sbatchgen/templates/job.sh.j2"])
def test_what_belongs_to_another_user_is_left_out(project: Path, command: Command, path: str) -> None:
    give_away(project / path)
    result = command("render", "ddp", "--profile", "msu")
    assert "echo planted" not in result.out
    assert "belongs to another user" in result.err
    assert "chmod" not in result.err
    assert result.status == 0


def test_a_folder_for_all_is_no_place_for_a_project(project: Path, command: Command) -> None:
    """As in /tmp, where only its owner can remove a file, but anybody could have made the folder beside it."""
    project.chmod(0o1777)
    result = command("render", "ddp")
    assert "planted" not in result.out
    assert "sbatchgen.yaml: its folder can be written by everybody\n" in result.err
    assert "chmod" not in result.err  # no user should take /tmp away from the others


def test_a_folder_of_the_users_own_in_one_for_all_is_fine(
    project: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = project / "shared"
    write(shared / "mine" / "sbatchgen.yaml", PROJECT)
    shared.chmod(0o1777)
    monkeypatch.chdir(shared / "mine")
    result = command("render", "ddp")
    assert "--account=planted" in result.out
    assert result.err == ""


@needs_root
def test_what_a_group_can_write_is_left_out(project: Path, command: Command) -> None:
    give_to_group(project / "sbatchgen.yaml")
    result = command("render", "ddp")
    name = grp.getgrgid(NOBODY).gr_name
    assert f"sbatchgen.yaml: it can be written by the group {name}\n" in result.err
    assert "planted" not in result.out


def groups(monkeypatch: pytest.MonkeyPatch, name: str, members: list[str], primary: int) -> None:
    me = pwd.struct_passwd(("alice", "x", os.geteuid(), primary, "", "/", "/bin/sh"))
    monkeypatch.setattr(grp, "getgrgid", lambda number: grp.struct_group((name, "x", number, members)))
    monkeypatch.setattr(pwd, "getpwnam", {"alice": me}.__getitem__)
    trust.is_private.cache_clear()


@pytest.fixture
def _fresh_groups() -> Iterator[None]:
    trust.is_private.cache_clear()
    yield
    trust.is_private.cache_clear()


@pytest.mark.usefixtures("_fresh_groups")
@pytest.mark.parametrize(
    ("name", "members", "primary", "fine"),
    [
        ("alice", [], os.getegid(), True),
        ("alice", ["alice"], os.getegid(), True),
        ("alice", ["bob"], os.getegid(), False),
        ("lab", [], os.getegid(), False),
        ("alice", [], os.getegid() + 1, False),
    ],
)
def test_a_private_group_of_the_user_may_write(
    project: Path, command: Command, monkeypatch: pytest.MonkeyPatch,
    *, name: str, members: list[str], primary: int, fine: bool,
) -> None:  # fmt: skip
    """The usual umask 002 is only sensible where each user has a group."""
    groups(monkeypatch, name, members, primary)
    (project / "sbatchgen.yaml").chmod(0o664)
    result = command("render", "ddp", "--profile", "msu")
    assert ("--account=planted" in result.out) == fine
    assert (result.err == "") == fine


@pytest.mark.usefixtures("_fresh_groups")
def test_an_access_list_speaks_for_others(
    project: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups(monkeypatch, "alice", [], os.getegid())
    monkeypatch.setattr(os, "listxattr", lambda _: ["system.posix_acl_access"])
    (project / "sbatchgen.yaml").chmod(0o664)
    assert "sbatchgen.yaml: it can be written by others in its access list" in command("render", "ddp").err


@pytest.mark.parametrize("variable", ["SBATCHGEN_PATH", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"])
@pytest.mark.parametrize("part", ["", "profiles", "templates", "profiles/msu.yaml", "templates/job.sh.j2"])
def test_search_folders_are_judged_too(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch, variable: str, part: str
) -> None:
    root = folder / "site" if variable == "SBATCHGEN_PATH" else folder / "site" / "sbatchgen"
    write(root / "profiles/msu.yaml", PROFILE)
    write(root / "templates/job.sh.j2", TEMPLATE.replace("echo planted", "echo template"))
    monkeypatch.setenv(variable, str(folder / "site"))
    assert "echo template" in command("render", "ddp", "--profile", "msu").out
    everybody(root / part)
    result = command("render", "ddp", "--profile", "msu")
    assert ("echo template" in result.out) == part.startswith("p")
    assert ("echo planted" in result.out) == part.startswith("t")
    assert result.err.count("warning: ignored") == 1
    assert f"export SBATCHGEN_TRUST={root}\n" in result.err


@pytest.mark.parametrize(
    ("trust", "used"),
    [
        ("{}", True),
        ("/nowhere:{}/", True),
        ("*", True),
        (".", True),
        ("{}/..", False),
        ("", False),
        ("/", False),
    ],
)
def test_a_trusted_folder_is_used_and_not_those_below_it(
    project: Path, command: Command, monkeypatch: pytest.MonkeyPatch, *, trust: str, used: bool
) -> None:
    everybody(project)
    everybody(project / ".sbatchgen" / "templates" / "job.sh.j2")
    monkeypatch.setenv("SBATCHGEN_TRUST", trust.format(project))
    result = command("render", "ddp", "--profile", "msu")
    assert (result.out.count("planted"), result.err == "") == ((2, True) if used else (0, False))
    if trust and not used:
        assert f"export SBATCHGEN_TRUST=$SBATCHGEN_TRUST:{project}\n" in result.err


def test_what_the_user_names_is_taken_as_it_is(project: Path, command: Command) -> None:
    everybody(write(project / "job.yaml", "mode: single\nrun_dir: named\n"))
    everybody(write(project / "x.yaml", PROFILE.replace("echo planted", "echo named")))
    result = command("render", "job.yaml", "--profile", "./x.yaml")
    assert "/named" in result.out
    assert "echo named" in result.out
    assert (result.status, result.err) == (0, "")


@pytest.mark.parametrize("variable", ["SBATCHGEN_PATH", "XDG_CONFIG_HOME"])
def test_folders_above_are_judged_too(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    root = folder / "group/mine" / ("" if variable == "SBATCHGEN_PATH" else "sbatchgen")
    write(root / "profiles/msu.yaml", PROFILE)
    monkeypatch.setenv(variable, str(folder / "group/mine"))
    everybody(folder / "group")
    result = command("render", "ddp", "--profile", "msu")
    assert "planted" not in result.out
    assert f"it is below {folder}/group, which can be written by everybody\n" in result.err
    assert f"  fix: chmod go-w {folder}/group, or to trust it, export SBATCHGEN_TRUST={root}\n" in result.err
    (folder / "group").chmod(0o1777)
    assert "planted" in command("render", "ddp", "--profile", "msu").out


def test_what_does_not_exist_in_a_folder_for_all_can_be_made_by_others(tmp_path: Path) -> None:
    assert trust.other_writer(tmp_path / "new") is None
    tmp_path.chmod(0o1777)
    reason = trust.other_writer(tmp_path / "new")
    assert reason
    assert reason[:2] == (tmp_path, f"does not exist, and others can make it in {tmp_path}")


def test_the_project_above_one_that_is_left_out_counts(
    project: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = write(project / "below" / "sbatchgen.yaml", "options: {account: other}\n")
    everybody(below)
    monkeypatch.chdir(below.parent)
    result = command("render", "ddp")
    assert "--account=planted" in result.out
    assert f"  at:  {below}\n" in result.err


def test_each_file_that_was_left_out_is_reported_with_its_fix(
    project: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [project / f"site {number}" for number in range(2)]
    for root in roots:
        (root / "profiles").mkdir(parents=True)
        everybody(root)
    monkeypatch.setenv("SBATCHGEN_PATH", ":".join(map(str, roots)))
    error = command("profile", "list").err
    assert error.count("warning: ignored ") == error.count("it can be written by everybody\n") == 2
    fixes = [f"  fix: chmod go-w '{root}', or to trust it, export SBATCHGEN_TRUST=" for root in roots]
    assert f"{fixes[0]}'{roots[0]}'\n" in error
    assert f"{fixes[1]}$SBATCHGEN_TRUST:'{roots[1]}'\n" in error  # beside the first


def test_a_link_is_as_good_as_what_it_leads_to(project: Path, command: Command) -> None:
    file = project / "sbatchgen.yaml"
    elsewhere = write(project / "elsewhere" / "mine.yaml", PROJECT)
    file.unlink()
    file.symlink_to(elsewhere)
    assert "--account=planted" in command("render", "ddp").out
    everybody(elsewhere)
    error = command("render", "ddp").err
    assert f"sbatchgen.yaml: it is a link to {elsewhere}, which can be written by everybody\n" in error
    elsewhere.chmod(0o644)
    everybody(elsewhere.parent)
    error = command("render", "ddp").err
    assert f"it is a link into {elsewhere.parent}, which can be written by everybody\n" in error
    file.unlink()
    file.symlink_to(file)
    assert command("render", "ddp").err == ""


def test_links_among_templates_may_lead_nowhere_and_in_a_circle(project: Path, command: Command) -> None:
    templates = project / ".sbatchgen" / "templates"
    (templates / ".#job.sh.j2").symlink_to("alice@login1.1234")  # an editor's
    (templates / "circle").symlink_to(templates)
    result = command("render", "ddp")
    assert "echo planted" in result.out
    assert result.err == ""
    templates.rename(project / "elsewhere")
    templates.symlink_to(project / "elsewhere")
    everybody(write(project / "beside.j2", ""))
    (templates / "up").symlink_to("../beside.j2")
    assert "up in it is a link to" in command("render", "ddp").err
    (templates / "up").unlink()
    (templates / "far").symlink_to(write(project / "far" / "part.j2", "").parent)
    everybody(project / "far" / "part.j2")
    assert "far/part.j2 in it can be written by everybody" in command("render", "ddp").err


def test_the_warning_comes_with_errors_and_from_every_command(project: Path, command: Command) -> None:
    everybody(project / ".sbatchgen" / "profiles" / "own.yaml")
    result = command("render", "ddp", "--profile", "own")
    assert "error: no profile 'own'" in result.err
    assert "warning: ignored .sbatchgen/profiles/own.yaml" in result.err
    assert result.status == 3
    assert " own " not in command("profile", "list").out
    (project / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=1\n")
    everybody(project / "sbatchgen.yaml")
    for arguments in (("lint", "job.sh"), ("profile", "show", "msu"), ("explain", "cpu")):
        assert command(*arguments).err.count("warning: ignored sbatchgen.yaml: it ") == 1, arguments


def test_submit_warns_before_it_asks(project: Path, command: Command) -> None:
    everybody(project / "sbatchgen.yaml")
    result = command("submit", "cpu", "--profile", "local", "--dry-run", "--", "--dataset", "fake")
    assert result.err.startswith("warning: ignored sbatchgen.yaml: it ")
    assert "\ntrain() {" in result.err
    assert result.err.count("ignored ") == 1


@pytest.mark.parametrize("what", ["folder", "pipe"])
def test_what_is_no_file_is_no_project(folder: Path, command: Command, what: str) -> None:
    path = folder / "sbatchgen.yaml"
    path.mkdir() if what == "folder" else os.mkfifo(path)
    result = command("render", "ddp", "--profile", "msu")
    assert (result.status, result.err) == (0, "")


# --- The cache of compiled templates ---

TINY = {
    "job.sh.j2": '#!/bin/bash\n# {{ provenance }}\n{% include "part.j2" %}\n',
    "part.j2": "echo {{ run_dir | path }}\n",
}
Tiny = Callable[[], str]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path: Path, cache: Path) -> Tiny:
    """Renders two small templates, as a new process would."""
    for name, text in TINY.items():
        write(tmp_path / "templates" / name, text)
    of = resolved("ddp")

    def run() -> str:
        environment_of.cache_clear()
        return render(of, code=CODE, rerun=("x",), folders=[tmp_path / "templates"], cache=cache)

    return run


def kept(cache: Path) -> list[Path]:
    """Return the files in a cache."""
    return sorted(path for path in cache.rglob("*") if path.is_file())


def poison(cache: Path) -> None:
    """Put other code into the files, as jinja2 would have written it: only owner and mode can tell."""
    text = "name = 'job.sh.j2'\nblocks = {}\ndebug_info = ''\ndef root(*_):\n    yield 'poisoned'\n"
    code = compile(text, "x", "exec")
    for file in kept(cache):
        whole = io.BytesIO(file.read_bytes())
        whole.seek(len(bc_magic))
        pickle.load(whole)  # noqa: S301 - jinja2's own
        file.write_bytes(whole.getvalue()[: whole.tell()] + marshal.dumps(code))


def test_compiled_templates_are_kept_in_files_of_the_users_own(tiny: Tiny, cache: Path) -> None:
    tiny()
    assert [path.stat().st_mode & 0o777 for path in (*cache.iterdir(), *kept(cache))] == [0o700, 0o600, 0o600]
    poison(cache)
    assert tiny().startswith("poisoned")  # they are read: the tests below mean something


def test_a_changed_template_is_compiled_again(tiny: Tiny, tmp_path: Path) -> None:
    tiny()
    (tmp_path / "templates" / "part.j2").write_text("echo changed\n")
    assert "echo changed\n" in tiny()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(give_to_group, marks=needs_root),
        lambda folder: folder.chmod(0o1777),
        lambda folder: folder.parent.chmod(0o777),
        pytest.param(give_away, marks=needs_root),
        pytest.param(lambda folder: give_away(folder.parent), marks=needs_root),
    ],
    ids=["group", "everybody", "everybody above", "another user", "another user above"],
)
def test_a_folder_that_others_can_write_holds_no_cache(
    tiny: Tiny, cache: Path, spoil: Callable[[Path], None]
) -> None:
    right = tiny()
    poison(cache)
    before = [file.read_bytes() for file in kept(cache)]
    spoil(next(cache.iterdir()))
    assert tiny() == right
    assert [file.read_bytes() for file in kept(cache)] == before


def test_new_folders_for_a_cache_are_the_users_alone(cache: Path) -> None:
    """Whatever the umask: a group that shares it would have no cache."""
    cache = cache / "below"
    old = os.umask(0)
    try:
        assert trust.make_own(cache)
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in (cache, cache.parent)} == {0o700}


def test_damage_changes_no_script(tiny: Tiny, cache: Path) -> None:
    right = tiny()
    for file in kept(cache):
        data = file.read_bytes()
        for length in range(0, len(data), 7):
            file.write_bytes(data[:length])
            assert tiny() == right


def test_a_script_needs_no_cache(tiny: Tiny, cache: Path) -> None:
    cache.write_text("a file where the folder would be")
    assert tiny().startswith("#!/bin/bash")
