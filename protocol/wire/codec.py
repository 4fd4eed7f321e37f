"""Converts messages to bytes and back: a 4-byte length, then one canonical msgpack array `[kind, id, type, fields]`.

No I/O here. A `Decoder` holds the partial frame, so a reader may be cancelled between two reads and continue later. Whatever the input, the
only error raised is `RemoteProtocolError`, and nothing above the caps is ever buffered.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgpack
from pydantic import ValidationError

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.wire.base import MAX_DEPTH, MAX_ELEMENTS, MAX_FRAME, Message
from protocol.wire.busy import Busy

M = TypeVar("M", bound=Message)

PREFIX: Final = 4


class FrameKind(StrEnum):
    """A call needs exactly one answer with its id; a note needs none."""

    CALL = "c"
    ANSWER = "a"
    NOTE = "n"


_KINDS: Final = {str(kind): kind for kind in FrameKind}


@dataclass(frozen=True, slots=True)
class Frame:
    """One message on a link. `id` pairs an answer with its call; 0 for notes."""

    kind: FrameKind
    id: int
    message: Message
    size: int = field(default=0, compare=False)
    """Number of bytes it was decoded from."""


def pack(value: Any) -> bytes:
    """Canonical msgpack of plain values, which is signed, hashed and sent."""
    packed: Any = msgpack.packb(value, use_bin_type=True)
    return bytes(packed)


def unpack(data: bytes, *, max_elements: int = MAX_ELEMENTS, max_bytes: int = MAX_FRAME) -> Any:
    """Plain values from canonical msgpack, within the caps; arrays become tuples. Raises `RemoteProtocolError`."""
    if len(data) > max_bytes:
        raise RemoteProtocolError(f"{len(data)} bytes where at most {max_bytes} are allowed")
    try:
        value = msgpack.unpackb(
            data,
            use_list=False,
            raw=False,
            strict_map_key=True,
            max_array_len=max_elements,
            max_map_len=max_elements,
            max_str_len=max_bytes,
            max_bin_len=max_bytes,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException, UnicodeDecodeError, RecursionError) as exc:
        raise RemoteProtocolError(f"not canonical msgpack: {type(exc).__name__}") from exc
    _bound(value, max_elements)
    try:
        again = pack(value)
    except (ValueError, OverflowError, TypeError, UnicodeEncodeError) as exc:
        raise RemoteProtocolError(f"not canonical msgpack: {type(exc).__name__}") from exc
    if again != data:
        raise RemoteProtocolError("not canonical msgpack: it packs to other bytes")
    return value


def read_value(
    kind: type[M], body: bytes, *, max_bytes: int = MAX_FRAME, max_elements: int = MAX_ELEMENTS
) -> M:
    """The value in canonical `body`, checked field by field. Raises `RemoteProtocolError`, which names the first wrong field."""
    value = unpack(body, max_bytes=max_bytes, max_elements=max_elements)
    try:
        return kind.model_validate(value)
    except ValidationError as exc:
        raise RemoteProtocolError(f"bad {kind.__name__.lower()}: {_first_wrong(exc)}") from exc


def inflate(data: bytes, limit: int, what: str) -> bytes:
    """The zlib-decompressed `data`, at most `limit` bytes. Raises `RemoteProtocolError`, which says what is wrong."""
    unzip = zlib.decompressobj()
    try:
        plain = unzip.decompress(data, limit)
    except zlib.error as exc:
        raise RemoteProtocolError(f"bad {what}: not compressed data") from exc
    if not unzip.eof or unzip.unused_data:
        raise RemoteProtocolError(f"bad {what}: too long or cut off")
    return plain


def _first_wrong(exc: ValidationError) -> str:
    first = exc.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def _bound(value: Any, max_elements: int = MAX_ELEMENTS) -> None:
    """Refuse too many or too deeply nested containers. Works level by level, so that depth costs no stack."""
    observed, depth, level = 0, 0, [value]
    while containers := [item for item in level if isinstance(item, (dict, tuple))]:
        if depth >= MAX_DEPTH:
            raise RemoteProtocolError(f"nested deeper than {MAX_DEPTH}")
        depth, observed = depth + 1, observed + sum(map(len, containers))
        if observed > max_elements:
            raise RemoteProtocolError(f"more than {max_elements} elements")
        level = [one for item in containers for one in (item.values() if isinstance(item, dict) else item)]


class Vocabulary:
    """The messages of one family of exchanges, by their `type`; `calls` and `notes`: which of them may be sent as which.

    `Busy` can answer a call in every family.
    """

    def __init__(
        self,
        *messages: type[Message],
        calls: tuple[type[Message], ...] = (),
        notes: tuple[type[Message], ...] = (),
    ) -> None:
        self.messages = messages
        self.calls = frozenset(calls)
        self.notes = frozenset(notes)
        self._by_type = {message.type: message for message in messages}
        self._by_type[Busy.type] = Busy

    def check_kind(self, frame: Frame) -> None:
        """Raise `RemoteProtocolError` for a call sent as a note, and for a note or an answer sent as a call."""
        if frame.kind is FrameKind.ANSWER:
            return
        if type(frame.message) not in (self.calls if frame.kind is FrameKind.CALL else self.notes):
            raise RemoteProtocolError(f"a {frame.message.type} is no {frame.kind.name.lower()}")

    def encode(self, frame: Frame) -> bytes:
        """Prefix and body. Raises `LocalProtocolError` for a message of another family, or above the cap."""
        name, fields = frame.message.type, frame.message.to_wire()
        if name not in self._by_type:
            raise LocalProtocolError(f"{type(frame.message).__name__} is not a message of this protocol")
        try:
            _bound((str(frame.kind), frame.id, name, fields))
        except RemoteProtocolError as exc:  # the peer would refuse it, so refuse it here
            raise LocalProtocolError(f"a {name} is {exc.what}") from None
        body = pack([str(frame.kind), frame.id, name, fields])
        if len(body) > MAX_FRAME:
            raise LocalProtocolError(f"a {name} of {len(body)} bytes is above the cap of {MAX_FRAME}")
        return len(body).to_bytes(PREFIX, "big") + body

    def decode(self, body: bytes) -> Frame:
        """One frame from its body. Raises only `RemoteProtocolError`."""
        value = unpack(body)
        match value:
            case (str(kind), int(id_), str(name), dict(fields)) if not isinstance(id_, bool):
                pass
            case _:
                raise RemoteProtocolError("a frame is [kind, id, type, fields]")
        message_class = self._by_type.get(name)
        if message_class is None:
            raise RemoteProtocolError(f"no message of type {name[:40]!r} in this protocol")
        known = _KINDS.get(kind)
        if known is None or not 0 <= id_ < 2**32 or (known is FrameKind.NOTE) != (id_ == 0):
            raise RemoteProtocolError(f"bad kind or id of a {name}")
        try:
            message = message_class.model_validate(fields)
        except ValidationError as exc:
            raise RemoteProtocolError(f"bad {name}: {_first_wrong(exc)}") from exc
        return Frame(known, id_, message, len(body))


class Decoder:
    """Turns bytes into frames, each decoded on request: a read of many tiny frames stays bytes until there is time for them.

    Raises `RemoteProtocolError` once; must not be used afterwards.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def next(self) -> Frame | None:
        """The next complete frame, in order; None if more bytes are needed."""
        if len(self._buffer) < PREFIX:
            return None
        size = int.from_bytes(self._buffer[:PREFIX], "big")
        if size > MAX_FRAME:
            raise RemoteProtocolError(f"a frame of {size} bytes is above the cap of {MAX_FRAME}")
        end = PREFIX + size
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[PREFIX:end])
        del self._buffer[:end]
        return self._vocabulary.decode(body)

    @property
    def held(self) -> int:
        """Bytes that are not decoded yet."""
        return len(self._buffer)

    @property
    def partial(self) -> bool:
        """Whether the stream would end in the middle of a frame if it ended now. Valid when `next` has returned None."""
        return bool(self._buffer)
