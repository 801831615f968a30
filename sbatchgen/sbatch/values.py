"""The value of an option: whether sbatch takes it, and what its later checks need of it.

Values that few scripts have are not checked: those of --acctg-freq, --cpu-freq, --get-user-env, --gpu-freq,
--mem-bind, --mem-update, --power and --propagate.
Source: Slurm's table of options, 20.11 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5.
"""

from __future__ import annotations

from collections.abc import Callable

from sbatchgen.sbatch import binding, grammar, gres
from sbatchgen.sbatch.fields import Fields
from sbatchgen.sbatch.grammar import NO_VAL, NO_VAL64, RefusedError, fold, leading_number
from sbatchgen.sbatch.moment import is_moment

Setter = Callable[[Fields, str], None]
_BINDINGS = ("disable-binding", "enforce-binding")
_SHARING = ("one-task-per-sharing", "multiple-tasks-per-sharing")
_NICE_LIMIT = 2**31 - 3
_EXCLUSIVE = ("", "exclusive", "oversubscribe", "user", "mcs")


def put(job: Fields, option: str, value: str | None) -> None:
    """Set the fields of an option; its value is None where it is given without one.

    Raises:
        RefusedError: sbatch refuses the value.
    """
    if option in _COUNTS:
        job[option] = _integer(job, option, value or "")
    elif option in _NEED_NO_VALUE and value is None:
        job[option] = ""
    elif setter := _SETTERS.get(option):
        setter(job, value or "")
    else:
        job[option] = "set" if value is None else value


def _integer(job: Fields, option: str, value: str, *, positive: bool = True) -> int:
    return grammar.integer(f"--{option}", value, positive=positive, slurm=job.slurm)


def _wrong(option: str) -> RefusedError:
    return RefusedError(f"Invalid --{option} specification")


def _checked(option: str, is_right: Callable[[str], bool]) -> Setter:
    """A setter that refuses wrong values and needs no more of them."""

    def check(_: Fields, value: str) -> None:
        if not is_right(value):
            raise _wrong(option)

    return check


def _counted(option: str, *, positive: bool = False) -> Setter:
    """A setter that refuses what is not a count."""

    def check(job: Fields, value: str) -> None:
        _integer(job, option, value, positive=positive)

    return check


def _moment(option: str) -> Setter:
    def check(job: Fields, value: str) -> None:
        if not is_moment(value, slurm=job.slurm):
            raise _wrong(option)

    return check


def _autocomplete(_: Fields, __: str) -> None:
    raise RefusedError


def _cpus_per_task(job: Fields, value: str) -> None:
    job["cpus-per-task"] = _integer(job, "cpus-per-task", value)
    job["cpus_set"] = True


def _exclusive(job: Fields, value: str) -> None:
    later = ("topo",) * (job.slurm >= "24.05") + ("allocation",) * (job.slurm >= "26.05")
    if fold(value) not in _EXCLUSIVE + later:
        raise _wrong("exclusive")


def _extra_node_info(job: Fields, value: str) -> None:
    names = ("sockets-per-node", "cores-per-socket", "threads-per-core")
    for name, count in zip(names, grammar.socket_counts(value), strict=True):
        job[name] = count


def _gpu_bind(job: Fields, value: str) -> None:
    if not binding.is_gpu_binding(value, slurm=job.slurm):
        text = value if job.slurm >= "23.11" else f"gpu:{value}"
        raise RefusedError(f"Invalid --gpu-bind argument: {text}")


def _gres(job: Fields, value: str) -> None:
    if fold(value) in ("help", "list"):
        raise RefusedError
    job["gres"] = value if fold(value) == "none" else gres.with_prefix(value, slurm=job.slurm)


def _gres_flags(job: Fields, value: str) -> None:
    if job.slurm < "23.11":
        if fold(value) not in _BINDINGS:
            raise _wrong("gres-flags")
        return
    flags = job["gres-flags"] & {_SHARING[1]}
    for item in filter(None, value.split(",")):
        if fold(item) == "allow-task-sharing":
            raise RefusedError("--gres-flags=allow-task-sharing is only used with srun.")
        if fold(item) not in _BINDINGS + _SHARING:
            raise RefusedError(f"Invalid --gres-flags specification: {item}")
        flags |= {fold(item)}
    for rivals in (_BINDINGS, _SHARING):
        if flags >= {*rivals}:
            text = f"Invalid --gres-flags combo: {rivals[0]} and {rivals[1]} are mutually exclusive."
            raise RefusedError(text)
    job["gres-flags"] = frozenset(flags)


def _mem_per_gpu(job: Fields, value: str) -> None:
    job["mem-per-gpu"] = size = grammar.mebibytes(value)
    if size is None or size == NO_VAL64:
        raise _wrong("mem-per-gpu")


def _is_memory(value: str) -> bool:
    return grammar.mebibytes(value) not in (None, NO_VAL64)


def _nice(_: Fields, value: str) -> None:
    if abs(leading_number(value)[0] or 0) > _NICE_LIMIT:
        raise RefusedError(f"Invalid --nice value, out of range (+/- {_NICE_LIMIT})")


def _requeue(job: Fields, value: str) -> None:
    if value and fold(value) != "expedite" and job.slurm >= "26.05":
        raise _wrong("requeue")


def _nodefile(job: Fields, _: str) -> None:
    job.values.pop("nodelist", None)


def _nodes(job: Fields, value: str) -> None:
    job["min_nodes"], job["max_nodes"] = grammar.node_range(value, slurm=job.slurm)
    job["listed_nodes"] = job.slurm >= "23.02" and ("," in value or ":" in value)
    job["nodes_set"] = True


def _ntasks(job: Fields, value: str) -> None:
    job["ntasks"] = _integer(job, "ntasks", value)
    job["ntasks_set"] = True


def _priority(_: Fields, value: str) -> None:
    number = leading_number(value)[0] or 0
    if number < 0:
        raise RefusedError("Priority must be >= 0")
    if number >= NO_VAL and fold(value) != "top":
        raise RefusedError(f"Priority must be < {NO_VAL}")


def _profile(_: Fields, value: str) -> None:
    if not any(name in fold(value) for name in ("none", "all", "energy", "lustre", "network", "task")):
        raise RefusedError(f"invalid --profile={value} option")


def _resv_ports(job: Fields, value: str) -> None:
    grammar.integer("--resv-port", value, positive=False, slurm=job.slurm)


def _segment(job: Fields, value: str) -> None:
    job["segment"] = size = grammar.short_integer(value)
    if size is None:
        raise _wrong("segment")


def _signal(job: Fields, value: str) -> None:
    if grammar.signal(value, slurm=job.slurm) is None:
        raise _wrong("signal")


def _switches(job: Fields, value: str) -> None:
    _integer(job, "switches", value.partition("@")[0])


def _wait_all_nodes(job: Fields, value: str) -> None:
    if _integer(job, "wait-all-nodes", value, positive=False) % 2**16 > 1:
        raise _wrong("wait-all-nodes")


_COUNTS = frozenset(
    (
        "cores-per-socket",
        "cpus-per-gpu",
        "mincpus",
        "ntasks-per-core",
        "ntasks-per-gpu",
        "ntasks-per-node",
        "ntasks-per-socket",
        "ntasks-per-tres",
        "sockets-per-node",
        "threads-per-core",
    )
)
_NEED_NO_VALUE = frozenset(("nice", "no-kill", "oom-kill-step", "requeue", "resv-ports"))
_SETTERS: dict[str, Setter] = {
    "autocomplete": _autocomplete,
    "begin": _moment("begin"),
    "core-spec": _counted("core-spec"),
    "cpus-per-task": _cpus_per_task,
    "deadline": _moment("deadline"),
    "delay-boot": _checked("delay-boot", lambda value: grammar.seconds(value) is not None),
    "distribution": lambda job, value: job.values.update(dist=binding.distribution(value)),
    "exclusive": _exclusive,
    "extra-node-info": _extra_node_info,
    "gpu-bind": _gpu_bind,
    "gres": _gres,
    "gres-flags": _gres_flags,
    "kill-on-invalid-dep": _checked("kill-on-invalid-dep", lambda value: fold(value) in ("yes", "no")),
    "mail-type": _checked("mail-type", grammar.are_mail_events),
    "mem": _checked("mem", _is_memory),
    "mem-per-cpu": _checked("mem-per-cpu", _is_memory),
    "mem-per-gpu": _mem_per_gpu,
    "nice": _nice,
    "no-kill": _checked("no-kill", lambda value: fold(value) in ("set", "off", "no")),
    "nodefile": _nodefile,
    "nodes": _nodes,
    "ntasks": _ntasks,
    "oom-kill-step": _checked("oom-kill-step", lambda value: grammar.short_integer(value) in (0, 1)),
    "open-mode": _checked("open-mode", lambda value: fold(value[:1]) in ("a", "t")),
    "priority": _priority,
    "profile": _profile,
    "req-switch": _switches,
    "requeue": _requeue,
    "resv-ports": _resv_ports,
    "segment": _segment,
    "signal": _signal,
    "switches": _switches,
    "thread-spec": _counted("thread-spec", positive=True),
    "time": _checked("time", lambda value: grammar.minutes(value) is not None),
    "time-min": _checked("time-min", lambda value: grammar.minutes(value) is not None),
    "tmp": _checked("tmp", _is_memory),
    "verbose": _counted("verbose"),
    "wait-all-nodes": _wait_all_nodes,
}
