"""Devices of the swarm as the first system's workers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from protocol.words import WorkerState
from results.row.form import JsonModel, utc
from scheduler.output.fleet import DeviceInfo

GB: Final = 1024**3


class WorkerStatus(StrEnum):
    """How a worker stands."""

    ACTIVE = "active"
    BUSY = "busy"
    CLEANUP = "cleanup"
    FAULTY = "faulty"


WORKER: Final[Mapping[WorkerState | None, WorkerStatus]] = {
    WorkerState.ACTIVE: WorkerStatus.ACTIVE,
    WorkerState.BUSY: WorkerStatus.BUSY,
    WorkerState.CLEANUP: WorkerStatus.CLEANUP,
    WorkerState.DRAINING: WorkerStatus.CLEANUP,  # it takes no new work now
    WorkerState.FAULTY: WorkerStatus.FAULTY,
    None: WorkerStatus.FAULTY,  # it does not answer: what a missed heartbeat was
}


class FirstDeviceInfo(JsonModel):
    """A device, by the first system's names."""

    Soc: str
    Ram: str
    """In GB of 1,073,741,824 bytes; empty: not known."""
    DeviceOs: str
    UDID: str
    """Its hardware's id: what `device_udid` of a job names."""


class FirstWorker(JsonModel):
    """A device that was found in the swarm."""

    worker_id: str
    """Its peer id: what `worker_id` of a job names."""
    device_name: str
    ip_address: str
    """Empty: others reach it through a gate, or by a name."""
    capabilities: tuple[str, ...]
    """Its compute units."""
    device_info: FirstDeviceInfo
    status: WorkerStatus
    detail: str
    """Why it takes no work, or does not answer."""
    queue_size: int | None
    """Tickets that wait there, anybody's; null: not told."""
    last_heartbeat: str | None
    """When it answered last."""


class FirstWorkers(JsonModel):
    """Every device that can be found."""

    count: int
    workers: tuple[FirstWorker, ...]
    note: str = ""
    """Why there are none, where the swarm cannot be looked at."""


class FirstWorkerHealth(JsonModel):
    """Whether a worker answers and is well."""

    worker_id: str
    is_healthy: bool
    last_heartbeat: str | None
    seconds_since_heartbeat: float | None
    status: WorkerStatus


class FirstWorkersHealth(JsonModel):
    """The same of all."""

    total: int
    healthy: int
    unhealthy: int
    workers: tuple[FirstWorkerHealth, ...]
    note: str = ""


def first_worker(device: DeviceInfo, at: float) -> FirstWorker:
    """A device as a worker. `at`: when it was looked at, in wall seconds since 1970."""
    answers = device.unreachable is None
    return FirstWorker(
        worker_id=device.peer,
        device_name=device.name,
        ip_address=ip_address(device.addresses),
        capabilities=tuple(unit.unit for unit in device.units),
        device_info=FirstDeviceInfo(
            Soc=device.soc,
            Ram="" if device.ram is None else f"{round(device.ram / GB, 1):g}",
            DeviceOs=device.os,
            UDID=device.device,
        ),
        status=WORKER[device.state or WorkerState.ACTIVE] if answers else WORKER[None],
        detail=device.why or device.unreachable or "",
        queue_size=device.queue,
        last_heartbeat=utc(at) if answers else None,
    )


def worker_health(worker: FirstWorker, at: float, now: float) -> FirstWorkerHealth:
    """`at`: when it was looked at; `now`: both in wall seconds."""
    heard = worker.last_heartbeat is not None
    return FirstWorkerHealth(
        worker_id=worker.worker_id,
        is_healthy=heard and worker.status is not WorkerStatus.FAULTY,
        last_heartbeat=worker.last_heartbeat,
        seconds_since_heartbeat=round(max(0.0, now - at), 1) if heard else None,
        status=worker.status,
    )


def workers_health(workers: Sequence[FirstWorker], at: float, now: float, note: str) -> FirstWorkersHealth:
    """The same of all."""
    each = tuple(worker_health(one, at, now) for one in workers)
    healthy = sum(one.is_healthy for one in each)
    return FirstWorkersHealth(
        total=len(each), healthy=healthy, unhealthy=len(each) - healthy, workers=each, note=note
    )


def ip_address(addresses: Sequence[str]) -> str:
    """The first that others may dial, this machine's own last; empty: none, or only through a gate."""
    found = [
        parts[2]
        for parts in (address.split("/") for address in addresses)
        if len(parts) > 2 and parts[1] in ("ip4", "ip6") and "p2p-circuit" not in parts
    ]
    return min(found, key=lambda one: one.startswith("127.") or one == "::1", default="")
