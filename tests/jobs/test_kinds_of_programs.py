"""Jobs of several programs as people write them, on the real Slurm, with small servers in place of the real ones.

The kinds are those of public projects: a vLLM server beside a trainer (open-r1, trl), a router with workers
(sglang), replicas of a server on a node (llm-swarm), an evaluator, Dask, TensorBoard and a notebook, prime-rl's
five programs, and a daemon on each node of the trainer (MPS, an exporter).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.render.render import render_request
from sbatchgen.jobs.resolved.request import read_request
from tests.cluster.fixtures import FIRST
from tests.cluster.slurm import Cluster
from tests.jobs.test_several_programs import PROFILE, left, text_of

# A server as vLLM is one: it says where it is, which GPUs it has, and its variables.
SERVE = r"""
import os, socket, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port, late, name = int(sys.argv[1]), float(sys.argv[2]), " ".join(sys.argv[3:])

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        ours = [key for key in os.environ if key.startswith("VLLM_")]
        says = [socket.gethostname(), os.environ.get("CUDA_VISIBLE_DEVICES", "none"), name, *ours]
        text = " ".join(says).encode()
        self.send_response(200 if time.time() > began + late else 503)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass

began = time.time()
print("listens on", port, flush=True)
ThreadingHTTPServer(("", port), Handler).serve_forever()
"""
ASK = r"""
import os, socket, sys, urllib.request

for url in sys.argv[1:]:
    for each in url.split(","):
        print(socket.gethostname(), "asked", each, "->", urllib.request.urlopen(each).read().decode(), flush=True)
print("GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
"""
# The servers of a search agent: on its node as many as have CPUs there, and two on nodes of their own.
TOOL = """
  {name}:
    command: [python3, serve.py, "{{port}}", "0", {name}]
    {place}
    cpus: 1
    ready: {{port: "{{port}}", within: 2m}}
    grace: 5s"""
TOOLS = {"model": "nodes: 1", "reward": "nodes: 1"} | {f"tool-{number}": "gpus: 0" for number in range(7)}
PROXY = "http://127.0.0.1:9"  # of the shell that submits: no proxy answers there


class Kind(NamedTuple):
    """A job, its exit status, what its log shows, and what else is true of it."""

    name: str
    programs: str
    says: tuple[str, ...]  # regular expressions
    status: int = 0
    keys: str = ""
    states: tuple[str, ...] = ()
    holds: Callable[[str], bool] = bool
    shares: bool = False  # GPUs of nodes among steps, which each release does its own way


def gpus_differ(log: str) -> bool:
    """Whether four replicas have a GPU each, and none the same."""
    return sorted(re.findall(r"-> n\d (\d) replica", log)) == ["0", "1", "2", "3"]


KINDS = (
    Kind(
        "vllm and a trainer on two nodes",
        """
  vllm:
    command: [python3, serve.py, "{port}", "2"]
    nodes: 1
    ready: {url: "http://{host}:{port}/health", within: 1m}
    grace: 5s
  trainer:
    command: [python3, ask.py, "http://{vllm.host}:{vllm.port}/v1"]
    nodes: 2
    gpus: 1
    cpus: 1
    needs: [vllm]
    main: true
""",
        (r"^n\d asked http://(n\d):\d+/v1 -> \1 0,1,2,3 *$",),
        holds=lambda log: log.count(" asked ") == 2 and "srun: error" not in log and "VLLM" not in log,
        shares=True,
    ),
    Kind(
        "a router that gets the URLs of its workers",
        """
  workers:
    command: [python3, serve.py, "{port}", "1", worker, "{replica}"]
    replicas: 2
    nodes: 2
    gpus: 1
    cpus: 1
    ready: {url: "http://{host}:{port}/", within: 1m}
    grace: 5s
  router:
    command: [python3, ask.py, "{workers.urls}", "{workers.urls[@]}"]
    gpus: 0
    cpus: 1
    needs: [workers]
    main: true
""",
        (r"asked http://(n\d):\d+ -> \1 \d worker 0$", r"asked http://(n\d):\d+ -> \1 \d worker 1$"),
        holds=lambda log: log.count(" asked ") == 4,
    ),
    Kind(
        "four replicas of one GPU on a node",
        """
  swarm:
    command: [python3, serve.py, "{port}", "0", replica, "{replica}"]
    replicas: 4
    nodes: 1
    ready: {port: "{port}", within: 1m}
    grace: 5s
  client:
    command: [bash, -c, "python3 ask.py $URLS"]
    env: {URLS: "{swarm.urls}"}
    nodes: 1
    gpus: 0
    cpus: 1
    needs: [swarm]
    main: true
""",
        (r"asked http://(n\d):\d+ -> \1 \d replica 0$", r"asked http://(n\d):\d+ -> \1 \d replica 3$"),
        states=("swarm.0 ready", "swarm.3 ready"),
        holds=gpus_differ,
        shares=True,
    ),
    Kind(
        "an evaluator that fails, and is optional",
        """
  trainer:
    command: [bash, -c, "sleep 8; echo trained"]
    nodes: 2
    gpus: 1
    cpus: 1
    main: true
  evaluator:
    command: [bash, -c, "sleep 1; exit 3"]
    gpus: 1
    cpus: 1
    optional: true
""",
        ("^trained$", "^The job continues without evaluator: see "),
        states=("evaluator ended with 3 (optional)", "trainer ended with 0"),
    ),
    Kind(
        "Dask, whose programs use no GPU, after a look at the nodes",
        """
  scheduler:
    command: [python3, serve.py, "{port}", "0", scheduler]
    gpus: 0
    cpus: 1
    ready: {port: "{port}", within: 1m}
    grace: 5s
  worker:
    command: [python3, serve.py, "{port}", "0", worker]
    replicas: 2
    gpus: 0
    cpus: 1
    needs: [scheduler]
    ready: {log: "^listens on [0-9]+", within: 1m}
    grace: 5s
  client:
    command: [python3, ask.py, "http://{scheduler.host}:{scheduler.port}", "{worker.urls}"]
    gpus: 0
    cpus: 1
    needs: [worker]
    main: true
""",
        ("^Preflight of node n[1-4] in .*: ready$", "-> n. *(none)? scheduler$", "worker$"),
        keys="preflight: true",
    ),
    Kind(
        "TensorBoard that fails again and again, and a notebook that is never ready",
        """
  tensorboard:
    command: [bash, -c, "exit 1"]
    cpus: 1
    restarts: 2
    optional: true
  notebook:
    command: [sleep, "100"]
    cpus: 1
    optional: true
    ready: {url: "http://{host}:{port}/lab", within: 4s}
    grace: 2s
  trainer:
    command: [bash, -c, "sleep 6; echo trained"]
    nodes: 1
    gpus: 1
    cpus: 1
    main: true
""",
        ("^trained$",),
        states=("tensorboard ended with 1 (optional)", "notebook late after 4 s (optional): http://n"),
        holds=lambda log: log.count("tensorboard starts") == 3,
    ),
    Kind(
        "prime-rl: download, inference, sandbox, orchestrator, trainer",
        """
  download:
    command: [bash, -c, "sleep 1; echo model >model"]
    cpus: 1
    once: true
  inference:
    command: [bash, -c, "cat model && exec python3 serve.py {port} 0"]
    nodes: 1
    gpus: 1
    cpus: 1
    needs: [download]
    ready: {url: "http://{host}:{port}/", within: 1m}
    grace: 5s
  sandbox:
    command: [bash, -c, "sleep 1; touch made; exec sleep 100"]
    cpus: 1
    ready: {file: made, within: 1m}
    grace: 5s
  orchestrator:
    command: [bash, -c, "python3 ask.py http://{inference.host}:{inference.port} && exec sleep 100"]
    cpus: 1
    needs: [inference, sandbox]
    grace: 5s
  trainer:
    command: [bash, -c, "sleep 4; echo trained"]
    nodes: 1
    gpus: 1
    cpus: 1
    needs: [orchestrator]
    main: true
""",
        ("^trained$",),
        states=("download ended with 0", "inference ready", "sandbox ready", "trainer ended with 0"),
    ),
    Kind(
        "Ray, whose driver asks a reward server",
        """
  reward:
    command: [python3, serve.py, "{port}", "0", reward]
    cpus: 1
    ready: {url: "http://{host}:{port}/", within: 1m}
    grace: 5s
  ray:
    preset: ray
    command: [python3, ask.py, "http://{reward.host}:{reward.port}"]
    nodes: 2
    gpus: 1
    cpus: 1
    needs: [reward]
    main: true
    grace: 5s
""",
        (r"asked http://(n\d):\d+ -> \1 (none )?reward",),
    ),
    Kind(
        "an agent with nine servers",
        "".join(TOOL.format(name=name, place=place) for name, place in TOOLS.items())
        + f"""
  agent:
    command: [python3, ask.py, "{{model.urls}}", "{{tool-0.urls}}", "{{tool-6.urls}}"]
    nodes: 1
    gpus: 1
    cpus: 1
    needs: [{", ".join(TOOLS)}]
    main: true
""",
        tuple(rf"asked http://(n\d):\d+ -> \1 .*{name}$" for name in ("model", "tool-0", "tool-6")),
        states=tuple(f"{name} ready" for name in TOOLS),
    ),
    Kind(
        "a daemon on each node of the trainer, with its GPUs, as MPS",
        """
  mps:
    command: [bash, -c, "echo up on $(hostname) with $CUDA_VISIBLE_DEVICES; exec python3 serve.py {port} 0"]
    beside: trainer
    ready: {log: "^listens on"}
    grace: 5s
  trainer:
    command: [python3, ask.py, "{mps.urls[@]}"]
    nodes: 2
    needs: [mps]
    main: true
""",
        (r"^(n\d) asked http://\1:\d+ -> \1 0,1,2,3", "^GPUs 0,1,2,3$"),
        shares=True,
    ),
    Kind(
        "a server of two nodes of which one never answers",
        """
  server:
    command: [bash, -c, "[[ $SLURM_PROCID == 0 ]] || exec sleep 100; exec python3 serve.py {port} 0"]
    nodes: 2
    gpus: 1
    cpus: 1
    ready: {url: "http://{host}:{port}/health", within: 5s}
    grace: 2s
  client:
    command: [python3, ask.py, "http://{server.host}:{server.port}"]
    gpus: 0
    cpus: 1
    needs: [server]
    main: true
""",
        (r"was not ready after 5 s: http://n\d:\d+/health: curl: \(7\) .*, which ends the job",),
        status=1,
    ),
    Kind(
        "a server of two nodes that answers on the first, as it says",
        """
  server:
    command: [bash, -c, "[[ $SLURM_PROCID == 0 ]] || exec sleep 100; exec python3 serve.py {port} 0"]
    nodes: 2
    gpus: 1
    cpus: 1
    ready: {url: "http://{host}:{port}/health", within: 1m, hosts: first}
    grace: 2s
  client:
    command: [python3, ask.py, "http://{server.host}:{server.port}"]
    gpus: 0
    cpus: 1
    needs: [server]
    main: true
""",
        (r"asked http://(n\d):\d+ -> \1",),
    ),
    Kind(
        "a server that answers with an error",
        """
  server:
    command: [python3, serve.py, "{port}", "100"]
    cpus: 1
    ready: {url: "http://{host}:{port}/health", within: 4s}
    grace: 2s
  client:
    command: ["true"]
    cpus: 1
    gpus: 0
    needs: [server]
    main: true
""",
        (r"was not ready after 4 s: http://n\d:\d+/health: curl: \(22\) .* 503.*, which ends the job",),
        status=1,
    ),
)


def script_of(kind: Kind, folder: Path) -> str:
    (folder / "profile.yaml").write_text(PROFILE)
    head = f"profile: profile.yaml\nruntime: venv\nvenv: {sys.prefix}\noptions: {{time: '00:05:00'}}\n"
    (folder / "job.yaml").write_text(f"{head}{kind.keys}\nprograms:{kind.programs}")
    request = read_request("job.yaml", (), {}, environment={}, folder=folder, check=check)
    assert not [finding for finding in check(request.resolved) if finding.severity == "error"]
    return render_request(request)


def test_each_kind_of_several_programs_works(
    cluster: Cluster, slurm_release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kinds = [kind for kind in KINDS if kind.shares or slurm_release == FIRST]
    jobs = []
    for number, kind in enumerate(kinds):
        for name, text in (("serve.py", SERVE), ("ask.py", ASK)):
            cluster.put(f"kind-{number}/{name}", text)
        script, env = script_of(kind, tmp_path), {"http_proxy": PROXY, "https_proxy": PROXY}
        place = cluster.home / f"kind-{number}"
        jobs.append(cluster.sbatch("--output=log", cwd=place, script=script, env=env))
    wrong = []
    for number, (kind, job) in enumerate(zip(kinds, jobs, strict=True)):
        record, folder = cluster.wait(job), cluster.home / f"kind-{number}"
        log, states = text_of(folder / "log"), text_of(folder / "runs/job/programs/state")
        missing = [what for what in kind.says if not re.search(what, log, re.MULTILINE)]
        missing += [what for what in kind.states if what not in states]
        if record["ExitCode"] != f"{kind.status}:0" or missing or not kind.holds(log):
            logs = "".join(f"{path.name}: {text_of(path)}" for path in folder.glob("runs/job/programs/*.log"))
            wrong.append(f"{kind.name}: {record['ExitCode']}, {missing}\n{log}\n{logs}")
    assert not wrong, "\n\n".join(wrong)
    cluster.until(lambda: not [*left(cluster)], "nothing of the programs left on any node")


RESTARTED = Kind(
    "a job whose main program is a command, when a node of it dies",
    """
  server:
    command: [python3, serve.py, "{port}", "0"]
    cpus: 1
    grace: 2s
  main:
    command: [bash, -c, "echo start ${SLURM_RESTART_COUNT-0}; [[ ! $SLURM_RESTART_COUNT ]] || exit 0; sleep 600"]
    nodes: 2
    gpus: 1
    cpus: 1
    main: true
""",
    (),
    keys="requeue_on_node_fail: true",
)


def test_a_command_starts_again_after_the_death_of_a_node(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cluster.put("restarted/serve.py", SERVE)
    log = cluster.home / "restarted/log"
    job = cluster.sbatch("--output=log", cwd=log.parent, script=script_of(RESTARTED, tmp_path))
    cluster.until(lambda: text_of(log).count("start 0") == 2, "start of both tasks")
    names = cluster.root(["scontrol", "show", "hostnames", cluster.job(job)["NodeList"]]).stdout.split()
    cluster.stop_node(names[-1])  # Slurm finds out by itself, and the script waits for that
    cluster.until(lambda: cluster.job(job)["Restarts"] == "1", "a restart")
    cluster.start_node(names[-1])
    cluster.wait(job, {"COMPLETED"})
    assert text_of(log).count("start 1") == 2
