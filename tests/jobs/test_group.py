"""Three users of one group in one folder of a project, on a real Slurm: each has runs, and reads those of others."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import PROFILE, SBATCHGEN

GROUP = 20100
TRAINER = """import json, pathlib, sys
folder = pathlib.Path("checkpoints-of-mine")
for step in range(1, 4):
    print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
sys.exit("the data of step 4 are damaged")
"""
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("slurm_release", ["22.05"], indirect=True)]


@dataclass(frozen=True)
class Member:
    """A user of the group vision, by name and number."""

    cluster: Cluster
    name: str
    number: int
    project: Path

    @property
    def home(self) -> Path:
        return self.project.parent / self.name

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command in the project, with the umask of those who share files."""
        identity = ["setpriv", f"--reuid={self.number}", f"--regid={self.number}", f"--groups={GROUP}"]
        environment = [f"HOME={self.home}", f"USER={self.name}", "SLURM_CONF=/etc/slurm/slurm.conf"]
        enter = ["sh", "-c", 'umask 002; cd "$0" && exec "$@"', str(self.project)]
        return self.cluster.root([*enter, *identity, "env", *environment, *words], check=False)

    def sbatchgen(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        done = self.run(SBATCHGEN, *words)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def submit(self) -> Path:
        """Submit the job of the project with no option; return the run folder, when the job has ended."""
        done = self.sbatchgen("submit", "train.yaml", "--yes")
        assert done.returncode == 0, done.stderr
        self.cluster.wait(done.stdout.strip())
        (state,) = json.loads(self.sbatchgen("status", done.stdout.strip(), "--format", "json").stdout)[
            "runs"
        ]
        return Path(state["folder"])


@pytest.fixture
def members(slurm_root: Path | None) -> Iterator[list[Member]]:
    """anna, bela and carl; the project's folder has setgid and group write, and is below one of root."""
    with Cluster(visible=VISIBLE, root=slurm_root) as cluster:
        project = cluster.home.parent / "project"
        names = {"anna": 20011, "bela": 20012, "carl": 20013}
        etc = cluster.home.parents[1] / "etc"
        with (etc / "passwd").open("a") as passwd, (etc / "group").open("a") as group:
            for name, number in names.items():
                passwd.write(f"{name}:x:{number}:{number}::{project.parent / name}:/bin/bash\n")
                group.write(f"{name}:x:{number}:\n")
            group.write(f"vision:x:{GROUP}:{','.join(names)}\n")
        for name, number in names.items():
            (project.parent / name).mkdir(mode=0o700)
            os.chown(project.parent / name, number, number)
        project.mkdir()
        os.chown(project, 0, GROUP)
        project.chmod(0o2775)
        files = {
            "testing.yaml": PROFILE,
            "sbatchgen.yaml": "profile: ./testing.yaml\n",
            "train.yaml": "mode: cpu\ntrainer: train.py\n",
            "train.py": TRAINER,
        }
        for name, text in files.items():
            (project / name).write_text(text)
            os.chown(project / name, names["anna"], GROUP)
            (project / name).chmod(0o664)
        yield [Member(cluster, name, number, project) for name, number in names.items()]


def test_a_group_works_in_one_folder(members: list[Member]) -> None:
    anna, bela, carl = members
    for member in members:  # one question, once
        refused = member.sbatchgen("review", "train.yaml")
        assert f"to trust it: sbatchgen trust {member.project}\n" in refused.stderr
        said = member.sbatchgen("trust", member.project)
        assert (
            "these can write the folder, and decide with you what your jobs run: the group vision (anna, bela, carl)"
            in said.stderr
        )
        shown = member.sbatchgen("review", "train.yaml")
        assert (shown.returncode, shown.stderr.count("ignored")) == (0, 0), shown.stderr

    folders = [member.submit() for member in members]
    project = anna.project
    assert folders == [project / "runs/train", project / "runs/bela/train", project / "runs/carl/train"]
    assert [folder.stat().st_uid for folder in folders] == [member.number for member in members]
    again = bela.submit()
    assert again == folders[1]

    _reads_a_run_of(bela, anna, folders[0])
    git = "git -c safe.directory=* -c user.name=b -c user.email=b"
    made = bela.run("sh", "-c", f"git init -q . && {git} add train.py && {git} commit -qm b")
    assert made.returncode == 0, made.stderr
    assert carl.sbatchgen("submit", "train.yaml", "--snapshot", "--dry-run").returncode == 0
    carl.sbatchgen("trust", "--remove", project)
    refused = carl.sbatchgen("submit", "train.yaml", "--profile", "./testing.yaml", "--snapshot", "--dry-run")
    assert "git is not asked: ignored .git: its folder" in refused.stderr
    assert f"fix: to trust it: sbatchgen trust {project}\n" in refused.stderr


def _reads_a_run_of(reader: Member, owner: Member, folder: Path) -> None:
    """Its state, log, cause and curve are read; what changes it is refused, with what works instead."""
    name = str(folder.relative_to(owner.project))
    shown = reader.sbatchgen("status", name).stdout
    assert "failed: exit status 1" in shown
    assert f"owner   {owner.name}" in " ".join(shown.replace("  ", " ").split()).replace("owner ", "owner   ")
    assert '{"step": 3' in reader.sbatchgen("logs", name).stdout
    said = reader.sbatchgen("diagnose", name)
    assert said.stdout.startswith(f"{name}: job ")
    assert "the data of step 4 are damaged" in said.stdout
    assert "sbatch" not in said.stdout.partition("fix: ")[2].partition("\n")[0].replace("sbatchgen logs", "")
    assert "Loss" in reader.sbatchgen("plot", "--text", name).stdout
    assert reader.sbatchgen("report", name).returncode == 0
    for verb in ("cancel", "resume"):
        refused = reader.sbatchgen(verb, name)
        assert refused.returncode == 2
        assert f"error: {name} belongs to {owner.name}\n" in refused.stderr
        assert f"--run-dir runs-{reader.name}/train" in refused.stderr
    job = json.loads(reader.sbatchgen("status", name, "--format", "json").stdout)["runs"][0]["jobs"][0]["id"]
    assert f"{job}: job {job} failed" in reader.sbatchgen("diagnose", job).stdout
    (log,) = folder.glob("*.out")
    log.chmod(0o600)
    hidden = reader.sbatchgen("diagnose", job)
    assert "its log can't be read" in hidden.stderr
    assert f"the job belongs to {owner.name}" in hidden.stderr
