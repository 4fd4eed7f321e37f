"""`sark-node gate` and `gate status`: what an operator types. The pool commands are in `cli_pool`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import trio
import typer

from gate.cli import pool as cli_pool
from gate.cli import status
from gate.settings import DEFAULT_PORT, Admit, GateSettings
from swarm.base.home import Home

PANEL = "For a gate's operator"

app = typer.Typer()
app.add_typer(cli_pool.app)
operate = typer.Typer()
app.add_typer(operate, name="gate", rich_help_panel=PANEL)
operate.add_typer(status.app)


@operate.callback(invoke_without_command=True)
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
    admit: Annotated[
        str | None,
        typer.Option(
            help="Whom it works for: open (anybody), ticket (members of its pools), list (--allow).  \\[default: open]",
            metavar="WHOM",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Let this peer in where not anybody is. Repeatable.", metavar="PEER"),
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option(
            help="With --admit ticket: a pool of another home whose members come in, too. Repeatable.",
            metavar="POOL_ID",
        ),
    ] = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(
            help="Let this scheduler (shown by: sark-node info) read its status from elsewhere. Repeatable.",
            metavar="SCHEDULER_ID",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="Serve numbers for Prometheus there, such as 127.0.0.1:9464.", metavar="HOST:PORT"),
    ] = None,
    drain: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=3600,
            help="How long relayed connections may go on after Ctrl-C.  \\[default: 30]",
            metavar="SECONDS",
        ),
    ] = None,
    relay: Annotated[
        bool | None,
        typer.Option(
            "--relay/--no-relay",
            help="Relay for nodes that nobody can dial.  \\[default: relay]",
            show_default=False,
        ),
    ] = None,
    no_lan: Annotated[
        bool, typer.Option("--no-lan", help="Do not look for neighbours on the LAN, nor be seen by them.")
    ] = False,
    upnp: Annotated[
        bool, typer.Option("--upnp", help="Ask the router of this LAN for the port (UPnP).")
    ] = False,
    stop_with_stdin: Annotated[
        bool, typer.Option(hidden=True, help="Stop when standard input ends.")
    ] = False,
) -> None:
    """Be a way into the swarm: a known address for joining, finding, being found and being called. Runs nothing for others.

    Prints the line that others join with. Runs until Ctrl-C. Workers and schedulers on the same --home find it by themselves.
    All that it can be told stands in docs/gates.md, also the limits of what it lends.
    """
    if ctx.invoked_subcommand is not None:
        return
    if port is not None and listen is None:
        listen = [f"/ip4/0.0.0.0/tcp/{port}"]
    flags: dict[str, Any] = {
        "listen": _tuple(listen),
        "announce": _tuple(announce),
        "gates": _tuple(gate),
        "upnp": upnp or None,
        "admit": admit,
        "allow": _tuple(allow),
        "pools": _tuple(pool),
        "operators": _tuple(operator),
        "metrics": metrics,
        "drain_s": drain,
        "relay": relay,
        "lan": False if no_lan else None,
    }
    home: Home = ctx.obj
    _run(home, GateSettings.load(home.config_file, ctx.meta["environment"], flags), stop_with_stdin)


def _run(home: Home, settings: GateSettings, stop_with_stdin: bool) -> None:
    from gate.service import (
        full_addresses,
        run_gate,
    )  # loads libp2p: half a second that `--help` need not pay

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more
            print(line, flush=True)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            here = await nursery.start(partial(run_gate, home, settings, with_stdin=stop_with_stdin, say=say))
            for line in greeting(here.identity.peer_id, full_addresses(here), settings):
                print(line, flush=True)
            print("Ctrl-C stops it; nodes that know each other go on without.", flush=True)

    trio.run(main)


def greeting(peer: str, addresses: Sequence[str], settings: GateSettings) -> list[str]:
    """Lines for the operator: who it is, how others come in, and for whom it works where that is not anybody."""
    lines = [f"Gate {peer} is up."]
    if addresses:
        lines += ["Others join with" + (" one of:" if len(addresses) > 1 else ":")]
        lines += [f"  sark-node join --gate {address}" for address in addresses]
    else:
        lines += ["Nobody can dial it: it has no address. Say one: --announce /ip4/192.0.2.7/tcp/4101"]
    if settings.admit is Admit.TICKET:
        lines += [
            "It works for members of its pools alone (ticket). On this home:",
            "  sark-node pool create NAME, then: sark-node pool invite NAME",
        ]
    elif settings.admit is Admit.LIST:
        many = len(settings.allow)
        named = (
            f"{many} peer{'' if many == 1 else 's'} named by --allow"
            if many
            else "nobody else yet: --allow PEER"
        )
        lines += [f"It works for its own home and {named} (list)."]
    return lines


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return tuple(values) if values else None
