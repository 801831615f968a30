"""What sbatch keeps of its options: fields, some of them shared by options, and how it prints them.

Source: how Slurm 22.05 sets and prints each option, and the behaviour of sbatch 22.05.8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sbatchgen.script import binding, grammar, moment
from sbatchgen.script.grammar import (
    INFINITE,
    NICE_LIMIT,
    NO_VAL,
    NO_VAL16,
    NO_VAL64,
    THREAD_SPEC,
    RefusedError,
    fold,
    integer,
    leading_number,
    wrapped,
)

DEFAULTS: dict[str, Any] = {
    "begin": 0,
    "binds": frozenset(),
    "bind_list": None,
    "core_spec": NO_VAL16,
    "cores-per-socket": NO_VAL,
    "cpus-per-gpu": 0,
    "cpus-per-task": 0,
    "cpus_set": False,
    "deadline": 0,
    "dist": ("", "", 0),
    "extra_set": False,
    "kill_flags": frozenset(),
    "mail_events": frozenset(),
    "max_nodes": 0,
    "mem": NO_VAL64,
    "mem-per-cpu": NO_VAL64,
    "mem-per-gpu": NO_VAL64,
    "min_nodes": 1,
    "mincpus": -1,
    "nodes_set": False,
    "ntasks": 1,
    "ntasks_set": False,
    "ntasks-per-core": NO_VAL,
    "ntasks-per-gpu": NO_VAL,
    "ntasks-per-node": NO_VAL,
    "ntasks-per-socket": NO_VAL,
    "ntasks-per-tres": NO_VAL,
    "no-kill": False,
    "shared": "unset",
    "signal": ("", 0, 0),
    "sockets-per-node": NO_VAL,
    "req_switch": -1,
    "threads-per-core": NO_VAL,
    "tmp": NO_VAL64,
    "wait4switch": -1,
}
# The fields of an option that has others than one of its own name.
FIELDS = {
    "clusters": ("clusters",),
    "cluster": ("clusters",),
    "core-spec": ("core_spec",),
    "cpus-per-task": ("cpus-per-task", "cpus_set"),
    "distribution": ("dist",),
    "exclusive": ("shared",),
    "extra-node-info": ("sockets-per-node", "cores-per-socket", "threads-per-core", "extra_set"),
    "kill-on-invalid-dep": ("kill_flags",),
    "mail-type": ("mail_events",),
    "mem-bind": ("binds", "bind_list"),
    "no-requeue": ("requeue",),
    "nodefile": ("nodefile", "nodelist"),
    "nodelist": ("nodelist", "nodefile"),
    "nodes": ("min_nodes", "max_nodes", "nodes_set"),
    "ntasks": ("ntasks", "ntasks_set"),
    "oversubscribe": ("shared",),
    "req-switch": ("req_switch",),
    "switches": ("req_switch", "wait4switch"),
    "thread-spec": ("core_spec",),
}
_COUNTS = (
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
_SIZES = ("mem", "mem-per-cpu", "mem-per-gpu", "tmp")
_PATHS = ("error", "input", "output")


@dataclass(kw_only=True, slots=True)
class Fields:
    """The fields of one component, as far as its options were read.

    Attributes:
        folder: Where sbatch is called.
        now: Seconds since 1970.
        slurm: The release line.
        values: Each field that is not at its default.
        sources: Where each option that is set comes from: "script", "environment" or "command line".
        complaints: What sbatch said without ending, level and text.
    """

    folder: str
    now: float
    slurm: str
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    complaints: list[tuple[str, str]] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        """The field, or its default."""
        return self.values.get(name, DEFAULTS.get(name))

    def __setitem__(self, name: str, value: Any) -> None:
        """Keep the field."""
        self.values[name] = value

    def reset(self, option: str) -> None:
        """Take back what the option set."""
        self.sources.pop(option, None)
        for name in FIELDS.get(option, (option,)):
            self.values.pop(name, None)

    def given(self, *options: str) -> list[str]:
        """Those of the options that script or command line set."""
        return [option for option in options if self.sources.get(option, "environment") != "environment"]

    def exported(self, *options: str) -> list[str]:
        """Those of the options that the environment set."""
        return [option for option in options if self.sources.get(option) == "environment"]

    def say(self, text: str, level: str = "error") -> None:
        """Note what sbatch says, going on."""
        self.complaints.append((level, text))

    def put(self, option: str, value: str | None) -> None:
        """Keep an option's value.

        Raises:
            RefusedError: sbatch would end.
        """
        setter = _SETTERS.get(option)
        if setter:
            setter(self, value)
        elif option in _COUNTS:
            self[option] = integer(f"--{option}", value or "", positive=True)
        elif option in _SIZES:
            self[option] = _needed(grammar.mebibytes(value or ""), option)
        elif option in _PATHS:
            self[option] = "/dev/null" if fold(value or "") == "none" else value
        else:
            self[option] = "set" if value is None else value

    def shown(self, option: str) -> str:
        """The option's value as sbatch prints it."""
        if show := _SHOWN.get(option):
            return "(null)" if (text := show(self)) is None else text
        names = FIELDS.get(option, (option,))
        value = self[names[0]]
        if option in _SIZES:
            return grammar.show_mebibytes(value)
        if option in _COUNTS:
            return str(wrapped(value))
        return "(null)" if value is None else str(value)


def _needed(value: Any, option: str) -> Any:
    """The value, where there is one.

    Raises:
        RefusedError: There is none.
    """
    if value is None or value == NO_VAL64:
        raise RefusedError(f"Invalid --{option} specification")
    return value


Setter = Callable[[Fields, str | None], None]


def _acctg_freq(job: Fields, value: str | None) -> None:
    job["acctg-freq"] = value
    bad = grammar.bad_frequencies(value or "")
    if bad:
        raise RefusedError(*(f"Invalid --acctg-freq specification: {item}" for item in bad))


def _moment(option: str) -> Setter:
    def put(job: Fields, value: str | None) -> None:
        try:
            job[option] = moment.moment(value or "", now=job.now)
        except moment.MomentError as error:
            if str(error):
                job.say(str(error), "")
            raise RefusedError(f"Invalid --{option} specification") from error

    return put


def _chdir(job: Fields, value: str | None) -> None:
    job["chdir"] = value if (value or "").startswith("/") else f"{job.folder}/{value}"


def _core_spec(job: Fields, value: str | None) -> None:
    job["core_spec"] = integer("--core-spec", value or "", positive=False)


def _thread_spec(job: Fields, value: str | None) -> None:
    job["core_spec"] = integer("--thread-spec", value or "", positive=True) | THREAD_SPEC


def _cpu_freq(job: Fields, value: str | None) -> None:
    job["cpu-freq"] = binding.cpu_frequency(value or "")


def _cpus_per_task(job: Fields, value: str | None) -> None:
    job["cpus-per-task"] = integer("--cpus-per-task", value or "", positive=True)
    job["cpus_set"] = True


def _delay_boot(job: Fields, value: str | None) -> None:
    job["delay-boot"] = _needed(grammar.seconds(value or ""), "delay-boot")


def _distribution(job: Fields, value: str | None) -> None:
    job["dist"] = binding.distribution(value or "")


def _exclusive(job: Fields, value: str | None) -> None:
    known = {"": "exclusive", "exclusive": "exclusive", "oversubscribe": "oversubscribe"}
    known |= {"user": "user", "mcs": "mcs"} | ({"topo": "topo"} if job.slurm >= "24.05" else {})
    folded = fold(value or "")
    if folded not in known:
        raise RefusedError("Invalid --exclusive specification")
    job["shared"] = known[folded]


def _oversubscribe(job: Fields, _: str | None) -> None:
    job["shared"] = "oversubscribe"


def _extra_node_info(job: Fields, value: str | None) -> None:
    names = ("sockets-per-node", "cores-per-socket", "threads-per-core")
    for name, count in zip(names, grammar.socket_counts(value or ""), strict=True):
        job[name] = count
    job["extra_set"] = True


def _get_user_env(job: Fields, value: str | None) -> None:
    number, rest = leading_number(value or "")
    if rest and rest[0] not in "sSlL":
        raise RefusedError("Invalid --get-user-env specification")
    mode = rest[:1].upper() or (job["get-user-env"] or ("", ""))[1]
    job["get-user-env"] = wrapped(number or 0), mode


def _gpu_bind(job: Fields, value: str | None) -> None:
    job["gpu-bind"] = value
    complaints = binding.gpu_binding(value or "")
    if complaints is not None:
        raise RefusedError(*complaints, f"Invalid --gpu-bind argument: gpu:{value}")


def _gpu_freq(job: Fields, value: str | None) -> None:
    job["gpu-freq"] = value
    if not binding.gpu_frequency_is_good(value or ""):
        raise RefusedError(f"Invalid --gpu-freq argument: gpu:{value}")


def _gres(job: Fields, value: str | None) -> None:
    folded = fold(value or "")
    if folded in ("help", "list"):
        raise RefusedError(status=0)
    job["gres"] = value if folded == "none" else grammar.with_prefix(value or "", slurm=job.slurm)


def _gres_flags(job: Fields, value: str | None) -> None:
    if fold(value or "") not in ("disable-binding", "enforce-binding"):
        raise RefusedError("Invalid --gres-flags specification")
    job["gres-flags"] = fold(value or "")


def _kill_on_invalid_dep(job: Fields, value: str | None) -> None:
    if fold(value or "") not in ("yes", "no"):
        raise RefusedError("Invalid --kill-on-invalid-dep specification")
    job["kill_flags"] |= {fold(value or "")}


def _mail_type(job: Fields, value: str | None) -> None:
    job["mail_events"] |= _needed(grammar.mail_events(value or ""), "mail-type")


def _mem_bind(job: Fields, value: str | None) -> None:
    job["binds"], job["bind_list"] = binding.memory_binding(value or "", job["binds"])


def _nice(job: Fields, value: str | None) -> None:
    number = 100 if value is None else leading_number(value)[0] or 0
    if abs(number) > NICE_LIMIT:
        raise RefusedError(f"Invalid --nice value, out of range (+/- {NICE_LIMIT})")
    job["nice"] = number


def _no_kill(job: Fields, value: str | None) -> None:
    if value is not None and fold(value) not in ("set", "off", "no"):
        raise RefusedError("Invalid --no-kill specification")
    job["no-kill"] = value is None or fold(value) == "set"


def _requeue(answer: str) -> Setter:
    def put(job: Fields, _: str | None) -> None:
        job["requeue"] = answer

    return put


def _nodefile(job: Fields, value: str | None) -> None:
    job["nodefile"], job["nodelist"] = value, None


def _nodelist(job: Fields, value: str | None) -> None:
    job["nodefile"], job["nodelist"] = None, value


def _nodes(job: Fields, value: str | None) -> None:
    job["min_nodes"], job["max_nodes"] = grammar.node_range(value or "", slurm=job.slurm)
    job["nodes_set"] = True


def _ntasks(job: Fields, value: str | None) -> None:
    job["ntasks"] = integer("--ntasks", value or "", positive=True)
    job["ntasks_set"] = True


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


def _signal(job: Fields, value: str | None) -> None:
    flags, number, lead = _needed(grammar.signal(value or ""), "signal")
    job["signal"] = flags + job["signal"][0], number, lead


def _switches(job: Fields, value: str | None) -> None:
    count, at, wait = (value or "").partition("@")
    if at:
        _wait4switch(job, wait)
    _req_switch(job, count)


def _req_switch(job: Fields, value: str | None) -> None:
    job["req_switch"] = integer("--switches", value or "", positive=True)


def _wait4switch(job: Fields, value: str | None) -> None:
    value_s = grammar.seconds(value or "")
    job["wait4switch"] = wrapped(NO_VAL if value_s is None else value_s)


def _time(option: str) -> Setter:
    def put(job: Fields, value: str | None) -> None:
        job[option] = _needed(grammar.minutes(value or ""), option) or INFINITE

    return put


def _verbose(job: Fields, value: str | None) -> None:
    job["verbose"] = integer("--verbose", value or "", positive=False)


def _wait_all_nodes(job: Fields, value: str | None) -> None:
    number = integer("--wait-all-nodes", value or "", positive=False) % 2**16
    if number > 1:
        raise RefusedError("Invalid --wait-all-nodes specification")
    job["wait-all-nodes"] = number


_SETTERS: dict[str, Setter] = {
    "acctg-freq": _acctg_freq,
    "begin": _moment("begin"),
    "chdir": _chdir,
    "cluster": lambda job, value: job.put("clusters", value),
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
    "nice": _nice,
    "no-kill": _no_kill,
    "no-requeue": _requeue("no-requeue"),
    "nodefile": _nodefile,
    "nodelist": _nodelist,
    "nodes": _nodes,
    "ntasks": _ntasks,
    "open-mode": _open_mode,
    "oversubscribe": _oversubscribe,
    "power": _power,
    "priority": _priority,
    "profile": _profile,
    "propagate": _propagate,
    "req-switch": _req_switch,
    "requeue": _requeue("requeue"),
    "signal": _signal,
    "switches": _switches,
    "thread-spec": _thread_spec,
    "time": _time("time"),
    "time-min": _time("time-min"),
    "verbose": _verbose,
    "wait-all-nodes": _wait_all_nodes,
    "wait4switch": _wait4switch,
}


def _show_nodes(job: Fields) -> str:
    low, high = job["min_nodes"], job["max_nodes"]
    return str(low) if low == high else f"{low}-{high}"


def _show_extra_node_info(job: Fields) -> str:
    names = ("sockets-per-node", "cores-per-socket", "threads-per-core")
    parts = [str(job[name]) if job[name] != NO_VAL else None for name in names]
    text = (parts[0] or "") + "".join(f":{part}" for part in parts[1:] if part)
    return text or "unset"


def _show_distribution(job: Fields) -> str | None:
    base, flag, size = job["dist"]
    text = ",".join(filter(None, (base, flag))) or None
    return f"{text}={size}" if base == "plane" else text


def _show_core_spec(job: Fields) -> str:
    return (
        "unset" if job["core_spec"] & THREAD_SPEC or job["core_spec"] == NO_VAL16 else str(job["core_spec"])
    )


def _show_thread_spec(job: Fields) -> str:
    threads = job["core_spec"] & THREAD_SPEC and job["core_spec"] != NO_VAL16
    return str(job["core_spec"] & ~THREAD_SPEC) if threads else "unset"


def _show_switches(job: Fields) -> str:
    count, wait = job["req_switch"], job["wait4switch"]
    if wait != -1:
        return f"{count}@{grammar.show_seconds(wait)}"
    return "unset" if count == -1 else str(count)


def _show_user_env(job: Fields) -> str | None:
    number, mode = job["get-user-env"] or (-1, "")
    return f"{number}{mode}" if mode or number != -1 else None


def _show_kill(job: Fields) -> str:
    return next((answer for answer in ("yes", "no") if answer in job["kill_flags"]), "unset")


_SHOWN: dict[str, Callable[[Fields], str | None]] = {
    "begin": lambda job: moment.show(job["begin"]),
    "core-spec": _show_core_spec,
    "deadline": lambda job: moment.show(job["deadline"]),
    "delay-boot": lambda job: grammar.show_seconds(job["delay-boot"] % 2**32),
    "distribution": _show_distribution,
    "extra-node-info": _show_extra_node_info,
    "get-user-env": _show_user_env,
    "kill-on-invalid-dep": _show_kill,
    "mail-type": lambda job: grammar.show_mail_events(job["mail_events"]),
    "mem-bind": lambda job: binding.show_memory_binding(job["binds"], job["bind_list"]),
    "nice": lambda job: str(wrapped(job["nice"])),
    "no-kill": lambda job: "set" if job["no-kill"] else "unset",
    "nodes": _show_nodes,
    "no-requeue": lambda job: job["requeue"] or "unset",
    "priority": lambda job: str(wrapped(job["priority"])),
    "requeue": lambda job: job["requeue"] or "unset",
    "signal": lambda job: grammar.show_signal(*job["signal"]),
    "switches": _show_switches,
    "thread-spec": _show_thread_spec,
    "time": lambda job: grammar.show_minutes(job["time"]),
    "time-min": lambda job: grammar.show_minutes(job["time-min"]),
    "wait4switch": lambda job: grammar.show_seconds(job["wait4switch"]),
}
