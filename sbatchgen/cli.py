"""The commands: parse, call, print. Only this module prints and handles errors."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from sbatchgen import __version__
from sbatchgen.errors import (
    DocumentError,
    FitError,
    Problem,
    SbatchgenError,
    SlurmError,
    of_file,
)
from sbatchgen.quoting import visible

if TYPE_CHECKING:
    from sbatchgen.finding import Finding
    from sbatchgen.plan.request import Request
    from sbatchgen.review.review import Review
    from sbatchgen.submit.submission import Submission

INTERRUPTED, READER_GONE = 130, 141  # as in shells: 128 and the number of the signal
OF_STREAMS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
MOST_COLUMNS = 10_000


class Commands(click.Group):
    """A group that keeps what follows `--` for the trainer, word for word."""

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
            _warn_of_left_out()


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
            _say(problem, "error")
        status = error.exit_status
    except OSError as error:
        status = _of_system(error)
    _leave(status)


def _run(argv: list[str]) -> int:
    """The exit status of a command. click's own `main` would treat a broken pipe as a bug."""
    if instruction := os.environ.get("_SBATCHGEN_COMPLETE"):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "sbatchgen", "_SBATCHGEN_COMPLETE", instruction)
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
    _say(problem, "error")
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


def _print(text: str | bytes, stream: TextIO | None = None, *, nl: bool = True) -> None:
    """Print to stdout or another stream; an OSError names the stream."""
    try:
        click.echo(text, file=stream, nl=nl)
    except OSError as error:
        name = "stderr" if stream is sys.stderr else "stdout"
        raise OSError(error.errno, error.strerror, name) from error


def _say(problem: Problem, severity: str) -> None:
    _note(f"{severity}: {problem.what}", mark=severity)
    if problem.at:
        _note(f"  at:  {problem.at}")
    if problem.fix:
        _note(f"  fix: {problem.fix}")


def _note(text: str, mark: str = "") -> None:
    """Print to stderr if possible, with the severity that the text starts with in colour."""
    with contextlib.suppress(OSError):
        click.echo((_colored(mark, mark) if mark else "") + visible(text.removeprefix(mark)), err=True)


def _warn_of_left_out() -> None:
    from sbatchgen.inputs.search import left_out

    if problem := left_out():
        _say(problem, "warning")


def _colored(text: str, severity: str) -> str:
    """The text in the colour of a severity; click removes colours if stdout is not a terminal."""
    color = {"error": "red", "warning": "yellow", "info": "cyan"}.get(severity)
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=color, bold=True)


def _report(findings: Iterable[Finding]) -> None:
    """Print findings, and raise the errors among them."""
    found = list(findings)
    for finding in found:
        if finding.severity != "error":
            _say(finding.problem, finding.severity)
    if kind := _failure(found):
        raise kind(finding.problem for finding in found if finding.severity == "error")


def _failure(findings: Sequence[Finding]) -> type[SbatchgenError] | None:
    """The error that findings end a command with: FitError if all are about the cluster's limits."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if not errors:
        return None
    return FitError if all(finding.about_fit for finding in errors) else DocumentError


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="sbatchgen %(version)s")
def cli() -> None:
    """Render, review and submit sbatch scripts for PyTorch on Slurm GPU clusters.

    JOB is a mode (cpu, single, dataparallel, ddp) or a job YAML. Arguments of the trainer come after --, as
    in: sbatchgen render ddp --profile msu -- --epochs 20
    """


class JobCommand(click.Command):
    """A command that takes JOB and every option of a job; they are made when it is called."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """JOB, the command's own options, and those of every job."""
        from sbatchgen.inputs.flags import completed, parameters

        own = super().get_params(ctx)
        every = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_help_all,
            help="Show all options.",
        )
        job = click.Argument(["job"], metavar="JOB", shell_complete=completed("jobs"))
        return [job, *own[:-1], *parameters(), every, own[-1]]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own shape
        """JOB first."""
        return ["JOB", "[OPTIONS]", "[-- TRAINER ARGS]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options, then the common ones of a job by group; with --help-all, all."""
        from sbatchgen.inputs.flags import GROUPS, JobOption

        shown: dict[str, list[tuple[str, str]]] = {group: [] for group in ("Options", *GROUPS)}
        for one in self.get_params(ctx):
            of_job = one if isinstance(one, JobOption) else None
            is_shown = of_job is None or of_job.common or ctx.meta.get(_ALL)
            if is_shown and isinstance(one, click.Option) and (record := one.get_help_record(ctx)):
                shown[of_job.group if of_job else "Options"].append(record)
        for group, records in shown.items():
            with formatter.section(group):
                formatter.write_dl(records)


_ALL = "sbatchgen.all"


def _help_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's shape
    if value:
        ctx.meta[_ALL] = True
        _print(ctx.get_help())
        ctx.exit()


def _request(job: str, args: tuple[str, ...], given: dict[str, Any]) -> Request:
    from sbatchgen.plan.request import read_request

    return read_request(job, args, given, environment=os.environ, folder=_here())


def _here() -> Path:
    """The current folder.

    Raises:
        DocumentError: It is gone, or may not be entered.
    """
    try:
        return Path.cwd()
    except OSError as error:
        what = f"the current folder can't be used: {error.strerror}"
        raise DocumentError.of(what, fix="cd to another folder, or to this one again") from error


@cli.command(cls=JobCommand)
@click.option(
    "--write",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write to FILE instead of stdout.",
)
@click.pass_obj
def render(args: tuple[str, ...], /, job: str, write: str | None, **given: Any) -> None:
    """Print the script.

    Findings go to stderr. Needs neither Slurm nor a network.
    """
    from sbatchgen.render.render import render_request
    from sbatchgen.rules.judge import check

    request = _request(job, args, given)
    _report(check(request.plan))
    script = render_request(request).encode()
    if write is None:
        _print(script, nl=False)  # bytes, as `submit` would send them
        return
    from sbatchgen.files import write as write_file

    write_file(Path(write), script)


FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Output format.",
    show_default=True,
)


@cli.command(cls=JobCommand)
@click.option("--test-only", is_flag=True, help="Ask Slurm too (sbatch --test-only); uses up a job id.")
@FORMAT
@click.pass_obj
def review(args: tuple[str, ...], /, job: str, *, test_only: bool, form: str, **given: Any) -> None:
    """Show resources, cost, findings and the script. Submits nothing."""
    from sbatchgen.submit.sbatch import ask_slurm
    from sbatchgen.submit.submission import look

    request = _request(job, args, given)
    submission = look(request, os.environ, _here())
    shown = submission.review
    failure = _failure(shown.findings)
    if test_only:
        if not request.plan.slurm:
            name = request.plan.profile.name
            raise click.UsageError(f"--test-only asks Slurm, but profile '{name}' has none")
        if failure is None:
            shown = dataclasses.replace(shown, slurm=ask_slurm(submission, os.environ))
    _show(shown, sys.stdout, form)
    if failure is None and shown.slurm and not shown.slurm.accepted:
        failure = SlurmError
    sys.exit(failure.exit_status if failure else 0)


def _show(shown: Review, stream: TextIO, form: str = "text") -> None:
    """Print a review, on a terminal in colour and in its width."""
    from sbatchgen.review.screen import as_json, as_text

    _warn_of_left_out()  # before anybody is asked whether to submit
    if form == "json":
        _print(as_json(shown), stream, nl=False)
    elif _is_screen(stream):
        from sbatchgen.review.terminal import show

        show(shown, stream, _here(), width=_columns(stream))
    else:
        _print(visible(as_text(shown, _here())), stream, nl=False)


def _is_screen(stream: TextIO) -> bool:
    """Whether it is a terminal that can do more than plain lines."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _columns(stream: TextIO) -> int:
    """The width of a terminal: COLUMNS, or its own, or 80 if neither makes sense."""
    told = []
    with contextlib.suppress(KeyError, ValueError):
        told.append(int(os.environ["COLUMNS"]))
    with contextlib.suppress(OSError):
        told.append(os.get_terminal_size(stream.fileno()).columns)
    return next((columns for columns in told if 0 < columns <= MOST_COLUMNS), 80)


@cli.command(cls=JobCommand)
@click.option("--lines", is_flag=True, help="Show the template and block of each line of the script.")
@FORMAT
@click.pass_obj
def explain(args: tuple[str, ...], /, job: str, *, lines: bool, form: str, **given: Any) -> None:
    """Show where every value comes from.

    Each option with its value, the place where it was set, and the values that it overrode.
    """
    from sbatchgen.plan.origins import explanations
    from sbatchgen.render.render import render_request
    from sbatchgen.render.trace import trace_request
    from sbatchgen.review import screen
    from sbatchgen.rules.judge import check

    request = _request(job, args, given)
    found = check(request.plan)
    values = explanations(request)
    traced = lines and not _failure(found)
    script = render_request(request) if traced else None
    places = trace_request(request, script) if script is not None else []
    if form == "json":
        text = screen.explanation_as_json(values, script, places)
    elif script is not None:
        text = screen.blame(script, places, _here())
    else:
        text = screen.explanation(values)
    _print(visible(text), nl=False)
    _report(found)


@cli.command(cls=JobCommand)
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Review only.")
@click.option(
    "--keep-sbatch-env", is_flag=True, help="Don't remove SBATCH_* and SLURM_* from sbatch's environment."
)
@click.pass_obj
def submit(
    args: tuple[str, ...], /, job: str, *, yes: bool, dry_run: bool, keep_sbatch_env: bool, **given: Any
) -> None:
    """Review a job, then submit it.

    JOB may also be a finished script. Exactly the bytes that were shown are submitted.
    """
    from sbatchgen.review.screen import in_short
    from sbatchgen.submit.submission import is_script, of_job, of_script

    if is_script(job):
        submission = of_script(Path(job), given, args, os.environ, _here(), keep_env=keep_sbatch_env)
    else:
        submission = of_job(_request(job, args, given), os.environ, _here(), ask_squeue=True)
    _show(submission.review, sys.stderr)
    if failure := _failure(submission.review.findings):
        sys.exit(failure.exit_status)
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("no terminal to ask: add --yes to submit, or --dry-run to review only")
        click.confirm(f"Submit {visible(in_short(submission.review))}?", abort=True, err=True)
    if submission.local:
        from sbatchgen.submit.local import run_locally

        sys.exit(run_locally(submission, os.environ, note=_note))
    _submit_to_slurm(submission, keep_env=keep_sbatch_env)


def _submit_to_slurm(submission: Submission, *, keep_env: bool) -> None:
    """Submit, and print the job's id before anything else can fail."""
    from sbatchgen.submit import sbatch

    accepted = sbatch.submit(submission, os.environ, keep_env=keep_env, note=_note)
    try:
        _print(accepted.job)
    except OSError:
        _note(f"note: job {accepted.job} is submitted")
        raise
    finally:
        sbatch.record(submission, accepted, note=_note)


@cli.command()
@click.argument("names", nargs=-1, metavar="FILE...")
@click.option(
    "--profile",
    metavar="NAME|FILE",
    help="Profile of the cluster. [default: from sbatchgen.yaml]",
)
@click.option("--slurm", metavar="RELEASE", help="Release of Slurm that will read the scripts, as 23.11.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
    help="Output format; github: annotations in GitHub Actions.",
)
@click.option(
    "--select",
    multiple=True,
    metavar="RULES",
    help="Only these rules, as SB204 or SB3,SB4; 'all' includes the pedantic ones.",
)
@click.option("--disable", multiple=True, metavar="RULES", help="Not these rules.")
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "info", "never"]),
    default="error",
    show_default=True,
    help="Lowest severity that gives a nonzero exit status.",
)
@click.option("--fix", "mend", flag_value="fix", help="Fix what can be fixed safely, and show the change.")
@click.option("--diff", "mend", flag_value="diff", help="Show what --fix would change.")
@click.option(
    "--shellcheck/--no-shellcheck",
    "ask_shellcheck",
    default=None,
    help="Run shellcheck too; by default for up to 10 files, if it is installed.",
)
@click.option("--rules", is_flag=True, help="List all rules.")
@click.option("--explain", multiple=True, metavar="RULES", help="Explain rules, as SB104.")
def lint(
    names: tuple[str, ...], *, rules: bool, explain: tuple[str, ...], mend: str | None, **given: Any
) -> None:
    """Find mistakes in sbatch scripts.

    FILE is a script, a folder, a Markdown document with scripts in it, or - for stdin. Exit status: 3 if
    there is an error (see --fail-on) or a file that can't be read, else 0.
    """
    from sbatchgen.lint import command

    if rules:
        _print(command.table(), nl=False)
        return
    if explain:
        _show_markdown(command.explanation(explain))
        return
    if not names:
        raise click.UsageError("no files: name scripts or folders, or - for stdin")
    outcome = command.run(
        names, environment=os.environ, folder=_here(), style=_colored, mend=mend or "", **given
    )
    _print_bytes(outcome.change)  # for patch
    _print(outcome.report, nl=False)
    for problem in outcome.problems:
        _say(problem, "error")
    if outcome.summary:
        _note(outcome.summary)
    sys.exit(outcome.status)


def _show_markdown(text: str) -> None:
    if _is_screen(sys.stdout):
        from sbatchgen.review.terminal import show_markdown

        show_markdown(text, sys.stdout, width=_columns(sys.stdout))
    else:
        _print(text, nl=False)


def _print_bytes(data: bytes) -> None:
    """The contents of a file; on a terminal, control characters are escaped."""
    _print(visible(data.decode("utf-8", "surrogateescape")) if sys.stdout.isatty() else data, nl=False)


@cli.command()
@click.argument(
    "runs",
    metavar="RUN...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    shell_complete=lambda *asked: import_module("sbatchgen.inputs.completion").runs(*asked),
)
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A .png or .svg file. [default: plot.png in the run folder, or here for several runs]",
)
def plot(runs: tuple[Path, ...], output: Path | None) -> None:
    """Plot loss, accuracy and throughput of runs.

    RUN is a run folder; the run may still be going on. Needs matplotlib.
    """
    from sbatchgen.runs import plot as drawing

    _print_bytes(os.fsencode(drawing.plot(runs, output)) + b"\n")


@cli.group()
def data() -> None:
    """Download data sets before a job holds GPUs."""


IMAGES = click.IntRange(min=1, max=1_000_000)  # they are drawn in memory


@data.command("mnist")
@click.option("--to", "folder", required=True, type=click.Path(file_okay=False), help="Folder for the files.")
@click.option("--synthetic", is_flag=True, help="Draw digits instead of downloading them; needs no network.")
@click.option("--train", type=IMAGES, help="Images to draw for training (--synthetic).")
@click.option("--test", type=IMAGES, help="Images to draw for testing (--synthetic).")
@click.option("--seed", type=int, help="Seed of the drawing (--synthetic).")
@click.option("--mirror", help="Address that holds the four .gz files.")
def data_mnist(folder: str, *, synthetic: bool, mirror: str | None, **drawing: int | None) -> None:
    """Get MNIST as IDX files."""
    from sbatchgen.runs.dataset import download_mnist, draw_mnist

    if synthetic:
        if mirror:
            raise click.UsageError("--mirror and --synthetic exclude each other")
        given = {name: value for name, value in drawing.items() if value is not None}
        _print(draw_mnist(Path(folder), given))
        return
    wrong = [name for name, value in drawing.items() if value is not None]
    if wrong:
        raise click.UsageError(f"--{wrong[0]} needs --synthetic")
    download_mnist(Path(folder), mirror, note=_note)


@cli.group()
def profile() -> None:
    """List, show and check profiles of clusters."""


@profile.command("list")
def profile_list() -> None:
    """List all profiles.

    Of several with the same name, the one marked * is used.
    """
    from sbatchgen.inputs.document import read
    from sbatchgen.inputs.profile import Profile
    from sbatchgen.inputs.search import Places

    seen: set[str] = set()
    for name, file in Places(_here(), os.environ).profiles():
        star = " " if name in seen else "*"
        seen.add(name)
        try:
            about = read(file, Profile).value
            text = f"{about.scheduler:<6} checked {about.checked}  {about.description or ''}"
        except SbatchgenError as error:
            text = f"broken: {error}"
        _print(visible(f"{star} {name:<16} {text}\n    {file}"))


@profile.command("show")
@click.argument("name")
def profile_show(name: str) -> None:
    """Print a profile; NAME is a name or a file."""
    from sbatchgen.files import read
    from sbatchgen.inputs.document import MAX_BYTES
    from sbatchgen.inputs.search import Places

    _print_bytes(read(Places(_here(), os.environ).profile(name), MAX_BYTES))


@profile.command("check")
@click.argument("names", nargs=-1, required=True)
def profile_check(names: tuple[str, ...]) -> None:
    """Check profiles.

    Renders every mode in every partition, and reports problems.
    """
    from sbatchgen.finding import Finding
    from sbatchgen.inputs.search import Places
    from sbatchgen.lint.profile_check import findings

    found: list[Finding] = []
    places = Places(_here(), os.environ)
    for name in names:
        try:
            file = places.profile(name)
            about = findings(file, places)
        except DocumentError as error:
            found += [Finding("error", problem) for problem in error.problems]
            continue
        found += about
        if not any(finding.severity == "error" for finding in about):
            _print(visible(f"{name}: no errors"))
    _report(found)


@cli.command("schema")
@click.argument("name", metavar="profile|job", type=click.Choice(["profile", "job"]))
def show_schema(name: str) -> None:
    """Print a JSON schema for an editor.

    profile: of profiles; job: of job YAMLs and sbatchgen.yaml.
    """
    import json

    from sbatchgen.inputs.schema import schema

    _print(json.dumps(schema(name), indent=2))


@cli.command("completion")
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
def show_completion(shell: str) -> None:
    """Print shell completion.

    To enable it: eval "$(sbatchgen completion bash)".
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None  # noqa: S101 - click knows these three
    _print(made(cli, {}, "sbatchgen", "_SBATCHGEN_COMPLETE").source())
