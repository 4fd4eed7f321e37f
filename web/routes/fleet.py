"""The devices of the swarm, as a list or live."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final

import trio
from fastapi import APIRouter, Depends, Query, Request

from protocol.values.requirement import Requirement, parse_clause
from scheduler.core.explain import explain
from scheduler.output.fleet import (
    Fleet,
    FleetDevice,
    FleetSnapshot,
    FleetWatcher,
    SwarmObserver,
    by_fit,
    changed_devices,
    device_tasks,
    fleet_device,
    open_observer,
)
from scheduler.output.readings import shown_readings
from scheduler.store.readings import read_readings
from swarm.base.threads import DISK, LAN
from web.http.context import ApiContext, Context
from web.http.feeds import MAX_FOLLOWERS
from web.http.parameters import AFTER, PAGE, Limit, page_of
from web.http.problems import HttpProblem
from web.http.sse import MEDIA_TYPE, EventStream, SendEvent

MAX_WAIT_S: Final = 20.0
"""Longest wait for the first snapshot."""


async def snapshot_of(watcher: FleetWatcher) -> FleetSnapshot:
    """A snapshot of the swarm. Raises `HttpProblem` if it takes too long, or the `SarkError` that prevents it."""
    with watcher.watching(), trio.move_on_after(MAX_WAIT_S):
        snapshot = await watcher.newer()
        if snapshot.error is not None:
            raise snapshot.error
        return snapshot
    raise HttpProblem(424, f"the swarm did not answer within {MAX_WAIT_S:g} s", hint="retry later")


async def _watcher_of(request: Request) -> FleetWatcher:
    watcher: FleetWatcher = request.app.state.watcher
    return watcher


async def _requirement(
    where: Annotated[
        list[str],
        Query(max_length=32, description="A clause, such as `ram >= 8 GiB`. Repeatable; all must hold."),
    ] = [],  # noqa: B006  (FastAPI copies it)
) -> Requirement:
    return Requirement(clauses=tuple(parse_clause(text) for text in where if text.strip()))


Watcher = Annotated[FleetWatcher, Depends(_watcher_of)]
Required = Annotated[Requirement, Depends(_requirement)]


@asynccontextmanager
async def _run_watcher(app: Any) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(app.state.watcher.run)
        yield
        nursery.cancel_scope.cancel()


api = APIRouter(prefix="/api/v1", tags=["fleet"], lifespan=_run_watcher)


@api.get("/peers")
async def list_peers(
    context: Context,
    watcher: Watcher,
    required: Required,
    limit: Limit = PAGE,
    after: Annotated[str | None, Query(max_length=64, description=AFTER)] = None,
) -> Fleet:
    """List all devices that can be found, their state, and whether they match the clauses; matching devices first."""
    fleet = await _fleet(context, await snapshot_of(watcher), required)
    begin = next((n for n, device in enumerate(fleet.peers, start=1) if device.peer == after), None)
    if after is not None and begin is None:
        raise HttpProblem(422, f"after: the device {after!r} has left", hint="start again without after")
    page, more = page_of(fleet.peers[begin or 0 :], limit, lambda device: device.peer)
    return fleet.model_copy(update={"peers": tuple(page), "next": more})


@api.get(
    "/fleet",
    response_class=EventStream,
    responses={200: {"content": {MEDIA_TYPE: {}}, "description": "Server-sent events."}},
)
async def watch_fleet(context: Context, watcher: Watcher, required: Required) -> EventStream:
    """Follow the devices live. Events: `fleet` holds `at`, `count`, `fit`, `explain`, `peers` (at first all, then changed ones) and
    `gone` (peer ids); `problem` holds `detail` and `hint` while the swarm cannot be reached."""
    if watcher.readers >= MAX_FOLLOWERS:
        raise HttpProblem(
            429,
            f"{watcher.readers} readers follow the fleet over this server",
            hint="close one, or poll the list: /api/v1/peers",
        )
    return EventStream(partial(_send_changes, context, watcher, required))


@asynccontextmanager
async def observer(context: ApiContext) -> AsyncIterator[SwarmObserver]:
    """Observes this home's swarm as a visitor."""
    gates = await LAN.run(context.gates)  # may search the LAN
    async with open_observer(gates, home=context.home) as observer:
        yield observer


async def _send_changes(
    context: ApiContext, watcher: FleetWatcher, requirement: Requirement, send: SendEvent
) -> None:
    with watcher.watching():
        number = 0
        previous: Mapping[str, FleetDevice] | None = None
        while True:
            snapshot = await watcher.newer(number)
            number = snapshot.number
            if snapshot.error is not None:
                await send("problem", {"detail": snapshot.error.what, "hint": snapshot.error.hint})
                previous = None
                continue
            fleet = await _fleet(context, snapshot, requirement)
            current = {device.peer: device for device in fleet.peers}
            changes = fleet.model_copy(update={"peers": changed_devices(previous or {}, fleet.peers)})
            await send(
                "fleet",
                {
                    "at": datetime.fromtimestamp(snapshot.at, UTC).isoformat(timespec="seconds"),
                    "whole": previous is None,
                    **changes.model_dump(mode="json", exclude={"next"}),
                    "gone": sorted((previous or {}).keys() - current.keys()),
                },
            )
            previous = current


async def _fleet(context: ApiContext, snapshot: FleetSnapshot, requirement: Requirement) -> Fleet:
    models = {model for device in snapshot.devices for model in device.advert.models}
    held = await context.coverage.now()
    tasks, names = await context.store(
        lambda store: (device_tasks(store.tasks.active()), store.campaigns.model_names(models))
    )
    stored = await DISK.run(read_readings, context.home.readings_file, snapshot.at)
    readings = shown_readings(stored, tasks, snapshot.at)
    devices = by_fit([device.matched(requirement) for device in snapshot.devices])
    return Fleet(
        count=len(devices),
        fit=sum(device.fit.fits for device in devices),
        explain=explain(requirement, [device.advert for device in devices]) if requirement.clauses else "",
        peers=tuple(fleet_device(device, tasks, names, held, readings) for device in devices),
    )
