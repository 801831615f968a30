"""The programs of a job: the share that each has of its nodes, where it finds the others, and presets.

Source of the presets: docs.ray.io, "Deploying on Slurm", and `ray start --help` of 2.60.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from sbatchgen.errors import CommandLineError, Problem, did_you_mean, nearest
from sbatchgen.inputs.document import Document
from sbatchgen.inputs.job_file import KEYS_OF_PROGRAMS, ProgramSpec, Ready
from sbatchgen.inputs.layers import Layer, Level
from sbatchgen.inputs.profile import Profile
from sbatchgen.modes import COMMAND
from sbatchgen.resolved.resolve import resolve
from sbatchgen.resolved.resolved_job import JobProgram, ResolvedJob, Share
from sbatchgen.resolved.task_share import DEFAULT_CPUS
from sbatchgen.units import Count, ProgramName, Resume, Text

MOST = 8  # programs of a job, each with a port of its own
FACTS = ("host", "hosts", "port", "nodes")  # of each program, which the others may name
_FACT = re.compile(rf"(?<![{{$])\{{(?:([A-Za-z][\w-]*)\.)?({'|'.join(FACTS)})\}}(?!\}})")
_HEAD = "programs."
# A worker that ends before the command does is a failure. Ray would take all CPUs of a node for its own.
_RAY = """
host=$NAME_HOST port=$NAME_PORT over=$RUN_DIR/programs/ray.over
cpus=${SLURM_CPUS_PER_TASK:+--num-cpus=$SLURM_CPUS_PER_TASK}
answers() { (: <>"/dev/tcp/$host/$port") 2>/dev/null; }
if ((SLURM_PROCID)); then # a worker
    until answers; do sleep 1; done
    ray start --block --address="$host:$port" $cpus & node=$!
    while kill -0 "$node" 2>/dev/null && answers; do sleep 2; done
    kill "$node"; wait; [[ -e $over ]]; exit
fi
rm -f -- "$over"
ray start --block --head --node-ip-address="$host" --port="$port" --include-dashboard=false $cpus & head=$!
until answers; do kill -0 "$head" || exit 1; sleep 1; done
export RAY_ADDRESS=$host:$port
python3 -c "import ray, time; ray.init()
for _ in range(600): len(ray.nodes()) < $SLURM_NTASKS and time.sleep(1)
if len(ray.nodes()) < $SLURM_NTASKS: exit(f\\"{len(ray.nodes())} of $SLURM_NTASKS nodes joined\\")" || exit
"$@"; status=$?
touch -- "$over"; kill "$head"; wait; exit "$status"
"""
_PRESETS = {"ray": _RAY}


class _Wanted(NamedTuple):
    """A program as it is written, and its nodes."""

    name: ProgramName
    spec: ProgramSpec
    first: int
    nodes: int
    shared: bool  # whether it shares its node


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

    main = _main(wanted)
    if main.shared:
        alone = resolved(main, _layer(main, wanted, whole=False, main=True))
        wanted = [_with_the_rest(each, alone, wanted) if each is main else each for each in wanted]
        main = _main(wanted)
    jobs = [resolved(each, _layer(each, wanted, whole=False, main=each is main)) for each in wanted]
    shares = [
        Share(
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
        )
        for each, job in zip(wanted, jobs, strict=True)
    ]
    whole = resolved(main, _layer(main, wanted, whole=True, main=True), _allocation(shares))
    if whole.gpus_per_node:
        option: Any = "gres" if "gpu" in (whole.options.gres or "") else "gpus-per-node"
        shares = [replace(share, gpus_option=option) for share in shares]
    programs = map(partial(_program, wanted), wanted, jobs, shares)
    return replace(whole, programs=tuple(programs))


def _cpus(job: ResolvedJob) -> int:
    """Return the CPUs of a job on a node, 0 if these are not known."""
    return (job.options.cpus_per_task or 0) * (job.options.ntasks_per_node or 1)


def _with_the_rest(main: _Wanted, alone: ResolvedJob, wanted: Sequence[_Wanted]) -> _Wanted:
    """Return the main program with the GPUs and CPUs that the others leave it, if it names none."""
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
    """Return the programs with the nodes that each gets: those of its own in order, then what they share."""
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
    sharing = [name for name in order if name not in at]
    return [
        _Wanted(
            name=name,
            spec=spec,
            first=at.get(name, shared),
            nodes=int(spec.nodes or 1),
            shared=name in sharing or bool(name == main and sharing),
        )
        for name, spec in specs.items()
    ]


def _main(wanted: Sequence[_Wanted]) -> _Wanted:
    return next((each for each in wanted if each.spec.main), wanted[0])


def _refuse(wanted: Sequence[_Wanted], layers: Sequence[Layer]) -> None:
    """Raise CommandLineError with all that programs can't have."""
    places = {key: place for layer in layers for key, place in layer.places.items()}
    faults = [*_of_all(wanted, layers), *(fault for each in wanted for fault in _of_one(each, wanted))]
    if faults:
        at = {key: places.get(key) or places.get(key.rpartition(".")[0], "programs") for key, *_ in faults}
        raise CommandLineError([Problem(what, at[key], fix) for key, what, fix in faults])


def _of_all(wanted: Sequence[_Wanted], layers: Sequence[Layer]) -> Iterator[tuple[str, str, str]]:
    """Yield what the programs can't have together: the key, what is wrong, and a fix."""
    if len(wanted) > MOST:
        yield "programs", f"{len(wanted)} programs, and a job has at most {MOST}", "join some of them"
    mains = [each.name for each in wanted if each.spec.main]
    for name in mains[1:]:
        yield f"{_HEAD}{name}.main", f"{mains[0]} and {name} are both main", "keep one: it ends the job"
    if circle := _circle({each.name: each.spec.needs for each in wanted}):
        what = f"{' needs '.join(circle)}: none of them can start"
        yield f"{_HEAD}{circle[0]}.needs", what, "remove one need"
    given = {
        key: value for layer in layers if layer.level >= Level.PROJECT for key, value in layer.values.items()
    }
    nodes = max(each.first + each.nodes for each in wanted)
    if given.get("options.nodes", nodes) != nodes:
        yield "options.nodes", f"{given['options.nodes']} nodes, and the programs have {nodes}", "remove it"
    for option in ("array", "ntasks_per_node", "gpus", "gpus_per_task"):
        if f"options.{option}" in given:
            what = f"a job with several programs has no {option}"
            yield f"options.{option}", what, "remove it: each program has its share"


def _of_one(each: _Wanted, wanted: Sequence[_Wanted]) -> Iterator[tuple[str, str, str]]:
    """Yield what names no other program: the key, what is wrong, and a fix."""
    names, key = [other.name for other in wanted], f"{_HEAD}{each.name}"
    for other in each.spec.needs:
        if other not in names:
            what = f"{each.name} needs '{other}', which is not a program"
            yield f"{key}.needs", what, did_you_mean(other, names)
    for named, fact in _named(each.spec):
        if named and named not in names:
            near = nearest(named, names) or names[0]
            yield key, f"{{{named}.{fact}}} names no program of this job", f"write {{{near}.{fact}}}"


def _circle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return programs that need each other, the first once more at the end; none if all can start."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1][:0:-1]  # each needs the next one
        first = circle.index(next(name for name in needs if name in circle))
        return [*circle[first:], *circle[: first + 1]]
    return []


def _layer(each: _Wanted, wanted: Sequence[_Wanted], *, whole: bool, main: bool) -> Layer:
    """Return what a program sets, as a layer over those of the job; `whole`: without its variables."""
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
        gpus = 0 if spec.gpus is None and each.shared and not spec.main else spec.gpus
        values |= {} if gpus is None else {"options.gpus_per_node": Text(gpus)}
        values |= {"options.cpus_per_task": spec.cpus} if spec.cpus and not spec.nproc_per_node else {}
    if not main or spec.command:  # it knows nothing of the files by which a script asks to stop
        values["resume"] = Resume("off")
    return Layer(Level.JOB, values, {})


def _filled(text: str, each: _Wanted, wanted: Sequence[_Wanted], variable: str = "{{env:{}}}") -> str:
    """Return a text with variables in place of {port}, {server.host} and their like."""

    def fact(match: re.Match[str]) -> str:
        name = ProgramName(match[1] or each.name)
        if match[2] == "nodes":
            return str(next(other.nodes for other in wanted if other.name == name))
        return variable.format(f"{name.variable}_{match[2].upper()}")

    return type(text)(_FACT.sub(fact, text))


def _named(spec: ProgramSpec) -> Iterator[tuple[str, str]]:
    """Yield the programs, "" for its own, and the facts that the texts of a program name."""
    texts = [*(spec.command or ()), *(spec.args or ()), *filter(None, spec.env.values())]
    texts += [getattr(spec.ready, name) for name in spec.ready.signs]
    for text in texts:
        yield from ((match[1] or "", match[2]) for match in _FACT.finditer(text))


def _program(wanted: Sequence[_Wanted], each: _Wanted, job: ResolvedJob, share: Share) -> JobProgram:
    written = each.spec.ready
    signs: dict[str, Any] = {name: _filled(getattr(written, name), each, wanted) for name in written.signs}
    ready = Ready(**signs, within=written.within)
    return JobProgram(job=replace(job, share=share), share=share, spec=each.spec, ready=ready)


def _allocation(shares: Sequence[Share]) -> Layer:
    """Return what the programs ask Slurm for together: the most that they have on one of the nodes."""
    nodes = max(share.first + share.nodes for share in shares)
    gpus, cpus = [0] * nodes, [0] * nodes
    for share in shares:
        for node in range(share.first, share.first + share.nodes):
            gpus[node] += share.gpus
            cpus[node] += share.cpus
    values: dict[str, Any] = {"options.nodes": Count(nodes), "options.ntasks_per_node": Count(1)}
    if all(share.cpus for share in shares):
        values["options.cpus_per_task"] = Count(max(cpus))
    if max(gpus):
        values["options.gpus_per_node"] = Text(max(gpus))
    else:
        values["gpu_request"] = "none"
    return Layer(Level.JOB, values, dict.fromkeys(values, "the programs together"))


def lines_of_task(preset: str, name: ProgramName) -> tuple[str, ...]:
    """Return what each task of a program runs, with the command as its arguments; () without a preset."""
    return tuple(_PRESETS[preset].strip().replace("NAME", name.variable).split("\n")) if preset else ()
