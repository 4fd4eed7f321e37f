"""Collects a gate's numbers in one `GateSnapshot`, for the status, the metrics and the log."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psutil
import structlog
import trio

from gate.settings import Admit
from protocol.messages.gate import (
    MAX_LISTED,
    MAX_REASONS,
    ConnectedPeer,
    GateSnapshot,
    LiveCircuit,
    RelayCaps,
)
from swarm.index.shard_store import ShardStore
from swarm.net.addresses import Address
from swarm.net.network import Network
from swarm.net.reservations import RelayLimits, RelayReservations, RelaySnapshot

LOG_EVERY_S: Final = 300.0
LAG_EVERY_S: Final = 1.0
LAG_KEPT: Final = 60
MAX_ADDRESSES: Final = 16
YEAR_S: Final = 31_536_000.0

log = structlog.get_logger("sark.gate")


class LoopLag:
    """Measures the delay of the event loop."""

    def __init__(self) -> None:
        self._late: deque[float] = deque(maxlen=LAG_KEPT)

    @property
    def worst(self) -> float:
        """Seconds, of the last minute."""
        return max(self._late, default=0.0)

    async def run(self) -> None:
        """Measure once a second until cancelled."""
        while True:
            due = trio.current_time() + LAG_EVERY_S
            await trio.sleep_until(due)
            self._late.append(max(0.0, trio.current_time() - due))


@dataclass
class Census:
    """Takes the snapshots."""

    network: Network
    holder: ShardStore
    relay: RelayReservations | None
    admit: Admit
    version: str
    incarnation: int
    refused: Mapping[str, Callable[[], Mapping[str, int]]]
    """Service → its refusals by reason."""
    draining: Callable[[], bool] = lambda: False
    process: psutil.Process = field(default_factory=psutil.Process)
    lag: LoopLag = field(default_factory=LoopLag)
    began: float = field(default_factory=trio.current_time)
    _used: tuple[int, float] = (0, 0.0)
    """Bytes of memory and processor seconds, as last read."""

    def take(self) -> GateSnapshot:
        """The status now. No I/O except reading this process's usage."""
        now = trio.current_time()
        relay = self.relay.snapshot(now) if self.relay is not None else None
        connected = self.network.connected()
        reserved = {each.peer for each in relay.reservations} if relay is not None else set()
        with contextlib.suppress(psutil.Error, OSError):  # too many open files, for example
            times = self.process.cpu_times()
            self._used = (self.process.memory_info().rss, times.user + times.system)
        return GateSnapshot(
            version=self.version,
            incarnation=self.incarnation,
            uptime_s=_within_a_year(now - self.began),
            draining=self.draining(),
            admit=str(self.admit),
            addresses=tuple(self.network.addresses[:MAX_ADDRESSES]),
            connected=len(connected),
            peers=self._peers(connected, reserved),
            adverts=self.holder.nodes,
            shards=self.holder.shards,
            advert_bytes=self.holder.size,
            refused=self._refused(relay),
            memory_bytes=self._used[0],
            cpu_s=_within_a_year(self._used[1]),
            lag_s=self.lag.worst,
            **(_relayed(relay) if relay is not None else {}),
        )

    def _peers(self, connected: Sequence[str], reserved: set[str]) -> tuple[ConnectedPeer, ...]:
        first = sorted(connected, key=lambda peer: (peer not in reserved, peer))[:MAX_LISTED]
        return tuple(
            ConnectedPeer(
                peer=peer, address=_shown(self.network.remote_address(peer)), reserved=peer in reserved
            )
            for peer in first
        )

    def _refused(self, relay: RelaySnapshot | None) -> dict[str, int]:
        counts = {
            f"{service} {why}": count
            for service, read in self.refused.items()
            for why, count in read().items()
            if count
        }
        if relay is not None:
            counts |= {f"relay {why}": count for why, count in relay.declined.items() if count}
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_REASONS])

    async def keep_log(self) -> None:
        """Log the numbers every few minutes until cancelled."""
        while True:
            await trio.sleep(LOG_EVERY_S)
            log.info("gate.status", **log_fields(self.take()))


def log_fields(snapshot: GateSnapshot) -> dict[str, Any]:
    """The numbers, without peers."""
    return snapshot.model_dump(
        mode="json",
        exclude={"peers", "busiest", "addresses", "caps", "version", "incarnation", "admit"},
    )


def _relayed(relay: RelaySnapshot) -> dict[str, Any]:
    busiest = sorted(relay.circuits, key=lambda seen: -seen.bytes)[:MAX_LISTED]
    return {
        "caps": caps_of(relay.limits),
        "reservations": len(relay.reservations),
        "reservations_made": relay.reserved,
        "circuits": len(relay.circuits),
        "busiest": tuple(
            LiveCircuit(
                source=seen.source, target=seen.target, seconds=_within_a_year(seen.seconds), bytes=seen.bytes
            )
            for seen in busiest
        ),
        "circuits_begun": relay.connected,
        "circuits_ended": {str(why): count for why, count in relay.ended.items() if count},
        "relayed_bytes": relay.bytes,
    }


def caps_of(limits: RelayLimits) -> RelayCaps:
    """The limits, as a message."""
    return RelayCaps(**{name: getattr(limits, name) for name in RelayCaps.model_fields})


def _within_a_year(seconds: float) -> float:
    """Clamp to what a message can express."""
    return min(max(0.0, seconds), YEAR_S)


def _shown(address: Address | None) -> str | None:
    return address if address is not None and len(address) <= 200 else None
