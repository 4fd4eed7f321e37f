"""The region of a key: where its adverts are stored in addition to the nearest holders. Pure.

Identities cost nothing, so an adversary can own the nearest nodes to any key. It cannot thin out the honest nodes around the key: a region
that holds a dozen nodes at the average density of the network has about a dozen honest ones, however many others join. Adverts go to the
nodes of the region's inner half. Where nodes are much denser or thinner than in the network, honest nodes may be hidden. Then the region is
swept, adverts go to a few nodes in each part of it, and readers ask there too (arXiv 2505.01139).

    key ├──┼──┼──┼──┼──┼──┼──┼──┤ radius       slices of XOR distance: nodes packed next to the key share one
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
"""Nodes that store an advert: the nearest ones, and all in the part of the region that holds this many on average."""
NEAR: Final = 2 * HOLDERS
"""Nearest nodes that a lookup finds, and that readers ask."""
EXPECTED: Final = 16
"""Average number of nodes in a region without an attack."""
STORED: Final = 24
"""Average number of nodes in a swept region of a publisher. Larger than `EXPECTED`, since readers may estimate a smaller network."""
DENSE: Final = ((2.0, HOLDERS), (6.0, NEAR))
"""Nodes expected within a distance, and how many nodes within it show that an adversary placed them."""
THIN: Final = 8
"""Others may be hidden if a region has fewer nodes than this, or a stretch without nodes where this many are expected."""
SLICES: Final = 16
OF_SLICE: Final = 4
"""Nodes used of one slice."""
PARTS: Final = ((0.75, 1.0), (0.5, 0.75), (0.25, 0.5), (0.125, 0.25))
"""Ranges of the radius in which a sweep looks up one point each: the outermost range holds a dozen nodes; four lie nearer to the key."""
SPACE: Final = 2**256


def nodes_by(distances: Sequence[int]) -> float:
    """About how many nodes there are, from the distances of the nearest ones to a random point."""
    return max(len(distances) - 1, 1) * SPACE / max(distances)


def dense(distances: Iterable[int], nodes: float) -> bool:
    """Whether the nodes nearest to a key are too close together for a network of `nodes` nodes."""
    places = [apart * nodes / SPACE for apart in distances]
    return any(sum(place < expected for place in places) >= count for expected, count in DENSE)


def thin(distances: Iterable[int], nodes: float) -> bool:
    """Whether others may be hidden: few nodes in a key's region, or a long empty stretch in it."""
    inside = sorted(place for apart in distances if (place := apart * nodes / SPACE) < EXPECTED)
    gaps = [after - before for before, after in itertools.pairwise((0.0, *inside, EXPECTED))]
    return len(inside) < THIN or max(gaps) >= THIN


def radius_of(nodes: float, expected: int = EXPECTED) -> int:
    """The XOR distance within which a key's region lies."""
    return min(SPACE, int(SPACE * expected / max(nodes, 1.0)))


def points(key: bytes, radius: int, rng: random.Random) -> list[bytes]:
    """Random, unpredictable points, one in each part of the region."""
    origin = int.from_bytes(key, "big")
    offsets = [rng.randrange(int(low * radius), int(high * radius)) for low, high in PARTS]
    return [(origin ^ offset).to_bytes(32, "big") for offset in offsets]


def members(key: bytes, radius: int, contacts: Iterable[Contact], salt: bytes) -> list[Contact]:
    """Up to `OF_SLICE` of `contacts` from each slice of the region, in a secret order (`salt`) for which nobody can grind ids."""
    slices: defaultdict[int, list[Contact]] = defaultdict(list)
    for contact in contacts:
        apart = distance(contact.peer, key)
        if apart < radius:
            slices[apart * SLICES // radius].append(contact)

    def order(contact: Contact) -> bytes:
        return hashlib.blake2b(contact.peer.encode(), digest_size=8, key=salt).digest()

    return [contact for some in slices.values() for contact in sorted(some, key=order)[:OF_SLICE]]
