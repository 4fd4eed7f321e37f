"""Which addresses named by others this node dials. Pure: time, interfaces and names are arguments.

Adverts, contacts and neighbours are claims of strangers, and an address in them may be a victim's. The rules:

    an address on this machine or on a LAN    is dialled if this node is on it too, or if an owner's address has led there before
    an IP address that does not answer        gets a few dials, then ever fewer, whoever names it under whatever key;
                                              likewise one port of it

Addresses from the owner (gates, peers on the owner's disk) are always dialled. A door (an IP address and port) that has answered before has
a separate allowance; otherwise anybody could make a node shunned by naming its address.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from swarm.net.addresses import Address, PeerId, parse_tcp
from swarm.net.interfaces import INTERFACES

PUBLIC: Final = (8, 12.0, 600.0)
"""Failed dials at once to one public address (IPv6 /64); then seconds until the next one, doubled by each failure; and their limit."""
PRIVATE: Final = (64, 1.0, 10.0)
PUNCHED: Final = (240, 1.0, 10.0)
"""As `PUBLIC`, for hole punching, which tries several times a second until the NATs let it through."""
DOOR: Final = (8, 2.0, 30.0)
"""As `PUBLIC`, for one IP address and port, including loopback: whatever peer ids are named there, one process listens."""
REMEMBERED: Final = 4_096
GOOD_FAILS: Final = 3
"""How often a dial to a door that answered before may fail until the door is treated like any other."""
LOOK_AT_INTERFACES_S: Final = 10.0

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


NOT_DIALLED: Final = "not dialled: "
"""Precedes, in an error, the reason why the rules forbid an address."""


@dataclass(slots=True)
class _Purse:
    """The remaining budget of one target."""

    left: float
    when: float
    every_s: float


@dataclass
class DialBudget:
    """How often a target that does not answer is dialled: `burst` times, then once in `every_s`, which grows up to `most_s`."""

    burst: int
    every_s: float
    most_s: float
    remembered: int = REMEMBERED
    _purses: OrderedDict[str, _Purse] = field(default_factory=OrderedDict)

    def take(self, now: float, target: str) -> bool:
        """Whether to dial the target now. If so, this takes one dial from its budget until the target has answered."""
        purse = self._purses.pop(target, None) or _Purse(self.burst, now, self.every_s)
        purse.left, purse.when = purse.left + (now - purse.when) / purse.every_s, now
        if purse.left >= self.burst:
            purse.left, purse.every_s = self.burst, self.every_s
        self._purses[target] = purse
        if len(self._purses) > self.remembered:
            self._purses.popitem(last=False)
        if purse.left < 1:
            return False
        purse.left -= 1
        if purse.left < 1:
            purse.every_s = min(2 * purse.every_s, self.most_s)
        return True

    def answered(self, target: str) -> None:
        """Give back the dial that `take` took, and reset the pace."""
        purse = self._purses.get(target)
        if purse is not None:
            purse.left, purse.every_s = min(purse.left + 1, self.burst), self.every_s


@dataclass
class DialRules:
    """The rules of one node."""

    listening: Callable[[], Iterable[Address]] = tuple
    """The addresses at which this node knows that it can be dialled."""
    given: Callable[[Address], bool] = lambda address: False
    """Whether the owner gave an address."""
    networks: Callable[[], Collection[IpNetwork]] = lambda: own_ip_networks()
    """The networks of this machine."""
    _networks: Collection[IpNetwork] = ()
    _look_at: float = -LOOK_AT_INTERFACES_S
    _public: DialBudget = field(default_factory=lambda: DialBudget(*PUBLIC))
    _private: DialBudget = field(default_factory=lambda: DialBudget(*PRIVATE))
    _punched: DialBudget = field(default_factory=lambda: DialBudget(*PUNCHED))
    _doors: DialBudget = field(default_factory=lambda: DialBudget(*DOOR))
    _good: OrderedDict[tuple[PeerId, Address], int] = field(default_factory=OrderedDict)
    """Door that answered → how many dials have failed since."""
    _met_here: bool = False
    _met_beyond: bool = False
    _met_inside: bool = False

    def why_not(self, now: float, peer: PeerId, address: Address, as_given: Address = "") -> str:
        """Why not to dial an address, in words; empty: dial it, which counts. `as_given`: the address before its name was resolved."""
        ip = _ip(address)
        if ip is None:
            return "not an IP address"
        if self.given(as_given or address):
            return ""
        if ip.is_loopback and not self._here():
            return "it is an address of this machine itself"
        if not (ip.is_loopback or ip.is_global or self._met_inside or self._on_own_network(now, ip)):
            return "it is an address of another private network"
        good = self._good.get((peer, address), GOOD_FAILS)
        if good < GOOD_FAILS:
            self._good[peer, address] = good + 1
            return ""
        open_here = self._doors.take(now, _door(address))
        if open_here and not ip.is_loopback:
            open_here = (self._public if ip.is_global else self._private).take(now, target_of(ip))
        return "" if open_here else "too many recent dials there failed"

    def may_punch(self, now: float, address: Address) -> bool:
        """Whether one more hole-punching attempt may go to the address. The hole puncher decides which addresses to try at all."""
        ip = _ip(address)
        return ip is not None and self._punched.take(now, target_of(ip))

    def answered(self, now: float, peer: PeerId, address: Address) -> None:
        """Record that the peer answered at the address and proved its key."""
        ip = _ip(address)
        if ip is None:
            return
        if ip.is_loopback:
            self._met_here = True
        else:
            self._met_beyond = True
            if not ip.is_global and not self._on_own_network(now, ip):
                self._met_inside = True
        self._good.pop((peer, address), None)
        self._good[peer, address] = 0
        if len(self._good) > REMEMBERED:
            self._good.popitem(last=False)
        for budget in (self._public, self._private, self._punched):
            budget.answered(target_of(ip))
        self._doors.answered(_door(address))

    def _here(self) -> bool:
        """Whether other nodes on this machine are dialled by loopback."""
        if self._met_here:
            return True
        listening = [ip for address in self.listening() if (ip := _ip(address)) is not None]
        if any(ip.is_loopback for ip in listening):
            return True
        return not listening and not self._met_beyond

    def _on_own_network(self, now: float, ip: Ip) -> bool:
        if now >= self._look_at + LOOK_AT_INTERFACES_S:
            self._look_at, self._networks = now, self.networks()
        return any(ip in network for network in self._networks)


def target_of(ip: Ip) -> str:
    """The unit that counts as one victim: an IPv4 address, or an IPv6 /64."""
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


def own_ip_networks() -> Sequence[IpNetwork]:
    """The networks of this machine, without loopback and link-local."""
    matches: list[IpNetwork] = []
    for entry in INTERFACES.addresses():
        if entry.family not in {socket.AF_INET, socket.AF_INET6} or not entry.netmask:
            continue
        ip = ipaddress.ip_address(entry.address)
        if not ip.is_loopback and not ip.is_link_local:
            width = ipaddress.ip_address(entry.netmask)
            matches.append(ipaddress.ip_network((ip, int(width).bit_count()), strict=False))
    return tuple(dict.fromkeys(matches))


def _ip(address: Address) -> Ip | None:
    where = parse_tcp(address)
    return where.ip if where is not None else None


def _door(address: Address) -> str:
    """The IP address and port."""
    where = parse_tcp(address)
    return f"{where.host} {where.port}" if where is not None else ""
