"""What people get of an adoption: a table of lines, and the files."""

from __future__ import annotations

import json
from pathlib import Path

from sbatchgen import files
from sbatchgen.adopt.adoption import Adoption
from sbatchgen.adopt.remarks import spans, told
from sbatchgen.adopt.training import REST
from sbatchgen.errors import DocumentError, SbatchgenError

_NUMBERS = 9  # columns


def as_text(found: Adoption) -> str:
    """The account of a script, a row for neighbours of which the same is said; comments go without saying."""
    rows = told(found.rows)
    lost = sum(became == "lost" for became in found.lines.values())
    head = f"{len(found.lines)} lines, {lost or 'none'} lost"
    if not found.job:
        head, rows = "no job can be made of it", found.lost
        rows = [row for row in rows if row.what != REST] or rows
    lines = [f"{found.script}: {head}"]
    named = {line for row in rows for line in row.lines}
    for row in rows:
        between = range(min(row.lines, default=0), max(row.lines, default=0))
        numbers = spans({*row.lines, *(line for line in between if line not in named)})
        lines += [] if len(numbers) <= _NUMBERS else [numbers]
        lines.append(f"{numbers if len(numbers) <= _NUMBERS else '':<{_NUMBERS}} {row.became:<10} {row.what}")
    for finding in found.left:
        lines.append(f"{finding.place.line:<{_NUMBERS}} as before  {finding.rule}: {finding.problem.what}")
    lines += [f"note: {text}" for text in found.notes]
    return "".join(f"{line}\n" for line in lines)


def as_json(found: Adoption) -> str:
    """The same for tools."""
    about = {
        "script": found.script,
        "lines": {str(number): became for number, became in found.lines.items()},
        "rows": [{"lines": list(row.lines), "became": row.became, "what": row.what} for row in found.rows],
        "mended": sorted({one.rule for one in found.mended}),
        "as_before": sorted({one.rule for one in found.left}),
        "notes": list(found.notes),
        "files": found.files,
    }
    return json.dumps(about, indent=2)


def as_yaml(found: Adoption) -> str:
    """Both files, one after the other."""
    return "---\n".join(f"# {name}\n{text}" for name, text in found.files.items())


def refusal(found: Adoption) -> SbatchgenError:
    """Why nothing is given."""
    if not found.job:
        return DocumentError.of("no job can be made of it: nothing was written", at=found.script)
    numbers = spans({line for row in found.lost for line in row.lines})
    what = f"no place in a job for line {numbers}" if numbers else "the new script would not do the same"
    fix = "leave them out: --partly; or make jobs of their own of them"
    return DocumentError.of(f"{what}: nothing was written", at=found.script, fix=fix)


def write(found: Adoption, to: str, *, force: bool) -> None:
    """Write the files into a folder.

    Raises:
        DocumentError: One of them is there, or can't be written.
    """
    folder = Path(to)
    there = [name for name in found.files if (folder / name).exists()]
    if there and not force:
        raise DocumentError.of(f"{folder / there[0]} is there already", fix="replace it: --force")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in found.files.items():
        files.write(folder / name, text.encode())
