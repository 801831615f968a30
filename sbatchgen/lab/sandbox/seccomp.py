"""The filter by which the kernel refuses system calls in a sandbox. Sources: seccomp(2), clone(2)."""

import errno
import os
import struct
from typing import NamedTuple


class _Machine(NamedTuple):
    """The numbers that the filter needs for a type of machine: its own, and those of system calls."""

    audit_number: int  # the machine's number in <linux/audit.h>
    clone3: int
    clone: int
    ioctl: int
    socket: int
    memfd_create: int
    # add_key, request_key, keyctl, ptrace, process_vm_readv, process_vm_writev, pidfd_getfd, kcmp,
    # perf_event_open, bpf, userfaultfd, syslog, io_uring_setup, io_uring_enter, io_uring_register, unshare,
    # setns, mount, umount2, pivot_root, open_tree, move_mount, fsopen, mount_setattr, memfd_secret, shmget,
    # semget, msgget, mq_open and setpriority
    refused: tuple[int, ...]
    # sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr and prlimit64, which are refused if
    # they name the first process of the sandbox
    refused_for_first_process: tuple[int, ...]


# Sources: asm/unistd_64.h and asm-generic/unistd.h of Linux.
_MACHINES = {
    "x86_64": _Machine(0xC000003E, 435, 56, 16, 41, 319, (
        248, 249, 250, 101, 310, 311, 438, 312, 298, 321, 323, 103, 425, 426, 427, 272, 308, 165, 166, 155,
        428, 429, 430, 442, 447, 29, 64, 68, 240, 141,
    ), (142, 144, 203, 314, 302)),
    "aarch64": _Machine(0xC00000B7, 435, 220, 29, 198, 279, (
        217, 218, 219, 117, 270, 271, 438, 272, 241, 280, 282, 116, 425, 426, 427, 97, 268, 40, 39, 41, 428,
        429, 430, 442, 447, 194, 190, 186, 180, 140,
    ), (118, 119, 122, 274, 261)),
}  # fmt: skip
# Flags of clone: new user, pid, network, ipc, uts, cgroup, mount and time namespaces.
_NAMESPACES = 0x7E020080
# Requests of ioctl: FS_IOC_SETFLAGS (two sizes), FS_IOC_FSSETXATTR, FS_IOC_ENABLE_VERITY, TIOCSTI, TIOCLINUX.
_ATTRIBUTES = (0x40086602, 0x40046602, 0x401C5820, 0x40806685, 0x5412, 0x541C)
_X32 = 0x40000000  # a bit of the numbers of x32, a second set of calls on x86_64
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x50000, 0x80000000  # results of the filter
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of BPF
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_UNIX, _FAMILIES = 1, (2, 10, 16)  # AF_UNIX; the allowed AF_INET, AF_INET6 and AF_NETLINK
# The instructions that let a call fail with EPERM, and with ENOSYS as if the kernel did not have the call.
_REFUSE, _UNKNOWN = ((_RETURN, 0, 0, _ERRNO | number) for number in (errno.EPERM, errno.ENOSYS))


def filter_program(*, is_trusted: bool) -> bytes:
    """Return the filter as a program of BPF; b"" for an unknown type of machine.

    A trusted program may also call memfd_create, and use sockets of AF_UNIX.
    """
    machine = _MACHINES.get(os.uname().machine)
    if not machine:
        return b""
    families = (*_FAMILIES, *[_UNIX] * is_trusted)
    code = [
        *((_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, machine.audit_number), (_RETURN, 0, 0, _KILL)),
        *((_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), _UNKNOWN),
        # The flags of clone3 are in memory, which the filter can't read. After ENOSYS, libc calls clone.
        *((_EQUAL, 0, 1, machine.clone3), _UNKNOWN),
    ]
    refused = [*machine.refused, *[machine.memfd_create] * (not is_trusted)]
    code += [part for number in refused for part in ((_EQUAL, 0, 1, number), _REFUSE)]
    # A known family jumps over the refusal at the end.
    known = [(_EQUAL, len(families) - index, 0, family) for index, family in enumerate(families)]
    # The number of a call, the index of the argument to judge, and the instructions that judge it.
    for number, argument, judge in (
        (machine.clone, 0, [(_ANY_BIT, 0, 1, _NAMESPACES), _REFUSE]),
        (machine.ioctl, 1, [part for value in _ATTRIBUTES for part in ((_EQUAL, 0, 1, value), _REFUSE)]),
        (machine.socket, 0, [*known, (_RETURN, 0, 0, _ERRNO | errno.EACCES)]),
        # The first process keeps the limits, so no program may change its settings.
        *((number, 0, [(_EQUAL, 0, 1, 1), _REFUSE]) for number in machine.refused_for_first_process),
    ):
        judge = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), *judge, (_RETURN, 0, 0, _ALLOW)]  # noqa: PLW2901
        code += [(_EQUAL, 0, len(judge), number), *judge]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in (*code, (_RETURN, 0, 0, _ALLOW)))
