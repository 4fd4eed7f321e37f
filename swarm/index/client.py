"""Calls to other nodes' indexes, and what the calls show about each peer: whether it is silent, how fast it is, whether it is a holder.

Lookups, the publisher and queries share the client, so a silent peer costs one wait, not one for each of them.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import trio

from protocol.errors import Overloaded, Refused, RemoteProtocolError, Unreachable
from protocol.messages import index as index_messages
from protocol.wire.base import Message
from protocol.words import Reason
from swarm.net.addresses import Address, Contact, PeerId, observed_addresses
from swarm.net.identity import routing_key
from swarm.net.links import Links
from swarm.net.network import Network

M = TypeVar("M", bound=Message)

GIVE_UP_S: Final = 1.5
FIRST_S: Final = 3.0
"""For a peer without a link that was not silent: seven round trips to the other side of the earth take two seconds."""
SILENT_S: Final = (2.0, 30.0)
"""How long a silent peer is not asked: the first pause, which doubles each time while the peer is connected and may only be busy; and the
longest pause, used at once for a peer that is no longer connected."""
NO_HOLDER_S: Final = 300.0
"""How long a peer that stores no adverts is not asked."""
HEDGE_S: Final = (0.1, 0.15, 0.5)
"""Shortest, initial and longest wait before a hedged request; the wait is three times the median round trip, within these limits."""
MAX_LOST: Final = 256
UNLISTED_S: Final = 300.0
"""How long a peer that answered but found no room in the table is not contacted merely to get to know it."""
MAX_UNLISTED: Final = 1_024
MAX_ADDRESSES: Final = 4
"""Addresses kept for one holder, all observed or checked."""


@dataclass
class IndexClient:
    """Asks other nodes, and this node's own store as one of them."""

    network: Network
    links: Links
    nursery: trio.Nursery
    """Hedged calls finish in it once their caller has stopped waiting."""
    me: Callable[[], Contact | None]
    """Our own contact while we store adverts for others."""
    remote_address: Callable[[PeerId], Address | None]
    """The address where a connected peer is seen. Others receive only addresses that the peer really uses."""
    answer_own: Callable[[Message], Awaitable[Message]]
    """Answers a call to ourselves."""
    anchors: Callable[[], Sequence[Contact]]
    """Holders that the owner chose."""
    hedge_s: float = HEDGE_S[1]
    """How long to wait for a peer before a hedged request to another."""
    calls: int = 0
    """Calls made since the start."""
    _silent: dict[PeerId, float] = field(default_factory=dict)
    _pauses: dict[PeerId, float] = field(default_factory=dict)
    """The last pause of each silent peer."""
    _gone: set[PeerId] = field(default_factory=set)
    """Silent peers that had disconnected: usable again as soon as they reconnect."""
    _round_trips: deque[float] = field(default_factory=lambda: deque(maxlen=31))
    _lost: OrderedDict[PeerId, Contact] = field(default_factory=OrderedDict)
    _unlisted: OrderedDict[PeerId, float] = field(default_factory=OrderedDict)
    """Peers that answered but are not in the table → when they answered."""

    @property
    def own_peer(self) -> PeerId:
        return self.network.peer_id

    def usable(self, peer: PeerId) -> bool:
        """Whether `peer` may be asked: it stores adverts and was not silent lately, or is ourselves."""
        until = self._silent.get(peer)
        if until is None:
            return True
        if until > trio.current_time() and not (peer in self._gone and self.network.path(peer) is not None):
            return False
        del self._silent[peer]
        self._gone.discard(peer)
        return True

    def unusable(self) -> frozenset[PeerId]:
        """The peers that may not be asked now."""
        return frozenset(peer for peer in tuple(self._silent) if not self.usable(peer))

    def linked(self, peer: PeerId) -> bool:
        """Whether there is a live link with `peer`; for ourselves, whether we are a holder. No I/O."""
        return self.me() is not None if peer == self.own_peer else self.links.peek(peer) is not None

    def met(self, peer: PeerId) -> bool:
        """Whether `peer` is in the table, or answered lately but found no room there."""
        since = trio.current_time() - self._unlisted.get(peer, -math.inf)
        return since < UNLISTED_S or self.network.table.get(peer) is not None

    def lost(self) -> tuple[Contact, ...]:
        """Holders that fell silent and may be retried, oldest first."""
        return tuple(contact for peer, contact in self._lost.items() if self.usable(peer))

    def nearest(self, key: bytes, count: int) -> list[Contact]:
        """The nearest usable holders to `key` that we know, without ourselves. No I/O."""
        near = self.network.table.closest(key, count + len(self._silent))
        return [contact for contact in near if self.usable(contact.peer)][:count]

    async def ask(
        self, contact: Contact, message: Message, expected: type[M], *, max_wait_s: float | None = None
    ) -> M:
        """Make one call. Raises `Unreachable` (no answer, a broken link or an invalid answer) or `errors.Refused`."""
        if contact.peer == self.own_peer:
            answer = await self.answer_own(message)
            assert isinstance(answer, expected)
            return answer
        began = trio.current_time()
        warm = self.linked(contact.peer)
        self.calls += 1
        if max_wait_s is None:
            max_wait_s = GIVE_UP_S if warm or contact.peer in self._pauses else FIRST_S
        try:
            with trio.fail_after(max_wait_s):
                answer = await self.links.call(
                    contact.peer, contact.addresses, message, max_wait_s=max_wait_s
                )
        except Overloaded as exc:  # the peer is there: ask others, but do not forget it
            raise Refused(exc.what, reason=Reason.OVERLOADED, retry_after_s=exc.retry_after_s) from exc
        except (Unreachable, RemoteProtocolError, trio.TooSlowError) as exc:
            await self._failed(contact)
            raise Unreachable(f"{contact.peer} did not answer: {exc}") from exc
        self.network.table.answered(contact.peer, trio.current_time())
        if isinstance(answer, index_messages.RefusedMessage):
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
        if getattr(answer, "client", None):  # only `FoundPeers` has it
            self._no_holder(contact.peer)
        else:
            self._answered(contact, trio.current_time() - began if warm else None)
        return answer

    async def check(self, contact: Contact) -> None:
        """Ask a holder whether it is still there, and forget it if not."""
        with contextlib.suppress(Unreachable, Refused):
            await self.ask(
                contact,
                index_messages.FindPeers(key=routing_key(contact.peer), count=1),
                index_messages.FoundPeers,
            )

    async def ask_all(
        self, contacts: Iterable[Contact], message: Message, expected: type[M], max_wait_s: float = GIVE_UP_S
    ) -> list[M]:
        """Call all contacts at once; return the replies that came in time."""
        replies: list[M] = []

        async def one(contact: Contact) -> None:
            with contextlib.suppress(Unreachable, Refused):
                replies.append(await self.ask(contact, message, expected, max_wait_s=max_wait_s))

        with trio.move_on_after(max_wait_s):
            async with trio.open_nursery() as nursery:
                for contact in contacts:
                    nursery.start_soon(one, contact)
        return replies

    async def ask_into(
        self,
        outcomes: trio.MemorySendChannel[tuple[Contact, M | None]],
        contact: Contact,
        message: Message,
        expected: type[M],
    ) -> None:
        """Run `ask` and send the reply (None: it failed) to a channel that may have no reader by then; silence is recorded anyway."""
        answer: M | None = None
        with contextlib.suppress(Unreachable, Refused):
            answer = await self.ask(contact, message, expected)
        with contextlib.suppress(trio.BrokenResourceError):
            outcomes.send_nowait((contact, answer))

    async def race(
        self,
        contacts: list[Contact],
        message: Message,
        expected: type[M],
        need: int,
        *,
        grace_s: float = 0.0,
    ) -> tuple[list[tuple[Contact, M]], list[Contact]]:
        """Ask `need` of `contacts`, with a hedged request for each that fails or is slow, until `need` have answered. Peers that were
        silent when last asked come last.

        Returns the answers and the peers that failed. Ends early when some peer has answered and only slow peers are left, which get
        another `grace_s`. Without the grace, liars, which answer at once, would end the race before the first new connection is up.
        """
        send, receive = trio.open_memory_channel[tuple[Contact, M | None]](math.inf)
        answers: list[tuple[Contact, M]] = []
        failed: list[Contact] = []
        todo = sorted(contacts, key=lambda contact: contact.peer in self._pauses)
        pending: dict[PeerId, float] = {}
        slow: set[PeerId] = set()
        with receive:
            while len(answers) < need:
                now = trio.current_time()
                slow |= {peer for peer, since in pending.items() if since + self.hedge_s <= now}
                while todo and len(answers) + len(pending) - len(slow) < need:
                    contact = todo.pop(0)
                    pending[contact.peer] = now
                    self.nursery.start_soon(self.ask_into, send, contact, message, expected)
                in_time = [since for peer, since in pending.items() if peer not in slow]
                late = [end for since in pending.values() if (end := since + self.hedge_s + grace_s) > now]
                if not pending or (answers and not in_time and not late):
                    break
                wake = min(late) if answers and late else math.inf
                with trio.move_on_at(min(in_time) + self.hedge_s if in_time else wake):
                    contact, answer = await receive.receive()
                    del pending[contact.peer]
                    slow.discard(contact.peer)
                    if answer is None:
                        failed.append(contact)
                    else:
                        answers.append((contact, answer))
        return answers, failed

    def with_observed_addresses(self, contact: Contact) -> Contact:
        """The contact with only the addresses at which the peer is seen now: none while the peer comes through a gate."""
        observed = self.remote_address(contact.peer)
        addresses = observed_addresses(contact.addresses, observed) if observed else ()
        return Contact(contact.peer, addresses, contact.holder)

    def learn(self, contact: Contact) -> None:
        """Record a holder that answers at these addresses: from now on others are given its contact."""
        if not (contact.holder and contact.addresses):
            return
        contact_before = self.network.table.get(contact.peer)
        before = contact_before.addresses if contact_before is not None else ()
        if not set(contact.addresses) <= set(before):
            addresses = tuple(dict.fromkeys((*contact.addresses, *before)))[:MAX_ADDRESSES]
            now = trio.current_time()
            in_its_way = self.network.table.learn(Contact(contact.peer, addresses), now)
            if in_its_way is not None:
                self.nursery.start_soon(self.check, in_its_way)

    def _answered(self, contact: Contact, round_trip: float | None) -> None:
        for record in (self._silent, self._pauses, self._lost, self._unlisted):
            record.pop(contact.peer, None)
        self.learn(self.with_observed_addresses(contact))
        if self.network.table.get(contact.peer) is None:
            self._unlisted[contact.peer] = trio.current_time()
            if len(self._unlisted) > MAX_UNLISTED:
                self._unlisted.popitem(last=False)
        if round_trip is not None:
            self._round_trips.append(round_trip)
            least, _, longest = HEDGE_S
            self.hedge_s = min(max(3 * statistics.median(self._round_trips), least), longest)

    def _no_holder(self, peer: PeerId) -> None:
        """Do not ask a peer for a while that is not a holder; it may have been one that can no longer be dialled."""
        self._silent[peer] = trio.current_time() + NO_HOLDER_S
        self._lost.pop(peer, None)
        self.network.table.forget(peer)

    async def _failed(self, contact: Contact) -> None:
        first, longest = SILENT_S
        pause = self._pauses.get(contact.peer, first / 2)
        if self._silent.get(contact.peer, -math.inf) <= trio.current_time():
            pause = min(2 * pause, longest)  # once for one silence, however many calls were waiting
        if self.network.path(contact.peer) is None:
            self._gone.add(contact.peer)
            pause = longest
        if len(self._pauses) >= MAX_LOST:
            self._pauses.pop(next(iter(self._pauses)))
        self._pauses[contact.peer] = pause
        self._unlisted.pop(contact.peer, None)
        self._silent[contact.peer] = trio.current_time() + pause
        if contact.holder and (self.network.table.get(contact.peer) or contact.peer in self._lost):
            # a peer that was only named, and never answered, is not retried
            self._lost[contact.peer] = contact
            self._lost.move_to_end(contact.peer)
            if len(self._lost) > MAX_LOST:
                self._lost.popitem(last=False)
        self.network.table.forget(contact.peer)
        await self.links.drop(contact.peer)


def contact_infos(contacts: list[Contact]) -> tuple[index_messages.ContactInfo, ...]:
    """Contacts in their wire form."""
    return tuple(
        index_messages.ContactInfo(peer=contact.peer, addresses=contact.addresses[:8])
        for contact in contacts[: index_messages.MAX_CONTACTS]
        if contact.addresses
    )


def fingerprints(peers: list[PeerId]) -> bytes:
    """Short fingerprints of known holders, for `have` in a `StoreItem` or `QueryShard`."""
    return b"".join(
        routing_key(peer)[: index_messages.HAVE_BYTES] for peer in peers[: index_messages.MAX_CONTACTS]
    )
