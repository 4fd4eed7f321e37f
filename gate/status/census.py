"""What there is to count at a gate, put together in one `GateSnapshot`: for the status, the metrics and the log alike."""

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
from protocol.messages.gate import MAX_SEEN, MAX_TOLD, CircuitSeen, GateSnapshot, PeerSeen, RelayCaps
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
    """By how much the event loop is late: what waits in it, everybody waits for."""

    def __init__(self) -> None:
        self._late: deque[float] = deque(maxlen=LAG_KEPT)

    @property
    def worst(self) -> float:
        """Seconds, of the last minute."""
        return max(self._late, default=0.0)

    async def run(self) -> None:
        """Look at the clock once a second, for ever."""
        while True:
            due = trio.current_time() + LAG_EVERY_S
            await trio.sleep_until(due)
            self._late.append(max(0.0, trio.current_time() - due))


@dataclass
class Census:
    """Counts the gate."""

    network: Network
    holder: ShardStore
    relay: RelayReservations | None
    admit: Admit
    version: str
    incarnation: int
    refused: Mapping[str, Callable[[], Mapping[str, int]]]
    """Desk → its refusals by reason."""
    draining: Callable[[], bool] = lambda: False
    process: psutil.Process = field(default_factory=psutil.Process)
    lag: LoopLag = field(default_factory=LoopLag)
    began: float = field(default_factory=trio.current_time)
    _used: tuple[int, float] = (0, 0.0)
    """Bytes of memory and seconds of processors, as last read."""

    def take(self) -> GateSnapshot:
        """How the gate stands now. No I/O but a look at this process."""
        now = trio.current_time()
        relay = self.relay.snapshot(now) if self.relay is not None else None
        connected = self.network.connected()
        places = {slot.peer for slot in relay.slots} if relay is not None else set()
        with contextlib.suppress(psutil.Error, OSError):  # no more open files, say
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
            peers=self._peers(connected, places),
            adverts=self.holder.nodes,
            shards=self.holder.shards,
            advert_bytes=self.holder.size,
            refused=self._refused(relay),
            memory_bytes=self._used[0],
            cpu_s=_within_a_year(self._used[1]),
            lag_s=self.lag.worst,
            **(_relayed(relay) if relay is not None else {}),
        )

    def _peers(self, connected: Sequence[str], places: set[str]) -> tuple[PeerSeen, ...]:
        first = sorted(connected, key=lambda peer: (peer not in places, peer))[:MAX_SEEN]
        return tuple(
            PeerSeen(peer=peer, address=_shown(self.network.remote_address(peer)), place=peer in places)
            for peer in first
        )

    def _refused(self, relay: RelaySnapshot | None) -> dict[str, int]:
        told = {
            f"{desk} {why}": count for desk, read in self.refused.items() for why, count in read().items()
        }
        if relay is not None:
            told |= {f"relay {why}": count for why, count in relay.declined.items()}
        most = sorted(told, key=lambda reason: (-told[reason], reason))[:MAX_TOLD]
        return {reason: told[reason] for reason in most if told[reason]}

    async def keep_log(self) -> None:
        """Say the numbers every few minutes, for ever."""
        while True:
            await trio.sleep(LOG_EVERY_S)
            log.info("gate.status", **log_fields(self.take()))


def log_fields(standing: GateSnapshot) -> dict[str, Any]:
    """The numbers, without who is who."""
    return standing.model_dump(
        mode="json",
        exclude={"type", "peers", "busiest", "addresses", "caps", "version", "incarnation", "admit"},
    )


def _relayed(relay: RelaySnapshot) -> dict[str, Any]:
    busiest = sorted(relay.passages, key=lambda seen: -seen.bytes)[:MAX_SEEN]
    return {
        "caps": caps_of(relay.limits),
        "places": len(relay.slots),
        "places_given": relay.reserved,
        "circuits": len(relay.passages),
        "busiest": tuple(
            CircuitSeen(
                source=seen.source, target=seen.target, seconds=_within_a_year(seen.seconds), bytes=seen.bytes
            )
            for seen in busiest
        ),
        "circuits_begun": relay.connected,
        "circuits_ended": {str(why): count for why, count in relay.ended.items() if count},
        "relayed_bytes": relay.bytes,
    }


def caps_of(limits: RelayLimits) -> RelayCaps:
    """The limits as they are told."""
    return RelayCaps(**{name: getattr(limits, name) for name in RelayCaps.model_fields})


def _within_a_year(seconds: float) -> float:
    """The longest that a message can say."""
    return min(max(0.0, seconds), YEAR_S)


def _shown(address: Address | None) -> str | None:
    return address if address is not None and len(address) <= 200 else None
