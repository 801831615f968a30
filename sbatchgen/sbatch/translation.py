"""#PBS and #BSUB lines: which options of its own sbatch takes them for.

Source: Slurm's xlate.c, 22.05 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sbatchgen.sbatch import grammar, hostlist
from sbatchgen.sbatch.fields import Fields
from sbatchgen.sbatch.getopt import Stop, Use, scan
from sbatchgen.sbatch.grammar import RefusedError, fold, leading_number, wrapped
from sbatchgen.sbatch.header import Token
from sbatchgen.sbatch.releases import HasArgument, Spec

Put = Callable[[str, str | None], None]  # keeps an option and its value
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


def uses(words: Sequence[Token], known: Dialect) -> Iterator[Use | Stop]:
    """The options in the words of a script's lines."""
    if known.name == "BSUB":  # -cwd counts where an option may stand
        words = [
            Token(text="-c", line=word.line, columns=word.columns, end=word.end)
            if word.text == "-cwd" and not place % 2
            else word
            for place, word in enumerate(words)
        ]
    return scan(words, known.table, known.shorts)


def translate(job: Fields, use: Use, known: Dialect, put: Put) -> None:
    """Keep what an option of another scheduler stands for.

    Raises:
        RefusedError: sbatch would end.
    """
    letter, value = use.spec.short, use.value
    if option := _SAME[known.name].get(letter):
        put(option, value)
    elif known.name == "BSUB":
        _translate_lsf(letter, value or "", put)
    elif letter == "l":
        _resources(job, value or "", put)
    elif letter == "m":
        put("mail-type", _mail(value or ""))
    elif letter == "v":
        put("export", value if job["export"] is None else f"{job['export']},{value}")
    elif letter == "W":
        _attributes(job, value or "", put)


def _translate_lsf(letter: str, value: str, put: Put) -> None:
    if letter == "m":
        put("nodelist", value.replace(" ", ","))
    elif letter == "M":
        put("mem-per-cpu", value + "K" * ("0" <= value[-1:] <= "9"))
    elif letter == "n":
        low, comma, high = value.partition(",")
        if comma and not high:
            raise RefusedError(f"#BSUB -n format not correct given: '{value}'", status=1)
        put("ntasks", high if comma else low)


def _mail(value: str) -> str | None:
    letters = set(fold(value))
    if "n" in letters:
        return "NONE"
    events = (("b", "BEGIN"), ("e", "END"), ("a", "FAIL"))
    return ",".join(event for letter, event in events if letter in letters) or None


def _attributes(job: Fields, value: str, put: Put) -> None:
    if fold(value).startswith("umask="):
        put("umask", value[6:])
    elif fold(value).startswith("depend="):
        put("dependency", value[7:])
    else:
        job.say(f"Ignored PBS attributes: {value}", "verbose")


def _resources(job: Fields, text: str, put: Put) -> None:
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
        else:
            _resource(job, kind, value, put)
        if kind == "proc":
            _, at = _until(",", text, at)
    per_node = wrapped(job["ntasks-per-node"])
    if pro == set(_PBS_PRO) and job["mincpus"] > per_node:
        put("cpus-per-task", str(job["mincpus"] // per_node))
    if gpus > 0:
        put("gres", f"gpu:{gpus}" if job["gres"] is None else f"{job['gres']},gpu:{gpus}")


def _resource(job: Fields, kind: str, value: str, put: Put) -> None:
    """Keep what an item of `-l` stands for."""
    if kind == "nodes":
        _nodes(value, put)
    elif kind == "proc":
        others = job["constraint"]
        put("constraint", value if others is None else f"{value},{others}")
    elif kind in ("tmp", "mem"):
        put(kind, value[:-1] if value[-1:] in ("b", "B") else value)
    elif kind != "passed":
        put(_PBS_PRO.get(kind, kind), value)


def _until(separators: str, text: str, at: int) -> tuple[str, int]:
    """The text up to the first of these characters, and where the rest starts."""
    ends = (end for separator in separators if (end := text.find(separator, at)) >= 0)
    end = min(ends, default=len(text))
    return text[at:end], min(end + 1, len(text))


def _nodes(text: str, put: Put) -> None:
    """What the nodes= of `-l` stand for, such as 2:ppn=8:gpus=1 or n1+n2:ppn=4."""
    at, nodes, tasks = 0, 0, 0
    names: list[str] = []
    while match := _NODE_ITEM.search(text, at):
        kind = match.lastgroup
        at = match.start() if kind in ("count", "host") else match.end()
        value, at = _until("+:", text, at)
        if kind == "gpus":
            put("gpus-per-node", value)
        elif kind == "host":
            names.append(value)
        elif kind == "ppn":
            tasks = wrapped(tasks + (leading_number(value)[0] or 0))
        else:
            nodes = wrapped(nodes + (leading_number(value)[0] or 0))
    if nodes:
        put("nodes", str(nodes))
    if tasks:
        put("ntasks", str(wrapped(tasks * (nodes or 1))))
    if names:
        put("nodelist", hostlist.ranged(names))
