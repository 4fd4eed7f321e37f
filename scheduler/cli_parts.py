"""What the commands of whoever submits share: options, gates, the process in the background, finding a campaign, printing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from protocol.errors import CampaignError
from scheduler.plural import count as count
from swarm.home import Home

if TYPE_CHECKING:
    from scheduler.models import Fetch

PANEL = "For who submits"
PIPE_WIDTH = 1000
GATE = typer.Option(
    "--gate",
    help="A way into the swarm. Repeatable.  \\[default: the gate on this --home, else those used last, else neighbours on the LAN]",
    metavar="ADDRESS",
)
JSON = typer.Option("--json", help="For programs.")


def new_console() -> Console:
    """A pipe has no width: nothing is cut or wrapped there."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def gates_of(ctx: typer.Context, flags: list[str] | None, *, surely: bool = False) -> tuple[str, ...]:
    """The ways into the swarm: those given, else those set, else this home's own gate, else those that worked last.

    Unless they are given, this home's own worker is one more, while it runs: a gate may be gone. Where none is known (`surely`:
    where none answers), neighbours on the LAN are looked for; `ctx.meta["neighbours"]` tells which they are.
    """
    from scheduler.settings import SchedulerSettings
    from swarm.gates import answers, local_gates, own_worker, remembered_gates

    home: Home = ctx.obj
    settings = SchedulerSettings.load(
        home.config_file, ctx.meta["environment"], {"gates": tuple(flags) if flags else None}
    )
    known = settings.gates or local_gates(home) or remembered_gates(home)
    if flags:
        return known
    ways = tuple(dict.fromkeys((*known, *own_worker(home))))
    if settings.lan and not (ways and (not surely or answers(ways))):
        from swarm.lan import ways_on_lan

        near = ctx.meta["neighbours"] = ways_on_lan()
        ways = (*ways, *near)
    return ways


def keeper(ctx: typer.Context, gates: tuple[str, ...]) -> Callable[[], None]:
    """What starts the scheduler process again when it is gone; to be called now and then."""
    from scheduler.background import Keeper

    return Keeper(ctx.obj, ctx.meta["home_flag"], gates)


def fetching(home: Home) -> Fetch:
    """What brings a campaign's models by URL, telling on stderr how it goes."""
    from scheduler.downloads import Told, downloader

    return downloader(home, Told(sys.stderr))


def find_campaign(store: Any, prefix: str) -> str:
    """The one campaign whose id begins so. Raises `CampaignError`."""
    found = store.find_campaign(prefix)
    if not found:
        if not prefix:
            raise CampaignError(
                "no campaign on this home yet", hint="begin with: sark-node init, then: sark-node submit FILE"
            )
        raise CampaignError(f"no campaign {prefix!r} on this home", hint="list them: sark-node campaigns")
    if len(found) > 1 and prefix and found[0].id != prefix:
        raise CampaignError(
            f"{prefix!r} may be any of {', '.join(item.id for item in found[:5])}",
            hint="write more of the id",
        )
    return str(found[0].id)


def print_json(value: Any) -> None:
    """For programs, on standard output."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
