"""The losses that trainers of one's own print: the lines that docs/how-to/own-trainer.md shows."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.texts import LinePattern
from sbatchgen.jobs.runs import metrics, record
from sbatchgen.jobs.runs.index import Index, index_file
from sbatchgen.jobs.runs.metrics import line_events, log_events
from sbatchgen.jobs.runs.plain_job import find
from sbatchgen.jobs.runs.plot import read_history
from sbatchgen.jobs.runs.points import POINTS_FILE
from sbatchgen.jobs.runs.progress import read_progress
from sbatchgen.jobs.runs.record import Record, ResolvedValue
from tests.conftest import FIXTURES, REPOSITORY, Command

MEASURED = yaml.safe_load((FIXTURES / "measured.yaml").read_text())
HEALTHY = yaml.safe_load((FIXTURES / "failures.yaml").read_text())["harmless"]
PAGE = (REPOSITORY / "docs/how-to/own-trainer.md").read_text()
PATTERNS = re.findall(r"^metrics: '(.*)'$", PAGE, re.MULTILINE)
# What nanoGPT prints.
PROGRAMS = {
    "step 250: train loss 1.9692, val loss 2.0811": {("epoch", "loss"): 2.0811},
    "iter 250: loss 1.9718, time 5151.90ms, mfu 15.33%": {("train", "loss"): 1.9718},
}


def job(folder: Path, *lines: str, metrics: str = "", name: str = "ddp", array: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    values = (ResolvedValue(name="metrics", value=metrics, by="job", at=""),) if metrics else ()
    log = folder / (f"{name}-4711_0.out" if array else f"{name}-4711.out")
    pattern = f"{folder}/{name}-%A_%a.out" if array else str(log)
    about = Record(shared=False, name=name, job="4711", folder="/", log=pattern, values=values, array=array)
    record.write_accepted(folder, about)
    log.write_text("".join(f"{line}\n" for line in lines))
    return folder


def curve(folder: Path, name: str = "train loss") -> list[tuple[int, float]]:
    return read_history(folder).curves.get(name, [])


def test_a_json_line_of_the_log_is_measured(folder: Path) -> None:
    run = job(folder / "ddp", "hello", '{"step": 3, "loss": 0.2, "lr": 0.1}', '[0]:{"step": 4, "loss": 0.1}')
    assert curve(run) == [(3, 0.2), (4, 0.1)]
    progress = read_progress(run)
    assert progress
    assert progress.says == "step 4, loss 0.1"


@pytest.mark.parametrize("pattern", ["(?P<1>x)", "(?P<step>..(", "(" * 500, "..(?i)", "a{99999999999}"])
def test_a_pattern_of_a_copied_record_that_is_none_finds_nothing(folder: Path, pattern: str) -> None:
    assert read_progress(job(folder / "ddp", '{"step": 3, "loss": 0.2}', metrics=pattern))


@pytest.mark.parametrize("line", PROGRAMS)
def test_the_patterns_of_the_page_read_what_programs_print(folder: Path, line: str) -> None:
    measured = {}
    for number, pattern in enumerate(PATTERNS):
        for event in log_events(
            job(folder / str(number), line, metrics=str(LinePattern.parse(pattern)), name="a")
        ):
            measured[event["event"], "loss"] = event["loss"]
    assert measured == PROGRAMS[line]


def test_a_file_of_events_may_hold_the_same_lines(folder: Path) -> None:
    run = job(folder / "ddp", "nothing")
    (run / "events.jsonl").write_text('{"step": 1, "loss": 2.5, "val_loss": 3.5}\n{"lr": 0.1}\n')
    assert curve(run) == [(1, 2.5)]
    assert curve(run, "epoch loss") == [(1, 3.5)]
    progress = read_progress(run)
    assert progress
    assert progress.loss == 3.5


def test_a_restart_takes_the_place_of_the_steps_that_it_repeats(folder: Path) -> None:
    first = [
        "Job 4711 on g01, restart 0 of at most 10",
        *(f'{{"step": {n}, "loss": {n}.5}}' for n in (1, 2, 3)),
    ]
    again = ["Job 4711 on g01, restart 1 of at most 10", '{"step": 3, "loss": 9}', '{"step": 4, "loss": 8}']
    history = read_history(job(folder / "ddp", *first, *again))
    assert history.curves["train loss"] == [(1, 1.5), (2, 2.5), (3, 9.0), (4, 8.0)]
    assert history.restarts == [2]


def test_of_ranks_that_print_the_same_the_first_counts(folder: Path) -> None:
    lines = [f'{{"step": {step}, "loss": {rank}}}' for step, rank in ((1, 1), (2, 1), (1, 2), (2, 2))]
    assert curve(job(folder / "ddp", *lines)) == [(1, 1.0), (2, 1.0)]


RICH = (  # lightning 2.6.6 and rich 15, with a file as output
    "Epoch 2/2  ━━━━━━━━━━━━━━━━━━ 8/8 0:00:00 • 0:00:00 99.50it/s train_loss: 0.537 ",
    "                                                              val_loss: 0.761   ",
    "                                                              val_acc: 0.500    ",
)
RICH_OLD = (  # with all metrics in one column, which wraps
    "Epoch 2/2  ━━━━━━━━━━━━━━━━━━ 8/8 0:00:00 • 0:00:00 99.50it/s v_num: 0.000 ",
    "                                            train_loss: 0.537 val_loss: 0.761",
    "                                                               val_acc: 0.500",
)


@pytest.mark.parametrize("lines", [RICH, RICH_OLD])
def test_the_bar_of_rich_is_read_with_the_columns_below_it(folder: Path, lines: tuple[str, ...]) -> None:
    run = job(folder, "Trainable params: 5", *lines, "                                 val_loss: none of it")
    events = [{name: event[name] for name in event if name != "time"} for event in log_events(run)]
    assert events == [
        {"event": "train", "epoch": 2, "loss": 0.537},
        {"event": "epoch", "epoch": 2, "loss": 0.761, "accuracy": 0.5},
    ]
    progress = read_progress(run)
    assert progress
    assert progress.says == "epoch 2, loss 0.761, accuracy 50.0%"


def test_without_steps_lines_are_counted(folder: Path) -> None:
    run = job(folder / "ddp", "loss=3", "loss=2\rloss=1,", metrics="loss=(?P<loss>[^ ]+)")
    assert curve(run) == [(1, 3.0), (2, 2.0), (3, 1.0)]


def test_a_point_of_a_sweep_has_the_log_of_its_task(folder: Path) -> None:
    sweep = job(folder / "sweep", '{"step": 7, "loss": 0.5}', array="0-3")
    (sweep / "0").mkdir()
    assert curve(sweep / "0") == [(7, 0.5)]
    point = read_progress(sweep / "0", record.records(sweep), "0")
    assert point
    assert point.loss == 0.5
    assert read_progress(sweep / "1", record.records(sweep), "1") is None


def test_other_json_and_other_lines_are_no_measurements(folder: Path) -> None:
    lines = [
        '{"lr": 0.1}',
        '{"step": "x", "a": {}}',
        '{"step": 1',
        '{"event": "train", "step": 1, "loss": 1}',
    ]
    assert log_events(job(folder / "ddp", *lines)) == []
    with pytest.raises(DocumentError, match="events"):
        read_history(folder / "ddp")


@pytest.mark.parametrize("pattern", ["loss (", "loss [0-9]+", "(?P<step>[0-9]+)", "a\nb(?P<loss>.)"])
def test_a_pattern_without_a_number_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"regular expression|names no number|control character"):
        LinePattern.parse(pattern)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("epoch 3 loss 0.5 acc 0.4", {"train": {"epoch": 3, "loss": 0.5, "accuracy": 0.4}}),
        ("Epoch [3/10], Step [100/600], Loss: 0.25", {"train": {"epoch": 3, "loss": 0.25}}),
        (
            "Epoch: 3  val loss=1.5e-1  val accuracy: 97.5%",
            {"epoch": {"epoch": 3, "loss": 0.15, "accuracy": 0.975}},
        ),
        (
            "Epoch 3: 50%|###  | 5/10 [00:01<00:01, 4it/s, v_num=0, train_loss=0.5]",
            {"train": {"epoch": 3, "loss": 0.5}},
        ),
        ("{'loss': 0.5, 'grad_norm': 1.0, 'epoch': 1.5}", {"train": {"epoch": 1, "loss": 0.5}}),
        ("{'eval_loss': 0.5, 'eval_runtime': 1.0, 'epoch': 2.0}", {"epoch": {"epoch": 2, "loss": 0.5}}),
        ("{'loss': '1.28', 'epoch': '2.5'}", {"train": {"epoch": 2, "loss": 1.28}}),
        ("epoch 3 begins", {}),
        ("loss_scale 2 at step 7", {}),
        ("step 7: box_loss 0.5 gloss 3", {}),
        ("the loss is 0.5", {}),
    ],
)
def test_common_lines_are_understood_without_a_pattern(line: str, expected: dict[str, Any]) -> None:
    known = {event.pop("event"): event for event in line_events(line, None)}
    assert known == expected


@pytest.mark.parametrize("printed", MEASURED, ids=lambda printed: printed["from"][:30])
def test_what_programs_print_of_their_losses(folder: Path, printed: dict[str, Any]) -> None:
    run = job(folder / "ddp", *printed["log"].splitlines())
    known = [
        [event["event"], event.get("epoch", event.get("step")), event.get("loss"), event.get("accuracy")]
        for event in log_events(run)
    ]
    assert known == printed["measured"]


@pytest.mark.parametrize("recorded", HEALTHY, ids=lambda recorded: recorded["from"][:30])
def test_what_healthy_programs_print_besides_is_no_measurement(
    folder: Path, recorded: dict[str, str]
) -> None:
    lines = [line for line in recorded["log"].splitlines() if "Avg Loss" not in line]
    assert log_events(job(folder / "ddp", *lines)) == []


def test_a_sweep_is_plotted_point_by_point(folder: Path, command: Command) -> None:
    index = Index(index_file(os.environ))
    run_dir = folder / "elsewhere"
    index.begin("c0ffee", run_dir, "lr", shared=False)
    (run_dir / "2").mkdir(parents=True)  # it has not begun
    (run_dir / POINTS_FILE).write_text("lr\n0.1\n0.2\n0.3\n")
    nothing = command("plot", "lr", "--text")
    assert (nothing.status, "in the points of this sweep so far" in nothing.err) == (3, True)
    for point in ("0", "1"):
        (run_dir / point).mkdir()
        lines = [json.dumps({"step": step, "loss": 1 / step}) for step in (1, 2, 3)]
        (run_dir / point / "events.jsonl").write_text("\n".join(lines))
    drawn = command("plot", "lr", "--text")
    assert drawn.status in (0, None), drawn.err
    assert drawn.out.splitlines()[-1] == "a 0 (lr 0.1), b 1 (lr 0.2); capital letters: validation"
    assert drawn.err == "note: 1 of 3 points have no metrics so far: 2\n"
    single = command("plot", "lr/1", "--text").out
    assert single.splitlines()[-1].startswith("a 1;")


def test_other_lines_are_plotted_by_a_pattern_of_the_command_line(folder: Path, command: Command) -> None:
    run = job(folder / "ddp", "it 1 cost 3.5", "it 2 cost 2.5", "it 2 done")
    (run / "events.jsonl").write_text('{"event": "start"}\n')
    pattern = r"it (?P<step>\d+) cost (?P<loss>[\d.]+)"
    drawn = command("plot", "ddp", "--text", "--metrics", pattern)
    assert (drawn.status, drawn.err) == (0, "")
    assert drawn.out.splitlines()[1].split()[0] == "3.5"
    missing = command("plot", "ddp", "--text", "--metrics", "nothing (?P<loss>.)")
    assert (missing.status, "no line in the log of ddp matches" in missing.err) == (3, True)
    bad = command("plot", "ddp", "--metrics", "cost")
    assert (bad.status, "names no number" in bad.err, "--metrics" in bad.err) == (2, True, True)


def test_of_a_long_log_as_many_lines_are_read_as_can_be_drawn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones are among them, the start of a job and validations too, and lines without a step are counted."""
    monkeypatch.setattr(metrics, "MAX_LINES", 50)
    for where in ("step {}", "epoch 1"):
        lines = [f"{where.format(step)} loss: {1 / step:.4f}" for step in range(1, 3001)]
        lines[2000:2000] = ["Job 1 on n1, restart 1 of at most 3", "step 2000 val loss: 0.5"]
        (folder / "long.out").write_text("\n".join(lines))
        known = find("long.out", folder, {"PATH": ""})
        assert known
        history = read_history(known.folder, submissions=[known.record])
        points = history.curves["train loss"]
        assert 50 <= len(points) <= 101
        assert 2900 < points[-1][0] <= 3050
        assert [value for _, value in history.curves["epoch loss"]] == [0.5]
