"""The layers that a profile brings: its settings, those of the partition, and the options of the mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sbatchgen.inputs.document import Document
from sbatchgen.inputs.layers import Layer, Level, settings_layer
from sbatchgen.inputs.options import NAMES
from sbatchgen.inputs.profile import Partition, Profile
from sbatchgen.inputs.start_settings import JobSettings
from sbatchgen.modes import Mode
from sbatchgen.units import Text

DEFAULT_LAUNCHER = "torchrun"
LAUNCHER_ARGS = "launchers.args"  # of the profile


def partition_of(profile: Profile, name: str) -> Partition:
    """Return what is known of a partition; of the first one of several."""
    return profile.partitions.get(Text(name.partition(",")[0])) or Partition()


def named_partition(layers: Sequence[Layer]) -> str:
    """The partition that a job names; "" if it names none."""
    given = [each.values["options.partition"] for each in layers if "options.partition" in each.values]
    return str(given[-1] if given else "")


def partition_name_of(profile: Profile, layers: Sequence[Layer], mode: Mode) -> str:
    """Return the partition of a job before one is chosen: its own, or the default; "" without one."""
    of_mode = profile.modes[mode.name].partition if mode.name in profile.modes else None
    fallback = of_mode or profile.options.partition or profile.default_partition
    return str(named_partition(layers) or fallback or "")


def profile_layers(
    profile: Document[Profile], partition_name: str, partition: Partition, mode: Mode, layers: Sequence[Layer]
) -> Iterator[Layer]:
    """The profile's own layers: its settings, those of the partition, and the options of the mode."""
    cluster, places = profile.value, profile.places
    facts: dict[str, Any] = {f"extra_options.{name}": value for name, value in cluster.extra_options.items()}
    optional = {
        "template": cluster.template,
        "data": cluster.paths.data,
        "options.partition": cluster.default_partition,
    }
    facts |= {key: value for key, value in optional.items() if value}
    where = {"data": places.get("paths.data", ""), "options.partition": places.get("default_partition", "")}
    yield Layer(Level.PROFILE, facts, {**places, **where})
    first = partition_name.partition(",")[0]
    given = [each.values["launcher"] for each in layers if "launcher" in each.values]
    launcher = given[-1] if given else partition.launcher or cluster.launcher or DEFAULT_LAUNCHER
    uses_gpus = mode.uses_gpus and partition.gpus_per_node != 0
    parts = [("gpu_options.", "options.")] * uses_gpus + [(f"launchers.{launcher}.", "")] * bool(
        mode.launchers
    )
    yield from _with_parts(settings_layer(Level.PROFILE, cluster, places, kind=JobSettings), parts)
    here = settings_layer(Level.PARTITION, partition, places, f"partitions.{first}.", kind=JobSettings)
    yield from _with_parts(here, parts)
    if mode.name in cluster.modes:
        of_mode = settings_layer(Level.PARTITION, cluster.modes[mode.name], places, f"modes.{mode.name}.")
        keys = {key: f"options.{key}" if key in NAMES else key for key in of_mode.values}
        values = {name: of_mode.values[key] for key, name in keys.items()}
        yield Layer(Level.PARTITION, values, {name: of_mode.places[key] for key, name in keys.items()})


def _with_parts(settings: Layer, parts: Sequence[tuple[str, str]]) -> Iterator[Layer]:
    """Yield settings without their parts, then each part that holds for this job: the start of its keys."""
    level, values, places = settings
    plain = {
        key: value for key, value in values.items() if not key.startswith(("gpu_options.", "launchers."))
    }
    yield Layer(level, plain, places)
    for start, instead in parts:
        keys = {key: f"{instead}{key.removeprefix(start)}" for key in values if key.startswith(start)}
        keys |= {key: LAUNCHER_ARGS for key, name in keys.items() if name == "args"}  # the trainer has others
        where = {name: places[key] for key, name in keys.items() if key in places}
        yield Layer(level, {name: values[key] for key, name in keys.items()}, where)
