"""What sbatch reads in a script: directives, options, and why it refuses it, without an sbatch.

    script = read(text, slurm="22.05")
    script.options["time"].value        # "1:30:00"
    script.refusal                      # what sbatch would say where it refuses the script

It judges as sbatch itself does before it asks slurmctld; it holds no rules. Not read are files that an
option names (--nodefile, --bbf, --export-file, a --nodelist with a slash), users (--uid, --gid), other
clusters (--clusters), and SBATCH_ variables; options of a site's plugins are given by the caller. The options
that sbatch translates from #PBS and #BSUB lines are not known here: the options of such a script are not
compared with each other. What slurm.conf decides is not judged. Checked against sbatch 22.05.8 and 26.05.5 by
benchmarks/agreement.py; what came between them stands at the release whose source has it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sbatchgen.sbatch import combination, gres_checks
from sbatchgen.sbatch.fields import Fields
from sbatchgen.sbatch.grammar import RefusedError
from sbatchgen.sbatch.header import FOREIGN, READ, Directive, Message, Token, check_file, directives
from sbatchgen.sbatch.options import Option, Stop, counting, scan
from sbatchgen.sbatch.releases import HasArgument, Spec, line_of, specs
from sbatchgen.sbatch.values import put

MAX_COMPONENTS = 128  # of a heterogeneous job that are read; Slurm has no larger ones


@dataclass(kw_only=True, slots=True)
class Component:
    """A component of a heterogeneous job; the only one of other jobs.

    Attributes:
        options: The options that count, by long name.
        given: Every use of an option that sbatch got to, in order.
        settled: Whether sbatch got as far as to settle them; else it ended in this component.
    """

    options: Mapping[str, Option]
    given: list[Option] = field(default_factory=list)
    settled: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """What sbatch makes of a script.

    Attributes:
        directives: The lines that are directives, and those that look like some.
        components: The components of the job; the last may be incomplete.
        refusal: Why sbatch ends before it asks slurmctld; None if it does not.
        has_foreign: Whether it takes options from #PBS or #BSUB lines, which are not read here.
    """

    directives: tuple[Directive, ...]
    components: tuple[Component, ...]
    refusal: Message | None
    has_foreign: bool

    @property
    def options(self) -> Mapping[str, Option]:
        """The options that count in the first component."""
        return self.components[0].options if self.components else {}


def read(text: str | bytes, *, slurm: str = "22.05", plugin_options: Iterable[Spec] = ()) -> Script:
    """Read a script as sbatch does.

    Args:
        text: The script.
        slurm: The release of Slurm, 20.11 to 26.05.
        plugin_options: Options that the site's plugins add.

    Raises:
        ValueError: The release is not known here.
    """
    script = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    found = tuple(directives(script.decode("utf-8", "surrogateescape"), slurm=slurm))
    table = specs(slurm) | {spec.name: spec for spec in plugin_options}
    components: list[Component] = []
    refusal, has_foreign, job = None, False, Fields(slurm=line_of(slurm))
    try:
        check_file(script)
        for lines in _by_component(found):
            job = job.of_next(table)
            component = Component(options=job.options)
            components.append(component)
            for option in _options(lines, table):
                component.given.append(option)
                if not option.spec.early:
                    _put(job, option)
            has_foreign |= "ignore-pbs" not in job.options and any(line.kind in FOREIGN for line in found)
            if not has_foreign:
                combination.settle(job)
                component.settled = True
                combination.check_nodelist(job)
                gres_checks.verify(job)
    except RefusedError as error:
        refusal = Message(text=error.text, line=error.line, column=error.column)
    return Script(directives=found, components=tuple(components), refusal=refusal, has_foreign=has_foreign)


def _by_component(found: Iterable[Directive]) -> list[list[Directive]]:
    """The directives that sbatch reads, by component."""
    lines: list[list[Directive]] = [[]]
    for line in found:
        if line.kind in READ:
            if line.component == len(lines):
                lines.append([])
            lines[line.component].append(line)
    return lines[:MAX_COMPONENTS]


def _options(lines: Sequence[Directive], table: Mapping[str, Spec]) -> Iterator[Option]:
    """The options of a component; what ends sbatch is raised."""
    words: list[Token] = []
    for line in lines:
        words += line.words
        if line.fault:
            raise RefusedError(line.fault.text, line.fault.line, line.fault.column)
    for item in scan(words, table):
        if isinstance(item, Stop):
            text = item.complaint or f"Invalid directive found in batch script: {item.word.text}"
            raise RefusedError(text, item.word.line, item.word.column)
        yield item


def _put(job: Fields, option: Option) -> None:
    value = option.value
    if option.spec.argument is HasArgument.OPTIONAL:
        value = value or None
    try:
        put(job, option.name, value)
    except RefusedError as error:
        raise RefusedError(error.text, option.line, option.column) from error
    job.options[option.name] = counting(job.options.get(option.name), option, job.slurm)
