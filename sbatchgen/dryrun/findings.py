"""What only running shows to be wrong: values that are empty, processes that never meet, steps that wait."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations

from sbatchgen.bash.tools import SYNTAX
from sbatchgen.dryrun.run import DryRun
from sbatchgen.dryrun.starts import StartedProcess, Step
from sbatchgen.errors import Problem
from sbatchgen.finding import Finding, Place, Severity
from sbatchgen.job.launches import LAUNCHERS
from sbatchgen.quoting import counted

RULE = "plan"
_RANKS = ("node-rank", "machine-rank")
_ADDRESSES = ("rdzv-endpoint", "master-addr", "main-process-ip")
_PORTS = ("master-port", "main-process-port")
_MODULES = {  # of python -m
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
_SHARING = ("overlap", "exact", "exclusive", "cpus-per-task")
_OF_GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")


class StartedLauncher:
    """A launcher of PyTorch in a process: its name and its options."""

    def __init__(self, process: StartedProcess) -> None:
        """Read the words of a process; `name` is "" if it is not a launcher."""
        words = list(process.argv)
        self.process = process
        program = words[0].rpartition("/")[2]
        if program.startswith("python"):
            rest = [word for word in words[1:] if word not in ("-u", "-m")]
            first = rest[0] if rest else ""
            program = _MODULES.get(first, "torchrun" if first.endswith("training/torchrun.py") else "")
            words = rest
        verb = f"{program} {words[1]}" if len(words) > 1 else program
        self.name = next((name for name in (program, verb) if name in LAUNCHERS), "")
        self.options: dict[str, str] = {}
        self.rest: Sequence[str] = ()
        if self.name:
            self._read(words[1 + (self.name == verb and verb != program) :])

    def _read(self, words: Sequence[str]) -> None:
        syntax = SYNTAX[self.name]
        at = 0
        while at < len(words) and words[at].startswith("-") and words[at] != "--":
            name, equals, value = words[at].lstrip("-").replace("_", "-", 3).partition("=")
            name = name.replace("_", "-")
            at += 1
            if name in syntax.values and not equals and at < len(words):
                value = words[at]
                at += 1
            self.options[name] = value
        self.rest = words[at:]

    @property
    def nodes(self) -> int:
        """The number of nodes for which it waits; 0 if its options do not say."""
        if not self.name or "standalone" in self.options:
            return 0
        value = self.options.get(LAUNCHERS[self.name].nodes, "1")
        return int(value) if value.isdecimal() and len(value) < 6 else 0

    @property
    def starts_nothing(self) -> bool:
        """Whether its command ends before the program that it should start."""
        shows = {"help", "h", "version"} & {*self.options}
        return bool(self.name) and not self.rest and not shows

    def first(self, names: Sequence[str]) -> tuple[str, str]:
        """The first of these options that it has, and its value."""
        return next(((name, self.options[name]) for name in names if name in self.options), ("", ""))


def findings(done: DryRun, failing: DryRun | None = None) -> tuple[Finding, ...]:
    """Return what is wrong with what a script starts; `failing` is its run when every program fails."""
    every = (*_findings(done), *(_lost(done, failing) if failing else ()))
    return tuple({finding.problem.what: finding for finding in reversed(every)}.values())[::-1]


def _lost(done: DryRun, failing: DryRun) -> Iterator[Finding]:
    """A job that ends with 0 although all that it started failed."""
    if failing.ended.status == 0 and not failing.ended.limit and failing.steps:
        line = done.steps[-1].line
        what = (
            "every program that this script starts failed, and it ended with 0: Slurm counts it as completed"
        )
        yield _finding(
            done, line, what, "end the script with the status of the training: exit $?, or set -e", "info"
        )


def _findings(done: DryRun) -> Iterator[Finding]:
    yield from _ending(done)
    launchers = [StartedLauncher(process) for step in done.steps for process in step.processes]
    launchers = [launcher for launcher in launchers if launcher.name]
    for step in done.steps:
        if step.refusal and not any(_node_lists(done, step)):
            yield _finding(
                done, step.line, f"Slurm refuses this step: {step.refusal}", "see -n, -N and -c of srun"
            )
        yield from _empty(done, step)
        of_step = [StartedLauncher(process) for process in step.processes]
        yield from _apart(done, step, [launcher for launcher in of_step if launcher.nodes > 1])
        yield from _gpus(done, step, of_step)
        if bare := next((each for each in of_step if each.starts_nothing), None):
            fix = f"print the words before this line: {bare.name} needs the program that it starts"
            yield _finding(
                done, step.line, f"{bare.name} has no program: its command ends with its options", fix
            )
    yield from _absent(done, launchers)
    yield from _waiting(done)


def _finding(done: DryRun, line: int, what: str, fix: str = "", severity: Severity = "warning") -> Finding:
    place = Place(f"{done.script.file}:{line}" if line else done.script.file, line, 1 if line else 0)
    return Finding(severity, Problem(what, place.text, fix), rule=RULE, place=place)


def _ending(done: DryRun) -> Iterator[Finding]:
    """The end before any program, and the end at a limit."""
    line = done.trace[-1][0] if done.trace else 0
    is_broken = re.search("syntax error|unexpected EOF", done.ended.files.get("err", "")) is not None
    if done.ended.limit == "time":
        what = "the script still ran after some seconds here, where every program ends at once"
        yield _finding(
            done, line, what, "see the loop there: it waits for something that did not happen", "info"
        )
    elif done.ended.limit:
        yield _finding(done, line, "the script needed more than 1 GiB of memory here, before any program", "")
    elif not done.steps and done.ended.status and (is_broken or not done.needed):
        what = f"the script ends with {done.ended.status} before it starts a program"
        severity: Severity = "warning" if is_broken else "info"
        yield _finding(done, line, f"{what}: {done.said}" if done.said else what, "see this line", severity)


def _empty(done: DryRun, step: Step) -> Iterator[Finding]:
    """Options without the value that a variable should have given, and values with line breaks."""
    yield from _node_lists(done, step)
    if any(need.kind in ("arguments", "variable") for need in done.needed):
        return  # which what is empty may follow from
    said = set()
    for words in dict.fromkeys(process.argv for process in step.processes):
        for word, following in zip(words, (*words[1:], None), strict=True):
            name, equals, value = word.partition("=")
            variable = _variable_of(done, name) if name.startswith("--") and name not in said else ""
            given = value if equals else following
            if not variable:
                continue
            if not given or (not equals and given.startswith("--")):
                said.add(name)
                what = f"{name} has no value: {variable} is empty here"
                yield _finding(
                    done, step.line, what, f"print {variable} before this line, and see what sets it"
                )
            elif "\n" in given.strip() and name.lstrip("-").replace("_", "-") in _ONE_LINE:
                said.add(name)
                yield _lines(done, step, name, given)


def _node_lists(done: DryRun, step: Step) -> Iterator[Finding]:
    """The lists of nodes of a step: empty, or names on several lines, which Slurm does not read."""
    for word, following in zip(step.command, (*step.command[1:], ""), strict=True) if step.is_srun else ():
        name, equals, value = word.partition("=")
        if name not in ("-w", "--nodelist", "-N", "--nodes", "-n", "--ntasks"):
            continue
        given = value if equals else following
        if not given:
            what = f"srun {name} has no value: the variable in it is empty here"
            yield _finding(done, step.line, what, "print the variable before this line, and see what sets it")
        elif "\n" in given.strip():
            yield _lines(done, step, f"srun {name}", given)


def _lines(done: DryRun, step: Step, name: str, value: str) -> Finding:
    first, second = value.strip().split("\n")[:2]
    what = f"{name} has a value of several lines: '{first}', then '{second}'"
    return _finding(
        done, step.line, what, "nodes=($(scontrol show hostnames ...)), without quotes, is an array"
    )


_VALUES = frozenset(name for launcher in LAUNCHERS for name in SYNTAX[launcher].values)
_ONE_LINE = frozenset(
    (
        *_RANKS,
        *_ADDRESSES,
        *_PORTS,
        *(each.nodes for each in LAUNCHERS.values()),
        "nodelist",
        "nproc-per-node",
    )
)


def _variable_of(done: DryRun, option: str) -> str:
    """The variable that is the whole value of an option in the script, unless it may well be empty."""
    takes_one = (
        option.lstrip("-").replace("_", "-") in _VALUES
    )  # of another, what follows may be more options
    before = r'(?:=|[ \t]+)"?' if takes_one else r'(?:="?|[ \t]+")'
    pattern = rf"{re.escape(option)}{before}\$\{{?(\w+)\}}?\"?(?=[\s\"']|$)"
    names = {*re.findall(pattern, done.script.text)}
    name = names.pop() if len(names) == 1 else ""
    return name if _is_computed(done, name) else ""


def _is_computed(done: DryRun, name: str, depth: int = 4) -> bool:
    """Whether the script alone, with what Slurm says, computes the value of a variable."""
    if name in done.batch:
        return True
    sets = [each for each in done.script.body.sets if each.name == name]
    needed = {need.name for need in done.needed}
    if not sets or not depth or name in needed or any(each.value == "" or each.by == "for" for each in sets):
        return False
    for each in sets:
        text = each.source.text[each.at : each.end]
        programs = {command.name for command in done.script.body.commands if each.at <= command.at < each.end}
        own = each.word.variables if each.word else ()
        if (
            not programs <= _COMPUTING
            or ":-" in text
            or ":=" in text
            or re.search(r"[<{]\(|\$\{?[*@#\d]", text)
        ):
            return False
        if not all(other == name or _is_computed(done, other, depth - 1) for other in own):
            return False
    return True


_COMPUTING = frozenset(
    """
    scontrol hostname echo head tail sed awk cut tr getent ip nproc printf expr bc basename dirname wc sort
    uniq grep srun [ test true
    """.split()  # noqa: SIM905
)


def _apart(done: DryRun, step: Step, launchers: Sequence[StartedLauncher]) -> Iterator[Finding]:
    """Launchers of one step that have different places to meet, or the same number."""
    if (
        len({launcher.process.node for launcher in launchers}) < 2
        or len({each.name for each in launchers}) > 1
    ):
        return
    for names, variable in ((_ADDRESSES, "MASTER_ADDR"), (_PORTS, "MASTER_PORT")):
        option = launchers[0].first(names)[0] or ""
        values = {launcher.first(names)[1]: launcher.process.node for launcher in launchers}
        if option and len(values) > 1:
            (value, at), (other, there), *_ = values.items()
            what = f"the nodes don't meet: --{option} is {value} on {at}, and {other} on {there}"
            yield _finding(done, step.line, what, f"set {variable} in the batch script, before srun")
    option, rank = launchers[0].first(_RANKS)
    backend = launchers[0].options.get("rdzv-backend", "static")
    if rank and backend == "static" and {launcher.first(_RANKS)[1] for launcher in launchers} == {rank}:
        what = f"all {len(launchers)} nodes get --{option} {rank}: the batch script expands it, not the tasks"
        fix = f"srun bash -c '... --{option} $SLURM_NODEID ...', in single quotes"
        yield _finding(done, step.line, what, fix)


def _gpus(done: DryRun, step: Step, launchers: Sequence[StartedLauncher]) -> Iterator[Finding]:
    """A launcher that starts more processes than it has GPUs."""
    for launcher in launchers:
        asked = launcher.first(("nproc-per-node", "num-gpus"))
        has = len(launcher.process.gpus)
        if has and asked[1].isdecimal() and int(asked[1]) > has:
            what = f"--{asked[0]} {asked[1]}, but a process has {counted(has, 'GPU')}"
            yield _finding(done, step.line, what, f"--{asked[0]}={has}, or ask for {asked[1]} GPUs on a node")
            return


def _absent(done: DryRun, launchers: Sequence[StartedLauncher]) -> Iterator[Finding]:
    """Launchers that wait for more nodes than start one."""
    if done.ended.limit:
        return
    of = [launcher for launcher in launchers if launcher.nodes > 1 and launcher.name != "deepspeed"]
    groups: dict[tuple[str, int, str], list[StartedLauncher]] = {}
    for launcher in of:
        groups.setdefault((launcher.name, launcher.nodes, launcher.first(_ADDRESSES)[1]), []).append(launcher)
    for (name, nodes, _), members in groups.items():
        if len(members) < nodes and len(of) < nodes:
            line = next(s.line for s in done.steps if members[0].process in s.processes)
            option = LAUNCHERS[name].nodes
            what = f"{name} waits for {nodes} nodes (--{option}), and starts on {len(members)}"
            fix = f"start it with srun on every node: srun --nodes={nodes} --ntasks-per-node=1 {name} ..."
            yield _finding(done, line, what, fix)


def _waiting(done: DryRun) -> Iterator[Finding]:
    """Steps that are meant to run at the same time, and run one after the other."""
    steps = [step for step in done.steps if step.is_srun and not step.refusal]
    if any([*_node_lists(done, step)] for step in steps):
        return
    said = set()
    for first, second in combinations(steps, 2):
        shared = {process.node for process in first.processes} & {
            process.node for process in second.processes
        }
        if not (first.background and first.waits == second.waits and shared) or first.line in said:
            continue
        if _shares(done, first) or _shares(done, second):
            continue
        said.add(first.line)
        what = f"this step waits until that of line {first.line} ends: each takes all of {min(shared)}"
        fix = "srun --overlap to share, or --exact with -n, -c and the GPUs of each step"
        yield _finding(done, second.line, what, fix)


def _shares(done: DryRun, step: Step) -> bool:
    """Whether a step takes less than all of its nodes."""
    text = " ".join(step.command)
    names = {word.partition("=")[0] for word in step.command if word.startswith("-")}
    if "--overlap" in names:
        return True
    exact = any(f"--{name}" in names for name in _SHARING) or re.search(r" -c ?\d", text) is not None
    of_gpus = any(f"--{name}" in names for name in _OF_GPUS) or re.search(r" -G ?\d", text) is not None
    return exact and (of_gpus or not done.grant.gpus)
