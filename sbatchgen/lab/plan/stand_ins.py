"""Makes the stand-ins of a dry run, and the sandbox that holds them.

A stand-in takes the place of srun, python or another program that starts programs, and records its start. A
layer is a folder that overlayfs lays over another folder in the sandbox. Programs see both as one folder.
"""

from __future__ import annotations

import functools
import importlib.util
import marshal
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from sbatchgen.base.machine.temporary import temporary_folder
from sbatchgen.check.executables.program import MODULES, PROGRAMS, commands, programs
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.plan import installed
from sbatchgen.lab.plan.batch_job import Grant
from sbatchgen.lab.plan.visible_folders import VisibleFolders
from sbatchgen.lab.sandbox.box import PLAN_FOLDER, Box

SPOOL = "/var/spool/slurmd/job1000001/"  # the folder in which Slurm keeps its copy of the script
SCRIPT = f"{SPOOL}slurm_script"
BIN = f"{PLAN_FOLDER}/bin"
PLAN_MODULES = Path(__file__).parent  # the folder of step.py, stand_in.sh and prelude.sh
_WRAPPERS = programs("wrapper") - programs("system")  # programs such as numactl, which start another program
# The names of the programs that have a stand-in.
STAND_INS = commands("stand-in", "step", "launcher", "mpi", "interpreter", "container") | {
    wrapper.partition(" ")[0] for wrapper in _WRAPPERS
}
_LINKS = {f"{BIN}/{name}": f"{PLAN_FOLDER}/stand_in.sh" for name in STAND_INS}
# Programs that stand-ins call themselves. They are not covered, and PATH finds their stand-ins first.
_STAND_IN_TOOLS = frozenset(("date", "mktemp", "openssl", "shuf", "sleep"))
_COVERED_FOLDERS = ("/usr/bin", "/usr/local/bin", f"{sys.base_prefix}/bin")  # folders of covered programs
_SYSTEM_FOLDERS = ("/usr", "/bin", "/nix", "/gnu")  # folders that the sandbox shows, read-only
_RANDOM_BYTES = 1 << 16  # the size of the file in place of /dev/urandom
# Covering files of a folder that are mounted one by one. If a folder has more, they get a layer together.
_MAX_MOUNTS = 3
# The modules of this package that step.py loads. It loads the last two only to read a list of hosts.
_STEP_MODULES = (
    "sbatchgen/check/executables/command_options",
    "sbatchgen/lab/plan/step_tasks",
    "sbatchgen/check/sbatch/hostlist",
    "sbatchgen/base/units",
)
# The head of a compiled module by PEP 552, with which Python does not compare the module with its source.
_UNCHECKED_HASH = (1).to_bytes(4, "little") + bytes(8)
# A command that would end the trace of bash, in which a plan finds the commands of the script. So it becomes
# `set -x`.
_TRACE_OFF = re.compile(rb"\bset \+x\b")


def box_of(script: JobScript, grant: Grant, *, home: str, workdir: str) -> Box:
    """Return the sandbox for a script, with a stand-in for each program that starts programs."""
    text = _TRACE_OFF.sub(b"set -x", script.text.encode("utf-8", "surrogateescape"))
    job = marshal.dumps(facts_of_steps(script, grant))
    stand_ins = _stand_ins()
    covered = {os.path.realpath(path) for path in _covered_programs()}
    return Box(
        home=home,
        hostname=grant.nodes[0],
        folder=workdir,
        files={**_LINKS, **stand_ins, f"{PLAN_FOLDER}/job": (job, 0o644), SCRIPT: (text, 0o700)},
        covering_files=dict.fromkeys(sorted(covered), stand_ins[f"{PLAN_FOLDER}/stand_in.sh"])
        | _random_files(),
    )


def _random_files() -> dict[str, tuple[bytes, int]]:
    """Return files that replace the sources of random bytes, so that each plan reads the same bytes."""
    source = random.Random(1)  # noqa: S311 - not for secrets
    return {
        "/dev/urandom": (source.randbytes(_RANDOM_BYTES), 0o444),
        "/dev/random": (source.randbytes(_RANDOM_BYTES), 0o444),
        "/proc/sys/kernel/random/uuid": (b"00000000-0000-4000-8000-000000000001\n", 0o444),
    }


def with_covered_programs(
    box: Box, visible: VisibleFolders, text: str, bin_folders: Iterable[str] = ()
) -> Box:
    """Return a box whose stand-ins also cover programs of environments, such as .venv/bin/torchrun.

    `bin_folders` are folders with programs. `text`, a script or its trace, names other such folders.
    """
    shown_folders = [
        *visible.chosen_folders,
        *visible.named_folders,
        *visible.always_shown,
        *_SYSTEM_FOLDERS,
        sys.base_prefix,
    ]
    folders = [
        folder
        for folder in (*bin_folders, *installed.named_bin_folders(text, box.folder))
        if _is_below(folder, shown_folders) or _is_below(os.path.realpath(folder), shown_folders)
    ]
    stand_in = _stand_ins()[f"{PLAN_FOLDER}/stand_in.sh"]
    covering, files = dict(box.covering_files), dict(box.files)
    for path in installed.programs_in(folders, STAND_INS - _STAND_IN_TOOLS):
        real_path = os.path.realpath(path)
        if real_path in covering or path.startswith(f"{PLAN_FOLDER}/"):
            continue
        if Path(real_path).is_file() and _is_below(real_path, shown_folders):
            covering[real_path] = stand_in
        else:  # a link to a file that the sandbox hides, for example in the home folder, so the file is made
            files.setdefault(real_path, stand_in)
    return box._replace(covering_files=covering, files=files)


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def with_system_layers(
    files: Mapping[str, bytes], system_layers: Mapping[str, str], cleanup: ExitStack
) -> Mapping[str, str]:
    """Return the layers of a box, after writing files of system folders, such as /usr/local/data, into them.

    The sandbox shows these folders read-only, so the files can only be in layers. Files of other folders are
    skipped. `system_layers` has the layers of the box so far, by the folders that they cover. A folder
    without a layer gets a new layer, which `cleanup` removes at its end.
    """
    layers = dict(system_layers)
    for path, data in files.items():
        if not _is_below(path, _SYSTEM_FOLDERS):
            continue
        # The nearest folder above the file that exists on this machine.
        folder = next(str(parent) for parent in Path(path.rstrip("/")).parents if parent.is_dir())
        if folder not in layers:
            layers[folder] = _new_layer(cleanup)
        path_in_layer = Path(layers[folder], os.path.relpath(path, folder))
        path_in_layer.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/"):
            path_in_layer.mkdir(exist_ok=True)
        else:
            path_in_layer.write_bytes(data)
            path_in_layer.chmod(0o755)
    return layers


def layers_of_files(covering_files: Mapping[str, tuple[bytes, int]], cleanup: ExitStack) -> dict[str, str]:
    """Write covering files into layers, one for each folder with several of them.

    Mounting each file by itself would take 0.2 ms. `covering_files` has the files by the paths that they
    cover. Returns the layers by the folders that they cover. `cleanup` removes the layers at its end.
    """
    system_layers: dict[str, str] = {}
    for folder, count in Counter(path.rpartition("/")[0] for path in covering_files).items():
        if count > _MAX_MOUNTS:
            system_layers[folder] = _new_layer(cleanup)
    for path, (data, mode) in covering_files.items():
        folder, _, name = path.rpartition("/")
        if folder in system_layers:
            Path(system_layers[folder], name).write_bytes(data)
            Path(system_layers[folder], name).chmod(mode)
    return system_layers


def _new_layer(cleanup: ExitStack) -> str:
    """Make an empty folder for a layer, and return its path.

    The folder is in memory, because the file system of TMPDIR may not allow layers.
    """
    layer = cleanup.enter_context(temporary_folder("sbatchgen-laid-", in_memory=True)) / "files"
    layer.mkdir()
    return str(layer)


def _covered_programs() -> Iterator[str]:
    """Yield the paths of system programs that stand-ins cover, because a script may set its own PATH."""
    for folder in filter(os.path.isdir, _COVERED_FOLDERS):
        for name in (STAND_INS - _STAND_IN_TOOLS).intersection(os.listdir(folder)):  # noqa: PTH208 - names
            if os.path.exists(path := f"{folder}/{name}"):  # noqa: PTH110 - fast; false for a broken link
                yield path


@functools.cache
def _stand_ins() -> dict[str, tuple[bytes, int]]:
    """Return, by path, the text and the mode of each file of a stand-in in the sandbox.

    Modules are also compiled, because step.py starts often.
    """
    files = {
        name: ((PLAN_MODULES / name).read_bytes(), 0o755)
        for name in ("stand_in.sh", "prelude.sh", "clock.sh")
    }
    files["wrappers"] = (f"|{'|'.join(sorted(_WRAPPERS | programs('container')))}|\n".encode(), 0o644)
    files["modules"] = (f"|{'|'.join(sorted(MODULES))}|\n".encode(), 0o644)
    for module in ("step", *_STEP_MODULES):
        path = PLAN_MODULES / "step.py" if module == "step" else PLAN_MODULES.parents[2] / f"{module}.py"
        folder, _, name = f"/{module}".rpartition("/")
        code = SourceFileLoader(name, str(path)).get_code(name)
        compiled = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + marshal.dumps(code)
        files[f"{module}.py"] = (path.read_bytes(), 0o755)
        cached = f"{folder}/__pycache__/{name}.{sys.implementation.cache_tag}.pyc"
        files[cached.lstrip("/")] = (compiled, 0o644)
    return {f"{PLAN_FOLDER}/{name}": file for name, file in files.items()}


def facts_of_steps(script: JobScript, grant: Grant) -> dict[str, Any]:
    """Return the facts of a job that step.py reads, in types that marshal takes."""
    resources = script.resources
    return {
        "nodes": list(grant.nodes),
        "tasks": list(grant.tasks),
        "cpus": list(grant.cpus),
        "gpus": list(grant.gpus),
        "asked_gpus": list(grant.asked_gpus),
        "gpus_per_node": bool(resources.gpus_per_node),
        "gpus_per_task": sum(count for _, count in resources.gpus_per_task or ()),
        "release": script.release,
        "knows_cpus": knows_cpus(script),
        "has_own_nodes": script.has_own_nodes,
        "programs": {name: vars(PROGRAMS[name]) for name in _WRAPPERS | programs("step", "container")},
        "answers": programs("answers"),
    }


def knows_cpus(script: JobScript) -> bool:
    """Return whether a script says how many CPUs its job has on each node."""
    resources = script.resources
    has_ntasks = resources.ntasks_per_node or resources.ntasks or resources.ntasks_per_gpu
    return bool(has_ntasks) and not script.has_own_nodes
