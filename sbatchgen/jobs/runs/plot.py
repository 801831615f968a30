"""A picture of runs: loss, accuracy and throughput over the steps, one colour per run.

The training package writes events.jsonl, with one JSON object per line, config.json and status.json. Your
own trainer may write the same files, or print its numbers.

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
from typing import TYPE_CHECKING, Any

from sbatchgen.base import files
from sbatchgen.base.errors import CommandLineError, DocumentError
from sbatchgen.base.keys import record
from sbatchgen.base.machine.packages import to_install
from sbatchgen.base.machine.search_path import trusted_path_for_libraries
from sbatchgen.base.quoting import ALSO, visible
from sbatchgen.jobs.runs.events import CONFIG, EVENTS, PRINT_NUMBERS, STATUS, count, number, read_object
from sbatchgen.jobs.runs.metrics import read_events
from sbatchgen.jobs.runs.record import Record

if TYPE_CHECKING:
    from types import ModuleType

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The metadata of matplotlib that a picture of each format leaves out, because it changes: date and version
FORMATS = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
DEFAULT_NAME = "plot.png"  # the picture's name without --output
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#D55E00")
SHAPES = "os^Dv"  # markers of the points of validations, one for each run
# The metric of each panel, and its label
PANELS = (("loss", "Loss"), ("accuracy", "Accuracy (%)"), ("samples_per_s", "Throughput (samples/s)"))
# The keys of config.json that the title or the legend shows
SETTINGS = ("dataset", "model", "global_batch_size", "optimizer", "lr", "precision", "processes", "seed")
LOG_FACTOR = 50  # a loss that falls by more than this factor has a logarithmic scale
MAX_RESTARTS = 200  # the last restarts of a run, which are drawn
MAX_LETTERS = 60  # letters of a name or a setting that are shown
CURVES = {"train": ("loss", "accuracy", "samples_per_s"), "epoch": ("loss", "accuracy")}  # by kinds of events
ENDS = {"preempted": "stopped", "done": "done"}  # the end of a run, by the event that reports it
MARKS = {"stopped": "8", "failed": "X"}  # matplotlib's markers for early ends
# How the lines and marks of each kind are drawn
TRAINING: dict[str, Any] = {"linewidth": 1.3, "markersize": 2}
VALIDATION: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 2)), "markersize": 4.5}
END: dict[str, Any] = {"markersize": 8, "markeredgecolor": "white", "zorder": 5, "linestyle": ""}
RESTART: dict[str, Any] = {"linewidth": 0.9, "linestyle": ":"}
STYLE = Path(__file__).with_name("plot.mplstyle")


@record
class History:
    """A run so far; steps that were repeated after a crash count once."""

    folder: Path
    # Points (step, value) by names such as "train loss" and "epoch accuracy". Accuracies are in 0..1, and
    # samples/s are the sum over all processes
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
        _add(history, event)
    if read_object(folder / STATUS).get("state") == "failed":
        history.end = "failed"
    if not any(history.curves.values()):
        fix = f"wait for the first epoch, or for --log-every steps{ALSO}{PRINT_NUMBERS}"
        what = "nothing was measured in this run so far"
        raise DocumentError.of(what, at=str(folder / EVENTS), fix=fix)
    return history


def _add(history: History, event: Mapping[str, Any]) -> None:
    """Add an event to a history; a start removes the points of steps that the training repeats from there."""
    kind, step = event["event"], count(event.get("step"))
    if step is None and kind in CURVES:  # your own trainer may count no steps: number the points
        steps = (points[-1][0] for name, points in history.curves.items() if name.startswith(kind))
        step = 1 + (count(event.get("skipped")) or 0) + max(steps, default=0)
    if step is None:
        return
    if kind == "start":
        for points in history.curves.values():
            while points and points[-1][0] > step:
                points.pop()
        kept_restarts = [earlier for earlier in history.restarts if earlier <= step]
        history.restarts = kept_restarts + [step] * bool(step)  # a start at step 0 is not a restart
        history.end = ""
    elif kind in CURVES:
        for name in CURVES[kind]:
            if (value := number(event.get(name))) is not None:
                history.curves.setdefault(f"{kind} {name}", []).append((step, value))
    elif kind in ENDS:
        history.end = ENDS[kind]
    else:
        return
    history.last_step = step if kind == "start" else max(history.last_step, step)


def can_draw() -> bool:
    """Return whether matplotlib is installed; without it, `chart` draws with letters."""
    try:
        _matplotlib()
    except ImportError:
        return False
    return True


def _matplotlib() -> ModuleType:
    """Import matplotlib from the folder /, so that it reads no file of the current folder.

    It would read ./matplotlibrc, which may be a FIFO, and which releases up to 3.10 evaluate as Python.
    Raises ImportError.
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
    """Plot these runs; return the path of the picture.

    Without `output`, a .png or .svg file, the picture is plot.png in the run folder; for several runs, or if
    this user can't write there, plot.png in the current folder. Raises CommandLineError if the file has
    another suffix, DocumentError if matplotlib is missing or the file can't be written.
    """
    folder = histories[0].folder if len(histories) == 1 else Path("none")
    path = output or (folder / DEFAULT_NAME if os.access(folder, os.W_OK | os.X_OK) else Path(DEFAULT_NAME))
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
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
    with trusted_path_for_libraries():  # matplotlib asks fc-list for fonts
        return _draw(histories, suffix)


def _draw(histories: Sequence[History], suffix: str) -> bytes:
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
        mpl.rcParams.update(mpl.rc_params_from_file(STYLE, use_default_template=False))
        figure = Figure(figsize=(7.5, 7.5 + 0.2 * len(histories)), layout="constrained")
        runs = [*zip(histories, itertools.cycle(COLORS), itertools.cycle(SHAPES), strict=False)]
        _panels(figure, runs)
        _legend(figure, runs)
        data = io.BytesIO()
        figure.savefig(data, format=suffix[1:], metadata=FORMATS[suffix])
    return data.getvalue()


def _panels(figure: Figure, runs: Sequence[tuple[History, str, str]]) -> None:
    """Draw a panel for each metric; `runs` has histories with their colours and shapes."""
    from matplotlib.ticker import MaxNLocator

    curves = [item for history, *_ in runs for item in history.curves.items()]
    measured = {name.partition(" ")[2] for name, points in curves if points}
    measured_panels = [(name, label) for name, label in PANELS if name in measured]
    drawn: list[Axes] = [*figure.subplots(len(measured_panels), 1, sharex=True, squeeze=False)[:, 0]]
    for (name, label), axes in zip(measured_panels, drawn, strict=True):
        for history, color, shape in runs:
            styles = {"train": {"marker": ".", **TRAINING}, "epoch": {"marker": shape, **VALIDATION}}
            for kind, style in styles.items():
                if points := history.curves.get(f"{kind} {name}"):
                    steps, values = zip(*points, strict=True)
                    shown = [100 * value for value in values] if name == "accuracy" else values
                    axes.plot(steps, shown, color=color, **style)
        axes.set_ylabel(label)
        axes.margins(x=0.02)
        _set_scale(axes, name, [history for history, *_ in runs])
    figure.align_ylabels(drawn)
    drawn[-1].set_xlabel("Step")
    drawn[-1].xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 2.5, 5, 10]))
    for axes, (history, color, _) in itertools.product(drawn, runs):
        for step in history.restarts[-MAX_RESTARTS:]:
            axes.axvline(step, color=color, alpha=0.8, zorder=1, **RESTART)
        if marker := MARKS.get(history.end):  # an early end is a mark at the bottom of each panel
            bottom = axes.get_xaxis_transform()  # x in steps, y as a part of the panel's height
            axes.plot([history.last_step], [0.04], marker=marker, color=color, transform=bottom, **END)


def _set_scale(axes: Axes, name: str, histories: Sequence[History]) -> None:
    """Set the scale and the limits of a metric's axis."""
    curves = [run.curves.get(f"{kind} loss", ()) for kind in CURVES for run in histories]
    losses = [value for points in curves for _, value in points]
    if name == "loss" and 0 < LOG_FACTOR * min(losses) < max(losses):
        axes.set_yscale("log")
    elif name == "accuracy":
        axes.set_ylim(top=min(axes.get_ylim()[1], 100.5))
    elif name == "samples_per_s":
        axes.set_ylim(bottom=0)


def _legend(figure: Figure, runs: Sequence[tuple[History, str, str]]) -> None:
    """Show the colours of the runs below the panels, and the kinds of lines above the panels."""
    from matplotlib.lines import Line2D

    histories = [history for history, *_ in runs]
    kinds = {"training": TRAINING, "validation": {"marker": "o", **VALIDATION}}
    if any(history.restarts for history in histories):
        kinds["restart"] = RESTART
    for end in [end for end in MARKS if any(history.end == end for history in histories)]:
        kinds[end] = {"marker": MARKS[end], "markersize": 7, "linestyle": ""}
    entries = [Line2D([], [], color="#555555", label=label, **look) for label, look in kinds.items()]
    if len(runs) > 1:
        handles = [
            Line2D([], [], color=color, linewidth=1.5, marker=shape, markersize=4.5, label=label)
            for label, (_, color, shape) in zip(labels(histories), runs, strict=True)
        ]
        columns = 1 if len(runs) > 3 else len(runs)
        for text in figure.legend(handles=handles, loc="outside lower center", ncols=columns).get_texts():
            text.set_parse_math(False)  # a folder's name may have a $
    shared = [name for name in SETTINGS if name != "seed" and _is_shared(histories, name)]
    name_of_run = _name(histories[0]) if len(histories) == 1 else ""
    title = ": ".join(filter(None, [name_of_run, _facts(histories[0], shared)]))
    above = figure.legend(handles=entries, loc="outside upper center", ncols=len(entries), title=title)
    above.get_title().set(fontsize=10, parse_math=False)


def labels(histories: Sequence[History]) -> list[str]:
    """Return a name for each run, with the settings in which they differ."""
    differ = [name for name in SETTINGS if not _is_shared(histories, name)]
    names = [_name(history) for history in histories]
    if len(set(names)) < len(names):
        names = [_short(history.folder) for history in histories]
    facts = [_facts(history, differ) or _short(point_parameters(history)) for history in histories]
    return [f"{name} ({fact})" if fact else name for name, fact in zip(names, facts, strict=True)]


def point_parameters(history: History) -> str:
    """Return the parameters of a sweep's point: "lr 0.1, width 3"; "" for a run without a sweep."""
    return ", ".join(f"{name} {value}" for name, value in history.point.items())


def _is_shared(histories: Sequence[History], setting: str) -> bool:
    """Return whether all runs have the same value of a setting."""
    return len({str(history.config.get(setting)) for history in histories}) == 1


def _name(history: History) -> str:
    name = _short(history.folder.resolve().name)
    return f" {name}" if name.startswith("_") else name  # matplotlib leaves such a name out of a legend


def _short(value: object) -> str:
    """Return a name or a setting, which another user may have chosen, as text that is safe to draw."""
    return visible(str(value)).replace("\n", " ")[:MAX_LETTERS]


def _facts(history: History, names: Sequence[str]) -> str:
    """Return settings of a run in words: "mnist, batch 64, 2 processes"."""
    prefixes = {"global_batch_size": "batch ", "lr": "lr ", "seed": "seed "}
    settings = {name: _short(history.config[name]) for name in names if name in history.config}
    processes = settings.pop("processes", None)
    facts = [prefixes.get(name, "") + value for name, value in settings.items()]
    return ", ".join(facts + ([f"{processes} process{'es' * (processes != '1')}"] if processes else []))
