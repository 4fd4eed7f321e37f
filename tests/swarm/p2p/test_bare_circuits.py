"""Circuits on one yamux connection: sealed end to end, and not once more on the way. Frame by frame, against a peer, and somebody on the
way, who are not bound by any rule. No sockets."""

from __future__ import annotations

import struct

import pytest
import trio
import trio.testing
from libp2p.stream_muxer.exceptions import MuxedStreamEOF
from libp2p.stream_muxer.yamux import yamux

from swarm.p2p.muxed_stream import PatientStream
from swarm.p2p.yamux import (
    LATE_S,
    MAX_FRAME,
    PING_EVERY_S,
    PONG_WITHIN_S,
)
from tests.swarm.p2p.yamux_parts import WINDOW, Rig


async def circuit(rig: Rig, *, taken: bool = True) -> PatientStream:
    """A stream of the victim's that carries a circuit. `taken`: what comes bare is read."""
    stream = await rig.conn.open_stream()
    stream.expects_bare = rig.conn.had_circuits = True
    stream.takes_bare = taken
    return stream


async def ended_circuit(rig: Rig, unread: bytes) -> PatientStream:
    """One that was reset here, with bytes that nobody had read."""
    stream = await circuit(rig)
    if unread:
        await rig.pipe.bare_frame(stream.stream_id, unread)
        await rig.settled()
    await stream.reset()
    return stream


async def test_what_came_sealed_is_read_first_and_by_itself(rig: Rig) -> None:
    stream = await circuit(rig)
    await rig.pipe.data(stream.stream_id, b"sealed")
    await rig.pipe.bare_frame(stream.stream_id, b"bare")
    await rig.settled()
    assert (await stream.read(), stream.went_bare) == (b"sealed", False)
    assert (await stream.read(), stream.went_bare) == (b"bare", True)
    assert stream.recv_window == WINDOW - len(b"sealed" + b"bare")


async def test_nobody_on_the_way_answers_for_the_peer(rig: Rig) -> None:
    stream = await circuit(rig, taken=False)
    await rig.pipe.bare_frame(stream.stream_id, b"yes, and you are seen at my address")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.read)
        await rig.settled()
        assert not stream.went_bare
        nursery.cancel_scope.cancel()
    stream.takes_bare = True
    assert await stream.read() == b"yes, and you are seen at my address"


async def test_nobody_on_the_way_answers_for_a_peer_that_has_gone(rig: Rig) -> None:
    stream = await circuit(rig, taken=False)
    await rig.pipe.bare_frame(stream.stream_id, b"slipped in")
    await rig.pipe.frame(yamux.TYPE_WINDOW_UPDATE, yamux.FLAG_FIN, stream.stream_id, 0)
    rig.pipe._to_victim.close()
    await rig.settled()
    with pytest.raises(MuxedStreamEOF):
        await stream.read()


async def test_sealed_bytes_that_come_after_what_is_kept_end_the_connection(rig: Rig) -> None:
    stream = await circuit(rig, taken=False)
    await rig.pipe.bare_frame(stream.stream_id, b"slipped in before the answer")
    await rig.pipe.data(stream.stream_id, b"the answer")
    await rig.settled()
    assert rig.pipe.closed


@pytest.mark.parametrize("circuits", [False, True])
async def test_a_stream_that_is_no_circuit_takes_nothing_bare(rig: Rig, circuits: bool) -> None:
    rig.conn.had_circuits = circuits
    await rig.pipe.open(1)
    await rig.pipe.bare_frame(1, b"slipped in")
    await rig.settled()
    assert rig.pipe.closed


async def test_a_connection_without_circuits_takes_nothing_bare(rig: Rig) -> None:
    await rig.pipe.bare_frame(4242, b"x")
    await rig.settled()
    assert rig.pipe.closed


@pytest.mark.parametrize(
    ("body", "flags", "length"),
    [
        (b"x", yamux.FLAG_FIN, None),
        (b"x", yamux.FLAG_RST, None),
        (b"x", yamux.FLAG_SYN, None),
        (b"x", 0, 2),
        (b"xy", 0, 1),
        (b"", 0, 0),
    ],
)
async def test_only_whole_data_goes_bare(rig: Rig, body: bytes, flags: int, length: int | None) -> None:
    stream = await circuit(rig)
    await rig.pipe.bare_frame(stream.stream_id, body, flags, length)
    await rig.settled()
    assert rig.pipe.closed


async def test_bare_bytes_have_the_same_window(rig: Rig) -> None:
    stream = await circuit(rig)
    await rig.pipe.bare_frame(stream.stream_id, bytes(WINDOW))
    await rig.settled()
    assert not rig.pipe.closed
    await rig.pipe.bare_frame(stream.stream_id, b"x")
    await rig.settled()
    assert rig.pipe.closed


async def test_nothing_bare_comes_within_a_sealed_frame(rig: Rig) -> None:
    """Whose window was looked at when it began."""
    stream = await circuit(rig)
    await rig.pipe.frame(yamux.TYPE_DATA, 0, stream.stream_id, WINDOW, bytes(WINDOW - 1))
    await rig.pipe.bare_frame(stream.stream_id, b"x")
    await rig.settled()
    assert rig.pipe.closed


async def test_nothing_bare_comes_after_the_end(rig: Rig) -> None:
    stream = await circuit(rig)
    await rig.pipe.data(stream.stream_id, b"end", yamux.FLAG_FIN)
    await rig.pipe.bare_frame(stream.stream_id, b"after the end")
    await rig.settled()
    assert rig.pipe.closed


@pytest.mark.parametrize("unread", [b"", b"not yet read"])
async def test_bare_bytes_of_a_stream_that_has_ended_are_dropped(rig: Rig, unread: bytes) -> None:
    stream = await ended_circuit(rig, unread)
    await rig.pipe.bare_frame(stream.stream_id, b"on their way")
    await rig.settled()
    assert not rig.pipe.closed
    assert rig.conn.waiting() == 0


async def test_bare_bytes_that_were_on_their_way_hold_up_the_pong_behind_them(
    rig: Rig, autojump_clock: trio.testing.MockClock
) -> None:
    await ended_circuit(rig, b"")
    rig.conn.watched = True
    began = trio.current_time()
    with trio.move_on_after(60):
        while not rig.pipe.closed:
            await rig.pipe.bare_frame(2, bytes(MAX_FRAME))
            await trio.sleep(1)
    assert LATE_S < trio.current_time() - began < LATE_S + PING_EVERY_S + PONG_WITHIN_S + 2


@pytest.mark.parametrize("unread", [b"", b"not yet read"])
async def test_what_came_bare_of_a_stream_that_has_ended_is_no_sign_of_life(
    rig: Rig, autojump_clock: trio.testing.MockClock, unread: bytes
) -> None:
    stream = await ended_circuit(rig, unread)
    rig.conn.watched = True
    with trio.move_on_after(60):
        while not rig.pipe.closed:
            await rig.pipe.bare_frame(stream.stream_id, b"x")
            await trio.sleep(1)
    assert rig.pipe.closed


async def test_a_circuit_is_sent_bare_in_whole_frames_and_ends_sealed(rig: Rig) -> None:
    stream = await circuit(rig)
    stream.sends_bare = True
    before = rig.pipe.replies.statistics().current_buffer_used
    await stream.write(bytes(2 * MAX_FRAME))
    heads = [struct.unpack(yamux.YAMUX_HEADER_FORMAT, head) for head in rig.pipe.bare[::2]]
    assert [head[-2:] for head in heads] == 2 * [(stream.stream_id, MAX_FRAME)]
    assert rig.pipe.replies.statistics().current_buffer_used == before
    await stream.close()
    assert rig.pipe.replies.statistics().current_buffer_used == before + 1
