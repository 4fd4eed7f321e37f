"""Finds the user whose process is at the other end of a loopback connection, from Linux's table of TCP sockets.

Only a socket that its owner still holds open counts, because the kernel attributes closed sockets to root. On other systems the user is
unknown, and a token is required.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

Address = tuple[str, int]
TABLES: Final = {4: ("tcp", "tcp6"), 6: ("tcp6",)}
"""The server's IP version → tables that may hold the client's socket. An IPv6 socket also reaches IPv4."""
ESTABLISHED, CLOSE_WAIT = "01", "08"


def is_own(client: Address, server: Address) -> bool:
    """Whether this process's user holds the client's end. False if that is unknown."""
    if sys.platform != "linux":
        return False
    return owner(client, server, lambda name: Path("/proc/self/net", name).read_text()) == os.geteuid()


def owner(client: Address, server: Address, read: Callable[[str], str]) -> int | None:
    """The user of the client's socket; None: unknown. `read`: returns a table of /proc/net by its name."""
    with suppress(ValueError):
        version = ip_address(client[0]).version
        for name in TABLES[version]:
            wanted = tuple(_in_table(end, name) for end in (client, server))
            with suppress(OSError):
                for ends, user in _open_sockets(read(name)):
                    if ends == wanted:
                        return user
    return None


def _open_sockets(table: str) -> Iterator[tuple[tuple[str, str], int]]:
    """((own end, other end), user) of each connection that a process holds."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] in (ESTABLISHED, CLOSE_WAIT) and fields[9] != "0":
            yield (fields[1], fields[2]), int(fields[7])


def _in_table(end: Address, name: str) -> str:
    """The address as the kernel prints it: 32-bit words in the machine's byte order. Raises ValueError for an invalid address."""
    address = ip_address(end[0])
    if name == "tcp6" and isinstance(address, IPv4Address):
        address = IPv6Address(f"::ffff:{address}")
    words = struct.unpack(f"={len(address.packed) // 4}I", address.packed)
    return "".join(f"{word:08X}" for word in words) + f":{end[1]:04X}"
