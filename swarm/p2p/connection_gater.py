"""Who may connect with this node: how many that have not proved who they are, how many from one network, how fast. Pure.

    a connection comes in ─▶ `arrive`: its network's pace and share ─▶ Noise ─▶ `stays`: is there room for it?

Of those that have not proved who they are there are only so many: the one that has been at it for longest, of the address or network
that has most of them, makes room for the next. A flood of half-open connections so gets in its own way, and an honest peer, whose proof
takes a few round trips, in nobody's.
The last places are for peers that the node's owner knows: a flood of fresh keys cannot lock those out. Loopback has no share and no
pace: what comes from there is this machine, or a proxy on it that speaks for everybody.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from swarm.net.addresses import PeerId, network_of

MAX_PACED: Final = 8_192
"""Networks whose pace is remembered; the one that was seen least lately makes room."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """A network is an IPv4 /24 or an IPv6 /48."""

    pending: int = 512
    """Inbound connections that have not proved who they are."""
    pending_per_ip: int = 128
    per_network: int = 512
    """Inbound connections from one network, proved or not."""
    burst: int = 256
    """New ones of a network at once; `per_s` more each second."""
    per_s: float = 20.0
    strangers: int = 960
    """Connections in all above which only peers that are known here are kept; 1,024 is where libp2p takes no more at all."""
    all: int = 2_048
    """Inbound connections, proved or not: as many as there are open files for."""


@dataclass(slots=True, eq=False)
class InboundConnection:
    """An inbound connection, from its first packet on."""

    ip: str
    network: str
    """Empty for loopback."""
    proved: bool = False
    cut: Callable[[], object] = lambda: None
    """Ends it."""


def network_or_home(ip: str) -> str:
    """The network of an address, whatever it wears; empty for loopback, where no network is."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return "" if address.is_loopback else network_of(ip)


@dataclass
class ConnectionGater:
    """Counts inbound connections. `knows`: whether a peer is one for whom the last places are kept; `sharing`: the network of an
    address, whose connections have one share and one pace; empty for one that has none."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    knows: Callable[[PeerId], bool] = lambda peer: False
    refused: Counter[str] = field(default_factory=Counter)
    """Connections that were closed at once, or unproven, by reason."""
    sharing: Callable[[str], str] = network_or_home
    _unproved: dict[InboundConnection, None] = field(default_factory=dict)
    """The one that came first stands first."""
    _pending: Counter[str] = field(default_factory=Counter)
    _held: Counter[str] = field(default_factory=Counter)
    _pace: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def arrive(self, ip: str, now: float) -> InboundConnection | None:
        """A connection from that address has come in; None: it is to be closed. What is given must be ended by `leave`."""
        limits, arrival = self.limits, InboundConnection(ip, self.sharing(ip))
        network = arrival.network
        why = ""
        if self._held.total() >= limits.all:
            why = "files"
        elif network and self._held[network] >= limits.per_network:
            why = "network-share"
        elif network and not self._in_pace(network, now):
            why = "too-fast"
        if why:
            self.refused[why] += 1
            return None
        self._make_room(ip)
        self._unproved[arrival] = None
        self._pending[ip] += 1
        self._held[network] += 1
        return arrival

    def _make_room(self, ip: str) -> None:
        """For one more that has proved nothing yet."""
        if self._pending[ip] >= self.limits.pending_per_ip:
            gone = next(one for one in self._unproved if one.ip == ip)
        elif len(self._unproved) >= self.limits.pending:
            crowds = Counter(one.network or one.ip for one in self._unproved)
            crowd = max(crowds, key=crowds.__getitem__)
            gone = next(one for one in self._unproved if (one.network or one.ip) == crowd)
        else:
            return
        self.refused["pending"] += 1
        self._prove(gone)
        gone.cut()

    def stays(self, arrival: InboundConnection, peer: PeerId, connections: int) -> bool:
        """It has proved to be `peer`; gives whether it is kept. `connections`: of this node, all together."""
        self._prove(arrival)
        if connections > self.limits.strangers and not self.knows(peer):
            self.refused["full"] += 1
            return False
        return True

    def leave(self, arrival: InboundConnection) -> None:
        """It has ended."""
        self._prove(arrival)
        _less(self._held, arrival.network)

    def _prove(self, arrival: InboundConnection) -> None:
        if not arrival.proved:
            arrival.proved = True
            del self._unproved[arrival]
            _less(self._pending, arrival.ip)

    def _in_pace(self, network: str, now: float) -> bool:
        left, at = self._pace.pop(network, (float(self.limits.burst), now))
        left = min(float(self.limits.burst), left + max(0.0, now - at) * self.limits.per_s)
        granted = left >= 1.0
        self._pace[network] = (left - 1.0 if granted else left, now)
        if len(self._pace) > MAX_PACED:
            self._pace.popitem(last=False)
        return granted


def _less(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
