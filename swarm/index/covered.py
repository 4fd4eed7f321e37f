"""Which attributes need no shards of their own, since readers find their devices in the shards of everybody. Pure.

While all devices fit into one shard, that is every attribute. Where the shard of everybody is split, it is those attributes that many
devices in each part of it have: a reader who filters one part by them has enough. An advert that holders keep out of that shard, for want
of room for its network, is published under all its attributes.
"""

from __future__ import annotations

from typing import Final

COMMON: Final = 64
"""Devices in a part of the shard of everybody that have an attribute, from which on it is covered: four times what readers mostly want."""
COMMON_STILL: Final = COMMON // 2
"""An attribute that is covered stays covered down to this number of devices."""
RARE: Final = COMMON // 8
"""Where fewer have it in the part that a reader saw, were that at its limit, it is covered nowhere: parts differ in size and by chance."""
UNSURE: Final = 2
"""Of eight holders, up to this many may disagree without being believed: publishers then take an attribute for rare, readers for common."""
NEVER: Final = ("campaign:",)
"""Attributes that no advert says of itself, so that no holder can filter by them."""
ALONE: Final = ("device:",)
"""Attributes of one device: where many say that they have it, they are fakes."""


def is_covered(attribute: str, having: int, *, whole: bool, before: bool) -> bool:
    """Whether a publisher leaves an attribute out. `having`: how many have it in the publisher's part of the shard of everybody; `whole`:
    that is not split; `before`: it left it out so far."""
    if attribute.startswith(NEVER):
        return False
    many = having >= (COMMON_STILL if before else COMMON) and not attribute.startswith(ALONE)
    return whole or many


def seen_covered(depth: int, having: float, least: int) -> bool:
    """Whether a reader that saw a part of the shard of everybody takes an attribute for covered. `least`: `COMMON` to decide where it looks
    first, `RARE` before it is content with what lies in the attribute's own shards."""
    return depth == 0 or having >= least
