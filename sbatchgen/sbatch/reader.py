"""What sbatch reads in a script: directives, options, and what it says, without an sbatch.

    script = read(text, slurm="22.05")
    script.options["time"].shown        # "01:30:00"
    script.messages                     # what sbatch would say
    script.returncode                   # its exit status where it would refuse the script

It judges as sbatch itself does, before slurmctld is asked: no rule of ours is in it. Not read are files
that an option names (--nodefile, --bbf, --export-file, a --nodelist with a slash), users (--uid, --gid)
and other clusters (--clusters); options of a site's plugins are given by the caller. What slurm.conf
could change is taken as its defaults have it. Checked against sbatch 22.05.8 and 26.05.5 by
benchmarks/agreement.py; what came between them stands at the release whose source has it first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sbatchgen.sbatch import combination, demand
from sbatchgen.sbatch.display import shown
from sbatchgen.sbatch.fields import Fields
from sbatchgen.sbatch.getopt import Stop, Use, scan
from sbatchgen.sbatch.grammar import RefusedError, fold, leading_number
from sbatchgen.sbatch.header import READ, Directive, Kind, Message, Token, directives, refusal
from sbatchgen.sbatch.releases import ALIASES, HasArgument, Spec, line_of, specs, variables
from sbatchgen.sbatch.setting import put
from sbatchgen.sbatch.translation import Dialect, dialect, translate, uses

# sbatch reads all directives anew for each component of a job. Here that is done for so many components, and
# for fewer where these many bytes of directives have been read: time squared is for nobody.
MAX_COMPONENTS = 128
MAX_READ = 6 << 20

__all__ = ["Component", "Directive", "Kind", "Message", "Option", "Script", "Token", "read"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """An option as it is given. Lines and columns count from 1, and are 0 outside the script.

    Attributes:
        name: Its long name, also where it is shortened or a letter.
        value: Its argument, without quotes; None if it has none.
        shown: The value as `sbatch -v` prints it, if this is the one that counts.
        source: "script", "environment" or "command line".
        line: The line of the option.
        column: Where the option starts.
        value_line: The line of its value, which may be a later one.
        value_column: Where the value starts.
        value_end: The column after the value's last character.
        spelled: The word that names it, such as -t10 or --part=gpu, or the name of a variable.
    """

    name: str
    value: str | None
    shown: str | None
    source: str
    spelled: str
    line: int = 0
    column: int = 0
    value_line: int = 0
    value_column: int = 0
    value_end: int = 0


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
        unread: How many components follow that are not read here, though sbatch would.
        messages: What sbatch says, in order.
        returncode: Its exit status if it ends before it asks slurmctld, else None.
    """

    directives: tuple[Directive, ...]
    components: tuple[Component, ...]
    messages: tuple[Message, ...]
    returncode: int | None
    unread: int = 0

    @property
    def options(self) -> Mapping[str, Option]:
        """The options that count in the first component."""
        return self.components[0].options if self.components else {}


def read(
    text: str | bytes,
    *,
    slurm: str = "22.05",
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    plugin_options: Iterable[Spec] = (),
    gres_types: Iterable[str] | None = None,
    file: str = "job.sh",
    folder: str | None = None,
    now: float | None = None,
) -> Script:
    """Read a script as sbatch does.

    Args:
        text: The script.
        slurm: The release of Slurm, 20.11 to 26.05.
        environment: Where sbatch looks for SBATCH_ variables; none by default.
        arguments: The options before the script on sbatch's command line.
        plugin_options: Options that the site's plugins add.
        gres_types: GresTypes of the cluster; by default any name is taken for one.
        file: The script's name, for messages.
        folder: Where sbatch is called, for relative paths; by default where this process is.
        now: Seconds since 1970, for --begin and --deadline; by default the time of the call.

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
        arguments=tuple(Token(text=argument) for argument in arguments),
        gres_types=None if gres_types is None else frozenset(gres_types),
        directives=tuple(directives(decoded, slurm=slurm, file=file)),
        job=Fields(
            folder=os.getcwd() if folder is None else folder,  # noqa: PTH109 (as sbatch does)
            now=time.time() if now is None else now,
            slurm=line_of(slurm),
        ),
    )
    components: list[Component] = []
    count = _components(call.directives)
    most = min(count, _most(call.directives))
    try:
        _first_pass(call)
        _admit(call, script)
        components.extend(_component(call, index) for index in range(most))
        returncode = None
    except _EndError as end:
        returncode = end.status
        components += end.components
    return Script(
        directives=call.directives,
        components=tuple(components),
        messages=tuple(call.messages),
        returncode=returncode,
        unread=count - most if returncode is None else 0,
    )


@dataclass(kw_only=True, slots=True)
class _Call:
    """A call of sbatch, as far as it went."""

    slurm: str
    table: Mapping[str, Spec]
    shorts: Mapping[str, Spec]
    environment: Mapping[str, str]
    arguments: tuple[Token, ...]
    gres_types: frozenset[str] | None
    directives: tuple[Directive, ...]
    job: Fields
    given: list[Option] = field(default_factory=list)
    latest: dict[str, Option] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    told_of_packjob: bool = False

    def say(self, level: str, text: str, line: int = 0, column: int = 0) -> None:
        self.messages.append(Message(level=level, text=text, line=line, column=column))

    def pass_on(self, line: int = 0, column: int = 0) -> None:
        """Say what the fields have to say."""
        for level, text in self.job.complaints:
            self.say(level, text, line, column)
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
        self.components: list[Component] = []


def _first_pass(call: _Call) -> None:
    """The command line, before the script is read: as if it were the environment."""
    _apply_environment(call, (("SBATCH_IGNORE_PBS", "ignore-pbs"),))
    for item in scan(call.arguments, call.table, call.shorts):
        if isinstance(item, Stop):
            _stop(call, item)
        elif item.spec.name in ("help", "usage", "version"):
            raise _EndError(0)
        elif item.spec.name in ("verbose", "quiet"):
            call.job[item.spec.name] = (call.job[item.spec.name] or 0) + 1
        elif not item.spec.early:
            _put(call, _option(item, "environment"), item.value)


def _admit(call: _Call, script: bytes) -> None:
    said = refusal(script)
    for text in said:
        call.say("error", text, 1, 1)
    if said:
        raise _EndError(1)


def _components(lines: Sequence[Directive]) -> int:
    return 1 + max((line.component for line in lines if line.kind in READ), default=0)


def _most(lines: Sequence[Directive]) -> int:
    """How many components are read of a job with these directives."""
    size = sum(len(line.text) for line in lines)
    return max(1, min(MAX_COMPONENTS, MAX_READ // max(size, 1)))


def _component(call: _Call, index: int) -> Component:
    """One pass over the script: its words for this component, then the environment, then the command line."""
    for spec in call.table.values() if call.job.values else ():
        if spec.per_component:
            call.job.reset(spec.name)
    call.given.clear()
    settled = False
    try:
        _apply_script(call, index)
        _apply_foreign(call)
        _apply_environment(call, variables(call.slurm))
        _apply(call, call.arguments, "command line")
        _checked(call, combination.settle)
        settled = True
        component = _snapshot(call, settled=True)
        if call.job["dist"][1] == "both" and "distribution" in call.job.sources:
            call.say("verbose", f"error: {combination.UNKNOWN_DISTRIBUTION}")
        _checked(call, combination.check_limits)
        _checked(call, combination.check_nodelist)
        _checked(call, lambda job: demand.verify(job, known=call.gres_types))
        _checked(call, combination.check_export)
    except _EndError as end:
        end.components.append(component if settled else _snapshot(call, settled=False))
        raise
    return component


def _apply_script(call: _Call, index: int) -> None:
    stray = _apply(call, _words(call, index), "script")
    if stray:
        text = f"Invalid directive found in batch script: {stray.text}"
        call.say("error", text, stray.line, stray.column)
        raise _EndError(255)


def _apply_foreign(call: _Call) -> None:
    """Take the options that #BSUB lines, or else #PBS lines, stand for."""
    if call.job["ignore-pbs"]:
        return
    for kind in (Kind.BSUB, Kind.PBS):
        lines = [line for line in call.directives if line.kind is kind]
        if lines:
            _apply_lines(call, lines, dialect(kind.name, slurm=call.slurm))
            return


def _apply_lines(call: _Call, lines: Sequence[Directive], known: Dialect) -> None:
    words: list[Token] = []
    for line in lines:
        words += line.words
        _tell_faults(call, line)
    for item in uses(words, known):
        at = item.word.line, item.word.column
        if isinstance(item, Stop):
            if item.complaint:
                call.say("", item.complaint, *at)
            text = (
                "Unrecognized command line parameter ?"
                if item.complaint
                else f"Invalid argument: {item.word.text}"
            )
            raise call.end(RefusedError(text, status=1), *at)
        _translate(call, item, known)


def _translate(call: _Call, use: Use, known: Dialect) -> None:
    option = _option(use, "script")

    def keep(name: str, value: str | None) -> None:
        given = replace(option, name=name, value=value)
        call.given.append(given)
        _put(call, given, value)

    try:
        translate(call.job, use, known, keep)
    except RefusedError as error:
        raise call.end(error, option.line, option.column) from error
    call.pass_on(option.line, option.column)


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
        if line.component < index:
            continue
        words += line.words
        _tell_faults(call, line)
    return words


def _tell_faults(call: _Call, line: Directive) -> None:
    if line.deprecated and not call.told_of_packjob:
        call.told_of_packjob = True
        call.say(*_deprecated_packjob(call.slurm), line.line, line.column)
    if line.fault:
        call.say(line.fault.level, line.fault.text, line.fault.line, line.fault.column)
        raise _EndError(1)


def _deprecated_packjob(slurm: str) -> tuple[str, str]:
    if slurm >= "23.02":
        return "warning", 'The "packjob" component separator is deprecated. Please use "hetjob" instead.'
    text = 'the "packjob" component separator is being deprecated. Please, use "hetjob" instead.'
    return "info", f"Warning: {text}"


def _apply(call: _Call, words: Sequence[Token], source: str) -> Token | None:
    """Take the options in these words; the word that is no option, if one stops it."""
    for item in scan(words, call.table, call.shorts):
        if isinstance(item, Stop):
            return _stop(call, item)
        option = _option(item, source)
        call.given.append(option)
        if not item.spec.early:
            _put(call, option, item.value)
    return None


def _stop(call: _Call, stop: Stop) -> Token:
    if not stop.complaint:
        return stop.word
    call.say("", stop.complaint, stop.word.line, stop.word.column)
    call.say("", 'Try "sbatch --help" for more information', stop.word.line, stop.word.column)
    raise _EndError(255)


def _option(use: Use, source: str) -> Option:
    at = use.value_word
    start, end = at.span(use.value_start) if at else (0, 0)
    return Option(
        name=ALIASES.get(use.spec.name, use.spec.name),
        value=use.value,
        shown=None,
        source=source,
        spelled=use.word.text,
        line=use.word.line,
        column=use.word.column,
        value_line=at.line if at else 0,
        value_column=start,
        value_end=end,
    )


def _apply_environment(call: _Call, names: Iterable[tuple[str, str]]) -> None:
    if not call.environment and "SLURM_HINT" not in call.job.values:
        return
    for name, option in names:
        value = call.job[name] or call.environment.get(name)
        if value is None:
            continue
        spec = call.table.get(option)
        if spec is None and option == "power":  # it is gone, but its variable is still looked for
            raise _EndError(255)
        given = Option(name=option, value=value, shown=None, source="environment", spelled=name)
        call.given.append(given)
        kind = spec.argument if spec else HasArgument.REQUIRED
        if kind is HasArgument.NONE and not _is_yes(value):
            call.job.reset(option)
        else:
            flag = kind is HasArgument.NONE and option != "verbose"  # of which a variable gives the number
            _put(call, given, None if flag else value)


def _is_yes(value: str) -> bool:
    """Whether a variable sets a flag; else it takes it back."""
    number, rest = leading_number(value)
    return not value or fold(value) == "yes" or (bool(number) and not rest)


def _put(call: _Call, option: Option, value: str | None) -> None:
    spec = call.table.get(option.name)
    if spec and spec.argument is HasArgument.OPTIONAL:
        value = value or None
    try:
        put(call.job, option.name, value)
    except RefusedError as error:
        raise call.end(error, option.line, option.column) from error
    call.pass_on(option.line, option.column)
    call.job.sources[option.name] = option.source
    call.latest[option.name] = option


def _checked(call: _Call, check: Callable[[Fields], None]) -> None:
    try:
        check(call.job)
    except RefusedError as error:
        raise call.end(error) from error
    call.pass_on()


def _snapshot(call: _Call, *, settled: bool) -> Component:
    return Component(
        options={option.name: option for option in _counting(call)},
        given=tuple(call.given),
        settled=settled,
    )


def _counting(call: _Call) -> Iterator[Option]:
    for name in call.job.sources:
        yield replace(call.latest[name], shown=shown(call.job, name))
