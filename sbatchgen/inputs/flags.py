"""The flags of a job, one for each field of its records, and the layer that a command line makes of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, get_args, get_origin

import click

from sbatchgen.errors import CommandLineError, Problem, did_you_mean
from sbatchgen.inputs.document import parse_scalar
from sbatchgen.inputs.job import JobSpec
from sbatchgen.inputs.layers import Layer, Level
from sbatchgen.inputs.options import NAMES, SbatchOptions

FLAGS = {"exclusive": "--exclusive", "requeue": "--requeue/--no-requeue"}


GROUPS = ("Job", "Launch", "Runtime", "Training", "Slurm")


class JobOption(click.Option):
    """An option of a job: the group of the help that it is in, and whether the short help shows it."""

    def __init__(self, names: list[str], *, group: str, common: bool, **more: Any) -> None:
        super().__init__(names, default=None, **more)
        self.group, self.common = group, common


@functools.cache
def parameters() -> tuple[JobOption, ...]:
    """The options of every command that takes a JOB."""
    of_job = (_of_job(one) for one in fields(JobSpec) if "group" in one.metadata)
    any_key = JobOption(
        ["--set", "settings"],
        group="Job",
        common=False,
        multiple=True,
        metavar="KEY=VALUE",
        help="Any key of a job.",
    )
    return (*of_job, any_key, *map(_of_sbatch, fields(SbatchOptions)))


def _of_job(key: Field[Any]) -> JobOption:
    """The flag of a job's key."""
    about, kind = key.metadata, _of_optional(_hints()[key.name])
    return JobOption(
        [_flag(key), key.name],
        group=about["group"],
        common=about.get("common", False),
        help=about["help"],
        metavar=about.get("metavar"),
        is_flag=kind is bool,
        multiple=get_origin(kind) in (tuple, Mapping),
        shell_complete=completed("profiles") if key.name == "profile" else None,
    )


def _of_sbatch(option: Field[Any]) -> JobOption:
    """The flag of an option of sbatch, which has its name."""
    is_flag = option.name in FLAGS
    return JobOption(
        [FLAGS.get(option.name, _flag(option)), option.name],
        group="Slurm",
        common=option.metadata.get("common", False),
        help=option.metadata["help"],
        metavar=None if is_flag else "VALUE",
        is_flag=is_flag,
        shell_complete=completed("partitions") if option.name == "partition" else None,
    )


def completed(what: str) -> Callable[..., Any]:
    """A function of `completion`, which is loaded once a shell asks."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        from sbatchgen.inputs import completion

        return getattr(completion, what)(ctx, param, incomplete)

    return complete


def _flag(key: Field[Any]) -> str:
    return str(key.metadata.get("flag", f"--{key.name.replace('_', '-')}"))


def layer_of(args: tuple[str, ...], given: Mapping[str, Any]) -> Layer:
    """What the flags say, each parsed by the type of its key; all problems at once."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    problems: list[Problem] = []
    for key, value, flag in _said(given, problems):
        try:
            values[key] = value if isinstance(value, bool) else parse_scalar(value, key_type(key))
            places[key] = flag
        except ValueError as error:
            problems.append(Problem(str(error), flag))
    for key, texts, flag in (("args", args, "after --"), ("binds", given.get("binds", ()), "--bind")):
        kind = get_args(_of_optional(_hints()[key]))[0]
        try:
            if texts:
                values[key] = tuple(parse_scalar(text, kind) for text in texts)
                places[key] = flag
        except ValueError as error:
            problems.append(Problem(str(error), flag))
    if problems:
        raise CommandLineError(problems)
    return Layer(Level.COMMAND_LINE, values, places)


def _said(given: Mapping[str, Any], problems: list[Problem]) -> Iterator[tuple[str, Any, str]]:
    """Key, value and flag of everything that was given; what has no key goes to `problems`."""
    flag_of = {one.name: _flag(one) for one in fields(JobSpec)}
    for key, value in given.items():
        if value is not None and key not in ("profile", "env", "settings", "binds"):
            flag = flag_of.get(key, f"--{key.replace('_', '-')}")
            yield (f"options.{key}" if key in NAMES else key), value, flag
    for flag, texts, prefix in (
        ("--env", given.get("env", ()), "env."),
        ("--set", given.get("settings", ()), ""),
    ):
        for text in texts:
            name, equals, value = text.partition("=")
            if equals:
                yield f"{prefix}{name}", value, f"{flag} {name}"
            else:
                problems.append(Problem(f"{flag} {text} has no '='", flag, f"write {flag} NAME=VALUE"))


def _hints() -> dict[str, Any]:
    return JobSpec.__annotations__


def key_type(key: str) -> Any:
    """The type of a key as in "options.nodes", "env.NAME" or "resume".

    Raises:
        ValueError: No such key, or one that holds no single value.
    """
    head, dot, rest = key.partition(".")
    hints = _hints()
    if head == "options" and dot:
        option_hints = SbatchOptions.__annotations__
        if rest not in option_hints:
            raise ValueError(f"unknown option '{rest}': {did_you_mean(rest, option_hints)}")
        return _of_optional(option_hints[rest])
    if head in ("env", "extra_options") and dot:
        name_kind, kind = get_args(hints[head])
        name_kind.parse(rest)
        return kind
    simple = {f.name for f in fields(JobSpec) if f.default is not MISSING} - {"args", "binds", "profile"}
    if key not in simple:
        raise ValueError(f"unknown key '{key}': {did_you_mean(key, [*simple, 'options.nodes', 'env.NAME'])}")
    return _of_optional(hints[key])


def _of_optional(kind: Any) -> Any:
    return (
        next(one for one in (get_args(kind) or (kind,)) if one is not type(None)) if _is_union(kind) else kind
    )


def _is_union(kind: Any) -> bool:
    return type(None) in get_args(kind)
