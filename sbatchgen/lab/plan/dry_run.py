"""The dry run of a script: it runs again, with the things that it lacked, until it starts its programs."""

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
    Traced,
    absent,
    by_line,
    empty_test,
    expected,
    false_test,
    false_tests,
    functions_of,
    missing,
    set_test,
    traced,
)
from sbatchgen.lab.plan.sight import Sight, path_of, sight_of
from sbatchgen.lab.plan.stand_ins import (
    BIN,
    HERE,
    SCRIPT,
    SPOOL,
    box_of,
    covering,
    facts_of_steps,
    knows_cpus,
    laid_over,
    layers_with,
)
from sbatchgen.lab.plan.started import StartRecord, Step, read, steps
from sbatchgen.lab.plan.step_placement import placements
from sbatchgen.lab.plan.step_tasks import number_of
from sbatchgen.lab.sandbox.box import PLACE, Box, BoxLimits, Ended, run

ROUNDS = 12
MANY = 30  # steps that a plan shows of a script that reached its limit; few scripts without a loop have more
# The limits of a run count processes and commands, not seconds. So a slow machine gives the same plan, but
# needs more time.
PROCESSES = 1000  # processes that all runs together may start
EACH = 400  # processes that a run may start, so that another run can follow
COMMANDS = 20_000  # commands of bash that a run follows
WAITING = 300.0  # seconds that all runs may take
_STILL_CPU_S = 2.5  # seconds of CPU time without a new program, after which a run is ended
_IDLE_S = 1.5  # seconds without any computing, after which a run is ended
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FEW_LEFT = 50  # processes that are too few for another run
_MACHINE_VARIABLES = frozenset(("HOSTNAME", "OSTYPE", "MACHTYPE", "HOSTTYPE"))
# Variables that modules set.
_SOFTWARE_VARIABLE = re.compile(r"CONDA_\w+|VIRTUAL_ENV|CUDA\w*|EBROOT\w*|XDG_\w+|\w*(?:PATH|_HOME|_ROOT)")
_PROGRAMS_FUNCTION = "\nrun_programs() {\n"  # of programs.sh.j2; a plan has all programs ready at once
_PRELUDE_MESSAGE = ": readonly function"  # bash's message if a script replaces a function of prelude.sh
_NO_PATHS = ("arguments", "variable")
_POSITIONAL = re.compile(r"[1-9]\d?|[@*#]")


class Left(NamedTuple):
    """The processes and seconds that are left for the runs of a script."""

    processes: int = PROCESSES  # processes that the runs may start
    seconds: float = WAITING

    @property
    def is_used_up(self) -> bool:
        """Whether no other run may start."""
        return self.processes < _FEW_LEFT or self.seconds < 0.1

    def limits(self) -> BoxLimits:
        """Return the limits of the next run."""
        most = min(self.processes, EACH)
        seconds = self.seconds
        return BoxLimits(cpu=_STILL_CPU_S, left=seconds, seconds=seconds, idle=_IDLE_S, started=most)

    def after(self, ended: Ended) -> Left:
        """Return what is left after a run."""
        return Left(self.processes - ended.started, self.seconds - ended.seconds)


class Given(NamedTuple):
    """The inputs of a dry run that a user gives."""

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
    ended: Ended
    starts: tuple[StartRecord, ...] = ()  # the starts that the stand-ins recorded
    # the environment in which the batch script started
    batch: Mapping[str, str] = field(default_factory=dict)
    given: Given = field(default_factory=Given)  # the inputs, with stand-ins for needed things
    # folders of this machine that the script could not see as a whole, with the reasons
    not_shown: Mapping[str, str] = field(default_factory=dict)
    steps_not_shown: int = 0  # the least number of further steps, if the script reached its limit
    runs: int = 1  # the number of runs until the script had the things that it needs
    left: Left = field(default_factory=Left)  # processes and seconds for other runs
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
    def trace(self) -> tuple[Traced, ...]:
        """The commands that the batch script ran."""
        return traced(self.ended.files.get("trace", ""))

    @property
    def said(self) -> str:
        """The last line that the script printed to stderr, or to stdout if stderr is empty."""
        texts = (self.ended.files.get(name, "").replace(f"{SCRIPT}: ", "").strip() for name in ("err", "out"))
        lines = [line for text in texts for line in reversed(text.splitlines())]
        return next((line[:300] for line in lines if not line.endswith(_PRELUDE_MESSAGE)), "")


def dry_run(
    script: JobScript,
    grant: Grant,
    folder: str,
    given: Given,
    *,
    home: str,
    user: str,
    see: Sequence[str] = (),
    rounds: int = ROUNDS,
    left: Left | None = None,
) -> DryRun:
    """Run a script at most `rounds` times on nodes that do not exist, as if submitted in `folder`.

    The folder `home` is empty in the sandbox. The script sees its own folder and the folders in `see`.

    Raises:
        NoSandboxError: This machine allows no sandbox.
    """
    base = {
        "HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "TERM": "xterm", "LANG": "C.UTF-8",
        "PATH": f"{BIN}:{_PATH}", "BASH_ENV": f"{PLACE}/prelude.sh", "SLURM_SUBMIT_DIR": folder,
    }  # fmt: skip
    workdir = _absolute(script.option("chdir"), folder)
    box = box_of(script, grant, home=home, workdir=workdir)
    given = _with_stand_ins(given, _log_folders(script, workdir))
    with ExitStack() as copies:
        box = box._replace(laid=laid_over(box.over, copies))
        given_folders = (sys.base_prefix, *see)  # this Python starts the program
        sight = sight_of(script.text, workdir, [folder], copies, home=home, user=user, given=given_folders)
        batch = base | grant.environment
        return _run_until_complete(script, grant, given, batch, box, sight, rounds, left or Left())


class _Round(NamedTuple):
    """The sandbox and the inputs of a run of a script."""

    box: Box
    sight: Sight
    given: Given
    needed: Mapping[tuple[str, str], Need]  # needs for which the run has stand-ins
    left: Left


def _run_until_complete(  # noqa: PLR0917 - of one caller
    script: JobScript,
    grant: Grant,
    given: Given,
    batch: Mapping[str, str],
    box: Box,
    sight: Sight,
    rounds: int,
    left: Left,
) -> DryRun:
    """Run a script until it lacks nothing; then run it with its steps on the nodes that Slurm chooses."""
    places = [place for folder in sight.chosen for place in installed.below(folder)]
    at_first = _expected(script, given, box.folder) if rounds > 1 else {}
    box, given = covering(box, sight, sight.text, places), _with_stand_ins(given, at_first.values())
    has = _Round(box, sight, given, at_first, left)
    for number in range(1, rounds + 1):
        has = has._replace(box=has.box._replace(limits=has.left.limits()))
        done = _run_once(script, grant, has.given, batch, has.box, has.sight)
        wider = covering(has.box, has.sight, done.ended.files.get("trace", ""))
        if wider != has.box and number < rounds:
            has = has._replace(box=wider)  # a program of an environment ran in place of its stand-in
            continue
        has = has._replace(left=has.left.after(done.ended))
        if done.ended.limit not in ("", "time") or number == rounds or has.left.is_used_up:
            break
        if (more := _next_round(has, done)) is None:
            break
        has = more
    placed = placements(done.starts, grant, script.release, cpus_known=knows_cpus(script))
    if placed and not (done.ended.limit or has.left.is_used_up):
        job = marshal.dumps(facts_of_steps(script, grant) | {"placed": placed})
        files = {**has.box.files, f"{PLACE}/job": (job, 0o644)}
        has = has._replace(box=has.box._replace(files=files, limits=has.left.limits()))
        done = _run_once(script, grant, has.given, batch, has.box, has.sight)
        has = has._replace(left=has.left.after(done.ended))
        number += 1
    needs = tuple(sorted(_needs(has, done, at_first), key=lambda need: need.line))
    return replace(done, needed=needs, given=has.given, runs=number, left=has.left)


def _expected(script: JobScript, given: Given, folder: str) -> dict[tuple[str, str], Need]:
    """Return the needs in the text of a script that neither the user nor this machine meets."""
    return {
        need[:2]: need
        for need in expected(script.body, script.text, folder)
        if need.name not in given.files and not path_of(need.name)
    }


def _next_round(has: _Round, done: DryRun) -> _Round | None:
    """Return the next round, with the things that the last run lacked; None if the run lacked nothing."""
    lacked = {key: need for key, need in by_line(_lacking(done, has.given)).items() if key not in has.needed}
    if not lacked:
        return None
    wider = has.sight.wider(
        [_absolute(name, has.box.folder) for kind, name in lacked if kind not in _NO_PATHS]
    )
    if wider != has.sight:  # this machine has some of these paths
        lacked = {key: need for key, need in lacked.items() if key[0] in _NO_PATHS or not path_of(key[1])}
    given = _with_stand_ins(has.given, lacked.values())
    return has._replace(sight=wider, needed={**has.needed, **lacked}, given=given)


def _needs(has: _Round, done: DryRun, at_first: Iterable[tuple[str, str]]) -> Iterable[Need]:
    """Return the needs of a script, without files that are here and without needs that no command used."""
    needed = {
        key: need  # without paths that only the sandbox hides
        for key, need in has.needed.items()
        if key[0] in _NO_PATHS or not path_of(_absolute(key[1], has.box.folder))
    }
    ran = {entry.line for entry in done.trace}
    spans = [range(command.line, command.end_line + 1) for command in done.script.body.commands]
    reached = {line for span in spans if not ran.isdisjoint(span) for line in span}
    commands_run = "\n".join(entry.command for entry in done.trace)
    unused = {key for key in at_first if f"/{Path(key[1]).name}" not in commands_run}
    needed = {key: need for key, need in needed.items() if key not in unused}
    for need in unset(done, has.given) if done.steps else ():
        if need.line in reached | ran:
            needed.setdefault(need[:2], need)
    return needed.values()


def _log_folders(script: JobScript, workdir: str) -> Iterator[Need]:
    """Yield the missing folders of --output and --error. Slurm makes them, or does not start the job."""
    for option in ("output", "error"):
        folder = os.path.dirname(script.option(option))  # noqa: PTH120 - it may be empty
        if folder and not set("%$\\") & set(folder) and not path_of(path := _absolute(folder, workdir)):
            yield Need("folder", os.path.normpath(path), 0)


def _run_once(  # noqa: PLR0917 - of one caller
    script: JobScript, grant: Grant, given: Given, batch: Mapping[str, str], box: Box, sight: Sight
) -> DryRun:
    batch = {**batch, **given.variables}
    if given.status:
        batch["__plan_status"] = str(given.status)
    if _PROGRAMS_FUNCTION in script.text:
        batch["__plan_ready"] = "1"
    elif ")T" in script.text:
        batch["__plan_tells_time"] = "1"
    given_files = {_absolute(name.replace("*", "1"), box.folder): data for name, data in given.files.items()}
    files = {name: None if name[-1:] == "/" else (data, 0o755) for name, data in given_files.items()}
    most = f"{box.limits.started} {COMMANDS}\n".encode()
    box = box._replace(files={**files, **box.files, f"{PLACE}/most": (most, 0o644), f"{PLACE}/clock": None})
    argv = ["/bin/bash", *flags_of(script), SCRIPT, *given.arguments]
    with ExitStack() as layers:
        box = box._replace(laid=layers_with(given_files, box.laid, layers))
        ended, left_out = sight.run(lambda shown: (run(argv, batch, shown.in_box(box)), shown.left_out))
    starts = tuple(
        start for name, text in sorted(ended.files.items()) if name[0].isdigit() and (start := read(text))
    )
    started = tuple(steps(starts, grant, batch))
    return DryRun(
        script=script, grant=grant, steps=started, needed=(), ended=ended, starts=starts, batch=batch,
        not_shown=left_out,
    )  # fmt: skip


def flags_of(script: JobScript) -> list[str]:
    """Return the flags of the first line that decide which commands run: -e and -u, as in -xeu."""
    given = [flag for flag in script.body.flags.split()[:1] if re.fullmatch(r"-[A-Za-np-z]+", flag)]
    return [f"-{letter}" for letter in "eu" if given and letter in given[0]]


def _absolute(name: str, folder: str) -> str:
    return os.path.join(folder, name)  # noqa: PTH118 - an absolute name wins


def _lacking(done: DryRun, given: Given) -> list[Need]:
    err = done.ended.files.get("err", "")
    processes = [(each, step.line) for step in done.steps for each in step.processes if not each.container]
    programs = [(process.argv[0], process.cwd, line) for process, line in processes]
    lacked = [*missing(err.replace(SCRIPT, "script"), done.trace), *absent(programs)]
    if _PROGRAMS_FUNCTION in done.script.text:
        lacked += false_tests(done.trace, functions_of(done.script.body))
    lacked = [need for need in lacked if need.name not in given.files]
    if done.steps and done.ended.status == 0:
        return lacked
    functions = functions_of(done.script.body)
    if not done.ended.limit and (need := false_test(done.trace, functions)):
        lacked.append(need)
    return lacked or [*unset(done, given)] or [*_empty_variables(done, given)]


def unset(done: DryRun, given: Given) -> Iterator[Need]:
    """Yield the arguments and variables that a script uses and that no user gave."""
    body, err = done.script.body, done.ended.files.get("err", "")
    parts = [(part.context.function, part.at, part.end) for part in body.commands]
    parts += [(part.context.function, part.at, part.end) for part in body.sets]
    inside: dict[str, tuple[int, int]] = {}  # where each function begins and ends
    for name, at, end in parts:
        if name:
            first, last = inside.get(name, (at, end))
            inside[name] = min(first, at), max(last, end)
    numbers = [
        use
        for use in body.uses
        if _POSITIONAL.fullmatch(use.name)
        and (use.operator[:1] not in (*"-=+", ":") or use.operator[:2] == ":?")
        and not any(at <= use.at < end for at, end in inside.values())
    ]
    count = max([1, *(int(use.name) for use in numbers if use.name.isdecimal())])
    if numbers and not given.arguments and "set -- " not in done.script.text:
        yield Need("arguments", str(min(count, 30)), numbers[0].line)
    if not numbers and not given.arguments and not done.steps and (options := done.script.named("getopts")):
        yield Need("arguments", "1", options[0].line)
    optional = {use.name for use in body.uses if use.operator.lstrip(":")[:1] in ("-", "=", "+")}
    text = done.script.text
    known = EnvName.BASH | done.batch.keys() | given.variables.keys() | _MACHINE_VARIABLES | optional
    for use in done.script.first_uses(lambda name: name.isidentifier() and name not in known):
        if "!" not in use.operator and not _SOFTWARE_VARIABLE.fullmatch(use.name) and text[use.at] == "$":
            yield Need("variable", use.name, use.line)
    for match in re.finditer(r": line (\d+): (\w+): ", err):  # messages of ${NAME:?message} and of nounset
        if match[2].isidentifier() and match[2] not in known and re.search(rf"\$\{{?{match[2]}", text):
            yield Need("variable", match[2], number_of(match[1]))


def _empty_variables(done: DryRun, given: Given) -> Iterator[Need]:
    """Yield the variables that the last test of the script found empty, and that only a user can set."""
    body = done.script.body
    functions = functions_of(body)
    name, line = set_test(done.trace, functions)
    if name and name not in done.batch and name not in given.variables:
        yield Need("variable", name, line)
    line = empty_test(done.trace, functions)
    for name in dict.fromkeys(use.name for use in body.uses if use.line == line and use.name.isidentifier()):
        texts = [each.source.text[each.at : each.end] for each in body.sets if each.name == name]
        is_given = name in done.batch or name in given.variables
        if not is_given and all(f"${{{name}" in text for text in texts):  # NAME=${NAME:-}
            yield Need("variable", name, line)


def _with_stand_ins(given: Given, needed: Iterable[Need]) -> Given:
    """Return the inputs with stand-ins for needs: empty files, and names in place of values."""
    arguments, variables, files = given.arguments, dict(given.variables), dict(given.files)
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
    return given._replace(arguments=arguments, variables=variables, files=files)
