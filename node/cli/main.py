"""`join`: makes this device a worker. Imports that only its terminal or service needs are elsewhere, because a worker runs for months."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from protocol.errors import SettingsError
from swarm.base.home import Home

if TYPE_CHECKING:
    from node.device.probe import Profile
    from node.serve.service import Worker
    from node.settings.settings import WorkerSettings
    from swarm.join.node import RunningNode

app = typer.Typer()
PANEL: Final = "This device"

SERVE_PORT: Final = "5000"
"""Default port of `--serve` and of the command `serve`."""
_PLACE: Final = re.compile(r"([^,/]*:)?[0-9]+(,.*)?")


def with_places(words: Sequence[str]) -> list[str]:
    """The arguments of `join`, with a port added to each bare `--serve`. Raises `SettingsError` for `--api` with a port or no value."""
    completed: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            return [*completed, word, *rest]
        if name == "--api":
            given = value if equals else rest[0] if rest and not rest[0].startswith("-") else ""
            if not given or _PLACE.fullmatch(given):
                raise SettingsError(
                    f"--api: {given!r} is not the URL of a model server" if given else "--api has no URL",
                    hint=f"to serve the dashboard and the HTTP API: sark-node join --serve {given or SERVE_PORT}"
                    "\nto offer a model server: sark-node join --api http://127.0.0.1:8000/v1",
                )
        if name != "--serve":
            completed.append(word)
            continue
        if (
            not equals
            and rest
            and (_PLACE.fullmatch(rest[0]) or (rest[0] and not rest[0].startswith(("-", "sark1"))))
        ):
            value = rest.pop(0)
        completed += ["--serve", value or SERVE_PORT]
    return completed


Many = list[str] | None


def _many(flag: str, text: str, metavar: str, default: str = "") -> Any:
    """An option that may be given several times."""
    shown = f"  \\[default: {default}]" if default else ""
    return typer.Option(flag, help=f"{text} Repeatable.{shown}", metavar=metavar)


class _Join(TyperCommand):
    """Allows `--serve` without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_places(args))


@app.command(rich_help_panel=PANEL, cls=_Join)
def join(
    ctx: typer.Context,
    ticket: Annotated[
        str | None,
        typer.Argument(
            help="Ticket from `sark-node invite` or `pool invite`, a file that contains it, or - for standard input. Needed only once.",
            metavar="TICKET",
        ),
    ] = None,
    gates: Annotated[
        Many, _many("--gate", "Address of a gate.", "ADDRESS", "this home's own gate, else those used last")
    ] = None,
    owners: Annotated[
        Many,
        _many("--owner", "Serve this scheduler of yours, and let it control the device.", "SCHEDULER_ID"),
    ] = None,
    allow: Annotated[Many, _many("--allow", "Serve this scheduler of somebody else.", "SCHEDULER_ID")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the device in tables.  \\[default: the host's name]")
    ] = None,
    labels: Annotated[
        Many, _many("--label", "Label that campaigns can select: label.site == lab.", "KEY=VALUE")
    ] = None,
    quiet: Annotated[
        Many,
        _many(
            "--quiet",
            "Take no new work during these hours, local time: 22:00-07:00, Sat, 'Mon-Fri 09:00-17:00'.",
            "HOURS",
        ),
    ] = None,
    on_battery: Annotated[bool, typer.Option("--on-battery", help="Take new work on battery too.")] = False,
    teams: Annotated[Many, _many("--only-team", "Serve only this team of a pool.", "TEAM")] = None,
    owner_first: Annotated[
        bool, typer.Option("--owner-first", help="Run your tasks first, whatever the priorities.")
    ] = False,
    max_duration: Annotated[
        str | None,
        typer.Option(
            help="Longest task to accept from other users, by the sum of its time limits.  \\[default: 1h]",
            metavar="TIME",
        ),
    ] = None,
    accept_anyone: Annotated[
        bool, typer.Option("--accept-anyone", help="Serve strangers too. Needs the full sandbox.")
    ] = False,
    leave_pool: Annotated[Many, _many("--leave-pool", "Leave this pool.", "POOL")] = None,
    listen: Annotated[
        Many, _many("--listen", "Listen only on this address, such as /ip4/192.0.2.7/tcp/4102.", "ADDRESS")
    ] = None,
    announce: Annotated[
        Many, _many("--announce", "Announce this address instead, such as a forwarded port.", "ADDRESS")
    ] = None,
    no_lan: Annotated[bool, typer.Option("--no-lan", help="Turn off discovery on the LAN (mDNS).")] = False,
    upnp: Annotated[
        bool,
        typer.Option(
            "--upnp", help="Ask the router to forward a port (UPnP), so that others can dial this device."
        ),
    ] = False,
    api: Annotated[
        str | None,
        typer.Option(
            help="Offer this OpenAI-compatible server, such as http://127.0.0.1:8000/v1. SARK_API_KEY holds its key.",
            metavar="URL[,NAME]",
        ),
    ] = None,
    api_watch: Annotated[
        bool,
        typer.Option(
            "--api-watch", help="Also watch that server's processes and counters, if it runs on this host."
        ),
    ] = False,
    gpus: Annotated[
        str | None,
        typer.Option(
            help="GPUs that units run on: one, each, or their numbers as `sark-node info` shows them.  \\[default: one]",
            metavar="GPUS",
        ),
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(
            help="Also serve the dashboard and HTTP API, by default on port 5000 of this machine only. Other addresses need a"
            " token.",
            metavar="[ADDRESS:]PORT[,NAME]",
        ),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate", help="Offer the fake unit, whose figures come from a script. Never for results."
        ),
    ] = False,
    no_calibrate: Annotated[
        bool,
        typer.Option(
            "--no-calibrate",
            help="Do not calibrate the device, neither before the first task nor at quiet moments.",
        ),
    ] = False,
    install: Annotated[
        bool,
        typer.Option(
            "--install",
            help="Install a service that joins with the same options now and after each reboot. The ticket is used now and not stored.",
        ),
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Stop and remove that service. Keys and pools stay.")
    ] = False,
    take_up: Annotated[bool, typer.Option("--take-up", hidden=True)] = False,
    pretend: Annotated[str | None, typer.Option(hidden=True)] = None,
    stop_with_stdin: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Make this device a worker that runs tasks for others, until Ctrl-C.

    It serves the scheduler of this home, the pools it joined (also at later starts) and the schedulers named here, nobody else.
    """
    from drivers.launch.probe_tier import probe
    from node.settings.settings import WorkerSettings, driver_secrets

    home: Home = ctx.obj
    if install and uninstall:
        raise SettingsError("--install and --uninstall exclude each other", hint="give one of them")
    if uninstall:
        from node.cli.service import uninstall_service
        from node.install.service_files import ServiceRole

        uninstall_service(ctx, ServiceRole.WORKER)
    settings = WorkerSettings.load(
        home.config_file,
        ctx.meta["environment"],
        {
            **_given(ctx.params),
            "labels": _labels(labels),
            "lan": False if no_lan else None,
            "calibrate": False if no_calibrate else None,
        },
    )
    sandbox = ThreadPoolExecutor(1).submit(
        probe
    )  # tried out in child processes while this process imports the network
    import trio

    from node.device.simulated import read_pretended
    from node.serve.process import check_anyone, pool_changes, run_process
    from swarm.join.known_gates import gates_in_use
    from swarm.pools.people import known_names
    from swarm.pools.tickets import read_ticket, secret_text

    if settings.accept_anyone:
        check_anyone(settings, sandbox.result())  # refuses before anything is printed or changed
    if ticket is not None:
        ticket = secret_text(ticket, sys.stdin)
    pools = pool_changes(home, ticket, leave_pool or ())
    must = () if ticket is None else (read_ticket(ticket).pool,)
    gates_known = gates_in_use(home, settings.gates, ("worker",))
    if not gates_known and not any(pool.gates for pool in pools):
        who = "only devices on this LAN" if settings.lan else "nobody"
        print(f"No gate is known here, so {who} can find this device.", file=sys.stderr)
        print("  start one on this home: sark-node gate", file=sys.stderr)
        print("  or name one: --gate /ip4/…/tcp/4101/p2p/12D3Koo…", file=sys.stderr)

    if install:
        from node.cli.service import install_service
        from node.install.service_files import ServiceRole

        install_service(ctx, ServiceRole.WORKER, "--take-up")

    def joined(here: RunningNode, profile: Profile, worker: Worker) -> None:
        units = ", ".join(unit.unit for unit in profile.units)
        what = "a simulated worker" if profile.simulated else "a worker"
        print(f"{profile.name} is {what} now: {units}. Press Ctrl-C to stop.", flush=True)
        print(f"  {here.identity.peer_id}", flush=True)
        print(f"  serves: {serves(settings, [pool.name for pool in pools], known_names(home))}", flush=True)
        if settings.allow or settings.owners:
            print(
                "  people who submit must also trust this device; send them this command:"
                f" sark-node trust {here.identity.peer_id}",
                flush=True,
            )

    def report(line: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads the output any more; the work continues
            print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)

    private = driver_secrets(settings, ctx.meta["environment"])
    pretended = None if pretend is None else read_pretended(pretend)
    served = contextlib.nullcontext() if serve is None else ctx.meta["serving"](serve, gates)
    if take_up and serve is None:  # a server does that anyway
        served = ctx.meta["taking_up"](gates)

    async def run() -> None:
        async with served:
            await run_process(
                home, settings, stop_with_stdin, joined, report, sandbox.result, private, pretended, must
            )

    trio.run(run)


app.command("start", hidden=True)(join)


def serves(settings: WorkerSettings, pools: Sequence[str], names: Mapping[str, str]) -> str:
    """`you; pool lab, only team vision; scheduler …nF2cDYa1`. `names`: known names of schedulers."""
    from swarm.pools.owner import HOME_POOL
    from swarm.pools.people import shown

    who = ["you"]
    teams = (
        f", only team{'s' if len(settings.teams) > 1 else ''} {', '.join(settings.teams)}"
        if settings.teams
        else ""
    )
    who += [
        f"{'a home that invited it' if name == HOME_POOL else f'pool {name}'}{teams}"
        for name in sorted(pools)
    ]
    ids = ", ".join(shown(peer, names) for peer in settings.allow)
    who += [f"scheduler{'s' if len(settings.allow) > 1 else ''} {ids}"] if ids else []
    who += ["anybody"] if settings.accept_anyone else []
    return "; ".join(who)


def _given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The given options that are settings of the same name."""
    from node.settings.settings import WorkerSettings

    given = {name: value for name, value in parameters.items() if name in WorkerSettings.model_fields}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value not in (None, False, [], ())
    }


def _labels(values: list[str] | None) -> dict[str, str] | None:
    if not values:
        return None
    for value in values:
        if "=" not in value.strip("="):
            raise SettingsError(f"--label {value!r} has no value", hint="write it as --label site=lab")
    return dict(value.split("=", 1) for value in values)
