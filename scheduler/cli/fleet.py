"""Commands for the swarm, `peers` and `top`, and the demo."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from protocol.errors import NothingFits, Unreachable
from scheduler.cli.options import GENERAL, SWARM, AsJson, Gates, duration_option, gates_of, opened
from scheduler.output.terminal import print_lines
from swarm.base.home import Home
from swarm.base.screen import new_console, print_json
from swarm.base.threads import LAN

if TYPE_CHECKING:
    from scheduler.output.fleet import FleetSnapshot, FleetWatcher, SwarmObserver
    from scheduler.output.top import TopSnapshot
    from scheduler.store.store import Store

app = typer.Typer()

REDRAW_S: Final = 0.25
MIN_INTERVAL_S: Final = 0.5


@app.command(rich_help_panel=SWARM)
def peers(
    ctx: typer.Context,
    where: Annotated[
        list[str] | None,
        typer.Argument(
            help="Clauses that devices must meet, such as 'ram >= 8 GiB'. Each other device shows why it does not."
        ),
    ] = None,
    gate: Gates = None,
    as_json: AsJson = False,
) -> None:
    """List the devices of the swarm, and whether they match clauses.

    Exit code 3: none matches.
    """
    import trio

    from protocol.values.requirement import Requirement, parse_clause
    from scheduler.output.fleet import coverage_lines, device_info, observe_fleet
    from scheduler.output.peers import peer_remarks, peers_table
    from scheduler.store.store import has_store

    requirement = Requirement(clauses=tuple(map(parse_clause, where or ())))
    gates = gates_of(ctx, gate, check=True)
    devices = trio.run(partial(observe_fleet, gates, requirement, home=ctx.obj))
    held = {}
    if has_store(ctx.obj):
        with opened(ctx) as store:
            held = store.results.coverage()
    if as_json:
        print_json({"count": len(devices), "peers": [device_info(device, held) for device in devices]})
    elif not devices:
        print("The gate answers, but no device has joined yet. Join with: sark-node join")
    else:
        console = new_console()
        console.print(peers_table(devices, console.width))
        print_lines([*peer_remarks(devices), *coverage_lines(devices, held)], console)
    if where and not any(device.fit.fits for device in devices):
        raise SystemExit(NothingFits.exit_code)


@app.command(rich_help_panel=SWARM)
def top(
    ctx: typer.Context,
    gate: Gates = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print once and exit, as when the output is piped.")
    ] = False,
    every: Annotated[
        str, typer.Option(help="How often to ask the devices, such as 2s or 1m.", metavar="DURATION")
    ] = "3s",
    as_json: AsJson = False,
) -> None:
    """Show running campaigns and devices live, until Ctrl-C.

    For devices that run your tasks, also shows processor, memory, temperature, power and GPUs; — means that the device has no such sensor.

    Exit code 4 with --once: no gate answers.
    """
    import trio

    from scheduler.output.fleet import FleetWatcher, open_observer
    from swarm.base.screen import can_live

    home: Home = ctx.obj
    every_s = duration_option("--every", every)

    @asynccontextmanager
    async def observer_of_gates() -> AsyncIterator[SwarmObserver]:
        gates = await LAN.run(gates_of, ctx, gate)  # may search the LAN
        async with open_observer(gates, home=home) as observer:
            yield observer

    watcher = FleetWatcher(observer_of_gates, interval_s=max(MIN_INTERVAL_S, every_s))
    console = new_console()
    with opened(ctx) as store:
        if once or as_json or not can_live(console):
            trio.run(_print_once, home, store, watcher, console, as_json)
            return
        try:
            trio.run(_show_live, home, store, watcher, console)
        except* KeyboardInterrupt:
            pass


async def _print_once(
    home: Home, store: Store, watcher: FleetWatcher, console: Console, as_json: bool
) -> None:
    import trio

    from scheduler.output.top import draw, top_json

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        with watcher.watching():
            fleet = await watcher.newer()
        nursery.cancel_scope.cancel()
    snapshot = _snapshot(home, store, fleet)
    if as_json:
        models = {model for device in snapshot.devices for model in device.advert.models}
        names = store.campaigns.model_names(models)
        print_json(top_json(snapshot, names, store.results.coverage()))
    else:
        console.print(draw(snapshot, width=console.width, height=None))
    if fleet.error is not None:
        raise Unreachable(fleet.error.what, hint=fleet.error.hint)


async def _show_live(home: Home, store: Store, watcher: FleetWatcher, console: Console) -> None:
    import trio

    from scheduler.output.top import draw
    from swarm.base.screen import Screen

    hint = "q or Ctrl-C quits; campaigns continue"
    with watcher.watching(), Screen(console) as screen:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            while True:
                snapshot = _snapshot(home, store, watcher.snapshot)
                screen.show(draw(snapshot, width=console.width, height=console.height, hint=hint))
                await trio.sleep(REDRAW_S)


def _snapshot(home: Home, store: Store, fleet: FleetSnapshot | None) -> TopSnapshot:
    from scheduler.output.top import TopSnapshot
    from scheduler.store.readings import read_readings
    from scheduler.submit.daemon import is_running

    now = time.time()
    return TopSnapshot(
        at=now,
        campaigns=store.campaigns.summaries(),
        tasks=store.tasks.active(),
        devices=fleet.devices if fleet else (),
        scheduling=is_running(home),
        unreachable=fleet.error.what if fleet is not None and fleet.error is not None else "",
        observed=fleet is not None,
        readings=read_readings(home.readings_file, now),
    )


@app.command(rich_help_panel=GENERAL)
def demo(
    directory: Annotated[Path, typer.Option(help="Where to store everything.")] = Path("sark-demo"),
    workers: Annotated[int, typer.Option(min=1, max=16, help="Number of workers.")] = 3,
    fleet: Annotated[
        int,
        typer.Option(
            min=0,
            max=16,
            help="Simulate this many devices instead, from a laptop to a GPU server. Nothing is measured.",
        ),
    ] = 0,
) -> None:
    """Try everything on this machine: a gate, workers and a campaign."""
    from scheduler.local.demo import run_demo

    raise SystemExit(run_demo(directory, workers, Console(), fleet=fleet))
