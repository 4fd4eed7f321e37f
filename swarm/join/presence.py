"""How a node finds others and is found: reachability, AutoNAT, UPnP, neighbours on the LAN, and a file of known peers.

The file lists recently connected peers: ways into the swarm when no gate answers. Each line is `/ip4/…/tcp/…/p2p/12D3Koo…`, latest first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from protocol.errors import ResourceError, Unreachable
from swarm.base.home import Home, Role
from swarm.base.threads import DISK
from swarm.index.index import Index
from swarm.join.known_gates import (
    ADDRESSES_EACH,
    MAX_PEERS,
    known_peers,
    read_addresses,
    read_peers,
    write_addresses,
)
from swarm.net.addresses import Address, Contact, is_loopback, parse_tcp, usable
from swarm.net.identity import routing_key
from swarm.net.network import Network
from swarm.net.settings import RoleSettings
from swarm.reach.autonat import AutoNatServer
from swarm.reach.keeper import ReachKeeper
from swarm.reach.reachability import Reach
from swarm.reach.upnp import keep_port_open

if TYPE_CHECKING:
    from swarm.reach.mdns import Lan

MEET_WITHIN_S: Final = 5.0
MAX_NEAR: Final = 16
"""Most neighbours among the ways in: an attacker on the LAN can pose as many."""
FIRST_S: Final = 20.0
EVERY_S: Final = 300.0
SAMPLED: Final = 256
ANYWHERE: tuple[Address, ...] = ("/ip4/0.0.0.0/tcp/0",)
"""A free port on every interface."""

log = structlog.get_logger("sark.node")


def listens_beyond_loopback(listen: Sequence[Address]) -> bool:
    """Whether other machines can dial any of these addresses."""
    return any(not is_loopback(address) for address in listen)


class FallbackPeers:
    """Ways in when no gate answers: known peers and neighbours on the LAN (`lan`, while it runs)."""

    def __init__(self, home: Home, role: Role) -> None:
        self._home = home
        self._roles: tuple[Role, ...] = ("scheduler", "worker") if role == "scheduler" else (role,)
        self.lan: Lan | None = None

    def __call__(self) -> tuple[str, ...]:
        """Addresses `/ip4/…/tcp/…/p2p/12D3Koo…`: newest neighbours first, limited so that known peers have room."""
        near = [] if self.lan is None else list(reversed(self.lan.neighbours.values()))[:MAX_NEAR]
        lines = [f"{address}/p2p/{contact.peer}" for contact in near for address in contact.addresses]
        return tuple(dict.fromkeys((*lines, *known_peers(self._home, self._roles))))


async def run_presence(
    role: Role,
    network: Network,
    index: Index,
    settings: RoleSettings,
    keeper: ReachKeeper | None,
    fallback: FallbackPeers,
    tell: Callable[[str], object],
) -> None:
    """Run everything except the file of known peers, until cancelled. `index.run` must be running. Nothing here stops the node."""
    async with trio.open_nursery() as nursery:
        if keeper is not None:
            AutoNatServer(
                network.remote_address,
                network.knock,
                serving=lambda: role == "gate" or keeper.reach is Reach.DIRECT,
                wall=time.time,
                meet=index.introduce,
            ).serve(network)
            nursery.start_soon(keeper.run)
            dialled = (parse_tcp(address) for address in network.addresses if not is_loopback(address))
            port = next((address.port for address in dialled if address is not None), None)
            if settings.upnp and port is not None:
                nursery.start_soon(keep_port_open, port, keeper.mapped, tell)
        if settings.lan and listens_beyond_loopback(settings.listen or ANYWHERE):
            from swarm.reach.mdns import Lan  # takes 5 MiB, so only if there may be neighbours

            meet = partial(_meet, network, index)
            fallback.lan = Lan(network.peer_id, lambda: network.addresses, meet, announce=role != "scheduler")
            nursery.start_soon(fallback.lan.run)


async def _meet(network: Network, index: Index, contact: Contact) -> bool:
    """Check a neighbour on the LAN: it counts as a holder once it has proved its key and answered. Returns whether it proved its key."""
    try:
        await network.connect(contact.peer, contact.addresses, max_wait_s=MEET_WITHIN_S)
    except Unreachable as error:
        log.debug("neighbour.unreachable", peer=contact.peer, why=error.what)
        return False
    index.introduce(contact)
    return True


# -- known peers --------------------------------------------------------------------------------------------------------------


def select_peers(network: Network, before: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    """The lines to write: a random sample of connected holders, then the lines of `before`."""
    live = set(network.connected())
    holders = network.table.closest(routing_key(network.peer_id), SAMPLED)
    near = [contact for contact in holders if contact.peer in live and usable(contact.addresses)]
    lines = [
        f"{address}/p2p/{contact.peer}"
        for contact in rng.sample(near, min(MAX_PEERS, len(near)))
        for address in usable(contact.addresses)[:ADDRESSES_EACH]
    ]
    fresh = {contact.peer for contact in near}
    older = [line for line in before if line.rpartition("/")[2] not in fresh]
    return tuple(dict.fromkeys([*lines, *older]))[: MAX_PEERS * ADDRESSES_EACH]


async def record_peers(network: Network, path: Path, rng: random.Random) -> None:
    """Write the file every few minutes until cancelled."""
    pause = FIRST_S
    while True:
        await trio.sleep(pause)
        pause = EVERY_S
        lines = select_peers(network, read_peers(path), rng)
        if lines and lines != read_addresses(path):
            try:
                await DISK.run(write_addresses, path, lines)
            except ResourceError as error:
                log.info("peers.not-written", why=error.what)
