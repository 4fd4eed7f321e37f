"""Asking others about pools: the newest manifest, being let in, having a credential renewed, pushing what was taken back.

members ── Latest, every minute ──▶ gates of the pool, holders near its key        what was taken back is heard within a poll
owner   ── Spread, at once ──────▶ the same, and every worker found under `pool:NAME`
newcomer ─ Enrol ────────────────▶ gates of the pool, until one that has its key answers
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import structlog
import trio

from protocol.errors import NotPermitted, RemoteProtocolError, ResourceError, SarkError, Unreachable
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import (
    POOL,
    AskManifest,
    Enrolled,
    EnrolRequest,
    ManifestMessage,
    ManifestStored,
    NoManifest,
    SpreadManifest,
)
from protocol.values.requirement import Clause, Op, Requirement
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.index.query import QueryResult
from swarm.net.addresses import Contact, gate_contacts
from swarm.net.identity import routing_key
from swarm.net.link import Links
from swarm.net.network import Network
from swarm.pools.manifests import caught_up, verified
from swarm.pools.membership import Membership
from swarm.pools.owner import OwnPool
from swarm.pools.tokens import prove

ASK_S: Final = 3.0
AT_ONCE: Final = 32
WORKERS: Final = 10_000
ASKED_GATES: Final = 3
ASKED_HOLDERS: Final = 3
MAX_LINKS: Final = 64

log = structlog.get_logger("sark.pools")

M = TypeVar("M", bound=Message)


class ManifestDirectory(Protocol):
    """What is used of `swarm.index.Index`."""

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult: ...

    async def nearest(self, key: bytes) -> list[Contact]: ...


def pool_links(network: Network, nursery: trio.Nursery) -> Links:
    """Links for asking others about pools."""
    return Links(network, ProtocolId.POOL, POOL, nursery, keep=MAX_LINKS)


# -- asking others ----------------------------------------------------------------------------------------------------------------


async def _ask(links: Links, contact: Contact, message: Message, expected: type[M]) -> M:
    """One call. Raises `Unreachable`, `NotPermitted` for a no, `RemoteProtocolError` for nonsense."""
    answer = await links.call(contact.peer, contact.addresses, message, max_wait_s=ASK_S)
    if isinstance(answer, RefusedMessage):
        raise NotPermitted(answer.detail or str(answer.reason), hint=str(answer.reason))
    if not isinstance(answer, expected):
        raise RemoteProtocolError(f"{contact.peer} answered with {type(answer).__name__}")
    return answer


async def newest(
    links: Links,
    index: ManifestDirectory,
    gates: Sequence[str],
    pool: str,
    have: int,
    rng: random.Random,
    *,
    me: str = "",
) -> ManifestMessage | None:
    """The newest manifest of a pool that its gates or holders, `me` left out, have, if its number is above `have`."""
    known = [contact for contact in _contacts(gates) if contact.peer != me]
    near = [contact for contact in await _near(index, pool) if contact.peer != me]
    asked = {c.peer: c for c in rng.sample(known, min(len(known), ASKED_GATES))}
    asked |= {c.peer: c for c in rng.sample(near, min(len(near), ASKED_HOLDERS))}
    found: list[tuple[int, ManifestMessage]] = []

    async def ask(contact: Contact) -> None:
        try:
            answer = await _ask(links, contact, AskManifest(pool=pool, have=have), Message)
            if isinstance(answer, ManifestMessage):
                manifest = verified(answer.body, answer.signature)
                if manifest.pool == pool:
                    found.append((manifest.number, answer))
            elif not isinstance(answer, NoManifest):
                raise RemoteProtocolError(f"{contact.peer} answered with {type(answer).__name__}")
        except (Unreachable, NotPermitted, RemoteProtocolError) as exc:
            log.debug("pool.unanswered", peer=contact.peer, why=exc.what)

    async with trio.open_nursery() as nursery:
        for contact in asked.values():
            nursery.start_soon(ask, contact)
    number, signed = max(found, key=lambda item: item[0], default=(have, None))
    return signed if number > have else None


@dataclass(frozen=True, slots=True)
class HeardManifest:
    """How far a manifest came."""

    asked: int
    kept: int


async def spread(
    links: Links,
    index: ManifestDirectory,
    gates: Sequence[str],
    signed: ManifestMessage,
    *,
    workers: bool = True,
    me: str = "",
) -> HeardManifest:
    """Bring a manifest to the pool's gates, the holders near its key and (`workers`) all that work for it; not to `me`."""
    manifest = verified(signed.body, signed.signature)
    targets = {contact.peer: contact for contact in _contacts(gates)}
    targets |= {contact.peer: contact for contact in await _near(index, manifest.pool)}
    if workers:
        try:
            seen = await index.query(works_for(manifest.name), WORKERS)
        except SarkError as exc:
            log.warning("index.unreachable", why=exc.what)
        else:
            targets |= {s.advert.peer: Contact(s.advert.peer, s.advert.addresses) for s in seen.found}
    targets.pop(me, None)
    kept = 0
    slots = trio.CapacityLimiter(AT_ONCE)

    async def tell(contact: Contact) -> None:
        nonlocal kept
        async with slots:
            try:
                message = SpreadManifest(body=signed.body, signature=signed.signature)
                answer = await _ask(links, contact, message, ManifestStored)
                kept += answer.number >= manifest.number
            except (Unreachable, NotPermitted, RemoteProtocolError) as exc:
                log.info("pool.not_told", peer=contact.peer, why=exc.what)

    async with trio.open_nursery() as nursery:
        for contact in targets.values():
            nursery.start_soon(tell, contact)
    return HeardManifest(len(targets), kept)


async def push(
    links: Links, index: ManifestDirectory, gates: Sequence[str], pool: OwnPool, *, workers: bool, me: str
) -> HeardManifest:
    """Spread the manifest of a pool whose key is here. A newer one that is met, from before this home was restored, is caught up with.

    Raises `ResourceError`, and `NotPermitted` when the two cannot be made one.
    """
    newer = await newest(links, index, gates, pool.id, pool.manifest().number, random.Random(), me=me)
    if newer is not None:
        met = verified(newer.body, newer.signature)
        log.warning("pool.caught_up", pool=pool.name, number=met.number)
        pool.notes.unsure()
        pool.change(lambda manifest: caught_up(manifest, met))
    return await spread(links, index, gates, pool.signed(), workers=workers, me=me)


def works_for(pool_name: str) -> Requirement:
    """What finds the workers of a pool."""
    return Requirement(clauses=(Clause(attribute="pools", op=Op.HAS, value=pool_name),))


def _contacts(gates: Sequence[str]) -> list[Contact]:
    """The gates that make sense: they came with a ticket that anybody may have written."""
    found: list[Contact] = []
    for gate in dict.fromkeys(gates):
        try:
            found += gate_contacts((gate,))
        except ResourceError as exc:
            log.debug("pool.no_gate", gate=gate, why=exc.what)
    return found


async def _near(index: ManifestDirectory, pool: str) -> list[Contact]:
    try:
        return [contact for contact in await index.nearest(routing_key(pool)) if contact.addresses]
    except SarkError as exc:
        log.debug("pool.no_holders", pool=pool, why=exc.what)
        return []


async def enrol(
    links: Links, gates: Sequence[str], joined: Membership, peer: str, name: str, *, now: float
) -> tuple[Membership, ManifestMessage]:
    """Be let in, or have a credential renewed: the first gate that has the pool's key decides. `peer`: our own id.

    A ticket that was not used yet goes before the credential at hand, and is shown to the gates that it names and to no other:
    whoever sees it can use it. `gates`: asked, too, about a credential, which is of no use to them. Raises `NotPermitted` when it
    says no, `Unreachable` when none of them answers or has the key.
    """
    tokens = joined.to_show(now)
    if not tokens:
        raise NotPermitted(
            f"what pool {joined.name} gave to this {joined.role} is over",
            hint="ask its owner for a new ticket",
        )
    spent, first = joined.spent, None
    for token in tokens:
        by_ticket = token == joined.ticket
        try:
            asked = joined.gates if by_ticket else (*joined.gates, *gates)
            answer, until = await _enrol(links, asked, joined, token, peer, name, now)
        except (NotPermitted, Unreachable) as exc:
            first = first or exc
            spent |= by_ticket and isinstance(exc, NotPermitted)
            if isinstance(exc, Unreachable) and now < (joined.since + joined.until) / 2:
                break  # the credential need not be renewed yet
            continue
        update = {"credential": answer.token, "since": int(now), "until": until, "spent": spent or by_ticket}
        return joined.model_copy(update=update), ManifestMessage(body=answer.body, signature=answer.signature)
    assert first is not None
    raise first


async def _enrol(
    links: Links, gates: Sequence[str], joined: Membership, token: bytes, peer: str, name: str, now: float
) -> tuple[Enrolled, int]:
    """Show one token; the answer, and until when it is good."""
    message = EnrolRequest(pool=joined.pool, token=token, role=joined.role, name=name)
    why = "it has no gate"
    for contact in _contacts(gates):
        try:
            answer = await _ask(links, contact, message, Enrolled)
            manifest = verified(answer.body, answer.signature)
            proof = prove(answer.token, joined.pool, peer, now=now)
        except NotPermitted as exc:
            if exc.hint == Reason.NOT_ALLOWED:
                raise NotPermitted(
                    f"pool {joined.name} says no: {exc.what}", hint="ask its owner for a new ticket"
                ) from None
            why = exc.what
            continue
        except (Unreachable, RemoteProtocolError) as exc:
            why = exc.what
            continue
        if manifest.pool != joined.pool:
            why = f"{contact.peer} answered for another pool"
            continue
        return answer, int(proof.expires)
    raise Unreachable(f"no gate of pool {joined.name} lets in now: {why}")
