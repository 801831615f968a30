"""System calls that the kernel refuses a program: what Landlock and bubblewrap don't limit.

Sources: seccomp(2), and asm/unistd_64.h and asm-generic/unistd.h of Linux for the numbers.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Mapping, Sequence

from sbatchgen.dryrun.box import checked, libc

_SECCOMP, _MODE_FILTER = 22, 2

# For each machine: its number in <linux/audit.h>, and its calls.
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SOCKETS = {
    "x86_64": (41, 42, 53, 425),  # socket, connect, socketpair, io_uring_setup
    "aarch64": (198, 203, 199, 425),
}
# What changes owners, modes, times and attributes of files, and the order of processes: they seem to work.
_ATTRIBUTES = {
    "x86_64": (
        *(
            90,
            91,
            268,
            452,
            92,
            93,
            94,
            260,
        ),  # chmod, fchmod, fchmodat, fchmodat2, chown, fchown, lchown, fchownat
        *(132, 235, 261, 280),  # utime, utimes, futimesat, utimensat
        *(188, 189, 190, 197, 198, 199, 463, 466, 469),  # setxattr and removexattr in all forms, file_setattr
        *(
            141,
            142,
            144,
            203,
            251,
            314,
        ),  # setpriority, sched_set(param, scheduler, affinity), ioprio_set, sched_setattr
    ),
    "aarch64": (
        *(52, 53, 452, 54, 55, 88),
        *(5, 6, 7, 14, 15, 16, 463, 466, 469),
        *(140, 118, 119, 122, 30, 274),
    ),
}
# Keys, and memory and queues that processes share: shmget, shmat, shmctl, semget, semctl, msgget, msgctl,
# mq_open, mq_unlink, add_key, request_key, keyctl.
_SHARED = {
    "x86_64": (29, 30, 31, 64, 66, 68, 71, 240, 241, 248, 249, 250),
    "aarch64": (194, 196, 195, 190, 191, 186, 187, 180, 181, 217, 218, 219),
}
_SIGNALS = {  # kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal
    "x86_64": (62, 200, 234, 129, 297, 424),
    "aarch64": (129, 130, 131, 138, 240, 424),
}
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_X32 = 0x40000000  # numbers of another set of calls
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x50000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # instructions of BPF
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # places in struct seccomp_data


def is_known() -> bool:
    """Return whether the calls of this machine are known."""
    return os.uname().machine in _MACHINES


def refuse_sockets() -> None:
    """Let this process and its children use no sockets, if the calls of this machine are known."""
    if is_known():
        _filter(dict.fromkeys(_SOCKETS[os.uname().machine], errno.EACCES))


def refuse_all(*, signals: bool) -> None:
    """Let this process and its children reach nothing outside but files; `signals`: refuse these too."""
    machine = os.uname().machine
    refused = dict.fromkeys((*_SOCKETS[machine], *_SHARED[machine]), errno.EACCES)
    pretended = (*_ATTRIBUTES[machine], *(_SIGNALS[machine] if signals else ()))
    _filter(refused | dict.fromkeys(pretended, 0), own_limits_only=_PRLIMIT[machine])


def _filter(answers: Mapping[int, int], *, own_limits_only: int | None = None) -> None:
    """Have the kernel answer calls with an error number, where 0 looks like success."""
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _MACHINES[os.uname().machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for number, error in answers.items():
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error)]
    if own_limits_only is not None:
        program += [(_EQUAL, 0, 3, own_limits_only), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
        program += [(_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    _install([*program, (_RETURN, 0, 0, _ALLOW)])


def _install(program: Sequence[tuple[int, int, int, int]]) -> None:
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    kept = ctypes.create_string_buffer(code)
    header = struct.pack("HP", len(program), ctypes.addressof(kept))
    checked(libc.prctl(_SECCOMP, _MODE_FILTER, header, 0, 0), "seccomp")
