"""What a pool's owner and its guests type, and what they read."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest

from protocol.errors import Unreachable
from protocol.words import Role
from swarm.base.home import Home
from swarm.net.identity import Identity, load_or_create
from swarm.pools.membership import joined_pools, membership_of
from swarm.pools.owner import own_pool
from swarm.pools.tickets import read_ticket
from tests.cli.conftest import Typed

GATE = f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.from_seed('gate').peer_id}"
"""Nobody listens on this address."""
ANN = Identity.from_seed("ann").peer_id


@pytest.fixture
def lab(typed: Typed) -> Typed:
    done = typed("pool", "create", "lab", "--gate", GATE)
    assert done.code == 0, done.err
    return typed


def test_a_new_pool_is_shown_with_its_key_and_what_to_do_next(typed: Typed) -> None:
    done = typed("pool", "create", "lab two", "--gate", GATE)
    assert done.code == 0
    assert "Created pool lab two: 12D3Koo" in done.out
    assert 'sark-node pool invite "lab two"' in done.out
    key = typed.home / "data" / "pools" / "lab two" / "pool.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert f"its key: {key} " in done.out
    assert f"its key: {key} " in typed("pool", "members", "lab two").out
    again = typed("pool", "create", "lab two")
    assert (again.code, again.out) == (2, "")
    assert "this home already has a pool lab two" in again.err


def test_this_homes_scheduler_is_a_member_of_the_pools_it_made(lab: Typed) -> None:
    home = Home.at(lab.home)
    (me,) = json.loads(lab("pool", "members", "lab", "--json").out)["members"]
    assert me["peer"] == load_or_create(home.key("scheduler")).peer_id
    assert (me["name"], me["role"]) == ("owner", "submit")


def test_an_invitation_prints_the_ticket_alone(lab: Typed) -> None:
    done = lab("pool", "invite", "lab")
    assert done.code == 0
    ticket = read_ticket(done.out)
    assert done.out.strip().isalnum()
    assert (ticket.name, ticket.gates, ticket.role, ticket.to) == ("lab", (GATE,), Role.WORKER, None)
    assert "sark-node join TICKET" in done.err
    assert "send it privately" in done.err
    submit = lab("pool", "invite", "lab", "--submit", "--for", "1h")
    assert read_ticket(submit.out).role is Role.SUBMIT
    assert "sark-node pool join TICKET" in submit.err
    tickets = json.loads(lab("pool", "members", "lab", "--json").out)["tickets"]
    assert [each["role"] for each in tickets] == ["worker", "submit"]
    assert all(each["id"] in done.err + submit.err for each in tickets)


def test_an_invitation_says_how_many_may_come_by_it(lab: Typed) -> None:
    assert "for 25 devices, valid until" in lab("pool", "invite", "lab").err
    assert "for 1 submitter, valid until" in lab("pool", "invite", "lab", "--submit").err
    assert "for 3 submitters, valid until" in lab("pool", "invite", "lab", "--submit", "--uses", "3").err
    tickets = json.loads(lab("pool", "members", "lab", "--json").out)["tickets"]
    assert [each["uses"] for each in tickets] == [25, 1, 3]
    assert "used by 0 of 25" in lab("pool", "members", "lab").out


def test_a_ticket_can_be_in_a_file_so_that_nobody_reads_it_in_the_list_of_processes(
    lab: Typed, tmp_path: Path
) -> None:
    me = load_or_create(Home.at(lab.home).key("scheduler")).peer_id
    file = tmp_path / "ticket.txt"
    file.write_text(lab("pool", "invite", "lab", "--to", me).out)
    assert "This home may submit to pool lab until" in lab("pool", "join", str(file)).out


def test_all_who_joined_with_a_ticket_can_be_revoked_with_it(lab: Typed) -> None:
    done = lab("pool", "invite", "lab")
    ticket = done.err.split("revoke lab ")[1].split()[0]
    secret = read_ticket(done.out).secret
    assert secret is not None
    own_pool(Home.at(lab.home), "lab").use_ticket(secret, ANN, time.time())
    done = lab("pool", "revoke", "lab", ticket, "--with-members")
    assert "and so is everyone who joined with it (1)" in done.out
    state = json.loads(lab("pool", "members", "lab", "--json").out)
    assert (state["revoked"], state["tickets"]) == ([ANN], [])
    assert lab("pool", "revoke", "lab", "00" * 8).code == 2


def test_an_invitation_for_one_scheduler_makes_it_a_member_and_needs_no_gate(typed: Typed) -> None:
    typed("pool", "create", "lab")
    done = typed("pool", "invite", "lab", "--to", ANN, "--name", "ann")
    assert done.code == 0, done.err
    ticket = read_ticket(done.out)
    assert (ticket.to, ticket.role) == (ANN, Role.SUBMIT)
    assert "ann" in typed("pool", "members", "lab").out
    none = typed("pool", "invite", "lab")  # a ticket for anybody needs a gate
    assert none.code == 6
    assert "sark-node pool invite lab --gate ADDRESS" in none.err
    gate = f"/ip4/192.0.2.7/tcp/4101/p2p/{ANN}"
    assert read_ticket(typed("pool", "invite", "lab", "--gate", gate).out).gates == (gate,)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["invite", "lab", "--for", "soon"], 2, "--for: 'soon' is not a duration"),
        (["invite", "lab", "--ttl", "99999d"], 2, "between 1s and 3650d"),
        (["invite", "lab", "--submit", "--team", 'x"y'], 2, "the team's name"),
        (["invite", "lab", "--to", "foo"], 2, "is not a scheduler's id"),
        (["invite", "lab", "--name", "ann"], 2, "--name needs --to"),
        (["invite", "lab", "--to", ANN, "--name", "\x1b[1m"], 2, "a member cannot be called"),
        (["invite", "lab", "--to", ANN, "--name", "deadbeefdeadbeef"], 2, "looks like an id"),
        (["invite", "lab", "--to", ANN, "--uses", "2"], 2, "--uses cannot be used with --to"),
        (["revoke", "lab", "deadbeefdeadbeef"], 2, "pool lab has no open ticket deadbeefdeadbeef"),
        (["invite", "other"], 2, "this home has no pool other"),
        (["members", "../x"], 2, "a pool cannot be called"),
        (["revoke", "lab", "bob"], 2, "pool lab has no member bob"),
        (["create", "new", "--gate", "nonsense"], 2, "a gate's address looks like"),
    ],
)
def test_what_is_typed_wrong_is_refused_in_one_line(
    lab: Typed, words: list[str], code: int, message: str
) -> None:
    done = lab("pool", *words)
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_member_is_revoked_by_its_name_or_its_id_and_a_ticket_by_its_id(lab: Typed) -> None:
    ben = Identity.from_seed("ben").peer_id
    lab("pool", "invite", "lab", "--to", ANN, "--name", "ann")
    lab("pool", "invite", "lab", "--to", ben, "--name", "ben")
    ticket = lab("pool", "invite", "lab").err.split("revoke lab ")[1].split()[0]
    done = lab("pool", "revoke", "lab", "ann")
    assert done.code == 0
    assert "ann is revoked" in done.out
    assert "no node could be reached now" in done.err
    assert lab("pool", "revoke", "lab", ben).code == 0
    assert "those who joined with it stay" in lab("pool", "revoke", "lab", ticket).out
    assert "already" in lab("pool", "revoke", "lab", ANN).out
    state = json.loads(lab("pool", "members", "lab", "--json").out)
    assert state["revoked"] == [ANN, ben]
    assert state["tickets"] == []
    assert [member["name"] for member in state["members"]] == ["owner"]
    assert f"revoked: {ANN}" in lab("pool", "members", "lab").out
    assert lab("pool", "invite", "lab", "--to", ANN).code == 0  # the owner readmits the revoked peer
    assert json.loads(lab("pool", "members", "lab", "--json").out)["revoked"] == [ben]


def test_a_name_that_several_have_is_not_guessed(lab: Typed) -> None:
    for peer in (ANN, Identity.from_seed("ben").peer_id):
        lab("pool", "invite", "lab", "--to", peer, "--name", "twin")
    done = lab("pool", "revoke", "lab", "twin")
    assert done.code == 2
    assert "2 members of pool lab are called twin" in done.err
    assert ANN in done.err


def test_a_guest_keeps_its_ticket_until_a_gate_answers(lab: Typed) -> None:
    ticket = lab("pool", "invite", "lab", "--submit").out.strip()
    done = lab("pool", "join", ticket)
    assert done.code == Unreachable.exit_code
    assert "the ticket is stored" in done.err
    (joined,) = joined_pools(Home.at(lab.home), Role.SUBMIT)
    me = load_or_create(Home.at(lab.home).key("scheduler")).peer_id
    assert joined.unused
    assert membership_of(Home.at(lab.home), joined, me, time.time()) is None


def test_a_guest_who_was_invited_by_id_is_in_at_once(lab: Typed) -> None:
    me = load_or_create(Home.at(lab.home).key("scheduler")).peer_id
    ticket = lab("pool", "invite", "lab", "--to", me).out.strip()
    done = lab("pool", "join", ticket)
    assert done.code == 0
    assert "This home may submit to pool lab until" in done.out
    assert "renews that automatically" in done.out


def test_a_wrong_ticket_is_refused(lab: Typed) -> None:
    good = lab("pool", "invite", "lab", "--submit").out.strip()
    for wrong, result, code in (
        (good[:-3], "damaged", 2),
        (good.replace("sark1", "sark3"), "version 3", 2),
        ("hello", "not a ticket", 2),
        (lab("pool", "invite", "lab").out, "is for devices", 5),
        (lab("pool", "invite", "lab", "--to", ANN).out, "is for ", 5),
    ):
        done = lab("pool", "join", wrong)
        assert (done.code, done.out) == (code, "")
        assert result in done.err
        assert good[20:60] not in done.err


def test_no_secret_is_printed_but_the_ticket(lab: Typed) -> None:
    seed = own_pool(Home.at(lab.home), "lab").key.seed.hex()
    for words in (["members", "lab"], ["members", "lab", "--json"], ["invite", "lab"]):
        done = lab("pool", *words)
        assert seed not in done.out + done.err


def test_pools_are_listed_and_a_joined_one_s_members_are_shown_as_far_as_they_are_known(lab: Typed) -> None:
    assert "lab" in lab("pool", "list").out
    assert "made here" in lab("pool", "list").out
    refused = lab("pool", "invite", "lab", "--priority", "60")
    assert (refused.code, refused.out) == (2, "")
    assert "--submit" in refused.err
