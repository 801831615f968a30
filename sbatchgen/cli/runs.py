"""plot."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import click

from sbatchgen.cli.output import print_bytes


@click.command()
@click.argument(
    "runs",
    metavar="RUN...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    shell_complete=lambda *asked: import_module("sbatchgen.inputs.completion").runs(*asked),
)
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A .png or .svg file. [default: plot.png in the run folder, or here for several runs]",
)
def plot(runs: tuple[Path, ...], output: Path | None) -> None:
    """Plot loss, accuracy and throughput of runs.

    RUN is a run folder; the run may still be going on. Needs matplotlib.
    """
    from sbatchgen.runs import plot as drawing

    print_bytes(os.fsencode(drawing.plot(runs, output)) + b"\n")
