"""`sark-node gate status`: how a gate stands, once or watched."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from gate.settings import GateSettings
from swarm.base.home import Home
from swarm.base.settings import SettingsError
from swarm.join.known_gates import local_gates, remembered_gates

if TYPE_CHECKING:
    from gate.status.client import GateAnswer
    from protocol.messages.gate import GateSnapshot

app = typer.Typer()

EVERY_S: Final = 1.0
REDRAW_S: Final = 0.25
PIPE_WIDTH: Final = 1000


@app.command()
def status(
    ctx: typer.Context,
    gate: Annotated[
        list[str] | None,
        typer.Option(help="Which gate.  \\[default: the gate on this --home]", metavar="ADDRESS"),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Go on showing it until Ctrl-C.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="For programs; with --live a line each second.")
    ] = False,
) -> None:
    """Show how a gate stands: peers, places, circuits, refusals, index, load. Exit codes: 4 unreachable, 5 not permitted.

    Told to the keys of the gate's own home, and to those that it was started with as --operator.
    """
    import trio

    from swarm.base.screen import can_live

    home: Home = ctx.obj
    settings = GateSettings.load(
        home.config_file, ctx.meta["environment"], {"gates": tuple(gate) if gate else None}
    )
    gates = settings.gates if gate else local_gates(home) or settings.gates or remembered_gates(home)
    if live and not as_json and not can_live(Console()):
        raise SettingsError(
            "--live needs a terminal that can move its cursor",
            hint="add --json for a line each second, or leave --live out",
        )
    try:
        trio.run(_watch if live else _once, home, gates, as_json)
    except* KeyboardInterrupt:
        if not live:
            raise


async def _once(home: Home, gates: tuple[str, ...], as_json: bool) -> None:
    from gate.status.client import asking
    from gate.status.view import status_json, status_view

    async with asking(home, gates) as asked:
        standing = await asked.standing()
        if as_json:
            print(status_json(asked.peer, standing))
            return
        console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
        console.print(status_view(asked.peer, standing, rows=MAX_ROWS))


MAX_ROWS: Final = 48


async def _watch(home: Home, gates: tuple[str, ...], as_json: bool) -> None:
    from gate.status.client import asking

    async with asking(home, gates) as asked:
        first = await asked.standing()  # what is not permitted is told as an error, not watched
        if as_json:
            await _lines(asked, first)
        else:
            await _screen(asked, first)


async def _lines(asked: GateAnswer, standing: GateSnapshot) -> None:
    import trio

    from gate.status.view import status_json

    while True:
        print(json.dumps(json.loads(status_json(asked.peer, standing))), flush=True)
        await trio.sleep(EVERY_S)
        standing = await asked.standing()


async def _screen(asked: GateAnswer, first: GateSnapshot) -> None:
    import trio

    from gate.status.view import status_screen
    from protocol.errors import Unreachable
    from swarm.base.screen import Screen

    console, standing, silent = Console(), first, ""
    before: GateSnapshot | None = None

    async def ask() -> None:
        nonlocal before, standing, silent
        while True:
            await trio.sleep(EVERY_S)
            try:
                fresh = await asked.standing()
            except Unreachable:
                silent = "it does not answer; this is how it stood last"
            else:
                before, standing, silent = standing, fresh, ""

    with Screen(console) as screen:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while True:  # more often than it is asked: the terminal may be given another size
                hint = Text(silent or "q or Ctrl-C leaves it running", style="yellow" if silent else "dim")
                screen.show(status_screen(asked.peer, standing, before, height=console.height, hint=hint))
                await trio.sleep(REDRAW_S)
