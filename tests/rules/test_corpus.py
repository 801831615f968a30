"""Whole scripts in the styles that people use, with all errors and warnings that each must have, and no other.

`tests/fixtures/corpus/NAME.sh` is a script, and a line of `findings.txt` says what lint has to find in it.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from sbatchgen.check.lint.fix import apply_fixes
from sbatchgen.check.lint.lint_settings import Settings, findings_of
from sbatchgen.check.lint.source import Source, read_source
from sbatchgen.check.rules.syntax import placeholders_refused_by_bash
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.search import Places
from sbatchgen.jobs.judge.read_settings import settings_of
from tests.conftest import REPOSITORY
from tests.tables import hold

FOLDER = REPOSITORY / "tests" / "fixtures" / "corpus"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.sh"))


def _expected() -> dict[str, str]:
    lines = (FOLDER / "findings.txt").read_text().splitlines()
    pairs = (line.partition(":") for line in lines if line and not line.startswith("#"))
    return {name: said.strip() for name, _, said in pairs}


EXPECTED = _expected()


def no_cluster() -> Settings:
    """Where no cluster and no release is known, and no file of this machine is looked for."""
    return settings_of(Places(Path("/nonexistent"), {}), None)


def said(name: str, settings: Settings | None = None) -> str:
    findings = findings_of(read_source(str(FOLDER / f"{name}.sh")), settings or no_cluster())
    shown = (
        f"{finding.place.line}:{finding.rule}{'!' * (finding.severity == 'error')}"
        for finding in findings
        if finding.severity != "info"
    )
    return " ".join(shown)


def test_each_script_has_its_line() -> None:
    assert sorted(EXPECTED) == SCRIPTS
    assert len(SCRIPTS) >= 150


def test_the_findings_are_those_and_no_other() -> None:
    assert {name: said(name) for name in SCRIPTS} == EXPECTED


def test_what_bash_refuses_is_an_error_and_nothing_else_is() -> None:
    hold(has_an_error_if_bash_refuses, zip(SCRIPTS))


def has_an_error_if_bash_refuses(name: str) -> None:
    """Text after an exit is never read by a bash that runs the script, but by bash -n."""
    source = read_source(str(FOLDER / f"{name}.sh"))
    subject = JobScript(file=source.file, text=source.text)
    text = source.text[: subject.body.end]
    is_text = subject.program_placeholders or placeholders_refused_by_bash(subject)
    if subject.body.language not in ("bash", "sh") or is_text:
        assert "SB814!" not in EXPECTED[name]
        return
    extglob = ["-O", "extglob"] if "shopt -s extglob" in text else []
    refused = (
        subprocess.run(
            ["bash", *extglob, "-n"], input=text.encode(), capture_output=True, check=False
        ).returncode
        != 0
    )
    assert refused == ("SB814!" in EXPECTED[name])


# --- The shapes ---

# What the field has shown to be taken for wrong where it is right, and what it is in the corpus.
HARMLESS = {
    "options of plugins": (
        "shifter-directives shifter-with-blanks cscs-uenv ear-energy fpga-link quota-type gpu-mps-flag"
    ),
    "text of echo, of a here-document, after an exit, in quotes": (
        "bio-banner bio-heredoc-bang bio-block-comment bio-quoted-docstring bio-text-after-exit bio-backquoted-comments "
        "exec-at-the-end heredoc-python r-heredoc python-shebang"
    ),
    "something else waits": (
        "gpu-background-then-jupyter gpu-background-monitor gpu-background-waited gpu-background-no-scheduler-branch"
    ),
    "arrays that slurmctld takes": "array-brackets-before-percent array-one-bracketed array-empty array-of-one-log",
    "arrays of the command line": "array-from-command-line",
    "mail types that add up": "r-mail-twice",
    "directives switched off": "directives-commented directive-usage-comment",
    "a script that submits itself outside of a job": "self-submit-outside",
    "odd characters in a comment": "directive-trailing-comments",
    "AMD devices": "apptainer-rocm-devices",
    "one process with all CPUs of the node": "bio-python-has-all-cpus",
    "fewer processes on purpose": "mpi-mpirun-fewer-on-purpose mpi-serial-first-step",
    "an order of GPUs": "gpu-cuda-visible-order",
    "settings that another network ignores": "gpu-efa-no-ib",
    "variables of one's own": "slurm-variable-set-for-itself slurm-name-of-the-site",
    "a signal that bash does not die of": "signal-int",
    "a web service": "requeue-service",
    "a loop whose steps run in the background": "loop-background-stdin",
    "paths of the cluster": "image-path-of-cluster log-folder-absolute",
    "habits": (
        "directive-shortened directive-backslash directive-verbose directive-empty-mail syntax-sh-with-bash "
        "modules-unpinned"
    ),
    "half an hour": "time-30-00",
    "steps kept apart": "mpi-steps-by-nodelist mpi-het-groups mpi-two-steps-background",
    "conda that is set up": "conda-sourced conda-init-block conda-login-shell conda-nounset",
    "environments that nothing needs": "export-none-undone export-none-nothing-set",
    "scripts that write scripts": (
        "heredoc-writes-script heredoc-writes-script-in-a-job quoted-script echo-writes-script"
    ),
    "templates": (
        "template-jinja template-at template-percent template-braces template-relion not-a-template "
        "template-python-percent fill-in-by-envsubst"
    ),
    "defaults in mounts": "apptainer-nested-default",
    "a variable that ends bash where it is not set": "command-string-nounset",
    "mounts in a variable with a command": "apptainer-mounts-in-a-command",
    "nodes of one's own": "gpu-fixed-port-whole-node",
}
# What lint has missed, with what it says now.
FOUND = {
    "bash can't read it": (
        "SB814!",
        "syntax-open-loop syntax-open-quote syntax-stray-done",
    ),
    "a later release refuses it": ("SB113", "release-user-env"),
    "and this": ("SB131", "release-cpus-per-gpu release-gpus-twice"),
    "a name that Slurm never sets": ("SB421", "slurm-name-with-a-slip slurm-names-glued array-name-swapped"),
    "a hint that is dropped": ("SB137", "mpi-hint-and-core"),
    "conda init": ("SB422", "conda-init-in-job"),
    "what sbatch or bash refuses until a person fills it in": (
        "SB812!",
        "template-angle fill-in-numbers fill-in-empty conda-placeholder-env syntax-to-fill-in",
    ),
    "placeholders before a comment": ("SB812", "placeholder-account placeholder-key placeholder-path"),
    "not exported": ("SB423", "gpu-master-addr-not-exported mpi-hybrid-threads-not-exported"),
    "variables of PBS and SGE": ("SB424", "pbs-workdir sge-slots"),
    "a step that waits for one in the background": ("SB310", "mpi-steps-that-wait"),
    "a serial tool for each task": ("SB328", "mpi-serial-tool-under-srun"),
    "sudo under srun": ("SB318", "mpi-srun-sudo"),
    "a pipe before ||": ("SB329", "mpi-make-tail-or-exit"),
    "megabytes": ("SB138", "mem-64 mem-per-cpu-4"),
    "a WORLD_SIZE by hand": ("SB425", "gpu-world-size-by-hand"),
    "an open quote in a line of LSF": ("SB108!", "lsf-open-quote"),
    "three dashes": ("SB113!", "three-dashes"),
}


@pytest.mark.parametrize("shape", HARMLESS)
def test_what_is_harmless_is_left_alone(shape: str) -> None:
    for name in HARMLESS[shape].split():
        assert EXPECTED[name] == "", name


@pytest.mark.parametrize("shape", FOUND)
def test_what_was_missed_is_found(shape: str) -> None:
    rule, names = FOUND[shape]
    for name in names.split():
        assert rule in re.findall(r"SB\d{3}!?", EXPECTED[name]), name


# --- Releases ---


def settings_for(release: str) -> Settings:
    return settings_of(Places(Path("/nonexistent"), {}), None, release)


def test_a_release_that_is_named_is_certain() -> None:
    assert said("release-user-env", settings_for("22.05")) == ""
    assert said("release-user-env", settings_for("25.11")) == "2:SB113!"
    assert said("release-gpus-twice", settings_for("26.05")) == "3:SB131!"
    assert said("release-newer-option", settings_for("22.05")) == "2:SB130!"
    assert said("r-mail-twice", settings_for("24.11")) == ""
    assert said("r-mail-twice", settings_for("25.05")) == "6:SB119"


def test_a_profile_that_lists_its_plugins_knows_all_options() -> None:
    """Then an option that it does not list is an error, also one of a plugin that is known elsewhere."""
    from dataclasses import replace

    from sbatchgen.base.units import Text
    from sbatchgen.check.script.job import NO_CLUSTER

    listed = replace(NO_CLUSTER, plugin_options=(Text("site-energy-tag="),))
    assert said("unknown-plugin", replace(no_cluster(), profile=listed)) == ""
    assert said("fpga-link", replace(no_cluster(), profile=listed)).startswith("3:SB113!")


def test_pedantic_rules_run_only_on_request() -> None:
    def ids(*select: str, pedantic: bool = False) -> set[str]:
        settings = settings_of(Places(Path("/nonexistent"), {}), None, select=select, pedantic=pedantic)
        data = read_source(str(FOLDER / "modules-unpinned.sh")).data
        return {finding.rule for finding in findings_of(Source(file="a.sh", data=data), settings)}

    assert ids() == set()
    assert ids("SB4") == set()
    assert ids("SB403") == {"SB403"}
    assert ids(pedantic=True) == {"SB402", "SB403"}
    assert ids("SB403", pedantic=True) == {"SB403"}


@pytest.mark.parametrize(
    ("name", "severity", "what", "fix"),
    [
        (
            "syntax-to-fill-in",
            "error",
            "'<seedname>' is a placeholder: bash can't parse the line",
            "fill it in",
        ),
        (
            "fill-in-numbers",
            "error",
            "'<XXXX>' is a placeholder: sbatch refuses the script",
            "fill it in, also in lines 3, 4, 5",
        ),
        (
            "fill-in-empty",
            "error",
            "'--nodes=' is a placeholder: sbatch refuses the script",
            "fill it in, also in lines 3, 4",
        ),
        (
            "fill-in-by-envsubst",
            "info",
            "'${NAME}' is a placeholder: sbatch refuses the script",
            "fill it in, also in lines 3, 4",
        ),
    ],
)
def test_a_text_to_fill_in_has_one_finding(name: str, severity: str, what: str, fix: str) -> None:
    findings = findings_of(read_source(str(FOLDER / f"{name}.sh")), no_cluster())
    about = [finding for finding in findings if finding.severity != "info" or finding.rule == "SB812"]
    assert [(finding.severity, finding.problem.what, finding.problem.fix) for finding in about] == [
        (severity, what, fix)
    ]


@pytest.mark.parametrize(
    ("mark", "severity"),
    [
        ("", "error"),
        ("# envsubst < job.in > job.sh\n", "info"),
        ("# sed s/TASKS/4/ job.in > job.sh\n", "info"),
        ("srun ./model {{ model }}\n", "info"),
    ],
)
def test_a_refused_text_is_an_error_unless_a_program_is_named(mark: str, severity: str) -> None:
    text = f"#!/bin/bash\n#SBATCH --time=01:00:00\n#SBATCH --ntasks=${{TASKS}}\n{mark}srun ./model\n"
    findings = findings_of(Source(file="a.sh", data=text.encode()), no_cluster())
    assert [finding.severity for finding in findings if finding.rule == "SB812"] == [severity]


# --- Fixes ---


def test_a_fix_leaves_what_the_script_does() -> None:
    hold(does_the_same_when_mended, zip(SCRIPTS))


def does_the_same_when_mended(name: str) -> None:
    """No line goes but by a change within it, no modules are purged, and what bash could read it still can."""
    source = read_source(str(FOLDER / f"{name}.sh"))
    new = apply_fixes(
        source.data, lambda data: findings_of(Source(file=source.file, data=data), no_cluster())
    )
    before, after = source.data.splitlines(), new.splitlines()
    assert len(after) >= len(before)
    assert b"module purge" not in set(after) - set(before)
    assert [line for line in before if b"CUDA_VISIBLE_DEVICES" in line] == [
        line for line in after if b"CUDA_VISIBLE_DEVICES" in line
    ]
    if source.data.startswith(b"#!/bin/bash"):
        read = [
            subprocess.run(
                ["bash", "-O", "extglob", "-n"], input=script, check=False, capture_output=True
            ).returncode
            for script in (source.data, new)
        ]
        assert read[0] == read[1]


# --- A look at a folder ---


def test_the_benchmark_reads_any_folder(tmp_path: Path) -> None:
    """Odd bytes, odd names and other files end nothing; each rule comes with one example."""
    import os
    import sys

    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_bytes(b"#!/bin/bash\n#SBATCH --time=24\n\xff\xfe\x00\n")
    (tmp_path / os.fsdecode(b"b\xff\x1b.sh")).write_bytes(
        b"#!/bin/bash\n#SBATCH --time=2h\n./a \xe2\x80\xae\n"
    )
    (tmp_path / "not-a-script").write_bytes(b"\x00" * 100)
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    program = [sys.executable, str(REPOSITORY / "benchmarks" / "lint_precision.py"), str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 scripts\n")
    assert "error SB126 a value that sbatch refuses: 1 in 1 scripts (50.0 %)" in done.stdout
    assert "b\\udcff\\x1b.sh:2: #SBATCH --time=2h" in done.stdout
    shown = subprocess.run([*program, "--show", "SB127"], capture_output=True, text=True, check=True)
    assert shown.stdout.endswith("1 finding\n")
    assert (
        subprocess.run([*program[:2], str(tmp_path / "gone")], check=False, capture_output=True).returncode
        == 2
    )
