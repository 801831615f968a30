"""Values that no job can have: refused where a key is read, in a file and on the command line alike."""

from __future__ import annotations

import pytest

from sbatchgen.base.errors import CommandLineError, DocumentError, Problem
from sbatchgen.jobs.inputs.document import decode
from sbatchgen.jobs.inputs.flags import layer_of
from sbatchgen.jobs.inputs.job_file import JobSpec
from tests.conftest import Command

AT_LEAST_ONE = "'0' must be 1 or more"
EMPTY = ("the value is empty", "leave the option out, or give it a value")
NO_COUNT = ("is not [type:]count", "write 4, or a100:4")
REFUSED: list[tuple[str, str, str, str]] = [
    ("options.nodes", "0", AT_LEAST_ONE, ""),
    ("options.ntasks", "0", AT_LEAST_ONE, ""),
    ("options.ntasks_per_node", "0", AT_LEAST_ONE, ""),
    ("options.cpus_per_task", "0", AT_LEAST_ONE, ""),
    ("nproc_per_node", "0", AT_LEAST_ONE, ""),
    ("max_restarts", "-1", "'-1' is negative", "set it to 0 for no restarts"),
    (
        "options.time",
        "00:00:59",
        "time 0-00:00:59 is less than a minute, the shortest limit that Slurm has",
        "set at least 00:01:00",
    ),
    ("options.time", "30s", "'30s' is not a time; write 0-00:01:00 or more", ""),
    (
        "options.time",
        "0:30",
        "time '0:30' is ambiguous: Slurm reads 0 minutes 30 seconds; write 00:30:00",
        "",
    ),
    ("options.gpus", "a100", f"'a100' {NO_COUNT[0]}", NO_COUNT[1]),
    ("options.gpus_per_node", "x:y:4", f"'x:y:4' {NO_COUNT[0]}", NO_COUNT[1]),
    ("options.gpus_per_task", "0", f"'0' {NO_COUNT[0]}", NO_COUNT[1]),
    ("options.account", "", *EMPTY),
    ("options.mail_user", "", *EMPTY),
    ("options.gpus_per_node", "", *EMPTY),
    ("extra_options.foo", "", *EMPTY),
    ("extra_options.wrap", "x", "--wrap does not belong in a script", "give it to sbatch itself"),
    ("extra_options.--foo", "x", "'--foo' is not the long name of an option", "write it without dashes"),
    ("extra_options.nodes", "2", "--nodes is an option that sbatchgen knows", "set options.nodes"),
    (
        "extra_options.mem-per-gpu",
        "1G",
        "--mem-per-gpu is an option that sbatchgen knows",
        "set options.mem_per_gpu",
    ),
    ("trainer", "", "'' can't be a trainer", "give a file, or a module's name"),
    ("trainer", "-x", "'-x' can't be a trainer", "give a file, or a module's name"),
    ("trainer", "-x.py", "'-x.py' can't be a trainer", "give a file, or a module's name"),
    ("trainer", "my trainer", "'my trainer' is neither a file nor a module", "write ./my trainer"),
    (
        "trainer",
        "train.py --lr 1",
        "'train.py --lr 1' is neither a file nor a module",
        "--trainer train.py -- --lr 1",
    ),
]
ACCEPTED = [
    *(("options.nodes", "1"), ("nproc_per_node", "1"), ("max_restarts", "0"), ("options.time", "00:01:00")),
    *(("options.gpus_per_node", "a100:4"), ("options.gpus", "4"), ("options.gpus_per_task", "1g.10gb:1")),
    *(("options.account", "physics"), ("options.open_mode", "truncate")),
    *(
        ("extra_options.gpu_cmode", "shared"),
        ("extra_options.bb", "capacity=10G"),
        ("extra_options.hold", "true"),
    ),
    *(("trainer", "train.py"), ("trainer", "my train.py"), ("trainer", "./my trainer")),
    *(("trainer", "package.train"), ("trainer", "{env:CODE}/train"), ("trainer", "/opt/train")),
]


def _as_file(key: str, text: str) -> str:
    """A job YAML whose first line has the key."""
    names = key.split(".", 1)
    return f'{names[0]}: {{{names[1]}: "{text}"}}\n' if len(names) > 1 else f'{names[0]}: "{text}"\n'


@pytest.mark.parametrize(("key", "text", "what", "fix"), REFUSED)
def test_a_value_that_no_job_can_have_is_refused_where_it_is_read(
    key: str, text: str, what: str, fix: str
) -> None:
    with pytest.raises(DocumentError) as in_file:
        decode(_as_file(key, text), JobSpec, name="job.yaml")
    assert in_file.value.problems == (Problem(f"{key}: {what}", "job.yaml:1", fix),)
    with pytest.raises(CommandLineError) as typed:
        layer_of((), {"settings": (f"{key}={text}",)})
    assert typed.value.problems == (Problem(what, f"--set {key}", fix),)


@pytest.mark.parametrize(("key", "text"), ACCEPTED)
def test_a_value_just_inside_is_taken(key: str, text: str) -> None:
    assert decode(_as_file(key, text), JobSpec, name="job.yaml").places[key] == "job.yaml:1"
    assert [*layer_of((), {"settings": (f"{key}={text}",)}).values] == [key]


def test_a_mode_of_the_log_is_append_or_truncate() -> None:
    with pytest.raises(DocumentError) as refused:
        decode("options: {open_mode: apend}\n", JobSpec, name="job.yaml")
    what = "options.open_mode: 'apend' is not one of append, truncate"
    assert refused.value.problems == (Problem(what, "job.yaml:1", "did you mean 'append'?"),)


def test_several_bad_values_are_refused_together_and_nothing_is_shown(command: Command) -> None:
    result = command("review", "ddp", "--profile", "msu", "--nodes", "-1", "--time", "30", "--account", "")
    assert (result.status, result.out) == (2, "")
    assert result.err.splitlines()[::3][:2] == ["error: the value is empty", "error: '-1' must be 1 or more"]
