"""Makes the plan of a script, for `sbatchgen plan` and for the rules of `started/`."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sbatchgen.base.errors import CommandLineError, DocumentError, NoSandboxError, near_file
from sbatchgen.base.files import read_file
from sbatchgen.base.machine.trust import user_name
from sbatchgen.check.cluster_facts import KnownCluster
from sbatchgen.check.executables.program import programs
from sbatchgen.check.script.job import DEFAULT_SLURM, NO_CLUSTER
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.plan.batch_job import grant_of
from sbatchgen.lab.plan.dry_run import SHOWN_STEPS, DryRun, DryRunInputs, dry_run
from sbatchgen.lab.plan.rounds import least_steps
from sbatchgen.lab.plan.started import StartedProcess, Step

SANDBOX_NOTE = "note: runs {} in a sandbox: no network, no files changed"  # {}: the name of the script
MOST_BYTES = 8 << 20  # bytes of a file that --file PATH=FILE gives


def plan_of(
    script: JobScript,
    environment: Mapping[str, str],
    folder: Path,
    inputs: DryRunInputs | None = None,
    *,
    nodes: int | None = None,
    extra_folders: Sequence[str] = (),
) -> DryRun:
    """Return the dry run of a script that a user submits in `folder`.

    The script sees only HOME and USER of the environment. `nodes` replaces the number of the script's
    --nodes. The script may also see the `extra_folders`.

    Raises:
        DocumentError: The script is not a shell script.
        NoSandboxError: This machine allows no sandbox.
    """
    _refuse_no_shell(script)
    if "\r\n" in script.text:  # sbatch refuses these line ends, and the plan shows the script without them
        script = replace(script, text=script.text.replace("\r\n", "\n"))
    try:
        user = user_name(os.getuid())
    except ModuleNotFoundError:  # Python in a browser, which has no module `pwd`
        raise NoSandboxError.of("it is not Linux") from None
    grant = grant_of(script, nodes=nodes, user=user, uid=os.getuid(), gid=os.getgid())
    home = environment.get("HOME") or f"/home/{user}"
    run = partial(dry_run, script, grant, str(folder), home=home, user=user, extra_folders=extra_folders)
    plan = run(inputs or DryRunInputs())
    if plan.result.limit in ("time", "machine", "records"):
        plan = _with_first_steps(plan)  # how many further steps such a run reaches is chance
    if may_hide_failures(plan) and not plan.budget.is_used_up:
        failing = run(plan.inputs._replace(status=1), max_runs=1, budget=plan.budget)
        plan = replace(plan, failing=failing)
    return plan


def _refuse_no_shell(script: JobScript) -> None:
    """Raise DocumentError for a script that is not a shell script."""
    if not is_planned(script):
        language = script.body.language or "no shell"
        message = f"{script.file} is a script of {language}: plan reads only bash scripts"
        raise DocumentError.of(message, at=f"{script.file}:1", fix="start it with #!/bin/bash")


def _with_first_steps(plan: DryRun) -> DryRun:
    """Return a plan that reached a limit, with its first steps and the least number of further steps."""
    script, shown_steps = plan.script, tuple(map(_with_each_program_once, plan.steps[:SHOWN_STEPS]))
    last_line = shown_steps[-1].line if shown_steps else 0
    launch_lines = (launch.command.line for launch in script.launches if launch.command.context.is_top_level)
    lines = [*(step.line for step in shown_steps), *(line for line in launch_lines if line > last_line)]
    steps_not_shown = 0
    if len(shown_steps) == SHOWN_STEPS:
        steps_not_shown = max(least_steps(script.body, lines) - len(shown_steps), 0)
    return replace(plan, steps=shown_steps, steps_not_shown=steps_not_shown)


def _with_each_program_once(step: Step) -> Step:
    """Return a step with each program of a task once.

    How often a loop has started a program before the limit is chance.
    """
    unique_processes: dict[object, StartedProcess] = {}
    for process in step.processes:
        unique_processes.setdefault((process.rank, process.node, process.argv, process.cwd), process)
    return replace(step, processes=tuple(unique_processes.values()))


def may_hide_failures(plan: DryRun) -> bool:
    """Return whether a job may end with 0 although its programs fail.

    If the last command of the script starts a program, the job has the exit status of this program. So it
    hides no failure of the program.
    """
    if not plan.steps or plan.result.status or plan.result.limit:
        return False
    last_command, commands = plan.script.body.last_command, plan.script.body.commands
    sets_status = any(command.name in ("exit", "trap") for command in commands)
    if last_command is None or last_command.pipe or sets_status:
        return True
    last_lines = range(last_command.line, last_command.end_line + 1)
    return not any(step.line in last_lines and not step.background for step in plan.steps)


def is_planned(script: JobScript) -> bool:
    """Return whether a dry run can follow the script, because bash reads its language."""
    return script.body.language in programs("posix")


def script_of(file: str, text: str, *, profile: KnownCluster | None, slurm: str = "") -> JobScript:
    """Return a script for `plan_of`.

    Without a profile, the cluster is unknown. Without `slurm`, the release of Slurm comes from the profile.
    """
    known_release = slurm or (profile.slurm if profile else "")
    return JobScript(
        file=file,
        text=text,
        profile=profile or NO_CLUSTER,
        slurm=known_release or DEFAULT_SLURM,
        is_release_assumed=not known_release,
    )


def read_inputs(arguments: Sequence[str], variables: Sequence[str], files: Sequence[str]) -> DryRunInputs:
    """Read the inputs of a dry run from the ARGUMENTS, --var and --file of the command line.

    Raises CommandLineError for a value without a name, and for a file that can't be read.
    """
    values: dict[str, str] = {}
    for text in variables:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise CommandLineError.of(f"'{text}' sets no variable", at="--var", fix="write --var NAME=VALUE")
        values[name] = value
    contents: dict[str, bytes] = {}
    for text in files:
        path, equals, source = text.partition("=")
        try:
            contents[path] = read_file(Path(source), MOST_BYTES) if equals else b""
        except OSError as error:
            fix = "give a smaller file" if error.errno == errno.EFBIG else near_file(source)
            message = f"can't read {source}: {error.strerror}"
            raise CommandLineError.of(message, at="--file", fix=fix) from error
        if not path.strip("/"):
            fix = "write --file PATH or PATH=FILE"
            raise CommandLineError.of(f"'{text}' names no file", at="--file", fix=fix)
    return DryRunInputs(arguments=tuple(arguments), variables=values, files=contents)
