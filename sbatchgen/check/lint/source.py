"""Finds and reads the scripts to lint: in files and folders, on stdin, and in documents with examples.

Files larger than MAX_BYTES are refused. Pipes are also refused, because a pipe may never end.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sbatchgen.base.errors import DocumentError, Problem, near_file
from sbatchgen.base.files import read_start
from sbatchgen.base.finding import Finding, Place
from sbatchgen.base.frozen import frozen
from sbatchgen.base.wrong_file import wrong_kind
from sbatchgen.check.lint.blocks import DOCUMENTS, CodeBlock, blocks

MAX_BYTES = 4 << 20  # slurmctld's default limit of a script, max_script_size in slurm.conf(5)
STDIN = "-"  # the name of stdin on the command line
# In a folder, a file with one of these suffixes is a script, whatever it holds.
SCRIPT_SUFFIXES = (".slurm", ".sbatch")
# In a folder, a file with one of these suffixes is a script if it holds directives or calls sbatch. A name
# without a suffix has the suffix "".
LIKELY_SUFFIXES = (".sh", ".bash", ".job", ".sub", ".cmd", ".sb", ".sl", ".run", ".pbs", ".ll", "")
# Suffixes of files of other kinds, which users name by mistake on the command line of `lint`.
NO_SCRIPT_SUFFIXES = (".py", ".yaml", ".yml")
# With one of these suffixes, a JOB on the command line, for example of `submit`, is a finished script.
_FINISHED_SUFFIXES = (".slurm", ".sbatch", ".sh", ".job")
# A folder with these files is a run folder. Its scripts are copies, so `lint` leaves them out.
RUN_FOLDER_FILES = frozenset(("job.slurm", "submit.lock"))
_DIRECTIVE = re.compile(rb"^#SBATCH", re.MULTILINE)
_START_SIZE = 1 << 16  # bytes at the start of a file in a folder, by which it is known as a script
# A call of sbatch in a shell script: as a command, after another command, or in id=$(sbatch ...).
_SBATCH_CALL = re.compile(
    rb"(?m)^[ \t]*(?:[^#'\"\n]*[;&|(`][ \t]*|\w+=\"(?:\$\(|`)[ \t]*)?(?:(?:if|then|do|else|!)[ \t]+)*"
    rb"sbatch[ \t]+[^\s)]"
)
_SHELL = re.compile(rb"#!.*\b(?:ba|da|k)?sh\b")  # a first line such as #!/bin/bash
_FIRST_LINE = re.compile(rb"#!|[#!] ?/(?:usr/)?bin/")  # such as #!/bin/bash, and misspelt such as # /bin/bash
_INDENTED = re.compile(rb"[ \t]+#!(?s:.*)\n[ \t]+#SBATCH")  # a script with blanks before #! and #SBATCH
# A script in a here-document: the lines between <<'EOF' and EOF, if the first begins with #!.
_HEREDOC = re.compile(r"""(?ms)<<[ \t]*(['"])(?P<end>\w+)\1[^\n]*\n(?P<script>#!.*?^)(?P=end)$""")
_LINE_NUMBERS = re.compile(r"\blines? \d+(?:(?:, | and )\d+)*\b")  # in a message: line 3, lines 4, 5 and 6


@frozen(kw_only=True)
class Source:
    """A script, and its place in a file or document."""

    file: str  # the file's name, as the user wrote it
    data: bytes  # the script
    line: int = 1  # the line of the file where the script starts, from 1
    # In a document: the number of characters before each line of the script. () for a file that is a script.
    indents: tuple[int, ...] = ()
    # Whether the script is an example without `#!`. Such an example shows only a part of a script, and rules
    # about whole scripts do not judge it.
    is_part: bool = False

    @property
    def is_submitter(self) -> bool:
        """Whether the script only submits other scripts, and is not a job itself."""
        return _is_submitter(self.data)

    @property
    def text(self) -> str:
        """The script as text; bytes outside UTF-8 are surrogates."""
        return self.data.decode("utf-8", "surrogateescape")

    def indent(self, number: int) -> int:
        """Return the number of characters that a document has before a line of the script.

        The number of the line counts from 0.
        """
        return self.indents[number] if 0 <= number < len(self.indents) else 0

    def place_in_file(self, finding: Finding) -> Finding:
        """Return a finding in the script with its place in the file.

        In a document the finding loses its edits, as only whole scripts are fixed.
        """
        if not self.indents:
            return finding
        place_in_script = finding.place
        indent = self.indent(place_in_script.line - 1)
        line, column = place_in_script.line + self.line - 1, place_in_script.column + indent
        end = place_in_script.end + indent if place_in_script.end else 0
        place = Place(f"{self.file}:{line}:{column}", line, column, end)
        what = _LINE_NUMBERS.sub(self._moved_lines, finding.problem.what)
        fix = _LINE_NUMBERS.sub(self._moved_lines, finding.problem.fix)
        return finding._replace(place=place, problem=Problem(what, place.text, fix), edits=())

    def _moved_lines(self, match: re.Match[str]) -> str:
        """Return a text such as "lines 4 and 5" with the numbers of these lines in the document."""
        return re.sub(r"\d+", lambda number: str(int(number[0]) + self.line - 1), match[0])


def files_to_lint(names: Sequence[str], report: Callable[[Problem], None]) -> Iterator[str]:
    """Yield the files to lint: the named files, and the scripts in named folders and their subfolders.

    Each file comes once. Run folders are skipped. `report` gets the folders that can't be read.
    """
    seen: set[str] = set()
    for name in names:
        is_file = name == STDIN or not os.path.isdir(name)  # noqa: PTH112 - a name stays as it was given
        for file in (name,) if is_file else _scripts_in_folder(name, report):
            if file not in seen:
                seen.add(file)
                yield file


def _scripts_in_folder(folder: str, report: Callable[[Problem], None]) -> Iterator[str]:
    """Yield the scripts and documents with scripts in a folder and its subfolders."""

    def report_folder(error: OSError) -> None:
        report(Problem(f"can't read the folder {error.filename}: {error.strerror}"))

    # Links to folders are not followed, so there is no loop.
    for parent, folders, names in os.walk(folder, onerror=report_folder):
        if parent != folder and RUN_FOLDER_FILES.issubset(names):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(parent, name).removeprefix("./")  # noqa: PTH118 - as GitHub names files
            suffix = os.path.splitext(name)[1]  # noqa: PTH122
            if name.startswith("."):
                continue
            is_document = suffix.lower() in DOCUMENTS
            is_likely = suffix in LIKELY_SUFFIXES or is_document
            if suffix in SCRIPT_SUFFIXES or (is_likely and _holds_script(path, is_document)):
                yield path


def _is_submitter(data: bytes) -> bool:
    """Return whether a file is a shell script without directives that calls sbatch."""
    is_shell = _SHELL.match(data) and b"sbatch" in data and not _DIRECTIVE.search(data)
    return bool(is_shell and _SBATCH_CALL.search(data))


def _holds_script(path: str, is_document: bool) -> bool:  # noqa: FBT001
    """Return whether lint reads a file in a folder: a document with directives, or a likely script.

    A likely script has directives or calls sbatch, within the first _START_SIZE bytes.
    """
    try:
        if is_document:
            return b"#SBATCH" in read_start(Path(path), MAX_BYTES)
        data = read_start(Path(path), _START_SIZE)
        return _DIRECTIVE.search(data) is not None or _is_submitter(data)
    except OSError:
        return False


def read_sources(name: str) -> list[Source]:
    """Return the script in a file, or the scripts in a document, which may be none.

    Raises:
        DocumentError: The file can't be read, is no regular file, is too large, or is of another kind, such
            as Python.
    """
    if name.endswith(NO_SCRIPT_SUFFIXES) and (problem := wrong_kind(name, "script", "lint")):
        raise DocumentError([problem])
    source = read_source(name)
    return scripts_in_document(source) if name.lower().endswith((*DOCUMENTS,)) else [source]


def is_script(job: str) -> bool:
    """Return whether a JOB on the command line is a finished script, by its suffix or its first line."""
    path = Path(job)
    if job.endswith((".yaml", ".yml")) or not path.exists():
        return False
    if job.endswith(_FINISHED_SUFFIXES):
        return True
    return path.is_file() and read_start(path, 2) == b"#!"


def read_source(name: str) -> Source:
    """Return a file or stdin as one script; raise DocumentError if it can't be read or is too large."""
    label = "<stdin>" if name == STDIN else name
    try:
        limit = MAX_BYTES + 1  # one more byte shows that the file is too large
        data = sys.stdin.buffer.read(limit) if name == STDIN else read_start(Path(name), limit)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise DocumentError.of(f"can't read {label}: {why}", fix=near_file(name)) from error
    if len(data) > MAX_BYTES:
        what = f"{label} is larger than {MAX_BYTES >> 20} MiB, and slurmctld takes no such script by default"
        raise DocumentError.of(what, fix="move the data out of the script into another file")
    return Source(file=label, data=data)


def _scripts_in_block(block: CodeBlock) -> Iterator[CodeBlock]:
    """Yield the scripts that a block writes with cat > job.sh <<'EOF', and the block if it is a script.

    A block that writes scripts is a script itself if it has directives outside of them.
    """
    matches = [*_HEREDOC.finditer(block.text)]
    if not matches or _DIRECTIVE.search(_HEREDOC.sub("", block.text).encode("utf-8", "surrogateescape")):
        yield block
    for match in matches:
        lines_before = block.text.count("\n", 0, match.start("script"))
        yield CodeBlock(match["script"], block.line + lines_before, block.indents[lines_before:])


def scripts_in_document(document: Source) -> list[Source]:
    """Return the scripts in a document. A script without `#!` gets the first line `#!/bin/bash`."""
    scripts = []
    code_blocks = blocks(document.text, os.path.splitext(document.file)[1].lower())  # noqa: PTH122
    for block in (script for code_block in code_blocks for script in _scripts_in_block(code_block)):
        data = block.text.encode("utf-8", "surrogateescape")
        # A reader of the page copies the blanks before #! too, and SB101 reports them.
        is_indented = _INDENTED.match(data) is not None
        if is_indented or (_DIRECTIVE.search(data) and _FIRST_LINE.match(data)):
            scripts.append(Source(file=document.file, data=data, line=block.line, indents=block.indents))
        elif _DIRECTIVE.search(data):
            part = Source(
                file=document.file,
                data=b"#!/bin/bash\n" + data,
                line=block.line - 1,  # of the added first line
                indents=(0, *block.indents),
                is_part=True,
            )
            scripts.append(part)
    return scripts
