"""Starts the node of any role: locks the folder, loads the key, raises the incarnation, opens the host, runs the index, answers health
checks.

async with open_node("worker", home, settings, holder=True) as node:
    ... node.network, node.index, node.identity, node.incarnation
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import structlog
import trio

from protocol.errors import RemoteProtocolError, ResourceError
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.wire.base import Message
from protocol.words import ProtocolId
from swarm.base.home import Home, Role
from swarm.base.locks import lock_folder
from swarm.base.process import allow_open_files, for_others, freeze_gc
from swarm.base.threads import WAITING
from swarm.index.index import Index
from swarm.index.server import Admit
from swarm.join.host import open_host
from swarm.join.known_gates import gates_in_use, worker_addresses
from swarm.join.presence import ANYWHERE, FallbackPeers, record_peers, run_presence
from swarm.net.addresses import Address, Contact, gate_contacts
from swarm.net.cost import PeerClass
from swarm.net.identity import Identity, load_or_create, next_incarnation
from swarm.net.link import Link
from swarm.net.links import serve_links
from swarm.net.network import Network
from swarm.net.settings import RoleSettings
from swarm.p2p.connection_gater import ConnectionGater
from swarm.reach.keeper import ReachKeeper

log = structlog.get_logger("sark.node")

LOCK_WAIT_S: Final = 0.25
"""A command that only checks whether a node runs here holds the lock for a moment."""
CONTACTS_S: Final = 2.0
"""How long the current gates are cached: they are needed many times per second, and are read from files."""
FALLBACK_ROLES: Final[Mapping[Role, tuple[Role, ...]]] = {
    "worker": ("worker",),
    "gate": (),
    "scheduler": ("scheduler", "worker"),
}
"""Role → the roles of this home whose last used gates it falls back on, if no gate is configured and this home has none."""
END_OF_INPUT: Final = "end of input"


@dataclass(frozen=True, slots=True)
class RunningNode:
    """This role's node on the network."""

    home: Home
    role: Role
    identity: Identity
    incarnation: int
    network: Network
    index: Index
    gates: tuple[str, ...]
    rng: random.Random
    reach: ReachKeeper | None = None
    """Keeps the node reachable; None for a scheduler, which nobody dials."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where others reach this node now, directly or through gates."""
        return self.network.addresses if self.reach is None else self.reach.addresses


@asynccontextmanager
async def open_node(
    role: Role,
    home: Home,
    settings: RoleSettings,
    *,
    holder: bool,
    identity: Identity | None = None,
    health: bool = True,
    admit: Admit = lambda peer: None,
    gater: ConnectionGater | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> AsyncIterator[RunningNode]:
    """Run a node of `role` until the context ends; then withdraw its advert and close, within about a second.

    `holder`: store adverts for others and route for them while this node can be dialled; `identity`: if not the role's key; `health`:
    answer pings; `admit`: which peers' adverts are stored; `gater`: who may connect; `tell`: called with a line for the user once it is
    known whether this node can be dialled.

    Raises `ResourceError` if another node uses the folder, the key is damaged or readable by others, or a port is taken. Never raises
    `Unreachable`: gates that do not answer yet are retried until the context ends.
    """
    folder = home.folder(role)
    gater = gater or ConnectionGater()
    files = allow_open_files()
    gater.limits = replace(gater.limits, all=for_others(files))
    log.debug("node.files", allowed=files)
    with lock_folder(folder, wait_s=LOCK_WAIT_S), freeze_gc():
        identity = identity or load_or_create(home.key(role))
        incarnation = next_incarnation(folder / "incarnation")
        rng = random.Random()

        def gates() -> tuple[str, ...]:
            """The gates as of now: one may start later, or on another port."""
            ways = gates_in_use(home, settings.gates, FALLBACK_ROLES[role])
            if role == "scheduler":  # its home's worker is a way in too if the gate is gone
                ways = (*ways, *worker_addresses(home))
            return tuple(gate for gate in ways if identity.peer_id not in gate)

        latest: tuple[Contact, ...] = ()
        read_at = -math.inf

        def contacts() -> tuple[Contact, ...]:
            nonlocal latest, read_at
            if trio.current_time() < read_at + CONTACTS_S:
                return latest
            read_at = trio.current_time()
            with contextlib.suppress(ResourceError):  # an invalid file: keep the last contacts
                latest = gate_contacts(gates())
            return latest

        known = gater.knows
        gater.knows = lambda peer: known(peer) or any(contact.peer == peer for contact in contacts())
        fallback = FallbackPeers(home, role)
        configured = tuple(gate for gate in settings.gates if identity.peer_id not in gate)
        async with open_host(
            identity,
            listen=settings.listen or ANYWHERE,
            announce=settings.announce,
            bootstrap=configured if configured and role != "scheduler" else gates,
            fallback=fallback,
            rng=rng,
            gater=gater,
        ) as network:
            keeper = None
            if role != "scheduler":
                keeper = ReachKeeper(
                    network,
                    contacts,
                    rng=rng,
                    wall=time.time,
                    gate=role == "gate",
                    fixed=settings.announce,
                    tell=tell,
                )
            index = Index(
                network,
                rng=rng,
                incarnation=incarnation,
                serve=holder,
                admit=admit,
                reach=None if role == "gate" else keeper,
                wall=time.time,
                exempt=gater.knows,
                anchors=contacts,
            )
            network.governor.class_of = lambda peer: (
                PeerClass.KNOWN
                if gater.knows(peer) or any(contact.peer == peer for contact in contacts())
                else PeerClass.STRANGER
            )
            if health:
                _answer_health(network, Pong(role=role, incarnation=incarnation))
            async with trio.open_nursery() as nursery:
                await nursery.start(index.run)
                nursery.start_soon(run_presence, role, network, index, settings, keeper, fallback, tell)
                nursery.start_soon(record_peers, network, home.peers_file(role), rng)
                ways = settings.gates or gates()
                yield RunningNode(home, role, identity, incarnation, network, index, ways, rng, keeper)
                with trio.move_on_after(1.5, shield=True):
                    await index.withdraw()
                nursery.cancel_scope.cancel()


def _answer_health(network: Network, pong: Pong) -> None:
    async def answer(link: Link, message: Message) -> Message:
        if not isinstance(message, Ping):
            raise RemoteProtocolError(f"{type(message).__name__} is not a health check")
        return pong

    serve_links(network, ProtocolId.HEALTH, HEALTH, answer)


async def wait_for_stop(*, with_stdin: bool = False) -> str:
    """Wait for Ctrl-C or SIGTERM; return the signal's name. `with_stdin`: also for the end of standard input, which ties this process to
    its parent."""
    requests: list[str] = []
    async with trio.open_nursery() as nursery:

        def stop(name: str) -> None:
            requests.append(name)
            nursery.cancel_scope.cancel()

        await watch_stop_requests(stop, with_stdin=with_stdin)
    return requests[0]


async def watch_stop_requests(
    on_request: Callable[[str], object],
    *,
    with_stdin: bool = False,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call `on_request` at each request to stop, with the name of the signal or `END_OF_INPUT`. Runs until cancelled."""
    async with trio.open_nursery() as nursery:

        async def end_of_input() -> None:
            while await WAITING.run(os.read, 0, 4096, abandon_on_cancel=True):
                pass
            on_request(END_OF_INPUT)

        if with_stdin:
            nursery.start_soon(end_of_input)
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
            task_status.started()
            async for number in received:
                on_request(signal.Signals(number).name)
