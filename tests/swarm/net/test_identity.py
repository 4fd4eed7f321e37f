"""The key on disk, the ids derived from it, and the folder that only one process may hold."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.kad_dht.routing_table import peer_id_to_key
from libp2p.peer.id import ID

from protocol.errors import ResourceError
from swarm.net.identity import Identity, load_or_create, next_incarnation, peer_id_bytes, routing_key, verify


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_key_is_made_once_and_kept_privately(tmp_path: Path) -> None:
    path = tmp_path / "data" / "identity.pem"
    first = load_or_create(path)
    assert load_or_create(path) == first
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.pem"]


def test_a_key_that_others_can_read_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    load_or_create(path)
    path.chmod(0o640)
    with pytest.raises(ResourceError, match="can be read by other users") as caught:
        load_or_create(path)
    assert caught.value.hint == f"chmod 600 {path}"


@pytest.mark.parametrize(
    "content", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_damaged_key_is_an_error_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ResourceError, match="damaged"):
        load_or_create(path)
    assert path.read_bytes() == content


def test_a_link_in_the_place_of_the_key_is_not_followed(tmp_path: Path) -> None:
    load_or_create(tmp_path / "real.pem")
    (tmp_path / "identity.pem").symlink_to(tmp_path / "real.pem")
    with pytest.raises(ResourceError, match="symbolic link"):
        load_or_create(tmp_path / "identity.pem")


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="cannot use"):
        load_or_create(tmp_path / "file" / "identity.pem")


def test_the_secret_is_not_in_what_is_shown() -> None:
    identity = Identity.from_seed(1)
    assert repr(identity) == f"Identity({identity.peer_id})"


def test_libp2p_gives_the_same_id_and_the_same_place_to_the_same_key() -> None:
    identity = Identity.from_seed(1)
    theirs = ID.from_pubkey(create_new_key_pair(identity.seed).public_key)
    assert str(theirs) == identity.peer_id
    assert theirs.to_bytes() == peer_id_bytes(identity.peer_id)
    assert peer_id_to_key(theirs) == routing_key(identity.peer_id)


@given(body=st.binary(max_size=200), flip=st.integers(0, 511))
def test_a_signature_holds_for_its_body_alone(body: bytes, flip: int) -> None:
    identity = Identity.from_seed("signer")
    signature = identity.sign(body)
    assert verify(identity.peer_id, body, signature)
    assert not verify(identity.peer_id, body + b"x", signature)
    assert not verify(Identity.from_seed("other").peer_id, body, signature)
    spoilt = bytearray(signature)
    spoilt[flip // 8] ^= 1 << flip % 8
    assert not verify(identity.peer_id, body, bytes(spoilt))


@given(peer=st.text(max_size=70), signature=st.binary(max_size=80))
def test_checking_a_signature_never_raises(peer: str, signature: bytes) -> None:
    assert not verify(peer, b"body", signature)


def test_each_start_has_a_higher_number(tmp_path: Path) -> None:
    path = tmp_path / "incarnation"
    assert [next_incarnation(path) for _ in range(3)] == [1, 2, 3]
    assert path.read_text() == "3\n"


@pytest.mark.parametrize("content", ["", "-1", "three", "9" * 30])
def test_a_damaged_counter_does_not_start_again(tmp_path: Path, content: str) -> None:
    path = tmp_path / "incarnation"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ResourceError, match="damaged"):
        next_incarnation(path)
