"""Taking a result: its bytes, its signature, that it is what was asked for, and whether that can count as a measurement."""

from __future__ import annotations

import hashlib

from protocol.errors import Refused, RemoteProtocolError
from protocol.messages.work import Result
from protocol.values.record import MAX_RECORD
from swarm.blobs.client import fetch_blob
from swarm.net.network import Network


async def pull(network: Network, peer: str, result: Result) -> bytes:
    """The record's bytes: from the message, or fetched by hash when they were too many for it. Hash and size are checked.

    Raises `RemoteProtocolError`, and `Unreachable` when the fetch breaks off (the worker will send the result again).
    """
    body = result.body
    if result.size > MAX_RECORD:
        raise RemoteProtocolError(f"a record of {result.size} bytes; {MAX_RECORD} are allowed")
    if body is None:
        fetched = bytearray()

        def store(piece: bytearray) -> None:
            if len(fetched) + len(piece) > result.size:
                raise ValueError("more than announced")
            fetched.extend(piece)

        try:
            await fetch_blob(network, peer, (), result.sha256, sink=store, size=result.size)
        except (Refused, ValueError) as exc:
            raise RemoteProtocolError(
                f"the record of {result.task} cannot be had from its worker: {exc}"
            ) from exc
        body = bytes(fetched)
    if len(body) != result.size or hashlib.sha256(body).hexdigest() != result.sha256:
        raise RemoteProtocolError(f"the record of {result.task} is not what its message says")
    return body
