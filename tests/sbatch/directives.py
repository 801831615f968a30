"""Directives in each way that people write them, made from a seed; and what Slurm makes of them, beside lint and the reader.

Slurm answers twice: `sbatch --test-only` says whether it takes the script, and `scontrol show job` says which values the
submitted job has.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sbatchgen.check.lint.linter import lint
from sbatchgen.check.sbatch.option_table import specs
from sbatchgen.check.sbatch.reader import read_script
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.document import decode
from sbatchgen.jobs.inputs.profile import Profile
from tests.cluster.controller import Controller
from tests.rules.values import EXTRA, GRES, PARTITIONS
from tests.sbatch.headers import printed

NODES = "NodeName=n[1-8] Sockets=2 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=1000000 TmpDisk=900000 Gres=gpu:a100:8 Feature=a,b"
WITH_PREEMPTION = f"{EXTRA}\nPreemptType=preempt/partition_prio\nPreemptMode=REQUEUE"
PROFILE = """
name: imaginary
url: https://slurm.schedmd.com
checked: 2026-11-24
default_partition: gpu
gres_types: [gpu]
plugin_options: []
licenses: {matlab: 8}
limits: {enforce_part_limits: all, max_array_size: 1001}
partitions:
  gpu: &gpu {time_max: 14-00:00:00, nodes: "n[1-8]", nodes_max: 8, cpus_per_node: 128, gpus_per_node: 8, gpu_type: a100,
             mem_per_node: 1000000M, features: [a, b]}
  cpu: *gpu
"""
# Errors of lint about what Slurm takes, and what then goes wrong.
NOT_REFUSED = frozenset({"SB109", "SB604"})

# Values by option: those that Slurm takes, and near misses of them.
VALUES = {
    "time": "60 1:00:00 1-0 1-12:00 90:30 00:05 x 1h 1:2:3:4 1-1-1 60m -5 0 : 1.5",
    "nodes": "1 2 1-2 2-1 0 x 1k 1- -2 1,2 1:2 2x",
    "ntasks": "1 4 0 x -1 4x 1k +2 2,4",
    "cpus-per-task": "1 4 0 x 4x",
    "ntasks-per-node": "1 2 0 x 2(x2)",
    "mem": "4G 4096 4g 4GB 4Gi 0 x 1.5G -1 4T 10 4gb",
    "mem-per-cpu": "1G 500M x 0",
    "tmp": "10G 1 x",
    "job-name": "train my.job job%j a/b x=1 $USER 1 - ä",
    "comment": "text a=b a:b,c (x) ${X} ~ @",
    "partition": "gpu cpu gpu,cpu debug GPU =gpu",
    "output": "log.out logs/log.out /tmp/log.out",
    "error": "log.err /tmp/log.err",
    "mail-type": "END ALL END,FAIL end DONE NONE END,DONE",
    "mail-user": "a@b.c me",
    "constraint": "a a&b a|b [a|b] c a*2 (a|b) a&",
    "gres": "gpu:1 gpu:a100:2 gpu gpu:x gpu=1 gpu:0 gpu:a100=2 gpu:1,gpu:2 gpus:1 gres:gpu:1 gpu:a100:x",
    "gpus": "1 a100:2 gpu:1 x 0 a100 2,1",
    "gpus-per-node": "1 a100:2 x 0 gpu:1 a100:x",
    "gpus-per-task": "1 a100:1 x",
    "array": "1-4 0-10:2 1,3,5 1-4%2 4-1 x 1-N 1-4%0 [1-4] 1-4% -1",
    "dependency": "singleton afterok:1000000 afterok:x after afterok: afterany:1000000:1000000 afterok:1000000,",
    "begin": "now now+1hour now+x tomorrow 16:00 noon now+60 2040-01-01 x 2040-13-01",
    "nice": "100 -5 x",
    "licenses": "matlab matlab:2 matlab:x",
    "nodelist": "n1 n[1-2] n[1- n1,n2 n[2-1]",
    "exclude": "n3 n[3-4] n[3",
    "signal": "USR1@60 B:USR1@60 B:15 R:USR2 USR1@x FOO 99999 @60",
    "export": "ALL NONE A=1 NIL A=1,ALL",
    "open-mode": "append truncate a x",
    "distribution": "block cyclic plane=2 block:cyclic x",
    "hint": "nomultithread compute_bound x multithread,x",
    "exclusive": "user mcs x",
    "requeue": "x",
    "core-spec": "1 x 2x 0",
    "thread-spec": "1 x",
    "profile": "all none task x",
    "cpu-freq": "high low-high x 2000 medium:performance",
    "gpu-freq": "high medium,memory=low x",
    "gpu-bind": "closest none single:1 per_task:1 map_gpu:0,1 x verbose,closest",
    "no-kill": "off no x",
    "propagate": "ALL NONE STACK,CORE x MEMLOCK",
    "export-file": "variables /dev/null $HOME/x",
    "uid": "alice 1000",
    "gid": "1000 alice",
    "switches": "1 1@10 x 1@x",
    "wait-all-nodes": "1 0 x 2",
    "priority": "10 x",
    "threads-per-core": "1 x",
    "kill-on-invalid-dep": "yes no x",
    "deadline": "now+1day x 2040-01-01",
    "time-min": "5 x",
    "chdir": "/usr work",
    "wckey": "w",
    "mincpus": "2 x 0",
}
MARKS = (
    "#SBATCH ",
    "#SBATCH\t",
    "#SBATCH  ",
    "#SBATCH",
    " #SBATCH ",
    "# SBATCH ",
    "##SBATCH ",
    "#sbatch ",
    "#SLURM ",
    "#SBATCH: ",
)
TEXTS = (
    "a b",
    "a#b",
    "#",
    "a #b",
    r"a\b",
    "a\\",
    "\\",
    r"\a",
    "a'b",
    'a"b',
    "a\tb",
    " a",
    "a ",
    r"a\ b",
    r"a\#b",
    r"\"",
    "a=b c",
)


class Row(NamedTuple):
    """A line of the header of a script, and how the line was made."""

    kind: str
    line: str


def directives(seed: int, count: int) -> list[Row]:
    """Return different lines, as many of each kind."""
    chance = random.Random(f"directives {seed}")  # noqa: S311 (no secret)
    kinds = (_spelled, _quoted, _slipped, _marked, _several, _empty, _commented, _texts, _valued)
    made: dict[str, str] = {}
    while len(made) < count:
        make = kinds[len(made) % len(kinds)]
        line = make(chance)
        made.setdefault(line, make.__name__.strip("_"))
    return [Row(kind, line) for line, kind in made.items()]


def _drawn(chance: random.Random) -> tuple[str, str]:
    name = chance.choice([*VALUES])
    words = VALUES[name].split()
    return name, chance.choice([words[0], chance.choice(words)])


def _letter(name: str) -> str:
    spec = specs("22.05").get(name) or specs("26.05")[name]
    return spec.short


def _spelled(chance: random.Random) -> str:
    """An option by its name, an abbreviation or its letter, the value glued or not."""
    name, value = _drawn(chance)
    if (letter := _letter(name)) and chance.random() < 0.6:
        return f"#SBATCH -{letter}{chance.choice(['', ' ', '=', '  ', ' ='])}{value}"
    cut = chance.choice([0, 0, 1, 2, 4, 6])
    return f"#SBATCH --{name[: max(2, len(name) - cut)]}{chance.choice(['=', '=', ' ', '  ', chr(9)])}{value}"


def _quoting(chance: random.Random, text: str) -> str:
    half = len(text) // 2
    return chance.choice(
        (
            f"'{text}'",
            f'"{text}"',
            f"{text[:half]}'{text[half:]}'",
            f'"{text[:half]}"{text[half:]}',
            f"'{text[:half]}'\"{text[half:]}\"",
            f"'{text}",
            f'{text}"',
            "".join(f"\\{sign}" for sign in text),
            f"\\'{text}\\'",
            f"'\"{text}\"'",
            f"\u201c{text}\u201d",
            f"`{text}`",
        )
    )


def _quoted(chance: random.Random) -> str:
    """A value, or all of an option, in quotes of some kind."""
    name, value = _drawn(chance)
    if chance.random() < 0.15:
        return f"#SBATCH {_quoting(chance, f'--{name}={value}')}"
    if (letter := _letter(name)) and chance.random() < 0.4:
        return f"#SBATCH -{letter}{chance.choice(['', ' '])}{_quoting(chance, value)}"
    return f"#SBATCH --{name}{chance.choice('= ')}{_quoting(chance, value)}"


def _slipped(chance: random.Random) -> str:
    """A near miss of an option."""
    name, value = _drawn(chance)
    at = chance.randrange(len(name))
    before, sign, after = name[:at], name[at], name[at + 1 :]
    slips = (
        f"--{name.capitalize()}={value}",
        f"--{name.replace('-', '_') if '-' in name else name + '_'}={value}",
        f"--{before}{chance.choice('aeinst')}{after}={value}",
        f"--{before}{sign * 2}{after}={value}",
        f"---{name}={value}",
        f"-{name}={value}",
        f"--{name}:{value}",
        f"--{name}=={value}",
        f"--{name}{chance.choice((' = ', ' =', '= '))}{value}",
        f"\u2013{name}={value}",
    )
    return f"#SBATCH {chance.choice(slips)}"


def _marked(chance: random.Random) -> str:
    """A directive, or what looks like a directive."""
    name, value = _drawn(chance)
    return f"{chance.choice(MARKS)}--{name}={value}"


def _several(chance: random.Random) -> str:
    """Options that share a line, and a later line that counts."""
    first, second = (f"--{name}={value}" for name, value in (_drawn(chance), _drawn(chance)))
    between = chance.choice(
        (" ", "\t", ",", "  ", "\n#SBATCH ", " \\\n#SBATCH ", " \\ ", "\n\n#SBATCH ", "\n# x\n#SBATCH ")
    )
    return f"#SBATCH {first}{between}{second}"


def _empty(chance: random.Random) -> str:
    """An option without a value."""
    name = chance.choice([*VALUES])
    other = "--comment=later" if chance.random() < 0.5 else ""
    if (letter := _letter(name)) and chance.random() < 0.4:
        glue = chance.choice(("", " ", ' ""', "''", "="))
        return f"#SBATCH -{letter}{glue} {other}".rstrip(" ")
    glue = chance.choice(("", "=", "= ", '=""', "=''", ' ""', '="" ', "=#", "=\\", "= #x"))
    return f"#SBATCH --{name}{glue}{other and ' ' + other}"


def _commented(chance: random.Random) -> str:
    """A comment after a directive."""
    name, value = _drawn(chance)
    after = (" # why", "# why", "#why", "\t#why", " why", " // why", " ; why", " (why)", " #", " \\# why")
    return f"#SBATCH --{name}={value}{chance.choice(after)}"


def _texts(chance: random.Random) -> str:
    """A free text with signs that mean something to sbatch."""
    name = chance.choice(
        ("job-name", "comment", "output", "mail-user", "constraint", "wckey", "error", "chdir", "export")
    )
    text = chance.choice(TEXTS)
    written = text if chance.random() < 0.4 else _quoting(chance, text)
    return f"#SBATCH --{name}={written}{chance.choice(('', '', ' --nice=7', ' #x'))}"


def _valued(chance: random.Random) -> str:
    """An option with one of its values."""
    name = chance.choice([*VALUES])
    return f"#SBATCH --{name}={chance.choice(VALUES[name].split())}"


def script_of(line: str) -> str:
    """Return a script with a directive."""
    return f"#!/bin/bash\n{line}\n\nhostname\n"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What Slurm says of a script: why it refuses the script, or "" and how it shows the job."""

    said: str
    shown: str
    folder: str


_ASK = """
part() {
    n=$1
    while [ "$n" -lt "$2" ]; do
        if sbatch --test-only "$n" >"$n.said" 2>&1 && id=$(sbatch --hold --parsable "$n" 2>"$n.said")
        then : >"$n.said"; scontrol show job "${id%%;*}" >"$n.shown" 2>&1; scancel "${id%%;*}"
        else echo refused >>"$n.said"; : >"$n.shown"
        fi
        n=$((n + 2))
    done
}
sbatch --hold --wrap=true >held 2>&1  # a job that others may depend on
part 0 "$1" & part 1 "$1" & wait
"""


def asked(lines: Sequence[str], root: Path | None) -> list[Answer]:
    """Ask a real Slurm of scripts with these directives; submit those that it takes."""
    with Controller(
        nodes=NODES, partitions=PARTITIONS, gres=GRES, extra=WITH_PREEMPTION, root=root
    ) as controller:
        folder = controller.home / "asked"
        folder.mkdir()
        for number, line in enumerate(lines):
            (folder / str(number)).write_text(script_of(line))
        (folder / "variables").touch()
        folder.chmod(0o777)
        controller.run(["sh", "-c", f"cd asked\n{_ASK}", "ask", str(len(lines))])
        return [
            Answer(
                said=(folder / f"{number}.said").read_text(errors="replace"),
                shown=(folder / f"{number}.shown").read_text(errors="replace"),
                folder=str(folder),
            )
            for number in range(len(lines))
        ]


# Lint does not look for the file.
_FILE_IS_NOT_HERE = re.compile(r"Could not open user environment file [^$~\n]|error opening file")
# Where `scontrol show job` prints the values of options.
_FIELDS = {
    "job-name": r"JobName=(.*)$",
    "comment": r"^   Comment=(.*?) *$",
    "mail-user": r"MailUser=(\S*)",
    "wckey": r"WCKey=\*?(.*?)$",
    "partition": r"^   Partition=(\S+)",
    "constraint": r"Features=(.*?) DelayBoot",
    "output": r"StdOut=(.*)$",
    "error": r"StdErr=(.*)$",
    "chdir": r"WorkDir=(.*)$",
    "licenses": r"Licenses=(.*?) ",
    "time": r"TimeLimit=(\S+)",
    "ntasks": r"NumTasks=(\d+)",
    "cpus-per-task": r"CPUs/Task=(\d+)",
    "exclude": r"ExcNodeList=(.*)$",
    "nodelist": r"ReqNodeList=(\S*)",
    "nice": r"Nice=(\S+)",
}


def differences(line: str, answer: Answer, release: str) -> Iterator[str]:
    """Yield how lint or the reader differ from Slurm."""
    text = script_of(line)
    profile = decode(f"{PROFILE}slurm: '{release}'\n", Profile, name="imaginary").value
    subject = JobScript(file="job.sh", text=text, slurm=release, profile=profile, makes_log_folders=True)
    errors = [
        finding
        for finding in lint(subject)
        if finding.severity == "error" and finding.rule not in NOT_REFUSED
    ]
    if bool(errors) != bool(answer.said) and not _FILE_IS_NOT_HERE.search(answer.said):
        yield f"Slurm: {answer.said.strip()!r}; lint: {[(each.rule, each.problem.what) for each in errors]}"
    script = read_script(text, slurm=release)
    if answer.said or script.refusal:
        return
    for name, option in script.options.items():
        if (pattern := _FIELDS.get(name)) and (match := re.search(pattern, answer.shown, re.MULTILINE)):
            mine = _shown(name, option.value or "", printed(option, script.options, release))
            theirs = match[1].rstrip()
            theirs = theirs.removeprefix(f"{answer.folder}/") if name in _PATHS else theirs
            if mine not in (None, theirs):
                yield f"--{name} is read as {mine!r}; Slurm has {theirs!r}"


_PATHS = frozenset(("chdir", "error", "output"))
_TRIMMED = _PATHS | {"comment"}


def _shown(name: str, value: str, as_printed: str) -> str | None:
    """Return a value as scontrol shows the value; None where scontrol shows another text."""
    others = {
        "nodelist": "," in value,
        "exclude": "," in value,
        "nice": not value.lstrip("-").isdecimal(),
        "licenses": not value,
        "partition": not value,
        "error": "\\" in value,  # 26.05 leaves the backslash out
        "output": "\\" in value,
    }
    if others.get(name):
        return None
    if name == "time":
        return as_printed
    if name in ("cpus-per-task", "ntasks"):
        return value.strip().removeprefix("+")
    return value.rstrip() if name in _TRIMMED else value  # scontrol prints no blanks at the end of a line
