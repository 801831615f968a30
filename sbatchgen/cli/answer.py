"""A call of the command in the same process, for the page in a browser, which can start no process."""

import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sbatchgen.cli import main
from sbatchgen.cli.jobs import FILES_ELSEWHERE


class Printed(NamedTuple):
    """The output of a command, and its exit status."""

    status: int
    out: bytes
    err: bytes


def answer(argv: Sequence[str], files: Mapping[str, bytes], *, site: str = "") -> Printed:
    """Write `files` to the current folder, run a command there, and return its output.

    The command sees no other files of the job, no Slurm and no environment, apart from the profiles and
    templates in the folder `site`.
    """
    for name, data in files.items():
        Path(name).write_bytes(data)
    old_streams, old_environment = (sys.stdin, sys.stdout, sys.stderr), dict(os.environ)
    out, err = io.BytesIO(), io.BytesIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO())  # an empty stdin, as no user can be asked
    sys.stdout, sys.stderr = (io.TextIOWrapper(data, "utf-8", write_through=True) for data in (out, err))
    try:
        os.environ.clear()
        # A folder that everybody can change must be trusted by name. In a browser, all folders are like this.
        site_variables = {"SBATCHGEN_PATH": site, "SBATCHGEN_TRUST": site}
        os.environ.update({FILES_ELSEWHERE: "1", "PATH": "", "XDG_CONFIG_DIRS": os.devnull, **site_variables})
        main(argv)
    except SystemExit as end:
        return Printed(int(end.code or 0), out.getvalue(), err.getvalue())
    finally:
        sys.stdin, sys.stdout, sys.stderr = old_streams
        os.environ.clear()
        os.environ.update(old_environment)
