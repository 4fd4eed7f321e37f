"""Whom a submitter trusts: the strongest reason, and the trust root."""

from __future__ import annotations

from protocol.values.trust import TrustKind, TrustScope
from scheduler.trust.book import PoolName, TrustBook
from swarm.net.identity import Identity

ME, ANN, BEN, EVE = (Identity.from_seed(name).peer_id for name in ("me", "ann", "ben", "eve"))


def test_the_strongest_reason_counts() -> None:
    lab = PoolName("lab", "lab-id")
    book = TrustBook(ME, frozenset({ANN}), {ANN: lab, BEN: lab}, frozenset({ANN, BEN, EVE}))
    assert [book.trust_of(peer).text for peer in (ANN, BEN, EVE)] == ["own", "pool lab", "listed"]
    assert [book.trust_of(peer).root for peer in (ANN, BEN, EVE)] == [ME, "lab-id", EVE]
    assert book.peers() == (ANN, *sorted({BEN}), EVE)


def test_strangers_of_one_network_are_one_root_whatever_keys_they_have() -> None:
    book = TrustBook(ME)
    here, next_door, elsewhere = (
        (f"/ip4/{host}/tcp/4102",) for host in ("198.51.99.7", "198.51.99.8", "203.0.112.1")
    )
    assert book.trust_of(ANN, here).root == book.trust_of(BEN, next_door).root
    assert book.trust_of(EVE, elsewhere).root != book.trust_of(ANN, here).root
    assert book.trust_of(EVE).root == EVE
    assert {book.trust_of(peer, here).kind for peer in (ANN, BEN)} == {TrustKind.STRANGER}


def test_a_campaign_lists_whom_it_names_and_takes_nothing_from_the_others() -> None:
    book = TrustBook(ME, frozenset({ANN}))
    scope = TrustScope().naming({BEN})
    assert [scope.admits(peer, book.trust_of(peer)) for peer in (ANN, BEN, EVE)] == [True, True, False]
    assert scope.judge(BEN, book.trust_of(BEN)).text == "listed"
    assert scope.judge(ANN, book.trust_of(ANN)).text == "own"
    assert TrustScope(anyone=True).judge(EVE, book.trust_of(EVE)).text == "stranger"
