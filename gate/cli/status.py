"""`sark-node gate status`: print a gate's status, or watch it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from gate.settings import GateSettings
from protocol.errors import SettingsError
from swarm.base.home import Home
from swarm.join.known_gates import local_gates, recent_gates

if TYPE_CHECKING:
    from gate.status.client import GateClient
    from protocol.messages.gate import GateSnapshot

app = typer.Typer()

EVERY_S: Final = 1.0
REDRAW_S: Final = 0.25


@app.command()
def status(
    ctx: typer.Context,
    gate: Annotated[
        list[str] | None,
        typer.Option(help="Address of the gate.  \\[default: the gate of this home]", metavar="ADDRESS"),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Refresh until Ctrl-C.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; with --live one line per second.")
    ] = False,
) -> None:
    """Show a gate's status: peers, reservations, circuits, refusals, index, load.

    Only the gate's own home and its --operator schedulers may read it. Exit codes: 4 unreachable, 5 not permitted.
    """
    import trio

    from swarm.base.screen import can_live

    home: Home = ctx.obj
    settings = GateSettings.load(
        home.config_file, ctx.meta["environment"], {"gates": tuple(gate) if gate else None}
    )
    gates = settings.gates if gate else local_gates(home) or settings.gates or recent_gates(home)
    if live and not as_json and not can_live(Console()):
        raise SettingsError(
            "--live needs a terminal that can move its cursor",
            hint="add --json for one line per second, or leave out --live",
        )
    try:
        trio.run(_show, home, gates, live, as_json)
    except* KeyboardInterrupt:
        if not live:
            raise


async def _show(home: Home, gates: tuple[str, ...], live: bool, as_json: bool) -> None:
    import trio

    from gate.status.client import asking
    from gate.status.view import status_json, status_view
    from swarm.base.screen import new_console

    async with asking(home, gates) as client:
        snapshot = await client.status()  # before the live view, so that a refusal is an error
        peer = client.contact.peer
        if as_json:
            while True:
                print(status_json(peer, snapshot, indent=None if live else 2), flush=True)
                if not live:
                    return
                await trio.sleep(EVERY_S)
                snapshot = await client.status()
        if live:
            await _screen(client, snapshot)
        new_console().print(status_view(peer, snapshot))


async def _screen(client: GateClient, first: GateSnapshot) -> NoReturn:
    import trio

    from gate.status.view import status_view
    from protocol.errors import Unreachable
    from swarm.base.screen import Screen

    console, snapshot, silent = Console(), first, ""
    before: GateSnapshot | None = None

    async def ask() -> None:
        nonlocal before, snapshot, silent
        while True:
            await trio.sleep(EVERY_S)
            try:
                fresh = await client.status()
            except Unreachable:
                silent = "the gate does not answer; this is its last status"
            else:
                before, snapshot, silent = snapshot, fresh, ""

    with Screen(console) as screen:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while True:  # redraw more often than the gate is asked, because the terminal may be resized
                hint = Text(
                    silent or "press q or Ctrl-C to quit; the gate keeps running",
                    style="yellow" if silent else "dim",
                )
                peer = client.contact.peer
                screen.show(status_view(peer, snapshot, before, height=console.height, hint=hint))
                await trio.sleep(REDRAW_S)
