"""What somebody types who wants to know why: events, explain, plan, retry."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import CampaignError
from scheduler.cli import completion
from scheduler.cli.options import (
    GATE,
    JSON,
    PANEL,
    fetching,
    gates_of,
    keeper,
    new_console,
    print_json,
)
from swarm.base.home import Home
from swarm.base.text import count

if TYPE_CHECKING:  # the store brings SQLAlchemy, which no other command should wait for
    from scheduler.store.store import Store

app = typer.Typer()
LATEST = "Its id, or the beginning of it.  \\[default: the latest]"
FOLLOW_S = 0.5
_HASH = re.compile(r"[0-9a-fA-F]{64}")


@app.command(rich_help_panel=PANEL)
def events(
    ctx: typer.Context,
    campaign: Annotated[str, typer.Argument(help=LATEST, autocompletion=completion.campaigns)] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the campaign ends.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the chain of hashes instead of showing the events.")
    ] = False,
    last: Annotated[
        str,
        typer.Option(
            help="With --verify: a last hash that you noted before, which must still be there.",
            metavar="HASH",
        ),
    ] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show what happened in a campaign, step by step: each event carries a hash over itself and the one before.

    Exit code of --verify: 0 when the chain holds, 1 when an event was changed, left out or put in. Whoever can write to this home can also
    write the whole chain anew: note its last hash elsewhere, and check later against that with --last.
    """
    from scheduler.output.events import event_line
    from scheduler.output.schemas import event_info
    from scheduler.store.opening import open_store

    home: Home = ctx.obj
    if follow and (verify or as_json):
        raise CampaignError("--follow goes with neither --verify nor --json", hint="leave one of them out")
    if last and not verify:
        raise CampaignError(
            "--last goes with --verify", hint="sark-node events CAMPAIGN --verify --last HASH"
        )
    if last and not _HASH.fullmatch(last):
        raise CampaignError(
            "--last: this is no hash of an event", hint="it has 64 digits: sark-node events CAMPAIGN --verify"
        )
    with open_store(home) as store:
        found = store.campaigns.resolve(campaign)
        if verify:
            raise SystemExit(_verify(store, found, last.lower(), as_json=as_json))
        if as_json:
            told = [event_info(event).model_dump(mode="json") for event in store.events.all(found)]
            print_json({"campaign": found, "count": len(told), "events": told})
            return
        seen = 0
        while True:
            row = store.campaigns.get(found)
            for event in store.events.since(found, seen):
                print(event_line(event))
                seen = event.seq
            if not follow and seen >= store.events.count(found)[1]:
                return
            if follow:
                sys.stdout.flush()
                if row is None or row.ended is not None:
                    return
                time.sleep(FOLLOW_S)


def _verify(store: Store, campaign: str, noted: str, *, as_json: bool) -> int:
    from scheduler.store.events import check_chain

    written = store.events.count(campaign)
    broken = check_chain(store.events.all(campaign), written, noted)
    last = store.events.since(campaign, written[1] - 1, limit=1)
    head = last[0].hash if last else ""
    if as_json:
        print_json(
            {
                "campaign": campaign,
                "events": written[0],
                "holds": broken is None,
                "broken_at": broken.seq if broken else None,
                "why": broken.why if broken else "",
                "last_hash": head,
            }
        )
    elif broken is None:
        since = ", and has the hash that was noted" if noted else ""
        print(f"{campaign}: {count(written[0], 'event')}, the chain holds{since}. Last hash: {head}")
    else:
        print(f"{campaign}: the chain is broken at event {broken.seq}: {broken.why}")
    return 1 if broken else 0


@app.command(rich_help_panel=PANEL)
def explain(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            help="A campaign's id, or a task's, such as c-ab23cd45/3.  \\[default: the latest campaign]",
            metavar="[ID]",
            autocompletion=completion.campaigns,
        ),
    ] = "",
    gate: Annotated[list[str] | None, GATE] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Say why a campaign, or one task of it, stands as it stands: what it waits for, what was tried, who refused, what would help."""
    from rich.text import Text

    from scheduler.preview.look import explain_campaign
    from scheduler.preview.why import why_lines
    from scheduler.store.opening import open_store

    home: Home = ctx.obj
    campaign, _, number = target.partition("/")
    with open_store(home) as store:
        found = store.campaigns.resolve(campaign)
        told = explain_campaign(home, store, found, number, gates_of(ctx, gate))
    if as_json:
        print_json(told.model_dump(mode="json"))
        return
    console = new_console()
    for line in why_lines(told):
        console.print(Text(line), soft_wrap=not console.is_terminal)


@app.command(rich_help_panel=PANEL)
def plan(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="The campaign file.")],
    gate: Annotated[list[str] | None, GATE] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Say what a campaign would do on the devices that are there now: where, when, how long, and why not. Commits nothing.

    Exit code 0: every cell is covered, 1: some are not, 2: bad input. The hash it ends with is for: sark-node submit --plan HASH FILE
    """
    from rich.text import Text

    from scheduler.preview.look import plan_file
    from scheduler.preview.plan_table import plan_lines, plan_table, save_plan, uncovered_lines

    home: Home = ctx.obj
    made = plan_file(home, file, gates_of(ctx, gate, surely=True), fetching(home))
    with contextlib.suppress(OSError):  # a plan can be read though it cannot be kept
        save_plan(home, made)
    if as_json:
        print_json(made.model_dump(mode="json"))
    else:
        console = new_console()
        console.print(plan_table(made, console.width))
        for line in (*plan_lines(made), *uncovered_lines(made.cells)):
            console.print(Text(line), soft_wrap=True)
        console.print(Text(f"Plan {made.plan}: sark-node submit --plan {made.plan} {file}"), soft_wrap=True)
    if not made.whole:
        raise SystemExit(1)


@app.command(rich_help_panel=PANEL)
def retry(
    ctx: typer.Context,
    campaign: Annotated[str, typer.Argument(help=LATEST, autocompletion=completion.campaigns)] = "",
    gate: Annotated[list[str] | None, GATE] = None,
    folder: Annotated[
        Path, typer.Option(help="The folder of the campaign file, where its models are.", file_okay=False)
    ] = Path(),
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Run again what failed or was cancelled, as a new campaign, and print its id. The old one stays as it is."""
    from scheduler.store.opening import open_store
    from scheduler.submit.retry import retry_campaign

    home: Home = ctx.obj
    with open_store(home) as store:
        old = store.campaigns.resolve(campaign)
        made, tasks = retry_campaign(home, store, old, folder.absolute(), fetch=fetching(home))
    keeper(ctx, gates_of(ctx, gate))()
    if as_json:
        print_json({"campaign": made, "tasks": tasks})
    else:
        print(made)
        print(f"  {count(tasks, 'task')} again; sark-node watch {made}", file=sys.stderr)


def check_plan(home: Home, file: Path, gates: tuple[str, ...], name: str) -> None:
    """Leave with exit code 1 when the world changed in substance since the plan `name` was made, having said in what."""
    from scheduler.preview.look import plan_file
    from scheduler.preview.plan import plan_changes
    from scheduler.preview.plan_table import load_plan

    kept = load_plan(home, name)
    now = plan_file(home, file, gates, fetching(home))
    told = plan_changes(kept, now)
    if not (kept.complete and now.complete):
        print(
            "not all devices could be seen: only whether each cell is covered was compared", file=sys.stderr
        )
    if told:
        print(f"sark-node: not submitted: the world is not as plan {name} saw it", file=sys.stderr)
        for line in told:
            print(f"  {line}", file=sys.stderr)
        print(f"  see how it is now: sark-node plan {file}", file=sys.stderr)
        raise SystemExit(1)
