"""From the store to what the commands show: rows, lists and the last words of a campaign."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from protocol.values.attempt import TaskState
from protocol.values.requirement import show_size
from protocol.words import Reason, WorkerState, asks_for_it
from results.export.raw import write_csv, write_raw
from results.row.replicas import disagreements
from results.row.row import Row
from results.row.simulated import marked, shown_name
from scheduler.output.fleet import show_device
from scheduler.output.peers import SeenPeer
from scheduler.output.schemas import status_of
from scheduler.output.tables import show_results
from scheduler.store.results import campaign_rows, raw_results
from scheduler.store.rows import CampaignOutcome, CampaignRow, CampaignSummary
from scheduler.store.store import Store
from swarm.base.text import count, safe_text
from swarm.base.units import show_elapsed
from swarm.net.paths import path_words

# -- campaigns -----------------------------------------------------------------------------------------------------------------


def campaigns_table(summaries: Sequence[CampaignSummary], *, scheduling: bool = True) -> Table:
    """A line for each campaign. `scheduling`: a scheduler process runs on this home."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("campaign", "name", "status", "tasks", "done", "failed", "begun", "took"):
        table.add_column(
            column,
            no_wrap=True,
            overflow="ellipsis",
            min_width={"campaign": 10, "name": 8, "begun": 16}.get(column),
            justify="right" if column in ("tasks", "done", "failed") else "left",
        )
    if any(item.experiment for item in summaries):
        table.add_column("experiment", no_wrap=True, overflow="ellipsis")
    for item in summaries:
        campaign = item.campaign
        table.add_row(
            campaign.id,
            Text(marked(safe_text(campaign.name, 30), asks_for_it(campaign.spec))),
            _shown_status(item, scheduling=scheduling),
            str(item.tasks) if campaign.planned else "-",
            str(item.counts.get(TaskState.SUCCEEDED, 0)),
            str(item.counts.get(TaskState.FAILED, 0)),
            datetime.fromtimestamp(campaign.created, UTC).astimezone().strftime("%Y-%m-%d %H:%M"),
            show_elapsed(campaign.ended - campaign.created) if campaign.ended else "",
            *(
                (Text(safe_text(f"{item.experiment} {item.finding}".strip(), 60)),)
                if len(table.columns) > 8
                else ()
            ),
        )
    return table


def _shown_status(item: CampaignSummary, *, scheduling: bool) -> str:
    if item.campaign.outcome is CampaignOutcome.ADOPTED:
        return "carried on elsewhere"
    return status_of(item.campaign) if scheduling or item.campaign.ended is not None else "halted"


def finish(
    store: Store, campaign: CampaignRow, console: Console, *, csv: Path | None, raw: Path, as_json: bool
) -> int:
    """Show and write what came of a campaign that has ended; gives the exit code. Raises `ResourceError` when it cannot be written."""
    stored = store.rows(campaign.id)
    rows = campaign_rows(stored)
    raw_file = raw / "raw.json"
    raw.mkdir(parents=True, exist_ok=True)
    write_raw(raw_file, campaign.id, raw_results(stored))
    csv_file = csv or raw / "results.csv"
    write_csv(csv_file, rows)
    code = exit_code(campaign, rows)
    if as_json:
        document = {
            "campaign": campaign.id,
            "status": status_of(campaign),
            "results": [row.model_dump(mode="json") for row in rows],
            "csv": str(csv_file.absolute()),
            "raw": str(raw_file.absolute()),
        }
        json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
        return code
    show_results(rows, console)
    done = sum(row.status == "Complete" for row in rows)
    took = show_elapsed((campaign.ended or campaign.created) - campaign.created)
    console.print(f"{done} of {count(len(rows), 'task')} complete in {took}.", highlight=False)
    odd = disagreements(rows)
    if odd:
        console.print(
            f"{len(odd)} of the replicated tasks came out differently: see Agreement.", highlight=False
        )
    if campaign.detail:
        console.print(Text(safe_text(campaign.detail, 2000)))
    console.print(f"CSV          {csv_file.absolute()}", highlight=False, soft_wrap=True)
    console.print(f"Raw results  {raw_file.absolute()}", highlight=False, soft_wrap=True)
    return code


def exit_code(campaign: CampaignRow, rows: Sequence[Row]) -> int:
    """0: every task succeeded; 3: none ran because nothing fits; 5: because no device allows us; 1: anything else."""
    if campaign.outcome is CampaignOutcome.SUCCEEDED:
        return 0
    for reason, code in ((Reason.NOTHING_FITS, 3), (Reason.NOT_ALLOWED, 5)):
        if rows and all(row.reason == reason for row in rows):
            return code
    return 1


# -- devices -------------------------------------------------------------------------------------------------------------------


def peer_json(seen: SeenPeer) -> dict[str, Any]:
    """A device for programs."""
    return show_device(seen).model_dump(mode="json")


ROOMY: Final = 110
"""Columns from which there is room for processor and peer id."""


def peers_table(seen: Sequence[SeenPeer], width: int = 80) -> Table:
    """A line for each device. Where there is little room the end of the worker's id stands for it, and states and units are wrapped."""
    roomy = width >= ROOMY
    ways = [path_words(item.path) for item in seen if item.path is not None and item.path.direct]
    direct = max(map(len, ways), default=4)  # `direct, 53 ms` is not torn in two; a gate's address may be
    table = Table(box=None, padding=(0, 2 if roomy else 1, 0, 0), header_style="dim")
    heads = ("device", "peer", *(("id",) if roomy else ()), "state", *(("soc",) if roomy else ()))
    for column in (*heads, "cores", "ram", "units", "path"):
        wraps = column in ("device", "state", "soc", "units", "path")
        table.add_column(
            column,
            no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
            min_width={"id": 18, "peer": 9, "ram": 8, "cores": 5, "path": direct}.get(
                column
            ),  # an id is there to be copied
        )
    for item in seen:
        advert = item.advert
        state = "unreachable" if item.pong is None else str(item.pong.state or "up")
        if item.pong is not None and item.pong.why:
            why = safe_text(item.pong.why, 60)
            state = why if item.pong.state is WorkerState.DRAINING else f"{state} ({why})"
        units = ", ".join(safe_text(unit.unit) for unit in advert.units) or "none"
        table.add_row(
            Text(shown_name(advert), style="" if item.verdict.fits else "dim"),
            Text(f"…{advert.peer[-8:]}"),
            *((Text(safe_text(advert.device, 40)),) if roomy else ()),
            Text(state, style="red" if item.pong is None else ""),
            *((Text(safe_text(advert.soc, 28)),) if roomy else ()),
            "" if advert.cores is None else str(advert.cores),
            "" if advert.ram is None else show_size(advert.ram),
            Text(units),
            Text(
                path_words(item.path, advert.addresses),
                style="" if item.path is None or item.path.direct else "yellow",
            ),
        )
    return table


def peer_remarks(seen: Sequence[SeenPeer]) -> list[str]:
    """What stands below the table: every clause that a device does not meet, and which workers are one and the same device."""
    told = [
        f"{shown_name(item.advert)} does not fit: "
        + "; ".join(safe_text(str(clause)) for clause in item.verdict.missing)
        for item in seen
        if not item.verdict.fits
    ]
    shared = Counter(item.advert.device for item in seen)
    pretend = sum(bool(item.advert.simulated) for item in seen)
    if pretend:
        told.append(f"{pretend} of {len(seen)} are simulations: these devices are not there")
    return told + [
        f"{workers} workers share the device {safe_text(device, 40)}: spread: device measures it once"
        for device, workers in shared.items()
        if workers > 1
    ]
