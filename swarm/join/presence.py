"""What a node does beside its work so that others find it and it finds them: gates asked and held, neighbours on the LAN, a port on the
router, peers remembered on disk. `entry` starts it; each part is a module of its own and knows nothing of the others.

    gates, peers file ─▶ ways()              LAN ─▶ index.introduce
                         ReachKeeper ─▶ index, advert      DialBackDesk ◀─ others ask

    gates          the gates a home knows, in files        bootstrap      a connection with one of them, always
    past_peers     who was there lately, in a file         lan            neighbours, by multicast DNS
    reachability   what follows from gates' answers: pure  reach_keeper   asks them, and holds places at them
    dialback       asking and answering: can I be dialled  upnp           a port on the router
    relays         the host's side of circuits: reserve, call, take calls, lend (relay_client, _stop, _hop, _desk), punch
    arrivals       who may connect with this node          visiting       a command that is in the swarm for a moment
    paths          by which way a peer is spoken with, in words
"""

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
from swarm.join.known_peers import keep_peers, known_peers
from swarm.net.addresses import Address, Contact, gate_contacts, is_loopback, parse_tcp
from swarm.net.network import Network
from swarm.net.settings import RoleSettings
from swarm.reach.autonat import AutoNatServer
from swarm.reach.keeper import ReachKeeper
from swarm.reach.mdns import Lan
from swarm.reach.reachability import Reach
from swarm.reach.upnp import keep_port_open

LOOK_AT_GATES_S: Final = 2.0
"""How long what the home's files say of gates counts."""
MEET_WITHIN_S: Final = 5.0

log = structlog.get_logger("sark.node")


def beyond_loopback(listen: Sequence[Address]) -> bool:
    """Whether anybody else than this very machine can dial what listens there."""
    return any(not is_loopback(address) for address in listen)


class Ways:
    """Ways in for when no gate answers: peers that were there lately, and neighbours on the LAN. Its `lan` is set while one runs."""

    def __init__(self, home: Home, role: Role) -> None:
        self._home = home
        self._roles: tuple[Role, ...] = ("scheduler", "worker") if role == "scheduler" else (role,)
        self.lan: Lan | None = None

    def __call__(self) -> tuple[str, ...]:
        """As `/ip4/…/tcp/…/p2p/12D3Koo…`, neighbours first."""
        near = self.lan.neighbours.values() if self.lan is not None else ()
        lines = [f"{address}/p2p/{contact.peer}" for contact in near for address in contact.addresses]
        for role in self._roles:
            lines += known_peers(self._home.peers_file(role))
        return tuple(dict.fromkeys(lines))


class GatesNow:
    """The gates that are known now, as contacts; looked up again every two seconds."""

    def __init__(self, look: Callable[[], Sequence[str]]) -> None:
        self._look = look
        self._until = 0.0
        self._found: tuple[Contact, ...] = ()

    def __call__(self) -> tuple[Contact, ...]:
        now = trio.current_time()
        if now >= self._until:
            self._until = now + LOOK_AT_GATES_S
            try:
                self._found = gate_contacts(self._look())
            except ResourceError:
                log.debug("gates.half-written")  # the next look may find better
        return self._found


def keeper_for(
    role: Role,
    network: Network,
    gates: Callable[[], Sequence[str]],
    settings: RoleSettings,
    rng: random.Random,
    tell: Callable[[str], object],
) -> ReachKeeper | None:
    """What keeps the node reachable; None for a scheduler, which nobody has to dial."""
    if role == "scheduler":
        return None
    return ReachKeeper(
        network,
        GatesNow(gates),
        rng=rng,
        wall=time.time,
        gate=role == "gate",
        fixed=settings.announce,
        tell=tell,
    )


async def be_present(
    role: Role,
    home: Home,
    settings: RoleSettings,
    listen: Sequence[Address],
    network: Network,
    index: Index,
    keeper: ReachKeeper | None,
    ways: Ways,
    rng: random.Random,
    tell: Callable[[str], object],
) -> None:
    """All of it, for as long as this runs. `index.run` must be running. Nothing here keeps the node from its work or ends it."""
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
        if settings.lan and beyond_loopback(listen):
            met = partial(_meet, network, index)
            ways.lan = Lan(network.peer_id, lambda: network.addresses, met, announce=role != "scheduler")
            nursery.start_soon(ways.lan.run)
        nursery.start_soon(keep_peers, network, home.peers_file(role), rng)


async def _knock(network: Network, peer: str, address: Address) -> bool:
    return await network.knock(peer, address)


def _port(network: Network) -> int | None:
    found = (parse_tcp(address) for address in network.addresses if not is_loopback(address))
    return next((address.port for address in found if address is not None), None)


async def _meet(network: Network, index: Index, contact: Contact) -> None:
    """A neighbour on the LAN: it counts as a holder once it has shown its key and answered."""
    try:
        await network.connect(contact.peer, contact.addresses, max_wait_s=MEET_WITHIN_S)
    except Unreachable as error:
        log.debug("neighbour.unreachable", peer=contact.peer, why=error.what)
    else:
        index.introduce(contact)
