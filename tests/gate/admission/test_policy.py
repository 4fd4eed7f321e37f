"""The admission policy of a gate: it follows the home's pools, admits visitors of known peers, and cannot be fooled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
import trio
import trio.testing

from gate.admission.policy import MAX_VISITORS, VISIT_S, AdmissionPolicy
from gate.settings import Admit, GateSettings
from protocol.errors import ResourceError
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import EnrolRequest, ManifestMessage, PoolManifest, PoolMember
from protocol.messages.work import CredentialsReply, ShowCredentials
from protocol.words import Reason, Right, Role
from swarm.base.home import Home
from swarm.net.cost import PeerClass
from swarm.net.identity import Identity, load_or_create
from swarm.pools.enrolment import PoolEnrolment, invite, invite_peer, revoke
from swarm.pools.manifests import revoke_peers, with_member
from swarm.pools.owner import MemberTerms, OwnPool, create_pool
from swarm.pools.tokens import Grant, delegate, issue

START = 1_800_000_000.0
DAY = 86_400.0
TERMS = MemberTerms(role=Role.WORKER, ttl_s=int(DAY))
SUBMITTER = MemberTerms(role=Role.SUBMIT, ttl_s=int(DAY))
ANN, BEN, EVE = (Identity.from_seed(name) for name in ("ann", "ben", "eve"))
GATE = Identity.from_seed("another gate").peer_id


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path)


def policy(
    home: Home, admit: Admit, wall: Callable[[], float] = lambda: START, **more: object
) -> AdmissionPolicy:
    return AdmissionPolicy(home, GateSettings.model_validate({"admit": admit, **more}), wall=wall)


def word(of: Identity, to: Identity, *, right: Right = Right.STATUS, ttl_s: float = 60.0) -> ShowCredentials:
    """The credentials that `of` gives its visitor to present."""
    token = issue(of, to.peer_id, Grant(frozenset({right}), ttl_s=ttl_s), now=START)
    return ShowCredentials(issuer=of.peer_id, token=token)


async def test_the_keys_of_its_own_home_and_the_other_gates_are_let_in_whatever_is_set(home: Home) -> None:
    keys = [load_or_create(home.key(role)).peer_id for role in ("gate", "worker", "scheduler")]
    gate = policy(home, Admit.LIST, gates=(f"/ip4/192.0.2.1/tcp/4101/p2p/{GATE}",), operators=(ANN.peer_id,))
    async with trio.open_nursery() as nursery:
        await nursery.start(gate.run)
        for peer in (*keys, GATE, ANN.peer_id):
            assert gate.admits(peer)
        assert not gate.admits(BEN.peer_id)
        nursery.cancel_scope.cancel()


async def test_a_ticket_opens_the_gate_at_once_and_taking_it_back_closes_it(home: Home) -> None:
    pool = create_pool(home, "lab")
    gate, enrolment = policy(home, Admit.TICKET), PoolEnrolment(home, lambda: START)
    ticket, _ = invite(pool, (), TERMS, now=START, for_s=DAY, uses=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(gate.run)
        no = gate.refusal(BEN.peer_id, "index")
        assert no is not None
        assert no.reason is Reason.NOT_ALLOWED
        assert no.retry_after_s == 3.0
        message = EnrolRequest(pool=pool.id, ticket=ticket.secret, role=Role.WORKER, name="ben")
        assert isinstance(enrolment(BEN.peer_id, message), ManifestMessage)
        gate.enrolled(BEN.peer_id)
        assert gate.refusal(BEN.peer_id, "index") is None
        nursery.cancel_scope.cancel()
    revoke(pool, "ben", START)
    async with trio.open_nursery() as nursery:
        await nursery.start(gate.run)
        assert not gate.admits(BEN.peer_id)
        nursery.cancel_scope.cancel()
    assert gate.refused == {"index": 1}


async def test_a_credential_that_was_not_renewed_lets_nobody_in(home: Home) -> None:
    now = START
    pool = create_pool(home, "lab")
    invite_peer(pool, (), SUBMITTER, BEN.peer_id, now=START)
    for now, alive in ((START, True), (START + 2 * DAY, False)):
        gate = policy(home, Admit.TICKET, lambda now=now: now)  # type: ignore[misc]
        async with trio.open_nursery() as nursery:
            await nursery.start(gate.run)
            assert gate.admits(BEN.peer_id) is alive
            nursery.cancel_scope.cancel()


async def test_members_of_a_pool_that_was_made_elsewhere_come_in_once_its_manifest_is_heard(
    home: Home,
) -> None:
    elsewhere = create_pool(Home.at(home.data / "elsewhere"), "far")
    member = PoolMember(peer=BEN.peer_id, role=Role.WORKER, name="ben")
    gate = policy(home, Admit.TICKET, pools=(elsewhere.id,))
    async with trio.open_nursery() as nursery:
        await nursery.start(gate.run)
        assert not gate.admits(BEN.peer_id)
        nursery.cancel_scope.cancel()
    manifest = elsewhere.change(lambda before: with_member(before, member, START))
    gate.served = lambda pool: manifest if pool == elsewhere.id else None
    async with trio.open_nursery() as nursery:
        await nursery.start(gate.run)
        assert gate.admits(BEN.peer_id)
        nursery.cancel_scope.cancel()


async def test_a_damaged_pool_shuts_its_members_out_and_nobody_else(home: Home) -> None:
    good, bad = create_pool(home, "good"), create_pool(home, "bad")
    good.change(lambda m: with_member(m, PoolMember(peer=BEN.peer_id, role=Role.WORKER, name="ben"), START))
    (bad.folder / "manifest").write_bytes(b"junk")
    gate = policy(home, Admit.TICKET)
    async with trio.open_nursery() as nursery:
        await nursery.start(gate.run)
        assert gate.admits(BEN.peer_id)
        nursery.cancel_scope.cancel()


# -- revoking ----------------------------------------------------------------------------------------------------------------------


def joined_by_ticket(home: Home) -> tuple[OwnPool, EnrolRequest]:
    """A pool that ann and ben joined, and the request that its ticket still allows."""
    pool = create_pool(home, "lab")
    ticket, _ = invite(pool, (), TERMS, now=START, for_s=DAY, uses=9)
    request = EnrolRequest(pool=pool.id, ticket=ticket.secret, role=Role.WORKER, name="n")
    for who, name in ((ANN, "ann"), (BEN, "ben")):
        enrolment = PoolEnrolment(home, lambda: START)
        answer = enrolment(who.peer_id, request.model_copy(update={"name": name}))
        assert isinstance(answer, ManifestMessage)
    return pool, request


@pytest.mark.parametrize("with_members", [False, True], ids=["a member", "a ticket"])
def test_an_interrupted_revocation_leaves_no_ticket_open_and_is_finished_by_repeating_it(
    home: Home, monkeypatch: pytest.MonkeyPatch, with_members: bool
) -> None:
    pool, request = joined_by_ticket(home)
    who = pool.tickets()[0].id if with_members else BEN.peer_id

    def interrupt(how: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pool, "change", interrupt)
        with pytest.raises(KeyboardInterrupt):
            revoke(pool, who, START, with_members=with_members)
    assert pool.open_tickets(START) == ()
    assert isinstance(PoolEnrolment(home, lambda: START)(EVE.peer_id, request), RefusedMessage)
    revoke(pool, who, START, with_members=with_members)
    gone = {ANN.peer_id, BEN.peer_id} if with_members else {BEN.peer_id}
    assert {each.peer for each in pool.manifest().revoked} == gone


def test_revoking_a_revoked_member_closes_its_ticket_all_the_same(home: Home) -> None:
    pool, _ = joined_by_ticket(home)
    pool.change(lambda manifest: revoke_peers(manifest, (BEN.peer_id,), START))
    assert "already" in revoke(pool, BEN.peer_id, START)[0]
    assert pool.open_tickets(START) == ()


def test_nobody_joins_by_a_ticket_while_its_members_are_revoked(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, request = joined_by_ticket(home)
    change, answers = pool.change, list[object]()

    def late(how: Callable[[PoolManifest], PoolManifest]) -> PoolManifest:
        answers.append(PoolEnrolment(home, lambda: START)(EVE.peer_id, request))
        return change(how)

    monkeypatch.setattr(pool, "change", late)
    revoke(pool, pool.tickets()[0].id, START, with_members=True)
    assert [type(answer) for answer in answers] == [RefusedMessage]
    assert pool.manifest().members == ()


# -- visitors ------------------------------------------------------------------------------------------------------------------


def test_an_operators_visitor_may_look_until_its_permission_ends(home: Home) -> None:
    now = START
    gate = policy(home, Admit.OPEN, lambda: now, operators=(ANN.peer_id,))
    answer = gate.authenticate(EVE.peer_id, word(ANN, EVE))
    assert isinstance(answer, CredentialsReply)
    assert answer.rights == (Right.STATUS,)
    assert gate.operates(EVE.peer_id)
    now = START + 61
    assert not gate.operates(EVE.peer_id)


def test_a_visitor_of_somebody_who_is_let_in_is_let_in_and_operates_nothing(home: Home) -> None:
    gate = policy(home, Admit.LIST, allow=(BEN.peer_id,))
    answer = gate.authenticate(EVE.peer_id, word(BEN, EVE))
    assert isinstance(answer, CredentialsReply)
    assert answer.rights == ()
    assert gate.admits(EVE.peer_id)
    assert not gate.operates(EVE.peer_id)


@pytest.mark.parametrize(
    ("shown", "by"),
    [
        (word(BEN, EVE), "ben introduces her, and nobody knows ben"),
        (word(EVE, EVE), "eve introduces herself"),
        (ShowCredentials(issuer=ANN.peer_id, token=word(EVE, EVE).token), "signed by another than it says"),
        (word(ANN, BEN), "given to another"),
        (word(ANN, EVE, ttl_s=0.0).model_copy(update={"token": b"x" * 200}), "no token at all"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_permission_that_is_not_good_opens_nothing(home: Home, shown: ShowCredentials, by: str) -> None:
    gate = policy(home, Admit.LIST, operators=(ANN.peer_id,))
    answer = gate.authenticate(EVE.peer_id, shown)
    assert isinstance(answer, RefusedMessage), by
    assert answer.reason is Reason.NOT_ALLOWED
    assert not gate.admits(EVE.peer_id)
    assert not gate.operates(EVE.peer_id)
    assert gate.refused["permission"] == 1


def test_a_visitor_cannot_introduce_another_visitor(home: Home) -> None:
    gate = policy(home, Admit.LIST, allow=(ANN.peer_id,))
    assert isinstance(gate.authenticate(BEN.peer_id, word(ANN, BEN)), CredentialsReply)
    assert isinstance(gate.authenticate(EVE.peer_id, word(BEN, EVE)), RefusedMessage)
    assert not gate.admits(EVE.peer_id)


def test_the_gates_own_keys_and_those_it_knows_may_cost_more_than_strangers(home: Home) -> None:
    gate = policy(home, Admit.OPEN, operators=(ANN.peer_id,), allow=(BEN.peer_id,))
    classes = [gate.class_of(who.peer_id) for who in (ANN, BEN, EVE)]
    assert classes == [PeerClass.OWN, PeerClass.KNOWN, PeerClass.STRANGER]


@pytest.mark.parametrize("served", [False, True], ids=["own", "served"])
async def test_a_revoked_peer_is_no_visitor_before_or_after_it_shows_its_token(
    home: Home, served: bool
) -> None:
    pool = create_pool(Home.at(home.data / "elsewhere") if served else home, "lab")
    invite_peer(pool, (), SUBMITTER, ANN.peer_id, now=START)
    gate = policy(home, Admit.TICKET, pools=(pool.id,) if served else ())
    if served:
        gate.served = lambda _: pool.manifest()
    grant = Grant(frozenset({Right.STATUS}), ttl_s=DAY)
    token = issue(ANN, EVE.peer_id, grant, now=START)
    delegated = delegate(token, ANN.peer_id, EVE, BEN.peer_id, grant, now=START)
    shown = {
        EVE.peer_id: ShowCredentials(issuer=ANN.peer_id, token=token),
        BEN.peer_id: ShowCredentials(issuer=ANN.peer_id, token=delegated),
    }
    async with trio.open_nursery() as nursery:
        await nursery.start(gate.run)
        for peer, message in shown.items():
            assert isinstance(gate.authenticate(peer, message), CredentialsReply)
            assert gate.admits(peer)
        pool.change(lambda manifest: revoke_peers(manifest, (EVE.peer_id,), START))
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        await nursery.start(gate.run)  # it reads the pools again
        for peer, message in shown.items():
            assert not gate.admits(peer), "checked on use"
            answer = gate.authenticate(peer, message)
            assert isinstance(answer, RefusedMessage)
            assert answer.reason is Reason.NOT_ALLOWED
        nursery.cancel_scope.cancel()


def test_a_visit_is_short_however_long_the_token_lives(home: Home) -> None:
    now = START
    gate = policy(home, Admit.LIST, lambda: now, allow=(BEN.peer_id,))
    answer = gate.authenticate(EVE.peer_id, word(BEN, EVE, ttl_s=DAY))
    assert isinstance(answer, CredentialsReply)
    assert answer.left_s == VISIT_S
    now = START + VISIT_S + 1
    assert not gate.admits(EVE.peer_id)


def test_visitors_are_remembered_up_to_a_number(home: Home) -> None:
    gate = policy(home, Admit.OPEN, operators=(ANN.peer_id,))
    guests = [Identity.from_seed(f"guest-{number}") for number in range(MAX_VISITORS + 1)]
    for guest in guests:
        assert isinstance(gate.authenticate(guest.peer_id, word(ANN, guest)), CredentialsReply)
    assert not gate.operates(guests[0].peer_id)
    assert all(gate.operates(guest.peer_id) for guest in guests[1:])


async def test_a_key_that_cannot_be_read_keeps_a_gate_from_starting_and_one_that_runs_going(
    home: Home, autojump_clock: trio.testing.MockClock
) -> None:
    key = home.key("worker")
    load_or_create(key)
    good = key.read_bytes()
    key.write_bytes(b"no key")
    early = policy(home, Admit.LIST)
    with pytest.raises(ResourceError):
        await early.run()
    key.write_bytes(good)
    gate = policy(home, Admit.LIST)
    worker = load_or_create(key).peer_id
    async with trio.open_nursery() as nursery:
        await nursery.start(gate.run)
        key.write_bytes(b"no key")
        with structlog.testing.capture_logs() as logs:
            while not any(line["event"] == "home.unreadable" for line in logs):
                await trio.sleep(1)
        assert gate.admits(worker), "it goes by what it knows"
        key.unlink()
        other = load_or_create(key).peer_id
        while not gate.admits(other):
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
