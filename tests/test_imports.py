"""A command starts fast: what each one loads, counted in modules, which is the same on every machine."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "sbatchgen"
TRAINING = Path(__file__).parents[1] / "training"
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
    assert len(modules) <= base + 12, len(modules)


def test_render_loads_its_three_libraries_and_little_more() -> None:
    base = modules_of("click, jinja2.sandbox, yaml")
    modules = loaded("render", "ddp", "--profile", "msu")
    assert not modules & {"torch", "numpy", "subprocess", "rich", "urllib.request", "difflib", "training"}
    assert len(modules) <= base + 37, len(modules)


def imports(path: Path) -> set[str]:
    """The top-level names that a module imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names


def test_the_command_and_the_trainer_know_nothing_of_each_other() -> None:
    assert all("training" not in imports(path) for path in PACKAGE.rglob("*.py"))
    assert all("sbatchgen" not in imports(path) for path in TRAINING.rglob("*.py"))


@pytest.mark.parametrize(
    ("folder", "declared"),
    [
        (PACKAGE, {"click", "jinja2", "yaml", "rich", "tree_sitter", "tree_sitter_bash", "matplotlib"}),
        (TRAINING, {"torch", "torchvision", "tensorboard", "tqdm"}),
    ],
)
def test_every_library_is_declared(folder: Path, declared: set[str]) -> None:
    used = {name for path in folder.rglob("*.py") for name in imports(path)}
    assert used - set(sys.stdlib_module_names) - {folder.name} <= declared


ORDER = (
    "errors units quoting files options job profile document plan launch exports resolve finding resources script shell rules "
    "directive check render trace trust search completion request origins history reasons refusal start review screen terminal "
    "lint submit profile_check dataset curves plot schema cli"
).split()
SCRIPT_ORDER = (
    "releases header getopt grammar array binding dependency features frequency licenses moment hostlist tres fields setting display task combination "
    "consistency demand translation reader"
).split()
SHELL_ORDER = "source word command walk values body tools launch".split()
ALONE = ("script", "shell")  # libraries of their own


def imported(path: Path) -> Iterator[tuple[str, ...]]:
    """The modules of the package that a module imports, each as the parts of its name after the package's."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sbatchgen":
            parts = tuple(str(node.module).split(".")[1:])
            yield from ((*parts, alias.name) for alias in node.names)


def test_imports_point_one_way() -> None:
    """Each module imports only modules that stand before it, or in its own folder."""
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room.startswith("__"):
            continue
        for parts in imported(path):
            other = parts[0]
            assert other in ORDER or other == "__version__", f"{path} imports {other}"
            if other != room and other in ORDER:
                assert room not in ALONE, f"{path} imports {other}"
                assert ORDER.index(other) < ORDER.index(room), f"{path} imports {other}"


@pytest.mark.parametrize(("folder", "order"), [("script", SCRIPT_ORDER), ("shell", SHELL_ORDER)])
def test_the_readers_of_scripts_are_read_in_one_direction(folder: str, order: list[str]) -> None:
    for path in (PACKAGE / folder).glob("*.py"):
        if path.stem.startswith("__"):
            continue
        for _, *rest in imported(path):
            for other in set(rest) & set(order):
                assert order.index(other) < order.index(path.stem), f"{path.stem} imports {other}"
