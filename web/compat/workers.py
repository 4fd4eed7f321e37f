"""Workers for the first system's clients. Devices join the swarm by themselves and answer for themselves: what a client says of one changes
nothing here, and each answer says so. Only a worker whose owner this home is can be told something."""

from __future__ import annotations

import hashlib
import shlex
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

import trio
from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.messages.work import Action
from results.row.form import JsonModel
from swarm.base.home import Home
from swarm.join.known_gates import own_worker
from swarm.net.identity import load_or_create
from web.compat.snapshot import SnapshotSource
from web.compat.worker_models import (
    WORKER,
    FirstWorker,
    FirstWorkerHealth,
    FirstWorkers,
    FirstWorkersHealth,
    WorkerStatus,
    worker_health,
    workers_health,
)
from web.http.context import ApiContext
from web.http.parts import problems
from web.http.problems import InvalidField

ORDERS: Final = {WorkerStatus.ACTIVE: Action.RESUME, WorkerStatus.CLEANUP: Action.PAUSE}
"""What a client may have a worker be: serving, or taking no new work. Whether it is busy or faulty is a fact, not a wish."""

T = TypeVar("T", bound=BaseModel)
Text = Annotated[str, Field(max_length=1000)]
WorkerId = Annotated[str, Path(max_length=100, description="A worker's peer id.")]


class _Asked(BaseModel):
    """A request. What we do not know of it is passed over, as the first system did."""

    model_config = ConfigDict(extra="ignore")


class _Register(_Asked):
    device_name: Text = ""
    ip_address: Text = ""
    capabilities: Annotated[list[Text], Field(max_length=1000)] = []
    device_info: dict[str, Any] = {}


class _Status(_Asked):
    status: WorkerStatus


class FirstRegistered(JsonModel):
    """What registering comes to: nothing is kept here, the device has to join by itself."""

    worker_id: str
    """Its peer id where it is in the swarm already; else a name for this answer alone."""
    status: str = "registered"
    action: str
    """reconnected: a device with this UDID is in the swarm. created: it has to join."""
    joined: bool
    """It is in the swarm, and gets work."""
    how_to_join: str
    """The command to type on the device."""
    note: str


class FirstStatus(JsonModel):
    """How the worker stands then."""

    worker_id: str
    status: WorkerStatus


class FirstHeartbeat(FirstStatus):
    """How the worker stands. A heartbeat from a client changes nothing: workers are asked directly."""

    action: str = "none"
    note: str = (
        "workers are asked how they stand, and are lost when they do not answer: nobody need say it for them"
    )


class FirstResetWorker(FirstStatus):
    """How the worker stands then."""

    message: str


def router(desk: ApiContext, looking: SnapshotSource) -> APIRouter:
    """Endpoints over `desk` and what it sees of the swarm."""
    first = APIRouter(prefix="/api", tags=["first"])
    missing = problems(HTTPStatus.NOT_FOUND)
    not_ours = problems(HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)

    @first.post("/register", operation_id="firstRegister", openapi_extra=_body(_Register))
    async def register(request: Request) -> FirstRegistered:
        """Say how a device joins. Nothing is registered here: a worker joins with a key of its own, by `how_to_join`."""
        asked = await _read(request, _Register)
        udid = _word(asked.device_info.get("UDID"))
        seen = await looking.look()
        known = [one for one in seen.workers if udid and udid == one.device_info.UDID]
        command, note = await trio.to_thread.run_sync(_how_to_join, desk)
        if known:
            return FirstRegistered(
                worker_id=known[0].worker_id,
                action="reconnected",
                joined=True,
                how_to_join=command,
                note="this device is in the swarm already",
            )
        made = hashlib.sha256(f"{udid or asked.device_name}".encode()).hexdigest()[:12]
        return FirstRegistered(
            worker_id=f"worker-{made}", action="created", joined=False, how_to_join=command, note=note
        )

    @first.get("/workers", operation_id="firstListWorkers")
    async def workers() -> FirstWorkers:
        """Every device that can be found now."""
        seen = await looking.look()
        return FirstWorkers(count=len(seen.workers), workers=seen.workers, note=seen.note)

    @first.get("/workers/{worker}", operation_id="firstGetWorker", responses=missing)
    async def worker_(worker: WorkerId) -> FirstWorker:
        """One of them."""
        return (await looking.find(worker))[0]

    @first.put(
        "/workers/{worker}/status",
        operation_id="firstPutWorkerStatus",
        responses=not_ours,
        openapi_extra=_body(_Status),
    )
    async def put_status(worker: WorkerId, request: Request) -> FirstStatus:
        """Have a worker of one's own serve (active), or take no new work (cleanup). Others say no."""
        status = (await _read(request, _Status)).status
        if status not in ORDERS:
            raise InvalidField(
                HTTPStatus.CONFLICT,
                f"nobody can make a worker {status}: it is, or it is not",
                hint="active has it serve, cleanup has it take no new work; how it stands: GET /api/workers",
            )
        return await _told(worker, ORDERS[status])

    @first.post("/workers/{worker}/heartbeat", operation_id="firstHeartbeat", responses=missing)
    async def heartbeat(worker: WorkerId) -> FirstHeartbeat:
        """How a worker stands. Nothing is noted: workers are asked directly."""
        found, _ = await looking.find(worker)
        return FirstHeartbeat(worker_id=worker, status=found.status)

    @first.get("/workers/{worker}/health", operation_id="firstWorkerHealth", responses=missing)
    async def health(worker: WorkerId) -> FirstWorkerHealth:
        """Whether a worker answers and is well."""
        found, at = await looking.find(worker)
        return worker_health(found, at, looking.wall())

    @first.get("/health/workers", operation_id="firstWorkersHealth")
    async def all_health() -> FirstWorkersHealth:
        """The same of all."""
        seen = await looking.look()
        return workers_health(seen.workers, seen.at, looking.wall(), seen.note)

    @first.put("/workers/{worker}/reset", operation_id="firstResetWorker", responses=not_ours)
    async def reset(worker: WorkerId) -> FirstResetWorker:
        """Have a faulty worker of one's own be examined now; it serves again if it is well."""
        told = await _told(worker, Action.RESET)
        well = told.status is not WorkerStatus.FAULTY
        return FirstResetWorker(
            worker_id=worker,
            status=told.status,
            message="it is well" if well else "it was examined, and is still faulty",
        )

    async def _told(worker: str, action: Action) -> FirstStatus:
        """Raises `InvalidField` for one that nobody knows, `Refused` for one that is somebody else's."""
        if worker not in await trio.to_thread.run_sync(_own_peers, desk.home):
            await looking.find(worker)
        obeyed = await desk.tell(worker, action)
        return FirstStatus(worker_id=worker, status=WORKER[obeyed.state])

    return first


def _own_peers(home: Home) -> frozenset[str]:
    return frozenset(address.rpartition("/p2p/")[2] for address in own_worker(home))


def _how_to_join(desk: ApiContext) -> tuple[str, str]:
    """The command that makes a device a worker that serves this home, and what is to be said of it. Blocking."""
    own = own_worker(desk.home)
    gates = sorted((way for way in desk.gates() if way not in own), key=_is_local)
    me = load_or_create(desk.home.key("scheduler")).peer_id
    words = ["sark-node", "join", *(["--gate", gates[0]] if gates else []), "--allow", me]
    if not gates:
        note = "no gate is known here: devices on this network find each other; for others: sark-node gate"
    elif _is_local(gates[0]):
        note = "type it on this machine: the gate that is known here listens for this machine alone"
    else:
        note = "nothing was registered: type how_to_join on the device, which joins with a key of its own"
    return shlex.join(words), note


def _is_local(address: str) -> bool:
    return address.startswith(("/ip4/127.", "/ip6/::1/"))


def _word(value: Any) -> str:
    return value[:1000] if isinstance(value, str) else ""


def _body(form: type[BaseModel]) -> dict[str, Any]:
    """For the document: `form`, which is read whatever the content type says."""
    content = {"application/json": {"schema": form.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


async def _read(request: Request, form: type[T]) -> T:
    """The body as `form`; `curl -d` sends it with a content type of another kind. Raises `InvalidField`."""
    try:
        return form.model_validate_json(await request.body())
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise InvalidField(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"{where}: {first['msg']}", hint="send JSON; see /docs"
        ) from None
