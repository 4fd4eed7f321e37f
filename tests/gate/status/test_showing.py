"""To whom a pool's member presents its credentials, and how it treats what it hears: over a simulated network."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import NotPermitted, Unreachable
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import EnrolRequest, ManifestMessage, PoolMember
from protocol.words import Reason, Role
from swarm.base.durable import write_durably
from swarm.net.identity import Identity
from swarm.pools.manifests import find_member, revoke_peers, verified
from swarm.pools.membership import join_pool, joined_pools, stored_manifest
from swarm.pools.service import ALONE_LOOK_S, LOOK_S, POLL_S, Aside, PoolNode
from tests.gate.field import Field, Node, inline, pool_field, wall

SOON_S = 15.0
ME = Identity.from_seed("me").peer_id
ONE_POLL_S = POLL_S * 1.2 + 10


def line(node: Node, field: Field, role: Role = Role.SUBMIT) -> PoolMember | None:
    return find_member(node.pools.registry.manifest(field.pool.id), node.peer, role, wall())


def holds(node: Node, field: Field) -> int:
    manifest = node.pools.registry.manifest(field.pool.id)
    return manifest.number if manifest is not None else 0


async def test_a_ticket_is_shown_to_the_gates_that_it_names_and_to_no_other(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        messages: list[EnrolRequest] = []

        async def curious(peer: str, message: EnrolRequest) -> ManifestMessage | RefusedMessage:
            messages.append(message)
            return RefusedMessage(reason=Reason.UNKNOWN, detail="not here")

        foreign = await field.passer_by("foreign", curious)
        ann = await field.join("ann", field.ticket(Role.SUBMIT), Role.SUBMIT)
        ann.following.cancel()
        (joined,) = joined_pools(ann.home, Role.SUBMIT)
        theirs = tuple(f"{address}/p2p/{foreign.peer}" for address in foreign.network.addresses)
        async with trio.open_nursery() as nursery:
            client = ann.client(nursery)
            field.swarm.partition((field.gate.peer,), (ann.peer,))
            with pytest.raises(Unreachable):
                await client.enrol(theirs, joined, None, "ann", now=wall())
            assert messages == []
            field.swarm.heal()
            await trio.sleep(SOON_S)
            inside, signed = await client.enrol(theirs, joined, None, "ann", now=wall())
            field.swarm.partition((field.gate.peer,), (ann.peer,))
            with pytest.raises(Unreachable):
                await client.enrol(theirs, inside, verified(signed), "ann", now=wall())
            assert [message.ticket for message in messages] == [None]
            nursery.cancel_scope.cancel()


async def test_a_new_ticket_counts_at_once_though_the_older_membership_still_lasts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        ann = await field.join("ann", field.ticket(Role.SUBMIT, priority=10), Role.SUBMIT)
        await trio.sleep(SOON_S)
        join_pool(ann.home, field.ticket(Role.SUBMIT, priority=80), Role.SUBMIT, ann.peer, now=wall())
        await trio.sleep(SOON_S)
        (after,) = joined_pools(ann.home, Role.SUBMIT)
        assert after.spent
        member = line(ann, field)
        assert member is not None
        assert member.priority == 80
        calls = len(field.enrolled)
        await trio.sleep(600)
        assert len(field.enrolled) == calls


async def test_a_new_ticket_that_is_refused_leaves_the_membership_as_it_is(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        ann = await field.join("ann", field.ticket(Role.SUBMIT), Role.SUBMIT)
        await trio.sleep(SOON_S)
        bad = field.ticket(Role.SUBMIT)
        (record,) = [each for each in field.pool.open_tickets(wall()) if not each.used]
        field.pool.revoke_tickets(frozenset({record.id}), wall())
        join_pool(ann.home, bad, Role.SUBMIT, ann.peer, now=wall())
        await trio.sleep(SOON_S)
        (after,) = joined_pools(ann.home, Role.SUBMIT)
        assert after.spent
        assert line(ann, field) is not None
        calls = len(field.enrolled)
        await trio.sleep(600)
        assert len(field.enrolled) == calls


async def test_a_used_up_ticket_ends_who_came_for_it_and_leaves_who_is_in_already(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        ticket = field.ticket(Role.SUBMIT, uses=1)
        ann = await field.join("ann", ticket, Role.SUBMIT)
        await trio.sleep(SOON_S)
        late = await field.join("late", ticket, Role.SUBMIT)
        for node in (ann, late):
            node.following.cancel()

        def comes(node: Node) -> PoolNode:
            return PoolNode(
                node.network, node.index, node.home, Role.SUBMIT, name="x", wall=wall, rng=random.Random(1),
                aside=inline, must=(field.pool.id,),
            )  # fmt: skip

        no = pytest.RaisesExc(NotPermitted, match="used up", check=lambda exc: "new ticket" in exc.hint)
        with pytest.RaisesGroup(no, flatten_subgroups=True), trio.move_on_after(60):
            await comes(late).run()
        assert joined_pools(late.home, Role.SUBMIT) == (), "and is not tried again at the next start"
        with trio.move_on_after(60) as looked:
            await comes(ann).run()
        assert looked.cancelled_caught
        assert len(joined_pools(ann.home, Role.SUBMIT)) == 1


async def test_a_member_that_is_revoked_goes_on_serving_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        ann = await field.join("ann", field.ticket(Role.SUBMIT), Role.SUBMIT)
        ann.following.cancel()
        node = PoolNode(
            ann.network, ann.index, ann.home, Role.SUBMIT, name="x", wall=wall, rng=random.Random(1),
            aside=inline, must=(field.pool.id,),
        )  # fmt: skip
        with trio.move_on_after(600) as looked:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.run)
                await trio.sleep(SOON_S)
                assert find_member(node.registry.manifest(field.pool.id), ann.peer, Role.SUBMIT, wall())
                field.pool.change(lambda m: revoke_peers(m, (ann.peer,), wall()))
        assert looked.cancelled_caught
        assert not find_member(node.registry.manifest(field.pool.id), ann.peer, Role.SUBMIT, wall())


async def test_a_gate_that_cannot_catch_up_with_its_own_pool_says_so_and_goes_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        worker = await field.join("worker", field.ticket(Role.WORKER))
        old = (field.pool.folder / "manifest").read_bytes()
        await trio.sleep(SOON_S)
        field.pool.change(
            lambda m: revoke_peers(m, [Identity.from_seed(n).peer_id for n in range(200)], wall())
        )
        await trio.sleep(SOON_S)
        write_durably(field.pool.folder / "manifest", old)
        field.pool.change(
            lambda m: revoke_peers(m, [Identity.from_seed(-n).peer_id for n in range(1, 200)], wall())
        )
        await trio.sleep(SOON_S)
        assert len(worker.manifests[-1].revoked) == 200
        assert len(field.pool.manifest().revoked) == 199  # nothing was dropped, and the gate still runs
        late = await field.join("late", field.ticket(Role.WORKER))
        await trio.sleep(SOON_S)
        assert joined_pools(late.home, Role.WORKER)[0].spent


async def test_what_is_heard_counts_at_once_and_is_written_beside_the_event_loop(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        slow = trio.Event()
        worker = await field.join("worker", field.ticket(Role.WORKER), aside=held_up(slow))
        await trio.sleep(SOON_S)
        revoked = field.pool.change(lambda m: revoke_peers(m, (Identity.from_seed("bad").peer_id,), wall()))
        await trio.sleep(ONE_POLL_S)
        assert worker.manifests[-1] == revoked
        assert stored_manifest(worker.home, field.pool.id) is None
        slow.set()
        await trio.sleep(SOON_S)
        stored = stored_manifest(worker.home, field.pool.id)
        assert stored is not None
        assert verified(stored) == revoked


def held_up(until: trio.Event) -> Aside:
    """A disk that does nothing until then."""

    async def aside(write: Callable[[], object]) -> None:
        await until.wait()
        write()

    return aside


async def test_a_worker_without_a_pool_reads_its_home_less_often(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        nodes = [await field.passer_by("alone"), await field.join("member", field.ticket(Role.WORKER))]
        looks = [list[float](), list[float]()]
        for node, seen in zip(nodes, looks, strict=True):
            node.pools._look = partial(_noted, node.pools._look, seen)  # type: ignore[method-assign]
        await trio.sleep(10 * ALONE_LOOK_S)
        assert len(looks[0]) < 15
        assert len(looks[1]) > 90


def _noted(look: Callable[[], None], seen: list[float]) -> None:
    seen.append(trio.current_time())
    look()


async def test_a_manifest_that_is_doubted_is_asked_for_again_before_its_turn(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pool_field(tmp_path) as field:
        ann = await field.join("ann", field.ticket(Role.SUBMIT), Role.SUBMIT)
        await trio.sleep(SOON_S)
        number = field.pool.change(
            lambda m: revoke_peers(m, (Identity.from_seed("bad").peer_id,), wall())
        ).number
        await trio.sleep(1)
        assert holds(ann, field) < number
        ann.pools.doubt("another")
        ann.pools.doubt("lab")
        await trio.sleep(LOOK_S * 1.2 + 1)
        assert holds(ann, field) == number
