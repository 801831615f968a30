"""Draws a picture of runs, for `plot`: loss, accuracy and throughput over the steps, in a colour per run.

The numbers come from the run folders, where the training package writes events.jsonl, config.json and
status.json. A user's own trainer may write the same files, or print its numbers into its log.

The same runs give the same bytes with any settings of matplotlib. Colours: Okabe and Ito,
"Color Universal Design", https://jfly.uni-koeln.de/color/.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sbatchgen.base import files
from sbatchgen.base.errors import CommandLineError, DocumentError
from sbatchgen.base.keys import record
from sbatchgen.base.machine.packages import to_install
from sbatchgen.base.machine.search_path import trusted_path_for_libraries
from sbatchgen.base.quoting import ALSO, visible
from sbatchgen.jobs.runs.events import (
    CONFIG,
    EVENTS,
    FIX_WITHOUT_NUMBERS,
    STATUS,
    as_count,
    as_number,
    read_object,
)
from sbatchgen.jobs.runs.metrics import read_events
from sbatchgen.jobs.runs.record import Record

if TYPE_CHECKING:
    from types import ModuleType

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The metadata that matplotlib leaves out of a picture of each format, because they differ each time: the date
# and the version. A file has one of these suffixes.
OMITTED_METADATA = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
DEFAULT_NAME = "plot.png"  # the picture's name without --output
RUN_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#D55E00")
RUN_MARKERS = "os^Dv"  # matplotlib's markers of the points of validations, one for each run
# The metric of each panel, and the label of its axis
PANELS = (("loss", "Loss"), ("accuracy", "Accuracy (%)"), ("samples_per_s", "Throughput (samples/s)"))
# The keys of config.json whose values the title or the legend shows
SHOWN_SETTINGS = (
    "dataset",
    "model",
    "global_batch_size",
    "optimizer",
    "lr",
    "precision",
    "processes",
    "seed",
)
LOG_FACTOR = 50  # a loss that falls by more than this factor has a logarithmic scale
MAX_RESTARTS = 200  # restarts of a run that are drawn: the last ones
MAX_TEXT_CHARS = 60  # characters of a name or a setting that are shown
# The metrics in the events of a training ("train") and of a validation ("epoch")
METRICS_BY_KIND = {"train": ("loss", "accuracy", "samples_per_s"), "epoch": ("loss", "accuracy")}
END_BY_EVENT = {"preempted": "stopped", "done": "done"}  # the values of History.end by events
END_MARKERS = {"stopped": "8", "failed": "X"}  # matplotlib's markers for early ends
# Arguments of matplotlib for the lines and marks of each kind
TRAINING_STYLE: dict[str, Any] = {"linewidth": 1.3, "markersize": 2}
VALIDATION_STYLE: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 2)), "markersize": 4.5}
END_STYLE: dict[str, Any] = {"markersize": 8, "markeredgecolor": "white", "zorder": 5, "linestyle": ""}
RESTART_STYLE: dict[str, Any] = {"linewidth": 0.9, "linestyle": ":"}
STYLE_FILE = Path(__file__).with_name("plot.mplstyle")


@record
class History:
    """What a run has measured so far; steps that were repeated after a crash count once."""

    folder: Path
    # Points (step, value) by names such as "train loss" and "epoch accuracy". An accuracy is from 0 to 1.
    # samples/s are the sum over all processes.
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    restarts: list[int] = field(default_factory=list)  # the steps from which later starts resumed
    last_step: int = 0  # the last known step
    end: str = ""  # "stopped", "failed" or "done"; "" while it runs, or if it was killed
    config: Mapping[str, Any] = field(default_factory=dict)  # the contents of config.json, or {}
    point: Mapping[str, str] = field(default_factory=dict)  # the parameters of a point of a sweep


def read_history(folder: Path, pattern: str = "", submissions: Sequence[Record] | None = None) -> History:
    """Return the history of the run in a folder; raise DocumentError if nothing was measured there.

    `read_events` explains `pattern` and `submissions`.
    """
    history = History(folder=folder, config=read_object(folder / CONFIG))
    for event in read_events(folder, pattern, submissions):
        _add_event(history, event)
    if read_object(folder / STATUS).get("state") == "failed":
        history.end = "failed"
    if not any(history.curves.values()):
        fix = f"wait for the first epoch, or for --log-every steps{ALSO}{FIX_WITHOUT_NUMBERS}"
        what = "nothing was measured in this run so far"
        raise DocumentError.of(what, at=str(folder / EVENTS), fix=fix)
    return history


def _add_event(history: History, event: Mapping[str, Any]) -> None:
    """Add an event to a history; a start removes the points of the steps that the training then repeats."""
    kind, step = event["event"], as_count(event.get("step"))
    if step is None and kind in METRICS_BY_KIND:  # a trainer that counts no steps: the points are numbered
        steps = (points[-1][0] for name, points in history.curves.items() if name.startswith(kind))
        step = 1 + (as_count(event.get("skipped")) or 0) + max(steps, default=0)
    if step is None:
        return
    if kind == "start":
        for points in history.curves.values():
            while points and points[-1][0] > step:
                points.pop()
        kept_restarts = [earlier for earlier in history.restarts if earlier <= step]
        history.restarts = kept_restarts + [step] * bool(step)  # a start at step 0 is not a restart
        history.end = ""
    elif kind in METRICS_BY_KIND:
        for name in METRICS_BY_KIND[kind]:
            if (value := as_number(event.get(name))) is not None:
                history.curves.setdefault(f"{kind} {name}", []).append((step, value))
    elif kind in END_BY_EVENT:
        history.end = END_BY_EVENT[kind]
    else:
        return
    history.last_step = step if kind == "start" else max(history.last_step, step)


def can_draw() -> bool:
    """Return whether matplotlib is installed; without it, the module `chart` draws with letters."""
    try:
        _matplotlib()
    except ImportError:
        return False
    return True


def _matplotlib() -> ModuleType:
    """Import matplotlib while the current folder is /, so that it reads no file of the user's folder.

    It would read ./matplotlibrc, which a stranger may have written. The file may be a FIFO, and releases up
    to 3.10 evaluate it as Python. Raises ImportError.
    """
    folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir("/")
        import matplotlib as mpl
    finally:
        os.fchdir(folder)
        os.close(folder)
    return mpl


def plot(histories: Sequence[History], output: Path | None) -> Path:
    """Write a picture of these runs, and return its path.

    `output` is a .png or .svg file. Without it, the picture is plot.png in the run folder. For several runs,
    or if this user can't write there, the picture is plot.png in the current folder. Raises CommandLineError
    if the file has another suffix, and DocumentError if matplotlib is missing or the file can't be written.
    """
    folder = histories[0].folder if len(histories) == 1 else Path("none")
    path = output or (folder / DEFAULT_NAME if os.access(folder, os.W_OK | os.X_OK) else Path(DEFAULT_NAME))
    suffix = path.suffix.lower()
    if suffix not in OMITTED_METADATA:
        raise CommandLineError.of(f"can't draw a '{path.suffix}'", at="--output", fix="name a .png or a .svg")
    picture = _picture_bytes(histories, suffix)
    if output:
        files.write(path, picture)
        return path
    try:
        files.put(path, picture, mode=0o644)
    except OSError as error:
        what = f"can't write {path}: {error.strerror}"
        raise DocumentError.of(what, fix="name another file: --output FILE") from error
    return path


def _picture_bytes(histories: Sequence[History], suffix: str) -> bytes:
    """Return a picture of these runs in the format of a suffix, such as ".png"."""
    with trusted_path_for_libraries():  # matplotlib asks fc-list for fonts
        return _draw_picture(histories, suffix)


class _DrawnRun(NamedTuple):
    """A run, and how its curves differ from those of other runs."""

    history: History
    color: str
    marker: str  # matplotlib's marker of the points of its validations


def _draw_picture(histories: Sequence[History], suffix: str) -> bytes:
    """Draw the picture; raise DocumentError if matplotlib is missing or can't write its own files."""
    try:
        mpl = _matplotlib()
        from matplotlib.figure import Figure
    except ImportError as error:
        what = f"plot needs matplotlib ({error})"
        raise DocumentError.of(what, fix=to_install("matplotlib")) from error
    except OSError as error:  # matplotlib can't write its folder of settings, nor a temporary folder
        fix = "set MPLCONFIGDIR to a folder that you can write into"
        raise DocumentError.of(f"matplotlib: {error}", fix=fix) from error
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(mpl.rc_params_from_file(STYLE_FILE, use_default_template=False))
        figure = Figure(figsize=(7.5, 7.5 + 0.2 * len(histories)), layout="constrained")
        looks = zip(histories, itertools.cycle(RUN_COLORS), itertools.cycle(RUN_MARKERS), strict=False)
        runs = [*itertools.starmap(_DrawnRun, looks)]
        _draw_panels(figure, runs)
        _draw_legend(figure, runs)
        data = io.BytesIO()
        figure.savefig(data, format=suffix[1:], metadata=OMITTED_METADATA[suffix])
    return data.getvalue()


def _draw_panels(figure: Figure, runs: Sequence[_DrawnRun]) -> None:
    """Draw a panel for each metric that a run has measured."""
    from matplotlib.ticker import MaxNLocator

    curves = [curve for run in runs for curve in run.history.curves.items()]
    measured = {name.partition(" ")[2] for name, points in curves if points}
    measured_panels = [(name, label) for name, label in PANELS if name in measured]
    all_axes: list[Axes] = [*figure.subplots(len(measured_panels), 1, sharex=True, squeeze=False)[:, 0]]
    for (name, label), axes in zip(measured_panels, all_axes, strict=True):
        for history, color, marker in runs:
            styles = {
                "train": {"marker": ".", **TRAINING_STYLE},
                "epoch": {"marker": marker, **VALIDATION_STYLE},
            }
            for kind, style in styles.items():
                if points := history.curves.get(f"{kind} {name}"):
                    steps, values = zip(*points, strict=True)
                    shown = [100 * value for value in values] if name == "accuracy" else values
                    axes.plot(steps, shown, color=color, **style)
        axes.set_ylabel(label)
        axes.margins(x=0.02)
        _set_scale(axes, name, [run.history for run in runs])
    figure.align_ylabels(all_axes)
    all_axes[-1].set_xlabel("Step")
    all_axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 2.5, 5, 10]))
    for axes, (history, color, _) in itertools.product(all_axes, runs):
        for step in history.restarts[-MAX_RESTARTS:]:
            axes.axvline(step, color=color, alpha=0.8, zorder=1, **RESTART_STYLE)
        if end_marker := END_MARKERS.get(history.end):  # an early end is a mark at the bottom of each panel
            bottom = axes.get_xaxis_transform()  # x in steps, y as a part of the panel's height
            axes.plot(
                [history.last_step], [0.04], marker=end_marker, color=color, transform=bottom, **END_STYLE
            )


def _set_scale(axes: Axes, name: str, histories: Sequence[History]) -> None:
    """Set the scale and the limits of the axis of the metric `name`."""
    curves = [run.curves.get(f"{kind} loss", ()) for kind in METRICS_BY_KIND for run in histories]
    losses = [value for points in curves for _, value in points]
    if name == "loss" and 0 < LOG_FACTOR * min(losses) < max(losses):
        axes.set_yscale("log")
    elif name == "accuracy":
        axes.set_ylim(top=min(axes.get_ylim()[1], 100.5))
    elif name == "samples_per_s":
        axes.set_ylim(bottom=0)


def _draw_legend(figure: Figure, runs: Sequence[_DrawnRun]) -> None:
    """Show the colours of several runs below the panels, and the kinds of lines and a title above them."""
    from matplotlib.lines import Line2D

    histories = [run.history for run in runs]
    kinds = {"training": TRAINING_STYLE, "validation": {"marker": "o", **VALIDATION_STYLE}}
    if any(history.restarts for history in histories):
        kinds["restart"] = RESTART_STYLE
    for end in [end for end in END_MARKERS if any(history.end == end for history in histories)]:
        kinds[end] = {"marker": END_MARKERS[end], "markersize": 7, "linestyle": ""}
    entries = [Line2D([], [], color="#555555", label=label, **style) for label, style in kinds.items()]
    if len(runs) > 1:
        handles = [
            Line2D([], [], color=run.color, linewidth=1.5, marker=run.marker, markersize=4.5, label=label)
            for label, run in zip(labels(histories), runs, strict=True)
        ]
        columns = 1 if len(runs) > 3 else len(runs)
        for text in figure.legend(handles=handles, loc="outside lower center", ncols=columns).get_texts():
            text.set_parse_math(False)  # a folder's name may have a $
    shared_settings = [name for name in SHOWN_SETTINGS if name != "seed" and _is_shared(histories, name)]
    name_of_run = _run_name(histories[0]) if len(histories) == 1 else ""
    title = ": ".join(filter(None, [name_of_run, _settings_in_words(histories[0], shared_settings)]))
    above = figure.legend(handles=entries, loc="outside upper center", ncols=len(entries), title=title)
    above.get_title().set(fontsize=10, parse_math=False)


def labels(histories: Sequence[History]) -> list[str]:
    """Return a label for each run: its name, with the settings in which the runs differ.

    If two runs have the same name, the labels have the run folders instead.
    """
    differing = [name for name in SHOWN_SETTINGS if not _is_shared(histories, name)]
    names = [_run_name(history) for history in histories]
    if len(set(names)) < len(names):
        names = [_as_safe_text(history.folder) for history in histories]
    facts = [
        _settings_in_words(history, differing) or _as_safe_text(point_parameters(history))
        for history in histories
    ]
    return [f"{name} ({fact})" if fact else name for name, fact in zip(names, facts, strict=True)]


def point_parameters(history: History) -> str:
    """Return the parameters of a sweep's point: "lr 0.1, width 3"; "" for a run without a sweep."""
    return ", ".join(f"{name} {value}" for name, value in history.point.items())


def _is_shared(histories: Sequence[History], setting: str) -> bool:
    """Return whether all runs have the same value of a setting."""
    return len({str(history.config.get(setting)) for history in histories}) == 1


def _run_name(history: History) -> str:
    """Return the name of a run's folder, in a form that a legend shows."""
    name = _as_safe_text(history.folder.resolve().name)
    return f" {name}" if name.startswith("_") else name  # matplotlib leaves such a name out of a legend


def _as_safe_text(value: object) -> str:
    """Return a name or a setting as a short line of visible characters; another user may have chosen it."""
    return visible(str(value)).replace("\n", " ")[:MAX_TEXT_CHARS]


def _settings_in_words(history: History, names: Sequence[str]) -> str:
    """Return the settings with these names in words: "mnist, batch 64, 2 processes"."""
    prefixes = {"global_batch_size": "batch ", "lr": "lr ", "seed": "seed "}
    settings = {name: _as_safe_text(history.config[name]) for name in names if name in history.config}
    processes = settings.pop("processes", None)
    facts = [prefixes.get(name, "") + value for name, value in settings.items()]
    return ", ".join(facts + ([f"{processes} process{'es' * (processes != '1')}"] if processes else []))
