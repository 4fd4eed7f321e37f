"""Who is let in now: `admission` kept up to date with the home's pools, visitors that somebody vouches for, and what was refused.

A command of somebody who is let in comes under a fresh key: it shows a permission of a minute that a key of its home signed. The same
permission, of an operator's key, lets it read the gate's status.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import structlog
import trio

from gate.admission.admission import Admission, RetryPauses, live_members
from gate.settings import Admit, GateSettings
from protocol.errors import NotPermitted, ResourceError
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import PoolManifest
from protocol.messages.work import CredentialsReply, ShowCredentials
from protocol.words import Reason, Right
from swarm.base.home import Home
from swarm.index.server import TokenBuckets
from swarm.net.addresses import PeerId, split_peer
from swarm.net.identity import load_or_create
from swarm.pools.owner import own_pools
from swarm.pools.tokens import prove

LOOK_S: Final = 5.0
"""How often the pools of the home are looked at; who is enrolled here is let in at once."""
SHOWS_PER_S: Final = 2.0
"""Permissions that one peer may show, on average; bursts up to twice that."""
SHOWS_PER_S_OF_ALL: Final = 50.0
"""And all peers together: to prove one takes a millisecond, and fresh keys cost nothing."""
MAX_VISITORS: Final = 1_024

log = structlog.get_logger("sark.gate")


@dataclass(frozen=True, slots=True)
class _Visitor:
    """Somebody for whom another vouches."""

    by: PeerId
    until: float
    """Wall seconds."""


class AdmissionPolicy:
    """Lets in, or not. `run` must be running for changes on disk to be seen."""

    def __init__(
        self,
        home: Home,
        settings: GateSettings,
        *,
        wall: Callable[[], float] = time.time,
        served: Callable[[str], PoolManifest | None] = lambda pool: None,
    ) -> None:
        """`served`: the newest manifest of a pool whose key is elsewhere (`pools` in the settings), if one was heard of."""
        self._home = home
        self._wall = wall
        self.served = served
        self._served_pools = settings.pools
        others = frozenset(split_peer(gate)[0] for gate in settings.gates)
        self._always = others | frozenset(settings.operators)
        self._operators = frozenset(settings.operators)
        self.admission = Admission(settings.admit, self._always, frozenset(settings.allow))
        self.refused: Counter[str] = Counter()
        """How often somebody was not let in, by what it wanted."""
        self._patience = RetryPauses()
        self._shows = TokenBuckets(SHOWS_PER_S)
        self._all_shows = TokenBuckets(SHOWS_PER_S_OF_ALL)
        self._visitors: OrderedDict[PeerId, _Visitor] = OrderedDict()

    # -- asking ----------------------------------------------------------------------------------------------------------

    def lets_in(self, peer: PeerId) -> bool:
        """Whether that peer, or who vouches for it, may cost this gate something."""
        if self.admission.lets_in(peer):
            return True
        visitor = self._visitor(peer)
        return visitor is not None and self.admission.lets_in(visitor.by)

    def answers_for(self, peer: PeerId) -> PeerId:
        """Because of whom that peer is let in: itself, or who vouches for it."""
        visitor = None if self.admission.lets_in(peer) else self._visitor(peer)
        return peer if visitor is None else visitor.by

    def knows(self, peer: PeerId) -> bool:
        """Whether the operator knows that peer, also where anybody is let in: the last places are kept for those."""
        admission = self.admission
        return peer in admission.always or peer in admission.allow or peer in admission.members

    def refusal(self, peer: PeerId, wanted: str) -> RefusedMessage | None:
        """The answer for somebody who is not let in; None: it is. `wanted`: `index`, `pool` or `relay`, for the count."""
        if self.lets_in(peer):
            return None
        self.refused[wanted] += 1
        again = self._patience.pause(peer) if self.admission.admit is Admit.TICKET else None
        return RefusedMessage(
            reason=Reason.NOT_ALLOWED, detail=self.admission.why_not(peer), retry_after_s=again
        )

    def operates(self, peer: PeerId) -> bool:
        """Whether that peer may read the gate's status."""
        if peer in self._operators:
            return True
        visitor = self._visitor(peer)
        return visitor is not None and visitor.by in self._operators

    def _visitor(self, peer: PeerId) -> _Visitor | None:
        visitor = self._visitors.get(peer)
        if visitor is not None and visitor.until < self._wall():
            del self._visitors[peer]
            return None
        return visitor

    # -- being told ------------------------------------------------------------------------------------------------------

    def present(
        self, peer: PeerId, message: ShowCredentials, now: float
    ) -> CredentialsReply | RefusedMessage:
        """A visitor shows whose it is. `now`: seconds of the monotonic clock."""
        wait = self._shows.wait(now, peer) or self._all_shows.wait(now, "")
        if wait:
            return RefusedMessage(
                reason=Reason.OVERLOADED, detail="too many permissions are shown", retry_after_s=wait
            )
        operated = message.issuer in self._operators
        if (
            self.admission.admit is Admit.OPEN and not operated
        ):  # it makes no difference: nothing is looked at
            return CredentialsReply(principal=peer, rights=(), priority=0)
        try:
            if not operated and not self.admission.lets_in(message.issuer):
                raise NotPermitted("nobody known here has signed this permission")
            proof = prove(message.token, message.issuer, peer, now=self._wall())
        except NotPermitted as exc:
            self.refused["permission"] += 1
            return RefusedMessage(reason=Reason.NOT_ALLOWED, detail=exc.what)
        self._visitors.pop(peer, None)
        self._visitors[peer] = _Visitor(message.issuer, proof.expires)
        if len(self._visitors) > MAX_VISITORS:
            self._visitors.popitem(last=False)
        return CredentialsReply(
            principal=proof.principal,
            rights=(Right.STATUS,) if self.operates(peer) else (),
            priority=0,
            left_s=max(0.0, proof.expires - self._wall()),
        )

    def enrolled(self, peer: PeerId) -> None:
        """It was let into a pool of this home just now."""
        self.admission = replace(self.admission, members=self.admission.members | {peer})
        self._patience.forget((peer,))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at the home's keys and pools again and again, for ever; started once they were looked at.

        Raises `ResourceError` for a key that cannot be used before that; later the gate goes on with what it knows.
        """
        up = False
        while True:
            known = self.admission.members
            try:
                own, members = await trio.to_thread.run_sync(self._look, self._wall())
            except (ResourceError, OSError) as exc:
                if not up:
                    raise
                log.warning("home.unreadable", why=exc.what if isinstance(exc, ResourceError) else str(exc))
                await trio.sleep(LOOK_S)
                continue
            self._operators |= own
            fresh = self.admission.members - known  # enrolled while the disk was read
            served = (self.served(pool) for pool in self._served_pools)
            members |= {
                peer
                for manifest in served
                if manifest is not None
                for peer in live_members(manifest, {}, self._wall())
            }
            self.admission = replace(
                self.admission, always=self._always | self._operators, members=members | fresh
            )
            if not up:
                task_status.started()
                up = True
            await trio.sleep(LOOK_S)

    def _look(self, now: float) -> tuple[frozenset[PeerId], frozenset[PeerId]]:
        """The ids of this home's roles, and the members of its own pools. Blocking."""
        own = frozenset(
            load_or_create(path).peer_id
            for path in (self._home.key("gate"), self._home.key("worker"), self._home.key("scheduler"))
            if path.exists()
        )
        members: frozenset[PeerId] = frozenset()
        if self.admission.admit is not Admit.LIST:
            for pool in own_pools(self._home, _damaged):
                try:
                    ends = {end.peer: float(end.until) for end in pool.notes.ends() if end.peer is not None}
                    members |= live_members(pool.manifest(), ends, now)
                except ResourceError as exc:
                    _damaged(exc)
        return own, members


def _damaged(exc: ResourceError) -> None:
    log.warning("pool.unusable", why=exc.what)
