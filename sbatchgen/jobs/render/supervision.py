"""The variables of the template for the programs of a job: their functions, tables, order and addresses."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sbatchgen.base import quoting
from sbatchgen.jobs.render import arguments, exports, launch
from sbatchgen.jobs.resolved.resolved_job import JobProgram, ResolvedJob

GRACE_S = 60  # seconds between TERM and KILL, if a program sets no `grace`
_LOGS = "$RUN_DIR/programs"


class _Function(NamedTuple):
    """The two bash functions of a program: the start, and the test whether the program is ready."""

    name: str  # the name of the program
    numbered: bool  # whether the functions get the number of a replica
    lines: tuple[str, ...]  # the lines that start the program
    ready: str  # the command that tests whether the program is ready, or ""


def of_job(resolved: ResolvedJob, here: str) -> dict[str, Any]:
    """Return the variables of the template for a job with several programs."""
    programs = resolved.programs
    main = next((program.name for program in programs if program.share.main), "")
    instances = [word for program in programs if program.name != main for word in _words(program)]
    signs = {sign for program in programs for sign in program.ready.signs}
    ports = sum(program.share.instances for program in programs)
    once = any(program.spec.once for program in programs)
    restarts = any(program.spec.restarts for program in programs)
    return {
        "programs": [_function(program, here) for program in programs],
        "addresses": tuple(_addresses(programs, slurm=resolved.slurm)),
        "ports": ports,
        "first_port_of_programs": launch.first_port(resolved, ports),
        "names": " ".join(
            [*instances, *([main] if main else [])]
        ),  # the main program last, as its errors may follow from another program
        "lasting": " ".join(
            word for program in programs if not program.spec.optional for word in _words(program)
        ),
        "main": main,
        "ending": main or "the last",
        "watched": f"{main} has ended, or another" if main else "all have ended, or one",
        "state_tables": " ".join(["pid", *["since"] * bool(signs), *["starts_of"] * restarts]),
        "has_urls": any(fact == "urls" for program in programs for _, fact, _ in program.lists)
        or any(program.share.replicas for program in programs),
        "tables": tuple(_tables(programs)),
        "may_end": once,
        "may_end_early": bool(once and main),
        "may_restart": restarts,
        "has_optional": any(program.spec.optional for program in programs),
        "has_grace": any(program.spec.grace != GRACE_S for program in programs),
        "asks": bool(signs),
        "asks_hosts": any(program.ready.signs and program.share.nodes > 1 for program in programs),
        **{f"asks_{sign}": sign in signs for sign in ("url", "port", "file", "log")},
        "order": tuple(_order(programs)),
        "asks_to_stop": resolved.asks_to_stop,
    }


def _words(program: JobProgram) -> Iterator[str]:
    """Yield the names by which the script calls a program, as words of bash."""
    share = program.share
    yield f"{share.name}.{{0..{share.replicas - 1}}}" if share.replicas > 1 else share.words[0]


def _tables(programs: Sequence[JobProgram]) -> Iterator[str]:
    """Yield the lines that declare the tables of the programs' settings."""
    tables: dict[str, Mapping[str, Any]] = {
        "grace": {each.name: int(each.spec.grace) for each in programs if each.spec.grace != GRACE_S},
        "restarts_of": {each.name: each.spec.restarts for each in programs if each.spec.restarts},
        "once": {each.name: 1 for each in programs if each.spec.once},
        "optional": {each.name: 1 for each in programs if each.spec.optional},
    }
    for name, values in tables.items():
        if values:
            lines = quoting.packed(f"[{key}]={value}" for key, value in values.items())
            text = "\n    ".join(lines)
            yield f"declare -A {name}=({text})"


def _order(programs: Sequence[JobProgram]) -> Iterator[str]:
    """Yield the commands that start the programs, and that wait for programs which others need."""
    left, awaited = [*programs], set()
    while left:
        following = next(each for each in left if not {*each.spec.needs} & {other.name for other in left})
        for each in programs:
            if each.name in following.spec.needs and each.name not in awaited:
                awaited.add(each.name)
                yield from _awaited(each)
        yield _for_each(following, "run {}")
        left.remove(following)
    for each in programs:
        if each.ready.signs and each.name not in awaited:
            yield from _awaited(each)


def _for_each(program: JobProgram, command: str) -> str:
    """Return a command on a program, or on each of its replicas."""
    (words,) = _words(program)
    if program.share.replicas < 2:
        return command.format(words)
    return f"for each in {words}; do {command.format('$each')}; done"


def _awaited(program: JobProgram) -> Iterator[str]:
    """Yield the command that waits until a program is ready; nothing if a program is ready once it runs."""
    if program.ready.signs:
        first = " on first" if program.ready.hosts == "first" and program.share.nodes > 1 else ""
        yield _for_each(program, f"ready {{}} within {int(program.ready.within)} s{first}")
    elif program.spec.once:
        yield _for_each(program, "done_with {}")


def _function(program: JobProgram, here: str) -> _Function:
    lines = tuple(_start(program, here))
    return _Function(program.name, program.share.replicas > 0, lines, _ready(program))


def _start(program: JobProgram, here: str) -> Iterator[str]:
    """Yield the lines that start a program; all but the main one have logs of their own."""
    job, share = program.job, program.share
    if not (job.slurm or share.main):
        yield f'exec >>"{_LOGS}/{share.own_word}.0.log" 2>&1'
    yield from (f"export {line}" for line in quoting.packed(_exported(program)))
    command = launch.command(job, exports.names(job), launch.mounts(job, here))
    apart = (
        job.slurm and not share.main
    )  # what srun itself says of its tasks' ends: with TERM a line for each
    messages = [f'2>>"{_LOGS}/{share.own_word}.srun.log"'] if apart else []
    yield " \\\n        ".join(quoting.packed([*command, *messages]))


def _addresses(programs: Sequence[JobProgram], *, slurm: bool) -> Iterator[str]:
    """Yield the lines that set the variables with the addresses of the programs."""
    number = 0
    for program in programs:
        port = f"$((port + {number}))" if number else "$port"
        if program.share.replicas:
            yield from _of_replicas(program, number, slurm=slurm)
        else:
            yield from _of_one(program, port, slurm=slurm)
        for _, fact, words in program.lists:
            variable = f"{program.name.variable}_{fact.upper()}"
            if words:
                yield f'export {variable}_WORDS="${{{variable}//,/ }}"'
                yield f"{variable}_LIST=(${{{variable}//,/ }})"
        number += program.share.instances


def _of_one(program: JobProgram, port: str, *, slurm: bool) -> Iterator[str]:
    name, share, variable = program.name, program.share, program.name.variable
    host = hosts = f"${{hosts[{share.first if slurm else 0}]}}"
    if share.nodes > 1 and slurm:
        hosts = f"$(nodes {share.first} {share.nodes})"
    yield f"nodes_of[{name}]={hosts} ports_of[{name}]={port}"
    words = (f"{variable}_HOST={host}", f"{variable}_HOSTS={hosts}", f"{variable}_PORT={port}")
    yield from (f"export {line}" for line in quoting.packed(words))
    if any(fact == "urls" for _, fact, _ in program.lists):
        yield f"export {variable}_URLS=$(urls {name})"


def _of_replicas(program: JobProgram, number: int, *, slurm: bool) -> Iterator[str]:
    name, share, variable = program.name, program.share, program.name.variable
    words = next(_words(program))
    place = "$number" if share.on_node == 1 else f"$number / {share.on_node}"
    at = f"{share.first} + {place}".replace("$", "") if share.first else place.replace("$", "")
    hosts = f"${{hosts[{at if slurm else 0}]}}"
    if share.nodes > 1 and slurm:
        hosts = f"$(nodes $(({share.first} + number * {share.nodes})) {share.nodes})"
    numbers = words.partition(".")[2]
    yield f"for number in {numbers}; do # the replicas of {name}, each with a port of its own"
    yield f"    nodes_of[{name}.$number]={hosts} ports_of[{name}.$number]=$((port + {number} + number))"
    yield "done"
    all_hosts = f"$(nodes {share.first} {share.all_nodes})" if slurm else "${hosts[0]}"
    yield f"export {variable}_HOSTS={all_hosts} {variable}_URLS=$(urls {words})"


def _exported(program: JobProgram) -> Iterator[str]:
    """Yield the variables that only this program gets."""
    job, variable = program.job, program.name.variable
    if program.share.replicas:
        me = program.share.own_word
        yield f"{variable}_REPLICA=$1"
        yield f"{variable}_HOSTS=${{nodes_of[{me}]}}"
        yield f"{variable}_HOST=${{nodes_of[{me}]%%,*}}"
        yield f"{variable}_PORT=${{ports_of[{me}]}}"
    if launch.meets(job):
        own_way = job.settings.master_addr if not program.share.first else ""  # of this node, the first
        yield f"MASTER_ADDR=$({own_way})" if own_way else f"MASTER_ADDR=${variable}_HOST"
        yield f"MASTER_PORT=${variable}_PORT"
    for name in program.spec.env:
        if value := job.env.get(name):
            yield f"{name}={arguments.with_params(value, job, quoting.value)}"
    if (threads := exports.variables(job).get("OMP_NUM_THREADS")) and not job.is_command:
        yield f"OMP_NUM_THREADS={threads}"


def _ready(program: JobProgram) -> str:
    """Return the command that tests whether a program is ready on a host; "" for a program without a sign."""
    if not program.ready.signs:
        return ""
    (sign,) = program.ready.signs
    text = getattr(program.ready, sign)
    word = quoting.word(text) if sign == "log" else arguments.word(text, program.job)
    more = f" {program.share.tasks}" if sign == "log" and program.share.tasks > 1 else ""
    return f"asks_{sign} {word}{more}"
