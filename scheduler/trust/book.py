"""Whom a submitter trusts, as plain values: of several reasons to trust a key the strongest counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol

from protocol.values.trust import Trust, TrustKind
from swarm.net.addresses import Address, public_network

_network = lru_cache(maxsize=8_192)(public_network)


class PoolName(NamedTuple):
    """A pool, for people and by its key."""

    name: str
    id: str


@dataclass(frozen=True, slots=True)
class TrustBook:
    """The keys that a submitter trusts. A key in none of these is a stranger's, whatever it says of itself."""

    root: str
    """Peer id of the submitter, who answers for its own workers."""
    own: frozenset[str] = frozenset()
    """Workers of its home and of the home's own pool."""
    pools: Mapping[str, PoolName] = field(default_factory=dict)
    """Workers of other pools, each with its pool."""
    listed: frozenset[str] = frozenset()
    """Keys that it listed."""
    refuted: frozenset[str] = frozenset()
    """Strangers' keys that have lied to it."""
    confirmed: Mapping[str, int] = field(default_factory=dict)
    """Results of strangers' keys that it found right."""
    home: str = ""
    """The worker of the submitter's home, if it has one: on this machine, so that nobody knows its device better."""
    signed: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """Device id → pool → the keys that it lists with that id; see `scheduler.trust.identities`."""
    pinned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Device id → the keys that it belongs to: the one that was used first, and those that the user bound to it."""

    def knows(self, peer: str) -> bool:
        """Whether the key is no stranger's."""
        return peer in self.own or peer in self.pools or peer in self.listed

    def trust_of(self, peer: str, addresses: tuple[Address, ...] = ()) -> Trust:
        """Why this worker is believed. `addresses`: where a stranger is; strangers of one public network count as one."""
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
        """All trusted keys, those believed most first."""
        return tuple(dict.fromkeys((*sorted(self.own), *sorted(self.pools), *sorted(self.listed))))


class TrustSource(Protocol):
    """Where a running scheduler has its trust from."""

    def book(self) -> TrustBook:
        """As it is now; the same object as before while nothing changed. To be called often."""
        ...
