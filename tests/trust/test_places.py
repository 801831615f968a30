"""A plan is the same in each kind of folder in which an ordinary user works."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fixtures import _need
from tests.plan.plans import needs_sandbox

from . import lab
from .lab import GROUP, User, put

pytestmark = needs_sandbox
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
source ./setup.sh
mkdir -p logs/$SLURM_JOB_ID cache
echo started >logs/$SLURM_JOB_ID/log
echo more >>notes
cd "$SLURM_SUBMIT_DIR/data/missing" && echo here >new && cat new >>../copy
cd "$SLURM_SUBMIT_DIR"
srun --output=logs/out python3 train.py "$FROM_SETUP" "$(cat logs/$SLURM_JOB_ID/log notes)" "$(cat data/given)" "$(ls)" "$(cat data/copy)"
"""
# Lines of root's that make the folder PLACE of the user ME in the user's sight; HERE is in the lab, below root's folder.
MOUNT = "mount -t tmpfs -o mode=755 none"
# A third overlay over two others is refused, as one over some file systems of clusters.
STACK = f"""{MOUNT} HERE/stage; mkdir HERE/stage/1 HERE/stage/2 HERE/stage/w1 HERE/stage/empty
mount -t overlay -o lowerdir=$PLACE,upperdir=HERE/stage/1,workdir=HERE/stage/w1 none $PLACE
mount -t overlay -o lowerdir=$PLACE:HERE/stage/empty none $PLACE"""
PLACES = {
    "below root's folder": "PLACE=HERE/own; mkdir $PLACE",
    "of a group": f"mkdir -m 2770 HERE/group; chgrp {GROUP} HERE/group; PLACE=HERE/group/own; mkdir -m 2770 $PLACE; OF={GROUP}",
    "of the group itself": f"PLACE=HERE/group; mkdir -m 2770 $PLACE; OF={GROUP}",
    "files of a group": f"PLACE=HERE/own; mkdir $PLACE; LATER='chgrp -R {GROUP} $PLACE/notes $PLACE/data; chmod -R g+w $PLACE/notes $PLACE/data'",
    "mount of depth one": f"{MOUNT} /mnt; PLACE=/mnt/own; mkdir $PLACE",
    "mount itself": f"{MOUNT} /mnt; PLACE=/mnt",
    "mount of depth two": f"{MOUNT} /mnt; mkdir /mnt/a; {MOUNT} /mnt/a; PLACE=/mnt/a/own; mkdir $PLACE",
    "mount of depth three": f"{MOUNT} /mnt; mkdir -p /mnt/a/b; {MOUNT} /mnt/a/b; PLACE=/mnt/a/b/own; mkdir -p $PLACE",
    "below home": "PLACE=HOME/work; mkdir $PLACE",
    "a link": "mkdir HERE/real; chown ME HERE/real; ln -s real HERE/link; PLACE=HERE/link",
    "below a read-only mount": "mkdir -p HERE/served/own; PLACE=HERE/served/own; LATER='mount --bind HERE/served HERE/served; mount -o remount,bind,ro HERE/served'",
    "a read-only mount": "mkdir HERE/served; PLACE=HERE/served; LATER='mount --bind HERE/served HERE/served; mount -o remount,bind,ro HERE/served'",
    "full disk": "mkdir HERE/full; mount -t tmpfs -o size=64k,mode=755 none HERE/full; PLACE=HERE/full/own; mkdir $PLACE; LATER='head -c 100k /dev/zero >HERE/full/rest || true'",
    "mounts below": f"PLACE=HERE/own; mkdir -p $PLACE; LATER='mkdir $PLACE/logs $PLACE/cache; {MOUNT} $PLACE/logs; mount --bind $PLACE/data $PLACE/data; chown ME $PLACE/logs; rmdir $PLACE/cache'",
    "no layer is possible": f"PLACE=HERE/own; mkdir $PLACE; LATER='{STACK}'",
    "temporary folder": "PLACE=$(mktemp -d /tmp/sbatchgen-lab-XXXXXX)",
}  # fmt: skip


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    """An ordinary user in a lab below a folder of root's."""
    _need(lab.why_not(), what="folders of an ordinary user")
    with tempfile.TemporaryDirectory(prefix="lab-", dir="/srv", ignore_cleanup_errors=True) as folder:
        yield lab.make(Path(folder))[1]


def plan_in(user: User, here: Path, lines: str) -> dict[str, Any]:
    """The plan of the script in the folder that some lines make, with one name for the folder."""
    words = {"HERE": str(here), "HOME": str(user.home), "ME": str(user.uid)}
    for name, value in words.items():
        lines = lines.replace(name, value)
    put(here / "job.slurm", SCRIPT, owner=0)
    fill = f"""{lines}
mkdir -p $PLACE/data; cp {here}/job.slurm $PLACE; echo given >$PLACE/data/given; echo notes >$PLACE/notes
echo 'export FROM_SETUP=yes' >$PLACE/setup.sh; echo '#!/bin/sh' >$PLACE/train.sh; chmod +x $PLACE/train.sh
chown -R "{user.uid}:${{OF:-{user.uid}}}" $PLACE/.; [ ! "$OF" ] || chown 0 $PLACE
eval "$LATER"; realpath "$PLACE" >{here}/place"""
    command = 'cd "$(cat "$0/place")" && exec sbatchgen plan job.slurm --format json'
    done = user.run("bash", "-c", command, here, cwd=Path("/"), setup=fill)
    assert done.returncode == 0, done.stderr
    place = (here / "place").read_text().strip()
    plan: dict[str, Any] = json.loads(done.stdout.replace(place, "PLACE"))
    return plan


@pytest.fixture(scope="module")
def expected(user: User) -> dict[str, Any]:
    """The plan below a folder of root's."""
    here = user.lab / "expected"
    here.mkdir()
    plan = plan_in(user, here, PLACES["below root's folder"])
    (step,) = plan["steps"]
    argv = step["processes"][0]["argv"]
    assert (len(step["processes"]), argv[2:5]) == (4, ["yes", "started\nnotes\nmore", "given"])
    assert argv[6] == "here"
    assert [plan["needed"][0][name] for name in ("kind", "name")] == ["folder", "PLACE/data/missing"]
    assert plan["exit"] == 0
    return plan


@pytest.mark.sampled(16)
@pytest.mark.parametrize("kind", PLACES)
def test_a_plan_is_the_same(user: User, expected: dict[str, Any], kind: str) -> None:
    here = user.lab / f"place-{[*PLACES].index(kind)}"
    here.mkdir()
    (here / "stage").mkdir()
    assert plan_in(user, here, PLACES[kind]) == expected


@pytest.mark.sampled(3)
@pytest.mark.parametrize("place", ["home", "/tmp", "/"])  # noqa: S108 - nothing is written
def test_where_nothing_may_be_shown_files_count_as_there(user: User, place: str) -> None:
    folder = user.home if place == "home" else Path(place)
    put(user.home / "job.slurm", SCRIPT, owner=user.uid)
    done = user.run("sbatchgen", "plan", user.home / "job.slurm", "--format", "json", cwd=folder)
    plan = json.loads(done.stdout)
    assert (done.returncode, plan["exit"], len(plan["steps"][0]["processes"])) == (0, 0, 4), done.stderr
