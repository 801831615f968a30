"""Jobs inside real containers: Apptainer, started by an ordinary user, in jobs of Slurm 26.05.

Another test shows how far the stand-in, which serves where there is no Apptainer, says the same.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbatchgen.jobs.runs.failure import failures
from tests.cluster import apptainer, image, ssh
from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.jobs import test_shell
from tests.jobs.jobs import EPOCH, PROFILE, SBATCHGEN, Site
from tests.jobs.test_containers import COLOUR, HOSTILE, PROBE, probe
from tests.training.forks import QUICKLY

# What each image sets: all that the job has to win over, but for PATH, which is the image's own.
SETS = {name: value for name, value in HOSTILE.items() if name != "PATH"} | {"RANK": "5"}
POISON = "raise SystemExit('a file of the home folder was run')\n"
TWO_NODES = ("ddp", "--nodes", "2")
SHAPES = {
    "ddp-torchrun": (*TWO_NODES, "--gpus-per-node", "2", "--launcher", "torchrun"),
    "ddp-srun": (*TWO_NODES, "--gpus-per-node", "1", "--launcher", "srun"),
    "ddp-spawn": (*TWO_NODES, "--gpus-per-node", "1", "--launcher", "spawn"),
    "single": ("single",),
    "cpu": ("cpu",),
}
STOPPED = {
    "warned": (*TWO_NODES, "--gpus-per-node", "1"),
    "requeued": (*TWO_NODES, "--gpus-per-node", "1", "--launcher", "srun"),
    "cancelled": ("single",),
}
PACE = ("--", "--step-delay", "0.5", "--sync-every", "1")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in sight of the cluster: `site` makes images in it, with torch and without."""
    folder = tmp_path_factory.mktemp("images")
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def site(later_root: Path, images: Path) -> Iterator[Site]:
    """A user with data, and with what must not be found in the home folder."""
    with Cluster(visible=[*VISIBLE, images], root=later_root) as cluster:
        for name in ("torch", "small"):
            image.make(cluster, images / name, SETS, torch=name == "torch")
        runscript = images / "small/.singularity.d/runscript"
        runscript.write_text('#!/bin/sh\nexport LANG=of-the-runscript\nexec "$@"\n')
        runscript.chmod(0o755)
        uncompressed = ("--mksquashfs-args", "-noI -noD -noF -noX")
        image.build(cluster, *uncompressed, images / "small.sif", images / "small")
        text = PROFILE.partition("runtime: venv")[0]
        runtime = f"runtime: apptainer\nruntimes:\n  apptainer: {{image: {images / 'torch'}}}\n"
        cluster.put("work/testing.yaml", text + runtime)
        cluster.put("work/plain.yaml", re.sub(", PYTHONPATH: [^}]*", "", text) + runtime)
        link = runtime.replace("{image: ", "{command: singularity, verb: run, image: ")
        cluster.put("work/link.yaml", text + link.replace("/torch}", "/small, binds: ['/usr:/mnt:ro']}"))
        cluster.put("work/sbatchgen.yaml", "profile: ./testing.yaml\n")
        cluster.put("work/probe.py", PROBE)
        python = f".local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        for name in ("torch", "usercustomize", "sitecustomize"):
            cluster.put(f"{python}/{name}.py", POISON)
        site = Site(cluster, cluster.home / "work")
        drawing = ("--synthetic", "--train", "400", "--test", "16")
        site.sbatchgen("data", "mnist", "--to", "data", *drawing, env={"PYTHONNOUSERSITE": "1"}, check=True)
        yield site


@pytest.fixture(scope="module")
def jobs(site: Site) -> dict[str, int]:
    """All that train, submitted together; some are stopped on the way."""
    ids = {name: site.submit(name, *shape, *PACE) for name, shape in STOPPED.items()}
    ids |= {name: site.submit(name, *shape, "--", "--epochs", "1") for name, shape in SHAPES.items()}
    for name, stop in (
        ("warned", ["scancel", "--batch", "--signal=USR1"]),
        ("requeued", ["scontrol", "requeue"]),
        ("cancelled", ["scancel"]),
    ):
        site.reach_step(name, 3)
        site.cluster.run([*stop, str(ids[name])], check=True)
    return ids


@pytest.mark.parametrize("name", SHAPES)
def test_it_trains(site: Site, jobs: dict[str, int], name: str) -> None:
    site.cluster.wait(jobs[name], {"COMPLETED"})
    log = site.log(name)
    assert len(EPOCH.findall(log)) == 1
    assert site.status(name)["state"] == "done"
    ranks = re.findall(r"rank (\d+) of (\d+) on (n\d), local rank (\d+)", log)
    each = 2 if name == "ddp-torchrun" else 1
    size = 2 * each if name.startswith("ddp") else 1
    assert sorted((int(rank), int(local)) for rank, _, _, local in ranks) == [
        (rank, rank % each) for rank in range(size)
    ]
    assert {of for _, of, _, _ in ranks} == {f"{size}"}
    script = site.cluster.root(["scontrol", "write", "batch_script", str(jobs[name]), "-"]).stdout
    assert ("apptainer exec --nv " in script) == (name != "cpu")
    assert "FATAL" not in log
    assert {path.stat().st_uid for path in (site.folder / "runs" / name).rglob("*")} == {
        site.folder.stat().st_uid
    }


def test_warned_of_its_end_it_saves_and_is_requeued_from_outside(site: Site, jobs: dict[str, int]) -> None:
    record = site.cluster.wait(jobs["warned"], {"COMPLETED"})
    assert (record["Restarts"], site.log("warned").count("Requeueing: restart 1 ")) == ("1", 1)
    assert re.search(r"Stopped by time limit at step \d+; checkpoint \S+ saved", site.log("warned"))
    assert site.log("warned").count("Resuming from") == 1


def test_requeued_by_hand_it_saves_and_goes_on(site: Site, jobs: dict[str, int]) -> None:
    assert site.cluster.wait(jobs["requeued"], {"COMPLETED"})["Restarts"] == "1"
    assert re.search(
        r"Stopped by (cancelled|SIGTERM) at step \d+; checkpoint \S+ saved", site.log("requeued")
    )
    assert site.log("requeued").count("Resuming from") == 1


def test_cancelled_it_saves_and_can_be_resumed(site: Site, jobs: dict[str, int]) -> None:
    site.cluster.wait(jobs["cancelled"], {"CANCELLED"})
    site.cluster.until(lambda: site.status("cancelled")["state"] == "preempted", "state preempted")
    again = site.submit("cancelled", *STOPPED["cancelled"])
    site.cluster.wait(again, {"COMPLETED"})
    assert site.log("cancelled").count("Resuming from") == 1


def test_variables_of_the_job_win_over_the_images(site: Site) -> None:
    given = ("--env", f"COLOUR={COLOUR}", "--env", "API_KEY")
    shape = ("ddp", "--nodes", "2", "--gpus-per-node", "2", "--launcher", "srun")
    tasks = probe(site, "probe-variables", *shape, *given, API_KEY=COLOUR)
    places = sorted((int(task["RANK"]), int(task["LOCAL_RANK"]), task["WORLD_SIZE"]) for task in tasks)
    assert places == [(0, 0, "4"), (1, 1, "4"), (2, 0, "4"), (3, 1, "4")]
    assert len({(task["MASTER_ADDR"], task["MASTER_PORT"]) for task in tasks}) == 1
    for task in tasks:
        assert task["MASTER_ADDR"] in ("n1", "n2", "n3")
        assert (task["OMP_NUM_THREADS"], task["GLOO_SOCKET_IFNAME"]) == ("1", "hsn0")
        assert (task["COLOUR"], task["SHAPE"], task["API_KEY"]) == (COLOUR, "the image's", COLOUR)
        assert task["PYTHONPATH"].endswith(f"{QUICKLY}:/image/lib"), "the job's before the image's"
        assert task["cwd"] == str(site.folder)


def test_under_its_old_name_it_runs_the_runscript_and_says_nothing_of_the_variables(site: Site) -> None:
    """They have both prefixes, with one value: two that differ, or the old one alone, make it print a line each."""
    given = ("--profile", "./link.yaml", "--env", f"COLOUR={COLOUR}", "--env", "API_KEY")
    (task,) = probe(site, "probe-link", "single", *given, API_KEY=COLOUR)
    assert (task["LANG"], task["COLOUR"], task["API_KEY"]) == ("of-the-runscript", COLOUR, COLOUR)
    assert (task["cwd"], task["OMP_NUM_THREADS"]) == (str(site.folder), "1")
    assert "SINGULARITYENV" not in site.log("probe-link")


def test_a_trainer_that_starts_its_processes_on_one_node_meets_nobody(site: Site) -> None:
    (task,) = probe(site, "probe-alone", "ddp", "--nodes", "1", "--gpus-per-node", "2", "--launcher", "spawn")
    meeting = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [task[name] for name in meeting] == [None] * 5


def test_an_image_may_be_a_file(site: Site, images: Path) -> None:
    (task,) = probe(site, "probe-file", "single", "--image", str(images / "small.sif"))
    assert (task["SHAPE"], task["OMP_NUM_THREADS"], task["WORLD_SIZE"]) == ("the image's", "1", None)
    assert task["cwd"] == str(site.folder)


def test_nothing_of_the_home_folder_is_run(site: Site, images: Path) -> None:
    """Apptainer shows the home folder; without our script Python would run what lies there."""
    (task,) = probe(site, "probe-home", "single", "--profile", "./plain.yaml", PYTHONPATH="/of/the/shell")
    assert ".local" in task["home"]
    done = site.cluster.run(["apptainer", "exec", images / "small", "python3", "-c", "pass"])
    assert done.returncode == 1
    assert "a file of the home folder was run" in done.stderr


@pytest.mark.parametrize(
    ("text", "status", "said", "cause"),
    [
        (None, "1:0", "error: can't read the image ", None),
        ("no image", "255:0", "image format not recognized", "apptainer"),
    ],
)
def test_an_image_that_is_none_is_told_at_once(
    site: Site, text: str | None, status: str, said: str, cause: str | None
) -> None:
    name = "none" if text is None else "text"
    if text:
        site.cluster.put(f"work/{name}.sif", text)
    job = site.submit(f"image-{name}", "single", "--image", f"./{name}.sif")
    assert site.cluster.wait(job, {"FAILED"})["ExitCode"] == status
    log = site.log(f"image-{name}").splitlines()
    assert any(said in line for line in log)
    causes = [failure.cause for failure in failures("", enumerate(log, 1), "x")]
    assert causes[:1] == ([cause] if cause else causes[:1])


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("--pwd {work} --bind {work} {image} sh -c 'pwd; exit 7'", 7),
        (
            "--nv --pwd {work} --bind {work}:{work}:ro {image} sh -c 'echo $SHAPE $COLOUR; ls {work}/probe.py'",
            0,
        ),
        ("--bind /nowhere {image} true", 255),
        ("--pwd /nowhere {image} true", 255),
        ("/nowhere true", 255),
        ("{image} nosuchcommand", 255),
    ],
)
def test_the_stand_in_ends_as_the_real_one(site: Site, images: Path, words: str, status: int) -> None:
    """What the scripts say to it; an image of the stand-in is a file with one of its variables beside it."""
    cluster = site.cluster
    stand_in = cluster.put("images/stand-in", "")
    cluster.put("images/stand-in.env", "".join(f"{name}={value}\n" for name, value in SETS.items()))
    said = []
    for program, place in (
        ("apptainer", images / "small"),
        (f"{sys.executable} {apptainer.__file__}", stand_in),
    ):
        line = words.format(work=site.folder, image=place)
        done = cluster.run(["bash", "-c", f"{program} exec {line}"], env={"APPTAINERENV_COLOUR": "x"})
        assert done.returncode == status, done.stderr
        said.append(done.stdout if status < 255 else "")
    assert said[0] == said[1]


def test_the_training_of_a_shell_finds_in_the_image_what_the_job_finds(site: Site, images: Path) -> None:
    site.cluster.put("work/finds.py", test_shell.PROBE)
    shape = (*TWO_NODES, "--gpus-per-node", "2", "--launcher", "srun", "--image", str(images / "small"))
    test_shell.finds_the_same(site, *shape, "--trainer", "finds.py", *test_shell.HOUR, ranks=4)


def test_a_rank_in_the_image_stops_and_finds_the_modules_of_the_image(site: Site, images: Path) -> None:
    site.cluster.put(
        "work/stops.py", "import os\npath = os.environ['PYTHONPATH']\nbreakpoint()\nprint('continues')\n"
    )
    words = ("shell", "single", "--trainer", "stops.py", "--image", images / "small", "--yes", "--debug")
    for profile in ("testing", "plain"):  # which sets PYTHONPATH for a job, and which does not
        terminal = site.cluster.terminal(
            [SBATCHGEN, *words, "--profile", f"./{profile}.yaml"], cwd=site.folder
        )
        terminal.expect("Apptainer> $")
        terminal.sendline("train")
        terminal.expect(r"\(Pdb\) ")
        terminal.sendline("p path")
        terminal.expect(r"'([^']*)'\r\n\(Pdb\) ")
        assert str(terminal.match[1]).endswith(":/image/lib")  # type: ignore[index]
        terminal.sendline("c")
        terminal.expect("continues")
        terminal.sendline("exit")
        terminal.wait()


def test_a_shell_is_in_the_image_and_trains_on_all_nodes(site: Site, images: Path) -> None:
    """From the container the session on the node is asked, as the image has no srun; Ctrl-C reaches the training."""
    waits = "import os, sys, time; print('rank', os.environ['SLURM_PROCID'], *sys.argv[1:], flush=True); time.sleep(int(sys.argv[-1]))"
    site.cluster.put("work/waits.py", waits)
    shape = (*TWO_NODES, "--gpus-per-node", "1", "--launcher", "srun", "--image", str(images / "small"))
    words: list[str | Path] = [
        SBATCHGEN,
        "shell",
        *shape,
        "--trainer",
        "waits.py",
        "--job-name",
        "inside",
        "--yes",
    ]
    terminal = site.cluster.terminal(words, cwd=site.folder)
    prompt = "Apptainer> $"
    terminal.expect(prompt)
    terminal.sendline("echo =$COLOUR $RUN_DIR $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES=; type srun")
    terminal.expect(f"={HOSTILE['COLOUR']} {site.folder}/runs/inside n[0-9] 0=.*srun: not found.*{prompt}")
    terminal.sendline("train --epochs 0; echo ended with $?")
    terminal.expect("ended with 0")
    assert sorted(re.findall(r"rank (.) --epochs 0", str(terminal.before))) == ["0", "1"]
    terminal.sendline("train 600; echo ended with $?")
    terminal.expect("rank . 600.*rank . 600")
    terminal.sendintr()
    terminal.expect("ended with 130")
    done = site.sbatchgen("shell", "inside-shell", "--", "no-such-program")
    assert done.returncode == 127
    assert done.stderr.startswith("bash: line 1: no-such-program: command not found\n")
    done = site.sbatchgen("shell", "inside-shell", "--jupyter")
    assert (done.returncode, "this job has no Jupyter" in done.stderr) == (1, True)
    with ssh.served(site.cluster, []):
        relay = f"ProxyCommand={SBATCHGEN} shell inside-shell --relay"
        options = ["-o", relay, "-o", "StrictHostKeyChecking=accept-new"]
        done = site.cluster.run(["ssh", *options, "inside", "echo =$COLOUR; train --epochs 0; exit 4"])
        piped = site.cluster.run(
            ["ssh", *options, "-T", "inside"], input="echo =$COLOUR; train --epochs 0; exit 4"
        )
        assert (sorted(piped.stdout), piped.returncode) == (sorted(done.stdout), 4)
        assert piped.stderr.count("\n") <= 1  # of srun, with the status
        site.cluster.run(["scp", *options, "inside:waits.py", "copy.py"], check=True)  # the image has no sftp
        assert (site.cluster.home / "copy.py").read_text() == waits
    assert done.returncode == 4
    assert sorted(done.stdout.splitlines()) == [
        f"={HOSTILE['COLOUR']}",
        *(f"rank {n} --epochs 0" for n in "01"),
    ]
    terminal.sendline("exit 3")
    terminal.wait()
    assert terminal.exitstatus == 3
