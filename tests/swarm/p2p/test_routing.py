"""What one peer may ask of the routing table on one stream, on a clock that jumps."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.network.stream.exceptions import StreamEOF, StreamReset
from libp2p.utils.varint import encode_uvarint

from swarm.p2p.routing import MAX_MESSAGES, MESSAGE_WITHIN_S, QueryStream


def find_node() -> bytes:
    body = Message(type=Message.FIND_NODE, key=bytes(34)).SerializeToString()
    return encode_uvarint(len(body)) + body


class Peer:
    """Gives `data`, in pieces of at most `step` bytes with `pause_s` before each, and then ends or falls silent."""

    def __init__(self, data: bytes, *, step: int = 1000, pause_s: float = 0.0, ends: bool = False) -> None:
        self._data, self._step, self._pause_s, self._ends = data, step, pause_s, ends

    async def read(self, n: int | None = None) -> bytes:
        await trio.sleep(self._pause_s)
        if not self._data:
            if self._ends:
                raise StreamEOF
            await trio.sleep_forever()
        size = min(n or self._step, self._step)
        part, self._data = self._data[:size], self._data[size:]
        return part


def guarded(peer: Peer) -> QueryStream:
    return QueryStream(cast(Any, peer))


async def read_messages(stream: QueryStream, count: int) -> None:
    left = count * len(find_node())
    while left:
        left -= len(await stream.read(left))


async def test_messages_come_through_whole_and_the_end_is_quiet() -> None:
    stream = guarded(Peer(find_node() * 3, step=7, ends=True))
    await read_messages(stream, 3)
    assert await stream.read(1) == b""


async def test_an_idle_peer_is_dropped_after_its_deadline(autojump_clock: trio.testing.MockClock) -> None:
    stream = guarded(Peer(find_node()))
    await read_messages(stream, 1)
    begun = trio.current_time()
    with pytest.raises(StreamReset):
        await stream.read(1)
    assert trio.current_time() - begun == pytest.approx(MESSAGE_WITHIN_S)


async def test_a_peer_that_trickles_bytes_is_dropped_too(autojump_clock: trio.testing.MockClock) -> None:
    stream = guarded(Peer(find_node(), step=1, pause_s=1.0))
    begun = trio.current_time()
    with pytest.raises(StreamReset):
        await stream.read(1)
    assert trio.current_time() - begun == pytest.approx(MESSAGE_WITHIN_S)


async def test_one_stream_asks_at_most_64_times() -> None:
    stream = guarded(Peer(find_node() * (MAX_MESSAGES + 1)))
    await read_messages(stream, MAX_MESSAGES)
    with pytest.raises(StreamReset):
        await stream.read(1)


@pytest.mark.parametrize(
    "data", [b"\xff" * 12, encode_uvarint(1 << 20), encode_uvarint(3) + b"\xff\xff\xff", find_node()[:-1]]
)
async def test_what_is_no_message_ends_the_stream(data: bytes) -> None:
    stream = guarded(Peer(data, ends=True))
    with pytest.raises(StreamReset):
        await stream.read(1)
