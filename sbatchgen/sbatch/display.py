"""How `sbatch -v` prints the options of a job.

Source: Slurm's table of options, 20.11 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5.
"""

from __future__ import annotations

from collections.abc import Callable

from sbatchgen.sbatch import binding, grammar, moment
from sbatchgen.sbatch.fields import COUNTS, FIELDS, SIZES, Fields
from sbatchgen.sbatch.grammar import NO_VAL, NO_VAL16, THREAD_SPEC, wrapped


def shown(job: Fields, option: str) -> str:
    """The option's value as sbatch prints it."""
    if show := _SHOWN.get(option):
        return "(null)" if (text := show(job)) is None else text
    value = job[FIELDS.get(option, (option,))[0]]
    if option in SIZES:
        return grammar.show_mebibytes(value)
    if option in COUNTS:
        return str(wrapped(value))
    return "(null)" if value is None else str(value)


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
    flag = "" if flag == "both" else flag
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


def _show_wait(job: Fields) -> str | None:
    wait = job["wait4switch"]
    return None if wait == wrapped(NO_VAL) and job.slurm >= "23.11" else grammar.show_seconds(wait)


def _show_user_env(job: Fields) -> str | None:
    if job["get-user-env"] == "set":
        return "set"
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
    "gres-flags": lambda job: ",".join(sorted(job["gres-flags"])) or "unset",
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
    "segment": lambda job: str(job["segment"] or "unset"),
    "signal": lambda job: grammar.show_signal(*job["signal"], slurm=job.slurm),
    "switches": _show_switches,
    "thread-spec": _show_thread_spec,
    "time": lambda job: grammar.show_minutes(job["time"]),
    "time-min": lambda job: grammar.show_minutes(job["time-min"]),
    "wait4switch": _show_wait,
}
