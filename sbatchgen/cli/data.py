"""data: get data sets."""

from __future__ import annotations

from pathlib import Path

import click

from sbatchgen.cli.output import note, put
from sbatchgen.errors import CommandLineError


@click.group()
def data() -> None:
    """Download data sets before a job holds GPUs."""


IMAGES = click.IntRange(min=1, max=1_000_000)  # they are drawn in memory


@data.command("mnist")
@click.option("--to", "folder", required=True, type=click.Path(file_okay=False), help="Folder for the files.")
@click.option("--synthetic", is_flag=True, help="Draw digits instead of downloading them; needs no network.")
@click.option("--train", type=IMAGES, help="Images to draw for training (--synthetic).")
@click.option("--test", type=IMAGES, help="Images to draw for testing (--synthetic).")
@click.option("--seed", type=int, help="Seed of the drawing (--synthetic).")
def data_mnist(folder: str, *, synthetic: bool, **drawing: int | None) -> None:
    """Get MNIST as IDX files."""
    from sbatchgen.prepare.dataset import download_mnist, draw_mnist

    sizes = {name: value for name, value in drawing.items() if value is not None}
    if synthetic:
        put(draw_mnist(Path(folder), sizes))
    elif sizes:
        raise CommandLineError.of(f"--{next(iter(sizes))} needs --synthetic", fix="add --synthetic")
    else:
        download_mnist(Path(folder), note=note)
