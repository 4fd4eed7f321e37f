"""The predecessor's endpoints for workers. Devices join the swarm by themselves: a client's claims about them change nothing, and each
response says so. Only the owner's own workers can be controlled."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

import trio
from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import SarkError
from protocol.messages.work import Action
from results.row.form import JsonModel
from scheduler.output.fleet import FleetWatcher, device_info
from swarm.base.home import Home
from swarm.join.known_gates import worker_addresses
from swarm.net.identity import load_or_create
from web.compat.models import (
    WORKER,
    CompatWorker,
    CompatWorkerHealth,
    CompatWorkers,
    CompatWorkersHealth,
    CompatWorkerStatus,
    compat_worker,
    worker_health,
    workers_health,
)
from web.http.context import ApiContext
from web.http.parameters import problems
from web.http.problems import HttpProblem
from web.routes.fleet import snapshot_of

ACTIONS: Final = {CompatWorkerStatus.ACTIVE: Action.RESUME, CompatWorkerStatus.CLEANUP: Action.PAUSE}
"""Statuses that a client may set. busy and faulty are facts."""

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
    """Its peer id if it is in the swarm; else a made-up name."""
    status: str = "registered"
    action: str
    """reconnected: a device with this UDID is in the swarm. created: it has to join."""
    joined: bool
    """It is in the swarm and gets work."""
    how_to_join: str
    """The command to run on the device."""
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


@dataclass(frozen=True, slots=True)
class CompatSnapshot:
    """The workers of the swarm at a wall time. `note`: why they cannot be seen."""

    at: float
    workers: tuple[CompatWorker, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """Takes snapshots on demand."""

    watcher: FleetWatcher
    wall: Callable[[], float] = time.time

    async def take(self) -> CompatSnapshot:
        """All workers that can be found; none, with a note, if the swarm cannot be reached."""
        try:
            snapshot = await snapshot_of(self.watcher)
        except SarkError as exc:
            return CompatSnapshot(self.wall(), (), f"{exc.what}; {exc.hint}" if exc.hint else exc.what)
        except HttpProblem as exc:
            return CompatSnapshot(self.wall(), (), exc.detail)
        workers = tuple(compat_worker(device_info(device), snapshot.at) for device in snapshot.devices)
        return CompatSnapshot(snapshot.at, workers)

    async def find(self, worker: str) -> tuple[CompatWorker, float]:
        """One worker and the time of the snapshot. Raises `HttpProblem` 404."""
        snapshot = await self.take()
        for candidate in snapshot.workers:
            if candidate.worker_id == worker:
                return candidate, snapshot.at
        raise HttpProblem(
            HTTPStatus.NOT_FOUND,
            f"no worker {worker!r} can be found" + (f": {snapshot.note}" if snapshot.note else ""),
            hint="a device joins by itself: POST /api/register returns the command to run there",
        )


def router(context: ApiContext, snapshots: SnapshotSource) -> APIRouter:
    """Workers."""
    api = APIRouter(prefix="/api", tags=["compat"])
    not_found = problems(HTTPStatus.NOT_FOUND)
    not_own = problems(HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)

    @api.post("/register", operation_id="compatRegister", openapi_extra=_body(_Register))
    async def register(request: Request) -> CompatRegistered:
        """Get the command by which a device joins. Nothing is registered: a worker joins with its own key, by `how_to_join`."""
        device = await _read(request, _Register)
        udid = device.device_info.get("UDID")
        udid = udid[:1000] if isinstance(udid, str) else ""
        joined = [one for one in (await snapshots.take()).workers if udid and udid == one.device_info.UDID]
        command, note = await trio.to_thread.run_sync(_how_to_join, context)
        made_up = hashlib.sha256((udid or device.device_name).encode()).hexdigest()[:12]
        return CompatRegistered(
            worker_id=joined[0].worker_id if joined else f"worker-{made_up}",
            action="reconnected" if joined else "created",
            joined=bool(joined),
            how_to_join=command,
            note="this device is already in the swarm" if joined else note,
        )

    @api.get("/workers", operation_id="compatListWorkers")
    async def workers() -> CompatWorkers:
        """List all devices that can be found now."""
        snapshot = await snapshots.take()
        return CompatWorkers(count=len(snapshot.workers), workers=snapshot.workers, note=snapshot.note)

    @api.get("/workers/{worker}", operation_id="compatGetWorker", responses=not_found)
    async def worker_(worker: WorkerId) -> CompatWorker:
        """Get one worker."""
        return (await snapshots.find(worker))[0]

    @api.put(
        "/workers/{worker}/status",
        operation_id="compatPutWorkerStatus",
        responses=not_own,
        openapi_extra=_body(_SetStatus),
    )
    async def put_status(worker: WorkerId, request: Request) -> CompatStatus:
        """Resume an own worker (active), or pause it (cleanup). Workers of others refuse."""
        status = (await _read(request, _SetStatus)).status
        if status not in ACTIONS:
            raise HttpProblem(
                HTTPStatus.CONFLICT,
                f"the status {status} cannot be set",
                hint="active resumes a worker, cleanup pauses it; read statuses: GET /api/workers",
            )
        return await send_action(worker, ACTIONS[status])

    @api.post("/workers/{worker}/heartbeat", operation_id="compatHeartbeat", responses=not_found)
    async def heartbeat(worker: WorkerId) -> CompatHeartbeat:
        """Get a worker's status. Nothing is recorded: workers are queried directly."""
        result, _ = await snapshots.find(worker)
        return CompatHeartbeat(worker_id=worker, status=result.status)

    @api.get("/workers/{worker}/health", operation_id="compatWorkerHealth", responses=not_found)
    async def health(worker: WorkerId) -> CompatWorkerHealth:
        """Whether a worker answers and is well."""
        result, at = await snapshots.find(worker)
        return worker_health(result, at, snapshots.wall())

    @api.get("/health/workers", operation_id="compatWorkersHealth")
    async def all_health() -> CompatWorkersHealth:
        """Whether each worker answers and is well."""
        snapshot = await snapshots.take()
        return workers_health(snapshot.workers, snapshot.at, snapshots.wall(), snapshot.note)

    @api.put("/workers/{worker}/reset", operation_id="compatResetWorker", responses=not_own)
    async def reset(worker: WorkerId) -> CompatWorkerReset:
        """Examine an own worker that is faulty; it returns to service if it is well."""
        reply = await send_action(worker, Action.RESET)
        faulty = reply.status is CompatWorkerStatus.FAULTY
        message = "the worker was examined and is still faulty" if faulty else "the worker is well"
        return CompatWorkerReset(worker_id=worker, status=reply.status, message=message)

    async def send_action(worker: str, action: Action) -> CompatStatus:
        """Raises `HttpProblem` for an unknown worker, `Refused` for one of another owner."""
        if worker not in await trio.to_thread.run_sync(_own_peers, context.home):
            await snapshots.find(worker)
        reply = await context.send_action(worker, action)
        return CompatStatus(worker_id=worker, status=WORKER[reply.state])

    return api


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


def _body(model: type[BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


async def _read(request: Request, model: type[T]) -> T:
    """The JSON body, whatever its content type: `curl -d` sends another one. Raises `HttpProblem`."""
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        where = ".".join(str(part) for part in error["loc"]) or "body"
        raise HttpProblem(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"{where}: {error['msg']}", hint="send JSON; see /docs"
        ) from None
