"""The dry run of a script: its runs in a sandbox, until the script lacks nothing that it needs.

After each run, the files, programs and variables that the script lacked get stand-ins, and the script runs
again.
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
from sbatchgen.check.bash import Body
from sbatchgen.check.cluster_facts import KnownCluster
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.plan import installed
from sbatchgen.lab.plan.batch_job import Grant
from sbatchgen.lab.plan.missing import (
    Need,
    TracedCommand,
    empty_test_line,
    expected_needs,
    false_test,
    false_tests_of_subshells,
    first_needs,
    functions_of,
    missing_paths,
    missing_programs,
    read_trace,
    tested_variable,
)
from sbatchgen.lab.plan.stand_ins import (
    BIN,
    HERE,
    SCRIPT,
    SPOOL,
    box_of,
    facts_of_steps,
    knows_cpus,
    layers_over,
    with_covered_programs,
    with_system_layers,
)
from sbatchgen.lab.plan.started import StartRecord, Step, read_record, steps
from sbatchgen.lab.plan.step_placement import placements
from sbatchgen.lab.plan.step_tasks import number_of
from sbatchgen.lab.plan.visible_folders import VisibleFolders, path_of, visible_folders
from sbatchgen.lab.sandbox.box import PLAN_FOLDER, Box, BoxLimits, Ended, run

_MAX_RUNS = 12  # runs of a script
# Steps that a plan shows of a script that reached its limit. Few scripts without a loop have more.
SHOWN_STEPS = 30
# The limits of a run count processes and commands, not seconds. So a slow machine gives the same plan, but
# needs more time.
PROCESSES = 1000  # processes that all runs together may start
STARTS_PER_RUN = 400  # processes that a single run may start, so that another run can follow
COMMANDS = 20_000  # commands of bash that a run may run
MAX_SECONDS = 300.0  # seconds that all runs together may take
_STILL_CPU_S = 2.5  # seconds of CPU time without a new program, after which a run is ended
_IDLE_S = 1.5  # seconds without any computing, after which a run is ended
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TOO_FEW_PROCESSES = 50  # if fewer processes remain, no other run starts
_MACHINE_VARIABLES = frozenset(("HOSTNAME", "OSTYPE", "MACHTYPE", "HOSTTYPE"))  # that bash itself sets
# Variables that modules and environments set, such as CUDA_HOME. A user does not have to give them.
_SOFTWARE_VARIABLE = re.compile(r"CONDA_\w+|VIRTUAL_ENV|CUDA\w*|EBROOT\w*|XDG_\w+|\w*(?:PATH|_HOME|_ROOT)")
# Only scripts of jobs with several programs have this function, from programs.sh.j2.
_PROGRAMS_FUNCTION = "\nrun_programs() {\n"
_PRELUDE_MESSAGE = ": readonly function"  # bash's message if a script replaces a function of prelude.sh
_NO_PATHS = ("arguments", "variable")  # kinds of needs whose names are not paths
_POSITIONAL = re.compile(r"[1-9]\d?|[@*#]")  # names such as 1 and @, of arguments of the script


class RunBudget(NamedTuple):
    """The processes and seconds that remain for the runs of a script."""

    processes: int = PROCESSES  # processes that the runs may start
    seconds: float = MAX_SECONDS

    @property
    def is_used_up(self) -> bool:
        """Whether no other run may start."""
        return self.processes < _TOO_FEW_PROCESSES or self.seconds < 0.1

    def limits(self) -> BoxLimits:
        """Return the limits of the next run."""
        processes = min(self.processes, STARTS_PER_RUN)
        return BoxLimits(
            cpu=_STILL_CPU_S,
            background=self.seconds,
            seconds=self.seconds,
            idle=_IDLE_S,
            started=processes,
        )

    def after(self, ended: Ended) -> RunBudget:
        """Return the budget for the runs that follow a run."""
        return RunBudget(self.processes - ended.started, self.seconds - ended.seconds)


class DryRunInputs(NamedTuple):
    """The inputs of a dry run: what a user gives, and stand-ins for other things that the script needs."""

    arguments: tuple[str, ...] = ()  # the arguments of the script
    variables: Mapping[str, str] = {}  # variables of the shell that submits
    # extra files: path -> content; a folder ends in /, and * stands for any name
    files: Mapping[str, bytes] = {}
    status: int = 0  # the exit status of each program that the script starts


@frozen()
class DryRun:
    """The steps that a script would start, and the events in the sandbox."""

    script: JobScript
    grant: Grant  # the resources of the job
    steps: tuple[Step, ...]  # the steps that the script starts, in order
    needed: tuple[Need, ...]  # things that the script needs and that are not here
    ended: Ended  # the end of the last run, with its output
    starts: tuple[StartRecord, ...] = ()  # the starts that the stand-ins recorded
    # the environment in which the batch script started
    batch: Mapping[str, str] = field(default_factory=dict)
    inputs: DryRunInputs = field(default_factory=DryRunInputs)  # with stand-ins for needed things
    # folders of this machine that the script could not see as a whole, with the reasons
    not_shown: Mapping[str, str] = field(default_factory=dict)
    steps_not_shown: int = 0  # the least number of further steps, if the script reached its limit
    runs: int = 1  # the number of runs until the script had the things that it needs
    budget: RunBudget = field(default_factory=RunBudget)  # processes and seconds for other runs
    failing: DryRun | None = None  # a run in which every program fails, if the job may still end with 0

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
        return read_trace(self.ended.files.get("trace", ""))

    @property
    def last_message(self) -> str:
        """The last line that the script printed to stderr, or to stdout if stderr is empty."""
        texts = (self.ended.files.get(name, "").replace(f"{SCRIPT}: ", "").strip() for name in ("err", "out"))
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
    see: Sequence[str] = (),
    max_runs: int = _MAX_RUNS,
    budget: RunBudget | None = None,
) -> DryRun:
    """Run a script at most `max_runs` times on nodes that do not exist, as if submitted in `folder`.

    The folder `home` is empty in the sandbox. The script sees its own folder and the folders in `see`.
    `budget` bounds all runs together.

    Raises:
        NoSandboxError: This machine allows no sandbox.
    """
    environment = {
        "HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "TERM": "xterm", "LANG": "C.UTF-8",
        "PATH": f"{BIN}:{_PATH}", "BASH_ENV": f"{PLAN_FOLDER}/prelude.sh", "SLURM_SUBMIT_DIR": folder,
    }  # fmt: skip
    workdir = _absolute(script.option("chdir"), folder)
    box = box_of(script, grant, home=home, workdir=workdir)
    inputs = _with_stand_ins(inputs, _missing_log_folders(script, workdir))
    with ExitStack() as copies:
        box = box._replace(system_layers=layers_over(box.over, copies))
        unchecked = (sys.base_prefix, *see)  # this Python runs the first process of the sandbox
        visible = visible_folders(
            script.text, workdir, [folder], copies, home=home, user=user, unchecked=unchecked
        )
        first = _Attempt(box, visible, inputs, {}, budget or RunBudget())
        return _run_until_complete(script, grant, environment | grant.environment, first, max_runs)


class _Attempt(NamedTuple):
    """The sandbox, the inputs and the budget of the next run of a script."""

    box: Box
    visible: VisibleFolders
    inputs: DryRunInputs
    needed: Mapping[tuple[str, str], Need]  # by kind and name: needs for which the run has stand-ins
    budget: RunBudget


def _run_until_complete(
    script: JobScript, grant: Grant, batch: Mapping[str, str], first: _Attempt, max_runs: int
) -> DryRun:
    """Run a script until it lacks nothing, and then once more with its steps on the nodes that Slurm chooses.

    The last run is left out if each step gets the first nodes of the job, as in the runs before.
    """
    bin_folders = [path for folder in first.visible.by_user for path in installed.bin_folders(folder)]
    foreseen = _foreseen_needs(script, first.inputs, first.box.folder) if max_runs > 1 else {}
    attempt = first._replace(
        box=with_covered_programs(first.box, first.visible, first.visible.text, bin_folders),
        inputs=_with_stand_ins(first.inputs, foreseen.values()),
        needed=foreseen,
    )
    for number in range(1, max_runs + 1):
        done = _run_once(script, grant, batch, attempt)
        box = with_covered_programs(attempt.box, attempt.visible, done.ended.files.get("trace", ""))
        if box != attempt.box and number < max_runs:
            attempt = attempt._replace(box=box)  # a program of an environment ran in place of its stand-in
            continue
        attempt = attempt._replace(budget=attempt.budget.after(done.ended))
        # After the limit of time, a stand-in may end the loop that waits for a missing file.
        if done.ended.limit not in ("", "time") or number == max_runs or attempt.budget.is_used_up:
            break
        if (following := _next_attempt(attempt, done)) is None:
            break
        attempt = following
    placed = placements(done.starts, grant, script.release, knows_cpus=knows_cpus(script))
    if placed and not (done.ended.limit or attempt.budget.is_used_up):
        job = marshal.dumps(facts_of_steps(script, grant) | {"placed": placed})
        files = {**attempt.box.files, f"{PLAN_FOLDER}/job": (job, 0o644)}
        attempt = attempt._replace(box=attempt.box._replace(files=files))
        done = _run_once(script, grant, batch, attempt)
        attempt = attempt._replace(budget=attempt.budget.after(done.ended))
        number += 1
    needs = tuple(sorted(_used_needs(attempt, done, foreseen), key=lambda need: need.line))
    return replace(done, needed=needs, inputs=attempt.inputs, runs=number, budget=attempt.budget)


def _foreseen_needs(script: JobScript, inputs: DryRunInputs, folder: str) -> dict[tuple[str, str], Need]:
    """Return the needs that the text of a script shows, and that neither the user nor this machine meets."""
    return {
        need[:2]: need
        for need in expected_needs(script.body, script.text, folder)
        if need.name not in inputs.files and not path_of(need.name)
    }


def _next_attempt(attempt: _Attempt, done: DryRun) -> _Attempt | None:
    """Return the next attempt, with the things that the last run lacked; None if the run lacked nothing."""
    needs = first_needs(_needs_of_run(done, attempt.inputs))
    new = {key: need for key, need in needs.items() if key not in attempt.needed}
    if not new:
        return None
    paths = [_absolute(name, attempt.box.folder) for kind, name in new if kind not in _NO_PATHS]
    visible = attempt.visible.with_paths(paths)
    if visible != attempt.visible:  # this machine has some of these paths, so they need no stand-ins
        new = {key: need for key, need in new.items() if need.kind in _NO_PATHS or not path_of(need.name)}
    inputs = _with_stand_ins(attempt.inputs, new.values())
    return attempt._replace(visible=visible, needed={**attempt.needed, **new}, inputs=inputs)


def _used_needs(attempt: _Attempt, done: DryRun, foreseen: Iterable[tuple[str, str]]) -> Iterable[Need]:
    """Return the needs of a script that this machine does not meet, and that the last run used.

    `foreseen` has the keys of needs that only the script's text shows. Such a need counts if a command of
    the run has the name of its file.
    """
    traced = {entry.line for entry in done.trace}
    commands_run = "\n".join(entry.command for entry in done.trace)
    unused = {key for key in foreseen if f"/{Path(key[1]).name}" not in commands_run}
    needed = {
        key: need
        for key, need in attempt.needed.items()
        if key not in unused
        # The sandbox hides some paths that this machine has.
        and (need.kind in _NO_PATHS or not path_of(_absolute(need.name, attempt.box.folder)))
    }
    # A command of several lines has only one of them in the trace.
    spans = [range(command.line, command.end_line + 1) for command in done.script.body.commands]
    reached = {line for span in spans if not traced.isdisjoint(span) for line in span}
    for need in unset_needs(done, attempt.inputs) if done.steps else ():
        if need.line in reached | traced:
            needed.setdefault(need[:2], need)
    return needed.values()


def _missing_log_folders(script: JobScript, workdir: str) -> Iterator[Need]:
    """Yield the missing folders of --output and --error. Slurm makes them, or the job does not start."""
    for option in ("output", "error"):
        folder = os.path.dirname(script.option(option))  # noqa: PTH120 - it may be empty
        if folder and not set("%$\\") & set(folder) and not path_of(path := _absolute(folder, workdir)):
            yield Need("folder", os.path.normpath(path), 0)


def _run_once(script: JobScript, grant: Grant, batch: Mapping[str, str], attempt: _Attempt) -> DryRun:
    """Run a script in the sandbox to its end or to a limit.

    `batch` is the environment of the batch script without the variables of the inputs.
    """
    inputs, limits = attempt.inputs, attempt.budget.limits()
    batch = {**batch, **inputs.variables}
    if inputs.status:
        batch["__plan_status"] = str(inputs.status)
    if _PROGRAMS_FUNCTION in script.text:
        batch["__plan_ready"] = "1"  # prelude.sh takes all programs as ready at once
    elif ")T" in script.text:
        batch["__plan_tells_time"] = "1"  # prelude.sh lets printf '%(...)T' print a fixed time
    folder = attempt.box.folder
    input_files = {_absolute(name.replace("*", "1"), folder): data for name, data in inputs.files.items()}
    files: dict[str, tuple[bytes, int] | str | None] = {}
    files |= {name: None if name[-1:] == "/" else (data, 0o755) for name, data in input_files.items()}
    files |= attempt.box.files
    limits_text = f"{limits.started} {COMMANDS}\n"  # prelude.sh reads the limits
    files[f"{PLAN_FOLDER}/most"] = limits_text.encode(), 0o644
    files[f"{PLAN_FOLDER}/clock"] = None
    argv = ["/bin/bash", *flags_of(script), SCRIPT, *inputs.arguments]
    with ExitStack() as layers:
        system_layers = with_system_layers(input_files, attempt.box.system_layers, layers)
        box = attempt.box._replace(files=files, system_layers=system_layers, limits=limits)
        ended, not_shown = attempt.visible.run(
            lambda shown: (run(argv, batch, shown.in_box(box)), shown.not_shown)
        )
    records = [text for name, text in sorted(ended.files.items()) if name[0].isdigit()]  # in order
    starts = tuple(start for text in records if (start := read_record(text)))
    started = tuple(steps(starts, grant, batch))
    return DryRun(
        script=script, grant=grant, steps=started, needed=(), ended=ended, starts=starts, batch=batch,
        not_shown=not_shown,
    )  # fmt: skip


def flags_of(script: JobScript) -> list[str]:
    """Return the flags in the script's #! line that decide which commands run: -e and -u, as in -xeu."""
    # A group of letters without o, because the word after -o is the name of an option.
    groups = [flag for flag in script.body.flags.split()[:1] if re.fullmatch(r"-[A-Za-np-z]+", flag)]
    return [f"-{letter}" for letter in "eu" if groups and letter in groups[0]]


def _absolute(name: str, folder: str) -> str:
    return os.path.join(folder, name)  # noqa: PTH118 - an absolute name wins


def _needs_of_run(done: DryRun, inputs: DryRunInputs) -> list[Need]:
    """Return the things that a script lacked in a run, by its messages, its programs and its false tests.

    After a failure without such signs, the variables count that no user gave.
    """
    err = done.ended.files.get("err", "")
    programs = [
        (process.argv[0], process.cwd, step.line)
        for step in done.steps
        for process in step.processes
        if not process.container
    ]
    lacked = [*missing_paths(err.replace(SCRIPT, "script"), done.trace), *missing_programs(programs)]
    if _PROGRAMS_FUNCTION in done.script.text:
        lacked += false_tests_of_subshells(done.trace, functions_of(done.script.body))
    lacked = [need for need in lacked if need.name not in inputs.files]
    if done.steps and done.ended.status == 0:
        return lacked  # the run succeeded, so its other false tests do not matter
    functions = functions_of(done.script.body)
    if not done.ended.limit and (need := false_test(done.trace, functions)):
        lacked.append(need)
    return lacked or [*unset_needs(done, inputs)] or [*_empty_variables(done, inputs)]


def unset_needs(done: DryRun, inputs: DryRunInputs) -> Iterator[Need]:
    """Yield the arguments and variables that a script uses and that no user gave."""
    body, err = done.script.body, done.ended.files.get("err", "")
    spans = _function_spans(body)
    positional = [
        use
        for use in body.variable_uses
        if _POSITIONAL.fullmatch(use.name)
        and (use.operator[:1] not in (*"-=+", ":") or use.operator[:2] == ":?")  # not ${1:-default}
        and not any(start <= use.at < end for start, end in spans)  # $1 of a function is not an argument
    ]
    count = max([1, *(int(use.name) for use in positional if use.name.isdecimal())])
    if positional and not inputs.arguments and "set -- " not in done.script.text:
        yield Need("arguments", str(min(count, 30)), positional[0].line)
    options = done.script.named("getopts")
    if options and not (positional or inputs.arguments or done.steps):
        yield Need("arguments", "1", options[0].line)
    optional = {use.name for use in body.variable_uses if use.operator.lstrip(":")[:1] in ("-", "=", "+")}
    text = done.script.text
    known = EnvName.BASH | done.batch.keys() | inputs.variables.keys() | _MACHINE_VARIABLES | optional
    for use in done.script.first_uses(lambda name: name.isidentifier() and name not in known):
        if "!" not in use.operator and not _SOFTWARE_VARIABLE.fullmatch(use.name) and text[use.at] == "$":
            yield Need("variable", use.name, use.line)
    for match in re.finditer(r": line (\d+): (\w+): ", err):  # messages of ${NAME:?message} and of nounset
        if match[2].isidentifier() and match[2] not in known and re.search(rf"\$\{{?{match[2]}", text):
            yield Need("variable", match[2], number_of(match[1]))


def _function_spans(body: Body) -> list[tuple[int, int]]:
    """Return the offsets of the start and the end of each function in a script."""
    parts = [(part.context.function, part.at, part.end) for part in body.commands]
    parts += [(part.context.function, part.at, part.end) for part in body.assignments]
    spans: dict[str, tuple[int, int]] = {}
    for name, at, end in parts:
        if name:
            first, last = spans.get(name, (at, end))
            spans[name] = min(first, at), max(last, end)
    return [*spans.values()]


def _empty_variables(done: DryRun, inputs: DryRunInputs) -> Iterator[Need]:
    """Yield the variables that the last test of the script found unset or empty, and that no user gave."""
    body = done.script.body
    functions = functions_of(body)
    name, line = tested_variable(done.trace, functions)
    if name and name not in done.batch and name not in inputs.variables:
        yield Need("variable", name, line)
    line = empty_test_line(done.trace, functions)
    for name in dict.fromkeys(use.name for use in body.variable_uses if use.line == line):
        assignments = [part.source.text[part.at : part.end] for part in body.assignments if part.name == name]
        is_given = not name.isidentifier() or name in done.batch or name in inputs.variables
        # The script itself gives no other value: each of its assignments is like NAME=${NAME:-}.
        if not is_given and all(f"${{{name}" in text for text in assignments):
            yield Need("variable", name, line)


def _with_stand_ins(inputs: DryRunInputs, needed: Iterable[Need]) -> DryRunInputs:
    """Return the inputs with stand-ins for needs: empty files, and words such as ARG1 in place of values."""
    arguments, variables, files = inputs.arguments, dict(inputs.variables), dict(inputs.files)
    for need in needed:
        if need.name.startswith(SPOOL):  # a folder with only Slurm's copy of the script
            continue
        if need.kind == "arguments":
            arguments = tuple(f"ARG{number}" for number in range(1, int(need.name) + 1))
        elif need.kind == "variable":
            variables[need.name] = need.name
        elif need.kind == "folder":
            files[need.name.rstrip("/") + "/"] = b""
        else:
            files[need.name] = (HERE / "stand_in.sh").read_bytes() if need.kind == "program" else b""
    return inputs._replace(arguments=arguments, variables=variables, files=files)
