"""The output of `sbatchgen adopt`: the account of a script's lines, the error, and the files."""

from collections.abc import Iterable
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError, SbatchgenError
from sbatchgen.base.quoting import OR, numbers_as_text, word
from sbatchgen.lab.adopt.adoption import Adoption
from sbatchgen.lab.adopt.remarks import UNREMARKABLE, rows_of
from sbatchgen.lab.adopt.training import NO_TRAINING

_NUMBERS_WIDTH = 9  # characters of the column of line numbers


def lines(adoption: Adoption) -> list[str]:
    """Return the account of a script as lines of text, such as `12-14     kept       in setup, unchanged`.

    A row of the account has the numbers of lines, their outcome and the reason. Neighbouring lines with the
    same outcome share a row. The lines of comments have no row.
    """
    rows = rows_of(remark for remark in adoption.remarks if remark.reason not in UNREMARKABLE)
    lost_count = sum(outcome == "lost" for outcome in adoption.lines.values())
    summary = f"{len(adoption.lines)} lines, {lost_count or 'none'} lost"
    if not adoption.job:
        summary, rows = "no job can be made of it", adoption.lost
        # Another reason says more than NO_TRAINING.
        rows = [row for row in rows if row.reason != NO_TRAINING] or rows
    account_lines = [f"{adoption.script}: {summary}"]
    lines_in_rows = {line for row in rows for line in row.lines}
    for row in rows:
        # Comments between two lines of a row have no row of their own, so their numbers join the row.
        span = range(min(row.lines, default=0), max(row.lines, default=0))
        numbers = _numbers_text({*row.lines, *(line for line in span if line not in lines_in_rows)})
        if len(numbers) > _NUMBERS_WIDTH:  # the numbers get a line of their own
            account_lines.append(numbers)
            numbers = ""
        account_lines.append(f"{numbers:<{_NUMBERS_WIDTH}} {row.outcome:<10} {row.reason}")
    for finding in adoption.remaining:
        problem = f"{finding.rule}: {finding.problem.what}"
        account_lines.append(f"{finding.place.line:<{_NUMBERS_WIDTH}} as before  {problem}")
    return [*account_lines, *(f"note: {text}" for text in adoption.notes)]


def _numbers_text(lines: Iterable[int]) -> str:
    """Return the numbers of lines as text, such as 3-5, 8."""
    return numbers_as_text(sorted(lines)).replace(",", ", ")


def as_yaml(adoption: Adoption) -> str:
    """Return the job and the profile as a text of two YAML documents."""
    return "---\n".join(f"# {name}\n{text}" for name, text in adoption.files.items())


def refusal(adoption: Adoption) -> SbatchgenError:
    """Return the error for an adoption without a job, or with lost lines: its files are not written."""
    submit_fix = f"run the script as it is, with status and logs: sbatchgen submit {word(adoption.script)}"
    if adoption.scheduler:
        submit_fix = f"submit the script as it is where {adoption.scheduler} runs"
    if not adoption.job:
        row = next((row for row in adoption.lost if row.reason != NO_TRAINING), adoption.lost[0])
        at = f"{adoption.script}:{row.lines[0]}" if row.lines else adoption.script
        return DocumentError.of(f"no job can be made of the script: {row.reason}", at=at, fix=submit_fix)
    lost_lines = {line for row in adoption.lost for line in row.lines}
    what = "the new script would differ"
    if lost_lines:
        what = f"line {_numbers_text(lost_lines)} can't be expressed in a job"
    fix = f"leave out these lines: --partly{OR}{submit_fix}"
    return DocumentError.of(f"{what}: nothing was written", at=adoption.script, fix=fix)


def write(adoption: Adoption, to: str, *, force: bool) -> None:
    """Write the job and the profile as files into the folder `to`.

    Raises DocumentError if a file exists and `force` is not set, or if a file can't be written.
    """
    folder = Path(to)
    existing = [name for name in adoption.files if (folder / name).exists()]
    if existing and not force:
        raise DocumentError.of(f"{folder / existing[0]} exists already", fix="replace it: --force")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in adoption.files.items():
        files.write(folder / name, text.encode())
