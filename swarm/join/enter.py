"""How a role comes onto the network: folder locked, key loaded, incarnation raised, host open, index running, health answered.

The roles differ in what they do there, not in how they come there; so this is written once.

    async with enter("worker", home, settings) as here:
        ... here.network, here.index, here.identity, here.incarnation
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from protocol.errors import RemoteProtocolError, ResourceError
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.wire.base import Message
from protocol.words import ProtocolId
from swarm.base.home import Home, Role
from swarm.base.locks import lock_folder
from swarm.base.open_files import allow_open_files, for_others
from swarm.index.index import Index
from swarm.index.server import Admit, admit_all
from swarm.join.host import open_host
from swarm.join.known_gates import local_gates, own_worker, remembered_gates
from swarm.join.presence import GatesNow, Ways, be_present, keeper_for
from swarm.net.addresses import Address
from swarm.net.identity import Identity, load_or_create, next_incarnation
from swarm.net.link import Link, serve_links
from swarm.net.network import Network
from swarm.net.settings import RoleSettings
from swarm.p2p.connection_gater import ConnectionGater
from swarm.reach.keeper import ReachKeeper

log = structlog.get_logger("sark.node")

ANYWHERE: tuple[Address, ...] = ("/ip4/0.0.0.0/tcp/0",)
"""Any free port on every interface."""
TRIES: Final = 5
AGAIN_S: Final = 0.05
END_OF_INPUT: Final = "end of input"


@dataclass(frozen=True, slots=True)
class Entered:
    """This node, on the network."""

    home: Home
    role: Role
    identity: Identity
    incarnation: int
    network: Network
    index: Index
    gates: tuple[str, ...]
    rng: random.Random
    reach: ReachKeeper | None = None
    """Whether it can be dialled; None for a scheduler, which nobody has to dial."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where others reach this node now: directly, or through gates."""
        return self.network.addresses if self.reach is None else self.reach.addresses


@asynccontextmanager
async def locked(folder: Path) -> AsyncIterator[None]:
    """Hold the folder as `lock_folder` does. Whoever only looks whether a node runs there has it for a moment: that is waited for."""
    with ExitStack() as held:
        for last in (*(False,) * (TRIES - 1), True):
            try:
                held.enter_context(lock_folder(folder))
                break
            except ResourceError:
                if last:
                    raise
                await trio.sleep(AGAIN_S)
        yield


@asynccontextmanager
async def enter(
    role: Role,
    home: Home,
    settings: RoleSettings,
    *,
    holder: bool,
    health: bool = True,
    admit: Admit = admit_all,
    arrivals: ConnectionGater | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> AsyncIterator[Entered]:
    """Be on the network as `role` for as long as the context lasts; on leaving, tell the index and close within about a second.

    `holder`: keep adverts for others and route for them, if this node can be dialled. `health`: answer pings here, for a role that
    has no more to say than that it is there. `admit`: whose adverts are kept; `arrivals`: who may connect. `tell`: a line for people
    when it turns out whether this node can be dialled. Raises `ResourceError` when the folder is
    in use by another node, the key is damaged or open to others, or a port cannot be had; `Unreachable` never: a gate that is
    not there yet is tried again and again.
    """
    folder = home.folder(role)
    arrivals = arrivals or ConnectionGater()
    files = allow_open_files()
    arrivals.limits = replace(arrivals.limits, all=for_others(files))
    log.debug("node.files", allowed=files)
    async with locked(folder):
        identity = load_or_create(home.key(role))
        incarnation = next_incarnation(folder / "incarnation")
        rng = random.Random()

        def gates() -> tuple[str, ...]:
            """Those that are set, else this home's own, as of now, else those it joined by: a gate may be started later, or come back
            on another port."""
            found = settings.gates or local_gates(home)
            if role == "worker":
                found = found or remembered_gates(home, ("worker",))
            if role == "scheduler":  # its home's worker is a way in as well, should the gate be gone
                found = (*(found or remembered_gates(home)), *own_worker(home))
            return tuple(gate for gate in found if identity.peer_id not in gate)

        ways = Ways(home, role)
        listen = settings.listen or ANYWHERE
        given = tuple(gate for gate in settings.gates if identity.peer_id not in gate)
        async with open_host(
            identity,
            listen=listen,
            announce=settings.announce,
            bootstrap=given if given and role != "scheduler" else gates,
            spare=ways,
            server=holder,
            rng=rng,
            arrivals=arrivals,
        ) as network:
            keeper = keeper_for(role, network, gates, settings, rng, tell)
            index = Index(
                network,
                rng=rng,
                incarnation=incarnation,
                serve=holder,
                remote_address=network.remote_address,
                admit=admit,
                reach=None if role == "gate" else keeper,
                wall=time.time,
                known=arrivals.knows,
                anchors=GatesNow(gates),
            )
            if health:
                _answer_health(network, Pong(role=role, incarnation=incarnation))
            async with trio.open_nursery() as nursery:
                await nursery.start(index.run)
                nursery.start_soon(
                    be_present, role, home, settings, listen, network, index, keeper, ways, rng, tell
                )
                known = settings.gates or gates()
                yield Entered(home, role, identity, incarnation, network, index, known, rng, keeper)
                with trio.move_on_after(1.5, shield=True):
                    await index.withdraw()
                nursery.cancel_scope.cancel()


def _answer_health(network: Network, pong: Pong) -> None:
    async def answer(link: Link, message: Message) -> Message:
        if not isinstance(message, Ping):
            raise RemoteProtocolError(f"{type(message).__name__} is not a question about health")
        return pong

    serve_links(network, ProtocolId.HEALTH, HEALTH, answer)


async def until_told_to_stop(*, with_stdin: bool = False) -> str:
    """Wait for Ctrl-C or a request to terminate; gives the signal's name. `with_stdin`: the end of standard input counts too.

    The latter ties a process to the one that started it, whatever happens to that one.
    """
    stopped = ""
    async with trio.open_nursery() as nursery:

        def asked(name: str) -> None:
            nonlocal stopped
            stopped = stopped or name
            nursery.cancel_scope.cancel()

        nursery.start_soon(partial(hear_stops, asked, with_stdin=with_stdin))
    return stopped


async def hear_stops(
    asked: Callable[[str], object],
    *,
    with_stdin: bool = False,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call `asked` with its name at each request to stop, for ever: a signal's, or `END_OF_INPUT`."""
    async with trio.open_nursery() as nursery:

        async def end_of_input() -> None:
            while await trio.to_thread.run_sync(os.read, 0, 4096, abandon_on_cancel=True):
                pass
            asked(END_OF_INPUT)

        if with_stdin:
            nursery.start_soon(end_of_input)
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
            task_status.started()
            async for number in received:
                asked(signal.Signals(number).name)
