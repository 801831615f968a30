"""Man pages of the commands, made from their help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from sbatchgen import __version__
from sbatchgen.cli import cli
from sbatchgen.cli.jobs import HELP_ALL


class Roff(click.HelpFormatter):
    """Writes the parts of a help as requests of man(7)."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:  # noqa: ARG002
        """Write how the command is called."""
        self.write(f".SH SYNOPSIS\n.B {_text(prog)}\n{_text(args)}\n.SH DESCRIPTION\n")

    def write_heading(self, heading: str) -> None:
        """Write the title of a section."""
        self.write(f".SH {_text(heading.upper())}\n")

    def write_paragraph(self) -> None:
        """Begin a paragraph."""
        self.write(".PP\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs."""
        self.write("\n.PP\n".join(_text(" ".join(part.split())) for part in text.split("\n\n")) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:  # noqa: ARG002
        """Write options or commands, each with its text."""
        self.write("".join(f".TP\n.B {_text(name.strip())}\n{_text(text)}\n" for name, text in rows))


def _text(text: str) -> str:
    """Return text as roff reads it: with its dashes, and without requests."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\n".join(f"\\&{line}" if line.startswith(".") else line for line in text.splitlines())


def pages() -> dict[str, str]:
    """Return the man page of each command by its file's name."""
    contexts = [*_contexts(cli, None, "sbatchgen")]
    return {f"{_name(context)}.1": _page(context, contexts) for context in contexts}


def _contexts(command: click.Command, parent: click.Context | None, name: str) -> Iterator[click.Context]:
    """Yield the context of a command, and those of the commands in it."""
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield context
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            if below := command.get_command(context, inner):
                yield from _contexts(below, context, inner)


def _name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _page(context: click.Context, contexts: Iterable[click.Context]) -> str:
    formatter, name = Roff(), _name(context)
    context.meta[HELP_ALL] = True
    context.command.format_help(context, formatter)
    brief = context.command.get_short_help_str(limit=1000).rstrip(".")
    near = [other for other in contexts if other.parent is context] + [context.parent] * bool(context.parent)
    others = ",\n".join(f".BR {_text(_name(other))} (1)" for other in near if other)
    return (
        f'.TH {name.upper()} 1 "" "sbatchgen {__version__}" "User Commands"\n.nh\n.ad l\n'
        f".SH NAME\n{_text(name)} \\- {_text(brief)}\n{formatter.getvalue()}.SH SEE ALSO\n{others}\n"
    )
