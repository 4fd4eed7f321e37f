"""Whom a gate lets in, case by case."""

from __future__ import annotations

import pytest

from gate.admission.admission import Admission, RetryPauses
from gate.settings import Admit
from swarm.net.identity import Identity

HOME, NAMED, MEMBER, STRANGER = (
    Identity.from_seed(name).peer_id for name in ("home", "named", "member", "stranger")
)


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
        assert admission.admits(peer) is (peer in in_)
        assert (admission.why_not(peer) == "") is (peer in in_)


@pytest.mark.parametrize("admit", [Admit.TICKET, Admit.LIST])
def test_who_is_not_let_in_is_told_what_to_do(admit: Admit) -> None:
    why = Admission(admit).why_not(STRANGER)
    assert ("ticket" if admit is Admit.TICKET else "operator") in why


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
