"""completion."""

from __future__ import annotations

import click

from sbatchgen.cli.output import put


@click.command("completion")
@click.pass_context
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
def completion(ctx: click.Context, shell: str) -> None:
    """Print shell completion.

    To enable it: eval "$(sbatchgen completion bash)".
    """
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None  # noqa: S101 - click knows these three
    put(complete(ctx.find_root().command, {}, "sbatchgen", "_SBATCHGEN_COMPLETE").source())
