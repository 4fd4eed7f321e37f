"""Finds the holders of a key by an iterative, hedged lookup that converges before anything is read or stored.

The lookup asks the nearest known peers for nearer ones until the nearest have all answered. A reader asks eight at a time and waits for the
sixteen nearest. A publisher asks one at a time and waits for the four nearest; peers within reach count as answered. While a peer is slower
than the hedging delay, the lookup asks another. A peer that is silent for 1.5 s, or 3 s on a first connection, is not asked for a while.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import trio

from protocol.messages import index as index_messages
from swarm.index.client import IndexClient
from swarm.index.region import HOLDERS, NEAR
from swarm.index.sweep import AGAIN, FRESH_S, MAX_SETS, SMALL_SWARM, Keep, Sweeps
from swarm.net.addresses import Contact, PeerId
from swarm.net.identity import distance
from swarm.net.network import read_contacts

ALPHA: Final = 8
OUTER: Final = 16
FARTHER: Final = 4
"""How many of the `OUTER` contacts behind the nearest are always asked: liars around a key would name only one another."""
NARROW: Final = 4
"""How many of the nearest contacts a publisher's lookup asks, unless they are within reach."""
NARROW_ALPHA: Final = 1
"""Contacts that a publisher's lookup asks at once: each answer names nearer ones, which saves calls to farther ones."""
NARROW_FARTHER: Final = 2
"""As `FARTHER`, for a publisher. Where nodes may be hidden, its lookup is repeated as a reader's."""
FEW: Final = 4
"""A lookup with fewer answers than this also waits for slow peers."""
SETTLE_S: Final = 5.0
"""A set younger than this is not looked up again when somebody names other holders."""


class _State(StrEnum):
    NEW = "new"
    ASKED = "asked"
    SLOW = "slow"
    ANSWERED = "answered"
    FAILED = "failed"


@dataclass(slots=True)
class _Candidate:
    contact: Contact
    distance: int
    state: _State = _State.NEW
    asked_at: float = math.inf
    first: bool = False
    """Ask it however far away it is."""


@dataclass
class _Shortlist:
    """The state of one lookup. Pure: time is an argument."""

    key: bytes
    width: int | None = None
    """How many of the nearest nodes have to answer; None: decide by the size of the swarm."""
    reach: int = 0
    """Peers nearer than this distance are not asked, and count as answered."""
    candidates: dict[PeerId, _Candidate] = field(default_factory=dict)
    """Nearest first."""

    def add(self, contact: Contact, state: _State = _State.NEW, *, first: bool = False) -> None:
        if contact.peer not in self.candidates:
            apart = distance(contact.peer, self.key)
            state = _State.ANSWERED if apart < self.reach else state
            self.candidates[contact.peer] = _Candidate(contact, apart, state, first=first)
            self.candidates = dict(sorted(self.candidates.items(), key=lambda item: item[1].distance))

    def next(self, now: float) -> Contact | None:
        """The nearest peer to ask now. It counts as asked from then on."""
        for candidate in self._near():
            if candidate.state is _State.NEW:
                candidate.state, candidate.asked_at = _State.ASKED, now
                return candidate.contact
        return None

    def hedge(self, now: float, after_s: float) -> None:
        """Mark peers asked at least `after_s` seconds ago as slow: the lookup stops waiting for them."""
        for candidate in self.candidates.values():
            if candidate.state is _State.ASKED and candidate.asked_at + after_s <= now:
                candidate.state = _State.SLOW

    @property
    def waiting(self) -> list[float]:
        """When each peer was asked that may still answer in time."""
        return [c.asked_at for c in self.candidates.values() if c.state is _State.ASKED]

    def in_time(self, now: float, after_s: float) -> int:
        """How many peers were asked less than `after_s` seconds ago and may still answer."""
        return sum(at + after_s > now for at in self.waiting)

    @property
    def slow(self) -> bool:
        """Whether a peer may still answer late."""
        return any(c.state is _State.SLOW for c in self.candidates.values())

    @property
    def done(self) -> bool:
        """Whether the nearest have all answered, except failed and slow ones. If few have, slow ones are waited for.

        A first connection is slower than any hedging delay; otherwise a newcomer would settle for its bootstrap peer alone.
        """
        near = [c for c in self._near() if c.state is not _State.SLOW]
        enough = len(near) >= FEW or not self.slow
        return bool(near) and enough and all(c.state is _State.ANSWERED for c in near)

    def answered(self, count: int = HOLDERS) -> list[Contact]:
        """The nearest peers that answered, nearest first."""
        return [c.contact for c in self.candidates.values() if c.state is _State.ANSWERED][:count]

    def nearest(self) -> list[Contact]:
        """The nearest peers that answered, up to the first that has not answered yet."""
        there = (c for c in self.candidates.values() if c.state is not _State.FAILED)
        return [c.contact for c in itertools.takewhile(lambda c: c.state is _State.ANSWERED, there)]

    def resumed(self) -> _Shortlist:
        """This lookup without the contacts far from the key, to be continued. Contacts that answered or failed are not asked again."""
        ended = (_State.ANSWERED, _State.FAILED)
        near = dict(itertools.islice(self.candidates.items(), 2 * NEAR))
        again = {
            peer: each if each.state in ended else _Candidate(each.contact, each.distance)
            for peer, each in near.items()
        }
        return replace(self, candidates=again, width=self._width)

    def named(self) -> list[Contact]:
        """Peers that have not failed, nearest first."""
        return [c.contact for c in self.candidates.values() if c.state is not _State.FAILED]

    @property
    def _width(self) -> int:
        return self.width or (HOLDERS if len(self.candidates) <= SMALL_SWARM else NEAR)

    def _near(self) -> list[_Candidate]:
        near, width = [c for c in self.candidates.values() if c.state is not _State.FAILED], self._width
        return near[:width] + [c for c in near[width:] if c.first]


@dataclass(slots=True)
class HolderSet:
    """The holders of a key that the last lookup found."""

    contacts: list[Contact]
    found_at: float
    stale: bool = False
    hurried: _Shortlist | None = None
    """The lookup, if it did not wait for slow peers, which alone makes the rest look far apart. It can be resumed."""


@dataclass
class Lookups:
    """Finds and caches the holders of keys."""

    client: IndexClient
    rng: random.Random
    _sets: dict[bytes, HolderSet] = field(default_factory=dict)
    _running: dict[bytes, trio.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sweeps = Sweeps(self.client, self.rng, self._find)

    async def find(self, key: bytes, *, count: int = HOLDERS, patient: bool = False) -> list[Contact]:
        """Up to `count` peers nearest to `key` that just answered, nearest first; may include ourselves.

        `patient`: wait for slow peers until they fail, as publishers do and readers do not.
        """
        return (await self._find(key, patient)).answered(count)

    async def locate(self, key: bytes, *, thorough: bool = False) -> list[Contact]:
        """Peers near `key` for a publisher, nearest first; may include ourselves. Peers within reach have not been asked, since their
        replies to the advert tell as much. `thorough`: ask the nearest sixteen."""
        reach = self.sweeps.reach
        if thorough or not reach:
            return await self.find(key, count=NEAR, patient=True)
        return (await self._find(key, True, width=NARROW, reach=reach)).named()

    async def _find(
        self,
        key: bytes,
        patient: bool,
        *,
        starts: list[Contact] | None = None,
        width: int | None = None,
        reach: int = 0,
        keep: Keep = list,
        resumed: _Shortlist | None = None,
    ) -> _Shortlist:
        client, shortlist = self.client, resumed or _Shortlist(key, width, reach)
        alpha, farther = (NARROW_ALPHA, NARROW_FARTHER) if width == NARROW else (ALPHA, FARTHER)
        me = client.me()
        if me is not None:
            shortlist.add(me, _State.ANSWERED)
        if starts is None:
            known = client.nearest(key, NEAR + OUTER)
            for contact in known[:NEAR]:
                shortlist.add(contact)
            starts = self.rng.sample(known[NEAR:], 0 if resumed else min(farther, len(known[NEAR:])))
        for contact in starts:
            shortlist.add(contact, first=True)
        question = index_messages.FindPeers(key=key, count=index_messages.MAX_CONTACTS, sender=sender_of(me))
        send, receive = trio.open_memory_channel[tuple[Contact, index_messages.FoundPeers | None]](math.inf)
        with receive:
            while True:
                now = trio.current_time()
                if not patient:
                    shortlist.hedge(now, client.hedge_s)
                while (
                    shortlist.in_time(now, client.hedge_s) < alpha
                    and (unasked := shortlist.next(now)) is not None
                ):
                    client.nursery.start_soon(
                        client.ask_into, send, unasked, question, index_messages.FoundPeers
                    )
                waiting = shortlist.waiting
                if shortlist.done or not (waiting or shortlist.slow):
                    break
                wake = min((end for at in waiting if (end := at + client.hedge_s) > now), default=math.inf)
                with trio.move_on_at(wake):
                    contact, answer = await receive.receive()
                    good = answer is not None and not answer.client
                    shortlist.candidates[contact.peer].state = _State.ANSWERED if good else _State.FAILED
                    for named in keep(read_contacts(answer.contacts if answer is not None else ())):
                        if named.peer != client.own_peer and named.addresses and client.usable(named.peer):
                            shortlist.add(named)
        return shortlist

    async def holders(self, key: bytes) -> HolderSet:
        """The holders of `key`, cached while fresh. Concurrent readers of a key share one lookup."""
        while True:
            stored = self._sets.get(key)
            if stored is not None and trio.current_time() - stored.found_at < FRESH_S and not stored.stale:
                return stored
            running = self._running.get(key)
            if running is None:
                break
            await running.wait()
        event = self._running[key] = trio.Event()
        try:
            shortlist = await self._find(key, patient=False)
            contacts = self._with_region(key, shortlist.answered(NEAR))
            # by the next lookup, slow peers have answered or are recorded as silent
            stale = not contacts or (len(contacts) < HOLDERS and shortlist.slow)
            hurried = shortlist.resumed() if shortlist.slow else None
            holder_set = HolderSet(contacts, trio.current_time(), stale, hurried)
            if len(self._sets) >= MAX_SETS:
                del self._sets[next(iter(self._sets))]
            self._sets[key] = holder_set
            return holder_set
        finally:
            del self._running[key]
            event.set()

    def _with_region(self, key: bytes, nearest: list[Contact]) -> list[Contact]:
        peers = {contact.peer for contact in nearest}
        return [*nearest, *(each for each in self.sweeps.region(key) if each.peer not in peers)]

    async def widen(self, key: bytes) -> bool:
        """Learn the region of `key` if the nodes nearest to it are suspect and have too little. Returns whether that found more holders."""
        stored = self._sets.get(key)
        if stored is None:
            return False
        before = {contact.peer for contact in stored.contacts}
        if stored.hurried is not None:
            found = await self._find(key, True, resumed=stored.hurried.resumed())
            stored.contacts, stored.hurried = found.answered(NEAR), None
        await self.sweeps.measured(AGAIN)
        await self.sweeps.sweep(key, stored.contacts[:NEAR])
        stored.contacts = self._with_region(key, stored.contacts)
        return any(contact.peer not in before for contact in stored.contacts)

    def failed(self, key: bytes, peer: PeerId) -> None:
        """Record that a holder did not answer: the next reader of `key` repeats the lookup."""
        stored = self._sets.get(key)
        if stored is not None:
            stored.contacts = [contact for contact in stored.contacts if contact.peer != peer]
            stored.stale = True

    def named(self, key: bytes, closer: tuple[index_messages.ContactInfo, ...], *, add: bool = False) -> bool:
        """Record that a holder named others for `key`: the next reader repeats the lookup, unless the set is new. `add`: if the lookup did
        not wait for slow peers, add the nearer ones at once; returns whether there were any.
        """
        stored = self._sets.get(key)
        if stored is None:
            return False
        mine = {contact.peer for contact in stored.contacts}
        farthest = max(sorted(distance(peer, key) for peer in mine)[:HOLDERS], default=0)
        nearer = [
            contact
            for contact in read_contacts(closer)[:HOLDERS]
            if contact.peer not in mine
            and contact.addresses
            and contact.peer != self.client.own_peer
            and self.client.usable(contact.peer)
            and (len(mine) < HOLDERS or distance(contact.peer, key) < farthest)
        ]
        if add and stored.hurried and nearer and len(mine) <= 2 * NEAR:
            stored.contacts = sorted([*stored.contacts, *nearer], key=lambda each: distance(each.peer, key))
            return True
        if trio.current_time() - stored.found_at >= SETTLE_S:
            stored.stale = stored.stale or bool(nearer)
        return False


def sender_of(me: Contact | None) -> index_messages.ContactInfo | None:
    """Our contact for a `FindPeers`; only a holder sends it."""
    return index_messages.ContactInfo(peer=me.peer, addresses=me.addresses[:8]) if me is not None else None
