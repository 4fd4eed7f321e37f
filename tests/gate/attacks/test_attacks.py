"""Attacks with tickets and memberships: what an attacker can gain from them, and what the pool's owner can still do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import NotPermitted, SettingsError
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import MAX_REVOKED, EnrolRequest, ManifestMessage, PoolMember
from protocol.words import Role
from swarm.base.durable import write_durably
from swarm.base.home import Home
from swarm.net.identity import Identity
from swarm.pools.enrolment import PoolEnrolment, invite, invite_peer, revoke
from swarm.pools.manifests import DELEGATION_S, MARGIN_S, with_member
from swarm.pools.owner import MAX_OPEN_USES, MAX_TICKETS, MemberTerms, OwnPool, create_pool
from swarm.pools.tickets import Ticket

START = 1_800_000_000.0
DAY = 86_400.0
ANN, BEN, EVE = (Identity.from_seed(name).peer_id for name in ("ann", "ben", "eve"))


class Lab:
    """A pool, its gate's answers, and a clock."""

    def __init__(self, home: Home) -> None:
        self.now = START
        self.pool: OwnPool = create_pool(home, "lab")
        self._answer = PoolEnrolment(home, lambda: self.now)

    def ticket(self, role: Role = Role.SUBMIT, *, uses: int = 1, **limits: Any) -> tuple[Ticket, str]:
        """A ticket, and its id."""
        terms = MemberTerms(role=role, ttl_s=30 * int(DAY), **limits)
        ticket, record = invite(self.pool, (), terms, now=self.now, for_s=DAY, uses=uses)
        return ticket, record.id

    def invite(self, peer: str, name: str | None = None, ttl_s: int = 30 * int(DAY), **limits: Any) -> None:
        terms = MemberTerms(role=Role.SUBMIT, ttl_s=ttl_s, **limits)
        invite_peer(self.pool, (), terms, peer, now=self.now, name=name)

    def enrol(
        self, peer: str, ticket: Ticket | None, name: str = "n", role: Role = Role.SUBMIT
    ) -> ManifestMessage | RefusedMessage:
        secret = ticket.secret if ticket is not None else None
        return self._answer(peer, EnrolRequest(pool=self.pool.id, ticket=secret, role=role, name=name))

    def admits(
        self, peer: str, ticket: Ticket | None, name: str = "n", role: Role = Role.SUBMIT
    ) -> PoolMember:
        """The manifest line that the peer gets."""
        answer = self.enrol(peer, ticket, name, role)
        assert isinstance(answer, ManifestMessage), answer.detail
        return self.line(peer)

    def revoke(self, who: str, *, with_members: bool = False) -> tuple[str, ...]:
        return revoke(self.pool, who, self.now, with_members=with_members)

    def revoked(self) -> list[str]:
        return [each.peer for each in self.pool.manifest().revoked]

    def line(self, peer: str) -> PoolMember:
        return next(member for member in self.pool.manifest().members if member.peer == peer)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(Home.at(tmp_path / "owner"))


def refusal(answer: ManifestMessage | RefusedMessage) -> str:
    assert isinstance(answer, RefusedMessage)
    return answer.detail


# -- names ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [BEN, "deadbeefdeadbeef", "DEADBEEFDEADBEEF"])
def test_nobody_comes_in_under_a_name_that_reads_as_an_id(lab: Lab, name: str) -> None:
    ticket, _ = lab.ticket()
    assert "looks like an id" in refusal(lab.enrol(ANN, ticket, name))
    lab.admits(ANN, ticket, "ann")  # the refusal has not used the ticket
    with pytest.raises(ValueError, match="looks like an id"):
        lab.invite(BEN, name=name)


def test_a_peer_id_means_that_peer_though_another_is_called_so(lab: Lab) -> None:
    for peer, name in ((ANN, BEN), (BEN, ANN)):  # as an earlier manifest may say
        member = PoolMember(peer=peer, role=Role.SUBMIT, name=name)
        lab.pool.change(
            lambda m, member=member: m.model_copy(
                update={"members": (*m.members, member), "number": m.number + 1}
            )
        )
    lab.revoke(ANN)
    assert lab.revoked() == [ANN]
    lab.revoke(BEN)
    assert lab.pool.manifest().members == ()


def test_who_comes_in_under_anothers_name_gets_one_of_its_own(lab: Lab) -> None:
    ticket, _ = lab.ticket(uses=3)
    for peer in (ANN, EVE):
        lab.admits(peer, ticket, "ann")
    assert [m.name for m in lab.pool.manifest().members] == ["ann", f"ann-{EVE[-6:]}"]
    lab.revoke("ann")
    assert lab.revoked() == [ANN]


def test_a_member_keeps_the_name_it_came_in_by(lab: Lab) -> None:
    ticket, _ = lab.ticket()
    lab.admits(EVE, ticket, "eve")
    for shown in (ticket, None):
        assert lab.admits(EVE, shown, "the owner").name == "eve"


# -- tickets ----------------------------------------------------------------------------------------------------------------


def test_a_leaked_ticket_lets_in_as_many_as_it_was_given_for(lab: Lab) -> None:
    ticket, _ = lab.ticket(Role.WORKER, uses=2)
    for number in range(2):
        for _ in range(2):  # a repeated request counts once
            lab.admits(Identity.from_seed(number).peer_id, ticket, f"m-{number}", Role.WORKER)
    assert "allowed uses: 2" in refusal(lab.enrol(EVE, ticket, "eve", Role.WORKER))
    assert len(lab.pool.manifest().members) == 2


def test_a_ticket_that_the_owner_does_not_know_lets_nobody_in(lab: Lab) -> None:
    ticket, _ = lab.ticket()
    (lab.pool.folder / "tickets").unlink()
    assert "no such ticket" in refusal(lab.enrol(EVE, ticket))


def test_a_secret_that_the_owner_did_not_issue_admits_nobody(lab: Lab) -> None:
    ticket, name = lab.ticket()
    for secret in (bytes(16), bytes.fromhex(name) * 2, Identity.from_seed("x").seed[:16]):
        forged = ticket.model_copy(update={"secret": secret})
        assert "no such ticket" in refusal(lab.enrol(EVE, forged))


def test_a_ticket_admits_nobody_after_its_end_or_in_another_role(lab: Lab) -> None:
    ticket, _ = lab.ticket()
    assert "not for the role worker" in refusal(lab.enrol(EVE, ticket, role=Role.WORKER))
    lab.now += DAY + 1
    assert "expired" in refusal(lab.enrol(EVE, ticket))


def test_without_a_ticket_only_a_member_is_renewed_and_only_in_its_role(lab: Lab) -> None:
    ticket, _ = lab.ticket()
    assert "has no submit" in refusal(lab.enrol(EVE, None))
    before = lab.admits(EVE, ticket)
    assert "has no worker" in refusal(lab.enrol(EVE, None, role=Role.WORKER))
    number = lab.pool.manifest().number
    assert lab.admits(EVE, None) == before, "with all of its life left it is not renewed"
    assert lab.pool.manifest().number == number, "so a flood of renewals writes nothing"
    lab.now += 20 * DAY
    assert lab.admits(EVE, None).until == int(START + 50 * DAY)
    lab.now += 31 * DAY
    assert "has no submit" in refusal(lab.enrol(EVE, None)), "who was away for too long needs a new ticket"


def test_all_who_joined_with_a_ticket_are_revoked_with_it_also_when_it_ended_long_ago(lab: Lab) -> None:
    ticket, name = lab.ticket(Role.WORKER, uses=3)
    other, _ = lab.ticket(Role.WORKER)
    for peer in (ANN, EVE):
        lab.admits(peer, ticket, peer[-5:], Role.WORKER)
    lab.admits(BEN, other, "ben", Role.WORKER)
    lab.now += 20 * DAY
    for peer in (ANN, EVE):
        lab.admits(peer, None, "n", Role.WORKER)
    (line,) = lab.revoke(name, with_members=True)
    assert "and so is everyone who joined with it (2)" in line
    assert set(lab.revoked()) == {ANN, EVE}
    assert [m.name for m in lab.pool.manifest().members] == ["ben"]


def test_with_a_member_the_ticket_that_it_used_is_revoked_and_others_stay(lab: Lab) -> None:
    ticket, name = lab.ticket(uses=3)
    for peer in (ANN, EVE):
        lab.admits(peer, ticket, peer[-5:])
    assert any(name in line for line in lab.revoke(EVE))
    assert "no such ticket" in refusal(lab.enrol(BEN, ticket))
    assert [m.peer for m in lab.pool.manifest().members] == [ANN]
    assert "revoked" in refusal(lab.enrol(EVE, None))
    assert lab.admits(ANN, None).peer == ANN


def test_a_revocation_gives_its_room_free_when_nothing_delegated_before_it_can_be_good(lab: Lab) -> None:
    lab.revoke(EVE)
    number = lab.pool.manifest().number
    lab.now += DELEGATION_S + MARGIN_S - 60
    lab.revoke(BEN)
    assert lab.revoked() == [EVE, BEN]
    lab.now += 120
    lab.revoke(ANN)
    assert lab.revoked() == [BEN, ANN]
    assert lab.pool.manifest().number > number


def test_a_ticket_id_that_does_not_exist_uses_no_room(lab: Lab) -> None:
    number = lab.pool.manifest().number
    with pytest.raises(SettingsError, match="has no open ticket deadbeefdeadbeef"):
        lab.revoke("deadbeefdeadbeef")
    assert lab.pool.manifest().number == number


def test_the_tickets_file_stays_readable_however_many_use_them(lab: Lab) -> None:
    each, peers = 256, tuple(Identity.from_seed(number).peer_id for number in range(256))
    for _ in range(MAX_OPEN_USES // each):
        lab.ticket(Role.WORKER, uses=each, team="t" * 64)
    with pytest.raises(NotPermitted, match="at most 512 tickets"):
        lab.ticket()
    full = [ticket.model_copy(update={"used": peers}) for ticket in lab.pool.tickets()]
    small = full[0].model_copy(update={"uses": 1, "used": (EVE,)})
    lab.pool.write_tickets((*full, *(small for _ in range(MAX_TICKETS - len(full)))))
    assert len(lab.pool.open_tickets(lab.now)) == MAX_TICKETS


# -- lowered permissions stay low ---------------------------------------------------------------------------------------------


def test_a_member_that_was_lowered_cannot_raise_itself_by_what_it_had_before(lab: Lab) -> None:
    high, _ = lab.ticket(uses=5, priority=80, team="vision")
    lab.admits(EVE, high)
    lab.invite(EVE, priority=10, slots=1, team="guests")
    for shown in (high, None):
        lab.now += 20 * 3600
        line = lab.admits(EVE, shown)
        assert (line.priority, line.slots, line.team) == (10, 1, "guests")
    fresh, _ = lab.ticket(priority=60)  # a new grant by the owner counts
    assert lab.admits(EVE, fresh).priority == 60


def test_a_shortened_membership_gets_no_time_back_by_an_old_ticket(lab: Lab) -> None:
    high, _ = lab.ticket(uses=5, priority=80)
    lab.admits(EVE, high)
    lab.invite(EVE, ttl_s=3600, priority=10)
    for _ in range(3):  # shortly before, and twice after, its line expired
        lab.now += 2000.0
        line = lab.admits(EVE, high)
        assert (line.priority, line.ttl_s) == (10, 3600)
        assert line.until is not None
        assert line.until <= lab.now + 3600
        lab.now += 4000.0


def test_a_membership_with_a_fixed_end_is_not_renewed_by_an_old_ticket(lab: Lab) -> None:
    high, _ = lab.ticket(uses=5)
    line = lab.admits(EVE, high)
    fixed = line.model_copy(update={"until": int(lab.now) + 600, "ttl_s": None})
    lab.pool.change(lambda manifest: with_member(manifest, fixed, lab.now))
    assert lab.admits(EVE, high) == fixed
    lab.now += 1000
    assert "has ended" in refusal(lab.enrol(EVE, high))
    assert lab.line(EVE) == fixed


def test_an_invitation_that_fails_pardons_nobody(lab: Lab) -> None:
    lab.revoke(EVE)
    for number in range(MAX_REVOKED):
        member = PoolMember(peer=Identity.from_seed(number).peer_id, role=Role.WORKER, name=f"m-{number}")
        lab.pool.change(
            lambda m, member=member: m.model_copy(
                update={"members": (*m.members, member), "number": m.number + 1}
            )
        )
    with pytest.raises(NotPermitted, match="is full"):
        lab.invite(EVE)
    assert lab.revoked() == [EVE]


def test_one_damaged_pool_leaves_the_others_as_they_are(lab: Lab, tmp_path: Path) -> None:
    other = create_pool(Home.at(tmp_path / "owner"), "damaged")
    write_durably(other.folder / "pool", b"?")
    ticket, _ = lab.ticket()
    lab.admits(ANN, ticket)
