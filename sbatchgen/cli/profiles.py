"""The commands profile and schema: they show, check and make profiles, and print JSON schemas."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbatchgen.base.errors import CommandLineError, DocumentError, SbatchgenError, did_you_mean
from sbatchgen.base.quoting import one_line, visible, word
from sbatchgen.cli.output import (
    FORMAT,
    YES,
    current_folder,
    failure_of,
    note,
    print_bytes,
    put,
    put_json,
    report,
    say,
)
from sbatchgen.jobs.inputs import completion
from sbatchgen.jobs.inputs.search import Places, bundled

if TYPE_CHECKING:
    from datetime import date

    from sbatchgen.jobs.inputs.document import Document
    from sbatchgen.jobs.inputs.profile import Profile
    from sbatchgen.jobs.outputs.profiles import ListedProfile
    from sbatchgen.lab.discover.slurm_answers import LiveCluster


def _read_profile(file: Path) -> Document[Profile]:
    """Return the profile in a file; raise DocumentError if it is wrong."""
    from sbatchgen.jobs.inputs.document import read_document
    from sbatchgen.jobs.inputs.profile import Profile

    return read_document(file, Profile)


@click.group()
def profile() -> None:
    """List, show, check and make profiles of clusters."""


@profile.command("list")
@FORMAT
def profile_list(form: str) -> None:
    """List all profiles by site, with the age of their facts.

    If several profiles have the same name, the profile marked * is used.
    """
    from datetime import date

    rows = [*_listed_profiles()]
    if form == "json":
        from sbatchgen.jobs.outputs.profiles import ProfilesOutput

        put_json(ProfilesOutput(profiles=rows))
        return
    texts_by_site: dict[str, list[str]] = {}
    for row in rows:
        age = _age_in_words(row["checked"], date.today())  # noqa: DTZ011 - a day, as people write it
        summary = f"{row['scheduler']:<6} checked {row['checked']}{age}  {row['description']}"
        if row["broken"]:
            summary = f"broken: {row['broken']}"
        star = "*" if row["used"] else " "
        text = f"{star} {row['name']:<18} {summary}\n    {row['file']}"
        texts_by_site.setdefault(row["site"], []).append(text)
    for site, texts in sorted(texts_by_site.items()):
        put(visible("\n".join([site, *texts] if site else texts)))


def _listed_profiles() -> Iterator[ListedProfile]:
    """Yield the rows of `profile list`, in the order in which profiles are searched for.

    The first profile with a name is used. A profile that can't be read has the error in `broken`.
    """
    seen_names = set[str]()
    for name, file in Places(current_folder(), os.environ).profiles():
        read_profile, broken = None, ""
        try:
            read_profile = _read_profile(file).value
        except SbatchgenError as error:
            broken = str(error)
        yield {
            "name": name,
            "file": str(file),
            "used": name not in seen_names,
            "broken": broken,
            "site": (read_profile and read_profile.site) or "",
            "scheduler": read_profile.scheduler if read_profile else "",
            "checked": (read_profile and read_profile.checked) or "",
            "description": (read_profile and read_profile.description) or "",
            "url": (read_profile and read_profile.url) or "",
        }
        seen_names.add(name)


def _age_in_words(checked: str, today: date) -> str:
    """Return how long ago a date was, such as ", 5 days ago"; "" for a date in the future, or no date."""
    from datetime import date

    try:
        days = (today - date.fromisoformat(checked)).days
    except ValueError:
        return ""
    if days < 0:
        return ""
    if days < 2:
        return f", {('today', 'yesterday')[days]}"
    return f", {days} days ago" if days < 60 else f", {days // 30} months ago"


@profile.command("show")
@click.argument("name", shell_complete=completion.profiles)
@FORMAT
def profile_show(name: str, form: str) -> None:
    """Print a profile; NAME is a name or a file."""
    from sbatchgen.base.files import read_file
    from sbatchgen.jobs.inputs.document import MAX_BYTES, as_data

    file = Places(current_folder(), os.environ).profile(name)
    if form == "json":
        from sbatchgen.jobs.outputs.profiles import ProfileOutput

        put_json(ProfileOutput(file=str(file), profile=as_data(_read_profile(file).value)))
    else:
        print_bytes(read_file(file, MAX_BYTES))


@profile.command("discover")
@click.option("--name", metavar="NAME", help="The profile's name. [default: ClusterName of slurm.conf]")
@click.option(
    "--write",
    "new_file",
    metavar="FILE",
    type=click.Path(),
    help="Write the profile to this new file. [default: stdout]",
)
@click.option(
    "--update",
    "old_profile",
    metavar="PROFILE",
    shell_complete=completion.profiles,
    help="Update this profile, a name or a file. The command asks first.",
)
@YES
def profile_discover(name: str | None, new_file: str | None, old_profile: str | None, *, yes: bool) -> None:
    """Make a profile of the cluster of this machine.

    discover asks Slurm for partitions, nodes, GPUs and limits. Comments in the profile say how to find facts
    that Slurm does not know. Read and complete the profile, then check it with profile check. For a profile
    that is not yours, --update writes a copy.
    """
    from datetime import datetime

    from sbatchgen.lab.discover.entries import is_clean
    from sbatchgen.lab.discover.facts import profile_text
    from sbatchgen.lab.discover.slurm_answers import ask

    if old_profile is not None and (name or new_file):
        raise CommandLineError.of("--update takes neither --name nor --write", fix="leave these out")
    if name is not None and not is_clean(name):
        raise CommandLineError.of(f"'{name}' is not a word of printable characters", at="--name")
    cluster = ask(os.environ)
    today = f"{datetime.now().astimezone():%Y-%m-%d}"
    if old_profile is not None:
        _update_profile(old_profile, cluster, today=today, yes=yes)
        return
    cluster_name = cluster.setting("ClusterName")
    default_name = cluster_name if is_clean(cluster_name) else "cluster"
    text = profile_text(cluster, os.environ, name=name or default_name, today=today)
    if new_file is None:
        put(text, nl=False)
        return
    from sbatchgen.base import files

    if os.path.lexists(new_file):
        fix = f"bring it up to date: --update {word(str(new_file))}; or name another file"
        raise DocumentError.of(f"{new_file} exists", fix=fix)
    Path(new_file).parent.mkdir(parents=True, exist_ok=True)
    files.write(Path(new_file), text.encode())
    note(f"wrote {new_file}; next: sbatchgen profile check {word(str(new_file))}")


def _update_profile(name: str, cluster: LiveCluster, *, today: str, yes: bool) -> None:
    """Show how a profile differs from the cluster, ask, and write the cluster's values into the profile."""
    import difflib

    from sbatchgen.base import files
    from sbatchgen.jobs.inputs.document import MAX_BYTES, decode
    from sbatchgen.jobs.inputs.profile import Profile
    from sbatchgen.lab.discover.comparison import differences, findings
    from sbatchgen.lab.discover.update import update_text

    places = Places(current_folder(), os.environ)
    file = places.profile(name)
    target = current_folder() / places.own_copy(file)
    document, old_bytes = _read_profile(file), files.read_file(file, MAX_BYTES)
    old_text = old_bytes.decode()
    new_text, to_edit_by_hand = update_text(old_text, differences(document, cluster), today=today)
    for finding in findings(to_edit_by_hand, str(file)):
        say(finding.problem, "warning")
    if new_text.rstrip() == old_text.rstrip():
        note(f"{name}: nothing to change")
        return
    decode(
        new_text, Profile, name=f"{file} with the cluster's values"
    )  # raises if the new text is not a profile
    old_lines, new_lines = old_text.splitlines(), new_text.splitlines()
    diff = difflib.unified_diff(old_lines, new_lines, str(file), str(target), lineterm="")
    put(visible("\n".join(diff)))
    if not yes and not sys.stdin.isatty():
        note("nothing was written: add --yes")
        return
    if not yes:
        click.confirm(f"Write {one_line(str(target))}?", abort=True, err=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    # With `before`, the file is not written if it has changed since it was read.
    files.write(target, new_text.encode(), before=old_bytes if target.exists() else None)


@profile.command("check")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=completion.profiles)
@click.option("--live", is_flag=True, help="Also compare them with the cluster of this machine.")
@FORMAT
def profile_check(names: tuple[str, ...], *, live: bool, form: str) -> None:
    """Check profiles.

    check renders every mode in every partition, and reports problems.
    """
    from sbatchgen.base.finding import Finding
    from sbatchgen.jobs.judge.profile_check import findings as findings_in
    from sbatchgen.lab.discover import comparison
    from sbatchgen.lab.discover.slurm_answers import ask

    cluster = ask(os.environ) if live else None
    findings_by_name: dict[str, list[Finding]] = {}
    places = Places(current_folder(), os.environ)
    for name in names:
        try:
            file = places.profile(name)
            findings_by_name[name] = findings_in(file, places)
            if cluster:
                differences = comparison.differences(_read_profile(file), cluster)
                # The user can't edit a profile of others. --update writes a copy.
                is_foreign = places.own_copy(file) != file
                fix = f"sbatchgen profile discover --update {word(name)}" if is_foreign else ""
                findings_by_name[name] += comparison.findings(differences, str(file), fix)
        except DocumentError as error:
            findings_by_name[name] = [Finding("error", problem) for problem in error.problems]
        if form == "text" and not failure_of(findings_by_name[name]):
            put(one_line(f"{name}: no errors"))
    all_findings = [finding for findings in findings_by_name.values() for finding in findings]
    if form == "text":
        report(all_findings)
        return
    from sbatchgen.jobs.outputs.profiles import ChecksOutput

    rows = findings_by_name.items()
    output = ChecksOutput(profiles=[{"name": name, "findings": findings} for name, findings in rows])
    put_json(output, refused=all_findings)
    if failure := failure_of(all_findings):
        sys.exit(failure.exit_status)


@profile.command("sources")
@click.argument("name", shell_complete=completion.profiles)
@FORMAT
def profile_sources(name: str, *, form: str) -> None:
    """Show where the facts of a profile are documented."""
    from sbatchgen.base.quoting import table
    from sbatchgen.jobs.outputs.profiles import SourceOutput, SourcesOutput

    sources = _read_profile(Places(current_folder(), os.environ).profile(name)).value.sources
    rows = [SourceOutput(keys=source.keys, url=source.at.url) for source in sources]
    if form == "json":
        put_json(SourcesOutput(name=name, sources=rows))
    else:
        put(visible(table((", ".join(row["keys"]), row["url"]) for row in rows)), nl=False)


def _schema_files() -> dict[str, Path]:
    """Return the files of the schemas by name, such as "profile list"."""
    files = sorted(bundled("schemas").rglob("*.json"))
    return {file.stem.replace("-", " "): file for file in files}


@click.command("schema")
@click.argument(
    "words", metavar="profile|job|COMMAND...", nargs=-1, required=True,
    shell_complete=lambda _ctx, _param, incomplete: completion.matching_names(_schema_files(), incomplete),
)  # fmt: skip
def schema(words: tuple[str, ...]) -> None:
    """Print a JSON schema.

    In an editor, profile checks profiles, and job checks job YAMLs and sbatchgen.yaml. With a COMMAND, the
    schema describes the output of its --format json, for example: sbatchgen schema profile list
    """
    schema_files, name = _schema_files(), " ".join(words)
    if name not in schema_files:
        raise CommandLineError.of(f"no schema of '{name}'", fix=did_you_mean(name, schema_files))
    put(schema_files[name].read_bytes(), nl=False)
