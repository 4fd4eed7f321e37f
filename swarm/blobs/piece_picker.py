"""Which piece is asked of whom: the pure half of bringing a model from several sources; `swarm/blobs/swarm_download.py` carries it out.

    Plan.add(source)                    the scheduler that speaks for the task, and workers that have some of the model
    Plan.heard(source, have, fresh)     what is there
    Plan.next(source) ─▶ piece, None    whoever is free asks; who is slow asks less often, so gets less to do
    Plan.arrived, came, rests, drop     how it went

From the others, the piece that fewest of them have comes first. From the scheduler, while others are known: what it has sent nobody
yet, which it chooses itself, so that no two takers get the same; and anything else only when nothing has come from the others for a
while. So a model goes out from it about once, and its takers bring it to each other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from swarm.net.addresses import Address, PeerId

DEPTH: Final = 2
"""Pieces asked of one source at a time: the next one is on its way while one comes."""
AGAIN_S: Final = (0.5, 16.0)
"""A source that failed rests for so long; twice as long each time in a row, up to the second figure."""
HUNGRY_S: Final = 1.0
"""When nothing came from others for so long, and for half as long again as a piece takes, the scheduler gives more than that."""
LATE_S: Final = 3.0
"""A piece that was asked for so long ago, and thrice as long as a piece takes, may be asked of one other source beside."""
LOOKED_AT: Final = 64
"""Pieces that are weighed against each other at most."""


@dataclass(eq=False, slots=True)
class PieceSource:
    """One that has some of the file, as far as is known."""

    peer: PeerId
    addresses: tuple[Address, ...] = ()
    speaker: bool = False
    """The scheduler: what it says of the pieces' hashes is believed."""
    relayed: bool = False
    """It is reached through a gate only."""
    have: frozenset[int] | None = None
    """None: all of it."""
    known: bool = False
    """It has said what it has."""
    fresh: frozenset[int] = frozenset()
    """What it has sent nobody yet."""
    asked: dict[int, float] = field(default_factory=dict)
    """Piece → when it was asked for."""
    rests_until: float = -math.inf
    failures: int = 0
    dropped: str = ""
    """Why it is not asked any more."""
    absent: bool = False
    """It was dropped because it has none for us so far, not for what it did."""
    got: int = 0
    """Pieces that came from it, and were good."""

    def has(self, index: int) -> bool:
        return self.have is None or index in self.have


class PiecePlan:
    """What is to come yet, and from whom."""

    def __init__(self, missing: Iterable[int], rng: random.Random) -> None:
        self.missing = set(missing)
        self.sources: dict[PeerId, PieceSource] = {}
        self._storing: set[int] = set()
        self.hashed = False
        """The pieces' hashes are known: others than the speaker may be asked."""
        self._rng = rng
        self._others_gave_at = -math.inf
        self._pace_s = 0.0
        """What a piece takes from being asked for, a moving mean."""

    @property
    def over(self) -> bool:
        """All of it is here."""
        return not self.missing

    def add(self, source: PieceSource, now: float) -> None:
        """One more."""
        if not source.speaker and not self.others():
            self._others_gave_at = now  # from now on they may give
        self.sources[source.peer] = source

    def alive(self) -> list[PieceSource]:
        """Those that may be asked, now or later."""
        return [each for each in self.sources.values() if not each.dropped]

    def others(self) -> list[PieceSource]:
        """Those of them that are not the speaker."""
        return [each for each in self.alive() if not each.speaker]

    # -- asking ----------------------------------------------------------------------------------------------------------

    def next(self, source: PieceSource, now: float) -> int | None:
        """The piece to ask of it now, which is then noted as asked; None: nothing for the moment."""
        crowd = source.speaker and self.others()
        if source.dropped or len(source.asked) >= (1 if crowd else DEPTH) or now < source.rests_until:
            return None
        if not source.speaker and not (self.hashed and source.known):
            return None
        if source.relayed and self._direct_ones_give(now):
            return None
        index = self._fresh_to_ask(source, now)
        if index is None:
            index = self._late(source, now)
        if index is not None:
            source.asked[index] = now
        return index

    def _direct_ones_give(self, now: float) -> bool:
        """Whether somebody who is reached directly is giving: then nothing goes through a gate."""
        return any(
            not each.relayed and (each.asked or each.got) and now >= each.rests_until for each in self.alive()
        )

    def _fresh_to_ask(self, source: PieceSource, now: float) -> int | None:
        """Of the pieces that were asked of nobody."""
        under_way = self._storing.union(*(each.asked for each in self.sources.values()))
        free = [index for index in self.missing if index not in under_way and source.has(index)]
        if not free:
            return None
        others = [each for each in self.others() if each is not source]
        if not others:
            return min(free)
        if source.speaker:
            unseen = free if not source.known else [index for index in free if index in source.fresh]
            if not unseen and now - self._others_gave_at < max(HUNGRY_S, 1.5 * self._pace_s):
                return None
            lonely = [i for i in free if not any(each.known and each.has(i) for each in others)]
            return min(unseen or lonely or free)
        some = free if len(free) <= LOOKED_AT else self._rng.sample(free, LOOKED_AT)
        weighed = [each for each in others if each.known and not each.speaker]
        return min(some, key=lambda i: (sum(each.has(i) for each in weighed), self._rng.random()))

    def would_do(self, source: PieceSource, index: int) -> set[int] | None:
        """The pieces of which the speaker is to send one that it sent nobody yet, instead of this one; None: it is to be this one."""
        if not source.speaker or not self.others() or (source.known and not source.fresh):
            return None
        return self.missing - self._storing.union(*(each.asked for each in self.sources.values())) | {index}

    def instead(self, source: PieceSource, named: int, sent: int) -> None:
        """It sends another one than was named."""
        source.asked[sent] = source.asked.pop(named)

    def _late(self, source: PieceSource, now: float) -> int | None:
        """A piece that another source is slow to bring."""
        waited = self.missing - self._storing
        late = [
            (at, index)
            for each in self.sources.values()
            if each is not source
            for index, at in each.asked.items()
            if now - at >= max(LATE_S, 3 * self._pace_s) and index in waited and source.has(index)
        ]
        for _, index in sorted(late):
            if sum(index in each.asked for each in self.sources.values()) == 1:
                return index
        return None

    # -- how it went -----------------------------------------------------------------------------------------------------

    def heard(self, source: PieceSource, have: Iterable[int] | None, fresh: Iterable[int] | None) -> bool:
        """It told what it has. Gives whether that is more than it told before."""
        before, known = source.have, source.known
        source.have = None if have is None else frozenset(have)
        source.fresh = frozenset(fresh or ())
        source.known = True
        if before is None:
            return not known
        return source.have is None or len(source.have) > len(before)

    def arrived(self, source: PieceSource, index: int, now: float) -> None:
        """A piece is here and on its way to the disk: meanwhile the next one may be asked for."""
        took = now - source.asked.pop(index, now)
        self._pace_s = took if self._pace_s == 0.0 else 0.8 * self._pace_s + 0.2 * took
        self._storing.add(index)

    def bad(self, index: int) -> None:
        """It was not what it must be."""
        self._storing.discard(index)

    def came(self, source: PieceSource, index: int, now: float) -> None:
        """It was good, and is kept."""
        self.missing.discard(index)
        self._storing.discard(index)
        source.failures = 0
        source.got += 1
        if not source.speaker:
            self._others_gave_at = now

    def declined(self, source: PieceSource, index: int) -> None:
        """It does not send that, for others can."""
        source.asked.pop(index, None)

    def released(self, source: PieceSource) -> None:
        """What was asked of it will not come."""
        source.asked.clear()

    def rests(self, source: PieceSource, now: float) -> float:
        """It failed, or has nothing for us now. Gives the seconds until it may be asked again."""
        self.released(source)
        seconds = min(AGAIN_S[1], AGAIN_S[0] * 2.0**source.failures)
        source.failures += 1
        source.rests_until = now + seconds
        return seconds

    def drop(self, source: PieceSource, why: str) -> None:
        """It is not asked any more."""
        self.released(source)
        source.dropped = why

    def lost(self, pieces: Iterable[int]) -> None:
        """These turned out to be wrong."""
        self.missing |= set(pieces)
