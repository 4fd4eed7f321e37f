"""This home's worker over HTTP: its status and its owner's commands, like the commands `status`, `pause` and `drain`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Final

import trio
from fastapi import APIRouter, Body
from pydantic import BaseModel, ConfigDict

from node.cli.remote import OwnerReply, send_command, still_held
from protocol.errors import Unreachable
from protocol.messages.work import Action, Control, RunningJob, StatusRequest
from protocol.values.reading import DeviceReading
from protocol.words import WorkerState
from swarm.base.home import Home
from swarm.base.text import escape_text
from swarm.base.threads import DISK
from swarm.join.known_gates import read_addresses
from swarm.net.identity import load_or_create

MAX_COMMANDS: Final = 3
"""Commands that may be in progress at once. Each is sent by an ephemeral node of its own."""

SendCommand = Callable[
    [Home, Sequence[str], Sequence[str], Control | StatusRequest], Awaitable[tuple[OwnerReply, ...]]
]


class JobInfo(RunningJob):
    """A running or queued job of this worker."""

    mine: bool
    """Whether the job is for this home's own scheduler."""


class WorkerInfo(BaseModel):
    """The worker's status. All fields but `error` and `hint` are null or empty if the worker does not answer."""

    peer: str | None = None
    state: WorkerState | None = None
    why: str = ""
    """Why the worker takes no new work. Empty if it takes work."""
    running: int | None = None
    queue: int | None = None
    jobs: tuple[JobInfo, ...] = ()
    """Jobs of the worker, the running ones first."""
    reach: str | None = None
    """How other nodes reach the worker, in words."""
    reading: DeviceReading | None = None
    """Sensor reading of the device while a task runs. Null if no task runs, or the device has no sensors to show."""
    still_held: tuple[str, ...] = ()
    """Hints for the owner if a rule that `resume` does not end still applies."""
    error: str | None = None
    """Why there is no status: the worker is not running, or does not answer."""
    hint: str = ""


class OwnerOrder(BaseModel):
    """Options of a command."""

    model_config = ConfigDict(extra="forbid")

    now: bool = False
    """Whether pause and drain also stop running tasks, which their schedulers then run elsewhere."""
    finish: bool = False
    """Whether drain also runs queued tasks instead of giving them back."""


def router(home: Home, send: SendCommand = send_command) -> APIRouter:
    """Endpoints for `home`. `send`: a double in tests."""
    worker = APIRouter(prefix="/api/v1", tags=["worker"])
    sending = trio.Semaphore(MAX_COMMANDS)

    @worker.get("/worker", operation_id="getWorker")
    async def status() -> WorkerInfo:
        """The worker's state and what it runs for whom."""
        try:
            async with sending:
                return await _send(home, send, StatusRequest())
        except Unreachable as exc:
            return WorkerInfo(error=exc.what, hint=exc.hint)

    @worker.post("/worker/{action}", operation_id="commandWorker")
    async def command(action: Action, order: Annotated[OwnerOrder, Body()] = OwnerOrder()) -> WorkerInfo:
        """Send a command to the worker and return its status afterwards. Repeating it changes nothing.

        pause: no new work until resume. drain: no new work; the process ends after the running tasks. reset: test a faulty device.
        """
        async with sending:
            return await _send(home, send, Control(action=action, now=order.now, finish=order.finish))

    return worker


async def command_worker(
    home: Home, peer: str, gates: Sequence[str], action: Action, send: SendCommand = send_command
) -> tuple[WorkerState, str]:
    """Send a command to the worker with this id, as its owner. Returns its state and the reason for it.

    Raises `Refused` if somebody else owns the device, `Unreachable`.
    """
    replies = await send(home, (peer,), gates, Control(action=action))
    replies = tuple(reply for reply in replies if reply.peer in (peer, ""))
    for reply in replies:
        if reply.status is not None:
            return reply.status.state, escape_text(reply.status.why)
    for reply in replies:
        if reply.error is not None:
            raise reply.error
    raise Unreachable("the device is no longer in the swarm", hint="list the devices: sark-node peers")


async def _send(home: Home, send: SendCommand, message: Control | StatusRequest) -> WorkerInfo:
    """Raises `Unreachable` if the worker is not running, `Refused`."""
    if not await DISK.run(read_addresses, home.worker_file):
        raise Unreachable("no worker of this home is running", hint="start it: sark-node join")
    (reply,) = await send(home, (), (), message)
    if reply.error is not None:
        raise reply.error
    status = reply.status
    assert status is not None, "a reply has a status or an error"
    me = (await DISK.run(partial(load_or_create, home.key("scheduler")))).peer_id
    return WorkerInfo(
        peer=reply.peer,
        state=status.state,
        why=escape_text(status.why),
        running=status.running,
        queue=status.queue,
        jobs=tuple(JobInfo(**job.model_dump(), mine=job.principal == me) for job in status.jobs),
        reach=status.reach,
        reading=status.reading,
        still_held=tuple(line.strip() for line in still_held(reply)),
    )
