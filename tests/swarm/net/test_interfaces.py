"""Interfaces are read again when the system reports a change, and at each look where the system reports nothing."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Callable

import pytest

from swarm.net.interfaces import KEEP_S, InterfaceAddress, Interfaces, open_news, read_addresses


class Machine:
    """A machine whose only address changes with each read, so that reads can be counted."""

    def __init__(self) -> None:
        self.reads = 0
        self.broken = False

    def read(self) -> tuple[InterfaceAddress, ...]:
        if self.broken:
            raise OSError(errno.EMFILE, "Too many open files")
        self.reads += 1
        return (InterfaceAddress(socket.AF_INET, f"192.168.1.{self.reads}", "255.255.255.0", True),)


def told() -> tuple[socket.socket, Callable[[], socket.socket]]:
    """The socket end at which the system reports changes, and a function that opens the other end."""
    system, news = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    news.setblocking(False)
    return system, lambda: news


def test_they_are_read_again_only_after_a_change() -> None:
    machine, (system, news) = Machine(), told()
    interfaces = Interfaces(machine.read, news)
    first = interfaces.addresses()
    assert interfaces.addresses() == first
    assert machine.reads == 1
    system.send(b"one")
    system.send(b"two")
    assert interfaces.addresses() != first
    assert (interfaces.addresses()[0].address, machine.reads) == ("192.168.1.2", 2)


def test_what_changes_while_they_are_read_is_found_by_the_next_look() -> None:
    machine, (system, news) = Machine(), told()

    def read() -> tuple[InterfaceAddress, ...]:
        found = machine.read()
        if machine.reads == 1:
            system.send(b"meanwhile")
        return found

    interfaces = Interfaces(read, news)
    interfaces.addresses()
    assert interfaces.addresses()[0].address == "192.168.1.2"


def test_where_the_system_says_nothing_each_look_reads_them() -> None:
    machine = Machine()
    interfaces = Interfaces(machine.read, lambda: None)
    assert [interfaces.addresses()[0].address for _ in range(3)] == [f"192.168.1.{n}" for n in (1, 2, 3)]


def test_a_read_that_fails_is_made_again_at_the_next_look() -> None:
    machine, (system, news) = Machine(), told()
    interfaces = Interfaces(machine.read, news)
    interfaces.addresses()
    system.send(b"one")
    machine.broken = True
    for _ in range(2):
        with pytest.raises(OSError, match="open files"):
            interfaces.addresses()
    machine.broken = False
    assert interfaces.addresses()[0].address == "192.168.1.2"


def test_loopback_is_among_those_of_this_machine_and_linux_tells_of_changes() -> None:
    found = {entry.address for entry in read_addresses() if entry.up}
    assert "127.0.0.1" in found
    news = open_news()
    if sys.platform != "linux":
        assert news is None
    elif news is not None:  # a container may forbid it
        with news:
            assert news.family == socket.AF_NETLINK


def test_what_has_changed_before_the_system_could_tell_is_found_once_it_can() -> None:
    machine, (system, news) = Machine(), told()
    opened: list[socket.socket | None] = [None]
    interfaces = Interfaces(machine.read, lambda: opened[-1])
    interfaces.addresses()
    opened.append(news())
    assert interfaces.addresses()[0].address == "192.168.1.2"
    assert interfaces.addresses()[0].address == "192.168.1.2"
    system.close()


def test_a_system_that_never_tells_is_asked_again_in_time() -> None:
    machine, (system, news), now = Machine(), told(), [1000.0]
    interfaces = Interfaces(machine.read, news, clock=lambda: now[0])
    interfaces.addresses()
    now[0] += KEEP_S - 1
    assert interfaces.addresses()[0].address == "192.168.1.1"
    now[0] += 1
    assert interfaces.addresses()[0].address == "192.168.1.2"
    system.close()
