"""A node that admits newcomers to a home's pools when no gate of that home does, under a key of its own.

A ticket lists the node's addresses: those on this machine's networks, and circuits through gates at which it has reservations.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog
import trio

from protocol.errors import Refused, Unreachable
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import POOL
from protocol.words import ProtocolId, Reason
from swarm.base.home import Home
from swarm.join.ephemeral import GateVisitor
from swarm.join.host import open_host
from swarm.join.presence import ANYWHERE
from swarm.net.addresses import Address, Contact, PeerId, gate_contacts, is_loopback
from swarm.net.identity import Identity, load_or_create
from swarm.net.links import serve_links
from swarm.net.network import Network
from swarm.pools.enrolment import enroller
from swarm.pools.server import ManifestRegistry, PoolServer
from swarm.pools.tickets import MAX_GATES

RESERVATIONS: Final = 2
"""Gates through which the node can be reached."""
RESERVE_WITHIN_S: Final = 5.0
LOOK_S: Final = 10.0
"""How often lost reservations are renewed."""
RENEW_AT: Final = 0.5
"""Share of a reservation's lifetime after which it is renewed."""

log = structlog.get_logger("sark.pools")


@dataclass(eq=False)
class AdmittingNode:
    """The node while it runs."""

    network: Network
    gates: tuple[Contact, ...]
    _renew_at: dict[PeerId, float] = field(default_factory=dict)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where newcomers reach the node, with its peer id: direct addresses, then circuits. Loopback only if there is nothing else."""
        circuits = [each.address for each in self.network.reservations()]
        direct = self.network.addresses
        beyond = [address for address in direct if not is_loopback(address)]
        found: Sequence[Address] = [*beyond[: MAX_GATES - len(circuits)], *circuits] or direct[:MAX_GATES]
        return tuple(f"{address}/p2p/{self.network.peer_id}" for address in found)

    async def hold(
        self, visitor: GateVisitor, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep reservations at the gates until cancelled; reports as started once each gate was asked."""
        while True:
            held, now = {each.gate for each in self.network.reservations()}, trio.current_time()
            due = [g for g in self.gates if g.peer not in held or now >= self._renew_at.get(g.peer, 0.0)]
            await visitor.announce(f"{gate.addresses[0]}/p2p/{gate.peer}/p2p-circuit" for gate in due)
            async with trio.open_nursery() as nursery:
                for gate in due:
                    nursery.start_soon(self._reserve, gate)
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            await trio.sleep(LOOK_S)

    async def _reserve(self, gate: Contact) -> None:
        try:
            held = await self.network.reserve(gate.peer, gate.addresses, max_wait_s=RESERVE_WITHIN_S)
        except (Unreachable, Refused) as exc:
            log.info("reservation.failed", gate=gate.peer, why=exc.what)
        else:
            self._renew_at[gate.peer] = trio.current_time() + held.ttl_s * RENEW_AT


@asynccontextmanager
async def open_admission(
    home: Home, gates: Sequence[str], listen: Sequence[Address] = ()
) -> AsyncIterator[AdmittingNode]:
    """Admit peers to the pools of `home` until the context ends. `gates`: those through which the node is reached; `listen`: where to
    listen, if not everywhere.

    Raises `ResourceError` for an address that cannot be used.
    """
    known = gate_contacts(gates)[:RESERVATIONS]
    async with (
        open_host(
            Identity.fresh(), listen=listen or ANYWHERE, bootstrap=gates, rng=random.Random()
        ) as network,
        trio.open_nursery() as nursery,
    ):
        server = PoolServer(ManifestRegistry(), enroller(home, time.time), _no_manifests)
        serve_links(network, ProtocolId.POOL, POOL, server.answer)
        node = AdmittingNode(network, known)
        if known:
            await nursery.start(
                partial(node.hold, GateVisitor(network, load_or_create(home.key("scheduler"))))
            )
        yield node
        nursery.cancel_scope.cancel()


def _no_manifests(peer: PeerId) -> RefusedMessage:
    return RefusedMessage(
        reason=Reason.NOT_SERVING, detail="this node only admits newcomers; it stores no manifests"
    )
