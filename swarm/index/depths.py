"""The depth of an attribute's shards, from the number of adverts. Pure."""

from __future__ import annotations

import math
from typing import Final

from protocol.values.index_keys import MAX_SHARD_DEPTH

MOST_DEVICES: Final = 4
"""Most devices believed for each holder of the network: a liar leads no deeper than the shards of that many devices."""
AGREE: Final = 5
"""Of eight holders, this many must agree before a node relies on their statement; with fewer holders, more than half."""
EMPTY: Final = 0.3
"""A shard below a split one usually has at least half of its limit of adverts; one with a smaller share than this is too deep, or new."""
SURE: Final = 0.6
"""If the shards one level up would have less than twice this share of their limit, some of them are not split."""


def depth_of(devices: float, split_threshold: int) -> int:
    """The depth of the shards of an attribute that `devices` devices have. A shard with more than `split_threshold` adverts is split."""
    if devices <= split_threshold:
        return 0
    return min(math.ceil(math.log2(devices / split_threshold)), MAX_SHARD_DEPTH)


def sure_depth(devices: float, split_threshold: int) -> int:
    """Like `depth_of`, but one level less where some shards one level up may not be split, since `devices` is an estimate."""
    levels = depth_of(devices, split_threshold)
    return levels - 1 if levels and devices / 2**levels < SURE * split_threshold else levels


def depth_below(depth: int, adverts: float, split_threshold: int, holders: float) -> int:
    """The depth of the shards that hold the adverts below a split shard at `depth`, one level less if unsure, but always below `depth`.
    `holders`: their number in the network."""
    deepest = depth_of(holders * MOST_DEVICES, split_threshold)
    return min(max(depth + 1, min(depth + sure_depth(adverts, split_threshold), deepest)), MAX_SHARD_DEPTH)
