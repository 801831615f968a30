"""Runtime venv: a virtual environment, which two variables or its bin/activate activate."""

from collections.abc import Iterator, Sequence

from sbatchgen.base.keys import described, record
from sbatchgen.base.quoting import path, word
from sbatchgen.base.units import ShellPath
from sbatchgen.jobs.runtimes import base


@record
class Venv:
    """A virtual environment."""

    path: ShellPath | None = described("The virtual environment.")
    activate: bool = described("Source bin/activate, where a site has put more into it, as modules.", False)


class VenvRuntime(base.Runtime):
    """The Python of a virtual environment."""

    name = "venv"
    title = "A virtual environment."
    Facts = Venv
    keys = (base.path_key("venv", "path", "PATH", "Virtual environment.", common=True),)
    requires = base.Requirement("venv", "a virtual environment", "--venv PATH")
    function = "activate_venv"
    may_use_modules = True
    finds_user_packages = False

    def assignments(self, job: base.RuntimeJob, folder_variable: str) -> Iterator[str]:
        """Yield the assignment of the environment's folder."""
        name = "VENV" if job.facts.activate else "VIRTUAL_ENV"
        yield f"{name}={path(base.path_in_bash(job.software.get('venv') or '', folder_variable))}"

    def setup_commands(self, job: base.RuntimeJob, mounted: Sequence[str]) -> Iterator[str]:
        """Yield the call of the function that sets the two variables, or that sources bin/activate."""
        yield "source_activate" if job.facts.activate else self.function

    def missing_files(self, job: base.RuntimeJob, find_local: base.FindLocal) -> Iterator[base.KeyFault]:
        """Yield a fault for an environment that does not exist, although the folder around it exists."""
        if path := job.software.get("venv"):
            fix = f"python3 -m venv {word(str(find_local(path)))}, or name another"
            yield from base.path_faults("venv", path, find_local, "virtual environment", fix)

    def facts_of_command(self, command: base.Command, draft: base.ScriptDraft) -> dict[str, str] | None:
        """Return the path of the environment for `source PATH/bin/activate`; None for other commands."""
        file, arguments = base.sourced_file(command, draft)
        path = file.removesuffix("/bin/activate")
        return {"path": path} if path != file and not arguments else None


RUNTIME = VenvRuntime()
