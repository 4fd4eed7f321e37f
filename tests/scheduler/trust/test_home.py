"""The trust of a home on disk: its list, its pools, and what happens when these change or are damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.errors import ResourceError, SettingsError
from protocol.messages.pool import PoolMember
from protocol.words import Role
from scheduler.trust.home import HomeTrust, read_book
from scheduler.trust.listed import decline_peer, forget_peer, listed_file, read_listed, trust_peer
from swarm.base.home import Home
from swarm.net.identity import Identity, load_or_create
from swarm.pools.home_pool import home_pool
from swarm.pools.manifests import revoke_peers, with_member
from swarm.pools.owner import create_pool

NOW = 1_800_000_000.0
ANN, BEN = (Identity.from_seed(name).peer_id for name in ("ann", "ben"))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home.at(tmp_path)
    load_or_create(made.key("scheduler"))
    return made


def worker(peer: str, until: int | None = None) -> PoolMember:
    return PoolMember(
        peer=peer, role=Role.WORKER, name=peer[-6:], until=until, ttl_s=None if until is None else 60
    )


def test_a_homes_own_worker_and_its_own_pool_are_own_and_other_pools_have_their_name(home: Home) -> None:
    own = load_or_create(home.key("worker")).peer_id
    home_pool(home, NOW).change(lambda m: with_member(m, worker(ANN), NOW))
    create_pool(home, "lab").change(lambda m: with_member(m, worker(BEN), NOW))
    book = read_book(home, NOW)
    assert {peer: book.trust_of(peer).text for peer in (own, ANN, BEN)} == {
        own: "own",
        ANN: "own",
        BEN: "pool lab",
    }


def test_pools_of_two_keys_that_are_called_alike_are_told_apart(home: Home) -> None:
    """The creator of a pool chooses its name, so the trust of its rows must not read like that of another pool."""
    for name, peer in (("lab", ANN), ("Iab", BEN)):
        create_pool(home, name).change(lambda m, peer=peer: with_member(m, worker(peer), NOW))
    texts = [read_book(home, NOW).trust_of(peer).text for peer in (ANN, BEN)]
    assert [text.partition(" …")[0] for text in texts] == ["pool lab", "pool Iab"]
    assert len({text.partition("…")[2] for text in texts} - {""}) == 2


def test_a_revocation_a_new_key_and_a_forgotten_one_count_at_the_next_look(home: Home) -> None:
    pool = create_pool(home, "lab")
    pool.change(lambda m: with_member(m, worker(ANN), NOW))
    trust = HomeTrust(home, wall=lambda: NOW)
    before = trust.book()
    assert trust.book() is before
    assert before.trust_of(ANN).text == "pool lab"
    pool.change(lambda m: revoke_peers(m, (ANN,), NOW))
    assert trust.book().trust_of(ANN).stranger
    trust_peer(home, BEN, "laptop", now=NOW)
    assert trust.book().trust_of(BEN).text == "listed"
    assert forget_peer(home, BEN)
    assert trust.book().trust_of(BEN).stranger


def test_a_membership_that_ends_by_the_clock_ends_the_trust(home: Home) -> None:
    create_pool(home, "lab").change(lambda m: with_member(m, worker(ANN, until=int(NOW)), NOW))
    now = NOW
    trust = HomeTrust(home, wall=lambda: now)
    assert not trust.book().trust_of(ANN).stranger
    now += 3600.0
    assert trust.book().trust_of(ANN).stranger


def test_a_list_that_is_damaged_is_an_error_and_never_empty(home: Home) -> None:
    trust_peer(home, ANN, "", now=NOW)
    running = HomeTrust(home, wall=lambda: NOW)
    assert running.book().trust_of(ANN).text == "listed"
    whole = listed_file(home).read_text()
    for broken in (whole[:-9], "[]", whole.replace(ANN, "12D3KooW" + "x" * 44), json.dumps({"format": 2})):
        listed_file(home).write_text(broken)
        with pytest.raises(ResourceError, match=r"keys\.json is damaged"):
            read_listed(home)
        with pytest.raises(ResourceError):
            HomeTrust(home, wall=lambda: NOW).book()
        with pytest.raises(ResourceError):
            trust_peer(home, BEN, "", now=NOW)
        assert running.book().trust_of(ANN).text == "listed", "a scheduler that runs keeps what it read"
    listed_file(home).write_text(whole)
    assert read_listed(home).peers == {ANN}


def test_a_name_can_be_changed_a_no_is_remembered_and_a_yes_undoes_it(home: Home) -> None:
    decline_peer(home, ANN)
    assert read_listed(home).declined == (ANN,)
    trust_peer(home, ANN, "one", now=NOW)
    trust_peer(home, ANN, "two", now=NOW + 9)
    (line,) = read_listed(home).trusted
    assert (line.name, line.since) == ("two", NOW)
    assert read_listed(home).declined == ()
    with pytest.raises(SettingsError, match="is not a peer id"):
        trust_peer(home, "laptop-7", "", now=NOW)
    assert listed_file(home).stat().st_mode & 0o777 == 0o600
