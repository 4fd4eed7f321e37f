"""Odd frames through the decoders: every one becomes a message that packs to the same bytes, or a `RemoteProtocolError`."""

from __future__ import annotations

import random
from collections import Counter

from protocol.errors import RemoteProtocolError
from protocol.values.advert import read_advert
from protocol.values.record import read_record
from protocol.values.task import read_task
from protocol.wire.codec import Decoder, Frame, Vocabulary
from tests.fuzz.mutations import plan


def fuzz_decoders(rng: random.Random, count: int) -> tuple[Counter[str], list[str]]:
    """Outcome → number of frames; and the unexpected errors, with the frames' bytes."""
    outcomes: Counter[str] = Counter()
    strays: list[str] = []
    for example, change, data in plan(rng, count):
        try:
            outcomes[decode(example.vocabulary, data)] += 1
        except Exception as exc:  # noqa: BLE001 - that there is none is what is shown
            strays.append(f"{example.message.type}, {change}: {exc!r}: {data.hex()[:400]}")
    return outcomes, strays


def decode(vocabulary: Vocabulary, data: bytes) -> str:
    """The outcome of a frame for a reader."""
    decoder = Decoder(vocabulary)
    try:
        for at in range(0, len(data), 4096):
            decoder.feed(data[at : at + 4096])
        frames = list(iter(decoder.next, None))
    except RemoteProtocolError:
        return "refused"
    for frame in frames:
        _inner(frame)
        try:
            vocabulary.check_kind(frame)
        except RemoteProtocolError:
            return "refused as a kind"
        again = Decoder(vocabulary)
        again.feed(vocabulary.encode(frame))
        assert again.next() == frame, "it does not come back as it was"
    return "read" if frames else "waits for more"


def _inner(frame: Frame) -> None:
    """Decode the values that travel packed inside a message."""
    for value in frame.message.to_wire().values():
        if isinstance(value, bytes):
            for read in (read_task, read_record, read_advert):
                try:
                    read(value)
                except RemoteProtocolError:
                    continue
