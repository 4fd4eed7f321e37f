"""A Noise session that reads and writes many messages at once.

libp2p's session reads a message's two length bytes, then the message, copies that four times, and writes each message separately, which is
much of the cost of a transfer. The bytes on the wire are the same.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final, cast

from cryptography.exceptions import InvalidTag
from libp2p.abc import IRawConnection, ISecureConn
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.network.connection.exceptions import RawConnError
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH, NoiseTransportReadWriter
from libp2p.security.secure_session import SecureSession

MAX_PLAINTEXT: Final[int] = MAX_PLAINTEXT_LENGTH
"""Most bytes that one message carries."""
READ: Final = 256 * 1024
"""Bytes requested from the socket at once: four messages of the largest size."""
PREFIX: Final = 2
"""Bytes of the length before each message."""
FRAME_HEADER: Final = 12
"""Bytes of a yamux header."""


class CarriedConnection(IRawConnection):
    """A raw connection carried by another connection."""

    @abstractmethod
    def secured(self) -> None:
        """Record that Noise's handshake on the connection is over."""


class BatchSession(SecureSession):
    """A libp2p session, used after its handshake."""

    def __init__(self, session: ISecureConn, raw: IRawConnection | None = None) -> None:
        """`raw`: the connection on which the session continues; None: that of the handshake."""
        if not isinstance(session, SecureSession) or not isinstance(session.conn, NoiseTransportReadWriter):
            raise TypeError(f"{type(session).__name__} is not a Noise session of libp2p")
        super().__init__(
            local_peer=session.local_peer,
            local_private_key=session.local_private_key,
            remote_peer=session.remote_peer,
            remote_permanent_pubkey=session.remote_permanent_pubkey,
            is_initiator=session.is_initiator,
            conn=session.conn,
        )
        if raw is not None:
            session.conn.conn, session.conn.read_writer.read_write_closer = raw, cast(ReadWriteCloser, raw)
        self._raw = cast(IRawConnection, session.conn.read_writer.read_write_closer)
        noise: Any = session.conn.noise_state.noise_protocol
        self._seal, self._open = noise.cipher_state_encrypt, noise.cipher_state_decrypt
        self._sealed = b""
        """Bytes read from the socket; messages before `_at` have been opened."""
        self._at = 0
        self._plain = b""
        """The unread rest of an opened message."""

    async def read(self, n: int | None = None) -> bytes:
        """Between 1 and `n` bytes, or a whole message. Raises ConnectionClosedError at the end, and RawConnError for an invalid message."""
        if n == 0:
            return b""
        while not self._plain:
            self._plain = await self._next()
        data, self._plain = (
            (self._plain, b"") if n is None or n >= len(self._plain) else (self._plain[:n], self._plain[n:])
        )
        return data

    async def _next(self) -> bytes:
        """The next message; no checkpoint if it is here already."""
        while True:
            start = self._at + PREFIX
            end = start + int.from_bytes(self._sealed[start - PREFIX : start], "big")
            if start <= len(self._sealed) and end <= len(self._sealed):
                self._at = end
                try:
                    return cast(bytes, self._open.decrypt_with_ad(None, memoryview(self._sealed)[start:end]))
                except InvalidTag as error:
                    raise RawConnError("a message that is not sealed with the session's key") from error
            more = await self._raw.read(READ)
            if not more:
                raise ConnectionClosedError("the peer closed the connection")
            self._sealed, self._at = self._sealed[self._at :] + more, 0

    async def write(self, data: bytes) -> None:
        """Send `data` in messages of the largest size, all at once. Must not be cancelled: a partial write garbles the session."""
        parts: list[bytes] = []
        view = memoryview(data)
        for start in range(0, len(view), MAX_PLAINTEXT):
            sealed: bytes = self._seal.encrypt_with_ad(None, view[start : start + MAX_PLAINTEXT])
            parts += (len(sealed).to_bytes(PREFIX, "big"), sealed)
        await self._raw.write(b"".join(parts))
