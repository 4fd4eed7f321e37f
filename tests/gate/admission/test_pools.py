"""Pools over a simulated network: newcomers are let in, members hear what was taken back, liars change nothing."""

from __future__ import annotations

from pathlib import Path

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
    SpreadManifest,
)
from protocol.messages.work import CredentialsReply, Denied, ShowCredentials, StatusRequest
from protocol.values.requirement import Requirement, parse_clause
from protocol.words import Reason, Right, Role
from swarm.base.durable import write_durably
from swarm.net.identity import Identity, distance, routing_key
from swarm.pools.client import enrol, pool_links, spread
from swarm.pools.manifests import sign_manifest, verified, without
from swarm.pools.membership import credentials, joined_pools, kept_manifest
from swarm.pools.server import MAX_FOREIGN, ManifestShelf
from swarm.pools.service import POLL_S
from swarm.pools.tokens import prove
from tests.gate.field import Field, Node, pool_field, wall

SOON_S = 15.0
ME = Identity.from_seed("me").peer_id
ONE_POLL_S = POLL_S * 1.2 + 10


def holds(node: Node, field: Field) -> int:
    manifest = node.pools.shelf.manifest(field.pool.id)
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
        (credential,) = credentials(ann.home, Role.SUBMIT, ann.peer, now=wall())
        proof = prove(credential.token, field.pool.id, ann.peer, now=wall())
        assert proof.grant.rights == {Right.SUBMIT, Right.STATUS}
        assert credential.pool_name == "lab"
        assert ann.heard[-1].pool == field.pool.id
        found = await ann.index.query(Requirement(clauses=(parse_clause("pools has lab"),)), 8)
        assert {s.advert.name for s in found.found} == {"worker-1", "worker-2"}
        none = await ann.index.query(Requirement(clauses=(parse_clause("pools has other"),)), 8)
        assert none.found == ()


async def test_every_member_hears_within_one_poll_that_somebody_was_revoked(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        workers = [await field.join(f"worker-{n}", field.ticket(Role.WORKER)) for n in (1, 2)]
        ann = await field.join("ann", field.ticket(Role.SUBMIT), Role.SUBMIT)
        await trio.sleep(SOON_S)
        field.gate.following.cancel()  # it does not push, and answers from what is on its disk
        revoked = field.pool.change(lambda m: without(m, (ann.peer,)))
        await trio.sleep(ONE_POLL_S)
        for worker in workers:
            assert holds(worker, field) == revoked.number
            assert ann.peer in worker.heard[-1].revoked
            kept = kept_manifest(worker.home, field.pool.id)
            assert kept is not None
            assert verified(kept.body, kept.signature) == revoked


async def test_who_was_revoked_is_refused_at_every_worker_within_one_poll(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        workers = [await field.join(f"worker-{n}", field.ticket(Role.WORKER)) for n in (1, 2)]
        ann = await field.join("ann", field.ticket(Role.SUBMIT), Role.SUBMIT)
        await trio.sleep(SOON_S)
        (credential,) = credentials(ann.home, Role.SUBMIT, ann.peer, now=wall())
        verb, door = StatusRequest(), {}
        for worker in workers:
            permits = Authorization(owners=(), pools={field.pool.id: "lab"}, prove=prove, wall=wall)
            door[worker.peer] = permits
            shown = permits.present(
                ann.peer, ShowCredentials(issuer=credential.issuer, token=credential.token)
            )
            assert isinstance(shown, CredentialsReply)
            assert isinstance(permits.check(ann.peer, verb), CallPermission)
        field.gate.following.cancel()
        field.pool.change(lambda m: without(m, (ann.peer,)))
        await trio.sleep(ONE_POLL_S)
        for worker in workers:
            assert door[worker.peer].manifest(worker.heard[-1]) == (ann.peer,)
            refused = door[worker.peer].check(ann.peer, verb)
            assert isinstance(refused, Denied)
            assert refused.reason is Reason.NOT_ALLOWED
            again = door[worker.peer].present(
                ann.peer, ShowCredentials(issuer=credential.issuer, token=credential.token)
            )
            assert isinstance(again, Denied)


async def test_a_running_gate_tells_the_workers_at_once_what_another_process_took_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        workers = [await field.join(f"worker-{n}", field.ticket(Role.WORKER)) for n in (1, 2)]
        await trio.sleep(SOON_S)
        revoked = field.pool.change(lambda m: without(m, (Identity.from_seed("bad").peer_id,)))
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
            field.pool.change(lambda m, name=name: without(m, (Identity.from_seed(name).peer_id,)))
        await trio.sleep(SOON_S)
        before = holds(worker, field)
        write_durably(field.pool.folder / "manifest", old)
        worst = Identity.from_seed("worst").peer_id
        field.pool.change(lambda m: without(m, (worst,)))
        assert field.pool.manifest().number < before
        await trio.sleep(SOON_S)
        assert holds(worker, field) > before
        assert len(worker.heard[-1].revoked) == 3


async def test_a_push_reaches_gate_and_workers_and_counts_them(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        workers = [await field.join(f"worker-{n}", field.ticket(Role.WORKER)) for n in (1, 2)]
        visitor = await field.passer_by("visitor")
        await trio.sleep(SOON_S)
        revoked = field.pool.change(lambda m: without(m, (Identity.from_seed("bad").peer_id,)))
        async with trio.open_nursery() as nursery:
            links = pool_links(visitor.network, nursery)
            heard = await spread(links, visitor.index, field.gates, field.pool.signed(), me=visitor.peer)
            nursery.cancel_scope.cancel()
        assert (heard.asked, heard.kept) == (3, 3)
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
        number = field.pool.change(lambda m: without(m, (Identity.from_seed("bad").peer_id,))).number
        await trio.sleep(SOON_S)
        assert holds(first, field) == number
        field.swarm.kill(field.gate.peer)
        field.gate.scope.cancel()
        late = await field.join("worker-2", ticket, learn=first)
        await trio.sleep(ONE_POLL_S)
        assert holds(late, field) == number
        assert joined_pools(late.home, Role.WORKER)[0].credential is None  # nobody could let it in yet


async def test_who_was_revoked_is_let_in_by_no_ticket_and_gets_no_new_credential(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        ann = await field.join("ann", field.ticket(Role.SUBMIT), Role.SUBMIT)
        await trio.sleep(SOON_S)
        (joined,) = joined_pools(ann.home, Role.SUBMIT)
        field.pool.change(lambda m: without(m, (ann.peer,)))
        async with trio.open_nursery() as nursery:
            links = pool_links(ann.network, nursery)
            with pytest.raises(NotPermitted, match="taken back"):
                await enrol(links, field.gates, joined, ann.peer, "ann", now=wall())
            await trio.sleep(SOON_S)
            fresh = joined.model_copy(update={"credential": None, "ticket": field.ticket(Role.SUBMIT).token})
            with pytest.raises(NotPermitted, match="taken back"):
                await enrol(links, field.gates, fresh, ann.peer, "ann", now=wall())
            nursery.cancel_scope.cancel()


async def test_a_ticket_that_was_taken_back_lets_nobody_in_and_who_came_by_it_stays(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        ticket = field.ticket(Role.WORKER)
        await field.join("worker-1", ticket)
        await trio.sleep(SOON_S)
        (note,) = field.pool.notes.tickets(wall())
        field.pool.change(lambda m: without(m, tokens=(note.id,)))
        late = await field.join("worker-2", ticket)
        await trio.sleep(SOON_S)
        assert [m.name for m in field.pool.manifest().members] == ["worker-1"]
        assert joined_pools(late.home, Role.WORKER)[0].credential is None


async def test_a_credential_is_renewed_at_half_its_life_and_the_number_stays(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        worker = await field.join("worker", field.ticket(Role.WORKER, lasts_s=600.0))
        await trio.sleep(SOON_S)
        (first,) = joined_pools(worker.home, Role.WORKER)
        number = field.pool.manifest().number
        await trio.sleep(2000)
        (later,) = joined_pools(worker.home, Role.WORKER)
        assert later.until > wall()
        assert later.credential != first.credential
        assert field.pool.manifest().number == number
        assert len(field.enrolled) <= 9


async def test_a_ticket_for_one_peer_works_though_no_gate_is_there(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        field.swarm.kill(field.gate.peer)
        peer = Identity.from_seed("ann").peer_id
        ann = await field.join("ann", field.ticket(Role.SUBMIT, to=peer), Role.SUBMIT)
        (credential,) = credentials(ann.home, Role.SUBMIT, peer, now=wall())
        assert prove(credential.token, field.pool.id, peer, now=wall()).principal == peer
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


# -- the desk -------------------------------------------------------------------------------------------------------------


async def test_a_forged_manifest_cuts_its_bearer_off_and_an_older_one_changes_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        worker = await field.join("worker", field.ticket(Role.WORKER))
        await trio.sleep(SOON_S)
        old = field.pool.signed()
        field.pool.change(lambda m: without(m, (Identity.from_seed("bad").peer_id,)))
        await trio.sleep(SOON_S)
        now = holds(worker, field)
        liar = await field.passer_by("liar")
        async with trio.open_nursery() as nursery:
            links = pool_links(liar.network, nursery)
            where = worker.network.addresses
            answer = await links.call(
                worker.peer, where, SpreadManifest(body=old.body, signature=old.signature)
            )
            assert answer == ManifestStored(number=now)
            manifest = worker.pools.shelf.manifest(field.pool.id)
            assert manifest is not None
            forged = PoolManifest(pool=liar.peer, name="lab", number=999)
            mine = sign_manifest(liar.identity, forged)
            body = sign_manifest(field.pool.key, manifest.model_copy(update={"number": 999})).body
            with pytest.raises(Unreachable, match="broke"):
                await links.call(worker.peer, where, SpreadManifest(body=body, signature=mine.signature))
            assert holds(worker, field) == now
            assert await links.call(
                worker.peer, where, SpreadManifest(body=mine.body, signature=mine.signature)
            ) == ManifestStored(number=999)
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
            assert verified(answer.body, answer.signature).number == number
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
            pool=field.pool.id, token=field.ticket(Role.SUBMIT).token, role=Role.WORKER, name="n"
        )
        async with trio.open_nursery() as nursery:
            links = pool_links(asker.network, nursery)
            at_worker = await links.call(worker.peer, worker.network.addresses, message)
            assert isinstance(at_worker, RefusedMessage)
            assert at_worker.reason is Reason.UNKNOWN
            where = field.gate.network.addresses
            wrong_role = await links.call(field.gate.peer, where, message)
            assert isinstance(wrong_role, RefusedMessage)
            assert "another role" in wrong_role.detail
            await links.call(field.gate.peer, where, message)
            at_once = await links.call(field.gate.peer, where, message)
            assert isinstance(at_once, RefusedMessage)
            assert at_once.reason is Reason.OVERLOADED
            assert at_once.retry_after_s
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
    shelf = ManifestShelf(me=ME)
    keys = [Identity.from_seed(f"pool {number}") for number in range(3 * MAX_FOREIGN)]
    for number, key in enumerate(keys):
        signed = sign_manifest(key, PoolManifest(pool=key.peer_id, name="p", number=7))
        assert shelf.take(signed.body, signed.signature) == 7
        if not number:
            assert shelf.asked(key.peer_id)
    assert shelf.latest(keys[0].peer_id)
    kept = [key.peer_id for key in keys[1:] if shelf.latest(key.peer_id)]
    assert len(kept) == MAX_FOREIGN - 1
    near = sorted((key.peer_id for key in keys[1:]), key=lambda p: distance(p, routing_key(ME)))
    assert set(kept) == set(near[: MAX_FOREIGN - 1])


def test_the_shelf_takes_only_what_its_pool_signed_and_only_newer() -> None:
    key, news = Identity.from_seed("pool"), list[int]()
    shelf = ManifestShelf(news=lambda manifest, signed: news.append(manifest.number))
    shelf.follow((key.peer_id,))
    for number in (3, 2, 3, 5):
        signed = sign_manifest(key, PoolManifest(pool=key.peer_id, name="p", number=number))
        shelf.take(signed.body, signed.signature)
    assert news == [3, 5]
    with pytest.raises(RemoteProtocolError):
        shelf.take(signed.body, b"x" * 64)


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
