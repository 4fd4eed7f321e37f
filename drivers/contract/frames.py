"""The messages between a child and its parent: frames of JSON over a pipe.

The child runs other people's models, so the parent trusts nothing it sends: there is no pickle, this module bounds every frame, and
`drivers.launch.events` checks every field before it makes an event. `json` is fast enough: a launch sends a few dozen frames.

    frame = 4 bytes length, big endian │ LoadReport {"load_ns": 1, …}
"""

from __future__ import annotations

import array
import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Final

from drivers.contract.base import (
    FAILURES,
    MAX_TEXT,
    Crashed,
    DriverError,
    Event,
    Limits,
    SampleModel,
    UnitInfo,
    WorkOrder,
)

HEADER_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 32 * 1024 * 1024
"""Enough for two million samples."""
MAX_FDS: Final = 4
"""Most file descriptors of one request."""
MAX_READ: Final = 65_536
"""Most bytes that one `recv` asks for."""
TURN, NO_MORE_TURNS = b"1", b"0"
"""The byte that a parent writes for each turn, and the byte after the last turn where the pipe stays open."""
TO_PREPARE, NOTHING_TO_PREPARE = b"1", b"0"
"""A zygote's answers to an empty request without a lock: whether it would prepare a launch if it had the lock."""
FAILURE: Final = "Failure"
"""Sent in place of an event's name: an error's name and its message follow."""


class Garbled(Exception):
    """A child sent something that is not an event."""


def frame(payload: bytes) -> bytes:
    """Prefix the payload with its length."""
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


def pack_event(event: Event | UnitInfo | SampleModel) -> bytes:
    """One event as a complete frame."""
    return frame(f"{type(event).__name__} {json.dumps(asdict(event))}".encode())


def pack_failure(error: DriverError) -> bytes:
    """An error as a complete frame."""
    name = next((name for name, kind in FAILURES.items() if isinstance(error, kind)), Crashed.__name__)
    return frame(f"{FAILURE} {json.dumps([name, str(error)[:MAX_TEXT]])}".encode())


def pack_order(order: WorkOrder, limits: Limits, driver: str, simulate: bool, job: str) -> bytes:
    """The order of a launch. `job`: a `MeasureJob`."""
    fields = {
        "order": asdict(order),
        "limits": asdict(limits),
        "driver": driver,
        "simulate": simulate,
        "job": job,
    }
    return json.dumps(fields).encode()


def unpack_order(packed: bytes) -> tuple[WorkOrder, Limits, str, bool, str]:
    """The inverse of `pack_order`, used in the child, which trusts its parent."""
    fields = json.loads(packed)
    order, limits = WorkOrder(**fields["order"]), Limits(**fields["limits"])
    order = replace(
        order,  # JSON makes lists of these
        pre=tuple(order.pre),
        post=tuple(order.post),
        beside=tuple(order.beside),
        own_dims=tuple(order.own_dims),
        beside_units=tuple(order.beside_units),
    )
    return order, limits, fields["driver"], fields["simulate"], fields["job"]


def send_request(to: socket.socket, payload: bytes, fds: Sequence[int]) -> None:
    """Send one launch: its folder and order, and file descriptors: the control socket, the pipe for events, the log, and the reading end of
    the token pipe for a model that takes turns with those of other processes. Raises OSError."""
    message = frame(payload)
    sent = socket.send_fds(to, [message], fds)
    to.sendall(message[sent:])


def receive_request(control: socket.socket) -> tuple[bytes, list[int]] | None:
    """Receive what `send_request` sent; None: the sender is gone."""
    room = socket.CMSG_LEN(MAX_FDS * array.array("i").itemsize)
    head, ancillary, _, _ = control.recvmsg(HEADER_BYTES, room)  # descriptors come with the first byte
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content)
    rest = receive_exactly(control, HEADER_BYTES - len(head)) if head else None
    payload = None if rest is None else receive_exactly(control, int.from_bytes(head + rest, "big"))
    return None if payload is None else (payload, fds.tolist())


def receive_exactly(control: socket.socket, size: int) -> bytes | None:
    """Exactly `size` bytes; None: the sender is gone."""
    data = bytearray()
    while len(data) < size:
        more = control.recv(min(size - len(data), MAX_READ))
        if not more:
            return None
        data += more
    return bytes(data)


class Reassembler:
    """Takes bytes as they arrive and returns complete frames. Raises `Garbled` as soon as a frame announces too great a length."""

    def __init__(self, total_limit: int) -> None:
        self._buffer = bytearray()
        self._left = total_limit

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes read from the pipe; return the frames that are now complete."""
        self._left -= len(data)
        if self._left < 0:
            raise Garbled("it sent more than its output limit")
        self._buffer += data
        frames: list[bytes] = []
        while len(self._buffer) >= HEADER_BYTES:
            length = int.from_bytes(self._buffer[:HEADER_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise Garbled(f"it announced a message of {length} bytes")
            if len(self._buffer) < HEADER_BYTES + length:
                break
            frames.append(bytes(self._buffer[HEADER_BYTES : HEADER_BYTES + length]))
            del self._buffer[: HEADER_BYTES + length]
        return frames
