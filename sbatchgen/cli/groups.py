"""The command trust: it keeps the list of folders that a group can change and the user trusts."""

from __future__ import annotations

import os

import click

from sbatchgen.base.errors import CommandLineError
from sbatchgen.base.quoting import word
from sbatchgen.cli.output import current_folder, note, put


@click.command()
@click.argument("folder", metavar="[FOLDER]", required=False, type=click.Path())
@click.option("--remove", is_flag=True, help="Trust the folder no longer.")
def trust(folder: str | None, *, remove: bool) -> None:
    """Trust a folder that a group can write, once and for all.

    In the folder and below it, sbatchgen.yaml, .sbatchgen and .git of git then count as your own files.
    Everybody who can write the folder can then decide what your jobs run. Without FOLDER, trust lists the
    folders that you trust.
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
    real_folder = trusted.folder_to_trust(current_folder() / folder)
    other_writers = trusted.writers(real_folder)
    if not other_writers:  # an entry such as / would also trust the folders of other users below it
        note(f"note: only you and root can write {real_folder}: it needs no trust, and is not added")
        return
    trusted.add(real_folder, os.environ)
    note(
        f"note: {real_folder} is trusted: sbatchgen.yaml, .sbatchgen and .git in it and below count as yours"
    )
    note(f"note: these can write the folder, and decide with you what your jobs run: {other_writers}")
    note(f"note: to trust it no longer: sbatchgen trust --remove {word(str(real_folder))}")
