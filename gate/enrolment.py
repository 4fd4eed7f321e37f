"""Letting newcomers into the pools whose keys are on this home, and renewing what their members were given.

A newcomer shows the bearer's token of a join ticket and gets one that is bound to its peer id; a member shows its own and gets it anew.
Both are checked against what was taken back, and the manifest names whoever was let in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from protocol.errors import NotPermitted, ResourceError
from protocol.index_messages import Refused
from protocol.pool_messages import Enrol, Enrolled, Member, PoolManifest
from protocol.words import Reason, Role
from swarm.home import Home
from swarm.manifests import taken_back, with_member
from swarm.network import PeerId
from swarm.own_pools import OwnPool, own_pools
from swarm.tokens import Grant, issue, prove, prove_bearer

LASTS_S: Final = 30 * 86_400.0
"""A credential, where the ticket does not say otherwise."""
_TAKEN_BACK: Final = "what this pool gave for that was taken back"

log = structlog.get_logger("sark.gate")


class Enrolment:
    """Answers `Enrol`. Reads the pools of the home anew each time: they may have been made, or changed, a moment ago."""

    def __init__(self, home: Home, wall: Callable[[], float]) -> None:
        self._home = home
        self._wall = wall

    def __call__(self, peer: PeerId, message: Enrol) -> Enrolled | Refused:
        """Let a peer in, or say why not."""
        try:
            pool = next((pool for pool in own_pools(self._home) if pool.id == message.pool), None)
            if pool is None:
                return Refused(reason=Reason.UNKNOWN, detail="the key of that pool is not at this gate")
            return self._enrol(pool, peer, message)
        except NotPermitted as exc:
            log.info("pool.refused", pool=message.pool, peer=peer, why=exc.what)
            return Refused(reason=Reason.NOT_ALLOWED, detail=exc.what)
        except ResourceError as exc:
            log.warning("pool.unusable", pool=message.pool, why=exc.what)
            return Refused(
                reason=Reason.NOT_SERVING, detail="the gate cannot use its disk now", retry_after_s=60.0
            )

    def _enrol(self, pool: OwnPool, peer: PeerId, message: Enrol) -> Enrolled:
        now = self._wall()
        if taken_back(pool.manifest(), (peer,), ()):
            raise NotPermitted(_TAKEN_BACK)
        grant, ids = _shown(pool, peer, message, now)

        def let_in(manifest: PoolManifest) -> PoolManifest:
            if taken_back(manifest, (peer,), ids):
                raise NotPermitted(_TAKEN_BACK)
            return with_member(manifest, member_of(peer, message.role, message.name, grant))

        before = pool.manifest().number
        manifest = pool.change(let_in)
        pool.used(ids, peer, now)
        if manifest.number != before:
            log.info("pool.member", pool=pool.name, peer=peer, name=message.name, role=str(message.role))
        lasts = grant.renews_s if grant.renews_s is not None else LASTS_S
        token = issue(pool.key, peer, give(grant, lasts), now=now)
        signed = pool.signed()
        return Enrolled(token=token, body=signed.body, signature=signed.signature)


def member_of(peer: PeerId, role: Role, name: str, grant: Grant) -> Member:
    """The manifest's line about somebody with that grant."""
    return Member(
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


def _shown(pool: OwnPool, peer: PeerId, message: Enrol, now: float) -> tuple[Grant, tuple[bytes, ...]]:
    """What the shown token gives, and its ids. Raises `NotPermitted`."""
    try:
        bearer = prove_bearer(message.token, pool.id, now=now)
    except NotPermitted as not_a_ticket:
        try:
            proof = prove(message.token, pool.id, peer, now=now)
        except NotPermitted:
            raise not_a_ticket from None
        if len(proof.holders) > 1 or proof.grant.renews_s is None:
            raise NotPermitted("this permission cannot be renewed here") from None
        known = {(member.peer, member.role) for member in pool.manifest().members}
        if (peer, message.role) not in known:
            raise NotPermitted(f"pool {pool.name} knows no {message.role} {peer}") from None
        return proof.grant, proof.ids
    if bearer.role is not message.role:
        raise NotPermitted(f"the ticket is for another role than {message.role}")
    return bearer.grant, bearer.ids
