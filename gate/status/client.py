"""Reads a gate's status, under a fresh key and a token of a minute that a key of this home signed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

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
from swarm.net.link import Links
from swarm.net.network import Network
from swarm.p2p.dialler import AnotherAnswers
from swarm.pools.tokens import Grant, issue

ANSWER_S: Final = 5.0
TTL_S: Final = 60.0
RENEW_S: Final = 40.0


class GateClient:
    """One gate, for repeated requests."""

    def __init__(
        self, network: Network, links: Links, contact: Contact, signer: Identity, wall: Callable[[], float]
    ) -> None:
        self.peer: Final[PeerId] = contact.peer
        self._me = network.peer_id
        self._links = links
        self._contact = contact
        self._signer = signer
        self._wall = wall
        self._shown_at = float("-inf")

    async def status(self) -> GateSnapshot:
        """Its status now. Raises `Unreachable`, `NotPermitted`, `RemoteProtocolError`."""
        if self._links.peek(self._contact.peer) is None or trio.current_time() - self._shown_at > RENEW_S:
            await self._show()
        answer = await self._call(GateStatus())
        if isinstance(answer, GateSnapshot):
            return answer
        raise _no(answer, self._signer)

    async def _show(self) -> None:
        grant = Grant(frozenset({Right.STATUS}), ttl_s=TTL_S)
        token = issue(self._signer, self._me, grant, now=self._wall())
        answer = await self._call(ShowCredentials(issuer=self._signer.peer_id, token=token))
        if not isinstance(answer, CredentialsReply):
            raise _no(answer, self._signer)
        self._shown_at = trio.current_time()

    async def _call(self, message: Message) -> Message:
        return await self._links.call(
            self._contact.peer, self._contact.addresses, message, max_wait_s=ANSWER_S
        )


def _no(answer: Message, signer: Identity) -> NotPermitted | RemoteProtocolError:
    if not isinstance(answer, RefusedMessage):
        return RemoteProtocolError(f"answered with {type(answer).__name__}")
    if answer.reason is not Reason.NOT_ALLOWED:
        return NotPermitted(f"the gate refuses: {answer.detail or answer.reason}")
    return NotPermitted(
        "only its operators may read this gate's status, and this home is not one of them",
        hint=f"its operator adds you with: sark-node gate --operator {signer.peer_id}",
    )


@asynccontextmanager
async def asking(
    home: Home, gates: Sequence[str], *, wall: Callable[[], float] = time.time
) -> AsyncIterator[GateClient]:
    """The first of these gates that answers. Raises `Unreachable`, and `ResourceError` for a bad address."""
    contacts = gate_contacts(gates)
    if not contacts:
        raise Unreachable(
            "this home knows no gate",
            hint="start one with: sark-node gate\nor name one: sark-node gate status --gate /ip4/…/tcp/4101/p2p/12D3Koo…",
        )
    async with (
        open_host(Identity.fresh(), server=False) as network,
        trio.open_nursery() as nursery,
    ):
        contact = await _first(network, contacts)
        links = Links(network, ProtocolId.GATE, GATE, nursery)
        yield GateClient(network, links, contact, _signer(home, contact.peer), wall)
        nursery.cancel_scope.cancel()


async def _first(network: Network, contacts: Sequence[Contact]) -> Contact:
    why: list[str] = []
    for contact in contacts:
        try:
            await network.connect(contact.peer, contact.addresses, max_wait_s=ANSWER_S)
        except Unreachable as exc:
            why.append(_why(contact, exc))
            continue
        return contact
    raise Unreachable(f"no gate answers: {'; '.join(why)}", hint="is it running, and is the address correct?")


def _why(contact: Contact, exc: Unreachable) -> str:
    cause = exc.__cause__
    if isinstance(cause, AnotherAnswers):
        where = ", ".join(contact.addresses)
        return f"{where} is another gate: expected {contact.peer}, got {cause.found}"
    return exc.what


def _signer(home: Home, gate: PeerId) -> Identity:
    """The gate's own key if it is this home's, else the scheduler's, by whose id gates name operators."""
    path = home.key("gate")
    if path.exists():
        own = load_or_create(path)
        if own.peer_id == gate:
            return own
    return load_or_create(home.key("scheduler"))
