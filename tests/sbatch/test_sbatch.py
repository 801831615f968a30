"""The reader of scripts, against what sbatch 22.05.8 said, and against an sbatch that is here."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sbatchgen.base.units import RELEASES
from sbatchgen.check.lint.linter import lint
from sbatchgen.check.sbatch.combination import INVALID_GRES, MIXED_TYPES
from sbatchgen.check.sbatch.gres import gres_amounts
from sbatchgen.check.sbatch.header import Kind
from sbatchgen.check.sbatch.option_table import HasArgument, Spec, specs, value_kinds, variables
from sbatchgen.check.sbatch.reader import Script, read_script
from sbatchgen.check.sbatch.rivals import RIVALS
from sbatchgen.check.sbatch.values import INFINITE, mebibytes, minutes
from sbatchgen.check.script.script import JobScript
from tests.conftest import FIXTURES
from tests.sbatch.headers import comparable, ours, scripts, theirs

RECORDED = json.loads((FIXTURES / "sbatch_offline_parse_22.05.8.json").read_text())
NOT_COMPARED = {
    "--gres=gpu:a100:",
    "--time=-5",
}  # ended before sbatch looked at the value, and thousands of years


def directive(*texts: str, **keywords: Any) -> Script:
    """A script with a directive for each text."""
    lines = "".join(f"#SBATCH {text}\n" for text in texts)
    return read_script(f"#!/bin/bash\n{lines}\nhostname\n", **keywords)


def values(script: Script) -> dict[str, str | None]:
    return {name: option.value for name, option in script.options.items()}


def said(script: Script) -> str:
    """Why sbatch refuses the script; "" if it takes it."""
    return script.refusal.text if script.refusal else ""


def rows(name: str) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, (FIXTURES / name).read_text().splitlines())


@pytest.mark.parametrize("case", RECORDED, ids=[case["directive"] for case in RECORDED])
def test_recorded(case: dict[str, Any]) -> None:
    answer = ours(f"#!/bin/bash\n#SBATCH {case['directive']}\n\nhostname\n")
    refused = any(text.startswith(("error: ", "Try ")) for text in case["messages"])
    other = comparable([case["options"]], case["messages"], refused=refused)
    # None: it needs another cluster or a file.
    assert answer is None or case["directive"] in NOT_COMPARED or answer.agrees(other)


def test_most_of_what_was_recorded_is_compared() -> None:
    scripts = (f"#!/bin/bash\n#SBATCH {case['directive']}\n\nhostname\n" for case in RECORDED)
    assert sum(ours(script) is not None for script in scripts) > 0.8 * len(RECORDED)


def test_times() -> None:
    for row in rows("time_values.jsonl"):
        value = minutes(row["time"])
        if isinstance(row["minutes"], int) or row["minutes"] is None:
            assert value == row["minutes"], row
        elif row["minutes"] != "UNLIMITED":  # garbage that 22.05 takes
            assert value == INFINITE, row
        else:
            assert value in (0, INFINITE), row


def test_memory() -> None:
    for row in rows("mem_values.jsonl"):
        assert mebibytes(row["mem"]) == row["mib"], row


def test_gres() -> None:
    for row in rows("gres_request_strings.jsonl"):
        script = f'#!/bin/bash\n#SBATCH --time=00:05:00 --gres="{row["request"]}"\ntrue\n'
        errors = [
            row for row in lint(JobScript(file="a", text=script, slurm="22.05")) if row.severity == "error"
        ]
        refused = row["status"].startswith(("error", "directive"))
        assert bool(errors) == refused or "as type" in row["status"], row  # a type that no cluster has


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts())
def test_agrees_with_sbatch(oracle: Callable[..., Any], script: str) -> None:
    answer = ours(script)
    assume(answer is not None)
    assert answer
    assert answer.agrees(theirs(script)), (answer, theirs(script))


@pytest.mark.proof
@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts("26.05"))
def test_agrees_with_a_later_sbatch(later_root: Path, script: str) -> None:
    answer = ours(script, "26.05")
    assume(answer is not None)
    assert answer
    assert answer.agrees(theirs(script, later_root)), (answer, theirs(script, later_root))


def test_what_a_later_sbatch_said() -> None:
    """Written by `benchmarks/agreement.py --root build/sid --scripts 400 --record FILE`."""
    compared = refused = missed = 0
    for row in rows("sbatch_26.05_answers.jsonl"):
        if answer := ours(row.pop("script"), "26.05"):
            other = comparable(**row)
            assert answer.agrees(other), (answer, row)
            compared, refused, missed = (
                compared + 1,
                refused + other.refused,
                missed + (answer.refused < other.refused),
            )
    assert compared > 180
    assert refused > 100
    assert missed < refused / 4  # rare values


def test_a_type_of_gpus_may_hold_blanks() -> None:
    text = "#!/bin/bash\n#SBATCH --time=1:00:00 --gres gpu:'GeForce GTX 1080 Ti':1\ntrue\n"
    script = JobScript(file="a", text=text, slurm="22.05")
    assert [finding.rule for finding in lint(script) if finding.severity == "error"] == []
    assert gres_amounts(script.option("gres")) == (("gpu", "GeForce GTX 1080 Ti", 1),)


_FAILED = "Failed to validate job spec"
# What sbatch 22.05 and later refuse of generic resources, and in which words.
GENERIC = {
    "--gres=gpu:1,gpu:a100:1": MIXED_TYPES,
    "--gpus=a100:2 --gpus-per-node=1 -N2": MIXED_TYPES,
    "--gpus=a100:2 --gres=gpu:1 --cpus-per-gpu=4": MIXED_TYPES,
    "--gpus=2 --gpus-per-task=2,a100:1": MIXED_TYPES,
    "--gres=gpu:1,shard:1": INVALID_GRES,
    "--gpus=2 --gres=mps:50": INVALID_GRES,
    "--mem-per-gpu=2G": "Requested mem_per_tres=gres:gpu:2048 but did not request any GPU.",
    "--gpus=1 --cpus-per-gpu=2 -c2": "--cpus-per-gpu is mutually exclusive with --cpus-per-task",
    "--gpus=2 --gpus-per-node=4": "Failed to ensure --gpus >= --gres=gpu/--gpus-per-node >= --gpus-per-socket",
    "--gres=gpu:1 --gpus-per-task=2 -n1": "Failed to ensure --gpus >= --gpus-per-task",
    "--gpus=3 --gres=gpu:2": f"{_FAILED}, --gpus is not multiple of --gres=gpu/--gpus-per-node",
    "--gpus=8 --gpus-per-node=4 -N4": f"{_FAILED}. Based on --gpu and --gres=gpu/--gpus-per-node required nodes (2) "
    "doesn't fall between min_nodes (4) and max_nodes (4) boundaries.",
    "--gpus=3 --gpus-per-task=2": f"{_FAILED}, --gpus not multiple of --gpus-per-task",
    "--gpus=4 --gpus-per-task=1 -n2": f"{_FAILED}. Based on --gpus and --gpus-per-task number of requested tasks "
    "differ from -n/--ntasks.",
    "--gpus=4 --gpus-per-task=1 -N2": f"{_FAILED}. Based on --gpus and --gpus-per-task number of requested tasks "
    "differ from -n/--ntasks.",
    "--gpus-per-task=1 -c4": f"{_FAILED}. --gpus-per-task used without either --gpus or -n/--ntasks is not allowed.",
    "--gpus-per-task=1 -N2 -c4": f"{_FAILED}. --gpus-per-task used without either --gpus or -n/--ntasks is not allowed.",
    "--gpus-per-node=3 --gpus-per-task=2 -n2": f"{_FAILED}, --gres=gpu/--gpus-per-node not multiple of --gpus-per-task.",
    "--gpus-per-node=4 --gpus-per-task=1 --ntasks-per-node=2 -N1": f"{_FAILED}. Based on --gres=gpu/--gpus-per-node and "
    "--gpus-per-task requested number of tasks per node differ from --ntasks-per-node.",
    "--gpus=1 -N2": f"{_FAILED}, --gpus < -N",
    "--gpus=2 -w n[1-3]": f"{_FAILED}, --gpus < -N",
    "--gpus=2 -w n[1-2] -N3": f"{_FAILED}, --gpus < -N",
}
# Near misses, which it takes.
TAKEN = (
    "--gres=gpu:a100:1,gpu:v100:1",
    "--gres=shard:4",
    "--gpus=4 --gpus-per-node=2 -N2",
    "--gpus=4 --gpus-per-node=2 -N1-2",
    "--gpus=4 --gpus-per-task=2 -n2",
    "--gpus=4 --gpus-per-task=2",
    "--gpus-per-task=1 -N2",
    "--gpus-per-task=1 -N2 --ntasks-per-node=4 -c4",
    "--gpus-per-node=4 --gpus-per-task=1 --ntasks-per-node=4 -N2",
    "--gpus-per-node=4 --gpus-per-task=1 --ntasks=4 --ntasks-per-node=04",
    "--gpus=a100:2 --cpus-per-gpu=4 --mem-per-gpu=2G",
    "--gres=gpu:a100:1,shard:1 --cpus-per-gpu=2",
    "--gpus=4 -N1-8",
    "--gpus=2 -w n[1-3] -n1",
    "--gpus=1 -w n1,n1",
    "--gpus=2 -w n[1-2] -N2-3",
    "--gpus-per-task=1 --ntasks-per-node=4",  # later ones refuse it
    "--cpus-per-gpu=2",  # later ones refuse it
)


@pytest.mark.parametrize("text", [*GENERIC, *TAKEN])
def test_generic_resources(oracle: Callable[..., Any], text: str) -> None:
    script = f"#!/bin/bash\n#SBATCH {text}\n\nhostname\n"
    answer, heard = ours(script), theirs(script)
    assert said(directive(text)) in GENERIC.get(text, "")
    assert (directive(text).refusal is not None) == (text in GENERIC) == heard.refused
    assert answer is None or answer.agrees(heard), (answer, heard)
    assert GENERIC.get(text, "") in " ".join(heard.messages)


@pytest.mark.parametrize("text", [*GENERIC, *TAKEN])
def test_generic_resources_of_a_later_release(later_root: Path, text: str) -> None:
    script = f"#!/bin/bash\n#SBATCH {text}\n\nhostname\n"
    answer, heard = ours(script, "26.05"), theirs(script, later_root)
    assert said(directive(text, slurm="26.05")) in " ".join(heard.messages)
    assert heard.refused == (directive(text, slurm="26.05").refusal is not None)
    assert answer is None or answer.agrees(heard), (answer, heard)


NOT_READ = {"nodelist_slash", "clusters_bad", "deadline_past"}  # a file, another cluster, and the clock
NOT_READ |= {"ntasks_per_gpu_none"}  # with --ntasks-per-gpu, GPUs are not checked
NOT_READ |= {"gres_bad_count", "gres_eq"}  # lists of resources are read by the rules
TESTED = [
    case
    for case in json.loads((FIXTURES / "sbatch_testonly_results_22.05.8.json").read_text())
    if case["name"] not in NOT_READ and not case["args"] and not case["env"]
]


@pytest.mark.parametrize("case", TESTED, ids=[case["name"] for case in TESTED])
def test_what_sbatch_refuses_without_asking_slurmctld(case: dict[str, Any]) -> None:
    """Of `sbatch --test-only` on a real cluster: what it refused itself, and in which words."""
    script = read_script(case["body"])
    refused = case["rc"] != 0 and "allocation failure" not in case["stderr"]
    assert (script.refusal is not None) == refused
    assert said(script) in " ".join(line.removeprefix("sbatch: ") for line in case["stderr"].splitlines())


SUBTLE = [
    '--export="A=\'1,2\',B=\\"x,C"',
    "--begin=now+x",
    "--begin=nowx",
    "--begin=2030-01-01T10:61",
    "--gres=help",
    "-D sub -o x/%j",
    "--time=\udcff",
    "-J \xa0x\u2028y",
    "-n2 -N4 -w x[1-3]",
    "--sockets-per-node=3 --cpus-per-gpu=4 -c4 --mem-per-gpu=2G",
    "--gres=gpu:1,gpu:a100:1,shard:1",
    "-N1\n#SBATCH -J x\n#SBATCH hetjob -n1\n#SBATCH :",
    "-J 'x",
    "-J x \\",
    "-m pack,nopack",
    "-w r10n[1-2],r2n[1-2],r1n1 -n3 -N5",
    "-J z\n#PBS -l nodes=n1+n2+n3:ppn=4\n#SBATCH --ignore-pbs",
]


@pytest.mark.parametrize("text", SUBTLE)
def test_subtle_cases(oracle: Callable[..., Any], text: str) -> None:
    script = f"#!/bin/bash\n#SBATCH {text}\n\nhostname\n"
    answer = ours(script)
    assert answer
    assert answer.agrees(theirs(script)), (answer, theirs(script))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("", "Batch script is empty!"),
        (" \n", "Batch script contains only whitespace!"),
        ("echo\n", "This does not look like a batch script"),
        ("\ufeff#!/bin/sh\n", "This does not look like a batch script"),
        ("#!/bin/sh\n\0", "The Slurm controller does not allow scripts that contain a NULL character"),
        ("#!/bin/sh\r\n", "Batch script contains DOS line breaks"),
    ],
)
def test_a_file_that_is_no_script(oracle: Callable[..., Any], script: str, words: str) -> None:
    assert said(read_script(script)) == words
    answer = ours(script)
    assert answer
    assert answer.agrees(theirs(script))


def test_places() -> None:
    text = "#!/bin/sh\n# a\n#SBATCH -J 'my job'  --part=gpu # why\n#SBATCH -t\n#SBATCH 10\n"
    options = read_script(text).options
    name, partition, limit = options["job-name"], options["partition"], options["time"]
    assert (name.line, name.word.column) == (3, 9)
    assert name.value_word
    assert name.value_word.span(name.value_start) == (12, 20)
    assert (partition.word.text, partition.word.column) == ("--part=gpu", 22)
    assert partition.value_word
    assert partition.value_word.span(partition.value_start) == (29, 32)
    assert (limit.value, limit.line) == ("10", 4)
    assert limit.value_word
    assert (limit.value_word.line, limit.value_word.column) == (5, 9)


def test_lines_that_only_look_like_directives() -> None:
    text = (
        "#!/bin/sh\n #SBATCH -n1\n##SBATCH -n2\n# SBATCH -n3\n#sbatch -n4\n# SBATCHgen\n#SBATCH -n5\n#PBS -l x\n"
        "ls\n#SBATCH -n6\n#BSUB -x\n"
    )
    script = read_script(text)
    assert [(line.kind, line.line) for line in script.directives] == [
        (Kind.LOOKALIKE, 2),
        (Kind.DISABLED, 3),
        (Kind.LOOKALIKE, 4),
        (Kind.LOOKALIKE, 5),
        (Kind.SBATCH, 7),
        (Kind.PBS, 8),
        (Kind.LATE, 10),
        (Kind.BSUB, 11),
    ]
    assert script.has_foreign
    assert values(script) == {"ntasks": "5"}


def test_the_last_one_counts_and_all_are_kept() -> None:
    script = directive("-p a", "--partition=b")
    (component,) = script.components
    assert [option.value for option in component.uses] == ["a", "b"]
    assert values(script) == {"partition": "b"}
    assert script.options["partition"].line == 3


@pytest.mark.parametrize(
    ("given", "counts"),
    [(("BEGIN", "END"), "BEGIN,END"), (("END", "NONE", "FAIL"), "END,FAIL"), (("END", "end,none"), "END")],
)
def test_mail_events_add_up(oracle: Callable[..., Any], given: tuple[str, ...], counts: str) -> None:
    """Until 25.05: then the last one counts."""
    directives = [f"--mail-type={event}" for event in given]
    assert values(directive(*directives)) == {"mail-type": counts}
    assert values(directive(*directives, slurm="25.05")) == {"mail-type": given[-1]}
    lines = "".join(f"#SBATCH {option}\n" for option in directives)
    assert oracle(f"#!/bin/bash\n{lines}").options["mail-type"] == counts


def test_components_of_a_heterogeneous_job() -> None:
    script = directive("-J x -n1", "hetjob", "-n2")
    assert [component.options["ntasks"].value for component in script.components] == ["1", "2"]
    assert script.components[1].options["job-name"].line == 2  # carried on


def test_a_lone_carriage_return_is_a_blank(oracle: Callable[..., Any]) -> None:
    script = "#!/bin/sh\n#SBATCH -N2\r-Jx\n"
    answer = ours(script)
    assert answer
    assert answer.agrees(theirs(script))


def test_releases_differ() -> None:
    assert said(directive(r"-J my\ job")) == "Invalid directive found in batch script: job"
    assert values(directive(r"-J my\ job", slurm="24.05")) == {"job-name": "my job"}
    assert said(directive("--stepmgr", slurm="23.11")) == "unrecognized option '--stepmgr'"
    assert directive("--stepmgr", slurm="24.05.8").refusal is None
    assert said(directive("--requeue=expedite", slurm="25.05")).endswith("doesn't allow an argument")
    assert directive("--requeue=expedite", slurm="25.11").refusal is None
    assert said(directive("--requeue=yes", slurm="26.05")) == "Invalid --requeue specification"
    assert directive("--requeue=", slurm="26.05").refusal is None
    assert directive("-N 1-15:4", slurm="23.02").refusal is None
    assert directive("-N 1-15:4", slurm="22.05").refusal
    for release in ("22.05", "23.11", "26.05"):
        assert directive("--gres=gpu:1,shard:1", slurm=release).refusal
        assert directive("--gres=gpu:a100:2", slurm=release).refusal is None
    exclusive = "--exclusive and --oversubscribe options are mutually exclusive"
    assert said(directive("--exclusive -s", slurm="23.02")) == exclusive
    with pytest.raises(ValueError, match=r"Slurm 1\.2 is not known"):
        read_script("#!/bin/sh\n", slurm="1.2")


def test_what_slurm_conf_decides_is_not_judged() -> None:
    """SlurmctldParameters=enable_stepmgr, MULTIPLE_SHARING_GRES_PJ and AllowSpecResourcesUsage."""
    for option in ("--resv-ports=4", "--gres-flags=one-task-per-sharing", "--core-spec=1"):
        assert directive(option, slurm="26.05").refusal is None


def test_options_of_a_plugin() -> None:
    image = Spec(
        name="container-image", short="", argument=HasArgument.REQUIRED, early=False, per_component=False
    )
    assert directive("--container-image=a").refusal
    script = directive("--container-image=nvcr.io#nvidia/x", plugin_options=[image])
    assert values(script) == {"container-image": "nvcr.io"}


@pytest.mark.parametrize("release", RELEASES)
def test_tables(release: str) -> None:
    table = specs(release)
    shorts = [spec.short for spec in table.values() if spec.short]
    assert len(shorts) == len(set(shorts)) == 34
    names = {option for _, option in variables(release)} - {"req-switch", "wait4switch", "power"}
    assert names <= set(table)


def test_rivals_and_kinds_are_of_options_that_there_are() -> None:
    known = {name for release in RELEASES for name in specs(release)}
    assert {name for pair in RIVALS for name in (pair.first, pair.second)} <= known
    assert {pair.since for pair in RIVALS} <= set(RELEASES)
    assert set(value_kinds()) <= known


@pytest.mark.proof
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    for script in (text, f"#!/bin/sh\n#SBATCH {text}"):
        assert read_script(script).directives or not read_script(script).options


@given(st.binary(max_size=100), st.sampled_from(RELEASES))
def test_any_bytes(script: bytes, release: str) -> None:
    assert read_script(b"#!/bin/sh\n#SBATCH " + script, slurm=release).directives


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "option",
    [
        "-J '" + "x" * 2_000_000 + "'",
        "-J " + "\\" * 500_000,
        "-t " + "9" * 100_000,
        "--gres=gpu:" + "9" * 100_000,
        "--begin=now+" + "9" * 100_000,
        "-w a[0-65535]b[0-65535]c[1-9]",
        "-w " + "[" * 100_000,
        "-w " + "n[0-65535]," * 10_000,
        "-m " + ":" * 100_000,
        "--gres=" + ",".join(f"gpu:a{number}:1" for number in range(10_000)),
        "-w a" + "[1]" * 10_000,
        "-w " + "".join(f"n{number:06}," for number in range(20_000)),
        "#" * 1_000_000,
    ],
    ids=lambda option: option[:12],
)
def test_hostile_sizes(option: str) -> None:
    start = time.process_time()
    directive(option)
    assert time.process_time() - start < 5


def test_long_bodies() -> None:
    start = time.process_time()
    script = read_script("#!/bin/sh\n#SBATCH -n1\n" + "echo hello\n" * 500_000 + "#SBATCH -n2\n")
    assert time.process_time() - start < 5
    assert script.directives[-1].line == 500_003


def test_needs_no_library() -> None:
    code = "import sys, sbatchgen.check.sbatch; print(sorted({'yaml', 'jinja2', 'click'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
