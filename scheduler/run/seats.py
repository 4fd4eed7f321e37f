"""One process among several that share a home's store: its key, its right to act for the home, and the campaigns that it leads.

    seat 0        the home's own key: a single process works as without seats
    seat 1, 2 …   a key derived from the home's, and tokens of the home's key for each campaign that it leads, as an adopter has them

A free campaign goes to the process that leads the fewest and has its models; the other processes leave it for a moment. A campaign that
nobody leads after that is taken by whichever process sees it.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from protocol.errors import NotPermitted
from protocol.words import Right
from scheduler.campaign.trust import trust_of_spec
from scheduler.models.describe import by_devices
from scheduler.store.rows import CampaignRow
from scheduler.store.seats import MAX_PLACE, MAX_SEATS, RENEW_EVERY_S
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.net.identity import Identity
from swarm.pools.manifests import DELEGATION_S
from swarm.pools.membership import Credential, host_name
from swarm.pools.tokens import MAX_CAMPAIGNS, Grant, delegate, issue


def place_of(home: Home) -> str:
    """The machine and home of a process, as stored with its seat."""
    return f"{host_name()}:{home.data}"[:MAX_PLACE]


LEAVE_S: Final = 1.0
"""Seconds for which a process leaves a free campaign to one that leads fewer."""
AWAY_S: Final = 5.0
"""Seconds for which it leaves a campaign whose models are not on its disk."""
WORK: Final = frozenset({Right.SUBMIT, Right.STATUS})
"""Rights of a process that runs a campaign."""
ALL: Final = WORK | {Right.CONTROL}
"""Rights of the home itself: on its own devices a process in any seat acts as the owner."""

log = structlog.get_logger("sark.scheduler")


def seat_identity(home: Identity, seat: int) -> Identity:
    """The key of the process in this seat. It is derived from the home's key, so it is the same on every machine and stored nowhere."""
    if not seat:
        return home
    return Identity(hmac.digest(home.seed, b"sark scheduler seat %d" % seat, hashlib.sha256))


def seat_peers(home: Identity) -> tuple[str, ...]:
    """The peer ids of all seats, in order."""
    return tuple(seat_identity(home, seat).peer_id for seat in range(MAX_SEATS))


@dataclass(eq=False)
class SeatTokens:
    """The tokens that the process in a seat shows workers: the home's tokens for its key, and those that others delegated to the home."""

    home: Identity
    peer: str
    """Peer id of the seat."""
    campaigns: Callable[[], Collection[str]]
    """The campaigns that the process leads."""
    held: Callable[[], Sequence[Credential]]
    """The credentials that others delegated to the home."""
    wall: Callable[[], float]
    _made: tuple[tuple[str, ...], tuple[Credential, ...]] = ((), ())
    _renew_at: float = -math.inf
    """Wall seconds at which to issue the tokens again."""

    def __call__(self) -> tuple[Credential, ...]:
        """The tokens to show now."""
        now, held = self.wall(), tuple(self.held())
        if self.home.peer_id == self.peer:
            return held
        campaigns = tuple(sorted(self.campaigns()))
        if campaigns != self._made[0] or now >= self._renew_at or not self._made[1]:
            self._made, self._renew_at = (campaigns, self._issued(campaigns, now)), now + DELEGATION_S / 2
        return (*self._made[1], *self._passed_on(held, now))

    def _issued(self, campaigns: Sequence[str], now: float) -> tuple[Credential, ...]:
        """One token for workers that trust the home itself, and others that name campaigns, since a pool's workers accept only those."""
        grants = [Grant(ALL, ttl_s=DELEGATION_S)]
        for first in range(0, len(campaigns), MAX_CAMPAIGNS):
            named = frozenset(campaigns[first : first + MAX_CAMPAIGNS])
            grants.append(Grant(WORK, campaigns=named, ttl_s=DELEGATION_S))
        me = self.home.peer_id
        return tuple(
            Credential(
                issuer=me, token=issue(self.home, self.peer, grant, now=now), expires=now + DELEGATION_S
            )
            for grant in grants
        )

    def _passed_on(self, held: Iterable[Credential], now: float) -> Iterable[Credential]:
        for one in held:
            try:
                token = delegate(one.token, one.issuer, self.home, self.peer, Grant(ALL), now=now)
            except (NotPermitted, ValueError):  # expired, or passed on as often as allowed
                continue
            yield one.model_copy(update={"token": token})


@dataclass(frozen=True, slots=True)
class FreeCampaign:
    """A campaign that nobody leads."""

    id: str
    here: bool
    """Whether its models are on this disk."""
    strangers: bool
    """Whether it admits devices of strangers, which serve only the home's own key."""
    since_s: float
    """Seconds for which this process has known that the campaign is free."""


def should_take_campaign(
    free: FreeCampaign, seat: int, leads: int, others: Collection[tuple[int, int]]
) -> bool:
    """Whether the process in `seat`, which leads `leads` campaigns, takes it now. `others`: seat and campaign count of each live
    process.
    """
    if free.strangers and seat and any(other == 0 for other, _ in others):
        return False
    if not free.here and others and free.since_s < AWAY_S:
        return False
    return free.since_s >= LEAVE_S or all(leads <= campaigns for _, campaigns in others)


@dataclass(eq=False)
class Seat:
    """The seat of this process, and the campaigns that it leads."""

    store: Store
    spool: Path
    now: Callable[[], float]
    own: Collection[str] = ()
    """The unfinished campaigns that it leads."""
    first: bool = True
    """Whether it also does the work that belongs to no campaign: it has the lowest seat of all live processes."""
    _seen: dict[str, float] = field(default_factory=dict)
    _renewed_at: float = -math.inf

    def renew(self) -> bool:
        """Renew the seat if that is due; returns whether it was. Call it a few times each second. Raises `LeadershipLost`."""
        seats, now = self.store.seats, self.now()
        if not seats.shared or now < self._renewed_at + RENEW_EVERY_S:
            return False
        seats.renew()
        self._renewed_at = now
        return True

    def look(self) -> bool:
        """Read which campaigns it leads, and take free ones; returns whether one is left that it may take later. Raises
        `LeadershipLost`.
        """
        seats, now = self.store.seats, self.now()
        self.own = seats.own()
        free = seats.free()
        if not seats.shared:
            return False
        rows = [row for row in seats.all() if row.seat != seats.seat and row.left_s > 0]
        others = [(row.seat, row.campaigns) for row in rows]
        self.first = all(seats.seat < seat for seat, _ in others)
        self._seen = {campaign: self._seen.get(campaign, now) for campaign in free}
        for campaign in free:
            known = self._free(campaign, now)
            if (
                known is not None
                and should_take_campaign(known, seats.seat, len(self.own), others)
                and seats.lead(campaign)
            ):
                log.info("campaign.led", campaign=campaign, seat=seats.seat)
                self.own = (*self.own, campaign)
                del self._seen[campaign]
        return bool(self._seen)

    def _free(self, campaign: str, now: float) -> FreeCampaign | None:
        row = self.store.campaigns.get(campaign)
        if row is None:
            return None
        since_s = now - self._seen[campaign]
        return FreeCampaign(campaign, self._has_models(row), trust_of_spec(row.spec).anyone, since_s)

    def _has_models(self, row: CampaignRow) -> bool:
        others = by_devices(row.spec)
        needed = (model.sha256 for model in self.store.campaigns.models(row.id) if model.sha256 not in others)
        return all((self.spool / sha256).is_file() for sha256 in needed)

    def own_ids(self, *, planned: bool) -> tuple[str, ...]:
        """Its unfinished campaigns that are planned, or that are not, sorted by descending priority."""
        own, ids = set(self.own), self.store.campaigns.unfinished_ids(planned=planned)
        return tuple(campaign for campaign in ids if campaign in own)

    def answers_for(self, campaign: str) -> bool:
        """Whether this process is responsible for what is left of an ended campaign."""
        return self.store.seats.leads(campaign)
