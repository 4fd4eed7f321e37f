"""Estimated costs of a worker's calls, in µs of its processor time. Pure."""

from __future__ import annotations

from typing import Final

from protocol.messages import work
from protocol.messages.pool import ManifestMessage
from protocol.values.match import requirement_cost_us
from protocol.wire.base import Message
from swarm.net.cost import MANIFEST_BYTE_US, TOKEN_US, VERIFY_US

SHAPE_US: Final = 200.0
"""A shape of a probe, without its clauses. An unmet clause is answered in words."""
PLACE_US: Final = 1_000.0
"""A commit: read the task and the proof, change the ledger, and write the consequences."""
LEASE_US: Final = 50.0
"""A lease that a message names or its answer lists."""


def cost_us(message: Message) -> float:
    """The cost of serving a call, without reading and answering it."""
    match message:
        case work.ShowCredentials():
            return TOKEN_US
        case ManifestMessage():
            return VERIFY_US + len(message.body) * MANIFEST_BYTE_US
        case work.Probe():
            return sum(SHAPE_US + 10 * requirement_cost_us(shape.requirement) for shape in message.shapes)
        case work.Commit():
            return 2 * VERIFY_US + PLACE_US
        case work.AdoptRequest() | work.ListLeases():
            return VERIFY_US + work.MAX_BATCH * LEASE_US
        case work.Renew() | work.Cancel() | work.Release():
            return len(message.held) * LEASE_US
        case work.StatusRequest():
            return work.MAX_BATCH * LEASE_US
    return 0.0
