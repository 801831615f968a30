"""Resolved job -> what the script needs of each of its programs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sbatchgen import quoting
from sbatchgen.render import arguments, exports, launch
from sbatchgen.resolved.resolved_job import JobProgram, ResolvedJob


def of_job(resolved: ResolvedJob, here: str) -> dict[str, Any]:
    """Return what the template has of the programs of a job that has several."""
    programs = resolved.programs
    tables: dict[str, Mapping[str, Any]] = {
        "nodes": {program.name: f"${program.name.variable}_HOSTS" for program in programs},
        "grace": {program.name: int(program.spec.grace) for program in programs},
        "more": {program.name: program.spec.restarts for program in programs if program.spec.restarts},
        "once": {program.name: 1 for program in programs if program.spec.once},
    }
    main = next((program.name for program in programs if program.share.main), "")
    ports = ["$port", *(f"$((port + {number}))" for number in range(1, len(programs)))]
    return {
        "programs": [(program.name, tuple(_start(program, here))) for program in programs],
        "addresses": [_addresses(program, port) for program, port in zip(programs, ports, strict=True)],
        "any_taken": " || ".join(f"taken {port}" for port in ports),
        "names": " ".join(sorted((program.name for program in programs), key=lambda name: name == main)),
        "main": main,
        "ending": main or "the last",
        "tables": [f"{name}=({_entries(values)})" for name, values in tables.items() if values],
        "ends": tuple(_ends(main, tables)),
        "fails": "[[ ! $ended && ! -e $RUN_DIR/stop ]]" if resolved.asks_to_stop else "[[ ! $ended ]]",
        "has_ports": any(program.ready.port for program in programs),
        "clears": tuple(_clears(programs)),
        "order": tuple(_order(programs)),
        "asks_to_stop": resolved.asks_to_stop,
    }


def _order(programs: Sequence[JobProgram]) -> Iterator[str]:
    """Yield the commands that start the programs, and wait until those are ready that others need."""
    left, awaited = [*programs], set()
    while left:
        following = next(each for each in left if not {*each.spec.needs} & {other.name for other in left})
        for each in programs:
            if each.name in following.spec.needs and each.name not in awaited:
                awaited.add(each.name)
                yield from _ready(each)
        yield f"run {following.name}"
        left.remove(following)
    for each in programs:
        if each.ready.signs and each.name not in awaited:
            yield from _ready(each)


def _entries(values: Mapping[Any, Any]) -> str:
    return " ".join(f"[{key}]={value}" for key, value in values.items())


def _ends(main: str, tables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tests of a program that has ended, with what follows; where none holds, it has failed."""
    of_main = "((code)) && [[ $ended ]] || ended=$name rc=$code why=''"  # another may have failed before it
    tests = {f"[[ $name == {main} ]]": of_main} if main else {"((code == 0))": ":"}
    if tables["once"] and main:
        tests["((code == 0)) && [[ ${once[$name]-} ]]"] = ":"
    if tables["more"]:
        tests["((more[$name]-- > 0))"] = 'run "$name"'
    for number, (test, then) in enumerate(tests.items()):
        yield f"{'elif' if number else 'if'} {test}; then {then}"


def _clears(programs: Sequence[JobProgram]) -> Iterator[str]:
    """Yield what a start does first, so that no sign of an earlier one counts."""
    if any(program.ready.log for program in programs):
        yield 'for log in "$RUN_DIR/programs/$1".*.log; do [[ ! -e $log ]] || mv -f -- "$log" "$log.1"; done'
    if any(program.ready.file for program in programs):
        yield 'touch -- "$RUN_DIR/programs/$1.began"'


def _start(program: JobProgram, here: str) -> Iterator[str]:
    """Yield the lines that start a program; all but the main one have logs of their own."""
    job = program.job
    if not (job.slurm or program.share.main):
        yield f'exec >>"$RUN_DIR/programs/{program.name}.0.log" 2>&1'
    yield from (f"export {line}" for line in quoting.packed(_exported(program)))
    command = launch.command(job, exports.names(job), launch.mounts(job, here))
    yield " \\\n        ".join(quoting.packed(command))


def _addresses(program: JobProgram, port: str) -> str:
    """Return the words that tell all programs where one is; its port is a word of bash."""
    name, share, job = program.name.variable, program.share, program.job
    host = hosts = f"${{hosts[{share.first if job.slurm else 0}]}}"
    if share.nodes > 1 and job.slurm:
        hosts = f'$(IFS=,; echo "${{hosts[*]:{share.first}:{share.nodes}}}")'
    return f"{name}_HOST={host} {name}_HOSTS={hosts} {name}_PORT={port}"


def _exported(program: JobProgram) -> Iterator[str]:
    """Yield the variables that a program has alone."""
    job, variable = program.job, program.name.variable
    if program.share.preset:
        yield "RUN_DIR"
    if launch.meets(job):
        yield f"MASTER_ADDR=${variable}_HOST"
        yield f"MASTER_PORT=${variable}_PORT"
    for name in program.spec.env:
        if value := job.env.get(name):
            yield f"{name}={arguments.with_params(value, job, quoting.value)}"
    if (threads := exports.variables(job).get("OMP_NUM_THREADS")) and not job.is_command:
        yield f"OMP_NUM_THREADS={threads}"


def _ready(program: JobProgram) -> Iterator[str]:
    """Yield the command that waits until a program is ready; none for one that is as soon as it runs."""
    variable, folder = program.name.variable, "$RUN_DIR/programs"
    if program.spec.once and not program.ready.signs:
        yield f"until [[ $ended || ! ${{pid[{program.name}]-}} ]]; do look; done"
    if not program.ready.signs:
        return
    (sign,) = program.ready.signs
    text = getattr(program.ready, sign)
    word = quoting.word(text) if sign == "log" else arguments.word(text, program.job)
    test = {
        "url": f"curl -fs --max-time 5 --output /dev/null {word}",
        "port": f'answers "${variable}_HOST" {word}',
        "file": f'test {word} -nt "{folder}/{program.name}.began"',
        "log": f'grep -qsE -e {word} "{folder}/{program.name}.0.log"',
    }[sign]
    yield f"ready {program.name} {int(program.ready.within)} {test}"
