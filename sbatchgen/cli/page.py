"""page."""

import os
from pathlib import Path

import click

from sbatchgen.cli.output import here, note
from sbatchgen.errors import CommandLineError
from sbatchgen.inputs import completion
from sbatchgen.inputs.search import Places
from sbatchgen.quoting import word


@click.command()
@click.option(
    "--profile",
    "names",
    metavar="NAME|FILE",
    multiple=True,
    required=True,
    shell_complete=completion.profiles,
    help="Profile of a cluster; several are offered in this order.",
)
@click.option("--to", metavar="FOLDER", type=click.Path(), required=True, help="Folder to write.")
@click.option("--site", metavar="FILE", type=click.Path(), help="Title, logo, links and texts, in YAML.")
@click.option(
    "--packages",
    metavar="FOLDER",
    type=click.Path(),
    help="The node_modules of npm, if npm can't load them here.",
)
def page(names: tuple[str, ...], *, to: str, site: str | None, packages: str | None) -> None:
    """Write a page that makes and checks scripts in the browser.

    FOLDER is for any web server: static files that send nothing anywhere. Needs Node.js and npm, once.
    """
    from sbatchgen.extras.page.packages import installed
    from sbatchgen.extras.page.site import read_site
    from sbatchgen.extras.page.static_files import PageParts, write
    from sbatchgen.inputs.trust import make_own

    places = Places(here(), os.environ)
    files = [places.profile(name) for name in names]
    known = [file.stem for file in files]
    for name in known:
        if known.count(name) > 1:
            raise CommandLineError.of(f"two profiles are named {name}", at="--profile", fix="name each once")
    named = Path(packages) if packages else None
    site_file = Path(site) if site else None
    cache = places.cache if places.cache and make_own(places.cache) else None
    ready = installed(named, cache, note)
    note("note: packing the page: the first time takes up to two minutes")
    write(
        PageParts(
            profiles=files,
            site=read_site(site_file),
            site_file=site_file,
            packages=ready,
            cache=(cache or Path(to).absolute().parent / ".cache") / "page-compressed",
        ),
        Path(to),
    )
    note(f"wrote {to}; to look at it: python3 -m http.server --directory {word(to)}")
