"""Lets peers use the processor in turns, each within its share. Each node has one `Governor`; `swarm.net.cost` is its pure part."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from swarm.net.addresses import PeerId
from swarm.net.cost import (
    CALL_US,
    FEW_TURNS,
    NETWORK_TIMES,
    REFUSALS,
    SETTLES,
    SHARES,
    SLICE_US,
    STREAM_US,
    STREAMS,
    Bucket,
    FairQueue,
    PeerClass,
    Share,
    next_slice_us,
    rest_s,
)
from swarm.net.memory import MemoryAccount

AHEAD_S: Final = 0.002
"""Work that may begin without waiting for a turn, as long as nobody waits."""
LIGHT_TRIES: Final = 5
"""How often a light peer tries to begin before it queues with the peers that cause much work."""
CLASS_S: Final = 1.0
"""How long a peer's class is cached."""
LOOK_S: Final = 1.0
"""A link that waits for memory checks again after this time."""
LIGHT: Final = Share(FEW_TURNS, FEW_TURNS)
"""Counted in turns."""
MOST_TURNS: Final = 4.0 * FEW_TURNS
"""Most turns counted for a peer, so that a peer that now causes little soon counts as light again."""
MAX_PEERS: Final = 4_096
"""Buckets kept; the least recently used one is forgotten first."""
MAX_NETWORKS: Final = 4_096


@dataclass(eq=False)
class Payer:
    """The account of one peer, to which its work is charged."""

    peer: PeerId
    governor: Governor
    bucket: Bucket = field(default_factory=Bucket)
    share: Share = SHARES[PeerClass.STRANGER]
    refusals: Bucket = field(default_factory=Bucket)
    turns: Bucket = field(default_factory=Bucket)
    """The peer's turns, whatever they cost."""
    streams: Bucket = field(default_factory=Bucket)
    """The streams that the peer opened."""
    network: Bucket | None = None
    """None: the peer has no public network."""
    _looked_at: float = -math.inf
    _waits: int = 0
    _lighter: trio.Event = field(default_factory=trio.Event)
    _reading: trio.Lock = field(default_factory=trio.Lock)

    def admit(self, cost_us: float) -> float:
        """Charge `cost_us` and return 0; or charge nothing and return the seconds until the buckets can pay it."""
        now = self._look()
        wait = self.bucket.wait_s(now, self.share, cost_us)
        if self.network is not None:
            wait = max(wait, self.network.wait_s(now, self.governor.network_share, cost_us))
        if wait:
            self.governor.busy += 1
            return wait
        self.charge(cost_us)
        return 0.0

    def charge(self, cost_us: float) -> None:
        """Charge work that was already done."""
        now = self._look()
        self.bucket.charge(now, self.share, cost_us)
        if self.network is not None:
            self.network.charge(now, self.governor.network_share, cost_us)

    def charge_refusal(self, cost_us: float) -> None:
        """Charge useless work: a call that was answered `Busy`, or an answer that nobody waits for."""
        self.refusals.charge(trio.current_time(), REFUSALS, cost_us)

    def unread_s(self) -> float:
        """Seconds during which to read nothing from a peer that continues despite refusals: until it would be served again."""
        wait = self.refusals.wait_s(trio.current_time(), REFUSALS, 0.0) if self.refusals.spent else 0.0
        return max(wait, self.owes_s(CALL_US)) if wait else 0.0

    def owes_s(self, cost_us: float = 0.0) -> float:
        """Seconds until the peer has paid what it owes and has `cost_us` left."""
        now = self._look()
        wait = self.bucket.wait_s(now, self.share, cost_us)
        if self.network is not None:
            wait = max(wait, self.network.wait_s(now, self.governor.network_share, cost_us))
        return wait

    @property
    def light(self) -> bool:
        """Whether this peer had so few recent turns that it does not wait behind peers with many."""
        return not self.turns.wait_s(trio.current_time(), LIGHT, 1.0)

    async def read_turn(self) -> None:
        """Wait for this peer's turn to have one more message decoded. Its links queue behind one another, so that many links get no more
        turns than one. Returns at once, without a checkpoint, while nobody waits."""
        light = self._takes_turn()
        free = not (self._reading.locked() or self.unread_s() or self.governor.memory.full(self.peer))
        if free and self.governor.begins(CALL_US, light=light):
            return
        async with self._reading:
            if pause := self.unread_s():
                await trio.sleep(pause)
            await self.room()
            await self._wait(CALL_US, light)

    async def stream_turn(self) -> None:
        """Wait until one more stream that this peer opens may be taken. It counts no turn of its own beside that of the call on it. Returns
        at once, without a checkpoint, while nobody waits."""
        light = self.light
        self._look()
        self.streams.charge(trio.current_time(), STREAMS, 1.0)
        if pause := self.streams.wait_s(trio.current_time(), STREAMS, 0.0):
            await trio.sleep(pause)
        await self._wait(STREAM_US, light)

    @contextlib.contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Account `size` bytes of memory to the peer during the block."""
        self.hold(size)
        try:
            yield
        finally:
            self.release(size)

    def hold(self, size: int) -> None:
        """Account `size` bytes of memory to the peer until `release`."""
        self.governor.memory.hold(self.peer, size)

    def release(self, size: int) -> None:
        """Release memory accounted with `hold`."""
        memory = self.governor.memory
        memory.release(self.peer, size)
        if self._waits and not memory.full(self.peer):
            self._lighter.set()

    async def room(self) -> None:
        """Wait until the peer uses less memory than its limit. Returns at once, without a checkpoint, if it does already."""
        while self.governor.memory.full(self.peer):
            if self._lighter.is_set():
                self._lighter = trio.Event()
            self._waits += 1
            try:
                with trio.move_on_after(LOOK_S):
                    await self._lighter.wait()
            finally:
                self._waits -= 1

    async def turn(self, cost_us: float) -> None:
        """Wait for this peer's turn to use the processor for `cost_us`. Returns at once, without a checkpoint, while nobody waits."""
        light = self.light
        self._count_turns(cost_us / SLICE_US)
        await self._wait(cost_us, light)

    async def _wait(self, cost_us: float, light: bool) -> None:
        for _ in range(LIGHT_TRIES):
            if self.governor.begins(cost_us, light=light):
                return
            if not (light and self.governor.crowded):
                break
            await trio.sleep(self.governor.ahead_s())
        await self.governor.wait(self, cost_us)

    def _takes_turn(self) -> bool:
        """Count a turn, unless the peer already has many; returns whether the peer is light."""
        light = self.light
        self._count_turns(1.0 if light else 0.0)
        return light

    def _count_turns(self, turns: float) -> None:
        self.turns.charge(trio.current_time(), LIGHT, turns)
        self.turns.spent = min(self.turns.spent, MOST_TURNS)

    def _look(self) -> float:
        now = trio.current_time()
        if now - self._looked_at >= CLASS_S:
            self._looked_at = now
            kind = self.governor.class_of(self.peer)
            self.share = self.governor.shares[kind]
            name = self.governor.network_of(self.peer) if kind is PeerClass.STRANGER else ""
            self.network = self.governor.network(name) if name else None
        return now


class Governor:
    """The buckets and turns of one node."""

    def __init__(
        self,
        network_of: Callable[[PeerId], str] = lambda peer: "",
        memory: MemoryAccount | None = None,
        *,
        shares: Mapping[PeerClass, Share] = SHARES,
    ) -> None:
        """`network_of`: the public network from which a peer is connected; empty if there is none."""
        self.class_of: Callable[[PeerId], PeerClass] = lambda peer: PeerClass.STRANGER
        """How well the role knows a peer."""
        self.network_of = network_of
        self.memory = memory or MemoryAccount()
        self.shares = shares
        self.network_share = shares[PeerClass.STRANGER].times(NETWORK_TIMES)
        self.busy = 0
        """Calls that were answered `Busy`."""
        self._payers: OrderedDict[PeerId, Payer] = OrderedDict()
        self._networks: OrderedDict[str, Bucket] = OrderedDict()
        self._waiting: FairQueue[tuple[trio.Event, bool]] = FairQueue()
        """Turns, and whether a stranger waits for each."""
        self._known = 0
        """How many of them are not a stranger's."""
        self._woken = trio.Event()
        """Set when a turn that is not a stranger's is queued, which ends the strangers' rest."""
        self._dispatching = False
        self._until = -math.inf
        """When the work that has begun should be done, according to its cost."""

    def payer(self, peer: PeerId) -> Payer:
        """The account of a peer, shared by all its links."""
        payer = self._payers.pop(peer, None) or Payer(peer, self)
        self._payers[peer] = payer
        if len(self._payers) > MAX_PEERS:
            self._payers.popitem(last=False)
        return payer

    def network(self, name: str) -> Bucket:
        bucket = self._networks.pop(name, None) or Bucket()
        self._networks[name] = bucket
        if len(self._networks) > MAX_NETWORKS:
            self._networks.popitem(last=False)
        return bucket

    def begins(self, cost_us: float, *, light: bool = False) -> bool:
        """Whether work may begin now: nobody else waits, or the peer is light."""
        now = trio.current_time()
        if (self._dispatching and not light) or self._until - now > AHEAD_S:
            return False
        self._until = max(self._until, now) + cost_us * 1e-6
        return True

    @property
    def crowded(self) -> bool:
        """Whether others wait for a turn."""
        return self._dispatching

    def ahead_s(self) -> float:
        """Seconds until the work that has begun should be done, less half of `AHEAD_S`."""
        return max(0.0, self._until - trio.current_time() - AHEAD_S / 2)

    async def wait(self, payer: Payer, cost_us: float) -> None:
        turn = trio.Event()
        stranger = payer.share is self.shares[PeerClass.STRANGER]
        if not stranger:
            self._known += 1
            self._woken.set()
        self._waiting.push(payer.peer, payer.share.weight, cost_us, (turn, stranger))
        if not self._dispatching:
            self._dispatching = True
            trio.lowlevel.spawn_system_task(self._dispatch)
        await turn.wait()

    async def _dispatch(self) -> None:
        """Let one slice's worth of work begin, then everything else run once; repeat until nobody waits. Several strangers rest in
        between."""
        most = SLICE_US
        while self._waiting:
            await trio.lowlevel.checkpoint()
            began, crowd, given = trio.current_time(), self._waiting.peers > 1, 0.0
            while self._waiting and given < most:
                cost, (turn, stranger) = self._waiting.pop()
                given += cost
                self._known -= not stranger
                turn.set()
            most = SLICE_US
            if not crowd:
                continue
            for _ in range(SETTLES):
                await trio.lowlevel.checkpoint()
            took = trio.current_time() - began
            most = next_slice_us(given, took)
            self._woken = trio.Event()
            if not self._known:
                with trio.move_on_after(rest_s(given, took)):
                    await self._woken.wait()
        self._dispatching = False
        self._until = trio.current_time()
