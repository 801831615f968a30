"""Writes a plan as text: its steps and processes. Processes that differ only by their rank share a row.

Paragraphs are lists of words until the end, so that similar steps can be merged word by word.
"""

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

_WIDTH = 110  # characters of a line
_MIN_SIMILAR_STEPS = 3  # fewer similar steps do not share a text
_MAX_DIFFERENT_WORDS = 4  # words in which similar steps may differ
_LISTED_NODES = 6  # nodes whose numbers of GPUs are listed
_MIN_REPEATED = (
    5  # words of the list of variables, "env:" among them, that become "as above"; fewer are repeated
)
_MAX_VALUE = 60  # characters of a variable's value, unless a process is shown in full
# Marks in a row of several processes. Each stands for the value that differs: the rank, the index or the name
# of the node, or the number on the node.
_MARKS = ("{rank}", "{node}", "{host}", "{local}")
_OTHER_MARK = "{...}"  # the mark for a value that differs in another way
# Variables that each job has.
_HIDDEN_NAMES = ("PATH", *GPU_VARIABLES)
_HIDDEN_PREFIXES = ("SLURM_", "SLURMD_")

Paragraphs = list[tuple[str, list[str]]]  # the indent and the words of each paragraph


def as_text(plan: DryRun, refusal: Finding | None = None, *, process: int | None = None) -> str:
    """Return a plan as text.

    `refusal` is the finding that sbatch refuses the script, if it does. `process` is a rank: then each step
    shows only the process of this rank, in full.
    """
    lines = [headline(plan), ""]
    if refusal:
        line = f" (line {refusal.place.line})" if refusal.place.line else ""
        refused = one_line(f"{plan.script.file}: {refusal.problem.what}{line}")
        lines = [refused, headline(plan).replace(plan.script.file, "mended, it may start", 1), ""]
    last_env: list[str] = []  # the words of the last `env:` paragraph
    for paragraphs in _merged_texts([[*_step_paragraphs(step, process)] for step in plan.steps]):
        for indent, words in paragraphs:
            is_env = words[0] == "env:" and process is None
            lines += _wrapped(indent, _new_variables(last_env, words) if is_env else words)
            last_env = words if is_env else last_env
        lines.append("")
    if plan.needed:
        lines.append("Needed, and not here:")
        for need in plan.needed:
            line = f" (line {need.line})" if need.line else ""
            lines.append(f"  {_need_text(plan, need.kind, need.name)}{line}")
        lines.append("")
    lines += [one_line(f"{path}: not shown: {why}") for path, why in sorted(plan.not_shown.items())]
    if plan.not_shown:
        lines.append("")
    return "\n".join(lines)


def headline(plan: DryRun) -> str:
    """Return the first line of a plan: the nodes, the number of steps and processes, and the end."""
    grant = plan.grant
    processes = sum(map(_process_count, plan.steps))
    gpus = f", {counted(grant.gpus[0], 'GPU')} on each" if any(grant.gpus) else ""
    if len({*grant.gpus}) > 1:
        gpus = f", with {first_names([*map(str, grant.gpus)], _LISTED_NODES)} GPUs on idle nodes"
    limit = plan.result.limit
    end = f"stopped: limit of {limit}" if limit else f"ends with {plan.result.status}"
    steps = f"{counted(len(plan.steps), 'step')} with {counted(processes, 'process')}"
    if plan.steps_not_shown:
        steps += f", and {plan.steps_not_shown} more at least that are not shown"
    return one_line(f"{plan.script.file}: {counted(len(grant.nodes), 'node')}{gpus}; {steps}; {end}")


def _process_count(step: Step) -> int:
    """Return how many processes a step starts, by srun or by its launcher of MPI."""
    return sum(step.by_mpi.values()) or max(step.tasks, len(step.processes))


def _need_text(plan: DryRun, kind: str, name: str) -> str:
    """Return a line about a thing that the script needs, and the option of `plan` that gives it."""
    if kind == "arguments":
        return f"{counted(int(name), 'argument')} of the script: sbatchgen plan FILE -- ARGUMENTS"
    if kind == "variable":
        option = option_of(name)
        why = f", of jobs with --{option}" if option else ""
        if option in plan.script.options:
            why = f", which Slurm {plan.script.slurm} does not set"
        return f"variable {name}{why}: --var {name}=VALUE"
    return one_line(f"{'file or folder' if kind == 'output' else kind} {name}")


def _new_variables(above: Sequence[str], words: Sequence[str]) -> Sequence[str]:
    """Return the words of an `env:` paragraph, with "as above" for variables of the paragraph above.

    All words are returned if the paragraph lacks a variable of `above`, or if `above` is short.
    """
    new = [text for text in words if text not in above]
    repeated = len(words) - len(new)
    if repeated != len(above) or repeated < _MIN_REPEATED:
        return words
    return ["env:", f"as above{', and' * bool(new)}", *new]


def _merged_texts(steps: Sequence[Paragraphs]) -> Iterator[Paragraphs]:
    """Yield the text of each step. Similar steps of one line share a text with the values of all steps.

    Consecutive steps are similar if they have the same first paragraph, and their other paragraphs have the
    same indents, the same numbers of words and at most `_MAX_DIFFERENT_WORDS` different words.
    """

    def layout(text: Paragraphs) -> tuple[list[str], list[tuple[str, int]]]:
        return text[0][1], [(indent, len(words)) for indent, words in text]

    for _, group in groupby(steps, layout):
        texts = [*group]
        rows_of_steps = ([words for _, words in text[1:]] for text in texts)
        # For each paragraph, and for each word in it: the words of all steps at this place.
        columns = [[*zip(*rows, strict=True)] for rows in zip(*rows_of_steps, strict=True)]
        differing = sum(len({*column}) > 1 for row in columns for column in row)
        if len(texts) < _MIN_SIMILAR_STEPS or differing > _MAX_DIFFERENT_WORDS:
            yield from texts
            continue
        (indent, head), *paragraphs = texts[0]
        merged = [[*map(_values_text, row)] for row in columns]
        yield [
            (indent, [*head[:2], f"{len(texts)} steps of", *head[2:]]),
            *zip((indent for indent, _ in paragraphs), merged, strict=True),
        ]


def _values_text(words: Sequence[str]) -> str:
    """Return words that may differ as one word, such as --seed={1, 2, 3}."""
    different = [*dict.fromkeys(words)]
    if len(different) == 1:
        return different[0]
    # The part up to the last = is written once, if all words have it.
    heads = {text.rpartition("=")[0] for text in different}
    head = f"{heads.pop()}=" if len(heads) == 1 and "=" in different[0] else ""
    # So is a colon or a comma at the end.
    tail = next((mark for mark in ":," if all(text.endswith(mark) for text in different)), "")
    values = [text.removeprefix(head).removesuffix(tail) for text in different]
    shown = ", ".join(values) if len(values) < 4 else f"{values[0]}, {values[1]} ... {values[-1]}"
    return f"{head}{{{shown}}}{tail}"


def _step_paragraphs(step: Step, chosen: int | None) -> Iterator[tuple[str, list[str]]]:
    """Yield the indent and the words of each paragraph of a step.

    If `chosen` is a rank, only the process of this rank is shown.
    """
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
    """Return the number of processes on each node as text.

    For example: 8 processes: 4 on each of node1 to node2.
    """
    runs = [(count, [*nodes]) for count, nodes in groupby(counts, key=lambda node: counts[node])]
    places = (
        f"{count} on {nodes[0]}" if len(nodes) == 1 else f"{count} on each of {nodes[0]} to {nodes[-1]}"
        for count, nodes in runs
    )
    return f"{counted(sum(counts.values()), 'process')}: {', '.join(places)}"


def _group_paragraphs(group: Sequence[StartedProcess], *, full: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the paragraphs of processes that share a row.

    With `full`, they have all variables, and values are not cut.
    """
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
    yield "  ", [name, "on", f"{place}:", f"{counted(first.cpus, 'CPU')}{',' * bool(gpus)}", *gpus]
    yield "    ", [*map(_shown_word, _folded_row([process.argv for process in group], group))]
    yield "    ", ["folder:", one_line(first.cwd)]
    if first.container:
        yield "    ", ["container:", one_line(first.container)]
    all_names = dict.fromkeys(name for process in group for name in process.env)
    names = [name for name in all_names if full or not _is_hidden(name)]
    values = [
        tuple(_assignment(name, process.env.get(name), full=full) for name in names) for process in group
    ]
    if names:
        yield "    ", ["env:", *map(_shown_word, _folded_row(values, group))]


def _is_hidden(name: str) -> bool:
    """Return whether a plan leaves out a variable, because each job has it."""
    return name in _HIDDEN_NAMES or name.startswith(_HIDDEN_PREFIXES)


def _assignment(name: str, value: str | None, *, full: bool) -> str:
    """Return a variable with its value, which is cut unless `full`; None stands for a missing variable."""
    if value is None:
        return f"{name}=<unset>"
    shown = value if full or len(value) <= _MAX_VALUE else f"{value[:_MAX_VALUE]}..."
    return f"{name}={shown}"


def _groups(processes: Sequence[StartedProcess]) -> list[list[StartedProcess]]:
    """Return the processes in groups. The commands of a group differ only by marks such as {rank}."""
    candidates: dict[Any, list[StartedProcess]] = {}
    for process in processes:
        candidates.setdefault((len(process.argv), process.cwd, process.container), []).append(process)
    groups: dict[Any, list[StartedProcess]] = {}
    for members in candidates.values():
        folded = _folded_row([process.argv for process in members], members)
        differing = [index for index, text in enumerate(folded) if text.endswith(_OTHER_MARK)]
        for process in members:
            key = (id(members), *(process.argv[index] for index in differing))
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
            heads = {cell.rpartition("=")[0] for cell in column}
            head, equals, _ = text.rpartition("=") if len(heads) == 1 else ("", "", "")
            values = [cell.removeprefix(f"{head}{equals}") for cell in column]
            values_of_marks = (
                [str(process.rank) for process in group],
                [process.env.get("SLURM_NODEID") or "0" for process in group],
                [process.node for process in group],
                [process.env.get("SLURM_LOCALID") or "0" for process in group],
            )
            marks = (mark for mark, marked in zip(_MARKS, values_of_marks, strict=True) if marked == values)
            text = f"{head}{equals}{next(marks, _OTHER_MARK)}"
        folded.append(text)
    return folded


def _shown_word(text: str) -> str:
    """Return a word with quotes if bash needs them, cut if it is long. A word with a mark has no quotes."""
    shown = one_line(text if text.endswith((*_MARKS, _OTHER_MARK)) else word(text))
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

    before, after = (as_text(plan).splitlines()[2:] for plan in (old, new))  # without headline and empty line
    names = (old.script.file, new.script.file)
    changes = difflib.unified_diff(before, after, *names, lineterm="", n=2)
    return "".join(f"{line}\n" for line in changes)
