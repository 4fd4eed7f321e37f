"""A gate: a node with a known address that routes for the swarm, stores index shards, relays for nodes that cannot be dialled, and runs
no tasks.

    policy ── asked by ─▶ index, pools, relay       census ─▶ status, metrics, log

On a signal the gate accepts nothing new and waits a while for live circuits. On a second signal it stops at once.

    up ── signal ──▶ draining ── no circuit left, or the grace period over, or another signal ──▶ stopped

Peers with a reservation get one at another gate, or here once the gate is back. Circuits last until the grace period ends; their peers
then connect by another path.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Final

import structlog
import trio

from gate.admission.policy import AdmissionPolicy
from gate.settings import GateSettings
from gate.status.census import Census
from gate.status.metrics import page_of, serve_metrics
from swarm.base.home import Home
from swarm.base.text import count
from swarm.join.known_gates import addresses_file
from swarm.join.node import END_OF_INPUT, RunningNode, open_node, watch_stop_requests
from swarm.net.reservations import RelayReservations
from swarm.p2p.connection_gater import ConnectionGater
from swarm.pools.enrolment import enroller
from swarm.pools.service import PoolNode

log = structlog.get_logger("sark.gate")

LOOK_S: Final = 0.25
"""Seconds between counts of the circuits while the gate drains."""
STOPPING: Final = "stopping"


async def run_gate(
    home: Home,
    settings: GateSettings,
    *,
    with_stdin: bool = False,
    say: Callable[[str], object] = lambda line: None,
    task_status: trio.TaskStatus[RunningNode] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a gate until a signal. Raises `ResourceError` for a port or folder that cannot be used.

    `with_stdin`: the end of standard input stops the gate too, without draining. `say` is called with lines for the user when the gate
    stops.
    """
    policy, stops = AdmissionPolicy(home, settings), DrainSignals()
    admit = partial(policy.refusal, service="index")
    arrivals = ConnectionGater(settings.arrival_limits, policy.knows)
    async with (
        open_node("gate", home, settings, holder=True, admit=admit, gater=arrivals, tell=say) as node,
        trio.open_nursery() as nursery,
    ):
        pools = _pools(node, settings, policy)
        policy.served = pools.registry.manifest
        relay = None
        if settings.relay_limits is not None:
            relay = RelayReservations(settings.relay_limits, policy.admits, policy.answers_for)
            node.network.serve_relay(relay)
        await nursery.start(policy.run)
        node.network.governor.class_of = policy.class_of
        node.network.governor.memory.limits = settings.memory_limits
        await nursery.start(pools.run)
        census = Census(
            node.network,
            node.index.holder,
            relay,
            policy,
            version("sark-node"),
            node.incarnation,
            refused={"connection": arrivals.refused, "index": node.index.refused, "pool": pools.refused},
            draining=stops.first.is_set,
        )
        nursery.start_soon(census.run)
        if settings.metrics:
            page = page_of(census.take, node.identity.peer_id)
            await nursery.start(serve_metrics, settings.metrics, page)
        await nursery.start(partial(watch_stop_requests, stops.request, with_stdin=with_stdin))
        addresses = full_addresses(node)
        with addresses_file(home.gate_file, addresses):
            log.info(
                "gate.up", addresses=list(addresses), peer=node.identity.peer_id, admit=str(settings.admit)
            )
            task_status.started(node)
            await stops.first.wait()
            log.info("gate.stopping", signal=stops.name)
            if relay is not None and not with_stdin:
                if circuits := len(relay.circuits):
                    some = count(circuits, "relayed connection")
                    say(
                        f"draining: {some} may finish within {settings.drain_s:g} s; press Ctrl-C again to stop at once"
                    )
                why = await drain(relay, settings.drain_s, stops.again)
                log.info("gate.drained", why=why, circuits=len(relay.circuits))
            say(STOPPING)
        nursery.cancel_scope.cancel()


def _pools(node: RunningNode, settings: GateSettings, policy: AdmissionPolicy) -> PoolNode:
    """The gate's part in pools: it admits members to the pools of its home, and stores the newest manifest of any pool."""
    pools = PoolNode(
        node.network,
        node.index,
        node.home,
        None,
        name="gate",
        wall=time.time,
        rng=node.rng,
        enrol=enroller(node.home, time.time, policy.enrolled),
        gates=lambda: node.gates,
        admit=partial(policy.refusal, service="pool"),
        serves=settings.pools,
    )
    pools.serve()
    return pools


async def drain(relay: RelayReservations, grace_s: float, again: trio.Event) -> str:
    """Accept nothing new and wait for live circuits. Returns why the wait ended."""
    relay.draining = True
    with trio.move_on_after(grace_s):
        while relay.circuits:
            with trio.move_on_after(LOOK_S):
                await again.wait()
                return "another signal"
        return "no circuit was left"
    return "the grace period ended"


class DrainSignals:
    """Requests to stop: signals, and the end of standard input if it counts. The first request sets `name`, the second sets `again`."""

    def __init__(self) -> None:
        self.first = trio.Event()
        self.again = trio.Event()
        self.name = ""

    def request(self, name: str) -> None:
        """Note another request. The end of input is final, because the parent process is gone."""
        if self.first.is_set() or name == END_OF_INPUT:
            self.again.set()
        if not self.first.is_set():
            self.name = name
            self.first.set()


def full_addresses(node: RunningNode) -> tuple[str, ...]:
    """The gate's addresses in the form for `--gate`, loopback last."""
    ordered = sorted(node.network.addresses, key=lambda address: "/127." in address or "/::1/" in address)
    return tuple(f"{address}/p2p/{node.identity.peer_id}" for address in ordered)
