"""Damaged checkpoints, and one that runs code: F4 to F6, F16."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import shutil
from collections.abc import Iterator

import torch

from benchmarks.survival.place import Place, Row, newest, one_line_failure
from tests.training.states import Evil, equal, everything
from training.errors import UserError
from training.saving import checkpoint

PAGE = 4096


def f4(place: Place) -> Iterator[Row]:
    """A truncated newest checkpoint."""
    shares = (0, 0.1, 0.5, 0.9, 0.999)
    passed_over = 0
    for share in shares:
        run_dir = place.folder / f"F4/{share}"
        shutil.copytree(place.finished, run_dir)
        path = newest(run_dir)
        os.truncate(path, int(path.stat().st_size * share))
        ended = place.here(run_dir)
        aside = path.with_name(f"{path.name}.corrupt").exists()
        passed_over += ended.code == 0 and aside and "Resuming from checkpoints/step-00000004.pt" in ended.out
    yield Row(
        "the newest checkpoint cut to 0, 10, 50, 90, 99.9 %",
        f"{passed_over} of 5 resume from the one before",
        "all",
        passed_over == len(shares),
    )


def f5(place: Place) -> Iterator[Row]:
    """Flipped bits and zeroed pages."""
    data = newest(place.finished).read_bytes()
    sound = everything(place.finished)
    folder = place.new("F5")
    path = folder / "step-00000008.pt"
    places = torch.randint(len(data), (100,), generator=torch.Generator().manual_seed(1)).tolist()
    for zeroed in (False, True):
        wrong = unseen = changed = 0
        for spot in places:
            bad = damaged(data, spot, zeroed=zeroed)
            changed += bad != data
            loaded = None
            with contextlib.suppress(Exception):  # torch.load raises many kinds
                loaded = torch.load(io.BytesIO(bad), weights_only=True)
            unseen += loaded is not None and not equal(loaded, sound)
            path.write_bytes(bad)
            with contextlib.suppress(UserError):  # all checkpoints are corrupt
                checkpoint.find(folder, "auto", lambda _line: None)
                wrong += loaded is None or not equal(loaded, sound)
        yield Row(
            f"{'a zeroed page' if zeroed else 'a flipped bit'} in {len(data) / 1e6:.0f} MB, 100 places",
            f"{wrong} of {changed} loaded (torch.load alone: {unseen} of {changed})",
            "0",
            wrong == 0 and changed > 90,
        )


def damaged(data: bytes, place: int, *, zeroed: bool) -> bytes:
    """A flipped bit at a place, or a page of zeros around it."""
    changed = bytearray(data)
    if zeroed:
        page = place // PAGE * PAGE
        changed[page : page + PAGE] = bytes(len(changed[page : page + PAGE]))
    else:
        changed[place] ^= 1 << place % 8
    return bytes(changed)


def f6(place: Place) -> Iterator[Row]:
    """No good checkpoint at all."""
    run_dir = place.folder / "F6"
    shutil.copytree(place.finished, run_dir)
    for path in (run_dir / "checkpoints").glob("step-*"):
        os.truncate(path, 1000)
    starts = [place.here(run_dir) for _ in range(2)]
    refused = sum(one_line_failure(ended) and "all checkpoints are corrupt" in ended.err for ended in starts)
    yield Row(
        "all checkpoints corrupt, two starts", f"{refused} of 2 refused in one line", "all", refused == 2
    )


def f16(place: Place) -> Iterator[Row]:
    """Code in a checkpoint."""
    ran = place.folder / "F16-ran"
    place.patches.setenv("EVIL", str(ran))
    state = everything(place.finished)
    cases = refused = 0
    for kind in ("a value", "a weight", "old format", "bare pickle"):
        evil = state | ({"model": {"w": Evil()}} if kind == "a weight" else {"step": Evil()})
        buffer = io.BytesIO()
        if kind == "bare pickle":
            pickle.dump(evil, buffer)
        else:
            torch.save(evil, buffer, _use_new_zipfile_serialization=kind != "old format")
        for flags in (
            (),
            ("--resume", "{}"),
            ("--evaluate", "--resume", "{}"),
            ("--init-from", "{}", "--resume", "off"),
        ):
            run_dir = place.folder / f"F16/{cases}"
            path = run_dir / "checkpoints" / "step-00000009.pt"
            path.parent.mkdir(parents=True)
            path.write_bytes(buffer.getvalue())
            if "--init-from" in flags:
                path = path.replace(run_dir / "weights.pt")
            ended = place.here(run_dir, *(flag.format(path) for flag in flags))
            cases += 1
            refused += one_line_failure(ended) and not ran.exists()
    yield Row(
        "a pickle that runs code: in 4 kinds of files, on 4 ways in",
        f"{refused} of {cases} refused in one line, code {'RAN' if ran.exists() else 'not run'}",
        "all, not run",
        refused == cases and not ran.exists(),
    )
