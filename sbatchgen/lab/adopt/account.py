"""The output of `sbatchgen adopt`: the account of a script's lines, the error, and the files."""

from collections.abc import Iterable
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError, SbatchgenError
from sbatchgen.base.quoting import OR, numbers_as_text, word
from sbatchgen.lab.adopt.adoption import Adoption
from sbatchgen.lab.adopt.remarks import UNREMARKABLE, join
from sbatchgen.lab.adopt.training import NO_TRAINING

_NUMBERS_WIDTH = 9  # characters of the column of line numbers


def lines(adoption: Adoption) -> list[str]:
    """Return the account of a script as lines of text.

    A row of the account has numbers of lines, their outcome and the reason. Neighbouring lines with the same
    outcome share a row. The lines of comments have no row.
    """
    rows = join(remark for remark in adoption.remarks if remark.what not in UNREMARKABLE)
    lost_count = sum(outcome == "lost" for outcome in adoption.lines.values())
    summary = f"{len(adoption.lines)} lines, {lost_count or 'none'} lost"
    if not adoption.job:
        summary, rows = "no job can be made of it", adoption.lost
        # Another reason says more than NO_TRAINING.
        rows = [row for row in rows if row.what != NO_TRAINING] or rows
    shown = [f"{adoption.script}: {summary}"]
    lines_in_rows = {line for row in rows for line in row.lines}
    for row in rows:
        # A line between two lines of a row joins the row if it has no row of its own, as a comment.
        between = range(min(row.lines, default=0), max(row.lines, default=0))
        numbers = _spans({*row.lines, *(line for line in between if line not in lines_in_rows)})
        fits = len(numbers) <= _NUMBERS_WIDTH  # otherwise the numbers get a line of their own
        shown += [] if fits else [numbers]
        first_column = numbers if fits else ""
        shown.append(f"{first_column:<{_NUMBERS_WIDTH}} {row.outcome:<10} {row.what}")
    for finding in adoption.remaining:
        problem = f"{finding.rule}: {finding.problem.what}"
        shown.append(f"{finding.place.line:<{_NUMBERS_WIDTH}} as before  {problem}")
    shown += [f"note: {text}" for text in adoption.notes]
    return shown


def _spans(lines: Iterable[int]) -> str:
    """Return the numbers of lines as text, such as 3-5, 8."""
    return numbers_as_text(sorted(lines)).replace(",", ", ")


def as_yaml(adoption: Adoption) -> str:
    """Return the job and the profile as a text of two YAML documents."""
    return "---\n".join(f"# {name}\n{text}" for name, text in adoption.files.items())


def refusal(adoption: Adoption) -> SbatchgenError:
    """Return the error for an adoption without a job, or with lost lines: its files are not written."""
    as_it_is = f"run the script as it is, with status and logs: sbatchgen submit {word(adoption.script)}"
    if adoption.scheduler:
        as_it_is = f"submit the script as it is where {adoption.scheduler} runs"
    if not adoption.job:
        row = next((row for row in adoption.lost if row.what != NO_TRAINING), adoption.lost[0])
        at = f"{adoption.script}:{row.lines[0]}" if row.lines else adoption.script
        return DocumentError.of(f"no job can be made of the script: {row.what}", at=at, fix=as_it_is)
    lines = {line for row in adoption.lost for line in row.lines}
    what = f"line {_spans(lines)} can't be expressed in a job" if lines else "the new script would differ"
    fix = f"leave out these lines: --partly{OR}{as_it_is}"
    return DocumentError.of(f"{what}: nothing was written", at=adoption.script, fix=fix)


def write(adoption: Adoption, to: str, *, force: bool) -> None:
    """Write the files into a folder.

    Raises DocumentError if a file exists and `force` is not set, or if a file can't be written.
    """
    folder = Path(to)
    existing = [name for name in adoption.files if (folder / name).exists()]
    if existing and not force:
        raise DocumentError.of(f"{folder / existing[0]} exists already", fix="replace it: --force")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in adoption.files.items():
        files.write(folder / name, text.encode())
