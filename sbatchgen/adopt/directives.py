"""Directives -> options of the job, and facts of the cluster."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sbatchgen.adopt.draft import Draft
from sbatchgen.inputs.document import parse_scalar
from sbatchgen.inputs.flags import key_type
from sbatchgen.inputs.options import GPU_OPTIONS, NAMES
from sbatchgen.job.job import OLD_SLURM
from sbatchgen.job.script import JobScript
from sbatchgen.sbatch.getopt import Option, Stop
from sbatchgen.sbatch.header import FOREIGN, READ, Kind
from sbatchgen.sbatch.values import INFINITE, minutes
from sbatchgen.units import Duration

_OPTIONS = "options"
_IGNORED = {
    Kind.LATE: "Slurm ignores it behind the first command",
    Kind.LOOKALIKE: "a comment to Slurm",
    Kind.DISABLED: "a comment to Slurm",
}
_FORMS = ("gres", "gpus_per_node", "gpus_per_task")  # of asking for GPUs, that a profile may name


def read(draft: Draft) -> None:
    """Take over what the directives ask for."""
    script, counts = draft.script, options_of(draft.script)
    uses = defaultdict[int, list[Option | Stop]](list)
    for use in script.uses:
        uses[use.word.line].append(use)
    for directive in script.sbatch.directives:
        if directive.kind in FOREIGN and script.sbatch.has_foreign:
            draft.add((directive.line,), "lost", "an option of another scheduler: write it as #SBATCH")
        elif directive.component > 0:
            draft.add((directive.line,), "lost", "a second component: heterogeneous jobs are not rendered")
        elif directive.kind in READ:
            _of_line(draft, directive.line, uses[directive.line], counts)
        elif directive.kind in _IGNORED:
            draft.add((directive.line,), "dropped", _IGNORED[directive.kind])
    if "job_name" not in draft.options and "job-name" not in script.options:
        _set_default_name(draft)
    _ask_once(draft)
    form = next((key for key in GPU_OPTIONS if key in draft.options and key in _FORMS), None)
    if form:
        draft.profile["gpu_request"] = form
    elif not script.resources.gpu_option:
        draft.job["gpu_request"] = "none"


def _ask_once(draft: Draft) -> None:
    """Leave out --gpus-per-node beside a --gres that asks for the same, which Slurm 26.05 refuses."""
    asked, options = draft.script.resources, draft.options
    if "gres" not in options or "gpus_per_node" not in options:
        return
    if asked.gpus_per_node and tuple(("gpu", *one) for one in asked.gpus_per_node) == asked.gres:
        del options["gpus_per_node"]
        draft.changed.add("gpus-per-node")
        line = asked.place("gpus-per-node").line
        draft.add((line,), "mended", f"--gres={options['gres']} asks for the same")


def options_of(script: JobScript) -> dict[str, Option]:
    """The use that counts of each option; several --mail-type add up, as they do until Slurm 25.05."""
    old = script.read_by(OLD_SLURM).options if "mail-type" in script.options else {}
    return {name: old.get(name, use) if name == "mail-type" else use for name, use in script.options.items()}


def _of_line(draft: Draft, number: int, found: Sequence[Option | Stop], counts: Mapping[str, Option]) -> None:
    line = (number,)
    uses = [use for use in found if isinstance(use, Option)]
    if not uses:
        draft.add(line, "dropped", "it asks for nothing")
    for use in uses:
        last = counts[use.name]
        if (last.line, last.column) == (use.line, use.column):
            _of_option(draft, last)
        elif use.name == "mail-type":
            draft.add(
                line, "mended", f"mail_type: {last.value}; from Slurm 25.05 on, only the last line counts"
            )
        else:
            draft.add(line, "dropped", f"--{use.name} of line {last.line} counts")


def _of_option(draft: Draft, use: Option) -> None:
    name, text, line = use.name, use.value, (use.line,)
    key = name.replace("-", "_")
    if name in ("requeue", "no-requeue"):
        draft.options["requeue"] = name == "requeue"
        draft.add(line, "understood", _OPTIONS, "requeue")
    elif name.startswith("container-"):
        draft.changed.add(name)
        draft.add(line, "lost", f"--{name} puts the whole script into the container: give it to srun")
    elif key not in NAMES:
        value = "true" if text is None else text
        draft.job.setdefault("extra_options", {})[name] = value
        draft.add(line, "understood", _OPTIONS, name)
    else:
        _of_known(draft, use, key)


def _of_known(draft: Draft, use: Option, key: str) -> None:
    """An option with a key of its own: the value that Slurm reads today."""
    text, line = use.value, (use.line,)
    try:
        value = _value(key, "true" if text is None else text)
    except ValueError as error:
        draft.changed.add(use.name)
        if key in ("output", "error") and text:
            what = f"left out: {error}. To Slurm it is a folder of that name; the log goes to the default"
            draft.add(line, "mended", what)
        else:
            draft.add(line, "lost", str(error))
        return
    draft.options[key] = value
    if key != "ntasks":  # the launch tells how many there are on each node
        draft.add(line, "understood", _OPTIONS, key)


def _value(key: str, text: str) -> Any:
    """The value of an option, as a job has it.

    Raises:
        ValueError: A job can't have it.
    """
    if key in ("time", "time_min") and (read_as := minutes(text)) is not None:
        if read_as in (0, INFINITE):
            raise ValueError("no time limit: a job here needs one, as time: 7-00:00:00")
        return str(Duration(60 * read_as))
    if key == "nodes" and len({*text.split("-")}) == 1:  # 2-2
        text = text.partition("-")[0]
    found = parse_scalar(text, key_type(f"options.{key}"))
    return found if isinstance(found, bool) or type(found) is int else str(found)


def _set_default_name(draft: Draft) -> None:
    """Without --job-name, the job has the name of the file."""
    name = draft.script.file.rpartition("/")[2]
    with contextlib.suppress(ValueError):
        if name != "<stdin>":
            draft.options["job_name"] = _value("job_name", name)
