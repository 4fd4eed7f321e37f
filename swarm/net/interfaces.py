"""The addresses of this machine's network interfaces, read again only once the system says that something changed.

Linux says so to whoever has a netlink socket. Elsewhere, and where there is none to be had, every look reads them. What was read counts
for a minute in any case: a system may give out such a socket and say nothing there.
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
"""The longest that addresses count without news."""


class InterfaceAddress(NamedTuple):
    """One address of one interface."""

    family: int
    """`socket.AF_INET`, `socket.AF_INET6`, or the link's own."""
    address: str
    """Without the zone of IPv6."""
    netmask: str | None
    up: bool
    """Whether its interface is."""


def read_addresses() -> tuple[InterfaceAddress, ...]:
    """As the system has them now: a millisecond. Raises OSError."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return tuple(
        InterfaceAddress(entry.family, entry.address.partition("%")[0], entry.netmask, name in up)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
    )


def open_news() -> socket.socket | None:
    """Becomes readable when an interface or an address comes, goes or changes; None where the system does not tell."""
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
    """What they have. Thread-safe."""

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
        """As of now. Raises OSError if the system does not tell, as with too many open files."""
        with self._lock:
            now = self._clock()
            if self._news is None:
                self._news, self._known = self._open(), None
            # before they are read: what changes meanwhile is news for the next look
            if (self._news is not None and _has_some(self._news)) or now >= self._read_at + KEEP_S:
                self._known = None
            if self._known is None:
                self._known, self._read_at = self._read(), now
            return self._known


def _has_some(news: socket.socket) -> bool:
    """Whether something was said since the last time; forgets it."""
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
"""This machine's."""
