"""What each peer may do at a worker, with real tokens and a wall clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from node.access.authorization import ANYONE_PRIORITY, ANYONE_SLOTS, MAX_PEERS_EACH, MAX_TOKENS, Authorization
from protocol.messages.permission import CallPermission
from protocol.messages.pool import PoolManifest, PoolMember, RevokedPeer
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
from swarm.pools.manifests import DELEGATION_S
from swarm.pools.tokens import LEEWAY_S, Grant, delegate, issue, prove

OWNER, FRIEND, POOL, ANN, BOB, EVE = (Identity.from_seed(f"permit {number}") for number in range(6))
SUBMIT = frozenset({Right.SUBMIT})
C1 = frozenset({"c-1"})
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
    who: Authorization, holder: Identity, grant: Grant, key: Identity = OWNER
) -> CredentialsReply | Denied:
    token = issue(key, holder.peer_id, grant, now=T0)
    return who.authenticate(holder.peer_id, ShowCredentials(issuer=key.peer_id, token=token))


def line(peer: Identity, role: Role = Role.SUBMIT, lasts_s: int | None = None, **limits: Any) -> PoolMember:
    until = None if lasts_s is None else int(T0) + lasts_s
    return PoolMember(peer=peer.peer_id, role=role, name="n", until=until, **limits)


def listed(
    who: Authorization, *members: PoolMember, number: int = 1, revoked: tuple[Identity, ...] = ()
) -> tuple[str, ...]:
    """Make this the pool's newest manifest."""
    entries = tuple(RevokedPeer(peer=each.peer_id, until=int(T0) * 2) for each in revoked)
    return who.update(
        PoolManifest(pool=POOL.peer_id, name="lab", number=number, members=members, revoked=entries)
    )


def why(answer: object) -> str:
    assert isinstance(answer, Denied), answer
    assert answer.reason is Reason.NOT_ALLOWED
    return answer.detail


def permit(answer: object) -> CallPermission:
    assert isinstance(answer, CallPermission), answer
    return answer


def test_a_stranger_is_refused_with_what_its_owner_can_do(wall: Wall) -> None:
    result = why(permits(wall).check(EVE.peer_id, RENEW))
    assert f"--allow {EVE.peer_id}" in result


def test_the_owner_may_do_everything_and_who_is_allowed_may_not_control(wall: Wall) -> None:
    who = permits(wall)
    assert permit(who.check(OWNER.peer_id, Control(action=Action.PAUSE))).owner
    assert permit(who.check(FRIEND.peer_id, STATUS)).rights == WORK
    assert "does not cover control" in why(who.check(FRIEND.peer_id, Control(action=Action.PAUSE)))


def test_a_pools_member_has_what_its_line_says_and_never_control(wall: Wall) -> None:
    who = permits(wall)
    listed(who, line(ANN, priority=40, slots=3, team="vision"), line(BOB, Role.WORKER))
    ann = permit(who.check(ANN.peer_id, RENEW))
    assert (ann.principal, ann.rights, ann.priority, ann.slots, ann.team) == (
        ANN.peer_id, WORK, 40, 3, "vision",
    )  # fmt: skip
    why(who.check(ANN.peer_id, Control(action=Action.PAUSE)))
    permit(who.check(BOB.peer_id, STATUS))
    assert "does not cover renew" in why(who.check(BOB.peer_id, RENEW)), (
        "a device of the pool submits nothing"
    )
    result = who.reply(ANN.peer_id)
    assert isinstance(result, CredentialsReply)
    assert (set(result.rights), result.priority, result.slots) == (set(WORK), 40, 3)
    why(who.reply(EVE.peer_id))


def test_a_key_that_is_not_trusted_gives_nothing(wall: Wall) -> None:
    who = permits(wall)
    for key in (EVE, POOL):  # a pool's key signs manifests, not tokens
        assert "does not serve" in why(shown(who, ANN, Grant(SUBMIT), key=key))
    why(who.check(ANN.peer_id, RENEW))


def test_a_token_is_good_for_its_holder_only(wall: Wall) -> None:
    who = permits(wall)
    token = issue(OWNER, ANN.peer_id, Grant(SUBMIT), now=T0)
    message = ShowCredentials(issuer=OWNER.peer_id, token=token)
    assert "is bound to" in why(who.authenticate(EVE.peer_id, message))
    why(who.check(EVE.peer_id, RENEW))


def test_a_members_token_covers_named_campaigns_and_no_more_than_the_member_has(wall: Wall) -> None:
    who = permits(wall)
    listed(who, line(ANN, priority=40, slots=3, team="vision"), line(EVE, Role.WORKER))
    assert isinstance(
        shown(who, BOB, Grant(frozenset(Right), priority=90, campaigns=C1), ANN), CredentialsReply
    )
    bob = permit(who.check(BOB.peer_id, AdoptRequest(campaign="c-1", epoch=2)))
    assert (bob.principal, bob.rights, bob.priority, bob.slots, bob.team) == (
        ANN.peer_id, WORK, 40, 3, "vision",
    )  # fmt: skip
    assert "other campaigns" in why(who.check(BOB.peer_id, ListLeases(campaign="c-2")))
    assert "grants more than" in why(shown(who, BOB, Grant(SUBMIT), ANN)), "not for whatever it likes"
    assert "grants more than" in why(shown(who, BOB, Grant(SUBMIT, campaigns=C1), EVE))
    assert "grants more than" in why(shown(who, BOB, Grant(SUBMIT, campaigns=C1, team="audio"), ANN))


def test_an_owner_who_is_a_member_too_makes_guests_and_no_second_selves(wall: Wall) -> None:
    who = permits(wall)
    listed(who, line(OWNER))
    shown(who, BOB, Grant(SUBMIT, priority=30))
    assert set(who.principals_of(BOB.peer_id)) == {BOB.peer_id}


def test_a_member_delegates_for_as_long_as_revocations_are_remembered(wall: Wall) -> None:
    who = permits(wall)
    listed(who, line(ANN))
    long = Grant(SUBMIT, campaigns=C1, ttl_s=DELEGATION_S + 1)
    assert "at most 30 days" in why(shown(who, BOB, long, ANN))
    wall.now += DELEGATION_S
    assert "at most 30 days" in why(shown(who, BOB, long, ANN)), "nor when less of it is left"
    wall.now = T0
    assert isinstance(shown(who, BOB, Grant(SUBMIT, campaigns=C1, ttl_s=DELEGATION_S), ANN), CredentialsReply)


def test_expiry_is_looked_at_on_every_verb_and_comes_out_once(wall: Wall) -> None:
    who = permits(wall)
    shown(who, ANN, Grant(SUBMIT, ttl_s=60))
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
    shown(who, ANN, Grant(SUBMIT, ttl_s=10))
    shown(who, ANN, Grant(SUBMIT, priority=10, ttl_s=10_000))
    wall.now += 1_000
    assert who.expired() == ()
    assert permit(who.check(ANN.peer_id, RENEW)).priority == 10


def test_a_membership_ends_by_the_clock_and_with_it_what_was_delegated(wall: Wall) -> None:
    who = permits(wall)
    listed(who, line(ANN, lasts_s=60), line(EVE))
    shown(who, BOB, Grant(SUBMIT, campaigns=C1, ttl_s=9_000), ANN)
    assert who.next_end() == T0 + 60 + LEEWAY_S
    wall.now += 60 + LEEWAY_S
    assert who.expired() == ()
    permit(who.check(ANN.peer_id, RENEW))
    wall.now += 1
    assert "expired" in why(who.check(ANN.peer_id, RENEW))
    assert set(who.expired()) == {ANN.peer_id, BOB.peer_id}
    assert who.expired() == ()
    listed(who, line(ANN, lasts_s=9_000), number=2)
    permit(who.check(ANN.peer_id, RENEW))


@pytest.mark.parametrize("what", ["signer", "delegate", "delegate of a delegate", "signer left out"])
def test_what_the_manifest_takes_away_ends_at_once(wall: Wall, what: str) -> None:
    who = permits(wall)
    listed(who, line(ANN))
    grant = Grant(WORK, campaigns=C1)
    token = delegate(issue(ANN, EVE.peer_id, grant, now=T0), ANN.peer_id, EVE, BOB.peer_id, grant, now=T0)
    message = ShowCredentials(issuer=ANN.peer_id, token=token)
    assert isinstance(who.authenticate(BOB.peer_id, message), CredentialsReply)
    revoked = {"signer": (ANN,), "delegate": (EVE,), "delegate of a delegate": (BOB,)}.get(what, ())
    members = (line(ANN),) if what.startswith("delegate") else ()
    assert BOB.peer_id in listed(who, *members, number=2, revoked=revoked)
    assert "revoked" in why(who.check(BOB.peer_id, RENEW, "c-1"))
    why(who.authenticate(BOB.peer_id, message))
    assert listed(who, *members, number=2, revoked=revoked) == ()


def test_a_revoked_member_is_refused_as_revoked_and_an_older_or_foreign_manifest_changes_nothing(
    wall: Wall,
) -> None:
    who = permits(wall)
    listed(who, line(ANN), number=3)
    assert listed(who, number=2) == ()
    assert who.update(PoolManifest(pool=EVE.peer_id, name="lab", number=9)) == ()
    permit(who.check(ANN.peer_id, RENEW))
    assert listed(who, number=4, revoked=(ANN,)) == (ANN.peer_id,)
    assert "was revoked" in why(who.check(ANN.peer_id, RENEW))


def test_only_these_teams_refuses_others_and_those_without_one(wall: Wall) -> None:
    who = permits(wall, teams={"vision"})
    listed(who, line(ANN, team="audio"), line(BOB), line(EVE, team="vision"))
    assert "only team vision; your permission names team audio" in why(who.check(ANN.peer_id, RENEW))
    assert "names no team" in why(who.check(BOB.peer_id, RENEW))
    for peer in (EVE, OWNER, FRIEND):
        permit(who.check(peer.peer_id, RENEW))
    assert "names team audio" in why(shown(who, ANN, Grant(SUBMIT, team="audio"), FRIEND))
    assert isinstance(shown(who, ANN, Grant(SUBMIT, team="vision"), FRIEND), CredentialsReply)


def test_an_owners_token_for_a_campaign_acts_for_the_owner_and_cannot_control(wall: Wall) -> None:
    who = permits(wall)
    shown(who, BOB, Grant(WORK, campaigns=frozenset({"c-1"})))
    mine = permit(who.check(BOB.peer_id, AdoptRequest(campaign="c-1", epoch=2)))
    assert (mine.principal, mine.owner) == (OWNER.peer_id, True)
    assert "other campaigns" in why(who.check(BOB.peer_id, ListLeases(campaign="c-2")))
    assert "other campaigns" in why(who.check(BOB.peer_id, RENEW, "c-2"))
    why(who.check(BOB.peer_id, Control(action=Action.PAUSE)))


def test_an_owners_token_for_no_campaign_is_a_guests(wall: Wall) -> None:
    who = permits(wall)
    shown(who, BOB, Grant(SUBMIT, priority=30))
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
    shown(who, BOB, Grant(WORK, priority=30, campaigns=frozenset({"c-1"})))
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
        token = issue(OWNER, ANN.peer_id, grant, now=T0)
        for _ in range(2):
            who.authenticate(ANN.peer_id, ShowCredentials(issuer=OWNER.peer_id, token=token))
    why(who.check(ANN.peer_id, ListLeases(campaign="c-0")))
    permit(who.check(ANN.peer_id, ListLeases(campaign="c-1")))


@pytest.mark.parametrize(
    "lowered",
    [{"priority": 40}, {"slots": 2}, {"role": Role.WORKER}],
    ids=["priority", "slots", "role"],
)
def test_a_lease_does_not_outlive_a_lowering_of_the_line_it_rests_on(
    wall: Wall, lowered: dict[str, Any]
) -> None:
    who = permits(wall)
    before: dict[str, Any] = {"priority": 80, "slots": 4}
    lease: Any = SimpleNamespace(
        principal=ANN.peer_id,
        task=SimpleNamespace(campaign="c-1"),
        base_priority=80,
        permission=SimpleNamespace(slots=4),
    )
    listed(who, line(ANN, **before))
    assert who.carries(ANN.peer_id, lease, POOL.peer_id)
    listed(who, line(ANN, **(before | lowered)), number=2)
    assert not who.carries(ANN.peer_id, lease, POOL.peer_id)


@pytest.mark.slow
def test_who_delegates_without_end_pushes_out_only_its_own(wall: Wall) -> None:
    who = permits(wall)
    shown(who, ANN, Grant(SUBMIT))
    token = issue(OWNER, EVE.peer_id, Grant(SUBMIT), now=T0)
    crowd = [Identity.from_seed(f"crowd {number}") for number in range(MAX_PEERS_EACH + 2)]
    for one in crowd:
        passed = delegate(token, OWNER.peer_id, EVE, one.peer_id, Grant(SUBMIT), now=T0)
        assert isinstance(
            who.authenticate(one.peer_id, ShowCredentials(issuer=OWNER.peer_id, token=passed)),
            CredentialsReply,
        )
    permit(who.check(ANN.peer_id, RENEW))
    why(who.check(crowd[0].peer_id, RENEW))
    permit(who.check(crowd[-1].peer_id, RENEW))


def test_a_worker_that_serves_anybody_still_tells_those_it_knows_from_strangers(wall: Wall) -> None:
    who = permits(wall, anyone=True, allow={BOB.peer_id})
    assert who.permit_of(EVE.peer_id) is not None
    assert [who.knows(peer.peer_id) for peer in (OWNER, BOB, EVE)] == [True, True, False]


def test_whom_a_run_is_for_has_the_name_that_its_pool_gives(wall: Wall) -> None:
    who = permits(wall)
    assert who.name_of(ANN.peer_id) == f"…{ANN.peer_id[-8:]}"
    listed(who, line(ANN).model_copy(update={"name": "alice"}))
    assert who.name_of(ANN.peer_id) == "alice"
    assert who.name_of(OWNER.peer_id) == "you"
