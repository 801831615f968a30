"""Requests as people write them: drawn from the options and values of public scripts, by how often they have them.

`tests/fixtures/public_options.json` holds the frequencies; benchmarks/values.py --count writes it. Names of a site
are replaced by those of the imaginary cluster of tests/rules/values.py, so that Slurm refuses a request for how it is
written, or for how much it asks.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sbatchgen.check.sbatch.reader import read_script
from tests.conftest import FIXTURES

FREQUENCIES = FIXTURES / "public_options.json"
# Values that only the site, its users or the folder of the job decide.
_OF_SITE = frozenset(
    """
    account chdir cluster clusters comment error export export-file get-user-env input job-name mail-user nodefile
    output parsable qos reservation wait wckey
    """.split()
)
_FEATURES = "abcd"
_TYPE = re.compile(  # of GPUs
    r"(?<![\w.:=-])(?!gpu\b|gres\b|shard\b|[0-9]+\b)[\w.-]+|(?<=gpu:)(?![0-9]+\b)[\w.-]+"
)
_KEYS = "0123456789:-,=[]%"  # what a finger hits instead of a sign of a value


class Request(NamedTuple):
    """A job that somebody asks for.

    Attributes:
        options: The options with their values; None for no value.
        mistyped: The option whose value has a slip of the keyboard; "" for none.
    """

    options: tuple[tuple[str, str | None], ...]
    mistyped: str = ""

    @property
    def shown(self) -> str:
        """The options on a line."""
        return " ".join(_written(*option) for option in self.options)

    @property
    def script(self) -> str:
        """A script that asks for them."""
        lines = "".join(f"#SBATCH {_written(name, value)}\n" for name, value in self.options)
        return f"#!/bin/bash\n{lines}\nhostname\n"


def _written(name: str, value: str | None) -> str:
    if value is None:
        return f"--{name}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'--{name}="{escaped}"'


@cache
def _frequencies() -> tuple[list[list[str]], list[int], dict[str, dict[str, int]]]:
    data = json.loads(FREQUENCIES.read_text())
    return [row[1].split() for row in data["together"]], [row[0] for row in data["together"]], data["values"]


def public_values(option: str) -> tuple[str, ...]:
    """Return the values that public scripts give an option, the most frequent first."""
    often = _frequencies()[2].get(option, {})
    return tuple(sorted(often, key=lambda value: -often[value]))


def requests(seed: int, count: int, *, slips: bool) -> Iterator[Request]:
    """Yield different requests; with slips of the keyboard, one value of each is mistyped."""
    chance = random.Random(f"public {seed} {slips}")  # noqa: S311 (no secret)
    together, weights, values = _frequencies()
    seen: dict[Request, None] = {}
    while len(seen) < count:
        (names,) = chance.choices(together, weights)
        drawn = ((name, *chance.choices([*values[name]], [*values[name].values()])) for name in names)
        options = {name: value or None for name, value in drawn}
        valued = {name: value for name, value in options.items() if value}
        mistyped = chance.choice([*valued]) if slips and valued else ""
        if mistyped:
            options[mistyped] = _mistyped(valued[mistyped], chance)
        if mistyped or not slips:
            seen[Request(tuple(options.items()), mistyped)] = None
    return iter(seen)


def _mistyped(value: str, chance: random.Random) -> str:
    """Return the value with a sign left out, doubled, swapped with the next, replaced, or a blank after it."""
    at = chance.randrange(len(value))
    before, sign, after = value[:at], value[at], value[at + 1 :]
    return chance.choice(
        (
            before + after,
            before + sign * 2 + after,
            before + after[:1] + sign + after[1:],
            before + chance.choice(_KEYS) + after,
            before + sign + " " + after,
        )
    )


def counted(scripts: Iterable[Path]) -> str:
    """Count the options and values of scripts, as JSON; headers that are alike count once."""
    headers: dict[object, list[tuple[str, str]]] = {}
    for script in scripts:
        given = read_script(script.read_bytes(), slurm="24.05").options
        options = [(name, use.value or "") for name, use in sorted(given.items())]
        plain = [(name, _plain(name, value)) for name, value in options if name not in _OF_SITE]
        headers[tuple(options)] = [(name, value) for name, value in plain if value is not None]
    together = Counter(" ".join(name for name, _ in header) for header in headers.values() if header)
    values: dict[str, Counter[str]] = {}
    for name, value in sorted(pair for header in headers.values() for pair in header):
        values.setdefault(name, Counter())[value] += 1
    rows = [[often, names] for names, often in sorted(together.items(), key=lambda item: (-item[1], item[0]))]
    sets = ",\n".join(json.dumps(row) for row in rows)
    counts = ",\n".join(f"{json.dumps(name)}: {json.dumps(often)}" for name, often in values.items())
    return f'{{"together": [\n{sets}\n],\n"values": {{\n{counts}\n}}}}\n'


def _plain(name: str, value: str) -> str | None:
    """Return a value with the names of the imaginary cluster; None for a placeholder."""
    if re.search(r"[<>{}$\\\n]|[^\x20-\x7e]|__|[A-Z]{4}_|FIXME", value) and name not in (
        "mail-type",
        "constraint",
    ):
        return None
    if name == "partition":
        return "gpu,cpu" if "," in value else "gpu"
    if name in ("constraint", "prefer"):
        names = list(dict.fromkeys(re.findall(r"[\w.-]+", re.sub(r"\*[0-9]+", "", value))))[: len(_FEATURES)]
        letters = dict(zip(names, _FEATURES, strict=False))
        return re.sub(r"(?<!\*)\b[A-Za-z_][\w.-]*", lambda word: letters.get(word[0], "a"), value)
    if name in ("nodelist", "exclude"):
        items = re.findall(r"(?:[^\[,]|\[[^\]]*\])+", value)[:8]
        return ",".join(f"n[{at}-{at + 1}]" if "[" in item else f"n{at}" for at, item in enumerate(items, 1))
    if name in ("gres", "gpus", "gpus-per-node", "gpus-per-task"):
        return _TYPE.sub("a100", value)
    return "matlab" if name == "licenses" else value
