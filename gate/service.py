"""A gate: a node with a known address that routes for the swarm, stores index shards, relays for nodes that cannot be dialled, and runs
no tasks.

    policy ── asked by ─▶ index, pools, relay       census ─▶ status, metrics, log       a signal to stop ─▶ draining ─▶ end
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Final

import structlog
import trio

from gate.admission.enrolment import PoolEnrolment
from gate.admission.policy import AdmissionPolicy
from gate.draining import DrainSignals, drain
from gate.settings import GateSettings
from gate.status.census import Census
from gate.status.handlers import GateHandlers
from gate.status.metrics import page_of
from gate.status.metrics_http import serve_metrics
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import EnrolRequest, ManifestMessage
from protocol.words import Reason
from swarm.base.home import Home
from swarm.join.known_gates import addresses_file
from swarm.join.node import RunningNode, open_node, watch_stop_requests
from swarm.net.addresses import PeerId
from swarm.net.reservations import RelayReservations
from swarm.p2p.connection_gater import ConnectionGater
from swarm.pools.service import PoolNode

log = structlog.get_logger("sark.gate")

MAX_ENROLLING: Final = 16
"""Enrolments that wait for the disk at a time."""
STOPPING: Final = "stopping"


async def run_gate(
    home: Home,
    settings: GateSettings,
    *,
    with_stdin: bool = False,
    say: Callable[[str], object] = lambda line: None,
    task_status: trio.TaskStatus[RunningNode] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Be a gate until a signal. Raises `ResourceError` for a port or folder that cannot be used.

    `with_stdin`: the end of standard input ends it too, without draining. `say` is called with lines for whoever started it, once
    it stops.
    """
    policy, stops = AdmissionPolicy(home, settings), DrainSignals()
    admit = partial(policy.refusal, wanted="index")
    arrivals = ConnectionGater(settings.arrival_limits, policy.knows)
    async with (
        open_node("gate", home, settings, holder=True, admit=admit, gater=arrivals, tell=say) as here,
        trio.open_nursery() as nursery,
    ):
        pools = _pools(here, settings, policy)
        policy.served = pools.registry.manifest
        relay = _relay(here, settings, policy)
        await nursery.start(policy.run)
        await nursery.start(pools.run)
        refused = {
            "connection": lambda: arrivals.refused,
            "index": lambda: here.index.refused,
            "pool": lambda: pools.refused,
        }
        await _show(here, settings, policy, relay, refused, stops, nursery)
        await nursery.start(partial(watch_stop_requests, stops.asked, with_stdin=with_stdin))
        addresses = full_addresses(here)
        with addresses_file(home.gate_file, addresses):
            log.info(
                "gate.up", addresses=list(addresses), peer=here.identity.peer_id, admit=str(settings.admit)
            )
            task_status.started(here)
            await stops.first.wait()
            log.info("gate.stopping", signal=stops.name)
            if relay is not None and not with_stdin:
                await _drain(relay, settings.drain_s, stops.again, say)
            say(STOPPING)
        nursery.cancel_scope.cancel()


async def _drain(
    relay: RelayReservations, grace_s: float, again: trio.Event, say: Callable[[str], object]
) -> None:
    def circuits() -> int:
        return len(relay.snapshot(trio.current_time()).circuits)

    if circuits():
        some = f"{circuits()} relayed connection{'s' if circuits() != 1 else ''}"
        say(f"draining: {some} may finish within {grace_s:g} s; press Ctrl-C again to stop at once")
    over = await drain(relay, circuits, grace_s, again)
    log.info("gate.drained", why=str(over), circuits=circuits())


def _pools(here: RunningNode, settings: GateSettings, policy: AdmissionPolicy) -> PoolNode:
    """The gate's part in pools: it admits to those of its home, and stores the newest manifest of any."""
    enrolment, one = PoolEnrolment(here.home, time.time), trio.CapacityLimiter(1)

    async def enrol(peer: PeerId, message: EnrolRequest) -> ManifestMessage | RefusedMessage:
        if one.statistics().tasks_waiting >= MAX_ENROLLING:  # fresh keys cost nothing, a ticket milliseconds
            return RefusedMessage(
                reason=Reason.OVERLOADED, detail="too many newcomers at once", retry_after_s=2.0
            )
        answer = await trio.to_thread.run_sync(enrolment, peer, message, limiter=one)  # it waits for the disk
        if isinstance(answer, ManifestMessage):
            policy.enrolled(peer)
        return answer

    node = PoolNode(
        here.network,
        here.index,
        here.home,
        None,
        name="gate",
        wall=time.time,
        rng=here.rng,
        enrol=enrol,
        gates=lambda: here.gates,
        admit=partial(policy.refusal, wanted="pool"),
        serves=settings.pools,
    )
    node.serve()
    return node


def _relay(here: RunningNode, settings: GateSettings, policy: AdmissionPolicy) -> RelayReservations | None:
    """The relay's reservations and circuits, unless the operator turned the relay off."""
    limits = settings.relay_limits
    if limits is None:
        return None
    relay = RelayReservations(limits, policy.admits, policy.answers_for)
    here.network.serve_relay(relay)
    return relay


async def _show(
    here: RunningNode,
    settings: GateSettings,
    policy: AdmissionPolicy,
    relay: RelayReservations | None,
    refused: Mapping[str, Callable[[], Mapping[str, int]]],
    stops: DrainSignals,
    nursery: trio.Nursery,
) -> None:
    """What operators see: status, log and metrics."""
    handlers = GateHandlers(policy)
    census = Census(
        here.network,
        here.index.holder,
        relay,
        settings.admit,
        version("sark-node"),
        here.incarnation,
        {**refused, "gate": lambda: handlers.refused},
        draining=stops.first.is_set,
    )
    handlers.serve(here.network, census.take)
    nursery.start_soon(census.lag.run)
    nursery.start_soon(census.keep_log)
    if settings.metrics:
        page = page_of(census.take, here.identity.peer_id)
        await nursery.start(serve_metrics, settings.metrics, page)


def full_addresses(here: RunningNode) -> tuple[str, ...]:
    """The gate's addresses as `--gate` takes them, loopback last."""
    ordered = sorted(here.network.addresses, key=lambda address: "/127." in address or "/::1/" in address)
    return tuple(f"{address}/p2p/{here.identity.peer_id}" for address in ordered)
