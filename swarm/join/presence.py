"""What a node does besides its work so that others find it: reachability, AutoNAT, UPnP, neighbours on the LAN, the file of known peers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog
import trio

from protocol.errors import ResourceError, Unreachable
from swarm.base.home import Home, Role
from swarm.index.index import Index
from swarm.join.known_peers import read_peers, record_peers
from swarm.net.addresses import Address, Contact, gate_contacts, is_loopback, parse_tcp
from swarm.net.network import Network
from swarm.net.settings import RoleSettings
from swarm.reach.autonat import AutoNatServer
from swarm.reach.keeper import ReachKeeper
from swarm.reach.mdns import Lan
from swarm.reach.reachability import Reach
from swarm.reach.upnp import keep_port_open

GATES_CACHED_S: Final = 2.0
MEET_WITHIN_S: Final = 5.0

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
        """As `/ip4/…/tcp/…/p2p/12D3Koo…`, neighbours first."""
        near = self.lan.neighbours.values() if self.lan is not None else ()
        lines = [f"{address}/p2p/{contact.peer}" for contact in near for address in contact.addresses]
        for role in self._roles:
            lines += read_peers(self._home.peers_file(role))
        return tuple(dict.fromkeys(lines))


class CurrentGates:
    """The present gates as contacts, cached for two seconds."""

    def __init__(self, look: Callable[[], Sequence[str]]) -> None:
        self._look = look
        self._until = 0.0
        self._contacts: tuple[Contact, ...] = ()

    def __call__(self) -> tuple[Contact, ...]:
        now = trio.current_time()
        if now >= self._until:
            self._until = now + GATES_CACHED_S
            try:
                self._contacts = gate_contacts(self._look())
            except ResourceError:
                log.debug("gates.half-written")
        return self._contacts


def reach_keeper(
    role: Role,
    network: Network,
    gates: Callable[[], Sequence[str]],
    settings: RoleSettings,
    rng: random.Random,
    tell: Callable[[str], object],
) -> ReachKeeper | None:
    """Keeps the node reachable; None for a scheduler, which nobody dials."""
    if role == "scheduler":
        return None
    return ReachKeeper(
        network,
        CurrentGates(gates),
        rng=rng,
        wall=time.time,
        gate=role == "gate",
        fixed=settings.announce,
        tell=tell,
    )


async def run_presence(
    role: Role,
    home: Home,
    settings: RoleSettings,
    listen: Sequence[Address],
    network: Network,
    index: Index,
    keeper: ReachKeeper | None,
    fallback: FallbackPeers,
    rng: random.Random,
    tell: Callable[[str], object],
) -> None:
    """Run all of it, for ever. `index.run` must be running. Nothing here stops the node."""
    async with trio.open_nursery() as nursery:
        if keeper is not None:
            AutoNatServer(
                network.remote_address,
                partial(_knock, network),
                serving=lambda: role == "gate" or keeper.reach is Reach.DIRECT,
                wall=time.time,
                meet=index.introduce,
            ).serve(network)
            nursery.start_soon(keeper.run)
            port = _port(network)
            if settings.upnp and port is not None:
                nursery.start_soon(keep_port_open, port, keeper.mapped, tell)
        if settings.lan and listens_beyond_loopback(listen):
            meet = partial(_meet, network, index)
            fallback.lan = Lan(network.peer_id, lambda: network.addresses, meet, announce=role != "scheduler")
            nursery.start_soon(fallback.lan.run)
        nursery.start_soon(record_peers, network, home.peers_file(role), rng)


async def _knock(network: Network, peer: str, address: Address) -> bool:
    return await network.knock(peer, address)


def _port(network: Network) -> int | None:
    matches = (parse_tcp(address) for address in network.addresses if not is_loopback(address))
    return next((address.port for address in matches if address is not None), None)


async def _meet(network: Network, index: Index, contact: Contact) -> None:
    """A neighbour on the LAN counts as a holder once it has proved its key and answered."""
    try:
        await network.connect(contact.peer, contact.addresses, max_wait_s=MEET_WITHIN_S)
    except Unreachable as error:
        log.debug("neighbour.unreachable", peer=contact.peer, why=error.what)
    else:
        index.introduce(contact)
