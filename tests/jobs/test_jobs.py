"""Jobs on a real Slurm, from `sbatchgen render` or `submit` to their end."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from itertools import product
from pathlib import Path

import pytest

from sbatchgen.jobs.runs.failure import failures
from tests.cluster.fixtures import FIRST, LATER, on_one_release
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import EPOCH, PROFILE, TRAINING, Site, site_on
from tests.tables import hold


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Site:
    return site_on(cluster)


LAUNCHERS = ("torchrun", "srun", "spawn")


@pytest.fixture(scope="module")
def jobs(site: Site, slurm_release: str) -> dict[str, int]:
    """Those that only have to be waited for, by name: submitted together, so that they run side by side."""
    two = ("ddp", "--nodes", "2", "--gpus-per-node", "2")
    ids = {
        f"ddp-{launcher}": site.submit(f"ddp-{launcher}", *two, "--launcher", launcher)
        for launcher in LAUNCHERS
    }
    for name, flags in MODES.items():
        if (slurm_release, name) in MODES_TRIED:
            ids[name] = site.submit(name, *flags, "--", "--epochs", "1")
    if slurm_release == LATER:
        return ids
    for launcher in LAUNCHERS:
        shape = ("ddp", "--nodes", "1", "--gpus-per-node", "2", "--launcher", launcher)
        ids[f"nan-{launcher}"] = site.submit(f"nan-{launcher}", *shape, "--", "--lr", "1e38")
    return ids


@pytest.fixture(scope="module")
def trained(site: Site, jobs: dict[str, int]) -> dict[str, list[tuple[int, float, float]]]:
    """The same DDP training on 2 nodes x 2 processes, by each launcher: epochs, losses and accuracies."""
    results = {}
    for launcher in LAUNCHERS:
        name = f"ddp-{launcher}"
        site.cluster.wait(jobs[name], {"COMPLETED"})
        epochs = EPOCH.findall(site.log(name))
        results[launcher] = [(int(epoch), float(loss), float(accuracy)) for epoch, loss, accuracy in epochs]
    return results


MODES = {
    "cpu": ("cpu",),
    "single": ("single",),
    "dataparallel": ("dataparallel", "--gpus-per-node", "2"),
    "shard": ("single", "--gres", "shard:4"),
    "shard-ddp": ("ddp", "--nodes", "2", "--gres", "shard:4"),
}
MODES_TRIED = [*product([FIRST], MODES), (LATER, "shard-ddp")]
GRES = {"single": "gpu:1", "dataparallel": "gpu:2", "shard": "shard:4", "shard-ddp": "shard:4"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ddp_trains_on_two_nodes(
    site: Site, trained: dict[str, list[tuple[int, float, float]]], launcher: str
) -> None:
    name = f"ddp-{launcher}"
    log = site.log(name)
    assert [epoch for epoch, _, _ in trained[launcher]] == [1, 2]
    losses = [loss for _, loss, _ in trained[launcher]]
    assert losses[1] < losses[0] < 2.0
    ranks = re.findall(r"rank (\d+) of (\d+) on (n\d), local rank (\d+)", log)
    assert sorted((int(rank), int(local)) for rank, _, _, local in ranks) == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert {size for _, size, _, _ in ranks} == {"4"}
    assert len({node for _, _, node, _ in ranks}) == 2
    assert len(re.findall("Starting distributed training on 4 ", log)) == 1
    assert site.status(name)["state"] == "done"
    checkpoints = sorted(path.name for path in (site.folder / "runs" / name / "checkpoints").iterdir())
    assert checkpoints == ["best.pt", "step-00000025.pt", "step-00000050.pt"]


def test_the_launchers_agree(trained: dict[str, list[tuple[int, float, float]]]) -> None:
    assert trained["torchrun"] == trained["srun"] == trained["spawn"]


@pytest.mark.proof
@on_one_release
@pytest.mark.skipif(
    not Path(sys.prefix, "bin", "ft_launcher").exists(),
    reason="left out: ft_launcher: there is no nvidia-resiliency-ext for this machine",
)
def test_ft_launcher_trains_on_two_nodes(site: Site) -> None:
    shape = ("ddp", "--nodes", "2", "--gpus-per-node", "2", "--launcher", "ft_launcher")
    job = site.submit("ft", *shape)
    record = site.cluster.wait(job, timeout=300)
    log = site.log("ft")
    assert record["JobState"] == "COMPLETED", log
    ranks = re.findall(r"rank (\d+) of 4 on (n\d), local rank (\d+)", log)
    assert sorted((rank, local) for rank, _, local in ranks) == [
        ("0", "0"),
        ("1", "1"),
        ("2", "0"),
        ("3", "1"),
    ]
    assert len({node for _, node, _ in ranks}) == 2
    assert [int(epoch) for epoch, *_ in EPOCH.findall(log)] == [1, 2]


@on_one_release
def test_processes_meet_over_the_interface_of_the_profile(site: Site) -> None:
    """A name that no interface has is an error, so the name in the profile is really used."""
    job = site.submit(
        "no-such-net", "ddp", "--nodes", "2", "--gpus-per-node", "1", "--env", "GLOO_SOCKET_IFNAME=hsn9",
        "--launcher", "srun",
    )  # fmt: skip
    record = site.cluster.wait(job, {"FAILED"})
    log = site.log("no-such-net")
    assert "hsn9" in log
    assert [failure.cause for failure in failures("", enumerate(log.splitlines(), 1), "x")][:1] == [
        "gloo-interface"
    ], log
    assert record["ExitCode"] != "0:0"


def test_a_failing_job_has_its_own_exit_status_and_is_not_restarted(site: Site) -> None:
    site.cluster.put("work/fails.py", "import sys\nprint('trainer was here')\nsys.exit(7)\n")
    job = site.submit("fails", "single", "--trainer", "fails.py")
    record = site.cluster.wait(job, {"FAILED"})
    assert (record["ExitCode"], record["Restarts"]) == ("7:0", "0")
    assert "trainer was here" in site.log("fails")


@on_one_release
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_failing_training_fails_its_job(site: Site, jobs: dict[str, int], launcher: str) -> None:
    """Not finite: the trainer's own status is 3, which torchrun alone would turn into 1."""
    name = f"nan-{launcher}"
    record = site.cluster.wait(jobs[name], {"FAILED"})
    assert (record["ExitCode"], record["Restarts"]) == ("3:0", "0")
    assert site.status(name)["state"] == "failed"
    causes = failures("FAILED 3:0", enumerate(site.log(name).splitlines(), 1), name)
    assert [failure.cause for failure in causes] == ["not-finite"], causes


def test_what_a_training_has_cost(site: Site, trained: dict[str, list[tuple[int, float, float]]]) -> None:
    """Without a database, by the script and the trainer's own events of both nodes."""
    done = site.sbatchgen("report", "ddp-srun", "--format", "json", check=True)
    report = json.loads(done.stdout)
    asked = {name: report[name] for name in ("nodes", "gpus", "cpus", "memory_mib", "limit_s")}
    assert asked == {"nodes": 2, "gpus": 4, "cpus": 8, "memory_mib": 2048, "limit_s": 600}
    assert (report["state"], report["source"], report["jobs"], report["starts"]) == ("done", "script", 1, 1)
    assert 0 < report["used_s"] < 600
    assert report["cpus_used"] > 0
    assert 2 * 50 << 20 < report["memory_bytes"] < 2 << 30
    assert "--time" in {advice["option"] for advice in report["advice"]}
    page = site.sbatchgen("report", "ddp-srun", check=True)
    assert page.stdout.startswith("ddp-srun: done; 1 job, 1 start, ")


def test_a_training_that_went_well_ends_without_a_stack_trace(
    site: Site, trained: dict[str, list[tuple[int, float, float]]]
) -> None:
    """The node that holds torchrun's meeting point leaves last."""
    for launcher in trained:
        log = site.log(f"ddp-{launcher}")
        assert log.splitlines()[-1].startswith("Training completed")
        assert failures("", enumerate(log.splitlines(), 1), launcher) == []
        own_network = "The hostname of the client socket cannot be retrieved"  # the test cluster has no DNS
        for word in ("Traceback", "frame #", "[W", "W1", "E1"):
            lines = [line for line in log.splitlines() if line.startswith(word) and own_network not in line]
            assert not lines, log


OWN = """
import json, os, pathlib, sys, time

rank, mode = os.environ.get("RANK", "0"), sys.argv[1]
run, stop = pathlib.Path(sys.argv[2]), pathlib.Path(os.environ.get("SBATCHGEN_STOP_FILE", "none"))
assert str(run) == os.environ["RUN_DIR"]
state = run / f"state-{os.environ['SLURM_NODEID']}-{rank}"
begin = int(state.read_text()) if state.exists() else 0
line = json.dumps({"rank": rank, "size": os.environ.get("WORLD_SIZE"), "begin": begin})
os.write(1, f"{line}\\n".encode())  # in one piece: the processes share the log
if mode == "fail":
    last = rank == "3" or "RANK" not in os.environ and os.environ["SLURM_NODEID"] == "1"
    (run / f"here-{os.environ['SLURM_NODEID']}-{rank}").touch()
    while last and len(list(run.glob("here-*"))) < int(os.environ.get("WORLD_SIZE", "2")):
        time.sleep(0.1)  # one that still starts would be killed before it can say why it ends
    time.sleep(0 if last else 600)
    sys.exit(7)
for step in range(begin, begin + 6000):
    state.write_text(str(step + 1))
    if stop.exists():
        if rank == "0":
            pathlib.Path(os.environ["SBATCHGEN_AGAIN_FILE"]).touch()
        sys.exit(0)
    if begin:
        sys.exit(0)
    time.sleep(0.1)
sys.exit("no stop was asked for")
"""


@pytest.fixture(scope="module")
def own(site: Site) -> dict[tuple[str, str], int]:
    """A trainer of somebody's own, by each launcher: to be stopped, and to fail."""
    site.cluster.put("work/own.py", OWN)
    shape = ("ddp", "--nodes", "2", "--gpus-per-node", "2", "--trainer", "own.py")
    jobs = {}
    for launcher in LAUNCHERS:
        for mode in ("stop", "fail"):
            name = f"own-{mode}-{launcher}"
            flags = ("submit", *shape, "--yes", "--launcher", launcher, "--job-name", name)
            done = site.sbatchgen(*flags, "--", mode, "{run_dir}", check=True)
            jobs[launcher, mode] = int(done.stdout)
    done = site.sbatchgen(
        *("submit", *shape, "--yes", "--resume", "off", "--job-name", "own-off", "--", "fail", "{run_dir}"),
        check=True,
    )
    jobs["torchrun", "off"] = int(done.stdout)
    return jobs


@pytest.mark.sampled(3)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_own_trainer_is_stopped_and_started_again(
    site: Site, own: dict[tuple[str, str], int], launcher: str
) -> None:
    name, job = f"own-stop-{launcher}", own[launcher, "stop"]
    run_dir = site.folder / "runs" / name
    ranks = 2 if launcher == "spawn" else 4
    site.cluster.until(lambda: len(list(run_dir.glob("state-*"))) == ranks, f"ranks of {name}")
    site.cluster.run(["scancel", "--batch", "--signal=USR1", str(job)], check=True)
    record = site.cluster.wait(job, {"COMPLETED"})
    assert (record["Restarts"], record["ExitCode"]) == ("1", "0:0")
    printed = [json.loads(line) for line in site.log(name).splitlines() if line.startswith("{")]
    assert [start["begin"] > 0 for start in printed] == [False] * ranks + [True] * ranks
    expected = {("0", None)} if launcher == "spawn" else {(str(rank), "4") for rank in range(4)}
    assert {(start["rank"], start["size"]) for start in printed} == expected


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_own_trainers_exit_status_is_the_jobs(
    site: Site, own: dict[tuple[str, str], int], launcher: str
) -> None:
    """One process of the second node fails; the others are killed for it."""
    record = site.cluster.wait(own[launcher, "fail"], {"FAILED"})
    assert (record["ExitCode"], record["Restarts"]) == ("7:0", "0")


def test_without_restarts_an_own_trainers_failure_is_told_with_its_rank(
    site: Site, own: dict[tuple[str, str], int]
) -> None:
    """No file holds the first status then: srun's is the highest, of a torchrun that is killed if it ends late."""
    record = site.cluster.wait(own["torchrun", "off"], {"FAILED"})
    assert record["ExitCode"] in {"7:0", "137:0"}
    assert record["Restarts"] == "0"
    assert "Rank 3 of the training ended with exit status 7" in site.log("own-off")


def test_warned_of_its_end_a_job_saves_and_is_requeued_until_it_may_not(site: Site) -> None:
    """Warned by hand: Slurm looks at time limits only every half minute."""
    job = site.submit(
        "warned", "ddp", "--nodes", "2", "--gpus-per-node", "1", "--max-restarts", "1",
        "--", "--step-delay", "0.3",
    )  # fmt: skip
    site.reach_step("warned", 5)
    site.cluster.run(["scancel", "--batch", "--signal=USR1", str(job)], check=True)
    site.cluster.until(lambda: site.cluster.job(job)["Restarts"] == "1", "a restart")
    saved = int(str(site.status("warned")["step"]))
    site.cluster.until(
        lambda: "restart 1 of at most 1" in site.log("warned").partition("Requeueing")[2].partition("\n")[2],
        "the second start",
    )
    site.reach_step("warned", saved + 5)
    site.cluster.run(["scancel", "--batch", "--signal=USR1", str(job)], check=True)
    record = site.cluster.wait(job, {"FAILED"})
    assert (record["ExitCode"], record["Restarts"]) == ("75:0", "1")
    log = site.log("warned")
    assert f"Stopped by time limit at step {saved}" in log
    assert log.count("Requeueing: restart 1 of at most 1") == 1
    assert len(list((site.folder / "runs/warned").glob("*.out"))) == 1
    assert site.status("warned")["state"] == "preempted"


@pytest.mark.proof
def test_an_array_element_restarts_itself_only(site: Site) -> None:
    job = site.submit("elements", "single", "--array", "0-1", "--", "--epochs", "1", "--step-delay", "0.4")
    runs = [site.folder / "runs" / "elements" / str(element) for element in (0, 1)]

    def both_train() -> bool:
        return all(
            (run / "events.jsonl").exists() and '"event": "train"' in (run / "events.jsonl").read_text()
            for run in runs
        )

    site.cluster.until(both_train, "two elements that train")
    site.cluster.run(["scancel", "--batch", "--signal=USR1", f"{job}_1"], check=True)
    site.cluster.wait(job, {"COMPLETED"})
    restarts = {record["ArrayTaskId"]: record["Restarts"] for record in site.cluster.jobs(job)}
    assert restarts == {"0": "0", "1": "1"}
    states = [json.loads((run / "status.json").read_text())["state"] for run in runs]
    assert states == ["done", "done"]


@pytest.mark.proof
@on_one_release
def test_two_jobs_on_the_same_nodes_do_not_meet(site: Site) -> None:
    shape = ("ddp", "--nodes", "2", "--nodelist", "n3,n4", "--gpus-per-node", "1", "--launcher", "srun")
    later = ("--begin", "now+1hour", "--", "--epochs", "1")
    jobs = [site.submit(f"pair-{number}", *shape, *later) for number in (1, 2)]
    for job in jobs:
        site.cluster.root(["scontrol", "update", f"jobid={job}", "starttime=now"])
    records = [site.cluster.wait(job, {"COMPLETED"}) for job in jobs]
    starts = [record["StartTime"] for record in records]
    ends = [record["EndTime"] for record in records]
    assert max(starts) < min(ends), "they ran at the same time"
    assert all(record["NodeList"] == "n[3-4]" for record in records)
    for number in (1, 2):
        assert len(re.findall(r"rank \d of 2 on", site.log(f"pair-{number}"))) == 2


def test_the_other_modes_run(site: Site, jobs: dict[str, int], slurm_release: str) -> None:
    """In one test: pytest boots a cluster again for each row that names its release."""
    modes = [name for release, name in MODES_TRIED if release == slurm_release]
    gres = {FIRST: "gres:", LATER: "gres/"}[slurm_release]
    hold(
        has_run, [(site, jobs[name], name, f"{gres}{GRES[name]}" if name in GRES else None) for name in modes]
    )


def has_run(site: Site, job: int, name: str, gres: str | None) -> None:
    assert site.cluster.wait(job, {"COMPLETED"}).get("TresPerNode") == gres
    assert len(EPOCH.findall(site.log(name))) == 1


def test_a_missing_log_folder_can_not_happen(site: Site, slurm_release: str) -> None:
    """An earlier Slurm lets such a job die without a word, a later one makes it; so does submit, and render warns."""
    flags = ("single", "--output", "logs/deep/%x-%j.out", "--job-name", "logged", "--trainer", "ok.py")
    site.cluster.put("work/ok.py", "print('trained')\n")
    rendered = site.sbatchgen("render", *flags, check=True)
    assert "does not create the log folder 'logs/deep'" in rendered.stderr
    lost = site.cluster.sbatch(cwd=site.folder, script=rendered.stdout)
    record = site.cluster.wait(lost, {"FAILED" if slurm_release == FIRST else "COMPLETED"})
    assert Path(record["StdOut"]).exists() == (slurm_release != FIRST)
    shutil.rmtree(site.folder / "logs", ignore_errors=True)
    done = site.sbatchgen("submit", *flags, "--yes", check=True)
    record = site.cluster.wait(int(done.stdout), {"COMPLETED"})
    assert "trained" in (site.folder / f"logs/deep/logged-{int(done.stdout)}.out").read_text()
    site.cluster.put("work/by-hand.slurm", rendered.stdout.replace("logs/deep", "logs/by-hand"))
    done = site.sbatchgen("submit", "by-hand.slurm", "--yes", check=True)
    site.cluster.wait(int(done.stdout), {"COMPLETED"})
    assert (site.folder / f"logs/by-hand/logged-{int(done.stdout)}.out").exists()


@on_one_release
def test_the_environment_has_no_say(site: Site) -> None:
    """SBATCH_* beats a script, and SLURM_* of an outer job reaches srun: submit leaves both out, and says so."""
    site.cluster.put("work/ok.py", "import os\nprint('width', os.environ['SLURM_CPUS_PER_TASK'])\n")
    leaks = {
        "SBATCH_PARTITION": "nowhere",
        "SLURM_MEM_PER_CPU": "1",
        "SLURM_NTASKS": "9",
        "SBATCH_TIMELIMIT": "1",
    }
    done = site.sbatchgen(
        "submit", "single", "--trainer", "ok.py", "--job-name", "clean", "--yes", env=leaks, check=True
    )
    assert "SBATCH_PARTITION, SBATCH_TIMELIMIT, SLURM_MEM_PER_CPU, SLURM_NTASKS" in done.stderr
    record = site.cluster.wait(int(done.stdout), {"COMPLETED"})
    assert (record["Partition"], record["TimeLimit"]) == ("gpu", "00:10:00")
    assert "width 2" in site.log("clean")
    kept = site.sbatchgen("submit", "single", "--trainer", "ok.py", "--yes", "--keep-sbatch-env", env=leaks)
    assert (kept.returncode, kept.stdout) == (5, "")
    assert "invalid partition specified: nowhere" in kept.stderr


@pytest.mark.proof
@on_one_release
def test_a_value_of_the_submitting_shell_is_seen_by_the_trainer_alone(site: Site) -> None:
    secret = "se{cret} 'of' one"  # noqa: S105 - what is looked for
    tell = "import hashlib, os\nprint(hashlib.sha256(os.environ['API_KEY'].encode()).hexdigest())\n"
    site.cluster.put("work/tell.py", tell)
    job = ("cpu", "--job-name", "keyed", "--trainer", "tell.py", "--env", "API_KEY")
    refused = site.sbatchgen("submit", *job, "--yes")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "API_KEY is not set here" in refused.stderr
    given = {"API_KEY": secret}
    done = site.sbatchgen("submit", *job, "--yes", env=given, check=True)
    number = int(done.stdout)
    site.cluster.wait(number, {"COMPLETED"})
    assert hashlib.sha256(secret.encode()).hexdigest() in site.log("keyed")
    commands = (("review", *job, "--format", "json"), ("explain", *job), ("render", *job), ("logs", "keyed"))
    said = [done, *(site.sbatchgen(*words, env=given) for words in (*commands, ("status", "keyed")))]
    show = ("show", "--details", "--details", "job", str(number)), ("write", "batch_script", str(number), "-")
    said += [site.cluster.root(["scontrol", *words]) for words in show]
    assert not [output.args for output in said if secret in output.stdout + output.stderr]
    files = [path for path in site.cluster.home.rglob("*") if path.is_file()]
    assert "runs.jsonl" in {path.name for path in files}
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_slurm_refusing_is_an_error_of_its_own(site: Site) -> None:
    done = site.sbatchgen("submit", "cpu", "--constraint", "nothing", "--job-name", "refused", "--yes")
    assert (done.returncode, done.stdout) == (5, "")
    assert "Invalid feature specification" in done.stderr


@pytest.mark.proof
def test_an_allocation_that_differs_from_the_script_is_used_as_it_is(site: Site) -> None:
    """The script has Slurm's own numbers: what sbatch's command line overrides counts."""
    flags = ("ddp", "--nodes", "2", "--gpus-per-node", "1", "--run-dir", "runs/other", "--", *TRAINING)
    script = site.sbatchgen("render", *flags, "--epochs", "1", check=True).stdout
    job = site.cluster.sbatch("--nodes=1", "--gpus-per-node=2", cwd=site.folder, script=script)
    record = site.cluster.wait(job, {"COMPLETED"})
    ranks = re.findall(r"rank (\d+) of (\d+) on (n\d)", Path(record["StdOut"]).read_text())
    assert [rank[:2] for rank in ranks] == [("0", "2"), ("1", "2")]
    assert len({node for _, _, node in ranks}) == 1


@pytest.mark.proof
@on_one_release
def test_the_step_has_the_options_of_its_launcher(site: Site) -> None:
    text = 'f\'role {os.environ.get("ROLE_NAME")} of {os.environ["SLURM_STEP_TASKS_PER_NODE"]}\\n\''
    show = f"import os\nos.write(1, {text}.encode())\n"  # at once: several processes write to the log
    site.cluster.put("work/show.py", show)
    launchers = "launchers:\n  torchrun: {args: [--role=trainers]}\n  srun: {step: {label: true}}\n"
    totals = "step: {unbuffered: true}\ngpu_request: gpus\n"
    site.cluster.put("work/step.yaml", PROFILE + launchers + totals)
    flags = ("--profile", "./step.yaml", "--nodes", "2", "--gpus-per-node", "2", "--trainer", "show.py")
    ids = {}
    for launcher in ("torchrun", "srun"):
        words = ("submit", "ddp", "--yes", "--launcher", launcher, "--job-name", f"step-{launcher}", *flags)
        done = site.sbatchgen(*words, "--step", "multi-prog=false", "--step", "wait=30", check=True)
        ids[launcher] = int(done.stdout)
    for number in ids.values():
        assert site.cluster.wait(number, {"COMPLETED"})["NumNodes"] == "2"
    assert site.log("step-torchrun").count("role trainers of 1(x2)") == 4
    lines = [line for line in site.log("step-srun").splitlines() if "role" in line]
    assert sorted(lines) == [f"{rank}: role None of 2(x2)" for rank in range(4)]


@on_one_release
def test_hostile_values_arrive_in_a_job(site: Site) -> None:
    values = [
        "a b",
        "it's",
        '"',
        "\\",
        "$(touch pwned)",
        "`id`",
        "#x",
        "a\nb",
        "é",
        "%j",
        "-x",
        "${HOME}",
        ",",
        "",
    ]
    site.cluster.put(
        "work/dump.py",
        "import json, os, sys\nprint(json.dumps([sys.argv[1:], os.environ['VALUE'], os.environ['SLURM_JOB_NAME']]))\n",
    )
    name = "a b $(touch pwned) `id` 'q' \"q\" #x"
    done = site.sbatchgen(
        "submit", "single", "--trainer", "dump.py", "--job-name", name, "--env", f"VALUE={''.join(values)}", "--yes",
        "--", *values, check=True,
    )  # fmt: skip
    site.cluster.wait(int(done.stdout), {"COMPLETED"})
    lines = [line for line in site.log(name).splitlines() if line.startswith("[[")]
    expanded = "".join(values).replace("${HOME}", str(site.cluster.home))  # as `env` has it
    assert [json.loads(line) for line in lines] == [[values, expanded, name]]
    assert not list(site.folder.rglob("pwned"))


@on_one_release
def test_a_virtual_environment_that_is_not_there_is_told(site: Site) -> None:
    done = site.sbatchgen(
        "submit", "single", "--venv", "/nowhere/venv", "--job-name", "novenv", "--yes", check=True
    )
    site.cluster.wait(int(done.stdout), {"FAILED"})
    assert "error: no virtual environment at /nowhere/venv" in site.log("novenv")
