"""Knows options that sbatch itself lacks: options of srun, options of plugins, and old names of options."""

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from sbatchgen.base.errors import nearest
from sbatchgen.base.units import RELEASES
from sbatchgen.check.executables.word_table import rows
from sbatchgen.check.sbatch.option_table import HasArgument, Spec, specs

_NAMES = {kind: words.split() for kind, words in rows(__file__, "known_options.txt")}
SRUN_ONLY = frozenset(_NAMES["srun"])  # options of srun that sbatch lacks
RENAMED = dict(pair.split("=") for pair in _NAMES["renamed"])  # an old name of an option -> the new name


def plugin_specs(names: Iterable[str]) -> tuple[Spec, ...]:
    """Return options of plugins as Specs. A name that ends in = is an option with a value."""
    kinds = {True: HasArgument.REQUIRED, False: HasArgument.NONE}
    return tuple(Spec(name.rstrip("="), "", kinds[name.endswith("=")]) for name in names)


PYXIS = plugin_specs(_NAMES["pyxis"])  # the options of pyxis, a plugin for containers
PYXIS_NAMES = frozenset(spec.name for spec in PYXIS)


@cache
def known_plugins() -> tuple[Spec, ...]:
    """Return the options of well-known plugins other than pyxis."""
    return plugin_specs(name for kind, names in _NAMES.items() if kind.startswith("others") for name in names)


@cache
def _plugin_option() -> re.Pattern[str]:
    """Return the pattern of all options of well-known plugins."""
    return re.compile(f"--(?:{'|'.join(re.escape(spec.name) for spec in known_plugins())})")


def known_plugins_in(text: str) -> tuple[Spec, ...]:
    """Return the options of well-known plugins that a text names."""
    if not _plugin_option().search(text):
        return ()
    return tuple(spec for spec in known_plugins() if f"--{spec.name}" in text)


def is_misspelt_option(name: str, slurm: str) -> bool:
    """Return whether an unknown name is probably a misspelt option of sbatch."""
    letters = name.replace("_", "").replace("-", "")
    known = (option.replace("-", "") for option in specs(slurm))
    return len(letters) >= 5 and bool(nearest(letters, known, 0.8))


def known_specs(slurm: str, plugins: Iterable[Spec] = ()) -> dict[str, Spec]:
    """Return the options that a directive may have, by long name: those of sbatch, pyxis and `plugins`."""
    return specs(slurm) | {spec.name: spec for spec in (*PYXIS, *plugins)}


@lru_cache(maxsize=1024)
def releases_with_option(name: str) -> tuple[str, ...]:
    """Return the releases of Slurm that have an option, oldest first."""
    return tuple(release for release in RELEASES if name in specs(release))
