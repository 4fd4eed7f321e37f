"""Limits of inbound connections: how many are unauthenticated, how many come from one network, how fast they arrive. Pure.

    a connection comes in ─▶ `arrive`: its network's rate and share ─▶ Noise ─▶ `keep_authenticated`: the limit for strangers

When there are too many unauthenticated connections, the oldest one of the address or network with the most of them is closed. A flood of
half-open connections therefore displaces itself, and not an honest peer, which authenticates within a few round trips. At the limit for
strangers, the least useful connection makes room for the next (`connection_value`). The last connections are reserved for peers that the
node's owner knows, so that fresh keys cannot lock them out. Loopback has no share and no rate limit: it is this machine, or a proxy on it
that serves everybody.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from swarm.net.addresses import PeerId, network_of
from swarm.net.limits import ConnectionLimits, Pauses, RateLimit, decrement
from swarm.p2p.connection_value import ConnectionUse, ConnectionValue, least_useful
from swarm.p2p.handshakes import WORKED_WEIGHT

MAX_RATED: Final = 8_192
"""Networks whose rate is tracked; the least recently seen one goes first."""
AWAY_S: Final = (30.0, 900.0)
"""How long a key is refused at the limit after it was evicted unused: the first time, and at most."""
MAX_AWAY: Final = 8_192
MAX_CLOSED: Final = 2
"""Most connections closed for one newcomer: more than one if known peers have taken more than their room."""
LEAVING: Final = 16
"""How many connections one look at all connections marks as the next to leave."""
LEAVING_S: Final = 1.0
"""How long these marks are valid, for connections not used since."""


@dataclass(slots=True, eq=False)
class InboundConnection:
    """An inbound connection."""

    ip: str
    network: str
    """Empty for loopback."""
    authenticated: bool = False
    cut: Callable[[], object] = lambda: None
    """Closes the connection."""
    peer: PeerId = ""
    """Set once the connection has authenticated."""
    since: float = 0.0
    """When the connection authenticated."""
    carries: bool = False
    """The connection is one half of a circuit."""
    use: ConnectionUse = field(default_factory=ConnectionUse)


def network_or_home(ip: str) -> str:
    """The network of an address; empty if it is loopback."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return "" if address.is_loopback else network_of(ip)


@dataclass
class ConnectionGater:
    """Counts inbound connections. `knows`: whether the last connections are reserved for a peer; `sharing`: the network of an address,
    which has one share and one rate; empty if it has none."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    knows: Callable[[PeerId], bool] = lambda peer: False
    refused: Counter[str] = field(default_factory=Counter)
    """Refused connections, by reason."""
    evicted: int = 0
    """Connections closed to make room."""
    reserved: Callable[[PeerId], bool] = lambda peer: False
    """Whether a peer has a reservation here."""
    sharing: Callable[[str], str] = network_or_home
    away: Pauses = field(default_factory=lambda: Pauses(*AWAY_S, most=MAX_AWAY))
    """Keys whose connections were evicted unused."""
    _worked: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Addresses from which a connection was used, latest last."""
    _others: int = 0
    _unauthenticated: dict[InboundConnection, None] = field(default_factory=dict)
    """Oldest first."""
    _pending: Counter[str] = field(default_factory=Counter)
    _held: Counter[str] = field(default_factory=Counter)
    _carrying: Counter[str] = field(default_factory=Counter)
    """Data connections among `_held`, by public network."""
    _staying: dict[InboundConnection, None] = field(default_factory=dict)
    """Authenticated connections that are not about to be closed."""
    _next: deque[tuple[float, InboundConnection]] = field(default_factory=deque)
    """The next connections to leave, and when each was last used."""
    _looked_at: float = 0.0

    def __post_init__(self) -> None:
        self._rates = RateLimit(self.limits.burst, 1 / self.limits.per_s, most=MAX_RATED)

    def arrive(self, ip: str, now: float) -> InboundConnection | None:
        """Count a new connection; None: close it. The caller must pass the result to `leave`."""
        limits, arrival = self.limits, InboundConnection(ip, self.sharing(ip))
        network = arrival.network
        why = ""
        if self._held.total() >= limits.all:
            why = "files"
        elif network and self._held[network] - self._carrying[network] >= limits.per_network:
            why = "network-share"
        elif network and self._rates.wait(now, network):
            why = "too-fast"
        if why:
            self.refused[why] += 1
            return None
        self._make_room(ip)
        self._unauthenticated[arrival] = None
        self._pending[ip] += 1
        self._held[network] += 1
        return arrival

    def _make_room(self, ip: str) -> None:
        """Close an unauthenticated connection if one more from `ip` would exceed a limit."""
        if self._pending[ip] >= self.limits.pending_per_ip:
            gone = next(one for one in self._unauthenticated if one.ip == ip)
        elif len(self._unauthenticated) >= self.limits.pending:
            crowds = Counter(one.network or one.ip for one in self._unauthenticated)
            crowd = max(crowds, key=crowds.__getitem__)
            gone = next(one for one in self._unauthenticated if (one.network or one.ip) == crowd)
        else:
            return
        self.refused["pending"] += 1
        self._authenticate(gone)
        gone.cut()

    def keep_authenticated(
        self,
        arrival: InboundConnection,
        peer: PeerId,
        others: int,
        now: float,
        use: ConnectionUse | None = None,
    ) -> bool:
        """Record that the connection authenticated as `peer`; return whether to keep it. `others`: this node's connections that did not
        arrive here; `use`: kept up to date by the code that serves the connection."""
        self._authenticate(arrival)
        self._others = others
        arrival.peer, arrival.since, arrival.use = peer, now, use or arrival.use
        excess = len(self._staying) + 1 + others - self.limits.strangers
        closed = sum(self._evict(now) for _ in range(min(excess, MAX_CLOSED)))
        if excess > 0 and not closed and not self.knows(peer):
            self.refused["full"] += 1
            return False
        self._staying[arrival] = None
        return True

    def carry(self, arrival: InboundConnection) -> bool:
        """Record that the connection is a data connection of a circuit; return whether there is room. A circuit counts against its caller,
        so its halves count neither towards their networks' rates nor towards their shares of the other connections."""
        self._authenticate(arrival)
        network, limits = arrival.network, self.limits
        if self._carrying.total() >= limits.most_data_connections or (
            network and self._carrying[network] >= limits.per_network
        ):
            self.refused["circuits"] += 1
            return False
        if network:
            self._rates.give_back(network)
        arrival.carries = True
        self._carrying[network] += 1
        return True

    def welcome(self, peer: PeerId, now: float) -> bool:
        """Whether to continue with an inbound connection of this key: it was not evicted lately, or there is room."""
        full = len(self._staying) + self._others >= self.limits.strangers
        if full and self.away.pauses(peer, now) and not self.knows(peer):
            self.refused["too-soon"] += 1
            return False
        return True

    def weight(self, ip: str) -> float:
        """The weight of an address while its handshake waits for a turn."""
        return WORKED_WEIGHT if ip in self._worked else 1.0

    def _evict(self, now: float) -> bool:
        """Close a stranger's least useful connection; return whether there was one."""
        for fresh in (False, True):
            if fresh or now > self._looked_at + LEAVING_S:
                self._look(now)
            while self._next:
                used_at, gone = self._next.popleft()
                if gone in self._staying and gone.use.used_at == used_at and not self.knows(gone.peer):
                    del self._staying[gone]
                    self.evicted += 1
                    if self._value(gone).unused:
                        self.away.failed(gone.peer, now)
                    gone.cut()
                    return True
        return False

    def _look(self, now: float) -> None:
        by_value = {self._value(one): one for one in self._staying}
        self._looked_at = now
        self._next = deque(
            (value.used_at, by_value[value])
            for value in least_useful(by_value, now, self.knows, LEAVING, room=self.limits.strangers)
        )

    def _value(self, one: InboundConnection) -> ConnectionValue:
        return ConnectionValue(
            one.peer, one.network, one.since, one.use.used_at, one.use.marks, self.reserved(one.peer)
        )

    def leave(self, arrival: InboundConnection) -> None:
        """Stop counting a connection that ended."""
        self._authenticate(arrival)
        self._staying.pop(arrival, None)
        if arrival.peer and not self._value(arrival).unused:
            self.away.worked(arrival.peer)
            self._worked[arrival.ip] = None
            self._worked.move_to_end(arrival.ip)
            if len(self._worked) > MAX_RATED:
                self._worked.popitem(last=False)
        decrement(self._held, arrival.network)
        if arrival.carries:
            decrement(self._carrying, arrival.network)

    def _authenticate(self, arrival: InboundConnection) -> None:
        if not arrival.authenticated:
            arrival.authenticated = True
            del self._unauthenticated[arrival]
            decrement(self._pending, arrival.ip)
