"""The command: which commands there are, how they end."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from sbatchgen import __version__
from sbatchgen.cli.output import say, warn_of_left_out
from sbatchgen.errors import DocumentError, Problem, SbatchgenError, did_you_mean, of_file

INTERRUPTED, READER_GONE = 130, 141  # as in shells: 128 and the number of the signal
OF_STREAMS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
# The modules of this folder and their commands. A module is loaded when one of its commands is asked for.
MODULES = {
    "jobs": ("render", "review", "explain"),
    "submit": ("submit", "resume"),
    "sweeps": ("sweep", "resubmit"),
    "runs": ("status", "logs", "report", "diagnose", "exec", "cancel", "plot"),
    "gpus": ("gpus",),
    "scripts": ("lint", "adopt"),
    "profiles": ("profile", "schema"),
    "data": ("data",),
    "images": ("image",),
    "completion": ("completion",),
}


class Commands(click.Group):
    """A group that keeps what follows `--` for the trainer, word for word."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own shape
        """All names, in the order of the help."""
        return [name for names in MODULES.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of a name, if there is one."""
        for module, names in MODULES.items():
            if cmd_name in names:
                commands = vars(import_module(f"sbatchgen.cli.{module}"))
                found = commands.get(cmd_name) or commands[f"{cmd_name}_"]
                assert isinstance(found, click.Command)  # noqa: S101
                return found
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named first; of one that does not exist, the nearest."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = did_you_mean(args[0], self.list_commands(ctx))
            told = f" {near.capitalize()}" * near.startswith("did")
            raise click.UsageError(f"{error.message}{told}", ctx) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Cut the command line at the first `--`."""
        cut = args.index("--") if "--" in args else len(args)
        ctx.obj = tuple(args[cut + 1 :])
        return super().parse_args(ctx, args[:cut])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, then warn of files that its search has ignored."""
        try:
            return super().invoke(ctx)
        finally:
            warn_of_left_out()


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit.

    0 done, 2 command line, 3 documents and files, 4 does not fit, 5 Slurm, 130 interrupted, 141 nobody reads
    stdout any more; 1 is a bug.
    """
    _complete_streams()
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
    except (KeyboardInterrupt, click.Abort):
        status = INTERRUPTED
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        status = error.exit_code
    except SbatchgenError as error:
        for problem in error.problems:
            say(problem, "error")
        status = error.exit_status
    except OSError as error:
        status = _of_system(error)
    _leave(status)


def _run(argv: list[str]) -> int:
    """The exit status of a command. click's own `main` would treat a broken pipe as a bug."""
    if instruction := os.environ.get("_SBATCHGEN_COMPLETE"):
        from click.shell_completion import shell_complete

        with contextlib.suppress(Exception):  # a shell completes nothing then, and its line stays as it is
            return shell_complete(cli, {}, "sbatchgen", "_SBATCHGEN_COMPLETE", instruction)
        return 1
    try:
        with cli.make_context("sbatchgen", argv) as context:
            status = cli.invoke(context)
    except click.exceptions.Exit as ended:  # --help
        status = ended.exit_code
    except SystemExit as ended:
        status = ended.code
    sys.stdout.flush()
    return status if isinstance(status, int) else 0


def _of_system(error: OSError) -> int:
    """The exit status of an error of the system about a file or a stream; any other is a bug."""
    if isinstance(error, BrokenPipeError):  # `sbatchgen render ... | head`
        return READER_GONE
    problem = of_file(error)
    if problem is None:
        if error.errno not in OF_STREAMS:
            raise error
        problem = Problem(f"stdout: {error.strerror}")  # click's own, as of --help
    say(problem, "error")
    return DocumentError.exit_status


def _leave(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the interpreter would try again, and exit with a status of its own
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(status)


def _complete_streams() -> None:
    """Replace closed streams, so that no file gets their number; a closed stdout fails when it is written.

    Characters that the terminal's encoding lacks are written as escapes.
    """
    for name, flags, mode in (
        ("stdin", os.O_RDONLY, "r"),
        ("stdout", os.O_RDONLY, "w"),
        ("stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="sbatchgen %(version)s")
def cli() -> None:
    """Render, review and submit sbatch scripts for PyTorch on Slurm GPU clusters.

    JOB is a mode (cpu, single, dataparallel, ddp) or a job YAML. Arguments of the trainer come after --, as
    in: sbatchgen render ddp --profile msu -- --epochs 20
    """
