"""A passing visitor: in the swarm for a moment (`inside`), and on its way through gates that are not for anybody (`Visitor`): somebody whom
they let in vouches for its fresh key.

Commands come under fresh keys, for the scheduler's own place on the network may be taken by its process. A device that cannot be dialled
is called through its gate; a gate for members alone lets a visitor call there on the word of one: a permission that the member's key
signed, for some minutes. Gates that let in anybody do not look at it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog
import trio

from protocol.errors import RemoteProtocolError, Unreachable
from protocol.messages.gate import GATE
from protocol.messages.work import ShowCredentials
from protocol.words import ProtocolId, Right
from swarm.index.index import Index
from swarm.join.host import open_host
from swarm.net.addresses import Address, Circuit, PeerId, parse_circuit
from swarm.net.identity import Identity
from swarm.net.link import Links
from swarm.net.network import Network
from swarm.pools.tokens import Grant, issue

TTL_S: Final = 600.0
ANSWER_S: Final = 3.0
MAX_GATES: Final = 16
"""Addresses come from adverts: nobody can have us dial more."""

log = structlog.get_logger("sark.node")


@asynccontextmanager
async def inside(
    gates: Sequence[str], identity: Identity | None = None
) -> AsyncIterator[tuple[Network, Index, trio.Nursery]]:
    """In the swarm for a moment, as `identity` (None: a fresh one), which serves nobody. The nursery ends with the block.

    Raises `Unreachable` when no gate is given, or none answers.
    """
    if not gates:
        raise Unreachable(
            "no gate is known here",
            hint="start one with: sark-node gate\nor name one: --gate /ip4/…/tcp/4101/p2p/12D3Koo…",
        )
    rng = random.Random()
    async with (
        open_host(identity or Identity.fresh(), bootstrap=gates, server=False, rng=rng) as network,
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


class Visitor:
    """This process as somebody's visitor."""

    def __init__(self, network: Network, signer: Identity, *, wall: Callable[[], float] = time.time) -> None:
        """`signer`: the key that vouches."""
        self._network = network
        self._signer = signer
        self._wall = wall
        self._shown: dict[PeerId, float] = {}

    async def announce(self, addresses: Iterable[Address]) -> None:
        """Show the gates on the way to these addresses whose visitor this is, unless they know it. No gate's silence or refusal is an
        error: what it means shows when it is called through."""
        now = trio.current_time()
        on_the_way: dict[PeerId, Circuit] = {}
        for address in addresses:
            circuit = parse_circuit(address)
            if circuit is not None and now - self._shown.get(circuit.gate, -math.inf) > TTL_S / 2:
                on_the_way.setdefault(circuit.gate, circuit)
        if not on_the_way:
            return
        grant = Grant(frozenset({Right.STATUS}), ttl_s=TTL_S)
        token = issue(self._signer, self._network.peer_id, grant, now=self._wall())
        present = ShowCredentials(issuer=self._signer.peer_id, token=token)
        async with trio.open_nursery() as nursery:
            links = Links(self._network, ProtocolId.GATE, GATE, nursery)
            async with trio.open_nursery() as showing:
                for circuit in list(on_the_way.values())[:MAX_GATES]:
                    showing.start_soon(self._show, links, circuit, present)
            nursery.cancel_scope.cancel()

    async def _show(self, links: Links, circuit: Circuit, present: ShowCredentials) -> None:
        self._shown[circuit.gate] = trio.current_time()
        try:
            answer = await links.call(circuit.gate, (circuit.address,), present, max_wait_s=ANSWER_S)
        except (Unreachable, RemoteProtocolError) as exc:
            log.debug("gate.silent", gate=circuit.gate, why=exc.what)
        else:
            log.debug("gate.answered", gate=circuit.gate, answer=type(answer).__name__)
