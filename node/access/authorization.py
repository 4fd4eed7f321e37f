"""Who may do what at this worker, now. Pure but for the wall clock that is handed in.

    the owner's own keys ─▶ everything          `allow` ─▶ have tasks run, ask how it stands
    a presented token    ─▶ what is in it, if a key signed it that this worker trusts: an owner's, an allowed scheduler's, a joined pool's
    `accept_anyone`      ─▶ have tasks run, a little and behind all others

Everybody else is refused every verb. A token is proved once, when it is presented; that it has not expired and was not taken back is
looked at on every verb. The channel proves who presents it, so it holds for that peer on all its links, and for nobody else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from node.capacity.allocations import SlotRequest
from protocol.errors import NotPermitted
from protocol.messages.permission import ALL, CallPermission
from protocol.messages.pool import PoolManifest
from protocol.messages.work import Cancel, CredentialsReply, Denied, Release, Renew, ShowCredentials
from protocol.wire.base import Message
from protocol.words import Reason, Right, Role
from swarm.base.text import shorten
from swarm.net.addresses import PeerId
from swarm.pools.tokens import LEEWAY_S, TokenProof

MAX_PEERS: Final = 4_096
MAX_PEERS_EACH: Final = 256
"""Peers that act for one principal: whoever delegates without end pushes out only its own."""
MAX_TOKENS: Final = 8
"""Of one peer."""
LONGEST_S: Final = 31_536_000.0
ANYONE_PRIORITY: Final = 50
ANYONE_SLOTS: Final = 2
WORK: Final = frozenset({Right.SUBMIT, Right.STATUS})
"""What anybody but an owner can have here at most."""


class ProveToken(Protocol):
    """`swarm.tokens.prove`: what a token is worth in the hand of `peer`. Raises `NotPermitted`."""

    def __call__(self, token: bytes, issuer: str, peer: str, *, now: float) -> TokenProof: ...


@dataclass(frozen=True, slots=True)
class _Shown:
    """A token that was proved."""

    issuer: str
    ids: tuple[bytes, ...]
    holders: frozenset[str]
    """All through whose hands it went."""
    expires: float
    """Wall seconds, our clock's leeway included."""
    permit: CallPermission


@dataclass(slots=True)
class _Pool:
    """What the newest manifest of a joined pool takes away."""

    name: str
    number: int = -1
    peers: frozenset[str] = frozenset()
    tokens: frozenset[bytes] = frozenset()
    caps: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    """Member → highest priority, slots."""


class Authorization:
    """What each peer may do here. `owners`: scheduler keys that are the owner's; `pools`: id → name of those this worker works for;
    `teams`: if there are any, permission that others gave counts for these teams only.
    """

    def __init__(
        self,
        *,
        owners: Collection[PeerId],
        allow: Collection[PeerId] = (),
        anyone: bool = False,
        teams: Collection[str] = (),
        pools: Mapping[str, str] | None = None,
        prove: ProveToken,
        wall: Callable[[], float],
    ) -> None:
        self._owners = frozenset(owners)
        self._allow = frozenset(allow) - self._owners
        self._anyone = anyone
        self._teams = frozenset(teams)
        self._pools = {pool: _Pool(name) for pool, name in (pools or {}).items()}
        self._prove = prove
        self._wall = wall
        self._shown: OrderedDict[PeerId, list[_Shown]] = OrderedDict()
        """Longest unused first."""

    # -- every verb ------------------------------------------------------------------------------------------------------

    def check(self, peer: PeerId, verb: Message, campaign: str | None = None) -> CallPermission | Denied:
        """What `peer` may do, if it covers `verb`; else the refusal. `campaign`: which one the verb is about, where it does not say so.

        Of several permissions that cover the verb one that names the campaign counts, else the strongest. Verbs that name leases may
        be about several campaigns at once: there all permissions that cover the verb count together.
        """
        permits = self._permits(peer)
        if not permits:
            return self._nobody(peer)
        fitting = [permit for permit in permits if self._covers(permit, verb, campaign)]
        if not fitting:
            first = permits[0]
            refusal = first.may(verb) or (first.speaks_of(campaign) if campaign is not None else None)
            assert refusal is not None, "what is not covered is refused"
            return refusal
        if len(fitting) > 1 and isinstance(verb, (Renew, Cancel, Release)):
            named = [permit.campaigns for permit in fitting]
            together = None if None in named else frozenset[str]().union(*(each or () for each in named))
            return replace(fitting[0], campaigns=together)
        about = campaign or getattr(verb, "campaign", None)
        return next((permit for permit in fitting if about in (permit.campaigns or ())), fitting[0])

    def carries(self, peer: PeerId, wanted: SlotRequest, rests: str) -> bool:
        """Whether what was taken from `peer` still stands on a permission: on the one that it rests on, or on another."""
        if not rests:
            return True
        permits = self._permits(peer)
        return any(permit.rests == rests for permit in permits) or any(
            permit.principal == wanted.principal
            and Right.SUBMIT in permit.rights
            and permit.speaks_of(wanted.task.campaign) is None
            and permit.priority >= wanted.own
            and (permit.slots is None or (wanted.slots is not None and permit.slots >= wanted.slots))
            for permit in permits
        )

    def permit_of(self, peer: PeerId) -> CallPermission | None:
        """The strongest permission `peer` has now; None: it is a stranger."""
        permits = self._permits(peer)
        return permits[0] if permits else None

    def principals_of(self, peer: PeerId) -> frozenset[str]:
        """On whose behalf `peer` may have tasks run here now."""
        return frozenset(each.principal for each in self._permits(peer) if Right.SUBMIT in each.rights)

    def _covers(self, permit: CallPermission, verb: Message, campaign: str | None) -> bool:
        return permit.may(verb) is None and (campaign is None or permit.speaks_of(campaign) is None)

    def _permits(self, peer: PeerId) -> list[CallPermission]:
        """All that hold now, strongest first."""
        permits: list[CallPermission] = []
        if peer in self._owners:
            permits.append(CallPermission(principal=peer, rights=ALL, owner=True))
        elif peer in self._allow:
            permits.append(CallPermission(principal=peer, rights=WORK))
        if peer in self._shown:
            now = self._wall()
            self._shown.move_to_end(peer)
            permits += [self._capped(shown) for shown in self._shown[peer] if self._holds(shown, now)]
            permits.sort(key=_strength, reverse=True)
        if self._anyone and not permits and not self._teams:
            permits = [
                CallPermission(
                    principal=peer,
                    rights=frozenset({Right.SUBMIT}),
                    stranger=True,
                    priority=ANYONE_PRIORITY,
                    slots=ANYONE_SLOTS,
                )
            ]
        return permits

    def _holds(self, shown: _Shown, now: float) -> bool:
        return now < shown.expires and not self._revoked(shown)

    def _revoked(self, shown: _Shown) -> bool:
        pool = self._pools.get(shown.issuer)
        return pool is not None and not (
            pool.peers.isdisjoint(shown.holders) and pool.tokens.isdisjoint(shown.ids)
        )

    def _capped(self, shown: _Shown) -> CallPermission:
        """The permission, lowered to what the pool's newest manifest leaves its principal."""
        pool, permit = self._pools.get(shown.issuer), shown.permit
        cap = pool.caps.get(permit.principal) if pool is not None else None
        if cap is None:
            return permit
        priority, slots = cap
        return replace(permit, priority=min(permit.priority, priority), slots=_fewer(permit.slots, slots))

    def _nobody(self, peer: PeerId) -> Denied:
        shown = self._shown.get(peer, [])
        if any(self._revoked(each) for each in shown):
            why = "your permission was taken back"
        elif shown:
            why = "your permission has expired; present a fresh one"
        else:
            why = (
                "this worker does not serve you; its owner can: sark-node join --allow "
                f"{peer}, or with a ticket of a pool that you are in"
            )
        return Denied(reason=Reason.NOT_ALLOWED, detail=why)

    # -- tokens ----------------------------------------------------------------------------------------------------------

    def present(self, peer: PeerId, message: ShowCredentials) -> CredentialsReply | Denied:
        """Keep what the token lets `peer` do. The same token again changes nothing."""
        now = self._wall()
        issuer = message.issuer
        if issuer not in self._owners and issuer not in self._allow and issuer not in self._pools:
            names = ", ".join(sorted(pool.name for pool in self._pools.values())) or "none"
            return _no(
                f"this worker trusts no permission under the key {issuer}; it works for pools: {names}"
            )
        try:
            proof = self._prove(message.token, issuer, peer, now=now)
        except NotPermitted as exc:
            return _no(exc.what)
        shown = _Shown(
            issuer,
            proof.ids,
            frozenset(proof.holders),
            proof.expires + LEEWAY_S,
            self._permit(issuer, proof),
        )
        if self._revoked(shown):
            return _no("your permission was taken back")
        if now >= shown.expires:
            return _no("your permission has expired; present a fresh one")
        team = shown.permit.team
        if self._teams and not shown.permit.owner and team not in self._teams:
            yours = f"team {team}" if team else "no team"
            return _no(f"this worker serves only {_teams(self._teams)}; your permission names {yours}")
        self._keep(peer, shown, now)
        permit = self._capped(shown)
        return CredentialsReply(
            principal=permit.principal,
            rights=tuple(sorted(permit.rights)),
            priority=permit.priority,
            slots=permit.slots,
            left_s=min(LONGEST_S, max(0.0, proof.expires - now)),
        )

    def _permit(self, issuer: str, proof: TokenProof) -> CallPermission:
        """What the token is worth here. An owner's token for campaigns, or for control, acts for the owner: it is served like the owner
        itself, within its grant. An owner's token for neither is a guest's. An allowed scheduler answers for whom it sends.
        """
        grant = proof.grant
        for_owner = issuer in self._owners and (grant.campaigns is not None or Right.CONTROL in grant.rights)
        own = for_owner or issuer in self._allow
        return CallPermission(
            principal=issuer if own else proof.principal,
            rights=grant.rights if issuer in self._owners else grant.rights & WORK,
            owner=for_owner,
            priority=grant.priority,
            slots=grant.slots,
            campaigns=grant.campaigns,
            team=grant.team,
            rests=f"{issuer} {' '.join(each.hex() for each in proof.ids)}",
        )

    def _keep(self, peer: PeerId, shown: _Shown, now: float) -> None:
        others = [
            each
            for each in self._shown.pop(peer, [])
            if (each.issuer, each.ids) != (shown.issuer, shown.ids) and self._holds(each, now)
        ]
        self._shown[peer] = [*others[-(MAX_TOKENS - 1) :], shown]
        of_same = [
            name
            for name, kept in self._shown.items()
            if any(each.permit.principal == shown.permit.principal for each in kept)
        ]
        for name in of_same[: max(0, len(of_same) - MAX_PEERS_EACH)]:
            del self._shown[name]
        while len(self._shown) > MAX_PEERS:
            self._shown.popitem(last=False)

    # -- what ends -------------------------------------------------------------------------------------------------------

    def manifest(self, news: PoolManifest) -> tuple[PeerId, ...]:
        """Take a verified manifest to heart. Gives the peers that may do nothing here any more because of it."""
        pool = self._pools.get(news.pool)
        if pool is None or news.number <= pool.number:
            return ()
        pool.number = news.number
        pool.peers = frozenset(news.revoked)
        pool.tokens = frozenset(news.revoked_tokens)
        pool.caps = {
            member.peer: (member.priority, member.slots)
            for member in news.members
            if member.role is Role.SUBMIT
        }
        hit = [
            peer
            for peer, kept in self._shown.items()
            if any(each.issuer == news.pool and self._revoked(each) for each in kept)
        ]
        return tuple(peer for peer in hit if not self._permits(peer))

    def expired(self) -> tuple[PeerId, ...]:
        """Forget the permissions whose time is over. Gives the peers that have none left; each comes out once."""
        now = self._wall()
        gone: list[PeerId] = []
        for peer, kept in list(self._shown.items()):
            left = [each for each in kept if now < each.expires]
            if len(left) == len(kept):
                continue
            self._shown[peer] = left
            if not left:
                del self._shown[peer]
            if self.permit_of(peer) is None:
                gone.append(peer)
        return tuple(gone)

    def next_end(self) -> float | None:
        """Wall time at which `expired` has something to do next."""
        return min(
            (each.expires for kept in self._shown.values() for each in kept),
            default=None,
        )


def _strength(permit: CallPermission) -> tuple[bool, int, float, bool]:
    slots = float("inf") if permit.slots is None else permit.slots
    return (permit.owner, permit.priority, slots, permit.campaigns is None)


def _fewer(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _teams(names: Collection[str]) -> str:
    return ("team " if len(names) == 1 else "teams ") + ", ".join(sorted(names))


def _no(why: str) -> Denied:
    return Denied(reason=Reason.NOT_ALLOWED, detail=shorten(why))
