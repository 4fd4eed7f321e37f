"""Shared by the commands: options, gates, the store, the scheduler process, following a campaign."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from rich.console import Console

from protocol.errors import CampaignError, Unreachable
from scheduler.cli import completion
from swarm.base.home import Home
from swarm.base.screen import print_json
from swarm.base.text import safe_text
from swarm.base.units import DAY_S, DurationError, parse_duration

if TYPE_CHECKING:
    from scheduler.campaign.model import ModelEntry
    from scheduler.campaign.reach import FindUnits
    from scheduler.models.describe import Fetch
    from scheduler.store.settings import SchedulerSettings
    from scheduler.store.store import Store

CAMPAIGNS: Final = "Campaigns"
RESULTS: Final = "Results"
SWARM: Final = "Swarm"
GENERAL: Final = "General"
"""Panels of `--help`."""
MOST_NEAR: Final = 8
"""Addresses on the LAN that are tried before peers that were known recently."""
NO_GATE_HINT: Final = (
    "start one on this machine: sark-node gate\nor name one: --gate /ip4/…/tcp/4101/p2p/12D3Koo…"
)

Gates = Annotated[
    list[str] | None,
    typer.Option(
        "--gate",
        help="Address of a gate. Repeatable.  \\[default: this home's own gate, else those used last, else workers on the LAN]",
        metavar="ADDRESS",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Detach = Annotated[bool, typer.Option("--detach", help="Print the campaign's id and return at once.")]
Wait = Annotated[
    str,
    typer.Option(
        help="How long to wait for a matching device before a task fails, such as 90s or 10m.",
        metavar="DURATION",
    ),
]
CampaignId = Annotated[
    str,
    typer.Argument(
        help="A campaign's id or its first characters.  \\[default: the latest]",
        autocompletion=completion.campaigns,
    ),
]
CampaignFile = Annotated[Path, typer.Argument(help="The campaign file.")]


def duration_option(flag: str, text: str, *, units: str = "ms s m h d", max_s: float = 30 * DAY_S) -> float:
    """Seconds in the value of `flag`, such as `90s` or `12h`. Raises `CampaignError`."""
    try:
        return parse_duration(text, units=units, max_s=max_s)
    except DurationError as exc:
        raise CampaignError(f"{flag} {safe_text(text, 40)}: {exc.what}", hint=exc.hint) from None


def refuse_existing(file: Path) -> None:
    """Raises `CampaignError` if `file` exists."""
    if file.exists():
        raise existing(file)


def existing(file: Path) -> CampaignError:
    return CampaignError(f"{file} already exists", hint="name another file, or remove it")


def opened(ctx: typer.Context) -> Store:
    """This home's store, for a `with` block. It imports SQLAlchemy, which other commands should not load."""
    from scheduler.store.store import open_store

    return open_store(ctx.obj)


def write_out(path: str | Path, lines: Iterable[str], what: str) -> None:
    """Write `lines` to a file atomically, and say on stderr that it has `what`; `-`: to standard output. Raises `ResourceError`."""
    from results.export.raw import write_lines

    if str(path) == "-":
        sys.stdout.writelines(lines)
        return
    write_lines(Path(path), lines)
    print(f"wrote {what} to {path}", file=sys.stderr)


def gates_of(ctx: typer.Context, flags: list[str] | None, *, check: bool = False) -> tuple[str, ...]:
    """Ways into the swarm: the flags, else the settings, else this home's own gate, else the last used ones.

    Without flags, this home's own worker is added while it runs. If there is no way (with `check`: if none answers), peers on the LAN and
    recently known ones are added: `ctx.meta["neighbours"]`.
    """
    return _ways(ctx, flags, check=check)[0]


def scheduler_settings(ctx: typer.Context, **flags: list[str] | None) -> SchedulerSettings:
    """The settings of this home; given flags take precedence."""
    from scheduler.store.settings import SchedulerSettings

    overrides = {name: tuple(values) if values else None for name, values in flags.items()}
    return SchedulerSettings.load(ctx.obj.config_file, ctx.meta["environment"], overrides)


def answering_gates(ctx: typer.Context, flags: list[str] | None) -> tuple[str, ...]:
    """The gates of `gates_of`, at least one of which answers. Raises `Unreachable`."""
    from swarm.join.known_gates import any_gate_answers

    gates, untried = _ways(ctx, flags, check=True)
    if not gates:
        raise Unreachable("no gate is known", hint=NO_GATE_HINT)
    if untried is not None and not any_gate_answers(untried):
        named = gates if flags else tuple(gate for gate in gates if gate not in untried)
        if not named:
            raise Unreachable("no gate is known, and no peer used earlier answers", hint=NO_GATE_HINT)
        raise Unreachable(
            f"no gate answers: {', '.join(named)}",
            hint="check that the gate is running and that its address is correct",
        )
    return gates


def _ways(
    ctx: typer.Context, flags: list[str] | None, *, check: bool
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """The gates of `gates_of`, and those among them that were not tried; the latter is None if one gate has answered."""
    from swarm.join.known_gates import any_gate_answers, gates_in_use, known_peers, worker_addresses

    settings = scheduler_settings(ctx, gates=flags)
    named = gates_in_use(ctx.obj, settings.gates)
    if flags:
        return named, named
    gates = tuple(dict.fromkeys((*named, *worker_addresses(ctx.obj))))
    if gates and not check:
        return gates, gates
    if gates and any_gate_answers(gates):
        return gates, None
    neighbours: tuple[str, ...] = ()
    if settings.lan:
        from swarm.reach.mdns import find_lan_contacts

        neighbours = find_lan_contacts()
    found = (*neighbours[:MOST_NEAR], *known_peers(ctx.obj), *neighbours[MOST_NEAR:])
    others = ctx.meta["neighbours"] = tuple(way for way in dict.fromkeys(found) if way not in gates)
    return (*gates, *others), others


def keeper(ctx: typer.Context, gates: tuple[str, ...]) -> Callable[[], None]:
    """A function that starts the scheduler process unless it runs; call it now and then."""
    from scheduler.submit.daemon import BackgroundProcess

    return BackgroundProcess(ctx.obj, ctx.meta["home_flag"], gates)


def units_in_reach(ctx: typer.Context, flags: list[str] | None = None) -> FindUnits:
    """Finds units of third-party drivers in the swarm, if a campaign names any."""
    from scheduler.preview.look import units_finder

    return units_finder(lambda: gates_of(ctx, flags))


def fetching(home: Home) -> Fetch:
    """Downloads models by URL, with progress on stderr. Its imports wait for the first download, since most models are files."""

    def fetch(entry: ModelEntry) -> Path:
        from scheduler.models.fetch import DownloadProgress, downloader

        return downloader(home, DownloadProgress(sys.stderr))(entry)

    return fetch


def follow(
    ctx: typer.Context, campaign_id: str, keep_alive: Callable[[], None], *, csv: Path | None, as_json: bool
) -> NoReturn:
    """Watch a campaign to its end, print the results, and exit with the campaign's exit code."""
    from scheduler.output.tables import finish
    from scheduler.output.watch import watch as watch_campaign

    crash = crash_words(ctx)
    console = Console(stderr=as_json)
    with opened(ctx) as store:
        try:
            row = store.campaigns.get(campaign_id)
            if not as_json and row is not None and row.ended is None:
                console.print(f"Campaign {campaign_id} is stored and runs by itself.", highlight=False)
            campaign = watch_campaign(store, campaign_id, console, keep_alive=keep_alive, crash=crash)
        except KeyboardInterrupt:
            print(f"\nThe campaign continues. Watch it: sark-node watch {campaign_id}", file=sys.stderr)
            raise SystemExit(130) from None
        raw = ctx.obj.data / "results" / campaign_id
        raise SystemExit(finish(store, campaign, console, csv=csv, raw=raw, as_json=as_json))


def crash_words(ctx: typer.Context) -> Callable[[], str]:
    """A function that returns a text about a crash of the scheduler process, or an empty text if there was none."""
    from scheduler.submit.daemon import is_running
    from scheduler.submit.supervisor import crash_line, last_crash

    def crash() -> str:
        known = last_crash(ctx.obj)
        return (known and crash_line(known, running=is_running(ctx.obj), wall=time.time())) or ""

    return crash


def print_campaign(campaign: str, reply: dict[str, object], *, as_json: bool, note: str = "") -> None:
    """Print the id of a campaign that runs in the background; `reply`: the output for programs."""
    if as_json:
        print_json(reply)
    else:
        print(campaign)
        print(f"  {note}sark-node watch {campaign}", file=sys.stderr)
