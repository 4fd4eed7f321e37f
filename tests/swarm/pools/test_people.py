"""Names instead of ids, where a home knows them."""

from __future__ import annotations

import time
from pathlib import Path

from protocol.messages.pool import PoolMember
from protocol.words import Role
from swarm.base.home import Home
from swarm.net.identity import Identity, load_or_create
from swarm.pools.home_pool import owner_line
from swarm.pools.manifests import with_member
from swarm.pools.owner import HOME_POOL, create_pool
from swarm.pools.people import known_names, names_of, shown

ALICE, BOB, ME = (Identity.from_seed(name).peer_id for name in ("alice", "bob", "me"))


def member(peer: str, name: str) -> PoolMember:
    return PoolMember(peer=peer, role=Role.SUBMIT, name=name)


def test_members_have_their_names_and_the_makers_of_pools_are_told_apart() -> None:
    assert names_of([("lab", [member(ALICE, "alice"), member(BOB, "owner")])], [ME]) == {
        ALICE: "alice",
        BOB: "owner of lab",
        ME: "you",
    }
    assert names_of([(HOME_POOL, [member(BOB, "owner")])], [])[BOB] == "owner"


def test_a_name_that_another_has_too_or_that_means_oneself_gets_the_end_of_the_id() -> None:
    names = names_of([("lab", [member(ALICE, "You"), member(BOB, "ann")]), ("x", [member(ME, "ann")])], [])
    assert names[ALICE] == f"You …{ALICE[-6:]}"
    assert names[BOB] == f"ann …{BOB[-6:]}"
    assert shown(ALICE, {}) == f"…{ALICE[-8:]}"


def test_a_home_knows_the_members_of_its_pools(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    assert known_names(home) == {}
    me = load_or_create(home.key("scheduler")).peer_id
    lab = create_pool(home, "lab", ())
    for line in (owner_line(home), member(ALICE, "alice")):
        lab.change(lambda manifest, line=line: with_member(manifest, line, time.time()))
    assert known_names(home) == {ALICE: "alice", me: "you"}
