"""The predecessor's endpoints for workers, with its JSON shapes. Devices join the swarm by themselves: a client's claims about them change
nothing, and each response says so. Only the owner's own workers can be controlled."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Path, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import SarkError
from protocol.messages.work import Action
from protocol.words import WorkerState
from results.row.form import JsonModel, utc
from scheduler.output.fleet import DeviceInfo, FleetWatcher, device_info
from swarm.base.home import Home
from swarm.base.threads import DISK
from swarm.join.known_gates import worker_addresses
from swarm.net.identity import load_or_create
from web.http.context import ApiContext, Context
from web.http.problems import HttpProblem, errors
from web.routes.fleet import Watcher, snapshot_of

GB: Final = 1024**3


class CompatWorkerStatus(StrEnum):
    """A worker's state."""

    ACTIVE = "active"
    BUSY = "busy"
    CLEANUP = "cleanup"
    FAULTY = "faulty"


WORKER: Final[Mapping[WorkerState, CompatWorkerStatus]] = {
    WorkerState.ACTIVE: CompatWorkerStatus.ACTIVE,
    WorkerState.BUSY: CompatWorkerStatus.BUSY,
    WorkerState.CLEANUP: CompatWorkerStatus.CLEANUP,
    WorkerState.DRAINING: CompatWorkerStatus.CLEANUP,  # takes no new work
    WorkerState.FAULTY: CompatWorkerStatus.FAULTY,
}


class CompatDeviceInfo(JsonModel):
    """A device, by the predecessor's field names."""

    Soc: str
    Ram: str
    """Memory in GB of 1,073,741,824 bytes; empty if unknown."""
    DeviceOs: str
    UDID: str
    """Hardware id, which is the `device_udid` of a job."""


class CompatWorker(JsonModel):
    """A device of the swarm."""

    worker_id: str
    """Peer id, which is the `worker_id` of a job."""
    device_name: str
    ip_address: str
    """IP address of the device. Empty if the device is only reachable through a gate or by name."""
    capabilities: tuple[str, ...]
    """Compute units of the device."""
    device_info: CompatDeviceInfo
    status: CompatWorkerStatus
    detail: str
    """Why the worker takes no work, or does not answer."""
    queue_size: int | None
    """Number of queued leases of all schedulers. Null if unknown."""
    last_heartbeat: str | None
    """Time of the worker's last answer."""


class CompatWorkers(JsonModel):
    """All devices that can be found."""

    count: int
    workers: tuple[CompatWorker, ...]
    note: str = ""
    """Why the list is empty, if the swarm cannot be reached."""


class CompatWorkerHealth(JsonModel):
    """Whether a worker answers and is well."""

    worker_id: str
    is_healthy: bool
    last_heartbeat: str | None
    seconds_since_heartbeat: float | None
    status: CompatWorkerStatus


class CompatWorkersHealth(JsonModel):
    """Health of all workers."""

    total: int
    healthy: int
    unhealthy: int
    workers: tuple[CompatWorkerHealth, ...]
    note: str = ""


def compat_worker(device: DeviceInfo, at: float) -> CompatWorker:
    """A device as a worker. `at`: wall time of the snapshot."""
    answers = device.unreachable is None
    state = device.state or WorkerState.ACTIVE
    return CompatWorker(
        worker_id=device.peer,
        device_name=device.name,
        ip_address=ip_address(device.addresses),
        capabilities=tuple(unit.unit for unit in device.units),
        device_info=CompatDeviceInfo(
            Soc=device.soc,
            Ram="" if device.ram is None else f"{round(device.ram / GB, 1):g}",
            DeviceOs=device.os,
            UDID=device.device,
        ),
        status=WORKER[state] if answers else CompatWorkerStatus.FAULTY,  # as after a missed heartbeat
        detail=device.why or device.unreachable or "",
        queue_size=device.queue,
        last_heartbeat=utc(at) if answers else None,
    )


def worker_health(worker: CompatWorker, at: float) -> CompatWorkerHealth:
    """`at`: wall time of the snapshot."""
    answers = worker.last_heartbeat is not None
    return CompatWorkerHealth(
        worker_id=worker.worker_id,
        is_healthy=answers and worker.status is not CompatWorkerStatus.FAULTY,
        last_heartbeat=worker.last_heartbeat,
        seconds_since_heartbeat=round(max(0.0, time.time() - at), 1) if answers else None,
        status=worker.status,
    )


def ip_address(addresses: Sequence[str]) -> str:
    """The first IP address that other nodes may dial, loopback last; '': the device is reachable only through a gate or by name."""
    direct = [
        parts[2]
        for parts in (address.split("/") for address in addresses)
        if len(parts) > 2 and parts[1] in ("ip4", "ip6") and "p2p-circuit" not in parts
    ]
    return min(direct, key=lambda ip: ip.startswith("127.") or ip == "::1", default="")


ACTIONS: Final = {CompatWorkerStatus.ACTIVE: Action.RESUME, CompatWorkerStatus.CLEANUP: Action.PAUSE}
"""Statuses that a client may set, with the action of each. A client cannot set busy and faulty."""

api = APIRouter(prefix="/api", tags=["compat"])

T = TypeVar("T", bound=BaseModel)
Text = Annotated[str, Field(max_length=1000)]
WorkerId = Annotated[str, Path(max_length=100, description="A worker's peer id.")]


class _CompatRequest(BaseModel):
    model_config = ConfigDict(extra="ignore")  # like the predecessor


class _Register(_CompatRequest):
    device_name: Text = ""
    ip_address: Text = ""
    capabilities: Annotated[list[Text], Field(max_length=1000)] = []
    device_info: dict[str, Any] = {}


class _SetStatus(_CompatRequest):
    status: CompatWorkerStatus


class CompatRegistered(JsonModel):
    """The response to a registration: nothing is stored, the device has to join by itself."""

    worker_id: str
    """Peer id of the device if it is in the swarm, else a made-up name."""
    status: str = "registered"
    action: str
    """reconnected: a device with this UDID is in the swarm. created: the device must still join."""
    joined: bool
    """Whether the device is in the swarm and gets work."""
    how_to_join: str
    """Command to run on the device."""
    note: str


class CompatStatus(JsonModel):
    """A worker's status."""

    worker_id: str
    status: CompatWorkerStatus


class CompatHeartbeat(CompatStatus):
    """A worker's status. Heartbeats of clients change nothing: workers are queried directly."""

    action: str = "none"
    note: str = (
        "heartbeats are not needed: workers are queried directly, and are lost when they do not answer"
    )


class CompatWorkerReset(CompatStatus):
    """A worker's status after its examination."""

    message: str


async def find_workers(watcher: FleetWatcher) -> tuple[CompatWorkers, float]:
    """(all workers that can be found, the time of the snapshot). If the swarm cannot be reached, no workers and a note."""
    try:
        snapshot = await snapshot_of(watcher)
    except SarkError as exc:
        note = f"{exc.what}; {exc.hint}" if exc.hint else exc.what
        return CompatWorkers(count=0, workers=(), note=note), time.time()
    except HttpProblem as exc:
        return CompatWorkers(count=0, workers=(), note=exc.detail), time.time()
    workers = tuple(compat_worker(device_info(device), snapshot.at) for device in snapshot.devices)
    return CompatWorkers(count=len(workers), workers=workers), snapshot.at


async def _find(watcher: FleetWatcher, worker: str) -> tuple[CompatWorker, float]:
    """(one worker, when it was seen). Raises `HttpProblem` 404."""
    reply, at = await find_workers(watcher)
    for candidate in reply.workers:
        if candidate.worker_id == worker:
            return candidate, at
    raise HttpProblem(
        404,
        f"no worker {worker!r} can be found" + (f": {reply.note}" if reply.note else ""),
        hint="a device joins by itself: POST /api/register returns the command to run there",
    )


def _body(model: type[BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


@api.post("/register", openapi_extra=_body(_Register))
async def register(context: Context, watcher: Watcher, request: Request) -> CompatRegistered:
    """Get the command by which a device joins. Nothing is registered: a worker joins with its own key, by `how_to_join`."""
    device = await _read(request, _Register)
    udid = device.device_info.get("UDID")
    udid = udid[:1000] if isinstance(udid, str) else ""
    workers = (await find_workers(watcher))[0].workers
    joined = [one for one in workers if udid and udid == one.device_info.UDID]
    command, note = await DISK.run(_how_to_join, context)
    made_up = hashlib.sha256((udid or device.device_name).encode()).hexdigest()[:12]
    return CompatRegistered(
        worker_id=joined[0].worker_id if joined else f"worker-{made_up}",
        action="reconnected" if joined else "created",
        joined=bool(joined),
        how_to_join=command,
        note="this device is already in the swarm" if joined else note,
    )


@api.get("/workers")
async def list_workers(watcher: Watcher) -> CompatWorkers:
    """List all devices that can be found now."""
    return (await find_workers(watcher))[0]


@api.get("/workers/{worker}", responses=errors(404))
async def get_worker(watcher: Watcher, worker: WorkerId) -> CompatWorker:
    """Get one worker."""
    return (await _find(watcher, worker))[0]


@api.put("/workers/{worker}/status", responses=errors(403, 404, 409), openapi_extra=_body(_SetStatus))
async def put_worker_status(
    context: Context, watcher: Watcher, worker: WorkerId, request: Request
) -> CompatStatus:
    """Resume a worker of your own (active), or pause it (cleanup). Other owners' workers refuse."""
    status = (await _read(request, _SetStatus)).status
    if status not in ACTIONS:
        raise HttpProblem(
            409,
            f"the status {status} cannot be set",
            hint="active resumes a worker, cleanup pauses it; read statuses: GET /api/workers",
        )
    return await _send_action(context, watcher, worker, ACTIONS[status])


@api.post("/workers/{worker}/heartbeat", responses=errors(404))
async def heartbeat(watcher: Watcher, worker: WorkerId) -> CompatHeartbeat:
    """Get a worker's status. Nothing is recorded: workers are queried directly."""
    return CompatHeartbeat(worker_id=worker, status=(await _find(watcher, worker))[0].status)


@api.get("/workers/{worker}/health", responses=errors(404))
async def worker_health_(watcher: Watcher, worker: WorkerId) -> CompatWorkerHealth:
    """Whether a worker answers and is well."""
    return worker_health(*await _find(watcher, worker))


@api.get("/health/workers")
async def workers_health(watcher: Watcher) -> CompatWorkersHealth:
    """Whether each worker answers and is well."""
    reply, at = await find_workers(watcher)
    health = tuple(worker_health(worker, at) for worker in reply.workers)
    healthy = sum(worker.is_healthy for worker in health)
    return CompatWorkersHealth(
        total=len(health), healthy=healthy, unhealthy=len(health) - healthy, workers=health, note=reply.note
    )


@api.put("/workers/{worker}/reset", responses=errors(403, 404, 409))
async def reset_worker(context: Context, watcher: Watcher, worker: WorkerId) -> CompatWorkerReset:
    """Examine a faulty worker of your own; it returns to service if it works."""
    reply = await _send_action(context, watcher, worker, Action.RESET)
    faulty = reply.status is CompatWorkerStatus.FAULTY
    message = "the worker was examined and is still faulty" if faulty else "the worker is well"
    return CompatWorkerReset(worker_id=worker, status=reply.status, message=message)


async def _send_action(
    context: ApiContext, watcher: FleetWatcher, worker: str, action: Action
) -> CompatStatus:
    """Send an action to a worker. Raises `HttpProblem` for an unknown worker, `Refused` for a worker of another owner."""
    if worker not in await DISK.run(_own_peers, context.home):
        await _find(watcher, worker)
    return CompatStatus(worker_id=worker, status=WORKER[await context.send_action(worker, action)])


def _own_peers(home: Home) -> frozenset[str]:
    return frozenset(address.rpartition("/p2p/")[2] for address in worker_addresses(home))


def _how_to_join(context: ApiContext) -> tuple[str, str]:
    """The command that makes a device a worker of this home, and a note about it. Blocking."""
    own = worker_addresses(context.home)
    gates = sorted((gate for gate in context.gates() if gate not in own), key=_is_local)
    me = load_or_create(context.home.key("scheduler")).peer_id
    command = shlex.join(["sark-node", "join", *(["--gate", gates[0]] if gates else []), "--allow", me])
    if not gates:
        return (
            command,
            "no gate is known: devices on this network find each other; for others run: sark-node gate",
        )
    if _is_local(gates[0]):
        return command, "run the command on this machine: the known gate listens on loopback only"
    return command, "nothing was registered: run how_to_join on the device, which joins with its own key"


def _is_local(address: str) -> bool:
    return address.startswith(("/ip4/127.", "/ip6/::1/"))


async def _read(request: Request, model: type[T]) -> T:
    """The JSON body. Its content type is ignored, because `curl -d` sends another one."""
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        raise RequestValidationError([{**error, "loc": ("body", *error["loc"])}]) from None
