"""The current permissions of each peer at this worker. Pure: the wall clock is an argument.

    the owner's own keys ─▶ everything          `allow` ─▶ run tasks, read the status
    a pool's members     ─▶ the rights that their lines in the newest manifest give
    a token's holder     ─▶ at most the rights that its signer has here, if the signer is one of the above
    `accept_anyone`      ─▶ run a few tasks, after everybody else's

All other peers are refused every verb. A token's signatures are verified once, when the token is shown; its expiry and its signer's rights
are checked on every verb. The channel proves which peer shows a token: it counts for that peer on all its links, and for nobody else.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from node.capacity.allocations import SlotRequest
from protocol.errors import NotPermitted
from protocol.messages.permission import ALL, CallPermission
from protocol.messages.pool import PoolManifest, PoolMember
from protocol.messages.work import Cancel, CredentialsReply, Denied, Release, Renew, ShowCredentials
from protocol.wire.base import Message
from protocol.words import Reason, Right, Role
from swarm.base.text import shorten
from swarm.net.addresses import PeerId
from swarm.net.cost import PeerClass
from swarm.pools.manifests import DELEGATION_S, is_live
from swarm.pools.people import names_of, shown
from swarm.pools.tokens import LEEWAY_S, Grant, TokenProof, intersect_grants

MAX_PEERS: Final = 4_096
MAX_PEERS_EACH: Final = 256
"""Peers that act for one principal. A principal that delegates to more displaces only its own."""
MAX_TOKENS: Final = 8
"""Tokens kept for one peer."""
MAX_LEFT_S: Final = 31_536_000.0
ANYONE_PRIORITY: Final = 50
ANYONE_SLOTS: Final = 2
WORK: Final = frozenset({Right.SUBMIT, Right.STATUS})
"""All the rights that anybody but an owner can have."""
MEMBER_RIGHTS: Final = {Role.SUBMIT: WORK, Role.WORKER: frozenset({Right.STATUS})}
_REVOKED: Final = "your permission was revoked"
_EXPIRED: Final = "your permission has expired"


@dataclass(frozen=True, slots=True)
class _Token:
    """A verified token."""

    issuer: str
    proof: TokenProof
    principal: str = ""
    """The principal on whose behalf the token was accepted."""

    @property
    def expires(self) -> float:
        """Wall-clock seconds, including the clock's leeway."""
        return self.proof.expires + LEEWAY_S

    @property
    def id(self) -> str:
        """The token's identifier, stored with each run that depends on the token."""
        return f"{self.issuer} {' '.join(each.hex() for each in self.proof.ids)}"


@dataclass(slots=True)
class _Pool:
    """A joined pool, according to its newest manifest."""

    name: str
    number: int = -1
    members: Mapping[PeerId, tuple[PoolMember, ...]] = field(default_factory=dict)
    revoked: frozenset[PeerId] = frozenset()


class Authorization:
    """The permissions of each peer here. `owners`: scheduler keys of the owner; `pools`: id → name of the pools that this worker works for;
    `teams`: if not empty, permissions from pools and tokens count for these teams only; `prove`: as `swarm.pools.tokens.prove`.
    """

    def __init__(
        self,
        *,
        owners: Collection[PeerId],
        allow: Collection[PeerId] = (),
        anyone: bool = False,
        teams: Collection[str] = (),
        pools: Mapping[str, str] | None = None,
        prove: Callable[..., TokenProof],
        wall: Callable[[], float],
    ) -> None:
        self._owners = frozenset(owners)
        self._allow = frozenset(allow) - self._owners
        self._anyone = anyone
        self._teams = frozenset(teams)
        self._pools = {pool: _Pool(name) for pool, name in (pools or {}).items()}
        self._prove = prove
        self._wall = wall
        self._tokens: OrderedDict[PeerId, list[_Token]] = OrderedDict()
        """Longest unused first."""
        self._checked_at = wall()
        """When `expired` was last called."""

    # -- every verb ------------------------------------------------------------------------------------------------------

    def check(self, peer: PeerId, verb: Message, campaign: str | None = None) -> CallPermission | Denied:
        """The permission of `peer` that covers `verb`; else the refusal. `campaign`: the verb's campaign, if the verb does not name it.

        Of several permissions that cover the verb, one that names the campaign counts, else the strongest. A verb that names leases may
        concern several campaigns: for it, all permissions that cover the verb count together.
        """
        permits = self._permits(peer)
        if not permits:
            return self._nobody(peer)
        if peer in self._tokens:
            self._tokens.move_to_end(peer)
        fitting = [
            permit
            for permit in permits
            if permit.may(verb) is None and (campaign is None or permit.speaks_of(campaign) is None)
        ]
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

    def carries(self, peer: PeerId, request: SlotRequest, backing_token: str) -> bool:
        """Whether a task accepted from `peer` still has a permission: the one on which it was accepted, or another."""
        if not backing_token:
            return True
        return any(
            (permit.backing_token == backing_token or permit.principal == request.principal)
            and Right.SUBMIT in permit.rights
            and permit.speaks_of(request.task.campaign) is None
            and permit.priority >= request.base_priority
            and (permit.slots is None or permit.slots >= (request.permission.slots or math.inf))
            for permit in self._permits(peer)
        )

    def permit_of(self, peer: PeerId) -> CallPermission | None:
        """The strongest current permission of `peer`; None: it has none."""
        permits = self._permits(peer)
        return permits[0] if permits else None

    def knows(self, peer: PeerId) -> bool:
        """Whether `peer` has a permission of its own, not only as a stranger."""
        return any(not permit.stranger for permit in self._permits(peer))

    def class_of(self, peer: PeerId) -> PeerClass:
        """How much of this worker's processor `peer` may use."""
        permit = self.permit_of(peer)
        if permit is None or permit.stranger:
            return PeerClass.STRANGER
        return PeerClass.OWN if permit.owner else PeerClass.KNOWN

    def name_of(self, peer: PeerId) -> str:
        """The name of `peer` in the pools' manifests, else the end of its id."""
        pools = [
            (pool.name, [member for lines in pool.members.values() for member in lines])
            for pool in self._pools.values()
        ]
        return shown(peer, names_of(pools, self._owners))

    def principals_of(self, peer: PeerId) -> frozenset[str]:
        """The principals on whose behalf `peer` may run tasks here now."""
        return frozenset(each.principal for each in self._permits(peer) if Right.SUBMIT in each.rights)

    def _permits(self, peer: PeerId) -> list[CallPermission]:
        """All current permissions of `peer`, strongest first."""
        now = self._wall()
        permits = list(self._direct(peer, now))
        for token in self._tokens.get(peer, ()):
            permits += self._delegated(token, now)
        if self._anyone and not permits and not self._teams:
            rights = frozenset({Right.SUBMIT})
            permits = [
                CallPermission(peer, rights, stranger=True, priority=ANYONE_PRIORITY, slots=ANYONE_SLOTS)
            ]
        return sorted(permits, key=_strength, reverse=True)

    def _direct(self, peer: PeerId, now: float, holders: Collection[PeerId] = ()) -> Iterator[CallPermission]:
        """The permissions of `peer` without a token, in each pool where none of `holders` is revoked."""
        if peer in self._owners:
            yield CallPermission(principal=peer, rights=ALL, owner=True)
            return
        if peer in self._allow:
            yield CallPermission(principal=peer, rights=WORK)
            return
        for pool, state in self._pools.items():
            for member in state.members.get(peer, ()) if state.revoked.isdisjoint(holders) else ():
                if is_live(member, now) and (not self._teams or member.team in self._teams):
                    yield CallPermission(
                        principal=peer,
                        rights=MEMBER_RIGHTS[member.role],
                        priority=member.priority,
                        slots=member.slots,
                        team=member.team,
                        backing_token=pool,
                    )

    def _delegated(self, token: _Token, now: float) -> Iterator[CallPermission]:
        """The permissions that a token gives its holder: at most those of its signer.

        The holder of an owner's token for campaigns or for control acts for the owner, and is served like the owner within the grant. The
        holder of an owner's token for neither is a guest. Other holders act for their signer. A pool's member can delegate the right to
        submit only for named campaigns.
        """
        if now >= token.expires:
            return
        proof, grant = token.proof, token.proof.grant
        for signer in self._direct(token.issuer, now, proof.holders):
            rights, team = signer.rights, signer.team
            if not signer.backing_token:  # an owner, or an allowed scheduler: it names teams itself
                team = grant.team
            elif proof.life_s > DELEGATION_S:  # a manifest lists a revoked peer for this long only
                continue
            elif grant.campaigns is None:
                rights -= {Right.SUBMIT}
            try:
                given = intersect_grants(Grant(rights, signer.priority, signer.slots, team), grant)
            except (NotPermitted, ValueError):  # nothing is left
                continue
            owner = signer.owner and (grant.campaigns is not None or Right.CONTROL in grant.rights)
            if self._teams and not owner and given.team not in self._teams:
                continue
            yield CallPermission(
                principal=proof.principal if signer.owner and not owner else token.issuer,
                rights=given.rights,
                owner=owner,
                priority=given.priority,
                slots=given.slots,
                campaigns=given.campaigns,
                team=given.team,
                backing_token=token.id,
            )

    def _nobody(self, peer: PeerId) -> Denied:
        tokens, now = self._tokens.get(peer, ()), self._wall()
        if any(peer in pool.revoked for pool in self._pools.values()):
            return _no(_REVOKED)
        members = [member for pool in self._pools.values() for member in pool.members.get(peer, ())]
        if members:
            teams = sorted({member.team for member in members} - {""})
            ended = not any(is_live(member, now) for member in members)
            return _no(_EXPIRED if ended else _wrong_team(self._teams, teams))
        if tokens:
            return _no(_EXPIRED if all(now >= token.expires for token in tokens) else _REVOKED)
        return _no(
            "this worker does not serve you; its owner can: sark-node join --allow "
            f"{peer}, or with a ticket of a pool that you are in"
        )

    # -- tokens ----------------------------------------------------------------------------------------------------------

    def authenticate(self, peer: PeerId, message: ShowCredentials) -> CredentialsReply | Denied:
        """Accept a token that `peer` shows. Showing the same token again changes nothing."""
        now = self._wall()
        issuer = message.issuer
        if not any(self._direct(issuer, now)):
            names = ", ".join(sorted(pool.name for pool in self._pools.values())) or "none"
            return _no(
                f"this worker does not serve {issuer}, who signed this token; it works for pools: {names}"
            )
        try:
            token = _Token(issuer, self._prove(message.token, issuer, peer, now=now))
        except NotPermitted as exc:
            return _no(exc.what)
        given = max(self._delegated(token, now), key=_strength, default=None)
        if given is None:
            return _no(self._why_nothing(token, now))
        self._keep(peer, replace(token, principal=given.principal), now)
        return _reply(given, min(MAX_LEFT_S, max(0.0, token.proof.expires - now)))

    def reply(self, peer: PeerId) -> CredentialsReply | Denied:
        permit = self.permit_of(peer)
        return _reply(permit) if permit is not None else self._nobody(peer)

    def _why_nothing(self, token: _Token, now: float) -> str:
        """Why a valid token grants nothing although its signer is served here."""
        proof = token.proof
        if now >= token.expires:
            return _EXPIRED
        signers = list(self._direct(token.issuer, now, proof.holders))
        if not signers:
            return _REVOKED
        if all(signer.backing_token for signer in signers) and proof.life_s > DELEGATION_S:
            return f"a pool's member delegates for at most {DELEGATION_S / 86_400:g} days"
        if self._teams and proof.grant.team not in self._teams:
            return _wrong_team(self._teams, [proof.grant.team] if proof.grant.team else [])
        return "this permission grants more than its signer may do here"

    def _keep(self, peer: PeerId, token: _Token, now: float) -> None:
        others = [each for each in self._tokens.pop(peer, []) if each.id != token.id and now < each.expires]
        self._tokens[peer] = [*others[-(MAX_TOKENS - 1) :], token]
        of_same = [
            name
            for name, tokens in self._tokens.items()
            if any(each.principal == token.principal for each in tokens)
        ]
        for name in of_same[: max(0, len(of_same) - MAX_PEERS_EACH)]:
            del self._tokens[name]
        while len(self._tokens) > MAX_PEERS:
            self._tokens.popitem(last=False)

    # -- changes ---------------------------------------------------------------------------------------------------------

    def follows(self, pool: str) -> bool:
        return pool in self._pools

    def is_newer(self, manifest: PoolManifest) -> bool:
        pool = self._pools.get(manifest.pool)
        return pool is not None and manifest.number > pool.number

    def update(self, manifest: PoolManifest) -> tuple[PeerId, ...]:
        """Apply a verified manifest, if it is newer. Returns the peers that have no permission left because of it."""
        pool = self._pools.get(manifest.pool)
        if pool is None or manifest.number <= pool.number:
            return ()
        peers = [peer for peer in {*pool.members, *self._tokens} if self._permits(peer)]
        members: dict[PeerId, tuple[PoolMember, ...]] = {}
        for member in manifest.members:
            members[member.peer] = (*members.get(member.peer, ()), member)
        pool.number, pool.members = manifest.number, members
        pool.revoked = frozenset(each.peer for each in manifest.revoked)
        return tuple(peer for peer in peers if not self._permits(peer))

    def expired(self) -> tuple[PeerId, ...]:
        """Forget expired tokens. Returns the peers that have no permission left; each peer is returned once."""
        since, self._checked_at = self._checked_at, self._wall()
        gone: list[PeerId] = []
        for peer, tokens in list(self._tokens.items()):
            left = [token for token in tokens if self._checked_at < token.expires]
            if len(left) < len(tokens):
                gone.append(peer)
                self._tokens[peer] = left
                if not left:
                    del self._tokens[peer]
        ended = {
            member.peer
            for _, member in self._members()
            if is_live(member, since) and not is_live(member, self._checked_at)
        }
        gone += [peer for peer, tokens in self._tokens.items() if any(t.issuer in ended for t in tokens)]
        return tuple(peer for peer in dict.fromkeys((*gone, *ended)) if self.permit_of(peer) is None)

    def next_end(self) -> float | None:
        """Wall time at which `expired` next has work to do."""
        ends = [token.expires for tokens in self._tokens.values() for token in tokens]
        ends += [end for end, _ in self._members() if end > self._checked_at]
        return min(ends, default=None)

    def _members(self) -> Iterator[tuple[float, PoolMember]]:
        """(end, member) for all members of pools whose membership has an end."""
        for pool in self._pools.values():
            for lines in pool.members.values():
                for member in lines:
                    if member.until is not None:
                        yield member.until + LEEWAY_S, member


def _strength(permit: CallPermission) -> tuple[bool, int, float, bool]:
    slots = float("inf") if permit.slots is None else permit.slots
    return (permit.owner, permit.priority, slots, permit.campaigns is None)


def _wrong_team(teams: Collection[str], yours: Collection[str]) -> str:
    serves = ("team " if len(teams) == 1 else "teams ") + ", ".join(sorted(teams))
    names = f"team {', '.join(yours)}" if yours else "no team"
    return f"this worker serves only {serves}; your permission names {names}"


def _reply(permit: CallPermission, left_s: float | None = None) -> CredentialsReply:
    return CredentialsReply(
        principal=permit.principal,
        rights=tuple(sorted(permit.rights)),
        priority=permit.priority,
        slots=permit.slots,
        left_s=left_s,
    )


def _no(why: str) -> Denied:
    return Denied(reason=Reason.NOT_ALLOWED, detail=shorten(why))
