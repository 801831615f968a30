"""The variables that the script of a resolved job exports, and their `export` lines.

The words of an `export` are the text after `export` in the script, such as "RUN_DIR PYTHONUNBUFFERED=1".
"""

from collections.abc import Iterator, Sequence

from sbatchgen.base import quoting
from sbatchgen.base.units import VARIABLE
from sbatchgen.jobs.render import arguments, launch
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

COMMON_ENV = {"PYTHONUNBUFFERED": "1"}  # print lines at once
NO_USER_PACKAGES = {"PYTHONNOUSERSITE": "1"}  # ignore packages in ~/.local


def variables(resolved: ResolvedJob) -> dict[str, str]:
    """Return the variables whose values sbatchgen knows, unlike values that bash computes on the node."""
    return _common_values(resolved) | {
        name: value for name, value in resolved.env.items() if value is not None
    }


def exported_names(resolved: ResolvedJob) -> tuple[str, ...]:
    """Return the names of the variables that a container must get, even if its image sets them."""
    exported = (
        *(launch.RENDEZVOUS_VARIABLES if launch.needs_rendezvous(resolved) else ()),
        *variables(resolved),
        *_computed_words(resolved),
        *resolved.inherited,
        *launch.trainer_folders(resolved),
    )
    # The job's command extends the container's own values of these variables (`launch.command_lines`).
    extended = ["PYTHONPATH", *resolved.extended] if resolved.runtime.is_container else []
    return tuple(name for name in exported if name not in extended)


def export_lines(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the words of each `export` of the job."""
    yield from quoting.packed(_words_without_env(resolved))
    yield from _env_words(resolved)


def program_export_lines(program: ResolvedJob, resolved: ResolvedJob) -> Sequence[str]:
    """Return the words of each `export` that a program needs beyond the exports of the whole job."""
    job_words = {*_words_without_env(resolved), *file_variables(resolved)}
    program_words = [*_words_without_env(program), *file_variables(program)]
    return quoting.packed(word for word in program_words if word not in job_words)


def file_variables(resolved: ResolvedJob) -> list[str]:
    """Return the words of `export` that name files for the trainer: SBATCHGEN_EXIT_FILE=$RUN_DIR/exit.

    The script and the trainer communicate through these files (see `launch.exchanged_files`). The bundled
    trainer knows the place of the file `stop`, so only the user's own trainer needs a variable for it.
    """
    files = [name for name in launch.exchanged_files(resolved) if resolved.trainer or name != "stop"]
    return [f"SBATCHGEN_{name.upper()}_FILE=$RUN_DIR/{name}" for name in files]


def _words_without_env(resolved: ResolvedJob) -> list[str]:
    """Return the words of `export` for all variables that are not in the job's key `env`."""
    words = [
        f"{name}={quoting.word(value)}"
        for name, value in _common_values(resolved).items()
        if name not in resolved.env
    ]
    words += [f"{name}={word}" for name, word in _computed_words(resolved).items()]
    words += [
        f"RESUME={arguments.resume(resolved)}" if name == "RESUME" else name
        for name in launch.trainer_folders(resolved)
    ]
    return [*words, *resolved.runtime.exports_for_program(resolved)]


def node_setup_lines(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the words of each `export` that `setup_per_node` needs: the run folder and the job's `env`."""
    yield "RUN_DIR"
    yield from _env_words(resolved)


def _env_words(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the words of each `export` for the job's `env`.

    A value that names a variable gets an `export` of its own. In one `export`, bash expands all values before
    it sets the first variable, so the value would miss a variable that the same `export` sets.
    """
    plain_words: list[str] = []  # words with values that name no variable
    for name, value in resolved.env.items():
        if name in resolved.extended:
            continue  # the job's command sets the variable inside the container (`launch.command_lines`)
        if value is not None and VARIABLE.search(value):
            yield from quoting.packed(plain_words)
            yield f"{name}={arguments.with_params(value, resolved, quoting.value)}"
            plain_words = []
        elif value is not None:
            plain_words.append(f"{name}={arguments.with_params(value, resolved, quoting.word)}")
    yield from quoting.packed(plain_words)


def _common_values(resolved: ResolvedJob) -> dict[str, str]:
    """Return the variables with known values that do not come from the job's key `env`."""
    exports = COMMON_ENV | (NO_USER_PACKAGES if resolved.hides_user_packages else {})
    exports |= {"HANG": resolved.hang} if resolved.hang else {}
    if resolved.programs:  # each program has its own CPUs
        return exports | resolved.runtime.exports(resolved)
    if resolved.profile.scheduler != "none" and not _has_unknown_cpus(resolved):
        threads = (resolved.options.cpus_per_task or 1) * (resolved.options.ntasks_per_node or 1)
        exports["OMP_NUM_THREADS"] = str(max(1, threads // resolved.nproc_per_node))
    return exports | resolved.runtime.exports(resolved)


def _computed_words(resolved: ResolvedJob) -> dict[str, str]:
    """Return the variables whose values bash computes on the node, such as "$((SLURM_CPUS_ON_NODE))"."""
    words = resolved.runtime.computed_words(resolved)
    if _has_unknown_cpus(resolved) and "OMP_NUM_THREADS" not in resolved.env:
        processes = resolved.nproc_per_node
        threads = "SLURM_CPUS_ON_NODE"
        if processes > 1:
            threads = f"({threads} + {processes - 1}) / {processes}"  # rounded up
        words["OMP_NUM_THREADS"] = f"$(({threads}))"
    return words


def _has_unknown_cpus(resolved: ResolvedJob) -> bool:
    """Return whether the job gets all CPUs of its nodes, and their number is known only when it runs."""
    options, partition = resolved.options, resolved.partition
    gets_all_cpus = bool(options.exclusive or partition.exclusive)
    number_is_known = options.cpus_per_task is not None or partition.cpus_per_node
    return resolved.uses_slurm and gets_all_cpus and not number_is_known
