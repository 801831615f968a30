"""A job or a profile in an editor: the meanings of its keys, the origins of its values, and the choices."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, is_dataclass
from typing import Any, Literal, get_args, get_origin

from sbatchgen.base.frozen import frozen
from sbatchgen.base.keys import key_of, keys_of, without_none
from sbatchgen.base.units import NEWEST
from sbatchgen.check.lint.linter import rules
from sbatchgen.check.sbatch.option_table import specs
from sbatchgen.jobs.inputs.options import LONG_NAMES, SbatchOptions
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.start_settings import ModeSettings
from sbatchgen.jobs.resolved.origins import Setting
from sbatchgen.lab.editor import script_file as scripts
from sbatchgen.lab.editor.cluster import ClusterFacts
from sbatchgen.lab.editor.cursor import ITEM, Choice, Choices, Note, choices_with_start, cursor
from sbatchgen.lab.editor.script_file import meanings

_WORD = re.compile(r"[\w.-]*")
_RULE_KEYS = ("policies", "severity")
_OPTION_RECORDS = (SbatchOptions, ModeSettings)


@frozen(kw_only=True)
class YamlFile:
    """A job or a profile that is open in an editor."""

    record: Any  # JobSpec or Profile
    lines: Sequence[str]
    cluster: ClusterFacts | None  # the cluster that the file describes or names
    # the values of the resolved job; empty for a profile and for a wrong job
    settings: Sequence[Setting] = ()

    def note(self, line: int, column: int) -> Note | None:
        """Return a text about the key at a place, or the key whose value is there; None without a key."""
        text = self.lines[line - 1]
        while column > 1 and _WORD.fullmatch(text[column - 2]):
            column -= 1
        word = _WORD.match(text, column - 1)
        end = word.end() + 1 if word else column
        at = cursor(self.lines, line, end)
        name = at.key or at.word
        kind, key = _type_and_field(self.record, (*at.path, name))
        if not name or kind is None:
            return None
        words = _value_words(kind)
        texts = [f"**{name}**: {key.metadata['help']}" if key else ""]
        texts += [f"One of {', '.join(words)}."] if words else []
        if at.path[-1:] == ("extra_options",) or _type_and_field(self.record, at.path)[0] in _OPTION_RECORDS:
            value = text[column - 1 : end - 1] if at.key else ""
            option = LONG_NAMES.get(name, name)
            spec = specs(NEWEST).get(option)
            texts = [scripts.option_text(option, spec, value, self.cluster, self._partitions)]
        if self.cluster and self.record is Profile:
            url = self.cluster.source(".".join((*at.path, name)))
            texts += [f"[documented]({url})"] if url else []
        flag = f"--{LONG_NAMES.get(name, name)}"
        texts += [_origin_text(setting) for setting in self.settings if setting.name in (name, flag)]
        if name in ("mode", "profile") and self.settings:
            others = [setting for setting in self.settings if setting.by != "job"]
            elsewhere = [f"- `{setting.name} {setting.value}`: {setting.at}" for setting in others]
            texts += ["Values that the job has from elsewhere:", "\n".join(elsewhere)]
        return Note("\n\n".join(filter(None, texts)), line, column, end)

    def choices(self, line: int, column: int, profiles: Iterable[str]) -> Choices:
        """Return the choices at a place: keys, or values of a key."""
        at = cursor(self.lines, line, column)
        kind, _ = _type_and_field(self.record, at.path)
        if not at.key and at.path[-1:] != (ITEM,):
            return choices_with_start(_key_choices(kind, at.path), at.word, at.column)
        name = at.key or at.path[-2]
        if at.key:
            kind, _ = _type_and_field(self.record, (*at.path, at.key))
        names = {"profile": profiles, "required": LONG_NAMES, "omit": LONG_NAMES}.get(
            name, _value_words(kind)
        )
        if items := [Choice(text, "value") for text in names]:
            return choices_with_start(items, at.word, at.column)
        option = "partition" if name == "default_partition" else LONG_NAMES.get(name, name)
        return scripts.values(option, at.word, self.cluster, self._partitions, column)

    @property
    def _partitions(self) -> list[str]:
        """The partitions of the resolved job."""
        value = ",".join(setting.value for setting in self.settings if setting.name == "--partition")
        return value.split(",") if value else []


def _type_and_field(kind: Any, path: Iterable[str]) -> tuple[Any, Field[Any] | None]:
    """Return the type of the value at a path of keys, and the field of its key; None for what is not known.

    `kind` is the type of the whole file.
    """
    key: Field[Any] | None = None
    for name in path:
        kind = without_none(kind)
        if is_dataclass(kind):
            key = key_of(kind, name)
            kind = key.type if key else None
        elif get_origin(kind) is Mapping:
            kind, key = get_args(kind)[1], None
        elif get_origin(kind) is tuple and name == ITEM:
            kind = get_args(kind)[0]
        else:
            return None, None
    return without_none(kind), key


def _key_choices(kind: Any, path: Sequence[str]) -> Iterator[Choice]:
    """Yield the keys that may be written below `path`, in a value of the type `kind`."""
    if is_dataclass(kind):
        for name, key in keys_of(kind).items():
            yield Choice(f"{name}: ", "key", key.metadata["help"], bool(key.metadata.get("common")))
    elif path[-1:] == ("extra_options",):
        for name in specs(NEWEST).keys() - LONG_NAMES.values():
            yield Choice(f"{name}: ", "key", meanings().get(name, ""))
    elif path[-1:] and path[-1] in _RULE_KEYS:
        for rule in rules().values():
            yield Choice(f"{rule.id}: ", "key", rule.title)
    elif get_origin(kind) is Mapping:
        for name in _value_words(get_args(kind)[0]):
            yield Choice(f"{name}: ", "key")


def _value_words(kind: Any) -> tuple[str, ...]:
    """Return the words that a value of a type can be; () for a type without a list of words."""
    kind = without_none(kind)
    if get_origin(kind) is Literal:
        return get_args(kind)
    return ("true", "false") if kind is bool else ()


def _origin_text(setting: Setting) -> str:
    """Return a text about the origin of a value, and the values that it replaces."""
    lines = [f"Here `{setting.value}`, by the {setting.by}: {setting.at}"]
    lines += [f"- replaces `{other.value}` of the {other.by}: {other.at}" for other in setting.overrode]
    return "\n".join([*lines, *(f"- documented: <{url}>" for url in setting.documented)])
