"""Runtime conda: an environment of conda, activated by conda itself."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from sbatchgen.base.keys import described, record
from sbatchgen.base.quoting import path
from sbatchgen.base.units import ShellPath
from sbatchgen.jobs.runtimes import base

# Files of a conda installation, relative to its root
_PROGRAM, _PROFILE_SCRIPT = "/bin/conda", "/etc/profile.d/conda.sh"
# The arguments of conda in eval "$(conda shell.bash hook)", which defines the command `conda activate`
_HOOKS = (["shell.bash", "hook"], ["shell.posix", "hook"])


@record
class Conda:
    """A conda installation and the environment that is activated."""

    root: ShellPath | None = described("The installation, as ${HOME}/miniconda3.")
    env: ShellPath | None = described("The environment, by name or path.")


class CondaRuntime(base.Runtime):
    """The Python of a conda environment."""

    name = "conda"
    title = "Conda."
    Facts = Conda
    keys = (
        base.path_key("conda_env", "env", "NAME|PATH", "Conda environment, by name or path.", common=True),
    )
    requires = base.Requirement("conda_env", "a conda environment", "--conda-env NAME")
    function = "activate_conda"
    values_in_other_jobs: ClassVar[Mapping[str, Any]] = {"conda_root": False}

    def variables(
        self, job: base.RuntimeJob, folder_variable: str, exported: Sequence[str]
    ) -> dict[str, Any]:
        """Return the variable `conda_root`: whether the profile names the installation."""
        return {"conda_root": bool(job.facts.root)}

    def assignments(self, job: base.RuntimeJob, folder_variable: str) -> Iterator[str]:
        """Yield the assignments of the installation and the environment."""
        if job.facts.root:
            yield f"conda_root={path(job.facts.root)}"
        yield f"conda_env={path(base.from_submit_folder(job.software.get('conda_env') or '', job))}"

    def missing_files(self, job: base.RuntimeJob, find_local: base.FindLocal) -> Iterator[base.KeyFault]:
        """Yield a fault for an environment that is named by its path and does not exist."""
        env = job.software.get("conda_env") or ShellPath("")
        if "/" in env:
            yield from base.path_faults(
                "conda_env",
                env,
                find_local,
                "conda environment",
                f"conda create --prefix {env}, or name another",
            )

    def facts_of_command(self, command: base.Command, draft: base.ScriptDraft) -> dict[str, str] | None:
        """Return the settings that a command of an old script gives; None for a command without conda.

        Four commands give settings: `conda activate ENV`, conda's shell hook, `source .../conda.sh`, and
        `source bin/activate ENV`.
        """
        words, body = command.words, draft.body
        if command.name == "conda" and (words[1].value if len(words) > 1 else "") == "activate":
            env = draft.path(words[2], body) if len(words) == 3 else "base" if len(words) == 2 else None
            return {"env": env} if env else None
        if command.name == "eval" and len(words) == 2:
            path = body.text_of(words[1])
            inner = path.strip().removeprefix("$(").removesuffix(")").removesuffix(" 2> /dev/null").split()
            return _root(inner[0].strip('"'), _PROGRAM) if len(inner) == 3 and inner[1:] in _HOOKS else None
        file, arguments = base.sourced_file(command, draft)
        if file.endswith(_PROFILE_SCRIPT) and not arguments:
            return _root(file, _PROFILE_SCRIPT)
        if file.rpartition("/")[2] != "activate" or (arguments != 1 and file != "activate"):
            return None
        env = draft.path(words[2], body) if arguments == 1 else None
        root = {"root": file.removesuffix("/bin/activate")} if "/" in file else {}
        return {**root, "env": env} if env else None


def _root(path: str, end: str) -> dict[str, str] | None:
    """Return the setting `root`: the conda installation that has a file such as ${HOME}/conda/bin/conda.

    `end` is the part of the path after the root. Return {} for the plain word `conda`, because the job finds
    conda on PATH, and None for a path that does not end in `end`.
    """
    if path == "conda":
        return {}
    root = path.removesuffix(end).replace("$HOME", "${HOME}").replace("${{HOME}}", "${HOME}")
    root = "${HOME}" + root[1:] if root.startswith("~/") else root
    try:
        return {"root": str(ShellPath.parse(root))} if path.endswith(end) else None
    except ValueError:
        return None


RUNTIME = CondaRuntime()
