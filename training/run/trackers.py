"""The trackers of --log-to, which get the events of a run: W&B, MLflow, and functions of the user.

A tracker is called on rank 0 with each event of events.jsonl. At the end its method `close` is called, if the
tracker has this method. The trackers of this module write below the run folder, and send nothing unless a
variable of W&B or MLflow asks for that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.config import Config
from training.data.own_module import import_function
from training.errors import UserError, one_line
from training.files import parse, read_small
from training.output.log import as_points, write_json

Event = dict[str, Any]
Tracker = Callable[[Event], object]
MLFLOW_RUN = "mlflow-run.json"  # the file in the run folder by which a resumed training continues the run


def start_trackers(config: Config, say: Callable[[str], None]) -> dict[str, Tracker]:
    """Return the trackers of --log-to by name; raises UserError if a tracker cannot be imported.

    If a tracker does not start, for example without a network, a line reports it. The training continues
    without that tracker.
    """
    trackers: dict[str, Tracker] = {}
    for name in filter(None, config.log_to.split(",")):
        if name in BUILT_IN:
            try:
                trackers[name] = BUILT_IN[name](Path(config.run_dir).absolute())
            except ModuleNotFoundError as error:
                what = f"--log-to {name}: this Python has no {error.name}"
                raise UserError(what, fix=f"install {name}, or leave it out") from error
            except Exception as error:  # noqa: BLE001 - whatever the tracker raises
                say(f"No events for --log-to {name} ({one_line(error)}): training continues")
        else:
            trackers[name] = import_function(name, "--log-to")
    return trackers


class Wandb:
    """A run of Weights & Biases, which stays in RUN_DIR/wandb unless WANDB_MODE is `online`."""

    def __init__(self, run_dir: Path) -> None:
        import wandb  # type: ignore[import-not-found,unused-ignore]

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(dir=str(run_dir), name=os.environ.get("WANDB_NAME", run_dir.name), mode=mode)
        self._exit_code = 0  # 1 between the events of a training's start and of its end

    def __call__(self, event: Event) -> None:
        """Send the settings, and the numbers of training and validation."""
        if event["event"] == "start":
            self._exit_code = 1
            self._run.config.update(event["settings"], allow_val_change=True)
        elif event["event"] in ("done", "preempted"):
            self._exit_code = 0
        if points := as_points(event):
            self._run.log(points, step=event["step"])

    def close(self) -> None:
        """End the run, and wait until its files are written."""
        self._run.finish(exit_code=self._exit_code)


class Mlflow:
    """A run of MLflow, which stays in RUN_DIR/mlruns unless MLFLOW_TRACKING_URI names another place."""

    def __init__(self, run_dir: Path) -> None:
        import mlflow  # type: ignore[import-not-found,unused-ignore]

        self._mlflow, file = mlflow, run_dir / MLFLOW_RUN
        if "MLFLOW_TRACKING_URI" not in os.environ:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3.8 needs this variable
            mlflow.set_tracking_uri((run_dir / "mlruns").as_uri())
        self._has_failed, self._is_new = False, not file.exists()
        if self._is_new:
            run = mlflow.start_run(run_name=run_dir.name)
            write_json(file, {"run": run.info.run_id})
        else:
            mlflow.start_run(run_id=parse(read_small(file))["run"])

    def __call__(self, event: Event) -> None:
        """Send the settings once, and the numbers of training and validation."""
        if event["event"] in ("start", "done", "preempted"):
            self._has_failed = event["event"] == "start"  # true until an event of the end
        if event["event"] == "start" and self._is_new:
            self._mlflow.log_params(event["settings"])
        if points := as_points(event):
            self._mlflow.log_metrics(points, step=event["step"])

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run("FAILED" if self._has_failed else "FINISHED")


BUILT_IN: dict[str, Callable[[Path], Tracker]] = {"wandb": Wandb, "mlflow": Mlflow}
