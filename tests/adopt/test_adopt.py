"""Scripts turned into jobs: what the new script asks of Slurm and starts is what the old one did.

`tests/fixtures/originals` has the shapes of the jobs of the five tutorials, as tests/fixtures/tutorials.yaml names
them; three are published as a command alone, which is put into an sbatch file here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from sbatchgen.base.errors import DocumentError
from sbatchgen.check.sbatch.header import READ_KINDS
from sbatchgen.check.sbatch.reader import read_script
from sbatchgen.check.sbatch.values import minutes
from sbatchgen.check.script.launches import Launch
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.adopt import account
from tests.adopt.adopted import adopted
from tests.cluster.slurm import Cluster
from tests.conftest import FIXTURES, Command
from tests.tables import hold

ORIGINALS = sorted((FIXTURES / "originals").iterdir())
SCRIPTS = [*ORIGINALS, *sorted((FIXTURES / "scripts").iterdir()), *sorted((FIXTURES / "corpus").glob("*.sh"))]
CLASSES = {"understood", "kept", "mended", "dropped", "lost"}


def asked(text: str) -> dict[str, str]:
    """Return what sbatchgen's reader finds, with times in minutes and --ntasks as the tasks of each node."""
    script = read_script(text, slurm="22.05")
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
    """Return what sbatch reads, with paths relative to its folder, which differs each time."""
    return as_per_node({name: re.sub(r"/\S*/oracle-\w+/", "", text) for name, text in options.items()})


def training(text: str) -> Launch:
    script = JobScript(file="job.slurm", text=text, slurm="22.05")
    return script.trainings[-1]


def started(text: str) -> tuple[object, ...]:
    """Return the numbers of nodes and processes, the program and its arguments."""
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
    """As sbatchgen reads it, and as sbatch does; a job without a name has that of its file."""

    def check(path: Path) -> None:
        text = path.read_text()
        adoption = adopted(text, path.name)
        assert not adoption.lost
        for name, content in adoption.files.items():
            (folder / name).write_text(content)
        rendered = command("render", adoption.file)
        assert rendered.status == 0, rendered.err
        assert asked(rendered.out) == {"job-name": path.name, **asked(text)}
        old, new = (by_sbatch(oracle(script).options) for script in (text, rendered.out))
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
        ("torchrun-run_distributed.slurm", {"SB312"}),
        ("msu-multi_node.slurm", {"SB312"}),
        ("troila-conda.ddp.job", {"SB307"}),
    ],
)
def test_defects_that_are_named(name: str, rules: set[str]) -> None:
    adoption = adopted((FIXTURES / "originals" / name).read_text(), name)
    assert rules <= {finding.rule for finding in adoption.mended}
    assert {adoption.lines[finding.place.line] for finding in adoption.mended} == {"mended"}
    assert not {finding.rule for finding in adoption.mended} & {
        finding.rule for finding in adoption.remaining
    }


def test_every_line_of_every_script_is_accounted_for() -> None:
    """Whatever the script holds, each line that is not empty is in one class; or the script is refused as a whole."""
    refused = 0

    def check(path: Path) -> None:
        nonlocal refused
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        try:
            adoption = adopted(text, path.name)
        except DocumentError:
            refused += 1
            return
        filled = [number for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        assert sorted(adoption.lines) == filled
        assert {*adoption.lines.values()} <= CLASSES
        with_remark = {line for row in adoption.rows for line in row.lines}
        assert with_remark >= set(filled)
        read_by_slurm = {
            directive.line for directive in read_script(text).directives if directive.kind in READ_KINDS
        }
        assert not [row for row in adoption.rows if row.reason == "comment" and read_by_slurm & {*row.lines}]
        assert account.lines(adoption)
        assert all(row.reason for row in adoption.rows)
        if not adoption.lost:  # nothing was taken over that render would refuse
            assert adoption.rendered
            assert started(adoption.rendered)

    hold(check, ((path,) for path in SCRIPTS))
    assert refused < len(SCRIPTS) / 4


def test_the_command_writes_two_files_that_render(folder: Path, command: Command) -> None:
    Path("old.slurm").write_text((FIXTURES / "originals/msu-single_node.slurm").read_text())
    result = command("adopt", "old.slurm", "--to", "new")
    assert (result.status, result.out) == (0, "")
    assert "next: sbatchgen submit new/old.yaml" in result.err
    assert sorted(path.name for path in Path("new").iterdir()) == ["old-cluster.yaml", "old.yaml"]
    assert "#SBATCH --job-name=pytorch_mnist\n" in command("render", "new/old.yaml").out
    assert command("lint", "--no-shellcheck", "old.slurm").status == 0

    again = command("adopt", "old.slurm", "--to", "new")
    assert again.status == 3
    assert "exists already" in again.err
    assert command("adopt", "old.slurm", "--to", "new", "--force").status == 0


def test_a_finding_of_the_job_points_to_its_key(folder: Path, command: Command) -> None:
    """There is no file of the script that the job renders."""
    head = "#!/bin/bash\n#SBATCH --nodes=1 --ntasks=1 --gres=gpu:1 --time=10\n"
    Path("t.py").touch()
    Path("old.slurm").write_text(head + "rm -rf $X/*\npython t.py --n $SLURM_GPUS_PER_NODE\n")
    assert command("adopt", "old.slurm", "--to", ".").status == 0
    review = json.loads(command("review", "old.yaml", "--format", "json").out)
    at = {finding["rule"]: finding["at"] for finding in review["findings"]}
    for rule, name, key in (("SB804", "old-cluster.yaml", "setup:"), ("SB408", "old.yaml", "args:")):
        file, line = at[rule].split(":")
        assert (file, Path(file).read_text().split("\n")[int(line) - 1]) == (name, key)


def test_the_command_stops_where_something_would_be_lost(folder: Path, command: Command) -> None:
    Path("old.slurm").write_text(
        "#!/bin/bash\n#SBATCH -N1 -n1 -t 10:00:00\npython prepare.py\nsrun python t.py < data\n"
    )
    result = command("adopt", "old.slurm")
    assert (result.status, result.out) == (3, "")
    assert "4         lost " in result.err
    assert (
        "--partly\n    or: run the script as it is, with status and logs: sbatchgen submit old.slurm"
        in result.err
    )
    assert command("adopt", "--", "old.slurm") == result

    partly = command("adopt", "old.slurm", "--partly")
    assert partly.status == 0
    assert [part.partition("\n")[0] for part in partly.out.split("---\n")] == [
        "# old.yaml",
        "# old-cluster.yaml",
    ]

    account = json.loads(command("adopt", "old.slurm", "--format", "json").out)
    assert account["lines"] == {"1": "understood", "2": "understood", "3": "kept", "4": "lost"}
    assert "lost" in [row["outcome"] for row in account["rows"]]


def test_a_hostile_script_prints_no_control_character(folder: Path, command: Command) -> None:
    Path("old.slurm").write_text(
        "#!/bin/bash\n#SBATCH -N1 -J a\x1b[31mb\necho \x1b]0;x\x07\npython t.py --x \x1b[2J\n"
    )
    result = command("adopt", "old.slurm", "--partly")
    assert result.status == 3
    assert "\x1b" not in result.out + result.err


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
[ -d . ] && MORE="--more 1"
cd work && srun python ../show.py --epochs $EPOCHS $MORE --name "two words" '*.py'
cp "$LEFT/3" "$LEFT/4"
echo done
"""
# With what only the job knows: a default, a number, a variable of the job and one of each task, setup of a task.
LATE = """#!/bin/bash
#SBATCH --job-name=show --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --time=5 --output=%x-%j.log
: "${{EPOCHS:=3}}"
HALF=$((SLURM_CPUS_PER_TASK + 1))
OUT=/data/$SLURM_JOB_NAME
OPTIONS=""
[ -d /no/such/folder ] && OPTIONS="--no-such-option"
export WORK=work
mkdir -p $WORK
srun $OPTIONS bash -c "
export RANK=\\$SLURM_PROCID GREETING='hello, world'
cd $WORK
{python}/python ../show.py --epochs ${{EPOCHS}} --half=$HALF --out $OUT/x $((1 + 2)) --rank=\\$SLURM_PROCID
"
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("old", "last"),
    [
        (OLD, ["--epochs", "3", "--more", "1", "--name", "two words", "*.py"]),
        (LATE, ["--epochs", "3", "--half=2", "--out", "/data/show/x", "3", "--rank=3"]),
    ],
)
def test_both_scripts_do_the_same_on_a_real_slurm(cluster: Cluster, old: str, last: list[str]) -> None:
    """The old script and the new one: argument for argument, folder and numbers of each process."""
    text = old.format(python=Path(sys.executable).parent)
    adoption = adopted(text)
    assert not adoption.lost
    cluster.put("adopt/show.py", SHOW)
    seen = []
    for name, script in (("old", text), ("new", adoption.rendered)):
        left = cluster.put(f"adopt/{name}-{last[2][2:6]}/.keep", "").parent
        path = cluster.put(f"adopt/{name}.slurm", script)
        ended = cluster.run(
            ["sbatch", "--parsable", "--wait", path.name], cwd=path.parent, env={"LEFT": str(left)}
        )
        log = "".join(file.read_text() for file in path.parent.glob("show-*.log"))
        assert ended.returncode == 0, ended.stderr + log
        seen.append({file.name: json.loads(file.read_text()) for file in left.glob("[0-9]")})
    assert seen[0] == seen[1]
    assert sorted(seen[0]) == ["0", "1", "2", "3", *(["4"] if old == OLD else [])]
    assert seen[0]["3"][0] == last
