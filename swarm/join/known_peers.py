"""A file of peers connected lately: ways into the swarm when no gate answers. One `/ip4/…/tcp/…/p2p/12D3Koo…` a line, latest first."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog
import trio

from protocol.errors import ResourceError
from swarm.join.known_gates import read_addresses, write_addresses
from swarm.net.addresses import Contact, split_peer, usable
from swarm.net.identity import peer_id_bytes, routing_key
from swarm.net.network import Network

MAX_PEERS: Final = 24
ADDRESSES_EACH: Final = 2
FIRST_S: Final = 20.0
EVERY_S: Final = 300.0
SAMPLED: Final = 256

log = structlog.get_logger("sark.node")


def read_peers(path: Path) -> tuple[str, ...]:
    """The valid lines of the file; empty where there is none."""
    return tuple(line for line in read_addresses(path)[: MAX_PEERS * ADDRESSES_EACH] if _is_valid(line))


def _is_valid(line: str) -> bool:
    try:
        peer, address = split_peer(line)
        peer_id_bytes(peer)
    except ValueError:
        return False
    return bool(usable([address]))


def select_peers(network: Network, before: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    """The lines to write: a random sample of connected holders, then those of `before`."""
    live = set(network.connected())
    holders = network.closest(routing_key(network.peer_id), SAMPLED)
    near = [contact for contact in holders if contact.peer in live and usable(contact.addresses)]
    lines = [line for contact in rng.sample(near, min(MAX_PEERS, len(near))) for line in _lines(contact)]
    fresh = {contact.peer for contact in near}
    older = [line for line in before if line.rpartition("/")[2] not in fresh]
    return tuple(dict.fromkeys([*lines, *older]))[: MAX_PEERS * ADDRESSES_EACH]


def _lines(contact: Contact) -> tuple[str, ...]:
    return tuple(f"{address}/p2p/{contact.peer}" for address in usable(contact.addresses)[:ADDRESSES_EACH])


async def record_peers(network: Network, path: Path, rng: random.Random) -> None:
    """Write the file every few minutes, for ever."""
    pause = FIRST_S
    while True:
        await trio.sleep(pause)
        pause = EVERY_S
        lines = select_peers(network, read_peers(path), rng)
        if lines and lines != read_addresses(path):
            try:
                await trio.to_thread.run_sync(write_addresses, path, lines)
            except ResourceError as error:
                log.info("peers.not-written", why=error.what)
