"""What a worker's process decides before it joins the network: join tickets, strangers, entry points to the swarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivers.launch.launch import ProbedUnits
from drivers.launch.probe_tier import TierProbe
from drivers.sandbox.enter import Tier
from node.device.gpu_units import NO_GPUS, UnitsOnGpus
from node.serve.process import (
    MAX_POOLS,
    check_anyone,
    near_addresses,
    pool_changes,
    units_at_start,
    with_gates_of,
)
from node.settings.settings import WorkerSettings
from protocol.errors import NotPermitted, ResourceError, SettingsError
from protocol.words import Role
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.net.identity import Identity
from swarm.pools.membership import Membership, joined_pools
from swarm.pools.tickets import Ticket, write_ticket

POOL = Identity.from_seed("pool")
GATE = f"/ip4/192.0.2.7/tcp/4101/p2p/{Identity.from_seed('gate').peer_id}"
NOW = 1_800_000_000.0


def ticket(role: Role = Role.WORKER, name: str = "lab", pool: Identity = POOL) -> str:
    until = int(NOW + 3e8)
    return write_ticket(
        Ticket(pool=pool.peer_id, name=name, gates=(GATE,), role=role, until=until, secret=bytes(16))
    )


def test_a_pool_is_worked_for_from_its_ticket_on_until_it_is_left(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    assert pool_changes(home, None, ()) == ()
    (joined,) = pool_changes(home, ticket(), ())
    assert (joined.name, joined.pool, joined.gates) == ("lab", POOL.peer_id, (GATE,))
    assert pool_changes(home, None, ()) == (joined,)
    assert pool_changes(home, None, ("lab",)) == ()
    assert pool_changes(home, None, ()) == ()


def test_of_two_pools_of_one_name_the_one_to_leave_is_named_by_its_id(tmp_path: Path) -> None:
    home, other = Home.at(tmp_path), Identity.from_seed("another pool")
    pool_changes(home, ticket(), ())
    pool_changes(home, ticket(pool=other), ())
    with pytest.raises(SettingsError, match="matches several pools"):
        pool_changes(home, None, ("lab",))
    (left,) = pool_changes(home, None, (other.peer_id,))
    assert left.pool == POOL.peer_id


def test_more_pools_than_fit_into_an_advert_are_refused_with_a_hint(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    for number in range(MAX_POOLS):
        pool_changes(home, ticket(name=f"p{number}", pool=Identity.from_seed(number)), ())
    with pytest.raises(SettingsError, match="works for 4 pools") as caught:
        pool_changes(home, ticket(), ())
    assert "--leave-pool" in (caught.value.hint or "")
    assert len(pool_changes(home, ticket(name="p0", pool=Identity.from_seed(0)), ())) == MAX_POOLS
    assert len(pool_changes(home, ticket(), ("p0",))) == MAX_POOLS


def test_nothing_is_changed_while_a_worker_runs_on_the_home(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    with lock_folder(home.folder("worker")), pytest.raises(ResourceError, match="in use"):
        pool_changes(home, ticket(), ())
    assert joined_pools(home, Role.WORKER) == ()


def test_a_ticket_for_submitting_does_not_make_a_worker(tmp_path: Path) -> None:
    with pytest.raises(NotPermitted, match="is for submitters"):
        pool_changes(Home.at(tmp_path), ticket(Role.SUBMIT), ())


def test_strangers_are_served_in_the_full_sandbox_only_and_with_a_warning(tmp_path: Path) -> None:
    anyone = WorkerSettings(accept_anyone=True)
    for tier in (Tier.NONE, Tier.PARTIAL):
        with pytest.raises(
            ResourceError, match=f"needs the full sandbox, but the sandbox here is {tier}: no seccomp"
        ):
            check_anyone(anyone, TierProbe(tier, ("no seccomp",)))
    full = TierProbe(Tier.FULL, ())
    assert check_anyone(anyone, full).startswith("WARNING")
    assert check_anyone(WorkerSettings(), full) == ""


def test_the_gates_of_a_pool_come_beside_those_that_are_known(tmp_path: Path) -> None:
    joined = (Membership(pool=POOL.peer_id, name="lab", gates=(GATE,), role=Role.WORKER),)
    mine = GATE.replace("192.0.2.7", "192.0.2.8")
    assert with_gates_of(WorkerSettings(), joined, (mine,)).gates == (mine, GATE)
    assert with_gates_of(WorkerSettings(gates=(mine,)), joined, ()).gates == (mine, GATE)
    assert with_gates_of(WorkerSettings(), (), (mine,)).gates == ()


def test_this_machine_reaches_its_worker_where_it_listens_whatever_it_announces() -> None:
    lines = ("/ip4/198.51.100.1/tcp/5000",)
    assert near_addresses(("/ip4/127.0.0.1/tcp/4102",), lines) == ("/ip4/127.0.0.1/tcp/4102", *lines)
    assert near_addresses(("/ip4/127.0.0.1/tcp/0",), lines) == lines
    assert near_addresses((), lines) == lines


def test_units_that_worked_at_the_last_start_are_not_tried_again_but_an_owners_server_is(
    tmp_path: Path,
) -> None:
    tries = []

    def probe(**how: object) -> ProbedUnits:
        tries.append(how)
        return ProbedUnits((), ("driver 'x': not here",))

    for private in ({}, {}, {"api": {"SARK_API_URL": "http://127.0.0.1:8000"}}):
        found = units_at_start(tmp_path / "units.json", UnitsOnGpus(probe, NO_GPUS, private))
        assert found.troubles == ("driver 'x': not here",)
    assert [how["private"] for how in tries] == [{}, {"api": {"SARK_API_URL": "http://127.0.0.1:8000"}}]
