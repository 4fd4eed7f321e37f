"""Calls to other nodes about pools: for the newest manifest, for admission and renewal, and to spread a manifest.

members   ── AskManifest, every minute ─▶ gates of the pool, holders near its key        a revocation arrives within one poll
owner     ── Manifest, at once ─────────▶ the same nodes, and every worker found under `pool:NAME`
newcomer  ── EnrolRequest ──────────────▶ gates of the pool, until one that has its key answers
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import structlog
import trio

from protocol.errors import NotPermitted, RemoteProtocolError, SarkError, Unreachable
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import (
    POOL,
    AskManifest,
    EnrolRequest,
    ManifestMessage,
    ManifestStored,
    PoolManifest,
    PoolMember,
)
from protocol.values.requirement import Clause, Op, Requirement
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.index.query import QueryResult
from swarm.net.addresses import Contact, peer_contacts
from swarm.net.identity import routing_key
from swarm.net.links import Links
from swarm.net.network import Network
from swarm.pools.manifests import find_member, merge_restored_manifest, verified
from swarm.pools.membership import Membership
from swarm.pools.owner import OwnPool

ANSWER_S: Final = 3.0
CONCURRENT: Final = 32
WORKERS: Final = 10_000
MAX_ASKED: Final = 3
"""How many gates, and how many holders, are asked for the newest manifest."""
MAX_LINKS: Final = 64

log = structlog.get_logger("sark.pools")

M = TypeVar("M", bound=Message)


class ManifestDirectory(Protocol):
    """The part of `swarm.index.index.Index` used here."""

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult: ...

    async def nearest(self, key: bytes) -> list[Contact]: ...


@dataclass(frozen=True, slots=True)
class SpreadResult:
    """How many nodes were sent a manifest, and how many have it now."""

    called: int
    stored: int


class PoolClient:
    """One node's calls to `/sark/pool/1`. `gates` are addresses; the client never calls its own node."""

    def __init__(
        self, network: Network, nursery: trio.Nursery, index: ManifestDirectory, rng: random.Random
    ) -> None:
        self._network = network
        self._me = network.peer_id
        self._links = Links(network, ProtocolId.POOL, POOL, nursery, keep=MAX_LINKS)
        self._index = index
        self._rng = rng

    async def newest(self, gates: Sequence[str], pool: str, have: int) -> ManifestMessage | None:
        """The newest manifest with a number above `have`, from the pool's gates and holders."""
        targets: list[Contact] = []
        for contacts in (peer_contacts(gates), await self._holders(pool)):
            others = [contact for contact in contacts if contact.peer != self._me]
            targets += self._rng.sample(others, min(len(others), MAX_ASKED))
        number, newest = have, None
        for answer in await self._call_all(targets, AskManifest(pool=pool, have=have), ManifestMessage):
            with contextlib.suppress(RemoteProtocolError):
                manifest = verified(answer)
                if manifest.pool == pool and manifest.number > number:
                    number, newest = manifest.number, answer
        return newest

    async def spread(
        self, gates: Sequence[str], signed: ManifestMessage, *, workers: bool = True
    ) -> SpreadResult:
        """Send a manifest to the pool's gates, the holders near its key and, with `workers`, all of its workers."""
        manifest = verified(signed)
        contacts = [*peer_contacts(gates), *await self._holders(manifest.pool)]
        if workers:
            in_pool = Requirement(clauses=(Clause(attribute="pools", op=Op.HAS, value=manifest.name),))
            try:
                result = await self._index.query(in_pool, WORKERS)
            except SarkError as exc:
                log.warning("index.unreachable", why=exc.what)
            else:
                contacts += [Contact(s.advert.peer, s.advert.addresses) for s in result.devices]
        targets = {contact.peer: contact for contact in contacts if contact.peer != self._me}
        answers = await self._call_all(targets.values(), signed, ManifestStored)
        return SpreadResult(len(targets), sum(answer.number >= manifest.number for answer in answers))

    async def push(self, gates: Sequence[str], pool: OwnPool, *, workers: bool, now: float) -> SpreadResult:
        """Spread the manifest of a pool whose key is in this home. If a newer one exists elsewhere, this home was restored from a copy; it
        then catches up first.

        Raises `ResourceError`, and `NotPermitted` if the two manifests cannot be merged.
        """
        newer = await self.newest(gates, pool.id, pool.manifest().number)
        if newer is not None:
            log.warning("pool.caught_up", pool=pool.name, number=verified(newer).number)
            pool.change(lambda manifest: merge_restored_manifest(manifest, verified(newer), now))
        return await self.spread(gates, pool.signed(), workers=workers)

    async def enrol(
        self,
        gates: Sequence[str],
        joined: Membership,
        manifest: PoolManifest | None,
        name: str,
        *,
        now: float,
        device: str | None = None,
    ) -> tuple[Membership, ManifestMessage]:
        """Join a pool by its ticket, or renew a membership; any gate that has the pool's key can do this.

        An unused ticket is tried first, and shown only to the nodes that it names, since anyone who sees it can use it. `gates`: also asked
        to renew; `device`: the id of a worker's device. Raises `NotPermitted` if a node refuses and none admits, `Unreachable` if no node
        with the pool's key answers.
        """
        member = find_member(manifest, self._me, joined.role, now)
        self._network.owner_gave(joined.admitters)
        everywhere = (*joined.admitters, *joined.gates, *gates)
        tries: list[tuple[bytes | None, Sequence[str]]] = (
            [(joined.ticket, joined.admitters)] if joined.unused else []
        )
        if member is not None:
            tries.append((None, everywhere))
        elif joined.ticket is not None and joined.spent:  # a used ticket admits the same peer again
            tries.append((joined.ticket, joined.admitters))
        if not tries:
            raise NotPermitted(
                f"the membership in pool {joined.name} as {joined.role} has ended",
                hint="ask its owner for a new ticket",
            )
        spent, first = joined.spent, None
        for ticket, ways in tries:
            request = EnrolRequest(
                pool=joined.pool, ticket=ticket, role=joined.role, name=name, device=device
            )
            try:
                signed = await self._enrol(ways, joined, request, None if ticket else member, now)
            except (NotPermitted, Unreachable) as exc:
                first = first or exc
                spent |= ticket is not None and isinstance(exc, NotPermitted)
                if isinstance(exc, Unreachable) and not is_due(member, now):
                    break
                continue
            return joined.model_copy(update={"spent": spent or ticket is not None}), signed
        assert first is not None
        raise first

    async def _enrol(
        self,
        gates: Sequence[str],
        joined: Membership,
        request: EnrolRequest,
        member: PoolMember | None,
        now: float,
    ) -> ManifestMessage:
        """The manifest by which the pool admits us. `member`: our line, if it is to be renewed. Any peer can refuse in a pool's name, or
        answer with an old manifest; then the next gate is asked, and the newest manifest counts."""
        why = "its ticket names no node to ask"
        refused: str | None = None
        latest: tuple[int, ManifestMessage] | None = None
        for contact in peer_contacts(gates):
            try:
                signed = await self._call(contact, request, ManifestMessage)
                manifest = verified(signed)
            except NotPermitted as exc:
                if exc.hint == Reason.NOT_ALLOWED:
                    refused = refused or exc.what
                why = exc.what
            except (Unreachable, RemoteProtocolError) as exc:
                why = exc.what
            else:
                line = (
                    find_member(manifest, self._me, joined.role, now)
                    if manifest.pool == joined.pool
                    else None
                )
                if line is None:
                    why = f"{contact.peer} answered with a manifest that does not list this node"
                elif member is None or (line.until or math.inf) > (member.until or math.inf):
                    return signed
                elif latest is None or manifest.number > latest[0]:
                    latest = manifest.number, signed
        if latest is not None:
            return latest[1]
        if refused is not None:
            raise NotPermitted(
                f"pool {joined.name} refuses: {refused}", hint="ask its owner for a new ticket"
            )
        raise Unreachable(
            f"no node that admits members to pool {joined.name} answers now: {why}",
            hint="the command that printed the ticket must still be waiting there: sark-node invite"
            if joined.admits
            else "",
        )

    async def _holders(self, pool: str) -> list[Contact]:
        try:
            return [contact for contact in await self._index.nearest(routing_key(pool)) if contact.addresses]
        except SarkError as exc:
            log.debug("pool.no_holders", pool=pool, why=exc.what)
            return []

    async def _call_all(self, contacts: Iterable[Contact], message: Message, expected: type[M]) -> list[M]:
        """The expected answers; other answers are only logged."""
        answers: list[M] = []
        limiter = trio.CapacityLimiter(CONCURRENT)
        report = log.info if isinstance(message, ManifestMessage) else log.debug  # NoManifest is usual

        async def call(contact: Contact) -> None:
            async with limiter:
                try:
                    answers.append(await self._call(contact, message, expected))
                except (Unreachable, NotPermitted, RemoteProtocolError) as exc:
                    report("pool.unanswered", peer=contact.peer, why=exc.what)

        async with trio.open_nursery() as nursery:
            for contact in {contact.peer: contact for contact in contacts}.values():
                nursery.start_soon(call, contact)
        return answers

    async def _call(self, contact: Contact, message: Message, expected: type[M]) -> M:
        """Make one call. Raises `Unreachable`, `NotPermitted` for a refusal, `RemoteProtocolError` for any other answer."""
        answer = await self._links.call(contact.peer, contact.addresses, message, max_wait_s=ANSWER_S)
        if isinstance(answer, RefusedMessage):
            raise NotPermitted(answer.detail or str(answer.reason), hint=str(answer.reason))
        if not isinstance(answer, expected):
            raise RemoteProtocolError(f"{contact.peer} answered with {type(answer).__name__}")
        return answer


def is_due(member: PoolMember | None, now: float) -> bool:
    """Whether to renew a membership: half of its lifetime is over."""
    if member is None or member.until is None or member.ttl_s is None:
        return member is None
    return now >= member.until - member.ttl_s / 2
