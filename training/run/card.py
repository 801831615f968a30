"""The card of exported weights: a JSON file next to the weights, with the facts that their users need."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from training.data.datasets import FILES
from training.data.images import shorter_side
from training.errors import one_line
from training.files import parse, read_small
from training.output.log import write_json
from training.run.session import Session

ENDING = ".json"  # of the card's file


def write_card(session: Session, weights: Path) -> None:
    """Write the card next to exported weights, such as model.json, unless another file has that name.

    A failure is only logged, because the weights themselves are written.
    """
    path = weights.with_suffix(ENDING)
    try:
        if os.path.lexists(path) and "weights" not in parse(read_small(path)):
            session.log.say(f"{path} is another file: the weights have no card")
            return
        write_json(path, card(session, weights.name), indent=2)
    except OSError as error:
        session.log.say(f"Cannot write {path} ({one_line(error)}): the weights have no card")


def card(session: Session, weights: str) -> dict[str, Any]:
    """Return the card: the model, its classes, its images and its origin."""
    config, data = session.config, session.data
    images: dict[str, Any] = {"shape": data.evaluated_CHW, "mean": data.norm.mean, "std": data.norm.std}
    if config.dataset in FILES:
        images["resize"] = shorter_side(config, data.evaluated_CHW[-1])
    return {
        "weights": weights,
        "model": config.model,
        "classes": data.classes,
        "names": data.names,
        "images": images,
        "run": str(Path(config.run_dir).absolute()),
        "job": os.environ.get("SLURM_JOB_ID", ""),
        "command": shlex.join(["python3", "-m", "training", *sys.argv[1:]]),
        "torch": str(torch.__version__),
    }
