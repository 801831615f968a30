"""The script of a job with several programs, run by bash on this machine as the profile `local` has it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from sbatchgen.jobs.render import SECOND_PART
from sbatchgen.lab.plan.planning import plan_of, script_of
from tests.conftest import REPOSITORY
from tests.jobs.test_kinds_of_programs import KINDS
from tests.render.test_matrix import not_plain
from tests.scripts import script, several

JOB = """
programs:
  server:
    command: [bash, -c, "{server}"]
    ready: {{port: "{{port}}", within: {within}}}
    grace: 2s
    restarts: {restarts}
  prepare:
    command: [bash, -c, "sleep 1; echo prepared"]
    once: true
  client:
    command: [bash, -c, "{client}"]
    needs: [server, prepare]
    main: true
"""
SERVE = "exec python3 -m http.server $SBATCHGEN_SERVER_PORT"
ASK = "exec 3<>/dev/tcp/$SBATCHGEN_SERVER_HOST/$SBATCHGEN_SERVER_PORT && echo answered; sleep 1"


class Case(NamedTuple):
    """What the server and the client do, and how the job ends."""

    server: str = SERVE
    client: str = ASK
    status: int = 0
    states: str = ""  # of the last program, in the file
    restarts: int = 0
    within: str = "1m"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "case",
    [
        Case(states="client ended with 0"),
        Case(client="exit 7", status=7, states="client ended with 7"),
        Case(server="exit 5", status=5, states="server failed on localhost ended with 5"),
        Case(server="exit 0", status=1, states="server failed on localhost ended with 0"),
        Case(
            server="sleep 60",
            status=1,
            within="4s",
            states="server failed on localhost was not ready after 4 s: port PORT of localhost is not open",
        ),
        Case(
            server="trap '' TERM; python3 -m http.server $SBATCHGEN_SERVER_PORT", states="client ended with 0"
        ),
        Case(
            server=f"[[ -e up ]] || {{ : >up; exit 3; }}; {SERVE}", restarts=1, states="client ended with 0"
        ),
    ],
    ids=str,
)
def test_the_end_of_each_program_ends_the_job_as_it_should(case: Case, tmp_path: Path) -> None:
    job = JOB.format(server=case.server, client=case.client, restarts=case.restarts, within=case.within)
    text = script(several(job, "local", "job"))
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == case.status, done.stdout + done.stderr
    states = (tmp_path / "runs/job/programs/state").read_text().splitlines()
    assert re.sub(r"port \d+", "port PORT", states[-1].rstrip()).endswith(case.states), states
    assert "Killed" not in done.stderr
    assert "answered" in done.stdout or case.client != ASK or case.status
    if case.status and case.client == ASK:
        assert done.stdout.splitlines()[-1].startswith("error: server on localhost ")
    assert str(tmp_path) not in map(folder_of, Path("/proc").glob("[0-9]*")), "a process was left"


def folder_of(process: Path) -> str:
    """Return the folder of a process; "" of a process that ends just now."""
    with contextlib.suppress(OSError):
        return str((process / "cwd").readlink())
    return ""


@pytest.mark.parametrize(("profile", "most"), [("princeton", 66), ("triton", 62), ("msu", 68)])
def test_the_script_of_two_programs_is_read_from_its_first_lines_on(profile: str, most: int) -> None:
    lines = script(several(profile=profile)).partition(SECOND_PART)[0].splitlines()
    assert len(lines) <= most
    start = lines.index("run_programs() {")
    assert lines[start + 1 : start + 4] == [
        "    run server",
        "    ready server within 600 s",
        "    run trainer",
    ]
    assert start < next(number for number, line in enumerate(lines) if line.startswith("start_server() {"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("profile", ["msu", "princeton", "local"])
def test_no_line_of_a_script_of_programs_is_long_or_a_chain(
    profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = {path.stem: path.read_text() for path in (REPOSITORY / "examples/programs").glob("*.yaml")}
    jobs |= {kind.name: f"{kind.keys}\nprograms:{kind.programs}" for kind in KINDS}
    for name in ("train_rl.py", "serve.py"):
        Path(name).touch()
    wrong = []
    for name, job in jobs.items():
        text = script(several(job, profile, "job"))
        wrong += [f"{name}: {line}" for line in not_plain(text.partition(SECOND_PART)[2])]
        lines = text.splitlines()
        # the names of what a container gets are one word
        long = [
            line for line in lines if len(line) > 124 and not re.fullmatch(r"\s*--container-env=\S+ \\", line)
        ]
        outside = [re.sub(r"\[\[ .*? \]\]", "[[ ]]", line) for line in lines]
        chains = [line for line in outside if re.search(r"(\|\||&&).*(\|\||&&)", line)]
        wrong += [f"{name}: {line}" for line in (*long, *chains)]
        done = subprocess.run(
            ["bash", "-n"], input="\n".join(lines), capture_output=True, text=True, check=False
        )
        wrong += [f"{name}: {done.stderr}"] * bool(done.stderr)
    assert not wrong


@pytest.mark.parametrize("low", [32768, 9000, 1024, 15000])
def test_jobs_side_by_side_have_ports_of_their_own_below_those_of_the_kernel(low: int) -> None:
    text = script(several())
    (lines,) = re.findall(r"^choose_ports\(\) {.*?^}$", text, re.DOTALL | re.MULTILINE)
    lines = lines.replace("</proc/sys/net/ipv4/ip_local_port_range", f"<<<'{low} 60999'")
    loop = f"taken() {{ false; }}\n{lines}\nports=2\nfor SLURM_JOB_ID in {{4711..4760}}; do choose_ports; echo $port; done"
    printed = subprocess.check_output(["bash", "-c", loop], text=True).split()
    numbers = [int(port) + more for port in printed for more in range(8)]
    assert len(printed) == 50
    assert Counter(numbers).most_common(1)[0][1] == 1
    assert min(numbers) >= 1024
    assert max(numbers) < (low if low > 8200 else 30000)


@pytest.mark.proof
def test_50_jobs_side_by_side_find_their_own_servers(tmp_path: Path) -> None:
    job = """
programs:
  server:
    command: [python3, -m, http.server, "{port}"]
    ready: {url: "http://{host}:{port}/name", within: 5m}
  client: {command: [bash, -c, "curl -fs http://$SBATCHGEN_SERVER_HOST:$SBATCHGEN_SERVER_PORT/name"], needs: [server], main: true}
"""
    text, running = script(several(job, "local", "job")), []
    assert text.count("$$") == 1
    text = text.replace("$$", "4711")  # as if all had numbers that lead to the same ports
    for number in range(50):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "name").write_text(f"server {number} of 50")
        running.append(subprocess.Popen(["bash", "-c", text], cwd=folder, stdout=subprocess.PIPE, text=True))
    printed = [process.communicate()[0] for process in running]
    assert [number for number, log in enumerate(printed) if f"server {number} of 50" not in log] == []
    assert {process.returncode for process in running} == {0}


@pytest.mark.proof
def test_a_program_may_have_a_runtime_of_its_own(tmp_path: Path) -> None:
    job = """
programs:
  server: {command: [python3, serve.py], nodes: 1, image: /images/vllm.sqsh}
  evaluator: {command: [python3, evaluate.py], venv: /envs/eval}
  trainer: {trainer: train.py, nodes: 1, main: true}
"""
    text = script(several(job, "princeton"))
    functions = dict(re.findall(r"^start_(\w+)\(\) \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE))
    assert "IMAGE=/images/vllm.sqsh" in functions["server"].replace('"', "")
    assert "activate_conda" in text.partition("start_server")[0]
    assert "IMAGE" not in functions["trainer"]
    done = plan_of(script_of("rl.slurm", text, profile=None), os.environ, tmp_path)
    containers = {process.argv[-1]: process.container for step in done.steps for process in step.processes}
    assert containers == {"serve.py": "/images/vllm.sqsh", "evaluate.py": "", "train.py": ""}
    starts = {process.argv[-1]: process.argv[0] for step in done.steps for process in step.processes}
    assert starts["evaluate.py"] == "/envs/eval/bin/python3"
    assert {need.name for need in done.needed} >= {"/images/vllm.sqsh", "/envs/eval/bin/python3"}


@pytest.mark.proof
def test_a_preset_is_around_the_command_of_each_task(tmp_path: Path) -> None:
    job = "programs: {driver: {preset: ray, command: [python3, drive.py], nodes: 3, main: true}}"
    text = script(several(job, "princeton"))
    ray = '--hosts "$SBATCHGEN_DRIVER_HOSTS" --port "$SBATCHGEN_DRIVER_PORT" -- python3 drive.py'
    assert ray in re.sub(r"\s*\\\n\s*", " ", text)
    (step,) = plan_of(script_of("rl.slurm", text, profile=None), os.environ, tmp_path).steps
    started = [(process.node, Path(process.argv[1]).name, process.argv[-1]) for process in step.processes]
    assert started == [(f"node{number}", "ray_node.py", "drive.py") for number in (1, 2, 3)]


def test_a_plan_starts_each_program_where_it_belongs(tmp_path: Path) -> None:
    text = script(several())
    done = plan_of(script_of("rl.slurm", text, profile=None), os.environ, tmp_path)
    assert done.result.status == 0
    assert [[process.node for process in step.processes] for step in done.steps] == [
        ["node3"],
        ["node1", "node2"],
    ]


@pytest.mark.proof
@pytest.mark.parametrize("profile", ["princeton", "local"])
def test_a_plan_goes_on_after_programs_that_run_once(profile: str, tmp_path: Path) -> None:
    job = """
programs:
  server: {command: [server]}
  first: {command: [first], once: true}
  second: {command: [bash, -c, "sleep 9; second"], once: true, needs: [first]}
  trainer: {command: [train], needs: [server, second], main: true}
"""
    done = plan_of(script_of("rl.slurm", script(several(job, profile)), profile=None), os.environ, tmp_path)
    assert (done.result.status, done.result.limit) == (0, ""), done.result.files["out"]
    started = {process.argv[-1] for step in done.steps for process in step.processes}
    assert started >= {"server", "first", "train"}
    assert "second ended with 0" in done.result.files["out"]
    assert [need for need in done.needed if need.kind == "variable"] == []
