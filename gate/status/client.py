"""Reads a gate's status, with a fresh key and a one-minute token that a key of this home signed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import trio

from protocol.errors import NotPermitted, RemoteProtocolError, Unreachable
from protocol.messages.gate import GATE, GateSnapshot, GateStatus
from protocol.messages.index import RefusedMessage
from protocol.messages.work import CredentialsReply, ShowCredentials
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason, Right
from swarm.base.home import Home
from swarm.join.host import open_host
from swarm.net.addresses import Contact, PeerId, gate_contacts
from swarm.net.identity import Identity, load_or_create
from swarm.net.links import Links
from swarm.net.network import Network
from swarm.p2p.dialler import WrongPeerAnswered
from swarm.pools.tokens import Grant, issue

ANSWER_S: Final = 5.0
TTL_S: Final = 60.0
RENEW_S: Final = 40.0

M = TypeVar("M", bound=Message)


@dataclass
class GateClient:
    """One gate, for repeated requests."""

    network: Network
    links: Links
    contact: Contact
    signer: Identity
    wall: Callable[[], float]
    _shown_at: float = float("-inf")

    async def status(self) -> GateSnapshot:
        """The gate's current status. Raises `Unreachable`, `NotPermitted`, `RemoteProtocolError`."""
        if self.links.peek(self.contact.peer) is None or trio.current_time() - self._shown_at > RENEW_S:
            grant = Grant(frozenset({Right.STATUS}), ttl_s=TTL_S)
            token = issue(self.signer, self.network.peer_id, grant, now=self.wall())
            await self._call(ShowCredentials(issuer=self.signer.peer_id, token=token), CredentialsReply)
            self._shown_at = trio.current_time()
        return await self._call(GateStatus(), GateSnapshot)

    async def _call(self, message: Message, expected: type[M]) -> M:
        answer = await self.links.call(
            self.contact.peer, self.contact.addresses, message, max_wait_s=ANSWER_S
        )
        if isinstance(answer, expected):
            return answer
        if not isinstance(answer, RefusedMessage):
            raise RemoteProtocolError(f"answered with {type(answer).__name__}")
        if answer.reason is not Reason.NOT_ALLOWED:
            raise NotPermitted(f"the gate refuses: {answer.detail or answer.reason}")
        raise NotPermitted(
            "only its operators may read this gate's status, and this home is not one of them",
            hint=f"its operator adds you with: sark-node gate --operator {self.signer.peer_id}",
        )


@asynccontextmanager
async def asking(
    home: Home, gates: Sequence[str], *, wall: Callable[[], float] = time.time
) -> AsyncIterator[GateClient]:
    """A client of the first of these gates that answers. Raises `Unreachable`, and `ResourceError` for an invalid address."""
    contacts = gate_contacts(gates)
    if not contacts:
        raise Unreachable(
            "this home knows no gate",
            hint="start one with: sark-node gate\nor name one: sark-node gate status --gate /ip4/…/tcp/4101/p2p/12D3Koo…",
        )
    async with open_host(Identity.fresh()) as network, trio.open_nursery() as nursery:
        contact = await _first(network, contacts)
        links = Links(network, ProtocolId.GATE, GATE, nursery)
        yield GateClient(network, links, contact, _signer(home, contact.peer), wall)
        nursery.cancel_scope.cancel()


async def _first(network: Network, contacts: Sequence[Contact]) -> Contact:
    why: list[str] = []
    for contact in contacts:
        try:
            await network.connect(contact.peer, contact.addresses, max_wait_s=ANSWER_S)
            return contact
        except Unreachable as exc:
            if isinstance(exc.__cause__, WrongPeerAnswered):
                where = ", ".join(contact.addresses)
                why.append(f"{where} is another gate: expected {contact.peer}, got {exc.__cause__.actual}")
            else:
                why.append(exc.what)
    raise Unreachable(f"no gate answers: {'; '.join(why)}", hint="is it running, and is the address correct?")


def _signer(home: Home, gate: PeerId) -> Identity:
    """The gate's own key if the gate is this home's, else the scheduler's key, because gates know operators by their scheduler ids."""
    path = home.key("gate")
    if path.exists():
        own = load_or_create(path)
        if own.peer_id == gate:
            return own
    return load_or_create(home.key("scheduler"))
