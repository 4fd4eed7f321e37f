"""The pool that every home has: created once, with the home's scheduler in it, and never by hand."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from protocol.errors import SettingsError
from protocol.messages.pool import PoolMember
from protocol.words import Role
from swarm.base.home import Home
from swarm.net.identity import Identity, load_or_create
from swarm.pools.home_pool import home_pool, named_pool
from swarm.pools.manifests import find_member, revoke_peers, with_member
from swarm.pools.membership import join_pool, store_manifest, stored_manifest
from swarm.pools.owner import create_pool, own_pools
from swarm.pools.trusted import PoolWorkers, trusted_workers
from tests.swarm.pools.test_membership import ticket

NOW = 1_800_000_000.0
DEVICE = "d-0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home")


def worker(name: str, *, until: float | None = None, device: str | None = None) -> PoolMember:
    end = None if until is None else int(until)
    peer = Identity.from_seed(name).peer_id
    return PoolMember(peer=peer, role=Role.WORKER, name=name, until=end, device=device)


def peer(name: str) -> str:
    return Identity.from_seed(name).peer_id


def only(workers: tuple[PoolWorkers, ...], name: str) -> PoolWorkers:
    (found,) = (each for each in workers if each.name == name)
    return found


def test_the_pool_of_a_home_is_made_when_it_is_needed_and_is_the_same_ever_after(home: Home) -> None:
    assert own_pools(home) == ()
    made = home_pool(home, NOW)
    assert (made.name, made.manifest().number) == ("home", 1)
    assert home_pool(home, NOW).id == made.id == named_pool(home, "home", NOW).id
    assert made.manifest().number == 1


def test_the_scheduler_of_a_home_is_always_a_submitter_of_its_pool(home: Home) -> None:
    made = home_pool(home, NOW)
    scheduler = load_or_create(home.key("scheduler")).peer_id
    (line,) = made.manifest().members
    assert (line.peer, line.role, line.until, line.name) == (scheduler, Role.SUBMIT, None, "owner")
    made.change(lambda manifest: revoke_peers(manifest, (scheduler,), NOW))
    assert find_member(home_pool(home, NOW).manifest(), scheduler, Role.SUBMIT, NOW) is not None
    home.key("scheduler").unlink()
    fresh = load_or_create(home.key("scheduler")).peer_id
    assert find_member(home_pool(home, NOW).manifest(), fresh, Role.SUBMIT, NOW) is not None


def test_several_who_need_the_pool_at_once_get_one(home: Home) -> None:
    load_or_create(home.key("scheduler"))
    start, ids = threading.Barrier(8), []

    def need() -> None:
        start.wait()
        ids.append(home_pool(home, NOW).id)

    threads = [threading.Thread(target=need) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert set(ids) == {home_pool(home, NOW).id}


def test_a_pool_whose_making_was_cut_off_is_finished_with_the_same_key(home: Home) -> None:
    key = load_or_create(home.data / "pools" / "home" / "pool.key")
    assert own_pools(home) == ()
    assert home_pool(home, NOW).id == key.peer_id


@pytest.mark.parametrize("name", ["home", "Home"])
def test_nobody_makes_the_pool_of_a_home_by_hand(home: Home, name: str) -> None:
    with pytest.raises(SettingsError, match="every home already has a pool home") as caught:
        create_pool(home, name)
    assert caught.value.hint.endswith("sark-node invite")
    assert own_pools(home) == ()


# -- whom a home trusts -----------------------------------------------------------------------------------------------------


def test_a_home_without_a_pool_trusts_its_own_worker_alone_and_makes_nothing(home: Home) -> None:
    assert trusted_workers(home, NOW) == (PoolWorkers("home", "", True, {}),)
    assert not home.data.exists()
    mine = load_or_create(home.key("worker")).peer_id
    assert trusted_workers(home, NOW) == (PoolWorkers("home", "", True, {mine: None}),)


def test_the_workers_of_the_home_and_of_its_pool_are_its_own(home: Home) -> None:
    made = home_pool(home, NOW)
    mine = load_or_create(home.key("worker")).peer_id
    made.change(lambda manifest: with_member(manifest, worker("shed", device=DEVICE), NOW))
    own = trusted_workers(home, NOW)[0]
    assert (own.name, own.id, own.own) == ("home", made.id, True)
    assert own.devices == {mine: None, peer("shed"): DEVICE}
    made.change(lambda manifest: revoke_peers(manifest, (peer("shed"),), NOW))
    assert trusted_workers(home, NOW)[0].peers == {mine}


def test_members_of_another_pool_are_trusted_until_their_line_ends_or_ours_does(
    home: Home, tmp_path: Path
) -> None:
    lab = create_pool(Home.at(tmp_path / "owner"), "lab")
    lab.change(lambda m: with_member(m, worker("rack", until=NOW + 500), NOW))
    lab.change(lambda m: with_member(m, PoolMember(peer=peer("eve"), role=Role.SUBMIT, name="eve"), NOW))
    scheduler = load_or_create(home.key("scheduler")).peer_id
    join_pool(home, ticket(lab, Role.SUBMIT, to=scheduler), Role.SUBMIT, scheduler, now=NOW)
    assert only(trusted_workers(home, NOW), "lab") == PoolWorkers("lab", lab.id, False, {peer("rack"): None})
    assert only(trusted_workers(home, NOW + 700), "lab").peers == frozenset()
    assert [each.name for each in trusted_workers(home, NOW + 2000)] == ["home"]
    lab.change(lambda m: revoke_peers(m, (scheduler,), NOW))
    store_manifest(home, lab.signed())
    assert stored_manifest(home, lab.id) == lab.signed()
    assert [each.name for each in trusted_workers(home, NOW)] == ["home"]


def test_a_pool_made_here_for_others_is_no_device_of_ones_own(home: Home) -> None:
    lab = create_pool(home, "lab")
    lab.change(lambda manifest: with_member(manifest, worker("rack"), NOW))
    assert trusted_workers(home, NOW)[1:] == (PoolWorkers("lab", lab.id, False, {peer("rack"): None}),)


def test_a_damaged_pool_takes_no_other_with_it(home: Home) -> None:
    lab = create_pool(home, "lab")
    lab.change(lambda manifest: with_member(manifest, worker("rack"), NOW))
    broken = home_pool(home, NOW)
    (broken.folder / "manifest").write_bytes(b"x")
    assert [(each.name, each.id) for each in trusted_workers(home, NOW)] == [("home", ""), ("lab", lab.id)]
