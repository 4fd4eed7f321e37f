"""Whose process is at the other end of a connection over loopback, by Linux's table of TCP sockets.

Only a socket that is open at its owner's counts: the kernel gives one that was closed to root. Elsewhere nothing is known, and a token is
required.
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
"""Where a client's socket may be, by the server's version of IP: one of version 6 also reaches version 4."""
ESTABLISHED, CLOSE_WAIT = "01", "08"


def is_own(client: Address, server: Address) -> bool:
    """Whether this process's user holds the client's end. False where that is not known."""
    if sys.platform != "linux":
        return False
    return owner(client, server, lambda name: Path("/proc/self/net", name).read_text()) == os.geteuid()


def owner(client: Address, server: Address, read: Callable[[str], str]) -> int | None:
    """The user of the client's socket; None: unknown. `read`: a table of /proc/net by its name."""
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
    """Own and other end, and the user, of each connection that a process holds."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] in (ESTABLISHED, CLOSE_WAIT) and fields[9] != "0":
            yield (fields[1], fields[2]), int(fields[7])


def _in_table(end: Address, name: str) -> str:
    """As the kernel prints it: words of 32 bits in the machine's order. Raises ValueError for what is no address."""
    address = ip_address(end[0])
    if name == "tcp6" and isinstance(address, IPv4Address):
        address = IPv6Address(f"::ffff:{address}")
    words = struct.unpack(f"={len(address.packed) // 4}I", address.packed)
    return "".join(f"{word:08X}" for word in words) + f":{end[1]:04X}"
