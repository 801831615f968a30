"""venv: a virtual environment; what bin/activate does, by two variables, or by that file itself."""

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
    """See the module."""

    name = "venv"
    title = "A virtual environment."
    Facts = Venv
    keys = (base.path_key("venv", "path", "PATH", "Virtual environment.", common=True),)
    requires = base.Requirement("venv", "a virtual environment", "--venv PATH")
    function = "activate_venv"
    may_use_modules = True
    finds_user_packages = False

    def settings(self, job: base.RuntimeJob, here: str) -> Iterator[str]:
        """Yield the environment's folder."""
        name = "VENV" if job.facts.activate else "VIRTUAL_ENV"
        yield f"{name}={path(base.absolute(job.software.get('venv') or '', here))}"

    def starts_by(self, job: base.RuntimeJob, mounted: Sequence[str]) -> Iterator[str]:
        """Yield the function that sets the variables of bin/activate, or that sources the file."""
        yield "source_activate" if job.facts.activate else self.function

    def missing(self, job: base.RuntimeJob, here: base.Here) -> Iterator[base.KeyFault]:
        """Yield an environment that does not exist, in a folder that does."""
        if path := job.software.get("venv"):
            fix = f"python3 -m venv {word(str(here(path)))}, or name another"
            yield from base.lacking("venv", path, here, "virtual environment", fix)

    def activation(self, command: base.Command, draft: base.ScriptDraft) -> dict[str, str] | None:
        """Recognise `source PATH/bin/activate`."""
        file, arguments = base.sourced(command, draft)
        path = file.removesuffix("/bin/activate")
        return {"path": path} if path != file and not arguments else None


RUNTIME = VenvRuntime()
