"""What a device's owner types to have it do something: status, pause, resume, drain, reset. Here, or on another device of one's own."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from protocol.messages.work import Action, Control, StatusRequest
from swarm.base.home import Home

app = typer.Typer()
PANEL = "For a device's owner"


def _devices(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """For the shell: names and ids that this home knows, as far as the program can tell."""
    found: list[tuple[str, str]] = ctx.obj.devices(ctx, incomplete) if ctx.obj is not None else []
    return found


DEVICES = typer.Argument(
    help="Name or id of devices of yours, as peers shows them.  \\[default: the worker of this --home]",
    metavar="DEVICE...",
    show_default=False,
    autocompletion=_devices,
)
GATE = typer.Option(
    "--gate",
    help="A way to other devices. Repeatable.  \\[default: the gate on this --home]",
    metavar="ADDRESS",
)
JSON = typer.Option("--json", help="For programs.")
NOW = typer.Option("--now", help="Stop what runs, too; its scheduler has it run elsewhere.")


@app.command(rich_help_panel=PANEL)
def status(
    ctx: typer.Context,
    device: Annotated[list[str] | None, DEVICES] = None,
    gate: Annotated[list[str] | None, GATE] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show how a worker stands: its state and why, and what it runs for whom. Exit codes: 4 unreachable, 5 not permitted."""
    _say(ctx, StatusRequest(), device, gate, as_json)


@app.command(rich_help_panel=PANEL)
def pause(
    ctx: typer.Context,
    device: Annotated[list[str] | None, DEVICES] = None,
    now: Annotated[bool, NOW] = False,
    gate: Annotated[list[str] | None, GATE] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Take no new work until told to resume, also over restarts. What runs goes on; what waits is given back."""
    _say(ctx, Control(action=Action.PAUSE, now=now), device, gate, as_json)


@app.command(rich_help_panel=PANEL)
def resume(
    ctx: typer.Context,
    device: Annotated[list[str] | None, DEVICES] = None,
    gate: Annotated[list[str] | None, GATE] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Take new work again after pause, or after a drain that has not ended yet."""
    _say(ctx, Control(action=Action.RESUME), device, gate, as_json)


@app.command(rich_help_panel=PANEL)
def drain(
    ctx: typer.Context,
    device: Annotated[list[str] | None, DEVICES] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Run what waits here, too, instead of giving it back.")
    ] = False,
    now: Annotated[bool, NOW] = False,
    gate: Annotated[list[str] | None, GATE] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Take no new work, let what runs end, hand over the results, then leave the swarm: the worker's process ends."""
    _say(ctx, Control(action=Action.DRAIN, now=now, finish=finish), device, gate, as_json)


@app.command(rich_help_panel=PANEL)
def reset(
    ctx: typer.Context,
    device: Annotated[list[str] | None, DEVICES] = None,
    gate: Annotated[list[str] | None, GATE] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Examine a faulty device now; it serves again if it is well."""
    _say(ctx, Control(action=Action.RESET), device, gate, as_json)


def _say(
    ctx: typer.Context,
    message: Control | StatusRequest,
    device: list[str] | None,
    gate: list[str] | None,
    as_json: bool,
) -> None:
    import trio

    from node.cli.remote import tell_devices
    from node.cli.status_view import jobs_table, still_held, told_json, told_line
    from node.settings.settings import WorkerSettings
    from protocol.words import Role
    from swarm.join.known_gates import answers, local_gates, own_worker, remembered_gates
    from swarm.net.identity import load_or_create
    from swarm.pools.membership import joined_pools

    home: Home = ctx.obj
    settings = WorkerSettings.load(
        home.config_file, ctx.meta["environment"], {"gates": tuple(gate) if gate else None}
    )
    of_pools = [address for pool in joined_pools(home, Role.WORKER) for address in pool.gates]
    known = settings.gates or local_gates(home) or remembered_gates(home) or tuple(of_pools)
    gates = known if gate else tuple(dict.fromkeys((*known, *own_worker(home))))
    if device and not gate and settings.lan and not (gates and answers(gates)):
        from swarm.reach.mdns import ways_on_lan

        gates = (*gates, *ways_on_lan())
    told = trio.run(tell_devices, home, tuple(device or ()), gates, message)
    if as_json:
        json.dump({"devices": [told_json(item) for item in told]}, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        console = Console() if sys.stdout.isatty() else Console(width=1000)
        me = load_or_create(home.key("scheduler")).peer_id
        for item in told:
            if item.error is not None:
                print(f"sark-node: {told_line(item)}", file=sys.stderr)
                for line in item.error.hint.splitlines():
                    print(f"  {line}", file=sys.stderr)
                continue
            console.print(escape(told_line(item)), highlight=False, soft_wrap=True)
            if isinstance(message, Control) and message.action is Action.RESUME:
                for line in still_held(item):
                    console.print(escape(line), highlight=False, soft_wrap=True)
            if item.standing is not None and item.standing.jobs and isinstance(message, StatusRequest):
                console.print(jobs_table(item.standing.jobs, me))
    code = max((item.error.exit_code for item in told if item.error is not None), default=0)
    if code:
        raise SystemExit(code)
