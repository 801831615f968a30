"""A command's answer, without a process of its own: what a page in a browser asks for."""

import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sbatchgen.cli import main
from sbatchgen.cli.jobs import ELSEWHERE


class Printed(NamedTuple):
    """What a command printed, and its exit status."""

    status: int
    out: bytes
    err: bytes


def answer(argv: Sequence[str], files: Mapping[str, bytes], *, site: str = "") -> Printed:
    """Run a command in the current folder, where it writes `files`, and return what it printed.

    The command sees no environment, no Slurm and no files of the job but these.
    """
    for name, data in files.items():
        Path(name).write_bytes(data)
    streams, environment = (sys.stdin, sys.stdout, sys.stderr), dict(os.environ)
    out, err = io.BytesIO(), io.BytesIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO())
    sys.stdout, sys.stderr = (io.TextIOWrapper(each, "utf-8", write_through=True) for each in (out, err))
    try:
        os.environ.clear()
        of_site = {"SBATCHGEN_PATH": site, "SBATCHGEN_TRUST": site}  # in a browser, all can write in /
        os.environ.update({ELSEWHERE: "1", "PATH": "", "XDG_CONFIG_DIRS": os.devnull, **of_site})
        main(argv)
    except SystemExit as end:
        return Printed(int(end.code or 0), out.getvalue(), err.getvalue())
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        os.environ.clear()
        os.environ.update(environment)
