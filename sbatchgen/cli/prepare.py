"""The commands data, image and page.

data and image get data sets and container images before a job holds GPUs. page writes a web page that makes
scripts.
"""

import os
from collections.abc import Callable
from pathlib import Path

import click

from sbatchgen.base.errors import CommandLineError
from sbatchgen.base.quoting import word
from sbatchgen.cli.jobs import request_of
from sbatchgen.cli.output import current_folder, note, put
from sbatchgen.jobs.inputs import completion
from sbatchgen.jobs.inputs.search import Places

IMAGE_COUNT = click.IntRange(min=1, max=1_000_000)  # a million, because all images are drawn in memory


@click.group()
def data() -> None:
    """Download data sets before a job holds GPUs."""


@data.command("mnist")
@click.option(
    "--to", "folder", required=True, type=click.Path(file_okay=False), help="Write the files to this folder."
)
@click.option("--synthetic", is_flag=True, help="Draw digits instead of downloading them; needs no network.")
@click.option("--train", metavar="N", type=IMAGE_COUNT, help="With --synthetic: draw N images for training.")
@click.option("--test", metavar="N", type=IMAGE_COUNT, help="With --synthetic: draw N images for testing.")
@click.option("--seed", metavar="N", type=int, help="With --synthetic: the seed of the drawn images.")
def data_mnist(folder: str, *, synthetic: bool, **draw_options: int | None) -> None:
    """Get MNIST as IDX files."""
    from sbatchgen.lab.prepare.dataset import download_mnist, draw_mnist

    typed_options = {name: value for name, value in draw_options.items() if value is not None}
    if synthetic:
        put(draw_mnist(Path(folder), typed_options))
    elif typed_options:
        raise CommandLineError.of(f"--{next(iter(typed_options))} needs --synthetic", fix="add --synthetic")
    else:
        download_mnist(Path(folder), note=note)


@click.group()
def image() -> None:
    """Prepare a container image before a job holds GPUs.

    The file is the image of the profile, or --to FILE. It appears only once it is complete.
    """


def _image_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the subcommands of `image` to a command."""
    for option in (
        click.option("--force", is_flag=True, help="Replace an existing image."),
        click.option(
            "--profile",
            metavar="NAME|FILE",
            shell_complete=completion.profiles,
            help="Profile of the cluster.",
        ),
        click.option("--to", metavar="FILE", type=click.Path(), help="Write the image to this file."),
    ):
        command = option(command)
    return command


@image.command("pull")
@click.argument("source", metavar="[URI]", required=False)
@_image_options
def image_pull(**options: str | None) -> None:
    """Get a .sif image for Apptainer from a registry.

    URI is an image such as docker://nvcr.io/nvidia/pytorch:24.04-py3, or a file x.tar of `docker save`. The
    default is the `source` of the profile.
    """
    _prepare("pull", **options)


@image.command("import")
@click.argument("source", metavar="[URI]", required=False)
@_image_options
def image_import(**options: str | None) -> None:
    """Get a .sqsh image for Enroot from a registry.

    URI is an image such as docker://nvcr.io#nvidia/pytorch:24.04-py3. The default is the `source` of the
    profile.
    """
    _prepare("import", **options)


@image.command("build")
@click.argument("source", metavar="DEFINITION|FOLDER|URI", shell_complete=completion.files)
@_image_options
def image_build(**options: str | None) -> None:
    """Build a .sif image from a definition file or a folder."""
    _prepare("build", **options)


def _prepare(verb: str, *, source: str | None, to: str | None, profile: str | None, force: object) -> None:
    """Prepare an image with the tool of a subcommand (`verb`), and print the path of its file."""
    from sbatchgen.jobs.runtimes import RUNTIMES
    from sbatchgen.lab.prepare.image import prepare

    tool_by_verb = {
        tool.verb: (name, tool) for name, runtime in RUNTIMES.items() for tool in runtime.image_tools
    }
    runtime_name, tool = tool_by_verb[verb]
    if source is None or to is None:
        source, to = _source_and_file(runtime_name, profile, source, to)
    prepare(tool, source, Path(to), force=bool(force), note=note)
    put(to)


def _source_and_file(
    runtime: str, profile: str | None, source: str | None, to: str | None
) -> tuple[str, str]:
    """Return the source and the file of an image, as typed, or else from the profile.

    Raises CommandLineError if the profile does not have the missing part.
    """
    from sbatchgen.jobs.runtimes.base import ContainerRuntime

    resolved = request_of("single", (), {"profile": profile, "runtime": runtime}).resolved
    image = resolved.software.get("image")
    is_file = isinstance(resolved.runtime, ContainerRuntime) and resolved.runtime.is_file(image or "")
    key, profile_words = f"runtimes.{runtime}", f"profile '{resolved.profile.name}'"
    if to is None:
        if image is None or not is_file:
            what = f"{profile_words} names no file for an image of {runtime}"
            raise CommandLineError.of(what, fix=f"add --to FILE, or write {key}.image into the profile")
        if unset := image.unset(os.environ):
            what = f"the image of {profile_words} is {image}, but {unset[0]} is not set"
            raise CommandLineError.of(
                what, fix=f"export {unset[0]} with its value, or name the file: --to FILE"
            )
        to = image.filled(os.environ)
    if source is None:
        source = resolved.facts.source or (None if is_file else image)
    if source is None:
        what = f"{profile_words} does not say where {to} comes from"
        fix = f"give the URI, as docker://pytorch/pytorch, or write it into the profile: {key}.source"
        raise CommandLineError.of(what, fix=fix)
    return source, to


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

    FOLDER gets static files for any web server. The page sends nothing anywhere. The command needs Node.js
    and npm once.
    """
    from sbatchgen.base.machine.trust import make_own
    from sbatchgen.lab.page.site import packages_folder, read_site
    from sbatchgen.lab.page.static_files import PageInputs, write

    places = Places(current_folder(), os.environ)
    files = [places.profile(name) for name in names]
    profile_names = [file.stem for file in files]
    for name in profile_names:
        if profile_names.count(name) > 1:
            raise CommandLineError.of(
                f"two profiles are named {name}", at="--profile", fix="name each profile once"
            )
    typed_packages = Path(packages) if packages else None
    site_file = Path(site) if site else None
    # A cache that another user can change might put foreign code into the page.
    cache = places.cache if places.cache and make_own(places.cache) else None
    node_modules = packages_folder(typed_packages, cache, note)
    note("note: packing the page, which takes one minute the first time, at most three on a busy machine")
    write(
        PageInputs(
            profiles=files,
            site=read_site(site_file),
            site_file=site_file,
            packages=node_modules,
            cache=cache / "page-compressed" if cache else None,
            note=note,
        ),
        Path(to),
    )
    note(f"wrote {to}; to look at it: python3 -m http.server --directory {word(to)}")
