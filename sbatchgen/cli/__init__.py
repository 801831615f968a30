"""The command line: its commands, its errors and its exit statuses."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from sbatchgen import __version__
from sbatchgen.base.errors import DocumentError, Problem, SbatchgenError, file_problem
from sbatchgen.cli.output import (
    HAS_DOCUMENT,
    TYPED,
    note_lines,
    put,
    say,
    show_markdown,
    warn_of_ignored_files,
)

# Exit statuses after Ctrl-C and a broken pipe. As in shells, they are 128 plus the number of the signal.
INTERRUPTED, READER_GONE = 130, 141
# Errors of writing to stdout, such as a full disk. Python's messages for them name no file.
STREAM_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
COMPLETE = "_SBATCHGEN_COMPLETE"  # the variable with which a shell asks for completions
# click 8.2 and newer raise this exception to show the help of a group that was called without arguments.
NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())
# The groups of the help: each command with its module in this folder, which is loaded when needed.
GROUPS = {
    "Write a script": {
        "render": "jobs", "review": "jobs", "explain": "jobs", "plan": "jobs", "adopt": "scripts",
    },
    "Run jobs": {
        "submit": "submit", "resume": "resubmit", "cancel": "running_jobs", "exec": "running_jobs",
        "shell": "shell", "sweep": "sweeps", "resubmit": "resubmit",
    },
    "Watch runs": {
        "status": "run_status", "logs": "run_logs", "diagnose": "run_results", "report": "run_results",
        "plot": "run_results",
    },
    "Check": {"lint": "scripts", "lsp": "scripts", "rehearse": "rehearse", "preflight": "submit",
        "gpus": "gpus", "when": "gpus",
    },
    "Set up": {
        "profile": "profiles", "trust": "groups", "page": "prepare", "data": "prepare", "image": "prepare",
        "schema": "profiles", "completion": "", "help": "",
    },
}  # fmt: skip
MODULES = {name: module for commands in GROUPS.values() for name, module in commands.items() if module}
SCRIPT_COMMANDS = ("lint", "adopt")  # commands whose `--` is followed by names of scripts


class Commands(click.Group):
    """The group of all commands. It keeps the words after `--` unchanged, as arguments of the trainer."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own shape
        """Return the names of all commands, in the order of the help."""
        return [name for commands in GROUPS.values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command, and return the command; None if no command has the name."""
        if cmd_name not in MODULES:
            return super().get_command(ctx, cmd_name)
        commands = vars(import_module(f"sbatchgen.cli.{MODULES[cmd_name]}"))
        command = commands.get(cmd_name) or commands[f"{cmd_name}_"]
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group. The left columns of all sections have the same width."""
        width = max(map(len, self.list_commands(ctx)))
        for title, names in GROUPS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            with formatter.section(title):
                rows = ((name.ljust(width), command) for name, command in commands.items() if command)
                formatter.write_dl(
                    [(name, command.get_short_help_str(formatter.width)) for name, command in rows]
                )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words after the first `--` for the trainer, unless the command takes names of scripts."""
        command = next((arg for arg in args if not arg.startswith("-")), "")
        has_trainer_args = "--" in args and command not in SCRIPT_COMMANDS
        end = args.index("--") if has_trainer_args else len(args)
        ctx.obj, ctx.meta[TYPED] = tuple(args[end + 1 :]), tuple(args)
        return super().parse_args(ctx, args[:end])


def main(argv: Sequence[str] | None = None, program: click.Command | None = None) -> NoReturn:
    """Run a program, by default sbatchgen, and exit with a status of docs/reference/exit-status.md."""
    _prepare_streams()
    typed = list(sys.argv[1:] if argv is None else argv)
    meta: dict[str, Any] = {}
    try:
        status = _run(program or cli, typed, meta)
    except click.exceptions.Exit as end:  # for example after --help
        status = end.exit_code
    except (KeyboardInterrupt, click.Abort):
        status = INTERRUPTED
    except NO_ARGUMENTS as error:
        note_lines(error.format_message().split("\n"))
        status = error.exit_code
    except click.ClickException as error:
        from sbatchgen.cli.usage_error import problem_of

        status = _print_problems([problem_of(error)], error.exit_code, typed, meta)
    except SbatchgenError as error:
        status = _print_problems(error.problems, error.exit_status, typed, meta)
    except OSError as error:
        status = _print_os_error(error, typed, meta)
    except RuntimeError as error:
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        status = INTERRUPTED  # Python 3.11 gives this error for a Ctrl-C in the `__set_name__` of a class
    _flush()
    sys.exit(status)


def _print_problems(
    problems: Sequence[Problem], status: int, typed: list[str], meta: Mapping[str, Any]
) -> int:
    """Print errors to stderr, and with --format json also as a document on stdout; return the status.

    `meta` shows whether the command has printed a document, as stdout gets only one.
    """
    for problem in problems:
        say(problem, "error")
    from sbatchgen.cli.typed_fix import argv_maker, asks_for_json

    if asks_for_json(typed) and HAS_DOCUMENT not in meta:
        from sbatchgen.jobs.outputs.json_document import document

        put(document({}, argv_maker(click.Context(cli), typed), (status, problems)), nl=False)
    return status


def _flush() -> None:
    """Flush stdout and stderr, unless they are closed: a language server closes its stdout."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if not stream.closed:
                stream.flush()
        except OSError:  # at its end, Python would flush again, fail, and exit with status 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(program: click.Command, argv: list[str], meta: dict[str, Any]) -> int:
    """Run a program, then warn of files that its search ignored; return its exit status.

    The `meta` of the program's context is added to `meta`. click's own `main` is not called, because it exits
    with status 1 after a broken pipe.
    """
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        _join_words_of_bash()
        with contextlib.suppress(Exception):  # after an error the shell completes nothing
            return shell_complete(cli, {}, "sbatchgen", COMPLETE, instruction)
        return 1
    try:
        with program.make_context(program.name, argv) as context:
            try:
                program.invoke(context)
            finally:
                meta |= context.meta
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        warn_of_ignored_files()
    return 0


def _join_words_of_bash() -> None:
    """Drop each = from bash's words, apart from the word that the user completes.

    bash makes three words of --profile=lu, and click expects two.
    """
    words, current = os.environ.get("COMP_WORDS", "").split("\n"), os.environ.get("COMP_CWORD", "")
    kept_indices = [index for index, word in enumerate(words) if word != "=" or str(index) == current]
    if current.isdecimal() and len(words) > int(current):
        os.environ["COMP_WORDS"] = "\n".join(words[index] for index in kept_indices)
        os.environ["COMP_CWORD"] = str(kept_indices.index(int(current)))


def _prepare_streams() -> None:
    """Open /dev/null in place of closed streams, so that no opened file gets the descriptor of a stream.

    A closed stdout is opened for reading, so that writing a result to it fails. A character that the
    terminal's encoding lacks is written as its escape.
    """
    streams = (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))
    for name, flags, mode in streams:
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, flags), mode))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _print_os_error(error: OSError, typed: list[str], meta: Mapping[str, Any]) -> int:
    """Print an error of a file or of stdout, and return the exit status; raise all others, which are bugs."""
    if isinstance(error, BrokenPipeError):  # `sbatchgen render ... | head`
        return READER_GONE
    problem = file_problem(error)
    if problem is None and error.errno in STREAM_ERRORS:
        problem = file_problem(OSError(error.errno, error.strerror, "stdout"))
    if problem is None:
        raise error
    with contextlib.suppress(OSError):  # printing may raise the same error again
        return _print_problems([problem], DocumentError.exit_status, typed, meta)
    return DocumentError.exit_status


@click.group("sbatchgen", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="sbatchgen %(version)s")
def cli() -> None:
    """Write, review, submit and watch sbatch scripts of PyTorch jobs on Slurm GPU clusters.

    JOB is a mode, such as single or ddp, or a job YAML; arguments of its trainer come after --, as in:
    sbatchgen review ddp --profile msu -- --epochs 20
    """


@cli.command()
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print shell completion.

    To enable it: eval "$(sbatchgen completion bash)".
    """
    from click.shell_completion import get_completion_class

    from sbatchgen.base.machine.search_path import trusted_path_for_libraries

    complete = get_completion_class(shell)
    assert complete is not None  # noqa: S101 - click knows these three
    with trusted_path_for_libraries():  # click asks bash for its version
        put(complete(cli, {}, "sbatchgen", COMPLETE).source())


def _complete_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the names that complete a word of `help`: commands, or the commands of the typed group."""
    group_context = _context_of(context, context.params["names"] or ())
    group = group_context.command
    names = group.list_commands(group_context) if isinstance(group, click.Group) else []
    if group_context is context.parent:
        names = [*names, "guide", "script"]
    return [name for name in names if name.startswith(incomplete)]


@cli.command("help")
@click.argument("names", metavar="[COMMAND|PAGE]...", nargs=-1, shell_complete=_complete_names)
@click.option("--skill", is_flag=True, help="Print the page from which an assistant uses the command.")
@click.pass_context
def help_(context: click.Context, names: tuple[str, ...], *, skill: bool) -> None:
    """Show the help of a command, as in: sbatchgen help profile check.

    `sbatchgen help guide` lists the pages of the documentation, and `sbatchgen help guide plan` shows one of
    them. `sbatchgen help script` explains the scripts that sbatchgen renders.
    """
    from sbatchgen.jobs.inputs.search import bundled

    if skill:
        from sbatchgen.cli.guide import without_comments

        put(without_comments(bundled("templates").joinpath("SKILL.md").read_text(encoding="utf-8")), nl=False)
    elif names == ("script",):
        put(bundled("templates").joinpath("script.txt").read_text(), nl=False)
    elif names[:1] == ("guide",) and len(names) < 3:
        _show_guide(*names[1:], command_names=())
    elif len(names) == 1 and cli.get_command(context, names[0]) is None:
        _show_guide(names[0], command_names=cli.list_commands(context))
    else:
        put(_context_of(context, names).get_help())


def _show_guide(*names: str, command_names: Sequence[str]) -> None:
    """Show the named page, or without a name list all pages.

    For an unknown name, an error suggests a page or one of the `command_names`.
    """
    from sbatchgen.base.quoting import table
    from sbatchgen.cli import guide

    if names:
        show_markdown(guide.page(names[0], command_names))
    else:
        put(table([("PAGE", "TITLE"), *guide.titles()]), nl=False)


def _context_of(context: click.Context, names: Sequence[str]) -> click.Context:
    """Return the context of the command with these names, such as profile and check.

    `context` is that of `help`, and its parent is the program.
    """
    assert context.parent is not None  # noqa: S101 - help_ is a command of the group cli
    parent = context.parent
    for name in names:
        if not isinstance(parent.command, click.Group):
            raise click.UsageError(f"unexpected extra argument ({name})", context)
        command = parent.command.get_command(parent, name)
        if command is None:
            raise click.UsageError(f"No such command '{name}'.", parent)
        parent = click.Context(command, info_name=name, parent=parent)
    return parent
