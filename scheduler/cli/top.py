"""`sark-node top`: campaigns and devices at a glance, once or for as long as somebody looks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from protocol.errors import Unreachable
from scheduler.cli.options import GATE, JSON, PANEL, duration_option, gates_of, new_console, print_json
from swarm.base.home import Home

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.output.fleet import FleetSnapshot, FleetWatcher, SwarmObserver
    from scheduler.output.top import TopSnapshot
    from scheduler.store.store import Store

app = typer.Typer()

REDRAW_S: Final = 0.25
LEAST_S: Final = 0.5
HINT: Final = "q or Ctrl-C leaves; what runs goes on"


@app.command(rich_help_panel=PANEL)
def top(
    ctx: typer.Context,
    gate: Annotated[list[str] | None, GATE] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Show it once, as is done where output is piped.")
    ] = False,
    every: Annotated[
        str, typer.Option(help="How often to ask the devices, such as 2s or 1m.", metavar="TIME")
    ] = "3s",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show campaigns with their progress, and devices with what they run, until Ctrl-C.

    Exit code 4, where it is shown once: no gate answers.
    """
    import trio

    from scheduler.output.fleet import FleetWatcher, open_observer
    from scheduler.store.opening import open_store
    from swarm.base.screen import can_live
    from swarm.net.identity import load_or_create

    home: Home = ctx.obj
    every_s = duration_option("--every", every)
    signer = load_or_create(home.key("scheduler"))

    @asynccontextmanager
    async def opening() -> AsyncIterator[SwarmObserver]:
        gates = await trio.to_thread.run_sync(gates_of, ctx, gate)  # the LAN may be looked over
        async with open_observer(gates, signer=signer) as observer:
            yield observer

    watcher = FleetWatcher(opening, interval_s=max(LEAST_S, every_s))
    console = new_console()
    live = not (once or as_json) and can_live(console)
    with open_store(home) as store:
        if not live:
            trio.run(_once, home, store, watcher, console, as_json)
            return
        try:
            trio.run(_screen, home, store, watcher, console)
        except* KeyboardInterrupt:  # the way out
            pass


async def _once(home: Home, store: Store, watcher: FleetWatcher, console: Console, as_json: bool) -> None:
    import trio

    from scheduler.output.top import draw, top_json

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        with watcher.watching():
            snapshot = await watcher.newer()
        nursery.cancel_scope.cancel()
    now = _now(home, store, snapshot)
    if as_json:
        print_json(
            top_json(
                now,
                store.campaigns.model_names({model for seen in now.devices for model in seen.advert.models}),
            )
        )
    else:
        console.print(draw(now, width=console.width, height=None))
    if snapshot.error is not None:
        raise Unreachable(snapshot.error.what, hint=snapshot.error.hint)


async def _screen(home: Home, store: Store, watcher: FleetWatcher, console: Console) -> None:
    import trio

    from scheduler.output.top import draw
    from swarm.base.screen import Screen

    snapshot: FleetSnapshot | None = None

    async def look() -> None:
        nonlocal snapshot
        while True:
            snapshot = await watcher.newer(snapshot.number if snapshot else 0)

    with watcher.watching(), Screen(console) as screen:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            nursery.start_soon(look)
            while True:
                now = _now(home, store, snapshot)
                screen.show(draw(now, width=console.width, height=console.height, hint=HINT))
                await trio.sleep(REDRAW_S)


def _now(home: Home, store: Store, snapshot: FleetSnapshot | None) -> TopSnapshot:
    from scheduler.output.top import TopSnapshot
    from scheduler.submit.daemon import is_running

    return TopSnapshot(
        at=time.time(),
        campaigns=store.campaigns.summaries(),
        tasks=store.tasks.active(),
        devices=snapshot.devices if snapshot else (),
        scheduling=is_running(home),
        unreachable=snapshot.error.what if snapshot is not None and snapshot.error is not None else "",
        observed=snapshot is not None,
    )
