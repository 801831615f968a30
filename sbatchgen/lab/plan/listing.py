"""Writes a plan as text, for `sbatchgen plan`: its steps, and the processes of each step.

Processes that differ only by their rank share a paragraph, and similar steps share all paragraphs. A
paragraph is a list of words, because the module compares steps word by word. `as_text` joins the words into
lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from sbatchgen.base.finding import Finding
from sbatchgen.base.quoting import counted, first_names, is_plain, numbers_as_text, one_line, word
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.missing import option_of
from sbatchgen.lab.plan.started import StartedProcess, Step
from sbatchgen.lab.plan.step_tasks import GPU_VARIABLES

_WIDTH = 110  # characters of a line
_MIN_SIMILAR_STEPS = 3  # fewer similar steps do not share a text
_MAX_DIFFERENT_WORDS = 4  # words in which similar steps may differ
_LISTED_NODES = 6  # nodes whose numbers of GPUs are listed
# If the next `env:` paragraph repeats at least this many words, "as above" stands for them. "env:" counts.
_MIN_REPEATED_WORDS = 5
_MAX_VALUE = 60  # characters of a variable's value, unless a process is shown in full
_MAX_WORD = 400  # characters of a word
_OTHER_MARK = "{...}"  # the mark for values that differ, if no other mark of `_folded` describes them
# Variables that each job has, and that a plan therefore leaves out.
_HIDDEN_NAMES = ("PATH", *GPU_VARIABLES)
_HIDDEN_PREFIXES = ("SLURM_", "SLURMD_")

Paragraphs = list[tuple[str, list[str]]]  # the indent and the words of each paragraph


class _SharedWord(NamedTuple):
    """A word that several processes have at the same place, such as `--seed=` with the mark {rank}."""

    text: str  # the word, or its beginning that all processes have
    mark: str = ""  # the mark for the rest of the word; "" if all processes have the same word

    def quoted(self) -> str:
        """Return the word for people. The text has quotes if bash needs them, and the mark has none."""
        shown = "" if self.mark and not self.text else one_line(word(self.text))
        if len(shown) >= _MAX_WORD:
            shown = f"{shown[:_MAX_WORD]}..."
        return f"{shown}{self.mark}"


def as_text(plan: DryRun, refusal: Finding | None = None, *, rank: int | None = None) -> str:
    """Return a plan as text.

    `refusal` is a finding that says why sbatch refuses the script; None for a script that sbatch takes. With
    `rank`, each step shows only the process of this rank, with all variables and whole values.
    """
    lines = [headline(plan), ""]
    if refusal:  # the plan then shows the script without its mistake
        line = f" (line {refusal.place.line})" if refusal.place.line else ""
        refusal_text = one_line(f"{plan.script.file}: {refusal.problem.what}{line}")
        lines = [refusal_text, headline(plan).replace(plan.script.file, "mended, it may start", 1), ""]
    last_env: list[str] = []  # the words of the last `env:` paragraph
    for paragraphs in _merged_texts([[*_step_paragraphs(step, rank)] for step in plan.steps]):
        for indent, words in paragraphs:
            shown_words: Sequence[str] = words
            if words[0] == "env:" and rank is None:
                shown_words = _without_repeated_variables(words, last_env)
                last_env = words
            lines += _wrapped(indent, shown_words)
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
    """Return the first line of a plan.

    For example: job.sh: 2 nodes, 4 GPUs on each; 1 step with 8 processes; ends with 0.
    """
    grant = plan.grant
    processes = sum(map(_process_count, plan.steps))
    gpus = f", {counted(grant.gpus[0], 'GPU')} on each" if any(grant.gpus) else ""
    if len({*grant.gpus}) > 1:  # the nodes have different numbers of GPUs
        gpus = f", with {first_names([*map(str, grant.gpus)], _LISTED_NODES)} GPUs on idle nodes"
    limit = plan.result.limit
    end = f"stopped: limit of {limit}" if limit else f"ends with {plan.result.status}"
    steps = f"{counted(len(plan.steps), 'step')} with {counted(processes, 'process')}"
    if plan.steps_not_shown:
        steps += f", and {plan.steps_not_shown} more at least that are not shown"
    return one_line(f"{plan.script.file}: {counted(len(grant.nodes), 'node')}{gpus}; {steps}; {end}")


def _process_count(step: Step) -> int:
    """Return how many processes a step starts, by its launcher of MPI or else by srun.

    A refused step has tasks but no processes.
    """
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


def _without_repeated_variables(words: Sequence[str], last_env: Sequence[str]) -> Sequence[str]:
    """Return the words of an `env:` paragraph, with "as above" for the variables of the last such paragraph.

    All words stay if the paragraph lacks a variable of `last_env`, or if `last_env` is short.
    """
    new_words = [text for text in words if text not in last_env]
    repeated_count = len(words) - len(new_words)
    if repeated_count != len(last_env) or repeated_count < _MIN_REPEATED_WORDS:
        return words
    return ["env:", f"as above{', and' * bool(new_words)}", *new_words]


def _merged_texts(steps: Sequence[Paragraphs]) -> Iterator[Paragraphs]:
    """Yield the text of each step, and a single text for several similar steps, with the values of all steps.

    Consecutive steps are similar if they have the same first paragraph, and their other paragraphs have the
    same indents and the same numbers of words, of which at most `_MAX_DIFFERENT_WORDS` differ.
    """

    def layout(text: Paragraphs) -> tuple[list[str], list[tuple[str, int]]]:
        """Return the first paragraph, and the indent and the number of words of each paragraph."""
        return text[0][1], [(indent, len(words)) for indent, words in text]

    for _, group in groupby(steps, layout):
        texts = [*group]
        words_of_steps = ([words for _, words in text[1:]] for text in texts)
        # By paragraph, and by word in it: the words of all steps at this place.
        columns = [[*zip(*paragraph, strict=True)] for paragraph in zip(*words_of_steps, strict=True)]
        different_count = sum(len({*column}) > 1 for paragraph in columns for column in paragraph)
        if len(texts) < _MIN_SIMILAR_STEPS or different_count > _MAX_DIFFERENT_WORDS:
            yield from texts
            continue
        (indent, first_words), *paragraphs = texts[0]
        merged_paragraphs = [[*map(_values_text, paragraph)] for paragraph in columns]
        yield [  # such as: line 5: srun, 3 steps of 1 process
            (indent, [*first_words[:2], f"{len(texts)} steps of", *first_words[2:]]),
            *zip((indent for indent, _ in paragraphs), merged_paragraphs, strict=True),
        ]


def _values_text(words: Sequence[str]) -> str:
    """Return the words that similar steps have at the same place as one word, such as --seed={1, 2, 3}."""
    unique_words = [*dict.fromkeys(words)]
    if len(unique_words) == 1:
        return unique_words[0]
    head = _common_head(unique_words)
    # A part with quotes stays with the value, because both quotes of a pair must be in one word.
    head = head if is_plain(head) else ""
    # A colon or a comma at the end of all words is also written once.
    tail = next((mark for mark in ":," if all(text.endswith(mark) for text in unique_words)), "")
    values = [text.removeprefix(head).removesuffix(tail) for text in unique_words]
    shown = ", ".join(values) if len(values) < 4 else f"{values[0]}, {values[1]} ... {values[-1]}"
    return f"{head}{{{shown}}}{tail}"


def _common_head(words: Sequence[str]) -> str:
    """Return the part of words up to the last =, such as --seed=, if all words have it; else ""."""
    heads = {"".join(text.rpartition("=")[:2]) for text in words}
    return heads.pop() if len(heads) == 1 else ""


def _step_paragraphs(step: Step, rank: int | None) -> Iterator[tuple[str, list[str]]]:
    """Yield the indent and the words of each paragraph of a step.

    With `rank`, the paragraphs show only the process of this rank.
    """
    starter = "srun," if step.is_srun else "in the batch script,"
    count = counted(_process_count(step), "process")
    meanwhile = "; the script continues meanwhile" * step.background
    yield "", [f"line {step.line}:", starter, f"{count}{meanwhile}"]
    if step.refusal:
        yield "  ", ["refused by Slurm:", one_line(step.refusal)]
    if not step.processes:  # a refused step, for example
        yield "  ", [_SharedWord(text).quoted() for text in step.command]
    if step.by_mpi:  # a plan knows how many processes mpirun starts, but not each process
        yield "  ", [f"{one_line(step.command[0])} starts {_counts_on_nodes(step.by_mpi)}"]
    for group in _groups(step.processes):
        shown_processes = [process for process in group if rank is None or process.rank == rank]
        if shown_processes:
            yield from _group_paragraphs(shown_processes, full=rank is not None)


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
    """Yield the paragraphs that a group of processes shares: place, command, folder, container, variables.

    With `full`, the paragraphs have all variables, and long values are not cut.
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
    commands = [process.argv for process in group]
    yield "    ", [_folded(column, group).quoted() for column in zip(*commands, strict=True)]
    yield "    ", ["folder:", one_line(first.cwd)]
    if first.container:
        yield "    ", ["container:", one_line(first.container)]
    all_names = dict.fromkeys(name for process in group for name in process.env)
    names = [name for name in all_names if full or not _is_hidden(name)]
    if names:
        yield "    ", ["env:", *(_variable_text(name, group, full=full) for name in names)]


def _is_hidden(name: str) -> bool:
    """Return whether a plan leaves out a variable, because each job has this variable."""
    return name in _HIDDEN_NAMES or name.startswith(_HIDDEN_PREFIXES)


def _variable_text(name: str, group: Sequence[StartedProcess], *, full: bool) -> str:
    """Return a variable of a group of processes as text, such as SEED=1, SEED={rank} or `SEED unset`.

    A long value is cut unless `full`.
    """
    # A process without an entry has the value of the batch script. The entry None says that it has no value.
    entries = [process.env[name] for process in group if name in process.env]
    if len(entries) == len(group) and all(entry is None for entry in entries):
        return one_line(f"{name} unset")
    values = [entry for entry in entries if entry is not None]
    if len(values) < len(group):
        return _SharedWord(f"{name}=", _OTHER_MARK).quoted()
    text, mark = _folded(values, group)
    is_whole = full or len(text) <= _MAX_VALUE
    shown = text if is_whole else f"{text[:_MAX_VALUE]}..."
    return _SharedWord(f"{name}={shown}", mark).quoted()


def _groups(processes: Sequence[StartedProcess]) -> list[list[StartedProcess]]:
    """Return the processes in groups. The commands of a group differ only by marks such as {rank}."""
    # Each list has processes with the same number of words, and the same text up to the last = in each word.
    candidates: dict[Any, list[StartedProcess]] = {}
    for process in processes:
        heads = tuple(text.rpartition("=")[0] for text in process.argv)
        candidates.setdefault((heads, process.cwd, process.container), []).append(process)
    groups: dict[Any, list[StartedProcess]] = {}
    for candidate_key, candidate in candidates.items():
        # No mark describes the words at these places, so processes with different words get different groups.
        columns = enumerate(zip(*(process.argv for process in candidate), strict=True))
        places = [place for place, column in columns if _folded(column, candidate).mark == _OTHER_MARK]
        for process in candidate:
            key = (candidate_key, *(process.argv[place] for place in places))
            groups.setdefault(key, []).append(process)
    return [*groups.values()]


def _folded(texts: Sequence[str], group: Sequence[StartedProcess]) -> _SharedWord:
    """Return the texts that the processes of a group have at the same place as a single word.

    The part up to the last = stays if all texts have it. The mark is {rank} if the rest is the rank of each
    process, for example.
    """
    if len({*texts}) == 1:
        return _SharedWord(texts[0])
    head = _common_head(texts)
    values = [text.removeprefix(head) for text in texts]
    values_of_marks = {
        "{rank}": [str(process.rank) for process in group],
        "{node}": [process.env.get("SLURM_NODEID") or "0" for process in group],
        "{host}": [process.node for process in group],
        "{local}": [process.env.get("SLURM_LOCALID") or "0" for process in group],
    }
    marks = (mark for mark, values_of_mark in values_of_marks.items() if values_of_mark == values)
    return _SharedWord(head, next(marks, _OTHER_MARK))


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

    # The first two lines are the headline and an empty line.
    old_lines, new_lines = (as_text(plan).splitlines()[2:] for plan in (old, new))
    names = (old.script.file, new.script.file)
    changes = difflib.unified_diff(old_lines, new_lines, *names, lineterm="", n=2)
    return "".join(f"{line}\n" for line in changes)
