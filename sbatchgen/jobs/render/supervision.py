"""Makes the template's variables for a job with several programs, which the script starts and watches.

The variables hold bash functions that start the programs, tables of settings, the order of starts, and
addresses. A program with `replicas` has several instances, and each other program has one. A key `ready` says
how to see that a program is ready. Its sign is url, port, file or log.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sbatchgen.base import quoting
from sbatchgen.jobs.render import arguments, exports, launch
from sbatchgen.jobs.resolved.resolved_job import JobProgram, ResolvedJob

GRACE_S = 60  # seconds between TERM and KILL, if a program sets no `grace`
_LOG_FOLDER = "$RUN_DIR/programs"


class ProgramFunctions(NamedTuple):
    """The contents of a program's two bash functions: one starts it, the other tests whether it is ready."""

    program: str  # the name of the program
    take_number: bool  # whether the functions get the number of a replica
    start_lines: tuple[str, ...]  # the lines of the first function
    ready_test: str  # the command of the second function; "" if no sign shows that the program is ready


def supervision_variables(resolved: ResolvedJob, folder_variable: str) -> dict[str, Any]:
    """Return the template's variables for a job with several programs.

    `folder_variable` is the name of the bash variable with the folder of submission.
    """
    programs = resolved.programs
    main = next((program.name for program in programs if program.share.is_main), "")
    other_names = [_bash_word(program) for program in programs if program.name != main]
    required_names = [_bash_word(program) for program in programs if not program.spec.optional]
    signs = {sign for program in programs for sign in program.ready.signs}
    port_count = sum(program.share.instances for program in programs)
    has_finite_program = any(program.spec.once for program in programs)
    may_restart = any(program.spec.restarts for program in programs)
    uses_urls = any(named_list.fact == "urls" for program in programs for named_list in program.lists)
    return {
        "programs": [_program_functions(program, folder_variable) for program in programs],
        "addresses": tuple(_all_address_lines(programs, slurm=resolved.uses_slurm)),
        "ports": port_count,
        "first_port_of_programs": launch.first_port(resolved, port_count),
        # The main program is last, because its errors may follow from those of another program.
        "names": " ".join([*other_names, *([main] if main else [])]),
        "lasting": " ".join(required_names),  # without a main program, the job ends with the last of these
        "main": main,
        # Two parts of sentences in comments of the script: "The end of ... ends all", "until ... has failed".
        "ending": main or "the last",
        "watched": f"{main} has ended, or another" if main else "all have ended, or one",
        "state_tables": " ".join(_state_tables(has_signs=bool(signs), may_restart=may_restart)),
        "has_urls": uses_urls or any(program.share.replicas for program in programs),
        "tables": tuple(_tables(programs)),
        "may_end": has_finite_program,
        "may_end_early": bool(has_finite_program and main),
        "may_restart": may_restart,
        "has_optional": any(program.spec.optional for program in programs),
        "has_grace": any(program.spec.grace != GRACE_S for program in programs),
        "asks": bool(signs),  # whether the script asks programs if they are ready
        "asks_hosts": any(program.ready.signs and program.share.nodes > 1 for program in programs),
        **{f"asks_{sign}": sign in signs for sign in ("url", "port", "file", "log")},
        "order": tuple(_start_order(programs)),
        "asks_to_stop": resolved.asks_to_stop,
    }


def _state_tables(*, has_signs: bool, may_restart: bool) -> Iterator[str]:
    """Yield the names of bash's arrays in which the script keeps the state of each program."""
    yield "pid"
    if has_signs:
        yield "since"
    if may_restart:
        yield "starts_of"


def _bash_word(program: JobProgram) -> str:
    """Return a word that bash expands to the names of the program's instances: server, or worker.{0..3}."""
    share = program.share
    return f"{share.name}.{{0..{share.replicas - 1}}}" if share.replicas > 1 else share.bash_names[0]


def _tables(programs: Sequence[JobProgram]) -> Iterator[str]:
    """Yield the lines that declare bash's arrays of settings: "declare -A once=([prepare]=1)"."""
    tables: dict[str, Mapping[str, Any]] = {
        "grace": {
            program.name: int(program.spec.grace) for program in programs if program.spec.grace != GRACE_S
        },
        "restarts_of": {program.name: program.spec.restarts for program in programs if program.spec.restarts},
        "once": {program.name: 1 for program in programs if program.spec.once},
        "optional": {program.name: 1 for program in programs if program.spec.optional},
    }
    for name, values in tables.items():
        if values:
            lines = quoting.packed(f"[{key}]={value}" for key, value in values.items())
            text = "\n    ".join(lines)
            yield f"declare -A {name}=({text})"


def _start_order(programs: Sequence[JobProgram]) -> Iterator[str]:
    """Yield the commands that start the programs, in an order in which each program's needs come first.

    Before a program starts, the script waits for the programs that it needs.
    """
    not_started, awaited_names = [*programs], set()
    while not_started:
        names_not_started = {program.name for program in not_started}
        next_program = next(
            program for program in not_started if names_not_started.isdisjoint(program.spec.needs)
        )
        for program in programs:
            if program.name in next_program.spec.needs and program.name not in awaited_names:
                awaited_names.add(program.name)
                yield from _wait_lines(program)
        yield _for_each(next_program, "run {}")
        not_started.remove(next_program)
    for program in programs:
        if program.ready.signs and program.name not in awaited_names:
            yield from _wait_lines(program)


def _for_each(program: JobProgram, command: str) -> str:
    """Return a command for a program, or a loop of bash over its replicas. {} in the command is the name."""
    word = _bash_word(program)
    if program.share.replicas < 2:
        return command.format(word)
    return f"for each in {word}; do {command.format('$each')}; done"


def _wait_lines(program: JobProgram) -> Iterator[str]:
    """Yield the command that waits for a program: until it is ready, or a program with `once` has ended.

    The script does not wait for a program with neither `ready` nor `once`, so nothing is yielded for it.
    """
    if program.ready.signs:
        first = " on first" if program.ready.hosts == "first" and program.share.nodes > 1 else ""
        yield _for_each(program, f"ready {{}} within {int(program.ready.within)} s{first}")
    elif program.spec.once:
        yield _for_each(program, "done_with {}")


def _program_functions(program: JobProgram, folder_variable: str) -> ProgramFunctions:
    """Return the contents of a program's bash functions."""
    lines = tuple(_start_lines(program, folder_variable))
    return ProgramFunctions(program.name, program.share.replicas > 0, lines, _ready_test(program))


def _start_lines(program: JobProgram, folder_variable: str) -> Iterator[str]:
    """Yield the lines that start a program; each program except the main one has its own log."""
    job, share = program.job, program.share
    if not (job.uses_slurm or share.is_main):
        yield f'exec >>"{_LOG_FOLDER}/{share.bash_name}.0.log" 2>&1'
    yield from (f"export {line}" for line in quoting.packed(_program_exports(program)))
    command = launch.command_lines(
        job, exports.exported_names(job), launch.mounted_folders(job, folder_variable)
    )
    # srun's messages about the ends of tasks go to a file of their own: after TERM there is one for each task
    has_srun_log = job.uses_slurm and not share.is_main
    messages = [f'2>>"{_LOG_FOLDER}/{share.bash_name}.srun.log"'] if has_srun_log else []
    yield " \\\n        ".join(quoting.packed([*command, *messages]))


def _all_address_lines(programs: Sequence[JobProgram], *, slurm: bool) -> Iterator[str]:
    """Yield the lines that set the variables with the addresses of the programs.

    Each instance of a program gets the next port after the job's first port, $port.
    """
    port_offset = 0
    for program in programs:
        if program.share.replicas:
            yield from _replica_address_lines(program, port_offset, slurm=slurm)
        else:
            port = f"$((port + {port_offset}))" if port_offset else "$port"
            yield from _address_lines(program, port, slurm=slurm)
        for _, fact, suffix in program.lists:  # such as {server.urls} in texts of the job
            variable = f"{program.name.variable}_{fact.upper()}"
            if suffix:
                yield f'export {variable}_WORDS="${{{variable}//,/ }}"'
                yield f"{variable}_LIST=(${{{variable}//,/ }})"
        port_offset += program.share.instances


def _address_lines(program: JobProgram, port: str, *, slurm: bool) -> Iterator[str]:
    """Yield the lines that set the addresses of a program without replicas."""
    name, share, variable = program.name, program.share, program.name.variable
    host = hosts = f"${{hosts[{share.first_node if slurm else 0}]}}"
    if share.nodes > 1 and slurm:
        hosts = f"$(nodes {share.first_node} {share.nodes})"
    yield f"nodes_of[{name}]={hosts} ports_of[{name}]={port}"
    words = (f"{variable}_HOST={host}", f"{variable}_HOSTS={hosts}", f"{variable}_PORT={port}")
    yield from (f"export {line}" for line in quoting.packed(words))
    if any(named_list.fact == "urls" for named_list in program.lists):
        yield f"export {variable}_URLS=$(urls {name})"


def _replica_address_lines(program: JobProgram, port_offset: int, *, slurm: bool) -> Iterator[str]:
    """Yield the lines that set the addresses of a program's replicas, from $port + `port_offset` on.

    `number` in the lines is bash's variable with the number of a replica.
    """
    name, share, variable = program.name, program.share, program.name.variable
    instances = _bash_word(program)
    node = "number" if share.replicas_per_node == 1 else f"number / {share.replicas_per_node}"
    node = f"{share.first_node} + {node}" if share.first_node else node
    hosts = f"${{hosts[{node if slurm else 0}]}}"
    if share.nodes > 1 and slurm:
        hosts = f"$(nodes $(({share.first_node} + number * {share.nodes})) {share.nodes})"
    numbers = instances.partition(".")[2]
    yield f"for number in {numbers}; do # the replicas of {name}, each with a port of its own"
    yield f"    nodes_of[{name}.$number]={hosts} ports_of[{name}.$number]=$((port + {port_offset} + number))"
    yield "done"
    all_hosts = f"$(nodes {share.first_node} {share.all_nodes})" if slurm else "${hosts[0]}"
    yield f"export {variable}_HOSTS={all_hosts} {variable}_URLS=$(urls {instances})"


def _program_exports(program: JobProgram) -> Iterator[str]:
    """Yield the words of `export` for the variables that only this program gets."""
    job, variable = program.job, program.name.variable
    if program.share.replicas:
        replica = program.share.bash_name
        yield f"{variable}_REPLICA=$1"
        yield f"{variable}_HOSTS=${{nodes_of[{replica}]}}"
        yield f"{variable}_HOST=${{nodes_of[{replica}]%%,*}}"
        yield f"{variable}_PORT=${{ports_of[{replica}]}}"
    if launch.needs_rendezvous(job):
        # The profile's command prints the address of the node on which it runs, which is the job's first.
        command = job.settings.master_addr if program.share.first_node == 0 else ""
        yield f"MASTER_ADDR=$({command})" if command else f"MASTER_ADDR=${variable}_HOST"
        yield f"MASTER_PORT=${variable}_PORT"
    for name in program.spec.env:
        if value := job.env.get(name):
            yield f"{name}={arguments.with_params(value, job, quoting.value)}"
    if (threads := exports.variables(job).get("OMP_NUM_THREADS")) and not job.is_command:
        yield f"OMP_NUM_THREADS={threads}"


def _ready_test(program: JobProgram) -> str:
    """Return the command that tests whether a program is ready on a host; "" for a program without a sign."""
    if not program.ready.signs:
        return ""
    (sign,) = program.ready.signs  # `Ready.faults` refuses several signs
    text = getattr(program.ready, sign)
    word = quoting.word(text) if sign == "log" else arguments.word(text, program.job)
    tasks = f" {program.share.tasks_per_node}" if sign == "log" and program.share.tasks_per_node > 1 else ""
    return f"asks_{sign} {word}{tasks}"
