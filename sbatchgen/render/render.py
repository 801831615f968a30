"""Plan -> script: the template, filled with the values of `context`.

Sites rely on the names of these values in templates of their own; a test holds the list.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import marshal
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sbatchgen import __version__, files, quoting
from sbatchgen.errors import DocumentError
from sbatchgen.inputs.search import bundled
from sbatchgen.plan.plan import Plan, one_at_a_time
from sbatchgen.plan.request import Request
from sbatchgen.render import exports, launch

FILTERS = {
    "sh": quoting.word,
    "sh_join": quoting.words,
    "path": quoting.path,
}
RUNTIME_PARTS = {
    "venv": "runtime/venv.sh.j2",
    "conda": "runtime/conda.sh.j2",
    "apptainer": "runtime/image.sh.j2",
    "enroot": "runtime/image.sh.j2",
}
# The title above the command, by launcher or mode.
TITLES = {
    "torchrun": "one torchrun on each node",
    "srun": "one task for each process",
    "spawn": "one task on each node, which starts its processes",
    "dataparallel": "one process with all GPUs",
}
_PROVENANCE = "sbatchgen"
MAX_BYTES = 64 << 20  # of compiled templates


def render(
    plan: Plan, *, code: Path, rerun: Sequence[str], folders: Sequence[Path], cache: Path | None = None
) -> str:
    """The script.

    Args:
        plan: What to run and where.
        code: Folder that holds the bundled package `training`.
        rerun: The command that renders it again, for the script's first comment.
        folders: Folders of templates, in the order of the search, the bundled ones last.
        cache: Folder for compiled templates; to compile them is a third of the time.

    Raises:
        DocumentError: A template is missing or broken.
    """
    environment = environment_of(tuple(folders), cache)
    text = fill(environment, plan, code=code)
    if isinstance(environment.bytecode_cache, _Cache):
        environment.bytecode_cache.save()
    return finish(text, rerun)


def render_request(request: Request) -> str:
    """The script of a request. Raises what `render` does."""
    folders, cache = request.places.folders("templates"), request.places.cache
    return render(request.plan, code=bundled("code"), rerun=request.rerun, folders=folders, cache=cache)


def fill(environment: jinja2.Environment, plan: Plan, *, code: Path) -> str:
    """The plan's template, filled. Raises what `render` does."""
    return _render(environment, plan.template, context(plan, code=code) | {"provenance": _PROVENANCE})


def finish(text: str, rerun: Sequence[str]) -> str:
    """A filled template as a script: single empty lines, and the command that rendered it in a comment."""
    script = text
    while "\n\n\n" in script:
        script = script.replace("\n\n\n", "\n\n")
    again = quoting.words(tuple(rerun))
    said = f"# {_PROVENANCE} {__version__} ({digest(script)}): {again}"
    return script.replace(f"# {_PROVENANCE}", said, 1)


def rendered_by(script: str) -> str:
    """The command in a script's second line that rendered it; "" if there is none."""
    match = re.match(rf"#!.*\n# {_PROVENANCE} \S+ \([0-9a-f]{{12}}\): (.+)", script)
    return match[1] if match else ""


def digest(script: str) -> str:
    """A checksum of everything but the line that holds it: it shows that a script was edited."""
    head, start, rest = script.partition(f"# {_PROVENANCE}")
    body = rest.partition("\n")[2] if start else rest
    return hashlib.sha256((head + body).encode()).hexdigest()[:12]


class _Cache(jinja2.BytecodeCache):
    """Compiled templates, all of an environment in one file.

    They are code that is run, so nobody else may be able to write the file or its folder, and a checksum
    keeps damaged data from Python's `marshal`. A wrong file is ignored and written anew.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._changed = False
        self._compiled: dict[str, tuple[str, bytes]] = {}
        with contextlib.suppress(OSError):
            data = files.read(file, MAX_BYTES) if _is_own(file.parent) and _is_own(file) else b""
            payload = data[len(_sealed(b"")) :]
            if data == _sealed(payload):
                self._compiled = marshal.loads(payload)  # noqa: S302 - the user's own, and as it was written

    def load_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        """Jinja asks for a template; its checksum is that of the template's text."""
        checksum, code = self._compiled.get(bucket.key, ("", b""))
        if checksum == bucket.checksum:
            bucket.code = marshal.loads(code)  # noqa: S302 - see above

    def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        """Jinja has compiled a template."""
        self._compiled[bucket.key] = bucket.checksum, marshal.dumps(bucket.code)
        self._changed = True

    def save(self) -> None:
        """Write the file if there is something new and it can be written."""
        if self._changed:
            self._changed = False
            payload = marshal.dumps(self._compiled)
            with contextlib.suppress(OSError):
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if _is_own(self._file.parent):
                    files.put(self._file, _sealed(payload), mode=0o600)


def _sealed(payload: bytes) -> bytes:
    """The contents of the file: the versions that made it, a checksum, the compiled templates."""
    jinja = getattr(jinja2, "__version__", "")  # Pallets projects are dropping it
    made_by = f"sbatchgen {__version__}, jinja2 {jinja}, python {MAGIC_NUMBER.hex()}\n"
    return made_by.encode() + hashlib.sha256(payload).digest() + payload


def _is_own(path: Path) -> bool:
    """Whether a file or folder, not a link, is the user's, and nobody else can write it."""
    found = path.lstat()  # of a link everybody may write, by its mode
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _cache(folders: Sequence[Path], cache: Path | None) -> _Cache | None:
    if cache is None:
        return None
    name = hashlib.sha256("\0".join(map(str, folders)).encode()).hexdigest()[:16]
    return _Cache(cache / f"templates-{sys.implementation.cache_tag}-{name}")


@functools.cache
def environment_of(folders: tuple[Path, ...], cache: Path | None) -> jinja2.Environment:
    """Jinja, set up for templates of bash in these folders.

    In its sandbox, since a template may come with somebody's repository: it can't run Python of its own.
    """
    loaders = [jinja2.FileSystemLoader(folder) for folder in folders]
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.ChoiceLoader([*loaders, jinja2.PrefixLoader({"bundled": loaders[-1]}, ":")]),
        bytecode_cache=_cache(folders, cache),
        auto_reload=False,  # a template does not change while a command runs
        undefined=jinja2.StrictUndefined,
        finalize=_refuse_none,
        comment_start_string="{##",  # not {#, which stands in bash's ${#array[@]}
        comment_end_string="##}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell text, not HTML: each value passes a quoting filter
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
    except jinja2.TemplateError as error:  # the sandbox's SecurityError among them
        what = str(error.message).removesuffix(".")
        raise DocumentError.of(f"template: {what}", at=_template_line(error) or template) from error
    except Exception as error:  # a template may divide by zero, include itself, or not be UTF-8
        what = f"template: {type(error).__name__}: {error}"
        raise DocumentError.of(what, at=_template_line(error) or template) from error


def _template_line(error: BaseException) -> str:
    """The template and line of an error: jinja2 maps the frames of its traceback to them."""
    place, frame = "", error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if file.endswith(".j2"):
            place = f"{file}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place


def context(plan: Plan, *, code: Path) -> dict[str, Any]:
    """The variables of the templates."""
    array = (plan.options.array if plan.slurm else None) or ""
    element = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    here = "SLURM_SUBMIT_DIR" if plan.slurm else "PWD"
    exported = exports.names(plan)
    mounted = launch.mounts(plan, here)
    talk = launch.files(plan)
    sweep = plan.sweep
    directives = [quoting.directive(name, text) for name, text in plan.directives.items()]
    return {
        "directives": directives if plan.slurm else [],
        "slurm": plan.slurm,
        "stoppable": plan.stoppable,
        "restartable": plan.restartable,
        "has_outcome": plan.stoppable or sweep is not None,
        "requeue_on_timeout": plan.stoppable and not plan.asks_to_stop,
        "requeue_on_node_fail": plan.requeue_on_node_fail and plan.restartable and plan.nodes > 1,
        "asks_again": "again" in talk,
        "reads_exit": "exit" in talk,
        "leftovers": talk if sweep is None else (*(one for one in talk if one != "exit"), "exit"),
        "job_id": element if array else "$SLURM_JOB_ID",
        "points": launch.points(plan),
        "points_carried": sweep is not None and sweep.carried,
        "array_element": bool(array) and sweep is None and not one_at_a_time(array),
        "consecutive": plan.consecutive,
        "array": bool(array),
        # bash would follow a link before a slash
        "run_dir": re.sub(r"(?<=[^/])(/\.?)+$", "", launch.absolute(plan.run_dir, here)),
        "uses_data": launch.uses_data(plan),
        "data": launch.absolute(plan.data, here),
        "uses_code": launch.uses_code(plan),
        "code": launch.absolute(plan.code, here) if plan.code else str(code),
        "snapshot": launch.absolute(plan.snapshot_dir, here) if plan.snapshot_dir and plan.slurm else "",
        "modules": plan.profile.modules,
        "setup": _setup(plan.profile.setup),
        # of a module or of setup: a virtual environment may use their packages
        "keeps_pythonpath": plan.runtime == "venv" and bool(plan.profile.modules or plan.profile.setup),
        "runtime_part": RUNTIME_PARTS.get(plan.runtime, ""),
        "venv": launch.absolute(plan.venv or "", here),
        "conda_root": plan.profile.runtimes.conda.root or "",
        "conda_env": launch.of_submission(plan.conda_env or "", plan),
        "image": launch.absolute(plan.image or "", here) if image_is_file(plan) else plan.image,
        "image_is_file": image_is_file(plan),
        "pyxis": plan.runtime == "enroot",
        "mount_sources": launch.sources(mounted),
        "mounted_text": "".join(one for one in mounted if one in launch.FOLDERS),
        "meets": launch.meets(plan),
        "port_base": plan.profile.network.port_base,
        "port_count": plan.profile.network.port_count,
        "inherited": plan.inherited,
        "export_lines": tuple(exports.lines(plan)),
        "twin_lines": launch.pack(exported) if plan.runtime == "apptainer" else (),
        "max_restarts": plan.max_restarts,
        "training_title": TITLES.get(plan.launcher or plan.mode, "one process"),
        "command_lines": launch.command(plan, exported, mounted),
    }


def _setup(lines: Sequence[str]) -> tuple[str, ...]:
    """The profile's lines of shell; their set -e would end the script before it starts the job again."""
    sets = any(re.search(r"(?:^|[;&|\s])set\s+-", line) for line in lines)
    return (*lines, *(["set +eu +o pipefail # what these lines set"] if sets else []))


def image_is_file(plan: Plan) -> bool:
    """Whether the image is a file, not the address of a registry."""
    image = plan.image or ""
    if plan.runtime == "enroot":  # to pyxis, only this is a path
        return image.startswith(("/", ".", "${"))
    return "://" not in image
