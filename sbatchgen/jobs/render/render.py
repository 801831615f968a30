"""Renders the script of a resolved job: fills the template with the variables of `context`.

Sites use the names of these variables in their own templates, so the names stay as they are. A test has the
list of names.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2

from sbatchgen import __version__
from sbatchgen.base import quoting
from sbatchgen.base.units import VARIABLE
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.inputs.start_settings import SETUPS
from sbatchgen.jobs.render import SECOND_PART, arguments, exports, launch
from sbatchgen.jobs.render.templates import environment_of, render_template
from sbatchgen.jobs.resolved.request import Request
from sbatchgen.jobs.resolved.resolved_job import JobProgram, ResolvedJob, runs_one_by_one
from sbatchgen.jobs.runtimes import RUNTIMES
from sbatchgen.jobs.runtimes.base import inherits_variable, path_in_bash

# launcher -> the title above the training's command in the script. Without a launcher it is the mode's title.
_LAUNCHER_TITLES = {
    "torchrun": "one torchrun on each node",
    "ft_launcher": "one ft_launcher on each node, of nvidia-resiliency-ext",
    "srun": "one task for each process",
    "spawn": "one task on each node, which starts its processes",
}
# A variable of the templates -> the attribute of the resolved job that holds its value.
_JOB_ATTRIBUTES = {
    **{name: name for name in ("stoppable", "restartable", "consecutive", "inherited", "max_restarts")},
    "slurm": "uses_slurm",
    "placed": "placeholder_names",
}
_PROVENANCE = "sbatchgen"  # "# sbatchgen 0.3.0 (CHECKSUM): COMMAND" is the second line of each script
_CERTIFICATES = ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
# Variables of the submitting shell whose paths do not exist in a container.
_OUTSIDE_PATHS = ("BASH_ENV", "CONDA_PREFIX", *_CERTIFICATES, "VIRTUAL_ENV")
_LINE_START = re.compile(r"^(?:\0[^\0]*\0)*", re.MULTILINE)  # the start of a line, after the marks of `trace`
_VARIABLES_OF_MOST_SITES = ("USER", "HOME", "SCRATCH", "WORK", "TMPDIR", "PWD")


def render(
    resolved: ResolvedJob,
    *,
    code: Path,
    rerun: Sequence[str],
    folders: Sequence[Path],
    cache: Path | None = None,
) -> str:
    """Return the script of a resolved job.

    The first of the `folders` that has a template wins; the last folder is the bundled one. `code` is the
    folder of the bundled package `training`. `rerun` is the command that the script's second line shows.
    `cache` is the folder for compiled templates; compiling takes a third of the time. Raises DocumentError: a
    template is missing or broken.
    """
    environment = environment_of(tuple(folders), cache)
    return finished_script(filled_template(environment, resolved, code=code), rerun)


def render_request(request: Request, *, session: bool = False) -> str:
    """Return the script of a request, or with `session` the script of `sbatchgen shell`.

    Raises like `render`.
    """
    folders, cache = request.places.folders("templates"), request.places.cache
    if session:
        folders = [bundled("templates") / "shell", *folders]
    return render(request.resolved, code=bundled("code"), rerun=request.rerun, folders=folders, cache=cache)


def filled_template(environment: jinja2.Environment, resolved: ResolvedJob, *, code: Path) -> str:
    """Return the text of the job's template with its variables filled in. Raises like `render`."""
    values = context(resolved, code=code) | {"provenance": _PROVENANCE}
    runtimes = [_own_runtime_lines(environment, program, resolved, code) for program in resolved.programs]
    # Templates get each program as the fields of its `ProgramFunctions`, followed by its runtime's lines.
    programs = zip(values["programs"], runtimes, strict=True)
    values["programs"] = [(*functions, runtime_lines) for functions, runtime_lines in programs]
    return render_template(environment, resolved.template, values)


def _own_runtime_lines(
    environment: jinja2.Environment, program: JobProgram, resolved: ResolvedJob, code: Path
) -> str:
    """Return the lines that set up a program's own runtime; "" if the program has the job's runtime."""
    job = program.job
    if program.has_runtime_of(resolved):
        return ""
    values = context(job, code=code)
    values |= {
        "export_lines": exports.program_export_lines(job, resolved),
        "of_job": _keeps_pythonpath(resolved),
    }
    text = render_template(environment, "own_runtime.sh.j2", values)
    return _LINE_START.sub(r"\g<0>    ", text.rstrip("\n"))  # indented: the lines are in a bash function


def finished_script(text: str, rerun: Sequence[str]) -> str:
    """Return the script for a filled template: write the command `rerun` into the script's second line.

    Several empty lines become one. The user's own empty lines stay, for example in a here-document.
    """
    script = text
    while "\n\n\n" in script:
        script = script.replace("\n\n\n", "\n\n")
    script = script.replace(quoting.EMPTY_LINE_MARK, "")
    heading = f"# {_PROVENANCE} {__version__} ({digest(script)}): {quoting.words(tuple(rerun))}"
    return script.replace(f"# {_PROVENANCE}", heading, 1)


def rendered_by(script: str) -> str:
    """Return the command in a script's second line that rendered it; "" if sbatchgen did not render it."""
    match = re.match(rf"#!.*\n# {_PROVENANCE} \S+ \([0-9a-f]{{12}}\): (.+)", script)
    return match[1] if match else ""


def digest(script: str) -> str:
    """Return a checksum to detect later edits of a script. The line that holds the checksum is left out."""
    head, start, rest = script.partition(f"# {_PROVENANCE}")
    body = rest.partition("\n")[2] if start else rest
    return hashlib.sha256((head + body).encode()).hexdigest()[:12]


def context(resolved: ResolvedJob, *, code: Path) -> dict[str, Any]:
    """Return the variables of the templates; `code` is the folder of the bundled package `training`."""
    folder_variable = "SLURM_SUBMIT_DIR" if resolved.uses_slurm else "PWD"
    exported = exports.exported_names(resolved)
    return (
        _runtime_variables(resolved, folder_variable, exported)
        | _path_variables(resolved, folder_variable, code)
        | _site_variables(resolved)
        | _array_variables(resolved)
        | _restart_variables(resolved)
        | _start_variables(resolved, folder_variable, exported)
        | _program_variables(resolved, folder_variable)
    )


def _array_option(resolved: ResolvedJob) -> str:
    """Return the value of --array; "" for a job without an array, or without Slurm."""
    return resolved.options.array or "" if resolved.uses_slurm else ""


def _job_id(resolved: ResolvedJob) -> str:
    """Return the job's id in bash. A task of an array has an id as squeue shows it, such as 4711_3."""
    return "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if _array_option(resolved) else "$SLURM_JOB_ID"


def _site_variables(resolved: ResolvedJob) -> dict[str, Any]:
    """Return the template's variables for the directives, and for the profile's setup before the training."""
    settings = resolved.settings
    setups = [name for name in SETUPS if "_per_" not in name]
    directives = [quoting.directive(name, text) for name, text in resolved.directives.items()]
    return {
        "directives": directives if resolved.uses_slurm else [],
        "other_directives": settings.directives if resolved.uses_slurm else (),
        **{name: launch.setup_lines(getattr(settings, name)) for name in setups},
        "has_setup": any(getattr(settings, name) for name in setups),
        "setup_per_node": launch.node_setup_command(resolved),
        "module_lines": tuple(_module_commands(resolved)),
        "master_addr": settings.master_addr or "",
        "keeps_pythonpath": _keeps_pythonpath(resolved),
    }


def _array_variables(resolved: ResolvedJob) -> dict[str, Any]:
    """Return the template's variables for the tasks of an array, and for the points of a sweep."""
    array, sweep = _array_option(resolved), resolved.sweep
    return {
        "job_id": _job_id(resolved),
        "array": bool(array),
        "array_element": bool(array) and sweep is None and not runs_one_by_one(array),
        "points": arguments.point_cases(resolved),
        "point_says": arguments.point_name(resolved),
        "points_carried": sweep is not None and sweep.gets_first_point,
    }


def _restart_variables(resolved: ResolvedJob) -> dict[str, Any]:
    """Return the template's variables for stopping, restarting and resuming the job.

    They include the names of the files through which the script and the trainer communicate.
    """
    files, sweep = launch.exchanged_files(resolved), resolved.sweep
    is_requeued = resolved.programs and resolved.uses_slurm and resolved.options.requeue
    may_restart = resolved.restartable or is_requeued
    waits_for_requeue = bool(resolved.requeue_on_node_fail and may_restart and resolved.nodes > 1)
    is_single_job = not (resolved.consecutive or resolved.programs)
    return {
        "ssh_nodes": bool(resolved.profile.interactive.ssh_nodes),
        "has_outcome": resolved.stoppable or sweep is not None or bool(resolved.programs),
        "counts_restarts": resolved.restartable and not resolved.consecutive,
        "requeue_on_timeout": resolved.stoppable and not resolved.asks_to_stop,
        "requeue_on_node_fail": waits_for_requeue,
        "requeues": launch.requeue_command(resolved),
        "requeues_early": "again" in files and resolved.runtime.removes_slowly and is_single_job,
        "asks_again": "again" in files,
        "continues": resolved.consecutive or "again" in files,
        "reads_exit": "exit" in files,
        "leftovers": files if sweep is None else (*(name for name in files if name != "exit"), "exit"),
        "talk": tuple(exports.file_variables(resolved)),
        "checkpoints": arguments.checkpoints(resolved),
        "first_checkpoint": "" if resolved.resume in ("auto", "off") else arguments.resume(resolved),
        "resume_args": arguments.resume_args(resolved),
    }


def _start_variables(resolved: ResolvedJob, folder_variable: str, exported: Sequence[str]) -> dict[str, Any]:
    """Return the template's variables for the start of the processes: nodes, runtime and command."""
    mounted = launch.mounted_folders(resolved, folder_variable)
    needs_rendezvous = launch.needs_rendezvous(resolved)
    return {
        **{name: getattr(resolved, attribute) for name, attribute in _JOB_ATTRIBUTES.items()},
        "preflight": launch.preflight_command(resolved, exported, mounted, _job_id(resolved)),
        "excludes": launch.excludes_bad_nodes(resolved),
        "node_lines": tuple(exports.node_setup_lines(resolved)),
        "software_lines": tuple(resolved.runtime.assignments(resolved, folder_variable)),
        "starts_runtime": tuple(resolved.runtime.setup_commands(resolved, mounted)),
        "ends_steps": launch.watches_step_ends(resolved),
        "meets": needs_rendezvous,
        "one_container_fails": resolved.runtime is RUNTIMES["enroot"] and needs_rendezvous,
        "first_port": launch.first_port(resolved),
        "export_lines": tuple(exports.export_lines(resolved)),
        "training_title": _training_title(resolved),
        "second_part": f"{SECOND_PART} every job of {_kind_of_job(resolved)}: sbatchgen help script",
        "command_lines": launch.command_lines(resolved, exported, mounted) if not resolved.programs else (),
        "container_lines": launch.container_lines(resolved, exported, mounted),
        "programs": (),
    }


def _runtime_variables(
    resolved: ResolvedJob, folder_variable: str, exported: Sequence[str]
) -> dict[str, Any]:
    """Return the template's variables for the runtimes of the job and of all its programs."""
    values = {
        name: value for runtime in RUNTIMES.values() for name, value in runtime.values_in_other_jobs.items()
    }
    jobs = resolved.jobs
    for job in jobs:
        variables = job.runtime.variables(job, folder_variable, exported)
        values |= {name: values.get(name) or value for name, value in variables.items()}
    # A line of `setup_commands` sets a variable or calls a bash function of mechanics/FUNCTION.sh.j2.
    lines = (line for job in jobs for line in job.runtime.setup_commands(job, ()))
    functions = {line.split()[0] for line in lines if "=" not in line}
    return values | {
        "runtime_parts": [f"mechanics/{name}.sh.j2" for name in sorted(functions)],
        "any_container": any(job.runtime.is_container for job in jobs),
        "foreign": [name for name in _OUTSIDE_PATHS if not any(inherits_variable(job, name) for job in jobs)],
        "starts_pyxis": resolved.uses_slurm and RUNTIMES["enroot"] in [job.runtime for job in jobs],
    }


def _keeps_pythonpath(resolved: ResolvedJob) -> bool:
    """Return whether the script keeps the PYTHONPATH that modules or `setup` have set.

    It does so if the runtime's Python may use their packages.
    """
    has_packages = bool(resolved.settings.modules or resolved.settings.setup)
    return resolved.runtime.may_use_modules and has_packages


def _program_variables(resolved: ResolvedJob, folder_variable: str) -> dict[str, Any]:
    """Return the template's variables for a job with several programs; {} for other jobs."""
    if not resolved.programs:
        return {}
    from sbatchgen.jobs.render.supervision import supervision_variables  # few jobs need it

    return supervision_variables(resolved, folder_variable)


def _path_variables(resolved: ResolvedJob, folder_variable: str, code: Path) -> dict[str, Any]:
    """Return the template's variables for the files and folders of the job.

    `folder_variable` is the name of the bash variable with the folder of submission.
    """
    data = resolved.data if launch.uses_data(resolved) else ""
    paths = (resolved.run_dir, data, resolved.code or "", resolved.snapshot_dir or "")
    names = dict.fromkeys(name for path in paths for name in VARIABLE.findall(path))
    return {
        # "runs/a/." -> "runs/a": with a slash at the end, bash would follow a link
        "run_dir": re.sub(r"(?<=[^/])(/\.?)+$", "", path_in_bash(resolved.run_dir, folder_variable)),
        "uses_data": launch.uses_data(resolved),
        "data": path_in_bash(resolved.data, folder_variable),
        "uses_code": launch.uses_code(resolved),
        "code": path_in_bash(resolved.code, folder_variable) if resolved.code else str(code),
        "snapshot": path_in_bash(resolved.snapshot_dir, folder_variable)
        if resolved.snapshot_dir and resolved.uses_slurm
        else "",
        # names of variables in these paths, apart from variables that nearly every site sets
        "needed": [
            name for name in names if name not in _VARIABLES_OF_MOST_SITES and not name.startswith("SLURM_")
        ],
    }


def _kind_of_job(resolved: ResolvedJob) -> str:
    """Return the job's kind in words: the runtime, and the features that decide the script's second part."""
    features = {
        "several programs": bool(resolved.programs),
        "a sweep": resolved.sweep is not None,
        "a chain": resolved.consecutive,
        "restarts": resolved.restartable and not resolved.consecutive,
    }
    words = [f"the runtime {resolved.runtime}", *(name for name, is_used in features.items() if is_used)]
    return f"this kind, with {quoting.listed(words)}"


def _training_title(resolved: ResolvedJob) -> str:
    """Return the title of the training's command, for the comment above it in the script."""
    title = _LAUNCHER_TITLES[resolved.launcher] if resolved.launcher else resolved.mode.title
    ending = ", without variables that name it one of several" if launch.hides_rank(resolved) else ""
    return f"{title}{ending}"


def _module_commands(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the commands that load the profile's modules.

    One `module load` loads all modules up to the next entry of the form `use PATH`.
    """
    modules = resolved.settings.modules
    start = resolved.settings.module_start or ("purge" if modules else "keep")
    if start != "keep":
        yield f"module {start}"
    for is_use, entries in itertools.groupby(modules, lambda entry: entry.startswith("use ")):
        if is_use:
            yield from (f"module use {quoting.path(entry[4:].strip())}" for entry in entries)
        else:
            yield f"""module load {quoting.words(tuple(entries))} || die "can't load the modules\""""
