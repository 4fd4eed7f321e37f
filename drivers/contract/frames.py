"""The messages between a child and its parent: frames of JSON over a pipe.

The child runs other people's models, so the parent trusts nothing it sends: no pickle, every frame bounded here, every field checked in
`drivers.launch.events` before an event is made of it. `json` is fast enough: a launch sends a few dozen frames.

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
"""Two million samples fit."""
MAX_FDS: Final = 4
MAX_READ: Final = 65_536
"""File descriptors of one request."""
TURN, NO_MORE_TURNS = b"1", b"0"
"""The byte that a parent writes for each turn, and the one after the last turn where the pipe stays open."""
TO_PREPARE, NOTHING_TO_PREPARE = b"1", b"0"
"""What a zygote answers an empty request without a lock: whether it would prepare a launch if it got one."""
FAILURE: Final = "Failure"
"""In place of an event's name: an error by its own name, and a sentence."""


class Garbled(Exception):
    """A child sent something that is not an event."""


def frame(payload: bytes) -> bytes:
    """Put the length before the bytes."""
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


def pack_event(event: Event | UnitInfo | SampleModel) -> bytes:
    """One event as a whole frame."""
    return frame(f"{type(event).__name__} {json.dumps(asdict(event))}".encode())


def pack_failure(error: DriverError) -> bytes:
    """An error as a whole frame."""
    name = next((name for name, kind in FAILURES.items() if isinstance(error, kind)), Crashed.__name__)
    return frame(f"{FAILURE} {json.dumps([name, str(error)[:MAX_TEXT]])}".encode())


def pack_order(order: WorkOrder, limits: Limits, driver: str, simulate: bool, job: str) -> bytes:
    """The order of a launch; `job`: a `MeasureJob`."""
    fields = {
        "order": asdict(order),
        "limits": asdict(limits),
        "driver": driver,
        "simulate": simulate,
        "job": job,
    }
    return json.dumps(fields).encode()


def unpack_order(packed: bytes) -> tuple[WorkOrder, Limits, str, bool, str]:
    """The inverse of `pack_order`, in the child. The parent is trusted."""
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
    """One launch: its folder and order, and file descriptors: the control socket, the pipe for events, the log, and for a model that takes
    turns with those of other processes the reading end of its token pipe. Raises OSError."""
    message = frame(payload)
    sent = socket.send_fds(to, [message], fds)
    to.sendall(message[sent:])


def receive_request(control: socket.socket) -> tuple[bytes, list[int]] | None:
    """The other end of `send_request`; None: the sender is gone."""
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
    """So many bytes, and none of what follows them; None: the sender is gone."""
    data = bytearray()
    while len(data) < size:
        more = control.recv(min(size - len(data), MAX_READ))
        if not more:
            return None
        data += more
    return bytes(data)


class Reassembler:
    """Bytes in as they arrive, whole frames out. Raises `Garbled` as soon as a frame announces too great a length."""

    def __init__(self, total_limit: int) -> None:
        self._buffer = bytearray()
        self._left = total_limit

    def feed(self, data: bytes) -> list[bytes]:
        """Take what was read from the pipe; return the frames that are complete now."""
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
