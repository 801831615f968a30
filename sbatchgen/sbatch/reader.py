"""What sbatch reads in a script: directives, options, and what it says, without an sbatch.

    script = read(text, slurm="22.05")
    script.options["time"].value        # "1:30:00"
    script.messages                     # what sbatch would say
    script.returncode                   # its exit status where it would refuse the script

It judges as sbatch itself does before it asks slurmctld; it holds no rules. Not read are files
that an option names (--nodefile, --bbf, --export-file, a --nodelist with a slash), users (--uid, --gid)
and other clusters (--clusters); options of a site's plugins are given by the caller. The options that sbatch
translates from #PBS and #BSUB lines are not known here: the options of such a script are not compared with
each other. What slurm.conf could change is taken as its defaults have it. Checked against sbatch 22.05.8 and
26.05.5 by benchmarks/agreement.py; what came between them stands at the release whose source has it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sbatchgen.sbatch import combination, gres_checks
from sbatchgen.sbatch.fields import Fields
from sbatchgen.sbatch.grammar import RefusedError, fold, leading_number
from sbatchgen.sbatch.header import FOREIGN, READ, Directive, Message, Token, directives, refusal
from sbatchgen.sbatch.options import Option, Stop, counting, scan
from sbatchgen.sbatch.releases import HasArgument, Spec, line_of, specs, variables
from sbatchgen.sbatch.values import put

# sbatch reads all directives anew for each component of a job. Here that is done for so many components, and
# for fewer where these many bytes of directives have been read: time squared is for nobody.
MAX_COMPONENTS = 128
MAX_READ = 6 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """A component of a heterogeneous job; the only one of other jobs.

    Attributes:
        options: The options that count, by long name.
        given: Every use of an option that sbatch got to, in order.
        settled: Whether sbatch got as far as to settle them; else it ended in this component.
    """

    options: Mapping[str, Option]
    given: tuple[Option, ...]
    settled: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """What sbatch makes of a script.

    Attributes:
        directives: The lines that are directives, and those that look like some.
        components: The components of the job; the last may be incomplete.
        has_foreign: Whether it takes options from #PBS or #BSUB lines, which are not read here.
        messages: What sbatch says, in order.
        returncode: Its exit status if it ends before it asks slurmctld, else None.
    """

    directives: tuple[Directive, ...]
    components: tuple[Component, ...]
    messages: tuple[Message, ...]
    returncode: int | None
    has_foreign: bool = False

    @property
    def options(self) -> Mapping[str, Option]:
        """The options that count in the first component."""
        return self.components[0].options if self.components else {}


def read(
    text: str | bytes,
    *,
    slurm: str = "22.05",
    environment: Mapping[str, str] | None = None,
    plugin_options: Iterable[Spec] = (),
    gres_types: Iterable[str] | None = None,
    file: str = "job.sh",
) -> Script:
    """Read a script as sbatch does.

    Args:
        text: The script.
        slurm: The release of Slurm, 20.11 to 26.05.
        environment: Where sbatch looks for SBATCH_ variables; none by default.
        plugin_options: Options that the site's plugins add.
        gres_types: GresTypes of the cluster; by default any name is taken for one.
        file: The script's name, for messages.

    Raises:
        ValueError: The release is not known here.
    """
    script = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    decoded = script.decode("utf-8", "surrogateescape")
    table = specs(slurm) | {spec.name: spec for spec in plugin_options}
    call = _Call(
        slurm=line_of(slurm),
        table=table,
        shorts={spec.short: spec for spec in table.values() if spec.short},
        environment=environment or {},
        gres_types=None if gres_types is None else frozenset(gres_types),
        directives=tuple(directives(decoded, slurm=slurm, file=file)),
        job=Fields(slurm=line_of(slurm)),
    )
    components: list[Component] = []
    count = 1 + max((line.component for line in call.directives if line.kind in READ), default=0)
    size = sum(len(line.text) for line in call.directives)
    most = min(count, max(1, min(MAX_COMPONENTS, MAX_READ // max(size, 1))))
    returncode = None
    _apply_environment(call, (("SBATCH_IGNORE_PBS", "ignore-pbs"),))
    try:
        if said := refusal(script):
            raise call.end(RefusedError(*said, status=1), 1, 1)
        for index in range(most):
            _read_component(call, index, components)
    except _EndError as end:
        returncode = end.status
    return Script(
        directives=call.directives,
        components=tuple(components),
        messages=tuple(call.messages),
        returncode=returncode,
        has_foreign=call.has_foreign,
    )


@dataclass(kw_only=True, slots=True)
class _Call:
    """A call of sbatch, as far as it went."""

    slurm: str
    table: Mapping[str, Spec]
    shorts: Mapping[str, Spec]
    environment: Mapping[str, str]
    gres_types: frozenset[str] | None
    directives: tuple[Directive, ...]
    job: Fields
    has_foreign: bool = False
    given: list[Option] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def say(self, level: str, text: str, line: int = 0, column: int = 0) -> None:
        self.messages.append(Message(level=level, text=text, line=line, column=column))

    def pass_on(self, line: int = 0, column: int = 0) -> None:
        """Say the complaints about the fields."""
        for text in self.job.complaints:
            self.say("error", text, line, column)
        self.job.complaints.clear()

    def end(self, error: RefusedError, line: int = 0, column: int = 0) -> _EndError:
        self.pass_on(line, column)
        for level, text in zip(error.levels, error.texts, strict=False):
            self.say(level, text, line, column)
        return _EndError(error.status)


class _EndError(Exception):
    """sbatch ends here."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _read_component(call: _Call, index: int, components: list[Component]) -> None:
    """One pass over the script: its words for this component, then the environment, then the checks."""
    job, settled = call.job, False
    for spec in call.table.values() if job.values else ():
        if spec.per_component:
            job.reset(spec.name)
    call.given.clear()
    try:
        _apply_script(call, index)
        if "ignore-pbs" not in job.options and any(line.kind in FOREIGN for line in call.directives):
            call.has_foreign = True
        _apply_environment(call, variables(call.slurm))
        if not call.has_foreign:
            combination.settle(job)
            settled = True
            combination.check_nodelist(job)
            gres_checks.verify(job, known=call.gres_types)
        call.pass_on()
    except RefusedError as error:
        raise call.end(error) from error
    finally:
        components.append(Component(options=dict(job.options), given=tuple(call.given), settled=settled))


def _apply_script(call: _Call, index: int) -> None:
    for item in scan(_words(call, index), call.table, call.shorts):
        if isinstance(item, Stop):
            raise _stopped(call, item)
        call.given.append(item)
        if not item.spec.early:
            _put(call, item)


def _stopped(call: _Call, stop: Stop) -> _EndError:
    at = stop.word.line, stop.word.column
    if not stop.complaint:
        return call.end(RefusedError(f"Invalid directive found in batch script: {stop.word.text}"), *at)
    help_text = 'Try "sbatch --help" for more information'
    return call.end(RefusedError(stop.complaint, help_text, level=""), *at)


def _words(call: _Call, index: int) -> list[Token]:
    """The words of the directives of a component."""
    words: list[Token] = []
    complained = False
    for line in call.directives:
        if line.kind not in READ:
            continue
        if line.text.startswith("#SLURM") and not complained and line.component <= index + 1:
            complained = True
            text = "Change from #SLURM to #SBATCH in your script and verify the options are valid in sbatch"
            call.say("error", text, line.line, line.column)
        if line.component > index:
            break
        if line.component == index:
            words += line.words
            _end_at_fault(call, line)
    return words


def _end_at_fault(call: _Call, line: Directive) -> None:
    if line.fault:
        call.messages.append(line.fault)
        raise _EndError(1)


def _apply_environment(call: _Call, names: Iterable[tuple[str, str]]) -> None:
    if not call.environment and "SLURM_HINT" not in call.job.values:
        return
    for name, option in names:
        value = call.job[name] or call.environment.get(name)
        if value is None:
            continue
        spec = call.table.get(option)
        if spec is None:
            if option == "power":  # it is gone, but its variable is still looked for
                raise _EndError(255)
            spec = Spec(
                name=option, short="", argument=HasArgument.REQUIRED, early=False, per_component=False
            )
        given = Option(spec=spec, word=Token(text=name), value=value, source="environment")
        call.given.append(given)
        if spec.argument is not HasArgument.NONE or option == "verbose":  # of which it gives the number
            _put(call, given)
        elif _is_yes(value):
            _put(call, replace(given, value=None))
        else:
            call.job.reset(option)


def _is_yes(value: str) -> bool:
    """Whether a variable sets a flag; else it takes it back."""
    number, rest = leading_number(value)
    return not value or fold(value) == "yes" or (bool(number) and not rest)


def _put(call: _Call, option: Option) -> None:
    spec = call.table.get(option.name)
    value = option.value
    if spec and spec.argument is HasArgument.OPTIONAL:
        value = value or None
    try:
        put(call.job, option.name, value)
    except RefusedError as error:
        raise call.end(error, option.line, option.column) from error
    call.pass_on(option.line, option.column)
    call.job.options[option.name] = counting(call.job.options.get(option.name), option, call.slurm)
