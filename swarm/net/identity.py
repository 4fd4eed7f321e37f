"""A node's identity: its Ed25519 key, its peer id, and the counter of its starts (incarnations).

A peer id is the base58 form of the public key's identity multihash, so signatures are verified from the id alone, without libp2p.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from protocol.errors import ResourceError
from swarm.base.durable import unusable, write_durably

_ID_PREFIX: Final = bytes.fromhex("002408011220")
"""Identity multihash (0x00), 36 bytes long (0x24), of a libp2p public key: type Ed25519 (0801), 32 bytes (1220)."""
_ID_BYTES: Final = len(_ID_PREFIX) + 32
_MAX_KEY_FILE: Final = 4096
_POSIX: Final = os.name == "posix"


@dataclass(frozen=True)
class Identity:
    """An Ed25519 key pair."""

    seed: bytes
    """The 32 secret bytes; not shown in `repr`."""

    @classmethod
    def fresh(cls) -> Identity:
        """A new random identity."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_seed(cls, seed: int | str | bytes) -> Identity:
        """The same identity for the same seed. For tests and simulations only."""
        raw = seed if isinstance(seed, bytes) else str(seed).encode()
        return cls(hashlib.sha256(b"sark test identity " + raw).digest())

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)

    @cached_property
    def public_key(self) -> bytes:
        """The 32 public bytes."""
        return self._private.public_key().public_bytes_raw()

    @cached_property
    def peer_id(self) -> str:
        """`12D3Koo…`, 52 characters."""
        return base58.b58encode(_ID_PREFIX + self.public_key).decode()

    def sign(self, body: bytes) -> bytes:
        """64-byte Ed25519 signature over `body`."""
        return self._private.sign(body)

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"


# -- peer ids ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=65_536)
def peer_id_bytes(peer_id: str) -> bytes:
    """The 38 bytes of a peer id. Raises ValueError if it is not an Ed25519 peer id."""
    if not 40 <= len(peer_id) <= 60:
        raise ValueError(f"not a peer id: {peer_id[:64]!r}")
    raw = base58.b58decode(peer_id)
    if len(raw) != _ID_BYTES or not raw.startswith(_ID_PREFIX):
        raise ValueError(f"not an Ed25519 peer id: {peer_id!r}")
    return raw


def peer_id_text(raw: bytes) -> str:
    """The peer id made of 38 bytes. Raises ValueError if they are not an Ed25519 peer id."""
    if len(raw) != _ID_BYTES or not raw.startswith(_ID_PREFIX):
        raise ValueError("not the bytes of an Ed25519 peer id")
    return base58.b58encode(raw).decode()


@lru_cache(maxsize=65_536)
def routing_key(peer_id: str) -> bytes:
    """sha256 of the peer id's bytes: the peer's position in the 256-bit key space."""
    return hashlib.sha256(peer_id_bytes(peer_id)).digest()


def distance(peer_id: str, key: bytes) -> int:
    """XOR distance between a peer and a 32-byte key."""
    return int.from_bytes(routing_key(peer_id), "big") ^ int.from_bytes(key, "big")


@lru_cache(maxsize=4_096)
def _public_key(peer_id: str) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(peer_id_bytes(peer_id)[len(_ID_PREFIX) :])


def verify(peer_id: str, body: bytes, signature: bytes) -> bool:
    """Whether `peer_id` signed `body`. Never raises: False for a malformed id or signature."""
    try:
        _public_key(peer_id).verify(signature, body)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


# -- on disk -------------------------------------------------------------------------------------------------------------


def load_or_create(path: Path) -> Identity:
    """The identity in `path` (PKCS#8 PEM, mode 0600). If there is none, it is created, with its folder (mode 0700).

    Raises `ResourceError` if the file is a link, readable by other users, or damaged. A damaged key is never replaced, since that would
    change the node's identity.
    """
    raw = _read_private(path)
    if raw is None:
        identity = Identity.fresh()
        pem = identity._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_durably(path, pem)
        return identity
    try:
        key = load_pem_private_key(raw, password=None)
    except (ValueError, TypeError) as error:
        raise _corrupt_key(path) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _corrupt_key(path)
    return Identity(key.private_bytes_raw())


def next_incarnation(path: Path) -> int:
    """The number of this start, one more than the last; on disk before it is returned.

    Raises `ResourceError` if the file is damaged: counting from 1 again would make old fences valid.
    """
    raw = _read_private(path)
    last = 0
    if raw is not None:
        text = raw.strip()
        if not text.isdigit() or len(text) > 18:
            raise ResourceError(
                f"the incarnation counter {path} is damaged",
                hint=f"write a number larger than any earlier one into it, such as: echo 1000000 > {path}",
            )
        last = int(text)
    write_durably(path, b"%d\n" % (last + 1))
    return last + 1


def _read_private(path: Path) -> bytes | None:
    """The content of a private file; None if it does not exist."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ResourceError(
                f"{path} is a symbolic link",
                hint="put the file itself there; links are not followed for keys",
            ) from error
        raise unusable(path, error) from error
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise ResourceError(f"{path} is not a file", hint="move it away and start again")
        if _POSIX and info.st_mode & 0o077:
            raise ResourceError(f"{path} can be read by other users", hint=f"chmod 600 {path}")
        return os.read(handle, _MAX_KEY_FILE)
    finally:
        os.close(handle)


def _corrupt_key(path: Path) -> ResourceError:
    return ResourceError(
        f"the key file {path} is damaged: it holds no Ed25519 key",
        hint="restore it from a copy; or move it away, and this node starts with a new identity",
    )
