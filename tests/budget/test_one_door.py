"""Jobs are submitted in one place, which asks the budgets."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "sbatchgen"
STARTERS = {"sbatch", "srun", "salloc"}
# Where a command line of these is made, by function, and why.
ALLOWED = {
    "jobs/submit/sbatch.py submit": "the one door: it charges the budgets first",
    "jobs/starts/rough.py ask_slurm": "sbatch --test-only, which submits nothing",
    "cli/running_jobs.py exec_": "srun --overlap in a job that runs already",
    "lab/shell/session.py srun_command": "srun --overlap in a job that was charged",
    "lab/discover/slurm_answers.py": "sbatch --help",
    "lab/plan/step.py": "a stand-in in the sandbox reads the options of srun",
    "jobs/render/launch.py": "srun as a line of the script",
    "jobs/runs/plain_job.py command_to_submit_again": "a command to type, as a text",
    "check/script/launches.py": "what a script starts",
    "check/rules/": "what a script starts",
}


def starts(path: Path) -> set[str]:
    """The functions that make a command line which starts with one of these programs."""
    tree = ast.parse(path.read_text())
    functions = set()
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for node in (each for statement in function.body for each in ast.walk(statement)):
            first = node.elts[0] if isinstance(node, (ast.List, ast.Tuple)) and node.elts else None
            if isinstance(first, ast.Constant) and first.value in STARTERS:
                functions.add(function.name)
    return functions


def test_one_function_submits() -> None:
    used = {
        f"{path.relative_to(PACKAGE).as_posix()} {name}"
        for path in PACKAGE.rglob("*.py")
        for name in starts(path)
    }
    allowed = {each for each in used if each.startswith(tuple(ALLOWED))}
    assert used - allowed == set()
    assert {
        "jobs/submit/sbatch.py submit",
        "jobs/starts/rough.py ask_slurm",
        "cli/running_jobs.py exec_",
    } <= used


def test_it_charges_before_it_asks_sbatch() -> None:
    tree = ast.parse((PACKAGE / "jobs/submit/sbatch.py").read_text())
    body = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "submit"
    )
    calls = [node for node in ast.walk(body) if isinstance(node, ast.Call)]
    lines = {ast.unparse(call.func): call.lineno for call in calls}
    assert lines["_debit"] < lines["debit.enter"] < lines["call_sbatch"] < lines["debit.update_or_remove"]
    askers = {
        path.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "sbatchgen.jobs.submit.attempt"
        if "call_sbatch" in {alias.name for alias in node.names}
    }
    assert askers == {"sbatch.py"}
