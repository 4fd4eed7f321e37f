"""Pools on disk: made, joined, changed by several processes of one home, and never readable by others."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import pytest

from protocol.errors import NotPermitted, ResourceError
from protocol.messages.pool import PoolMember
from protocol.words import Right, Role
from swarm.base.durable import write_durably
from swarm.base.home import Home
from swarm.base.settings import SettingsError
from swarm.net.identity import Identity
from swarm.pools.files import secret_text
from swarm.pools.manifests import verified, with_member, without
from swarm.pools.membership import (
    Credential,
    credentials,
    host_name,
    join_pool,
    joined_pools,
    keep_manifest,
    keep_token,
    keep_tokens,
    kept_manifest,
    leave_pool,
)
from swarm.pools.notes import TicketNote
from swarm.pools.owner import OwnPool, create_pool, own_pool, own_pools
from swarm.pools.tickets import Ticket
from swarm.pools.tokens import LEEWAY_S, Grant, bearer, issue, prove

NOW = 1_800_000_000.0
ANN = Identity.from_seed("ann")
WORK = frozenset({Right.SUBMIT, Right.STATUS})


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home")


@pytest.fixture
def pool(tmp_path: Path) -> OwnPool:
    return create_pool(Home.at(tmp_path / "owner"), "lab")


def ticket(pool: OwnPool, role: Role, *, to: str | None = None, lasts_s: float = 1000.0) -> Ticket:
    grant = Grant(WORK, lasts_s=lasts_s)
    token = issue(pool.key, to, grant, now=NOW) if to else bearer(pool.key, role, grant, now=NOW)
    return Ticket(pool=pool.id, name=pool.name, role=role, token=token, to=to)


def member(number: int) -> PoolMember:
    return PoolMember(peer=Identity.from_seed(number).peer_id, role=Role.WORKER, name=f"m-{number}")


# -- made here ------------------------------------------------------------------------------------------------------------


def test_a_pool_is_found_again_with_the_key_and_manifest_it_was_made_with(home: Home) -> None:
    made = create_pool(home, "lab two", ("/ip4/192.0.2.7/tcp/4101",))
    made.change(lambda m: with_member(m, member(1)))
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
    one.change(lambda m: with_member(m, member(1)))
    other.change(lambda m: with_member(m, member(2)))
    assert one.manifest() == other.manifest()
    assert [m.name for m in one.manifest().members] == ["m-1", "m-2"]


def test_a_change_that_is_refused_leaves_all_as_it_was(pool: OwnPool) -> None:
    pool.change(lambda m: without(m, (member(1).peer,)))
    before = pool.signed()
    with pytest.raises(NotPermitted):
        pool.change(lambda m: with_member(m, member(1)))
    assert pool.signed() == before


def test_a_damaged_manifest_or_a_lost_key_is_told_by_its_file(home: Home) -> None:
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
    with pytest.raises(ResourceError, match=r"pool\.key is not there"):
        own_pool(home, "lab")


def test_tickets_are_remembered_with_who_used_them_until_they_are_over(pool: OwnPool) -> None:
    short = TicketNote(id=b"1" * 8, role=Role.WORKER, until=int(NOW) + 10)
    long = TicketNote(id=b"2" * 8, role=Role.SUBMIT, until=int(NOW) + 1000)
    for note in (short, long):
        pool.notes.note(note, NOW)
    assert [pool.notes.use(b"2" * 8, ANN.peer_id, NOW) for _ in range(2)] == [True, False]
    assert [note.used for note in pool.notes.tickets(NOW)] == [(), (ANN.peer_id,)]
    assert [note.id for note in pool.notes.tickets(NOW + 11 + LEEWAY_S)] == [b"2" * 8]


# -- joined ---------------------------------------------------------------------------------------------------------------


def test_a_ticket_makes_a_member_that_has_no_credential_yet(home: Home, pool: OwnPool) -> None:
    joined = join_pool(home, ticket(pool, Role.WORKER), Role.WORKER, ANN.peer_id, now=NOW)
    assert (joined.credential, joined.until) == (None, NOW + 1000)
    assert joined_pools(home, Role.WORKER) == (joined,)
    assert joined_pools(home, Role.SUBMIT) == ()
    leave_pool(home, pool.id, Role.WORKER)
    assert joined_pools(home, Role.WORKER) == ()


def test_a_ticket_for_one_peer_is_a_credential_at_once_and_nobody_elses(home: Home, pool: OwnPool) -> None:
    mine = ticket(pool, Role.SUBMIT, to=ANN.peer_id)
    joined = join_pool(home, mine, Role.SUBMIT, ANN.peer_id, now=NOW)
    assert joined.credential == mine.token
    with pytest.raises(NotPermitted, match="was given to"):
        join_pool(home, mine, Role.SUBMIT, Identity.from_seed("ben").peer_id, now=NOW)


def test_the_same_ticket_again_loses_nothing(home: Home, pool: OwnPool) -> None:
    first = ticket(pool, Role.SUBMIT)
    join_pool(home, first, Role.SUBMIT, ANN.peer_id, now=NOW)
    bound = ticket(pool, Role.SUBMIT, to=ANN.peer_id, lasts_s=5000.0)
    kept = join_pool(home, bound, Role.SUBMIT, ANN.peer_id, now=NOW)
    assert join_pool(home, bound, Role.SUBMIT, ANN.peer_id, now=NOW + 1) == kept
    later = join_pool(home, ticket(pool, Role.SUBMIT), Role.SUBMIT, ANN.peer_id, now=NOW + 2)
    assert later.credential == bound.token


def test_a_ticket_for_another_role_names_the_command_it_is_for(home: Home, pool: OwnPool) -> None:
    with pytest.raises(NotPermitted, match="devices that work for it") as told:
        join_pool(home, ticket(pool, Role.WORKER), Role.SUBMIT, ANN.peer_id, now=NOW)
    assert told.value.hint == "use it with: sark-node join TICKET"


def test_a_ticket_that_says_another_role_than_its_token_is_refused(home: Home, pool: OwnPool) -> None:
    forged = ticket(pool, Role.WORKER).model_copy(update={"role": Role.SUBMIT})
    with pytest.raises(NotPermitted, match="another role"):
        join_pool(home, forged, Role.SUBMIT, ANN.peer_id, now=NOW)
    foreign = ticket(pool, Role.WORKER).model_copy(update={"pool": ANN.peer_id})
    with pytest.raises(NotPermitted, match="no token of"):
        join_pool(home, foreign, Role.WORKER, ANN.peer_id, now=NOW)


def test_an_older_manifest_never_takes_the_place_of_a_newer(home: Home, pool: OwnPool) -> None:
    old = pool.signed()
    pool.change(lambda m: without(m, (member(1).peer,)))
    keep_manifest(home, pool.signed())
    keep_manifest(home, old)
    kept = kept_manifest(home, pool.id)
    assert kept is not None
    assert verified(kept.body, kept.signature).number == 2
    path = home.data / "pools" / "joined" / f"{pool.id}.manifest"
    path.write_bytes(b"nonsense")
    assert kept_manifest(home, pool.id) is None


# -- to be presented ------------------------------------------------------------------------------------------------------


def test_what_can_be_presented_comes_from_joined_and_own_pools_and_from_hand_overs(
    home: Home, pool: OwnPool
) -> None:
    join_pool(home, ticket(pool, Role.SUBMIT, to=ANN.peer_id), Role.SUBMIT, ANN.peer_id, now=NOW)
    mine = create_pool(home, "mine")
    handed = Credential(ANN.peer_id, b"a token", "", NOW + 50, "c-1")
    keep_token(home, handed)
    found = {c.pool_name: c for c in credentials(home, Role.SUBMIT, ANN.peer_id, now=NOW)}
    assert set(found) == {"lab", "mine", ""}
    assert found[""] == handed
    assert found["lab"].issuer == pool.id
    proof = prove(found["mine"].token, mine.id, ANN.peer_id, now=NOW)
    assert proof.grant.rights == WORK
    assert credentials(home, Role.WORKER, ANN.peer_id, now=NOW) == ()


def test_what_is_over_is_not_presented_and_a_handed_token_is_forgotten(home: Home, pool: OwnPool) -> None:
    join_pool(home, ticket(pool, Role.SUBMIT, to=ANN.peer_id), Role.SUBMIT, ANN.peer_id, now=NOW)
    keep_token(home, Credential(ANN.peer_id, b"a token", "", NOW + 50))
    assert len(credentials(home, Role.SUBMIT, ANN.peer_id, now=NOW)) == 2
    assert credentials(home, Role.SUBMIT, ANN.peer_id, now=NOW + 1001) == ()
    assert list((home.data / "scheduler" / "tokens").iterdir()) == []


def test_the_hosts_name_is_one_that_a_member_can_have() -> None:
    assert PoolMember(peer=ANN.peer_id, role=Role.SUBMIT, name=host_name()).name == host_name()


def test_one_damaged_file_takes_no_other_credential_away(home: Home, pool: OwnPool) -> None:
    join_pool(home, ticket(pool, Role.SUBMIT, to=ANN.peer_id), Role.SUBMIT, ANN.peer_id, now=NOW)
    create_pool(home, "mine")
    keep_token(home, Credential(ANN.peer_id, b"a token", "", NOW + 50))
    broken = create_pool(home, "broken")
    damaged = (
        broken.folder / "pool",
        home.data / "pools" / "joined" / f"{ANN.peer_id}.submit",
        home.data / "scheduler" / "tokens" / "ffff",
    )
    for path in damaged:
        write_durably(path, b"?")
    told: list[str] = []
    found = credentials(home, Role.SUBMIT, ANN.peer_id, now=NOW, damaged=lambda exc: told.append(exc.what))
    assert {credential.pool_name for credential in found} == {"lab", "mine", ""}
    assert [
        str(path) in line for path, line in zip((damaged[1], damaged[0], damaged[2]), told, strict=True)
    ] == [True] * 3
    with pytest.raises(ResourceError, match="is damaged"):
        joined_pools(home, Role.SUBMIT)


@pytest.mark.parametrize(
    "said", ["sark1abc", "-", "file", "no such file", "x" * 5000, "a\0b", " sark1" + "a" * 600]
)
def test_a_ticket_is_what_was_typed_or_in_a_file_or_on_standard_input(tmp_path: Path, said: str) -> None:
    (tmp_path / "ticket").write_text("sark1file\n")
    typed = str(tmp_path / "ticket") if said == "file" else said
    expected = {"-": "sark1stdin", "file": "sark1file"}.get(said, said)
    assert secret_text(typed, io.StringIO("sark1stdin\nmore")).strip() == expected.strip()


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("ticket.txt", "the file ticket.txt is not there"),
        ("/no/such/ticket", "the file /no/such/ticket is not there"),
        ("folder", "is a folder"),
        ("-", "nothing came on standard input"),
    ],
)
def test_a_file_or_standard_input_without_a_ticket_is_told_as_that(
    tmp_path: Path, said: str, what: str
) -> None:
    typed = f"{tmp_path}/" if said == "folder" else said
    with pytest.raises(ResourceError, match=what) as caught:
        secret_text(typed, io.StringIO("\n"))
    assert "paste it" in caught.value.hint


@pytest.mark.parametrize("to", [None, ANN.peer_id])
def test_a_ticket_that_is_over_says_when_and_what_this_clock_says(
    home: Home, pool: OwnPool, to: str | None
) -> None:
    words = r"lab is over: .* ended at 2027-01-15 .* clock says 2027-01-16"
    with pytest.raises(NotPermitted, match=words) as caught:
        join_pool(home, ticket(pool, Role.SUBMIT, to=to), Role.SUBMIT, ANN.peer_id, now=NOW + 86_400)
    assert "ask the pool's owner for a new one" in caught.value.hint
    assert joined_pools(home, Role.SUBMIT) == ()


def test_a_newer_token_for_a_campaign_takes_the_place_of_the_one_before(home: Home) -> None:
    ben = Identity.from_seed("ben").peer_id

    def of(issuer: str, token: bytes, campaign: str) -> Credential:
        return Credential(issuer, token, "", NOW + 50, campaign)

    keep_tokens(home, [of(ANN.peer_id, b"old", "c-one"), of(ben, b"bob's", "c-one")])
    keep_tokens(home, [of(ANN.peer_id, b"other", "c-two")])
    keep_tokens(home, [of(ANN.peer_id, b"new", "c-one")])
    held = credentials(home, Role.SUBMIT, ANN.peer_id, now=NOW)
    assert {one.token for one in held} == {b"bob's", b"other", b"new"}
