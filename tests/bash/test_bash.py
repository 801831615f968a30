"""The reader of the body of scripts, against tables of bash and against the bash that is here."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sbatchgen.check.bash import Body, Command, read_body
from sbatchgen.check.bash.body import TOP_LEVEL
from sbatchgen.check.bash.chain import Tool, chain
from sbatchgen.check.bash.grammar import SECONDS_MAX
from sbatchgen.check.bash.walk import find_statements
from tests.conftest import GOLDEN

SCRIPTS = sorted(GOLDEN.glob("*.sh"))


def names(text: str) -> list[str]:
    return [command.name for command in read_body(text).commands]


def only(text: str) -> Command:
    (command,) = read_body(text).commands
    return command


def words(command: Command) -> list[str]:
    return [word.text for word in command.words]


COMMANDS = [
    ("a; b & c\nd | e |& f", "a b c d e f"),
    ("a && b || ! c", "a b c"),
    ("if a; then b; elif c; then d; else e; fi", "a b c d e"),
    ("while a; do b; done; until c; do d; done", "a b c d"),
    ("for x in 1 2; do a; done; for ((i=0;i<2;i++)); do b; done", "a b"),
    ("case $x in (a|b) c ;; d) e ;;& *) f ;; esac; g", "c e f g"),
    ("f() { a; }; function g { b; }; h() (c)", "a b c"),
    ("(a; b); { c; }", "a b c"),
    ('x=$(a "$(b `c`)"); d <(e) > >(f)', "a b c d e f"),
    ("A=1 B=2 cmd\nC=3 D=4\nE=5\nnext", "cmd next"),
    ('A="" B=0\nif [[ x ]]; then y; fi', "[[ y"),
    ("A=1 B=2 # comment\nif a; then b; fi", "a b"),
    ("A='x y' B=$(c d)\nwhile a; do b; done", "c a b"),
    ("if a; then A=1 B=2\nelif b; then c; fi", "a b c"),
    ("A=/b/<c>/d\nmodule load e", "module"),
    ("A=$b/$c/$d\ne", "e"),
    ("[ a = b ] && [[ c == d ]] || ((1 + 2))", "[ [[ (("),
    ("export A=1; unset B; local c; declare -a d", "export unset local declare"),
    ("cat <<EOF | grep x && y\nsrun no\nEOF\nz", "cat grep y z"),
    ("cat <<-'EOF'\n\tsrun $(no)\n\tEOF\na", "cat a"),
    ("cat <<EOF\n$(yes)\nEOF\na", "cat yes a"),
    ("x=$(cat <<E\ncat <<EOF\n$(yes)\nEOF\nsrun \\$(no)\nE\n)\na", "cat yes a"),
    ("cat <<< 'srun no'; a", "cat a"),
    ("# srun no\na # srun no\n#SBATCH -n1", "a"),
    ("a \\\n  b \\\n  c\nd", "a d"),
    ("a \\\n\nb", "a b"),
    ("/usr/bin/srun a", "srun"),
    ('$X a; "$Y" b; ${Z[@]} c', "  "),
    ("coproc a b; time c", "coproc time"),
    ("a\r\nif b; then\r\n  c\r\nfi\r\n", "a b c"),
    ("[[ $x =~ ^(a|b)+$ && $y =~ 'c d' ]]; e", "[[ e"),
    ("[[ ( -f a || ! -d b ) && $c < d ]]; e", "[[ e"),
    ("exec 3<> file; a", "exec a"),
    ("echo привет; srun 'тест' | tee журнал", "echo srun tee"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "expected"), COMMANDS, ids=[text for text, _ in COMMANDS])
def test_commands(text: str, expected: str) -> None:
    body = read_body(text)
    assert [command.name for command in body.commands] == (expected.split(" ") if expected else [])
    assert body.faults == ()


WORDS = [
    ("a b  c", ["a", "b", "c"]),
    ("a 'b c' \"d e\" f\\ g", ["a", "'b c'", '"d e"', "f\\ g"]),
    ('a "$(b "c d")" `e f` $((1 + 2)) ${x:-y z}', ["a", '"$(b "c d")"', "`e f`", "$((1 + 2))", "${x:-y z}"]),
    ("a >out b 2>err c 2>&1 d", ["a", "b", "c", "d"]),
    ("a <<< 'b c' d", ["a", "d"]),
    ("a<b>c", ["a"]),
    ("a <(b c) >(d)", ["a", "<(b c)", ">(d)"]),
    ("a=1 b=2 c d=3", ["c", "d=3"]),
    ("export a=(1 2) b='x y'", ["export", "a=(1 2)", "b='x y'"]),
    ("a b#c # d", ["a", "b#c"]),
    ("a \\\n b\\\nc", ["a", "b\\\nc"]),
    ("a {b,c}d $'e\\'f'", ["a", "{b,c}d", "$'e\\'f'"]),
    ("a [b]* ?", ["a", "[b]*", "?"]),
    ("a &>b", ["a"]),
    ("a == $b/$c/$d ==", ["a", "==", "$b/$c/$d", "=="]),
    ("a 'b'\\ c", ["a", "'b'\\ c"]),
    ('[ -n "$x" ]', ["[", "-n", '"$x"']),
    ("[[ a && (b || c) ]]", ["[[", "a", "b", "c"]),
]


@pytest.mark.parametrize(("text", "expected"), WORDS, ids=[text for text, _ in WORDS])
def test_words(text: str, expected: list[str]) -> None:
    assert words(read_body(text).commands[0]) == expected


VALUES = [
    ("'a b'", "a b"),
    ('"a b"', "a b"),
    ("a'b'\"c\"\\d", "abcd"),
    ('"a\\"b\\$c\\d"', 'a"b$c\\d'),
    ("$'a\\n\\x41\\101\\u00e9\\''", "a\nAA\u00e9'"),
    ("node[01-02]", "node[01-02]"),
    ("''", ""),
    ("a\\\nb", "ab"),
    ("$x", None),
    ('"a$x"', None),
    ("$(x)", None),
    ("~/x", None),
    ("a~b", "a~b"),
    ("{a,b}", None),
    ("{a}", "{a}"),
    ("$", "$"),
    ("--a=b", "--a=b"),
]


@pytest.mark.parametrize(("text", "expected"), VALUES)
def test_values(text: str, expected: str | None) -> None:
    assert read_body(f"echo {text}").commands[0].words[1].value == expected


QUOTED = st.lists(
    st.one_of(
        st.text("abz019-_=.:/,@%+#~{}[]*?!^ \u00e9", min_size=1, max_size=4).map(
            lambda text: "".join("\\" + c if c in " ~{}[]*?!#" else c for c in text)
        ),
        st.text('ab $`\\"!#;&|<>()\n*~{},', max_size=5).map(lambda text: f"'{text}'"),
        st.text("ab ';&|<>()#*~{},\n!", max_size=5).map(lambda text: f'"{text}"'),
        st.sampled_from(
            ['"\\$"', '"\\\\"', '"\\`"', '"\\""', '"\\a"', '"\\\n"', "\\\n", '"$"', "\\'", '\\"', "\\\\"]
        ),
        st.sampled_from(["\\n", "\\t", "\\\\", "\\'", "\\x41", "\\101", "\\e", "a", " ", '"']).map(
            lambda text: f"$'{text}'"
        ),
        st.just('$"a b"'),
    ),
    min_size=1,
    max_size=5,
).map("".join)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(QUOTED, min_size=1, max_size=20))
@example(["'$'$'\\\\'", "0"])
@example(["'\n'$'\\\\'", '$"a b"'])
@example(["'`#`'", "'\n`#`'", "$'\\'`#`'"])
def test_values_are_those_of_bash(texts: list[str]) -> None:
    script = "".join(f"printf '%s\\0' X{text}\n" for text in texts)
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    body = read_body(script)
    assert body.faults == ()
    assert [command.words[2].value for command in body.commands] == result.stdout.decode().split("\0")[:-1]


CONTEXTS = [
    ("f() { @; }", "function"),
    ("for x in a; do @; done", "in_loop in_branch"),
    ("while @; do a; done", "in_loop in_branch is_tested"),
    ("until a; do @; done", "in_loop in_branch"),
    ("if @; then a; fi", "is_tested"),
    ("if a; then @; fi", "in_branch"),
    ("if a; then b; elif @; then c; fi", "in_branch is_tested"),
    ("if a; then b; else @; fi", "in_branch"),
    ("case x in a) @;; esac", "in_branch"),
    ("for x in $(@); do a; done", "in_substitution"),
    ("for x in a`@` b; do a; done", "in_substitution"),
    ("for x in $(@); do a; done &", "in_subshell in_substitution"),
    ("while a; do for x in $(@); do b; done; done", "in_loop in_branch in_substitution"),
    ("for ((i = $(@); i < 3; i++)); do a; done", "in_substitution"),
    ("for ((i = 0; i < $(@); i++)); do a; done", "in_loop in_branch in_substitution"),
    ("select x in $(@); do a; done", "in_substitution"),
    ("case $(@) in a) b;; esac", "in_substitution"),
    ("case a in $(@)) b;; esac", "in_branch in_substitution"),
    ("! @", "is_tested"),
    ("@ && a", "is_tested"),
    ("a && @", "in_branch"),
    ("a && @ || b", "in_branch is_tested"),
    ("a || b && @", "in_branch"),
    ("(@)", "in_subshell"),
    ("x=$(@)", "in_substitution"),
    ('echo "`@`"', "in_substitution"),
    ("a <(@)", "in_substitution"),
    ("@ &", "in_background"),
    ("@ > x 2>&1 &", "in_background"),
    ("{ a; @; } &", "in_background in_subshell"),
    ("a | while b; do @; done", "in_loop in_branch in_subshell"),
    ("@ 2>&1", ""),
    ("@ &> x", ""),
    ("a; @", ""),
    ("@", ""),
]


@pytest.mark.parametrize(("text", "expected"), CONTEXTS, ids=[text for text, _ in CONTEXTS])
def test_contexts(text: str, expected: str) -> None:
    command = next(each for each in read_body(text.replace("@", "srun x")).commands if each.name == "srun")
    flags = "function in_loop in_branch is_tested in_subshell in_substitution in_background".split()
    assert {name for name in flags if getattr(command.context, name)} == set(expected.split())


def test_positions_are_characters_from_1() -> None:
    body = read_body("#!/bin/bash\necho 'é' ; srun \\\n  'ж' \"$x\" # c\n")
    echo, srun = body.commands
    assert (echo.line, echo.column, echo.end_line, echo.end_column) == (2, 1, 2, 9)
    assert (srun.line, srun.column, srun.end_line, srun.end_column) == (2, 12, 3, 11)
    assert [(word.line, word.column) for word in srun.words] == [(2, 12), (3, 3), (3, 7)]
    assert body.comments == ((1, "#!/bin/bash"), (3, "# c"))
    (use,) = body.variable_uses
    assert (use.name, use.line, use.column) == ("x", 3, 8)


def test_pipes() -> None:
    body = read_body("srun a 2>&1 | (b; c) | tee log\nd")
    pipe = body.commands[0].pipe
    assert pipe
    assert [[each.name for each in stage] for stage in pipe.stages] == [["srun"], ["b", "c"], ["tee"]]
    assert [command.stage for command in body.commands] == [0, 1, 1, 2, 0]
    assert body.commands[-1].pipe is None


def test_pipe_after_a_here_document() -> None:
    cat, grep = read_body("cat <<END | grep x\ny\nEND\n").commands
    assert cat.pipe is grep.pipe
    assert (cat.stage, grep.stage) == (0, 1)


def test_redirections() -> None:
    command = only("cat >out 2>&1 <<-'END' <<< 'x y'\n\tsome $text\n\tEND\n")
    assert [(each.operator, each.target and each.target.value) for each in command.redirects] == [
        (">", "out"),
        (">&", "1"),
        ("<<-", "END"),
        ("<<<", "x y"),
    ]


def test_assignments() -> None:
    body = read_body(
        "A=1\nB='x y' C=$A\nexport D=2 E\nF+=3\nG=(1 '2 3')\nH=4 cmd\ndeclare -x I=5\nlocal J\n"
        "read -r K\nfor L in a; do :; done\n((M++))\nunset A\nN[2]=x\n: ${O:=p}\nmapfile -t P < f\nprintf -v Q x\n"
    )
    sets = [
        (each.name, each.value, each.setter, each.is_exported, each.is_prefix) for each in body.assignments
    ]
    assert sets == [
        ("A", "1", "", False, False),
        ("B", "x y", "", False, False),
        ("C", None, "", False, False),
        ("D", "2", "export", True, False),
        ("E", None, "export", True, False),
        ("F", None, "", False, False),
        ("G", None, "", False, False),
        ("H", "4", "", False, True),
        ("I", "5", "declare", True, False),
        ("K", None, "read", False, False),
        ("L", None, "for", False, False),
        ("M", None, "((", False, False),
        ("A", None, "unset", False, False),
        ("N", "x", "", False, False),
        ("O", None, "${:=}", False, False),
        ("P", None, "mapfile", False, False),
        ("Q", None, "printf", False, False),
    ]
    items = next(each.items for each in body.assignments if each.name == "G")
    assert items
    assert [item.value for item in items] == ["1", "2 3"]


def test_uses() -> None:
    body = read_body(
        'a $b "${c:-d}" \'$no\' \\$no "\\$no" ${#e[@]} ${!f} $((g + h)) <<END\n$i\nEND\n[[ $j ]]; K=$l; ((m))\n# $no\n'
        "cat <<'END'\n$no\nEND\n"
        "cat <<END\na \\\n \\$no \\\n  \\\\$n\nEND\n"
    )
    assert [(use.name, use.operator) for use in body.variable_uses] == [
        ("b", ""), ("c", ":-"), ("e", "#"), ("f", "!"), ("g", ""), ("h", ""), ("i", ""), ("j", ""), ("l", ""), ("m", ""), ("n", ""),
    ]  # fmt: skip

    assert [use.name for use in read_body('a $b/$c/$d $e-$f-$g-$h "$i $j ${k} x"').variable_uses] == [
        *"bcdefghijk"
    ]


FOLLOWED = [
    ("N=8\necho $N", "8"),
    ("N=8\necho --n=${N}x", "--n=8x"),
    ("A=1\nB=$A.2\necho $B", "1.2"),
    ("N=8\nN=9\necho $N", "9"),
    ("export N=8\necho ${N:-4}", "8"),
    ("echo $N\nN=8", None),
    ("N=8\nif a; then N=9; fi\necho $N", None),
    ("N=8\na && N=9\necho $N", None),
    ("N=8\n(N=9)\necho $N", "8"),
    ("N=8\nread N\necho $N", None),
    ("N=8\nunset N\necho $N", None),
    ("N=8 a\necho $N", None),
    ("N=8\nN+=1\necho $N", None),
    ("N=8\nfor x in a; do echo $N; N=9; done", None),
    ("N=8\nfor x in a; do echo $N; done", "8"),
    ("f() { echo $N; }\nN=8\nf", "8"),
    ("f() { echo $N; }\nN=8\nf\nN=9", None),
    ("f() { N=9; }\nN=8\nf\necho $N", None),
    ("echo ${N:-4}", None),
    ("N=(a b)\necho ${N[0]}", "a"),
]


@pytest.mark.parametrize(("text", "expected"), FOLLOWED, ids=[text for text, _ in FOLLOWED])
def test_followed_values(text: str, expected: str | None) -> None:
    body = read_body(text)
    command = next(each for each in body.commands if each.name == "echo")
    assert body.value(command.words[1]) == expected


EXPANDED = [
    ('C=(a "b c")\n"${C[@]}" d', ["a", '"b c"', "d"]),
    ('C=(a)\nC+=(b)\n"${C[@]}"', ["a", "b"]),
    ('C=(a)\nC=(x "${C[@]}" y)\n"${C[@]}"', ["x", "a", "y"]),
    ("C='a b'\n$C d", ["a", "b", "d"]),
    ('C="a $x b"\n$C d', ["a", "$x", "b", "d"]),
    ('"${C[@]}" d', ['"${C[@]}"', "d"]),
]


@pytest.mark.parametrize(("text", "expected"), EXPANDED, ids=[text for text, _ in EXPANDED])
def test_expanded_words(text: str, expected: list[str]) -> None:
    body = read_body(text)
    (command,) = body.commands
    expanded = [each for word in command.words for each in body.expand(word)]
    assert ["".join(piece.text for piece in each.pieces) for each in expanded] == [
        word.strip('"') for word in expected
    ]


def test_settings() -> None:
    body = read_body(
        "#!/bin/bash -x\nset -euo pipefail\nset +u\n(set +e)\nif a; then set +e; fi\nshopt -s nullglob\nset -- -e\nb\n"
    )
    assert [(each.name, each.is_on) for each in body.shell_options] == [
        ("errexit", True), ("nounset", True), ("pipefail", True), ("nounset", False),
        ("errexit", False), ("errexit", False),
    ]  # fmt: skip
    assert body.is_option_on("pipefail", 8)
    assert not body.is_option_on("pipefail", 2)
    assert body.is_option_on("errexit", 8)
    assert not body.is_option_on("nounset", 8)
    assert body.is_option_on("nounset", 3)
    body = read_body("f() {\n    set -u\n    a\n}\nb\nf\n")
    assert body.is_option_on("nounset", 3)
    assert not body.is_option_on("nounset", 5)


def test_traps() -> None:
    body = read_body(
        'trap \'touch a; srun b\' USR1 SIGTERM\ntrap - INT\ntrap cleanup EXIT\ntrap -- "echo \\"x\\"" 2\n'
    )
    traps = [
        (command.line, inner.commands[0].context.trap_signals, [each.name for each in inner.commands])
        for command, inner in body.traps
    ]
    assert traps == [
        (1, ("USR1", "TERM"), ["touch", "srun"]),
        (3, ("EXIT",), ["cleanup"]),
        (4, ("2",), ["echo"]),
    ]
    srun = body.traps[0][1].commands[1]
    assert (srun.line, srun.column) == (1, 16)


def test_the_last_command() -> None:
    body = read_body("f() {\n  a\n}\nfunction g { b; }\nsrun c\nf\necho $(d)\n")
    assert body.last_command
    assert body.last_command.name == "echo"
    assert [command.name for command in body.commands if command.ends_script] == ["echo"]


@pytest.mark.parametrize(
    ("first", "language", "count"),
    [
        ("#!/bin/bash", "bash", 1),
        ("#!/usr/bin/env bash", "bash", 1),
        ("#!/usr/bin/env -S bash -e", "bash", 1),
        ("#! /bin/sh", "sh", 1),
        ("", "bash", 1),
        ("#!/usr/bin/env python3", "python3", 0),
        ("#!/usr/bin/perl -w", "perl", 0),
        ("#!/bin/csh", "csh", 0),
    ],
)
def test_language(first: str, language: str, count: int) -> None:
    body = read_body(f"{first}\necho a\n")
    assert body.language == language
    assert len(body.commands) == count
    assert body.faults == ()


def test_faults() -> None:
    assert [fault.line for fault in read_body("a\nif b; then\n  c\n").faults]
    assert read_body("echo 'a").faults
    assert read_body("a () }").faults


def tools(text: str) -> list[Tool]:
    body = read_body(text)
    return list(chain(body.commands[-1], body))


CHAINS = [
    (
        "srun -n 2 --container-image=x apptainer exec --nv img.sif torchrun --nproc_per_node=8 train.py --lr 1",
        [
            ("srun", {"ntasks": "2", "container-image": "x"}),
            ("apptainer exec", {"nv": ""}),
            ("torchrun", {"nproc-per-node": "8"}),
            ("train.py", {}),
        ],
    ),
    ("srun -N2 -lu python -u train.py", [("srun", {"nodes": "2", "label": "", "unbuffered": ""}), ("python", {"u": ""}), ("train.py", {})]),
    ("srun --exclusive -K python3.11 -m pkg.train", [("srun", {"exclusive": "", "kill-on-bad-exit": ""}), ("python", {"m": "pkg.train"}), ("pkg.train", {})]),
    (
        "python -m torch.distributed.run --nnodes $N --rdzv_endpoint=$A:29500 -m training --lr 1",
        [("python", {"m": "torch.distributed.run"}), ("torchrun", {"nnodes": None, "rdzv-endpoint": None, "module": ""}), ("training", {})],
    ),
    ("N=4; export OMP_NUM_THREADS=1; srun torchrun --standalone --nproc-per-node=$N t.py", [("srun", {}), ("torchrun", {"standalone": "", "nproc-per-node": "4"}), ("t.py", {})]),
    ('srun --unknown=1 --mpi=pmix bash -c "exec python t.py"', [("srun", {"unknown": "1", "mpi": "pmix"}), ("bash", {"command": "exec python t.py"}), ("exec", {}), ("python", {}), ("t.py", {})]),
    ("srun bash -lc 'source x; torchrun t.py'", [("srun", {}), ("bash", {"login": "", "command": "source x; torchrun t.py"}), ("torchrun", {}), ("t.py", {})]),
    ("CMD='torchrun --nnodes 2 t.py'\nsrun --jobid $J bash -c \"$CMD\"", [("srun", {"jobid": None}), ("bash", {"command": "torchrun --nnodes 2 t.py"}), ("torchrun", {"nnodes": "2"}), ("t.py", {})]),
    ("time env -u X A=1 nohup timeout -k 5 1h nice -n 5 ./train --x", [("time", {}), ("env", {"unset": "X"}), ("nohup", {}), ("timeout", {"kill-after": "5"}), ("nice", {"adjustment": "5"}), ("train", {})]),
    ("mpirun -np 4 --mca btl ^openib -x PATH python t.py", [("mpirun", {"np": "4", "mca": "btl", "x": "PATH"}), ("python", {}), ("t.py", {})]),
    ("accelerate launch --num_processes 8 --multi_gpu t.py -x", [("accelerate launch", {"num-processes": "8", "multi-gpu": ""}), ("t.py", {})]),
    ("deepspeed --num_gpus=8 --hostfile h t.py --deepspeed", [("deepspeed", {"num-gpus": "8", "hostfile": "h"}), ("t.py", {})]),
    ("singularity -q exec -B /a:/b --pwd /c img.sif python t.py", [("singularity exec", {"bind": "/a:/b", "pwd": "/c"}), ("python", {}), ("t.py", {})]),
    ("numactl --cpunodebind=0 -m 0 stdbuf -oL python t.py", [("numactl", {"cpunodebind": "0", "membind": "0"}), ("stdbuf", {"output": "L"}), ("python", {}), ("t.py", {})]),
    ("srun --mem 1G --mem 2G a", [("srun", {"mem": ["1G", "2G"]}), ("a", {})]),
    ("command -v srun torchrun", [("command", {"describe": ""})]),
    ('"$PY" t.py', [('"$PY"', {})]),
    ("python -c 'import torch'", [("python", {"c": "import torch"})]),
    ("srun", [("srun", {})]),
    ("exec", [("exec", {})]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CHAINS, ids=[text for text, _ in CHAINS])
def test_chains(text: str, expected: list[tuple[str, dict[str, object]]]) -> None:
    assert [(tool.name, tool.options) for tool in tools(text)] == expected


def test_a_tool_tells_where_its_options_stand() -> None:
    srun, torchrun, program = tools("srun -n2 \\\n  torchrun --nnodes 2 t.py --lr 1")
    nnodes = torchrun.option("nnodes")
    assert nnodes
    assert nnodes.value_word
    assert (nnodes.word.line, nnodes.word.column, nnodes.value_word.column) == (2, 12, 21)
    assert [word.text for word in program.rest] == ["--lr", "1"]
    assert [word.text for word in srun.rest][:2] == ["torchrun", "--nnodes"]


def launch(body: Body) -> list[Tool]:
    """The chain of the command that trains."""
    (training,) = [list(chain(command, body)) for command in body.commands if command.name == "exec"]
    return training


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_golden_scripts_are_understood(path: Path) -> None:
    text = path.read_text()
    body = read_body(text)
    assert body.faults == ()
    tools = {tool.name: tool for tool in launch(body)}
    assert ("srun" in tools) == ("#SBATCH" in text)
    assert ("apptainer exec" in tools) == ("apptainer exec" in text)
    assert ("torchrun" in tools) == ("torchrun.py" in text)
    program = list(tools)[-1].rpartition("/")[2]
    assert program == ("train.py" if "own-trainer" in path.stem else "training")
    if "torchrun" in tools:
        (processes,) = re.findall(r"--nproc-per-node=(\S+)", text)
        option = tools["torchrun"].options["nproc-per-node"]
        assert option == (None if "$" in processes else processes)


def everything(text: str) -> bool:
    """Ask a body for all that it has; return whether each command ends where it starts or later."""
    body = read_body(text)
    for command in body.commands:
        _ = (command.name, command.redirects, chain(command, body))
    _ = (
        body.faults,
        body.assignments,
        body.variable_uses,
        body.traps,
        body.shell_options,
        body.comments,
        body.last_command,
    )
    return all(1 <= command.line <= command.end_line for command in body.commands)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=400))
def test_bytes_do_no_harm(data: bytes) -> None:
    assert everything("#!/bin/bash\n" + data.decode("utf-8", "surrogateescape"))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text("ab $`\\\"'(){}[]<>|&;#=\n\t!*?@:-0", max_size=80))
def test_punctuation_does_no_harm(text: str) -> None:
    assert everything(text)


@pytest.mark.parametrize("seed", range(40))
def test_mutated_scripts_do_no_harm(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 (no secret)
    text = list(chance.choice(SCRIPTS).read_text())
    for _ in range(chance.randrange(1, 8)):
        at = chance.randrange(len(text))
        text[at : at + chance.choice((0, 1, 40))] = chance.choice(
            ("", "(", ")", '"', "'", "`", "${", "\n", "<<E", "\0", "&")
        )
    assert everything("".join(text))


HOSTILE = {
    "a long line": "x" * (10 << 20),
    "parentheses": "(" * 100_000,
    "substitutions": "$(" * 50_000,
    "expansions": "${a:-" * 30_000,
    "quoted": '"$(' * 30_000,
    "backquotes": "`" * 100_000,
    "words": "a " * 300_000,
    "semicolons": ";" * 100_000,
    "here-documents": "cat <<E\n" * 20_000,
    "arrays": "a=(" * 20_000,
    "brackets": "[[ ( " * 20_000,
    "regular expressions": "[[ a =~ " + "(" * 50_000,
    "assignments": "a=1 " * 50_000,
    "names": "a" * 60_000 + "=1 b=2",
    "variables": "a=$a$a\n" * 2_000 + "echo $a",
    "doubling": "a=x\n" + "".join(f"a{n}=$a{n - 1}$a{n - 1}\n" for n in range(1, 60)) + "srun $a59",
    "doubling arrays": "a0=(x)\n"
    + "".join(f'a{n}=("${{a{n - 1}[@]}}" "${{a{n - 1}[@]}}")\n' for n in range(1, 60))
    + 'srun "${a59[@]}"',
    "shells": "bash -c '" * 5_000,
    "backslashes": "\\\n" * 100_000,
    "pipes": "a|" * 32_000,
    "fewer pipes": "a|" * 4_000,
    "matches": " =~ a" * 12_000,
    "NUL": "echo a\0b\n" * 1_000,
}


@pytest.mark.sampled(12)
@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_scripts_end(name: str) -> None:
    start = time.process_time()
    assert everything(HOSTILE[name])
    assert time.process_time() - start < 10 * SECONDS_MAX


def test_what_is_not_read_of_a_body_is_known() -> None:
    short = "#!/bin/bash\n" + "mkdir -p runs || exit 1\n" * 4001 + "cat <<'END'\n" + "| a | b |\n" * 900
    body = read_body(f"{short}END\nsrun python train.py\n")
    assert (body.commands[-1].name, body.source.first_unread_line) == ("srun", 0)
    long = read_body("#!/bin/bash\necho first\ncat data" + " | cat" * 501 + "\nsrun python train.py\n")
    assert ([command.name for command in long.commands], long.source.first_unread_line) == (["echo"], 3)


@pytest.mark.parametrize("word", ["export", "declare -x", "local", "readonly", "typeset"])
def test_what_is_declared_after_a_line_of_several_assignments_is_set(word: str) -> None:
    """The grammar takes the next line for a command with these assignments before it."""
    text = f'f() {{\n  a=1 b=$port\n  {word} A=${{h[1]}} B="x y" C=$port/x\n  srun A=1\n}}\n'
    body = read_body(text)
    assert [each.name for each in body.assignments] == ["a", "b", "A", "B", "C"]
    assert [command.name for command in body.commands] == [word.partition(" ")[0], "srun"]


def test_a_redirection_sets_the_number_of_its_file() -> None:
    (assignment,) = read_body("exec {lock}>>file\necho {lock}").assignments
    assert (assignment.name, assignment.value) == ("lock", None)


@pytest.mark.parametrize("after", ["srun train > log.txt", "export C=1"])
def test_a_body_is_read_alike_each_time(after: str) -> None:
    text = f"a[1]=x b[2]=y\n{after}\n"  # to the grammar the second line is the command of the first
    source = read_body(text).source
    for _ in range(2):
        (command,) = find_statements(source, TOP_LEVEL).commands
        assert (command.line, command.source.text[command.at : command.end]) == (2, after)
        assert len(command.redirects) == text.count(">")


@pytest.mark.proof
def test_threads_read_bodies_at_once() -> None:
    """The parser of another thread ends the process: it runs in one of its own."""
    code = """if 1:
        from concurrent.futures import ThreadPoolExecutor
        from sbatchgen.check.bash import read_body
        text = "if a; then b | c; fi\\n" * 300
        with ThreadPoolExecutor(3) as threads:
            for number in range(40):
                body = read_body(text)
                alike = [*threads.map(lambda _: (len(read_body(text).commands), id(body.commands)), range(3))]
                assert {*alike} == {(900, id(body.commands))}, alike
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
