"""Plan -> the variables that the script exports."""

from __future__ import annotations

from collections.abc import Iterator

from sbatchgen import quoting
from sbatchgen.plan.plan import Plan
from sbatchgen.render import arguments, launch
from sbatchgen.units import VARIABLE

# For every job: print lines at once, and ignore packages in ~/.local.
COMMON_ENV = {"PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1"}


def variables(plan: Plan) -> dict[str, str]:
    """Names and values of the variables that have a rendered value."""
    return _common(plan) | {name: value for name, value in plan.env.items() if value is not None}


def names(plan: Plan) -> tuple[str, ...]:
    """The variables that a container must get, whatever its image sets."""
    exported = (
        *(launch.MEETING if launch.meets(plan) else ()),
        *variables(plan),
        *_words(plan),
        *plan.inherited,
        *launch.own_folders(plan),
    )
    own_way = ["PYTHONPATH"] if plan.runtime.is_container else []  # see `launch.command`
    return tuple(name for name in exported if name not in own_way)


def lines(plan: Plan) -> Iterator[str]:
    """The words of each `export`."""
    made = _common(plan)
    words = [f"{name}={quoting.word(value)}" for name, value in made.items() if name not in plan.env]
    words += [f"{name}={word}" for name, word in _words(plan).items()]
    yield from quoting.packed([*(launch.MEETING if launch.meets(plan) else ()), *words])
    yield from quoting.packed(_files(plan))
    yield from _own(plan)
    yield from plan.runtime.own_exports(plan)


def _own(plan: Plan) -> Iterator[str]:
    """The job's own variables; bash expands a value before it sets the variables of the same `export`."""
    plain: list[str] = []
    for name, value in plan.env.items():
        if value is not None and VARIABLE.search(value):
            yield from quoting.packed(plain)
            yield f"{name}={arguments.with_params(value, plan, quoting.value)}"
            plain = []
        elif value is not None:
            plain.append(f"{name}={arguments.with_params(value, plan, quoting.word)}")
    yield from quoting.packed(plain)


def _common(plan: Plan) -> dict[str, str]:
    exports = dict(COMMON_ENV)
    if plan.profile.scheduler != "none" and not _shares_whole_nodes(plan):
        threads = (plan.options.cpus_per_task or 1) * (plan.options.ntasks_per_node or 1)
        exports["OMP_NUM_THREADS"] = str(max(1, threads // plan.nproc_per_node))
    return exports | plan.runtime.exports(plan)


def _words(plan: Plan) -> dict[str, str]:
    """Variables whose values bash makes where the job runs, as words of bash."""
    words = plan.runtime.words(plan)
    if _shares_whole_nodes(plan) and "OMP_NUM_THREADS" not in plan.env:
        processes = plan.nproc_per_node
        cpus = (
            f"(SLURM_CPUS_ON_NODE + {processes - 1}) / {processes}" if processes > 1 else "SLURM_CPUS_ON_NODE"
        )
        words["OMP_NUM_THREADS"] = f"$(({cpus}))"
    return words


def _shares_whole_nodes(plan: Plan) -> bool:
    """Whether the job gets all CPUs of its nodes, and how many these are is not known before it runs."""
    whole = bool(plan.options.exclusive or plan.partition.exclusive)
    return plan.slurm and whole and plan.options.cpus_per_task is None and not plan.partition.cpus_per_node


def _files(plan: Plan) -> Iterator[str]:
    """The paths by which script and trainer talk to each other; see `launch.files`."""
    for name in launch.own_folders(plan):
        yield f"RESUME={arguments.resume(plan)}" if name == "RESUME" else name
    for name in launch.files(plan):
        if plan.trainer or name != "stop":  # the bundled trainer knows where it is
            yield f"SBATCHGEN_{name.upper()}_FILE=$RUN_DIR/{name}"
