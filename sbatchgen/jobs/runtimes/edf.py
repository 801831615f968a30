"""Runtime edf: a container of CSCS's container engine, a plugin of Slurm that srun's --environment starts.

An environment definition file (EDF) describes the container. Source: docs/software/container-engine (run.md,
edf.md, known-issue.md) of eth-cscs/cscs-docs.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sbatchgen.base import files, quoting
from sbatchgen.base.keys import described, record
from sbatchgen.base.units import ShellPath
from sbatchgen.jobs.runtimes import base

_MAX_BYTES = 1 << 20  # the size in bytes of the largest EDF that is read
_MAX_DEPTH = 8  # the longest chain of EDFs, each the base of the next, that is read
_KEY_HELP = "Environment of the CSCS container engine, a file or a name."


@record
class Edf:
    """An environment definition file (EDF): image, mounts and variables of a container."""

    environment: ShellPath | None = described("The file, as ./train.toml, or a name in the search path.")


class EdfRuntime(base.Runtime):
    """A container of the CSCS container engine, described by an EDF."""

    name = "edf"
    title = "The CSCS container engine."
    Facts = Edf
    keys = (base.path_key("edf", "environment", "FILE|NAME", _KEY_HELP),)
    requires = base.Requirement("edf", "an environment", "--edf ./FILE.toml")
    function = "check_edf"
    srun_option = "environment"
    is_container = True
    needs_slurm = "is started by the container engine, a plugin of Slurm"
    removes_slowly = True

    def assignments(self, job: base.RuntimeJob, folder_variable: str) -> Iterator[str]:
        """Yield the assignment of the bash variable EDF: the path or the name of the EDF."""
        edf = str(job.software.get("edf") or "")
        word = quoting.path(base.path_in_bash(edf, folder_variable)) if "/" in edf else quoting.word(edf)
        yield f"EDF={word}"

    def command(self, job: base.RuntimeJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
        """Yield the option of srun. The EDF itself names the mounts and the working folder."""
        yield '--environment="$EDF"'
        yield from base.env_in_container(job, exported)

    def faults(self, job: base.RuntimeJob) -> Iterator[base.KeyFault]:
        """Yield a fault for a file name such as train.toml, which the engine would take for a name."""
        edf = str(job.software.get("edf") or "")
        if edf.endswith(".toml") and "/" not in edf:
            what = f"the container engine takes '{edf}' for a name in its search path, not for a file"
            yield base.KeyFault("edf", what, f"write ./{edf}, or the absolute path")

    def missing_files(self, job: base.RuntimeJob, find_local: base.FindLocal) -> Iterator[base.KeyFault]:
        """Yield a fault for a file that does not exist."""
        edf = job.software.get("edf") or ShellPath("")
        if "/" in edf:
            yield from base.path_faults("edf", edf, find_local, "environment", "name another")

    def adopt(self, draft: base.ScriptDraft, launch: base.ScriptLaunch, tool: base.Tool) -> dict[str, Any]:
        """Return the EDF that srun's --environment names in an old script, as a key of `Facts`."""
        option = tool.option("environment")
        if option and option.value and "/" not in option.value:
            return {"environment": option.value}
        path = draft.option_path(tool, option, file=True) if option else None
        return {"environment": path if "/" in path else f"./{path}"} if path else {}


def mounted_folders(
    edf: str, folder: Path, environment: Mapping[str, str], depth: int = 0
) -> list[str] | None:
    """Return the folders of the container that an EDF mounts, after those that its bases mount.

    `edf` is the path or the name of the EDF. `depth` is the number of EDFs of which it is a base. Return None
    if the folders are not known, for example with a Python before 3.11, which can't read TOML.
    """
    try:
        text = files.read_file(_edf_file(edf, folder, environment), _MAX_BYTES).decode()
        definition = import_module("tomllib").loads(text)
    except (ImportError, OSError, ValueError):
        return None
    bases, mounts = definition.get("base_environment", []), definition.get("mounts", [])
    folders: list[str] = []
    for base_edf in [bases] if isinstance(bases, str) else bases:
        if depth >= _MAX_DEPTH:
            return None
        folders_of_base = mounted_folders(str(base_edf), folder, environment, depth + 1)
        if folders_of_base is None:
            return None
        folders += folders_of_base
    for mount in map(str, mounts if isinstance(mounts, list) else ()):
        source, _, rest = mount.partition(":")  # SRC:DST:OPTIONS
        path = ShellPath(rest.partition(":")[0] or source)
        if "${" in mount and (":-" in mount or path.unset(environment)):  # "${NAME:-DEFAULT}"
            return None
        folders.append(str(folder / path.filled(environment)))
    return folders


def _edf_file(edf: str, folder: Path, environment: Mapping[str, str]) -> Path:
    """Return the file of an EDF. For a name, it is the first file NAME.toml in the search path."""
    if "/" in edf:
        path = ShellPath(edf)
        if path.unset(environment):
            raise OSError(f"{edf} is known only in the job")
        return folder / path.filled(environment)
    search_path = (environment.get("EDF_PATH") or f"{environment.get('HOME', '')}/.edf").split(":")
    candidates = (Path(place, f"{edf}.toml") for place in search_path)
    return next((file for file in candidates if file.is_file()), folder / edf)


RUNTIME = EdfRuntime()
