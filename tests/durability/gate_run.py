"""A gate over libp2p on loopback, through several lives: it admits by ticket, and hears what its owner revokes."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Final

import trio

from gate.admission.policy import AdmissionPolicy
from gate.cli.pool import enrol_scheduler, push_manifest
from gate.service import full_addresses, run_gate
from gate.settings import GateSettings
from protocol.errors import NotPermitted
from protocol.words import Role
from swarm.base.home import Home
from swarm.join.known_gates import save_gates
from swarm.join.node import RunningNode
from swarm.net.identity import load_or_create
from swarm.pools.enrolment import invite, revoke
from swarm.pools.membership import join_pool
from swarm.pools.owner import MemberTerms, OwnPool, create_pool
from swarm.pools.tickets import Ticket
from tests.durability.promises import Promises

SETTINGS: Final = GateSettings(listen=("/ip4/127.0.0.1/tcp/0",))
GATE: Final = "gate"
LIVES: Final = 2


class Gate:
    """The gate's home, the guests' homes, and the promises of each of them."""

    def __init__(self, root: Path, promises: Promises, seed: int) -> None:
        self.root, self.promises, self.rng = root, promises, random.Random(seed)
        self.home = Home.at(root / GATE)

    async def live(self, life: int, guests: int) -> None:
        async with trio.open_nursery() as nursery:
            here: RunningNode = await nursery.start(run_gate, self.home, SETTINGS)
            self.promises.make(GATE, "identity", "gate", here.identity.peer_id)
            self.promises.make(GATE, "incarnation", "gate", here.incarnation)
            name = f"lab-{life}"
            pool = create_pool(self.home, name)
            self.promises.make(GATE, "pool", name)
            gates = full_addresses(here)
            for n in range(guests):
                await self.guest(pool, gates, f"guest-{life}-{n}", n)
            nursery.cancel_scope.cancel()

    async def guest(self, pool: OwnPool, gates: tuple[str, ...], name: str, n: int) -> None:
        home, now = Home.at(self.root / name), time.time()
        terms = MemberTerms(role=Role.SUBMIT, ttl_s=3_600)
        self.promises.end(GATE, "tickets", pool.name)
        ticket, record = invite(pool, gates, terms, for_s=600.0, now=now, uses=1)
        self.promises.make(GATE, "tickets", pool.name, len(pool.tickets()))
        me = load_or_create(home.key("scheduler")).peer_id
        self.promises.make(name, "identity", "scheduler", me)
        joined = join_pool(home, ticket, Role.SUBMIT, me, now=now)
        self.promises.make(name, "joined", pool.id, True)
        save_gates(home, gates)
        self.promises.make(name, "gates", "", list(gates))
        with self.admits(pool, me):
            await enrol_scheduler(home, joined, gates, name)
        self.promises.make(name, "member", f"{pool.id} {me}")
        self.promises.make(name, "list", pool.id, pool.manifest().number)
        if n % 2:
            await self.revoked(pool, gates, name, me)
        elif n % 4 == 2:
            self.unused(pool, gates, terms)
        assert record.id

    def admits(self, pool: OwnPool, peer: str) -> Admitting:
        return Admitting(self.promises, pool, peer)

    async def revoked(self, pool: OwnPool, gates: tuple[str, ...], name: str, peer: str) -> None:
        """Revoke a guest, and the ticket by which it joined."""
        for kind in ("admitted", "member"):
            self.promises.end(GATE, kind, f"{_of(pool, kind)} {peer}")
        self.promises.end(GATE, "tickets", pool.name)
        revoke(pool, peer, time.time())
        self.promises.make(GATE, "revoked", f"{pool.name} {peer}")
        self.promises.make(GATE, "list", pool.id, pool.manifest().number)
        await push_manifest(gates, pool)

    def unused(self, pool: OwnPool, gates: tuple[str, ...], terms: MemberTerms) -> None:
        """Revoke a ticket before anybody has used it."""
        self.promises.end(GATE, "tickets", pool.name)
        ticket, record = invite(pool, gates, terms, for_s=600.0, now=time.time(), uses=1)
        self.promises.make(GATE, "closed", f"{pool.name} {record.id}", False)
        self.promises.end(GATE, "closed", f"{pool.name} {record.id}")
        revoke(pool, record.id, time.time())
        self.promises.make(GATE, "closed", f"{pool.name} {record.id}", True)
        assert _refuses(pool, ticket)


class Admitting:
    """While the gate answers a newcomer: before the answer goes out, the newcomer is a member and the ticket is used."""

    def __init__(self, promises: Promises, pool: OwnPool, peer: str) -> None:
        self.promises, self.pool, self.peer = promises, pool, peer
        self._before = AdmissionPolicy.enrolled

    def __enter__(self) -> None:
        def enrolled(policy: AdmissionPolicy, peer: str) -> None:
            for kind in ("admitted", "member"):
                self.promises.make(GATE, kind, f"{_of(self.pool, kind)} {peer}")
            self._before(policy, peer)

        AdmissionPolicy.enrolled = enrolled  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        AdmissionPolicy.enrolled = self._before  # type: ignore[method-assign]


def _of(pool: OwnPool, kind: str) -> str:
    return pool.name if kind == "admitted" else pool.id


def _refuses(pool: OwnPool, ticket: Ticket) -> bool:
    assert ticket.secret is not None
    try:
        pool.find_ticket(ticket.secret, time.time())
    except NotPermitted:
        return True
    return False


async def _serve(root: Path, promises: Promises, tasks: int, seed: int) -> None:
    gate = Gate(root, promises, seed)
    for life in range(LIVES):
        await gate.live(life, max(3, tasks // 2))


def make(root: Path, elsewhere: Path, promises: Promises, tasks: int, seed: int) -> None:
    trio.run(_serve, root, promises, tasks, seed)
