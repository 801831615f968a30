"""Hostile values in names, variables, paths and arguments: they arrive byte for byte, or are refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import REPOSITORY, Command, Result
from tests.test_quoting import ANY_WORD, HOSTILE

TRAINER = """import json, os, sys
with open(os.environ["DUMP"], "w") as file:
    json.dump({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}, file)
"""
MULTILINE = ("a\nb", "a\n#SBATCH --time=1\n$(id)", "\t", "'\n'", "\x1b[2J")


def run(folder: Path, *arguments: str, command: Command, mode: str = "single") -> dict[str, object]:
    """What the trainer of a job sees, when bash runs the rendered script."""
    (folder / "dump.py").write_text(TRAINER)
    dump = folder / "dump.json"
    dump.unlink(missing_ok=True)
    launcher = ("--launcher", "spawn", "--nproc-per-node", "1") if mode == "ddp" else ()
    result = command("render", mode, *launcher, "--trainer", "dump.py", *arguments)
    assert result.status == 0, result.err
    script = folder / "job.sh"
    script.write_bytes(result.out.encode())
    environment = {"PATH": "/usr/bin:/bin", "DUMP": str(dump), "USER": "alice", "HOME": str(folder)}
    done = subprocess.run(
        ["bash", str(script)], env=environment, cwd=folder, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert not (folder / "pwned").exists()
    seen: dict[str, object] = json.loads(dump.read_text())
    return seen


def test_arguments_arrive(folder: Path, command: Command) -> None:
    arguments = [*HOSTILE, *MULTILINE, "", "$(touch pwned)", "`touch pwned`", ";touch pwned;", "--", "-m"]
    seen = run(folder, "--", *arguments, command=command)
    assert seen["argv"] == arguments


@pytest.mark.proof
@pytest.mark.slow
def test_torchrun_leaves_the_trainers_arguments_alone(folder: Path, command: Command) -> None:
    """It knows abbreviations of its own options, and looks for them after the trainer too."""
    arguments = ["--n", "3", "--log", "x", "--nnodes", "7", "--", "-m", "a b", "$(touch pwned)"]
    (folder / "dump.py").write_text(TRAINER)
    for trainer in ("dump.py", "dump"):
        script = command("render", "ddp", "--nproc-per-node", "1", "--trainer", trainer, "--", *arguments).out
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "DUMP": f"{trainer}.json",
            "HOME": str(folder),
        }
        subprocess.run(["bash", "-c", script], env=environment, cwd=folder, check=True, capture_output=True)
        assert json.loads((folder / f"{trainer}.json").read_text())["argv"] == arguments
    assert not (folder / "pwned").exists()


def test_values_of_variables_arrive(folder: Path, command: Command) -> None:
    values = {
        f"V{number}": value for number, value in enumerate((*HOSTILE, *MULTILINE, "", "$(touch pwned)"))
    }
    flags = [word for name, value in values.items() for word in ("--env", f"{name}={value}")]
    seen = run(folder, *flags, command=command)
    environment = seen["env"]
    assert isinstance(environment, dict)
    expanded = {name: value.replace("${HOME}", environment["HOME"]) for name, value in values.items()}
    assert {name: environment[name] for name in values} == expanded


def names_in_use() -> list[str]:
    """Every variable that bash has or that a rendered script sets."""
    of_bash = subprocess.run(
        ["bash", "-c", "compgen -v"], capture_output=True, text=True, check=True
    ).stdout.split()
    scripts = "".join(path.read_text() for path in (REPOSITORY / "tests/golden").glob("*.sh"))
    in_scripts = re.findall(r"\b([A-Za-z_]\w*)=[$\"(\d]|\bfor (\w+) in", scripts)
    return sorted(
        {*of_bash, *(name for pair in in_scripts for name in pair if name), "HOME", "TMPDIR", "USER"}
    )


def test_a_variable_that_bash_or_the_script_uses_is_refused_or_arrives(
    folder: Path, command: Command
) -> None:
    names, accepted = names_in_use(), []
    assert {"RUN_DIR", "CODE_DIR", "IMAGE", "status", "restarts", "UID", "IFS", "PWD"} <= {*names}
    for name in [*names, "SBATCHGEN_EXIT_FILE", "RANK", "WORLD_SIZE"]:
        result = command("render", "single", "--env", f"{name}=x[$(touch pwned)]")
        assert result.status in {0, 2}, (name, result.err)
        if result.status == 0 and name not in {"PATH", "LD_LIBRARY_PATH"}:  # with another one nothing starts
            accepted.append(name)
    assert not {"RUN_DIR", "CODE_DIR", "IMAGE", "status", "restarts", "UID", "RANK"} & {*accepted}
    values = {name: f"x[$(touch pwned)] {name}" for name in accepted}
    flags = [word for name, value in values.items() for word in ("--env", f"{name}={value}")]
    for mode in ("single", "ddp"):
        environment = run(folder, *flags, mode=mode, command=command)["env"]
        assert isinstance(environment, dict)
        assert {name: environment.get(name) for name in values} == values


def test_a_variable_without_a_value_is_that_of_the_shell(folder: Path, command: Command) -> None:
    (folder / "job.yaml").write_text("mode: single\nargs: []\nenv: {A: , B: '', C: }\n")
    (folder / "t.py").write_text("import os\nprint(*(os.environ[name] for name in 'ABCD'), sep='|')\n")
    script = command("render", "job.yaml", "--trainer", "t.py", "--env", "C=own", "--env", "D").out
    assert "\n    need_variables A D\n" in script

    def started(**env: str) -> subprocess.CompletedProcess[str]:
        call, path = ["bash", "-c", script], {"PATH": os.environ["PATH"]}
        return subprocess.run(call, env=path | env, capture_output=True, text=True, check=False)

    assert started(A="a b", D="").stdout == "a b||own|\n"
    refused = started(A="a")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "error: D is not set: export it where you submit\n"
    explained = command("explain", "job.yaml", "--env", "C=own", "--format", "json").out
    values = {
        setting["name"]: setting["value"]
        for setting in json.loads(explained)["settings"]
        if "env" in setting["name"]
    }
    assert values == {"env A": "(that of the shell that submits)", "env B": "", "env C": "own"}


def test_a_variable_that_a_path_of_the_job_holds_is_refused(command: Command) -> None:
    result = command("render", "single", "--run-dir", "${HOME}/runs", "--env", "HOME=/elsewhere")
    assert result.status == 3
    assert "so its path ${HOME}/runs changes" in result.err
    assert command("render", "single", "--env", "HOME=/elsewhere").status == 0


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("mcs-label=true", "--mcs-label needs a value: Slurm would take the next directive for it"),
        ("hold=abc", "doesn't allow an argument"),
        ("gres-flags=disable-binding", ""),
        ("spread-job=true", ""),
        ("of-a-plugin=3", ""),
        ("of-a-plugin=true", ""),
    ],
)
def test_an_extra_option_that_sbatch_would_read_in_another_way_is_refused(
    command: Command, option: str, words: str
) -> None:
    result = command("render", "single", "--profile", "msu", "--set", f"extra_options.{option}")
    assert result.status == (3 if words else 0), result.err
    assert words in result.err
    assert bool(words) == ("#SBATCH" not in result.out)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [text for text in HOSTILE if not text.startswith("-")])
def test_a_job_name_names_the_run_folder_or_is_refused(folder: Path, command: Command, name: str) -> None:
    if any(part in name for part in ("/", "%", "\\", "${")):
        result = command("render", "single", "--job-name", name)
        assert (result.status, result.out) == (2, "")
        assert "job name" in result.err
        return
    seen = run(folder, "--job-name", name, command=command)
    environment = seen["env"]
    assert isinstance(environment, dict)
    assert environment["RUN_DIR"] == f"{folder}/runs/{name}"
    assert (folder / "runs" / name).is_dir()


@pytest.mark.parametrize("path", ["a b/c", "$(touch pwned)", "`x`", "a'b\"c", "#x", "a\\b", "é", "*", "a;b"])
def test_a_run_folder_is_taken_word_for_word(folder: Path, command: Command, path: str) -> None:
    run(folder, "--run-dir", path, command=command)
    assert (folder / path).is_dir()


def test_values_of_a_job_file_are_data(folder: Path, command: Command) -> None:
    (folder / "job.yaml").write_text(
        "mode: single\ntrainer: dump.py\nargs: ['$(touch pwned)', \"a\\nb\", 010]\n"
        "env: {A: '`touch pwned`', B: no}\nrun_dir: 'out; touch pwned'\n"
    )
    (folder / "dump.py").write_text(TRAINER)
    script = command("render", "job.yaml").out
    environment = {"PATH": "/usr/bin:/bin", "DUMP": str(folder / "dump.json")}
    subprocess.run(["bash", "-c", script], env=environment, cwd=folder, check=True, capture_output=True)
    seen = json.loads((folder / "dump.json").read_text())
    assert seen["argv"] == ["$(touch pwned)", "a\nb", "010"]
    assert (seen["env"]["A"], seen["env"]["B"]) == ("`touch pwned`", "no")
    assert not (folder / "pwned").exists()


@pytest.mark.slow
@given(value=ANY_WORD.filter(lambda value: not re.search(r"\{(run_dir|data_dir|resume)\}", value)))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_an_argument_and_a_value(folder: Path, command: Command, value: str) -> None:
    seen = run(folder, "--env", f"V={value}", "--", value, command=command)
    environment = seen["env"]
    assert isinstance(environment, dict)
    assert (seen["argv"], environment["V"]) == ([value], value)


def test_no_value_adds_a_line_to_the_header(command: Command) -> None:
    """Whatever a text holds, the script has the lines that it has with an "x", or there is no script."""

    def rendered(value: str) -> Result:
        flags = ("--comment", value, "--account", value, "--job-name", value)
        return command("render", "ddp", "--profile", "msu", *flags)

    plain = rendered("x").out

    @given(value=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30))
    @settings(max_examples=100)
    def check(value: str) -> None:
        result = rendered(value)
        if result.status:
            assert result.out == ""
            assert result.err.startswith("error: ")
            assert "\x1b" not in result.err
        else:
            assert result.out.count("\n") == plain.count("\n")
            assert result.out.count("\n#SBATCH ") == plain.count("\n#SBATCH ")

    check()
