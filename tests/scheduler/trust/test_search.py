"""Trusted devices are found by their keys, however many strangers exist."""

from __future__ import annotations

import random

import trio

from protocol.values.advert import Advert, SignedAdvert, UnitOffer
from protocol.values.match import match
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.trust import MINE, TrustScope
from scheduler.trust.book import TrustBook
from scheduler.trust.search import DIRECT, find_admitted
from swarm.index.query import QueryResult, Sighting
from swarm.net.identity import Identity

UNIT = "CPU (ONNX)"
NEED = Requirement(clauses=(parse_clause(f"units has {UNIT}"),))


def advert(name: str) -> Advert:
    peer = Identity.from_seed(name).peer_id
    return Advert(peer=peer, seq=1, device=f"d-{name}", name=name, units=(UnitOffer(unit=UNIT, runtime="r"),))


class CrowdedIndex:
    """An index that answers with the first devices that fit, and no more than were wanted."""

    def __init__(self, *adverts: Advert) -> None:
        self.adverts = adverts
        self.asked: list[Requirement] = []

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        await trio.lowlevel.checkpoint()
        self.asked.append(requirement)
        fits = [each for each in self.adverts if match(requirement, each).fits][:want]
        signed = SignedAdvert(body=b"", signature=bytes(64))
        return QueryResult(tuple(Sighting(each, signed, 0.0) for each in fits), (), len(fits), True, {})


STRANGERS = tuple(advert(f"stranger {n}") for n in range(500))
OWN = advert("own")
BOOK = TrustBook("me", frozenset({OWN.peer}))


async def found(
    index: CrowdedIndex, trust: TrustScope = MINE, book: TrustBook = BOOK, **more: bool
) -> set[str]:
    adverts, _ = await find_admitted(index, NEED, 16, trust, book, random.Random(1), **more)
    return {each.peer for each in adverts}


async def test_one_own_device_is_found_behind_five_hundred_strangers() -> None:
    assert await found(CrowdedIndex(*STRANGERS, OWN)) == {OWN.peer}


async def test_it_is_found_beside_them_where_the_campaign_is_open() -> None:
    peers = await found(CrowdedIndex(*STRANGERS, OWN), TrustScope(anyone=True))
    assert OWN.peer in peers
    assert len(peers) == 17


async def test_a_named_key_and_a_clause_that_names_one_are_found() -> None:
    named = STRANGERS[400].peer
    assert await found(CrowdedIndex(*STRANGERS, OWN), TrustScope(named=frozenset({named}))) == {
        OWN.peer,
        named,
    }
    index = CrowdedIndex(*STRANGERS, OWN)
    clause = Requirement(clauses=(*NEED.clauses, parse_clause(f"peer == {named}")))
    assert [each.peer for each in (await find_admitted(index, clause, 16, MINE, BOOK))[0]] == [named]
    assert index.asked == [clause]


async def test_a_home_that_trusts_nobody_asks_nothing() -> None:
    index = CrowdedIndex(*STRANGERS)
    assert await found(index, book=TrustBook("me")) == set()
    assert index.asked == []


async def test_of_more_keys_than_are_asked_for_at_once_some_are_drawn_and_a_plan_asks_for_all() -> None:
    members = [advert(f"member {n}") for n in range(DIRECT + 40)]
    book = TrustBook("me", frozenset(each.peer for each in members))
    index = CrowdedIndex(*STRANGERS, *members)
    assert len(await found(index, book=book)) == DIRECT
    assert NEED in index.asked, "and in general"
    assert len(await found(CrowdedIndex(*STRANGERS, *members), book=book, every=True)) == DIRECT + 40
