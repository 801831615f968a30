"""The flags of the commands that take a JOB. Each sets a key of a job, and all flags together are a layer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from sbatchgen.base.errors import CommandLineError, Problem, did_you_mean
from sbatchgen.base.keys import key_of, keys_of, without_none
from sbatchgen.base.units import ShellPath
from sbatchgen.jobs.inputs import completion
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.options import SbatchOptions

if TYPE_CHECKING:
    from sbatchgen.jobs.inputs.layers import Layer

GROUPS = ("Job", "Launch", "Runtime", "Training", "Slurm")
_NOT_FOR_SET = ("profile", "lint")  # keys of a job YAML that --set refuses
_JOB_TYPES = {key.name: without_none(key.type) for key in fields(JobSpec)}
_OPTION_TYPES = {key.name: without_none(key.type) for key in fields(SbatchOptions)}


class JobOption(click.Option):
    """A flag that sets a key of a job, such as "options.nodes"; "" for --set, which sets any key.

    `group` is the flag's heading in the help. The short help shows only flags that are `common`.
    """

    def __init__(
        self, names: list[str], *, key: str, group: str, common: bool = False, **click_arguments: Any
    ) -> None:
        super().__init__(names, default=None, **click_arguments)
        self.key, self.group, self.common = key, group, common


@functools.cache
def parameters() -> tuple[JobOption, ...]:
    """Return the flags of every command that takes a JOB."""
    job_flags = (_option(field, field.name) for field in fields(JobSpec) if "group" in field.metadata)
    any_key = JobOption(
        ["--set", "settings"],
        key="",
        group="Job",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any key of a job YAML, such as --set options.nodes=2.",
    )
    sbatch_flags = (_option(field, f"options.{field.name}") for field in fields(SbatchOptions))
    any_option = JobOption(
        ["--sbatch"],
        key="extra_options",
        group="Slurm",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Any option of sbatch by its long name, such as hold or nice=100.",
    )
    return (*job_flags, any_key, *sbatch_flags, any_option)


def _option(field: Field[Any], key: str) -> JobOption:
    """Return the flag that the metadata of a field describes (see `described`)."""
    metadata, kind = field.metadata, without_none(field.type)
    choices = "|".join(get_args(kind)) if get_origin(kind) is Literal else "VALUE"
    metavar = metadata.get("metavar", choices)
    is_switch = kind is bool or "/" in metadata.get("flag", "")  # such as --requeue/--no-requeue
    return JobOption(
        [metadata.get("flag", f"--{field.name.replace('_', '-')}"), field.name],
        key=key,
        group=metadata.get("group", "Slurm"),
        common=metadata.get("common", False),
        help=metadata["help"],
        metavar=None if is_switch else metavar,
        is_flag=is_switch,
        multiple=get_origin(kind) in (tuple, Mapping),
        shell_complete=_completion(metadata.get("values"), metavar.split("|"), is_path=kind is ShellPath),
    )


def _completion(values: str | None, metavars: list[str], *, is_path: bool) -> Callable[..., Any] | None:
    """Return the function that completes a flag's value; None if nothing can be completed.

    It completes names in the profile of the kind `values`, such as "accounts". Otherwise it completes the
    words among `metavars`, which are those in lower case such as "auto", or names of files.
    """
    words = [word for word in metavars if word.islower()]
    complete_file = completion.files if is_path or {"FILE", "PATH"} & {*metavars} else None

    def complete_word(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        matching = completion.matching_names(words, incomplete)
        return matching or (complete_file(ctx, param, incomplete) if complete_file else [])

    if values:
        return completion.profiles if values == "profiles" else partial(completion.names_in_profile, values)
    return complete_word if words else complete_file


def layer_of(args: tuple[str, ...], job_options: Mapping[str, Any]) -> Layer:
    """Return the layer of the flags on a command line, each value parsed by the type of its key.

    `args` are the trainer's arguments after `--`. `job_options` has the value of each flag of `parameters` by
    name; None for a flag that was not typed. Raises CommandLineError with all problems.
    """
    from sbatchgen.jobs.inputs.layers import Layer, Level

    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    problems: list[Problem] = []
    for key, value, flag in _settings_of_flags(args, job_options):
        if key is None:
            problems.append(Problem(f"{flag} has no '='", flag.split()[0], "write --set NAME=VALUE"))
            continue
        try:
            parsed = _parsed(key, value)
            adds_to_list = key.endswith("+") and key in values  # --set setup+=A --set setup+=B
            values[key] = (*values[key], *parsed) if adds_to_list else parsed
            places[key] = flag
        except ValueError as error:
            problems.append(Problem(str(error), flag, getattr(error, "fix", "")))
    if problems:
        raise CommandLineError(problems)
    return Layer(Level.COMMAND_LINE, values, places)


def _settings_of_flags(
    args: tuple[str, ...], job_options: Mapping[str, Any]
) -> Iterator[tuple[str | None, Any, str]]:
    """Yield key, value and flag of each setting; the key is None for a --set without NAME=VALUE."""
    for option in parameters():
        value, flag = job_options.get(str(option.name)), option.opts[0]
        if value is None or value == () or option.name == "profile":
            continue
        if option.name not in ("env", "step", "settings", "sbatch"):
            yield option.key, value, flag
            continue
        for text in value:  # NAME=VALUE, or only NAME
            name, equals, rest = text.partition("=")
            key = f"{option.key}.{name}".removeprefix(".") if equals or option.key else None
            if option.name == "sbatch":
                key = _key_of_sbatch(name.removeprefix("--"), has_value=bool(equals))
            value_without_equals = "true" if option.name in ("step", "sbatch") else None
            yield key, rest if equals else value_without_equals, f"{flag} {name}"
    if args:
        yield "args+", args, "after --"


def _key_of_sbatch(name: str, *, has_value: bool) -> str:
    """Return the key of an option of --sbatch: in `options` if it is known, else in `extra_options`."""
    option = name.replace("-", "_")
    # a bool takes no value, and any other option needs one
    is_known = option in _OPTION_TYPES and has_value != (_OPTION_TYPES[option] is bool)
    return f"options.{option}" if is_known else f"extra_options.{name}"


def _parsed(key: str, value: Any) -> Any:
    """Return a flag's value as the type of its key; raises ValueError for an unknown key or a wrong value."""
    from sbatchgen.jobs.inputs.document import (  # not for completion, which reads no YAML
        parse_scalar,
        parse_value,
    )

    if isinstance(value, bool):
        return value
    kind = key_type(key)  # before the test for None, because it refuses unknown keys
    if isinstance(value, tuple):
        return tuple(parse_scalar(text, get_args(kind)[0]) for text in value)
    return None if value is None else parse_value(value, kind)


def key_type(key: str) -> Any:
    """Return the type of a key such as "options.nodes", "env.NAME", "network.port_base" or "setup+".

    Raises ValueError: there is no such key, or the key holds a record.
    """
    kind: Any = JobSpec
    names = key.split(".")
    for index, name in enumerate(names):
        if get_origin(kind) is Mapping:
            name_type, kind = get_args(kind)
            name_type.parse(".".join(names[index:]))  # refuses a wrong name, such as "env.1A"
            return without_none(kind)
        field = key_of(kind, name) if is_dataclass(kind) and key not in _NOT_FOR_SET else None
        if field is None and index and names[0] != "options" and is_dataclass(kind):
            where = ".".join(names[:index])
            raise ValueError(f"unknown key '{name}' in {where}: {did_you_mean(name, keys_of(kind))}")
        if field is None:
            raise ValueError(_message_for_unknown_key(key, names))
        kind = without_none(field.type)
    if is_dataclass(kind) or get_origin(kind) is Mapping:
        raise ValueError(f"'{key}' holds several values: write {key}.NAME=VALUE")
    return kind


def _message_for_unknown_key(key: str, names: list[str]) -> str:
    """Return the message for an unknown key of --set. `names` are the parts of the key between its dots."""
    if names[0] == "options" and len(names) == 2:
        return f"unknown option '{names[1]}': {did_you_mean(names[1], _OPTION_TYPES)}"
    if (option := key.replace("-", "_")) in _OPTION_TYPES:
        return f"unknown key '{key}': write options.{option}=VALUE"
    known = [name for name in _JOB_TYPES if name not in _NOT_FOR_SET]
    return f"unknown key '{key}': {did_you_mean(key, [*known, 'options.nodes', 'env.NAME'])}"
