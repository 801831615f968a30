"""The programs of a job: the share that each has of its nodes, and where it finds the others."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from sbatchgen.base.errors import CommandLineError, Problem, did_you_mean, nearest
from sbatchgen.base.texts import ProgramName
from sbatchgen.base.units import Count, Resume, Text
from sbatchgen.jobs.inputs.document import Document
from sbatchgen.jobs.inputs.job_file import KEYS_OF_PROGRAMS, ProgramSpec, Ready
from sbatchgen.jobs.inputs.layers import Layer, Level
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.start_settings import SETUPS
from sbatchgen.jobs.modes import COMMAND
from sbatchgen.jobs.resolved.resolve import resolve
from sbatchgen.jobs.resolved.resolved_job import TOGETHER, JobProgram, ResolvedJob, Share
from sbatchgen.jobs.resolved.task_share import DEFAULT_CPUS

MOST = 64  # programs of a job, each replica counted, with a port for each
FACTS = ("host", "hosts", "port", "nodes", "urls", "replica")  # of each program, which the others may name
# [@]: each word of a list by itself
_FACT = re.compile(rf"(?<![{{$])\{{(?:([A-Za-z][\w-]*)\.)?({'|'.join(FACTS)})(\[@\])?\}}(?!\}})")
_OLD = re.compile(
    r"\$\{?([A-Z][A-Z0-9_]*)_(HOSTS?|PORT)\b"
)  # variables of programs, before they had a prefix
_HEAD = "programs."


class _Wanted(NamedTuple):
    """A program as it is written, and its nodes."""

    name: ProgramName
    spec: ProgramSpec
    first: int
    nodes: int  # of each replica
    shared: bool  # whether it shares its node
    on_node: int = 1  # replicas on each of its nodes


def resolve_programs(
    profile: Document[Profile],
    layers: Sequence[Layer],
    *,
    mode_name: str,
    name: str,
    chosen: str = "",
) -> ResolvedJob:
    """Return a job with several programs, everything decided, and so each of these.

    The job is its main program, with all nodes: what stops, resumes and requeues it is that of the main one.
    `mode_name` is the mode of a program that names none. Raises CommandLineError: its programs contradict
    each other.
    """
    wanted = _wanted(layers)
    _refuse(wanted, layers)

    def resolved(each: _Wanted, *more: Layer) -> ResolvedJob:
        mode = COMMAND.name if each.spec.command else each.spec.mode or mode_name
        return resolve(profile, [*layers, *more], mode_name=mode, name=name, chosen=chosen)

    wanted, jobs = _resolved_alone(wanted, resolved)
    shares = [_share(each, jobs[each.name]) for each in wanted]
    main = _main(wanted)
    whole = resolved(
        main, _layer(main, wanted, whole=True, main=True), _allocation(shares), *_requeued(main, layers)
    )
    used = any(share.gpus for share in shares)
    if used and (option := _gpus_option(whole)):
        shares = [replace(share, gpus_option=option) for share in shares]
    programs = map(partial(_program, wanted), wanted, [jobs[each.name] for each in wanted], shares)
    return replace(whole, programs=tuple(programs), gpus_per_node=whole.gpus_per_node if used else 0)


def _resolved_alone(
    wanted: Sequence[_Wanted], resolved: Callable[..., ResolvedJob]
) -> tuple[list[_Wanted], dict[str, ResolvedJob]]:
    """Return the programs with the GPUs and CPUs that each gets, and each as a job of its own, by name."""
    wanted, main = [*wanted], _main(wanted)
    if main.shared:
        alone = resolved(main, _layer(main, wanted, whole=False, main=True))
        wanted = [_with_the_rest(each, alone, wanted) if each is main else each for each in wanted]
    jobs: dict[str, ResolvedJob] = {}
    for number in sorted(range(len(wanted)), key=lambda place: bool(wanted[place].spec.beside)):
        each = wanted[number]
        if each.on_node > 1 and each.spec.nodes:
            alone = resolved(each, _layer(each, wanted, whole=False, main=False))
            each = wanted[number] = _of_several(each, alone)
        elif each.spec.beside:
            each = wanted[number] = _with_those_of(each, jobs[each.spec.beside])
        jobs[each.name] = resolved(each, _layer(each, wanted, whole=False, main=each.name == main.name))
    return wanted, jobs


def _requeued(main: _Wanted, layers: Sequence[Layer]) -> Iterator[Layer]:
    """Yield the options by which Slurm requeues a job whose main program is a command, if the job asks so.

    Such a program is not asked to stop and resume, but it may start again where a node has failed.
    """
    given: dict[str, Any] = {}
    for layer in layers:
        given |= layer.values
    if main.spec.command and given.get("requeue_on_node_fail") and "options.requeue" not in given:
        values = {"options.requeue": True, "options.open_mode": Text("append")}
        yield Layer(Level.JOB, values, dict.fromkeys(values, "requeue_on_node_fail"))


def _share(each: _Wanted, job: ResolvedJob) -> Share:
    """Return the share of the job that a program has."""
    return Share(
        name=each.name,
        main=each.spec.main,
        first=each.first,
        nodes=each.nodes,
        shared=each.shared,
        tasks=job.nproc_per_node if job.launcher == "srun" else 1,
        gpus=job.gpus_per_node,
        cpus=each.spec.cpus or _cpus(job),
        gpus_option="",
        preset=each.spec.preset or "",
        replicas=int(each.spec.replicas or 0),
        on_node=each.on_node,
        beside=each.spec.beside or "",
    )


def _gpus_option(whole: ResolvedJob) -> Any:
    """Return the option by which steps ask for GPUs; "" where the job asks for none by name."""
    options = whole.options
    if "gpu" in (options.gres or ""):
        return "gres"
    return "gpus-per-node" if any((options.gpus_per_node, options.gpus, options.gpus_per_task)) else ""


def _of_several(each: _Wanted, alone: ResolvedJob) -> _Wanted:
    """Return a program of which several replicas share a node, with the GPUs and CPUs of each replica."""
    gpus, cpus, known = each.spec.gpus, each.spec.cpus, alone.partition.cpus_per_node
    if gpus is None:  # at least one each: a rule says so where a node has fewer
        gpus = max(1, alone.gpus_per_node // each.on_node) if alone.gpus_per_node else 0
    if cpus is None and _cpus(alone):
        cpus = Count(max(1, (known or _cpus(alone)) // each.on_node))
    return each._replace(spec=replace(each.spec, gpus=gpus, cpus=cpus))


def _with_those_of(each: _Wanted, other: ResolvedJob) -> _Wanted:
    """Return a program that runs beside another program, with the same GPUs."""
    gpus = other.gpus_per_node if each.spec.gpus is None else each.spec.gpus
    return each._replace(spec=replace(each.spec, gpus=gpus, cpus=each.spec.cpus or Count(1)))


def _cpus(job: ResolvedJob) -> int:
    """Return the CPUs of a job on a node, 0 if these are not known."""
    return (job.options.cpus_per_task or 0) * (job.options.ntasks_per_node or 1)


def _with_the_rest(main: _Wanted, alone: ResolvedJob, wanted: Sequence[_Wanted]) -> _Wanted:
    """Return the main program; if it names no GPUs and CPUs, with those that the other programs leave."""
    others = [each.spec for each in wanted if each.shared and each.name != main.name]
    gpus, cpus = main.spec.gpus, main.spec.cpus
    taken = sum(spec.gpus or 0 for spec in others)
    if gpus is None and taken and not alone.mode.gpus:
        gpus = max(0, alone.gpus_per_node - taken)
    if known := alone.partition.cpus_per_node:
        left = known - sum(spec.cpus or DEFAULT_CPUS for spec in others)
        cpus = cpus or (Count(max(1, min(_cpus(alone), left))) if _cpus(alone) else None)
    return main._replace(spec=replace(main.spec, gpus=gpus, cpus=cpus))


def _wanted(layers: Sequence[Layer]) -> list[_Wanted]:
    """Return the programs with their nodes: those with nodes of their own, then those that share one."""
    specs: dict[ProgramName, ProgramSpec] = {}
    for key, value in (item for layer in layers for item in layer.values.items()):
        if key.startswith(_HEAD):
            specs[ProgramName(key.removeprefix(_HEAD))] = value
    order = sorted(specs, key=lambda name: (not specs[name].nodes, not specs[name].main))
    main = next((name for name in order if specs[name].main), ProgramName())
    first, at = 0, {}
    for name in order:
        if nodes := specs[name].nodes:
            at[name], first = first, first + nodes
    shared = at.get(main, first)  # beside the main program, or on a node for all that share
    wanted = [_placed(name, spec, at.get(name, shared), own=name in at) for name, spec in specs.items()]
    is_shared = any(name not in at and not spec.beside for name, spec in specs.items())
    wanted = [each._replace(shared=each.shared or (each.name == main and is_shared)) for each in wanted]
    return [_beside(each, wanted) if each.spec.beside else each for each in wanted]


def _placed(name: ProgramName, spec: ProgramSpec, first: int, *, own: bool) -> _Wanted:
    """Return a program with its nodes, or with the node that it shares; its replicas are spread over them."""
    replicas, nodes = spec.replicas or 1, spec.nodes or 1
    on_node = max(1, replicas // nodes)
    each = max(1, nodes // replicas)
    return _Wanted(name, spec, first, nodes=each, shared=not own or on_node > 1, on_node=on_node)


def _beside(each: _Wanted, wanted: Sequence[_Wanted]) -> _Wanted:
    """Return a program that runs on all nodes of another program."""
    other = next((other for other in wanted if other.name == each.spec.beside), None)
    if other is None:  # an unknown program is refused elsewhere
        return each
    nodes = other.nodes * max(1, int(other.spec.replicas or 1) // other.on_node)
    return each._replace(first=other.first, nodes=nodes, shared=False)


def _main(wanted: Sequence[_Wanted]) -> _Wanted:
    return next((each for each in wanted if each.spec.main), wanted[0])


def _refuse(wanted: Sequence[_Wanted], layers: Sequence[Layer]) -> None:
    """Raise CommandLineError with all faults of the programs."""
    places = {key: place for layer in layers for key, place in layer.places.items()}
    faults = [*_of_all(wanted, layers), *(fault for each in wanted for fault in _of_one(each, wanted))]
    faults += (fault for each in wanted for fault in _old_names(each, wanted, layers))
    if faults:
        at = {key: places.get(key) or places.get(key.rpartition(".")[0], "programs") for key, *_ in faults}
        raise CommandLineError([Problem(what, at[key], fix) for key, what, fix in faults])


def _of_all(wanted: Sequence[_Wanted], layers: Sequence[Layer]) -> Iterator[tuple[str, str, str]]:
    """Yield the faults of the programs together: the key, the problem, and a fix."""
    instances = sum(int(each.spec.replicas or 1) for each in wanted)
    if instances > MOST:
        yield "programs", f"{instances} programs, and a job has at most {MOST}", "join some of them"
    mains = [each.name for each in wanted if each.spec.main]
    for name in mains[1:]:
        yield f"{_HEAD}{name}.main", f"{mains[0]} and {name} are both main", "keep one: it ends the job"
    if circle := _circle({each.name: each.spec.needs for each in wanted}):
        what = f"{' needs '.join(circle)}: none of them can start"
        yield f"{_HEAD}{circle[0]}.needs", what, "remove one need"
    given = {
        key: value for layer in layers if layer.level >= Level.PROJECT for key, value in layer.values.items()
    }
    nodes = max(each.first + _all_nodes(each) for each in wanted)
    if given.get("options.nodes", nodes) != nodes:
        yield "options.nodes", f"{given['options.nodes']} nodes, and the programs have {nodes}", "remove it"
    if "gpu" in (given.get("options.gres") or "") and all(each.spec.gpus is not None for each in wanted):
        yield "options.gres", "each program names its gpus: the job's gres has no effect", "remove the GPUs"
    for option in ("array", "ntasks_per_node", "gpus", "gpus_per_task"):
        if f"options.{option}" in given:
            what = f"a job with several programs has no {option}"
            yield f"options.{option}", what, "remove it: each program has its share"


def _all_nodes(each: _Wanted) -> int:
    return each.nodes * max(1, int(each.spec.replicas or 1) // each.on_node)


def _of_one(each: _Wanted, wanted: Sequence[_Wanted]) -> Iterator[tuple[str, str, str]]:
    """Yield the faults of a program with wrong names or no place: the key, the problem, and a fix."""
    names, key = [other.name for other in wanted], f"{_HEAD}{each.name}"
    for other in each.spec.needs:
        if other not in names:
            what = f"{each.name} needs '{other}', which is not a program"
            yield f"{key}.needs", what, did_you_mean(other, names)
    if beside := each.spec.beside:
        of = {other.name: other.spec for other in wanted if other is not each and not other.spec.beside}
        if beside not in of:
            what = f"{each.name} runs beside '{beside}', which has no nodes here"
            yield f"{key}.beside", what, did_you_mean(beside, list(of))
    replicas, nodes = int(each.spec.replicas or 1), int(each.spec.nodes or 1)
    if replicas % nodes and nodes % replicas:
        what = f"{replicas} replicas on {nodes} nodes: they have not all the same share"
        yield (
            f"{key}.replicas",
            what,
            f"set replicas to a multiple of {nodes}, as {nodes * (replicas // nodes + 1)}",
        )
    for named, fact in _named(each.spec):
        if named and named not in names:
            near = nearest(named, names) or names[0]
            yield key, f"{{{named}.{fact}}} names no program of this job", f"write {{{near}.{fact}}}"
            continue
        of_which = next(other for other in wanted if other.name == (named or each.name))
        if of_which is not each and of_which.spec.replicas and fact in ("host", "port", "replica"):
            what = f"{{{named}.{fact}}} is of one of {of_which.spec.replicas} replicas"
            yield key, what, f"write {{{named}.urls}} for all of them, or {{{named}.urls[@]}} for a word each"
        if fact == "replica" and not of_which.spec.replicas:
            yield key, f"{{{fact}}} is the number of a replica", "add replicas: N"


def _old_names(
    each: _Wanted, wanted: Sequence[_Wanted], layers: Sequence[Layer]
) -> Iterator[tuple[str, str, str]]:
    """Yield variables that are no longer there: SERVER_HOST, which a program may take for its own setting."""
    bare = {other.name.bare: other.name for other in wanted}
    texts = [*_texts(each.spec)]
    known = {key: value for layer in layers for key, value in layer.values.items()}
    lines = [line for name in SETUPS for line in known.get(name) or ()]
    for text in texts:
        for match in _OLD.finditer(text):
            stem, fact = match.groups()
            old, name = f"{stem}_{fact}", bare.get(stem)
            is_set = any(f"{old}=" in other for other in (*texts, *lines))
            is_set = is_set or old in each.spec.env or f"env.{old}" in known
            if name and not is_set:
                what = f"the job has no variable {old}: those of programs begin with {ProgramName.PREFIX}"
                fix = f"write {{{name}.{fact.lower()}}}, or ${name.variable}_{fact} where a shell reads it"
                yield f"{_HEAD}{each.name}", what, fix


def _circle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a circle of programs that need each other, the first again at the end; [] if all can start."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1][:0:-1]  # each program needs the next program
        first = circle.index(next(name for name in needs if name in circle))
        return [*circle[first:], *circle[: first + 1]]
    return []


def _layer(each: _Wanted, wanted: Sequence[_Wanted], *, whole: bool, main: bool) -> Layer:
    """Return the settings of a program as a layer over those of the job; without variables if `whole`."""
    spec = each.spec
    values: dict[str, Any] = {}
    for name in KEYS_OF_PROGRAMS:
        value = getattr(spec, name)
        if value is None or name == "mode" or (whole and name == "env"):
            continue
        if isinstance(value, Mapping):
            for key, text in value.items():
                values[f"{name}.{key}"] = text and _filled(text, each, wanted, "${{{}}}")
        elif isinstance(value, tuple):
            values[name] = tuple(_filled(text, each, wanted) for text in value)
        else:
            values[name] = _filled(value, each, wanted) if isinstance(value, str) else value
    if spec.command:
        values["args"] = tuple(_filled(text, each, wanted) for text in spec.command)
    if not whole:  # the options that stand for its share
        values["options.nodes"] = Count(each.nodes)
        gpus = 0 if spec.gpus is None and each.shared and not (spec.main or spec.nodes) else spec.gpus
        values |= {} if gpus is None else {"options.gpus_per_node": Text(gpus)}
        values |= {"options.cpus_per_task": spec.cpus} if spec.cpus and not spec.nproc_per_node else {}
    if not main or spec.command:  # it knows nothing of the files by which a script asks to stop
        values["resume"] = Resume("off")
    return Layer(Level.JOB, values, {})


def _filled(
    text: str,
    each: _Wanted,
    wanted: Sequence[_Wanted],
    variable: str = "{{env:{}}}",
    own: Mapping[str, str] | None = None,
) -> str:
    """Return a text with variables in place of {port}, {server.host} and their like.

    `own`: other variables for facts of the program itself.
    """

    def fact(match: re.Match[str]) -> str:
        name, what = ProgramName(match[1] or each.name), match[2]
        if what == "nodes":
            return str(next(_all_nodes(other) for other in wanted if other.name == name))
        if own and name == each.name and what in own:
            return variable.format(own[what])
        if not match[3]:
            return variable.format(f"{name.variable}_{what.upper()}")
        is_all = match[0] == text and variable.startswith("{{env")  # the text is nothing but this fact
        return variable.format(f"{name.variable}_{what.upper()}_{'LIST[@]' if is_all else 'WORDS'}")

    return type(text)(_FACT.sub(fact, text))


def _texts(spec: ProgramSpec) -> Iterator[str]:
    """Yield the texts of a program that may name facts of programs."""
    yield from (*(spec.command or ()), *(spec.args or ()), *filter(None, spec.env.values()))
    yield from (getattr(spec.ready, name) for name in spec.ready.signs)


def _named(spec: ProgramSpec) -> Iterator[tuple[str, str]]:
    """Yield the programs, "" for its own, and the facts that the texts of a program name."""
    for text in _texts(spec):
        yield from ((match[1] or "", match[2]) for match in _FACT.finditer(text))


_ASKED = {"host": "host", "port": "port"}  # what the script calls the host that it asks, and the port


def _program(wanted: Sequence[_Wanted], each: _Wanted, job: ResolvedJob, share: Share) -> JobProgram:
    written = each.spec.ready
    signs: dict[str, Any] = {
        name: _filled(getattr(written, name), each, wanted, own=_ASKED) for name in written.signs
    }
    first = written.hosts if not share.preset else "first"  # a preset's command runs there
    ready = Ready(**signs, within=written.within, hosts=first)
    named = [*(name for name in _lists(wanted) if name[0] == each.name)]
    return JobProgram(
        job=replace(job, share=share), share=share, spec=each.spec, ready=ready, lists=tuple(named)
    )


def _lists(wanted: Sequence[_Wanted]) -> list[tuple[str, str, str]]:
    """Return the lists that texts name: the program, the fact, and "[@]" for a word each."""
    named = {
        (match[1] or each.name, match[2], match[3] or "")
        for each in wanted
        for text in _texts(each.spec)
        for match in _FACT.finditer(text)
        if match[2] == "urls" or match[3]
    }
    return sorted(named)


def _allocation(shares: Sequence[Share]) -> Layer:
    """Return the request of all programs together: the most that they have on one of the nodes."""
    nodes = max(share.first + share.all_nodes for share in shares)
    gpus, cpus = [0] * nodes, [0] * nodes
    for share in shares:
        for node in range(share.first, share.first + share.all_nodes):
            gpus[node] += 0 if share.beside else share.gpus * share.on_node
            cpus[node] += 0 if share.beside else share.cpus * share.on_node
    values: dict[str, Any] = {"options.nodes": Count(nodes), "options.ntasks_per_node": Count(1)}
    if all(share.cpus for share in shares):
        values["options.cpus_per_task"] = Count(max(cpus))
    if max(gpus):
        values["options.gpus_per_node"] = Text(max(gpus))
    else:
        values["gpu_request"] = "none"
    return Layer(Level.JOB, values, dict.fromkeys(values, TOGETHER))
