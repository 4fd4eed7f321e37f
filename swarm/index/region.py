"""The region of a key: where its adverts are stored besides the nearest holders. Pure.

Identities cost nothing, so an adversary can have the nearest ones to any key. It cannot thin out the honest nodes around the key: a region
wide enough for a dozen nodes, by the density of the whole network, has about so many honest ones however many others are in it. Adverts go
to the nodes of its inner half. Where nodes lie much denser than in the network, or thinner, others may be hidden: then the region is swept,
adverts go to nodes from all its parts, a few from each, and readers ask there too (arXiv 2505.01139).

    key ├──┼──┼──┼──┼──┼──┼──┼──┤ radius       slices of XOR distance: those packed next to the key share one
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from swarm.net.addresses import Contact
from swarm.net.identity import distance

HOLDERS: Final = 8
"""Nodes that have an advert: the nearest ones, and all in the part of the region where this many lie on average."""
NEAR: Final = 2 * HOLDERS
"""Nearest nodes that are looked up, and asked by readers."""
EXPECTED: Final = 16
"""Nodes of a region without an attack, on average."""
STORED: Final = 24
"""Nodes on average of the region that a publisher uses once it has swept it: readers may take the network to be smaller than it does."""
DENSE: Final = ((2.0, HOLDERS), (6.0, NEAR))
"""Nodes that are expected within a distance, and how many there an adversary must have put there."""
THIN: Final = 8
"""Fewer nodes than this in a region, or a stretch without nodes where this many are expected: others may be hidden."""
SLICES: Final = 16
OF_SLICE: Final = 4
"""Nodes of one slice that are used."""
PARTS: Final = ((0.75, 1.0), (0.5, 0.75), (0.25, 0.5), (0.125, 0.25))
"""Shares of the radius from each of which a sweep looks up one point: a dozen nodes lie there, and four nearer to the key."""
SPACE: Final = 2**256


def nodes_by(distances: Sequence[int]) -> float:
    """About how many nodes there are, by the distances of the nearest ones to a random point."""
    return max(len(distances) - 1, 1) * SPACE / max(distances)


def dense(distances: Iterable[int], nodes: float) -> bool:
    """Whether the nearest to a key lie too close together for a network of so many nodes."""
    places = [apart * nodes / SPACE for apart in distances]
    return any(sum(place < expected for place in places) >= count for expected, count in DENSE)


def thin(distances: Iterable[int], nodes: float) -> bool:
    """Whether so few nodes lie in a key's region, or so long a stretch of it is empty, that others may be hidden."""
    inside = sorted(place for apart in distances if (place := apart * nodes / SPACE) < EXPECTED)
    gaps = [after - before for before, after in itertools.pairwise((0.0, *inside, EXPECTED))]
    return len(inside) < THIN or max(gaps) >= THIN


def radius_of(nodes: float, expected: int = EXPECTED) -> int:
    """XOR distance within which a key's region lies."""
    return min(SPACE, int(SPACE * expected / max(nodes, 1.0)))


def points(key: bytes, radius: int, rng: random.Random) -> list[bytes]:
    """Random points in the parts of the region, which nobody can foresee."""
    origin = int.from_bytes(key, "big")
    offsets = [rng.randrange(int(low * radius), int(high * radius)) for low, high in PARTS]
    return [(origin ^ offset).to_bytes(32, "big") for offset in offsets]


def members(key: bytes, radius: int, contacts: Iterable[Contact], salt: bytes) -> list[Contact]:
    """Up to `OF_SLICE` of `contacts` from each slice of the region, in an order of our own (`salt`), for which nobody can grind ids."""
    slices: defaultdict[int, list[Contact]] = defaultdict(list)
    for contact in contacts:
        apart = distance(contact.peer, key)
        if apart < radius:
            slices[apart * SLICES // radius].append(contact)

    def order(contact: Contact) -> bytes:
        return hashlib.blake2b(contact.peer.encode(), digest_size=8, key=salt).digest()

    return [contact for some in slices.values() for contact in sorted(some, key=order)[:OF_SLICE]]
