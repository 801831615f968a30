"""Scripts turned into jobs: what the new script asks of Slurm and starts is what the old one did.

`tests/fixtures/originals` has the shapes of the jobs of the five tutorials, as tests/fixtures/tutorials.yaml names
them; of three, no sbatch file is published, and their command stands in one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from sbatchgen.adopt import report
from sbatchgen.adopt.adoption import Adoption, adopt
from sbatchgen.errors import DocumentError
from sbatchgen.job.launches import Launch
from sbatchgen.job.script import JobScript
from sbatchgen.sbatch.grammar import minutes
from sbatchgen.sbatch.header import READ
from sbatchgen.sbatch.reader import read
from tests.cluster.slurm import Cluster
from tests.conftest import FIXTURES, Command
from tests.tables import hold

ORIGINALS = sorted((FIXTURES / "originals").iterdir())
SCRIPTS = [*ORIGINALS, *sorted((FIXTURES / "scripts").iterdir()), *sorted((FIXTURES / "corpus").glob("*.sh"))]
USER = {"HOME": "/home/me", "USER": "me"}
CLASSES = {"understood", "kept", "mended", "dropped", "lost"}


def adopted(text: str, file: str = "old.slurm") -> Adoption:
    return adopt(text, file=file, user=USER, day="2026-01-31")


def of_body(body: str, *directives: str) -> Adoption:
    """What becomes of a body below three directives; they are lines 2 to 4."""
    head = ["--nodes=1", "--ntasks-per-node=1", "--time=1:00:00", *directives]
    return adopted("".join(["#!/bin/bash\n", *(f"#SBATCH {line}\n" for line in head), body, "\n"]))


def job(found: Adoption) -> dict[str, Any]:
    assert not found.lost, found.lost
    return dict(yaml.safe_load(found.job))


def profile(found: Adoption) -> dict[str, Any]:
    assert not found.lost, found.lost
    return dict(yaml.safe_load(found.profile))


def asked(text: str) -> dict[str, str]:
    """What sbatchgen's reader finds, with times in minutes and --ntasks as the tasks of each node."""
    script = read(text, slurm="22.05")
    options = {name: use.value or "" for name, use in script.options.items()}
    if "time" in options:
        options["time"] = str(minutes(options["time"]))
    return as_per_node(options)


def as_per_node(options: dict[str, str]) -> dict[str, str]:
    tasks = options.pop("ntasks", None)
    if tasks is not None:
        options["ntasks-per-node"] = str(int(tasks) // int(options.get("nodes", "1")))
    return options


def by_sbatch(options: Mapping[str, str]) -> dict[str, str]:
    """What sbatch says, with paths as they count from its folder, which is another each time."""
    return as_per_node({name: re.sub(r"/\S*/oracle-\w+/", "", text) for name, text in options.items()})


def training(text: str) -> Launch:
    script = JobScript(file="job.slurm", text=text, slurm="22.05")
    return script.trainings[-1]


def started(text: str) -> tuple[object, ...]:
    """How many processes of what, with which arguments."""
    launch = training(text)
    words = [launch.program.body.text_of(word) for word in launch.program.words]
    if words[0].startswith(("python", "env")):
        words = words[1:]
    here = [word.replace("~/", "/home/me/") for word in words]
    each = launch.workers if launch.launcher else launch.tasks_per_node
    return launch.nodes or launch.resources.nodes, each, here


def test_the_script_asks_slurm_for_the_same(
    folder: Path, command: Command, oracle: Callable[..., Any]
) -> None:
    """As sbatchgen reads it, and as sbatch does; what has no name has that of its file."""

    def check(path: Path) -> None:
        text = path.read_text()
        found = adopted(text, path.name)
        assert not found.lost
        for name, content in found.files.items():
            (folder / name).write_text(content)
        rendered = command("render", found.file)
        assert rendered.status == 0, rendered.err
        assert asked(rendered.out) == {"job-name": path.name, **asked(text)}
        old, new = (by_sbatch(oracle(one).options) for one in (text, rendered.out))
        assert new.pop("job-name") == old.pop("job-name", path.name)
        assert new == old

    hold(check, ((path,) for path in ORIGINALS))


def test_the_script_starts_the_same() -> None:
    """The same processes of the same program with the same arguments."""

    def check(path: Path) -> None:
        text = path.read_text()
        assert started(adopted(text, path.name).rendered) == started(text)

    hold(check, ((path,) for path in ORIGINALS))


def test_what_the_tutorials_jobs_start() -> None:
    """Nodes and processes as tests/fixtures/tutorials.yaml has them; the file of torchrun has 4 nodes, its page 2."""
    tutorials = yaml.safe_load((FIXTURES / "tutorials.yaml").read_text())["jobs"]
    compared = 0
    for page, tutorial in tutorials.items():
        for name, facts in tutorial["jobs"].items():
            path = FIXTURES / "originals" / f"{page}-{name.partition(',')[0]}"
            if path.exists() and page != "torchrun":
                nodes, each, _ = started(adopted(path.read_text(), path.name).rendered)
                assert (nodes, nodes * each) == (facts["nodes"], facts["processes"]), name  # type: ignore[operator]
                compared += 1
    assert compared >= 15


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("torchrun-run_distributed.slurm", {"SB701", "SB312"}),
        ("msu-multi_node.slurm", {"SB312"}),
        ("troila-conda.ddp.job", {"SB307"}),
    ],
)
def test_defects_that_are_named(name: str, rules: set[str]) -> None:
    found = adopted((FIXTURES / "originals" / name).read_text(), name)
    assert rules <= {one.rule for one in found.mended}
    assert {found.lines[one.place.line] for one in found.mended} == {"mended"}
    assert not {one.rule for one in found.mended} & {one.rule for one in found.left}


def test_every_line_of_every_script_is_accounted_for() -> None:
    """Whatever the script holds, each line that is not empty is in one class; or the script is refused as a whole."""
    refused = 0

    def check(path: Path) -> None:
        nonlocal refused
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        try:
            found = adopted(text, path.name)
        except DocumentError:
            refused += 1
            return
        filled = [number for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        assert sorted(found.lines) == filled
        assert {*found.lines.values()} <= CLASSES
        told = {line for row in found.rows for line in row.lines}
        assert told >= set(filled)
        read_by_slurm = {one.line for one in read(text).directives if one.kind in READ}
        assert not [row for row in found.rows if row.what == "comment" and read_by_slurm & {*row.lines}]
        assert report.as_text(found)
        assert all(row.what for row in found.rows)
        if not found.lost:  # nothing was taken over that render would refuse
            assert found.rendered
            assert started(found.rendered)

    hold(check, ((path,) for path in SCRIPTS))
    assert refused < len(SCRIPTS) / 4


KEPT = [  # a body, and the lines of setup
    ('die() { echo "error: $*" >&2; exit 1; }\npython t.py', ['die() { echo "error: $*" >&2; exit 1; }']),
    ("cd /work/me\nulimit -n 4096\npython t.py", ["cd /work/me", "ulimit -n 4096"]),
    ("cd /w && python t.py", ["cd /w || exit"]),
    ("mkdir o &&\n  cd o && A=1 srun python t.py && echo done", ["mkdir o || exit", "  cd o || exit"]),
    ("cd /w; export A=$PWD # here\npython t.py; echo done", ["cd /w", "export A=$PWD # here"]),
    ("if true; then\n\techo hi\nfi\npython t.py", ["if true; then", "    echo hi", "fi"]),
    ("source ~/.bashrc\npython t.py", ["source ~/.bashrc"]),
    ("A=1\nB=$A\necho $B\npython t.py", ["A=1", "B=$A", "echo $B"]),
    ("A=1\nB=2\nmkdir $A\npython t.py --b $B", ["A=1", "mkdir $A"]),
    ("export SEED=$RANDOM\npython t.py", ["export SEED=$RANDOM"]),
    ("module use /apps\nmodule load cuda\npython t.py", ["module use /apps", "module load cuda"]),
    ("source v/bin/activate\npip list\npython t.py", ["source v/bin/activate", "pip list"]),
    (
        "source v/bin/activate\nexport PYTHONPATH=$PWD:$PYTHONPATH\npython t.py",
        ["source v/bin/activate", "export PYTHONPATH=$PWD:$PYTHONPATH"],
    ),
    ("cat > x.json <<END\n{\n  1\n}\nEND\npython t.py", ["cat > x.json <<END", "{", "  1", "}", "END"]),
    ("python prepare.py\npython t.py", ["python prepare.py"]),
    ("srun python --version\npython t.py", ["srun python --version"]),
    ("/v/bin/python t.py", ['PATH="/v/bin":$PATH']),
    ("export PATH=/a:$PATH\n/v/bin/python t.py", ["export PATH=/a:$PATH", 'PATH="/v/bin":$PATH']),
    ("V=v\n$V/bin/torchrun --nproc-per-node=2 t.py", ['PATH="${SLURM_SUBMIT_DIR}/v/bin":$PATH']),
    ("source a/bin/activate\n/b/bin/python t.py", ["source a/bin/activate", 'PATH="/b/bin":$PATH']),
    ("export A=1\n./fetch\npython t.py", ["export A=1", "./fetch"]),
    ("export CONDA_ENVS_PATH=/x\npython t.py", ["export CONDA_ENVS_PATH=/x"]),
    ("export PATH=/a:/b\nmodule load c\npython t.py", ["export PATH=/a:/b", "module load c"]),
    ("srun --label --cpu-bind=cores python t.py", ["export SLURM_LABELIO=1", "export SLURM_CPU_BIND=cores"]),
    ("A=1\nexport A\npython t.py", ["A=1", "export A"]),
    ("export A=1\nunset A\npython t.py", ["export A=1", "unset A"]),
    ("export A=1\nif true; then export A=2; fi\npython t.py", ["export A=1", "if true; then export A=2; fi"]),
    ("A=$(pwd)\nB=$A A=x$A python t.py", ["A=$(pwd)", "export B=$A", "export A=x$A"]),
    ('A=1\nB=$(pwd)\nls /$B/$A/x "$B $A"\npython t.py', ["A=1", "B=$(pwd)", 'ls /$B/$A/x "$B $A"']),
]


@pytest.mark.parametrize(("body", "setup"), KEPT, ids=[body for body, _ in KEPT])
def test_what_stays_as_it_stands(body: str, setup: list[str]) -> None:
    found = profile(of_body(body))
    assert found["setup"] == setup
    assert found.get("runtime", "host") == "host"
    assert "modules" not in found


UNDERSTOOD: list[
    tuple[str, dict[str, Any], dict[str, Any]]
] = [  # a body, keys of the job, keys of the profile
    ("python -u t.py --lr 0.1", {"mode": "single", "trainer": "t.py", "args": ["--lr", "0.1"]}, {}),
    ("python -m pkg.train", {"trainer": "pkg.train"}, {}),
    ("python ~/t.py --out $HOME/x", {"trainer": "/home/me/t.py", "args": ["--out", "/home/me/x"]}, {}),
    ("python t.py --n $SLURM_NNODES", {"args": ["--n", "1"]}, {}),
    ("export A=1 B='x y'\npython t.py", {"env": {"A": "1", "B": "x y"}}, {}),
    ("A=1 python t.py", {"env": {"A": "1"}}, {}),
    ("export PYTHONPATH=/src\npython t.py", {"env": {"PYTHONPATH": "/src"}}, {}),
    ("module load a b\npython t.py", {}, {"modules": ["a", "b"]}),
    ("module load a; source v/bin/activate; python t.py", {}, {"modules": ["a"], "runtime": "venv"}),
    ("source $HOME/v/bin/activate\npython t.py", {}, {"runtimes": {"venv": {"path": "${HOME}/v"}}}),
    ("source v/bin/activate\npython t.py", {}, {"runtimes": {"venv": {"path": "v"}}}),
    (
        "source /opt/c/bin/activate e\npython t.py",
        {},
        {"runtimes": {"conda": {"root": "/opt/c", "env": "e"}}},
    ),
    (
        "source ~/c/etc/profile.d/conda.sh\nconda activate e\npython t.py",
        {},
        {"runtimes": {"conda": {"root": "${HOME}/c", "env": "e"}}},
    ),
    (
        "torchrun --standalone --nproc_per_node=4 --max_restarts=3 t.py",
        {"mode": "ddp", "launcher": "torchrun", "nproc_per_node": 4, "env": {"PET_MAX_RESTARTS": "3"}},
        {},
    ),
    ("srun bash -c 'export RANK=$SLURM_PROCID; exec python t.py'", {"trainer": "t.py"}, {}),
    ("python t.py 2>&1 | tee log", {"trainer": "t.py"}, {}),
    ("CMD='srun python t.py | tee log'\neval $CMD", {"trainer": "t.py"}, {}),
    ("python t.py && echo done", {"trainer": "t.py"}, {}),
    ("python t.py\nls -l x\nuname -a", {"trainer": "t.py"}, {}),
    ("~/venv/bin/python t.py", {"trainer": "t.py"}, {"runtimes": {"venv": {"path": "${HOME}/venv"}}}),
    (
        "accelerate launch --num_processes 2 t.py --a 1",
        {
            "mode": "single",
            "trainer": "accelerate.commands.launch",
            "args": ["--num_processes", "2", "t.py", "--a", "1"],
        },
        {},
    ),
    ("deepspeed t.py --a", {"trainer": "deepspeed.launcher.runner", "args": ["t.py", "--a"]}, {}),
    (
        "apptainer exec --nv -B /data,/x:/y i.sif python t.py",
        {"mode": "single"},
        {"runtimes": {"apptainer": {"image": "i.sif", "binds": ["/data", "/x:/y"]}}},
    ),
    (
        "srun --container-image=/i.sqsh --container-workdir=/w --container-mounts=/a:/w python /w/t.py",
        {"trainer": "./t.py"},
        {"runtimes": {"enroot": {"image": "/i.sqsh", "workdir": "/w", "mounts": ["/a:/w"]}}},
    ),
]


def test_what_is_understood() -> None:
    def check(body: str, keys: dict[str, Any], facts: dict[str, Any]) -> None:
        found = of_body(body)
        assert {key: job(found).get(key) for key in keys} == keys
        assert {key: profile(found).get(key) for key in facts} == facts
        assert "setup" not in profile(found)

    hold(check, UNDERSTOOD)


LOST = [  # a body, the line, and what is said
    ("python a.py &\npython b.py &\nwait", 5, "a second step"),
    ("srun python a.py\nsrun python b.py", 5, "a second step"),
    ("python t.py\ncp model.pt /archive", 6, "runs after the training"),
    ("python t.py\nnvidia-smi > usage", 6, "runs after the training"),
    ("python t.py\nsed -i s/a/b/ log", 6, "runs after the training"),
    ("for i in 1 2; do\npython t.py --seed $i\ndone", 5, "a loop"),
    ("if true; then python t.py; fi", 5, "a branch"),
    ("[ -d /w ] && python t.py", 5, "a branch"),
    ("cd /w && python t.py &\nwait", 5, "a branch"),
    ('eval "cd /w; python t.py"', 5, "eval with more"),
    ("run() { python t.py; }\nrun", 5, "the function run"),
    ("mpirun -np 4 python t.py", 5, "write srun for it"),
    ("uv run python t.py", 5, "source .venv/bin/activate"),
    ("numactl -N0 python t.py", 5, "--cpu-bind"),
    ("python t.py --id $SLURM_JOB_ID", 5, "what the text does not tell"),
    ("python t.py --config $SCRATCH/c.yaml", 5, "what the text does not tell"),
    ('python t.py "$@"', 5, "what the script is given"),
    ("python t.py < data", 5, "into the trainer"),
    ("timeout 1h python t.py", 5, "timeout around"),
    ("python3.11 t.py", 5, "python3.11"),
    ("apptainer exec i.sif /opt/conda/bin/python t.py", 5, "of the image"),
    ("trap 'scontrol requeue $SLURM_JOB_ID' USR1\npython t.py &\nwait", 6, "trap"),
    ("python -m torch.distributed.launch --nproc_per_node=2 t.py", 5, "--local-rank"),
    ("apptainer exec --cleanenv i.sif python t.py", 5, "--cleanenv"),
    ("srun --container-image=/i.sqsh python t.py", 5, "--container-workdir"),
    (
        "srun --container-image=/i.sqsh --container-workdir=/w --container-name=x python t.py",
        5,
        "--container-name",
    ),
    ("srun --relative=1 python t.py", 5, "--relative"),
    ("awk -F'\t' 1 x\npython t.py", 5, "a tab"),
    ("./simulate", 5, "no training"),
    ("die() {\n    echo $1\n}\ncd /w || die no\npython t.py", 6, "its own function die"),
]


def test_what_has_no_place_is_told_at_its_line() -> None:
    def check(body: str, line: int, what: str) -> None:
        found = of_body(body)
        told = [row for row in found.lost if what in row.what]
        assert told, [row.what for row in found.lost]
        assert found.lines[told[0].lines[0]] == "lost"
        assert line in told[0].lines

    hold(check, LOST)


@pytest.mark.parametrize(
    "body", ["CODE_DIR=/x\nls $CODE_DIR\ntorchrun t.py", "export OMP_NUM_THREADS=$((2 * 2))\npython t.py"]
)
def test_a_variable_that_the_new_script_sets_as_well(body: str) -> None:
    assert "the new script sets" in of_body(body).lost[0].what


def test_a_cd_that_fails_does_not_train_elsewhere(tmp_path: Path) -> None:
    script = of_body("cd no-folder && srun python t.py").rendered
    environment = {"SLURM_SUBMIT_DIR": str(tmp_path), "PATH": os.defpath}
    ended = subprocess.run(
        ["bash", "-c", f"srun() {{ echo trained; }}\n{script}"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    assert "no-folder" in ended.stderr


def test_threads_that_the_old_script_did_not_set() -> None:
    """torchrun sets 1 for several processes, and a single process takes all CPUs; the new script sets a share."""
    for body, told in (("python t.py", True), ("export OMP_NUM_THREADS=4\npython t.py", False)):
        notes = of_body(body, "--cpus-per-task=8").notes
        assert any(note.startswith("OMP_NUM_THREADS is 8 ") for note in notes) is told, notes


def test_a_rendered_script_names_its_job() -> None:
    text = (FIXTURES.parent / "golden/ddp-msu.sh").read_text()
    with pytest.raises(DocumentError) as error:
        adopted(text)
    assert [(one.at, one.fix) for one in error.value.problems] == [("old.slurm:2", "sbatchgen render ddp")]


@pytest.mark.parametrize(
    ("directive", "asks", "became"),
    [
        ("--time=24", "#SBATCH --time=0-00:24:00", "mended"),
        ("--time=24:00", "#SBATCH --time=0-00:24:00", "mended"),
        ("-p=gpu", "#SBATCH --partition==gpu", "mended"),
        ("--quotatype=spot", "#SBATCH --quotatype=spot", "understood"),
        ("--output=$HOME/x.out", "", "mended"),
    ],
)
def test_a_directive_is_what_slurm_reads_today(directive: str, asks: str, became: str) -> None:
    found = adopted(f"#!/bin/bash\n#SBATCH --nodes=1 --ntasks=1\n#SBATCH {directive}\npython t.py\n")
    assert not found.lost
    assert found.lines[3] == became
    assert asks in found.rendered
    assert asks or "--output" not in found.rendered


def test_what_slurm_ignores_stays_out() -> None:
    found = of_body("hostname\n#SBATCH --nodes=4\n# SBATCH --mem=4G\npython t.py")
    assert (found.lines[6], found.lines[7]) == ("mended", "dropped")
    assert "--nodes=1\n" in found.rendered
    assert "--mem" not in found.rendered


def test_tasks_that_start_nothing_give_their_cpus_to_the_one_that_does() -> None:
    text = "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=4 -c 8 --gpus-per-node=4 -t 1:0:0\n"
    text += "torchrun --nnodes=2 --nproc_per_node=4 t.py\n"
    found = adopted(text)
    assert not found.lost
    assert found.lines[2] == "mended"
    assert "--ntasks-per-node=1\n#SBATCH --cpus-per-task=32\n" in found.rendered


def test_a_secret_is_not_copied() -> None:
    found = of_body("export HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789\npython t.py")
    assert job(found)["env"] == {"HF_TOKEN": None}
    assert "hf_AbCd" not in found.job + found.profile + "".join(
        row.what for row in found.rows if "SB" not in row.what
    )
    assert found.lines[5] == "mended"


def test_the_command_writes_two_files_that_render(folder: Path, command: Command) -> None:
    Path("old.slurm").write_text((FIXTURES / "originals/msu-single_node.slurm").read_text())
    found = command("adopt", "old.slurm", "--to", "new")
    assert (found.status, found.out) == (0, "")
    assert "now: sbatchgen render new/old.yaml" in found.err
    assert sorted(path.name for path in Path("new").iterdir()) == ["old-cluster.yaml", "old.yaml"]
    assert "#SBATCH --job-name=pytorch_mnist\n" in command("render", "new/old.yaml").out
    assert command("lint", "--no-shellcheck", "old.slurm").status == 0

    again = command("adopt", "old.slurm", "--to", "new")
    assert again.status == 3
    assert "is there already" in again.err
    assert command("adopt", "old.slurm", "--to", "new", "--force").status == 0


def test_the_command_stops_where_something_would_be_lost(folder: Path, command: Command) -> None:
    Path("old.slurm").write_text(
        "#!/bin/bash\n#SBATCH -N1 -n1 -t 10:00:00\npython t.py\ncp model.pt /archive\n"
    )
    found = command("adopt", "old.slurm")
    assert (found.status, found.out) == (3, "")
    assert "4         lost " in found.err
    assert "fix: leave them out: --partly" in found.err

    partly = command("adopt", "old.slurm", "--partly")
    assert partly.status == 0
    assert [part.partition("\n")[0] for part in partly.out.split("---\n")] == [
        "# old.yaml",
        "# old-cluster.yaml",
    ]

    told = json.loads(command("adopt", "old.slurm", "--format", "json").out)
    assert told["lines"] == {"1": "understood", "2": "understood", "3": "understood", "4": "lost"}
    assert [row["became"] for row in told["rows"]][-1] == "lost"


def test_a_hostile_script_prints_no_control_character(folder: Path, command: Command) -> None:
    Path("old.slurm").write_text(
        "#!/bin/bash\n#SBATCH -N1 -J a\x1b[31mb\necho \x1b]0;x\x07\npython t.py --x \x1b[2J\n"
    )
    found = command("adopt", "old.slurm", "--partly")
    assert found.status == 0
    assert "\x1b" not in found.out + found.err


SHOW = """
import json, os, sys
numbers = {name: os.environ[name] for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES")}
line = json.dumps([sys.argv[1:], os.getcwd(), numbers, os.environ.get("GREETING")])
with open(os.path.join(os.environ["LEFT"], f"{os.environ['SLURM_PROCID']}"), "w") as file:
    file.write(line)
"""
OLD = """#!/bin/bash
#SBATCH --job-name=show
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=00:05:00
#SBATCH --output=%x-%j.log

mkdir -p work; export PATH={python}:$PATH
export GREETING="hello, world"
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export MASTER_PORT=29500
EPOCHS=3
cd work && srun python ../show.py --epochs $EPOCHS --name "two words" '*.py'
echo done
"""


def test_both_scripts_do_the_same_on_a_real_slurm(cluster: Cluster, tmp_path: Path) -> None:
    """The old script and the new one: argument for argument, folder and numbers of each process."""
    text = OLD.format(python=Path(sys.executable).parent)
    found = adopted(text)
    assert not found.lost
    cluster.put("adopt/show.py", SHOW)
    seen = []
    for name, script in (("old", text), ("new", found.rendered)):
        left = cluster.put(f"adopt/{name}/.keep", "").parent
        path = cluster.put(f"adopt/{name}.slurm", script)
        ended = cluster.run(
            ["sbatch", "--parsable", "--wait", path.name], cwd=path.parent, env={"LEFT": str(left)}
        )
        log = "".join(one.read_text() for one in path.parent.glob("show-*.log"))
        assert ended.returncode == 0, ended.stderr + log
        seen.append({one.name: json.loads(one.read_text()) for one in left.glob("[0-9]")})
    assert seen[0] == seen[1]
    assert sorted(seen[0]) == ["0", "1", "2", "3"]
    assert seen[0]["3"][0] == ["--epochs", "3", "--name", "two words", "*.py"]
