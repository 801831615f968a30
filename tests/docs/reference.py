"""The generated pages of docs/reference, made from the code: `pytest --update-golden tests/docs` writes them."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import click
import yaml

from sbatchgen.base.keys import keys_of
from sbatchgen.base.texts import Citation, Preflight, Requeue
from sbatchgen.base.units import (
    RELEASES,
    Count,
    Duration,
    Memory,
    Period,
    Port,
    Release,
    Restarts,
    Resume,
    ShellPath,
    TimeLimit,
)
from sbatchgen.check.lint.linter import rules
from sbatchgen.check.rules.rule_page import FOLDER as RULE_PAGES
from sbatchgen.cli import cli
from sbatchgen.cli.jobs import JobCommand
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.flags import GROUPS, JobOption, parameters
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.options import NAMES, SbatchOptions
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.start_settings import Runtimes
from tests.conftest import REPOSITORY, Command, commands_of
from training.config import Config

PAGES = REPOSITORY / "docs" / "reference"
# A cluster of which nothing is known but its GPUs: what a job gets there are the defaults.
BARE = "name: bare\nurl: https://example.org\nchecked: 2026-01-01\ndefault_partition: gpu\npartitions: {gpu: {gpus_per_node: 4}}\n"
KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "number",
    Count: "number, 1 or more",
    Restarts: "number, 0 or more",
    Port: "port, 1024 to 65535",
    Duration: "time",
    TimeLimit: "time, a minute or more",
    Period: "60s, 10m or 2h",
    Memory: "memory",
    Release: "release",
    ShellPath: "path",
    Resume: "auto, off or a path",
    Requeue: "true, false or `expedite`",
    Preflight: "true, false or `exclude`",
}
ENDS = "\n\nMade from the code by `pytest --update-golden tests/docs`.\n"


def pages(command: Command) -> dict[str, str]:
    """Every generated page by its file's name; `command` runs sbatchgen in an empty folder."""
    made: dict[str, Callable[[], Iterator[str]]] = {
        "commands.md": _commands,
        "limits.md": _limits,
        "job.md": lambda: _job(_defaults(command)),
        "profile.md": _profile,
        "profiles.md": _bundled,
        "rules.md": _rules,
        "training.md": _training,
    }
    return {
        name: re.sub(r"\n{3,}", "\n\n", "\n".join(lines())).rstrip() + ENDS for name, lines in made.items()
    }


# --- bundled profiles


def _bundled() -> Iterator[str]:
    yield "# Bundled profiles"
    yield ""
    yield "`--profile NAME` takes one of these. [How far those of centres come](../about/centres.md); `sbatchgen profile sources"
    yield "NAME` lists the lines or the page that each fact is from. A source of GitHub was compared in the commit that is named:"
    yield "[a monthly run](../how-to/publish-a-profile.md#bundled-profiles) reports which of the cited lines have changed since."
    rows = []
    for file in sorted((REPOSITORY / "profiles").glob("*.yaml")):
        profile = read_document(file, Profile).value
        rows.append(
            (
                f"[`{profile.name}`](../../profiles/{file.name})",
                profile.site or "",
                profile.description or "",
                profile.checked,
                ", ".join(_compared_with(profile)),
            )
        )
    yield from _table(("profile", "centre", "machine", "last compared", "with what"), rows)


def _compared_with(profile: Profile) -> list[str]:
    """Return the repositories, with the commits, and the pages that a profile's facts are from."""
    cited = [(source.at, re.fullmatch(Citation.LINES, source.at)) for source in profile.sources]
    links = {
        f"[{match['repository']}@{match['commit'][:7]}](https://github.com/{match['repository']}/tree/{match['commit']})"
        if match
        else f"[{urlsplit(at).hostname}]({at})": None
        for at, match in cited
    }
    return [*links] or [f"[{urlsplit(profile.url).hostname}]({profile.url})"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


# --- commands


def _commands() -> Iterator[str]:
    yield "# Commands and options"
    yield ""
    yield "`render`, `review`, `explain` and `submit` also take every [option of a job](#options-of-a-job). `-h` shows the"
    yield "common ones, `--help-all` all of them."
    yield ""
    yield "    sbatchgen help COMMAND"
    yield "    sbatchgen --version"
    for path, listed in _walk(cli, "sbatchgen"):
        yield from _command(path, listed)
    yield "## Options of a job"
    yield ""
    yield "Each is a key of a [job file](job.md) too. What follows `--` goes to the trainer."
    for group in GROUPS:
        yield ""
        yield f"### {group}"
        of_group = [option for option in parameters() if option.group == group]
        yield from _table(("option", "what"), [_option(option)[:2] for option in of_group])


def _walk(parent: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(parent, click.Group):
        yield path, parent
        return
    for name, inner in sorted(commands_of(parent).items()):
        yield from _walk(inner, f"{path} {name}")


def _command(path: str, shown: click.Command) -> Iterator[str]:
    yield ""
    yield f"## {path}"
    yield ""
    for paragraph in re.split(r"\n\s*\n", (shown.help or "").strip()):
        yield " ".join(paragraph.split())
        yield ""
    context = click.Context(shown, info_name=path)
    yield f"    {path} {' '.join(shown.collect_usage_pieces(context))}"
    yield ""
    own = [
        _option(param)
        for param in shown.get_params(context)
        if isinstance(param, click.Option) and not isinstance(param, JobOption) and param.opts[-1] != "--help"
    ]
    if isinstance(shown, JobCommand):
        yield "With every [option of a job](#options-of-a-job), and:"
    if own:
        yield from _table(("option", "what", "default"), own)


def _option(option: click.Option) -> tuple[str, str, str]:
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts) if flag.startswith("-"))
    value = "" if option.is_flag else option.metavar or _value(option.type)
    what, shown_default = _without_default(option.help or "")
    shown = f"{flags} `{value}`" if value else flags
    default = shown_default or (f"`{option.default}`" if option.show_default else "")
    return f"{shown}{', several times' * option.multiple}", what, default


def _without_default(text: str) -> tuple[str, str]:
    """A help text, and the default in brackets at its end."""
    what, _, default = text.partition(" [default: ")
    return what, default.removesuffix("]")


def _value(kind: Any) -> str:
    """What an option without a metavar takes, in a word."""
    if isinstance(kind, click.Choice):
        return "|".join(kind.choices)
    return "N" if kind.name.startswith("integer") else str(kind.name).upper()


# --- keys of jobs and profiles


def _job(defaults: Mapping[str, str]) -> Iterator[str]:
    yield "# Keys of a job file and sbatchgen.yaml"
    yield ""
    yield "Both files have the same keys. `sbatchgen.yaml` in this folder or a parent holds for all jobs below it; a job file"
    yield "wins over it, and an option of the command line over both. `sbatchgen explain JOB` shows who said what."
    yield "`KEY+` adds to a list that others wrote, as `modules+: [nccl]`; lines of `setup` are shell and run as they are."
    yield "Defaults are those of mode `ddp` on a cluster of which nothing is known but four GPUs a node; a profile may have"
    yield "others. The examples are from [job-example.yaml](job-example.yaml)."
    yield from _how_values_are_written()
    yield from _records(JobSpec, "job-example.yaml", defaults)


def _profile() -> Iterator[str]:
    yield "# Keys of a cluster profile"
    yield ""
    yield "Only `name`, `url` and `checked` are required. What a profile does not say is not judged."
    yield "[Add a cluster in ten minutes](../how-to/add-a-cluster.md) has one to start from; the examples below are from"
    yield "[profile-example.yaml](profile-example.yaml), which has every key."
    yield from _how_values_are_written()
    yield from _records(Profile, "profile-example.yaml", {})


def _how_values_are_written() -> Iterator[str]:
    yield ""
    yield "The key decides what a value is, so quotes are seldom needed: `time: 24:00:00` is a day."
    yield from _table(
        ("type", "how it is written"),
        [
            ("time", "`HH:MM:SS`, `D-HH:MM:SS`, or minutes"),
            ("memory", "a whole number with K, M, G or T; M without a letter"),
            (
                "path",
                "may hold `${USER}`, `${HOME}`, `${SCRATCH}`, `${WORK}`, `${TMPDIR}`, `${SLURM_...}`: the job expands them",
            ),
            ("release", ", ".join(f"`{release}`" for release in RELEASES)),
            ("text", "one line"),
        ],
    )


def _records(kind: type, example: str, defaults: Mapping[str, str]) -> Iterator[str]:
    """A table for each record: the file's own keys first, then those of the keys that hold keys."""
    root = yaml.load((PAGES / example).read_text(), yaml.BaseLoader)  # noqa: S506 - texts as they are written
    waiting: list[tuple[str, type, Any]] = [("", kind, root)]
    seen: set[type] = set()
    while waiting:
        path, record, value = waiting.pop(0)
        if record in seen:
            continue
        seen.add(record)
        yield ""
        yield f"## {'Keys of the file' if not path else f'Keys in {path}'}"
        keys = keys_of(record)
        if issubclass(record, SbatchOptions) and kind is not JobSpec:
            yield ""
            yield "Options of sbatch: [the keys that a job has in `options`](job.md#keys-in-options)."
            keys = {name: key for name, key in keys.items() if name not in NAMES}
            if not keys:
                continue
        if record is Runtimes and kind is JobSpec:
            yield ""
            yield "As [in a profile](profile.md#keys-in-runtimes), and from there on."
            continue
        rows = []
        for key in keys.values():
            type_ = key.type
            rows.append(_row(key, type_, value.get(key.name), defaults, prefix=path))
            if inner := _record_in(type_):
                inside, named = inner
                below = value.get(key.name) or {}
                where = f"{path}.{key.name}" if path else key.name
                waiting.append(
                    (f"{where}.NAME", inside, _together(below)) if named else (where, inside, below)
                )
        yield from _table(("key", "what", "type", "default", "example"), rows)


def _together(several: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of all, with the values of the first that has each."""
    made: dict[str, Any] = {}
    for each in several.values():
        for key, value in each.items():
            both = isinstance(value, dict) and key in made
            made[key] = {**value, **made[key]} if both else made.get(key, value)
    return made


def _row(
    key: Field[Any], kind: Any, example: Any, defaults: Mapping[str, str], *, prefix: str
) -> tuple[str, ...]:
    name = f"--{key.name.replace('_', '-')}" if prefix == "options" else key.name
    text, said = _without_default(key.metadata["help"])
    text, said = _without_default(key.metadata["help"])
    default = defaults.get(name, _default(key)) or said
    required = key.default is MISSING and key.default_factory is MISSING
    shown = (
        "" if example is None or (isinstance(example, dict) and _record_in(kind)) else f"`{_flow(example)}`"
    )
    return (
        f"`{key.name}`{', required' * required}",
        text,
        _type(kind),
        f"`{default}`" if default else "",
        shown,
    )


def _default(key: Field[Any]) -> str:
    value = key.default if key.default_factory is MISSING else key.default_factory()
    if value is MISSING or value is None or is_dataclass(value) or value in ((), {}):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _type(next(kind for kind in arguments if kind is not type(None)))
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in arguments)
    if origin is tuple:
        return f"list: {_type(arguments[0])}"
    if origin is Mapping:
        return f"name: {_type(arguments[1])}"
    return "keys" if is_dataclass(kind) else KINDS.get(kind, "text")


def _record_in(kind: Any) -> tuple[type, bool] | None:
    """The record that a key holds, and whether it holds one by each of several names."""
    if is_dataclass(kind) and isinstance(kind, type):
        return kind, False
    if get_origin(kind) is Mapping and is_dataclass(inner := get_args(kind)[1]) and isinstance(inner, type):
        return inner, True
    return None


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(part)}' for key, part in value.items())}}}"
    return f"[{', '.join(map(_flow, value))}]" if isinstance(value, list) else str(value)


def _defaults(command: Command) -> dict[str, str]:
    """What a job gets without any option: "--time" -> "0-01:00:00", as `explain` names it."""
    Path("bare.yaml").write_text(BARE)
    explained = json.loads(command("explain", "ddp", "--profile", "./bare.yaml", "--format", "json").out)
    words = {"yes": "true", "no": "false"}
    return {
        setting["name"]: words.get(setting["value"], setting["value"])
        for setting in explained["settings"]
        if setting["by"] == "default"
    }


# --- rules


def _rules() -> Iterator[str]:
    """A table for each file of pages, with a link to each rule's page."""
    yield "# Rules of sbatchgen lint"
    yield ""
    yield "Each links to its reasons, with bad and good scripts; `sbatchgen lint --explain SB104` shows the same. A pedantic"
    yield "rule is off unless `--select` names it; `--pedantic` adds all of them."
    yield ""
    yield f"A rule is there because public scripts break it, people reported it, or a manual says so. The scripts are {seen()['scripts']}: those of"
    yield "41 repositories, and those of `tests/fixtures/corpus`; no profile and no release was named, and none was run. Man pages"
    yield "are those of Slurm 26.05 and bash 5.2, files those of torch 2.13."
    for file in sorted(RULE_PAGES.glob("*.md")):
        text = file.read_text()
        yield ""
        yield f"## {text.splitlines()[0].removeprefix('# ')}"
        rows = []
        for rule, title in re.findall(r"^## (SB\d{3}) (.+)$", text, re.MULTILINE):
            anchor = re.sub(r"[^\w -]", "", f"{rule} {title}".lower()).replace(" ", "-")
            link = f"[{rule}](../../sbatchgen/check/rules/pages/{file.name}#{anchor})"
            severity = f"{rules()[rule].severity}{', pedantic' * rules()[rule].pedantic}"
            rows.append((link, severity, title, *_origin(rule)))
        yield from _table(("rule", "severity", "what", "scripts", "source"), rows)


def _origin(rule: str) -> tuple[str, str]:
    """In how many public scripts a rule has findings, and a report of the mistake, or else the manual."""
    source = rules()[rule].report or rules()[rule].source
    if source.startswith("docs/"):
        source = f"[{source}](../{source.removeprefix('docs/')})"
    return seen().get(rule, ""), f"<{source}>" if source.startswith("https:") else source


def seen() -> dict[str, str]:
    """How many public scripts there are, and in how many each rule has findings."""
    lines = (REPOSITORY / "tests/fixtures/seen.tsv").read_text().splitlines()
    return dict(line.split("\t") for line in lines)


# --- the training package


def _training() -> Iterator[str]:
    yield "# Flags of the training package"
    yield ""
    yield "What follows `--` in a job of the bundled trainer; `python3 -m training --help` lists the same. A setting marked"
    yield "*kept* decides what the weights become: a run is not resumed with another value of it, unless"
    yield "`--allow-config-change` is given."
    rows = []
    hints = get_type_hints(Config)
    for key in dataclasses.fields(Config):
        text = key.metadata["help"]
        if text.startswith("=="):  # argparse.SUPPRESS
            continue
        note = re.search(r" ?\(default: (.*?)\)", text)
        default = note[1] if note else f"`{key.default}`" if key.default else ""
        choices = ", ".join(f"`{choice}`" for choice in key.metadata["choices"])
        value = choices or {bool: "", str: "text"}.get(hints[key.name], "number")
        what = text.replace(note[0], "") if note else text
        flag = f"`--{key.name.replace('_', '-')}`"
        rows.append((flag, what, value, default, "*kept*" * key.metadata["critical"]))
    yield from _table(("flag", "what", "value", "default", "resume"), rows)


class Limit(NamedTuple):
    """A line of limits.txt."""

    constant: str  # its module below sbatchgen, a colon and its name
    of: str  # what it bounds
    said: str  # the message, or what happens
    status: str = ""  # the exit status; "" if nothing is left unchecked
    test: str = ""  # the file below tests and the function

    @property
    def value(self) -> float:
        """The limit, as the code has it."""
        module, name = self.constant.split(":")
        return float(getattr(importlib.import_module(f"sbatchgen.{module}"), name))


def limits() -> list[Limit]:
    """Return the limits that are listed."""
    lines = (REPOSITORY / "tests" / "docs" / "limits.txt").read_text().splitlines()
    return [Limit(*re.split(r" \| ", line)) for line in lines if not line.startswith("#")]


def _limits() -> Iterator[str]:
    yield "# Limits"
    yield ""
    yield "What is not checked or not read is reported. The constants are those of folders and modules of sbatchgen."
    yield from _table(
        ("limit", "of", "what is said", "exit status"),
        [
            (_shown(each.value), f"{each.of} (`{each.constant}`)", each.said.replace("{}", "N"), each.status)
            for each in limits()
            if each.test
        ],
    )
    yield ""
    yield "These bound a search or the length of what is printed:"
    yield from _table(
        ("limit", "of", "beyond it"),
        [
            (_shown(each.value), f"{each.of} (`{each.constant}`)", each.said)
            for each in limits()
            if not each.test
        ],
    )


def _shown(value: float) -> str:
    """A limit as people read it: 4,194,304 of bytes is 4 Mi."""
    for power, name in ((40, "Ti"), (20, "Mi"), (10, "Ki")):
        if value >= 1 << power and value % (1 << power) == 0:
            return f"{int(value) >> power:,} {name}"
    return f"{value:,.10g}"
