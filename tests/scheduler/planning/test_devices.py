"""A device's claim to belong to a pool counts only as far as the pool's manifest confirms it."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.messages.pool import PoolMember
from protocol.values.advert import Advert, SignedAdvert
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.trust import TrustScope
from protocol.words import Role
from scheduler.planning.devices import VerifiedIndex, find, survey, verified_advert
from scheduler.trust.book import TrustBook
from swarm.base.home import Home
from swarm.index.query import QueryResult, Sighting
from swarm.net.identity import Identity
from swarm.pools.manifests import revoke_peers, with_member
from swarm.pools.membership import join_pool, known_manifests, store_manifest
from swarm.pools.owner import OwnPool, create_pool
from swarm.pools.tickets import Ticket
from swarm.pools.tokens import LEEWAY_S

NOW = 1_800_000_000.0
ME, ANN, EVE = (Identity.from_seed(name).peer_id for name in ("me", "ann", "eve"))
LAB = Requirement(clauses=(parse_clause("pools has lab"),))


def advert(peer: str, *pools: str) -> Advert:
    return Advert(peer=peer, seq=1, device=peer[-5:], name=peer[-5:], pools=pools)


class FakeIndex:
    """An index that answers with all its devices."""

    def __init__(self, *adverts: Advert) -> None:
        self._adverts = adverts
        self.wanted = 0

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        self.wanted = want
        signed = SignedAdvert(body=b"", signature=bytes(64))
        results = tuple(Sighting(each, signed, 0.0) for each in self._adverts)
        return QueryResult(results, (), len(results), True, {})

    async def survey(self, requirement: Requirement, limit: int = 256) -> QueryResult:
        return await self.query(requirement, limit)


NOBODY = TrustBook(ME)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home")


@pytest.fixture
def lab(tmp_path: Path) -> OwnPool:
    """Another owner's pool with the worker ann in it."""
    pool = create_pool(Home.at(tmp_path / "owner"), "lab")
    pool.change(lambda m: with_member(m, PoolMember(peer=ANN, role=Role.WORKER, name="ann"), NOW))
    pool.change(lambda m: with_member(m, PoolMember(peer=EVE, role=Role.SUBMIT, name="eve"), NOW))
    return pool


def joins(home: Home, pool: OwnPool) -> None:
    ticket = Ticket(pool=pool.id, name=pool.name, role=Role.SUBMIT, until=int(NOW) + 9, secret=bytes(16))
    join_pool(home, ticket, Role.SUBMIT, ME, now=NOW)


async def test_a_device_that_only_claims_to_be_of_a_pool_is_not_found_for_it(
    home: Home, lab: OwnPool
) -> None:
    joins(home, lab)
    store_manifest(home, lab.signed())
    doubted: list[str] = []
    index = FakeIndex(advert(EVE, "lab"), advert(ANN, "lab"))
    verified_index = VerifiedIndex(index, lambda: known_manifests(home, Role.SUBMIT), doubted.append)
    assert [each.peer for each in await find(verified_index, LAB, 1, TrustScope(anyone=True), NOBODY)] == [
        ANN
    ]  # though eve is a member, as a submitter
    assert doubted == ["lab"]
    assert index.wanted > 1
    assert {each.peer: each.pools for each in await survey(verified_index, LAB)} == {EVE: (), ANN: ("lab",)}


async def test_a_device_that_was_revoked_is_of_the_pool_no_more(home: Home, lab: OwnPool) -> None:
    joins(home, lab)
    lab.change(lambda m: revoke_peers(m, (ANN,), NOW))
    store_manifest(home, lab.signed())
    verified_index = VerifiedIndex(FakeIndex(advert(ANN, "lab")), lambda: known_manifests(home, Role.SUBMIT))
    assert await find(verified_index, LAB, 16, TrustScope(anyone=True), NOBODY) == ()


async def test_a_device_whose_membership_ended_is_of_the_pool_no_more(home: Home, lab: OwnPool) -> None:
    joins(home, lab)
    line = PoolMember(peer=ANN, role=Role.WORKER, name="ann", until=int(NOW), ttl_s=60)
    lab.change(lambda m: with_member(m, line, NOW))
    store_manifest(home, lab.signed())
    for now, matches in ((NOW, [ANN]), (NOW + LEEWAY_S + 1, [])):
        index = VerifiedIndex(
            FakeIndex(advert(ANN, "lab")),
            lambda: known_manifests(home, Role.SUBMIT),
            wall=lambda now=now: now,
        )
        assert [each.peer for each in await find(index, LAB, 16, TrustScope(anyone=True), NOBODY)] == matches


def test_a_pool_of_which_nothing_was_heard_yet_has_no_devices(home: Home, lab: OwnPool) -> None:
    joins(home, lab)
    assert verified_advert(advert(ANN, "lab"), known_manifests(home, Role.SUBMIT), NOW).pools == ()


def test_a_pool_that_was_made_here_is_known_without_asking(tmp_path: Path, lab: OwnPool) -> None:
    known = known_manifests(Home.at(tmp_path / "owner"), Role.SUBMIT)
    assert verified_advert(advert(ANN, "lab"), known, NOW).pools == ("lab",)
    assert verified_advert(advert(EVE, "lab"), known, NOW).pools == ()


def test_a_pool_that_this_home_is_not_in_is_what_a_device_says(home: Home) -> None:
    claims = advert(ANN, "other", "lab")
    assert verified_advert(claims, known_manifests(home, Role.SUBMIT), NOW) is claims
