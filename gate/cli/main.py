"""`sark-node gate`: run a gate."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import trio
import typer

from gate.cli import invite as cli_invite
from gate.cli import pool as cli_pool
from gate.cli import status
from gate.settings import DEFAULT_PORT, Admit, GateSettings
from protocol.errors import SettingsError
from swarm.base.home import Home

PANEL = "Gates and pools"

app = typer.Typer()
app.add_typer(cli_invite.app)
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
        list[str] | None,
        typer.Option(help="Listen on this address only, such as /ip4/192.0.2.7/tcp/4101. Repeatable."),
    ] = None,
    announce: Annotated[
        list[str] | None,
        typer.Option(help="Announce this address instead, such as a forwarded port. Repeatable."),
    ] = None,
    gates: Annotated[
        list[str] | None,
        typer.Option("--gate", help="Address of another gate of the swarm. Repeatable.", metavar="ADDRESS"),
    ] = None,
    admit: Annotated[
        str | None,
        typer.Option(
            help="Whom to serve: open (anybody), ticket (members of its pools) or list (--allow).  \\[default: open]",
            metavar="WHOM",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="With --admit ticket or list: also serve this peer. Repeatable.", metavar="PEER"),
    ] = None,
    pools: Annotated[
        list[str] | None,
        typer.Option(
            "--pool",
            help="With --admit ticket: also serve this pool, made on another home. Repeatable.",
            metavar="POOL_ID",
        ),
    ] = None,
    operators: Annotated[
        list[str] | None,
        typer.Option(
            "--operator",
            help="Let this scheduler, whose id `sark-node info` shows, read the gate's status. Repeatable.",
            metavar="SCHEDULER_ID",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="Serve Prometheus metrics, for example on 127.0.0.1:9464.", metavar="HOST:PORT"),
    ] = None,
    drain_s: Annotated[
        float | None,
        typer.Option(
            "--drain",
            min=0,
            max=3600,
            help="How long to wait for relayed connections after Ctrl-C.  \\[default: 30]",
            metavar="SECONDS",
        ),
    ] = None,
    relay: Annotated[
        bool | None,
        typer.Option(
            "--relay/--no-relay",
            help="Relay connections to nodes that cannot be dialled.  \\[default: relay]",
            show_default=False,
        ),
    ] = None,
    no_lan: Annotated[
        bool, typer.Option("--no-lan", help="Do not discover, or be discovered by, neighbours on the LAN.")
    ] = False,
    upnp: Annotated[
        bool, typer.Option("--upnp", help="Ask this LAN's router to forward the port (UPnP).")
    ] = False,
    stop_with_stdin: Annotated[
        bool, typer.Option(hidden=True, help="Stop when standard input ends.")
    ] = False,
) -> None:
    """Run a gate: a node with a known address through which others join the swarm, and which relays for nodes that cannot be dialled.

    A gate runs no tasks. It prints the command with which others join, and runs until Ctrl-C. Workers and schedulers of this home use it
    automatically. docs/gates.md describes all settings and limits.
    """
    if ctx.invoked_subcommand is not None:
        return
    if port is not None and listen is not None:
        raise SettingsError(
            "--port and --listen both say where to listen",
            hint=f"leave out --port, or write: --listen /ip4/0.0.0.0/tcp/{port}",
        )
    if port is not None:
        listen = [f"/ip4/0.0.0.0/tcp/{port}"]
    given = {name: value for name, value in ctx.params.items() if name in GateSettings.model_fields}
    flags: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in {**given, "listen": listen}.items()
        if value not in (None, [], ())
    }
    flags |= {"upnp": upnp or None, "lan": False if no_lan else None}
    home: Home = ctx.obj
    _run(home, GateSettings.load(home.config_file, ctx.meta["environment"], flags), stop_with_stdin)


def _run(home: Home, settings: GateSettings, stop_with_stdin: bool) -> None:
    from gate.service import (  # loads libp2p, which takes half a second that `--help` does not need
        full_addresses,
        run_gate,
    )

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads the output
            print(line, flush=True)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            node = await nursery.start(partial(run_gate, home, settings, with_stdin=stop_with_stdin, say=say))
            for line in greeting(node.identity.peer_id, full_addresses(node), settings):
                print(line, flush=True)
            print("Press Ctrl-C to stop it; nodes that know each other stay connected.", flush=True)

    trio.run(main)


def greeting(peer: str, addresses: Sequence[str], settings: GateSettings) -> list[str]:
    """Lines for the operator: the gate's id, how others join, and whom the gate serves if not anybody."""
    lines = [f"Gate {peer} is up."]
    if addresses:
        lines += ["Others join with" + (" one of:" if len(addresses) > 1 else ":")]
        lines += [f"  sark-node join --gate {address}" for address in addresses]
    else:
        lines += ["Nobody can dial this gate: it has no address. Set one: --announce /ip4/192.0.2.7/tcp/4101"]
    if settings.admit is Admit.TICKET:
        lines += [
            "It serves only members of its pools (ticket). To add some, on this home:",
            "  sark-node pool create NAME, then: sark-node pool invite NAME",
        ]
    elif settings.admit is Admit.LIST:
        many = len(settings.allow)
        named = (
            f"{many} peer{'' if many == 1 else 's'} named by --allow"
            if many
            else "nobody else yet: --allow PEER"
        )
        lines += [f"It serves its own home and {named} (list)."]
    return lines
