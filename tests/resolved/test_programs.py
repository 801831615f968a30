"""Several programs of a job: their shares, and what they can't have."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.errors import SbatchgenError
from sbatchgen.rules.judge import check
from tests.scripts import PUBLIC, SEVERAL, script, several

HEAD = "programs:\n  a:\n    command: [a]\n    main: true\n"


def shares(text: str, profile: str = "msu") -> dict[str, tuple[int, int, int]]:
    """First node, nodes and GPUs of each program."""
    return {
        program.name: (program.share.first, program.share.nodes, program.share.gpus)
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
        (HEAD + "  master: {command: [b]}\n", "MASTER_PORT and its like are taken", ""),
        (HEAD + "    ready: {url: x, port: '1'}\n", "by one of url, port, file and log", "keep one"),
        (HEAD + "    ready: {url: x, within: 10}\n", "not a time with a unit", ""),
        (HEAD + "".join(f"  b{n}: {{command: [b]}}\n" for n in range(8)), "at most 8", "join"),
    ],
)
def test_what_contradicts_itself_is_refused(text: str, what: str, fix: str) -> None:
    with pytest.raises(SbatchgenError) as raised:
        several(text)
    assert any(what in problem.what and fix in problem.fix for problem in raised.value.problems)


def test_what_one_tells_of_another_is_a_variable_where_bash_reads_it() -> None:
    text = (
        HEAD
        + "    env: {URL: 'http://{b.host}:{b.port}', N: '{b.nodes}'}\n  b: {command: [b, '{port}'], nodes: 3}\n"
    )
    script_of_it = script(several(text))
    assert "export URL=http://${B_HOST}:${B_PORT} N=3" in script_of_it.replace('"', "")
    assert 'b "$B_PORT"' in script_of_it


def test_more_gpus_together_than_a_node_has_is_an_error(tmp_path: Path) -> None:
    profile = tmp_path / "public.yaml"
    profile.write_text(PUBLIC)
    fitting = HEAD + "    gpus: 1\n    cpus: 7\n  b:\n    command: [b]\n    cpus: 1\n"
    assert not [each for each in check(several(fitting, profile)) if each.severity == "error"]
    asking_more = fitting + "    gpus: 1\n"
    assert any(
        "the job asks for 2 a node" in each.problem.what for each in check(several(asking_more, profile))
    )
