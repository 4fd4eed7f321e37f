"""Staying connected with the gates: `BootstrapKeeper`, run by `host` for as long as a node is up.

The gates are given, or looked up again and again (a gate's file in the home): then one that is started later, or comes back on
another port, is found by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog
import trio
from libp2p.abc import INetConn, INetStream, INetwork, INotifee
from multiaddr import Multiaddr

from protocol.errors import ResourceError, Unreachable
from swarm.net.addresses import Address, Contact, PeerId, gate_contacts, parse_tcp, usable
from swarm.p2p.dialler import AnotherAnswers

JOIN_WITHIN_S: Final = 3.0
"""How long starting waits for a first gate; after that the search goes on beside the node's work."""
RETRY_FIRST_S: Final = 1.0
RETRY_MOST_S: Final = 30.0
LOOK_EVERY_S: Final = 2.0
"""How often it is looked whether the gates are others now, where they are looked up."""
RETRY_OTHERS_MOST_S: Final = 300.0
"""Of gates that do not answer while another one does."""
RETRY_LOOKED_UP_S: Final = 5.0
"""The longest pause where they are looked up: such a gate is mostly on this very host."""

MAX_SPARE: Final = 32
HEAD_START_S: Final = 1.0
"""Of gates over peers that were there lately."""

Gates = Sequence[str] | Callable[[], Sequence[str]]
"""`/ip4/…/tcp/…/p2p/12D3Koo…` each, or how to look them up."""

log = structlog.get_logger("sark.node")


class BootstrapNetwork(Protocol):
    """What of a node is needed here."""

    def connected(self) -> tuple[PeerId, ...]: ...

    async def connect(self, peer: PeerId, addresses: Sequence[Address]) -> None: ...

    def learn(self, contact: Contact) -> None: ...

    async def refresh(self) -> None: ...


class BootstrapKeeper(INotifee):
    """Keeps a connection with at least one gate: a restarted gate gets its nodes back within seconds.

    Where no gate answers, or none is known, peers that were there lately are ways in as well.
    """

    def __init__(
        self,
        network: BootstrapNetwork,
        gates: Gates,
        rng: random.Random,
        spare: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """`spare`: gives such peers, as gates are given. ResourceError when gates are given and one of them makes no sense."""
        self._spare = spare
        self._network = network
        self._look = gates if callable(gates) else None
        self._contacts: tuple[Contact, ...] = () if callable(gates) else gate_contacts(gates)
        self._seen: tuple[Contact, ...] = ()
        self._rng = rng
        self._lost = trio.Event()
        self._told: dict[PeerId, str] = {}

    def gives(self, address: Address) -> bool:
        """Whether it is an address of a gate that the owner gave: no stranger's word."""
        return any(address in (*contact.addresses, *usable(contact.addresses)) for contact in self._contacts)

    async def join_first(self) -> None:
        """Try all of them once, before Kademlia starts, so that its first look around finds somebody."""
        self._news()
        if self._contacts or self._spare:
            with trio.move_on_after(JOIN_WITHIN_S):
                await self._try_all()

    async def run(self) -> None:
        """Find them, and find them again, for ever; returns at once where there are none and never will be."""
        pause, most = RETRY_FIRST_S, RETRY_LOOKED_UP_S if self._look else RETRY_MOST_S
        while self._contacts or self._look or self._spare:
            if self._linked():
                pause = RETRY_FIRST_S
                self._lost = trio.Event()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._try_others)
                    await self._lost.wait()
                    nursery.cancel_scope.cancel()
                log.info("gate.lost", gates=[contact.peer for contact in self._contacts])
            news = await self._pause(pause * self._rng.uniform(0.5, 1.0))
            pause = RETRY_FIRST_S if news else min(pause * 2, most)
            if self._linked():
                self._learn()  # somebody else has connected with it meanwhile
                await self._network.refresh()
            elif await self._try_all():
                await self._network.refresh()

    async def _try_others(self) -> None:
        """One gate is enough to live by, but behind another one may be peers of whom nobody here has heard: whoever knows both makes
        one swarm of them. So those that did not answer at first are tried further on, ever more rarely."""
        pause = RETRY_FIRST_S
        while True:
            await trio.sleep(pause * self._rng.uniform(0.5, 1.0))
            live = set(self._network.connected())
            others = [contact for contact in self._contacts if contact.peer not in live]
            pause = min(pause * 2, RETRY_OTHERS_MOST_S) if others else RETRY_MOST_S
            async with trio.open_nursery() as nursery:
                for contact in others:
                    nursery.start_soon(self._try, contact)
            live = set(self._network.connected())
            if any(contact.peer in live for contact in others):
                await self._network.refresh()

    async def _pause(self, seconds: float) -> bool:
        """Wait, or less where there are other gates to try; gives whether there are."""
        until = trio.current_time() + seconds
        while (left := until - trio.current_time()) > 0:
            await trio.sleep(min(left, LOOK_EVERY_S))
            if self._news():
                return True
        return False

    def _news(self) -> bool:
        """Look the gates up; gives whether some appeared. Those that are gone are tried until others take their place."""
        if self._look is None:
            return False
        try:
            found = gate_contacts(self._look())
        except ResourceError:
            return False  # half written, or not by a gate: the next look may find better
        changed = found != self._seen
        self._seen = found
        if not changed or not found:
            return False
        self._contacts = found
        self._told = {}
        return True

    def _linked(self) -> bool:
        live = set(self._network.connected())
        return any(contact.peer in live for contact in self._contacts)

    def _learn(self) -> None:
        live = set(self._network.connected())
        for contact in self._contacts:
            if contact.peer in live:
                self._network.learn(contact)

    async def _try_all(self) -> bool:
        """Gives whether there is a way in that there was not before. Gates have a head start."""
        over, spare = trio.Event(), False

        async def beside() -> None:
            nonlocal spare
            with trio.move_on_after(HEAD_START_S):
                await over.wait()
            if not self._linked():
                spare = await self._try_spare()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(beside)
            async with trio.open_nursery() as trying:
                for contact in self._contacts:
                    trying.start_soon(self._try, contact)
            over.set()
        return self._linked() or spare

    async def _try_spare(self) -> bool:
        """Those who were there lately, unless one of them is connected already."""
        spare = self._spare_contacts()
        live = set(self._network.connected())
        if any(contact.peer in live for contact in spare):
            return False
        async with trio.open_nursery() as nursery:
            for contact in spare:
                nursery.start_soon(self._try_quietly, contact)
        live = set(self._network.connected())
        found = [contact.peer for contact in spare if contact.peer in live]
        if found:
            log.info("gate.none", instead=found)
        return bool(found)

    def _spare_contacts(self) -> tuple[Contact, ...]:
        try:
            return gate_contacts(self._spare() if self._spare is not None else ())[:MAX_SPARE]
        except ResourceError:
            return ()

    async def _try_quietly(self, contact: Contact) -> None:
        try:
            await self._network.connect(contact.peer, contact.addresses)
        except Unreachable as error:
            log.debug("past-peer.unreachable", peer=contact.peer, why=error.what)
        else:
            self._network.learn(contact)

    async def _try(self, contact: Contact) -> None:
        try:
            await self._network.connect(contact.peer, contact.addresses)
        except Unreachable as error:
            log.debug("gate.unreachable", peer=contact.peer, why=error.what)
            self._tell(contact, error)
        else:
            self._network.learn(contact)
            if self._told.pop(contact.peer, None):
                line = f"gate {_where(contact)} is reached"
                log.warning(line)  # as loud as what it takes back

    def _tell(self, contact: Contact, error: Unreachable) -> None:
        """One line, and none again until it would be another."""
        cause = error.__cause__
        if isinstance(cause, AnotherAnswers):
            line = f"gate {_where(contact)} is another gate: expected …{contact.peer[-8:]}, found …{cause.found[-8:]}"
            line += "; ask its operator for its address"
        else:
            line = f"gate {_where(contact)} does not answer; trying again"
        if self._told.get(contact.peer) != line:
            self._told[contact.peer] = line
            log.warning(line)

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        if not self._linked():
            self._lost.set()

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        """Of no interest."""

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        """Of no interest."""

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        """Of no interest."""

    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
        """Of no interest."""

    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
        """Of no interest."""


def _where(contact: Contact) -> str:
    """`192.0.2.7:4101`, the first of its addresses."""
    address = parse_tcp(contact.addresses[0])
    if address is None:
        return contact.addresses[0]
    host = f"[{address.host}]" if address.family == "ip6" else address.host
    return f"{host}:{address.port}"
