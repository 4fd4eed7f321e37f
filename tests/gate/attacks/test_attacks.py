"""Tickets and memberships in hostile hands: what can be made of them, and what the pool's owner can still do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate.admission.enrolment import PoolEnrolment
from gate.admission.tickets import give_ticket, take_back
from protocol.errors import NotPermitted
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import MAX_REVOKED, Enrolled, EnrolRequest, PoolMember
from protocol.words import Role
from swarm.base.durable import write_durably
from swarm.base.home import Home
from swarm.base.settings import SettingsError
from swarm.net.identity import Identity
from swarm.pools.notes import MAX_TICKETS, MAX_USES_OUT, SURELY_OVER_S, TicketNote
from swarm.pools.owner import OwnPool, create_pool
from swarm.pools.tickets import Ticket
from swarm.pools.tokens import prove

START = 1_800_000_000.0
DAY = 86_400.0
ANN, BEN, EVE = (Identity.from_seed(name).peer_id for name in ("ann", "ben", "eve"))


class Lab:
    """A pool, its gate's answers, and a clock."""

    def __init__(self, home: Home) -> None:
        self.now = START
        self.pool: OwnPool = create_pool(home, "lab")
        self._answer = PoolEnrolment(home, lambda: self.now)

    def ticket(
        self,
        role: Role = Role.SUBMIT,
        *,
        to: str | None = None,
        uses: int = 1,
        priority: int = 100,
        slots: int | None = None,
        team: str = "",
        ticket_s: float = DAY,
    ) -> tuple[Ticket, str]:
        """A ticket, and its id."""
        ticket, note = give_ticket(
            self.pool,
            (),
            role=role,
            to=to,
            member=None,
            priority=priority,
            slots=slots,
            team=team,
            ticket_s=ticket_s,
            lasts_s=30 * DAY,
            now=self.now,
            uses=uses,
        )
        return ticket, note.id.hex()

    def enrol(
        self, peer: str, token: bytes, name: str = "n", role: Role = Role.SUBMIT
    ) -> Enrolled | RefusedMessage:
        return self._answer(peer, EnrolRequest(pool=self.pool.id, token=token, role=role, name=name))

    def comes_in(self, peer: str, token: bytes, name: str = "n", role: Role = Role.SUBMIT) -> bytes:
        """The credential that it gets."""
        answer = self.enrol(peer, token, name, role)
        assert isinstance(answer, Enrolled), answer.detail
        return answer.token

    def take_back(self, who: str, *, with_members: bool = False) -> tuple[str, ...]:
        return take_back(self.pool, who, self.now, with_members=with_members)

    def line(self, peer: str) -> PoolMember:
        return next(member for member in self.pool.manifest().members if member.peer == peer)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(Home.at(tmp_path / "owner"))


def refusal(answer: Enrolled | RefusedMessage) -> str:
    assert isinstance(answer, RefusedMessage)
    return answer.detail


# -- names ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [BEN, "deadbeefdeadbeef", "DEADBEEFDEADBEEF"])
def test_nobody_comes_in_under_a_name_that_reads_as_an_id(lab: Lab, name: str) -> None:
    ticket, _ = lab.ticket()
    assert "looks like an id" in refusal(lab.enrol(ANN, ticket.token, name))
    lab.comes_in(ANN, ticket.token, "ann")  # the refusal has not used the ticket up
    with pytest.raises(ValueError, match="looks like an id"):
        give_ticket(
            lab.pool,
            (),
            role=Role.SUBMIT,
            to=BEN,
            member=name,
            priority=1,
            slots=None,
            team="",
            ticket_s=DAY,
            lasts_s=DAY,
            now=lab.now,
        )


def test_a_peer_id_means_that_peer_though_another_is_called_so(lab: Lab) -> None:
    for peer, name in ((ANN, BEN), (BEN, ANN)):  # as a manifest from before may say
        member = PoolMember(peer=peer, role=Role.SUBMIT, name=name)
        lab.pool.change(
            lambda m, member=member: m.model_copy(
                update={"members": (*m.members, member), "number": m.number + 1}
            )
        )
    lab.take_back(ANN)
    assert lab.pool.manifest().revoked == (ANN,)
    lab.take_back(BEN)
    assert lab.pool.manifest().members == ()


def test_who_comes_in_under_anothers_name_gets_one_of_its_own(lab: Lab) -> None:
    ticket, _ = lab.ticket(uses=3)
    for peer in (ANN, EVE):
        lab.comes_in(peer, ticket.token, "ann")
    assert [m.name for m in lab.pool.manifest().members] == ["ann", f"ann-{EVE[-6:]}"]
    lab.take_back("ann")
    assert lab.pool.manifest().revoked == (ANN,)


def test_a_member_keeps_the_name_it_came_in_by(lab: Lab) -> None:
    ticket, _ = lab.ticket()
    credential = lab.comes_in(EVE, ticket.token, "eve")
    lab.comes_in(EVE, credential, "the owner")
    assert lab.line(EVE).name == "eve"


# -- tickets ----------------------------------------------------------------------------------------------------------------


def test_a_leaked_ticket_lets_in_as_many_as_it_was_given_for(lab: Lab) -> None:
    ticket, _ = lab.ticket(Role.WORKER, uses=2)
    for number in range(2):
        for _ in range(2):  # the same again counts once
            lab.comes_in(Identity.from_seed(number).peer_id, ticket.token, f"m-{number}", Role.WORKER)
    assert "was for 2" in refusal(lab.enrol(EVE, ticket.token, "eve", Role.WORKER))
    assert len(lab.pool.manifest().members) == 2


def test_a_ticket_that_the_owner_does_not_know_lets_nobody_in(lab: Lab) -> None:
    ticket, _ = lab.ticket()
    (lab.pool.folder / "tickets").unlink()
    assert "knows no such ticket" in refusal(lab.enrol(EVE, ticket.token))


def test_all_who_came_by_a_ticket_are_taken_back_with_it_also_when_it_is_long_over(lab: Lab) -> None:
    ticket, name = lab.ticket(Role.WORKER, uses=3)
    other, _ = lab.ticket(Role.WORKER)
    credentials = {p: lab.comes_in(p, ticket.token, p[-5:], Role.WORKER) for p in (ANN, EVE)}
    lab.comes_in(BEN, other.token, "ben", Role.WORKER)
    lab.now += 20 * DAY
    for peer, credential in credentials.items():
        lab.comes_in(peer, credential, "n", Role.WORKER)
    (told,) = lab.take_back(name, with_members=True)
    assert "with what was given to 2 who came by it" in told
    assert set(lab.pool.manifest().revoked) == {ANN, EVE}
    assert [m.name for m in lab.pool.manifest().members] == ["ben"]


def test_what_was_taken_back_gives_its_room_free_when_it_could_no_longer_be_used(lab: Lab) -> None:
    ticket, name = lab.ticket(uses=2)
    for peer in (ANN, EVE):
        lab.comes_in(peer, ticket.token, peer[-5:])
    lab.take_back(EVE)
    manifest = lab.pool.manifest()
    assert (manifest.revoked, len(manifest.revoked_tokens)) == ((EVE,), 1)
    lab.now += 30 * DAY + SURELY_OVER_S - 60
    other, _ = lab.ticket()
    lab.comes_in(BEN, other.token, "ben")
    lab.take_back(BEN)
    assert lab.pool.manifest().revoked == (EVE, BEN)
    assert bytes.fromhex(name) not in lab.pool.manifest().revoked_tokens
    lab.now += 120
    lab.take_back(ANN)
    assert lab.pool.manifest().revoked == (BEN, ANN)
    assert lab.pool.manifest().number > manifest.number


def test_a_revocation_of_somebody_of_whom_nothing_is_known_stays(lab: Lab) -> None:
    lab.take_back(EVE)
    lab.now += 4000 * DAY
    lab.take_back(BEN)
    assert lab.pool.manifest().revoked == (EVE, BEN)


def test_a_ticket_id_that_is_none_is_told_and_uses_no_room(lab: Lab) -> None:
    with pytest.raises(SettingsError, match="no ticket deadbeefdeadbeef of pool lab is out"):
        lab.take_back("deadbeefdeadbeef")
    assert lab.pool.manifest().revoked_tokens == ()


def test_a_ticket_for_one_peer_takes_its_peer_along_though_that_has_renewed_what_it_got(lab: Lab) -> None:
    ticket, name = lab.ticket(to=EVE)
    renewed = lab.comes_in(EVE, ticket.token)
    (told,) = lab.take_back(name)
    assert f"with all that {EVE} was given" in told
    assert lab.pool.manifest().revoked == (EVE,)
    assert "taken back" in refusal(lab.enrol(EVE, renewed))


def test_the_tickets_file_stays_readable_however_many_use_them(lab: Lab) -> None:
    each, peers = 256, [Identity.from_seed(number).peer_id for number in range(256)]
    for number in range(MAX_USES_OUT // each):
        note = TicketNote(
            id=number.to_bytes(8, "big"), role=Role.WORKER, until=int(START + DAY), uses=each, team="t" * 64
        )
        lab.pool.notes.note(note, lab.now)
    with pytest.raises(NotPermitted, match="is the most"):
        lab.ticket()
    notes = lab.pool.notes.tickets(lab.now)
    full = [note.model_copy(update={"used": tuple(peers)}) for note in notes]
    lab.pool.notes.keep((*full, *(note.model_copy(update={"to": EVE}) for note in (notes[0],) * 504)))
    assert len(lab.pool.notes.tickets(lab.now)) == MAX_TICKETS


# -- what was lowered stays low -----------------------------------------------------------------------------------------------


def test_a_member_that_was_lowered_cannot_raise_itself_by_what_it_had_before(lab: Lab) -> None:
    high, _ = lab.ticket(to=EVE, priority=90, team="vision")
    bearer, _ = lab.ticket(uses=5, priority=80)
    older = lab.comes_in(EVE, bearer.token)
    lab.ticket(to=EVE, priority=10, slots=1, team="guests")
    for token in (high.token, older, bearer.token):
        grant = prove(lab.comes_in(EVE, token), lab.pool.id, EVE, now=lab.now).grant
        assert (grant.priority, grant.slots, grant.team) == (10, 1, "guests")
        assert (lab.line(EVE).priority, lab.line(EVE).slots) == (10, 1)
    fresh, _ = lab.ticket(priority=60)  # what the owner gives anew counts
    assert prove(lab.comes_in(EVE, fresh.token), lab.pool.id, EVE, now=lab.now).grant.priority == 60


def test_an_invitation_that_fails_forgives_nobody_and_leaves_no_ticket(lab: Lab) -> None:
    lab.take_back(EVE)
    for number in range(MAX_TICKETS):
        note = TicketNote(id=number.to_bytes(8, "big"), role=Role.SUBMIT, until=int(START + DAY))
        lab.pool.notes.note(note, lab.now)
    with pytest.raises(NotPermitted, match="are out"):
        lab.ticket(to=EVE)
    assert lab.pool.manifest().revoked == (EVE,)
    lab.now += 2 * DAY
    for number in range(MAX_REVOKED):
        member = PoolMember(peer=Identity.from_seed(number).peer_id, role=Role.WORKER, name=f"m-{number}")
        lab.pool.change(
            lambda m, member=member: m.model_copy(
                update={"members": (*m.members, member), "number": m.number + 1}
            )
        )
    with pytest.raises(NotPermitted, match="is full"):
        lab.ticket(to=EVE)
    assert lab.pool.manifest().revoked == (EVE,)
    assert lab.pool.notes.tickets(lab.now) == ()


def test_one_damaged_pool_leaves_the_others_as_they_are(lab: Lab, tmp_path: Path) -> None:
    other = create_pool(Home.at(tmp_path / "owner"), "damaged")
    write_durably(other.folder / "pool", b"?")
    ticket, _ = lab.ticket()
    lab.comes_in(ANN, ticket.token)
