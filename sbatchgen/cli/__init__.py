"""The command line: its commands, its errors and its exit statuses."""

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
from sbatchgen.cli.output import note, put, say, warn_of_left_out
from sbatchgen.errors import DocumentError, Problem, SbatchgenError, did_you_mean, of_file

INTERRUPTED, READER_GONE = 130, 141  # as in shells: 128 and the number of the signal
OF_STREAMS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
COMPLETE = "_SBATCHGEN_COMPLETE"  # the variable by which a shell asks
HELP = getattr(click.exceptions, "NoArgsIsHelpError", ())  # of click 8.2 and newer
# The modules of this folder and their commands. A module is loaded when one of its commands is asked for.
MODULES = {
    "jobs": ("render", "review", "explain"),
    "submit": ("submit", "resume"),
    "sweeps": ("sweep", "resubmit"),
    "runs": ("status", "logs", "report", "diagnose", "exec", "cancel", "plot"),
    "gpus": ("gpus",),
    "scripts": ("lint", "adopt"),
    "profiles": ("profile", "schema"),
    "prepare": ("data", "image"),
}


class Commands(click.Group):
    """A group that keeps what follows `--` for the trainer, word for word."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of the help."""
        return [name for names in MODULES.values() for name in names] + super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, if there is one."""
        for module, names in MODULES.items():
            if cmd_name in names:
                commands = vars(import_module(f"sbatchgen.cli.{module}"))
                command = commands.get(cmd_name) or commands[f"{cmd_name}_"]
                assert isinstance(command, click.Command)  # noqa: S101
                return command
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Cut the command line at the first `--`, unless the command reads scripts: their names follow it."""
        name = next((arg for arg in args if not arg.startswith("-")), "")
        cut = args.index("--") if "--" in args and name not in MODULES["scripts"] else len(args)
        ctx.obj = tuple(args[cut + 1 :])
        return super().parse_args(ctx, args[:cut])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, then warn of files that its search ignored."""
        try:
            return super().invoke(ctx)
        finally:
            warn_of_left_out()


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit; docs/reference/exit-status.md lists the statuses."""
    _prepare_streams()
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
    except click.exceptions.Exit as end:  # --help
        status = end.exit_code
    except (KeyboardInterrupt, click.Abort):
        status = INTERRUPTED
    except HELP as error:  # a command that needs arguments has none
        note(error.format_message())
        status = error.exit_code
    except click.ClickException as error:
        say(problem_of(error), "error")
        status = error.exit_code
    except SbatchgenError as error:
        for problem in error.problems:
            say(problem, "error")
        status = error.exit_status
    except OSError as error:
        status = _report_os_error(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the interpreter would try again, and exit with a status of its own
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(status)


def _run(argv: list[str]) -> int:
    """Return the exit status of a command. click's own `main` would treat a broken pipe as a bug."""
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        with contextlib.suppress(Exception):  # then the shell completes nothing
            return shell_complete(cli, {}, "sbatchgen", COMPLETE, instruction)
        return 1
    try:
        with cli.make_context("sbatchgen", argv) as context:
            cli.invoke(context)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def problem_of(error: click.ClickException) -> Problem:
    """Return an error of click in the form of our own errors."""
    parameter = error.param if isinstance(error, click.BadParameter) else None
    context = error.ctx if isinstance(error, click.UsageError) else None
    name = _usage_of(parameter, context).partition(" ")[0] if parameter and context else ""
    if parameter and isinstance(error, click.MissingParameter):
        return Problem(f"missing {parameter.param_type_name} {name}", fix=_fix(error, context))
    what = (error.message[:1].lower() + error.message[1:]).rstrip(".").removeprefix("got ")
    return Problem(what, name, _fix(error, context))


def _fix(error: click.ClickException, context: click.Context | None) -> str:
    """Return what to type instead."""
    if isinstance(error, click.BadOptionUsage):  # it lacks its value, or has one too many
        return f"write {error.option_name}{' VALUE' * ('requires' in error.message)}"
    if context is None:
        return ""
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    fix = f"see {context.command_path} --help"
    match error:
        case click.NoSuchOption(possibilities=near):
            fix = f"did you mean '{near[0]}'?" if near else fix
            if "-- TRAINER ARGS" in usage:
                fix += f"{'' if near else '.'} Arguments of the trainer come after --"
        case click.MissingParameter(param=click.Option() as option):
            fix = f"add {_usage_of(option, context)}"
        case click.BadParameter(param=click.Option(type=click.Choice()) as option):
            fix = f"write {_usage_of(option, context)}"
        case click.BadParameter(param=click.Argument()):
            fix = f"write {usage}"
        case _ if "extra argument" in error.message:
            fix = f"write {usage}"
        case _ if isinstance(command, click.Group):  # click does not know the names of a lazy group
            fix = did_you_mean(error.message.split("'")[1], command.list_commands(context))
    return fix


def _usage_of(parameter: click.Parameter, context: click.Context) -> str:
    """Return a parameter as it is written, as in "--format text|json"."""
    record = parameter.get_help_record(context)
    if record is None:
        return parameter.human_readable_name
    return record[0].split(", ")[-1].replace("[", "").replace("]", "")


def _prepare_streams() -> None:
    """Replace closed streams, so that no file gets their number; a closed stdout fails when it is written.

    Characters that the terminal's encoding lacks are written as escapes.
    """
    streams = (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))
    for name, flags, mode in streams:
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, flags), mode))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _report_os_error(error: OSError) -> int:
    """Print an error of a file or of stdout, and return the exit status; raise any other, which is a bug."""
    if isinstance(error, BrokenPipeError):  # `sbatchgen render ... | head`
        return READER_GONE
    problem = of_file(error)
    if problem is None and error.errno in OF_STREAMS:
        problem = of_file(OSError(error.errno, error.strerror, "stdout"))
    if problem is None:
        raise error
    say(problem, "error")
    return DocumentError.exit_status


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="sbatchgen %(version)s")
def cli() -> None:
    """Render, review and submit sbatch scripts for PyTorch on Slurm GPU clusters.

    JOB is a mode, such as single or ddp, or a job YAML. Arguments of the trainer come after --, as
    in: sbatchgen render ddp --profile msu -- --epochs 20
    """


@cli.command()
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print shell completion.

    To enable it: eval "$(sbatchgen completion bash)".
    """
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None  # noqa: S101 - click knows these three
    put(complete(cli, {}, "sbatchgen", COMPLETE).source())
