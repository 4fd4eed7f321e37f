"""What a device's owner types to know it: enroll, doctor."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from swarm.base.home import Home
from swarm.base.settings import SettingsError

if TYPE_CHECKING:
    from drivers.contract.base import Limits, WorkOrder
    from node.device.calibrate import Launcher
    from node.device.calibration import Calibration
    from node.device.probe import Profile
    from node.doctor.host import Check

app = typer.Typer()
PANEL: Final = "For a device's owner"
PIPE_WIDTH: Final = 1000
STYLES: Final = {"ok": "green", "note": "yellow", "bad": "bold red"}


@app.command(rich_help_panel=PANEL)
def enroll(
    ctx: typer.Context,
    ticket: Annotated[str | None, typer.Argument(hidden=True)] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Whole curves of the micro-benchmarks: half a minute, not seconds.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Also if this device is enrolled and nothing has changed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Find out, once, what measuring on this device needs and what it can do at best; the first join does it too.

    Calibrates the timer, learns the warm-up of each unit, looks at the idle host, and measures memory and arithmetic of processor and GPU.
    What is found is kept in the home until hardware, system or runtimes change.
    """
    import trio

    from drivers.launch.launch import probe_units
    from node.device.calibrate import CalibrationTools, enrolled
    from node.device.lock import DeviceLock
    from node.device.probe import lock_name, probe_device

    if ticket is not None:
        raise SettingsError(
            "enroll takes no ticket: it looks at this device",
            hint="to submit to a pool: sark-node pool join TICKET\nto have this device work for it: sark-node join TICKET",
        )
    home: Home = ctx.obj
    folder = home.folder("worker")
    profile = probe_device(folder, probe_units)
    with _launcher(profile) as launch:
        found = trio.run(
            partial(
                enrolled,
                folder,
                profile,
                CalibrationTools(launch),
                DeviceLock(lock_name()),
                lambda line: print(line, file=sys.stderr, flush=True),
                full=full,
                again=again,
            )
        )
    if as_json:
        sys.stdout.write(found.model_dump_json(indent=2) + "\n")
        return
    _show(found)


app.command("enrol", hidden=True)(enroll)


@contextlib.contextmanager
def _launcher(profile: Profile) -> Iterator[Launcher]:
    """Launches on the units of this device, each driver's from one zygote."""
    from drivers.launch.launch import Launch, Zygote

    with contextlib.ExitStack() as stack:
        zygotes: dict[str, Zygote] = {}

        def launch(order: WorkOrder, limits: Limits) -> Launch:
            driver = profile.driver_of(order.unit) or ""
            if driver not in zygotes:
                zygotes[driver] = stack.enter_context(Zygote(driver).start())
            return Launch(order, limits, zygotes[driver])

        yield launch


def _show(found: Calibration) -> None:
    from node.device.calibration import curves, headline

    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    print(headline(found))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    host = found.host
    for what, value in (
        ("fingerprint", found.fingerprint),
        ("timer", f"{found.timer_ns} ns"),
        ("others use", _percent(host.others_share)),
        ("waiting for a processor", _percent(host.stall_share)),
        ("clock", f"{host.clock_mhz:.0f} MHz" if host.clock_mhz is not None else ""),
        ("temperature", f"{host.temperature_c:.0f} °C" if host.temperature_c is not None else ""),
        *((f"warm-up of {unit}", f"{count} inferences") for unit, count in sorted(found.floors.items())),
    ):
        if value:
            table.add_row(Text(what, style="dim"), Text(value))
    for one in found.micro:
        table.add_row(Text(one.device), Text(f"{one.backend}, {one.seconds:.1f} s"))
        for name, curve in curves(one):
            told = "  ".join(f"{size.replace('_', ' ')}: {value:.4g}" for size, value in curve.items())
            table.add_row(Text(f"  {name}", style="dim"), Text(told))
        if one.throttled:
            table.add_row(Text("  slowed by", style="dim"), Text(", ".join(one.throttled)))
    console.print(table)
    for note in (*found.notes, *(note for one in found.micro for note in one.notes)):
        print(f"  {note}")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


@app.command(rich_help_panel=PANEL)
def doctor(
    ctx: typer.Context,
    gate: Annotated[
        list[str] | None,
        typer.Option(help="Try this gate. Repeatable.  \\[default: those that join uses]", metavar="ADDRESS"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Look for what stands in the way of good figures on this device and of being reached, and say what to do. Ends with 6 if something
    is bad."""
    from drivers.launch.launch import probe_units
    from drivers.launch.tier import probe
    from node.device.probe import probe_device
    from node.doctor.host import CheckState, checks, gather

    home: Home = ctx.obj
    folder = home.folder("worker")
    seen = _look_at_the_network(ctx, gate)  # first: what is wrong with the settings is told at once
    found = checks(gather(probe_device(folder, probe_units, sandbox=probe()), folder, home.cache))
    found += seen
    if as_json:
        json.dump([asdict(check) for check in found], sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        show_checks(found)
    if any(check.state is CheckState.BAD for check in found):
        raise typer.Exit(6)


def _look_at_the_network(ctx: typer.Context, gate: list[str] | None) -> list[Check]:
    """As the worker of this home, or beside it if one runs."""
    import trio

    from node.cli.remote import tell_devices
    from node.doctor.host import Check, CheckState
    from node.doctor.network import ANYWHERE, look, net_checks, pool_checks, usable_gates
    from node.settings.settings import WorkerSettings
    from protocol.errors import ResourceError
    from protocol.messages.work import StatusRequest
    from protocol.words import Role
    from swarm.base.home import Role as HomeRole
    from swarm.base.locks import lock_folder
    from swarm.join.known_gates import local_gates, remembered_gates
    from swarm.net.identity import Identity, load_or_create
    from swarm.pools.membership import joined_pools
    from swarm.reach.mdns import ways_on_lan

    home: Home = ctx.obj
    settings = WorkerSettings.load(
        home.config_file, ctx.meta["environment"], {"gates": tuple(gate) if gate else None}
    )
    joined = joined_pools(home, Role.WORKER)
    own = pool_checks(joined, time.time())
    of_pools = [address for pool in joined for address in pool.gates]
    gates = settings.gates or (*(local_gates(home) or remembered_gates(home)), *of_pools)
    near = None
    if settings.lan:
        roles: tuple[HomeRole, ...] = ("worker", "gate")
        ours: set[str] = set()
        for role in roles:
            with contextlib.suppress(ResourceError):  # of a damaged key it is told below
                ours |= {load_or_create(home.key(role)).peer_id} if home.key(role).exists() else set()
        near = len({way.rpartition("/")[2] for way in ways_on_lan()} - ours)
    fixed = any(not address.endswith("/tcp/0") for address in settings.listen)
    worker: str | None = None
    listen: tuple[str, ...] = settings.listen or ANYWHERE
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_folder(home.folder("worker")))
        except ResourceError:  # a worker runs
            told = trio.run(tell_devices, home, (), (), StatusRequest())
            worker = next((item.standing.reach or "" for item in told if item.standing is not None), "")
            me, fixed = Identity.fresh(), False
            listen = tuple(f"{address.rpartition('/')[0]}/0" for address in listen)
        else:
            try:
                me = load_or_create(home.key("worker"))
            except ResourceError as exc:  # damaged, or the disk is full: all else can be looked at
                own.append(Check("key", CheckState.BAD, exc.what, exc.hint))
                me = Identity.fresh()
        signs = trio.run(
            partial(look, usable_gates(gates), me, listen, neighbours=near, worker=worker, fixed=fixed)
        )
        return [*own, *net_checks(signs)]


def show_checks(found: Sequence[Check]) -> None:
    """One line for each, and below it what to do."""
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for check in found:
        said = Text(check.what)
        if check.todo:
            said.append("".join(f"\n  {line}" for line in check.todo.splitlines()), style="dim")
        table.add_row(Text(str(check.state), style=STYLES[check.state]), Text(check.subject), said)
    console.print(table)
