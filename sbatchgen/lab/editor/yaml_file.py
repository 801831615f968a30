"""What an editor shows in a job or a profile: meanings of keys, origins of values, and choices."""

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
_RULE_KEYS = ("policies", "severity")  # keys whose value has a key for each rule
_OPTION_RECORDS = (SbatchOptions, ModeSettings)  # records whose keys are options of sbatch


@frozen(kw_only=True)
class YamlFile:
    """A job or a profile that is open in an editor."""

    record: Any  # JobSpec or Profile
    lines: Sequence[str]
    cluster: ClusterFacts | None  # the cluster that the file describes or names
    # the values of the resolved job; empty for a profile and for a job with an error
    settings: Sequence[Setting] = ()

    def note(self, line: int, column: int) -> Note | None:
        """Return a note about the key at a place, or the key whose value is there; None without a key."""
        text = self.lines[line - 1]
        # The note is about the whole word, so both ends of the word are looked for.
        while column > 1 and _WORD.fullmatch(text[column - 2]):
            column -= 1
        word = _WORD.match(text, column - 1)
        end = word.end() + 1 if word else column
        at = cursor(self.lines, line, end)
        name = at.key or at.word
        value_type, key = _type_and_field(self.record, (*at.path, name))
        if not name or value_type is None:
            return None
        words = _value_words(value_type)
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
        value_type, _ = _type_and_field(self.record, at.path)
        if not at.key and at.path[-1:] != (ITEM,):
            return choices_with_start(_key_choices(value_type, at.path), at.word, at.column)
        name = at.key or at.path[-2]  # in an item of a list, the path ends with the key of the list and ITEM
        if at.key:
            value_type, _ = _type_and_field(self.record, (*at.path, at.key))
        names_of_keys = {"profile": profiles, "required": LONG_NAMES, "omit": LONG_NAMES}
        texts = names_of_keys.get(name, _value_words(value_type))
        if items := [Choice(text, "value") for text in texts]:
            return choices_with_start(items, at.word, at.column)
        option = "partition" if name == "default_partition" else LONG_NAMES.get(name, name)
        return scripts.value_choices(option, at.word, self.cluster, self._partitions, column)

    @property
    def _partitions(self) -> list[str]:
        """The partitions of the resolved job."""
        value = ",".join(setting.value for setting in self.settings if setting.name == "--partition")
        return value.split(",") if value else []


def _type_and_field(record: Any, path: Iterable[str]) -> tuple[Any, Field[Any] | None]:
    """Return the type of the value at a path of keys, and the field of its key; None and None if unknown.

    `record` is the type of the whole file. A key of a mapping has no field.
    """
    value_type: Any = record
    key: Field[Any] | None = None
    for name in path:
        value_type = without_none(value_type)
        if is_dataclass(value_type):
            key = key_of(value_type, name)
            value_type = key.type if key else None
        elif get_origin(value_type) is Mapping:
            value_type, key = get_args(value_type)[1], None
        elif get_origin(value_type) is tuple and name == ITEM:
            value_type = get_args(value_type)[0]
        else:
            return None, None
    return without_none(value_type), key


def _key_choices(value_type: Any, path: Sequence[str]) -> Iterator[Choice]:
    """Yield the keys that may be written below `path`, in a value of this type."""
    if is_dataclass(value_type):
        for name, key in keys_of(value_type).items():
            yield Choice(f"{name}: ", "key", key.metadata["help"], bool(key.metadata.get("common")))
    elif path[-1:] == ("extra_options",):
        for name in specs(NEWEST).keys() - LONG_NAMES.values():
            yield Choice(f"{name}: ", "key", meanings().get(name, ""))
    elif path[-1:] and path[-1] in _RULE_KEYS:
        for rule in rules().values():
            yield Choice(f"{rule.id}: ", "key", rule.title)
    elif get_origin(value_type) is Mapping:
        for name in _value_words(get_args(value_type)[0]):
            yield Choice(f"{name}: ", "key")


def _value_words(value_type: Any) -> tuple[str, ...]:
    """Return the words that a value of a type can be; () for a type without a list of words."""
    value_type = without_none(value_type)
    if get_origin(value_type) is Literal:
        return get_args(value_type)
    return ("true", "false") if value_type is bool else ()


def _origin_text(setting: Setting) -> str:
    """Return a text about the origin of a value, and the values that it replaces."""
    lines = [f"Here `{setting.value}`, by the {setting.by}: {setting.at}"]
    lines += [f"- replaces `{other.value}` of the {other.by}: {other.at}" for other in setting.overrode]
    return "\n".join([*lines, *(f"- documented: <{url}>" for url in setting.documented)])
