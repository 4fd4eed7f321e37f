"""A gate's numbers in one `GateSnapshot`, for its operators on `/sark/gate/1`, for Prometheus and for the log."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psutil
import structlog
import trio

from gate.admission.policy import AdmissionPolicy
from protocol.messages.gate import (
    GATE,
    MAX_LISTED,
    MAX_REASONS,
    ConnectedPeer,
    GateSnapshot,
    LiveCircuit,
    RelayCaps,
)
from protocol.messages.index import RefusedMessage
from protocol.messages.work import ShowCredentials
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.index.shard_store import ShardStore
from swarm.net.cost import TOKEN_US
from swarm.net.link import Link
from swarm.net.links import serve_links
from swarm.net.network import Network
from swarm.net.reservations import RelayReservations

STATUS_US: Final = 10_000.0
"""Processor time of one `GateSnapshot`, in µs (an estimate)."""
LOG_EVERY_S: Final = 300.0
LAG_EVERY_S: Final = 1.0
LAG_KEPT: Final = 60
MAX_ADDRESSES: Final = 16
YEAR_S: Final = 31_536_000.0
NOT_LOGGED: Final = {"peers", "busiest", "addresses", "caps", "version", "incarnation", "admit"}

log = structlog.get_logger("sark.gate")


@dataclass(eq=False)
class Census:
    """Takes the snapshots, and answers `/sark/gate/1`."""

    network: Network
    holder: ShardStore
    relay: RelayReservations | None
    policy: AdmissionPolicy
    version: str
    incarnation: int
    refused: Mapping[str, Mapping[str, int]]
    """Service → its current counts of refusals by reason, in addition to this service's own."""
    draining: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._refused = {**self.refused, "gate": self._calls}
        self.process = psutil.Process()
        self._used = (0, 0.0)
        """(bytes of memory, processor seconds), as last read."""
        self._lags: deque[float] = deque(maxlen=LAG_KEPT)
        """Delays of the event loop in the last minute."""
        self._began = trio.current_time()
        serve_links(self.network, ProtocolId.GATE, GATE, self._answer, cost=self._cost_us)

    async def run(self) -> None:
        """Measure the event loop once a second, and log the numbers every few minutes, until cancelled."""
        log_at = trio.current_time() + LOG_EVERY_S
        while True:
            due = trio.current_time() + LAG_EVERY_S
            await trio.sleep_until(due)
            now = trio.current_time()
            self._lags.append(max(0.0, now - due))
            if now >= log_at:
                log_at = now + LOG_EVERY_S
                log.info("gate.status", **self.take().model_dump(mode="json", exclude=NOT_LOGGED))

    def take(self) -> GateSnapshot:
        """The status now. No I/O except reading this process's usage."""
        now = trio.current_time()
        relay = self.relay
        connected = self.network.connected()
        reserved = {each.peer for each in relay.reservations(now)} if relay is not None else set()
        first = sorted(connected, key=lambda peer: (peer not in reserved, peer))[:MAX_LISTED]
        with contextlib.suppress(psutil.Error, OSError):  # too many open files, for example
            times = self.process.cpu_times()
            self._used = (self.process.memory_info().rss, times.user + times.system)
        return GateSnapshot(
            version=self.version,
            incarnation=self.incarnation,
            uptime_s=_within_a_year(now - self._began),
            draining=self.draining(),
            admit=str(self.policy.admit),
            addresses=tuple(self.network.addresses[:MAX_ADDRESSES]),
            connected=len(connected),
            peers=tuple(self._peer(peer, peer in reserved) for peer in first),
            adverts=self.holder.nodes,
            shards=self.holder.shards,
            advert_bytes=self.holder.size,
            refused=self._refusals(relay),
            memory_bytes=self._used[0],
            cpu_s=_within_a_year(self._used[1]),
            lag_s=max(self._lags, default=0.0),
            **(_relayed(relay, now) if relay is not None else {}),
        )

    def _peer(self, peer: str, reserved: bool) -> ConnectedPeer:
        address = self.network.remote_address(peer)
        if address is not None and len(address) > 200:
            address = None
        return ConnectedPeer(peer=peer, address=address, reserved=reserved)

    def _refusals(self, relay: RelayReservations | None) -> dict[str, int]:
        services: dict[str, Mapping[Any, int]] = dict(self._refused)
        services["call"] = {"busy": self.network.governor.busy}
        if relay is not None:
            services["relay"] = relay.declined
        counts = {
            f"{service} {why}": count
            for service, reasons in services.items()
            for why, count in reasons.items()
            if count
        }
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_REASONS])

    def _cost_us(self, message: Message) -> float:
        return TOKEN_US if isinstance(message, ShowCredentials) else STATUS_US

    async def _answer(self, link: Link, message: Message) -> Message:
        match message:
            case ShowCredentials():
                answer: Message = self.policy.authenticate(link.peer, message)
            case _:
                answer = self._refusal(link.peer) or self.take()
        if isinstance(answer, RefusedMessage):
            self._calls[answer.reason] += 1
        return answer

    def _refusal(self, peer: str) -> RefusedMessage | None:
        if not self.policy.operates(peer):
            return RefusedMessage(
                reason=Reason.NOT_ALLOWED, detail="only its operators may read this gate's status"
            )
        return None


def _relayed(relay: RelayReservations, now: float) -> dict[str, Any]:
    busiest = sorted(relay.circuits, key=lambda circuit: -circuit.carried)[:MAX_LISTED]
    return {
        "caps": RelayCaps(**{name: getattr(relay.limits, name) for name in RelayCaps.model_fields}),
        "reservations": len(relay.reservations(now)),
        "reservations_made": relay.reserved,
        "circuits": len(relay.circuits),
        "busiest": tuple(
            LiveCircuit(
                source=c.source, target=c.target, seconds=_within_a_year(now - c.began), bytes=c.carried
            )
            for c in busiest
        ),
        "circuits_begun": relay.connected,
        "circuits_ended": {str(why): count for why, count in relay.ended.items() if count},
        "relayed_bytes": relay.bytes,
    }


def _within_a_year(seconds: float) -> float:
    """Clamp `seconds` to the range that a message can express."""
    return min(max(0.0, seconds), YEAR_S)
