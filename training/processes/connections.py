"""The TCP connections of this machine and the bytes that they carried, from the kernel's sock_diag(7).

/proc does not have these bytes: /proc/PID/io does not count recv(2) and send(2), and /proc/PID/net counts the
whole machine.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

# From linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, linux/unix_diag.h and linux/tcp.h.
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP = 4, 20, 0x301
DONE, ERROR = 3, 2  # types of the message that ends an answer
ESTABLISHED, SYN_SENT = 1, 2  # states of a TCP connection
ALL_STATES = 0xFFFFFFFF  # a mask
SHOW_PEER, PEER = 4, 2  # the flag for, and the number of, the attribute with a Unix socket's other end
TCP_INFO = 2  # the number of the attribute with struct tcp_info
# The offsets in tcp_info of last_data_sent, last_data_recv, bytes_acked and bytes_received.
LAST_SENT_AT, LAST_RECEIVED_AT, ACKED_BYTES_AT, RECEIVED_BYTES_AT = 44, 52, 120, 128
HEADER, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")  # nlmsghdr and rtattr
TCP_MESSAGE, UNIX_MESSAGE = struct.Struct("=4B2s2s16s16s3I5I"), struct.Struct("=4xI8x")
READ_BYTES = 1 << 20  # the most bytes of one read of an answer
TIMEOUT_S = 2.0  # for the kernel's answer


class Connection(NamedTuple):
    """A TCP connection, seen from one end."""

    local: str  # the address of this end, such as 10.1.2.3:8000
    remote: str
    moved: int  # bytes so far, in both directions
    waits: bool  # whether this end sent (or may have sent) the last message, and so waits for an answer


def connections() -> dict[int, Connection]:
    """Return all TCP connections by the inode of their socket; {} if the kernel does not answer."""
    known: dict[int, Connection] = {}
    with contextlib.suppress(OSError, AttributeError, struct.error):
        for family in (socket.AF_INET, socket.AF_INET6):
            states = 1 << ESTABLISHED | 1 << SYN_SENT
            request = struct.pack("=4BI48x", family, socket.IPPROTO_TCP, 1 << (TCP_INFO - 1), 0, states)
            for message in _dump(request):
                inode, connection = _parse(message)
                if inode:
                    known[inode] = connection
    return known


def other_end(inode: int) -> int:
    """Return the inode of the other end of a Unix socket; 0 if the kernel does not know it."""
    with contextlib.suppress(OSError, AttributeError, struct.error):
        for message in _dump(struct.pack("=4B5I", socket.AF_UNIX, 0, 0, 0, ALL_STATES, 0, SHOW_PEER, 0, 0)):
            if UNIX_MESSAGE.unpack_from(message)[0] == inode:
                attributes = dict(_attributes(message[UNIX_MESSAGE.size :]))
                return int.from_bytes(attributes.get(PEER, b""), sys.byteorder)
    return 0


def _dump(request: bytes) -> Iterator[bytes]:
    """Yield the kernel's messages about the sockets that a request describes; raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
        link.settimeout(TIMEOUT_S)
        link.send(HEADER.pack(HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + request)
        while True:
            data = link.recv(READ_BYTES)
            while len(data) >= HEADER.size:
                length, kind, *_ = HEADER.unpack_from(data)
                if kind in (DONE, ERROR) or length < HEADER.size:
                    return
                yield data[HEADER.size : length]
                data = data[(length + 3) & ~3 :]


def _parse(message: bytes) -> tuple[int, Connection]:
    """Return the inode of a TCP socket and its connection, from a message of the kernel."""
    family, state, _, _, port, remote_port, local, remote, *_, inode = TCP_MESSAGE.unpack_from(message)
    info = dict(_attributes(message[TCP_MESSAGE.size :])).get(TCP_INFO, b"")
    ends = _address(family, local, port), _address(family, remote, remote_port)
    if len(info) < RECEIVED_BYTES_AT + 8:  # before Linux 4.2
        return inode, Connection(*ends, 0, state == SYN_SENT)
    acked, received = struct.unpack_from("=QQ", info, ACKED_BYTES_AT)
    (sent_ms,), (received_ms,) = (
        struct.unpack_from("=I", info, at) for at in (LAST_SENT_AT, LAST_RECEIVED_AT)
    )
    has_asked = acked > 1  # the first acknowledged byte belongs to opening the connection
    # If both times are equal, it is not known which end sent the last message.
    waits = state == SYN_SENT or (has_asked and (not received or sent_ms <= received_ms))
    return inode, Connection(*ends, acked + received, waits)


def _attributes(rest: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the value of each attribute at the end of a message."""
    while len(rest) >= ATTRIBUTE.size:
        length, kind = ATTRIBUTE.unpack_from(rest)
        if length < ATTRIBUTE.size:
            return
        yield kind, rest[ATTRIBUTE.size : length]
        rest = rest[(length + 3) & ~3 :]


def _address(family: int, address: bytes, port: bytes) -> str:
    """Return an address such as 10.1.2.3:8000 or [fe80::1]:8000."""
    number = int.from_bytes(port, "big")
    if family == socket.AF_INET:
        return f"{ipaddress.IPv4Address(address[:4])}:{number}"
    ipv6 = ipaddress.IPv6Address(address)
    return f"{ipv6.ipv4_mapped}:{number}" if ipv6.ipv4_mapped else f"[{ipv6}]:{number}"
