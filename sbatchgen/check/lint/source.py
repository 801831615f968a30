"""The scripts to lint: from files, folders, stdin, and the examples in documents.

Files above MAX_BYTES are refused. Only regular files are read, as a pipe may never end.
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
SCRIPT_SUFFIXES = (".slurm", ".sbatch")  # suffixes of scripts
# Suffixes of files that are scripts if they hold directives.
LIKELY_SUFFIXES = (".sh", ".bash", ".job", ".sub", ".cmd", ".sb", ".sl", ".run", ".pbs", ".ll", "")
OTHER_SUFFIXES = (".py", ".yaml", ".yml")  # suffixes of files that are usually no scripts
# The files by which a run folder is known. Scripts in run folders are not read.
RUN_FOLDER_FILES = frozenset(("job.slurm", "submit.lock"))
_DIRECTIVE = re.compile(rb"^#SBATCH", re.MULTILINE)
_START_SIZE = 1 << 16  # bytes of a file in a folder that decide whether the file is a script
# A call of sbatch in a shell script: alone, after another command, or in id=$(sbatch ...).
_SBATCH_CALL = re.compile(
    rb"(?m)^[ \t]*(?:[^#'\"\n]*[;&|(`][ \t]*|\w+=\"(?:\$\(|`)[ \t]*)?(?:(?:if|then|do|else|!)[ \t]+)*"
    rb"sbatch[ \t]+[^\s)]"
)
_SHELL = re.compile(rb"#!.*\b(?:ba|da|k)?sh\b")  # a first line such as #!/bin/bash
_FIRST_LINE = re.compile(rb"#!|[#!] ?/(?:usr/)?bin/")  # the start of a whole script, also misspelt
_INDENTED = re.compile(rb"[ \t]+#!(?s:.*)\n[ \t]+#SBATCH")  # a script with blanks before #! and #SBATCH
# The script between <<'EOF' and EOF.
_HEREDOC = re.compile(r"""(?ms)<<[ \t]*(['"])(?P<end>\w+)\1[^\n]*\n(?P<script>#!.*?^)(?P=end)$""")
_LINE_NUMBERS = re.compile(r"\blines? \d+(?:(?:, | and )\d+)*\b")  # in a message: line 3, lines 4, 5 and 6


@frozen(kw_only=True)
class Source:
    """A script, and its place in a file or document."""

    file: str  # the file's name, as the user wrote it
    data: bytes  # the script
    line: int = 1  # the line of the file where the script starts, from 1
    indents: tuple[int, ...] = ()  # for an example in a document: the characters before each line
    is_part: bool = False  # whether the script is an example without `#!`, which shows a part of a script

    @property
    def is_submitter(self) -> bool:
        """Whether the script only submits other scripts, and is not a job itself."""
        return _is_submitter(self.data)

    @property
    def text(self) -> str:
        """The script as text; bytes outside UTF-8 are surrogates."""
        return self.data.decode("utf-8", "surrogateescape")

    def indent(self, number: int) -> int:
        """Return the number of characters before a line of the script in the document; lines count from 0."""
        return self.indents[number] if 0 <= number < len(self.indents) else 0

    def place_in_file(self, finding: Finding) -> Finding:
        """Return the finding with its place in the file, and without edits in a document."""
        if not self.indents:
            return finding
        in_script = finding.place
        indent = self.indent(in_script.line - 1)
        line, column = in_script.line + self.line - 1, in_script.column + indent
        end = in_script.end + indent if in_script.end else 0
        place = Place(f"{self.file}:{line}:{column}", line, column, end)
        what = _LINE_NUMBERS.sub(self._moved_lines, finding.problem.what)
        fix = _LINE_NUMBERS.sub(self._moved_lines, finding.problem.fix)
        return finding._replace(place=place, problem=Problem(what, place.text, fix), edits=())

    def _moved_lines(self, match: re.Match[str]) -> str:
        """Return the numbers of lines in a message as line numbers of the document."""
        return re.sub(r"\d+", lambda number: str(int(number[0]) + self.line - 1), match[0])


def files(names: Sequence[str], complain: Callable[[Problem], None]) -> Iterator[str]:
    """Yield the named files, and the scripts at any depth in named folders, each file once.

    Run folders in a folder are skipped, as they hold copies of scripts and code.
    """
    seen: set[str] = set()
    for name in names:
        is_file = name == STDIN or not os.path.isdir(name)  # noqa: PTH112 - a name stays as it was given
        for file in (name,) if is_file else _scripts(name, complain):
            if file not in seen:
                seen.add(file)
                yield file


def _scripts(folder: str, complain: Callable[[Problem], None]) -> Iterator[str]:
    """Yield the scripts at any depth in a folder; `complain` gets the folders that can't be read."""

    def report(error: OSError) -> None:
        complain(Problem(f"can't read the folder {error.filename}: {error.strerror}"))

    # Links to folders are not followed, so there is no loop.
    for path_of_folder, folders, names in os.walk(folder, onerror=report):
        if path_of_folder != folder and RUN_FOLDER_FILES.issubset(names):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(path_of_folder, name).removeprefix("./")  # noqa: PTH118 - as GitHub names files
            suffix = os.path.splitext(name)[1]  # noqa: PTH122
            if name.startswith("."):
                continue
            is_document = suffix.lower() in DOCUMENTS
            is_likely = suffix in LIKELY_SUFFIXES or is_document
            if suffix in SCRIPT_SUFFIXES or (is_likely and _has_directives(path, is_document)):
                yield path


def _is_submitter(data: bytes) -> bool:
    """Return whether a file is a shell script without directives that calls sbatch."""
    is_shell = _SHELL.match(data) and b"sbatch" in data and not _DIRECTIVE.search(data)
    return bool(is_shell and _SBATCH_CALL.search(data))


def _has_directives(path: str, is_document: bool) -> bool:  # noqa: FBT001
    """Return whether the start of a script has directives or calls sbatch, or a document has directives."""
    try:
        if is_document:
            return b"#SBATCH" in read_start(Path(path), MAX_BYTES)
        data = read_start(Path(path), _START_SIZE)
        return _DIRECTIVE.search(data) is not None or _is_submitter(data)
    except OSError:
        return False


def sources(name: str) -> list[Source]:
    """Return the script in a file, or the scripts in a document.

    Raises:
        DocumentError: The file can't be read, is not a regular file, is too large, or holds no script.
    """
    if name.endswith(OTHER_SUFFIXES) and (problem := wrong_kind(name, "script", "lint")):
        raise DocumentError([problem])
    source = read_source(name)
    return scripts_of(source) if name.lower().endswith((*DOCUMENTS,)) else [source]


def is_script(job: str) -> bool:
    """Return whether JOB is the file of a finished script, by its suffix or its first line."""
    path = Path(job)
    if job.endswith((".yaml", ".yml")) or not path.exists():
        return False
    if job.endswith((".slurm", ".sbatch", ".sh", ".job")):
        return True
    return path.is_file() and read_start(path, 2) == b"#!"


def read_source(name: str) -> Source:
    """Return the whole file as one script, whatever its name; raise DocumentError as `sources` does."""
    label = "<stdin>" if name == STDIN else name
    try:
        limit = MAX_BYTES + 1  # a byte more shows that the file is too large
        data = sys.stdin.buffer.read(limit) if name == STDIN else read_start(Path(name), limit)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise DocumentError.of(f"can't read {label}: {why}", fix=near_file(name)) from error
    if len(data) > MAX_BYTES:
        what = f"{label} is larger than {MAX_BYTES >> 20} MiB, and slurmctld takes no such script by default"
        raise DocumentError.of(what, fix="keep the data in a file of its own")
    return Source(file=label, data=data)


def _written_scripts(block: CodeBlock) -> Iterator[CodeBlock]:
    """Yield the scripts that a block writes with cat > job.sh <<'EOF'; without such a script, the block."""
    matches = [*_HEREDOC.finditer(block.text)]
    for match in matches:
        lines_before = block.text.count("\n", 0, match.start("script"))
        yield CodeBlock(match["script"], block.line + lines_before, block.indents[lines_before:])
    if not matches:
        yield block


def scripts_of(document: Source) -> list[Source]:
    """Return the scripts of a document; `#!/bin/bash` is added to a script without a first line."""
    scripts = []
    all_blocks = blocks(document.text, os.path.splitext(document.file)[1].lower())  # noqa: PTH122
    for block in (script for block_of_page in all_blocks for script in _written_scripts(block_of_page)):
        script, indents, line = block.text.encode("utf-8", "surrogateescape"), block.indents, block.line
        is_indented = (
            _INDENTED.match(script) is not None
        )  # a reader copies the blanks too: SB101 reports them
        if _DIRECTIVE.search(script) or is_indented:
            if not (is_indented or _FIRST_LINE.match(script)):
                script, indents, line = b"#!/bin/bash\n" + script, (0, *indents), line - 1
            is_part = line < block.line
            scripts.append(
                Source(file=document.file, data=script, line=line, indents=indents, is_part=is_part)
            )
    return scripts
