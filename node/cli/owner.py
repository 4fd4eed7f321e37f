"""Commands of a device's owner to a worker, here or on another device: status, pause, resume, drain, reset."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.markup import escape

from protocol.messages.work import Action, Control, StatusRequest
from swarm.base.home import Home
from swarm.base.screen import new_console, print_json

app = typer.Typer()
PANEL = "This device"


def _devices(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Completion: names and ids of devices that this home knows."""
    devices: list[tuple[str, str]] = ctx.obj.devices(ctx, incomplete) if ctx.obj is not None else []
    return devices


Devices = Annotated[
    list[str] | None,
    typer.Argument(
        help="Names or ids of your devices, as `peers` shows them.  \\[default: the worker of this --home]",
        metavar="DEVICE...",
        show_default=False,
        autocompletion=_devices,
    ),
]
Gates = Annotated[
    list[str] | None,
    typer.Option(
        "--gate",
        help="Reach other devices through this gate. Repeatable.  \\[default: this home's own gate, else those used last]",
        metavar="ADDRESS",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Now = Annotated[
    bool, typer.Option("--now", help="Stop running tasks too; their schedulers run them elsewhere.")
]
Finish = Annotated[bool, typer.Option("--finish", help="Run queued tasks too instead of giving them back.")]


@app.command(rich_help_panel=PANEL)
def status(ctx: typer.Context, device: Devices = None, gate: Gates = None, as_json: AsJson = False) -> None:
    """Show a worker's state, what it runs and for whom, and the readings of its sensors.

    Exit codes: 4 unreachable, 5 not permitted.
    """
    _send(ctx, StatusRequest(), device, gate, as_json)


@app.command(rich_help_panel=PANEL)
def pause(
    ctx: typer.Context, device: Devices = None, now: Now = False, gate: Gates = None, as_json: AsJson = False
) -> None:
    """Take no new work until `resume`, also after a restart.

    Running tasks continue; queued ones are given back.
    """
    _send(ctx, Control(action=Action.PAUSE, now=now), device, gate, as_json)


@app.command(rich_help_panel=PANEL)
def resume(ctx: typer.Context, device: Devices = None, gate: Gates = None, as_json: AsJson = False) -> None:
    """Take new work again after `pause`, or after a `drain` that has not finished."""
    _send(ctx, Control(action=Action.RESUME), device, gate, as_json)


@app.command(rich_help_panel=PANEL)
def drain(
    ctx: typer.Context,
    device: Devices = None,
    finish: Finish = False,
    now: Now = False,
    gate: Gates = None,
    as_json: AsJson = False,
) -> None:
    """Finish running tasks, deliver the results, then leave the swarm. The worker's process ends."""
    _send(ctx, Control(action=Action.DRAIN, now=now, finish=finish), device, gate, as_json)


@app.command(rich_help_panel=PANEL)
def reset(ctx: typer.Context, device: Devices = None, gate: Gates = None, as_json: AsJson = False) -> None:
    """Test a faulty device now; it serves again if the test passes."""
    _send(ctx, Control(action=Action.RESET), device, gate, as_json)


def _send(
    ctx: typer.Context,
    message: Control | StatusRequest,
    device: list[str] | None,
    gate: list[str] | None,
    as_json: bool,
) -> None:
    import trio

    from node.cli.remote import jobs_table, reply_json, send_command, status_line, still_held
    from node.settings.settings import WorkerSettings
    from protocol.words import Role
    from swarm.base.readings import reading_words
    from swarm.join.known_gates import any_gate_answers, gates_in_use, known_peers, worker_addresses
    from swarm.pools.membership import joined_pools
    from swarm.pools.people import known_names

    home: Home = ctx.obj
    settings = WorkerSettings.load(
        home.config_file, ctx.meta["environment"], {"gates": tuple(gate) if gate else None}
    )
    of_pools = [address for pool in joined_pools(home, Role.WORKER) for address in pool.gates]
    gates_known = gates_in_use(home, settings.gates) or tuple(of_pools)
    gates = gates_known if gate else tuple(dict.fromkeys((*gates_known, *worker_addresses(home))))
    if device and not gate and not (gates and any_gate_answers(gates)):
        if settings.lan:
            from swarm.reach.mdns import find_lan_contacts

            gates = (*gates, *find_lan_contacts())
        gates = (*gates, *known_peers(home))
    replies = trio.run(send_command, home, tuple(device or ()), gates, message)
    if as_json:
        print_json({"devices": [reply_json(reply) for reply in replies]})
    else:
        console = new_console()
        names = known_names(home)
        for reply in replies:
            if reply.error is not None:
                print(f"sark-node: {status_line(reply)}", file=sys.stderr)
                for line in reply.error.hint.splitlines():
                    print(f"  {line}", file=sys.stderr)
                continue
            console.print(escape(status_line(reply)), highlight=False, soft_wrap=True)
            if isinstance(message, Control) and message.action is Action.RESUME:
                for line in still_held(reply):
                    console.print(escape(line), highlight=False, soft_wrap=True)
            if reply.status is not None and (reading := reply.status.reading) is not None:
                console.print(f"  {reading_words(reading, reading.age_s)}", highlight=False, soft_wrap=True)
            if reply.status is not None and reply.status.jobs and isinstance(message, StatusRequest):
                console.print(jobs_table(reply.status.jobs, names))
    code = max((reply.error.exit_code for reply in replies if reply.error is not None), default=0)
    if code:
        raise SystemExit(code)
