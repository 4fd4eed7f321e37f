"""The region of a key: where its adverts are stored besides the nearest holders. Pure.

Identities cost nothing, so an adversary can have the nearest ones to any key. It cannot thin out the honest nodes around the key: a region
wide enough for a dozen nodes, by the density of the whole network, has about so many honest ones however many others are in it. Adverts go
to nodes from all parts of the region, a few from each, and readers ask there when the nearest holders have too little (arXiv 2505.01139).

    key ├──┼──┼──┼──┼──┼──┼──┼──┤ radius       slices of XOR distance: those packed next to the key share one
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from swarm.net.addresses import Contact
from swarm.net.identity import distance

EXPECTED: Final = 16
"""Nodes of a region without an attack, on average."""
SLICES: Final = 16
OF_SLICE: Final = 4
"""Nodes of one slice that are used."""
FEWEST: Final = 6
"""Contacts of a bucket from which it says how dense the network is."""
SPACE: Final = 2**256


def nodes_of(own_key: bytes, contacts: Iterable[Contact], full: int) -> float:
    """About how many nodes there are, by the buckets of a routing table that have some contacts and fewer than `full`.

    The median of the buckets: a crowd of identities around one key lies in one or two of them.
    """
    buckets = Counter(distance(contact.peer, own_key).bit_length() for contact in contacts)
    total = sum(buckets.values()) + 1
    estimates = [
        count * SPACE / 2 ** (bits - 1) for bits, count in buckets.items() if FEWEST <= count < full and bits
    ]
    return max(statistics.median(estimates), total / 2) if estimates else float(total)


def radius_of(nodes: float) -> int:
    """XOR distance within which a key's region lies."""
    return min(SPACE, int(SPACE * EXPECTED / max(nodes, 1.0)))


def members(key: bytes, radius: int, contacts: Iterable[Contact], salt: bytes) -> list[Contact]:
    """Up to `OF_SLICE` contacts from each slice of the region, in an order of one's own (`salt`), which nobody can grind for."""
    slices: defaultdict[int, list[Contact]] = defaultdict(list)
    for contact in contacts:
        apart = distance(contact.peer, key)
        if apart < radius:
            slices[apart * SLICES // radius].append(contact)

    def order(contact: Contact) -> bytes:
        return hashlib.blake2b(contact.peer.encode(), digest_size=8, key=salt).digest()

    return [contact for some in slices.values() for contact in sorted(some, key=order)[:OF_SLICE]]
