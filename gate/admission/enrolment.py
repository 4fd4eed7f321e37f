"""Admits newcomers to the pools whose keys are on this home, and renews their members.

A newcomer shows the secret of a join ticket; a member is known by the peer id that the channel proved. The answer is the manifest that
lists it. A renewal never gives more than the member's line, which the owner may have lowered.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import structlog

from protocol.errors import NotPermitted, ResourceError
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import EnrolRequest, ManifestMessage, PoolManifest, PoolMember
from protocol.words import Reason
from swarm.base.home import Home
from swarm.net.addresses import PeerId
from swarm.net.identity import peer_id_bytes
from swarm.pools.manifests import find_member, is_live, revoked_peers, with_member
from swarm.pools.owner import OwnPool, own_pools

EARLY: Final = 0.75
"""A member with more of its life left than this share is not renewed yet."""
MAX_NAME: Final = 64
TAIL: Final = 6
"""Letters of a peer id after a name that another member has."""
TICKET_ID: Final = re.compile(r"[0-9a-f]{16}")

log = structlog.get_logger("sark.gate")


class PoolEnrolment:
    """Answers `EnrolRequest`. Reads the home's pools each time: another process may have just made or changed one."""

    def __init__(self, home: Home, wall: Callable[[], float]) -> None:
        self._home = home
        self._wall = wall

    def __call__(self, peer: PeerId, message: EnrolRequest) -> ManifestMessage | RefusedMessage:
        """Admit a peer, or say why not."""
        try:
            pools = own_pools(self._home, lambda exc: log.warning("pool.unusable", why=exc.what))
            pool = next((pool for pool in pools if pool.id == message.pool), None)
            if pool is None:
                return RefusedMessage(reason=Reason.UNKNOWN, detail="this gate does not have that pool's key")
            return self._enrol(pool, peer, message)
        except NotPermitted as exc:
            log.info("pool.refused", pool=message.pool, peer=peer, why=exc.what)
            return RefusedMessage(reason=Reason.NOT_ALLOWED, detail=exc.what)
        except ResourceError as exc:
            log.warning("pool.unusable", pool=message.pool, why=exc.what)
            return RefusedMessage(
                reason=Reason.NOT_SERVING, detail="the gate cannot use its disk now", retry_after_s=60.0
            )

    def _enrol(self, pool: OwnPool, peer: PeerId, message: EnrolRequest) -> ManifestMessage:
        now = self._wall()
        manifest = pool.manifest()
        if peer in revoked_peers(manifest):
            raise NotPermitted(f"pool {pool.name} revoked {peer}")
        ticket, fresh = None, False
        if message.ticket is not None:
            ticket = pool.find_ticket(message.ticket, now)
            if ticket.role is not message.role:
                raise NotPermitted(f"this ticket is not for the role {message.role}")
            _name(manifest, peer, message, now)  # a bad name does not use the ticket up
            fresh = pool.use_ticket(message.ticket, peer, now)

        def admit(manifest: PoolManifest) -> PoolManifest:
            member = find_member(manifest, peer, message.role, now)
            if ticket is None:
                if member is None:
                    raise NotPermitted(f"pool {pool.name} has no {message.role} {peer}")
                return with_member(manifest, _renewed(member, now), now)
            line = ticket.member(peer, _name(manifest, peer, message, now), now)
            stored = next((m for m in manifest.members if (m.peer, m.role) == (peer, message.role)), None)
            if stored is not None and not fresh:  # the ticket does not undo what the owner lowered since
                line = _least(_renewed(stored, now), line)
                if not is_live(line, now):
                    raise NotPermitted(f"the membership of {peer} in pool {pool.name} has ended")
            return with_member(manifest, line, now)

        after = pool.change(admit)
        if after.number != manifest.number:
            log.info("pool.member", pool=pool.name, peer=peer, role=str(message.role))
        return pool.signed()


def _renewed(member: PoolMember, now: float) -> PoolMember:
    if member.until is None or member.ttl_s is None or member.until - now > EARLY * member.ttl_s:
        return member
    return member.model_copy(update={"until": int(now) + member.ttl_s})


def _least(member: PoolMember, line: PoolMember) -> PoolMember:
    """What both lines allow, in the team of the member's; a line that cannot be renewed stays so."""
    slots = min((each.slots for each in (member, line) if each.slots is not None), default=None)
    until, ttl_s = line.until, line.ttl_s
    if member.until is not None:
        until = member.until if until is None else min(member.until, until)
        ttl_s = min(member.ttl_s, ttl_s) if member.ttl_s is not None and ttl_s is not None else None
    priority = min(member.priority, line.priority)
    return member.model_copy(update={"priority": priority, "slots": slots, "until": until, "ttl_s": ttl_s})


def _name(manifest: PoolManifest, peer: PeerId, message: EnrolRequest, now: float) -> str:
    """The name that it asks for, unless another member has it; a member keeps its own.

    Raises `NotPermitted` for a name that looks like a peer id or a ticket's id: an owner could not tell whom it revokes.
    """
    member = find_member(manifest, peer, message.role, now)
    if member is not None:
        return member.name
    if looks_like_id(message.name):
        raise NotPermitted(
            f"nobody can be called {message.name!r}: it looks like an id; choose another: --name"
        )
    tail = f"-{peer[-TAIL:]}"
    taken = {member.name for member in manifest.members if member.peer != peer}
    for name in (message.name, message.name[: MAX_NAME - len(tail)] + tail):
        if name not in taken:
            return name
    raise NotPermitted(
        f"another member of pool {manifest.name} is called {message.name!r}; choose another name: --name"
    )


def looks_like_id(name: str) -> bool:
    """Whether a name could be taken for a peer id or a ticket's id."""
    return TICKET_ID.fullmatch(name.lower()) is not None or is_peer(name)


def is_peer(text: str) -> bool:
    """Whether that is a peer id."""
    try:
        peer_id_bytes(text)
    except ValueError:
        return False
    return True
