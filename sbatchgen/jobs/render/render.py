"""Resolved job -> script: the template, filled with the values of `context`.

Sites rely on the names of these values in templates of their own; a test holds the list.
"""

import contextlib
import functools
import hashlib
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sbatchgen import __version__
from sbatchgen.base import quoting
from sbatchgen.base.errors import DocumentError
from sbatchgen.base.machine.trust import make_own
from sbatchgen.base.units import VARIABLE
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.inputs.start_settings import SETUPS
from sbatchgen.jobs.render import SECOND_PART, arguments, exports, launch
from sbatchgen.jobs.resolved.request import Request
from sbatchgen.jobs.resolved.resolved_job import JobProgram, ResolvedJob, one_at_a_time
from sbatchgen.jobs.runtimes import RUNTIMES
from sbatchgen.jobs.runtimes.base import absolute, keeps

FILTERS = {"sh": quoting.word, "sh_join": quoting.words, "path": quoting.path}
# The title above the command, by launcher; without one, the mode has it.
TITLES = {
    "torchrun": "one torchrun on each node",
    "ft_launcher": "one ft_launcher on each node, of nvidia-resiliency-ext",
    "srun": "one task for each process",
    "spawn": "one task on each node, which starts its processes",
}
# What a template has of a resolved job as it is.
_JOB_ATTRIBUTES = ("slurm", "stoppable", "restartable", "consecutive", "placed", "inherited", "max_restarts")
_PROVENANCE = "sbatchgen"
# Of the submitting shell, with paths that a container does not have.
_BUNDLES = ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
FOREIGN = ("BASH_ENV", "CONDA_PREFIX", *_BUNDLES, "VIRTUAL_ENV")
# Characters. slurmctld takes scripts of 4 MiB, unless max_script_size says so (slurm.conf(5)).
_MAX_BYTES = 64 << 20
_TOO_LARGE = f"it makes a script of more than {_MAX_BYTES >> 20} MiB"
_LINE_START = re.compile(r"^(?:\0[^\0]*\0)*", re.MULTILINE)  # with the marks of `trace`
_EVERYWHERE = ("USER", "HOME", "SCRATCH", "WORK", "TMPDIR", "PWD")  # set at most sites


def render(
    resolved: ResolvedJob,
    *,
    code: Path,
    rerun: Sequence[str],
    folders: Sequence[Path],
    cache: Path | None = None,
) -> str:
    """Return the script, from the first template found in the folders, the bundled ones last.

    `code` holds the bundled package `training`; `rerun` is the command of the first comment. The cache is for
    compiled templates: to compile them is a third of the time. Raises DocumentError: a template is missing or
    broken.
    """
    environment = environment_of(tuple(folders), cache)
    return finish(fill(environment, resolved, code=code), rerun)


def render_request(request: Request, *, session: bool = False) -> str:
    """Return the script of a request, or of a shell in its job. Raises what `render` does."""
    folders, cache = request.places.folders("templates"), request.places.cache
    folders = [*[bundled("templates") / "shell"] * session, *folders]
    return render(request.resolved, code=bundled("code"), rerun=request.rerun, folders=folders, cache=cache)


def fill(environment: jinja2.Environment, resolved: ResolvedJob, *, code: Path) -> str:
    """Return the resolved job's template, filled. Raises what `render` does."""
    values = context(resolved, code=code) | {"provenance": _PROVENANCE}
    runtimes = [_runtime(environment, program, resolved, code) for program in resolved.programs]
    values["programs"] = [(*each, text) for each, text in zip(values["programs"], runtimes, strict=True)]
    return _render(environment, resolved.template, values)


def _runtime(environment: jinja2.Environment, program: JobProgram, resolved: ResolvedJob, code: Path) -> str:
    """Return the lines that set up the runtime of a program; "" for the runtime of the job."""
    job = program.job
    if program.has_runtime_of(resolved):
        return ""
    more = {"export_lines": exports.own_lines(job, resolved), "of_job": _keeps_pythonpath(resolved)}
    text = _render(environment, "own_runtime.sh.j2", context(job, code=code) | more)
    return _LINE_START.sub(r"\g<0>    ", text.rstrip("\n"))


def finish(text: str, rerun: Sequence[str]) -> str:
    """Return a filled template as a script.

    The script has single empty lines, and the command that rendered the script in a comment. Empty lines of
    the user stay, such as those of a here-document.
    """
    script = text
    while "\n\n\n" in script:
        script = script.replace("\n\n\n", "\n\n")
    script = script.replace(launch.KEPT, "")
    again = quoting.words(tuple(rerun))
    heading = f"# {_PROVENANCE} {__version__} ({digest(script)}): {again}"
    return script.replace(f"# {_PROVENANCE}", heading, 1)


def rendered_by(script: str) -> str:
    """Return the command that rendered a script, from its second line, or ""."""
    match = re.match(rf"#!.*\n# {_PROVENANCE} \S+ \([0-9a-f]{{12}}\): (.+)", script)
    return match[1] if match else ""


def digest(script: str) -> str:
    """Return a checksum of the script without the line of the checksum; an edited script has another."""
    head, start, rest = script.partition(f"# {_PROVENANCE}")
    body = rest.partition("\n")[2] if start else rest
    return hashlib.sha256((head + body).encode()).hexdigest()[:12]


# Blocks of the bundled template before it had two parts, and those that hold their lines now.
_OLD_BLOCKS = {
    "shell": "die",
    "environment": "exports",
    "checkpoint": "resume",
    "stop": "signals",
    "training": "train",
    "outcome": "start_again",
}
_OLD_BLOCK = re.compile(rf"{{%[-+]?\s*block\s+({'|'.join(_OLD_BLOCKS)})\b")


# What makes a value of the text of a template: a block of `set`, a macro, an imported template, and the like.
_KEPT_TEXT = re.compile(
    r"{%[-+]?\s*(?:set\s+[\w.]+\s*[^=\s\w.]|(?:filter|macro|call|import|from)\b|for\b[^}]*\brecursive\b)"
    r"|\b(?:self|super)\b"
)
_SUPER = re.compile(r"{{[-+]?\s*super\(\)\s*[-+]?}}")  # writes the text as it is


class _Loader(jinja2.FileSystemLoader):
    """A loader of templates that refuses huge templates, and blocks that the bundled template lacks."""

    keeps_text = False  # whether a template that was read makes a value of its text

    def get_source(self, environment: jinja2.Environment, template: str) -> Any:
        with contextlib.suppress(OSError):
            if Path(self.searchpath[0], template).stat().st_size > _MAX_BYTES:
                raise jinja2.TemplateError(_TOO_LARGE)
        source = super().get_source(environment, template)
        self.keeps_text |= bool(_KEPT_TEXT.search(_SUPER.sub("", source[0])))
        if (old := _OLD_BLOCK.search(source[0])) and re.search(r"{%[-+]?\s*extends\b", source[0]):
            what = f"block '{old[1]}' is now '{_OLD_BLOCKS[old[1]]}': see sbatchgen help script"
            line = source[0].count("\n", 0, old.start()) + 1
            raise jinja2.TemplateSyntaxError(what, line, template, source[1])
        return source


class _Cache(jinja2.FileSystemBytecodeCache):
    """Compiled templates; a file that can't be read or written is left out."""

    def load_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        """Read a compiled template; a damaged file is replaced."""
        try:
            super().load_bytecode(bucket)
        except Exception:  # noqa: BLE001 - what pickle raises for damage is not limited
            bucket.reset()

    def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        with contextlib.suppress(OSError):
            super().dump_bytecode(bucket)


def keeps_text(environment: jinja2.Environment) -> bool:
    """Return whether a template that `fill` has read makes a value of its text."""
    return any(getattr(each, "keeps_text", False) for each in getattr(environment.loader, "loaders", ()))


@functools.cache
def environment_of(
    folders: tuple[Path, ...], cache: Path | None, extension: type[Any] | None = None
) -> jinja2.Environment:
    """Return jinja, set up for templates of bash in these folders, and with an extension.

    In its sandbox, since a template may come with somebody's repository: it can't run Python of its own.
    """
    loaders = [_Loader(folder) for folder in folders]
    # It holds code that is run, so no other user may be able to change it.
    kind = "marked" if extension else "templates"
    compiled = cache / f"{kind}-{sys.implementation.cache_tag}" if cache else None
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.ChoiceLoader([*loaders, jinja2.PrefixLoader({"bundled": loaders[-1]}, ":")]),
        bytecode_cache=_Cache(str(compiled)) if compiled and make_own(compiled) else None,
        auto_reload=False,  # a template does not change while a command runs
        extensions=[extension] if extension else (),
        undefined=jinja2.StrictUndefined,
        finalize=_refuse_none,
        comment_start_string="{##",  # not {#, which is in bash's ${#array[@]}
        comment_end_string="##}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell text, not HTML: each value passes a quoting filter
    )
    environment.filters |= FILTERS
    environment.intercepted_binops, environment.binop_table["*"] = frozenset("*"), _times
    return environment


def _refuse_none(value: Any) -> Any:
    if value is None:
        raise jinja2.UndefinedError("a value that is not set was written into the script")
    return value


def _render(environment: jinja2.Environment, template: str, values: Mapping[str, Any]) -> str:
    try:
        return "".join(_limited(environment.get_template(template).generate(values)))
    except jinja2.TemplateSyntaxError as error:
        at = f"{error.filename or error.name}:{error.lineno}"
        raise DocumentError.of(f"broken template: {error.message}", at=at) from error
    except jinja2.TemplateNotFound as error:
        fix = "put it into .sbatchgen/templates, ~/.config/sbatchgen/templates, or the templates of a pack"
        raise DocumentError.of(f"no template '{error.name}'", fix=fix) from error
    except jinja2.TemplateError as error:  # the sandbox's SecurityError among them
        what = str(error.message).removesuffix(".")
        raise DocumentError.of(f"template: {what}", at=_template_line(error) or template) from error
    except Exception as error:  # a template may divide by zero, include itself, or not be UTF-8
        what = f"template: {type(error).__name__}: {error}"
        raise DocumentError.of(what, at=_template_line(error) or template) from error


def _times(left: Any, right: Any) -> Any:
    sizes = [len(each) if isinstance(each, Sequence) else each for each in (left, right)]
    if sizes != [left, right] and sizes[0] * sizes[1] > _MAX_BYTES:
        raise jinja2.TemplateError(_TOO_LARGE)  # before the text or list is made
    return left * right


def _limited(parts: Iterator[str]) -> Iterator[str]:
    size = 0
    for part in parts:
        size += len(part)
        if size > _MAX_BYTES:
            raise jinja2.TemplateError(_TOO_LARGE)
        yield part


def _template_line(error: BaseException) -> str:
    """Return the template and line of an error: jinja2 maps the frames of its traceback to them."""
    place, frame = "", error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if file.endswith(".j2"):
            place = f"{file}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place


def context(resolved: ResolvedJob, *, code: Path) -> dict[str, Any]:
    """Return the variables of the templates."""
    here = "SLURM_SUBMIT_DIR" if resolved.slurm else "PWD"
    exported = exports.names(resolved)
    return (
        _of_runtimes(resolved, here, exported)
        | _paths(resolved, here, code)
        | _site(resolved)
        | _points(resolved)
        | _restarts(resolved)
        | _start(resolved, here, exported)
        | _of_programs(resolved, here)
    )


def _array(resolved: ResolvedJob) -> str:
    """Return the value of --array; "" for a job without elements, or without Slurm."""
    return (resolved.options.array if resolved.slurm else None) or ""


def _job_id(resolved: ResolvedJob) -> str:
    """Return the id by which a script calls its job; in an array the element's, whose job has another id."""
    return "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if _array(resolved) else "$SLURM_JOB_ID"


def _site(resolved: ResolvedJob) -> dict[str, Any]:
    """Return the variables for the directives, and for the setup of the profile before the training."""
    settings = resolved.settings
    setups = [name for name in SETUPS if "_per_" not in name]
    directives = [quoting.directive(name, text) for name, text in resolved.directives.items()]
    return {
        "directives": directives if resolved.slurm else [],
        "other_directives": settings.directives if resolved.slurm else (),
        **{name: launch.setup_lines(getattr(settings, name)) for name in setups},
        "has_setup": any(getattr(settings, name) for name in setups),
        "setup_per_node": launch.node_setup(resolved),
        "module_lines": tuple(_modules(resolved)),
        "master_addr": settings.master_addr or "",
        "keeps_pythonpath": _keeps_pythonpath(resolved),
    }


def _points(resolved: ResolvedJob) -> dict[str, Any]:
    """Return the variables for the elements of an array, and for the points of a sweep."""
    array, sweep = _array(resolved), resolved.sweep
    return {
        "job_id": _job_id(resolved),
        "array": bool(array),
        "array_element": bool(array) and sweep is None and not one_at_a_time(array),
        "points": arguments.points(resolved),
        "point_says": arguments.point_says(resolved),
        "points_carried": sweep is not None and sweep.carried,
    }


def _restarts(resolved: ResolvedJob) -> dict[str, Any]:
    """Return the variables for the stop, the restart and the resume of the job, and for their files."""
    files, sweep = launch.files(resolved), resolved.sweep
    restarts = resolved.restartable or (resolved.programs and resolved.slurm and resolved.options.requeue)
    waits_for_requeue = bool(resolved.requeue_on_node_fail and restarts and resolved.nodes > 1)
    by_itself = not (resolved.consecutive or resolved.programs)
    return {
        "ssh_nodes": bool(resolved.profile.interactive.ssh_nodes),
        "has_outcome": resolved.stoppable or sweep is not None or bool(resolved.programs),
        "counts_restarts": resolved.restartable and not resolved.consecutive,
        "requeue_on_timeout": resolved.stoppable and not resolved.asks_to_stop,
        "requeue_on_node_fail": waits_for_requeue,
        "requeues": launch.requeues(resolved),
        "requeues_early": "again" in files and resolved.runtime.removes_slowly and by_itself,
        "asks_again": "again" in files,
        "continues": resolved.consecutive or "again" in files,
        "reads_exit": "exit" in files,
        "leftovers": files if sweep is None else (*(name for name in files if name != "exit"), "exit"),
        "talk": tuple(exports.talk(resolved)),
        "checkpoints": arguments.checkpoints(resolved),
        "first_checkpoint": "" if resolved.resume in ("auto", "off") else arguments.resume(resolved),
        "resume_args": arguments.resume_args(resolved),
    }


def _start(resolved: ResolvedJob, here: str, exported: Sequence[str]) -> dict[str, Any]:
    """Return the variables for how the processes start: their nodes, their runtime and their command."""
    mounted, meets = launch.mounts(resolved, here), launch.meets(resolved)
    return {
        **{name: getattr(resolved, name) for name in _JOB_ATTRIBUTES},
        "preflight": launch.preflight(resolved, exported, mounted, _job_id(resolved)),
        "excludes": launch.excludes(resolved),
        "node_lines": tuple(exports.for_nodes(resolved)),
        "software_lines": tuple(resolved.runtime.settings(resolved, here)),
        "starts_runtime": tuple(resolved.runtime.starts_by(resolved, mounted)),
        "ends_steps": launch.ends_steps(resolved),
        "meets": meets,
        "one_container_fails": resolved.runtime is RUNTIMES["enroot"] and meets,
        "first_port": launch.first_port(resolved),
        "export_lines": tuple(exports.lines(resolved)),
        "training_title": _title(resolved),
        "second_part": f"{SECOND_PART} every job of {_kind(resolved)}: sbatchgen help script",
        "command_lines": launch.command(resolved, exported, mounted) if not resolved.programs else (),
        "container_lines": launch.contained(resolved, exported, mounted),
        "programs": (),
    }


def _of_runtimes(resolved: ResolvedJob, here: str, exported: Sequence[str]) -> dict[str, Any]:
    """Return the variables of the functions that set up the runtimes of the job and its programs."""
    values = {name: value for runtime in RUNTIMES.values() for name, value in runtime.unset.items()}
    jobs = [resolved, *resolved.jobs]
    for job in jobs:
        given = job.runtime.variables(job, here, exported)
        values |= {name: values.get(name) or value for name, value in given.items()}
    called = {call.split()[0] for job in jobs for call in job.runtime.starts_by(job, ()) if "=" not in call}
    return values | {
        "runtime_parts": [f"mechanics/{name}.sh.j2" for name in sorted(called)],
        "any_container": any(job.runtime.is_container for job in jobs),
        "foreign": [name for name in FOREIGN if not any(keeps(job, name) for job in jobs)],
        "starts_pyxis": resolved.slurm and RUNTIMES["enroot"] in [job.runtime for job in jobs],
    }


def _keeps_pythonpath(resolved: ResolvedJob) -> bool:
    """Return whether PYTHONPATH of a module or of setup stays.

    A virtual environment may use their packages.
    """
    has_packages = bool(resolved.settings.modules or resolved.settings.setup)
    return resolved.runtime.may_use_modules and has_packages


def _of_programs(resolved: ResolvedJob, here: str) -> dict[str, Any]:
    """Return the variables of a job with several programs."""
    if not resolved.programs:
        return {}
    from sbatchgen.jobs.render.supervision import of_job  # of few jobs

    return of_job(resolved, here)


def _paths(resolved: ResolvedJob, here: str, code: Path) -> dict[str, Any]:
    """Return the variables for the files and folders of the job; `here` holds the folder of submission."""
    data = resolved.data if launch.uses_data(resolved) else ""
    paths = (resolved.run_dir, data, resolved.code or "", resolved.snapshot_dir or "")
    names = dict.fromkeys(name for path in paths for name in VARIABLE.findall(path))
    return {
        # bash would follow a link before a slash
        "run_dir": re.sub(r"(?<=[^/])(/\.?)+$", "", absolute(resolved.run_dir, here)),
        "uses_data": launch.uses_data(resolved),
        "data": absolute(resolved.data, here),
        "uses_code": launch.uses_code(resolved),
        "code": absolute(resolved.code, here) if resolved.code else str(code),
        "snapshot": absolute(resolved.snapshot_dir, here) if resolved.snapshot_dir and resolved.slurm else "",
        # variables of a site
        "needed": [name for name in names if name not in _EVERYWHERE and not name.startswith("SLURM_")],
    }


def _kind(resolved: ResolvedJob) -> str:
    """Return the kind of a job in words: the runtime, and what else decides the functions of its script."""
    has = {
        "several programs": bool(resolved.programs),
        "a sweep": resolved.sweep is not None,
        "a chain": resolved.consecutive,
        "restarts": resolved.restartable and not resolved.consecutive,
    }
    words = [f"the runtime {resolved.runtime}", *(name for name, has_it in has.items() if has_it)]
    return f"this kind, with {quoting.listed(words)}"


def _title(resolved: ResolvedJob) -> str:
    title = TITLES[resolved.launcher] if resolved.launcher else resolved.mode.title
    return f"{title}, without variables that name it one of several" * launch.hides_rank(resolved) or title


def _modules(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the commands that load the profile's modules; those that follow each other are loaded at once."""
    modules = resolved.settings.modules
    start = resolved.settings.module_start or ("purge" if modules else "keep")
    if start != "keep":
        yield f"module {start}"
    for uses, group in itertools.groupby(modules, lambda entry: entry.startswith("use ")):
        if uses:
            yield from (f"module use {quoting.path(entry[4:].strip())}" for entry in group)
        else:
            yield f"""module load {quoting.words(tuple(group))} || die "can't load the modules\""""
