"""What somebody types who wants to know why: events, explain, plan, retry."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import CampaignError
from scheduler.cli_parts import JSON, PANEL, count, find_campaign, print_json
from swarm.home import Home

if TYPE_CHECKING:  # the store brings SQLAlchemy, which no other command should wait for
    from scheduler.store import Store

app = typer.Typer()
LATEST = "Its id, or the beginning of it.  [default: the latest]"
FOLLOW_S = 0.5


@app.command(rich_help_panel=PANEL)
def events(
    ctx: typer.Context,
    campaign: Annotated[str, typer.Argument(help=LATEST)] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the campaign ends.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the chain of hashes instead of showing the events.")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show what happened in a campaign, step by step: each event carries a hash over itself and the one before.

    Exit code of --verify: 0 when the chain holds, 1 when an event was changed, left out or put in.
    """
    from scheduler.events import event_json, event_line
    from scheduler.store import Store

    home: Home = ctx.obj
    if follow and (verify or as_json):
        raise CampaignError("--follow goes with neither --verify nor --json", hint="leave one of them out")
    with Store(home.store) as store:
        found = find_campaign(store, campaign)
        if verify:
            raise SystemExit(_verify(store, found, as_json=as_json))
        if as_json:
            told = [event_json(event) for event in store.all_events(found)]
            print_json({"campaign": found, "count": len(told), "events": told})
            return
        seen = 0
        while True:
            row = store.campaign(found)
            for event in store.events_since(found, seen):
                print(event_line(event))
                seen = event.seq
            if not follow and seen >= store.event_count(found)[1]:
                return
            if follow:
                sys.stdout.flush()
                if row is None or row.ended is not None:
                    return
                time.sleep(FOLLOW_S)


def _verify(store: Store, campaign: str, *, as_json: bool) -> int:
    from scheduler.chain import check_chain

    written = store.event_count(campaign)
    broken = check_chain(store.all_events(campaign), written)
    last = store.events_since(campaign, written[1] - 1, limit=1)
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
        print(f"{campaign}: {count(written[0], 'event')}, the chain holds. Last hash: {head}")
    else:
        print(f"{campaign}: the chain is broken at event {broken.seq}: {broken.why}")
    return 1 if broken else 0
