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

from sbatchgen.sbatch.grammar import INFINITE, mebibytes, minutes
from sbatchgen.sbatch.header import Kind
from sbatchgen.sbatch.reader import Script, read
from sbatchgen.sbatch.releases import RELEASES, HasArgument, Spec, specs, variables
from tests.conftest import FIXTURES
from tests.sbatch.headers import GRES_TYPES, Answer, Case, cases, comparable, ours, theirs

RECORDED = json.loads((FIXTURES / "sbatch_offline_parse_22.05.8.json").read_text())
CUT_SHORT = "--gres=gpu:a100:"  # sbatch was ended before it looked at the value


def directive(*texts: str, **keywords: Any) -> Script:
    """A script with a directive for each text."""
    lines = "".join(f"#SBATCH {text}\n" for text in texts)
    return read(f"#!/bin/bash\n{lines}\nhostname\n", **{"gres_types": GRES_TYPES, **keywords})


def values(script: Script) -> dict[str, str | None]:
    return {name: option.value for name, option in script.options.items()}


def said(script: Script) -> list[str]:
    return [str(message) for message in script.messages]


def rows(name: str) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, (FIXTURES / name).read_text().splitlines())


@pytest.mark.parametrize("case", RECORDED, ids=[case["directive"] for case in RECORDED])
def test_recorded(case: dict[str, Any]) -> None:
    script = f"#!/bin/bash\n#SBATCH {case['directive']}\n\nhostname\n"
    answer = ours(Case(script, {}))
    expected = answer  # None where it needs another cluster or a file
    if answer is not None and case["directive"] != CUT_SHORT:
        components = [case["options"]] if answer.components else []
        expected = comparable(Answer(components, case["messages"], answer.returncode))
    assert answer == expected
    assert case["directive"] != CUT_SHORT or (answer is not None and answer.returncode == 1)


def test_most_of_what_was_recorded_is_compared() -> None:
    scripts = (f"#!/bin/bash\n#SBATCH {case['directive']}\n\nhostname\n" for case in RECORDED)
    assert sum(ours(Case(script, {})) is not None for script in scripts) > 0.8 * len(RECORDED)


def test_times() -> None:
    for row in rows("time_values.jsonl"):
        value = minutes(row["time"])
        if isinstance(row["minutes"], int) or row["minutes"] is None:
            assert value == row["minutes"], row
        elif row["minutes"] != "UNLIMITED":  # garbage that 22.05 takes
            assert value is not None, row
            assert value < 0, row
        else:
            assert value in (0, INFINITE), row


def test_memory() -> None:
    for row in rows("mem_values.jsonl"):
        assert mebibytes(row["mem"]) == row["mib"], row


def test_gres() -> None:
    for row in rows("gres_request_strings.jsonl"):
        script = directive(f'--gres="{row["request"]}"', gres_types=(*GRES_TYPES, "mps"))
        assert (script.returncode is None) == (not row["status"].startswith(("error", "directive"))), row


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_agrees_with_sbatch(oracle: Callable[..., Any], case: Case) -> None:
    answer = ours(case)
    assume(answer is not None)
    assert answer == theirs(case)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases("26.05"))
def test_agrees_with_a_later_sbatch(later_root: Path, case: Case) -> None:
    answer = ours(case, "26.05")
    assume(answer is not None)
    assert answer == theirs(case, later_root)


def test_what_a_later_sbatch_said() -> None:
    """Written by `benchmarks/agreement.py --root build/sid --scripts 400 --record FILE`."""
    compared = 0
    for row in rows("sbatch_26.05_answers.jsonl"):
        case = Case(row.pop("script"), row.pop("environment"))
        if answer := ours(case, "26.05"):
            assert answer == Answer(**row), case
            compared += 1
    assert compared > 180


NOT_READ = {"nodelist_slash", "clusters_bad", "deadline_past"}  # a file, another cluster, and the clock
TESTED = [
    case
    for case in json.loads((FIXTURES / "sbatch_testonly_results_22.05.8.json").read_text())
    if case["name"] not in NOT_READ and not case["args"]
]


@pytest.mark.parametrize("case", TESTED, ids=[case["name"] for case in TESTED])
def test_what_sbatch_refuses_without_asking_slurmctld(case: dict[str, Any]) -> None:
    """Of `sbatch --test-only` on a real cluster: what it refused itself, and in which words."""
    script = read(
        case["body"],
        environment=case["env"],
        gres_types=GRES_TYPES,
        file=f"{case['name']}.sbatch",
    )
    asked = case["rc"] == 0 or "allocation failure" in case["stderr"]
    assert script.returncode == (None if asked else case["rc"])
    if not asked:
        words = [line.removeprefix("sbatch: ") for line in case["stderr"].splitlines()]
        assert said(script) == comparable(Answer([], words, case["rc"])).messages


SUBTLE = [
    ("packjob", {"SBATCH_EXPORT": "'0:%]\\"}),
    ('--hint=compute_bound\n#SBATCH hetjob\n#SBATCH --acctg-freq="30"', {}),
    (
        "--hint=nomultithread\n#SBATCH hetjob\n#SBATCH --ntasks-per-core=1\n#SBATCH hetjob\n#SBATCH --hint=x",
        {},
    ),
    ('--export="A=\'1,2\',B=\\"x,C"', {}),
    ("--begin=now+x", {}),
    ("--begin=nowx", {}),
    ("--begin=2030-01-01T10:61", {}),
    ("-J x", {"SBATCH_IGNORE_PBS": "1"}),
    ("--gres=help", {}),
    ("--hint=help", {}),
    ("-D sub -o x/%j", {}),
    ("--time=\udcff", {}),
    ("-\udcc3\udca9", {}),
    ("-J \xa0x\u2028y", {}),
    ("--mem=1G", {"SBATCH_MEM_PER_CPU": "2G"}),
    ("-p a", {"SBATCH_MEM_PER_CPU": "2G", "SBATCH_MEM_PER_GPU": "2G"}),
    ("-n2 -N4 -w x[1-3]", {}),
    ("--ntasks-per-gpu=8 --sockets-per-node=3 --cpus-per-gpu=4 -c4 --mem-per-gpu=2G", {}),
    ("--gres=gpu:1,gpu:a100:1,shard:1", {}),
    ("-N1\n#SBATCH -J x\n#SBATCH hetjob -n1\n#SBATCH :", {}),
    ("-J 'x", {}),
    ("-J x \\", {}),
    ("-m pack,nopack", {}),
    ("-w r10n[1-2],r2n[1-2],r1n1 -n3 -N5", {}),
    ("-J z\n#PBS -l nodes=n1+n2+n3:ppn=4\n#SBATCH --ignore-pbs", {}),
    ("-J z\n#PBS -N x", {"SBATCH_IGNORE_PBS": "1"}),
]


@pytest.mark.parametrize(("text", "environment"), SUBTLE)
def test_subtle_cases(oracle: Callable[..., Any], text: str, environment: dict[str, str]) -> None:
    case = Case(f"#!/bin/bash\n#SBATCH {text}\n\nhostname\n", environment)
    assert ours(case) == theirs(case)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("", "Batch script is empty!"),
        (" \n", "Batch script contains only whitespace!"),
        ("echo\n", "This does not look like a batch script.  The first"),
        ("\ufeff#!/bin/sh\n", "This does not look like a batch script.  The first"),
        ("#!/bin/sh\n\0", "The Slurm controller does not allow scripts that"),
        ("#!/bin/sh\r\n", "Batch script contains DOS line breaks (\\r\\n)"),
    ],
)
def test_a_file_that_is_no_script(oracle: Callable[..., Any], script: str, words: str) -> None:
    reading = read(script)
    assert (said(reading)[0], reading.returncode) == (f"error: {words}", 1)
    assert ours(Case(script, {})) == theirs(Case(script, {}))


def test_places() -> None:
    text = "#!/bin/sh\n# a\n#SBATCH -J 'my job'  --part=gpu # why\n#SBATCH -t\n#SBATCH 10\n"
    options = read(text).options
    name, partition, limit = options["job-name"], options["partition"], options["time"]
    assert (name.line, name.column) == (3, 9)
    assert name.value_word
    assert name.value_word.span(name.value_start) == (13, 20)
    assert (partition.word.text, partition.column) == ("--part=gpu", 22)
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
    script = read(text)
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
    script = directive("-p a", "--partition=b", environment={"SBATCH_PARTITION": "c"})
    (component,) = script.components
    assert [(option.value, option.source) for option in component.given] == [
        ("a", "script"),
        ("b", "script"),
        ("c", "environment"),
    ]
    assert values(script) == {"partition": "c"}
    assert script.options["partition"].line == 0


@pytest.mark.parametrize(
    ("given", "counts"),
    [(("BEGIN", "END"), "BEGIN,END"), (("END", "NONE", "FAIL"), "END,FAIL"), (("END", "end,none"), "END")],
)
def test_mail_events_add_up(oracle: Callable[..., Any], given: tuple[str, ...], counts: str) -> None:
    """Until 25.05: then the last one counts."""
    directives = [f"--mail-type={one}" for one in given]
    assert values(directive(*directives)) == {"mail-type": counts}
    assert values(directive(*directives, slurm="25.05")) == {"mail-type": given[-1]}
    lines = "".join(f"#SBATCH {one}\n" for one in directives)
    assert oracle(f"#!/bin/bash\n{lines}").options["mail-type"] == counts


def test_components_of_a_heterogeneous_job() -> None:
    script = directive("-J x -n1", "hetjob", "-n2")
    assert [component.options["ntasks"].value for component in script.components] == ["1", "2"]
    assert script.components[1].options["job-name"].line == 2  # carried on


def test_a_lone_carriage_return_is_a_blank(oracle: Callable[..., Any]) -> None:
    case = Case("#!/bin/sh\n#SBATCH -N2\r-Jx\n", {})
    assert ours(case) == theirs(case)


def test_releases_differ() -> None:
    assert said(directive(r"-J my\ job"))[0] == "error: Invalid directive found in batch script: job"
    assert values(directive(r"-J my\ job", slurm="24.05")) == {"job-name": "my job"}
    assert said(directive("--stepmgr", slurm="23.11"))[0] == "unrecognized option '--stepmgr'"
    assert directive("--stepmgr", slurm="24.05.8").returncode is None
    assert said(directive("--requeue=expedite", slurm="25.05"))[0].endswith("doesn't allow an argument")
    assert directive("--requeue=expedite", slurm="25.11").returncode is None
    assert directive("-N 1-15:4", slurm="23.02").returncode is None
    assert directive("-N 1-15:4", slurm="22.05").returncode == 255
    for release in ("22.05", "23.11", "26.05"):
        assert directive("--gres=gpu:1,shard:1", slurm=release).returncode == 1
        assert directive("--gres=gpu:a100:2", slurm=release).returncode is None
    assert directive("--gres=gpu=2", slurm="22.05").returncode == 1
    assert directive("--gres=gpu=2", slurm="24.05").returncode is None
    assert directive("--gres=gres:gpu:2", slurm="22.05").returncode is None
    assert directive("--gres=gres:gpu:2", slurm="24.05").returncode == 1
    exclusive = "fatal: --exclusive and --oversubscribe options are mutually exclusive"
    assert said(directive("--exclusive -s", slurm="23.02")) == [exclusive]
    with pytest.raises(ValueError, match=r"Slurm 1\.2 is not known"):
        read("#!/bin/sh\n", slurm="1.2")


def test_options_of_a_plugin() -> None:
    image = Spec(
        name="container-image", short="", argument=HasArgument.REQUIRED, early=False, per_component=False
    )
    assert directive("--container-image=a").returncode == 255
    script = directive("--container-image=nvcr.io#nvidia/x", plugin_options=[image])
    assert values(script) == {"container-image": "nvcr.io"}


@pytest.mark.parametrize("release", RELEASES)
def test_tables(release: str) -> None:
    table = specs(release)
    shorts = [spec.short for spec in table.values() if spec.short]
    assert len(shorts) == len(set(shorts)) == 34
    names = {option for _, option in variables(release)} - {"req-switch", "wait4switch", "power"}
    assert names <= set(table)


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    for script in (text, f"#!/bin/sh\n#SBATCH {text}"):
        reading = read(script)
        assert reading.returncode in {None, 0, 1, 255}


@given(st.binary(max_size=100), st.sampled_from(RELEASES))
def test_any_bytes(script: bytes, release: str) -> None:
    reading = read(b"#!/bin/sh\n#SBATCH " + script, slurm=release)
    assert reading.returncode in {None, 0, 1, 255}


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
    script = read("#!/bin/sh\n#SBATCH -n1\n" + "echo hello\n" * 500_000 + "#SBATCH -n2\n")
    assert time.process_time() - start < 5
    assert script.directives[-1].line == 500_003


def test_needs_no_library() -> None:
    code = "import sys, sbatchgen.sbatch; print(sorted({'yaml', 'jinja2', 'click'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
