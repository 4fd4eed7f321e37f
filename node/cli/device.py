"""Commands of a device's owner about the device: calibrate, doctor."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from protocol.errors import SettingsError
from swarm.base.home import Home
from swarm.base.screen import new_console, print_json
from swarm.base.text import safe_text
from swarm.base.units import DurationError, parse_duration

if TYPE_CHECKING:
    from node.device.calibration import Calibration
    from node.doctor.host import Check

app = typer.Typer()
PANEL: Final = "This device"
STYLES: Final = {"ok": "green", "note": "yellow", "bad": "bold red"}


@app.command(rich_help_panel=PANEL)
def calibrate(
    ctx: typer.Context,
    ticket: Annotated[str | None, typer.Argument(hidden=True)] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Measure complete curves; takes half a minute instead of seconds.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Calibrate again even if nothing has changed.")
    ] = False,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="DURATION",
            help="Longest wait for a quiet host.  \\[default: 3s; with --full 30s]",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure this device's peak performance and the warm-up that it needs.

    Measures the timer, each unit's warm-up and the spread of its launches, the idle host, and the memory and arithmetic speed of
    processor and GPU. The result is stored for this device, for all homes, until hardware, system or runtimes change. The first `join`
    calibrates too, and a worker adds rounds at quiet moments.
    """
    import trio

    from drivers.launch.launch import probe_units
    from node.device.calibrate import calibration_tools
    from node.device.calibration_file import calibration_file
    from node.device.calibration_rounds import Calibrator
    from node.device.gpu_units import units_on_gpus
    from node.device.lock import DeviceLock
    from node.device.probe import lock_name, probe_device
    from node.run.launchers import Launchers
    from node.settings.settings import DriverSecrets, WorkerSettings

    if ticket is not None:
        raise SettingsError(
            "calibrate takes no ticket",
            hint="to submit to a pool: sark-node pool join TICKET\nto lend this device to it: sark-node join TICKET",
        )
    home: Home = ctx.obj
    folder = home.folder("worker")
    wait_s = _seconds("--wait", wait) if wait is not None else None
    settings = WorkerSettings.load(home.config_file, ctx.meta["environment"], {})
    look = units_on_gpus(settings.gpus, probe_units)
    profile = probe_device(folder, look, on=look.gpus)
    with Launchers(profile, DriverSecrets()) as launchers:
        calibrator = Calibrator(
            calibration_file(profile.fingerprint),
            profile,
            calibration_tools(launchers.launch_at_once, launchers.samples, profile.gpu_choice),
            DeviceLock(lock_name()),
        )
        calibration = trio.run(
            partial(
                calibrator.ensure,
                lambda line: print(line, file=sys.stderr, flush=True),
                full=full,
                force=force,
                wait_s=wait_s,
                old=folder,
            )
        )
    if as_json:
        sys.stdout.write(calibration.model_dump_json(indent=2) + "\n")
        return
    _show(calibration)


app.command("enroll", hidden=True)(calibrate)  # the predecessor's name; to be removed after the first release


def _show(calibration: Calibration) -> None:
    from node.device.calibration import curves, describe_rounds, figure_text, headline, launches_text

    console = new_console()
    print(headline(calibration))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    host = calibration.host
    for what, value in (
        ("fingerprint", calibration.fingerprint),
        ("timer", f"{calibration.timer_ns} ns"),
        ("other processes", _percent(host.others_share)),
        ("waiting for a processor", _percent(host.stall_share)),
        ("clock", f"{host.clock_mhz:.0f} MHz" if host.clock_mhz is not None else ""),
        ("temperature", f"{host.temperature_c:.0f} °C" if host.temperature_c is not None else ""),
        *(
            (
                f"warm-up of {unit}",
                f"{calibration.floor(unit)} inferences, {describe_rounds(known.runs, known.quiet)}",
            )
            for unit, known in sorted(calibration.floors.items())
        ),
        *(
            (
                f"±2 % on {unit}",
                f"{launches_text(calibration, unit)}, {describe_rounds(known.runs, known.quiet)}",
            )
            for unit, known in sorted(calibration.spreads.items())
        ),
    ):
        if value:
            table.add_row(Text(what, style="dim"), Text(value))
    for micro in calibration.micro:
        table.add_row(Text(micro.device), Text(f"{micro.backend}, {micro.seconds:.1f} s"))
        for name, curve in curves(micro):
            text = "  ".join(
                f"{size.replace('_', ' ')}: {figure_text(value)}" for size, value in curve.items()
            )
            table.add_row(Text(f"  {name}", style="dim"), Text(text))
        if micro.throttled:
            table.add_row(Text("  throttled by", style="dim"), Text(", ".join(micro.throttled)))
    console.print(table)
    for note in (*calibration.notes, *(note for micro in calibration.micro for note in micro.notes)):
        print(f"  {note}")


def _seconds(option: str, text: str) -> float:
    """The seconds of a duration. Raises `SettingsError`."""
    try:
        return parse_duration(text)
    except DurationError as exc:
        raise SettingsError(f"{option} {safe_text(text, 40)}: {exc.what}", hint=exc.hint) from None


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


@app.command(rich_help_panel=PANEL)
def doctor(
    ctx: typer.Context,
    gate: Annotated[
        list[str] | None,
        typer.Option(
            help="Try this gate. Repeatable.  \\[default: the gates that join uses]", metavar="ADDRESS"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find what disturbs measurements on this device or keeps others from reaching it, and what to do about it.

    Exit code 6: at least one check found a problem.
    """
    from drivers.launch.launch import probe_units
    from drivers.launch.probe_tier import probe
    from node.device.calibration_file import calibration_file
    from node.device.gpu_units import units_on_gpus
    from node.device.probe import probe_device
    from node.doctor.host import CheckState, checks, gather
    from node.settings.settings import WorkerSettings

    home: Home = ctx.obj
    folder = home.folder("worker")
    network = _network_checks(ctx, gate)  # first, so that wrong settings fail at once
    settings = WorkerSettings.load(home.config_file, ctx.meta["environment"], {})
    look = units_on_gpus(settings.gpus, probe_units)
    profile = probe_device(folder, look, sandbox=probe(), on=look.gpus)
    results = checks(gather(profile, calibration_file(profile.fingerprint), home.cache))
    results += network
    if as_json:
        print_json([asdict(check) for check in results])
    else:
        show_checks(results)
    if any(check.state is CheckState.BAD for check in results):
        raise typer.Exit(6)


app.command("test", hidden=True)(doctor)  # the predecessor's name


def _network_checks(ctx: typer.Context, gate: list[str] | None) -> list[Check]:
    """Checks made as the worker of this home, or by an ephemeral node if that worker is running."""
    import trio

    from node.cli.remote import send_command
    from node.doctor.host import Check, CheckState
    from node.doctor.network import ANYWHERE, look, net_checks, pool_checks, usable_gates
    from node.settings.settings import WorkerSettings
    from protocol.errors import ResourceError
    from protocol.messages.work import StatusRequest
    from protocol.words import Role
    from swarm.base.locks import lock_folder
    from swarm.join.known_gates import gates_in_use
    from swarm.net.identity import Identity, load_or_create
    from swarm.pools.membership import joined_pools, membership_of
    from swarm.reach.mdns import find_lan_contacts

    home: Home = ctx.obj
    settings = WorkerSettings.load(
        home.config_file, ctx.meta["environment"], {"gates": tuple(gate) if gate else None}
    )
    joined = joined_pools(home, Role.WORKER)
    now = time.time()
    device = load_or_create(home.key("worker")).peer_id if joined else ""
    listed = [membership_of(home, pool, device, now) is not None for pool in joined]
    results = pool_checks(zip(joined, listed, strict=True), now)
    of_pools = [address for pool in joined for address in pool.gates]
    own = gates_in_use(home, settings.gates)
    gates = own if settings.gates else (*own, *of_pools)
    neighbours = None
    if settings.lan:
        own_ids: set[str] = set()
        for key in (home.key("worker"), home.key("gate")):
            with contextlib.suppress(ResourceError):  # a damaged key is reported below
                own_ids |= {load_or_create(key).peer_id} if key.exists() else set()
        neighbours = len({way.rpartition("/")[2] for way in find_lan_contacts()} - own_ids)
    fixed = any(not address.endswith("/tcp/0") for address in settings.listen)
    worker: str | None = None
    listen: tuple[str, ...] = settings.listen or ANYWHERE
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_folder(home.folder("worker")))
        except ResourceError:  # a worker is running
            replies = trio.run(send_command, home, (), (), StatusRequest())
            worker = next((reply.status.reach or "" for reply in replies if reply.status is not None), "")
            me, fixed = Identity.fresh(), False
            listen = tuple(f"{address.rpartition('/')[0]}/0" for address in listen)
        else:
            try:
                me = load_or_create(home.key("worker"))
            except ResourceError as exc:  # damaged, or the disk is full: still check the rest
                results.append(Check("key", CheckState.BAD, exc.what, exc.hint))
                me = Identity.fresh()
        facts = trio.run(partial(look, usable_gates(gates), me, listen, given=usable_gates(own)))
        return [*results, *net_checks(replace(facts, neighbours=neighbours, worker=worker, fixed=fixed))]


def show_checks(results: Sequence[Check]) -> None:
    """Print a line for each check, with what to do below it."""
    console = new_console()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for check in results:
        text = Text(check.what)
        if check.todo:
            text.append("".join(f"\n  {line}" for line in check.todo.splitlines()), style="dim")
        table.add_row(Text(str(check.state), style=STYLES[check.state]), Text(check.subject), text)
    console.print(table)
