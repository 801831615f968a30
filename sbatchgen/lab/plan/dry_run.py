"""The dry run of a script, from which `sbatchgen plan` knows the steps and processes of a job.

The script runs in a sandbox. A run may show that files, programs or variables are missing. These then get
stand-ins, and the script runs again until nothing is missing.
"""

from __future__ import annotations

import marshal
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base.finding import Place
from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.base.texts import EnvName
from sbatchgen.check.cluster_facts import KnownCluster
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.plan import installed
from sbatchgen.lab.plan.batch_job import Grant
from sbatchgen.lab.plan.missing import (
    Need,
    NeedKey,
    StartedProgram,
    TracedCommand,
    empty_test_line,
    expected_needs,
    first_needs,
    function_spans,
    functions_of,
    missing_log_folders,
    missing_paths,
    missing_programs,
    need_of_false_test,
    needs_of_subshells,
    read_trace,
    tested_variable,
)
from sbatchgen.lab.plan.stand_ins import (
    BIN,
    PLAN_MODULES,
    SCRIPT,
    SPOOL,
    box_of,
    facts_of_steps,
    knows_cpus,
    layers_of_files,
    with_covered_programs,
    with_system_layers,
)
from sbatchgen.lab.plan.started import StartRecord, Step, read_record, steps
from sbatchgen.lab.plan.step_placement import placements
from sbatchgen.lab.plan.step_tasks import number_of
from sbatchgen.lab.plan.visible_folders import VisibleFolders, path_of, visible_folders
from sbatchgen.lab.sandbox.box import PLAN_FOLDER, Box, BoxLimits, RunResult, run

_MAX_RUNS = 12  # runs of a script for one dry run
# Steps that a plan shows of a script that reached its limit. Few scripts without a loop have more.
SHOWN_STEPS = 30
# The limits of a run count processes and commands, not seconds. So a slow machine gives the same plan, but
# needs more time.
PROCESSES = 1000  # processes that all runs together may start
STARTS_PER_RUN = 400  # processes that a single run may start, so that another run can follow
COMMANDS = 20_000  # commands of bash that a run may run
MAX_SECONDS = 300.0  # seconds that all runs together may take
_CPU_LIMIT_S = 2.5  # seconds of CPU time without a new program, after which the sandbox ends the run
_IDLE_LIMIT_S = 1.5  # seconds in which no program computes, after which the sandbox ends the run
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MIN_PROCESSES = 50  # if the budget has fewer processes, no other run starts
_MACHINE_VARIABLES = frozenset(("HOSTNAME", "OSTYPE", "MACHTYPE", "HOSTTYPE"))  # bash sets these itself
# Variables such as CUDA_HOME. Modules and environments set them, so the plan does not ask the user for them.
_SOFTWARE_VARIABLE = re.compile(r"CONDA_\w+|VIRTUAL_ENV|CUDA\w*|EBROOT\w*|XDG_\w+|\w*(?:PATH|_HOME|_ROOT)")
# A line of rendered scripts for jobs with several programs. It comes from the template programs.sh.j2.
_PROGRAMS_FUNCTION = "\nrun_programs() {\n"
_PRELUDE_MESSAGE = ": readonly function"  # bash's message if a script replaces a function of prelude.sh
_KINDS_WITHOUT_PATH = ("arguments", "variable")  # kinds of needs whose names are not paths
_ARGUMENT_NAME = re.compile(r"[1-9]\d?|[@*#]")  # the name in $1, $@, $* or $#: the script's arguments


class RunBudget(NamedTuple):
    """The processes and seconds that remain for the runs of a script."""

    processes: int = PROCESSES  # processes that the runs may start
    seconds: float = MAX_SECONDS

    @property
    def is_used_up(self) -> bool:
        """Whether no other run may start."""
        return self.processes < _MIN_PROCESSES or self.seconds < 0.1

    def limits(self) -> BoxLimits:
        """Return the limits of the next run."""
        return BoxLimits(
            cpu=_CPU_LIMIT_S,
            background=self.seconds,
            seconds=self.seconds,
            idle=_IDLE_LIMIT_S,
            started=min(self.processes, STARTS_PER_RUN),
        )

    def remaining_after(self, run_result: RunResult) -> RunBudget:
        """Return the budget that remains after a run."""
        return RunBudget(self.processes - run_result.process_count, self.seconds - run_result.seconds)


class DryRunInputs(NamedTuple):
    """The inputs of a dry run: those that the user gives, and stand-ins for others that the script needs."""

    arguments: tuple[str, ...] = ()  # the arguments of the script
    variables: Mapping[str, str] = {}  # variables of the shell that submits
    # by path: the content of a file that the script sees; a folder ends in /, and * stands for any name
    files: Mapping[str, bytes] = {}
    status: int = 0  # the exit status of each program that the script starts


@frozen()
class DryRun:
    """The plan of a script: the steps that it would start, and facts about its last run in the sandbox."""

    script: JobScript
    grant: Grant  # the resources of the job
    steps: tuple[Step, ...]  # the steps that the script starts, in order
    needed: tuple[Need, ...]  # things that the script needs and that are not here
    result: RunResult  # the result of the last run, with its output
    starts: tuple[StartRecord, ...] = ()  # the starts that the stand-ins recorded
    # the environment in which the batch script started
    batch_environment: Mapping[str, str] = field(default_factory=dict)
    # the inputs of the last run, which include the stand-ins
    inputs: DryRunInputs = field(default_factory=DryRunInputs)
    # by path: the reason why the script could not see a folder of this machine, or only parts of it
    not_shown: Mapping[str, str] = field(default_factory=dict)
    steps_not_shown: int = 0  # how many steps would follow at least, if the script reached its limit
    runs: int = 1  # the number of runs that the dry run took
    budget: RunBudget = field(default_factory=RunBudget)  # processes and seconds that are left
    # a second dry run in which each program fails; None if the job's exit status shows such failures anyway
    failing: DryRun | None = None

    @property
    def profile(self) -> KnownCluster:
        """The cluster of the script."""
        return self.script.profile

    def at(self, line: int) -> Place:
        """Return the place of a line of the script; 0 stands for an unknown line."""
        file = self.script.file
        return Place(f"{file}:{line}", line, 1) if line else Place(file)

    def at_option(self, option: str) -> Place:
        """Return the place of an option in the script."""
        return self.script.at_option(option)

    @cached_property
    def trace(self) -> tuple[TracedCommand, ...]:
        """The commands that the batch script ran."""
        return read_trace(self.result.files.get("trace", ""))

    @property
    def last_message(self) -> str:
        """The last line that the script printed to stderr, or to stdout if stderr is empty."""
        texts = (
            self.result.files.get(name, "").replace(f"{SCRIPT}: ", "").strip() for name in ("err", "out")
        )
        lines = [line for text in texts for line in reversed(text.splitlines())]
        return next((line[:300] for line in lines if not line.endswith(_PRELUDE_MESSAGE)), "")


def dry_run(
    script: JobScript,
    grant: Grant,
    folder: str,
    inputs: DryRunInputs,
    *,
    home: str,
    user: str,
    extra_folders: Sequence[str] = (),
    max_runs: int = _MAX_RUNS,
    budget: RunBudget | None = None,
) -> DryRun:
    """Run a script at most `max_runs` times in the sandbox, as if a user had submitted it in `folder`.

    The job has the nodes of `grant`, which do not exist. The script sees its own folder and the
    `extra_folders`. The folder `home` is empty in the sandbox. All runs together have the limits of `budget`.

    Raises:
        NoSandboxError: This machine allows no sandbox.
    """
    environment = {
        "HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "TERM": "xterm", "LANG": "C.UTF-8",
        "PATH": f"{BIN}:{_PATH}", "BASH_ENV": f"{PLAN_FOLDER}/prelude.sh", "SLURM_SUBMIT_DIR": folder,
    }  # fmt: skip
    workdir = _absolute(script.option("chdir"), folder)
    box = box_of(script, grant, home=home, workdir=workdir)
    inputs = _with_stand_ins(inputs, missing_log_folders(script, workdir))
    with ExitStack() as copies:
        box = box._replace(system_layers=layers_of_files(box.covering_files, copies))
        always_shown = (sys.base_prefix, *extra_folders)  # this Python runs the first process of the sandbox
        visible = visible_folders(
            script.text, workdir, [folder], copies, home=home, user=user, always_shown=always_shown
        )
        first = _Attempt(box, visible, inputs, {}, budget or RunBudget())
        return _run_until_complete(script, grant, environment | grant.environment, first, max_runs)


class _Attempt(NamedTuple):
    """The sandbox, the inputs and the budget with which a script runs next."""

    box: Box
    visible: VisibleFolders
    inputs: DryRunInputs
    needed: Mapping[NeedKey, Need]  # the needs for which the run has stand-ins
    budget: RunBudget


def _run_until_complete(
    script: JobScript, grant: Grant, environment: Mapping[str, str], first: _Attempt, max_runs: int
) -> DryRun:
    """Run a script until nothing is missing, and then once more with each step on the nodes that it gets.

    In the first runs, each step has the first nodes of the job. If Slurm would give the steps the same nodes,
    the last run is left out.
    """
    bin_folders = [path for folder in first.visible.chosen_folders for path in installed.bin_folders(folder)]
    foreseen = _foreseen_needs(script, first.inputs, first.box.folder) if max_runs > 1 else {}
    attempt = first._replace(
        box=with_covered_programs(first.box, first.visible, first.visible.text, bin_folders),
        inputs=_with_stand_ins(first.inputs, foreseen.values()),
        needed=foreseen,
    )
    for run_count in range(1, max_runs + 1):
        last_run = _run_once(script, grant, environment, attempt)
        box = with_covered_programs(attempt.box, attempt.visible, last_run.result.files.get("trace", ""))
        if box != attempt.box and run_count < max_runs:
            attempt = attempt._replace(box=box)  # some programs of environments ran without their stand-ins
            continue
        attempt = attempt._replace(budget=attempt.budget.remaining_after(last_run.result))
        # A script at its limit of time may wait in a loop for a missing file. A stand-in then ends the loop.
        may_continue = last_run.result.limit in ("", "time") and run_count < max_runs
        if not may_continue or attempt.budget.is_used_up:
            break
        if (next_attempt := _next_attempt(attempt, last_run)) is None:
            break
        attempt = next_attempt
    placed_steps = placements(last_run.starts, grant, script.release, knows_cpus=knows_cpus(script))
    if placed_steps and not (last_run.result.limit or attempt.budget.is_used_up):
        job = marshal.dumps(facts_of_steps(script, grant) | {"placements": placed_steps})
        files = {**attempt.box.files, f"{PLAN_FOLDER}/job": (job, 0o644)}
        attempt = attempt._replace(box=attempt.box._replace(files=files))
        last_run = _run_once(script, grant, environment, attempt)
        attempt = attempt._replace(budget=attempt.budget.remaining_after(last_run.result))
        run_count += 1
    needs = tuple(sorted(_used_needs(attempt, last_run, foreseen), key=lambda need: need.line))
    return replace(last_run, needed=needs, inputs=attempt.inputs, runs=run_count, budget=attempt.budget)


def _foreseen_needs(script: JobScript, inputs: DryRunInputs, folder: str) -> dict[NeedKey, Need]:
    """Return the programs and files that a script's text names, unless the user or this machine has them."""
    return {
        need.key: need
        for need in expected_needs(script.body, script.text, folder)
        if need.name not in inputs.files and not path_of(need.name)
    }


def _next_attempt(attempt: _Attempt, last_run: DryRun) -> _Attempt | None:
    """Return the next attempt, with stand-ins for things that the last run missed; None if it missed none."""
    needs = first_needs(_needs_of_run(last_run, attempt.inputs))
    new_needs = {key: need for key, need in needs.items() if key not in attempt.needed}
    if not new_needs:
        return None
    names = [name for kind, name in new_needs if kind not in _KINDS_WITHOUT_PATH]
    visible = attempt.visible.with_paths(_absolute(name, attempt.box.folder) for name in names)
    if visible != attempt.visible:  # this machine has some of these paths, so they need no stand-ins
        for key, need in [*new_needs.items()]:
            if need.kind not in _KINDS_WITHOUT_PATH and path_of(need.name):
                del new_needs[key]
    inputs = _with_stand_ins(attempt.inputs, new_needs.values())
    return attempt._replace(visible=visible, needed={**attempt.needed, **new_needs}, inputs=inputs)


def _used_needs(attempt: _Attempt, last_run: DryRun, foreseen: Iterable[NeedKey]) -> Iterable[Need]:
    """Return the needs of a script that the last run used, and that this machine does not meet.

    `foreseen` has the keys of needs that come from the script's text alone. The run used such a need if one
    of its commands has the name of the file.
    """
    traced_text = "\n".join(command.text for command in last_run.trace)
    unused_keys = {(kind, name) for kind, name in foreseen if f"/{Path(name).name}" not in traced_text}
    needed = {
        key: need
        for key, need in attempt.needed.items()
        if key not in unused_keys
        # A path that exists here is not a need, even if the sandbox hides the path.
        and (need.kind in _KINDS_WITHOUT_PATH or not path_of(_absolute(need.name, attempt.box.folder)))
    }
    if last_run.steps:
        lines = _lines_that_ran(last_run)
        for need in unset_needs(last_run, attempt.inputs):
            if need.line in lines:
                needed.setdefault(need.key, need)
    return needed.values()


def _lines_that_ran(last_run: DryRun) -> set[int]:
    """Return the lines of the commands that ran. The trace has only one line of each command."""
    lines = {command.line for command in last_run.trace}
    spans = [range(command.line, command.end_line + 1) for command in last_run.script.body.commands]
    return lines.union(*(span for span in spans if not lines.isdisjoint(span)))


def _run_once(script: JobScript, grant: Grant, environment: Mapping[str, str], attempt: _Attempt) -> DryRun:
    """Run a script in the sandbox to its end or to a limit.

    `environment` has the variables of the batch script, without the variables that the user gives.
    """
    inputs, limits = attempt.inputs, attempt.budget.limits()
    batch_environment = {**environment, **inputs.variables}
    if inputs.status:
        batch_environment["__plan_status"] = str(inputs.status)
    if _PROGRAMS_FUNCTION in script.text:
        batch_environment["__plan_ready"] = "1"  # prelude.sh takes all programs as ready at once
    elif ")T" in script.text:
        batch_environment["__plan_tells_time"] = "1"  # prelude.sh lets printf '%(...)T' print a fixed time
    folder = attempt.box.folder
    # A name such as data/*.tar stands for any name, so the file gets the name data/1.tar.
    input_files = {_absolute(name.replace("*", "1"), folder): data for name, data in inputs.files.items()}
    files: dict[str, tuple[bytes, int] | str | None] = {}
    files |= {name: None if name[-1:] == "/" else (data, 0o755) for name, data in input_files.items()}
    files |= attempt.box.files
    files[f"{PLAN_FOLDER}/most"] = f"{limits.started} {COMMANDS}\n".encode(), 0o644  # limits for prelude.sh
    files[f"{PLAN_FOLDER}/clock"] = None
    argv = ["/bin/bash", *shebang_flags(script), SCRIPT, *inputs.arguments]
    with ExitStack() as layers:
        system_layers = with_system_layers(input_files, attempt.box.system_layers, layers)
        box = attempt.box._replace(files=files, system_layers=system_layers, limits=limits)
        result, not_shown = attempt.visible.run(
            lambda shown: (run(argv, batch_environment, shown.in_box(box)), shown.not_shown)
        )
    # The name of a record begins with its number, so the sorted records are in the order of the starts.
    records = [text for name, text in sorted(result.files.items()) if name[0].isdigit()]
    starts = tuple(start for text in records if (start := read_record(text)))
    started_steps = tuple(steps(starts, grant, batch_environment))
    return DryRun(
        script=script, grant=grant, steps=started_steps, needed=(), result=result, starts=starts,
        batch_environment=batch_environment, not_shown=not_shown,
    )  # fmt: skip


def shebang_flags(script: JobScript) -> list[str]:
    """Return -e and -u if the script's #! line has them: these flags decide which commands run."""
    # A word such as -xeu. A word with o is skipped, because the word after -o names a further option.
    first_flag = next(iter(script.body.flags.split()), "")
    is_read = re.fullmatch(r"-[A-Za-np-z]+", first_flag)
    return [f"-{letter}" for letter in "eu" if is_read and letter in first_flag]


def _absolute(name: str, folder: str) -> str:
    return os.path.join(folder, name)  # noqa: PTH118 - an absolute name wins


def _needs_of_run(last_run: DryRun, inputs: DryRunInputs) -> list[Need]:
    """Return the things that were missing in a run, by its messages, its programs and its false tests.

    If the run failed and none of these shows a need, the variables that no user gave are the needs.
    """
    err = last_run.result.files.get("err", "")
    programs = [
        StartedProgram(process.argv[0], process.cwd, step.line)
        for step in last_run.steps
        for process in step.processes
        if not process.container
    ]
    missing = [*missing_paths(err.replace(SCRIPT, "script"), last_run.trace), *missing_programs(programs)]
    functions = functions_of(last_run.script.body)
    if _PROGRAMS_FUNCTION in last_run.script.text:
        missing += needs_of_subshells(last_run.trace, functions)
    missing = [need for need in missing if need.name not in inputs.files]
    if last_run.steps and last_run.result.status == 0:
        return missing  # the run succeeded, so its other false tests do not matter
    if not last_run.result.limit and (need := need_of_false_test(last_run.trace, functions)):
        missing.append(need)
    return missing or [*unset_needs(last_run, inputs)] or [*_empty_variables(last_run, inputs)]


def unset_needs(last_run: DryRun, inputs: DryRunInputs) -> Iterator[Need]:
    """Yield the arguments and variables that a script uses and that no user gave."""
    body, err = last_run.script.body, last_run.result.files.get("err", "")
    spans = function_spans(body)
    argument_uses = [
        use
        for use in body.variable_uses
        if _ARGUMENT_NAME.fullmatch(use.name)
        and (use.operator[:1] not in (*"-=+", ":") or use.operator[:2] == ":?")  # not ${1:-default}
        and not any(start <= use.at < end for start, end in spans)  # $1 of a function is not an argument
    ]
    count = max([1, *(int(use.name) for use in argument_uses if use.name.isdecimal())])
    if argument_uses and not inputs.arguments and "set -- " not in last_run.script.text:
        yield Need("arguments", str(min(count, 30)), argument_uses[0].line)
    getopts = last_run.script.named("getopts")
    if getopts and not (argument_uses or inputs.arguments or last_run.steps):
        yield Need("arguments", "1", getopts[0].line)
    known_names = EnvName.BASH | _MACHINE_VARIABLES | {*last_run.batch_environment, *inputs.variables}
    # A variable with a default, as in ${NAME:-default}, needs no value of the user.
    known_names |= {use.name for use in body.variable_uses if use.operator.lstrip(":")[:1] in ("-", "=", "+")}
    text = last_run.script.text
    for use in last_run.script.first_uses(lambda name: name.isidentifier() and name not in known_names):
        if "!" not in use.operator and not _SOFTWARE_VARIABLE.fullmatch(use.name) and text[use.at] == "$":
            yield Need("variable", use.name, use.line)
    for line, name in re.findall(r": line (\d+): (\w+): ", err):  # messages of ${NAME:?message} and nounset
        if name.isidentifier() and name not in known_names and re.search(rf"\$\{{?{name}", text):
            yield Need("variable", name, number_of(line))


def _empty_variables(last_run: DryRun, inputs: DryRunInputs) -> Iterator[Need]:
    """Yield the variables that no user gave, and that the last test of the script found unset or empty."""
    body = last_run.script.body
    functions = functions_of(body)
    name, line = tested_variable(last_run.trace, functions)
    if name and name not in last_run.batch_environment and name not in inputs.variables:
        yield Need("variable", name, line)
    line = empty_test_line(last_run.trace, functions)
    names = [use.name for use in body.variable_uses if use.line == line and use.name.isidentifier()]
    for name in dict.fromkeys(names):
        assignments = [part.source.text[part.at : part.end] for part in body.assignments_of(name)]
        is_given = name in last_run.batch_environment or name in inputs.variables
        # An assignment such as NAME=${NAME:-} only keeps a value that the user may give.
        only_keeps_value = all(f"${{{name}" in text for text in assignments)
        if not is_given and only_keeps_value:
            yield Need("variable", name, line)


def _with_stand_ins(inputs: DryRunInputs, needed: Iterable[Need]) -> DryRunInputs:
    """Return the inputs with stand-ins for needs: empty files, and words such as ARG1 as values."""
    arguments, variables, files = inputs.arguments, dict(inputs.variables), dict(inputs.files)
    for need in needed:
        if need.name.startswith(SPOOL):  # Slurm's folder has nothing but the copy of the script
            continue
        if need.kind == "arguments":
            arguments = tuple(f"ARG{number}" for number in range(1, int(need.name) + 1))
        elif need.kind == "variable":
            variables[need.name] = need.name
        elif need.kind == "folder":
            files[need.name.rstrip("/") + "/"] = b""
        else:
            files[need.name] = (PLAN_MODULES / "stand_in.sh").read_bytes() if need.kind == "program" else b""
    return inputs._replace(arguments=arguments, variables=variables, files=files)
