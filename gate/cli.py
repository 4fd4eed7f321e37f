"""`sark-node gate`: what an operator types. The pool commands are in `cli_pool`."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Annotated

import trio
import typer

from gate import cli_pool
from gate.settings import DEFAULT_PORT, GateSettings
from swarm.home import Home

app = typer.Typer()
app.add_typer(cli_pool.app)


@app.command(rich_help_panel="For a gate's operator")
def gate(
    ctx: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help=f"TCP port on every interface.  \\[default: {DEFAULT_PORT}]"),
    ] = None,
    listen: Annotated[
        list[str] | None, typer.Option(help="Listen only there, such as /ip4/192.0.2.7/tcp/4101. Repeatable.")
    ] = None,
    announce: Annotated[
        list[str] | None,
        typer.Option(help="Tell others this address instead, such as a forwarded port. Repeatable."),
    ] = None,
    gate: Annotated[
        list[str] | None, typer.Option(help="Another gate of the same swarm. Repeatable.", metavar="ADDRESS")
    ] = None,
    stop_with_stdin: Annotated[
        bool, typer.Option(hidden=True, help="Stop when standard input ends.")
    ] = False,
) -> None:
    """Be a way into the swarm: a known address for joining, finding and being found. Runs nothing for others.

    Prints the line that others join with. Runs until Ctrl-C. Workers and schedulers on the same --home find it by themselves.
    """
    from gate.service import (
        full_addresses,
        run_gate,
    )  # loads libp2p: half a second that `--help` need not pay

    home: Home = ctx.obj
    if port is not None and listen is None:
        listen = [f"/ip4/0.0.0.0/tcp/{port}"]
    settings = GateSettings.load(
        home.config_file,
        ctx.meta["environment"],
        {"listen": _tuple(listen), "announce": _tuple(announce), "gates": _tuple(gate)},
    )

    def stopping() -> None:
        with contextlib.suppress(OSError):  # nobody reads any more
            print("stopping", flush=True)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            here = await nursery.start(
                partial(run_gate, home, settings, with_stdin=stop_with_stdin, stopping=stopping)
            )
            print(f"Gate {here.identity.peer_id} is up. Others join with one of:", flush=True)
            for address in full_addresses(here):
                print(f"  sark-node join --gate {address}", flush=True)
            print("Ctrl-C stops it; nodes that know each other go on without.", flush=True)

    trio.run(main)


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return tuple(values) if values else None
