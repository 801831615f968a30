"""Every fix that is a command is typed by a test, in the state in which it is printed.

tests/fixes.py reads the fixes from the code. Those of rules are typed in scripts, by tests/rules/test_mends.py; those of
runs/failures.yaml by tests/runs/test_typed_fixes.py, test_typed_causes.py and test_remedy.py. Here are all others.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.controller import Controller
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY
from tests.fixes import UNKNOWN, fixes
from tests.jobs.jobs import site_on
from tests.slurm import fakes

TIMEOUT_S = 600
MOST, VALUE = 100, "x" * 10  # characters of a fix, and what a value counts as
_VALUE = r"(?:\$?'[^']*'|[^\s;,')]+)"
_PLACEHOLDER = re.compile(r"(?<![\w$%./-])[A-Z]{2,}(?![\w=-])")
# Words in capitals that stand for themselves; runs/remedy.py puts a value for NODE and JOB, or leaves them out.
_THEMSELVES = re.compile(r"\b(?:JobID,MaxRSS,ReqMem|CPUs|MB|NODE|JOB|LC_ALL|GPU)\b")
_OF_SLURM = ("jobs/slurm/reasons.yaml", "jobs/slurm/refusals.yaml", "jobs/slurm/states.yaml")
_DATABASE = re.compile(r"sacctmgr|sshare|sacct -")


class Row(NamedTuple):
    """A state in which a fix is printed.

    Attributes:
        module: The module that prints it.
        fix: The command in it, as tests/fixes.py reads it.
        state: What bash does first.
        typed: What prints it.
        more: What is typed after the fix, as there is no terminal that could ask.
        status: The exit status of the fix.
        then: What bash does before the fix is typed, as another state may be needed.
    """

    module: str
    fix: str
    state: str
    typed: str
    more: str = ""
    status: int = 0
    then: str = ""


RUN = "sbatchgen submit single --profile public_cluster --trainer train.py --time 10 --yes --job-name job"
SWEEP = (
    "sbatchgen sweep single --profile public_cluster --job-name job --trainer train.py --time 10"
    " --param lr=1,2 --yes"
)
SCRIPT = "printf '#!/bin/bash\\n#SBATCH --time=5\\nsrun python train.py\\n' >'old job.sh'"
LOCAL = "sbatchgen submit single --profile local --job-name job --trainer train.py --yes"
NODE = "printf '#!/bin/bash\\ntouch $2\\n' >bin/apptainer; chmod +x bin/apptainer"
# As Slurm's commands with a SLURM_CONF that is not there, but at once.
NO_CONF = r"""cat >bin/squeue <<'EOF'
#!/bin/bash
[[ ${SLURM_CONF-} ]] || exit 0
echo "squeue: error: s_p_parse_file: cannot stat file $SLURM_CONF: No such file or directory, retrying in 1sec up to 60sec" >&2
exit 1
EOF
chmod +x bin/squeue"""
ROWS = (
    Row(
        "cli/submit.py",
        "sbatchgen resume {}",
        "printf '#!/bin/bash\\n[ -e once ] && exit 1\\ntouch once\\necho 4711\\n' >bin/sbatch",
        f"{RUN} --chain 2",
        " --yes",
        then="printf '#!/bin/bash\\necho 4712\\n' >bin/sbatch",
    ),
    Row(
        "base/machine/search_path.py",
        "export PATH={}",
        "mkdir near; cp bin/sbatch near/",
        f"PATH=near:$PATH {RUN}",
        "; [[ :$PATH != *:near:* ]]",
    ),
    Row(
        "lab/prepare/image.py",
        "srun --cpus-per-task=8 --mem=16G {}",
        "rm bin/apptainer",
        "sbatchgen image pull docker://a/b --to x.sif",
        then=NODE,
    ),
    Row(
        "lab/prepare/image.py",
        "srun --mem=16G {}",
        "printf '#!/bin/bash\\nkill -9 $$\\n' >bin/apptainer",
        "sbatchgen image pull docker://a/b --to x.sif",
        then=NODE,
    ),
    Row(
        "lab/adopt/account.py",
        "sbatchgen submit {}",
        "printf '#!/bin/bash\\n#SBATCH --time=5\\nbash run.sh\\n' >job.sh",
        "sbatchgen adopt job.sh --to new",
        " --yes",
    ),
    Row(
        "lab/adopt/adoption.py",
        "sbatchgen lint {}",
        "printf '#!/bin/bash\\n#SBATCH --nodes=two\\nsrun python train.py\\n' >job.sh",
        "sbatchgen adopt job.sh --to new",
        status=3,
    ),
    Row(
        "lab/adopt/adoption.py",
        "sbatchgen lint -",
        "printf '#!/bin/bash\\n#SBATCH --nodes=two\\nsrun python train.py\\n' >job.sh",
        "sbatchgen adopt - --to new <job.sh",
        " <job.sh",
        status=3,
    ),
    Row(
        "jobs/slurm/client.py",
        "unset SLURM_CONF",
        f"{RUN}; {NO_CONF}",
        "SLURM_CONF=/none/slurm.conf sbatchgen status job",
        "; [[ $(sbatchgen status job 2>&1) != *slurm.conf* ]]",
        then="export SLURM_CONF=/none/slurm.conf; [[ $(sbatchgen status job 2>&1) == *slurm.conf* ]] || exit 9",
    ),
    Row("jobs/budget/allowance.py", "ls -l {}", "mkdir 'a budget'", f'SBATCHGEN_BUDGET="$PWD/a budget" {RUN}'),
    Row("cli/resubmit.py", "sbatchgen resume {}", RUN, "sbatchgen resubmit job --yes", " --yes"),
    Row("cli/groups.py", "sbatchgen trust", "", "sbatchgen trust --remove"),
    Row("cli/jobs.py", "sbatchgen plan --diff {} {}", f"{SCRIPT}; cp 'old job.sh' new.sh", "sbatchgen plan 'old job.sh' new.sh"),
    Row("cli/running_jobs.py", "sbatchgen exec {} -- nvidia-smi", LOCAL, "sbatchgen exec job"),
    Row("cli/run_logs.py", "sbatchgen logs {}", f"{RUN}; echo hi >runs/job/job-4711.out", "sbatchgen logs job --program server"),
    Row("cli/run_logs.py", "sbatchgen status {}", RUN, "sbatchgen logs job"),
    Row("cli/run_results.py", "sbatchgen report --below . --month {}", "", "sbatchgen report"),
    Row("cli/run_results.py", "sbatchgen status {}", SWEEP, "sbatchgen plot job"),
    Row("cli/running_jobs.py", "sbatchgen status {}", RUN, "sbatchgen exec job -- hostname"),
    Row("cli/shell.py", "sbatchgen status", "", "sbatchgen shell gone --ssh-config"),
    Row("cli/runs.py", "sbatchgen status --all", "", "sbatchgen status gone"),
    Row("cli/rehearse.py", "sbatchgen status --scan {}", "", "XDG_STATE_HOME=$PWD/train.py sbatchgen rehearse single --on public_cluster --trainer train.py --yes"),
    Row("cli/runs.py", "sbatchgen status {}", SWEEP, "sbatchgen diagnose job --task 7"),
    Row("cli/submit.py", "sbatchgen status", LOCAL, f"{RUN}-2 --after job"),
    Row("base/files.py", "chmod u+w {}", f"{SCRIPT}; sed -i s/--time/-t/ 'old job.sh'; chmod a-w 'old job.sh'", "sbatchgen lint --fix 'old job.sh'"),
    Row("base/files.py", "mkdir -p {}", "", "sbatchgen render single --profile local --write 'a b/c/job.sh'"),
    Row("base/wrong_file.py", "sbatchgen resume {}", RUN, "sbatchgen submit runs/job", " --yes"),
    Row("jobs/resolved/request.py", "export SBATCHGEN_PROFILE={}", 'mkdir -p ~/.config/sbatchgen/profiles; for name in a b; do sbatchgen profile show local | sed "s/^name: .*/name: $name/" >~/.config/sbatchgen/profiles/$name.yaml; done', "sbatchgen review single"),
    Row("jobs/runs/folder_check.py", "mkdir {}", "", "sbatchgen review single --profile public_cluster --chdir 'new folder'"),
    Row("jobs/runs/snapshot.py", "git add {}", "git init -q .; touch a; git add a", f"{RUN} --snapshot"),
    Row("jobs/runs/snapshot.py", "git -C {} status", "", f"{RUN} --snapshot", status=128),
    Row("jobs/runs/status.py", "sbatchgen status {}", SWEEP, "sbatchgen status job/7"),
    Row("jobs/runtimes/venv.py", "python3 -m venv {}", "", "sbatchgen review single --profile public_cluster --venv 'my env'"),
    Row("jobs/runtimes/apptainer.py", "sbatchgen image build {} --to {}", "printf 'Bootstrap: docker\\nFrom: x\\n' >'my image.def'", "sbatchgen image pull 'my image.def' --to x.sif"),
    Row("jobs/slurm/client.py", "ls -lL {}", "chmod -x bin/sbatch; touch here", "PATH=$PWD/bin sbatchgen submit single --profile public_cluster --trainer train.py --time 10 --yes"),
)  # fmt: skip

# Typed by a test of another state: that test, and the words in it. Where the value is not known, its start.
ELSEWHERE = {
    ("cli/guide.py", "sbatchgen help guide"): ("tests/test_help.py", 'command("help", "guide")'),
    ("cli/shell.py", "sbatchgen diagnose {}"): ("tests/jobs/test_shell.py", "fix: sbatchgen (diagnose "),
    ("cli/profiles.py", "sbatchgen profile discover --update {}"): (
        "tests/discover/test_update.py", '"profile", "discover", "--update"'
    ),
    ("lab/discover/comparison.py", "sbatchgen profile discover --update {}"): (
        "tests/discover/test_update.py", '"profile", "discover", "--update"'
    ),
    **{
        (module, "{} -m pip install {}"): ("tests/test_fixes.py", "to_install('pygls>=2')")
        for module in ("cli/scripts.py", "check/lint/shellcheck.py", "jobs/runs/plot.py", "lab/sandbox/box.py")
    },
    ("base/machine/ignored.py", "export SBATCHGEN_TRUST={}"): ("tests/inputs/test_trust.py", "export SBATCHGEN_TRUST="),
    ("base/machine/ignored.py", "export SBATCHGEN_TRUST=$SBATCHGEN_TRUST:{}"): (
        "tests/inputs/test_trust.py", "export SBATCHGEN_TRUST=$SBATCHGEN_TRUST:"
    ),
    ("base/machine/ignored.py", "sbatchgen trust {}"): ("tests/jobs/test_group.py", 'sbatchgen("trust"'),
    ("base/machine/trusted.py", "chmod o-w {}"): ("tests/inputs/test_trusted.py", "chmod o-w"),
    ("base/machine/trusted.py", "sbatchgen trust {}"): ("tests/inputs/test_trusted.py", 'command("trust"'),
    ("base/machine/search_path.py", "export SBATCHGEN_TRUST={}"): (
        "tests/trust/test_search_path.py", "export SBATCHGEN_TRUST="
    ),
    ("base/machine/search_path.py", "export SBATCHGEN_TRUST=$SBATCHGEN_TRUST:{}"): (
        "tests/inputs/test_trust.py", "export SBATCHGEN_TRUST=$SBATCHGEN_TRUST:"
    ),
    ("base/machine/search_path.py", "sbatchgen trust {}"): ("tests/inputs/test_trusted.py", 'command("trust"'),
    ("jobs/resolved/request.py", "sbatchgen profile discover --name mycluster --write {}"): (
        "tests/resolved/test_profile_by_default.py", "sbatchgen profile discover --name mycluster --write"
    ),
    ("jobs/runs/fix_for_run.py", "sbatchgen resume {} --snapshot --snapshot-file {}"): (
        "tests/runs/test_snapshot.py", '"--snapshot", "--snapshot-file", "data", "--dry-run"'
    ),
    ("jobs/budget/debit.py", "sbatchgen status"): ("tests/budget/test_ledger.py", '"sbatchgen status" in refused.stderr'),
    ("jobs/budget/ledger.py", "ls -l {}"): ("tests/budget/test_ledger.py", '(("bash", "-c", fix))'),
    ("jobs/budget/ledger.py", "rm {}"): ("tests/budget/test_ledger.py", '(("bash", "-c", fix))'),
    ("jobs/submit/twin.py", "sbatchgen status"): ("tests/budget/test_twin.py", '"-m", "sbatchgen", "status"'),
    ("lab/sandbox/box.py", "sbatchgen review"): ("tests/plan/test_nested.py", '"review", *words'),
    ("cli/runs.py", "sbatchgen submit {}"): ("tests/test_fixes.py", 'site.sbatchgen("submit", "plain.sh"'),
    ("jobs/runs/plain_job.py", "sbatchgen status {}"): ("tests/test_fixes.py", 'site.sbatchgen("status", array'),
    ("jobs/runs/run_folder.py", "rm -r {}"): ("tests/trust/test_folder.py", 'owner.bash(f"rm -r {link}")'),
    ("cli/running_jobs.py", "sbatchgen status"): ("tests/test_typed_fix.py", 'command(*problem["argv"][1:])'),
    ("jobs/runs/folder_check.py", "sbatchgen status"): ("tests/submit/test_twin.py", 'command(*problem["argv"][1:])'),
    ("jobs/runs/run_folder.py", "rm {}"): ("tests/trust/test_folder.py", "owner.bash(fix)"),
}  # fmt: skip

# No test types these, for these reasons.
_STANDS = "in the state of a job that stands still; tests/runs/test_stall.py prints it"
NOT_HERE = {
    ("cli/running_jobs.py", "sbatchgen cancel {}"): "another machine",
    ("cli/running_jobs.py", "sbatchgen exec {} -- {}"): "several clusters",
    ("lab/page/site.py", "npm ci --ignore-scripts in a copy"): "it loads packages",
    ("lab/rehearsal/outcome.py", 'touch "$SBATCHGEN_AGAIN_FILE"'): "a line of a trainer",
    ("jobs/runs/diagnosis.py", "sbatchgen cancel {}"): _STANDS,
    ("jobs/runs/diagnosis.py", "sbatchgen exec {} -- top -b -n 1"): _STANDS,
    ("jobs/runs/diagnosis.py", "sbatchgen logs {} --lines 20"): _STANDS,
    ("jobs/runs/causes.py", "sbatchgen logs {} --lines 20"): _STANDS,
    ("jobs/runs/causes.py", "sbatchgen logs {} --program {}"): "a program that fails beside others",
    ("jobs/runs/diagnosis.py", "sbatchgen resume {}"): _STANDS,
    ("jobs/runs/index.py", "ls -l {}"): "a full disk",
    ("jobs/runs/run_folder.py", "chmod o-w {}"): "a folder that everybody can reach and write",
    ("jobs/runs/status.py", "sbatchgen resume {}"): "an answer of sbatch that was lost",
    ("jobs/runtimes/uv.py", "uv sync --project {}"): "it loads packages",
    ("jobs/submit/attempt.py", "sbatchgen status"): "an answer of sbatch that was lost",
    ("jobs/submit/sweep_arrays.py", "sbatchgen resubmit {}"): "a large sweep that a limit has cut",
}


def bash(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """What a user types at a prompt."""
    environment = {
        "HOME": str(folder / "home"), "PATH": f"{folder}/bin:{os.environ['PATH']}", "USER": "alice", "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    return subprocess.run(
        ["bash", "-c", text], cwd=folder / "work", env=environment, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


@pytest.fixture
def login(tmp_path: Path) -> Path:
    """A user of a cluster, in whose folder is a trainer."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    fakes.squeue(tmp_path / "bin", [])
    fakes.failing(tmp_path / "bin", "sacct", "Slurm accounting storage is disabled")
    programs = {
        "sbatch": "echo 4711",
        "sbatchgen": f'PYTHONPATH={REPOSITORY} exec {shlex.quote(sys.executable)} -m sbatchgen "$@"',
        "apptainer": 'touch "$2"',
        "nvidia-smi": "echo GPU 0",
        "srun": 'while [[ $1 == -* ]]; do shift; done; exec "$@"',
    }
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "work/bin").symlink_to(tmp_path / "bin")
    (tmp_path / "work/train.py").write_text("print(1)\n")
    return tmp_path


@pytest.mark.sampled(9)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.module}: {row.fix}")
def test_a_fix_is_typed_as_it_is_printed(login: Path, row: Row) -> None:
    state = bash(login, row.state)
    assert state.returncode == 0, state.stderr
    said = bash(login, row.typed)
    printed = " ".join(line for line in (said.stdout + said.stderr).splitlines() if "fix: " in line)
    printed_so = {match[0] for match in _pattern(row.fix).finditer(printed)}
    assert len(printed_so) == 1, (printed_so, said.stdout, said.stderr)
    (fix,) = printed_so
    done = bash(login, f"{row.then}\n{fix}{row.more}")
    assert done.returncode == row.status, (fix, done.stdout, done.stderr)


def _pattern(fix: str) -> re.Pattern[str]:
    """The texts that a fix of the code may give."""
    text = _VALUE.join(map(re.escape, fix.split(UNKNOWN)))
    return re.compile(f"{text}(?: {_VALUE})*" if fix.startswith("srun ") else text)


_RULES = ("check/rules/", "jobs/judge/", "lab/started/")  # typed in scripts and jobs, by tests/rules


def units() -> dict[tuple[str, str], str]:
    """The commands of each module but of those whose fixes are lines of scripts, and where each is."""
    known: dict[tuple[str, str], str] = {}
    for fix in fixes():
        module = fix.at.removeprefix("sbatchgen/").partition(":")[0]
        if not module.startswith(_RULES):
            known |= {(module, command): fix.at for command in fix.commands}
    return known


def test_each_command_is_typed() -> None:
    rows = {(row.module, row.fix) for row in ROWS}
    of_slurm = {command for module, command in units() if module in _OF_SLURM}  # typed below
    typed = rows | ELSEWHERE.keys() | NOT_HERE.keys()
    tables = (*_OF_SLURM, "jobs/runs/failures.yaml")
    untyped = {
        unit: at
        for unit, at in units().items()
        if unit not in typed and unit[0] not in tables and unit[1] not in of_slurm
    }
    assert not untyped
    gone = typed - units().keys()
    assert not gone
    lacking = [test for test, words in ELSEWHERE.values() if words not in (REPOSITORY / test).read_text()]
    assert not lacking


def test_a_fix_is_a_line_that_is_read_at_once() -> None:
    """What else helps, and code, are in the lines below it."""
    lines = {(fix.at, fix.lines[0].replace(UNKNOWN, VALUE)) for fix in fixes()}
    assert {(at, line) for at, line in lines if len(line) > MOST} == set()
    assert len(lines) > 1000


def test_no_command_waits_for_a_word() -> None:
    """Who has to put in a word gets a sentence."""
    waiting = [
        (at, command)
        for (_, command), at in units().items()
        if _PLACEHOLDER.search(_THEMSELVES.sub("", command))
    ]
    assert not waiting


@pytest.mark.slow
def test_slurm_takes_each_command_of_its_tables(real_slurm: None) -> None:
    """For a job that is held; where a database is asked, on a cluster with accounts."""
    commands = {command for (module, command) in units() if module in _OF_SLURM}
    assert len(commands) > 30
    with Cluster() as cluster:
        cluster.put("job.sh", "#!/bin/bash\nsleep 60\n")
        for command in sorted(commands):
            if _DATABASE.search(command) or command.startswith("sed "):
                continue
            array = ("--array=0-3%1",) if "arraytaskthrottle" in command else ()
            job = cluster.run(
                ["sbatch", "--parsable", "--hold", *array, "job.sh"], cwd=cluster.home, check=True
            ).stdout
            value = "hint" if command.startswith("sbatch --") else job.strip()
            done = cluster.run(["bash", "-c", command.replace(UNKNOWN, value)])
            assert done.returncode == 0, (command, done.stdout, done.stderr)


@pytest.mark.proof
@pytest.mark.slow
def test_the_database_takes_each_command_that_asks_it(
    folder: Path, controller_factory: Callable[..., Controller], real_slurm: None
) -> None:
    commands = [command for (module, command) in units() if module in _OF_SLURM and _DATABASE.search(command)]
    mine = ("add account physics", "add user alice account=physics")
    with_accounts = controller_factory(
        nodes="NodeName=n1 CPUs=4", partitions="PartitionName=gpu Nodes=n1", accounts=mine
    )
    with_accounts.commands(folder / "real", "sacctmgr", "sshare")
    environment = os.environ | {"PATH": f"{folder}/real:{os.environ['PATH']}", "USER": "alice"}
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert commands


@pytest.mark.proof
@pytest.mark.slow
def test_a_job_of_plain_sbatch_is_cancelled_and_submitted_as_a_run(cluster: Cluster) -> None:
    site = site_on(cluster)
    cluster.put("work/plain.sh", "#!/bin/bash\n#SBATCH --time=5 --output=%j.log\nsleep 300\n")
    job = cluster.run(["sbatch", "--parsable", "plain.sh"], cwd=site.folder, check=True).stdout.strip()
    cluster.wait(int(job), {"RUNNING"})
    fix = site.sbatchgen("resume", job).stderr.rpartition("fix: ")[2]
    assert fix == f"scancel {job} cancels it; sbatchgen submit plain.sh submits its script as a run\n"
    again = site.sbatchgen("submit", "plain.sh", "--yes", check=True).stdout
    cluster.run(["scancel", job, again.strip()], check=True)
    cluster.wait(int(job), {"CANCELLED"})

    array = cluster.run(
        ["sbatch", "--parsable", "--hold", "--array=0-1", "plain.sh"], cwd=site.folder, check=True
    ).stdout.strip()
    refused = site.sbatchgen("status", f"{array}_7").stderr
    assert refused.endswith(f"fix: sbatchgen status {array} shows its tasks\n")
    site.sbatchgen("status", array, check=True)
    cluster.run(["scancel", array], check=True)


@pytest.mark.proof
@pytest.mark.slow
def test_pip_takes_the_line_that_installs_a_package(folder: Path) -> None:
    """Nothing is downloaded: pip looks at no index, and says that it has nothing."""
    subprocess.run([sys.executable, "-m", "venv", "some where"], cwd=folder, check=True)
    python = folder / "some where/bin/python3"
    program = "from sbatchgen.base.machine.packages import to_install; print(to_install('pygls>=2'))"
    line = subprocess.run(
        [python, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    assert line == f"'{python}' -m pip install 'pygls>=2'\n"
    done = subprocess.run(
        ["bash", "-c", f"{line.strip()} --no-index"], capture_output=True, text=True, check=False
    )
    assert "No matching distribution found for pygls>=2" in done.stderr
