"""`sark-node invite` and the home pool, as typed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gate.cli.invite import some_address
from protocol.errors import ResourceError
from protocol.words import Role
from swarm.base.home import Home
from swarm.join.known_gates import save_gates, write_addresses
from swarm.net.identity import Identity, load_or_create
from swarm.pools.membership import join_pool, membership_of
from swarm.pools.owner import own_pools
from swarm.pools.tickets import Ticket, read_ticket
from swarm.pools.trusted import trusted_workers
from tests.cli.conftest import Done, Typed

SHED = Identity.from_seed("shed").peer_id
FAR = f"/ip4/192.0.2.7/tcp/4101/p2p/{Identity.from_seed('gate').peer_id}"


def ticket_of(done: Done) -> Ticket:
    """The join ticket in the printed command, the only text on standard output."""
    assert done.code == 0, done.err
    command, verb, text = done.out.split()
    assert (command, verb) == ("sark-node", "join")
    return read_ticket(text)


def test_an_invitation_of_one_worker_makes_trust_mutual_and_needs_nobody(
    typed: Typed, tmp_path: Path
) -> None:
    ticket = ticket_of(typed("invite", "--to", SHED, "--name", "shed", "--gate", FAR))
    assert (ticket.to, ticket.role, ticket.gates, ticket.admits) == (SHED, Role.WORKER, (FAR,), ())
    home, now = Home.at(typed.home), time.time()
    assert trusted_workers(home, now + 9 * 365 * 86_400)[0].peers == {SHED}
    there = Home.at(tmp_path / "shed")
    joined = join_pool(there, ticket, Role.WORKER, SHED, now=now)
    line = membership_of(there, joined, SHED, now)
    assert line is not None
    assert (line.name, line.until, joined.unused) == ("shed", None, False)


def test_a_membership_ends_by_itself_only_where_that_was_asked_for(typed: Typed) -> None:
    ticket_of(typed("invite", "--to", SHED, "--ttl", "30d"))
    home, now = Home.at(typed.home), time.time()
    assert trusted_workers(home, now + 29 * 86_400)[0].peers == {SHED}
    assert trusted_workers(home, now + 31 * 86_400)[0].peers == frozenset()


def test_where_the_gate_of_the_home_runs_it_admits_and_nothing_waits(typed: Typed, listener: str) -> None:
    write_addresses(Home.at(typed.home).gate_file, [listener])
    done = typed("invite", "--uses", "3")
    ticket = ticket_of(done)
    assert (ticket.gates, ticket.admits, ticket.to) == ((listener,), (), None)
    assert "(for 3 devices)" in done.err
    assert "the gate of this home admits the device" in done.err
    assert "works only on this machine" in done.err
    (listed,) = json.loads(typed("pool", "members", "home", "--json").out)["tickets"]
    assert (listed["uses"], listed["used"]) == (3, [])
    assert f"sark-node pool revoke home {listed['id']}" in done.err


def test_the_json_of_an_invitation_is_one_document(typed: Typed) -> None:
    save_gates(Home.at(typed.home), [FAR])
    document = json.loads(typed("invite", "--to", SHED, "--json").out)
    assert document["command"] == f"sark-node join {document['ticket']}"
    assert (document["to"], document["gates"], document["admits"]) == (SHED, [FAR], [])
    assert document["pool"] == own_pools(Home.at(typed.home))[0].id


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["invite", "--to", "shed"], "is not a worker's id", "sark-node info"),
        (["invite", "--name", "shed"], "--name needs --to", ""),
        (["invite", "--to", SHED, "--uses", "2"], "--uses cannot be used with --to", ""),
        (["invite", "--for", "soon"], "--for: 'soon' is not a duration", ""),
        (["invite", "--gate", "here"], "a gate's address looks like", ""),
        (["pool", "create", "home"], "every home already has a pool home of its own", "sark-node invite"),
        (["pool", "invite", "home"], "pool home has a command of its own for devices", "sark-node invite"),
        (["pool", "revoke", "home", "owner"], "owner is this home's own scheduler", ""),
        (["pool", "revoke", "home", "shed"], "pool home has no member shed", ""),
    ],
)
def test_what_cannot_be_is_said_in_a_line(typed: Typed, words: list[str], message: str, hint: str) -> None:
    done = typed(*words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert hint in done.err


def test_a_machine_without_an_address_makes_no_ticket_that_leads_nowhere() -> None:
    with pytest.raises(ResourceError, match="and this machine has none") as caught:
        some_address(())
    assert "sark-node invite --gate ADDRESS" in caught.value.hint
    assert "sark-node invite --to WORKER_ID" in caught.value.hint


def test_the_pool_of_a_home_is_shown_and_revoked_like_any_other(typed: Typed) -> None:
    me = load_or_create(Home.at(typed.home).key("scheduler")).peer_id
    assert [m["peer"] for m in json.loads(typed("pool", "members", "home", "--json").out)["members"]] == [me]
    typed("invite", "--to", SHED, "--name", "shed")
    assert "home made here" in " ".join(typed("pool", "list").out.split())
    assert "shed is revoked" in typed("pool", "revoke", "home", "shed").out
    assert trusted_workers(Home.at(typed.home), time.time())[0].peers == frozenset()


def test_somebody_else_may_submit_to_ones_devices_by_a_ticket_of_the_same_pool(typed: Typed) -> None:
    ann = Identity.from_seed("ann").peer_id
    ticket = read_ticket(typed("pool", "invite", "home", "--to", ann).out)
    assert (ticket.name, ticket.role, ticket.to) == ("home", Role.SUBMIT, ann)
