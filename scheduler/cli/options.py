"""What the commands of whoever submits share: options, gates, the process in the background, finding a campaign, printing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from protocol.errors import CampaignError
from swarm.base.home import Home
from swarm.base.text import safe_text
from swarm.base.units import DAY_S, DurationError, parse_duration

if TYPE_CHECKING:
    from scheduler.models.describe import Fetch

PANEL = "For who submits"
PIPE_WIDTH = 1000
GATE = typer.Option(
    "--gate",
    help="A way into the swarm. Repeatable.  \\[default: the gate on this --home, else those used last, else neighbours on the LAN]",
    metavar="ADDRESS",
)
JSON = typer.Option("--json", help="For programs.")


def duration_option(flag: str, text: str, *, max_s: float = 30 * DAY_S) -> float:
    """Seconds in the value of `flag`, such as `90s` or `12h`. Raises `CampaignError`."""
    try:
        return parse_duration(text, units="ms s m h d", max_s=max_s)
    except DurationError as exc:
        raise CampaignError(f"{flag} {safe_text(text, 40)}: {exc.what}", hint=exc.hint) from None


def new_console() -> Console:
    """A pipe has no width: nothing is cut or wrapped there."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def gates_of(ctx: typer.Context, flags: list[str] | None, *, surely: bool = False) -> tuple[str, ...]:
    """The ways into the swarm: those given, else those set, else this home's own gate, else those that worked last.

    Unless they are given, this home's own worker is one more, while it runs: a gate may be gone. Where none is known (`surely`:
    where none answers), neighbours on the LAN are looked for; `ctx.meta["neighbours"]` tells which they are.
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
    ways = tuple(dict.fromkeys((*known, *worker_addresses(home))))
    if settings.lan and not (ways and (not surely or any_answers(ways))):
        from swarm.reach.mdns import ways_on_lan

        near = ctx.meta["neighbours"] = ways_on_lan()
        ways = (*ways, *near)
    return ways


def keeper(ctx: typer.Context, gates: tuple[str, ...]) -> Callable[[], None]:
    """What starts the scheduler process again when it is gone; to be called now and then."""
    from scheduler.submit.daemon import BackgroundProcess

    return BackgroundProcess(ctx.obj, ctx.meta["home_flag"], gates)


def fetching(home: Home) -> Fetch:
    """What brings a campaign's models by URL, telling on stderr how it goes."""
    from scheduler.models.fetch import DownloadProgress, downloader

    return downloader(home, DownloadProgress(sys.stderr))


def print_json(value: Any) -> None:
    """For programs, on standard output."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def follow(
    ctx: typer.Context,
    campaign_id: str,
    keep_alive: Callable[[], None],
    *,
    csv: Path | None,
    as_json: bool,
) -> None:
    """Watch to the end, show what came out, and leave with the exit code that says how it went."""
    from scheduler.output.tables import finish
    from scheduler.output.watch import watch as watch_campaign
    from scheduler.store.opening import open_store

    home: Home = ctx.obj
    console = Console(stderr=as_json)
    with open_store(home) as store:
        try:
            kept = store.campaigns.get(campaign_id)
            if not as_json and kept is not None and kept.ended is None:
                console.print(f"Campaign {campaign_id} is safe on disk.", highlight=False)
            campaign = watch_campaign(store, campaign_id, console, keep_alive=keep_alive)
        except KeyboardInterrupt:
            print(f"\nThe campaign goes on. Attach again: sark-node watch {campaign_id}", file=sys.stderr)
            raise SystemExit(130) from None
        code = finish(
            store, campaign, console, csv=csv, raw=home.data / "results" / campaign_id, as_json=as_json
        )
    raise SystemExit(code)
