"""Peers that were there lately, kept in the home: ways into the swarm when no gate answers, or none is known.

A line each, `/ip4/…/tcp/…/p2p/12D3Koo…`, those seen last first. Nothing depends on the file: it may be removed at any time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog
import trio

from protocol.errors import ResourceError
from swarm.join.known_gates import leave_addresses, left_addresses
from swarm.net.addresses import Contact, split_peer, usable
from swarm.net.identity import peer_id_bytes, routing_key
from swarm.net.network import Network

KEPT: Final = 24
ADDRESSES_EACH: Final = 2
FIRST_S: Final = 20.0
EVERY_S: Final = 300.0
LOOKED_AT: Final = 256

log = structlog.get_logger("sark.node")


def known_peers(path: Path) -> tuple[str, ...]:
    """Those of the last time; lines that make no sense are left out. None is no error."""
    return tuple(line for line in left_addresses(path)[: KEPT * ADDRESSES_EACH] if _makes_sense(line))


def _makes_sense(line: str) -> bool:
    try:
        peer, address = split_peer(line)
        peer_id_bytes(peer)
    except ValueError:
        return False
    return bool(usable([address]))


def chosen(network: Network, before: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    """The lines to keep: holders that are connected now, by chance where there are many; then those of before."""
    live = set(network.connected())
    holders = network.closest(routing_key(network.peer_id), LOOKED_AT)
    near = [contact for contact in holders if contact.peer in live and usable(contact.addresses)]
    lines = [line for contact in rng.sample(near, min(KEPT, len(near))) for line in _lines(contact)]
    fresh = {contact.peer for contact in near}
    older = [line for line in before if line.rpartition("/")[2] not in fresh]
    return tuple(dict.fromkeys([*lines, *older]))[: KEPT * ADDRESSES_EACH]


def _lines(contact: Contact) -> tuple[str, ...]:
    return tuple(f"{address}/p2p/{contact.peer}" for address in usable(contact.addresses)[:ADDRESSES_EACH])


async def keep_peers(network: Network, path: Path, rng: random.Random) -> None:
    """Write the file now and then, for ever."""
    pause = FIRST_S
    while True:
        await trio.sleep(pause)
        pause = EVERY_S
        lines = chosen(network, known_peers(path), rng)
        if lines and lines != left_addresses(path):
            try:
                await trio.to_thread.run_sync(leave_addresses, path, lines)
            except ResourceError as error:  # a convenience: a full disk is complained of elsewhere
                log.info("peers.not-kept", why=error.what)
