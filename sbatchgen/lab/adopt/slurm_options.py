"""The conversion of a script's directives into options of the job and keys of the profile."""

import contextlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sbatchgen.base.units import Duration
from sbatchgen.check.sbatch.getopt import Option
from sbatchgen.check.sbatch.header import FOREIGN_KINDS, READ_KINDS, Kind
from sbatchgen.check.sbatch.values import INFINITE, minutes
from sbatchgen.check.script.job import OLD_SLURM
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.document import parse_scalar
from sbatchgen.jobs.inputs.flags import key_type
from sbatchgen.jobs.inputs.options import GPU_OPTIONS, NAMES
from sbatchgen.lab.adopt.draft import Draft

# The reason why Slurm ignores a directive, by the directive's kind.
_IGNORED_REASONS = {
    Kind.LATE: "Slurm ignores it after the first command",
    Kind.LOOKALIKE: "a comment to Slurm",
    Kind.DISABLED: "a comment to Slurm",
}
# Values of the profile's key gpu_request, which are also options of a job.
_GPU_REQUEST_KEYS = ("gres", "gpus_per_node", "gpus_per_task", "gpus")


def adopt_options(draft: Draft) -> None:
    """Put the options of the directives into the job."""
    script, effective_options = draft.script, options_of(draft.script)
    options_by_line = defaultdict[int, list[Option]](list)
    for option in script.option_uses:
        if isinstance(option, Option):
            options_by_line[option.line].append(option)
    _lose_foreign_options(draft)
    for directive in script.sbatch.directives:
        if directive.component > 0:
            draft.add((directive.line,), "lost", "a second component: heterogeneous jobs are not rendered")
        elif directive.kind in _IGNORED_REASONS:
            draft.add((directive.line,), "dropped", _IGNORED_REASONS[directive.kind])
        elif directive.kind in READ_KINDS:
            _adopt_directive(draft, directive.line, options_by_line[directive.line], effective_options)
    name = script.file.rpartition("/")[2]  # sbatch gives this name to a job without --job-name
    if "job_name" not in draft.options and "job-name" not in script.options and name != "<stdin>":
        with contextlib.suppress(ValueError):  # a name that no job can have
            draft.options["job_name"] = _job_value("job_name", name)
    _drop_repeated_gpus(draft)
    gpu_request = next(
        (key for key in GPU_OPTIONS if key in draft.options and key in _GPU_REQUEST_KEYS), None
    )
    if gpu_request:
        draft.profile["gpu_request"] = gpu_request
    elif not script.resources.gpu_option:
        draft.job["gpu_request"] = "none"


def _lose_foreign_options(draft: Draft) -> None:
    """Note the options of other schedulers as lost."""
    script = draft.script
    if scheduler := script.other_scheduler:
        draft.add(scheduler.lines, "lost", f"an option of {scheduler.name}: write it as #SBATCH")
    elif script.sbatch.has_foreign:
        for directive in script.sbatch.directives:
            if directive.kind in FOREIGN_KINDS:
                draft.add((directive.line,), "lost", "an option of another scheduler: write it as #SBATCH")


def _drop_repeated_gpus(draft: Draft) -> None:
    """Drop a --gpus-per-node that repeats --gres, because Slurm 26.05 refuses both together."""
    resources, options = draft.script.resources, draft.options
    if "gres" not in options or "gpus_per_node" not in options:
        return
    gpus_as_gres = tuple(("gpu", *pair) for pair in resources.gpus_per_node or ())
    if gpus_as_gres and gpus_as_gres == resources.gres:
        del options["gpus_per_node"]
        draft.changed_options.add("gpus-per-node")
        line = resources.place("gpus-per-node").line
        draft.add((line,), "mended", f"--gres={options['gres']} requests the same")


def options_of(script: JobScript) -> dict[str, Option]:
    """Return the options of a script as Slurm reads them, by their names.

    If an option is repeated, its last use counts. Only --mail-type has the values of all of its uses, as in
    Slurm before 25.05, because the user has written all of them.
    """
    options = dict(script.options)
    if "mail-type" in options:
        options["mail-type"] = script.read_by(OLD_SLURM).options.get("mail-type", options["mail-type"])
    return options


def _adopt_directive(
    draft: Draft, line: int, options: list[Option], effective_options: Mapping[str, Option]
) -> None:
    """Convert the options of the directive on a line.

    A later directive may repeat an option. Then only the option in `effective_options`, the result of
    `options_of`, goes into the job.
    """
    lines = (line,)
    if not options:
        draft.add(lines, "dropped", "it requests nothing")
    for option in options:
        effective = effective_options[option.name]
        if effective.word == option.word:
            _adopt_option(draft, effective)
        elif option.name == "mail-type":
            reason = f"mail_type: {effective.value}; from Slurm 25.05 on, only the last line counts"
            draft.add(lines, "mended", reason)
        else:
            draft.add(lines, "dropped", f"--{option.name} of line {effective.line} counts")


def _adopt_option(draft: Draft, option: Option) -> None:
    """Put an option into the job, with the value that Slurm reads."""
    name, key, lines = option.name, option.name.replace("-", "_"), (option.line,)
    text = "true" if option.value is None else option.value
    if name in ("requeue", "no-requeue"):
        key, text = "requeue", option.value or str(name == "requeue").lower()
    elif name.startswith("container-"):
        draft.changed_options.add(name)
        draft.add(lines, "lost", f"--{name} puts the whole script into the container: give it to srun")
        return
    elif key not in NAMES:  # no option of a job, so it goes into extra_options
        try:
            parse_scalar(text, key_type(f"extra_options.{name}"))
        except ValueError as error:
            draft.changed_options.add(name)
            draft.add(lines, "lost", str(error))
            return
        draft.job.setdefault("extra_options", {})[name] = text
        draft.add(lines, "understood", "options", name)
        return
    try:
        draft.options[key] = _job_value(key, text)
    except ValueError as error:
        draft.changed_options.add(name)
        if key in ("output", "error") and option.value:
            reason = f"left out: {error}, so the log goes to its default place"
            draft.add(lines, "mended", reason)
        else:
            draft.add(lines, "lost", str(error))
        return
    if key != "ntasks":  # shape.py notes --ntasks, with the tasks on each node
        draft.add(lines, "understood", "options", key)


def _job_value(key: str, text: str) -> Any:
    """Return the value that a job has for an option; raise ValueError if no job can have the value."""
    if key in ("time", "time_min") and (limit := minutes(text)) is not None:
        if limit in (0, INFINITE):
            raise ValueError("no time limit: a job needs one, such as time: 7-00:00:00")
        return str(Duration(60 * limit))
    if key == "nodes" and len({*text.split("-")}) == 1:  # a range of one number, such as 2-2
        text = text.partition("-")[0]
    if key in ("output", "error") and "$" in text:
        raise ValueError("Slurm does not expand variables in directives")
    value = parse_scalar(text, key_type(f"options.{key}"))
    return value if isinstance(value, bool) or type(value) is int else str(value)
