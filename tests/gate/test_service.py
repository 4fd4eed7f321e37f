"""A gate as its own process runs it, over libp2p on loopback: it admits newcomers, and hears what other processes of its home change."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import trio

from gate.cli.pool import enrol_scheduler, push_manifest
from gate.service import full_addresses, run_gate
from gate.settings import GateSettings
from protocol.errors import NotPermitted
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import AskManifest, EnrolRequest, NoManifest
from protocol.words import Role
from swarm.base.home import Home
from swarm.join.host import open_host
from swarm.join.node import RunningNode
from swarm.net.identity import Identity, load_or_create
from swarm.pools.enrolment import invite, revoke
from swarm.pools.membership import join_pool, membership_of, stored_manifest
from swarm.pools.owner import MemberTerms, create_pool
from tests.gate.field import pool_links

SETTINGS = GateSettings(listen=("/ip4/127.0.0.1/tcp/0",))


async def test_a_gate_admits_by_ticket_until_the_ticket_is_revoked(tmp_path: Path) -> None:
    home, guest = Home.at(tmp_path / "owner"), Home.at(tmp_path / "guest")
    async with trio.open_nursery() as nursery:
        here: RunningNode = await nursery.start(run_gate, home, SETTINGS)
        gates = full_addresses(here)
        pool = create_pool(home, "lab")  # created while the gate runs
        now = time.time()
        ticket, record = invite(
            pool,
            gates,
            MemberTerms(role=Role.SUBMIT, ttl_s=3600, priority=60, slots=2, team="vision"),
            for_s=600.0,
            now=now,
            uses=1,
        )
        me = load_or_create(guest.key("scheduler")).peer_id
        joined = join_pool(guest, ticket, Role.SUBMIT, me, now=now)
        inside = await enrol_scheduler(guest, joined, gates, "ann")
        assert inside.spent
        assert stored_manifest(guest, pool.id) == pool.signed()
        (member,) = pool.manifest().members
        assert member == membership_of(guest, inside, me, now)
        assert member.until is not None
        assert member.until - now == pytest.approx(3600, abs=30)
        assert (member.peer, member.name, member.team) == (me, "ann", "vision")
        assert (member.priority, member.slots) == (60, 2)
        assert pool.open_tickets(now)[0].used == (me,)

        assert len(revoke(pool, "ann", now)) == 2  # and the ticket by which it joined
        assert record.id not in {each.id for each in pool.tickets()}
        assert (await push_manifest(gates, pool)).stored >= 1
        with pytest.raises(NotPermitted, match="revoked"):
            await enrol_scheduler(guest, inside, gates, "ann")
        nursery.cancel_scope.cancel()


async def test_a_stranger_gets_nothing_at_a_gate(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "owner")
    pool = create_pool(home, "lab")
    async with trio.open_nursery() as nursery:
        here: RunningNode = await nursery.start(run_gate, home, SETTINGS)
        async with open_host(
            Identity.fresh(), bootstrap=full_addresses(here), rng=random.Random()
        ) as network:
            links = pool_links(network, nursery)
            where = here.network.addresses
            message = EnrolRequest(
                pool=pool.id, ticket=b"any 16 bytes at ", role=Role.SUBMIT, name="stranger"
            )
            answer = await links.call(here.identity.peer_id, where, message)
            assert isinstance(answer, RefusedMessage)
            assert (
                await links.call(here.identity.peer_id, where, AskManifest(pool=network.peer_id))
                == NoManifest()
            )
        assert pool.manifest().members == ()
        nursery.cancel_scope.cancel()
