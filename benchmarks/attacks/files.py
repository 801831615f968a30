"""Attacks on checkpoints, on scripts that are adopted, and on names that a shell completes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

from benchmarks.attacks.place import SBATCHGEN, Place
from sbatchgen.base.errors import SbatchgenError
from sbatchgen.base.quoting import is_plain
from sbatchgen.lab.adopt.adoption import adopt
from tests.lint.test_scripts import PIECES, SEEDS
from tests.training import damages


def checkpoints(place: Place) -> Iterator[str]:
    """Damaged checkpoints, and each bit of the directory flipped: none loads with other values."""
    for damaged in (damages.each_bit_of_the_directory(), damages.at_random(place.times(3000))):
        for kind, count in damaged.items():
            yield from ["" if kind in {"refused", "the same"} else f"{kind} loads something else"] * count


def adopts(place: Place) -> Iterator[str]:
    """Mutated scripts, and some with lines by the thousand: adopted or refused, in five seconds of CPU."""
    seeds = [data for data in SEEDS if data.startswith(b"#!")]
    for _ in range(place.times(1000)):
        data = place.chance.choice(seeds)
        for _ in range(place.chance.randint(0, 4)):
            start, piece = place.chance.randint(0, len(data)), place.chance.choice(PIECES)
            piece *= place.chance.choice((1, 1, 1, 3000))
            data = data[:start] + piece + data[start + place.chance.randint(0, 20) :]
        began = time.process_time()
        user = {"HOME": "/home/ann", "USER": "ann"}
        try:
            adopt(data.decode("utf-8", "surrogateescape"), file="old.sh", user=user, day="2026-01-31")
        except SbatchgenError:
            pass
        except Exception as error:  # noqa: BLE001 - that is what is counted
            yield f"{data[:80]!r}: {type(error).__name__}"
            continue
        took = time.process_time() - began
        yield "" if took < 5 else f"{data[:80]!r}: {took:.1f} s"


def completions(place: Place) -> Iterator[str]:
    """Folders with hostile names: a shell is offered only words that need no quotes."""
    shared = place.folder / "shared"
    for _ in range(place.times(200)):
        shutil.rmtree(shared, ignore_errors=True)
        for _ in range(3):
            name = place.line().replace("/", "").strip(".") or "run"
            (shared / name).mkdir(parents=True, exist_ok=True)
            (shared / name / "events.jsonl").write_text("{}\n")
        verb = place.chance.choice(("logs", "cancel", "plot", "resume"))
        typed = {"COMP_WORDS": f"sbatchgen {verb} shared/", "COMP_CWORD": "2"}
        done = place.run(*SBATCHGEN, _SBATCHGEN_COMPLETE="bash_complete", **typed)
        lines = done.stdout.decode(errors="replace").split("\n")
        offers = [line.partition(",")[2] for line in lines if line]
        fine = not done.stderr and all(is_plain(offer) for offer in offers)
        yield "" if fine else f"{offers} {done.stderr[-300:]!r}"
