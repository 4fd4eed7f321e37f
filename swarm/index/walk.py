"""One reader's descent to the shards of some attributes: the shards read so far, and those still to read. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocol.values.index_keys import Alternatives
from swarm.net.addresses import PeerId

READERS: Final = 2
"""Holders asked first. All are asked if these do not have enough."""

ShardAddress = tuple[str, int, int]
"""Attribute, depth and prefix of a shard."""


@dataclass(slots=True)
class Leaf:
    """One shard as read."""

    attribute: str
    depth: int = 0
    prefix: int = 0
    count: int = 0
    split: bool = False
    below: int = 0
    """About how many adverts are below the shard, if the holders that reported the split gave a number."""
    whole: bool = False
    """Read to the end from a holder that answered."""
    asked: set[PeerId] = field(default_factory=set)
    """Holders that answered."""
    guessed: bool = False
    """Nobody has said yet that the shard above is split: this shard may be too deep."""
    skimmed: bool = False
    """Only the first holders were asked: all said that it is split, or empty if guessed, or it was read for its counts."""
    crowded: bool = False
    """Holders kept adverts out of it."""
    counts: list[tuple[float, ...]] = field(default_factory=list)
    """For a shard of everybody, from each holder with adverts of it: how many have each counted attribute, scaled to a part at its
    limit."""

    @property
    def place(self) -> ShardAddress:
        return self.attribute, self.depth, self.prefix

    @property
    def is_counted(self) -> bool:
        """Whether the shard tells how common attributes are: at least two holders counted, or one for the root (a small swarm)."""
        return bool(self.counts) and not self.split and (not self.depth or len(self.counts) >= READERS)

    @property
    def above(self) -> ShardAddress:
        return self.attribute, self.depth - 1, self.prefix >> 1


@dataclass
class Walk:
    """A descent to the shards of some attributes: what was read, and what is still to read."""

    choice: Alternatives
    todo: list[Leaf]
    seen: set[ShardAddress] = field(init=False)
    wave: int = field(init=False)
    read: list[Leaf] = field(default_factory=list)
    skimmed: list[Leaf] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen = {leaf.place for leaf in self.todo}
        self.wave = max(1, len(self.choice))

    @property
    def complete(self) -> bool:
        return not self.todo and not self.skimmed and all(leaf.whole for leaf in self.read)

    @property
    def all_there(self) -> bool:
        """Whether no device can be missing from the shards of everybody that were read: some holder answered, and none kept adverts out."""
        return (
            self.complete
            and any(leaf.count for leaf in self.read)
            and not any(leaf.crowded for leaf in self.read)
        )
