"""profile, schema."""

from __future__ import annotations

import os

import click

from sbatchgen.cli.output import here, print_bytes, put, report
from sbatchgen.errors import DocumentError, SbatchgenError
from sbatchgen.quoting import visible


@click.group()
def profile() -> None:
    """List, show and check profiles of clusters."""


@profile.command("list")
def profile_list() -> None:
    """List all profiles.

    Of several with the same name, the one marked * is used.
    """
    from sbatchgen.inputs.document import read
    from sbatchgen.inputs.profile import Profile
    from sbatchgen.inputs.search import Places

    seen: set[str] = set()
    for name, file in Places(here(), os.environ).profiles():
        star = " " if name in seen else "*"
        seen.add(name)
        try:
            about = read(file, Profile).value
            text = f"{about.scheduler:<6} checked {about.checked}  {about.description or ''}"
        except SbatchgenError as error:
            text = f"broken: {error}"
        put(visible(f"{star} {name:<16} {text}\n    {file}"))


@profile.command("show")
@click.argument("name")
def profile_show(name: str) -> None:
    """Print a profile; NAME is a name or a file."""
    from sbatchgen.files import read
    from sbatchgen.inputs.document import MAX_BYTES
    from sbatchgen.inputs.search import Places

    print_bytes(read(Places(here(), os.environ).profile(name), MAX_BYTES))


@profile.command("check")
@click.argument("names", nargs=-1, required=True)
def profile_check(names: tuple[str, ...]) -> None:
    """Check profiles.

    Renders every mode in every partition, and reports problems.
    """
    from sbatchgen.finding import Finding
    from sbatchgen.inputs.search import Places
    from sbatchgen.lint.profile_check import findings

    found: list[Finding] = []
    places = Places(here(), os.environ)
    for name in names:
        try:
            file = places.profile(name)
            about = findings(file, places)
        except DocumentError as error:
            found += [Finding("error", problem) for problem in error.problems]
            continue
        found += about
        if not any(finding.severity == "error" for finding in about):
            put(visible(f"{name}: no errors"))
    report(found)


@click.command("schema")
@click.argument("name", metavar="profile|job", type=click.Choice(["profile", "job"]))
def schema(name: str) -> None:
    """Print a JSON schema for an editor.

    profile: of profiles; job: of job YAMLs and sbatchgen.yaml.
    """
    import json

    from sbatchgen.inputs import schema as schemas

    put(json.dumps(schemas.schema(name), indent=2))
