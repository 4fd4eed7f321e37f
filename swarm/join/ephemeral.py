"""A short-lived node for one command, and its access through gates that serve only members.

Commands use fresh keys, since the scheduler process may be using its own. A gate for members lets a fresh key call devices if the key shows
a short permission that a member's key signed (`GateVisitor`). Open gates ignore the permission.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Final

import structlog
import trio

from protocol.errors import RemoteProtocolError, Unreachable
from protocol.messages.gate import GATE
from protocol.messages.work import ShowCredentials
from protocol.words import ProtocolId, Right
from swarm.index.index import Index
from swarm.net.addresses import Address, Circuit, PeerId, parse_circuit
from swarm.net.identity import Identity
from swarm.net.links import Links
from swarm.net.network import Network
from swarm.pools.tokens import Grant, issue

TTL_S: Final = 600.0
ANSWER_S: Final = 3.0
MAX_GATES: Final = 16
"""Most gates shown the permission: addresses come from adverts, and a liar must not make us dial more."""

log = structlog.get_logger("sark.node")


@asynccontextmanager
async def open_ephemeral_node(
    gates: Sequence[str], identity: Identity | None = None
) -> AsyncIterator[tuple[Network, Index, trio.Nursery]]:
    """A node that serves nobody, under `identity` (None: a fresh one). The nursery ends with the block.

    Raises `Unreachable` if no gate is given, or none answers.
    """
    if not gates:
        raise Unreachable(
            "no gate is known here",
            hint="start one with: sark-node gate\nor name one: --gate /ip4/…/tcp/4101/p2p/12D3Koo…",
        )
    from swarm.join.host import open_host  # loads libp2p, which is most of a command's start-up time

    rng = random.Random()
    async with (
        open_host(identity or Identity.fresh(), bootstrap=gates, rng=rng) as network,
        trio.open_nursery() as nursery,
    ):
        if not network.connected():
            raise Unreachable(
                "no gate answers: " + ", ".join(gates), hint="is it running, and is the address right?"
            )
        index = Index(network, rng=rng, serve=False)
        await nursery.start(index.run)
        yield network, index, nursery
        nursery.cancel_scope.cancel()


@dataclass(eq=False)
class GateVisitor:
    """Shows gates a member's permission for this process's fresh key."""

    network: Network
    signer: Identity
    """The member's key."""
    _: KW_ONLY
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._shown: dict[PeerId, float] = {}

    async def announce(self, addresses: Iterable[Address]) -> None:
        """Show the permission to the gates in these addresses, unless they have it. A gate's silence or refusal raises nothing here: it
        becomes apparent when a circuit is opened."""
        now = trio.current_time()
        gates: dict[PeerId, Circuit] = {}
        for circuit in map(parse_circuit, addresses):
            if circuit is not None and now - self._shown.get(circuit.gate, -math.inf) > TTL_S / 2:
                gates.setdefault(circuit.gate, circuit)
        if not gates:
            return
        grant = Grant(frozenset({Right.STATUS}), ttl_s=TTL_S)
        token = issue(self.signer, self.network.peer_id, grant, now=self.wall())
        credentials = ShowCredentials(issuer=self.signer.peer_id, token=token)
        async with trio.open_nursery() as nursery:
            links = Links(self.network, ProtocolId.GATE, GATE, nursery)

            async def show(circuit: Circuit) -> None:
                self._shown[circuit.gate] = trio.current_time()
                try:
                    answer = await links.call(
                        circuit.gate, (circuit.address,), credentials, max_wait_s=ANSWER_S
                    )
                    log.debug("gate.answered", gate=circuit.gate, answer=type(answer).__name__)
                except (Unreachable, RemoteProtocolError) as exc:
                    log.debug("gate.silent", gate=circuit.gate, why=exc.what)

            async with trio.open_nursery() as calls:
                for circuit in list(gates.values())[:MAX_GATES]:
                    calls.start_soon(show, circuit)
            nursery.cancel_scope.cancel()
