"""Yamux frames from bytes that arrive in any pieces, and the data that waits for a reader. No connection."""

from __future__ import annotations

import random

import pytest
from libp2p.stream_muxer.yamux import yamux

from swarm.p2p.frames import FrameParser, header
from swarm.p2p.muxed_stream import ReceiveBuffer

BODY = bytes(range(256)) * 3
SENT = (
    header(yamux.TYPE_WINDOW_UPDATE, yamux.FLAG_SYN, 1, 0)
    + header(yamux.TYPE_DATA, 0, 1, len(BODY))
    + BODY
    + header(yamux.TYPE_DATA, yamux.FLAG_FIN, 1, 0)
    + header(yamux.TYPE_PING, yamux.FLAG_SYN, 0, 7)
)


@pytest.mark.parametrize("longest", [1, 5, 11, 12, 13, 100, 10_000])
def test_frames_are_the_same_in_whatever_pieces_they_come(longest: int) -> None:
    rng, parser = random.Random(longest), FrameParser()
    frames, body, at = [], b"", 0
    while at < len(SENT):
        size = rng.randint(1, longest)
        for part in parser.feed(SENT[at : at + size]):
            if part.begins:
                frames.append((part.frame, 0))
            body += part.body
            if part.ends:
                frames[-1] = (part.frame, 1)
        at += size
    assert body == BODY
    assert [(frame.kind, frame.flags, frame.stream_id, frame.length) for frame, _ in frames] == [
        (yamux.TYPE_WINDOW_UPDATE, yamux.FLAG_SYN, 1, 0),
        (yamux.TYPE_DATA, 0, 1, len(BODY)),
        (yamux.TYPE_DATA, yamux.FLAG_FIN, 1, 0),
        (yamux.TYPE_PING, yamux.FLAG_SYN, 0, 7),
    ]
    assert all(ended for _, ended in frames)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 100])
def test_a_buffer_gives_its_bytes_in_order_and_never_more_than_asked(most: int) -> None:
    buffer, given = ReceiveBuffer(), b""
    for part in (b"abc", b"d", b"efghij", b"kl"):
        buffer.append(part)
    assert len(buffer) == 12
    while buffer:
        data = buffer.take(most)
        assert 1 <= len(data) <= most
        given += data
        assert len(buffer) == 12 - len(given)
    assert given == b"abcdefghijkl"
    assert buffer.take(most) == b""


def test_whole_parts_are_not_cut_where_there_is_one_that_fits() -> None:
    buffer = ReceiveBuffer()
    for part in (b"aaaa", b"bbbb", b"cccc"):
        buffer.append(part)
    assert [buffer.take(10), buffer.take(10)] == [b"aaaabbbb", b"cccc"]
