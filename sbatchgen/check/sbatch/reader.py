"""Reader of scripts that works like sbatch: directives, options, and the reason of a refusal.

    script = read_script(text, slurm="22.05")
    script.options["time"].value        # "1:30:00"
    script.refusal                      # the message with which sbatch refuses the script, or None

The reader judges as sbatch does before sbatch asks slurmctld, and holds no rules. It knows less than sbatch:
- It opens no file that an option names (--nodefile, --bbf, --export-file, a --nodelist with a slash), and
  looks up no users (--uid, --gid), other clusters (--clusters), SBATCH_ variables or settings of slurm.conf.
- It knows the options of a site's plugins only from its caller.
- It does not translate #PBS and #BSUB lines. In scripts with such lines, combinations of options pass.
- It accepts some rare values that sbatch refuses.
A change between 22.05 and 26.05 counts from the first release whose source has the change.
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

MAX_COMPONENTS = 128  # components of a heterogeneous job; Slurm takes no more


@dataclass(kw_only=True, slots=True)
class Component:
    """A component of a heterogeneous job; other jobs have a single component."""

    options: dict[str, Option]  # the use that counts of each option, by long name
    uses: list[Option] = field(default_factory=list)  # each use of an option that sbatch reached, in order


@frozen(kw_only=True, slots=True)
class Script:
    """A script as sbatch reads it."""

    directives: tuple[Directive, ...]  # the lines that are directives, or look like directives
    components: tuple[Component, ...]  # the components of the job; the last component may be incomplete
    refusal: Message | None  # sbatch's message if sbatch refuses the script without asking slurmctld
    has_foreign: bool  # whether sbatch takes options from #PBS or #BSUB lines, which are not read here

    @property
    def options(self) -> Mapping[str, Option]:
        """The options of the first component."""
        return self.components[0].options if self.components else {}


def read_script(text: str | bytes, *, slurm: str = "22.05", plugin_options: Iterable[Spec] = ()) -> Script:
    """Read a script as sbatch of a release with plugins does; raise ValueError for an unknown release."""
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
        if option.name != "hint":  # sbatch drops a --hint beside its rivals, which later lines may hold
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
    """Return the directives of each component, in order."""
    lines_read = [line for line in lines if line.kind in READ_KINDS]
    count = 1 + max((line.component for line in lines_read), default=0)
    numbers = range(min(count, MAX_COMPONENTS))
    return [[line for line in lines_read if line.component == number] for number in numbers]


def _scanned_options(lines: Sequence[Directive], table: Mapping[str, Spec]) -> Iterator[Option]:
    """Yield the options of a component; raise RefusedError at an error that ends sbatch."""
    for line in lines:
        if line.fault:
            raise RefusedError(*line.fault)
    for item in scan([word for line in lines for word in line.words], table):
        if isinstance(item, Stop):
            text = item.complaint or f"Invalid directive found in batch script: {item.word.text}"
            raise RefusedError(text, item.word.line, item.word.column)
        yield item
