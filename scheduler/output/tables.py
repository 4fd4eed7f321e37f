"""The table of campaigns, and how a campaign's end is shown and written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from protocol.values.attempt import TaskState
from protocol.words import Reason, asks_for_it
from results.export.csv import csv_lines
from results.export.raw import json_lines, write_lines
from results.row.replicas import disagreements
from results.row.row import Row, RowStatus
from results.row.simulated import marked
from results.row.verdict import RowVerdict
from scheduler.output.results_table import show_results
from scheduler.output.terminal import name, number, print_lines, table
from scheduler.store.results import campaign_rows, raw_results
from scheduler.store.rows import CampaignRow, CampaignStatus, CampaignSummary
from scheduler.store.store import Store
from swarm.base.screen import print_json
from swarm.base.text import count, safe_text
from swarm.base.units import local_time, show_elapsed

# -- campaigns -----------------------------------------------------------------------------------------------------------------


def campaigns_table(summaries: Sequence[CampaignSummary], *, scheduling: bool = True) -> Table:
    """A line for each campaign. `scheduling`: a scheduler process runs on this home."""
    experiments = any(item.experiment for item in summaries)
    return table(
        summaries,
        (name("campaign", 10), lambda item: item.campaign.id),
        (name("name", 8), lambda item: campaign_name(item.campaign, 30)),
        (name("status"), lambda item: campaign_state(item.campaign, scheduling=scheduling)),
        (number("tasks"), lambda item: str(item.tasks) if item.campaign.planned else "-"),
        (number("done"), lambda item: str(item.counts.get(TaskState.SUCCEEDED, 0))),
        (number("failed"), lambda item: str(item.counts.get(TaskState.FAILED, 0))),
        (name("submitted", 16), lambda item: local_time(item.campaign.created)),
        (name("took"), lambda item: _took(item.campaign) if item.campaign.ended else ""),
        (name("experiment"), lambda item: safe_text(f"{item.experiment} {item.finding}".strip(), 60))
        if experiments
        else None,
    )


def campaign_name(campaign: CampaignRow, limit: int) -> str:
    """Its name; a simulation is marked."""
    return marked(safe_text(campaign.name, limit), asks_for_it(campaign.spec))


def _took(campaign: CampaignRow) -> str:
    return show_elapsed((campaign.ended or campaign.created) - campaign.created)


def campaign_state(campaign: CampaignRow, *, scheduling: bool) -> Text:
    """Its status in a word."""
    if campaign.ended is None and not scheduling:
        return Text("halted", "yellow")
    adopted = campaign.status is CampaignStatus.ADOPTED
    return Text("elsewhere" if adopted else campaign.status, _CAMPAIGN_STYLES.get(campaign.status, ""))


_CAMPAIGN_STYLES: Final = {
    CampaignStatus.RUNNING: "cyan",
    CampaignStatus.CANCELLING: "yellow",
    CampaignStatus.SUCCEEDED: "green",
    CampaignStatus.FAILED: "red",
    CampaignStatus.CANCELLED: "yellow",
}


def finish(
    store: Store, campaign: CampaignRow, console: Console, *, csv: Path | None, raw: Path, as_json: bool
) -> int:
    """Show and write the results of a campaign that has ended; returns the exit code. Raises `ResourceError`."""
    stored = store.results.rows(campaign.id)
    rows = campaign_rows(stored)
    raw_file = raw / "raw.json"
    raw.mkdir(parents=True, exist_ok=True)
    write_lines(raw_file, json_lines(campaign.id, raw_results(stored)))
    csv_file = csv or raw / "results.csv"
    write_lines(csv_file, csv_lines(rows))
    code = exit_code(campaign, rows)
    if as_json:
        print_json(
            {
                "campaign": campaign.id,
                "status": campaign.status,
                "results": rows,
                "csv": str(csv_file.absolute()),
                "raw": str(raw_file.absolute()),
            }
        )
        return code
    show_results(rows, console)
    done = sum(row.status is RowStatus.COMPLETE for row in rows)
    lines = [f"{done} of {count(len(rows), 'task')} complete in {_took(campaign)}."]
    if disagreeing := len(disagreements(rows)):
        lines.append(f"{disagreeing} of the replicated tasks disagree: see Agreement.")
    if campaign.detail:
        lines.append(safe_text(campaign.detail, 2000))
    files = (f"CSV          {csv_file.absolute()}", f"Raw results  {raw_file.absolute()}")
    print_lines([*lines, *files], console)
    return code


def exit_code(campaign: CampaignRow, rows: Sequence[Row]) -> int:
    """0: every task succeeded, and no outputs differ from the reference; 3: none ran because nothing trusted fits; 5: because no device
    allows us; 1: anything else.
    """
    if campaign.outcome is CampaignStatus.SUCCEEDED:
        return int(any(row.verdict == RowVerdict.MISMATCH for row in rows))
    for reason, code in ((Reason.NOTHING_FITS, 3), (Reason.NOT_TRUSTED, 3), (Reason.NOT_ALLOWED, 5)):
        if rows and all(row.reason == reason for row in rows):
            return code
    return 1
