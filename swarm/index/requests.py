"""What readers ask holders for: the clauses that every holder knows, and the shards below a split one. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from protocol.values.index_keys import shard_prefix
from protocol.values.requirement import Requirement
from protocol.wire.base import MAX_ELEMENTS, MAX_FRAME
from protocol.wire.codec import pack
from swarm.net.addresses import PeerId
from swarm.net.identity import routing_key

NEWER: Final = frozenset({"features"})
"""Attributes that holders of older versions do not know: they would find no device that meets such a clause."""


def trim_to_frame(requirement: Requirement) -> Requirement:
    """As many clauses as fit into a frame, with attributes that every holder knows. The reader checks all clauses again anyway."""
    clauses = []
    room, elements = MAX_FRAME // 2, MAX_ELEMENTS // 2
    for clause in requirement.clauses:
        if clause.attribute in NEWER:
            continue
        wire = clause.to_wire()
        room -= len(pack(wire))
        elements -= len(wire) + (len(clause.value) if isinstance(clause.value, tuple) else 0) + 1
        if room >= 0 and elements >= 0:
            clauses.append(clause)
    return requirement if len(clauses) == len(requirement.clauses) else Requirement(clauses=tuple(clauses))


def children(depth: int, prefix: int, named: Collection[PeerId]) -> list[int]:
    """Prefixes one level deeper; if peers are named, only theirs."""
    both = [2 * prefix, 2 * prefix + 1]
    if not named:
        return both
    try:
        own = {shard_prefix(routing_key(peer), depth + 1) for peer in named}
    except ValueError:
        return both
    return [child for child in both if child in own]
