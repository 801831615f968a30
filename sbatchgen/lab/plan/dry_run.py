"""The dry run of a script: again and again, with what it lacked, until it has started its programs."""

from __future__ import annotations

import functools
import importlib.util
import marshal
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

from sbatchgen.base.finding import Place
from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.base.machine.temporary import temporary_folder
from sbatchgen.base.texts import EnvName
from sbatchgen.check.cluster_facts import KnownCluster
from sbatchgen.check.executables.program import MODULES, PROGRAMS, commands, programs
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
from sbatchgen.lab.plan.started import StartRecord, Step, read, steps
from sbatchgen.lab.plan.step import number_of
from sbatchgen.lab.plan.step_placement import placements
from sbatchgen.lab.sandbox.box import PLACE, Box, BoxLimits, Ended, run

ROUNDS = 12
MANY = 30  # steps of a script that does not loop; of one that reached its limit, no more are shown
# How far the runs of a script come is counted in processes and commands, and not in time: a slow machine says
# the same, later.
PROCESSES = 1000  # that all runs together may start
EACH = 400  # that a run may start, so that another one can follow
COMMANDS = 20_000  # of bash, one after the other
WAITING = 300.0  # seconds that all runs may take
_STILL = 2.5  # seconds of processors in which nothing new starts, after which a run is ended
_IDLE = 1.5  # seconds in which nothing computes, after which a run is ended
_SPOOL = "/var/spool/slurmd/job1000001/"
SCRIPT = f"{_SPOOL}slurm_script"
_BIN = f"{PLACE}/bin"
_HERE = Path(__file__).parent
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WRAPPERS = programs("wrapper") - programs("system")
_STAND_INS = commands("stand-in", "step", "launcher", "mpi", "interpreter", "container") | {
    name.partition(" ")[0] for name in _WRAPPERS
}
_LINKS = {f"{_BIN}/{name}": f"{PLACE}/stand_in.sh" for name in _STAND_INS}
_CALLED = frozenset(("date", "mktemp", "openssl", "shuf", "sleep"))  # by their stand-ins
_COVERED = ("/usr/bin", "/usr/local/bin", f"{sys.base_prefix}/bin")
_COVERED_ALL = ("/usr", "/bin", "/nix", "/gnu")  # which the sandbox shows
_FEW_LEFT = 50  # processes, with which no run comes far
_RANDOM_BYTES = 1 << 16
_FEW = 3  # files over those of a folder that are mounted one by one
# What step.py loads of this package; the reader of host lists with `units` only where it needs that.
_OF_PACKAGE = (
    "sbatchgen/check/executables/command_options",
    "sbatchgen/check/sbatch/hostlist",
    "sbatchgen/base/units",
)
_UNCHECKED = (1).to_bytes(4, "little") + bytes(8)  # PEP 552: a module is not compared with its source
_OFF = re.compile(rb"\bset \+x\b")
_OF_MACHINE = frozenset(("HOSTNAME", "OSTYPE", "MACHTYPE", "HOSTTYPE"))
_OF_SOFTWARE = re.compile(
    r"CONDA_\w+|VIRTUAL_ENV|CUDA\w*|EBROOT\w*|XDG_\w+|\w*(?:PATH|_HOME|_ROOT)"
)  # modules set them
_WAITS = "\nrun_programs() {\n"  # of templates/programs.sh.j2: in a plan all are ready at once
_OURS = ": readonly function"  # of prelude.sh, which the script can't replace
_NO_PATHS = ("arguments", "variable")
_POSITIONAL = re.compile(r"[1-9]\d?|[@*#]")


class Left(NamedTuple):
    """What is left for the runs of a script."""

    processes: int = PROCESSES  # to be started
    seconds: float = WAITING

    @property
    def is_used_up(self) -> bool:
        """Whether no other run may start."""
        return self.processes < _FEW_LEFT or self.seconds < 0.1

    def limits(self) -> BoxLimits:
        """Return the limits of the next run."""
        most = min(self.processes, EACH)
        return BoxLimits(cpu=_STILL, left=self.seconds, seconds=self.seconds, idle=_IDLE, started=most)

    def after(self, ended: Ended) -> Left:
        """Return what is left after a run."""
        return Left(self.processes - ended.started, self.seconds - ended.seconds)


class Given(NamedTuple):
    """What a user gives a dry run."""

    arguments: tuple[str, ...] = ()  # of the script
    variables: Mapping[str, str] = {}  # variables of the shell that submits
    # files and folders (which end in /) that count as there, and their texts; * is for any name
    files: Mapping[str, bytes] = {}
    status: int = 0  # the exit status of each program that the script starts


@frozen()
class DryRun:
    """What a script would start."""

    script: JobScript
    grant: Grant  # what the job holds
    steps: tuple[Step, ...]  # what it starts, in order
    needed: tuple[Need, ...]  # what it needs from outside and is not here
    ended: Ended
    starts: tuple[StartRecord, ...] = ()  # what the stand-ins recorded
    # the environment in which the batch script started
    batch: Mapping[str, str] = field(default_factory=dict)
    given: Given = field(default_factory=Given)  # what it was given, and what it needed
    # folders of this machine that the script could not see as a whole, and why
    not_shown: Mapping[str, str] = field(default_factory=dict)
    steps_not_shown: int = 0  # how many steps there are at least beside `steps`, if it reached its limit
    runs: int = 1  # how often the script ran until it had what it needs
    left: Left = field(default_factory=Left)  # for other runs
    failing: DryRun | None = None  # its run where every program fails, if the job may end with 0 then

    @property
    def profile(self) -> KnownCluster:
        """The cluster of the script."""
        return self.script.profile

    def at(self, line: int) -> Place:
        """A line of the script; 0 if it is not known."""
        file = self.script.file
        return Place(f"{file}:{line}", line, 1) if line else Place(file)

    def at_option(self, option: str) -> Place:
        """Where the script has an option."""
        return self.script.at_option(option)

    @cached_property
    def trace(self) -> tuple[Traced, ...]:
        """The commands that the batch script ran."""
        return traced(self.ended.files.get("trace", ""))

    @property
    def said(self) -> str:
        """The last line that the script printed to stderr; to stdout, if that has none."""
        texts = (self.ended.files.get(name, "").replace(f"{SCRIPT}: ", "").strip() for name in ("err", "out"))
        lines = [line for text in texts for line in reversed(text.splitlines()) if not line.endswith(_OURS)]
        return next((line[:300] for line in lines), "")


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
    """Run a script on nodes that do not exist, as if submitted in `folder`: at most `rounds` times.

    The folder `home` is empty in the sandbox; the script sees its own folder, and those in `see` too.

    Raises:
        NoSandboxError: This machine allows no sandbox.
    """
    base = {
        "HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "TERM": "xterm", "LANG": "C.UTF-8",
        "PATH": f"{_BIN}:{_PATH}", "BASH_ENV": f"{PLACE}/prelude.sh", "SLURM_SUBMIT_DIR": folder,
    }  # fmt: skip
    workdir = _absolute(script.option("chdir"), folder)
    box = _box(script, grant, home=home, workdir=workdir)
    with ExitStack() as copies:
        box = box._replace(laid=_laid(box.over, copies))
        given_folders = (sys.base_prefix, *see)  # this Python starts the program
        sight = sight_of(script.text, workdir, [folder], copies, home=home, user=user, given=given_folders)
        return _again(script, grant, given, base | grant.environment, box, sight, rounds, left or Left())


def _again(  # noqa: PLR0917 - of one caller
    script: JobScript,
    grant: Grant,
    given: Given,
    batch: Mapping[str, str],
    box: Box,
    sight: Sight,
    rounds: int,
    left: Left,
) -> DryRun:
    """Run a script until it lacks nothing that it can be given; then with its steps where Slurm puts them."""
    workdir = box.folder
    places = [place for folder in sight.chosen for place in installed.below(folder)]
    box = _covering(box, sight, sight.text, places)
    at_first = {
        need[:2]: need
        for need in (expected(script.body, script.text, workdir) if rounds > 1 else ())
        if need.name not in given.files and not path_of(need.name)
    }
    needed, given = {**at_first}, _with(given, at_first.values())
    for number in range(1, rounds + 1):
        box = box._replace(limits=left.limits())
        done = _once(script, grant, given, batch, box, sight)
        if (wider := _covering(box, sight, done.ended.files.get("trace", ""))) != box and number < rounds:
            box = wider  # what ran was a program of an environment, and not its stand-in
            continue
        left = left.after(done.ended)
        if done.ended.limit not in ("", "time") or number == rounds or left.is_used_up:
            break
        lacked = {key: need for key, need in by_line(_lacking(done, given)).items() if key not in needed}
        if not lacked:
            break
        paths = [_absolute(name, workdir) for kind, name in lacked if kind not in _NO_PATHS]
        before, sight = sight, sight.wider(paths)
        if sight != before:  # this machine has some of it
            lacked = {key: need for key, need in lacked.items() if key[0] in _NO_PATHS or not path_of(key[1])}
        needed |= lacked
        given = _with(given, lacked.values())
    placed = placements(done.starts, grant, script.release, cpus_known=knows_cpus(script))
    if placed and not (done.ended.limit or left.is_used_up):
        job = marshal.dumps(facts_of_steps(script, grant) | {"placed": placed})
        box = box._replace(files={**box.files, f"{PLACE}/job": (job, 0o644)}, limits=left.limits())
        done = _once(script, grant, given, batch, box, sight)
        left = left.after(done.ended)
        number += 1
    needed = {
        key: need  # but for what is hidden in the sandbox alone
        for key, need in needed.items()
        if key[0] in _NO_PATHS or not path_of(_absolute(key[1], workdir))
    }
    ran = {entry.line for entry in done.trace}
    spans = [range(command.line, command.end_line + 1) for command in script.body.commands]
    reached = {line for span in spans if not ran.isdisjoint(span) for line in span}
    commands_run = "\n".join(entry.command for entry in done.trace)
    unused = {key for key in at_first if f"/{Path(key[1]).name}" not in commands_run}
    needed = {key: need for key, need in needed.items() if key not in unused}
    for need in unset(done, given) if done.steps else ():
        if need.line in reached | ran:
            needed.setdefault(need[:2], need)
    needs = tuple(sorted(needed.values(), key=lambda need: need.line))
    return replace(done, needed=needs, given=given, runs=number, left=left)


def _box(script: JobScript, grant: Grant, *, home: str, workdir: str) -> Box:
    text = _OFF.sub(b"set -x", script.text.encode("utf-8", "surrogateescape"))
    job = marshal.dumps(facts_of_steps(script, grant))
    stand_ins = _stand_ins()
    covers = {os.path.realpath(path) for path in _covered()}
    return Box(
        home=home,
        hostname=grant.nodes[0],
        folder=workdir,
        files={**_LINKS, **stand_ins, f"{PLACE}/job": (job, 0o644), SCRIPT: (text, 0o700)},
        over=dict.fromkeys(sorted(covers), stand_ins[f"{PLACE}/stand_in.sh"]) | _of_chance(),
    )


def _of_chance() -> dict[str, tuple[bytes, int]]:
    """Return files in place of those that give random bytes: they are the same in each plan."""
    some = random.Random(1)  # noqa: S311 - no secret
    return {
        "/dev/urandom": (some.randbytes(_RANDOM_BYTES), 0o444),
        "/dev/random": (some.randbytes(_RANDOM_BYTES), 0o444),
        "/proc/sys/kernel/random/uuid": (b"00000000-0000-4000-8000-000000000001\n", 0o444),
    }


def _covering(box: Box, sight: Sight, text: str, places: Iterable[str] = ()) -> Box:
    """Return a box with stand-ins over the programs of environments that a text names, and of `places`."""
    visible = [*sight.chosen, *sight.named, *sight.given, *_COVERED_ALL, sys.base_prefix]
    folders = [*places, *installed.folders_of(text, box.folder)]
    seen = [
        folder
        for folder in folders
        if _is_below(folder, visible) or _is_below(os.path.realpath(folder), visible)
    ]
    stand_in = _stand_ins()[f"{PLACE}/stand_in.sh"]
    over, files = dict(box.over), dict(box.files)
    for path in installed.programs_of(seen, _STAND_INS - _CALLED):
        real = os.path.realpath(path)
        if real in over or path.startswith(f"{PLACE}/"):
            continue
        if Path(real).is_file() and _is_below(real, visible):
            over[real] = stand_in
        else:  # its interpreter is hidden, as in the home folder
            files.setdefault(real, stand_in)
    return box._replace(over=over, files=files)


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _laid(over: Mapping[str, tuple[bytes, int]], copies: ExitStack) -> dict[str, str]:
    """Write the files for folders that get many, laid over these at once: a mount each takes 0.2 ms."""
    laid: dict[str, str] = {}
    for folder, count in Counter(path.rpartition("/")[0] for path in over).items():
        if count > _FEW:
            made = copies.enter_context(
                temporary_folder("sbatchgen-laid-", in_memory=True)
            )  # TMPDIR may take no layer
            (made / "files").mkdir()
            laid[folder] = str(made / "files")
    for path, (data, mode) in over.items():
        folder, _, name = path.rpartition("/")
        if folder in laid:
            Path(laid[folder], name).write_bytes(data)
            Path(laid[folder], name).chmod(mode)
    return laid


def _covered() -> Iterator[str]:
    """Yield the programs of the system that have a stand-in, also where a script sets PATH."""
    for folder in filter(os.path.isdir, _COVERED):
        for name in (_STAND_INS - _CALLED).intersection(os.listdir(folder)):  # noqa: PTH208 - names
            if os.path.exists(path := f"{folder}/{name}"):  # noqa: PTH110 - many; no link to nothing
                yield path


def _once(  # noqa: PLR0917 - of one caller
    script: JobScript, grant: Grant, given: Given, batch: Mapping[str, str], box: Box, sight: Sight
) -> DryRun:
    batch = {**batch, **given.variables}
    if given.status:
        batch["__plan_status"] = str(given.status)
    if _WAITS in script.text:
        batch["__plan_ready"] = "1"
    elif ")T" in script.text:
        batch["__plan_tells_time"] = "1"
    given_files = {_absolute(name.replace("*", "1"), box.folder): data for name, data in given.files.items()}
    files = {name: None if name[-1:] == "/" else (data, 0o755) for name, data in given_files.items()}
    most = f"{box.limits.started} {COMMANDS}\n".encode()
    box = box._replace(files={**files, **box.files, f"{PLACE}/most": (most, 0o644), f"{PLACE}/clock": None})
    argv = ["/bin/bash", *flags_of(script), SCRIPT, *given.arguments]
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


@functools.cache
def _stand_ins() -> dict[str, tuple[bytes, int]]:
    """Return the programs that run in the sandbox; modules also compiled, as step.py starts often."""
    files = {name: ((_HERE / name).read_bytes(), 0o755) for name in ("stand_in.sh", "prelude.sh", "clock.sh")}
    files["wrappers"] = (f"|{'|'.join(sorted(_WRAPPERS | programs('container')))}|\n".encode(), 0o644)
    files["modules"] = (f"|{'|'.join(sorted(MODULES))}|\n".encode(), 0o644)
    for module in ("step", *_OF_PACKAGE):
        path = _HERE / "step.py" if module == "step" else _HERE.parents[2] / f"{module}.py"
        folder, _, name = f"/{module}".rpartition("/")
        code = SourceFileLoader(name, str(path)).get_code(name)
        compiled = importlib.util.MAGIC_NUMBER + _UNCHECKED + marshal.dumps(code)
        files[f"{module}.py"] = (path.read_bytes(), 0o755)
        cached = f"{folder}/__pycache__/{name}.{sys.implementation.cache_tag}.pyc"
        files[cached.lstrip("/")] = (compiled, 0o644)
    return {f"{PLACE}/{name}": file for name, file in files.items()}


def facts_of_steps(script: JobScript, grant: Grant) -> dict[str, Any]:
    """Return what step.py knows of a job, in types that marshal takes."""
    asked = script.resources
    return {
        "nodes": list(grant.nodes),
        "tasks": list(grant.tasks),
        "cpus": list(grant.cpus),
        "gpus": list(grant.gpus),
        "asked_gpus": list(grant.asked_gpus),
        "gpus_per_node": bool(asked.gpus_per_node),
        "gpus_per_task": sum(count for _, count in asked.gpus_per_task or ()),
        "release": script.release,
        "exact": knows_cpus(script),
        "alone": script.has_nodes_alone,
        "programs": {name: vars(PROGRAMS[name]) for name in _WRAPPERS | programs("step", "container")},
        "answers": programs("answers"),
    }


def knows_cpus(script: JobScript) -> bool:
    """Whether a script says how many CPUs its job has on each node."""
    asked = script.resources
    return not script.has_nodes_alone and bool(asked.ntasks_per_node or asked.ntasks or asked.ntasks_per_gpu)


def _absolute(name: str, folder: str) -> str:
    return os.path.join(folder, name)  # noqa: PTH118 - an absolute one wins


def _lacking(done: DryRun, given: Given) -> list[Need]:
    err = done.ended.files.get("err", "")
    processes = [(each, step.line) for step in done.steps for each in step.processes if not each.container]
    programs = [(process.argv[0], process.cwd, line) for process, line in processes]
    lacked = [*missing(err.replace(SCRIPT, "script"), done.trace), *absent(programs)]
    if _WAITS in done.script.text:
        lacked += false_tests(done.trace, functions_of(done.script.body))
    lacked = [need for need in lacked if need.name not in given.files]
    if done.steps and done.ended.status == 0:
        return lacked
    functions = functions_of(done.script.body)
    if not done.ended.limit and (need := false_test(done.trace, functions)):
        lacked.append(need)
    return lacked or [*unset(done, given)] or [*_tested(done, given)]


def unset(done: DryRun, given: Given) -> Iterator[Need]:
    """The arguments and variables that a script uses and that are not given."""
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
    known = EnvName.BASH | done.batch.keys() | given.variables.keys() | _OF_MACHINE | optional
    for use in done.script.first_uses(lambda name: name.isidentifier() and name not in known):
        if "!" not in use.operator and not _OF_SOFTWARE.fullmatch(use.name) and text[use.at] == "$":
            yield Need("variable", use.name, use.line)
    for match in re.finditer(r": line (\d+): (\w+): ", err):  # ${NAME:?message}, and with nounset
        if match[2].isidentifier() and match[2] not in known and re.search(rf"\$\{{?{match[2]}", text):
            yield Need("variable", match[2], number_of(match[1]))


def _tested(done: DryRun, given: Given) -> Iterator[Need]:
    """The variables that the last test of the script found empty or not set, and that only a user can set."""
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


def _with(given: Given, needed: Iterable[Need]) -> Given:
    """Give a run what the last one lacked: empty files, and names in place of values."""
    arguments, variables, files = given.arguments, dict(given.variables), dict(given.files)
    for need in needed:
        if need.name.startswith(_SPOOL):  # where Slurm's copy of the script is alone
            continue
        if need.kind == "arguments":
            arguments = tuple(f"ARG{number}" for number in range(1, int(need.name) + 1))
        elif need.kind == "variable":
            variables[need.name] = need.name
        elif need.kind == "folder":
            files[need.name.rstrip("/") + "/"] = b""
        else:
            files[need.name] = (_HERE / "stand_in.sh").read_bytes() if need.kind == "program" else b""
    return given._replace(arguments=arguments, variables=variables, files=files)
