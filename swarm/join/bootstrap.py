"""Keeps a node connected to its gates.

The gates are configured, or looked up repeatedly (from a gate's file in the home), so that a gate is found even if it starts later or on
another port.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import trio

from protocol.errors import ResourceError, Unreachable
from swarm.net.addresses import Address, Contact, PeerId, gate_contacts, parse_tcp, usable
from swarm.net.network import Network
from swarm.p2p.dialler import WrongPeerAnswered

JOIN_WITHIN_S: Final = 3.0
"""How long the start waits for the first gate; then the search continues in the background."""
RETRY_FIRST_S: Final = 1.0
RETRY_MOST_S: Final = 30.0
LOOKUP_S: Final = 2.0
"""Between two lookups of the gates."""
RETRY_OTHERS_MOST_S: Final = 300.0
"""Longest pause for gates that do not answer while another one does."""
RETRY_LOOKED_UP_S: Final = 5.0
"""Longest pause if gates are looked up: such a gate is usually on this host."""

MAX_FALLBACK: Final = 32
HEAD_START_S: Final = 1.0
"""Head start of gates over fallback peers."""

Gates = Sequence[str] | Callable[[], Sequence[str]]
"""Addresses `/ip4/…/tcp/…/p2p/12D3Koo…`, or a function that looks them up."""

log = structlog.get_logger("sark.node")


class BootstrapKeeper:
    """Keeps a connection to at least one gate or, while none answers, to a fallback peer."""

    def __init__(
        self,
        network: Network,
        gates: Gates,
        rng: random.Random,
        fallback: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """`fallback`: returns addresses of peers, in the form of gates' addresses. Raises `ResourceError` for an invalid gate."""
        self._fallback = fallback
        self._network = network
        self._look = gates if callable(gates) else None
        self._contacts: tuple[Contact, ...] = () if callable(gates) else gate_contacts(gates)
        self._looked_up: tuple[Contact, ...] = ()
        self._rng = rng
        self._lost = trio.Event()
        self._warned: dict[PeerId, str] = {}

    def gives(self, address: Address) -> bool:
        """Whether this is an address of one of the owner's gates."""
        return any(address in (*contact.addresses, *usable(contact.addresses)) for contact in self._contacts)

    async def join_first(self) -> None:
        """Try all gates once before the roles start, so that the roles' first lookup finds somebody."""
        self._look_up_gates()
        if self._contacts or self._fallback:
            with trio.move_on_after(JOIN_WITHIN_S):
                await self._try_all()

    async def run(self) -> None:
        """Connect and reconnect until cancelled; return at once if there are no gates and never will be."""
        pause, most = RETRY_FIRST_S, RETRY_LOOKED_UP_S if self._look else RETRY_MOST_S
        while self._contacts or self._look or self._fallback:
            if self._linked():
                pause = RETRY_FIRST_S
                self._lost = trio.Event()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._try_others)
                    await self._lost.wait()
                    nursery.cancel_scope.cancel()
                log.info("gate.lost", gates=[contact.peer for contact in self._contacts])
            changed = await self._pause(pause * self._rng.uniform(0.5, 1.0))
            pause = RETRY_FIRST_S if changed else min(pause * 2, most)
            if gates := self._live(self._contacts):  # a gate was connected elsewhere
                for gate in gates:
                    self._network.table.learn(gate, trio.current_time())
            else:
                await self._try_all()

    async def _try_others(self) -> None:
        """Retry the gates that did not answer, ever more rarely: they may lead to a part of the swarm that is unknown here."""
        pause = RETRY_FIRST_S
        while True:
            await trio.sleep(pause * self._rng.uniform(0.5, 1.0))
            live = self._live(self._contacts)
            others = [contact for contact in self._contacts if contact not in live]
            pause = min(pause * 2, RETRY_OTHERS_MOST_S) if others else RETRY_MOST_S
            async with trio.open_nursery() as nursery:
                for contact in others:
                    nursery.start_soon(self._try, contact)

    async def _pause(self, seconds: float) -> bool:
        """Wait, or until new gates appear; return whether they did."""
        until = trio.current_time() + seconds
        while (left := until - trio.current_time()) > 0:
            await trio.sleep(min(left, LOOKUP_S))
            if self._look_up_gates():
                return True
        return False

    def _look_up_gates(self) -> bool:
        """Look the gates up; return whether they changed. Old gates are retried until new ones replace them."""
        if self._look is None:
            return False
        try:
            contacts = gate_contacts(self._look())
        except ResourceError:
            return False  # the file is half written: the next lookup may succeed
        changed = contacts != self._looked_up
        self._looked_up = contacts
        if not changed or not contacts:
            return False
        self._contacts = contacts
        self._warned = {}
        return True

    def _live(self, contacts: Sequence[Contact]) -> list[Contact]:
        """The connected ones of `contacts`."""
        return [contact for contact in contacts if self._network.path(contact.peer) is not None]

    def _linked(self) -> bool:
        return bool(self._live(self._contacts))

    async def _try_all(self) -> None:
        """Try all gates, and after their head start the fallback peers."""
        gates_tried = trio.Event()

        async def try_fallback() -> None:
            with trio.move_on_after(HEAD_START_S):
                await gates_tried.wait()
            if not self._linked():
                await self._try_fallback()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(try_fallback)
            async with trio.open_nursery() as gates:
                for contact in self._contacts:
                    gates.start_soon(self._try, contact)
            gates_tried.set()

    async def _try_fallback(self) -> None:
        """Connect to fallback peers, unless one is connected already."""
        try:
            contacts = gate_contacts(self._fallback() if self._fallback is not None else ())[:MAX_FALLBACK]
        except ResourceError:
            return
        if self._live(contacts):
            return
        async with trio.open_nursery() as nursery:
            for contact in contacts:
                nursery.start_soon(self._try, contact, True)
        if peers := [contact.peer for contact in self._live(contacts)]:
            log.info("gate.none", instead=peers)

    async def _try(self, contact: Contact, fallback: bool = False) -> None:
        try:
            await self._network.connect(contact.peer, contact.addresses)
        except Unreachable as error:
            log.debug("peer.unreachable", peer=contact.peer, why=error.what)
            if not fallback:
                self._warn(contact, error)
        else:
            self._network.table.learn(contact, trio.current_time())
            if self._warned.pop(contact.peer, None):
                line = f"{_where(contact)} answers now"
                log.warning(line)  # as loud as the warning before it

    def _warn(self, contact: Contact, error: Unreachable) -> None:
        """Log a line, unless it is the last line logged for this gate."""
        cause = error.__cause__
        if isinstance(cause, WrongPeerAnswered):
            line = f"gate {_where(contact)} is another gate: expected …{contact.peer[-8:]}, found …{cause.actual[-8:]}"
            line += "; ask its operator for its address"
        else:
            line = f"{_where(contact)} does not answer; trying again"
        if self._warned.get(contact.peer) != line:
            self._warned[contact.peer] = line
            log.warning(line)

    def disconnected(self) -> None:
        """Notice that a connection ended."""
        if not self._linked():
            self._lost.set()


def _where(contact: Contact) -> str:
    """`192.0.2.7:4101`, from the first of a contact's addresses."""
    address = parse_tcp(contact.addresses[0])
    if address is None:
        return contact.addresses[0]
    host = f"[{address.host}]" if address.family == "ip6" else address.host
    return f"{host}:{address.port}"
