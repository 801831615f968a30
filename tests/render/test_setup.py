"""Lines of a site in the script: modules, setup, variables that the job expands, and their places."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from sbatchgen.jobs.judge.job_check import check, lint_rendered
from tests.conftest import Command
from tests.scripts import resolved, script

PROFILE = """
name: large
url: https://example.org
checked: 2026-01-01
default_partition: gpu
partitions: {gpu: {gpus_per_node: 8, cpus_per_node: 56}}
runtime: venv
runtimes: {venv: {path: "${HOME}/venv"}}
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return tmp_path / "large.yaml"


def rendered(profile: Path, keys: str) -> str:
    profile.write_text(PROFILE + keys)
    of = resolved("ddp", profile)
    assert [str(finding.problem) for finding in check(of)] == []
    text = script(of)
    assert [str(finding.problem) for finding in lint_rendered(of, text)] == []
    return text


def test_modules_and_their_folders_keep_their_order(profile: Path) -> None:
    text = rendered(profile, 'modules: [base, "use ${EB}/m", rocm, torch]\nmodule_start: reset')
    lines = [line.strip() for line in text.splitlines() if line.startswith("    module ")]
    assert lines == [
        "module reset",
        """module load base || die "can't load the modules\"""",
        'module use "${EB}/m"',
        """module load rocm torch || die "can't load the modules\"""",
    ]


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        ("modules: [a]", ["module purge", "module load"]),
        ("modules: [a]\nmodule_start: keep", ["module load"]),
        ("module_start: purge", ["module purge"]),
        ("module_start: keep", []),
    ],
)
def test_modules_that_are_loaded_already_are_purged_if_the_job_loads_some(
    profile: Path, keys: str, first: list[str]
) -> None:
    lines = [line.strip() for line in rendered(profile, keys).splitlines() if line.startswith("    module ")]
    assert [" ".join(line.split()[:2]) for line in lines] == first


def test_lines_of_setup_have_their_places(profile: Path) -> None:
    text = rendered(
        profile,
        "modules: [a]\nsetup_before_modules: [first=1]\nsetup: [second=1]\nsetup_after_runtime: [third=1]\n"
        "setup_per_node: [fourth=1, fourth=2]\nsetup_per_task: [fifth=1]",
    )
    parts = ["first=1", "module load", "second=1", "bash -c '\nfourth=1\nfourth=2'\n    ) || die"]
    parts += ["activate_venv", "third=1", "    find_first_node", "bash -c '\nfifth=1\nexec \"$@\"' task"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize("key", ["setup_before_modules", "setup", "setup_per_node", "setup_per_task"])
def test_the_empty_lines_of_a_here_document_stay(profile: Path, key: str) -> None:
    document = ["cat <<'EOF' >config.txt", "a", "", "", "", "b", "EOF"]
    text = rendered(profile, f"{key}: {json.dumps(document)}")
    assert "config.txt\na\n\n\n\nb\nEOF" in text.replace("'\\''", "'")
    assert text.isascii()
    assert "\x01" not in text


def test_the_setup_of_a_node_may_make_the_environment_and_has_the_variables_of_the_job(
    profile: Path, tmp_path: Path
) -> None:
    (tmp_path / "make.sh").write_text(
        'mkdir -p "$WHERE/bin"\nprintf "#!/bin/sh\\necho made\\n" >"$WHERE/bin/python3"\nchmod +x "$WHERE/bin/python3"\n'
    )
    text = rendered(
        profile,
        f"setup_per_node: [bash {tmp_path}/make.sh]\nenv: {{WHERE: {tmp_path}/venv}}\n",
    ).replace('"${HOME}/venv"', f"{tmp_path}/venv")
    programs = {"srun": 'while [[ $1 == -* ]]; do shift; done; exec "$@"', "scontrol": "echo n1"}
    for name, lines in programs.items():  # files, as the training is started by exec
        (tmp_path / name).write_text(f"#!/bin/bash\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_ID": "1",
        "SLURM_NNODES": "1",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }
    done = subprocess.run(["bash"], input=text, env=variables, capture_output=True, text=True, check=False)
    assert "no virtual environment" not in done.stderr
    assert "made" in done.stdout


def test_a_value_may_hold_variables_of_earlier_ones(profile: Path) -> None:
    env = 'env: {A: "/tmp/${USER}", B: "1 \'2\'", C: "2", D: "${A}/`x`:${LD}"}'
    lines = [line.strip() for line in rendered(profile, env).splitlines() if line.startswith("    export ")]
    assert [line for line in lines if line[7] in "ABCD"] == [
        'export A="/tmp/${USER}"',
        """export B='1 '"'"'2'"'"'' C=2""",
        'export D="${A}/\\`x\\`:${LD}"',
    ]


def test_other_expansions_in_a_value_are_an_error(profile: Path, command: Command) -> None:
    profile.write_text(PROFILE + 'env: {A: "${HOME:-/x}"}')
    done = command("render", "ddp", "--profile", str(profile))
    assert done.status == 3
    assert "write ${NAME}, or export it in the profile's setup" in done.err


@pytest.mark.parametrize(
    ("argument", "word"),
    [
        ("--data={env:SCRATCH}/a b", """--data="$SCRATCH"'/a b'"""),
        ("{env:A}{run_dir}{env:B}", '"$A""$RUN_DIR""$B"'),
        ("{env:A B}", "'{env:A B}'"),
        ("${A}", "'${A}'"),
        ("", "''"),
    ],
)
def test_an_argument_may_hold_a_variable_of_the_job(argument: str, word: str) -> None:
    lines = script(resolved("single", "local", args=("--", argument), trainer="t.py")).splitlines()
    assert f"        -- {word}" in lines


def test_a_path_with_a_variable_of_the_site_needs_it(profile: Path) -> None:
    text = rendered(profile, "paths: {runs: '${WRKDIR}/runs', data: '${SCRATCH}/${PROJ}'}")
    assert re.search(r"(?m)^needed=\((WRKDIR SCRATCH PROJ|WRKDIR PROJ)\)", text)
    assert text.index("\ncheck_needed\n") < text.index("\nmake_run_folder\n")


def test_the_address_of_the_first_node_is_what_a_command_prints(profile: Path) -> None:
    text = rendered(profile, "master_addr: hostname -i")
    assert "MASTER_ADDR=$(hostname -i) # of this node, the first\n" in text
    assert "scontrol show hostnames" not in text


@pytest.mark.parametrize("key", ["setup_before_modules", "setup_per_node", "setup_per_task", "master_addr"])
def test_lines_that_bash_can_not_read_are_found(profile: Path, command: Command, key: str) -> None:
    value = "'if true'" if key == "master_addr" else "['if true']"
    profile.write_text(f"{PROFILE}{key}: {value}")
    done = command("profile", "check", str(profile))
    assert done.status == 3
    assert f"{key}: bash can't read it" in done.err


def test_a_mask_of_gpus_that_each_task_sets_itself_stays(profile: Path) -> None:
    keys = "gpu_vendor: amd\nsetup_per_task: [export HIP_VISIBLE_DEVICES=$SLURM_LOCALID]"
    text = rendered(profile, keys)
    assert text.index("env -u") < text.index("export HIP_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("runtime", "before"),
    [
        ("edf: {environment: ./a.toml}", "--environment="),
        ("enroot: {image: /i.sqsh}", "--container-env="),
        ("apptainer: {image: /i.sif}", '"$IMAGE"'),
    ],
)
def test_setup_of_a_task_runs_in_its_container(profile: Path, runtime: str, before: str) -> None:
    name = runtime.partition(":")[0]
    facts = PROFILE.partition("runtime:")[0]
    profile.write_text(f"{facts}runtime: {name}\nruntimes: {{{runtime}}}\nsetup_per_task: [fifth=1]")
    command = script(resolved("ddp", profile)).partition("\ntrain() {")[2].partition("\n}\n")[0]
    assert command.index(before) < command.index("fifth=1") < command.index("python3")


def test_lines_for_other_programs_follow_the_directives(profile: Path) -> None:
    lines = rendered(profile, "directives: ['#DW jobdw capacity=1TB', '#BB create x']").splitlines()
    last = max(place for place, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert lines[last + 1 : last + 4] == ["#DW jobdw capacity=1TB", "#BB create x", ""]


@pytest.mark.parametrize("line", ["#SBATCH --time=1", "rm -rf x", "# a comment"])
def test_a_line_for_other_programs_is_a_comment_in_capitals(
    profile: Path, command: Command, line: str
) -> None:
    profile.write_text(f"{PROFILE}directives: ['{line}']\n")
    assert "#SBATCH is for options" in command("render", "ddp", "--profile", str(profile)).err


@pytest.mark.parametrize(
    ("starter", "command_line"), [("ibrun", "ibrun"), ("mpirun", 'mpirun -n "$SLURM_NTASKS"')]
)
def test_another_command_than_srun_starts_the_tasks(profile: Path, starter: str, command_line: str) -> None:
    text = rendered(profile, f"starter: {starter}\nlauncher: srun\nstep: {{mpi: pmix}}")
    training = text.partition("\ntrain() {")[2].partition("\n}\n")[0]
    assert training.splitlines()[1] == f"    exec {command_line} \\"
    assert "--launcher mpi" in training
    assert "srun" not in training


def test_srun_starts_the_tasks_of_torchrun(profile: Path) -> None:
    assert "\n    exec srun " in rendered(profile, "starter: ibrun\nlauncher: torchrun")


def test_a_container_that_srun_starts_needs_srun(profile: Path) -> None:
    profile.write_text(f"{PROFILE}starter: ibrun\nlauncher: srun\n")
    of = resolved("ddp", profile, runtime="enroot", image="/x.sqsh")
    (finding,) = [each for each in check(of) if each.severity == "error"]
    assert finding.problem.what == "runtime 'enroot' is started by srun, not by ibrun"
