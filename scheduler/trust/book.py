"""Whom a submitter trusts, as plain values. If there are several reasons to trust a key, the strongest counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol

from protocol.values.trust import Trust, TrustKind
from swarm.net.addresses import Address, public_network

_network = lru_cache(maxsize=8_192)(public_network)


class PoolName(NamedTuple):
    """A pool, by its name and its key."""

    name: str
    id: str


@dataclass(frozen=True, slots=True)
class TrustBook:
    """The keys that a submitter trusts. A key in none of these sets belongs to a stranger, whatever it claims."""

    root: str
    """Peer id of the submitter, who answers for its own workers."""
    own: frozenset[str] = frozenset()
    """Workers of its home and of the home pool."""
    pools: Mapping[str, PoolName] = field(default_factory=dict)
    """Workers of other pools, each with its pool."""
    listed: frozenset[str] = frozenset()
    """Keys that the submitter listed."""
    refuted: frozenset[str] = frozenset()
    """Strangers' keys that have lied to it."""
    confirmed: Mapping[str, int] = field(default_factory=dict)
    """Number of confirmed results by stranger's key."""
    home: str = ""
    """The worker of the submitter's home, if it has one. It runs on this machine, so no other key knows its device better."""
    signed: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """Device id → pool → the keys that the pool lists with that id; see `scheduler.trust.identities`."""
    pinned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Device id → the keys to which it belongs: the key used first, and those that the user bound to it."""

    def knows(self, peer: str) -> bool:
        """Whether the key is not a stranger's."""
        return peer in self.own or peer in self.pools or peer in self.listed

    def trust_of(self, peer: str, addresses: tuple[Address, ...] = ()) -> Trust:
        """Why this worker is trusted. `addresses`: a stranger's addresses; strangers in one public network count as one."""
        if peer in self.own:
            return Trust(TrustKind.OWN, root=self.root)
        pool = self.pools.get(peer)
        if pool is not None:
            return Trust(TrustKind.POOL, pool.name, pool.id)
        if peer in self.listed:
            return Trust(TrustKind.LISTED, root=peer)
        return Trust(
            TrustKind.STRANGER,
            root=_network(addresses) or peer,
            refuted=peer in self.refuted,
            confirmed=self.confirmed.get(peer, 0),
        )

    def peers(self) -> tuple[str, ...]:
        """All trusted keys, the most trusted first."""
        return tuple(dict.fromkeys((*sorted(self.own), *sorted(self.pools), *sorted(self.listed))))


class TrustSource(Protocol):
    """The trust of a running scheduler."""

    def book(self) -> TrustBook:
        """The current book; the same object while nothing has changed. It may be called often."""
        ...
