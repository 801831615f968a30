"""A command starts fast: the number of modules that each one loads, the same on every machine."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from sbatchgen.jobs.runtimes import RUNTIMES
from tests.conftest import REPOSITORY

PACKAGE, TRAINING = REPOSITORY / "sbatchgen", REPOSITORY / "training"
WINGS = ("base", "check", "jobs", "lab")
SCRIPT = """
import sys
from sbatchgen.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    assert ended.code == 0, ended.code
print("\\n".join(sorted(sys.modules)), file=sys.stderr)
"""


def loaded(*arguments: str) -> set[str]:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    return set(result.stderr.split())


def modules_of(libraries: str) -> int:
    """How many modules there are when only these have been imported."""
    code = f"import sys, {libraries}; print(len(sys.modules))"
    return int(subprocess.check_output([sys.executable, "-c", code], text=True))


def test_help_loads_no_template_engine_and_no_torch() -> None:
    base = modules_of("click")
    modules = loaded("--help")
    assert not modules & {"jinja2", "yaml", "torch", "numpy", "subprocess", "rich"}
    assert len(modules) <= base + 48, len(modules)


def test_render_loads_its_three_libraries_and_little_more() -> None:
    base = modules_of("click, jinja2.sandbox, yaml")
    modules = loaded("render", "ddp", "--profile", "msu")
    assert not modules & {"torch", "numpy", "subprocess", "rich", "urllib.request", "difflib", "training"}
    assert len(modules) <= base + 75 + len(RUNTIMES), len(modules)


def test_lint_loads_no_yaml_where_no_file_has_any(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\nsrun hostname\n")
    assert not loaded("lint", str(script)) & {"jinja2", "yaml", "rich"}


def test_the_text_of_a_rule_needs_nothing_of_adopt() -> None:
    modules = loaded("lint", "--explain", "SB104", "--format", "json")
    assert not [name for name in modules if name.startswith("sbatchgen.lab.adopt")]


WALK = """
import sys
entered, imports = set(), 0

def enter(frame, event, argument):
    global imports
    if event in ("call", "return") and frame.f_code.co_name == "<module>":
        imports += 1 if event == "call" else -1
    elif event == "call" and not imports and frame.f_code.co_flags & 1:  # CO_OPTIMIZED: a function, no class
        entered.add(frame.f_globals.get("__name__", ""))

from sbatchgen.cli import main
imports = 0
sys.setprofile(enter)
try:
    main(sys.argv[1:])
except SystemExit as ended:
    assert ended.code == 0, ended.code
sys.setprofile(None)
print(*(name for name in entered if name.startswith("sbatchgen.")), file=sys.stderr, sep="\\n")
"""


def test_a_submission_enters_few_rooms_and_modules(tmp_path: Path) -> None:
    """A module is entered if one of its functions is called for the job, not as modules are loaded."""
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 4711\n")
    (tmp_path / "sbatch").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "USER": "me"}
    done = subprocess.run(
        [sys.executable, "-c", WALK, "submit", "ddp", "--profile", "msu", "--yes", "--run-dir", "runs/x"],
        env=env, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    modules = {line for line in done.stderr.splitlines() if re.fullmatch(r"sbatchgen(\.\w+)+", line)}
    others = {module for module in modules if not module.startswith("sbatchgen.check.")}
    rooms = {module.rpartition(".")[0] for module in others if module.count(".") > 2 or ".cli." in module}
    assert "sbatchgen.jobs.slurm" in rooms
    assert len(rooms) <= 13, sorted(rooms)
    assert len(others) <= 65, sorted(others)


@functools.cache
def statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The import statements of a module, at any depth."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path) -> set[str]:
    """The top-level names that a module imports."""
    names = set()
    for node in statements(path):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names


def test_the_command_and_the_trainer_know_nothing_of_each_other() -> None:
    assert all("training" not in imports(path) for path in PACKAGE.rglob("*.py"))
    assert all("sbatchgen" not in imports(path) for path in TRAINING.rglob("*.py"))


@pytest.mark.parametrize(
    ("folder", "declared"),
    [
        (
            PACKAGE,
            {
                "click",
                "jinja2",
                "yaml",
                "rich",
                "tree_sitter",
                "tree_sitter_bash",
                "matplotlib",
                "pygls",
                "lsprotocol",
            },
        ),
        (TRAINING, {"torch", "torchvision", "tensorboard", "safetensors", "PIL", "wandb", "mlflow"}),
    ],
)
def test_every_library_is_declared(folder: Path, declared: set[str]) -> None:
    used = {name for path in folder.rglob("*.py") for name in imports(path)}
    used -= {folder.name, "typing_extensions"}  # which mypy knows, and nothing loads
    assert used - set(sys.stdlib_module_names) <= declared


def imported(path: Path, package: Path) -> set[Path]:
    """The files of the package that a module imports."""
    files = set()
    for node in statements(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package.name:
            base = package.joinpath(*str(node.module).split(".")[1:])
            for alias in node.names:
                named = (base / f"{alias.name}.py", base / alias.name / "__init__.py")
                files.add(next((file for file in named if file.is_file()), base.with_suffix(".py")))
    return {file if file.is_file() else file.with_suffix("") / "__init__.py" for file in files}


def drawn(package: Path) -> list[str]:
    """The folders and modules of a package, in the order of its tree in CONTRIBUTING.md; those of a wing with its name."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    tree = text.partition(f"    {package.name}/\n")[2].partition("\n\n")[0]
    places, wing = [], ""
    for line in tree.splitlines():
        names = [name.rstrip("/") for name in re.split("  +", line.strip())[0].split(", ")]
        is_inside = line.startswith(" " * 8)
        wing = wing if is_inside else names[0]
        places += [f"{wing}/{name}" if is_inside else name for name in names]
    return places


def place(path: Path, package: Path) -> str:
    """The folder or module of the tree that a file is of."""
    parts = path.relative_to(package).with_suffix("").parts
    return "/".join(parts[: 2 if parts[0] in WINGS else 1])


@pytest.mark.parametrize("package", [PACKAGE, TRAINING])
def test_the_tree_shows_each_folder_and_module(package: Path) -> None:
    folders = [package, *(package / wing for wing in WINGS if package == PACKAGE)]
    names = {
        path.relative_to(package).with_suffix("").as_posix()
        for folder in folders
        for path in folder.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert sorted(drawn(package)) == sorted(name for name in names if "__" not in name)


@pytest.mark.parametrize("package", [PACKAGE, TRAINING])
def test_imports_point_up_the_tree(package: Path) -> None:
    """A folder imports only from those above it, and from itself."""
    order = ["__init__", *drawn(package), "__main__"]
    for path in package.rglob("*.py"):
        if "files" in path.parts or (path.name == "__init__.py" and path.parent.name in WINGS):
            continue  # the start of the program in a browser; what a wing is
        room = order.index(place(path, package))
        for other in imported(path, package):
            assert order.index(place(other, package)) <= room, (path, other)


def test_only_the_commands_import_the_tools_of_a_workshop() -> None:
    """Who submits a job needs none of them: each is loaded by its command alone."""
    users = {
        wing
        for path in PACKAGE.rglob("*.py")
        for file in imported(path, PACKAGE)
        if (wing := path.relative_to(PACKAGE).parts[0]) != "lab" and PACKAGE / "lab" in file.parents
    }
    assert users == {"cli"}


def test_what_judges_scripts_imports_what_everything_needs_alone() -> None:
    for path in (PACKAGE / "check").rglob("*.py"):
        wings = {other.relative_to(PACKAGE).parts[0] for other in imported(path, PACKAGE)}
        assert wings <= {"base", "check", "__init__.py"}, path


def test_no_two_modules_have_one_name() -> None:
    """But for those of outputs/, which are named after the commands' modules whose output they describe."""
    modules = Counter(
        path.stem
        for path in PACKAGE.rglob("*.py")
        if not {"outputs", "files"} & {*path.parts} and not path.stem.startswith("__")
    )
    assert len(modules) > 200
    assert [name for name, count in modules.items() if count > 1] == []


def test_the_readers_of_scripts_need_nothing_of_the_rest() -> None:
    for reader, base in (("sbatch", "base/units"), ("executables", ""), ("bash", "check/executables")):
        for path in (PACKAGE / "check" / reader).glob("*.py"):
            others = {place(other, PACKAGE) for other in imported(path, PACKAGE)}
            assert others <= {f"check/{reader}", base, "base/frozen"}, path


@pytest.mark.parametrize("package", [PACKAGE, TRAINING])
def test_no_module_imports_itself_in_a_circle(package: Path) -> None:
    graph = {
        path: {file for file in imported(path, package) if file.name != "__init__.py"}
        for path in package.rglob("*.py")
    }
    assert [*TopologicalSorter(graph).static_order()]  # raises CycleError


def test_no_two_classes_have_one_name() -> None:
    classes = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        if "files" not in path.parts  # in a browser, in place of a library
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert len(classes) > 100
    assert [name for name, count in classes.items() if count > 1] == []
