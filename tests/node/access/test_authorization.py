"""What each peer may do at a worker, by real tokens and a wall clock that is moved by hand."""

from __future__ import annotations

from typing import Any

import pytest

from node.access.authorization import ANYONE_PRIORITY, ANYONE_SLOTS, MAX_PEERS_EACH, MAX_TOKENS, Authorization
from protocol.messages.permission import CallPermission
from protocol.messages.pool import PoolManifest, PoolMember
from protocol.messages.work import (
    Action,
    AdoptRequest,
    Control,
    CredentialsReply,
    Denied,
    HeldLease,
    ListLeases,
    Renew,
    ShowCredentials,
    StatusRequest,
)
from protocol.values.lease import Fence
from protocol.words import Reason, Right, Role
from swarm.net.identity import Identity
from swarm.pools.tokens import LEEWAY_S, Grant, bearer, delegate, issue, prove

OWNER, FRIEND, POOL, ANN, BOB, EVE = (Identity.from_seed(f"permit {number}") for number in range(6))
SUBMIT = frozenset({Right.SUBMIT})
WORK = frozenset({Right.SUBMIT, Right.STATUS})
T0 = 1_800_000_000.0
RENEW = Renew(held=(HeldLease(lease="l-1", fence=Fence(incarnation=1, number=1)),))
STATUS = StatusRequest()


class Wall:
    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> Wall:
    return Wall()


def permits(wall: Wall, **changes: Any) -> Authorization:
    given: dict[str, Any] = {
        "owners": {OWNER.peer_id},
        "allow": {FRIEND.peer_id},
        "pools": {POOL.peer_id: "lab"},
        "prove": prove,
        "wall": wall,
    }
    return Authorization(**(given | changes))


def shown(
    who: Authorization, holder: Identity, grant: Grant, key: Identity = POOL
) -> CredentialsReply | Denied:
    token = issue(key, holder.peer_id, grant, now=T0)
    return who.present(holder.peer_id, ShowCredentials(issuer=key.peer_id, token=token))


def why(answer: object) -> str:
    assert isinstance(answer, Denied), answer
    assert answer.reason is Reason.NOT_ALLOWED
    return answer.detail


def permit(answer: object) -> CallPermission:
    assert isinstance(answer, CallPermission), answer
    return answer


def test_a_stranger_is_refused_with_what_its_owner_can_do(wall: Wall) -> None:
    told = why(permits(wall).check(EVE.peer_id, RENEW))
    assert f"--allow {EVE.peer_id}" in told


def test_the_owner_may_do_everything_and_who_is_allowed_may_not_control(wall: Wall) -> None:
    who = permits(wall)
    assert permit(who.check(OWNER.peer_id, Control(action=Action.PAUSE))).owner
    assert permit(who.check(FRIEND.peer_id, STATUS)).rights == WORK
    assert "does not cover control" in why(who.check(FRIEND.peer_id, Control(action=Action.PAUSE)))


def test_a_pools_token_gives_what_is_in_it_and_never_control(wall: Wall) -> None:
    who = permits(wall)
    grant = Grant(rights=frozenset(Right), priority=40, slots=3, team="vision", lasts_s=60)
    told = shown(who, ANN, grant)
    assert isinstance(told, CredentialsReply)
    assert (set(told.rights), told.priority, told.slots, told.left_s) == (set(WORK), 40, 3, 60)
    assert permit(who.check(ANN.peer_id, RENEW)).team == "vision"
    why(who.check(ANN.peer_id, Control(action=Action.PAUSE)))


def test_a_key_that_is_not_trusted_gives_nothing(wall: Wall) -> None:
    who = permits(wall)
    assert "trusts no permission under the key" in why(shown(who, ANN, Grant(SUBMIT), key=EVE))
    why(who.check(ANN.peer_id, RENEW))


def test_a_token_is_good_for_its_holder_only(wall: Wall) -> None:
    who = permits(wall)
    token = issue(POOL, ANN.peer_id, Grant(SUBMIT), now=T0)
    assert "was given to" in why(who.present(EVE.peer_id, ShowCredentials(issuer=POOL.peer_id, token=token)))
    why(who.check(EVE.peer_id, RENEW))


def test_the_token_of_a_ticket_is_no_permission(wall: Wall) -> None:
    token = bearer(POOL, Role.SUBMIT, Grant(SUBMIT), now=T0)
    told = permits(wall).present(ANN.peer_id, ShowCredentials(issuer=POOL.peer_id, token=token))
    assert "join ticket" in why(told)


def test_expiry_is_looked_at_on_every_verb_and_comes_out_once(wall: Wall) -> None:
    who = permits(wall)
    shown(who, ANN, Grant(SUBMIT, lasts_s=60))
    assert who.next_end() == T0 + 60 + LEEWAY_S
    wall.now += 60 + LEEWAY_S - 1
    assert who.expired() == ()
    permit(who.check(ANN.peer_id, RENEW))
    wall.now += 1
    assert "expired" in why(who.check(ANN.peer_id, RENEW))
    assert who.expired() == (ANN.peer_id,)
    assert who.expired() == ()
    assert who.next_end() is None


def test_who_has_another_permission_left_does_not_come_out_as_expired(wall: Wall) -> None:
    who = permits(wall)
    shown(who, ANN, Grant(SUBMIT, lasts_s=10))
    shown(who, ANN, Grant(SUBMIT, priority=10, lasts_s=10_000))
    wall.now += 1_000
    assert who.expired() == ()
    assert permit(who.check(ANN.peer_id, RENEW)).priority == 10


@pytest.mark.parametrize("what", ["holder", "delegate", "token"])
def test_what_the_manifest_takes_back_holds_at_once(wall: Wall, what: str) -> None:
    who = permits(wall)
    grant = Grant(WORK)
    token = issue(POOL, ANN.peer_id, grant, now=T0)
    passed = delegate(token, POOL.peer_id, ANN, BOB.peer_id, grant, now=T0)
    assert isinstance(
        who.present(BOB.peer_id, ShowCredentials(issuer=POOL.peer_id, token=passed)), CredentialsReply
    )
    proof = prove(passed, POOL.peer_id, BOB.peer_id, now=T0)
    ways: dict[str, dict[str, Any]] = {
        "holder": {"revoked": (ANN.peer_id,)},
        "delegate": {"revoked": (BOB.peer_id,)},
        "token": {"revoked_tokens": proof.ids[:1]},
    }
    news = PoolManifest(pool=POOL.peer_id, name="lab", number=2, **ways[what])
    assert who.manifest(news) == (BOB.peer_id,)
    assert "taken back" in why(who.check(BOB.peer_id, RENEW))
    assert "taken back" in why(who.present(BOB.peer_id, ShowCredentials(issuer=POOL.peer_id, token=passed)))
    assert who.manifest(news) == ()


def test_an_older_manifest_and_one_of_another_pool_change_nothing(wall: Wall) -> None:
    who = permits(wall)
    shown(who, ANN, Grant(SUBMIT))
    who.manifest(PoolManifest(pool=POOL.peer_id, name="lab", number=3))
    for pool, number in ((POOL, 2), (EVE, 9)):
        news = PoolManifest(pool=pool.peer_id, name="lab", number=number, revoked=(ANN.peer_id,))
        assert who.manifest(news) == ()
    permit(who.check(ANN.peer_id, RENEW))


def test_the_manifest_can_lower_what_a_member_may_do_and_never_raise_it(wall: Wall) -> None:
    who = permits(wall)
    shown(who, ANN, Grant(SUBMIT, priority=50, slots=8))
    member = PoolMember(peer=ANN.peer_id, role=Role.SUBMIT, name="ann", priority=20, slots=9)
    who.manifest(PoolManifest(pool=POOL.peer_id, name="lab", number=1, members=(member,)))
    now = permit(who.check(ANN.peer_id, RENEW))
    assert (now.priority, now.slots) == (20, 8)


def test_only_these_teams_refuses_others_and_those_without_one(wall: Wall) -> None:
    who = permits(wall, teams={"vision"})
    assert "only team vision; your permission names team audio" in why(
        shown(who, ANN, Grant(SUBMIT, team="audio"))
    )
    assert "names no team" in why(shown(who, ANN, Grant(SUBMIT)))
    assert isinstance(shown(who, ANN, Grant(SUBMIT, team="vision")), CredentialsReply)
    permit(who.check(OWNER.peer_id, RENEW))
    permit(who.check(FRIEND.peer_id, RENEW))


def test_an_owners_token_for_a_campaign_acts_for_the_owner_and_cannot_control(wall: Wall) -> None:
    who = permits(wall)
    shown(who, BOB, Grant(WORK, campaigns=frozenset({"c-1"})), key=OWNER)
    mine = permit(who.check(BOB.peer_id, AdoptRequest(campaign="c-1", epoch=2)))
    assert (mine.principal, mine.owner) == (OWNER.peer_id, True)
    assert "other campaigns" in why(who.check(BOB.peer_id, ListLeases(campaign="c-2")))
    assert "other campaigns" in why(who.check(BOB.peer_id, RENEW, "c-2"))
    why(who.check(BOB.peer_id, Control(action=Action.PAUSE)))


def test_an_owners_token_for_no_campaign_is_a_guests(wall: Wall) -> None:
    who = permits(wall)
    shown(who, BOB, Grant(SUBMIT, priority=30), key=OWNER)
    guest = permit(who.check(BOB.peer_id, RENEW))
    assert (guest.principal, guest.owner, guest.priority) == (BOB.peer_id, False, 30)


def test_an_allowed_scheduler_answers_for_whom_it_sends_and_cannot_send_to_control(wall: Wall) -> None:
    who = permits(wall)
    shown(who, BOB, Grant(frozenset(Right)), key=FRIEND)
    sent = permit(who.check(BOB.peer_id, RENEW))
    assert (sent.principal, sent.owner, sent.rights) == (FRIEND.peer_id, False, WORK)


def test_of_several_tokens_the_strongest_that_covers_the_verb_counts(wall: Wall) -> None:
    who = permits(wall)
    shown(who, ANN, Grant(SUBMIT, priority=90, campaigns=frozenset({"c-1"})))
    shown(who, ANN, Grant(SUBMIT, priority=20))
    assert permit(who.check(ANN.peer_id, AdoptRequest(campaign="c-1", epoch=1))).priority == 90
    assert permit(who.check(ANN.peer_id, AdoptRequest(campaign="c-2", epoch=1))).priority == 20


def test_a_permission_that_names_the_campaign_counts_before_the_peers_own(wall: Wall) -> None:
    who = permits(wall, owners={OWNER.peer_id, BOB.peer_id})
    shown(who, BOB, Grant(WORK, priority=30, campaigns=frozenset({"c-1"})), key=OWNER)
    assert permit(who.check(BOB.peer_id, AdoptRequest(campaign="c-1", epoch=2))).principal == OWNER.peer_id
    assert permit(who.check(BOB.peer_id, AdoptRequest(campaign="c-2", epoch=2))).principal == BOB.peer_id
    assert permit(who.check(BOB.peer_id, RENEW)).campaigns is None


def test_verbs_on_leases_cover_the_campaigns_of_all_tokens(wall: Wall) -> None:
    who = permits(wall)
    for campaign in ("c-1", "c-2"):
        shown(who, ANN, Grant(SUBMIT, campaigns=frozenset({campaign})))
    assert permit(who.check(ANN.peer_id, RENEW)).campaigns == frozenset({"c-1", "c-2"})
    shown(who, ANN, Grant(SUBMIT))
    assert permit(who.check(ANN.peer_id, RENEW)).campaigns is None


def test_anyone_gets_little_and_no_teams_are_asked_for(wall: Wall) -> None:
    who = permits(wall, anyone=True)
    little = permit(who.check(EVE.peer_id, RENEW))
    assert (little.rights, little.priority, little.slots) == (SUBMIT, ANYONE_PRIORITY, ANYONE_SLOTS)
    why(who.check(EVE.peer_id, STATUS))
    why(permits(wall, anyone=True, teams={"vision"}).check(EVE.peer_id, RENEW))


def test_the_same_token_twice_is_one_and_a_peer_keeps_the_newest_few(wall: Wall) -> None:
    who = permits(wall)
    for number in range(MAX_TOKENS + 1):
        grant = Grant(SUBMIT, campaigns=frozenset({f"c-{number}"}))
        token = issue(POOL, ANN.peer_id, grant, now=T0)
        for _ in range(2):
            who.present(ANN.peer_id, ShowCredentials(issuer=POOL.peer_id, token=token))
    why(who.check(ANN.peer_id, ListLeases(campaign="c-0")))
    permit(who.check(ANN.peer_id, ListLeases(campaign="c-1")))


def test_who_delegates_without_end_pushes_out_only_its_own(wall: Wall) -> None:
    who = permits(wall)
    shown(who, ANN, Grant(SUBMIT))
    token = issue(POOL, EVE.peer_id, Grant(SUBMIT), now=T0)
    crowd = [Identity.from_seed(f"crowd {number}") for number in range(MAX_PEERS_EACH + 2)]
    for one in crowd:
        passed = delegate(token, POOL.peer_id, EVE, one.peer_id, Grant(SUBMIT), now=T0)
        assert isinstance(
            who.present(one.peer_id, ShowCredentials(issuer=POOL.peer_id, token=passed)), CredentialsReply
        )
    permit(who.check(ANN.peer_id, RENEW))
    why(who.check(crowd[0].peer_id, RENEW))
    permit(who.check(crowd[-1].peer_id, RENEW))
