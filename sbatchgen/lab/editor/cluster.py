"""Gives the editor facts about a cluster: its limits with their places in the profile, and names to offer."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.base.keys import keys_of
from sbatchgen.base.quoting import counted, first_names, visible
from sbatchgen.base.units import Text
from sbatchgen.check.cluster_facts import Qos
from sbatchgen.jobs.inputs.completion import known_names
from sbatchgen.jobs.inputs.document import Document, as_data
from sbatchgen.jobs.inputs.options import VALUES
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.inputs.search import short_place

MAX_PARTITIONS = 8  # partitions whose limits are shown
_MAX_ITEMS = 8  # items of a list that are shown
# LIMITS["partition"]: an option of sbatch -> a pattern for the keys of a partition that limit the option.
# LIMITS["profile"]: an option of sbatch -> a pattern for other keys of the profile that do.
LIMITS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("limits.yaml").read_text())


@frozen(kw_only=True)
class ClusterFacts:
    """The facts that the editor shows about the cluster of a profile."""

    document: Document[Profile]  # the profile, and the place of each of its keys
    folder: Path  # the folder of the script or job; places are shown relative to this folder

    @property
    def profile(self) -> Profile:
        """The profile."""
        return self.document.value

    def limits(self, option: str, value: str, partitions: Iterable[str]) -> list[str]:
        """Return the cluster's limits for an option of sbatch as lines of Markdown.

        `option` is the long name. For --partition and --qos, the lines are about the partitions or the QOS in
        `value`. For any other option, they are about `partitions`, or else about the default partition, or
        else about all partitions.
        """
        profile = self.profile
        named = [name for name in partitions if name in profile.partitions]
        default = [profile.default_partition] if profile.default_partition in profile.partitions else []
        shown = [*map(str, named or default or [*profile.partitions][:MAX_PARTITIONS])]
        profile_keys = LIMITS["profile"].get(option)
        lines = [*self._key_lines("", profile_keys)] if profile_keys else []
        if option == "partition":
            for name in [name for name in value.split(",") if name in profile.partitions] or shown:
                lines += [*self._key_lines(f"partitions.{name}.", r"[^.\[]+", Partition)]
        elif option in LIMITS["partition"]:
            for name in shown:
                lines += [*self._key_lines(f"partitions.{name}.", LIMITS["partition"][option], Partition)]
        if option == "qos" and value:
            lines += [*self._key_lines(f"qos.{value}.", r"[^.\[]+", Qos)]
        return lines

    def names(self, option: str, partitions: Iterable[str] = ()) -> dict[str, str]:
        """Return the values that an option may have on this cluster, each with a short description."""
        profile = self.profile
        if option in ("gres", "gpus", "gpus-per-node", "gpus-per-task"):
            gpus = {
                f"{kind}:{count}".removeprefix(":"): f"{name}: {count} a node"
                for name, partition in profile.partitions.items()
                for kind, count in partition.whole_gpus.items()
            }
            return {f"gpu:{name}": text for name, text in gpus.items()} if option == "gres" else gpus
        kind = VALUES.get("constraint" if option == "prefer" else option)
        if not kind:
            return {}
        return {name: self._description(kind, name) for name in known_names(profile, kind, partitions)}

    def _description(self, kind: str, name: str) -> str:
        """Return a short description of a partition, a QOS, a license or another name of the cluster.

        `kind` is the kind of name, such as "partitions" or "qos".
        """
        if kind == "partitions":
            partition = self.profile.partitions[Text(name)]
            gpus = [
                f"{count} {gpu_type or 'GPUs'} a node"
                for gpu_type, count in partition.whole_gpus.items()
                if count
            ]
            limit = f"up to {partition.time_max}" if partition.time_max else ""
            state = partition.state if partition.state != "up" else ""
            return ", ".join(filter(None, (*gpus, limit, state)))
        if kind == "licenses":
            return counted((self.profile.licenses or {})[Text(name)], "license")
        limits = as_data(self.profile.qos[Text(name)]) if kind == "qos" and name in self.profile.qos else {}
        return ", ".join(f"{key}: {value}" for key, value in limits.items())

    def source(self, key: str) -> str:
        """Return the web address where the cluster's documentation describes a key; "" without an address.

        `key` is a path such as `partitions.gpu.time_max`. The key `sources` of a profile names addresses. The
        address of `partitions.gpu` holds for all keys below it that have no address of their own.
        """
        lengths_and_addresses = [
            (len(described_key), source.at.url)
            for source in self.profile.sources
            for described_key in source.keys
            if f"{key}.".startswith(f"{described_key}.")
            and self._record_path(described_key) in ("", self._record_path(key))
        ]
        _, address = max(lengths_and_addresses, default=(0, ""))
        return address

    def _record_path(self, key: str) -> str:
        """Return the path of the partition or QOS that has a key, such as `partitions.gpu`; "" without one.

        Names may have dots: `partitions.gpu.large.time_max` belongs to gpu.large if there is a gpu.large.
        """
        paths = (path for path in self._record_paths if f"{key}.".startswith(f"{path}."))
        return max(paths, key=len, default="")

    @cached_property
    def _record_paths(self) -> frozenset[str]:
        """The paths of all partitions and QOS, such as `partitions.gpu` and `qos.long`."""
        paths = [f"partitions.{name}" for name in self.profile.partitions]
        return frozenset((*paths, *(f"qos.{name}" for name in self.profile.qos)))

    def _key_lines(self, prefix: str, pattern: str, record: Any = Profile) -> Iterator[str]:
        """Yield a line of Markdown for each key below `prefix` whose name matches `pattern`.

        `prefix` is "" or a path such as `partitions.gpu.`. `record` is the class that has the keys.
        """
        # The shapes of a partition are its kinds of nodes, and have limits of their own.
        path_pattern = re.compile(rf"{re.escape(prefix)}(?P<key>(?:shapes\[\d+\]\.)?(?:{pattern}))")
        for path, place_of_path in self.document.places.items():
            if match := path_pattern.fullmatch(path):
                at = place_of_path
                if path in self._record_paths:  # another partition or QOS, whose name begins with this one's
                    if match["key"] not in keys_of(record) or self._value(prefix, match["key"]) is None:
                        continue
                    at = self.document.places[prefix[:-1]]  # the document has no place of the key itself
                data = as_data(self._value(prefix, match["key"]))
                value = data if isinstance(data, str) else json.dumps(data)
                value = first_names([*map(str, data)], _MAX_ITEMS) if isinstance(data, list) else value
                key = keys_of(record).get(match["key"].rpartition(".")[2])
                help_text = f": {key.metadata['help']}" if key else ""
                place, url = short_place(at, self.folder), self.source(path)
                documented = f", [documented]({url})" if url else ""
                name = path.removeprefix("partitions.")
                yield f"- `{_plain(name)}: {_plain(value)}`{help_text} ({_plain(place)}{documented})"

    def _value(self, prefix: str, path: str) -> Any:
        """Return the value of a key such as `shapes[0].nodes` below `prefix`, which is as in `_key_lines`."""
        value: Any = self.profile
        if prefix:
            kind, name = prefix[:-1].split(".", 1)
            value = getattr(value, kind)[name]
        for key, index in re.findall(r"(\w+)(?:\[(\d+)\])?", path):
            value = getattr(value, keys_of(value)[key].name)
            value = value[int(index)] if index else value
        return value


def _plain(text: str) -> str:
    """Return a text that can be written between backticks in Markdown."""
    return visible(text).replace("`", "'")
