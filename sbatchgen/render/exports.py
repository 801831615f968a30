"""Plan -> the variables that the script exports."""

from __future__ import annotations

from collections.abc import Iterator

from sbatchgen import quoting
from sbatchgen.plan.plan import Plan
from sbatchgen.render import launch

NVIDIA = "NVIDIA_VISIBLE_DEVICES"  # by which Enroot's hook gives GPUs to a container
# For every job: print lines at once, and ignore packages in ~/.local.
COMMON_ENV = {"PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1"}


def variables(plan: Plan) -> dict[str, str]:
    """Names and values of the variables that have a rendered value."""
    return _common(plan) | {name: value for name, value in plan.env.items() if value is not None}


def names(plan: Plan) -> tuple[str, ...]:
    """The variables that a container must get, whatever its image sets."""
    found = (
        *(launch.MEETING if launch.meets(plan) else ()),
        *variables(plan),
        *([NVIDIA] if _may_have_gpus(plan) else []),
        *plan.inherited,
        *launch.own_folders(plan),
    )
    own_way = ["PYTHONPATH"] if launch.container(plan) else []  # see `launch.command`
    return tuple(name for name in found if name not in own_way)


def lines(plan: Plan) -> Iterator[str]:
    """The words of each `export`."""
    made = _common(plan)
    words = [f"{name}={quoting.word(value)}" for name, value in made.items() if name not in plan.env]
    if _may_have_gpus(plan):
        words.append(f'{NVIDIA}="${{CUDA_VISIBLE_DEVICES:+all}}"')
    yield from launch.pack([*(launch.MEETING if launch.meets(plan) else ()), *words])
    yield from launch.pack(_files(plan))
    own = {name: value for name, value in plan.env.items() if value is not None}
    yield from launch.pack(f"{name}={quoting.word(value)}" for name, value in own.items())
    if plan.runtime == "apptainer":  # else it evaluates the values of APPTAINERENV_ variables
        yield "APPTAINER_NO_EVAL=1"


def _common(plan: Plan) -> dict[str, str]:
    exports = dict(COMMON_ENV)
    if plan.profile.scheduler != "none":
        threads = (plan.options.cpus_per_task or 1) * (plan.options.ntasks_per_node or 1)
        exports["OMP_NUM_THREADS"] = str(max(1, threads // plan.nproc_per_node))
    if plan.runtime == "enroot":  # "all" would fail on a node without NVIDIA's tools
        if not _may_have_gpus(plan):
            exports[NVIDIA] = "void" if plan.mode == "cpu" else "all"
        if plan.mode != "cpu":
            exports["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    return exports


def _may_have_gpus(plan: Plan) -> bool:
    """Whether only the command line of sbatch can give GPUs to a container: the job itself asks for none."""
    told = plan.mode == "cpu" or plan.gpus_per_node or plan.shards or NVIDIA in plan.env
    return plan.runtime == "enroot" and not told


def _files(plan: Plan) -> Iterator[str]:
    """The paths by which script and trainer talk to each other; see `launch.files`."""
    for name in launch.own_folders(plan):
        yield f"RESUME={launch.resume_word(plan)}" if name == "RESUME" else name
    for name in launch.files(plan):
        if plan.trainer or name != "stop":  # the bundled trainer knows where it is
            yield f"SBATCHGEN_{name.upper()}_FILE=$RUN_DIR/{name}"
