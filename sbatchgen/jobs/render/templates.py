"""Renders the templates of scripts with Jinja, whose sandbox limits what templates of other people may do."""

import contextlib
import functools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sbatchgen.base import quoting
from sbatchgen.base.errors import DocumentError
from sbatchgen.base.machine.trust import make_own

FILTERS = {"sh": quoting.word, "sh_join": quoting.words, "path": quoting.path}
# 64 MiB, for a script; slurmctld accepts 4 MiB unless max_script_size is higher (slurm.conf(5)).
_MAX_BYTES = 64 << 20
_TOO_LARGE = f"it makes a script of more than {_MAX_BYTES >> 20} MiB"

# Former names of the bundled template's blocks, each with the block that now has the same lines.
_OLD_BLOCKS = {
    "shell": "die",
    "environment": "exports",
    "checkpoint": "resume",
    "stop": "signals",
    "training": "train",
    "outcome": "start_again",
}
_OLD_BLOCK = re.compile(rf"{{%[-+]?\s*block\s+({'|'.join(_OLD_BLOCKS)})\b")  # "{% block training"

# Statements that store a template's text as a value, which the template can then change:
# "{% set greeting %}", "{% macro hello(", "{% filter upper", "self.train()".
_STORES_TEXT = re.compile(
    r"{%[-+]?\s*(?:set\s+[\w.]+\s*[^=\s\w.]|(?:filter|macro|call|import|from)\b|for\b[^}]*\brecursive\b)"
    r"|\b(?:self|super)\b"
)
_SUPER = re.compile(r"{{[-+]?\s*super\(\)\s*[-+]?}}")  # "{{ super() }}", which does not change the text


class _Loader(jinja2.FileSystemLoader):
    """A loader of templates that refuses huge templates, and former blocks of the bundled template."""

    keeps_text = False  # whether one of the loaded templates stores its text as a value

    def get_source(self, environment: jinja2.Environment, template: str) -> Any:
        """Return a template's text, its file, and a function that says whether the file is unchanged."""
        with contextlib.suppress(OSError):
            if Path(self.searchpath[0], template).stat().st_size > _MAX_BYTES:
                raise jinja2.TemplateError(_TOO_LARGE)
        text, file, is_unchanged = super().get_source(environment, template)
        self.keeps_text |= bool(_STORES_TEXT.search(_SUPER.sub("", text)))
        if (old := _OLD_BLOCK.search(text)) and re.search(r"{%[-+]?\s*extends\b", text):
            what = f"block '{old[1]}' is now '{_OLD_BLOCKS[old[1]]}': see sbatchgen help script"
            line = text.count("\n", 0, old.start()) + 1
            raise jinja2.TemplateSyntaxError(what, line, template, file)
        return text, file, is_unchanged


class _Cache(jinja2.FileSystemBytecodeCache):
    """The cache of compiled templates; files that can't be read or written are ignored."""

    def load_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        """Read a compiled template; a damaged file is compiled again."""
        try:
            super().load_bytecode(bucket)
        except Exception:  # noqa: BLE001 - pickle may raise any exception for a damaged file
            bucket.reset()

    def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        """Write a compiled template; a full or read-only disk is not a failure."""
        with contextlib.suppress(OSError):
            super().dump_bytecode(bucket)


def keeps_text(environment: jinja2.Environment) -> bool:
    """Return whether one of the templates loaded so far stores its text as a value."""
    loaders = getattr(environment.loader, "loaders", ())  # mypy does not know that it is a ChoiceLoader
    return any(getattr(loader, "keeps_text", False) for loader in loaders)


@functools.cache
def environment_of(
    folders: tuple[Path, ...], cache: Path | None, extension: type[Any] | None = None
) -> jinja2.Environment:
    """Return Jinja's environment for templates of bash in these folders, the bundled folder last.

    `cache` is the folder for compiled templates, and `extension` the extension that marks lines for `trace`.
    The environment is Jinja's sandbox, because a template may come from somebody else's repository and must
    not run Python code.
    """
    loaders = [_Loader(folder) for folder in folders]
    name = "marked" if extension else "templates"
    compiled = cache / f"{name}-{sys.implementation.cache_tag}" if cache else None
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.ChoiceLoader([*loaders, jinja2.PrefixLoader({"bundled": loaders[-1]}, ":")]),
        # compiled templates are run as code, so no other user may be able to change them
        bytecode_cache=_Cache(str(compiled)) if compiled and make_own(compiled) else None,
        auto_reload=False,  # templates do not change while a command runs
        extensions=[extension] if extension else (),
        undefined=jinja2.StrictUndefined,
        finalize=_refuse_none,
        comment_start_string="{##",  # {# occurs in bash's ${#array[@]}
        comment_end_string="##}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the text is bash, not HTML; a filter quotes each value
    )
    environment.filters |= FILTERS
    environment.intercepted_binops = frozenset("*")  # Jinja then takes `*` from the table
    environment.binop_table["*"] = _limited_product
    return environment


def _refuse_none(value: Any) -> Any:
    """Return the value that a template writes; raises UndefinedError for None."""
    if value is None:
        raise jinja2.UndefinedError("a value that is not set was written into the script")
    return value


def render_template(environment: jinja2.Environment, template: str, values: Mapping[str, Any]) -> str:
    """Return the text of a template with these variables; raises DocumentError for each kind of failure."""
    try:
        return "".join(_limited_text(environment.get_template(template).generate(values)))
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


def _limited_product(left: Any, right: Any) -> Any:
    """Return the product of two values; raises TemplateError for a text or list larger than a script."""
    # For "ab" * 3, the sizes are 2 and 3. A product of two numbers is not limited.
    sizes = [len(part) if isinstance(part, Sequence) else part for part in (left, right)]
    has_sequence = sizes != [left, right]
    if has_sequence and sizes[0] * sizes[1] > _MAX_BYTES:
        raise jinja2.TemplateError(_TOO_LARGE)
    return left * right


def _limited_text(parts: Iterator[str]) -> Iterator[str]:
    """Yield the parts of a text; raises TemplateError if they are larger than a script together."""
    size = 0
    for part in parts:
        size += len(part)
        if size > _MAX_BYTES:
            raise jinja2.TemplateError(_TOO_LARGE)
        yield part


def _template_line(error: BaseException) -> str:
    """Return the `file:line` of the innermost template in an error's traceback; "" if it has no template."""
    place, frame = "", error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if file.endswith(".j2"):
            place = f"{file}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place
