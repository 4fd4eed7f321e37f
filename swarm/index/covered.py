"""Which attributes need no shards of their own because readers find their devices in the shards of everybody. Pure.

While all devices fit into one shard, every attribute is covered. Once the shard of everybody is split, an attribute is covered if many
devices in each part have it: a reader that filters one part by the attribute finds enough. An advert for which holders have no room in that
shard, because of its network's quota, is published under all its attributes.
"""

from __future__ import annotations

from typing import Final

COMMON: Final = 64
"""An attribute is covered if this many devices in a part of the shard of everybody have it: four times what readers usually want."""
COMMON_STILL: Final = COMMON // 2
"""A covered attribute stays covered down to this number of devices."""
RARE: Final = COMMON // 8
"""If fewer devices have an attribute in the part that a reader saw (scaled to a full part), it counts as covered nowhere: parts vary."""
UNSURE: Final = 2
"""How many of eight holders may disagree without effect: publishers then take an attribute for rare, readers for common."""
NEVER: Final = ("campaign:",)
"""Attributes that no advert contains, so that no holder can filter by them."""
ALONE: Final = ("device:",)
"""Attributes that only one device can have: where many claim one, the claims are fake."""


def is_covered(attribute: str, having: int, *, whole: bool, before: bool) -> bool:
    """Whether a publisher leaves an attribute out. `having`: how many adverts have it in the publisher's part of the shard of everybody;
    `whole`: that shard is not split; `before`: the publisher has left the attribute out so far."""
    if attribute.startswith(NEVER):
        return False
    many = having >= (COMMON_STILL if before else COMMON) and not attribute.startswith(ALONE)
    return whole or many


def seen_covered(depth: int, having: float, least: int) -> bool:
    """Whether a reader that saw a part of the shard of everybody treats an attribute as covered. `least`: `COMMON` to decide where to look
    first; `RARE` before it settles for the devices in the attribute's own shards."""
    return depth == 0 or having >= least
