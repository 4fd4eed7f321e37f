"""The command that scores stored answers again."""

from __future__ import annotations

import typer

from scheduler.cli.options import RESULTS, AsJson, CampaignId, opened
from swarm.base.screen import print_json
from swarm.base.text import count, safe_text

app = typer.Typer()


@app.command(rich_help_panel=RESULTS)
def score(ctx: typer.Context, campaign: CampaignId = "", as_json: AsJson = False) -> None:
    """Score a campaign's stored answers again, with the metrics that are installed now.

    Use this after a metric was fixed or installed. Stores the new scores with the metrics' packages and versions, and shows what changed.
    No device is asked, and nothing that a device signed is changed. A task that would lose a score keeps its old scores.

    Exit code 0: all tasks have scores, 1: some have none.
    """
    from results.scoring.scorer import Scorer
    from scheduler.output.rescoring import Rescored, rescore_campaign

    def tell(each: Rescored) -> None:
        if not as_json and (each.changed or each.why):
            print(safe_text(each.words, 600))

    with opened(ctx) as store, Scorer(check_steady=True) as scorer:
        made = rescore_campaign(store, store.campaigns.resolve(campaign), scorer, tell)
    if as_json:
        print_json(made)
    else:
        print(f"scored the answers of {count(len(made.tasks), 'task')} again: {made.changed} changed")
        if made.outdated:
            where = safe_text(made.outdated)
            print(f"its results at {where} have the old scores: sark-node results {made.campaign} --send URL")
    if any(each.why for each in made.tasks):
        raise SystemExit(1)
