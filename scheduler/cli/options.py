"""What the commands share: options, gates, the scheduler process, following a campaign, printing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console

from protocol.errors import CampaignError, Unreachable
from scheduler.cli import completion
from swarm.base.home import Home
from swarm.base.text import safe_text
from swarm.base.units import DAY_S, DurationError, parse_duration

if TYPE_CHECKING:
    from scheduler.models.describe import Fetch

CAMPAIGNS: Final = "Campaigns"
RESULTS: Final = "Results"
SWARM: Final = "Swarm"
GENERAL: Final = "General"
"""Panels of `--help`."""
NO_GATE_HINT: Final = (
    "start one on this machine: sark-node gate\nor name one: --gate /ip4/…/tcp/4101/p2p/12D3Koo…"
)

GATE = typer.Option(
    "--gate",
    help="Address of a gate. Repeatable.  \\[default: this home's own gate, else the last used ones, else workers on the LAN]",
    metavar="ADDRESS",
)
JSON = typer.Option("--json", help="Print JSON.")
DETACH = typer.Option("--detach", help="Print the campaign's id and return at once.")
WAIT = typer.Option(
    help="How long to wait for a matching device before a task fails, such as 90s or 10m.", metavar="DURATION"
)
CAMPAIGN = typer.Argument(
    help="A campaign's id or its first characters.  \\[default: the latest]",
    autocompletion=completion.campaigns,
)
FILE = typer.Argument(help="The campaign file.")


def duration_option(flag: str, text: str, *, max_s: float = 30 * DAY_S) -> float:
    """Seconds in the value of `flag`, such as `90s` or `12h`. Raises `CampaignError`."""
    try:
        return parse_duration(text, units="ms s m h d", max_s=max_s)
    except DurationError as exc:
        raise CampaignError(f"{flag} {safe_text(text, 40)}: {exc.what}", hint=exc.hint) from None


def gates_of(ctx: typer.Context, flags: list[str] | None, *, check: bool = False) -> tuple[str, ...]:
    """Ways into the swarm: the flags, else the settings, else this home's own gate, else the last used ones.

    Without flags, this home's own worker is added while it runs. If there is no way (`check`: if none answers), the LAN is searched;
    `ctx.meta["neighbours"]` holds what was found there.
    """
    from scheduler.store.settings import SchedulerSettings
    from swarm.join.known_gates import any_answers, local_gates, recent_gates, worker_addresses

    home: Home = ctx.obj
    settings = SchedulerSettings.load(
        home.config_file, ctx.meta["environment"], {"gates": tuple(flags) if flags else None}
    )
    known = settings.gates or local_gates(home) or recent_gates(home)
    if flags:
        return known
    gates = tuple(dict.fromkeys((*known, *worker_addresses(home))))
    if settings.lan and not (gates and (not check or any_answers(gates))):
        from swarm.reach.mdns import ways_on_lan

        neighbours = ctx.meta["neighbours"] = ways_on_lan()
        gates = (*gates, *neighbours)
    return gates


def answering_gates(ctx: typer.Context, flags: list[str] | None) -> tuple[str, ...]:
    """`gates_of`, of which at least one answers. Raises `Unreachable`."""
    from swarm.join.known_gates import any_answers

    gates = gates_of(ctx, flags, check=True)
    if not gates:
        raise Unreachable("no gate is known", hint=NO_GATE_HINT)
    if not any_answers(gates):
        raise Unreachable(
            f"no gate answers: {', '.join(gates)}",
            hint="check that the gate runs and that its address is right",
        )
    return gates


def keeper(ctx: typer.Context, gates: tuple[str, ...]) -> Callable[[], None]:
    """A function that starts the scheduler process unless it runs; call it now and then."""
    from scheduler.submit.daemon import BackgroundProcess

    return BackgroundProcess(ctx.obj, ctx.meta["home_flag"], gates)


def fetching(home: Home) -> Fetch:
    """Downloads models by URL, with progress on stderr."""
    from scheduler.models.fetch import DownloadProgress, downloader

    return downloader(home, DownloadProgress(sys.stderr))


def follow(
    ctx: typer.Context,
    campaign_id: str,
    keep_alive: Callable[[], None],
    *,
    csv: Path | None,
    as_json: bool,
) -> None:
    """Watch a campaign to its end, print the results, and exit with the campaign's exit code."""
    from scheduler.output.tables import finish
    from scheduler.output.watch import watch as watch_campaign
    from scheduler.store.store import open_store

    home: Home = ctx.obj
    console = Console(stderr=as_json)
    with open_store(home) as store:
        try:
            row = store.campaigns.get(campaign_id)
            if not as_json and row is not None and row.ended is None:
                console.print(f"Campaign {campaign_id} is stored and runs by itself.", highlight=False)
            campaign = watch_campaign(store, campaign_id, console, keep_alive=keep_alive)
        except KeyboardInterrupt:
            print(f"\nThe campaign continues. Watch it: sark-node watch {campaign_id}", file=sys.stderr)
            raise SystemExit(130) from None
        code = finish(
            store, campaign, console, csv=csv, raw=home.data / "results" / campaign_id, as_json=as_json
        )
    raise SystemExit(code)
