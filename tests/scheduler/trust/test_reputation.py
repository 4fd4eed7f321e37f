"""What a home has learned of strangers, by key."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import ResourceError
from protocol.values.trust import Trust, TrustKind, TrustScope
from scheduler.core.ranking import WorkerView, most_proven
from scheduler.trust.book import TrustBook
from scheduler.trust.home import learn, read_book
from scheduler.trust.reputation import (
    MAX_KEYS,
    Reputation,
    ReputationBook,
    change_reputation,
    read_reputation,
    reputation_file,
    reputation_words,
)
from swarm.base.home import Home

ANN, BOB = "1" * 52, "2" * 52
ANYONE = TrustScope(anyone=True)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path)


def test_results_count_for_and_against_a_key() -> None:
    book = ReputationBook().confirm(ANN, 1.0).confirm(ANN, 2.0).refute(BOB, "it lied", 3.0)
    assert (book.confirmed, book.refuted) == ({ANN: 2}, frozenset({BOB}))
    assert book.of(BOB).why == "it lied"


def test_a_refuted_key_stays_refuted_whatever_it_does_later() -> None:
    book = ReputationBook().refute(ANN, "it lied", 1.0).confirm(ANN, 2.0)
    assert book.refuted == {ANN}
    assert book.confirmed == {}
    assert book.forgive(ANN) == ReputationBook()


def test_when_there_are_too_many_the_oldest_goes_and_no_refuted_one() -> None:
    keys = tuple(
        Reputation(peer=f"{n:052}".replace("0", "z"), confirmed=1, at=float(n)) for n in range(MAX_KEYS - 1)
    )
    book = ReputationBook(keys=keys).refute(ANN, "it lied", 0.5).confirm(BOB, 1e9)
    assert len(book.keys) == MAX_KEYS
    assert book.refuted == {ANN}


def test_a_refuted_stranger_gets_no_task_and_one_that_is_trusted_does() -> None:
    book = TrustBook("", listed=frozenset({BOB}), refuted=frozenset({ANN, BOB}), confirmed={ANN: 2})
    assert not ANYONE.admits(ANN, book.trust_of(ANN))
    assert ANYONE.admits(BOB, book.trust_of(BOB))
    assert TrustScope(named=frozenset({ANN})).admits(ANN, book.trust_of(ANN))
    assert book.trust_of(ANN).confirmed == 2


def test_among_strangers_those_with_confirmed_results_come_first_and_trusted_workers_before_unknown_ones() -> (
    None
):
    trust = {
        "own": Trust(TrustKind.OWN),
        "new": Trust(TrustKind.STRANGER),
        "once": Trust(TrustKind.STRANGER, confirmed=1),
        "often": Trust(TrustKind.STRANGER, confirmed=9),
    }

    def best(*peers: str) -> list[str]:
        return [view.peer for view in most_proven([WorkerView(peer) for peer in peers], trust.__getitem__)]

    assert best("new", "once") == ["once"]
    assert best("new", "once", "often", "own") == ["often", "own"]
    assert best("new") == ["new"]
    assert best() == []


def test_what_was_learned_is_on_disk_and_in_the_book(home: Home) -> None:
    learn(home, ANN, False, "c-1/1: launch 2 reported other outputs", 5.0)
    learn(home, BOB, True, "", 6.0)
    book = read_book(home, 7.0)
    assert (book.refuted, book.confirmed) == (frozenset({ANN}), {BOB: 1})
    change_reputation(home, lambda kept: kept.forgive(ANN))
    assert read_book(home, 8.0).refuted == frozenset()


def test_a_damaged_file_is_an_error_and_no_empty_book(home: Home) -> None:
    learn(home, ANN, False, "it lied", 5.0)
    reputation_file(home).write_text('{"keys": 1}')
    with pytest.raises(ResourceError, match="is damaged"):
        read_reputation(home)


def test_words_for_people() -> None:
    assert reputation_words(Reputation(peer=ANN, confirmed=2)) == "2 results confirmed"
    refuted = Reputation(peer=ANN, refuted=1, why="c-1/1: no\x1b[2J")
    assert reputation_words(refuted).startswith("refuted 1 time, gets no tasks: c-1/1: no")
    assert "\x1b" not in reputation_words(refuted)
