"""Several programs of a job: their shares, and what they can't have."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.base.errors import SbatchgenError
from sbatchgen.jobs.judge.job_check import check
from tests.scripts import PUBLIC, SEVERAL, script, several

HEAD = "programs:\n  a:\n    command: [a]\n    main: true\n"


def shares(text: str, profile: str = "msu") -> dict[str, tuple[int, int, int]]:
    """First node, nodes and GPUs of each program."""
    return {
        program.name: (program.share.first_node, program.share.nodes, program.share.gpus_per_node)
        for program in several(text, profile).programs
    }


def test_nodes_of_their_own_come_first_and_the_main_program_has_the_first_of_all() -> None:
    assert shares(SEVERAL) == {"server": (2, 1, 4), "trainer": (0, 2, 4)}
    directives = several().directives
    assert {name: directives[name] for name in ("nodes", "ntasks-per-node", "gpus-per-node")} == {
        "nodes": "3", "ntasks-per-node": "1", "gpus-per-node": "4",
    }  # fmt: skip


def test_a_program_without_nodes_shares_the_first_one_of_the_main_program() -> None:
    text = HEAD + "    nodes: 2\n    gpus: 3\n    cpus: 6\n  b:\n    command: [b]\n    gpus: 1\n    cpus: 2\n"
    assert shares(text) == {"a": (0, 2, 3), "b": (0, 1, 1)}
    assert several(text).directives["gpus-per-node"] == "4"
    assert several(text).directives["cpus-per-task"] == "8"


def test_without_nodes_all_share_one() -> None:
    text = HEAD + "    gpus: 2\n  b:\n    command: [b]\n    gpus: 1\n  c:\n    command: [c]\n"
    assert shares(text) == {"a": (0, 1, 2), "b": (0, 1, 1), "c": (0, 1, 0)}
    assert several(text).directives["nodes"] == "1"


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        (HEAD + "    needs: [b]\n", "a needs 'b', which is not a program", ""),
        (HEAD + "    needs: [b]\n  b: {command: [b], needs: [a]}\n", "a needs b needs a", "remove one need"),
        (HEAD + "  b: {command: [b], main: true}\n", "a and b are both main", "keep one"),
        (HEAD + "  b: {command: [x, '{aa.port}']}\n", "{aa.port} names no program", "write {a.port}"),
        (HEAD + "options: {nodes: 7}\n", "7 nodes, and the programs have 1", "remove it"),
        (HEAD + "options: {array: 1-3}\n", "has no array", "each program has its share"),
        (HEAD + "  b: {command: [b], mode: ddp}\n", "a command or a mode, not both", "remove one"),
        (HEAD + "  b: {once: true}\n", "nothing to start", "add command"),
        (HEAD + "  b: {preset: ray}\n", "there is nothing to run on ray", "add command: [python3"),
        (HEAD + "  b: {command: [b], chain: 2}\n", "unknown key 'chain' in programs.b", ""),
        (HEAD + "  B: {command: [b]}\n", "'B' can't name a program", ""),
        (HEAD + f"  {'b' * 31}: {{command: [b]}}\n", "use at most 30 letters", ""),
        (HEAD + "  job: {command: [b]}\n", "'job' can't name a program", ""),
        (HEAD + "  b: {command: [b], beside: c}\n", "b runs beside 'c', which has no nodes here", ""),
        (
            HEAD + "  b: {command: [b], beside: a, nodes: 1}\n",
            "a program beside a runs once on each node of a",
            "remove nodes",
        ),
        (HEAD + "  b: {command: [b], replicas: 3, nodes: 2}\n", "3 replicas on 2 nodes", "as 4"),
        (HEAD + "    replicas: 2\n", "the job ends with one program", "remove replicas or main"),
        (HEAD + "    optional: true\n", "the main program ends the job", "remove optional or main"),
        (HEAD + "    ready: {log: up}\n", "writes to the job's log", "use url, port or file"),
        (
            HEAD + "  b: {command: [b], ready: {port: true}}\n",
            "'true' is not a port",
            "write '{port}', or a number",
        ),
        (HEAD + "  b: {command: [b], ready: {port: 65536}}\n", "'65536' is not a port", "from 1 to 65535"),
        (HEAD + "  b: {command: [x, '{replica}']}\n", "{replica} is the number of a replica", "add replicas"),
        (
            HEAD + "  b: {command: [x, '{c.port}']}\n  c: {command: [c], replicas: 2}\n",
            "{c.port} is of one of 2 replicas",
            "write {c.urls} for all of them",
        ),
        (
            HEAD + "  b: {command: [bash, -c, 'ask $A_HOST:${A_PORT}']}\n",
            "the job has no variable A_PORT: those of programs begin with SBATCHGEN_",
            "write {a.port}, or $SBATCHGEN_A_PORT where a shell reads it",
        ),
        (
            HEAD + "  b: {command: [b], options: {partition: cpu}}\n",
            "unknown key 'options' in programs.b",
            "because sbatchgen makes no heterogeneous jobs",
        ),
        (HEAD + "    ready: {url: x, port: '1'}\n", "exactly one of url, port, file and log", "keep one"),
        (HEAD + "    ready: {url: x, within: 10}\n", "not a time with a unit", ""),
        (HEAD + "".join(f"  b{n}: {{command: [b]}}\n" for n in range(64)), "at most 64", "join"),
    ],
)
def test_what_contradicts_itself_is_refused(text: str, what: str, fix: str) -> None:
    with pytest.raises(SbatchgenError) as raised:
        several(text)
    assert any(what in problem.what and fix in problem.fix for problem in raised.value.problems)


def test_a_variable_that_the_program_has_itself_is_no_old_name() -> None:
    own = "  b: {command: [bash, -c, 'ask $A_HOST'], env: {A_HOST: '{a.host}'}}\n"
    assert several(HEAD + own)
    uses = "  b: {command: [bash, -c, 'ask $A_HOST']}\n"
    assert several(HEAD + uses + "env: {A_HOST: x}\n")
    assert several(HEAD + uses + "setup: [export A_HOST=x]\n")
    assert several(HEAD + "  b: {command: [bash, -c, 'A_HOST=x; ask $A_HOST $OTHER_HOST']}\n")


@pytest.mark.parametrize(
    ("keys", "first", "nodes", "gpus", "of_job"),
    [
        ("replicas: 8, nodes: 2", 1, 1, 1, ("3", "4")),  # four on a node, of four GPUs
        ("replicas: 2, nodes: 2", 1, 1, 4, ("3", "4")),
        ("replicas: 2, nodes: 4", 1, 2, 4, ("5", "4")),
        ("replicas: 2, gpus: 1", 0, 1, 1, ("1", "4")),  # beside the main program
        ("beside: a", 0, 1, 2, ("1", "2")),  # which has the GPUs of the main one
        ("beside: a, gpus: 0", 0, 1, 0, ("1", "2")),
    ],
)
def test_replicas_are_spread_over_nodes_and_a_sidecar_takes_nothing(
    keys: str, first: int, nodes: int, gpus: int, of_job: tuple[str, str]
) -> None:
    job = several(HEAD + f"    nodes: 1\n    gpus: 2\n  b: {{command: [b], {keys}}}\n")
    share = job.programs[1].share
    assert (share.first_node, share.nodes, share.gpus_per_node) == (first, nodes, gpus)
    assert (job.directives["nodes"], job.directives["gpus-per-node"]) == of_job


def test_a_check_of_the_nodes_asks_for_the_gpus_of_the_programs() -> None:
    text = "preflight: true\nprograms:\n  a: {command: [a], gpus: GPUS, main: true}\n  b: {command: [b], gpus: 0}\n"
    for gpus in ("0", "3"):
        made = script(several(text.replace("GPUS", gpus)))
        assert f"--gpus {gpus} " in made
        assert ("--gpus-per-node" in made) == (gpus != "0")


def test_what_one_tells_of_another_is_a_variable_where_bash_reads_it() -> None:
    text = (
        HEAD
        + "    env: {URL: 'http://{b.host}:{b.port}', N: '{b.nodes}'}\n  b: {command: [b, '{port}'], nodes: 3}\n"
    )
    script_of_it = script(several(text))
    assert "export URL=http://${SBATCHGEN_B_HOST}:${SBATCHGEN_B_PORT} N=3" in script_of_it.replace('"', "")
    assert 'b "$SBATCHGEN_B_PORT"' in script_of_it


def test_more_gpus_together_than_a_node_has_is_an_error(tmp_path: Path) -> None:
    profile = tmp_path / "public.yaml"
    profile.write_text(PUBLIC)
    fitting = HEAD + "    gpus: 1\n    cpus: 7\n  b:\n    command: [b]\n    cpus: 1\n"
    assert not [each for each in check(several(fitting, profile)) if each.severity == "error"]
    asking_more = fitting + "    gpus: 1\n"
    assert any(
        "the job asks for 2 a node" in each.problem.what for each in check(several(asking_more, profile))
    )
