"""The addresses of this machine's network interfaces, read again only after the system reports a change.

Linux reports changes on a netlink socket. On other systems, and where no such socket can be had, every call reads the addresses. A reading
is kept for a minute at most, since a system may provide such a socket and never report anything on it.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import psutil

CHANGES: Final = 0x1 | 0x10 | 0x100
"""Groups of netlink(7): interfaces, their IPv4 addresses, their IPv6 addresses."""
READ_BYTES: Final = 1 << 16
KEEP_S: Final = 60.0
"""How long addresses are kept while no change is reported."""


class InterfaceAddress(NamedTuple):
    """One address of one interface."""

    family: int
    """`socket.AF_INET`, `socket.AF_INET6`, or the link's own."""
    address: str
    """Without the IPv6 zone."""
    netmask: str | None
    up: bool
    """Whether the interface is up."""


def read_addresses() -> tuple[InterfaceAddress, ...]:
    """The addresses that the system has now; takes a millisecond. Raises OSError."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return tuple(
        InterfaceAddress(entry.family, entry.address.partition("%")[0], entry.netmask, name in up)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
    )


def open_news() -> socket.socket | None:
    """A socket that becomes readable when an interface or an address is added, removed or changed; None if the system has none."""
    if sys.platform != "linux":
        return None
    try:
        news = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
    except OSError:
        return None
    try:
        news.bind((0, CHANGES))
    except OSError:
        news.close()
        return None
    return news


class Interfaces:
    """Caches the addresses of a machine's interfaces. Thread-safe."""

    def __init__(
        self,
        read: Callable[[], tuple[InterfaceAddress, ...]] = read_addresses,
        news: Callable[[], socket.socket | None] = open_news,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._open, self._clock = read, news, clock
        self._lock = threading.Lock()
        self._news: socket.socket | None = None
        self._known: tuple[InterfaceAddress, ...] | None = None
        self._read_at = 0.0

    def addresses(self) -> tuple[InterfaceAddress, ...]:
        """The current addresses. Raises OSError if they cannot be read, as with too many open files."""
        with self._lock:
            now = self._clock()
            if self._news is None:
                self._news, self._known = self._open(), None
            # checked before reading: a change during the read is reported at the next call
            if (self._news is not None and _has_some(self._news)) or now >= self._read_at + KEEP_S:
                self._known = None
            if self._known is None:
                self._known, self._read_at = self._read(), now
            return self._known


def _has_some(news: socket.socket) -> bool:
    """Whether changes were reported since the last call; consumes the reports."""
    some = False
    while True:
        try:
            news.recv(READ_BYTES)
        except BlockingIOError:
            return some
        except OSError:  # more was said than it could hold
            return True
        some = True


INTERFACES: Final = Interfaces()
"""The interfaces of this machine."""
