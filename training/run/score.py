"""The score of a validation, and its report by --evaluate: lines, an event, a row in evaluations.csv."""

import contextlib
import csv
import io
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.errors import FolderError, one_line
from training.files import own_folder, read_small
from training.model.confusion import as_lines
from training.output.log import append
from training.run.session import Session

TABLE = "evaluations.csv"  # the table in the run folder
PERCENTS = {"accuracy": "Accuracy", "top5": "Top-5"}  # metrics that are shown as percents


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The means over all images of a split."""

    loss: float
    metrics: dict[str, float]  # by name; the first metric decides which weights are the best
    samples: int
    confusion: list[list[int]]  # the confusion matrix of the first classes; may be empty

    @property
    def facts(self) -> dict[str, Any]:
        """The score as facts of an event."""
        confusion = {"confusion": self.confusion} if self.confusion else {}
        return self.metrics | {"loss": self.loss, "samples": self.samples} | confusion

    def __str__(self) -> str:
        return f"Avg Loss: {self.loss:.6f}, {metrics_text(self.metrics)}"


def metrics_text(metrics: dict[str, float]) -> str:
    """Return metrics as text, such as "Accuracy: 98.50%, Top-5: 99.90%"."""
    return ", ".join(
        f"{PERCENTS[name]}: {100 * value:.2f}%" if name in PERCENTS else f"{name}: {value:.4g}"
        for name, value in metrics.items()
    )


def report(session: Session, score: Score, weights: str, *, step: int) -> None:
    """Print the score and the confusion matrix, send the event, and add the row to evaluations.csv.

    A row is added only if the run folder exists. If the row can't be written, the failure is logged and the
    command succeeds, because the score is printed.
    """
    log, config = session.log, session.config
    log.say(f"Evaluation of {weights} - {score} (validation of {score.samples})")
    for line in as_lines(score.confusion, session.data.names):
        log.say(line)
    log.event("evaluation", **score.facts | {"weights": weights, "step": step})
    if not (log.speaks and log.run_dir.is_dir()):
        return
    facts: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "job": os.environ.get("SLURM_JOB_ID", ""),
    }
    facts |= {
        "weights": weights,
        "dataset": config.dataset,
        "data": config.data_dir,
        "samples": score.samples,
    }
    try:
        own_folder(log.run_dir, make=False)
        _add_row(log.run_dir / TABLE, facts | {"loss": score.loss} | score.metrics)
    except (OSError, FolderError, ValueError) as error:
        log.say(f"No row in {log.run_dir / TABLE} ({one_line(error)})")


def _add_row(path: Path, facts: dict[str, object]) -> None:
    """Add a row to a CSV table. A new table first gets a line with the names of the columns.

    Raises ValueError if the table has other columns.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    header = b""
    with contextlib.suppress(FileNotFoundError):
        header = read_small(path).partition(b"\n")[0]
    rows.writerow(facts)
    if header and header.decode(errors="replace") != text.getvalue().rstrip("\n"):
        raise ValueError("it has other columns: move it away")
    if header:
        text.truncate(text.seek(0))  # the table has its header already
    rows.writerow(facts.values())
    append(path, text.getvalue().encode())
