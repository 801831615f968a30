"""Where the programs of a job come from: modules, conda and virtual environments, on a real Slurm.

The modules are those of Debian's lmod and environment-modules; conda is a stand-in (tests/cluster/conda.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import conda, fixtures
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import PROFILE, SBATCHGEN, Site
from tests.scripts import resolved, script

MODULES = fixtures.CHECKOUT / "build/modules"
INIT = {
    "lmod": MODULES / "lmod/usr/share/lmod/lmod/init/bash",
    "environment-modules": MODULES / "environment-modules/usr/share/modules/init/bash",
}
PYTHON = f'#!/bin/bash\nexport BY={{}}\nexec {sys.executable} "$@"\n'
TREE = {
    "tools/1": "prepend-path LD_LIBRARY_PATH /opt/tools/lib\nsetenv TOOLS 1",
    "python/3": "prepend-path PATH {home}/of-module\nprepend-path PYTHONPATH {home}/packages",
    "home/1": "setenv PYTHONHOME /wrong",
    "login/1": "setenv LOGIN 1\nprepend-path PYTHONPATH /of/login",
    "clash/1": "conflict tools\nsetenv CLASH 1",
    "broken/1": "error {{broken on purpose}}",
}
PROBE = """
import json, os, sys
names = "BY LD_LIBRARY_PATH PYTHONPATH PYTHONHOME TOOLS LOGIN STAYS OF_OLD OF_TRAIN CONDA_PREFIX VIRTUAL_ENV".split()
print(json.dumps({"prefix": sys.prefix, **{name: os.environ.get(name) for name in names}}))
"""


@pytest.fixture(scope="module")
def site(real_slurm: None) -> Iterator[Site]:
    """A folder with a trainer that tells what it finds, on this machine's Slurm: modules and conda need its programs."""
    with Cluster(visible=fixtures.VISIBLE) as cluster:
        cluster.put("work/probe.py", PROBE)
        yield Site(cluster, cluster.home / "work")


def put_profile(site: Site, name: str, runtime: str, **keys: object) -> tuple[str, ...]:
    """The flags of a job on a cluster of this name."""
    text = PROFILE.partition("env:")[0] + "options: {mem: 1G, time: 00:10:00}\n"
    values = {"runtime": runtime, **keys}
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())
    site.cluster.put(f"work/{name}.yaml", text + lines)
    return ("single", "--profile", f"./{name}.yaml", "--trainer", "probe.py", "--resume", "off", "--yes")


def submit(site: Site, name: str, *flags: str, login: str = "") -> int:
    """The job that a shell submits after these lines of a login."""
    words = ("submit", *flags, "--job-name", name)
    shell = ("bash", "-c", f'{login}\nexec "$@"', "login")
    done = site.cluster.run([*shell, SBATCHGEN, *words], cwd=site.folder, check=True)
    return int(done.stdout)


def found(site: Site, name: str, job: int) -> dict[str, Any]:
    """What the trainer of a job has found."""
    site.cluster.wait(job, {"COMPLETED"})
    (line,) = [line for line in site.log(name).splitlines() if line.startswith("{")]
    return dict(json.loads(line))


@pytest.fixture(scope="module", params=INIT)
def jobs(request: pytest.FixtureRequest, site: Site) -> dict[str, tuple[str, int]]:
    """Name and id of jobs that load modules, all started at once."""
    system: str = request.param
    fixtures._need(None if (MODULES / "ready").exists() else "needs `make modules`", what="jobs with modules")
    cluster, home = site.cluster, str(site.cluster.home)
    for name, text in TREE.items():
        cluster.put(f"tree/{name}", f"#%Module1.0\n{text.format(home=home)}\n")
    cluster.put("tree/stays/1", "#%Module1.0\nmodule-tag sticky stays\nsetenv STAYS 1\n")
    cluster.put("tree/stays/2.lua", 'add_property("lmod", "sticky")\nsetenv("STAYS", "1")\n')
    cluster.put("of-module/python3", PYTHON.format("module"), mode=0o755)
    stays = "stays/2" if system == "lmod" else "stays/1"
    login = f". {INIT[system]}\nmodule use {home}/tree\nmodule load login/1 {stays}"
    jobs = {}
    for name, modules, runtime in (
        ("host", ["tools/1", "python/3"], "host"),
        ("venv", ["tools/1", "python/3", "home/1"], "venv"),
        ("missing", ["tools/1", "nothing/7"], "host"),
        ("clash", ["tools/1", "clash/1"], "host"),
        ("broken", ["broken/1"], "host"),
        ("absent", ["tools/1"], "host"),
    ):
        flags = put_profile(
            site, f"{system}-{name}", runtime, modules=modules, runtimes={"venv": {"path": sys.prefix}}
        )
        job = f"{system}-{name}"
        jobs[name] = (job, submit(site, job, *flags, login="" if name == "absent" else login))
    return jobs


@pytest.mark.sampled(2)
def test_a_job_has_its_own_modules_and_those_that_stay(site: Site, jobs: dict[str, tuple[str, int]]) -> None:
    """What the submitting shell had loaded is unloaded; a module that refuses does not stop the job."""
    there = found(site, *jobs["host"])
    assert (there["BY"], there["LD_LIBRARY_PATH"], there["TOOLS"]) == ("module", "/opt/tools/lib", "1")
    assert (there["LOGIN"], there["STAYS"]) == (None, "1")


@pytest.mark.sampled(2)
def test_a_virtual_environment_gets_the_packages_of_modules(
    site: Site, jobs: dict[str, tuple[str, int]]
) -> None:
    there = found(site, *jobs["venv"])
    assert (there["BY"], there["prefix"], there["VIRTUAL_ENV"]) == (None, sys.prefix, sys.prefix)
    assert (there["PYTHONPATH"], there["PYTHONHOME"]) == (f"{site.cluster.home}/packages", None)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("job", "words"), [("missing", "nothing"), ("clash", "clash"), ("broken", "broken on")]
)
def test_a_module_that_does_not_load_stops_the_job_with_its_name(
    site: Site, jobs: dict[str, tuple[str, int]], job: str, words: str
) -> None:
    name, number = jobs[job]
    assert site.cluster.wait(number, {"FAILED"})["ExitCode"] == "1:0"
    *said, last = site.log(name).splitlines()
    assert last == "error: can't load the modules"
    assert words in "\n".join(said)


def test_without_the_command_a_job_says_so(site: Site, jobs: dict[str, tuple[str, int]]) -> None:
    name, number = jobs["absent"]
    assert site.cluster.wait(number, {"FAILED"})["ExitCode"] == "1:0"
    assert site.log(name) == "error: no command 'module' here\n"


@pytest.mark.proof
def test_the_fix_of_a_job_without_the_command_is_typed(site: Site, jobs: dict[str, tuple[str, int]]) -> None:
    """As by someone in a login shell: it has `module`, and exports no function of it."""
    name, number = jobs["absent"]
    site.cluster.wait(number, {"FAILED"})
    file = INIT[name.removesuffix("-absent")]
    shell = (
        f"export MODULESHOME={file.parent.parent} MODULEPATH={site.cluster.home}/tree\n"
        f'sbatchgen() {{ {SBATCHGEN} "$@"; }}\n'
        f"fix=$(sbatchgen diagnose {name} | sed -n 's/^  fix: //p')\n"
        'eval "${fix%%;*} --yes"'
    )
    done = site.cluster.run(["bash", "-c", shell], cwd=site.folder, check=True)
    site.cluster.wait(int(done.stdout), {"COMPLETED"})
    (line,) = [line for line in site.log(name).splitlines() if line.startswith("{")]
    assert json.loads(line)["TOOLS"] == "1"


@pytest.fixture(scope="module")
def conda_jobs(site: Site) -> dict[str, tuple[str, int]]:
    """Name and id of jobs in conda environments, all started at once."""
    cluster = site.cluster
    root = cluster.home / "anaconda3"
    cluster.put("anaconda3/bin/conda", f"#!{sys.executable}\n{Path(conda.__file__).read_text()}", mode=0o755)
    cluster.put("anaconda3/conda-meta/history", "")
    cluster.put("anaconda3/bin/python3", PYTHON.format("base"), mode=0o755)
    for name in ("old", "train", "empty"):
        cluster.put(f"anaconda3/envs/{name}/conda-meta/history", "")
        own = f"OF_{name.upper()}"
        unset = f': "$NOT_SET_BY_ANYBODY"\nexport {own}=1\n'
        cluster.put(f"anaconda3/envs/{name}/etc/conda/activate.d/x.sh", unset)
        cluster.put(f"anaconda3/envs/{name}/etc/conda/deactivate.d/x.sh", f"unset {own}\n")
    for name in ("old", "train"):
        cluster.put(f"anaconda3/envs/{name}/bin/python3", PYTHON.format(name), mode=0o755)
    cluster.put("of-module/python3", PYTHON.format("module"), mode=0o755)
    hook = f'eval "$({root}/bin/conda shell.bash hook)"\n'
    behind = f"\nexport PATH={cluster.home}/of-module:$PATH"
    logins = {
        "plain": "",
        "other": f"{hook}conda activate old",
        "same": f"{hook}conda activate train{behind}",
        "gone": "export CONDA_SHLVL=1 CONDA_PREFIX=/gone CONDA_DEFAULT_ENV=gone PATH=/gone/bin:$PATH",
    }
    settings = {"root": "${HOME}/anaconda3", "env": "train"}
    flags = put_profile(site, "conda", "conda", runtimes={"conda": settings})
    jobs = {
        name: (f"conda-{name}", submit(site, f"conda-{name}", *flags, login=login))
        for name, login in logins.items()
    }
    for env in ("nothing", "empty"):
        jobs[env] = (f"conda-{env}", submit(site, f"conda-{env}", *flags, "--conda-env", env))
    return jobs


@pytest.mark.sampled(4)
@pytest.mark.parametrize("login", ["plain", "other", "same", "gone"])
def test_a_conda_environment_is_that_of_the_job(
    site: Site, conda_jobs: dict[str, tuple[str, int]], login: str
) -> None:
    """Whatever was active in the submitting shell, and wherever in its PATH."""
    there = found(site, *conda_jobs[login])
    assert (there["BY"], there["OF_TRAIN"], there["OF_OLD"]) == ("train", "1", None)
    assert there["CONDA_PREFIX"] == f"{site.cluster.home}/anaconda3/envs/train"


@pytest.mark.parametrize(
    ("env", "message"),
    [("nothing", "can't activate the conda environment nothing"), ("empty", "no python3 in {prefix}")],
)
def test_a_conda_environment_that_can_not_be_used_is_told(
    site: Site, conda_jobs: dict[str, tuple[str, int]], env: str, message: str
) -> None:
    name, number = conda_jobs[env]
    assert site.cluster.wait(number, {"FAILED"})["ExitCode"] == "1:0"
    prefix = site.cluster.home / "anaconda3/envs" / env
    assert site.log(name).splitlines()[-1] == f"error: {message.format(prefix=prefix)}"


LARGE = """
import json, os, sys
names = "SLURM_PROCID SLURM_LOCALID OWN FOLDER DEEP MASTER_ADDR LATE".split()
print(json.dumps({name: os.environ.get(name) for name in names}))
"""


def test_setup_runs_once_in_the_job_on_each_node_and_in_each_task(site: Site) -> None:
    site.cluster.put("work/large.py", LARGE)
    flags = put_profile(
        site,
        "large",
        "venv",
        runtimes={"venv": {"path": sys.prefix}},
        launcher="srun",
        setup=["set -eu"],
        setup_after_runtime=["export LATE=${VIRTUAL_ENV##*/}"],
        setup_per_node=["mkdir -p -- $FOLDER", "echo $SLURM_NODEID >>$FOLDER/node-$SLURM_NODEID"],
        setup_per_task=["export OWN=$SLURM_LOCALID"],
        master_addr="hostname",
        env={"FOLDER": "${HOME}/large-${SLURM_JOB_ID}", "DEEP": "${FOLDER}/it's"},
    )
    job = submit(site, "large", "ddp", *flags[1:4], "large.py", *flags[5:], "--nproc-per-node", "2")
    state = site.cluster.wait(job, {"COMPLETED"})
    lines = [json.loads(line) for line in site.log("large").splitlines() if line.startswith("{")]
    assert sorted(line["SLURM_PROCID"] for line in lines) == ["0", "1", "2", "3"]
    folder = f"{site.cluster.home}/large-{job}"
    for line in lines:
        assert line["OWN"] == line["SLURM_LOCALID"]
        assert (line["FOLDER"], line["DEEP"], line["LATE"]) == (
            folder,
            f"{folder}/it's",
            Path(sys.prefix).name,
        )
        assert line["MASTER_ADDR"] == state["BatchHost"]
    assert [Path(folder, f"node-{node}").read_text() for node in (0, 1)] == ["0\n", "1\n"]


BEFORE = {
    "nothing": {},
    "home": {"PYTHONHOME": "/wrong"},
    "venv": {"VIRTUAL_ENV": "/old", "PATH": "/old/bin:/usr/bin:/bin"},
    "conda": {"CONDA_PREFIX": "/old", "CONDA_SHLVL": "1", "PATH": "/old/bin:/usr/bin:/bin"},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("before", BEFORE)
def test_a_virtual_environment_is_activated_as_its_own_script_does(tmp_path: Path, before: str) -> None:
    """But for the prompt."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    text = script(resolved("single", "local", runtime="venv", venv=str(tmp_path / "venv")))
    path = next(line for line in text.splitlines() if line.startswith("VIRTUAL_ENV="))
    functions = text[text.index("\ndie() {") : text.index("# --- What happens")]
    ours = f"{path}\n{functions}\nactivate_venv"

    def after(lines: str) -> dict[str, str]:
        done = subprocess.run(
            ["bash", "-c", f"{lines}\nexec env -0"],
            env={"PATH": "/usr/bin:/bin", **BEFORE[before]},
            capture_output=True,
            text=True,
            check=True,
        )
        seen = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
        return {name: value for name, value in seen.items() if name not in ("PS1", "VIRTUAL_ENV_PROMPT", "_")}

    assert after(ours) == after(f". {tmp_path}/venv/bin/activate")
    assert "PYTHONHOME" not in after(ours)
