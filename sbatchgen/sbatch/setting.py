"""How an option sets the fields of a job, or is refused.

Source: Slurm's table of options, 20.11 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sbatchgen.sbatch import binding, frequency, grammar, moment
from sbatchgen.sbatch.fields import COUNTS, PATHS, SIZES, Fields
from sbatchgen.sbatch.grammar import (
    INFINITE,
    NICE_LIMIT,
    NO_VAL,
    NO_VAL64,
    THREAD_SPEC,
    RefusedError,
    fold,
    leading_number,
    wrapped,
)

Setter = Callable[[Fields, str | None], None]
_BINDINGS = ("disable-binding", "enforce-binding")
_SHARING = ("one-task-per-sharing", "multiple-tasks-per-sharing")


def put(job: Fields, option: str, value: str | None) -> None:
    """Keep an option's value.

    Raises:
        RefusedError: sbatch would end.
    """
    if setter := _SETTERS.get(option):
        setter(job, value)
    elif option in COUNTS:
        job[option] = _integer(job, option, value)
    elif option in SIZES:
        job[option] = _needed(grammar.mebibytes(value or ""), option)
    elif option in PATHS:
        job[option] = "/dev/null" if fold(value or "") == "none" else value
    else:
        job[option] = "set" if value is None else value


def _integer(job: Fields, option: str, value: str | None, *, positive: bool = True) -> int:
    return grammar.integer(f"--{option}", value or "", positive=positive, slurm=job.slurm)


def _needed(value: Any, option: str) -> Any:
    """The value, where there is one.

    Raises:
        RefusedError: There is none.
    """
    if value is None or value == NO_VAL64:
        raise RefusedError(f"Invalid --{option} specification")
    return value


def _acctg_freq(job: Fields, value: str | None) -> None:
    job["acctg-freq"] = value
    bad = grammar.bad_frequencies(value or "")
    if bad:
        raise RefusedError(*(f"Invalid --acctg-freq specification: {item}" for item in bad))


def _moment(option: str) -> Setter:
    def put(job: Fields, value: str | None) -> None:
        try:
            job[option] = moment.moment(value or "", now=job.now, slurm=job.slurm)
        except moment.MomentError as error:
            if str(error):
                job.say(str(error), "")
            raise RefusedError(f"Invalid --{option} specification") from error

    return put


def _autocomplete(_: Fields, __: str | None) -> None:
    raise RefusedError(status=0)


def _chdir(job: Fields, value: str | None) -> None:
    job["chdir"] = value if (value or "").startswith("/") else f"{job.folder}/{value}"


def _core_spec(job: Fields, value: str | None) -> None:
    job["core_spec"] = _integer(job, "core-spec", value, positive=False)


def _thread_spec(job: Fields, value: str | None) -> None:
    job["core_spec"] = _integer(job, "thread-spec", value) | THREAD_SPEC


def _cpu_freq(job: Fields, value: str | None) -> None:
    job["cpu-freq"] = frequency.cpu_frequency(value or "", slurm=job.slurm)


def _cpus_per_task(job: Fields, value: str | None) -> None:
    job["cpus-per-task"] = _integer(job, "cpus-per-task", value)
    job["cpus_set"] = True


def _delay_boot(job: Fields, value: str | None) -> None:
    job["delay-boot"] = _needed(grammar.seconds(value or ""), "delay-boot")


def _distribution(job: Fields, value: str | None) -> None:
    job["dist"] = binding.distribution(value or "")


def _exclusive(job: Fields, value: str | None) -> None:
    known = {"": "exclusive", "exclusive": "exclusive", "oversubscribe": "oversubscribe"}
    known |= {"user": "user", "mcs": "mcs"}
    if job.slurm >= "24.05":
        known["topo"] = "topo"
    if job.slurm >= "26.05":
        known["allocation"] = "exclusive"
    folded = fold(value or "")
    if folded not in known:
        raise RefusedError("Invalid --exclusive specification")
    job["shared"] = known[folded]


def _oversubscribe(job: Fields, _: str | None) -> None:
    job["shared"] = "oversubscribe"


def _extra_node_info(job: Fields, value: str | None) -> None:
    names = ("sockets-per-node", "cores-per-socket", "threads-per-core")
    for name, count in zip(names, grammar.socket_counts(value or "", slurm=job.slurm), strict=True):
        job[name] = count
    job["extra_set"] = True


def _get_user_env(job: Fields, value: str | None) -> None:
    if job.slurm >= "25.05":  # a flag
        job["get-user-env"] = "set"
        return
    number, rest = leading_number(value or "")
    if rest and rest[0] not in "sSlL":
        raise RefusedError("Invalid --get-user-env specification")
    mode = rest[:1].upper() or (job["get-user-env"] or ("", ""))[1]
    job["get-user-env"] = wrapped(number or 0), mode


def _gpu_bind(job: Fields, value: str | None) -> None:
    job["gpu-bind"] = value
    if job.slurm >= "23.11":
        job["tres-bind"] = f"gres/gpu:{value}"
        complaints = binding.bad_resource_binding(job["tres-bind"])
        text = value
    else:
        complaints = binding.bad_gpu_binding(value or "")
        text = f"gpu:{value}"
    if complaints is not None:
        raise RefusedError(*complaints, f"Invalid --gpu-bind argument: {text}")


def _gpu_freq(job: Fields, value: str | None) -> None:
    job["gpu-freq"] = value
    if not frequency.gpu_frequency_is_good(value or ""):
        raise RefusedError(f"Invalid --gpu-freq argument: gpu:{value}")


def _gres(job: Fields, value: str | None) -> None:
    folded = fold(value or "")
    if folded in ("help", "list"):
        raise RefusedError(status=0)
    job["gres"] = value if folded == "none" else grammar.with_prefix(value or "", slurm=job.slurm)


def _gres_flags(job: Fields, value: str | None) -> None:
    if job.slurm < "23.11":
        flags = {fold(value or "")}
        if not flags < {*_BINDINGS}:
            raise RefusedError("Invalid --gres-flags specification")
        job["gres-flags"] = frozenset(flags)
        return
    flags = job["gres-flags"] & {_SHARING[1]}
    for item in filter(None, (value or "").split(",")):
        if fold(item) == "allow-task-sharing":
            raise RefusedError("--gres-flags=allow-task-sharing is only used with srun.")
        if fold(item) not in _BINDINGS + _SHARING:
            raise RefusedError(f"Invalid --gres-flags specification: {item}")
        flags |= {fold(item)}
    for rivals in (_BINDINGS, _SHARING):
        if flags >= {*rivals}:
            text = f"Invalid --gres-flags combo: {rivals[0]} and {rivals[1]} are mutually exclusive."
            raise RefusedError(text)
    if _SHARING[0] in flags and job.slurm >= "25.11":
        raise RefusedError(
            f"In order to use --gres-flags={_SHARING[0]} you must also have "
            "SelectTypeParameters=MULTIPLE_SHARING_GRES_PJ in your slurm.conf"
        )
    job["gres-flags"] = frozenset(flags)


def _kill_on_invalid_dep(job: Fields, value: str | None) -> None:
    if fold(value or "") not in ("yes", "no"):
        raise RefusedError("Invalid --kill-on-invalid-dep specification")
    job["kill_flags"] |= {fold(value or "")}


def _mail_type(job: Fields, value: str | None) -> None:
    events = _needed(grammar.mail_events(value or ""), "mail-type")
    job["mail_events"] = events if job.slurm >= "25.05" else job["mail_events"] | events


def _mem_update(job: Fields, value: str | None) -> None:
    margin_text, at, delay_text = (value or "").partition("@")
    if not at:
        raise RefusedError("--mem-update requires MARGIN@DELAY format")
    margin, rest = leading_number(margin_text)
    delay = grammar.minutes(delay_text)
    if rest or not (0 < (margin or 0) <= 0xFFFF and 0 < (delay or 0) <= 0xFFFF):
        raise RefusedError("Invalid --mem-update specification")
    job["mem-update"] = f"{margin}@{delay}"


def _mem_bind(job: Fields, value: str | None) -> None:
    job["binds"], job["bind_list"] = binding.memory_binding(value or "", job["binds"], slurm=job.slurm)


def _nice(job: Fields, value: str | None) -> None:
    number = 100 if value is None else leading_number(value)[0] or 0
    if abs(number) > NICE_LIMIT:
        raise RefusedError(f"Invalid --nice value, out of range (+/- {NICE_LIMIT})")
    job["nice"] = number


def _no_kill(job: Fields, value: str | None) -> None:
    if value is not None and fold(value) not in ("set", "off", "no"):
        raise RefusedError("Invalid --no-kill specification")
    job["no-kill"] = value is None or fold(value) == "set"


def _no_requeue(job: Fields, _: str | None) -> None:
    job["requeue"] = "no-requeue"


def _requeue(job: Fields, value: str | None) -> None:
    expedite = fold(value or "") == "expedite"
    if value and not expedite and job.slurm >= "26.05":
        raise RefusedError("Invalid --requeue specification")
    job["expedite"] = bool(job["expedite"]) or (expedite and job.slurm >= "25.11")
    job["requeue"] = "expedite" if job["expedite"] else "requeue"


def _nodefile(job: Fields, value: str | None) -> None:
    job["nodefile"], job["nodelist"] = value, None


def _nodelist(job: Fields, value: str | None) -> None:
    job["nodefile"], job["nodelist"] = None, value


def _nodes(job: Fields, value: str | None) -> None:
    job["min_nodes"], job["max_nodes"] = grammar.node_range(value or "", slurm=job.slurm)
    job["listed_nodes"] = job.slurm >= "23.02" and ("," in value or ":" in value) if value else False
    job["nodes_set"] = True


def _ntasks(job: Fields, value: str | None) -> None:
    job["ntasks"] = _integer(job, "ntasks", value)
    job["ntasks_set"] = True


def _oom_kill_step(job: Fields, value: str | None) -> None:
    number = 1 if value is None else grammar.short_integer(value)
    if number not in (0, 1):
        raise RefusedError("Invalid --oom-kill-step specification")
    job["oom-kill-step"] = number


def _open_mode(job: Fields, value: str | None) -> None:
    if (mode := fold((value or "")[:1])) not in ("a", "t"):
        raise RefusedError("Invalid --open-mode specification")
    job["open-mode"] = mode


def _power(job: Fields, value: str | None) -> None:
    job["power"] = "unset"
    for item in filter(None, (value or "").split(",")):
        if fold(item) == "level":
            job["power"] = "LEVEL"
        else:
            job.say(f"Ignoring unrecognized power option ({item})")


def _priority(job: Fields, value: str | None) -> None:
    if fold(value or "") == "top":
        job["priority"] = NO_VAL - 1
        return
    number = leading_number(value or "")[0] or 0
    if number < 0:
        raise RefusedError("Priority must be >= 0")
    if number >= NO_VAL:
        raise RefusedError(f"Priority must be < {NO_VAL}")
    job["priority"] = number


def _profile(job: Fields, value: str | None) -> None:
    job["profile"] = grammar.profile(value or "")
    if job["profile"] is None:
        raise RefusedError(f"invalid --profile={value} option")


def _propagate(job: Fields, value: str | None) -> None:
    job["propagate"] = "ALL" if value is None else value


def _resv_ports(job: Fields, value: str | None) -> None:
    job["resv-ports"] = (
        0 if value is None else grammar.integer("--resv-port", value, positive=False, slurm=job.slurm)
    )


def _segment(job: Fields, value: str | None) -> None:
    job["segment"] = _needed(grammar.short_integer(value or ""), "segment")


def _signal(job: Fields, value: str | None) -> None:
    flags, number, lead = _needed(grammar.signal(value or "", slurm=job.slurm), "signal")
    job["signal"] = flags + job["signal"][0], number, lead


def _switches(job: Fields, value: str | None) -> None:
    count, at, wait = (value or "").partition("@")
    if at:
        _wait4switch(job, wait)
    _req_switch(job, count)


def _req_switch(job: Fields, value: str | None) -> None:
    job["req_switch"] = _integer(job, "switches", value)


def _wait4switch(job: Fields, value: str | None) -> None:
    value_s = grammar.seconds(value or "")
    job["wait4switch"] = wrapped(NO_VAL if value_s is None else value_s)


def _time(option: str) -> Setter:
    def put(job: Fields, value: str | None) -> None:
        job[option] = _needed(grammar.minutes(value or ""), option) or INFINITE

    return put


def _umask(job: Fields, value: str | None) -> None:
    number = grammar.any_base(value or "")
    if not 0 <= number <= 0o777:
        raise RefusedError("Invalid -W umask= specification")
    job["umask"] = f"0{number:o}"


def _verbose(job: Fields, value: str | None) -> None:
    job["verbose"] = _integer(job, "verbose", value, positive=False)


def _wait_all_nodes(job: Fields, value: str | None) -> None:
    number = _integer(job, "wait-all-nodes", value, positive=False) % 2**16
    if number > 1:
        raise RefusedError("Invalid --wait-all-nodes specification")
    job["wait-all-nodes"] = number


_SETTERS: dict[str, Setter] = {
    "acctg-freq": _acctg_freq,
    "autocomplete": _autocomplete,
    "begin": _moment("begin"),
    "chdir": _chdir,
    "cluster": lambda job, value: put(job, "clusters", value),
    "core-spec": _core_spec,
    "cpu-freq": _cpu_freq,
    "cpus-per-task": _cpus_per_task,
    "deadline": _moment("deadline"),
    "delay-boot": _delay_boot,
    "distribution": _distribution,
    "exclusive": _exclusive,
    "extra-node-info": _extra_node_info,
    "get-user-env": _get_user_env,
    "gpu-bind": _gpu_bind,
    "gpu-freq": _gpu_freq,
    "gres": _gres,
    "gres-flags": _gres_flags,
    "kill-on-invalid-dep": _kill_on_invalid_dep,
    "mail-type": _mail_type,
    "mem-bind": _mem_bind,
    "mem-update": _mem_update,
    "nice": _nice,
    "no-kill": _no_kill,
    "no-requeue": _no_requeue,
    "nodefile": _nodefile,
    "nodelist": _nodelist,
    "nodes": _nodes,
    "ntasks": _ntasks,
    "oom-kill-step": _oom_kill_step,
    "open-mode": _open_mode,
    "oversubscribe": _oversubscribe,
    "power": _power,
    "priority": _priority,
    "profile": _profile,
    "propagate": _propagate,
    "req-switch": _req_switch,
    "requeue": _requeue,
    "resv-ports": _resv_ports,
    "segment": _segment,
    "signal": _signal,
    "switches": _switches,
    "thread-spec": _thread_spec,
    "time": _time("time"),
    "time-min": _time("time-min"),
    "umask": _umask,
    "verbose": _verbose,
    "wait-all-nodes": _wait_all_nodes,
    "wait4switch": _wait4switch,
}
