"""Whom a gate admits, case by case."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate.admission import policy
from gate.admission.policy import RETRY_S, AdmissionPolicy
from gate.settings import Admit, GateSettings
from swarm.base.home import Home
from swarm.net.identity import Identity

OPERATOR, NAMED, MEMBER, STRANGER = (
    Identity.from_seed(name).peer_id for name in ("operator", "named", "member", "stranger")
)


def gate(home: Path, admit: Admit) -> AdmissionPolicy:
    policy = AdmissionPolicy(
        Home.at(home), GateSettings(admit=admit, operators=(OPERATOR,), allow=(NAMED,)), wall=lambda: 0.0
    )
    policy.members = frozenset({MEMBER})
    return policy


def pause(gate: AdmissionPolicy, peer: str) -> float | None:
    refusal = gate.refusal(peer, "index")
    assert refusal is not None
    return refusal.retry_after_s


@pytest.mark.parametrize(
    ("admit", "in_"),
    [
        (Admit.OPEN, {OPERATOR, NAMED, MEMBER, STRANGER}),
        (Admit.TICKET, {OPERATOR, NAMED, MEMBER}),
        (Admit.LIST, {OPERATOR, NAMED}),
    ],
)
def test_each_kind_of_peer_is_let_in_or_refused(tmp_path: Path, admit: Admit, in_: set[str]) -> None:
    policy = gate(tmp_path, admit)
    for peer in (OPERATOR, NAMED, MEMBER, STRANGER):
        assert policy.admits(peer) is (peer in in_)
        assert (policy.refusal(peer, "index") is None) is (peer in in_)


@pytest.mark.parametrize("admit", [Admit.TICKET, Admit.LIST])
def test_who_is_not_let_in_hears_what_to_do(tmp_path: Path, admit: Admit) -> None:
    refusal = gate(tmp_path, admit).refusal(STRANGER, "index")
    assert refusal is not None
    assert ("ticket" if admit is Admit.TICKET else "operator") in refusal.detail
    assert (refusal.retry_after_s is None) is (admit is Admit.LIST)


def test_a_refused_peer_is_to_come_back_soon_and_then_ever_later_but_each_on_its_own(tmp_path: Path) -> None:
    policy = gate(tmp_path, Admit.TICKET)
    pauses = [pause(policy, STRANGER) for _ in range(9)]
    assert pauses[:3] == [3.0, 6.0, 12.0]
    assert pauses[-1] == RETRY_S[1]
    assert pause(policy, "another") == RETRY_S[0]
    policy.enrolled(STRANGER)
    policy.members = frozenset()
    assert pause(policy, STRANGER) == RETRY_S[0]


def test_no_more_refused_peers_are_remembered_than_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "MAX_PAUSED", 2)
    closed = gate(tmp_path, Admit.TICKET)
    for peer in (STRANGER, "another", "a third"):
        pause(closed, peer)
    assert pause(closed, STRANGER) == RETRY_S[0]  # it made room
