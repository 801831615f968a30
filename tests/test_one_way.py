"""One place starts programs, one makes temporary folders, and two make records: no other place can forget."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "sbatchgen"
# Ways to start or to find a program, by the module that has them; * stands for the whole module.
STARTS = {
    "subprocess": "*",
    "multiprocessing": "*",
    "pty": "*",
    "runpy": "*",
    "posix": "*",
    "_posixsubprocess": "*",
    "webbrowser": "*",
    "shutil": "which",
    "asyncio": "create_subprocess_exec create_subprocess_shell",
    "os": "system popen fork forkpty posix_spawn posix_spawnp startfile get_exec_path execl execle execlp execlpe execv"
    " execve execvp execvpe spawnl spawnle spawnlp spawnlpe spawnv spawnve spawnvp spawnvpe",
    "sys": "executable",
    "click": "launch edit echo_via_pager",
    "click.shell_completion": "get_completion_class BashComplete",
}
# Where another way is needed, and why.
ALLOWED = {
    "base/machine/child.py": "the one place that starts programs",
    "base/machine/search_path.py": "the one place that finds programs",
    "lab/sandbox/inside.py": "in the sandbox: the first process there starts the script",
    "base/machine/packages.py": "a fix names the Python that needs a package",
    "lab/sandbox/box.py": "bubblewrap binds the file of this Python",
    "lab/plan/step.py": "in the sandbox: a stand-in starts what the script starts",
    "lab/rehearsal/controller.py": "in the sandbox: the played Slurm starts the script",
    "lab/rehearsal/tasks.py": "in the sandbox: the played srun starts the tasks",
    "lab/rehearsal/rehearsal.py": "the job's python3 in the sandbox is this Python",
    "check/lint/workers.py": "forks of this process, which start no program",
    "cli/__init__.py": "click looks for bash: among `search_path.trusted_path_for_libraries`",
}


def uses(path: Path, known: dict[str, str]) -> Iterator[str]:
    """The names of such modules that a module of the package imports or reads."""
    tree = ast.parse(path.read_text())
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name] = alias.name
                if known.get(alias.name) == "*":
                    yield alias.name
        if isinstance(node, ast.ImportFrom) and (node.module or "") in known:
            names = known[node.module or ""].split()
            yield from (f"{node.module}.{a.name}" for a in node.names if names == ["*"] or a.name in names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id, "")
            if node.attr in known.get(module, "").split():
                yield f"{module}.{node.attr}"


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "files" not in path.parts:  # the start of the program in a browser, which starts none
            yield path.relative_to(PACKAGE).as_posix(), path


def test_programs_are_found_and_started_in_one_place() -> None:
    used = {name: names for name, path in modules() if (names := {*uses(path, STARTS)})}
    assert used.keys() == ALLOWED.keys(), used
    assert used["lab/sandbox/box.py"] == used["base/machine/packages.py"] == {"sys.executable"}
    assert used["check/lint/workers.py"] == {"multiprocessing"}


def test_temporary_folders_are_made_in_one_place() -> None:
    used = {name for name, path in modules() if [*uses(path, {"tempfile": "*", "os": "mkdtemp"})]}
    assert used == {"base/machine/temporary.py"}


def test_records_are_made_by_frozen_and_by_record_alone() -> None:
    """Both cost less of a start than a dataclass of the standard library; check has dataclasses of its own."""
    makers = {"dataclass", "make_dataclass"}
    files = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "check"]
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} & makers
    }
    assert users == {"base/frozen.py", "base/keys.py"}
