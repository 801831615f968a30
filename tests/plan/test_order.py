"""A plan is the same each time: events in the background have an order that the scheduler of a machine does not decide."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path

import pytest

from sbatchgen.lab.plan import dry_run
from sbatchgen.lab.plan.listing import as_text
from sbatchgen.lab.plan.missing import TracedCommand, first_needs, missing_paths
from sbatchgen.lab.sandbox.box import BoxLimits
from tests.plan.plans import needs_sandbox, planned

pytestmark = needs_sandbox

HEAD = "#!/bin/bash\n#SBATCH --time=1:00:00 --ntasks=1\n"
# What a script is, the programs that it starts in their order, and its status.
ORDERS: dict[str, tuple[str, list[str], int]] = {
    "a server that kill ends": (
        "srun python server.py &\np=$!\nsrun --overlap -n1 python client.py\nkill $p\n",
        ["server.py", "client.py"],
        0,
    ),
    "a killed step that is waited for": (
        "srun python server.py &\np=$!\npython client.py\nkill $p\nwait $p\n",
        ["server.py", "client.py"],
        143,
    ),
    "the status of a process that was looked at until its end": (
        "(python work.py; exit 3) &\nwhile kill -0 $! 2>/dev/null; do sleep 10; done\nwait $!\n",
        ["work.py"],
        3,
    ),
    "a server that is looked at": (
        "set -e\npython server.py &\np=$!\nsleep 5\nkill -0 $p\npython client.py\nkill $p\n",
        ["server.py", "client.py"],
        0,
    ),
    "a loop until the program has ended": (
        "python work.py &\nwhile kill -0 $! 2>/dev/null; do sleep 10; done\nwait $!\npython next.py\n",
        ["work.py", "next.py"],
        0,
    ),
    "a file that the background makes": (
        "(sleep 60; touch ready; python late.py) &\nuntil [ -f ready ]; do sleep 10; done\npython client.py\nwait\n",
        ["late.py", "client.py"],
        0,
    ),
    "sleepers that end in another order than they start": (
        "(sleep 3m; python third.py) &\n(sleep 1; python first.py) &\n(sleep 1.5; python second.py) &\nwait\npython last.py\n",
        ["third.py", "first.py", "second.py", "last.py"],
        0,
    ),
    "a monitor without end": (
        "while true; do date >>log; sleep 60; done &\nm=$!\npython train.py\nkill $m\nwait $m 2>/dev/null\npython end.py\n",
        ["train.py", "end.py"],
        0,
    ),
    "kill of nothing": ("kill 999999 2>/dev/null || python none.py\n", ["none.py"], 0),
    "kill twice": ("python a.py &\nkill $!\nkill $! 2>/dev/null || python gone.py\n", ["a.py", "gone.py"], 0),
    "a sleep that is waited for": ("sleep 3600 &\nwait $!\npython a.py\n", ["a.py"], 0),
    "a script that ignores SIGINT": ("trap '' INT\nsleep 60\npython a.py & wait\n", ["a.py"], 0),
    "a function of the background that sleeps": (
        """later() { sleep 60; touch ready; }
later &
sleep 5
[ -e ready ] || python early.py
wait
[ ! -e ready ] || python late.py
""",
        ["early.py", "late.py"],
        0,
    ),
    "a function of the background that computes": (
        """work() { for ((i = 0; i < 5000; i++)); do :; done; touch ready; }
work &
hostname >/dev/null
[ ! -e ready ] || python late.py
wait
""",
        ["late.py"],
        0,
    ),
    "many steps at once": (
        "for n in $(seq 1 9); do srun python $n.py & done\nwait\n",
        [f"{n}.py" for n in range(1, 10)],
        0,
    ),
    "a program of Python that sleeps": (
        "size=$(python -c 'import time; time.sleep(9); print(8)')\npython $size.py\n",
        ["8.py"],
        0,
    ),
    "a status that a look between two commands leaves": (
        "python a.py &\n(exit 3)\necho $? >status\nfalse | true\n[[ ${PIPESTATUS[0]} == 1 && $(<status) == 3 ]] && python b.py\nwait\n",
        ["a.py", "b.py"],
        0,
    ),
    "what is left in the background at the end": (
        "(for ((i = 0; i < 5000; i++)); do :; done; python late.py) &\n",
        ["late.py"],
        0,
    ),
    "steps of tasks that sleep": ("srun bash -c 'sleep 5; python a.py' & wait\n", ["a.py"], 0),
}
# Each process's first child computes before bash tells it that it is in the background, as on a machine that is busy.
LATE_CHILD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>
pid_t fork(void)
{
    static int count;
    pid_t (*real)(void) = dlsym(RTLD_NEXT, "fork");
    pid_t child = real();
    struct timespec used = {0, 0};
    if (count++ == 0 && child == 0)
        while (used.tv_sec == 0 && used.tv_nsec < 12000000)
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return child;
}
"""


@pytest.mark.parametrize("name", ORDERS)
def test_each_run_has_the_same_order(name: str, tmp_path: Path) -> None:
    body, programs, status = ORDERS[name]
    with ThreadPoolExecutor(2) as several:  # which also keeps the machine busy
        plans = [*several.map(lambda _: planned(HEAD + body, tmp_path)[0], range(2))]
    for done in plans:
        started = [process.argv[-1] for step in done.steps for process in step.processes]
        assert (started, done.result.status, done.result.limit) == (programs, status, "")
    assert len({as_text(done) for done in plans}) == 1


# Scripts without end, and the processes that they start until the end that a plan makes: on each machine the same.
WITHOUT_END = {
    "a loop of steps": "while :; do srun python a.py; done\n",
    "a loop of commands": "python a.py\nwhile :; do :; done\n",
    "a loop of programs of the system": "while :; do /bin/true; [[ -e a ]] || { python a.py; touch a; }; done\n",
    "loops in the background that sleep": (
        "for n in 1 2; do while :; do sleep 1; python $n.py; done & done\nfor ((;;)); do sleep 10; done\n"
    ),
}


@pytest.mark.parametrize("name", WITHOUT_END)
def test_a_script_without_end_has_the_same_end_each_time(name: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as several:
        plans = [*several.map(lambda _: planned(HEAD + WITHOUT_END[name], tmp_path)[0], range(2))]
    assert {done.result.limit for done in plans} == {"time"}
    assert len({(as_text(done), len(done.starts)) for done in plans}) == 1


def test_a_machine_that_is_too_slow_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run.RunBudget, "limits", lambda _: BoxLimits(seconds=0.2, started=400))
    done, findings = planned(HEAD + "for n in {1..50}; do srun python $n.py; done\n", tmp_path)
    assert done.result.limit == "machine"
    (what,) = [each.problem.what for each in findings if each.rule == "SB336"]
    assert what.startswith("this machine was too slow for a plan")


def test_messages_of_the_background_are_read_in_any_order() -> None:
    """Each shell of the background prints what it lacks when it runs: which is first, no script decides."""
    script = "#!/bin/bash\ncd /nowhere/runs\n./work --part=1 &\n./work --part=2 &\n./late &\nwait\n"
    lines = script.splitlines()
    trace = [TracedCommand(at, lines[at - 1].removesuffix(" &"), "/home") for at in (2, 3, 4, 5)]
    messages = [f"script: line {at}: {what}: No such file or directory" for at, what in LACKED]
    orders = permutations(zip(messages, trace, strict=True))
    pairs = [("\n".join(text for text, _ in order), [command for _, command in order]) for order in orders]
    needs = {tuple(first_needs(missing_paths(err, several)).values()) for err, several in pairs}
    assert len(pairs) == 24
    assert len(needs) == 1
    assert ("program", "/home/work", 3) in first_needs(missing_paths(*pairs[-1])).values()


def test_a_task_without_end_has_each_of_its_programs_once(tmp_path: Path) -> None:
    text = "#SBATCH --ntasks=1\nsrun bash -c 'while true; do ray stop; ray start --block; done' &\n"
    text += "until [ -f ready ]; do sleep 2; done\npython drive.py\n"
    done, _ = planned(text, tmp_path)
    assert done.result.limit == "time"
    assert [process.argv for process in done.steps[0].processes] == [
        ("ray", "stop"),
        ("ray", "start", "--block"),
    ]


def test_a_file_that_tasks_of_the_background_lack_has_its_first_line() -> None:
    lines = (7, "srun bash worker.sh 0"), (9, "srun bash worker.sh 1")
    traces = permutations(TracedCommand(line, command, "/home") for line, command in lines)
    err = "bash: line 1: worker.sh: No such file or directory\n" * 2
    needs = [first_needs(missing_paths(err, trace)).values() for trace in traces]
    assert [[*each] for each in needs] == [[("file", "/home/worker.sh", 7)]] * 2


LACKED = ((2, "cd: /nowhere/runs"), (3, "./work"), (4, "./work"), (5, "./late"))


@pytest.fixture(scope="module")
def late_child(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of LATE_CHILD."""
    library = tmp_path_factory.mktemp("late") / "late.so"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=LATE_CHILD, text=True, check=True)
    return library


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc (the Debian packages gcc and libc6-dev)")
@pytest.mark.parametrize("name", ORDERS)
def test_a_process_of_the_background_that_starts_late_is_waited_for(
    name: str, tmp_path: Path, late_child: Path
) -> None:
    body, programs, status = ORDERS[name]
    library = shutil.copy(late_child, tmp_path)  # the sandbox shows this folder
    done = planned(HEAD + body, tmp_path, variables=(f"LD_PRELOAD={library}",))[0]
    started = [process.argv[-1] for step in done.steps for process in step.processes]
    assert "preload" not in done.result.files["err"]  # the library was there
    assert (started, done.result.status, done.result.limit) == (programs, status, "")


CHANCE = """
a=$(mktemp) b=$(mktemp -d /tmp/x.XXXXXX)
c=$(mktemp --suffix=.json -p $b conf.XXXX)
[[ -f $a && -d $b && -f $c ]] || exit 9
srun -n 1 bash -c 'python a.py $(mktemp) $SRANDOM'
python b.py $a $b $c $(mktemp -u x-XXX) $EPOCHSECONDS $SRANDOM $SECONDS ${EPOCHREALTIME%.*}
python c.py $(printf '%(%Y%m%d_%H%M%S)T' -1) $(printf '%(%s)T')
python d.py $(tr -dc a-z0-9 </dev/urandom | head -c 8) $(</proc/sys/kernel/random/uuid)
python e.py $(python -c 'import uuid; print(uuid.uuid4())') $(python -c 'import time; print(int(time.time()))')
python f.py $(python -c 'import secrets; print(secrets.token_hex(4))')
"""


def test_what_chance_and_the_clock_decide_is_the_same_in_each_plan(tmp_path: Path) -> None:
    first, second = (planned(HEAD + CHANCE, tmp_path)[0] for _ in range(2))
    assert (len(first.steps), first.result.status) == (6, 0)
    assert as_text(first) == as_text(second)
    words = [process.argv for step in first.steps for process in step.processes]
    assert len({argv[2] for argv in words}) == len(words) == 6
    assert ("20260101_000000", "1767225600") in [argv[2:] for argv in words]
