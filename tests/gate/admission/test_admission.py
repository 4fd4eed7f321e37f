"""Whom a gate lets in, case by case."""

from __future__ import annotations

import pytest

from gate.admission.admission import Admission, RetryPauses, live_members
from gate.settings import Admit
from protocol.messages.pool import PoolManifest, PoolMember
from protocol.words import Role
from swarm.net.identity import Identity
from swarm.pools.tokens import LEEWAY_S

HOME, NAMED, MEMBER, STRANGER = (
    Identity.from_seed(name).peer_id for name in ("home", "named", "member", "stranger")
)
START = 1_800_000_000.0


@pytest.mark.parametrize(
    ("admit", "in_"),
    [
        (Admit.OPEN, {HOME, NAMED, MEMBER, STRANGER}),
        (Admit.TICKET, {HOME, NAMED, MEMBER}),
        (Admit.LIST, {HOME, NAMED}),
    ],
)
def test_each_kind_of_peer_is_let_in_or_told_why_not(admit: Admit, in_: set[str]) -> None:
    admission = Admission(admit, frozenset({HOME}), frozenset({NAMED}), frozenset({MEMBER}))
    for peer in (HOME, NAMED, MEMBER, STRANGER):
        assert admission.lets_in(peer) is (peer in in_)
        assert (admission.why_not(peer) == "") is (peer in in_)


@pytest.mark.parametrize("admit", [Admit.TICKET, Admit.LIST])
def test_who_is_not_let_in_is_told_what_to_do(admit: Admit) -> None:
    why = Admission(admit).why_not(STRANGER)
    assert ("ticket" if admit is Admit.TICKET else "operator") in why


def manifest(*members: str, revoked: tuple[str, ...] = ()) -> PoolManifest:
    lines = tuple(PoolMember(peer=peer, role=Role.WORKER, name=f"m-{peer[-6:]}") for peer in members)
    return PoolManifest(pool=HOME, name="lab", number=1, members=lines, revoked=revoked)


@pytest.mark.parametrize(
    ("ends", "alive"),
    [
        ({}, True),  # of what was given before this home kept notes nothing is known
        ({MEMBER: START + 1}, True),
        ({MEMBER: START - LEEWAY_S + 1}, True),
        ({MEMBER: START - LEEWAY_S - 1}, False),
    ],
)
def test_a_member_whose_credential_has_run_out_is_none(ends: dict[str, float], alive: bool) -> None:
    assert live_members(manifest(MEMBER), ends, START) == (frozenset({MEMBER}) if alive else frozenset())


def test_who_was_taken_back_is_no_member_even_while_the_manifest_still_lists_it() -> None:
    assert live_members(manifest(MEMBER, NAMED, revoked=(MEMBER,)), {}, START) == {NAMED}


def test_a_refused_peer_is_to_come_back_soon_and_then_ever_later_but_each_on_its_own() -> None:
    patience = RetryPauses()
    pauses = [patience.pause(STRANGER) for _ in range(9)]
    assert pauses[:3] == [3.0, 6.0, 12.0]
    assert pauses[-1] == RetryPauses.MOST_S
    assert patience.pause(NAMED) == RetryPauses.FIRST_S
    patience.forget((STRANGER,))
    assert patience.pause(STRANGER) == RetryPauses.FIRST_S


def test_patience_remembers_no_more_peers_than_it_may() -> None:
    patience = RetryPauses(most=2)
    for peer in (STRANGER, NAMED, MEMBER):
        patience.pause(peer)
    assert patience.pause(STRANGER) == RetryPauses.FIRST_S  # it made room
