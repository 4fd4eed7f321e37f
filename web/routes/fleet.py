"""The devices of the swarm: once as a list, or live for as long as somebody looks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

import trio
from fastapi import APIRouter, Query

from protocol.values.requirement import Requirement, parse_clause
from scheduler.core.explain import explain
from scheduler.output.fleet import DeviceTask, Fleet, FleetDevice, changed, show_fleet_device
from scheduler.output.peers import SwarmObserver, by_fit, eyes_open
from scheduler.output.watcher import FleetSnapshot, FleetWatcher
from scheduler.store.store import Store
from swarm.net.identity import load_or_create
from web.http.context import ApiContext
from web.http.feeds import MAX_FOLLOWERS
from web.http.problems import InvalidField
from web.http.sse import MEDIA_TYPE, EventStream, SendEvent

PATIENCE_S: Final = 20.0
"""So long a list waits for the first look."""

Where = Annotated[
    list[str], Query(max_length=32, description="A clause, such as `ram >= 8 GiB`. Repeatable: all of them.")
]


def lookout_of(desk: ApiContext) -> FleetWatcher:
    """Watches `desk`'s swarm with a visitor's eyes."""
    return FleetWatcher(partial(_eyes, desk))


async def picture_of(lookout: FleetWatcher) -> FleetSnapshot:
    """How the swarm looks now. Raises `InvalidField` when that cannot be told in time, and the `SarkError` of what is in the way."""
    with lookout.watching(), trio.move_on_after(PATIENCE_S):
        picture = await lookout.newer()
        if picture.error is not None:
            raise picture.error
        return picture
    raise InvalidField(
        HTTPStatus.FAILED_DEPENDENCY, "the swarm could not be looked at in time", hint="ask again"
    )


def router(desk: ApiContext, lookout: FleetWatcher, *, most: int = MAX_FOLLOWERS) -> APIRouter:
    """Endpoints over what `lookout` sees, which runs for as long as the server does. `most`: live readers at a time."""

    @asynccontextmanager
    async def looking(_: Any) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lookout.run)
            yield
            nursery.cancel_scope.cancel()

    fleet = APIRouter(prefix="/api/v1", tags=["fleet"], lifespan=looking)

    @fleet.get("/peers", operation_id="listPeers")
    async def peers(
        where: Where = [],  # noqa: B006  (FastAPI copies it)
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        after: Annotated[
            str | None, Query(max_length=64, description="The `next` of the answer before.")
        ] = None,
    ) -> Fleet:
        """Every device that can be found, how it is, and whether it meets the clauses: those that do come first."""
        requirement = _requirement(where)
        return _page(await _fleet(desk, await picture_of(lookout), requirement), limit, after)

    @fleet.get(
        "/fleet",
        operation_id="watchFleet",
        response_class=EventStream,
        responses={HTTPStatus.OK: {"content": {MEDIA_TYPE: {}}, "description": "Server-sent events."}},
    )
    async def live(where: Where = []) -> EventStream:  # noqa: B006
        """The same, live. Events: `fleet` holds `at`, `count`, `fit`, `explain`, `peers` (those that changed; all of them at first) and
        `gone` (peer ids); `problem` holds `detail` and `hint` while the swarm cannot be looked at."""
        requirement = _requirement(where)
        if lookout.readers >= most:
            raise InvalidField(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{lookout.readers} look at the swarm over this server",
                hint="close one, or ask for the list now and then: /api/v1/peers",
            )
        return EventStream(partial(_feed, desk, lookout, requirement))

    return fleet


@asynccontextmanager
async def _eyes(desk: ApiContext) -> AsyncIterator[SwarmObserver]:
    """This home's visitor."""
    gates = await trio.to_thread.run_sync(desk.gates)  # neighbours on the LAN may have to be looked for
    signer = await trio.to_thread.run_sync(load_or_create, desk.home.key("scheduler"))
    async with eyes_open(gates, signer=signer) as eyes:
        yield eyes


async def _feed(desk: ApiContext, lookout: FleetWatcher, requirement: Requirement, tell: SendEvent) -> None:
    """Tell one reader what changed, look by look."""
    with lookout.watching():
        number = 0
        before: Mapping[str, FleetDevice] | None = None
        while True:
            picture = await lookout.newer(number)
            number = picture.number
            if picture.error is not None:
                await tell("problem", {"detail": picture.error.what, "hint": picture.error.hint})
                before = None
                continue
            whole = await _fleet(desk, picture, requirement)
            now = {item.peer: item for item in whole.peers}
            told = whole.model_copy(update={"peers": changed(before or {}, whole.peers)})
            await tell(
                "fleet",
                {
                    "at": datetime.fromtimestamp(picture.at, UTC).isoformat(timespec="seconds"),
                    "whole": before is None,
                    **told.model_dump(mode="json", exclude={"next"}),
                    "gone": sorted((before or {}).keys() - now.keys()),
                },
            )
            before = now


async def _fleet(desk: ApiContext, picture: FleetSnapshot, requirement: Requirement) -> Fleet:
    tasks, names = await desk.store(partial(_known, {m for item in picture.seen for m in item.advert.models}))
    seen = by_fit([item.held_against(requirement) for item in picture.seen])
    return Fleet(
        count=len(seen),
        fit=sum(item.verdict.fits for item in seen),
        explain=explain(requirement, [item.advert for item in seen]) if requirement.clauses else "",
        peers=tuple(show_fleet_device(item, tasks, names) for item in seen),
    )


def _known(models: set[str], store: Store) -> tuple[Mapping[str, Sequence[DeviceTask]], Mapping[str, str]]:
    there: dict[str, list[DeviceTask]] = {}
    for task in store.tasks_at_work():
        shown = DeviceTask(
            campaign=task.campaign, n=task.n, model=task.model, unit=task.unit, phase=task.phase
        )
        there.setdefault(task.worker or "", []).append(shown)
    return there, store.model_names(models)


def _requirement(where: Sequence[str]) -> Requirement:
    return Requirement(clauses=tuple(parse_clause(text) for text in where if text.strip()))


def _page(whole: Fleet, limit: int, after: str | None) -> Fleet:
    begin = next((n for n, item in enumerate(whole.peers, start=1) if item.peer == after), None)
    if after is not None and begin is None:
        raise InvalidField(
            HTTPStatus.UNPROCESSABLE_ENTITY, "that device is gone meanwhile", hint="begin anew, without after"
        )
    shown = whole.peers[begin or 0 :][:limit]
    more = bool(shown) and shown[-1] is not whole.peers[-1]
    return whole.model_copy(update={"peers": shown, "next": shown[-1].peer if more else None})
