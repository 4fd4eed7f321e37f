"""Calls to other nodes' indexes, and what they show of each peer: silent or not, how fast, a holder or not.

Lookups, publisher and queries share it, so a silent peer is waited for once, not once by each of them.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import statistics
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeVar

import trio

from protocol.errors import Refused, RemoteProtocolError, Unreachable
from protocol.messages import index as say
from protocol.wire.base import Message
from protocol.words import Reason
from swarm.net.addresses import Address, Contact, PeerId, observed_addresses
from swarm.net.identity import routing_key
from swarm.net.link import Links
from swarm.net.network import Network

M = TypeVar("M", bound=Message)

GIVE_UP_S: Final = 1.5
SILENT_S: Final = (2.0, 30.0)
"""How long a peer that did not answer is not asked: first, while it is connected and may only be busy, doubling each time; and at most,
which holds at once for a peer that is gone."""
NO_HOLDER_S: Final = 300.0
"""How long a peer that stores no adverts is not asked."""
HEDGE_S: Final = (0.1, 0.15, 0.5)
"""Shortest, initial and longest wait before a hedged request; in between, three times the median round trip."""
MAX_LOST: Final = 256
MAX_ADDRESSES: Final = 4
"""Of one holder, all of them observed or checked."""
COPY_S: Final = 0.05
"""Seconds that our copy of the routing table may be old for each peer in it; what we learn ourselves goes in at once."""
COPY_WITHIN_S: Final = (0.5, 10.0)
COPY_SIZE: Final = 1_024


class IndexClient:
    """Asks other nodes. `nursery` of the index must outlive it."""

    def __init__(
        self,
        network: Network,
        links: Links,
        remote_address: Callable[[PeerId], Address | None] | None = None,
    ) -> None:
        """`remote_address`: where a connected peer is seen, so that others only get its own addresses; without it peers are believed."""
        self._network = network
        self._links = links
        self._remote_address = remote_address
        self._silent: dict[PeerId, float] = {}
        self._pauses: dict[PeerId, float] = {}
        """The last pause of each peer that did not answer."""
        self._gone: set[PeerId] = set()
        """Silent peers that were not connected any more: asked again as soon as they are."""
        self._round_trips: deque[float] = deque(maxlen=31)
        self._hedge = HEDGE_S[1]
        self._lost: OrderedDict[PeerId, Contact] = OrderedDict()
        self._table: dict[PeerId, tuple[int, Contact]] = {}
        """Our copy of the routing table, with each peer's position among the keys."""
        self._copied = -math.inf
        self.calls = 0
        """Calls made since the start."""

    @property
    def hedge_s(self) -> float:
        """How long to wait for a peer before a hedged request to another."""
        return self._hedge

    def usable(self, peer: PeerId) -> bool:
        """Whether `peer` may be asked: it was not silent lately and stores adverts."""
        until = self._silent.get(peer)
        if until is None:
            return True
        if until > trio.current_time() and not (peer in self._gone and peer in self._network.connected()):
            return False
        del self._silent[peer]
        self._gone.discard(peer)
        return True

    def knows(self, peer: PeerId) -> bool:
        """Whether `peer` is a holder that answered. No I/O."""
        return peer in self._table

    def linked(self, peer: PeerId) -> bool:
        """Whether a live link with `peer` is entry. No I/O."""
        return self._links.peek(peer) is not None

    def lost(self) -> tuple[Contact, ...]:
        """Holders that fell silent, oldest first, and may be tried again."""
        return tuple(contact for peer, contact in self._lost.items() if self.usable(peer))

    def nearest(self, key: bytes, count: int) -> list[Contact]:
        """Known usable holders nearest to `key`, ourselves left out. No I/O."""
        now = trio.current_time()
        if now - self._copied >= self._copy_age():
            everybody = self._network.closest(routing_key(self._network.peer_id), COPY_SIZE)
            self._table = {c.peer: (key_position(c.peer), c) for c in everybody if c.holder and c.addresses}
            self._table.pop(self._network.peer_id, None)
            self._copied = now
        target = int.from_bytes(key, "big")
        near = heapq.nsmallest(
            count + len(self._silent), self._table.values(), key=lambda entry: entry[0] ^ target
        )
        return [contact for _, contact in near if self.usable(contact.peer)][:count]

    def _copy_age(self) -> float:
        least, most = COPY_WITHIN_S
        return min(max(len(self._table) * COPY_S, least), most)

    async def ask(
        self, contact: Contact, message: Message, expected: type[M], *, max_wait_s: float = GIVE_UP_S
    ) -> M:
        """One call. Raises `Unreachable` (silent, broken or talking nonsense) or `errors.Refused`."""
        began = trio.current_time()
        warm = self.linked(contact.peer)
        self.calls += 1
        try:
            with trio.fail_after(max_wait_s):
                answer = await self._links.call(
                    contact.peer, contact.addresses, message, max_wait_s=max_wait_s
                )
        except (Unreachable, RemoteProtocolError, trio.TooSlowError) as exc:
            await self._failed(contact)
            raise Unreachable(f"{contact.peer} did not answer: {exc}") from exc
        if isinstance(answer, say.RefusedMessage):
            if answer.reason is Reason.NOT_A_HOLDER:
                self._no_holder(contact.peer)
            raise Refused(
                f"{contact.peer} refused: {answer.detail or answer.reason}",
                reason=answer.reason,
                retry_after_s=answer.retry_after_s,
            )
        if not isinstance(answer, expected):
            await self._failed(contact)
            raise Unreachable(
                f"{contact.peer} answered {type(message).__name__} with {type(answer).__name__}"
            )
        if getattr(answer, "client", None):  # only a Found can say so
            self._no_holder(contact.peer)
        else:
            self._answered(contact, trio.current_time() - began if warm else None)
        return answer

    def _no_holder(self, peer: PeerId) -> None:
        """Do not ask it for a while; perhaps it was a holder and can no longer be dialled."""
        self._silent[peer] = trio.current_time() + NO_HOLDER_S
        self._lost.pop(peer, None)
        self._table.pop(peer, None)
        self._network.forget(peer)

    def with_observed_addresses(self, contact: Contact) -> Contact:
        """The contact with only the addresses at which the peer is seen now: none while it comes through a gate."""
        if self._remote_address is None:
            return contact
        observed = self._remote_address(contact.peer)
        return Contact(
            contact.peer, observed_addresses(contact.addresses, observed) if observed else (), contact.holder
        )

    def learn(self, contact: Contact) -> None:
        """A holder that answers at these addresses: from now on others are told of it."""
        if not (contact.holder and contact.addresses):
            return
        known = self._table.get(contact.peer)
        before = known[1].addresses if known is not None else ()
        if not set(contact.addresses) <= set(before):
            addresses = tuple(dict.fromkeys((*contact.addresses, *before)))[:MAX_ADDRESSES]
            contact = Contact(contact.peer, addresses)
            self._table[contact.peer] = (key_position(contact.peer), contact)
            self._network.learn(contact)

    def _answered(self, contact: Contact, round_trip: float | None) -> None:
        self._silent.pop(contact.peer, None)
        self._pauses.pop(contact.peer, None)
        self._lost.pop(contact.peer, None)
        self.learn(self.with_observed_addresses(contact))
        if round_trip is not None:
            self._round_trips.append(round_trip)
            least, _, longest = HEDGE_S
            self._hedge = min(max(3 * statistics.median(self._round_trips), least), longest)

    async def _failed(self, contact: Contact) -> None:
        first, longest = SILENT_S
        pause = min(2 * self._pauses.get(contact.peer, first / 2), longest)
        if contact.peer not in self._network.connected():
            self._gone.add(contact.peer)
            pause = longest
        if len(self._pauses) >= MAX_LOST:
            self._pauses.pop(next(iter(self._pauses)))
        self._pauses[contact.peer] = pause
        self._silent[contact.peer] = trio.current_time() + pause
        if contact.holder and (contact.peer in self._table or contact.peer in self._lost):
            # a peer that was only named, and never answered, is not searched for
            self._lost[contact.peer] = contact
            self._lost.move_to_end(contact.peer)
            while len(self._lost) > MAX_LOST:
                self._lost.popitem(last=False)
        self._table.pop(contact.peer, None)
        self._network.forget(contact.peer)
        await self._links.drop(contact.peer)


async def race(
    nursery: trio.Nursery,
    client: IndexClient,
    contacts: list[Contact],
    message: Message,
    expected: type[M],
    need: int,
) -> tuple[list[tuple[Contact, M]], list[Contact]]:
    """Ask `need` of `contacts`, with a hedged request for each that fails or is slow, until `need` have answered.

    Returns the answers and the peers that failed. Ends early when only slow peers are left and there is any answer. Pending calls go on
    in `nursery`, so that a silent peer is recorded as such.
    """
    send, receive = trio.open_memory_channel[tuple[Contact, M | None]](math.inf)

    async def one(contact: Contact) -> None:
        answer: M | None = None
        with contextlib.suppress(Unreachable, Refused):
            answer = await client.ask(contact, message, expected)
        with contextlib.suppress(trio.BrokenResourceError):
            send.send_nowait((contact, answer))

    answers: list[tuple[Contact, M]] = []
    failed: list[Contact] = []
    todo = list(contacts)
    pending: dict[PeerId, float] = {}
    slow: set[PeerId] = set()
    with receive:
        while len(answers) < need:
            now = trio.current_time()
            slow |= {peer for peer, since in pending.items() if since + client.hedge_s <= now}
            while todo and len(answers) + len(pending) - len(slow) < need:
                contact = todo.pop(0)
                pending[contact.peer] = now
                nursery.start_soon(one, contact)
            in_time = [since for peer, since in pending.items() if peer not in slow]
            if not pending or (answers and not in_time):
                break
            with trio.move_on_at(min(in_time) + client.hedge_s if in_time else math.inf):
                contact, answer = await receive.receive()
                del pending[contact.peer]
                slow.discard(contact.peer)
                if answer is None:
                    failed.append(contact)
                else:
                    answers.append((contact, answer))
    return answers, failed


@lru_cache(maxsize=65_536)
def key_position(peer: PeerId) -> int:
    """A peer's position among the keys, as a number. Raises ValueError for an invalid id."""
    return int.from_bytes(routing_key(peer), "big")


def gap(peer: PeerId, key: int) -> int:
    """XOR distance between a peer and a key given as a number."""
    return key_position(peer) ^ key


def contact_infos(contacts: list[Contact]) -> tuple[say.ContactInfo, ...]:
    """Contacts in the form of messages."""
    return tuple(
        say.ContactInfo(peer=contact.peer, addresses=contact.addresses[:8])
        for contact in contacts[: say.MAX_CONTACTS]
        if contact.addresses
    )


def fingerprints(peers: list[PeerId]) -> bytes:
    """Short known_fingerprints of the holders one has, for `have` in a Store or Page."""
    return b"".join(routing_key(peer)[: say.HAVE_BYTES] for peer in peers[: say.MAX_CONTACTS])


def missing(known_fingerprints: bytes, contacts: list[Contact]) -> list[Contact]:
    """The `contacts` whose fingerprints are not among `known_fingerprints`."""
    size = say.HAVE_BYTES
    known = {known_fingerprints[start : start + size] for start in range(0, len(known_fingerprints), size)}
    return [contact for contact in contacts if routing_key(contact.peer)[:size] not in known]
