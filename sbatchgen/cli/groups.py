"""The command trust: the folders that count as the user's own although a group can write them."""

from __future__ import annotations

import os

import click

from sbatchgen.base.errors import CommandLineError
from sbatchgen.cli.output import current_folder, note, put


@click.command()
@click.argument("folder", metavar="[FOLDER]", required=False, type=click.Path())
@click.option("--remove", is_flag=True, help="Trust it no longer.")
def trust(folder: str | None, *, remove: bool) -> None:
    """Trust a folder that a group can write, once and for all.

    In the folder and below it, sbatchgen.yaml, .sbatchgen and .git of git then count as your own files. So
    everybody who can write the folder can decide what your jobs run. Without FOLDER, trust lists the folders
    that you trust.
    """
    from sbatchgen.base.machine import trusted

    if folder is None:
        if remove:
            raise CommandLineError.of("--remove needs a folder", fix="sbatchgen trust lists what you trust")
        for path in trusted.trusted_folders(os.environ):
            put(str(path))
        return
    if remove:
        note(f"note: {trusted.remove(current_folder() / folder, os.environ)} is trusted no longer")
        return
    real = trusted.folder_to_trust(current_folder() / folder)
    who = trusted.writers(real)
    if not who:  # an entry such as / would also trust the folders of other users below it
        note(f"note: only you and root can write {real}: it needs no trust, and is not entered")
        return
    trusted.add(real, os.environ)
    note(f"note: {real} is trusted: sbatchgen.yaml, .sbatchgen and .git in it and below count as yours")
    note(f"note: who can write it decides with you what your jobs run: {who}")
    note(f"note: to take it back: sbatchgen trust --remove {real}")
