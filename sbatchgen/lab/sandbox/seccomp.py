"""The filter by which the kernel refuses system calls in a sandbox, such as mount and ptrace.

`filter_program` returns the filter for bubblewrap's option --seccomp. It is a program of BPF, a list of
instructions. An instruction has a code, the numbers of instructions to skip if a test is true and if it is
false, and a value. Sources: seccomp(2), clone(2).
"""

import errno
import os
import struct
from typing import NamedTuple


class _Machine(NamedTuple):
    """The numbers that the filter needs for a type of machine: those of the machine and of system calls."""

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
_REFUSED_REQUESTS = (0x40086602, 0x40046602, 0x401C5820, 0x40806685, 0x5412, 0x541C)
_X32 = 0x40000000  # a bit of the numbers of x32, a second set of calls on x86_64
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x50000, 0x80000000  # results of the filter
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # codes of instructions of BPF
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_UNIX_FAMILY, _ALLOWED_FAMILIES = 1, (2, 10, 16)  # AF_UNIX; AF_INET, AF_INET6 and AF_NETLINK
_REFUSE = (_RETURN, 0, 0, _ERRNO | errno.EPERM)  # lets a call fail with EPERM
_REFUSE_AS_UNKNOWN = (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)  # as if the kernel did not have the call


def filter_program(*, is_trusted: bool) -> bytes:
    """Return the filter as a program of BPF; b"" for an unknown type of machine.

    A trusted program may also call memfd_create, and use sockets of AF_UNIX.
    """
    machine = _MACHINES.get(os.uname().machine)
    if not machine:
        return b""
    families = (*_ALLOWED_FAMILIES, *[_UNIX_FAMILY] * is_trusted)
    code = [
        *((_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, machine.audit_number), (_RETURN, 0, 0, _KILL)),
        *((_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), _REFUSE_AS_UNKNOWN),
        # The flags of clone3 are in memory, which the filter can't read. After ENOSYS, libc calls clone.
        *((_EQUAL, 0, 1, machine.clone3), _REFUSE_AS_UNKNOWN),
    ]
    refused_calls = [*machine.refused, *[machine.memfd_create] * (not is_trusted)]
    for call in refused_calls:
        code += [(_EQUAL, 0, 1, call), _REFUSE]
    # An allowed family jumps over the refusal at the end.
    family_tests = [(_EQUAL, len(families) - index, 0, family) for index, family in enumerate(families)]
    request_tests = [test for request in _REFUSED_REQUESTS for test in ((_EQUAL, 0, 1, request), _REFUSE)]
    # The number of a call, the index of the argument to test, and the instructions that test it.
    for call, argument, tests in (
        (machine.clone, 0, [(_ANY_BIT, 0, 1, _NAMESPACES), _REFUSE]),
        (machine.ioctl, 1, request_tests),
        (machine.socket, 0, [*family_tests, (_RETURN, 0, 0, _ERRNO | errno.EACCES)]),
        # The first process keeps the limits, so no program may change its settings.
        *((call, 0, [(_EQUAL, 0, 1, 1), _REFUSE]) for call in machine.refused_for_first_process),
    ):
        instructions = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), *tests, (_RETURN, 0, 0, _ALLOW)]
        code += [(_EQUAL, 0, len(instructions), call), *instructions]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in (*code, (_RETURN, 0, 0, _ALLOW)))
