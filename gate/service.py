"""A gate: a node with a known address that routes for the swarm, keeps index shards, relays for nodes that nobody can dial, and runs
nothing for anybody.

    reception ── asked by ─▶ index, pools, relay       census ─▶ status, metrics, log       told to stop ─▶ draining ─▶ over
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
from protocol.messages.pool import Enrolled, EnrolRequest
from protocol.words import Reason
from swarm.base.home import Home
from swarm.join.enter import Entered, enter, hear_stops
from swarm.join.known_gates import addresses_left
from swarm.net.addresses import PeerId
from swarm.net.reservations import RelayReservations
from swarm.p2p.connection_gater import ConnectionGater
from swarm.pools.service import PoolNode

log = structlog.get_logger("sark.gate")

MAX_ENROLLING: Final = 16
"""Newcomers that wait for the disk at a time."""
STOPPING: Final = "stopping"


async def run_gate(
    home: Home,
    settings: GateSettings,
    *,
    with_stdin: bool = False,
    say: Callable[[str], object] = lambda line: None,
    task_status: trio.TaskStatus[Entered] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Be a gate until told to stop. Raises `ResourceError` for a port or folder that cannot be had.

    `with_stdin`: the end of standard input ends it too, and nothing is waited for. `say` is given lines for whoever started it, once
    it was told to stop.
    """
    reception, stops = AdmissionPolicy(home, settings), DrainSignals()
    admit = partial(reception.refusal, wanted="index")
    arrivals = ConnectionGater(settings.arrival_limits, reception.knows)
    async with (
        enter("gate", home, settings, holder=True, admit=admit, arrivals=arrivals, tell=say) as here,
        trio.open_nursery() as nursery,
    ):
        pools = _pools(here, settings, reception)
        reception.served = pools.shelf.manifest
        relay = _relay(here, settings, reception)
        await nursery.start(reception.run)
        await nursery.start(pools.run)
        refused = {
            "connection": lambda: arrivals.refused,
            "index": lambda: here.index.refused,
            "pool": lambda: pools.refused,
        }
        await _show(here, settings, reception, relay, refused, stops, nursery)
        await nursery.start(partial(hear_stops, stops.asked, with_stdin=with_stdin))
        addresses = full_addresses(here)
        with addresses_left(home.gate_file, addresses):
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
        return len(relay.snapshot(trio.current_time()).passages)

    if circuits():
        some = f"{circuits()} relayed connection{'s' if circuits() != 1 else ''}"
        say(f"draining: {some} may go on for {grace_s:g} s; Ctrl-C again ends at once")
    over = await drain(relay, circuits, grace_s, again)
    log.info("gate.drained", why=str(over), circuits=circuits())


def _pools(here: Entered, settings: GateSettings, reception: AdmissionPolicy) -> PoolNode:
    """What the gate does for pools: lets into those of its home, and keeps the newest manifest of any."""
    enrolment, one = PoolEnrolment(here.home, time.time), trio.CapacityLimiter(1)

    async def enrol(peer: PeerId, message: EnrolRequest) -> Enrolled | RefusedMessage:
        if (
            one.statistics().tasks_waiting >= MAX_ENROLLING
        ):  # keys cost nothing, and a look at a ticket milliseconds
            return RefusedMessage(
                reason=Reason.OVERLOADED, detail="too many newcomers at once", retry_after_s=2.0
            )
        answer = await trio.to_thread.run_sync(enrolment, peer, message, limiter=one)  # it waits for the disk
        if isinstance(answer, Enrolled):
            reception.enrolled(peer)
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
        admit=partial(reception.refusal, wanted="pool"),
        serves=settings.pools,
    )
    node.serve()
    return node


def _relay(here: Entered, settings: GateSettings, reception: AdmissionPolicy) -> RelayReservations | None:
    """The desk that lends places and circuits, unless the operator wants none."""
    limits = settings.relay_limits
    if limits is None:
        return None
    desk = RelayReservations(limits, reception.lets_in, reception.answers_for)
    here.network.serve_relay(desk)
    return desk


async def _show(
    here: Entered,
    settings: GateSettings,
    reception: AdmissionPolicy,
    relay: RelayReservations | None,
    refused: Mapping[str, Callable[[], Mapping[str, int]]],
    stops: DrainSignals,
    nursery: trio.Nursery,
) -> None:
    """What operators see: status, log and metrics."""
    desk = GateHandlers(reception)
    census = Census(
        here.network,
        here.index.holder,
        relay,
        settings.admit,
        version("sark-node"),
        here.incarnation,
        {**refused, "gate": lambda: desk.refused},
        draining=stops.first.is_set,
    )
    desk.serve(here.network, census.take)
    nursery.start_soon(census.lag.run)
    nursery.start_soon(census.keep_log)
    if settings.metrics:
        page = page_of(census.take, here.identity.peer_id)
        await nursery.start(serve_metrics, settings.metrics, page)


def full_addresses(here: Entered) -> tuple[str, ...]:
    """What others put behind `--gate`, loopback last."""
    ordered = sorted(here.network.addresses, key=lambda address: "/127." in address or "/::1/" in address)
    return tuple(f"{address}/p2p/{here.identity.peer_id}" for address in ordered)
