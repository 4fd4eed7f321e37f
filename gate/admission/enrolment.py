"""Letting newcomers into the pools whose keys are on this home, and renewing what their members were given.

A newcomer shows the bearer's token of a join ticket and gets one that is bound to its peer id; a member shows its own and gets it anew.
Both are checked against what was taken back, and the manifest names whoever was let in. A ticket counts as said only for as many as
it was given for; a renewal never gives more than the manifest's line, which the owner may have lowered.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from protocol.errors import NotPermitted, ResourceError
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import Enrolled, EnrolRequest, PoolManifest, PoolMember
from protocol.words import Reason, Role
from swarm.base.home import Home
from swarm.net.addresses import PeerId
from swarm.net.identity import peer_id_bytes
from swarm.pools.manifests import taken_back, with_member
from swarm.pools.owner import OwnPool, own_pools
from swarm.pools.tokens import Grant, issue, prove, prove_bearer

LASTS_S: Final = 30 * 86_400.0
"""A credential, where the ticket does not say otherwise."""
CLOCK_S: Final = 1.0
"""A ticket's end is told in whole seconds; it was made on this very home, by this very clock."""
MAX_NAME: Final = 64
TAIL: Final = 6
"""Letters of a peer id behind a name that another has already."""
TICKET_ID: Final = re.compile(r"[0-9a-f]{16}")
_TAKEN_BACK: Final = "what this pool gave for that was taken back"

log = structlog.get_logger("sark.gate")


class PoolEnrolment:
    """Answers `EnrolRequest`. Reads the pools of the home anew each time: they may have been made, or changed, a moment ago."""

    def __init__(self, home: Home, wall: Callable[[], float]) -> None:
        self._home = home
        self._wall = wall

    def __call__(self, peer: PeerId, message: EnrolRequest) -> Enrolled | RefusedMessage:
        """Let a peer in, or say why not."""
        try:
            pools = own_pools(self._home, lambda exc: log.warning("pool.unusable", why=exc.what))
            pool = next((pool for pool in pools if pool.id == message.pool), None)
            if pool is None:
                return RefusedMessage(
                    reason=Reason.UNKNOWN, detail="the key of that pool is not at this gate"
                )
            return self._enrol(pool, peer, message)
        except NotPermitted as exc:
            log.info("pool.refused", pool=message.pool, peer=peer, why=exc.what)
            return RefusedMessage(reason=Reason.NOT_ALLOWED, detail=exc.what)
        except ResourceError as exc:
            log.warning("pool.unusable", pool=message.pool, why=exc.what)
            return RefusedMessage(
                reason=Reason.NOT_SERVING, detail="the gate cannot use its disk now", retry_after_s=60.0
            )

    def _enrol(self, pool: OwnPool, peer: PeerId, message: EnrolRequest) -> Enrolled:
        now = self._wall()
        manifest = pool.manifest()
        shown = _shown(pool, peer, message, now)
        if taken_back(manifest, (peer,), shown.ids):
            raise NotPermitted(_TAKEN_BACK)
        name = _called(manifest, peer, message)
        ticket = shown.ids[0] if shown.ticket else None
        fresh = ticket is not None and pool.notes.use(ticket, peer, now)

        def let_in(manifest: PoolManifest) -> PoolManifest:
            if taken_back(manifest, (peer,), shown.ids):
                raise NotPermitted(_TAKEN_BACK)
            line = member_of(peer, message.role, name, shown.grant)
            before = _line(manifest, peer, message.role)
            if before is None and not shown.ticket:
                raise NotPermitted(f"pool {pool.name} knows no {message.role} {peer}")
            if before is not None and not fresh:  # what the owner lowered since stays low
                line = _lesser(before, line)
            return with_member(manifest, line)

        after = pool.change(let_in)
        if after.number != manifest.number:
            log.info("pool.member", pool=pool.name, peer=peer, name=name, role=str(message.role))
        line = _line(after, peer, message.role)
        grant = shown.grant if line is None else within_line(shown.grant, line)
        lasts = grant.renews_s if grant.renews_s is not None else LASTS_S
        pool.notes.gave(peer, now + lasts, ticket)
        token = issue(pool.key, peer, give(grant, lasts), now=now)
        signed = pool.signed()
        return Enrolled(token=token, body=signed.body, signature=signed.signature)


def _called(manifest: PoolManifest, peer: PeerId, message: EnrolRequest) -> str:
    """What the manifest calls a newcomer: as it says, unless another is called so; who is in keeps its name.

    Raises `NotPermitted` for a name that reads as a peer id or a ticket's id: an owner could not tell whom it takes back.
    """
    line = _line(manifest, peer, message.role)
    if line is not None:
        return line.name
    if reads_as_id(message.name):
        raise NotPermitted(f"nobody can be called {message.name!r}: it looks like an id; say another: --name")
    tail = f"-{peer[-TAIL:]}"
    taken = {member.name for member in manifest.members}
    for name in (message.name, message.name[: MAX_NAME - len(tail)] + tail):
        if name not in taken:
            return name
    raise NotPermitted(
        f"another of pool {manifest.name} is called {message.name!r}; say another name: --name"
    )


def reads_as_id(name: str) -> bool:
    """Whether a name could be taken for a peer id or a ticket's id."""
    return TICKET_ID.fullmatch(name.lower()) is not None or is_peer(name)


def is_peer(text: str) -> bool:
    """Whether that is a peer id."""
    try:
        peer_id_bytes(text)
    except ValueError:
        return False
    return True


def _line(manifest: PoolManifest, peer: PeerId, role: Role) -> PoolMember | None:
    return next((m for m in manifest.members if (m.peer, m.role) == (peer, role)), None)


def _lesser(before: PoolMember, line: PoolMember) -> PoolMember:
    """What both lines allow; the team is the one that the owner named last."""
    slots = [each.slots for each in (before, line) if each.slots is not None]
    priority = min(before.priority, line.priority)
    return before.model_copy(update={"priority": priority, "slots": min(slots, default=None)})


def within_line(grant: Grant, line: PoolMember) -> Grant:
    """The grant, at most what the manifest's line says."""
    slots = [each for each in (grant.slots, line.slots) if each is not None]
    return replace(
        grant,
        priority=min(grant.priority, line.priority),
        slots=min(slots, default=None),
        team=line.team,
    )


def member_of(peer: PeerId, role: Role, name: str, grant: Grant) -> PoolMember:
    """The manifest's line about somebody with that grant."""
    return PoolMember(
        peer=peer, role=role, name=name, team=grant.team, priority=grant.priority, slots=grant.slots
    )


def give(grant: Grant, lasts_s: float) -> Grant:
    """The grant as a credential that lasts so long, and can be renewed for as long again."""
    return Grant(
        rights=grant.rights,
        priority=grant.priority,
        slots=grant.slots,
        team=grant.team,
        campaigns=grant.campaigns,
        lasts_s=lasts_s,
        renews_s=lasts_s,
    )


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a shown token gives."""

    grant: Grant
    ids: tuple[bytes, ...]
    ticket: bool


def _shown(pool: OwnPool, peer: PeerId, message: EnrolRequest, now: float) -> _Shown:
    """What the shown token gives. Raises `NotPermitted`."""
    try:
        bearer = prove_bearer(message.token, pool.id, now=now, leeway_s=CLOCK_S)
    except NotPermitted as not_a_ticket:
        try:
            proof = prove(message.token, pool.id, peer, now=now)
        except NotPermitted:
            raise not_a_ticket from None
        if len(proof.holders) > 1 or proof.grant.renews_s is None:
            raise NotPermitted("this permission cannot be renewed here") from None
        return _Shown(proof.grant, proof.ids, ticket=False)
    if bearer.role is not message.role:
        raise NotPermitted(f"the ticket is for another role than {message.role}")
    return _Shown(bearer.grant, bearer.ids, ticket=True)
