"""Attacks on one yamux connection, frame by frame, by a peer that obeys no rule. No sockets."""

from __future__ import annotations

import contextlib
import struct

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError, MuxedStreamReset
from libp2p.stream_muxer.yamux import yamux

from swarm.net.memory import MemoryAccount, MemoryLimits
from swarm.p2p.due_checks import DueChecks
from swarm.p2p.hardening import harden
from swarm.p2p.muxed_stream import MAX_WINDOW
from swarm.p2p.yamux import (
    CASUAL_PING_EVERY_S,
    CASUAL_PONG_WITHIN_S,
    MAX_BUFFERED,
    MAX_BURST,
    MAX_FRAME,
    MAX_STREAMS,
    PING_EVERY_S,
    PONG_WITHIN_S,
    QUICK_S,
)
from tests.swarm.p2p.yamux_parts import WINDOW, Rig, sent


async def test_a_peer_within_its_window_is_welcome(rig: Rig) -> None:
    await rig.pipe.open(1)
    await rig.pipe.data(1, bytes(WINDOW))
    await rig.settled()
    assert not rig.pipe.closed
    assert len(await rig.accepted[0].read(WINDOW)) == WINDOW


async def test_one_byte_more_than_the_window_ends_the_connection(rig: Rig) -> None:
    await rig.pipe.open(1)
    await rig.pipe.data(1, bytes(WINDOW))
    await rig.pipe.data(1, b"x")
    await rig.settled()
    assert rig.pipe.closed
    assert not rig.conn.stream_buffers


async def test_a_window_can_not_be_overrun_by_the_frame_that_opens_the_stream(rig: Rig) -> None:
    await rig.pipe.data(1, bytes(WINDOW + 1), flags=yamux.FLAG_SYN)
    await rig.settled()
    assert rig.pipe.closed


async def test_a_frame_larger_than_any_window_is_refused_before_it_is_read(rig: Rig) -> None:
    await rig.pipe.open(1)
    await rig.pipe.frame(
        yamux.TYPE_DATA, 0, 1, MAX_WINDOW + 1
    )  # no body follows: the header alone must be enough
    await rig.settled()
    assert rig.pipe.closed


async def test_one_connection_holds_no_more_than_8_mib_for_readers_that_do_not_come(rig: Rig) -> None:
    streams = MAX_BUFFERED // WINDOW
    for number in range(streams):
        await rig.pipe.open(2 * number + 1)
        await rig.pipe.data(2 * number + 1, bytes(WINDOW))
    await rig.settled()
    assert not rig.pipe.closed
    await rig.pipe.open(2 * streams + 1)
    await rig.pipe.data(2 * streams + 1, b"x")
    await rig.settled()
    assert rig.pipe.closed


async def test_one_connection_holds_no_more_than_512_streams(rig: Rig) -> None:
    for number in range(MAX_STREAMS):
        await rig.pipe.open(2 * number + 1)
    await rig.settled()
    assert not rig.pipe.closed
    await rig.pipe.open(2 * MAX_STREAMS + 1)
    await rig.settled()
    assert rig.pipe.closed


async def test_no_more_is_read_of_a_peer_until_a_stream_that_it_opened_had_its_turn(rig: Rig) -> None:
    turns, may = 0, trio.Event()

    async def turn() -> None:
        nonlocal turns
        turns += 1
        await may.wait()

    rig.conn.stream_turn = turn
    mine = await rig.conn.open_stream()
    await rig.pipe.frame(yamux.TYPE_WINDOW_UPDATE, yamux.FLAG_ACK, mine.stream_id, 0)
    await rig.settled()
    assert turns == 0
    for number in (1, 3, 5):
        await rig.pipe.open(number)
    await rig.settled()
    assert (len(rig.accepted), turns) == (1, 1)
    may.set()
    await rig.settled()
    assert (len(rig.accepted), turns) == (3, 3)


async def test_windows_grow_only_while_all_of_them_together_fit(rig: Rig) -> None:
    streams = 24
    for number in range(streams):
        await rig.pipe.open(2 * number + 1)
    for _ in range(12):
        for number in range(streams):
            await rig.pipe.data(2 * number + 1, bytes(WINDOW // 2))
            await rig.settled()
            await rig.accepted[number].read()
    targets = [stream.target_recv_window for stream in rig.accepted]
    assert max(targets) > WINDOW  # a fast reader does get a larger window
    assert max(targets) <= MAX_WINDOW
    assert sum(targets) <= MAX_BUFFERED


async def test_the_end_of_a_stream_may_come_with_its_acknowledgement(rig: Rig) -> None:
    """Yamux allows it, but libp2p's loop does not see it, and the reader waits forever."""
    stream = await rig.conn.open_stream()
    await rig.pipe.data(stream.stream_id, b"that is all", flags=yamux.FLAG_ACK | yamux.FLAG_FIN)
    assert await stream.read(100) == b"that is all"
    with pytest.raises(MuxedStreamEOF):
        await stream.read(100)


@pytest.mark.parametrize("stream_id", [1, 2], ids=["open already", "one of ours"])
async def test_a_peer_that_opens_a_stream_that_it_may_not_loses_its_connection(
    rig: Rig, stream_id: int
) -> None:
    await rig.pipe.open(1)
    await rig.settled()
    assert not rig.pipe.closed
    await rig.pipe.open(stream_id)
    await rig.settled()
    assert rig.pipe.closed


@pytest.mark.parametrize(("version", "kind"), [(1, 0), (0, 4)])
async def test_a_peer_that_speaks_no_yamux_loses_its_connection(rig: Rig, version: int, kind: int) -> None:
    await rig.pipe._to_victim.send(struct.pack(yamux.YAMUX_HEADER_FORMAT, version, kind, 0, 1, 0))
    await rig.settled()
    assert rig.pipe.closed


async def test_what_comes_of_an_unfinished_frame_is_read_at_once(rig: Rig) -> None:
    await rig.pipe.open(1)
    await rig.pipe.frame(yamux.TYPE_DATA, 0, 1, 1000, b"the first half")
    await rig.settled()
    assert await rig.accepted[0].read(1000) == b"the first half"


async def test_a_stream_that_was_reset_within_a_frame_does_not_get_the_rest(rig: Rig) -> None:
    await rig.pipe.open(1)
    await rig.pipe.frame(yamux.TYPE_DATA, 0, 1, 8, b"half")
    await rig.settled()
    await rig.accepted[0].reset()
    await rig.pipe._to_victim.send(b"rest")
    await rig.pipe.open(3)
    await rig.settled()
    assert not rig.pipe.closed
    assert (len(rig.accepted), rig.conn.waiting()) == (2, 0)


async def test_a_writer_is_woken_when_its_stream_is_reset_by_the_peer(rig: Rig) -> None:
    stream = await rig.conn.open_stream()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def write() -> None:
            with pytest.raises(MuxedStreamError):
                await stream.write(bytes(WINDOW + 1))

        await rig.settled()
        await rig.pipe.frame(yamux.TYPE_WINDOW_UPDATE, yamux.FLAG_RST, stream.stream_id, 0)


async def test_frames_of_a_long_write_go_out_together_while_the_peer_takes_them_quickly(
    autojump_clock: trio.testing.MockClock, rig: Rig
) -> None:
    stream = await rig.conn.open_stream()
    written: list[int] = []
    slow_s = 0.0

    async def write(data: bytes) -> None:
        written.append(len(data))
        await trio.sleep(slow_s)

    rig.pipe.write = write  # type: ignore[method-assign]
    stream.send_window = 20 * MAX_FRAME
    whole = MAX_FRAME + 12
    await stream.write(bytes(7 * MAX_FRAME))
    assert written == [MAX_BURST * whole, 3 * whole]
    written.clear()
    slow_s = 2 * QUICK_S
    await stream.write(bytes(6 * MAX_FRAME))
    assert written == [MAX_BURST * whole, whole, whole]


async def test_a_stream_closed_here_is_reset_when_the_peer_sends_on(rig: Rig) -> None:
    await rig.pipe.open(1)
    await rig.settled()
    rig.accepted[0].stop()
    await rig.pipe.data(1, bytes(1000))
    await rig.settled()
    flags = []
    while True:
        try:
            flags.append(struct.unpack(yamux.YAMUX_HEADER_FORMAT, rig.pipe.replies.receive_nowait())[2])
        except trio.WouldBlock:
            break
    assert flags[-1] == yamux.FLAG_RST
    assert not rig.conn.stream_buffers


async def test_a_peer_that_sends_on_and_reads_nothing_is_reset_once(rig: Rig) -> None:
    """Otherwise each frame would start a task that waits to send a reset."""
    await rig.pipe.open(1)
    await rig.settled()
    rig.accepted[0].stop()
    rig.pipe.blocked = True
    before = trio.lowlevel.current_statistics().tasks_living
    for _ in range(500):
        await rig.pipe.data(1, b"x")
    await rig.settled()
    assert trio.lowlevel.current_statistics().tasks_living <= before + 1


async def test_all_connections_of_a_node_together_hold_so_much_and_who_holds_most_goes() -> None:
    harden()
    shared = MemoryAccount(MemoryLimits(most=4 * WINDOW))
    async with trio.open_nursery() as nursery:
        rigs = {name: Rig(nursery, shared, ID(name.encode())) for name in ("modest", "greedy", "late")}
        by_owner = {rig.conn.owner: rig.conn for rig in rigs.values()}
        shared.end = lambda peer, size: by_owner[peer].later(by_owner[peer].cut)
        modest, greedy, late = rigs.values()
        for rig, streams in ((modest, 1), (greedy, 3), (late, 1)):
            await rig.settled()
            for number in range(streams):
                await rig.pipe.open(1 + 2 * number)
                await rig.pipe.data(1 + 2 * number, bytes(WINDOW))
            await rig.settled()
        assert [rig.pipe.closed for rig in (modest, greedy, late)] == [False, True, False]
        assert shared.total == 2 * WINDOW
        assert len(await modest.accepted[0].read(WINDOW)) == WINDOW  # reading makes room
        for number in (1, 2, 3):
            await late.pipe.open(1 + 2 * number)
            await late.pipe.data(1 + 2 * number, bytes(WINDOW))
        await late.settled()
        assert not late.pipe.closed
        await late.pipe.open(11)
        await late.pipe.data(11, b"x")
        await late.settled()
        assert late.pipe.closed
        assert shared.total == 0
        nursery.cancel_scope.cancel()


async def test_an_end_within_a_frame_is_not_taken_for_the_end_of_the_stream(rig: Rig) -> None:
    await rig.pipe.open(1)
    await rig.pipe.frame(yamux.TYPE_DATA, 0, 1, 1000, b"only half")
    rig.pipe._to_victim.close()
    await rig.settled()
    with pytest.raises(MuxedStreamReset):
        await rig.accepted[0].read(1000)


async def test_what_a_finished_stream_had_received_can_be_read_after_the_connection_is_gone(rig: Rig) -> None:
    await rig.pipe.open(1)
    await rig.pipe.data(1, b"the last words", flags=yamux.FLAG_FIN)
    await rig.pipe.frame(yamux.TYPE_GO_AWAY, 0, 0, 0)
    await rig.settled()
    assert await rig.accepted[0].read(1000) == b"the last words"
    with pytest.raises(MuxedStreamEOF):
        await rig.accepted[0].read(1000)


# -- a clock that jumps: nothing here takes real time ---------------------------------------------------------------------


@pytest.mark.parametrize("how", ["watched", "expected"])
async def test_a_silent_peer_that_is_waited_for_is_given_up_within_10_seconds(
    autojump_clock: trio.testing.MockClock, rig: Rig, how: str
) -> None:
    setattr(rig.conn, how, 1)
    assert await given_up_after(rig) <= 10


async def test_a_silent_peer_that_was_sent_something_is_given_up_within_20_seconds(
    autojump_clock: trio.testing.MockClock, rig: Rig
) -> None:
    await rig.pipe.open(1)
    await trio.sleep(0.1)
    begun = trio.current_time()
    for _ in range(4):  # a node that keeps sending is answered no sooner
        await rig.accepted[0].write(b"are you there?")
        await trio.sleep(3)
    with pytest.raises(MuxedStreamReset):
        await rig.accepted[0].read(1)
    assert rig.pipe.closed
    assert trio.current_time() - begun <= 20


async def test_a_silent_peer_of_whom_nobody_wants_anything_is_given_up_within_45_seconds(
    autojump_clock: trio.testing.MockClock, rig: Rig
) -> None:
    assert 20 < await given_up_after(rig) <= 45


async def given_up_after(rig: Rig) -> float:
    """Seconds until the connection is closed while nothing arrives on an open stream."""
    await rig.pipe.open(1)
    await trio.sleep(0.1)
    begun = trio.current_time()
    with pytest.raises(MuxedStreamReset):
        await rig.accepted[0].read(1)
    assert rig.pipe.closed
    return trio.current_time() - begun


@pytest.mark.parametrize(("watched", "most"), [(True, 160), (False, 25)])
async def test_a_connection_where_nobody_waits_is_seldom_asked(
    autojump_clock: trio.testing.MockClock, rig: Rig, watched: bool, most: int
) -> None:
    rig.conn.watched = watched
    asked = 0

    async def answer() -> None:
        nonlocal asked
        async for data in rig.pipe.replies:
            _, kind, flags, _, number = struct.unpack(yamux.YAMUX_HEADER_FORMAT, data[:12])
            if kind == yamux.TYPE_PING and flags == yamux.FLAG_SYN:
                asked += 1
                await rig.pipe.frame(yamux.TYPE_PING, yamux.FLAG_ACK, 0, number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        await trio.sleep(600)
        nursery.cancel_scope.cancel()
    assert not rig.pipe.closed
    assert most / 1.5 < asked <= most


async def test_a_quiet_peer_that_answers_pings_is_kept(
    autojump_clock: trio.testing.MockClock, rig: Rig
) -> None:
    async def answer() -> None:
        async for data in rig.pipe.replies:
            _, kind, flags, _, number = struct.unpack(yamux.YAMUX_HEADER_FORMAT, data[:12])
            if kind == yamux.TYPE_PING and flags == yamux.FLAG_SYN:
                await rig.pipe.frame(yamux.TYPE_PING, yamux.FLAG_ACK, 0, number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        await trio.sleep(600)
        assert not rig.pipe.closed
        nursery.cancel_scope.cancel()


async def test_an_idle_connection_takes_one_task_and_its_node_one_for_all(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Compares 1,020 idle keys with 64 MiB."""
    harden()
    looks = DueChecks()
    async with trio.open_nursery() as nursery:
        rigs = [Rig(nursery) for _ in range(3)]
        for rig in rigs:
            rig.conn.looks = looks
        await trio.sleep(PONG_WITHIN_S + 0.1)
        for rig in rigs:
            assert rig.conn._nursery is not None
            assert len(rig.conn._nursery.child_tasks) == 1
        assert len(looks._due) == 3
        await rigs[0].conn.close()
        await trio.sleep(CASUAL_PING_EVERY_S + CASUAL_PONG_WITHIN_S + 1)
        assert all(rig.pipe.closed for rig in rigs)  # nobody answered
        await trio.sleep(PING_EVERY_S + 0.1)
        assert not looks._due
        assert not looks._running
        nursery.cancel_scope.cancel()


async def test_who_is_due_sooner_than_all_others_is_looked_at_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    looks, seen = DueChecks(), list[tuple[str, float]]()

    class Due:
        event_shutting_down = trio.Event()

        def __init__(self, name: str) -> None:
            self.name = name

        def look(self) -> None:
            seen.append((self.name, trio.current_time() - began))

    began = trio.current_time()
    looks.add(Due("late"), began + 10)
    await trio.testing.wait_all_tasks_blocked()
    looks.add(Due("soon"), began + 1)
    await trio.sleep(11)
    assert seen == [("soon", pytest.approx(1)), ("late", pytest.approx(10))]


async def test_bytes_that_nobody_reads_of_a_stream_that_ended_are_forgotten(
    autojump_clock: trio.testing.MockClock, rig: Rig
) -> None:
    await trio.sleep(1)  # libp2p takes 0 for: not closed
    await rig.pipe.open(1)
    await rig.settled()
    await rig.pipe.data(1, b"unread", yamux.FLAG_FIN)
    await rig.settled()
    await rig.accepted[0].close()
    assert rig.conn.stream_buffers
    for number in range(40):  # it keeps answering
        await rig.pipe.frame(yamux.TYPE_PING, yamux.FLAG_ACK, 0, number)
        await trio.sleep(3)
    assert not rig.pipe.closed
    assert not rig.conn.stream_buffers
    assert not rig.conn.streams


async def test_a_socket_that_takes_no_bytes_is_given_up(
    autojump_clock: trio.testing.MockClock, rig: Rig
) -> None:
    rig.pipe.blocked = True
    begun = trio.current_time()
    with pytest.raises(MuxedStreamError):
        await rig.conn.open_stream()
    assert rig.pipe.closed
    assert trio.current_time() - begun <= 10


async def test_a_node_that_ends_says_so_and_waits_for_nobody(
    autojump_clock: trio.testing.MockClock, rig: Rig
) -> None:
    stream = await rig.conn.open_stream()
    begun = trio.current_time()
    await rig.conn.leave()
    assert trio.current_time() == begun
    assert rig.pipe.closed
    frames: list[bytes] = []
    with contextlib.suppress(trio.WouldBlock):
        while True:
            frames.append(rig.pipe.replies.receive_nowait())
    assert frames[-1][1] == yamux.TYPE_GO_AWAY
    with pytest.raises(MuxedStreamError):
        await stream.read(1)


async def test_a_node_that_ends_leaves_no_socket_open_that_takes_no_bytes(
    autojump_clock: trio.testing.MockClock, rig: Rig
) -> None:
    rig.pipe.blocked = True
    with trio.move_on_after(0.6):
        await rig.conn.leave()
    assert rig.pipe.closed


async def test_a_writer_cancelled_in_the_middle_leaves_no_half_frame(
    autojump_clock: trio.testing.MockClock, rig: Rig
) -> None:
    stream = await rig.conn.open_stream()
    release = trio.Event()
    plain_write = rig.pipe.write
    whole: list[bytes] = []

    async def slow_write(data: bytes) -> None:
        whole.append(data[:6])
        await release.wait()
        whole.append(data[6:])
        await plain_write(data)

    rig.pipe.write = slow_write  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1) as scope:
            nursery.start_soon(_set_after, release, 2)
            await stream.write(b"hello")
    assert scope.cancelled_caught or scope.cancel_called
    assert b"".join(whole)[12:] == b"hello"
    assert not rig.pipe.closed


async def _set_after(event: trio.Event, seconds: float) -> None:
    await trio.sleep(seconds)
    event.set()


async def test_what_waits_on_circuits_is_bounded_by_their_own_windows(rig: Rig) -> None:
    streams = MAX_BUFFERED // WINDOW + 4
    for number in range(streams):
        await rig.pipe.open(2 * number + 1)
        await rig.settled()
        rig.conn.carry(rig.accepted[-1])
        await rig.pipe.data(2 * number + 1, bytes(WINDOW))
    await rig.settled()
    assert not rig.pipe.closed  # 9 MiB wait: their gate relays this many circuits and no more
    await rig.pipe.data(1, b"x")
    await rig.settled()
    assert rig.pipe.closed


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("flag", [yamux.FLAG_FIN, yamux.FLAG_RST])
async def test_the_end_of_a_stream_is_said_once_however_long_it_takes(
    rig: Rig, autojump_clock: trio.testing.MockClock, flag: int, others: bool
) -> None:
    stream, other = await rig.conn.open_stream(), await rig.conn.open_stream()
    plain = rig.pipe.write

    async def slow(data: bytes) -> None:
        await trio.sleep(3)
        await plain(data)

    rig.pipe.write = slow  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        if others:
            nursery.start_soon(other.write, b"what keeps the socket")
            await rig.settled()
        with trio.move_on_after(1):
            await (stream.close() if flag == yamux.FLAG_FIN else stream.reset())
    await trio.sleep(10)
    frames = [struct.unpack(yamux.YAMUX_HEADER_FORMAT, each[:12]) for each in sent(rig)]
    assert frames.count((0, yamux.TYPE_WINDOW_UPDATE, flag, stream.stream_id, 0)) == 1
    assert (stream.stream_id in rig.conn.streams) == (flag == yamux.FLAG_FIN)


async def test_a_writer_that_waits_for_room_is_reset_when_nobody_reads_any_more(rig: Rig) -> None:
    await rig.pipe.open(1)
    await rig.pipe.data(1, bytes(WINDOW))
    await rig.settled()
    sent(rig)
    rig.accepted[0].stop()
    await rig.accepted[0].close()
    assert struct.unpack(yamux.YAMUX_HEADER_FORMAT, sent(rig)[0])[2] == yamux.FLAG_RST
    assert not rig.conn.streams


async def test_what_was_to_be_done_later_is_left_when_the_connection_ends(rig: Rig) -> None:
    async with trio.open_nursery() as rig.conn._nursery:
        pass
    rig.conn.later(rig.conn.cut)
    await rig.settled()
    assert not rig.pipe.closed


@pytest.mark.parametrize("flag", [yamux.FLAG_FIN, yamux.FLAG_RST])
async def test_a_stream_that_both_have_ended_is_gone_whatever_was_not_read(rig: Rig, flag: int) -> None:
    await rig.pipe.open(1)
    await rig.pipe.data(1, b"not read")
    await rig.pipe.frame(yamux.TYPE_WINDOW_UPDATE, flag, 1, 0)
    await rig.settled()
    rig.accepted[0].stop()
    await rig.accepted[0].close()
    assert (dict(rig.conn.streams), rig.conn.waiting()) == ({}, 0)
