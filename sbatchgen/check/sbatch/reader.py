"""Reads a script as sbatch does: its directives, its options, and the message with which sbatch refuses it.

    script = read_script(text, slurm="22.05")
    script.options["time"].value        # "1:30:00"
    script.refusal                      # the message with which sbatch refuses the script, or None

The reader makes the checks that sbatch makes before it asks slurmctld. It knows less than sbatch:
- It opens no file that an option names (--nodefile, --bbf, --export-file, a --nodelist with a slash), and
  looks up no users (--uid, --gid), other clusters (--clusters), SBATCH_ variables or settings of slurm.conf.
- It knows the options of a site's plugins only from its caller.
- It does not translate #PBS and #BSUB lines. In a script with such lines it does not check options together.
- It accepts some rare values that sbatch refuses.
Between 22.05 and 26.05, a change of sbatch counts from the first release that has it in its source.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.combination import check_options
from sbatchgen.check.sbatch.getopt import Option, Stop, scan, winning_use
from sbatchgen.check.sbatch.header import FOREIGN_KINDS, READ_KINDS, Directive, check_file, directives
from sbatchgen.check.sbatch.option_table import Spec, major_release, specs
from sbatchgen.check.sbatch.rivals import hint_rivals
from sbatchgen.check.sbatch.values import Message, RefusedError, check_value

MAX_COMPONENTS = 128  # Slurm takes no more components of a heterogeneous job


@dataclass(kw_only=True, slots=True)
class Component:
    """A component of a heterogeneous job. Any other job has a single component."""

    options: dict[str, Option]  # long name of an option -> its winning use
    uses: list[Option] = field(default_factory=list)  # all uses of options up to a refusal, in their order


@frozen(kw_only=True, slots=True)
class Script:
    """A script as sbatch reads it."""

    directives: tuple[Directive, ...]  # the lines that are directives, or look like directives
    components: tuple[Component, ...]  # the components of the job; the last component may be incomplete
    refusal: Message | None  # the message if sbatch refuses the script without asking slurmctld
    has_foreign: bool  # whether sbatch also takes options from #PBS or #BSUB lines, which this reader ignores

    @property
    def options(self) -> Mapping[str, Option]:
        """The options of the first component."""
        return self.components[0].options if self.components else {}


def read_script(text: str | bytes, *, slurm: str = "22.05", plugin_options: Iterable[Spec] = ()) -> Script:
    """Return a script as sbatch of a release reads it; raise ValueError for an unknown release.

    `plugin_options` are the options that plugins add to sbatch.
    """
    script = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    lines = directives(script.decode("utf-8", "surrogateescape"), slurm=slurm)
    table = specs(slurm) | {spec.name: spec for spec in plugin_options}
    components: list[Component] = []
    refusal, has_foreign, release = None, False, major_release(slurm)
    try:
        check_file(script)
        for component_lines in _component_lines(lines):
            previous = components[-1].options if components else {}
            inherited = {name: use for name, use in previous.items() if not use.spec.per_component}
            component = Component(options=inherited)
            components.append(component)
            _read_options(component, component_lines, table, release)
            options = component.options
            has_foreign |= "ignore-pbs" not in options and any(line.kind in FOREIGN_KINDS for line in lines)
            if not has_foreign:
                check_options({name: use.value or "" for name, use in options.items()}, slurm=release)
    except RefusedError as error:
        refusal = Message(*error.args)
    return Script(directives=lines, components=tuple(components), refusal=refusal, has_foreign=has_foreign)


def _read_options(
    component: Component, lines: Sequence[Directive], table: Mapping[str, Spec], slurm: str
) -> None:
    """Fill a component from its lines; raise RefusedError at the first value that sbatch refuses."""
    for option in _scanned_options(lines, table):
        component.uses.append(option)
        if option.spec.early:
            continue
        if option.name != "hint":  # --hint is checked last, as sbatch ignores it if a later line has a rival
            _check_option(option, slurm)
        component.options[option.name] = winning_use(component.options.get(option.name), option, slurm)
    hint = component.options.get("hint")
    if hint and not hint_rivals(component.options, slurm):
        _check_option(hint, slurm)


def _check_option(option: Option, slurm: str) -> None:
    """Raise RefusedError, with the place of the option, if sbatch refuses its value."""
    try:
        if option.value is not None:
            check_value(option.name, option.value, slurm=slurm)
    except RefusedError as error:
        raise RefusedError(str(error), option.line, option.word.column) from error


def _component_lines(lines: Iterable[Directive]) -> list[list[Directive]]:
    """Return the directives of each component, for the first MAX_COMPONENTS components."""
    lines_read = [line for line in lines if line.kind in READ_KINDS]
    count = 1 + max((line.component for line in lines_read), default=0)
    numbers = range(min(count, MAX_COMPONENTS))
    return [[line for line in lines_read if line.component == number] for number in numbers]


def _scanned_options(lines: Sequence[Directive], table: Mapping[str, Spec]) -> Iterator[Option]:
    """Yield the options in the lines of a component; raise RefusedError where sbatch refuses a word."""
    for line in lines:
        if line.fault:
            raise RefusedError(*line.fault)
    for item in scan([word for line in lines for word in line.words], table):
        if isinstance(item, Stop):
            text = item.complaint or f"Invalid directive found in batch script: {item.word.text}"
            raise RefusedError(text, item.word.line, item.word.column)
        yield item
