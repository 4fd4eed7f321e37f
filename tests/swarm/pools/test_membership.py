"""Pools on disk: created, joined, changed by several processes of one home, and never readable by other users."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import pytest

from protocol.errors import NotPermitted, ResourceError, SettingsError
from protocol.messages.pool import PoolMember
from protocol.words import Role
from swarm.base.durable import write_durably
from swarm.base.home import Home
from swarm.net.identity import Identity
from swarm.pools.manifests import revoke_peers, verified, with_member
from swarm.pools.membership import (
    Credential,
    credentials,
    host_name,
    join_pool,
    joined_pools,
    leave_pool,
    membership_of,
    signed_manifests,
    store_manifest,
    store_membership,
    store_tokens,
    stored_manifest,
)
from swarm.pools.owner import (
    MAX_TICKETS,
    MemberTerms,
    OwnPool,
    TicketRecord,
    create_pool,
    own_pool,
    own_pools,
)
from swarm.pools.tickets import Ticket, secret_text

NOW = 1_800_000_000.0
ANN = Identity.from_seed("ann")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home")


@pytest.fixture
def pool(tmp_path: Path) -> OwnPool:
    return create_pool(Home.at(tmp_path / "owner"), "lab")


def ticket(
    pool: OwnPool, role: Role, *, to: str | None = None, ttl_s: float = 1000.0, secret: int = 1
) -> Ticket:
    until = int(NOW + ttl_s)
    ticket = Ticket(pool=pool.id, name=pool.name, role=role, until=until, secret=bytes([secret] * 16))
    if to is None:
        return ticket
    line = PoolMember(peer=to, role=role, name="ann", until=until, ttl_s=int(ttl_s))
    pool.change(lambda manifest: with_member(manifest, line, NOW))
    return ticket.model_copy(update={"secret": None, "to": to, "manifest": pool.signed()})


def member(number: int) -> PoolMember:
    return PoolMember(peer=Identity.from_seed(number).peer_id, role=Role.WORKER, name=f"m-{number}")


# -- pools created here ---------------------------------------------------------------------------------------------------


def test_a_pool_is_found_again_with_the_key_and_manifest_it_was_made_with(home: Home) -> None:
    made = create_pool(home, "lab two", ("/ip4/192.0.2.7/tcp/4101",))
    made.change(lambda m: with_member(m, member(1), NOW))
    again = own_pool(home, "lab two")
    assert (again.id, again.name, again.gates) == (made.id, "lab two", ("/ip4/192.0.2.7/tcp/4101",))
    assert again.manifest().members == (member(1),)
    assert [each.id for each in own_pools(home)] == [made.id]
    with pytest.raises(SettingsError, match="already"):
        create_pool(home, "lab two")


def test_what_is_secret_is_for_the_owner_alone(home: Home) -> None:
    made = create_pool(home, "lab")
    join_pool(home, ticket(made, Role.SUBMIT), Role.SUBMIT, ANN.peer_id, now=NOW)
    files = [path for path in (home.data / "pools").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"pool.key", "manifest", f"{made.id}.submit"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "joined", "Joined", "a.", ".a", "a\n", "x" * 65])
def test_a_name_that_cannot_be_a_folder_is_refused(home: Home, name: str) -> None:
    with pytest.raises(SettingsError, match="cannot be called"):
        create_pool(home, name)


def test_a_change_by_another_process_is_seen(home: Home) -> None:
    create_pool(home, "lab")
    one, other = own_pool(home, "lab"), own_pool(home, "lab")
    assert one.manifest().number == other.manifest().number == 1
    one.change(lambda m: with_member(m, member(1), NOW))
    other.change(lambda m: with_member(m, member(2), NOW))
    assert one.manifest() == other.manifest()
    assert [m.name for m in one.manifest().members] == ["m-1", "m-2"]


def test_a_change_that_is_refused_leaves_all_as_it_was(pool: OwnPool) -> None:
    pool.change(lambda m: revoke_peers(m, (member(1).peer,), NOW))
    before = pool.signed()
    with pytest.raises(NotPermitted):
        pool.change(lambda m: with_member(m, member(1), NOW))
    assert pool.signed() == before


def test_a_damaged_manifest_or_a_lost_key_is_reported_with_its_file(home: Home) -> None:
    made = create_pool(home, "lab")
    file = made.folder / "manifest"
    whole = file.read_bytes()
    file.write_bytes(whole[:-3])
    with pytest.raises(ResourceError, match=r"lab/manifest is damaged"):
        own_pool(home, "lab").manifest()
    stranger = create_pool(Home.at(home.data / "other"), "lab")
    file.write_bytes((stranger.folder / "manifest").read_bytes())
    with pytest.raises(ResourceError, match=r"lab/manifest is damaged"):
        own_pool(home, "lab").manifest()
    (made.folder / "pool.key").unlink()
    with pytest.raises(ResourceError, match=r"pool\.key is missing"):
        own_pool(home, "lab")


def issue(pool: OwnPool, now: float, for_s: int = 1000, uses: int = 9) -> tuple[bytes, TicketRecord]:
    terms = MemberTerms(role=Role.WORKER, ttl_s=60)
    return pool.issue_ticket(terms, until=int(now) + for_s, uses=uses, now=now)


def test_tickets_are_stored_with_who_used_them_until_they_end(pool: OwnPool) -> None:
    (_, short), (secret, long) = issue(pool, NOW, 10), issue(pool, NOW)
    assert [pool.use_ticket(secret, ANN.peer_id, NOW) for _ in range(2)] == [True, False]
    assert [ticket.used for ticket in pool.open_tickets(NOW)] == [(), (ANN.peer_id,)]
    assert [ticket.id for ticket in pool.open_tickets(NOW + 11)] == [long.id]
    assert secret not in (pool.folder / "tickets").read_bytes()
    assert short.id not in {ticket.id for ticket in pool.open_tickets(NOW + 11)}


def test_a_ticket_admits_as_many_as_it_is_for(pool: OwnPool) -> None:
    secret, _ = issue(pool, NOW, uses=1)
    assert pool.use_ticket(secret, ANN.peer_id, NOW)
    with pytest.raises(NotPermitted, match="allowed uses: 1"):
        pool.use_ticket(secret, member(1).peer, NOW)
    assert not pool.use_ticket(secret, ANN.peer_id, NOW), "who has used it comes again"


def test_a_ticket_is_stored_as_long_as_one_who_joined_with_it_is_a_member(pool: OwnPool) -> None:
    secret, ticket = issue(pool, NOW)
    for peer in (member(1).peer, ANN.peer_id):
        pool.use_ticket(secret, peer, NOW)
    pool.change(lambda m: with_member(m, member(1), NOW))
    for _ in range(2):
        issue(pool, NOW + 2000, 1)
    assert next((each.id, each.used) for each in pool.tickets()) == (ticket.id, (member(1).peer,))
    pool.change(lambda m: revoke_peers(m, (member(1).peer,), NOW))
    issue(pool, NOW + 3000)
    assert ticket.id not in {each.id for each in pool.tickets()}


def test_the_number_of_open_join_tickets_is_limited(pool: OwnPool) -> None:
    record = issue(pool, NOW, uses=1)[1]
    records = [record.model_copy(update={"digest": n.to_bytes(32, "big")}) for n in range(MAX_TICKETS)]
    pool.write_tickets(tuple(records))
    with pytest.raises(NotPermitted, match="are open"):
        issue(pool, NOW)
    issue(pool, NOW + 2000)


# -- joined pools ---------------------------------------------------------------------------------------------------------


def test_a_ticket_joins_a_pool_though_nobody_has_admitted_this_home_yet(home: Home, pool: OwnPool) -> None:
    joined = join_pool(home, ticket(pool, Role.WORKER), Role.WORKER, ANN.peer_id, now=NOW)
    assert (joined.unused, joined.until) == (True, NOW + 1000)
    assert membership_of(home, joined, ANN.peer_id, NOW) is None
    assert joined_pools(home, Role.WORKER) == (joined,)
    assert joined_pools(home, Role.SUBMIT) == ()
    leave_pool(home, pool.id, Role.WORKER)
    assert joined_pools(home, Role.WORKER) == ()


def test_a_ticket_for_one_peer_makes_it_a_member_at_once_and_nobody_else(home: Home, pool: OwnPool) -> None:
    mine = ticket(pool, Role.SUBMIT, to=ANN.peer_id)
    joined = join_pool(home, mine, Role.SUBMIT, ANN.peer_id, now=NOW)
    member = membership_of(home, joined, ANN.peer_id, NOW)
    assert member is not None
    assert (member.name, member.until) == ("ann", NOW + 1000)
    ben = Identity.from_seed("ben").peer_id
    with pytest.raises(NotPermitted, match="is for"):
        join_pool(home, mine, Role.SUBMIT, ben, now=NOW)
    with pytest.raises(NotPermitted, match="does not list"):
        join_pool(home, mine.model_copy(update={"to": ben}), Role.SUBMIT, ben, now=NOW)


def test_the_same_ticket_again_loses_nothing(home: Home, pool: OwnPool) -> None:
    first = join_pool(home, ticket(pool, Role.SUBMIT), Role.SUBMIT, ANN.peer_id, now=NOW)
    store_membership(home, first.model_copy(update={"spent": True}))
    assert join_pool(home, ticket(pool, Role.SUBMIT), Role.SUBMIT, ANN.peer_id, now=NOW).spent
    assert join_pool(home, ticket(pool, Role.SUBMIT, secret=2), Role.SUBMIT, ANN.peer_id, now=NOW).unused


def test_a_ticket_for_another_role_names_the_command_it_is_for(home: Home, pool: OwnPool) -> None:
    with pytest.raises(NotPermitted, match="is for devices") as caught:
        join_pool(home, ticket(pool, Role.WORKER), Role.SUBMIT, ANN.peer_id, now=NOW)
    assert caught.value.hint == "use it with: sark-node join TICKET"


def test_a_ticket_with_a_forged_or_foreign_manifest_is_refused(home: Home, pool: OwnPool) -> None:
    good = ticket(pool, Role.SUBMIT, to=ANN.peer_id)
    assert good.manifest is not None
    forged = good.manifest.model_copy(update={"signature": b"x" * 64})
    for changes, why in (({"manifest": forged}, "signature"), ({"pool": ANN.peer_id}, "does not list")):
        with pytest.raises(NotPermitted, match=why):
            join_pool(home, good.model_copy(update=changes), Role.SUBMIT, ANN.peer_id, now=NOW)
    assert stored_manifest(home, pool.id) is None
    assert joined_pools(home, Role.SUBMIT) == ()


def test_an_older_manifest_never_takes_the_place_of_a_newer(home: Home, pool: OwnPool) -> None:
    old = pool.signed()
    pool.change(lambda m: revoke_peers(m, (member(1).peer,), NOW))
    store_manifest(home, pool.signed())
    store_manifest(home, old)
    stored = stored_manifest(home, pool.id)
    assert stored is not None
    assert verified(stored).number == 2
    path = home.data / "pools" / "joined" / f"{pool.id}.manifest"
    path.write_bytes(b"nonsense")
    assert stored_manifest(home, pool.id) is None


# -- presenting credentials -----------------------------------------------------------------------------------------------


def test_the_manifests_of_joined_and_own_pools_can_be_shown(home: Home, pool: OwnPool) -> None:
    join_pool(home, ticket(pool, Role.SUBMIT, to=ANN.peer_id), Role.SUBMIT, ANN.peer_id, now=NOW)
    mine, other = create_pool(home, "mine"), create_pool(Home.at(home.data / "other"), "other")
    join_pool(home, ticket(other, Role.SUBMIT), Role.SUBMIT, ANN.peer_id, now=NOW)
    by_key = dict(signed_manifests(home, Role.SUBMIT))
    assert by_key == {"lab": pool.signed(), "mine": mine.signed(), "other": None}


def test_an_expired_token_is_not_shown_and_is_deleted(home: Home) -> None:
    handed = Credential(issuer=ANN.peer_id, token=b"a token", expires=NOW + 50, campaign="c-1")
    store_tokens(home, [handed])
    assert credentials(home, now=NOW) == (handed,)
    assert credentials(home, now=NOW + 51) == ()
    assert list((home.data / "scheduler" / "tokens").iterdir()) == []


def test_the_hosts_name_is_one_that_a_member_can_have() -> None:
    assert PoolMember(peer=ANN.peer_id, role=Role.SUBMIT, name=host_name()).name == host_name()


def test_one_damaged_file_hides_no_other(home: Home, pool: OwnPool) -> None:
    join_pool(home, ticket(pool, Role.SUBMIT, to=ANN.peer_id), Role.SUBMIT, ANN.peer_id, now=NOW)
    create_pool(home, "mine")
    store_tokens(home, [Credential(issuer=ANN.peer_id, token=b"a token", expires=NOW + 50)])
    broken = create_pool(home, "broken")
    token = home.data / "scheduler" / "tokens" / "ffff"
    for path in (broken.folder / "pool", home.data / "pools" / "joined" / f"{ANN.peer_id}.submit", token):
        write_durably(path, b"?")
    lines: list[str] = []
    assert len(credentials(home, now=NOW, damaged=lambda exc: lines.append(exc.what))) == 1
    assert [str(token) in line for line in lines] == [True]
    assert {name for name, _ in signed_manifests(home, Role.SUBMIT)} == {"lab", "mine"}
    with pytest.raises(ResourceError, match="is damaged"):
        joined_pools(home, Role.SUBMIT)


@pytest.mark.parametrize(
    "argument", ["sark1abc", "-", "file", "no such file", "x" * 5000, "a\0b", " sark1" + "a" * 600]
)
def test_a_ticket_is_what_was_typed_or_in_a_file_or_on_standard_input(tmp_path: Path, argument: str) -> None:
    (tmp_path / "ticket").write_text("sark1file\n")
    typed = str(tmp_path / "ticket") if argument == "file" else argument
    expected = {"-": "sark1stdin", "file": "sark1file"}.get(argument, argument)
    assert secret_text(typed, io.StringIO("sark1stdin\nmore")).strip() == expected.strip()


@pytest.mark.parametrize(
    ("argument", "what"),
    [
        ("ticket.txt", "the file ticket.txt does not exist"),
        ("/no/such/ticket", "the file /no/such/ticket does not exist"),
        ("folder", "is a folder"),
        ("-", "standard input is empty"),
    ],
)
def test_a_file_or_standard_input_without_a_ticket_is_reported_as_such(
    tmp_path: Path, argument: str, what: str
) -> None:
    typed = f"{tmp_path}/" if argument == "folder" else argument
    with pytest.raises(ResourceError, match=what) as caught:
        secret_text(typed, io.StringIO("\n"))
    assert "paste it" in caught.value.hint


@pytest.mark.parametrize("to", [None, ANN.peer_id])
def test_an_expired_ticket_says_when_and_what_this_clock_says(
    home: Home, pool: OwnPool, to: str | None
) -> None:
    words = r"lab expired at 2027-01-15 .* clock says 2027-01-16"
    with pytest.raises(NotPermitted, match=words) as caught:
        join_pool(home, ticket(pool, Role.SUBMIT, to=to), Role.SUBMIT, ANN.peer_id, now=NOW + 86_400)
    assert "ask the pool's owner for a new one" in caught.value.hint
    assert joined_pools(home, Role.SUBMIT) == ()


def test_a_newer_token_for_a_campaign_replaces_the_older_one(home: Home) -> None:
    ben = Identity.from_seed("ben").peer_id

    def of(issuer: str, token: bytes, campaign: str) -> Credential:
        return Credential(issuer=issuer, token=token, expires=NOW + 50, campaign=campaign)

    store_tokens(home, [of(ANN.peer_id, b"old", "c-one"), of(ben, b"bob's", "c-one")])
    store_tokens(home, [of(ANN.peer_id, b"other", "c-two")])
    store_tokens(home, [of(ANN.peer_id, b"new", "c-one")])
    assert {one.token for one in credentials(home, now=NOW)} == {b"bob's", b"other", b"new"}
