"""The region of a key: where its adverts are stored besides the nearest holders. Pure.

Identities cost nothing, so an adversary can have the nearest ones to any key. It cannot thin out the honest nodes around the key: a region
wide enough for a dozen nodes, by the density of the whole network, has about so many honest ones however many others are in it. Adverts go
to nodes from all parts of the region, a few from each, and readers ask there when the nearest holders have too little (arXiv 2505.01139).

    key ├──┼──┼──┼──┼──┼──┼──┼──┤ radius       slices of XOR distance: those packed next to the key share one
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from swarm.net.addresses import Contact
from swarm.net.identity import distance

EXPECTED: Final = 16
"""Nodes of a region without an attack, on average."""
STORED: Final = 24
"""Nodes on average of the region that a publisher uses once it has learned it: readers may take the network to be smaller than it does."""
SLICES: Final = 16
OF_SLICE: Final = 4
"""Nodes of one slice that are used."""
PARTS: Final = ((0.75, 1.0), (0.5, 0.75), (0.25, 0.5), (0.125, 0.25))
"""Shares of the radius from each of which a sweep looks up one point: a dozen nodes lie there, and four nearer to the key."""
SPACE: Final = 2**256


def nodes_by(distances: Sequence[int]) -> float:
    """About how many nodes there are, by the distances of the nearest ones to a random point."""
    return len(distances) * SPACE / max(distances)


def radius_of(nodes: float, expected: int = EXPECTED) -> int:
    """XOR distance within which a key's region lies."""
    return min(SPACE, int(SPACE * expected / max(nodes, 1.0)))


def points(key: bytes, radius: int, rng: random.Random) -> list[bytes]:
    """Random points in the parts of the region, which nobody can foresee."""
    origin = int.from_bytes(key, "big")
    offsets = [rng.randrange(int(low * radius), int(high * radius)) for low, high in PARTS]
    return [(origin ^ offset).to_bytes(32, "big") for offset in offsets]


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
