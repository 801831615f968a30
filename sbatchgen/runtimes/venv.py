"""venv: a virtual environment; what bin/activate does, by two variables, or by that file itself."""

from collections.abc import Iterator, Sequence
from typing import Any

from sbatchgen.keys import described, record
from sbatchgen.quoting import word
from sbatchgen.runtimes import base
from sbatchgen.units import ShellPath


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
    part = "runtime/venv.sh.j2"
    may_use_modules = True
    finds_user_packages = False

    def variables(self, job: base.RuntimeJob, here: str, exported: Sequence[str]) -> dict[str, Any]:
        """Return the environment's folder."""
        activate = job.runtime is self and job.facts.activate
        return {"venv": base.absolute(job.software.get("venv") or "", here), "venv_activate": activate}

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
