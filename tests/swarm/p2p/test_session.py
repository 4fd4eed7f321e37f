"""Our Noise session against libp2p's own, over an in-memory pipe: the same bytes, many at once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import trio
import trio.testing
from libp2p.abc import ISecureConn
from libp2p.connection_types import ConnectionType
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as new_noise_keys
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.network.connection.exceptions import RawConnError
from libp2p.peer.id import ID
from libp2p.security.noise.transport import Transport

from swarm.p2p.session import MAX_PLAINTEXT, READ, BatchSession

TEXT = bytes(range(256)) * 1024


class Raw:
    """An in-memory connection that counts writes and can alter what arrives."""

    def __init__(self, stream: trio.abc.Stream, initiator: bool) -> None:
        self._stream, self.is_initiator = stream, initiator
        self.writes: list[int] = []
        self.reads = 0
        self.spoil = False

    async def read(self, n: int | None = None) -> bytes:
        self.reads += 1
        data = bytes(await self._stream.receive_some(n))
        return bytes([data[0], data[1], data[2] ^ 1]) + data[3:] if self.spoil and data else data

    async def write(self, data: bytes) -> None:
        self.writes.append(len(data))
        await self._stream.send_all(data)

    async def close(self) -> None:
        await self._stream.aclose()

    def get_connection_type(self) -> ConnectionType:
        return ConnectionType.DIRECT


@dataclass
class Ends:
    """Both ends of a session, as libp2p created them, and the connection below them."""

    ours: ISecureConn
    theirs: ISecureConn
    below: Raw


async def shake_hands() -> Ends:
    a, b = trio.testing.memory_stream_pair()
    keys = [create_new_key_pair(bytes([number]) * 32) for number in (1, 2)]
    ours, theirs = (Transport(each, noise_privkey=new_noise_keys().private_key) for each in keys)
    below, sessions = Raw(a, True), list[ISecureConn]()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer() -> None:
            sessions.append(await theirs.secure_inbound(Raw(b, False)))  # type: ignore[arg-type]

        mine = await ours.secure_outbound(below, ID.from_pubkey(keys[1].public_key))  # type: ignore[arg-type]
    return Ends(mine, sessions[0], below)


async def all_of(session: ISecureConn, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await session.read(size - len(data))
    return data


@pytest.mark.parametrize("size", [1, MAX_PLAINTEXT, MAX_PLAINTEXT + 1, len(TEXT)])
async def test_libp2ps_session_and_ours_understand_each_other(size: int) -> None:
    ends = await shake_hands()
    ours = BatchSession(ends.ours)
    assert str(ours.get_remote_peer()) == str(ends.theirs.get_local_peer())
    for sender, taker in ((ours, ends.theirs), (ends.theirs, ours), (ours, ends.theirs)):
        await sender.write(TEXT[:size])
        assert await all_of(taker, size) == TEXT[:size]


async def test_many_messages_are_written_and_read_at_once() -> None:
    ends = await shake_hands()
    ours = BatchSession(ends.ours)
    ends.below.writes.clear()
    await ours.write(TEXT[: 3 * MAX_PLAINTEXT])
    assert ends.below.writes == [3 * (MAX_PLAINTEXT + 18)]
    for number in range(50):
        await ends.theirs.write(bytes([number]))
    ends.below.reads = 0
    assert [await ours.read() for _ in range(50)] == [bytes([number]) for number in range(50)]
    assert ends.below.reads == 1


async def test_an_empty_message_is_no_end() -> None:
    ends = await shake_hands()
    await ends.theirs.write(b"")
    await ends.theirs.write(b"on")
    assert await BatchSession(ends.ours).read() == b"on"


async def test_a_changed_message_breaks_the_session() -> None:
    ends = await shake_hands()
    ours = BatchSession(ends.ours)
    ends.below.spoil = True
    await ends.theirs.write(b"to be changed on its way")
    with pytest.raises(RawConnError):
        await ours.read()


async def test_the_end_within_a_message_is_an_end() -> None:
    ends = await shake_hands()
    ours = BatchSession(ends.ours)
    await ends.theirs.conn.read_writer.read_write_closer.write(b"\xff\xff" + bytes(READ // 8))  # type: ignore[attr-defined]
    await ends.theirs.close()
    with pytest.raises(ConnectionClosedError):
        await ours.read()


async def test_a_reader_that_is_cancelled_has_taken_nothing() -> None:
    ends = await shake_hands()
    ours = BatchSession(ends.ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.read)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await ends.theirs.write(b"still there")
    assert await ours.read() == b"still there"


def test_a_session_that_is_not_libp2ps_is_refused() -> None:
    with pytest.raises(TypeError, match="not a Noise session"):
        BatchSession(object())  # type: ignore[arg-type]
