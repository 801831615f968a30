"""Resolved job -> the variables that the script exports."""

from collections.abc import Iterator, Sequence

from sbatchgen.base import quoting
from sbatchgen.base.units import VARIABLE
from sbatchgen.jobs.render import arguments, launch
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

COMMON_ENV = {"PYTHONUNBUFFERED": "1"}  # print lines at once
NO_USER_PACKAGES = {"PYTHONNOUSERSITE": "1"}  # ignore packages in ~/.local


def variables(resolved: ResolvedJob) -> dict[str, str]:
    """Return names and values of the variables that have a rendered value."""
    return _common(resolved) | {name: value for name, value in resolved.env.items() if value is not None}


def names(resolved: ResolvedJob) -> tuple[str, ...]:
    """Return the variables that a container must get, whatever its image sets."""
    exported = (
        *(launch.MEETING if launch.meets(resolved) else ()),
        *variables(resolved),
        *_words(resolved),
        *resolved.inherited,
        *launch.own_folders(resolved),
    )
    # `launch.command` sets these variables in a container
    own_way = ["PYTHONPATH", *resolved.extended] if resolved.runtime.is_container else []
    return tuple(name for name in exported if name not in own_way)


def lines(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the words of each `export`."""
    yield from quoting.packed(_made(resolved))
    yield from _own(resolved)


def own_lines(program: ResolvedJob, resolved: ResolvedJob) -> Sequence[str]:
    """Return the words of each `export` that a program needs in addition to those of the job."""
    known = {*_made(resolved), *talk(resolved)}
    made = [*_made(program), *talk(program)]
    return quoting.packed(word for word in made if word not in known)


def talk(resolved: ResolvedJob) -> list[str]:
    """Return the variables with the names of the files that trainer and script exchange, as words."""
    # The bundled trainer knows where `stop` is.
    files = [name for name in launch.files(resolved) if resolved.trainer or name != "stop"]
    return [f"SBATCHGEN_{name.upper()}_FILE=$RUN_DIR/{name}" for name in files]


def _made(resolved: ResolvedJob) -> list[str]:
    """Return the words that are exported, without the job's own variables."""
    made, folders = _common(resolved), launch.own_folders(resolved)
    words = [f"{name}={quoting.word(value)}" for name, value in made.items() if name not in resolved.env]
    words += [f"{name}={word}" for name, word in _words(resolved).items()]
    own = [f"RESUME={arguments.resume(resolved)}" if name == "RESUME" else name for name in folders]
    return [*words, *own, *resolved.runtime.own_exports(resolved)]


def for_nodes(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the words of each `export` before the setup of nodes.

    The run folder, and the job's own variables.
    """
    yield "RUN_DIR"
    yield from _own(resolved)


def _own(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the job's own variables.

    Bash expands a value before it sets the variables of the same `export`.
    """
    plain: list[str] = []
    for name, value in resolved.env.items():
        if name in resolved.extended:
            continue  # `launch.command` sets the variable
        if value is not None and VARIABLE.search(value):
            yield from quoting.packed(plain)
            yield f"{name}={arguments.with_params(value, resolved, quoting.value)}"
            plain = []
        elif value is not None:
            plain.append(f"{name}={arguments.with_params(value, resolved, quoting.word)}")
    yield from quoting.packed(plain)


def _common(resolved: ResolvedJob) -> dict[str, str]:
    exports = COMMON_ENV | (NO_USER_PACKAGES if resolved.hides_user_packages else {})
    exports |= {"HANG": resolved.hang} if resolved.hang else {}
    if resolved.programs:  # each program has its own CPUs
        return exports | resolved.runtime.exports(resolved)
    if resolved.profile.scheduler != "none" and not _shares_whole_nodes(resolved):
        threads = (resolved.options.cpus_per_task or 1) * (resolved.options.ntasks_per_node or 1)
        exports["OMP_NUM_THREADS"] = str(max(1, threads // resolved.nproc_per_node))
    return exports | resolved.runtime.exports(resolved)


def _words(resolved: ResolvedJob) -> dict[str, str]:
    words = resolved.runtime.words(resolved)
    if _shares_whole_nodes(resolved) and "OMP_NUM_THREADS" not in resolved.env:
        processes = resolved.nproc_per_node
        cpus = "SLURM_CPUS_ON_NODE"
        if processes > 1:
            cpus = f"({cpus} + {processes - 1}) / {processes}"
        words["OMP_NUM_THREADS"] = f"$(({cpus}))"
    return words


def _shares_whole_nodes(resolved: ResolvedJob) -> bool:
    """Return whether the job gets all CPUs of its nodes, whose number is not known before."""
    options, partition = resolved.options, resolved.partition
    is_known = options.cpus_per_task is not None or partition.cpus_per_node
    return resolved.slurm and bool(options.exclusive or partition.exclusive) and not is_known
