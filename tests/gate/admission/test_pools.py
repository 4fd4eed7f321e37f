"""Pools over a simulated network: newcomers are admitted, members learn of revocations, liars change nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from node.access.authorization import Authorization
from protocol.errors import NotPermitted, RemoteProtocolError, Unreachable
from protocol.messages.index import RefusedMessage
from protocol.messages.permission import CallPermission
from protocol.messages.pool import (
    AskManifest,
    EnrolRequest,
    ManifestMessage,
    ManifestStored,
    NoManifest,
    PoolManifest,
)
from protocol.messages.work import Denied, StatusRequest
from protocol.values.requirement import Requirement, parse_clause
from protocol.words import Reason, Right, Role
from swarm.base.durable import write_durably
from swarm.base.home import Home
from swarm.net.identity import Identity, distance, load_or_create, routing_key
from swarm.pools.enrolment import invite_peer, revoke
from swarm.pools.home_pool import home_pool
from swarm.pools.manifests import find_member, revoke_peers, sign_manifest, verified
from swarm.pools.membership import joined_pools, membership_of, stored_manifest
from swarm.pools.owner import MemberTerms
from swarm.pools.server import MAX_FOREIGN, ManifestRegistry, PoolServer
from swarm.pools.service import POLL_S
from swarm.pools.tokens import prove
from tests.gate.field import Field, Node, pool_field, pool_links, wall

SOON_S = 15.0
ME = Identity.from_seed("me").peer_id
ONE_POLL_S = POLL_S * 1.2 + 10


def holds(node: Node, field: Field) -> int:
    manifest = node.pools.registry.manifest(field.pool.id)
    return manifest.number if manifest is not None else 0


async def test_two_devices_and_one_who_submits_come_in_by_ticket(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        ticket = field.ticket(Role.WORKER)
        await field.join("worker-1", ticket)
        await field.join("worker-2", ticket)
        ann = await field.join("ann", field.ticket(Role.SUBMIT), Role.SUBMIT)
        await trio.sleep(SOON_S)
        members = field.pool.manifest().members
        assert {(m.name, str(m.role)) for m in members} == {
            ("worker-1", "worker"),
            ("worker-2", "worker"),
            ("ann", "submit"),
        }
        (joined,) = joined_pools(ann.home, Role.SUBMIT)
        assert joined.spent
        assert membership_of(ann.home, joined, ann.peer, wall()) is not None
        assert ann.manifests[-1].pool == field.pool.id
        result = await ann.index.query(Requirement(clauses=(parse_clause("pools has lab"),)), 8)
        assert {s.advert.name for s in result.devices} == {"worker-1", "worker-2"}
        none = await ann.index.query(Requirement(clauses=(parse_clause("pools has other"),)), 8)
        assert none.devices == ()


async def test_every_member_hears_within_one_poll_that_somebody_was_revoked(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        workers = [await field.join(f"worker-{n}", field.ticket(Role.WORKER)) for n in (1, 2)]
        ann = await field.join("ann", field.ticket(Role.SUBMIT), Role.SUBMIT)
        await trio.sleep(SOON_S)
        field.gate.following.cancel()  # it does not push, and answers from what is on its disk
        revoked = field.pool.change(lambda m: revoke_peers(m, (ann.peer,), wall()))
        await trio.sleep(ONE_POLL_S)
        for worker in workers:
            assert holds(worker, field) == revoked.number
            assert ann.peer in {each.peer for each in worker.manifests[-1].revoked}
            stored = stored_manifest(worker.home, field.pool.id)
            assert stored is not None
            assert verified(stored) == revoked


async def test_who_was_revoked_is_refused_at_every_worker_within_one_poll(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        workers = [await field.join(f"worker-{n}", field.ticket(Role.WORKER)) for n in (1, 2)]
        ann = await field.join("ann", field.ticket(Role.SUBMIT), Role.SUBMIT)
        await trio.sleep(SOON_S)
        verb, permissions = StatusRequest(), {}
        for worker in workers:
            permits = Authorization(owners=(), pools={field.pool.id: "lab"}, prove=prove, wall=wall)
            permissions[worker.peer] = permits
            assert isinstance(permits.check(ann.peer, verb), Denied)
            permits.update(ann.manifests[-1])
            assert isinstance(permits.check(ann.peer, verb), CallPermission)
        field.gate.following.cancel()
        field.pool.change(lambda m: revoke_peers(m, (ann.peer,), wall()))
        await trio.sleep(ONE_POLL_S)
        for worker in workers:
            assert permissions[worker.peer].update(worker.manifests[-1]) == (ann.peer,)
            refused = permissions[worker.peer].check(ann.peer, verb)
            assert isinstance(refused, Denied)
            assert refused.reason is Reason.NOT_ALLOWED
            assert permissions[worker.peer].update(ann.manifests[-1]) == (), (
                "an old manifest brings nothing back"
            )
            assert isinstance(permissions[worker.peer].check(ann.peer, verb), Denied)


async def test_a_running_gate_tells_the_workers_at_once_what_another_process_took_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        workers = [await field.join(f"worker-{n}", field.ticket(Role.WORKER)) for n in (1, 2)]
        await trio.sleep(SOON_S)
        revoked = field.pool.change(lambda m: revoke_peers(m, (Identity.from_seed("bad").peer_id,), wall()))
        await trio.sleep(SOON_S)
        assert [holds(worker, field) for worker in workers] == [revoked.number] * 2


async def test_a_gate_restored_from_an_old_copy_is_heard_again_when_it_takes_something_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        worker = await field.join("worker", field.ticket(Role.WORKER))
        old = (field.pool.folder / "manifest").read_bytes()
        await trio.sleep(SOON_S)
        for name in ("bad", "worse"):
            field.pool.change(
                lambda m, name=name: revoke_peers(m, (Identity.from_seed(name).peer_id,), wall())
            )
        await trio.sleep(SOON_S)
        before = holds(worker, field)
        write_durably(field.pool.folder / "manifest", old)
        worst = Identity.from_seed("worst").peer_id
        field.pool.change(lambda m: revoke_peers(m, (worst,), wall()))
        assert field.pool.manifest().number < before
        await trio.sleep(SOON_S)
        assert holds(worker, field) > before
        assert len(worker.manifests[-1].revoked) == 3


async def test_a_push_reaches_gate_and_workers_and_counts_them(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        workers = [await field.join(f"worker-{n}", field.ticket(Role.WORKER)) for n in (1, 2)]
        visitor = await field.passer_by("visitor")
        await trio.sleep(SOON_S)
        revoked = field.pool.change(lambda m: revoke_peers(m, (Identity.from_seed("bad").peer_id,), wall()))
        async with trio.open_nursery() as nursery:
            client = visitor.client(nursery)
            received = await client.spread(field.gates, field.pool.signed())
            nursery.cancel_scope.cancel()
        assert (received.called, received.stored) == (3, 3)
        assert [holds(worker, field) for worker in workers] == [revoked.number] * 2


async def test_members_find_the_manifest_at_holders_while_the_gate_is_down(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        ticket = field.ticket(Role.WORKER)
        first = await field.join("worker-1", ticket)
        for number in range(3):
            await field.passer_by(f"passer-{number}")
        await trio.sleep(SOON_S)
        number = field.pool.change(
            lambda m: revoke_peers(m, (Identity.from_seed("bad").peer_id,), wall())
        ).number
        await trio.sleep(SOON_S)
        assert holds(first, field) == number
        field.swarm.kill(field.gate.peer)
        field.gate.scope.cancel()
        late = await field.join("worker-2", ticket, learn=first)
        await trio.sleep(ONE_POLL_S)
        assert holds(late, field) == number
        assert joined_pools(late.home, Role.WORKER)[0].unused  # nobody could admit it yet


async def test_a_revoked_peer_joins_by_no_ticket_and_is_not_renewed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        ann = await field.join("ann", field.ticket(Role.SUBMIT), Role.SUBMIT)
        await trio.sleep(SOON_S)
        (joined,) = joined_pools(ann.home, Role.SUBMIT)
        old = ann.manifests[-1]
        field.pool.change(lambda m: revoke_peers(m, (ann.peer,), wall()))
        async with trio.open_nursery() as nursery:
            client = ann.client(nursery)
            with pytest.raises(NotPermitted, match="revoked"):
                await client.enrol(field.gates, joined, old, "ann", now=wall())
            await trio.sleep(SOON_S)
            fresh = joined.model_copy(update={"spent": False, "ticket": field.ticket(Role.SUBMIT).secret})
            with pytest.raises(NotPermitted, match="revoked"):
                await client.enrol(field.gates, fresh, None, "ann", now=wall())
            nursery.cancel_scope.cancel()


async def test_a_revoked_ticket_admits_nobody_and_those_who_joined_with_it_stay(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        ticket = field.ticket(Role.WORKER)
        await field.join("worker-1", ticket)
        await trio.sleep(SOON_S)
        (record,) = field.pool.open_tickets(wall())
        revoke(field.pool, record.id, wall())
        late = await field.join("worker-2", ticket)
        await trio.sleep(SOON_S)
        assert [m.name for m in field.pool.manifest().members] == ["worker-1"]
        assert joined_pools(late.home, Role.WORKER)[0].unused


async def test_a_membership_is_renewed_at_half_its_life_and_not_sooner(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        worker = await field.join("worker", field.ticket(Role.WORKER, ttl_s=600.0))
        await trio.sleep(SOON_S)
        first = find_member(field.pool.manifest(), worker.peer, Role.WORKER, wall())
        await trio.sleep(2000)
        later = find_member(field.pool.manifest(), worker.peer, Role.WORKER, wall())
        assert first is not None
        assert later is not None
        assert first.until is not None
        assert later.until is not None
        assert later.until > max(wall(), first.until)
        assert later == first.model_copy(update={"until": later.until})
        assert len(field.enrolled) <= 9
        assert field.pool.manifest().number <= 1 + 9


async def test_a_ticket_for_one_peer_works_without_a_gate(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pool_field(tmp_path) as field:
        field.swarm.kill(field.gate.peer)
        peer = Identity.from_seed("ann").peer_id
        ann = await field.join("ann", field.ticket(Role.SUBMIT, to=peer), Role.SUBMIT)
        permits = Authorization(owners=(), pools={field.pool.id: "lab"}, prove=prove, wall=wall)
        permits.update(ann.manifests[-1])
        permit = permits.check(peer, StatusRequest())
        assert isinstance(permit, CallPermission)
        assert permit.rights == {Right.SUBMIT, Right.STATUS}
        assert peer in {m.peer for m in field.pool.manifest().members}


async def test_who_comes_before_the_gate_is_let_in_once_it_is_there(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        field.swarm.partition((field.gate.peer,), (Identity.from_seed("worker").peer_id,))
        await field.join("worker", field.ticket(Role.WORKER))
        await trio.sleep(60)
        assert field.pool.manifest().members == ()
        field.swarm.heal()
        await trio.sleep(360)
        assert [m.name for m in field.pool.manifest().members] == ["worker"]


# -- server --------------------------------------------------------------------------------------------------------------


async def test_a_forged_manifest_cuts_its_bearer_off_and_an_older_one_changes_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        worker = await field.join("worker", field.ticket(Role.WORKER))
        await trio.sleep(SOON_S)
        old = field.pool.signed()
        field.pool.change(lambda m: revoke_peers(m, (Identity.from_seed("bad").peer_id,), wall()))
        await trio.sleep(SOON_S)
        now = holds(worker, field)
        liar = await field.passer_by("liar")
        async with trio.open_nursery() as nursery:
            links = pool_links(liar.network, nursery)
            where = worker.network.addresses
            answer = await links.call(worker.peer, where, old)
            assert answer == ManifestStored(number=now)
            manifest = worker.pools.registry.manifest(field.pool.id)
            assert manifest is not None
            forged = PoolManifest(pool=liar.peer, name="lab", number=999)
            mine = sign_manifest(liar.identity, forged)
            higher = sign_manifest(field.pool.key, manifest.model_copy(update={"number": 999}))
            bad = higher.model_copy(update={"signature": mine.signature})
            with pytest.raises(Unreachable, match="broke"):
                await links.call(worker.peer, where, bad)
            assert holds(worker, field) == now
            assert await links.call(worker.peer, where, mine) == ManifestStored(number=999)
            assert holds(worker, field) == now  # that was the liar's own pool
            nursery.cancel_scope.cancel()


async def test_the_latest_manifest_is_given_to_anybody_who_has_an_older_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        asker = await field.passer_by("asker")
        async with trio.open_nursery() as nursery:
            links = pool_links(asker.network, nursery)
            gate, where = field.gate.peer, field.gate.network.addresses
            number = field.pool.manifest().number
            answer = await links.call(gate, where, AskManifest(pool=field.pool.id))
            assert isinstance(answer, ManifestMessage)
            assert verified(answer).number == number
            assert await links.call(gate, where, AskManifest(pool=field.pool.id, have=number)) == NoManifest()
            assert await links.call(gate, where, AskManifest(pool=asker.peer)) == NoManifest()
            nursery.cancel_scope.cancel()


async def test_nobody_is_let_in_where_the_key_is_not_or_too_often(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        worker = await field.join("worker", field.ticket(Role.WORKER))
        asker = await field.passer_by("asker")
        message = EnrolRequest(
            pool=field.pool.id, ticket=field.ticket(Role.SUBMIT).secret, role=Role.WORKER, name="n"
        )
        async with trio.open_nursery() as nursery:
            links = pool_links(asker.network, nursery)
            at_worker = await links.call(worker.peer, worker.network.addresses, message)
            assert isinstance(at_worker, RefusedMessage)
            assert at_worker.reason is Reason.UNKNOWN
            where = field.gate.network.addresses
            wrong_role = await links.call(field.gate.peer, where, message)
            assert isinstance(wrong_role, RefusedMessage)
            assert "not for the role worker" in wrong_role.detail
            for _ in range(40):
                assert await links.call(field.gate.peer, where, message, max_wait_s=60) == wrong_role
            assert field.gate.network.governor.busy
            nursery.cancel_scope.cancel()
        assert "asker" not in {m.name for m in field.pool.manifest().members}


async def test_an_answer_is_no_question_on_the_pool_link(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pool_field(tmp_path) as field:
        liar = await field.passer_by("liar")
        async with trio.open_nursery() as nursery:
            links = pool_links(liar.network, nursery)
            with pytest.raises(Unreachable):
                await links.call(field.gate.peer, field.gate.network.addresses, ManifestStored(number=3))
            nursery.cancel_scope.cancel()


def test_many_small_manifests_of_strangers_do_not_push_out_one_that_is_asked_for() -> None:
    registry = ManifestRegistry(me=ME)
    keys = [Identity.from_seed(f"pool {number}") for number in range(3 * MAX_FOREIGN)]
    for number, key in enumerate(keys):
        signed = sign_manifest(key, PoolManifest(pool=key.peer_id, name="p", number=7))
        assert registry.store(signed) == 7
        if not number:
            assert registry.asked(key.peer_id)
    assert registry.latest(keys[0].peer_id)
    remaining = [key.peer_id for key in keys[1:] if registry.latest(key.peer_id)]
    assert len(remaining) == MAX_FOREIGN - 1
    near = sorted((key.peer_id for key in keys[1:]), key=lambda p: distance(p, routing_key(ME)))
    assert set(remaining) == set(near[: MAX_FOREIGN - 1])


def test_the_registry_stores_only_what_its_pool_signed_and_only_newer() -> None:
    key, news = Identity.from_seed("pool"), list[int]()
    registry = ManifestRegistry(on_manifest=lambda manifest, signed: news.append(manifest.number))
    registry.followed.add(key.peer_id)
    for number in (3, 2, 3, 5):
        signed = sign_manifest(key, PoolManifest(pool=key.peer_id, name="p", number=number))
        registry.store(signed)
    assert news == [3, 5]
    newer = sign_manifest(key, PoolManifest(pool=key.peer_id, name="p", number=6))
    with pytest.raises(RemoteProtocolError):
        registry.store(newer.model_copy(update={"signature": b"x" * 64}))
    assert news == [3, 5]


async def test_only_a_newer_manifest_that_is_to_be_stored_is_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [Identity.from_seed(name) for name in ("pool", "another pool")]
    registry, checked = ManifestRegistry(), list[int]()

    def count(signed: ManifestMessage) -> PoolManifest:
        checked.append(1)
        return verified(signed)

    monkeypatch.setattr("swarm.pools.server.verified", count)
    registry.followed.add(keys[0].peer_id)
    server = PoolServer(registry, admit=lambda peer: RefusedMessage(reason=Reason.NOT_ALLOWED))
    link: Any = SimpleNamespace(peer=ME)
    signed = [sign_manifest(key, PoolManifest(pool=key.peer_id, name="p", number=3)) for key in keys]
    assert await server.answer(link, signed[0]) == ManifestStored(number=3)
    assert await server.answer(link, signed[0]) == ManifestStored(number=3)
    assert isinstance(await server.answer(link, signed[1]), RefusedMessage)
    assert len(checked) == 1


@pytest.mark.parametrize("lie", ["refuses", "answers with an old manifest"])
@pytest.mark.parametrize("renews", [False, True], ids=["joins", "renews"])
async def test_one_lying_gate_ends_neither_a_search_for_admission_nor_a_renewal(
    tmp_path: Path, autojump_clock: MockClock, lie: str, renews: bool
) -> None:
    async with pool_field(tmp_path) as field:
        worker = await field.join("worker", field.ticket(Role.WORKER, ttl_s=600.0))
        await trio.sleep(SOON_S)
        worker.following.cancel()
        old, manifest = field.pool.signed(), field.pool.manifest()
        (joined,) = joined_pools(worker.home, Role.WORKER)

        async def answer(peer: str, message: EnrolRequest) -> ManifestMessage | RefusedMessage:
            return RefusedMessage(reason=Reason.NOT_ALLOWED, detail="no") if lie == "refuses" else old

        liar = await field.passer_by("liar", answer)
        at_liar = tuple(f"{address}/p2p/{liar.peer}" for address in liar.network.addresses)
        joined = joined.model_copy(update={"gates": (*at_liar, *field.gates)})
        node = worker
        if not renews:
            node = await field.passer_by("newcomer")
            ticket = field.ticket(Role.WORKER).secret
            joined = joined.model_copy(update={"spent": False, "ticket": ticket})
        await trio.sleep(400)
        async with trio.open_nursery() as nursery:
            client = node.client(nursery)
            have = manifest if renews else None
            _, signed = await client.enrol((), joined, have, "node", now=wall())
            line = find_member(verified(signed), node.peer, Role.WORKER, wall())
            assert line is not None
            assert line.until is not None
            assert line.until > wall() + 500
            alone = joined.model_copy(update={"gates": at_liar})
            if lie == "refuses":
                with pytest.raises(NotPermitted, match="refuses: no"):
                    await client.enrol((), alone, have, "node", now=wall())
            elif renews:  # all gates were asked
                assert (await client.enrol((), alone, have, "node", now=wall()))[1] == old
            nursery.cancel_scope.cancel()


async def test_a_ticket_with_a_gate_that_makes_no_sense_harms_nobody(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        odd = field.ticket(Role.WORKER).model_copy(
            update={"gates": ("/dns/nowhere", "/ip4/1.2.3.4/tcp/5/p2p/x", *field.gates)}
        )
        await field.join("worker", odd)
        await trio.sleep(SOON_S)
        assert [m.name for m in field.pool.manifest().members] == ["worker"]


async def test_the_scheduler_of_a_home_without_a_gate_spreads_what_its_pool_revoked(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        home = Home.at(tmp_path / "ada")
        load_or_create(home.key("scheduler"))
        pool, terms = home_pool(home, wall()), MemberTerms(role=Role.WORKER)
        ann = Identity.from_seed("ann").peer_id
        invite_peer(pool, (), MemberTerms(role=Role.SUBMIT), ann, now=wall())
        ticket = invite_peer(pool, field.gates, terms, Identity.from_seed("shed").peer_id, now=wall())
        shed = await field.join("shed", ticket)
        await field.scheduler("ada", home)
        await trio.sleep(SOON_S)
        revoked = pool.change(lambda m: revoke_peers(m, (ann,), wall()))
        await trio.sleep(ONE_POLL_S)
        assert shed.manifests[-1] == revoked
