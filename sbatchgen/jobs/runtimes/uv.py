"""Runtime uv: the environment of a uv project.

Jobs use the environment without syncing it, because nodes may have no network, and all ranks start at the
same time. Source: `uv run --help` of 0.13, and docs.astral.sh/uv/concepts/projects/sync.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sbatchgen.base.keys import described, record
from sbatchgen.base.quoting import path, word
from sbatchgen.base.units import ShellPath
from sbatchgen.jobs.runtimes import base


@record
class Uv:
    """A project of uv, with an environment made by `uv sync`."""

    project: ShellPath | None = described("The folder with pyproject.toml and .venv.")


class UvRuntime(base.Runtime):
    """The environment of a uv project, started with `uv run`."""

    name = "uv"
    title = "A project of uv."
    Facts = Uv
    keys = (base.path_key("uv_project", "project", "PATH", "Project of uv, the folder with pyproject.toml."),)
    requires = base.Requirement("uv_project", "a project", "--uv-project PATH")
    function = "check_uv"
    starts = ("uv run",)
    may_use_modules = True
    finds_user_packages = False

    def assignments(self, job: base.RuntimeJob, folder_variable: str) -> Iterator[str]:
        """Yield the assignment of the project's folder."""
        yield f"UV_PROJECT={path(base.path_in_bash(job.software.get('uv_project') or '', folder_variable))}"

    def command(self, job: base.RuntimeJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
        """Yield `uv run` with options that keep it from changing the environment and uv.lock."""
        yield 'uv run --offline --no-sync --project "$UV_PROJECT" --'

    def missing_files(self, job: base.RuntimeJob, find_local: base.FindLocal) -> Iterator[base.KeyFault]:
        """Yield a fault for a project that does not exist, or has no environment."""
        path = job.software.get("uv_project")
        project = find_local(path) if path else None
        if path:
            yield from base.path_faults("uv_project", path, find_local, "uv project", "name another")
        if project and project.is_dir() and not (project / ".venv").exists():
            fix = f"uv sync --project {word(str(project))}, or name another: --uv-project"
            yield base.KeyFault("uv_project", f"the uv project {project} has no environment .venv", fix)

    def adopt(self, draft: base.ScriptDraft, launch: base.ScriptLaunch, tool: base.Tool) -> dict[str, Any]:
        """Return the project of an old script's `uv run`: --project, or the folder in which it starts."""
        project: str | None = "." if draft.folder == base.SUBMIT_DIR else draft.folder or "${PWD}"
        for option in tool.uses:
            if option.name in ("project", "directory"):
                project = draft.option_path(tool, option, file=True)
            elif option.name not in ("frozen", "locked", "no-sync", "offline", "quiet"):
                draft.lose(f"--{option.name} of uv run: uv sync --{option.name} prepares the environment")
        return {"project": project} if project else {}


RUNTIME = UvRuntime()
