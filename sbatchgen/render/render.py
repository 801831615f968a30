"""Plan -> script. Python has decided the numbers, the templates decide the lines, bash knows the rest.

The variables of a template are the flat names of `context`: text, numbers, yes or no, and lists of these.
Sites depend on them; a test holds their list.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import marshal
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sbatchgen import __version__, quoting
from sbatchgen.errors import DocumentError
from sbatchgen.inputs.search import bundled
from sbatchgen.plan.plan import Plan
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
# What runs, in the title above it.
TITLES = {
    "torchrun": "one torchrun on each node",
    "srun": "one task for each process",
    "spawn": "one task on each node, which starts its processes",
    "dataparallel": "one process with all GPUs",
}
_PROVENANCE = "sbatchgen"


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
    """A filled template as a script: no two empty lines together, and the provenance in its comment."""
    script = text
    while "\n\n\n" in script:
        script = script.replace("\n\n\n", "\n\n")
    again = quoting.words(tuple(rerun))
    said = f"# {_PROVENANCE} {__version__} ({digest(script)}): {again}"
    return script.replace(f"# {_PROVENANCE}", said, 1)


def digest(script: str) -> str:
    """Twelve hex digits over everything but the line that holds them: an edited script has other ones."""
    head, start, rest = script.partition(f"# {_PROVENANCE}")
    body = rest.partition("\n")[2] if start else rest
    return hashlib.sha256((head + body).encode()).hexdigest()[:12]


class _Cache(jinja2.BytecodeCache):
    """Compiled templates, all of an environment in one file.

    They are code that is run, so neither the file nor its folder may be writable by others, and a checksum
    keeps what is damaged from Python's `marshal`, which believes anything. If something is wrong with the
    file, templates are compiled as if there was none, and it is written anew.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._changed = False
        self._compiled: dict[str, tuple[str, bytes]] = {}
        data = _read(folder, name)
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
        """Write the file, if there is something new; stay silent where that can't be."""
        if self._changed:
            self._changed = False
            payload = marshal.dumps(self._compiled)
            with contextlib.suppress(OSError):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _write(self._folder, self._name, _sealed(payload))


def _sealed(payload: bytes) -> bytes:
    """Compiled templates as they stand in a file: after what they were made by, and a checksum."""
    jinja = getattr(jinja2, "__version__", "")  # other Pallets projects are giving theirs up
    made_by = f"sbatchgen {__version__}, jinja2 {jinja}, python {MAGIC_NUMBER.hex()}\n"
    return made_by.encode() + hashlib.sha256(payload).digest() + payload


def _read(folder: Path, name: str) -> bytes:
    """What is in a file that only the user can write, as its folder; nothing where there is none."""
    with contextlib.suppress(OSError), _own(os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)) as inside:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a named pipe would wait for a writer
        with _own(os.open(name, flags, dir_fd=inside)) as file:
            return os.read(file, os.fstat(file).st_size)
    return b""


def _write(folder: Path, name: str, data: bytes) -> None:
    """Put a file in the place of another, in a folder that only the user can write.

    Raises:
        OSError: It can't be written, or the folder is not such a one.
    """
    with _own(os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)) as inside:
        new = f"{name}.{os.urandom(8).hex()}"
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=inside)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(data)
            os.replace(new, name, src_dir_fd=inside, dst_dir_fd=inside)
        except BaseException:
            os.unlink(new, dir_fd=inside)
            raise


@contextlib.contextmanager
def _own(descriptor: int) -> Iterator[int]:
    """An open file or folder, closed at the end, that is the user's own and that nobody else can write.

    Raises:
        OSError: It is not.
    """
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError
        yield descriptor
    finally:
        os.close(descriptor)


def _cache(folders: Sequence[Path], cache: Path | None) -> _Cache | None:
    """The compiled templates of these folders, for this Python."""
    if cache is None:
        return None
    name = hashlib.sha256("\0".join(map(str, folders)).encode()).hexdigest()[:16]
    return _Cache(cache, f"templates-{sys.implementation.cache_tag}-{name}")


@functools.cache
def environment_of(folders: tuple[Path, ...], cache: Path | None) -> jinja2.Environment:
    """Jinja, set up for templates of bash, with the folders that they lie in.

    In its sandbox, for a template may come with somebody's repository: it can write a script, and not run
    Python while that is made.
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
    except Exception as error:  # a template can divide by zero, include itself, or not be UTF-8
        what = f"template: {type(error).__name__}: {error}"
        raise DocumentError.of(what, at=_template_line(error) or template) from error


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
    array = (plan.options.array if plan.slurm else None) or ""
    element = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    here = "SLURM_SUBMIT_DIR" if plan.slurm else "PWD"
    exported = exports.names(plan)
    mounted = launch.mounts(plan, here)
    files = launch.files(plan)
    directives = [quoting.directive(name, text) for name, text in plan.directives.items()]
    return {
        "directives": directives if plan.slurm else [],
        "slurm": plan.slurm,
        "stoppable": plan.stoppable,
        "restartable": plan.restartable,
        "requeue_on_timeout": plan.stoppable and not plan.asks_to_stop,
        "requeue_on_node_fail": plan.requeue_on_node_fail and plan.restartable and plan.nodes > 1,
        "asks_again": "again" in files,
        "reads_exit": "exit" in files,
        "leftovers": files,
        "job_id": element if array else "$SLURM_JOB_ID",
        "array_element": bool(array) and not shares_run(array),
        "run_dir": launch.absolute(plan.run_dir, here),
        "uses_data": launch.uses_data(plan),
        "data": launch.absolute(plan.data, here),
        "uses_code": launch.uses_code(plan),
        "code": str(plan.profile.paths.code or code),
        "modules": plan.profile.modules,
        "setup": plan.profile.setup,
        "runtime_part": RUNTIME_PARTS.get(plan.runtime, ""),
        "venv": launch.absolute(plan.venv or "", here),
        "conda_root": plan.profile.runtimes.conda.root or "",
        "conda_env": plan.conda_env or "",
        "image": launch.absolute(plan.image or "", here) if is_file(plan) else plan.image,
        "image_is_file": is_file(plan),
        "mounted_text": "".join(one for one in mounted if one in launch.FOLDERS),
        "meets": launch.meets(plan),
        "port_base": plan.profile.network.port_base,
        "port_count": plan.profile.network.port_count,
        "export_lines": tuple(exports.lines(plan)),
        "twin_lines": launch.pack(exported) if plan.runtime == "apptainer" else (),
        "max_restarts": plan.max_restarts,
        "training_title": TITLES.get(plan.launcher or plan.mode, "one process"),
        "command_lines": launch.command(plan, exported, mounted),
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
