"""Admission to a home's own pool: until it is revoked, with the device that the worker names."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.messages.index import RefusedMessage
from protocol.messages.pool import EnrolRequest, ManifestMessage, PoolMember
from protocol.words import Role
from swarm.base.home import Home
from swarm.net.identity import Identity
from swarm.pools.enrolment import PoolEnrolment, invite, revoke
from swarm.pools.home_pool import home_pool
from swarm.pools.owner import MemberTerms, OwnPool
from swarm.pools.tickets import Ticket
from swarm.pools.trusted import trusted_workers

NOW = 1_800_000_000.0
YEARS = 9 * 365 * 86_400.0
SHED = Identity.from_seed("shed").peer_id
DEVICE = "d-0123456789abcdef"


class Owner:
    """A home's pool, and its answers to requests."""

    def __init__(self, home: Home) -> None:
        self.home, self.now = home, NOW
        self.pool: OwnPool = home_pool(home, NOW)
        self._answer = PoolEnrolment(home, lambda: self.now)

    def ticket(self, *, ttl_s: int | None = None, uses: int = 1) -> Ticket:
        terms = MemberTerms(role=Role.WORKER, ttl_s=ttl_s)
        return invite(self.pool, (), terms, now=self.now, for_s=3600, uses=uses)[0]

    def ask(
        self, ticket: Ticket | None, device: str | None = None, peer: str = SHED
    ) -> ManifestMessage | RefusedMessage:
        secret = ticket.secret if ticket is not None else None
        request = EnrolRequest(pool=self.pool.id, ticket=secret, role=Role.WORKER, name="shed", device=device)
        return self._answer(peer, request)

    @property
    def line(self) -> PoolMember:
        (line,) = (m for m in self.pool.manifest().members if m.role is Role.WORKER)
        return line


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(Home.at(tmp_path / "owner"))


def test_a_worker_is_listed_with_its_device_and_stays_for_years_without_a_renewal(owner: Owner) -> None:
    assert isinstance(owner.ask(owner.ticket(), DEVICE), ManifestMessage)
    assert (owner.line.peer, owner.line.device, owner.line.until) == (SHED, DEVICE, None)
    assert trusted_workers(owner.home, NOW + YEARS)[0].devices == {SHED: DEVICE}
    assert revoke(owner.pool, "shed", NOW + YEARS)[0] == "shed is revoked"
    assert trusted_workers(owner.home, NOW + YEARS)[0].peers == frozenset()
    assert isinstance(owner.ask(None, DEVICE), RefusedMessage)


def test_a_member_of_before_names_its_device_once_and_changes_it_with_a_ticket_alone(owner: Owner) -> None:
    owner.ask(owner.ticket())
    assert owner.line.device is None
    owner.ask(None, DEVICE)
    assert owner.line.device == DEVICE
    owner.ask(None, "d-of-another")
    assert owner.line.device == DEVICE
    owner.ask(owner.ticket())
    assert owner.line.device == DEVICE
    owner.ask(owner.ticket(), "d-of-another")  # a ticket carries its owner's authority
    assert owner.line.device == "d-of-another"


def test_nobody_joins_as_the_device_of_another_member(owner: Owner) -> None:
    thief = Identity.from_seed("thief").peer_id
    owner.ask(owner.ticket(), DEVICE)
    assert isinstance(owner.ask(owner.ticket(), DEVICE, thief), ManifestMessage)
    owner.ask(None, DEVICE, thief)
    devices = {m.peer: m.device for m in owner.pool.manifest().members if m.role is Role.WORKER}
    assert devices == {SHED: DEVICE, thief: None}


def test_a_submitter_has_no_device(owner: Owner) -> None:
    terms = MemberTerms(role=Role.SUBMIT)
    secret = invite(owner.pool, (), terms, now=NOW, for_s=60, uses=1)[0].secret
    request = EnrolRequest(pool=owner.pool.id, ticket=secret, role=Role.SUBMIT, name="ann", device=DEVICE)
    assert isinstance(PoolEnrolment(owner.home, lambda: NOW)(SHED, request), ManifestMessage)
    assert {member.device for member in owner.pool.manifest().members} == {None}
