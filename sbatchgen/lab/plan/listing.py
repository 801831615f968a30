"""The text of a plan: its steps and processes. Processes that differ only by their rank share a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from sbatchgen.base.finding import Finding
from sbatchgen.base.quoting import counted, first_names, numbers_as_text, one_line, word
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.missing import option_of
from sbatchgen.lab.plan.started import StartedProcess, Step
from sbatchgen.lab.plan.step_tasks import GPU_VARIABLES

_WIDTH = 110
# The number of similar steps that share a text, and the number of words in which the steps may differ.
_MIN_ALIKE, _MAX_DIFFERING = 3, 4
_LISTED_NODES = 6  # nodes whose GPUs are listed, if the numbers differ
_MIN_REPEATED = 5  # words about variables that the step above has too
_MAX_VALUE = 60  # characters of a variable's value, unless a process is shown in full
_MARKS = ("{rank}", "{node}", "{host}", "{local}")  # marks of a value that follows from the rank
_ANY_MARK = "{...}"  # the mark of a value that differs otherwise
_HIDDEN_PREFIXES = ("SLURM_", "SLURMD_", "PATH", *GPU_VARIABLES)

Paragraphs = list[tuple[str, list[str]]]  # the indent and the words of each paragraph


def as_text(done: DryRun, refusal: Finding | None = None, *, process: int | None = None) -> str:
    """Return a plan as text.

    `refusal` is the finding that sbatch refuses the script. `process` is the rank whose process each step
    shows in full.
    """
    lines = [headline(done), ""]
    if refusal:
        line = f" (line {refusal.place.line})" if refusal.place.line else ""
        first = one_line(f"{done.script.file}: {refusal.problem.what}{line}")
        lines = [first, headline(done).replace(done.script.file, "mended, it may start", 1), ""]
    above: list[str] = []
    for paragraphs in _merged_texts([(step, [*_step_paragraphs(step, process)]) for step in done.steps]):
        for indent, words in paragraphs:
            is_env = words[0] == "env:" and process is None
            lines += _wrapped(indent, _new_variables(above, words) if is_env else words)
            above = words if is_env else above
        lines.append("")
    if done.needed:
        lines.append("Needed, and not here:")
        for need in done.needed:
            line = f" (line {need.line})" if need.line else ""
            lines.append(f"  {_need_text(done, need.kind, need.name)}{line}")
        lines.append("")
    lines += [one_line(f"{path}: not shown: {why}") for path, why in sorted(done.not_shown.items())]
    lines += [""] * bool(done.not_shown)
    return "\n".join(lines)


def headline(done: DryRun) -> str:
    """Return the first line of a plan: the nodes, the number of steps and processes, and the end."""
    grant = done.grant
    processes = sum(map(_process_count, done.steps))
    gpus = f", {counted(grant.gpus[0], 'GPU')} on each" if any(grant.gpus) else ""
    if len({*grant.gpus}) > 1:
        gpus = f", with {first_names([*map(str, grant.gpus)], _LISTED_NODES)} GPUs on idle nodes"
    limit = done.ended.limit
    end = f"stopped: limit of {limit}" if limit else f"ends with {done.ended.status}"
    steps = f"{counted(len(done.steps), 'step')} with {counted(processes, 'process')}"
    if done.steps_not_shown:
        steps += f", and {done.steps_not_shown} more at least that are not shown"
    return one_line(f"{done.script.file}: {counted(len(grant.nodes), 'node')}{gpus}; {steps}; {end}")


def _process_count(step: Step) -> int:
    """Return how many processes a step starts, by srun or by its launcher of MPI."""
    return sum(step.by_mpi.values()) or max(step.tasks, len(step.processes))


def _need_text(done: DryRun, kind: str, name: str) -> str:
    """Return a line about a thing that the script needs, and the option that gives it."""
    if kind == "arguments":
        return f"{counted(int(name), 'argument')} of the script: sbatchgen plan FILE -- ARGUMENTS"
    if kind == "variable":
        option = option_of(name)
        why = f", of jobs with --{option}" if option else ""
        if option in done.script.options:
            why = f", which Slurm {done.script.slurm} does not set"
        return f"variable {name}{why}: --var {name}=VALUE"
    return one_line(f"{'file or folder' if kind == 'output' else kind} {name}")


def _new_variables(above: Sequence[str], words: Sequence[str]) -> Sequence[str]:
    """Return the variables of a process without the variables that the process above has too.

    All variables are returned if the process lacks a variable of `above`, or if `above` is short.
    """
    new = [text for text in words if text not in above]
    if not len(words) - len(new) == len(above) >= _MIN_REPEATED:
        return words
    return ["env:", f"as above{', and' * bool(new)}", *new]


def _merged_texts(steps: Sequence[tuple[Step, Paragraphs]]) -> Iterator[Paragraphs]:
    """Yield the text of each step. Similar steps of a line share a text, which has all values that differ."""
    for _, group in groupby(steps, lambda item: (item[0].line, [(at, len(row)) for at, row in item[1]])):
        texts = [text for _, text in group]
        paragraphs_below = ([words for _, words in text[1:]] for text in texts)
        columns = [[*zip(*rows, strict=True)] for rows in zip(*paragraphs_below, strict=True)]
        differing = sum(len({*column}) > 1 for row in columns for column in row)
        if len(texts) < _MIN_ALIKE or differing > _MAX_DIFFERING:
            yield from texts
            continue
        (indent, head), *paragraphs = texts[0]
        merged = [[*map(_values_text, row)] for row in columns]
        yield [
            (indent, [*head[:2], f"{len(texts)} steps of", *head[2:]]),
            *zip((at for at, _ in paragraphs), merged, strict=True),
        ]


def _values_text(column: Sequence[str]) -> str:
    """Return the values of a column as a word, such as --seed={1, 2, 3}."""
    values = [*dict.fromkeys(column)]
    if len(values) == 1:
        return values[0]
    heads = {value.rpartition("=")[0] for value in values}
    head = f"{heads.pop()}=" if len(heads) == 1 and "=" in values[0] else ""
    names = [value.removeprefix(head) for value in values]
    shown = ", ".join(names) if len(names) < 4 else f"{names[0]}, {names[1]} ... {names[-1]}"
    return f"{head}{{{shown}}}"


def _step_paragraphs(step: Step, chosen: int | None) -> Iterator[tuple[str, list[str]]]:
    """Yield the indent and the words of each paragraph of a step; `chosen`: the only rank to show."""
    starter = "srun," if step.is_srun else "in the batch script,"
    count = counted(_process_count(step), "process")
    meanwhile = "; the script continues meanwhile" * step.background
    yield "", [f"line {step.line}:", starter, f"{count}{meanwhile}"]
    if step.refusal:
        yield "  ", ["refused by Slurm:", one_line(step.refusal)]
    if not step.processes:
        yield "  ", [*map(_shown_word, step.command)]
    if step.by_mpi:
        yield "  ", [f"{one_line(step.command[0])} starts {_counts_on_nodes(step.by_mpi)}"]
    for group in _groups(step.processes):
        members = [process for process in group if chosen is None or process.rank == chosen]
        if members:
            yield from _group_paragraphs(members, full=chosen is not None)


def _counts_on_nodes(counts: Mapping[str, int]) -> str:
    """Return the numbers of processes on nodes as text, such as 8 processes: 4 on each of node1 to node2."""
    runs = [(count, [*nodes]) for count, nodes in groupby(counts, key=lambda node: counts[node])]
    places = (
        f"{count} on {nodes[0]}" if len(nodes) == 1 else f"{count} on each of {nodes[0]} to {nodes[-1]}"
        for count, nodes in runs
    )
    return f"{counted(sum(counts.values()), 'process')}: {', '.join(places)}"


def _group_paragraphs(group: Sequence[StartedProcess], *, full: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the paragraphs of processes that share a row; `full`: all variables, with their whole values."""
    first = group[0]
    nodes = list(dict.fromkeys(process.node for process in group))
    ranks = sorted({process.rank for process in group})
    name = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {numbers_as_text(ranks)}"
    place = one_line(nodes[0] if len(nodes) == 1 else f"{nodes[0]} to {nodes[-1]}")
    gpus: list[str] = []
    if first.gpus and len({process.gpus for process in group}) == 1:
        gpus = ["GPU" if len(first.gpus) == 1 else "GPUs", numbers_as_text(first.gpus)]
    elif first.gpus:
        counts = list(dict.fromkeys(len(process.gpus) for process in group))
        gpus = ["one GPU each, by rank"]
        if counts != [1]:
            gpus = [f"{' or '.join(map(str, counts))} GPUs each, by rank"]
    yield "  ", [f"{name} on", f"{place}:", f"{counted(first.cpus, 'CPU')}{',' * bool(gpus)}", *gpus]
    yield "    ", [*map(_shown_word, _folded_row([process.argv for process in group], group))]
    yield "    ", ["folder:", one_line(first.cwd)]
    if first.container:
        yield "    ", ["container:", one_line(first.container)]
    names = [name for name in first.env if full or not name.startswith(_HIDDEN_PREFIXES)]
    values = [
        tuple(_assignment(name, process.env.get(name), full=full) for name in names) for process in group
    ]
    if names:
        yield "    ", ["env:", *map(_shown_word, _folded_row(values, group))]


def _assignment(name: str, value: str | None, *, full: bool) -> str:
    if value is None:
        return f"{name} unset"
    shown = value if full or len(value) <= _MAX_VALUE else f"{value[:_MAX_VALUE]}..."
    return f"{name}={shown}"


def _groups(processes: Sequence[StartedProcess]) -> list[list[StartedProcess]]:
    """Return the processes in groups that share a row: the words in a group differ only by the rank."""
    alike: dict[Any, list[StartedProcess]] = {}
    for process in processes:
        alike.setdefault((len(process.argv), process.cwd, process.container), []).append(process)
    groups: dict[Any, list[StartedProcess]] = {}
    for members in alike.values():
        marked = _folded_row([process.argv for process in members], members)
        differing = [at for at, text in enumerate(marked) if text.endswith(_ANY_MARK)]
        for process in members:
            key = (id(members), *(process.argv[at] for at in differing))
            groups.setdefault(key, []).append(process)
    return [*groups.values()]


def _folded_row(rows: Sequence[Sequence[str]], group: Sequence[StartedProcess]) -> list[str]:
    """Return the words of all rows as a single row.

    A value that differs becomes a mark, such as {rank} for a value that is the rank of each process.
    """
    folded = []
    for column in zip(*rows, strict=True):
        text = column[0]
        if len(set(column)) > 1:
            head, equals, _ = text.rpartition("=")
            values = [value.rpartition("=")[2] for value in column]
            causes = (
                [str(process.rank) for process in group],
                [process.env.get("SLURM_NODEID") or "0" for process in group],
                [process.node for process in group],
                [process.env.get("SLURM_LOCALID") or "0" for process in group],
            )
            marks = (mark for mark, cause in zip(_MARKS, causes, strict=True) if cause == values)
            text = f"{head}{equals}{next(marks, _ANY_MARK)}"
        folded.append(text)
    return folded


def _shown_word(text: str) -> str:
    shown = one_line(text if text.startswith("{") or "={" in text else word(text))
    return shown if len(shown) < 400 else f"{shown[:400]}..."


def _wrapped(indent: str, words: Sequence[str]) -> Iterator[str]:
    """Yield words as lines of at most `_WIDTH` characters, unless a single word is longer."""
    line = indent
    for text in words:
        if len(line) + len(text) > _WIDTH and line.strip():
            yield line.rstrip()
            line = " " * (len(indent) + 2)
        line += f"{text} "
    yield line.rstrip()


def difference(old: DryRun, new: DryRun) -> str:
    """Return the difference between the plans of two scripts as a unified diff; "" for equal plans."""
    import difflib

    before, after = (as_text(done).splitlines()[2:] for done in (old, new))
    names = (old.script.file, new.script.file)
    changes = difflib.unified_diff(before, after, *names, lineterm="", n=2)
    return "".join(f"{line}\n" for line in changes)
