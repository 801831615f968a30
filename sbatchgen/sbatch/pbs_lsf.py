"""#PBS and #BSUB lines: which options of its own sbatch takes them for.

Source: Slurm's xlate.c, 22.05 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sbatchgen.sbatch import grammar
from sbatchgen.sbatch.fields import Fields
from sbatchgen.sbatch.grammar import RefusedError, fold, leading_number, wrapped
from sbatchgen.sbatch.header import Token
from sbatchgen.sbatch.options import Option, Stop, scan
from sbatchgen.sbatch.releases import HasArgument, Spec

Found = Iterator[tuple[str, str | None]]  # options of sbatch with their values
# The letters that take no value, or whose long name takes none or need not take one.
_FLAGS = {"h": "-", "I": "-", "V": "-", "z": "-", "x": "-"}
_LSF = {
    "cwd": "c",
    "error_file": "e",
    "job_name": "J",
    "hostname": "m",
    "memory_limit": "M",
    "": "n",
    "output_file": "o",
    "queue_name": "q",
    "time": "W",
    "exclusive": "x",
}
_PBS = {
    "start_time": "a",
    "account": "A",
    "checkpoint": "c",
    "working_dir": "C",
    "error": "e",
    "hold": "h",
    "interactive": "I",
    "join": "j",
    "job_array": "J",
    "keep": "k",
    "resource_list": "l",
    "mail_options": "m",
    "mail_user_list": "M",
    "job_name": "N",
    "out": "o",
    "priority": "p",
    "destination": "q",
    "rerunable": "r",
    "script_path": "S",
    "array": "t",
    "running_user": "u",
    "variable_list": "v",
    "all_env": "V",
    "attributes": "W",
    "no_std": "z",
}
_SAME = {  # letters that are another name of an option
    "PBS": {
        "a": "begin",
        "A": "account",
        "d": "chdir",
        "e": "error",
        "h": "hold",
        "J": "array",
        "M": "mail-user",
        "N": "job-name",
        "o": "output",
        "p": "nice",
        "q": "partition",
        "t": "array",
        "w": "chdir",
    },
    "BSUB": {
        "c": "chdir",
        "e": "error",
        "J": "job-name",
        "o": "output",
        "q": "partition",
        "W": "time",
        "x": "exclusive",
    },
}
# Items of `#PBS -l`; of some, capitals count as others.
_ITEM = re.compile(
    "(?i:(?P<accelerator>accelerator=))|"
    "(?P<passed>(?:arch|host|opsys|other|pmem|pvmem|software|vmem)=)|"
    "(?P<time>(?:cput|pcput|walltime)=)|"
    "(?P<tmp>file=)|(?P<mem>mem=)|"
    "(?i:(?P<mpiprocs>mpiprocs=))|(?i:(?P<naccelerators>naccelerators=))|(?i:(?P<ncpus>ncpus=))|"
    "(?P<nice>nice=)|(?P<nodes>nodes=)|(?P<proc>proc=)|(?i:(?P<select>select=))"
)
_PBS_PRO = {
    "mpiprocs": "ntasks-per-node",
    "ncpus": "mincpus",
    "select": "nodes",
}  # their values end at a colon
_NODE_ITEM = re.compile("(?P<gpus>gpus=)|(?P<ppn>ppn=)|(?P<count>[0-9])|(?P<host>[A-Za-z])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """The options of another scheduler's lines.

    Attributes:
        name: Of the lines: PBS or BSUB.
        table: Options by long name.
        shorts: Options by letter.
    """

    name: str
    table: Mapping[str, Spec]
    shorts: Mapping[str, Spec]


def dialect(name: str, *, slurm: str) -> Dialect:
    """The options of #PBS or #BSUB lines, as sbatch of a release knows them."""
    names = _LSF if name == "BSUB" else _PBS
    table = {long: _spec(long, letter) for long, letter in names.items() if long}
    shorts = {letter: _spec(long or letter, letter) for long, letter in names.items()}
    if name == "PBS":
        table["join"] = Spec(
            name="join", short="j", argument=HasArgument.OPTIONAL, early=False, per_component=False
        )
        shorts |= {letter: _spec(letter, letter) for letter in ("dw" if slurm >= "23.02" else "")}
    return Dialect(name=name, table=table, shorts=shorts)


def _spec(name: str, letter: str) -> Spec:
    argument = HasArgument(_FLAGS.get(letter, "="))
    return Spec(name=name, short=letter, argument=argument, early=False, per_component=False)


def scan_foreign(words: Sequence[Token], known: Dialect) -> Iterator[Option | Stop]:
    """The options in the words of a script's lines."""
    if known.name == "BSUB":  # -cwd counts where an option may stand
        words = [
            Token(text="-c", line=word.line, columns=word.columns, end=word.end)
            if word.text == "-cwd" and not place % 2
            else word
            for place, word in enumerate(words)
        ]
    return scan(words, known.table, known.shorts)


def translate(job: Fields, given: Option, known: Dialect) -> Found:
    """The options of sbatch that an option of another scheduler stands for.

    The caller sets each before it asks for the next.

    Raises:
        RefusedError: sbatch refuses it.
    """
    letter, value = given.spec.short, given.value or ""
    if option := _SAME[known.name].get(letter):
        yield option, given.value
    elif known.name == "BSUB":
        yield from _translate_lsf(letter, value)
    elif letter == "l":
        yield from _resources(job, value)
    elif letter == "m":
        yield "mail-type", _mail(value)
    elif letter == "v":
        yield "export", value if job["export"] is None else f"{job['export']},{value}"
    elif letter == "W" and fold(value).startswith("umask="):
        yield "umask", value[6:]
    elif letter == "W" and fold(value).startswith("depend="):
        yield "dependency", value[7:]


def _translate_lsf(letter: str, value: str) -> Found:
    if letter == "m":
        yield "nodelist", value.replace(" ", ",")
    elif letter == "M":
        yield "mem-per-cpu", value + "K" * ("0" <= value[-1:] <= "9")
    elif letter == "n":
        low, comma, high = value.partition(",")
        if comma and not high:
            raise RefusedError(f"#BSUB -n format not correct given: '{value}'", status=1)
        yield "ntasks", high if comma else low


def _mail(value: str) -> str | None:
    letters = set(fold(value))
    if "n" in letters:
        return "NONE"
    events = (("b", "BEGIN"), ("e", "END"), ("a", "FAIL"))
    return ",".join(event for letter, event in events if letter in letters) or None


def _resources(job: Fields, text: str) -> Found:  # noqa: C901 (a branch for each item)
    """What the list of `-l` stands for."""
    at, gpus = 0, 0
    pro = set[str]()
    while match := _ITEM.search(text, at):
        at, kind = match.end(), str(match.lastgroup)
        if kind == "accelerator":
            gpus = max(gpus, int(fold(text[at : at + 4]) == "true"))
            continue
        value, at = _until(":" if kind in _PBS_PRO else ",", text, at)
        if kind in _PBS_PRO:
            pro.add(kind)
        if kind == "naccelerators":
            gpus = grammar.integer("naccelerators", value, positive=True, slurm=job.slurm)
        elif kind == "nodes":
            yield from _nodes(value)
        elif kind == "proc":
            others = job["constraint"]
            yield "constraint", value if others is None else f"{value},{others}"
            _, at = _until(",", text, at)
        elif kind in ("tmp", "mem"):
            yield kind, value[:-1] if value[-1:] in ("b", "B") else value
        elif kind != "passed":
            yield _PBS_PRO.get(kind, kind), value
    per_node = wrapped(job["ntasks-per-node"])
    if pro == set(_PBS_PRO) and job["mincpus"] > per_node:
        yield "cpus-per-task", str(job["mincpus"] // per_node)
    if gpus > 0:
        yield "gres", f"gpu:{gpus}" if job["gres"] is None else f"{job['gres']},gpu:{gpus}"


def _until(separators: str, text: str, at: int) -> tuple[str, int]:
    """The text up to the first of these characters, and where the rest starts."""
    ends = (end for separator in separators if (end := text.find(separator, at)) >= 0)
    end = min(ends, default=len(text))
    return text[at:end], min(end + 1, len(text))


def _nodes(text: str) -> Found:
    """What the nodes= of `-l` stand for, such as 2:ppn=8:gpus=1 or n1+n2:ppn=4."""
    at, nodes, tasks = 0, 0, 0
    names: list[str] = []
    while match := _NODE_ITEM.search(text, at):
        kind = match.lastgroup
        at = match.start() if kind in ("count", "host") else match.end()
        value, at = _until("+:", text, at)
        if kind == "gpus":
            yield "gpus-per-node", value
        elif kind == "host":
            names.append(value)
        elif kind == "ppn":
            tasks = wrapped(tasks + (leading_number(value)[0] or 0))
        else:
            nodes = wrapped(nodes + (leading_number(value)[0] or 0))
    if nodes:
        yield "nodes", str(nodes)
    if tasks:
        yield "ntasks", str(wrapped(tasks * (nodes or 1)))
    if names:
        yield "nodelist", ",".join(names)
