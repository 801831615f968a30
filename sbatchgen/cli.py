"""The click commands: parse, call, print. The only place that prints, and the only error boundary."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from sbatchgen import __version__
from sbatchgen.errors import DocumentError, FitError, Problem, SbatchgenError, SlurmError
from sbatchgen.quoting import visible

if TYPE_CHECKING:
    from sbatchgen.finding import Finding
    from sbatchgen.request import Resolved
    from sbatchgen.review import Review


class Commands(click.Group):
    """A group that keeps what follows `--` for the trainer, word for word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Cut the command line at the first `--`."""
        cut = args.index("--") if "--" in args else len(args)
        ctx.obj = tuple(args[cut + 1 :])
        return super().parse_args(ctx, args[:cut])


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 2 command line, 3 documents, 4 does not fit, 5 Slurm; 1 is a bug."""
    try:
        status = cli.main(args=list(sys.argv[1:] if argv is None else argv), standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except click.Abort:
        status = 130
    except SbatchgenError as error:
        for problem in error.problems:
            _say(problem, "error")
        status = error.exit_status
    except BrokenPipeError:  # `sbatchgen render ... | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    sys.exit(status if isinstance(status, int) else 0)


def _say(problem: Problem, severity: str) -> None:
    click.echo(f"{_colored(severity, severity)}: {visible(problem.what)}", err=True)
    if problem.at:
        click.echo(f"  at:  {visible(problem.at)}", err=True)
    if problem.fix:
        click.echo(f"  fix: {visible(problem.fix)}", err=True)


def _colored(text: str, severity: str) -> str:
    """The text in the colour of a severity; click leaves that out where no terminal reads it."""
    color = {"error": "red", "warning": "yellow", "info": "cyan"}.get(severity)
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=color, bold=True)


def _report(findings: Iterable[Finding]) -> None:
    """Print findings; stop at errors, with 4 if all of them are about the cluster's limits, else 3."""
    found = list(findings)
    for finding in found:
        if finding.severity != "error":
            _say(finding.problem, finding.severity)
    if kind := _failure(found):
        raise kind(finding.problem for finding in found if finding.severity == "error")


def _failure(findings: Sequence[Finding]) -> type[SbatchgenError] | None:
    """What findings end a command with: FitError if all errors are about the cluster's limits."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if not errors:
        return None
    return FitError if all(finding.about_fit for finding in errors) else DocumentError


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="sbatchgen %(version)s")
def cli() -> None:
    """Render, review and submit sbatch scripts for PyTorch on Slurm GPU clusters.

    JOB is a bundled mode (cpu, single, dataparallel, ddp) or a job YAML. Arguments of the trainer follow
    a double dash: sbatchgen render ddp --profile msu -- --epochs 20
    """


class JobCommand(click.Command):
    """A command that takes JOB and every option of a job, which are made only when it is called."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """JOB, the command's own options, and those of every job."""
        from sbatchgen.request import parameters

        own = super().get_params(ctx)
        return [click.Argument(["job"], metavar="JOB"), *own[:-1], *parameters(), own[-1]]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own shape
        """The order in which people write it."""
        return ["JOB", "[OPTIONS]", "[-- TRAINER ARGS]"]


def _resolve(job: str, args: tuple[str, ...], given: dict[str, Any]) -> Resolved:
    from sbatchgen.request import resolve_request

    return resolve_request(job, args, given, environment=os.environ, folder=Path.cwd())


@cli.command(cls=JobCommand)
@click.option(
    "--write", metavar="FILE", type=click.Path(dir_okay=False), help="Write to FILE, not to stdout."
)
@click.pass_obj
def render(args: tuple[str, ...], /, job: str, write: str | None, **given: Any) -> None:
    """Write the script to stdout, findings to stderr. Needs neither Slurm nor a network."""
    from sbatchgen.check import check

    resolved = _resolve(job, args, given)
    _report(check(resolved.plan))
    script = resolved.script()
    if write is None:
        click.echo(script, nl=False)
        return
    try:
        Path(write).write_text(script, encoding="utf-8")
    except OSError as error:
        raise DocumentError.of(f"can't write {write}: {error.strerror}", fix="name another file") from error


FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="What to print.",
    show_default=True,
)


@cli.command(cls=JobCommand)
@click.option("--test-only", is_flag=True, help="Ask the live Slurm too, which uses up a job id.")
@FORMAT
@click.pass_obj
def review(args: tuple[str, ...], /, job: str, *, test_only: bool, form: str, **given: Any) -> None:
    """Show what would be asked for, what it costs, the findings, and the script. Submits nothing."""
    from sbatchgen.submit import ask_slurm, look

    resolved = _resolve(job, args, given)
    submission = look(resolved, os.environ, Path.cwd())
    shown = submission.review
    failure = _failure(shown.findings)
    if test_only:
        if not resolved.plan.slurm:
            name = resolved.plan.profile.name
            raise click.UsageError(f"--test-only asks Slurm, and profile '{name}' has none")
        if failure is None:
            shown = dataclasses.replace(shown, slurm=ask_slurm(submission, os.environ))
    _show(shown, sys.stdout, form)
    if failure is None and shown.slurm and not shown.slurm.accepted:
        failure = SlurmError
    sys.exit(failure.exit_status if failure else 0)


def _show(shown: Review, stream: TextIO, form: str = "text") -> None:
    """In colour and in the width of the terminal where there is one."""
    from sbatchgen.screen import as_json, as_text

    if form == "json":
        click.echo(as_json(shown), file=stream, nl=False)
    elif _is_screen(stream):
        from sbatchgen.terminal import show

        show(shown, stream, Path.cwd())
    else:
        click.echo(visible(as_text(shown, Path.cwd())), file=stream, nl=False)


def _is_screen(stream: TextIO) -> bool:
    """Whether it is a terminal that knows more than plain lines."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


@cli.command(cls=JobCommand)
@click.option("--lines", is_flag=True, help="Show the template and the block of each line of the script.")
@FORMAT
@click.pass_obj
def explain(args: tuple[str, ...], /, job: str, *, lines: bool, form: str, **given: Any) -> None:
    """Show every option: its value, where it was written, and what it overrode."""
    from sbatchgen import screen
    from sbatchgen.check import check
    from sbatchgen.origins import settings

    resolved = _resolve(job, args, given)
    found = check(resolved.plan)
    values = settings(resolved.plan, profile_file=resolved.profile_file, code=resolved.code)
    traced = lines and not _failure(found)
    script = resolved.script() if traced else None
    places = resolved.trace(script) if script is not None else []
    if form == "json":
        text = screen.explanation_as_json(values, script, places)
    elif script is not None:
        text = screen.blame(script, places, Path.cwd())
    else:
        text = screen.explanation(values)
    click.echo(visible(text), nl=False)
    _report(found)


@cli.command(cls=JobCommand)
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Stop after the review.")
@click.option("--keep-sbatch-env", is_flag=True, help="Leave SBATCH_* and SLURM_* in the environment.")
@click.pass_obj
def submit(
    args: tuple[str, ...], /, job: str, *, yes: bool, dry_run: bool, keep_sbatch_env: bool, **given: Any
) -> None:
    """Review JOB, or a script file, then submit the very bytes that were shown."""
    from sbatchgen.screen import in_short
    from sbatchgen.submit import Submission, of_job, of_script, run_locally, submit_to_slurm

    submission: Submission
    if _is_script(job):
        submission = of_script(Path(job), given, args, os.environ, keep=keep_sbatch_env)
    else:
        resolved = _resolve(job, args, given)
        submission = of_job(resolved, os.environ, Path.cwd())
    _show(submission.review, sys.stderr)
    if failure := _failure(submission.review.findings):
        sys.exit(failure.exit_status)
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked here: add --yes to submit, or --dry-run to look only")
        click.confirm(f"Submit {visible(in_short(submission.review))}?", abort=True, err=True)
    if submission.local:
        sys.exit(run_locally(submission, os.environ, note=_note))
    click.echo(submit_to_slurm(submission, os.environ, keep=keep_sbatch_env, note=_note))


def _note(text: str) -> None:
    click.echo(visible(text), err=True)


def _is_script(job: str) -> bool:
    """A file that starts like a script, whatever its name."""
    path = Path(job)
    if job.endswith((".yaml", ".yml")) or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(2) == b"#!" or job.endswith((".slurm", ".sbatch", ".sh", ".job"))


@cli.command()
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option("--profile", metavar="NAME|FILE", help="Cluster; by default that of sbatchgen.yaml, if any.")
@click.option("--slurm", metavar="RELEASE", help="Release that will read the scripts, as 23.11.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
    help="Text for people, or JSON, SARIF or annotations of GitHub.",
)
@click.option("--select", multiple=True, metavar="RULES", help="Only these rules, as SB204 or SB3,SB4.")
@click.option("--disable", multiple=True, metavar="RULES", help="Not these rules.")
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "info", "never"]),
    default="error",
    show_default=True,
    help="The least severity that fails.",
)
@click.option("--fix", "mend", flag_value="fix", help="Mend what can be mended safely; show the change.")
@click.option("--diff", "mend", flag_value="diff", help="Show what --fix would change, and change nothing.")
@click.option(
    "--shellcheck/--no-shellcheck",
    "ask_shellcheck",
    default=None,
    help="Ask shellcheck too; by default for up to 10 files, where it is installed.",
)
@click.option("--rules", is_flag=True, help="List all rules.")
@click.option("--explain", multiple=True, metavar="RULES", help="Show the pages of rules, as SB104.")
def lint(
    files: tuple[str, ...], *, rules: bool, explain: tuple[str, ...], mend: str | None, **given: Any
) -> None:
    """Find what is wrong with sbatch scripts before Slurm sees them; any script, ours or not.

    FILE is a script, a folder, a Markdown document with scripts in it, or - for stdin. Exit status: 0, or 3
    where there is an error (see --fail-on) or a file that can't be read.
    """
    from sbatchgen.lint import command

    if rules:
        click.echo(command.table(), nl=False)
        return
    if explain:
        _show_markdown(command.explanation(explain))
        return
    if not files:
        raise click.UsageError("no files: name scripts or folders, or - for stdin")
    outcome = command.run(
        files, environment=os.environ, folder=Path.cwd(), style=_colored, mend=mend or "", **given
    )
    if sys.stdout.isatty():
        click.echo(visible(outcome.change.decode("utf-8", "surrogateescape")), nl=False)
    else:
        click.echo(outcome.change, nl=False)  # byte for byte, for patch
    click.echo(outcome.report, nl=False)
    for problem in outcome.problems:
        _say(problem, "error")
    if outcome.summary:
        click.echo(outcome.summary, err=True)
    sys.exit(outcome.status)


def _show_markdown(text: str) -> None:
    if _is_screen(sys.stdout):
        from sbatchgen.terminal import show_markdown

        show_markdown(text, sys.stdout)
    else:
        click.echo(text, nl=False)


@cli.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A .png or .svg [default: plot.png in the run folder; here, if there are several]",
)
def plot(runs: tuple[Path, ...], output: Path | None) -> None:
    """Draw loss, accuracy and throughput of run folders, going on or ended. Needs matplotlib."""
    from sbatchgen import plot as drawing

    click.echo(drawing.plot(runs, output))


@cli.group()
def data() -> None:
    """Bring a data set to the cluster before a job holds GPUs."""


@data.command("mnist")
@click.option("--to", "folder", required=True, type=click.Path(file_okay=False), help="Folder to put it in.")
@click.option("--synthetic", is_flag=True, help="Draw digits instead of downloading: same files, no network.")
@click.option("--train", type=click.IntRange(min=1), help="Images to draw for training (--synthetic).")
@click.option("--test", type=click.IntRange(min=1), help="Images to draw for testing (--synthetic).")
@click.option("--seed", type=int, help="Seed of the drawing (--synthetic).")
@click.option("--mirror", help="Address that holds the four .gz files.")
def data_mnist(folder: str, *, synthetic: bool, mirror: str | None, **drawing: int | None) -> None:
    """MNIST as IDX files."""
    from sbatchgen.dataset import download_mnist, draw_mnist

    if synthetic:
        if mirror:
            raise click.UsageError("--mirror is for the download; --synthetic needs none")
        draw_mnist(Path(folder), {name: value for name, value in drawing.items() if value is not None})
        return
    wrong = [name for name, value in drawing.items() if value is not None]
    if wrong:
        raise click.UsageError(f"--{wrong[0]} goes with --synthetic")
    download_mnist(Path(folder), mirror, note=lambda text: click.echo(text, err=True))


@cli.group()
def profile() -> None:
    """Clusters."""


@profile.command("list")
def profile_list() -> None:
    """Every profile that can be found; a later one of the same name is hidden by the first."""
    from sbatchgen.document import read
    from sbatchgen.profile import Profile
    from sbatchgen.search import Places

    seen: set[str] = set()
    for name, file in Places(Path.cwd(), os.environ).profiles():
        star = " " if name in seen else "*"
        seen.add(name)
        try:
            about = read(file, Profile).value
            text = f"{about.scheduler:<6} checked {about.checked}  {about.description or ''}"
        except SbatchgenError as error:
            text = f"broken: {error}"
        click.echo(f"{star} {name:<16} {visible(text)}\n    {file}")


@profile.command("show")
@click.argument("name")
def profile_show(name: str) -> None:
    """The profile as it is written; NAME is a name or a file."""
    from sbatchgen.search import Places

    click.echo(Places(Path.cwd(), os.environ).profile(name).read_text(encoding="utf-8"), nl=False)


@profile.command("check")
@click.argument("names", nargs=-1, required=True)
def profile_check(names: tuple[str, ...]) -> None:
    """Read profiles and report everything that is wrong with them."""
    from sbatchgen.lint.settings import checked
    from sbatchgen.search import Places

    problems: list[Problem] = []
    places = Places(Path.cwd(), os.environ)
    for name in names:
        try:
            checked(places.profile(name))
            click.echo(f"{name}: fine")
        except DocumentError as error:
            problems += error.problems
    if problems:
        raise DocumentError(problems)
