"""The command that scores stored answers again."""

from __future__ import annotations

import typer

from protocol.errors import CampaignError
from scheduler.cli.options import RESULTS, AsJson, CampaignId, opened
from swarm.base.screen import print_json
from swarm.base.text import count, safe_text

app = typer.Typer()


@app.command(rich_help_panel=RESULTS)
def score(ctx: typer.Context, campaign: CampaignId = "", as_json: AsJson = False) -> None:
    """Score a campaign's stored answers again, with the metrics that are installed now.

    For a metric that was mended, or was not installed. Stores the new scores with the metrics' packages and versions, and says what
    changed. No device is asked, and nothing that a device signed is altered. Where a score would be missing now, the old ones are kept.

    Exit code 0: all have scores, 1: some have not.
    """
    from results.scoring.scorer import Scorer
    from scheduler.output.rescoring import rescore

    with opened(ctx) as store, Scorer(check_steady=True) as scorer:
        campaign_id = store.campaigns.resolve(campaign)
        made = []
        for each in rescore(store, campaign_id, scorer):
            made.append(each)
            if not as_json and (each.changed or each.why):
                print(safe_text(each.words, 600))
        sent = store.sendings.get(campaign_id)
    if not made:
        raise CampaignError(
            f"{campaign_id} has no answers to score",
            hint="only models with evaluate answer examples, once they are measured: see docs/evaluation.md",
        )
    changed = sum(each.changed for each in made)
    if as_json:
        print_json({"campaign": campaign_id, "changed": changed, "tasks": made})
    else:
        print(f"scored the answers of {count(len(made), 'task')} again: {changed} changed")
        if changed and sent is not None and sent.sent is not None:
            print(
                f"its results at {safe_text(sent.url)} have the old scores: sark-node results {campaign_id} --send URL"
            )
    if any(each.why for each in made):
        raise SystemExit(1)
