"""profile, schema."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbatchgen.cli.output import YES, here, note, print_bytes, put, report, say
from sbatchgen.errors import CommandLineError, DocumentError, Problem, SbatchgenError, SlurmError
from sbatchgen.inputs.search import Places
from sbatchgen.quoting import first_names, visible

if TYPE_CHECKING:
    from datetime import date

    from sbatchgen.discover.cluster import LiveCluster


@click.group()
def profile() -> None:
    """List, show, check and make profiles of clusters."""


@profile.command("list")
def profile_list() -> None:
    """List all profiles by site, with the age of their facts.

    Of several with the same name, the one marked * is used.
    """
    from datetime import date

    from sbatchgen.inputs.document import read_document
    from sbatchgen.inputs.profile import Profile

    sites: dict[str, list[str]] = {}
    seen: set[str] = set()
    for name, file in Places(here(), os.environ).profiles():
        star = " " if name in seen else "*"
        seen.add(name)
        site = ""
        try:
            value = read_document(file, Profile).value
            age = _age(value.checked, date.today())  # noqa: DTZ011 - a day, as people write it
            text = f"{value.scheduler:<6} checked {value.checked}{age}  {value.description or ''}"
            site = value.site or ""
        except SbatchgenError as error:
            text = f"broken: {error}"
        sites.setdefault(site, []).append(f"{star} {name:<18} {text}\n    {file}")
    for site in sorted(sites):
        put(visible("\n".join([site, *sites[site]] if site else sites[site])))


def _age(checked: str, today: date) -> str:
    """Return how old facts are; "" if there is no date in the past."""
    from datetime import date

    try:
        days = (today - date.fromisoformat(checked)).days
    except ValueError:
        return ""
    ago = f"{days // 30} months ago" if days >= 60 else f"{days} days ago" if days > 1 else "yesterday"
    return "" if days < 0 else f", {ago if days else 'today'}"


@profile.command("show")
@click.argument("name")
def profile_show(name: str) -> None:
    """Print a profile; NAME is a name or a file."""
    from sbatchgen.files import read_file
    from sbatchgen.inputs.document import MAX_BYTES

    print_bytes(read_file(Places(here(), os.environ).profile(name), MAX_BYTES))


@profile.command("discover")
@click.option("--name", metavar="NAME", help="The profile's name. [default: ClusterName of slurm.conf]")
@click.option("--write", "new", metavar="FILE", help="New file for the profile. [default: stdout]")
@click.option("--update", "old", metavar="PROFILE", help="Update this profile, a name or a file; asks first.")
@YES
def profile_discover(name: str | None, new: str | None, old: str | None, *, yes: bool) -> None:
    """Make a profile of the cluster of this machine.

    Asks Slurm for partitions, nodes, GPUs and limits. Comments say how to find out what Slurm does not know.
    Read it, complete it, and check it with profile check.
    """
    from datetime import datetime

    from sbatchgen.discover.cluster import ask
    from sbatchgen.discover.entries import is_clean
    from sbatchgen.discover.facts import text

    if old is not None and (name or new):
        raise CommandLineError.of("--update takes neither --name nor --write", fix="leave these out")
    if name is not None and not is_clean(name):
        raise CommandLineError.of(f"'{name}' is not a word of printable characters", at="--name")
    cluster = ask(os.environ)
    today = f"{datetime.now().astimezone():%Y-%m-%d}"
    if old is not None:
        _update(old, cluster, today=today, yes=yes)
        return
    own = cluster.setting("ClusterName")
    content = text(cluster, os.environ, name=name or (own if is_clean(own) else "cluster"), today=today)
    if new is None:
        put(content, nl=False)
        return
    from sbatchgen import files

    if os.path.lexists(new):
        raise DocumentError.of(f"{new} exists", fix=f"bring it up to date: --update {new}; or name another")
    Path(new).parent.mkdir(parents=True, exist_ok=True)
    files.write(Path(new), content.encode())
    note(f"wrote {new}; next: sbatchgen profile check {new}")


def _update(name: str, cluster: LiveCluster, *, today: str, yes: bool) -> None:
    """Show what would change in a profile, and write it if the user agrees."""
    import difflib

    from sbatchgen import files
    from sbatchgen.discover.comparison import differences, findings
    from sbatchgen.discover.update import updated
    from sbatchgen.inputs.document import MAX_BYTES, decode, read_document
    from sbatchgen.inputs.profile import Profile

    file = Places(here(), os.environ).profile(name)
    own, before = read_document(file, Profile), files.read_file(file, MAX_BYTES)
    text = before.decode()
    after, by_hand = updated(text, differences(own, cluster), today=today)
    for finding in findings(by_hand, str(file)):
        say(finding.problem, "warning")
    if after.rstrip() == text.rstrip():
        note(f"{name}: nothing to change")
        return
    decode(after, Profile, name=f"{file} with the cluster's values")
    diff = difflib.unified_diff(text.splitlines(), after.splitlines(), str(file), str(file), lineterm="")
    put(visible("\n".join(diff)))
    if not yes and not sys.stdin.isatty():
        note("nothing was written: add --yes")
        return
    if not yes:
        click.confirm(f"Write {visible(str(file))}?", abort=True, err=True)
    files.write(file, after.encode(), before=before)


@profile.command("check")
@click.argument("names", nargs=-1, required=True)
@click.option("--live", is_flag=True, help="Compare them with the cluster of this machine too.")
def profile_check(names: tuple[str, ...], *, live: bool) -> None:
    """Check profiles.

    Renders every mode in every partition, and reports problems.
    """
    from sbatchgen.discover import comparison
    from sbatchgen.discover.cluster import ask
    from sbatchgen.finding import Finding
    from sbatchgen.inputs.document import read_document
    from sbatchgen.inputs.profile import Profile
    from sbatchgen.lint.profile_check import findings

    cluster = ask(os.environ) if live else None
    reported: list[Finding] = []
    places = Places(here(), os.environ)
    for name in names:
        try:
            file = places.profile(name)
            of_profile = findings(file, places)
            if cluster:
                stale = comparison.differences(read_document(file, Profile), cluster)
                of_profile = [*of_profile, *comparison.findings(stale, str(file))]
        except DocumentError as error:
            of_profile = [Finding("error", problem) for problem in error.problems]
        reported += of_profile
        if not any(finding.severity == "error" for finding in of_profile):
            put(visible(f"{name}: no errors"))
    report(reported)


@profile.command("sources")
@click.argument("name")
@click.option("--check", "folder", metavar="DIR", help="Compare them with checkouts of the documentation.")
def profile_sources(name: str, *, folder: str | None) -> None:
    """Show where the facts of a profile are documented.

    NAME is a name or a file. DIR is a git checkout of the documentation, a bare repository, or a folder with
    several; its newest commit counts. Exit status: 3 if cited lines changed, else 0.
    """
    from collections import Counter
    from pathlib import Path

    from sbatchgen.inputs.document import read_document
    from sbatchgen.inputs.profile import Profile
    from sbatchgen.inputs.search import Places
    from sbatchgen.table import table

    own = read_document(Places(here(), os.environ).profile(name), Profile)
    if folder is None:
        rows = ((", ".join(source.keys), source.at.url) for source in own.value.sources)
        put(visible(table(rows)), nl=False)
        return
    from sbatchgen.discover.sources import SourceState, compare

    compared = compare(own, Path(folder))
    counts = Counter(each.state for each in compared)
    states = ", ".join(f"{counts[state]} {state.value}" for state in SourceState if counts[state])
    put(visible(f"{name}: {states or 'no sources'}"))
    report(each.finding for each in compared if each.finding)


@profile.command("test")
@click.argument("names", nargs=-1, required=True, metavar="PACK|NAME...")
@click.option("--live", is_flag=True, help="Ask the Slurm of this machine too (sbatch --test-only).")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="As for a job: options.account=abc."
)
def profile_test(names: tuple[str, ...], *, live: bool, settings: tuple[str, ...]) -> None:
    """Try every job of profiles, or of a site's pack.

    Renders and lints each mode with each runtime in each partition, and the pack's jobs. PACK is a folder
    with profiles/, templates/ and jobs/, or the name of an installed one. Exit status: 3 if a job is wrong,
    5 if Slurm refuses one, else 0.
    """
    from sbatchgen.submit import trial

    tried: list[trial.Trial] = []
    for name in names:
        pack = trial.pack_of(name, Places(here(), os.environ))
        tried += trial.trials(pack, {"settings": settings}, live=live)
    put(visible(trial.table(tried)), nl=False)
    by_problem: dict[Problem, list[str]] = {}
    for job in tried:
        for problem in job.problems if job.outcome in ("error", "refused") else ():
            parts = (job.profile, job.job, job.runtime, job.partition)
            by_problem.setdefault(problem, []).append(" ".join(filter(None, parts)))
    problems = [row._replace(what=f"{first_names(jobs, 1)}: {row.what}") for row, jobs in by_problem.items()]
    if any(job.outcome == "error" for job in tried):
        raise DocumentError(problems)
    if problems:
        raise SlurmError(problems)


@click.command("schema")
@click.argument("name", metavar="profile|job", type=click.Choice(["profile", "job"]))
def schema(name: str) -> None:
    """Print a JSON schema for an editor.

    profile: of profiles; job: of job YAMLs and sbatchgen.yaml.
    """
    import json

    from sbatchgen.inputs import schema as schemas

    put(json.dumps(schemas.schema(name), indent=2))
