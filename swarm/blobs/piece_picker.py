"""Decides which piece to request from which source: the pure part of a download from several sources, which `swarm_download.py` runs.

    picker.add(source)                    the leader of the campaign, and workers that have some of the model
    picker.update(source, have, fresh)    the pieces that a source has
    picker.next(source) ─▶ piece, None    an idle source gets the next request, so a slow one gets fewer
    picker.arrived, stored, rest, drop    the outcome

Of the workers' pieces, the rarest comes first. While there are workers, the leader is asked for a piece that it has sent to nobody yet; the
leader chooses it, so that no two downloaders get the same. It is asked for other pieces only when the workers have sent nothing for a
while. So the leader sends a model about once, and its downloaders pass it on to each other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from swarm.net.addresses import Address, PeerId

DEPTH: Final = 2
"""Requests to one source at a time, so that the next one is on its way while a piece arrives."""
RETRY_S: Final = (0.5, 16.0)
"""Seconds that a source rests after a failure: the first time, doubled after each further failure in a row, and at most."""
HUNGRY_S: Final = 1.0
"""If no piece came from workers for this many seconds and for 1.5 times a piece's usual time, the leader resends pieces it sent before."""
LATE_S: Final = 3.0
"""A piece requested this many seconds ago, and three times a piece's usual time ago, may also be requested from one other source."""
MAX_WEIGHED: Final = 64
"""Most candidates compared by rarity."""


@dataclass(eq=False, slots=True)
class PieceSource:
    """A peer or a mirror that has some of the pieces."""

    peer: PeerId
    addresses: tuple[Address, ...] = ()
    leader: bool = False
    """The source is the scheduler, whose piece hashes are trusted."""
    relayed: bool = False
    """The source is reached only through a gate."""
    have: frozenset[int] | None = None
    """The pieces that the source has; None: all."""
    declared: bool = False
    """The source itself stated `have`."""
    fresh: frozenset[int] = frozenset()
    """Pieces that the source has sent to nobody yet."""
    requested: dict[int, float] = field(default_factory=dict)
    """Piece → when it was requested."""
    rests_until: float = -math.inf
    failures: int = 0
    dropped: str = ""
    """Why the source is no longer asked; empty while it is."""
    absent: bool = False
    """The source was dropped because it has no pieces yet, not for a fault."""
    got: int = 0
    """Valid pieces that came from the source."""

    def has(self, index: int) -> bool:
        return self.have is None or index in self.have


class PiecePicker:
    """The missing pieces and the sources."""

    def __init__(self, missing: Iterable[int], rng: random.Random) -> None:
        self.missing = set(missing)
        self.sources: dict[PeerId, PieceSource] = {}
        self._storing: set[int] = set()
        self.hashed = False
        """The piece hashes are known, so sources other than the leader may be asked."""
        self._rng = rng
        self._others_gave_at = -math.inf
        self._pace_s = 0.0
        """Time from the request of a piece to its arrival, as a moving average."""

    def add(self, source: PieceSource, now: float) -> None:
        """Add a new source, or one that was dropped."""
        if not source.leader and not self.others():
            self._others_gave_at = now  # the workers may send pieces from now on
        self.sources[source.peer] = source

    def alive(self) -> list[PieceSource]:
        """Sources that may be asked, now or later."""
        return [each for each in self.sources.values() if not each.dropped]

    def others(self) -> list[PieceSource]:
        """The sources in `alive()` except the leader."""
        return [each for each in self.alive() if not each.leader]

    # -- requests --------------------------------------------------------------------------------------------------------

    def next(self, source: PieceSource, now: float) -> int | None:
        """The piece to request from `source` now, which counts as requested from then on; None: no piece at the moment."""
        crowd = source.leader and self.others()
        if source.dropped or len(source.requested) >= (1 if crowd else DEPTH) or now < source.rests_until:
            return None
        if not source.leader and not (self.hashed and source.declared):
            return None
        if source.relayed and self._direct_source_gives(now):
            return None
        index = self._unrequested(source, now)
        if index is None:
            index = self._late(source, now)
        if index is not None:
            source.requested[index] = now
        return index

    def _direct_source_gives(self, now: float) -> bool:
        """Whether a direct source sends pieces; then none are requested through gates."""
        return any(
            not each.relayed and (each.requested or each.got) and now >= each.rests_until
            for each in self.alive()
        )

    def _unrequested(self, source: PieceSource, now: float) -> int | None:
        free = [index for index in self.missing - self._under_way() if source.has(index)]
        if not free:
            return None
        others = [each for each in self.others() if each is not source]
        if not others:
            return min(free)
        if source.leader:
            unseen = free if not source.declared else [index for index in free if index in source.fresh]
            if not unseen and now - self._others_gave_at < max(HUNGRY_S, 1.5 * self._pace_s):
                return None
            lonely = [i for i in free if not any(each.declared and each.has(i) for each in others)]
            return min(unseen or lonely or free)
        some = free if len(free) <= MAX_WEIGHED else self._rng.sample(free, MAX_WEIGHED)
        weighed = [each for each in others if each.declared and not each.leader]
        return min(some, key=lambda i: (sum(each.has(i) for each in weighed), self._rng.random()))

    def _under_way(self) -> set[int]:
        return self._storing.union(*(each.requested for each in self.sources.values()))

    def alternatives(self, source: PieceSource, index: int) -> set[int] | None:
        """The pieces of which the leader should send one that it has sent to nobody yet; None: it should send piece `index`."""
        if not source.leader or not self.others() or (source.declared and not source.fresh):
            return None
        return self.missing - self._under_way() | {index}

    def _late(self, source: PieceSource, now: float) -> int | None:
        """A piece that another source is slow to send; None if there is none."""
        waited = self.missing - self._storing
        late = [
            (at, index)
            for each in self.sources.values()
            if each is not source
            for index, at in each.requested.items()
            if now - at >= max(LATE_S, 3 * self._pace_s) and index in waited and source.has(index)
        ]
        for _, index in sorted(late):
            if sum(index in each.requested for each in self.sources.values()) == 1:
                return index
        return None

    # -- outcome --------------------------------------------------------------------------------------------------------

    def update(self, source: PieceSource, have: Iterable[int] | None, fresh: Iterable[int] | None) -> bool:
        """Set the pieces that a source has. Returns whether they are more than before."""
        before, declared = source.have, source.declared
        source.have = None if have is None else frozenset(have)
        source.fresh = frozenset(fresh or ())
        source.declared = True
        if before is None:
            return not declared
        return source.have is None or len(source.have) > len(before)

    def arrived(self, source: PieceSource, index: int, now: float) -> None:
        """Record that a piece is on its way to the disk; the next one may be requested meanwhile."""
        took = now - source.requested.pop(index, now)
        self._pace_s = took if self._pace_s == 0.0 else 0.8 * self._pace_s + 0.2 * took
        self._storing.add(index)

    def invalid(self, index: int) -> None:
        """Record that a piece had a wrong hash."""
        self._storing.discard(index)

    def stored(self, source: PieceSource, index: int, now: float) -> None:
        """Record that a valid piece is on the disk."""
        self.missing.discard(index)
        self._storing.discard(index)
        source.failures = 0
        source.got += 1
        if not source.leader:
            self._others_gave_at = now

    def rest(self, source: PieceSource, now: float) -> float:
        """Let a source rest that failed or has nothing for us now. Returns the seconds until it may be asked again."""
        source.requested.clear()
        seconds = min(RETRY_S[1], RETRY_S[0] * 2.0**source.failures)
        source.failures += 1
        source.rests_until = now + seconds
        return seconds

    def drop(self, source: PieceSource, why: str) -> None:
        """Stop asking this source."""
        source.requested.clear()
        source.dropped = why
