"""The admission policy of a gate: for whom it relays, whose adverts it stores, and whose pools' manifests it takes.

    open     anybody
    ticket   members of the pools that this gate serves, by their manifests; a join ticket makes a peer a member
    list     the peers in the settings

Queries are open to everybody in all three modes: they cost next to nothing, and a newcomer must begin somewhere. A command runs under a
fresh key, and shows a one-minute token that a key of its home signed. The gate serves the command like that key. With an operator's token
the command may read the gate's status.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from gate.settings import Admit, GateSettings
from protocol.errors import NotPermitted, ResourceError
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import PoolManifest
from protocol.messages.work import CredentialsReply, ShowCredentials
from protocol.words import Reason, Right
from swarm.base.home import Home
from swarm.base.threads import DISK
from swarm.net.addresses import PeerId, split_peer
from swarm.net.cost import PeerClass
from swarm.net.identity import load_or_create
from swarm.pools.manifests import live_members, revoked_peers
from swarm.pools.owner import own_pools
from swarm.pools.tokens import prove

LOOK_S: Final = 5.0
"""Seconds between readings of the home's pools. A peer that enrols here is admitted at once."""
MAX_VISITORS: Final = 1_024
VISIT_S: Final = 120.0
"""Seconds after which a visitor must show its token again."""
RETRY_S: Final = (3.0, 300.0)
"""First and longest pause before a refused peer may try again: short at first, since its ticket may be on the way, then doubled."""
MAX_PAUSED: Final = 4_096
"""Refused peers whose pauses are remembered."""
_WHY: Final = {
    Admit.TICKET: "this gate is for members of its pools; ask a pool's owner for a ticket, then: sark-node join TICKET",
    Admit.LIST: "this gate is for peers on its list; its operator can add you to allow, in [gate] of config.toml",
}

log = structlog.get_logger("sark.gate")


@dataclass(frozen=True, slots=True)
class _Visitor:
    """A peer for which another peer answers."""

    issuer: PeerId
    holders: tuple[PeerId, ...]
    """Holders of the token; the last one is the visitor."""
    until: float
    """Wall-clock seconds."""


class AdmissionPolicy:
    """Decides which peers to admit. While `run` runs it follows changes on disk."""

    def __init__(
        self,
        home: Home,
        settings: GateSettings,
        *,
        wall: Callable[[], float] = time.time,
        served: Callable[[str], PoolManifest | None] = lambda pool: None,
    ) -> None:
        """`served`: returns the newest manifest of a pool whose key is elsewhere (`pools` in the settings), if there is one."""
        self._home = home
        self._wall = wall
        self.served = served
        self._served_pools = settings.pools
        self.admit: Final = settings.admit
        self._operators = frozenset(settings.operators)
        """Operators, including the keys of the gate's own home once those were read."""
        gates = (split_peer(gate)[0] for gate in settings.gates)
        self._named = frozenset((*settings.allow, *settings.operators, *gates))
        self.members: frozenset[PeerId] = frozenset()
        """Members of the pools that this gate serves."""
        self.refused: Counter[str] = Counter()
        """Refusals, by service."""
        self._pauses: dict[PeerId, float] = {}
        self._visitors: OrderedDict[PeerId, _Visitor] = OrderedDict()
        self._revoked: frozenset[PeerId] = frozenset()
        """Peers revoked in the pools of this home, or in the pools that the gate serves."""

    # -- decisions -------------------------------------------------------------------------------------------------------

    def admits(self, peer: PeerId) -> bool:
        """Whether `peer`, or the peer that answers for it, may use this gate's resources."""
        return self._lists(self.answers_for(peer))

    def answers_for(self, peer: PeerId) -> PeerId:
        """The peer to charge for what `peer` uses: `peer` itself, or the peer that answers for it."""
        visitor = None if self._lists(peer) else self._visitor(peer)
        return peer if visitor is None else visitor.issuer

    def knows(self, peer: PeerId) -> bool:
        """Whether the operator knows `peer`. Even an open gate keeps its last connections for such peers."""
        return peer in self._named or peer in self._operators or peer in self.members

    def class_of(self, peer: PeerId) -> PeerClass:
        """How much of the gate's processor `peer` may use."""
        if peer in self._operators:
            return PeerClass.OWN
        return PeerClass.KNOWN if self.knows(self.answers_for(peer)) else PeerClass.STRANGER

    def refusal(self, peer: PeerId, service: str) -> RefusedMessage | None:
        """The answer for a peer that is not admitted; None: it is admitted. `service`: `index`, `pool` or `relay`, for the count."""
        if self.admits(peer):
            return None
        self.refused[service] += 1
        pause = self._pause(peer) if self.admit is Admit.TICKET else None
        return RefusedMessage(reason=Reason.NOT_ALLOWED, detail=_WHY[self.admit], retry_after_s=pause)

    def operates(self, peer: PeerId) -> bool:
        """Whether `peer` may read the gate's status."""
        visitor = self._visitor(peer)
        return peer in self._operators or (visitor is not None and visitor.issuer in self._operators)

    def _lists(self, peer: PeerId) -> bool:
        if self.admit is Admit.OPEN or peer in self._named or peer in self._operators:
            return True
        return self.admit is Admit.TICKET and peer in self.members

    def _visitor(self, peer: PeerId) -> _Visitor | None:
        visitor = self._visitors.get(peer)
        if visitor is not None and (
            visitor.until < self._wall() or not self._revoked.isdisjoint(visitor.holders)
        ):
            del self._visitors[peer]
            return None
        return visitor

    def _pause(self, peer: PeerId) -> float:
        first, most = RETRY_S
        pause = self._pauses.pop(peer, first)
        self._pauses[peer] = min(2 * pause, most)
        if len(self._pauses) > MAX_PAUSED:
            del self._pauses[next(iter(self._pauses))]
        return pause

    # -- changes ---------------------------------------------------------------------------------------------------------

    def authenticate(self, peer: PeerId, message: ShowCredentials) -> CredentialsReply | RefusedMessage:
        """Accept a visitor's token, or refuse it."""
        operated = message.issuer in self._operators
        if self.admit is Admit.OPEN and not operated:  # the token would change nothing: do not verify it
            return CredentialsReply(principal=peer, rights=(), priority=0)
        try:
            if not operated and not self._lists(message.issuer):
                raise NotPermitted("this gate does not know the key that signed this token")
            proof = prove(message.token, message.issuer, peer, now=self._wall())
            if not self._revoked.isdisjoint(proof.holders):
                raise NotPermitted("a pool of this gate revoked a holder of this token")
        except NotPermitted as exc:
            self.refused["permission"] += 1
            return RefusedMessage(reason=Reason.NOT_ALLOWED, detail=exc.what)
        self._visitors.pop(peer, None)
        until = min(proof.expires, self._wall() + VISIT_S)
        self._visitors[peer] = _Visitor(message.issuer, proof.holders, until)
        if len(self._visitors) > MAX_VISITORS:
            self._visitors.popitem(last=False)
        return CredentialsReply(
            principal=proof.principal,
            rights=(Right.STATUS,) if self.operates(peer) else (),
            priority=0,
            left_s=max(0.0, until - self._wall()),
        )

    def enrolled(self, peer: PeerId) -> None:
        """A pool of this home has just admitted `peer`."""
        self.members |= {peer}
        self._pauses.pop(peer, None)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read the home's keys and pools every few seconds until cancelled. Reports started after the first reading.

        Raises `ResourceError` if a key cannot be used in the first reading. Later the gate continues with what it has.
        """
        await self._look()
        task_status.started()
        while True:
            await trio.sleep(LOOK_S)
            try:
                await self._look()
            except (ResourceError, OSError) as exc:
                log.warning("home.unreadable", why=exc.what if isinstance(exc, ResourceError) else str(exc))

    async def _look(self) -> None:
        before = self.members
        own, members, revoked = await DISK.run(self._read_home, self._wall())
        members |= self.members - before  # enrolled while the disk was read
        for manifest in map(self.served, self._served_pools):
            if manifest is not None:
                members |= live_members(manifest, self._wall())
                revoked |= revoked_peers(manifest)
        self._operators |= own
        self.members, self._revoked = members, revoked

    def _read_home(self, now: float) -> tuple[frozenset[PeerId], frozenset[PeerId], frozenset[PeerId]]:
        """(the ids of this home's roles, the members of its own pools, the peers that these pools revoked). Blocking."""
        keys = (self._home.key("gate"), self._home.key("worker"), self._home.key("scheduler"))
        own = frozenset(load_or_create(path).peer_id for path in keys if path.exists())
        members: frozenset[PeerId] = frozenset()
        revoked: frozenset[PeerId] = frozenset()
        for pool in own_pools(self._home, _warn):
            try:
                manifest = pool.manifest()
            except ResourceError as exc:
                _warn(exc)
                continue
            members |= live_members(manifest, now)
            revoked |= revoked_peers(manifest)
        return own, members, revoked


def _warn(exc: ResourceError) -> None:
    log.warning("pool.unusable", why=exc.what)
