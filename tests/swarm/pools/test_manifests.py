"""Manifests: only the pool's key signs one, the number only rises, and a revoked peer stays revoked."""

from __future__ import annotations

import pytest

from protocol.errors import LocalProtocolError, NotPermitted, RemoteProtocolError
from protocol.messages.pool import MAX_MEMBERS, MAX_REVOKED, PoolManifest, PoolMember, RevokedPeer
from protocol.words import Role
from swarm.net.identity import Identity
from swarm.pools.manifests import (
    DELEGATION_S,
    MARGIN_S,
    find_member,
    live_members,
    merge_restored_manifest,
    revoke_peers,
    revoked_peers,
    sign_manifest,
    verified,
    with_member,
)
from swarm.pools.tokens import LEEWAY_S

POOL = Identity.from_seed("pool")
EMPTY = PoolManifest(pool=POOL.peer_id, name="lab", number=1)
NOW = 1_800_000_000.0


def peer(number: int) -> str:
    return Identity.from_seed(number).peer_id


def member(number: int, role: Role = Role.WORKER, until: float | None = None) -> PoolMember:
    end = None if until is None else int(until)
    return PoolMember(peer=peer(number), role=role, name=f"m-{number}", until=end)


def revoked(manifest: PoolManifest) -> list[str]:
    return [each.peer for each in manifest.revoked]


def test_a_signed_manifest_is_read_back() -> None:
    manifest = with_member(EMPTY, member(1), NOW)
    assert verified(sign_manifest(POOL, manifest)) == manifest


def test_a_manifest_that_was_changed_or_signed_by_another_is_refused() -> None:
    signed = sign_manifest(POOL, EMPTY)
    other = sign_manifest(POOL, with_member(EMPTY, member(1), NOW))
    with pytest.raises(RemoteProtocolError, match="without its signature"):
        verified(other.model_copy(update={"signature": signed.signature}))
    with pytest.raises(RemoteProtocolError):
        verified(signed.model_copy(update={"body": signed.body[:-1]}))
    with pytest.raises(LocalProtocolError, match="own key"):
        sign_manifest(Identity.from_seed("another"), EMPTY)


def test_the_number_rises_with_each_change_and_with_nothing_else() -> None:
    one = with_member(EMPTY, member(1), NOW)
    assert one.number == 2
    assert with_member(one, member(1), NOW) is one
    renamed = with_member(one, PoolMember(peer=peer(1), role=Role.WORKER, name="new"), NOW)
    assert (renamed.number, len(renamed.members)) == (3, 1)
    both = with_member(renamed, member(1, Role.SUBMIT), NOW)
    assert len(both.members) == 2
    gone = revoke_peers(both, (peer(1),), NOW)
    assert (gone.number, gone.members, revoked(gone)) == (5, (), [peer(1)])
    assert revoke_peers(gone, (peer(1),), NOW) is gone


def test_a_revoked_peer_comes_back_only_when_pardoned() -> None:
    gone = revoke_peers(with_member(EMPTY, member(1), NOW), (peer(1),), NOW)
    assert peer(1) in revoked_peers(gone)
    with pytest.raises(NotPermitted, match="revoked"):
        with_member(gone, member(1), NOW)
    pardoned = with_member(gone, member(1), NOW, pardon=True)
    assert (pardoned.revoked, pardoned.members) == ((), (member(1),))
    assert pardoned.number > gone.number
    assert with_member(pardoned, member(1), NOW, pardon=True) is pardoned


def test_a_membership_counts_until_its_end_and_for_the_leeway_of_clocks() -> None:
    manifest = with_member(with_member(EMPTY, member(1, until=NOW + 10), NOW), member(2), NOW)
    last = NOW + 10 + LEEWAY_S
    assert find_member(manifest, peer(1), Role.WORKER, last) is not None
    assert find_member(manifest, peer(1), Role.SUBMIT, last) is None
    assert find_member(manifest, peer(1), Role.WORKER, last + 1) is None
    assert live_members(manifest, last) == {peer(1), peer(2)}
    assert live_members(manifest, last + 1) == {peer(2)}


def test_lines_that_ended_long_ago_leave_the_manifest_with_its_next_change() -> None:
    manifest = revoke_peers(with_member(EMPTY, member(1, until=NOW + 10), NOW), (peer(3),), NOW)
    soon = with_member(manifest, member(2), NOW + MARGIN_S)
    assert [m.name for m in soon.members] == ["m-1", "m-2"]
    later = with_member(soon, member(4), NOW + MARGIN_S + 11)
    assert [m.name for m in later.members] == ["m-2", "m-4"]
    assert revoked(later) == [peer(3)]
    assert revoked(with_member(later, member(5), NOW + DELEGATION_S + MARGIN_S - 1)) == [peer(3)]
    assert revoked(with_member(later, member(5), NOW + DELEGATION_S + MARGIN_S)) == []


def test_a_pool_restored_from_an_old_copy_catches_up_and_forgets_no_revocation() -> None:
    copy = with_member(EMPTY, member(1), NOW)
    newer = revoke_peers(with_member(copy, member(2), NOW), (peer(3),), NOW)
    assert merge_restored_manifest(copy, newer, NOW) is newer
    assert merge_restored_manifest(newer, copy, NOW) is newer
    after = merge_restored_manifest(revoke_peers(copy, (peer(2),), NOW), newer, NOW)
    assert after.number == newer.number + 1
    assert set(revoked(after)) == {peer(2), peer(3)}
    assert [m.name for m in after.members] == ["m-1"]


def test_a_full_pool_says_so_and_what_to_do() -> None:
    full = EMPTY.model_copy(
        update={"members": tuple(member(1).model_copy(update={"peer": f"p{n}"}) for n in range(MAX_MEMBERS))}
    )
    with pytest.raises(NotPermitted, match="is full") as caught:
        with_member(full, member(2), NOW)
    assert "sark-node pool create" in caught.value.hint
    entries = tuple(RevokedPeer(peer=peer(n), until=int(NOW) + 9) for n in range(MAX_REVOKED))
    with pytest.raises(NotPermitted, match="which is the maximum"):
        revoke_peers(EMPTY.model_copy(update={"revoked": entries}), (peer(-1),), NOW)


def test_from_the_fullest_pool_every_member_can_be_revoked() -> None:
    manifest = EMPTY
    for number in range(MAX_MEMBERS):
        name = f"a-device-of-some-length-{number:04}"
        line = PoolMember(peer=peer(number), role=Role.WORKER, name=name, slots=9, until=2**40, ttl_s=2**30)
        manifest = with_member(manifest, line, NOW)
    for number in range(MAX_MEMBERS):
        manifest = revoke_peers(manifest, (peer(number),), NOW)
        sign_manifest(POOL, manifest)
    signed = sign_manifest(POOL, manifest)
    assert verified(signed) == manifest
    assert (len(manifest.revoked), manifest.members) == (MAX_REVOKED, ())


def test_catching_up_drops_no_revocation_in_silence() -> None:
    own = revoke_peers(EMPTY, [peer(n) for n in range(200)], NOW)
    theirs = revoke_peers(revoke_peers(EMPTY, [peer(n) for n in range(200, 400)], NOW), [peer(400)], NOW)
    with pytest.raises(NotPermitted, match="which is the maximum"):
        merge_restored_manifest(own, theirs, NOW)


def test_catching_up_leaves_out_members_sooner_than_a_revocation() -> None:
    full = EMPTY
    for number in range(170):
        line = PoolMember(peer=peer(number), role=Role.WORKER, name=f"{number:060}", team="t" * 64)
        full = with_member(full, line, NOW)
    newer = full.model_copy(update={"number": 900})
    after = merge_restored_manifest(revoke_peers(EMPTY, [peer(-n) for n in range(1, 200)], NOW), newer, NOW)
    sign_manifest(POOL, after)
    assert len(after.revoked) == 199
    assert 0 < len(after.members) < len(newer.members)


def test_a_pool_of_devices_is_as_large_as_the_limit_though_each_line_names_its_device() -> None:
    manifest = EMPTY
    for number in range(MAX_MEMBERS):
        name, device = f"a-device-of-some-length-{number:04}", f"d-{number:016x}"
        line = PoolMember(
            peer=peer(number), role=Role.WORKER, name=name, until=2**31, ttl_s=2**22, device=device
        )
        manifest = with_member(manifest, line, NOW)
    signed = sign_manifest(POOL, manifest)
    assert verified(signed) == manifest
    assert [member.device for member in manifest.members[:2]] == [f"d-{0:016x}", f"d-{1:016x}"]
