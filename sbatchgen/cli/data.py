"""data: get data sets."""

from __future__ import annotations

from pathlib import Path

import click

from sbatchgen.cli.output import note, put


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
@click.option("--mirror", help="Address that holds the four .gz files.")
def data_mnist(folder: str, *, synthetic: bool, mirror: str | None, **drawing: int | None) -> None:
    """Get MNIST as IDX files."""
    from sbatchgen.runs.dataset import download_mnist, draw_mnist

    if synthetic:
        if mirror:
            raise click.UsageError("--mirror and --synthetic exclude each other")
        given = {name: value for name, value in drawing.items() if value is not None}
        put(draw_mnist(Path(folder), given))
        return
    wrong = [name for name, value in drawing.items() if value is not None]
    if wrong:
        raise click.UsageError(f"--{wrong[0]} needs --synthetic")
    download_mnist(Path(folder), mirror, note=note)
