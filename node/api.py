"""This home's worker over HTTP: how it stands, and what its owner can say to it. The same way as `status`, `pause`, `drain`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Final

import trio
from fastapi import APIRouter, Body
from pydantic import BaseModel, ConfigDict

from node.cli.remote import OwnerReply, tell_devices
from node.cli.status_view import still_held
from protocol.errors import Unreachable
from protocol.messages.work import Action, Control, RunningJob, StatusRequest
from protocol.words import WorkerState
from swarm.base.home import Home
from swarm.base.text import escape_text
from swarm.join.known_gates import left_addresses
from swarm.net.identity import load_or_create

AT_ONCE: Final = 3
"""Words that go to the worker at a time: each is said by a node of its own."""

Say = Callable[
    [Home, Sequence[str], Sequence[str], Control | StatusRequest], Awaitable[tuple[OwnerReply, ...]]
]


class JobInfo(RunningJob):
    """A run or a ticket on this worker."""

    mine: bool
    """It is for this home's own scheduler."""


class WorkerInfo(BaseModel):
    """How this home's worker stands; all but `error` and `hint` are null or empty where that cannot be told."""

    peer: str | None = None
    state: WorkerState | None = None
    why: str = ""
    """Why it takes no new work."""
    running: int | None = None
    queue: int | None = None
    jobs: tuple[JobInfo, ...] = ()
    """Runs first."""
    reach: str | None = None
    """How others reach it, in words."""
    still_held: tuple[str, ...] = ()
    """What is to be said where a rule holds it back that `resume` does not end."""
    error: str | None = None
    """Why nothing can be told: it does not run, or does not answer."""
    hint: str = ""


class OwnerOrder(BaseModel):
    """What goes with a word to the worker."""

    model_config = ConfigDict(extra="forbid")

    now: bool = False
    """With pause and drain: stop what runs, too; its scheduler has it run elsewhere."""
    finish: bool = False
    """With drain: run what waits here, too, instead of giving it back."""


def router(home: Home, say: Say = tell_devices) -> APIRouter:
    """Endpoints for `home`. `say`: another way to the worker, for tests."""
    worker = APIRouter(prefix="/api/v1", tags=["worker"])
    telling = trio.Semaphore(AT_ONCE)

    @worker.get("/worker", operation_id="getWorker")
    async def status() -> WorkerInfo:
        """How this home's worker stands: its state and why, and what it runs for whom."""
        try:
            async with telling:
                return await _tell(home, say, StatusRequest())
        except Unreachable as exc:
            return WorkerInfo(error=exc.what, hint=exc.hint)

    @worker.post("/worker/{action}", operation_id="tellWorker")
    async def tell(action: Action, order: Annotated[OwnerOrder, Body()] = OwnerOrder()) -> WorkerInfo:
        """Say this to the worker; the answer is how it stands then. The same again changes nothing.

        pause: no new work until told to resume. drain: no new work, and the worker's process ends once what runs has ended.
        reset: examine a faulty device now.
        """
        async with telling:
            return await _tell(home, say, Control(action=action, now=order.now, finish=order.finish))

    return worker


async def tell_one(
    home: Home, peer: str, ways: Sequence[str], action: Action, say: Say = tell_devices
) -> tuple[WorkerState, str]:
    """Say this to the worker with that id, as its owner: how it stands then, and why. `ways`: into the swarm.

    Raises `Refused` when its owner is somebody else, `Unreachable`.
    """
    told = [one for one in await say(home, (peer,), ways, Control(action=action)) if one.peer in (peer, "")]
    for one in told:
        if one.standing is not None:
            return one.standing.state, escape_text(one.standing.why)
    for one in told:
        if one.error is not None:
            raise one.error
    raise Unreachable("it is not in the swarm any more", hint="list the devices: sark-node peers")


async def _tell(home: Home, say: Say, message: Control | StatusRequest) -> WorkerInfo:
    """Raises `Unreachable` when it does not run, `Refused` when it says no."""
    if not await trio.to_thread.run_sync(left_addresses, home.worker_file):
        raise Unreachable("no worker of this home runs", hint="start it: sark-node join")
    (told,) = await say(home, (), (), message)
    if told.error is not None:
        raise told.error
    assert told.standing is not None, "an answer is one or the other"
    here = told.standing
    me = (await trio.to_thread.run_sync(partial(load_or_create, home.key("scheduler")))).peer_id
    return WorkerInfo(
        peer=told.peer,
        state=here.state,
        why=escape_text(here.why),
        running=here.running,
        queue=here.queue,
        jobs=tuple(
            JobInfo(
                **{name: getattr(job, name) for name in RunningJob.model_fields}, mine=job.principal == me
            )
            for job in here.jobs
        ),
        reach=here.reach,
        still_held=tuple(line.strip() for line in still_held(told)),
    )
