"""How deep the shards of an attribute lie, by how many adverts there are. Pure."""

from __future__ import annotations

import math
from typing import Final

from protocol.values.index_keys import MAX_SHARD_DEPTH

MOST_DEVICES: Final = 4
"""Devices believed for each holder of the network, at most: a liar leads no deeper than to where the shards of that many devices would
lie."""
AGREE: Final = 5
"""Of eight holders, this many must agree before a node relies on their statement; more than half where there are fewer."""
EMPTY: Final = 0.3
"""A shard below one that is split has half as many adverts as its limit, or more: one with so small a share lies too deep, or is new."""
SURE: Final = 0.6
"""Where the shards one level up would have less than twice this share of their limit, some of them are not split."""


def depth_of(devices: float, soft: int) -> int:
    """The depth of the shards of an attribute that `devices` devices have; a shard is split above `soft` adverts."""
    return min(math.ceil(math.log2(devices / soft)), MAX_SHARD_DEPTH) if devices > soft else 0


def sure_depth(devices: float, soft: int) -> int:
    """The same, or one level less where some of the shards one level up may not be split: `devices` is an estimate."""
    levels = depth_of(devices, soft)
    return levels - 1 if levels and devices / 2**levels < SURE * soft else levels


def depth_below(depth: int, adverts: float, soft: int, holders: float) -> int:
    """How deep the shards lie that hold the adverts below a split shard at `depth`, or one level less where that is not sure: at least one
    level below it. `holders`: in the network."""
    deepest = depth_of(holders * MOST_DEVICES, soft)
    return min(max(depth + 1, min(depth + sure_depth(adverts, soft), deepest)), MAX_SHARD_DEPTH)
