"""Plan -> script. Python has decided the numbers, the templates decide the lines, bash knows the rest.

The variables of a template are the flat names of `context`: text, numbers, yes or no, and lists of these.
Sites depend on them; a test holds their list.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from sbatchgen import __version__, quoting
from sbatchgen.directive import directives
from sbatchgen.errors import DocumentError
from sbatchgen.options import GPU_OPTIONS
from sbatchgen.plan import Plan

FILTERS = {
    "sh": quoting.word,
    "sh_join": quoting.words,
    "path": quoting.path,
    "word_path": quoting.expanding,
    "inside_quotes": quoting.inside_quotes,
}
# What torch and Python should know in every job, before the profile's and the job's own variables.
COMMON_ENV = {"PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1", "PYTHONFAULTHANDLER": "1"}
NVIDIA_ENV = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
# Signals that an agent of torchrun passes on before it ends; by SIGUSR1 or 2 it would die and leave its
# processes alone. An earlier torch than pytorch/pytorch#160690 does not look at it.
TORCHRUN_ENV = {"PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"}
_PROVENANCE = "Rendered by sbatchgen"


def render(
    plan: Plan, *, code: Path, rerun: Sequence[str], folders: Sequence[Path], cache: Path | None = None
) -> str:
    """The script.

    Args:
        plan: What to run and where.
        code: Folder that holds the bundled package `training`.
        rerun: The command that renders it again, for the script's first line.
        folders: Where templates lie, the first to look in first, the bundled ones last.
        cache: Folder that may keep compiled templates, which are a third of the time otherwise.

    Raises:
        DocumentError: A template is missing or broken.
    """
    return finish(fill(environment_of(tuple(folders), cache), plan, code=code), rerun)


def fill(environment: jinja2.Environment, plan: Plan, *, code: Path) -> str:
    """The plan's template, filled. Raises what `render` does."""
    return _render(environment, plan.template, context(plan, code=code) | {"provenance": _PROVENANCE})


def finish(text: str, rerun: Sequence[str]) -> str:
    """A filled template as a script: no two empty lines together, and the provenance in its comment."""
    script = re.sub(r"\n{3,}", "\n\n", text)
    again = quoting.words(tuple(rerun))
    said = f"# {_PROVENANCE} {__version__} ({digest(script)}): {again}"
    return script.replace(f"# {_PROVENANCE}", said, 1)


def digest(script: str) -> str:
    """Twelve hex digits over everything but the line that holds them: an edited script has other ones."""
    head, start, rest = script.partition(f"# {_PROVENANCE}")
    body = rest.partition("\n")[2] if start else rest
    return hashlib.sha256((head + body).encode()).hexdigest()[:12]


class _Cache(jinja2.FileSystemBytecodeCache):
    """Jinja's own cache, which stays silent where it can't write."""

    def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        with contextlib.suppress(OSError):
            super().dump_bytecode(bucket)


def _cache(folder: Path | None) -> _Cache | None:
    if folder is None:
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return _Cache(str(folder))


@functools.cache
def environment_of(folders: tuple[Path, ...], cache: Path | None) -> jinja2.Environment:
    """Jinja, set up for templates of bash, with the folders that they lie in."""
    loaders = [jinja2.FileSystemLoader(folder) for folder in folders]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([*loaders, jinja2.PrefixLoader({"bundled": loaders[-1]}, ":")]),
        bytecode_cache=_cache(cache),
        auto_reload=False,  # a template does not change while a command runs
        undefined=jinja2.StrictUndefined,
        finalize=_refuse_none,
        comment_start_string="{##",  # not {#, which stands in bash's ${#array[@]}
        comment_end_string="##}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - shell text, not HTML: each value passes a quoting filter
    )
    environment.filters |= FILTERS
    return environment


def _refuse_none(value: Any) -> Any:
    if value is None:
        raise jinja2.UndefinedError("a value that is not set was written into the script")
    return value


def _render(environment: jinja2.Environment, template: str, values: Mapping[str, Any]) -> str:
    try:
        return environment.get_template(template).render(values)
    except jinja2.TemplateSyntaxError as error:
        raise DocumentError.of(
            f"broken template: {error.message}", at=f"{error.filename or error.name}:{error.lineno}"
        ) from error
    except jinja2.TemplateNotFound as error:
        raise DocumentError.of(
            f"no template '{error.name}'", fix="put it into .sbatchgen/templates/ beside sbatchgen.yaml"
        ) from error
    except jinja2.UndefinedError as error:
        raise DocumentError.of(f"template: {error.message}", at=_template_line(error)) from error


def _template_line(error: BaseException) -> str:
    """The last place in a template of a traceback: jinja2 maps its frames to template lines."""
    place, frame = "", error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if file.endswith(".j2"):
            place = f"{file}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place


def context(plan: Plan, *, code: Path) -> dict[str, Any]:
    """The variables of the templates."""
    options = plan.options
    distributed = plan.mode == "ddp"
    bundled_trainer = plan.trainer is None
    exports = _exports(plan)
    own_names = ["MASTER_ADDR", "MASTER_PORT"] if distributed else []
    shares_machine = plan.profile.scheduler == "none" and "OMP_NUM_THREADS" not in plan.env
    own_names += ["OMP_NUM_THREADS"] if shares_machine else []
    code_names = ["PYTHONPATH", "PYTHONSAFEPATH"] if bundled_trainer else []
    files = ["SBATCHGEN_STOP_FILE", "SBATCHGEN_STATUS_FILE"]
    array = options.array if plan.slurm else None
    return {
        "directives": directives(plan),
        "slurm": plan.slurm,
        "facts_part": f"facts/{plan.profile.scheduler}.sh.j2",
        "runtime_part": f"runtime/{plan.runtime}.sh.j2",
        "launch_part": f"launch/{_launch(plan)}.sh.j2",
        # other runtimes unset it, so that only the job's own is left
        "keeps_pythonpath": plan.runtime == "host" or "PYTHONPATH" in exports,
        "runtime_is_apptainer": plan.runtime == "apptainer",
        "runtime_is_enroot": plan.runtime == "enroot",
        "distributed": distributed,
        "dataparallel": plan.mode == "dataparallel",
        "spawn": plan.launcher == "spawn",
        "torchrun": plan.launcher == "torchrun",
        "torchrun_on_host": plan.launcher == "torchrun" and plan.runtime not in ("apptainer", "enroot"),
        "shares_machine": shares_machine,
        "platform_names_nodes": plan.profile.scheduler == "env",
        "counts_nodes": plan.slurm or (distributed and plan.profile.scheduler == "env"),
        "counts_processes": distributed and (plan.launcher != "srun"),
        "forward_signals": not plan.slurm,
        "restartable": plan.restartable,
        "several_nodes": plan.nodes > 1,
        "may_find_done": plan.restartable or bool(array),
        "array": bool(array),
        "array_shares_run": shares_run(array or ""),
        "array_element": bool(array) and not shares_run(array or ""),
        "nnodes": plan.nodes,
        "nproc_per_node": plan.nproc_per_node,
        "nproc_text": f"{plan.nproc_per_node} process{'es' * (plan.nproc_per_node > 1)}",
        "ntasks_per_node": options.ntasks_per_node or 1,
        "cpus_per_task": options.cpus_per_task or 1,
        "gpus_per_node": plan.gpus_per_node if _counts_gpus(plan) else 0,
        "max_restarts": plan.max_restarts,
        "port_base": plan.profile.network.port_base,
        "port_count": plan.profile.network.port_count,
        "step_options": _step_options(plan),
        "run_dir": plan.run_dir,
        "data": plan.data,
        "modules": plan.profile.modules,
        "setup": plan.profile.setup,
        "venv": plan.venv or "",
        "conda_root": plan.profile.runtimes.conda.root or "",
        "conda_env": plan.conda_env or "",
        "image": plan.image or "",
        "image_is_file": is_file(plan),
        "binds": tuple(bind if ":" in bind else f"{bind}:{bind}" for bind in plan.binds),
        "workdir": (plan.profile.runtimes.enroot.workdir or "") if plan.runtime == "enroot" else "",
        "gpu_flag": plan.profile.runtimes.apptainer.gpu_flag if plan.mode != "cpu" else "",
        "alone": not distributed,
        "starts_program": distributed and _launch(plan) in ("standalone", "spawn"),
        "container": plan.runtime in ("apptainer", "enroot"),
        "trainer_folder": _trainer_folder(plan),
        "exclusive": bool(options.exclusive),
        "exports": tuple(exports.items()),
        "exported_names": (*exports, *own_names, *code_names, *files),
        "bundled_trainer": bundled_trainer,
        "code": str(plan.profile.paths.code or code),
        "trainer_words": _trainer_words(plan),
        "argument_lines": tuple(_lines(plan.args)),
        "resume": plan.resume,
        "resume_file": plan.resume not in ("auto", "off"),
        "device": _device(plan),
    }


def shares_run(array: str) -> bool:
    """Whether an array is one training in several jobs, one after the other (`%1`), not many trainings."""
    return array.endswith("%1")


def is_file(plan: Plan) -> bool:
    """Whether the image is a file of the cluster and not the address of a registry."""
    image = plan.image or ""
    if plan.runtime == "enroot":  # pyxis takes a path for one only if it starts so
        return image.startswith(("/", ".", "${"))
    return "://" not in image


def _counts_gpus(plan: Plan) -> bool:
    asked = any(getattr(plan.options, name) for name in GPU_OPTIONS)  # else sbatch's command line asks
    return bool(plan.gpus_per_node) and asked and not plan.shards


def _launch(plan: Plan) -> str:
    if plan.launcher != "torchrun":
        return plan.launcher or "plain"
    if plan.profile.scheduler == "env":
        return "torchrun_env"
    return "torchrun" if plan.nodes > 1 else "standalone"


def _step_options(plan: Plan) -> tuple[str, ...]:
    if plan.launcher != "srun":
        return ()
    # Newer Slurm may follow the topology: rank 0 must be on the first node, where the others look for it.
    options = ["--distribution=block"]
    if plan.options.gpus_per_task:
        options.append("--gpu-bind=none")  # else a rank sees only its own GPU and NCCL loses the others
    return tuple(options)


def _exports(plan: Plan) -> dict[str, str]:
    exports = dict(COMMON_ENV)
    if plan.profile.scheduler != "none":
        threads = (plan.options.cpus_per_task or 1) * (plan.options.ntasks_per_node or 1)
        exports["OMP_NUM_THREADS"] = str(max(1, threads // plan.nproc_per_node))
    if plan.launcher == "torchrun":
        exports |= TORCHRUN_ENV
    if plan.runtime == "enroot" and plan.mode != "cpu":
        exports |= NVIDIA_ENV
    if plan.mode == "cpu":
        exports["CUDA_VISIBLE_DEVICES"] = ""
    return exports | dict(plan.env)


def _device(plan: Plan) -> str:
    if plan.mode == "cpu":
        return "cpu"
    return "cuda" if plan.gpus_per_node or plan.shards else "auto"


def _trainer_words(plan: Plan) -> tuple[str, ...]:
    trainer = plan.trainer or "training"
    is_path = plan.trainer is not None and ("/" in trainer or trainer.endswith(".py"))
    ended = ("--",) if plan.launcher == "torchrun" else ()
    return (*(() if is_path else ("-m",)), *ended, trainer)


def _trainer_folder(plan: Plan) -> str:
    """The folder of an own trainer that may lie outside the folder of submission."""
    trainer = plan.trainer or ""
    return trainer.rpartition("/")[0] if trainer.startswith("/") else ""


def _lines(args: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The arguments as people write them: an option and its values on one line."""
    line: list[str] = []
    for arg in args:
        if arg.startswith("-") and line:
            yield tuple(line)
            line = []
        line.append(arg)
    if line:
        yield tuple(line)
