"""The output of commands: results go to stdout, and all other text goes to stderr.

Options and checks that many commands have are also here.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

import click

from sbatchgen.base.errors import DocumentError, FitError, Problem, SbatchgenError, SlurmError
from sbatchgen.base.machine.ignored import take_problems
from sbatchgen.base.quoting import fix_lines, one_line, visible
from sbatchgen.jobs.inputs import completion

if TYPE_CHECKING:
    from sbatchgen.base.finding import Finding
    from sbatchgen.jobs.outputs.json_document import Refusal
    from sbatchgen.jobs.review.review import Review

# Keys in the `meta` of a click context: the typed words, and whether a JSON document is printed.
TYPED, HAS_DOCUMENT = "sbatchgen.typed", "sbatchgen.has_document"
put = click.echo  # prints to stdout or another stream
MAX_COLUMNS = 10_000  # some terminals report more columns, which can't be true
MIN_COLUMNS, MIN_LINES = 40, 16  # a brief review is laid out for a terminal of at least this size
# The line breaks that a printed message keeps: before Slurm's own words, and before lines of a diff.
_KEPT_LINE_BREAK = re.compile(r"\n(?=  (?:Slurm said: |[-+@]))")
_HARMLESS = re.compile(r"(\x1b\[[0-9;]*m|\r)")  # colours, and carriage returns, which progress bars use


def put_log(data: bytes) -> None:
    """Print a piece of a log; a terminal gets its colours, but no other control characters."""
    put(escape_controls(data) if sys.stdout.isatty() else data, nl=False)


def escape_controls(data: bytes) -> str:
    """Return a piece of a log as text, with control characters escaped, apart from colours and returns."""
    text = data.decode("utf-8", "replace")
    return "".join(part if _HARMLESS.fullmatch(part) else visible(part) for part in _HARMLESS.split(text))


def say(problem: Problem, severity: str) -> None:
    """Print a problem to stderr, with its place and its fix on lines of their own."""
    first_line, *more_lines = _KEPT_LINE_BREAK.split(problem.what)
    note(f"{severity}: {first_line}", mark=severity)
    note_lines(more_lines)
    if problem.at:
        note(f"  at:  {one_line(problem.at)}")
    note_fix(problem.fix)


def note_fix(fix: str) -> None:
    """Print a fix to stderr, with its further lines below it."""
    note_lines(fix_lines(fix, indent=2))


def note(text: str, mark: str = "") -> None:
    """Print a line to stderr if possible; `mark`, with which the text starts, is coloured as a severity."""
    with contextlib.suppress(OSError):
        click.echo((colored(mark, mark) if mark else "") + one_line(text.removeprefix(mark)), err=True)


def note_lines(lines: Iterable[str]) -> None:
    """Print lines to stderr if possible."""
    for line in lines:
        note(line)


def warn_of_ignored_files() -> None:
    """Warn of files that the search ignored, such as a profile that another user can change."""
    for problem in take_problems():
        say(problem, "warning")


def colored(text: str, severity: str) -> str:
    """Colour a text by severity; click removes colours if stdout is not a terminal."""
    color = {"error": "red", "warning": "yellow", "info": "cyan"}.get(severity)
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=color, bold=True)


def report(findings: Iterable[Finding]) -> None:
    """Print the findings that are no errors, and raise the others as one error, if there are any."""
    findings = list(findings)
    for finding in findings:
        if finding.severity != "error":
            say(finding.problem, finding.severity)
    if failure := failure_of(findings):
        raise failure(finding.problem for finding in findings if finding.severity == "error")


def failure_of(findings: Sequence[Finding]) -> type[SbatchgenError] | None:
    """Return the class of error to raise for findings; None if no finding is an error.

    FitError means that all errors are about limits of the cluster.
    """
    errors = [finding for finding in findings if finding.severity == "error"]
    if not errors:
        return None
    return FitError if all(finding.about_fit for finding in errors) else DocumentError


def current_folder() -> Path:
    """Return the current folder; raise DocumentError if it was deleted, or can't be entered."""
    try:
        return Path.cwd()
    except OSError as error:
        what = f"the current folder can't be used: {error.strerror}"
        raise DocumentError.of(what, fix="cd to another folder, or to this one again") from error


def _add_budgets(_: click.Context, __: click.Parameter, typed_files: tuple[str, ...]) -> None:
    """Add the files of --budget to the variable that names budgets, for this process and its jobs.

    A job must keep to all of these budgets.
    """
    if typed_files:
        from sbatchgen.jobs.budget.allowance import VARIABLE

        files = (os.environ.get(VARIABLE), *(str(Path(file).absolute()) for file in typed_files))
        os.environ[VARIABLE] = ":".join(filter(None, files))


BUDGET = click.option(
    "--budget",
    metavar="FILE",
    multiple=True,
    type=click.Path(),
    expose_value=False,
    callback=_add_budgets,
    help="Also keep to the limits in FILE, in addition to other budgets.",
)
YES = click.option("--yes", "-y", is_flag=True, help="Don't ask.")
SEE = click.option(
    "--see",
    metavar="FOLDER",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Also let the job read this folder, in the sandbox.",
)
BRIEF = click.option(
    "--brief", is_flag=True, help="With --format json: only the facts that decide, in few words."
)
FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Output format.",
    show_default=True,
)


def put_json(
    output: object, stream: TextIO | None = None, *, refused: SbatchgenError | Iterable[Finding] = ()
) -> None:
    """Print an output, such as those of `sbatchgen.jobs.outputs`, as a JSON document.

    `refused` says why the command fails: an error, or findings, of which only errors count. The document
    then also holds these errors and the exit status.
    """
    from sbatchgen.cli.typed_fix import argv_maker
    from sbatchgen.jobs.outputs.json_document import document

    context = click.get_current_context()
    if isinstance(refused, SbatchgenError):
        status_and_errors: Refusal | None = (refused.exit_status, refused.problems)
    else:
        errors = [finding for finding in refused if finding.severity == "error"]
        failure = failure_of(errors)
        status_and_errors = (failure.exit_status, errors) if failure else None
    root = context.find_root()
    put(document(output, argv_maker(root, root.meta.get(TYPED, ())), status_and_errors), stream, nl=False)
    if stream in (None, sys.stdout):
        context.meta[HAS_DOCUMENT] = True


def put_in_form(form: str, output: object, text: str) -> None:
    """Print an output as JSON, or the text that people read."""
    if form == "json":
        put_json(output)
    else:
        put(visible(text), nl=False)


def show_brief(reviews: Sequence[Review], stream: TextIO) -> None:
    """Print reviews in so few lines that they fit the terminal."""
    from sbatchgen.jobs.review.brief import brief

    warn_of_ignored_files()  # before the question whether to submit
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        columns, lines = 0, 0
    width = min(columns, MAX_COLUMNS) if columns > 0 else 80
    width, height = max(width, MIN_COLUMNS), max(lines or 24, MIN_LINES)
    _put_coloured(brief(reviews, width=width, height=height), stream)


def show_review(review: Review, stream: TextIO, form: str = "text", *, whole: bool = False) -> None:
    """Print a review, in colour on a terminal; `whole` shows the whole script."""
    from sbatchgen.jobs.review.screen import as_text

    warn_of_ignored_files()  # before the question whether to submit
    if form == "json":
        answer = review.slurm  # the answer of sbatch --test-only, if Slurm was asked
        if answer and not answer.accepted:
            problems = [row.problem for row in answer.refusals] or [Problem(answer.says)]
            put_json(review, stream, refused=SlurmError(problems))
        else:
            put_json(review, stream, refused=review.findings)
    else:
        _put_coloured(as_text(review, current_folder(), whole=whole), stream)


def _put_coloured(text: str, stream: TextIO) -> None:
    """Print the text of a review, in colour if the stream is a terminal that can show colours."""
    from sbatchgen.jobs.review.screen import coloured

    has_colours = is_screen(stream) and not os.environ.get("NO_COLOR")
    put(coloured(visible(text)) if has_colours else visible(text), stream, nl=False)


def redraw(show: Callable[[], None], every_s: float) -> NoReturn:
    """Call `show` again and again until Ctrl-C; a terminal shows each output in place of the last one."""
    while True:
        if sys.stdout.isatty():
            put("\x1b[H\x1b[2J", nl=False)  # moves the cursor to the top left corner, and clears the screen
        show()
        time.sleep(every_s)


def is_screen(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can do more than print lines, such as colours."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def show_markdown(text: str) -> None:
    """Print Markdown, in colour on a terminal."""
    if not is_screen(sys.stdout):
        put(text, nl=False)
        return
    import shutil

    from rich.console import Console
    from rich.markdown import Markdown

    columns = shutil.get_terminal_size().columns
    width = columns if 0 < columns <= MAX_COLUMNS else 80
    height = 25  # without a height, Rich would use COLUMNS instead of the width
    console = Console(force_terminal=True, emoji=False, markup=False, width=width, height=height)
    console.print(Markdown(text, code_theme="ansi_dark"))  # the sixteen colours of the user's terminal


def print_bytes(data: bytes) -> None:
    """Print the contents of a file unchanged; on a terminal, control characters are escaped."""
    put(visible(data.decode("utf-8", "surrogateescape")) if sys.stdout.isatty() else data, nl=False)


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of runs and the folders that complete the word RUN."""
    from sbatchgen.jobs.runs.index import Index, index_file

    names = []
    with contextlib.suppress(DocumentError, OSError):
        names = completion.matching_names(
            (run.name for run in Index(index_file(os.environ)).runs()), incomplete
        )
    return [*names, *completion.runs(ctx, param, incomplete)]
