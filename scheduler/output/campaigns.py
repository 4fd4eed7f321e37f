"""The list of campaigns, and the words for each. Imports no row of results, so that the list appears at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from protocol.values.attempt import TaskState
from protocol.words import asks_for_simulated_unit
from results.row.simulated import mark_simulated
from scheduler.output.terminal import name, number, table
from scheduler.store.rows import CampaignRow, CampaignStatus, CampaignSummary
from swarm.base.text import safe_text
from swarm.base.units import local_time, show_elapsed


def campaigns_table(summaries: Sequence[CampaignSummary], *, scheduling: bool = True) -> Table:
    """A line for each campaign. `scheduling`: whether a scheduler process runs on this home."""
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
        (name("took"), lambda item: took(item.campaign) if item.campaign.ended else ""),
        (name("experiment"), lambda item: safe_text(f"{item.experiment} {item.finding}".strip(), 60))
        if experiments
        else None,
    )


def campaign_name(campaign: CampaignRow, limit: int) -> str:
    """The campaign's name; a simulation is marked."""
    return mark_simulated(safe_text(campaign.name, limit), asks_for_simulated_unit(campaign.spec))


def took(campaign: CampaignRow) -> str:
    """The time from the campaign's submission to its end."""
    return show_elapsed((campaign.ended or campaign.created) - campaign.created)


def campaign_state(campaign: CampaignRow, *, scheduling: bool) -> Text:
    """The campaign's status in one word."""
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
