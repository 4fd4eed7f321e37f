"""Manifests: only the pool's key makes one, the number only rises, and what was taken back stays so."""

from __future__ import annotations

import pytest

from protocol.errors import LocalProtocolError, NotPermitted, RemoteProtocolError
from protocol.messages.pool import MAX_MEMBERS, MAX_REVOKED, ManifestMessage, PoolManifest, PoolMember
from protocol.words import Role
from swarm.net.identity import Identity
from swarm.pools.manifests import (
    caught_up,
    forgiven,
    pruned,
    sign_manifest,
    taken_back,
    verified,
    with_member,
    without,
)

POOL = Identity.from_seed("pool")
EMPTY = PoolManifest(pool=POOL.peer_id, name="lab", number=1)


def peer(number: int) -> str:
    return Identity.from_seed(number).peer_id


def member(number: int, role: Role = Role.WORKER) -> PoolMember:
    return PoolMember(peer=peer(number), role=role, name=f"m-{number}")


def test_a_signed_manifest_is_read_back() -> None:
    manifest = with_member(EMPTY, member(1))
    signed = sign_manifest(POOL, manifest)
    assert verified(signed.body, signed.signature) == manifest


def test_a_manifest_that_was_changed_or_signed_by_another_is_refused() -> None:
    signed = sign_manifest(POOL, EMPTY)
    other = sign_manifest(POOL, with_member(EMPTY, member(1)))
    with pytest.raises(RemoteProtocolError, match="did not sign"):
        verified(other.body, signed.signature)
    with pytest.raises(RemoteProtocolError):
        verified(signed.body[:-1], signed.signature)
    with pytest.raises(LocalProtocolError, match="own key"):
        sign_manifest(Identity.from_seed("another"), EMPTY)


def test_the_number_rises_with_each_change_and_with_nothing_else() -> None:
    one = with_member(EMPTY, member(1))
    assert one.number == 2
    assert with_member(one, member(1)) is one
    renamed = with_member(one, PoolMember(peer=peer(1), role=Role.WORKER, name="new"))
    assert (renamed.number, len(renamed.members)) == (3, 1)
    both = with_member(renamed, member(1, Role.SUBMIT))
    assert len(both.members) == 2
    gone = without(both, (peer(1),))
    assert (gone.number, gone.members, gone.revoked) == (5, (), (peer(1),))
    assert without(gone, (peer(1),)) is gone


def test_who_was_revoked_comes_back_only_when_forgiven() -> None:
    gone = without(with_member(EMPTY, member(1)), (peer(1),))
    with pytest.raises(NotPermitted, match="was taken back"):
        with_member(gone, member(1))
    again = with_member(forgiven(gone, peer(1)), member(1))
    assert (again.revoked, again.members) == ((), (member(1),))
    assert again.number > gone.number
    assert forgiven(again, peer(1)) is again


def test_a_pool_restored_from_an_old_copy_catches_up_and_forgets_nothing_that_was_taken_back() -> None:
    copy = with_member(EMPTY, member(1))
    newer = without(with_member(copy, member(2)), (peer(3),))
    assert caught_up(copy, newer) is newer
    assert caught_up(newer, copy) is newer
    after = caught_up(without(copy, (peer(2),), (b"12345678",)), newer)
    assert after.number == newer.number + 1
    assert set(after.revoked) == {peer(2), peer(3)}
    assert after.revoked_tokens == (b"12345678",)
    assert [m.name for m in after.members] == ["m-1"]


def test_a_peer_or_a_token_is_enough_to_be_taken_back() -> None:
    manifest = without(EMPTY, (peer(1),), (b"12345678",))
    assert taken_back(manifest, (peer(2), peer(1)), ())
    assert taken_back(manifest, (), (b"12345678", b"x" * 8))
    assert not taken_back(manifest, (peer(2),), (b"x" * 8,))


def test_a_full_pool_says_so_and_what_to_do() -> None:
    full = EMPTY.model_copy(
        update={"members": tuple(member(1).model_copy(update={"peer": f"p{n}"}) for n in range(MAX_MEMBERS))}
    )
    with pytest.raises(NotPermitted, match="is full") as told:
        with_member(full, member(2))
    assert "sark-node pool create" in told.value.hint
    tired = EMPTY.model_copy(update={"revoked": tuple(f"p{n}" for n in range(MAX_REVOKED))})
    with pytest.raises(NotPermitted, match="no room for more"):
        without(tired, (peer(1),))


def test_from_the_fullest_pool_every_member_and_its_ticket_can_be_taken_back() -> None:
    manifest = EMPTY
    for number in range(MAX_MEMBERS):
        name = f"a-device-of-some-length-{number:04}"
        manifest = with_member(manifest, PoolMember(peer=peer(number), role=Role.WORKER, name=name, slots=9))
    for number in range(MAX_MEMBERS):
        manifest = without(manifest, (peer(number),), (number.to_bytes(8, "big"),))
        signed = sign_manifest(POOL, manifest)
        assert isinstance(signed, ManifestMessage)
    assert verified(signed.body, signed.signature) == manifest
    assert (len(manifest.revoked), manifest.members) == (MAX_REVOKED, ())


def test_catching_up_drops_nothing_that_was_taken_back_without_saying_so() -> None:
    ours = without(EMPTY, [peer(n) for n in range(200)])
    theirs = without(without(EMPTY, [peer(n) for n in range(200, 400)]), tokens=(b"12345678",))
    with pytest.raises(NotPermitted, match="restored from a copy"):
        caught_up(ours, theirs)


def test_catching_up_leaves_members_off_the_list_sooner_than_a_revocation() -> None:
    full = EMPTY
    for number in range(180):
        line = PoolMember(peer=peer(number), role=Role.WORKER, name=f"{number:060}", team="t" * 64)
        full = with_member(full, line)
    newer = full.model_copy(update={"number": 900})
    after = caught_up(without(EMPTY, [peer(-n) for n in range(1, 200)]), newer)
    sign_manifest(POOL, after)
    assert len(after.revoked) == 199
    assert 0 < len(after.members) < len(newer.members)


def test_what_is_surely_over_gives_its_room_free() -> None:
    manifest = without(EMPTY, (peer(1), peer(2)), (b"12345678",))
    after = pruned(manifest, {peer(1)}, {b"12345678"})
    assert (after.revoked, after.revoked_tokens, after.number) == ((peer(2),), (), manifest.number + 1)
    assert pruned(after, {peer(1)}, ()) is after
