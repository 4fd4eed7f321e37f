"""Fetches the bytes of a result."""

from __future__ import annotations

import hashlib

from protocol.errors import Refused, RemoteProtocolError
from protocol.messages.work import Result
from protocol.values.record import MAX_RECORD
from swarm.blobs.client import fetch_blob
from swarm.net.network import Network


async def pull(network: Network, peer: str, result: Result) -> bytes:
    """The record's bytes: from the message, or fetched by hash if they are too many for it. Hash and size are checked.

    Raises `RemoteProtocolError`, and `Unreachable` if the fetch breaks off; the worker sends the result again.
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
                f"the record of {result.task} could not be fetched from its worker: {exc}"
            ) from exc
        body = bytes(fetched)
    if len(body) != result.size or hashlib.sha256(body).hexdigest() != result.sha256:
        raise RemoteProtocolError(f"the record of {result.task} does not match its announced hash and size")
    return body
