"""Frames of every message of every family, and odd frames derived from them. Pure: the randomness is an argument."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgpack

from protocol.messages.blobs import BLOB
from protocol.messages.gate import GATE
from protocol.messages.health import HEALTH
from protocol.messages.index import INDEX
from protocol.messages.pool import POOL
from protocol.messages.reach import REACH
from protocol.messages.work import WORK
from protocol.wire.base import Message
from protocol.wire.codec import PREFIX, Frame, FrameKind, Vocabulary, pack
from protocol.words import ProtocolId
from tests.protocol.messages.test_index import LARGEST
from tests.protocol.wire.test_codec import EVERY

FAMILIES: Final[dict[ProtocolId, Vocabulary]] = {
    ProtocolId.INDEX: INDEX,
    ProtocolId.WORK: WORK,
    ProtocolId.BLOB: BLOB,
    ProtocolId.HEALTH: HEALTH,
    ProtocolId.POOL: POOL,
    ProtocolId.REACH: REACH,
    ProtocolId.GATE: GATE,
}
ODD: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**53 + 1,
        2**64 - 1,
        -(2**63),
        0.5,
        -0.0,
        1e308,
        float("inf"),
        float("nan"),
    ),
    *(
        "",
        " ",
        "\x00",
        "\x1b[2J",
        "‮x",
        "a" * 300,
        "é" * 2000,
        "../../etc/passwd",
        "1" * 52,
        "/ip4/127.0.0.1/tcp/1",
    ),
    *(
        b"",
        b"\x00",
        b"\xff" * 32,
        b"\xff" * 64,
        bytes(9000),
        [],
        [[]],
        [None] * 40,
        {},
        {"": {}},
        {"a": {"a": {"a": {}}}},
    ),
)
"""Values to put where another value is expected."""


@dataclass(frozen=True)
class Example:
    """A well-formed message."""

    protocol: ProtocolId
    message: Message

    @property
    def vocabulary(self) -> Vocabulary:
        return FAMILIES[self.protocol]


@cache
def examples() -> tuple[Example, ...]:
    """At least one example of every message of every family."""
    families = {id(vocabulary): protocol for protocol, vocabulary in FAMILIES.items()}
    return (
        *(Example(families[id(vocabulary)], message) for vocabulary, message in EVERY),
        *(Example(ProtocolId.INDEX, message) for message in LARGEST),
    )


def mutated(rng: random.Random, example: Example) -> tuple[str, bytes]:
    """The name of a change, and a frame with its length prefix that contains the change."""
    notes = type(example.message) in example.vocabulary.notes
    kind = FrameKind.NOTE if notes else rng.choice((FrameKind.CALL, FrameKind.CALL, FrameKind.ANSWER))
    frame = Frame(kind, 0 if kind is FrameKind.NOTE else rng.randrange(1, 1 << 32), example.message)
    name = rng.choice(list(CHANGES))
    return name, CHANGES[name](rng, example.vocabulary.encode(frame)[PREFIX:])


def _value(rng: random.Random, body: bytes) -> bytes:
    """Replace one value anywhere in the body by an odd one, remove it, or repeat it."""
    document: Any = msgpack.unpackb(body)
    fields = document[3]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place, key = _place(rng, fields)
        if place is None:
            break
        act = rng.random()
        if act < 0.75:
            place[key] = deepcopy(rng.choice(ODD))
        elif act < 0.85 and isinstance(place, dict):
            place[str(rng.choice(ODD))[:50]] = place.pop(key)
        elif act < 0.95 and isinstance(place, list):
            place.extend([place[key]] * rng.randrange(1, 30))
        else:
            del place[key]
    return _prefixed(pack(document))


def _place(rng: random.Random, value: Any) -> tuple[Any, Any]:
    places = []
    todo = [value]
    while todo:
        item = todo.pop()
        keys = (
            list(item) if isinstance(item, dict) else list(range(len(item))) if isinstance(item, list) else []
        )
        places += [(item, key) for key in keys]
        todo += [item[key] for key in keys]
    return rng.choice(places) if places else (None, None)


def _head(rng: random.Random, body: bytes) -> bytes:
    """Change the kind, number or name: a call as a note, or the name of another message."""
    document: Any = msgpack.unpackb(body)
    at = rng.randrange(3)
    names = [example.message.type for example in examples()]
    document[at] = (
        rng.choice(("c", "a", "n", "x", 1)),
        rng.choice((0, 1, 2**32, -1, True, "1")),
        rng.choice(names),
    )[at]
    return _prefixed(pack(document))


def _swapped(rng: random.Random, body: bytes) -> bytes:
    """Send the fields of one message under the name of another."""
    document: Any = msgpack.unpackb(body)
    document[3] = rng.choice(examples()).message.to_wire()
    return _prefixed(pack(document))


def _bits(rng: random.Random, body: bytes) -> bytes:
    data = bytearray(body)
    for _ in range(rng.choice((1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return _prefixed(bytes(data))


def _cut(rng: random.Random, body: bytes) -> bytes:
    return _prefixed(body[: rng.randrange(len(body))])


def _spliced(rng: random.Random, body: bytes) -> bytes:
    at, junk = rng.randrange(len(body)), rng.randbytes(rng.randrange(1, 200))
    return _prefixed(body[:at] + junk + body[at + rng.choice((0, len(junk))) :])


def _length(rng: random.Random, body: bytes) -> bytes:
    """Write a wrong length prefix."""
    length = rng.choice((0, 1, len(body) - 1, len(body) + 1, 1 << 16, (1 << 16) + 1, (1 << 32) - 1))
    return length.to_bytes(PREFIX, "big") + body


def _same(rng: random.Random, body: bytes) -> bytes:
    """Change nothing. Only the moment is wrong: nobody asked."""
    return _prefixed(body)


def _prefixed(body: bytes) -> bytes:
    return len(body).to_bytes(PREFIX, "big") + body


CHANGES: Final[dict[str, Callable[[random.Random, bytes], bytes]]] = {
    "value": _value,
    "values": _value,
    "another value": _value,
    "head": _head,
    "fields of another": _swapped,
    "bits": _bits,
    "cut": _cut,
    "spliced": _spliced,
    "length": _length,
    "nothing": _same,
}


def plan(
    rng: random.Random, count: int, protocols: Sequence[ProtocolId] = tuple(FAMILIES)
) -> list[tuple[Example, str, bytes]]:
    """`count` odd frames, of every message in turn."""
    chosen = [example for example in examples() if example.protocol in protocols]
    return [(example, *mutated(rng, example)) for example in (chosen[n % len(chosen)] for n in range(count))]
