"""A process among several that share a store: its key, its tokens, and the campaigns that it takes."""

from __future__ import annotations

import pytest

from node.access.authorization import Authorization
from protocol.messages.permission import CallPermission
from protocol.messages.work import AdoptRequest, CredentialsReply, ShowCredentials
from scheduler.run.epochs import own_proof, proven_epoch
from scheduler.run.seats import (
    AWAY_S,
    LEAVE_S,
    FreeCampaign,
    SeatTokens,
    seat_identity,
    seat_peers,
    should_take_campaign,
)
from scheduler.store.seats import MAX_SEATS
from swarm.net.identity import Identity
from swarm.pools.tokens import prove

HOME = Identity.from_seed("a home")
SECOND = seat_identity(HOME, 1)
NOW = 1_000_000.0


def free(*, here: bool = True, strangers: bool = False, since_s: float = 0.0) -> FreeCampaign:
    return FreeCampaign("c-one", here, strangers, since_s)


def tokens(campaigns: tuple[str, ...] = ("c-one",), identity: Identity = SECOND) -> SeatTokens:
    return SeatTokens(HOME, identity.peer_id, lambda: campaigns, tuple, lambda: NOW)


def test_each_seat_has_a_key_of_its_own_that_follows_from_the_homes() -> None:
    peers = seat_peers(HOME)
    assert peers[0] == HOME.peer_id
    assert len(set(peers)) == MAX_SEATS
    assert peers == seat_peers(Identity(HOME.seed))
    assert not set(peers) & set(seat_peers(Identity.from_seed("another home")))


def test_the_first_seat_shows_what_the_home_holds_and_nothing_else() -> None:
    assert tokens(identity=HOME)() == ()


def test_a_worker_of_the_owners_serves_every_seat_as_its_owner() -> None:
    who = Authorization(owners=[HOME.peer_id], prove=prove, wall=lambda: NOW)
    for token in tokens()():
        shown = who.authenticate(SECOND.peer_id, ShowCredentials(issuer=token.issuer, token=token.token))
        assert isinstance(shown, CredentialsReply)
    for campaign in ("c-one", "c-of-which-no-token-speaks"):
        permission = who.check(SECOND.peer_id, AdoptRequest(campaign=campaign, epoch=2), campaign)
        assert isinstance(permission, CallPermission)
        assert (permission.owner, permission.principal) == (True, HOME.peer_id)


def test_a_worker_that_allows_the_home_serves_every_seat_on_its_behalf() -> None:
    who = Authorization(owners=[], allow=[HOME.peer_id], prove=prove, wall=lambda: NOW)
    for token in tokens()():
        who.authenticate(SECOND.peer_id, ShowCredentials(issuer=token.issuer, token=token.token))
    permission = who.check(SECOND.peer_id, AdoptRequest(campaign="c-one", epoch=2), "c-one")
    assert isinstance(permission, CallPermission)
    assert (permission.owner, permission.principal) == (False, HOME.peer_id)


def test_every_seat_proves_that_it_leads_a_campaign_of_the_home() -> None:
    proof = own_proof(SECOND, "c-one", 7, HOME.peer_id, tokens()())
    assert proven_epoch(proof, "c-one", {HOME.peer_id}) == 7
    assert own_proof(SECOND, "c-two", 7, HOME.peer_id, tokens()()) is None


def test_very_many_campaigns_have_tokens_that_name_them_all() -> None:
    campaigns = tuple(f"c-{n}" for n in range(100))
    shown = tokens(campaigns)()
    for campaign in campaigns:
        assert own_proof(SECOND, campaign, 2, HOME.peer_id, shown) is not None


def test_tokens_are_made_anew_when_campaigns_change_and_not_else() -> None:
    led = ["c-one"]
    made = SeatTokens(HOME, SECOND.peer_id, lambda: led, tuple, lambda: NOW)
    first = made()
    assert made() == first
    led.append("c-two")
    assert own_proof(SECOND, "c-two", 2, HOME.peer_id, made()) is not None


@pytest.mark.parametrize(
    ("campaign", "seat", "leads", "others", "taken"),
    [
        (free(), 0, 3, (), True),
        (free(here=False), 0, 3, (), True),
        (free(), 1, 1, ((0, 1),), True),
        (free(), 1, 2, ((0, 1),), False),
        (free(since_s=LEAVE_S), 1, 2, ((0, 1),), True),
        (free(here=False), 1, 0, ((0, 1),), False),
        (free(here=False, since_s=LEAVE_S), 1, 0, ((0, 1),), False),
        (free(here=False, since_s=AWAY_S), 1, 0, ((0, 1),), True),
        (free(strangers=True, since_s=AWAY_S), 1, 0, ((0, 5),), False),
        (free(strangers=True), 1, 0, ((2, 5),), True),
        (free(strangers=True), 0, 0, ((1, 0),), True),
    ],
)
def test_a_free_campaign_goes_to_the_least_busy_that_has_its_models(
    campaign: FreeCampaign, seat: int, leads: int, others: tuple[tuple[int, int], ...], taken: bool
) -> None:
    assert should_take_campaign(campaign, seat, leads, others) is taken
