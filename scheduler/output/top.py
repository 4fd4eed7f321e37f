"""This home's campaigns and the swarm's devices with what they do, as `sark-node top` shows them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from protocol.values.attempt import TaskState
from protocol.words import asks_for_it
from results.row.simulated import marked, shown_name
from scheduler.output.fleet import DeviceTask, ObservedDevice, fleet_device
from scheduler.output.schemas import campaign_info
from scheduler.output.tables import device_state
from scheduler.store.progress import progress_text
from scheduler.store.rows import CampaignStatus, CampaignSummary, TaskRow
from swarm.base.text import count, safe_text
from swarm.base.units import show_elapsed
from swarm.net.paths import path_words

ROOMY: Final = 100
"""Columns from which there is room for paths and longer bars."""
FEW: Final = 5
"""Lines for campaigns where there is room for no more."""
PIPE_WIDTH: Final = 1000
"""From here on it is no terminal: tables are as wide as what they hold."""
HEADS: Final = 7
"""Lines that are neither a campaign nor a device: headline, gaps, the tables' heads, what is left out, the hint."""


@dataclass(frozen=True, slots=True)
class TopSnapshot:
    """This home and the swarm at one moment."""

    at: float
    """Wall seconds since 1970."""
    campaigns: Sequence[CampaignSummary]
    """The latest first."""
    tasks: Sequence[TaskRow]
    """Of this home, at some device."""
    devices: Sequence[ObservedDevice]
    scheduling: bool
    """A scheduler process runs on this home."""
    unreachable: str = ""
    """Why the swarm cannot be observed."""
    observed: bool = True
    """The swarm has been observed, with or without success."""


def top_json(now: TopSnapshot, names: Mapping[str, str]) -> dict[str, Any]:
    """For programs. `names`: of models, by hash."""
    tasks: dict[str, list[DeviceTask]] = {}
    for task in now.tasks:
        tasks.setdefault(task.worker or "", []).append(
            DeviceTask(campaign=task.campaign, n=task.n, model=task.model, unit=task.unit, phase=task.phase)
        )
    peers = [fleet_device(device, tasks, names).model_dump(mode="json") for device in now.devices]
    return {
        "at": datetime.fromtimestamp(now.at, UTC).isoformat(timespec="seconds"),
        "campaigns": [
            campaign_info(item, scheduling=now.scheduling).model_dump(mode="json") for item in now.campaigns
        ],
        "count": len(peers),
        "peers": peers,
        "unreachable": now.unreachable or None,
    }


def draw(now: TopSnapshot, *, width: int, height: int | None, hint: str = "") -> RenderableType:
    """All of it in at most `height` lines (None: as many as it takes)."""
    rows = max(2, height - HEADS - (2 if hint else 0)) if height is not None else None
    number = len(now.campaigns)
    if rows is not None:  # never so many that no device has a line
        number = min(number, max(1, min(FEW, rows // 2), rows - len(now.devices)))
    campaigns = sorted(now.campaigns, key=lambda item: item.campaign.ended is not None)[:number]
    parts: list[RenderableType] = [_headline(now, width), Text()]
    if campaigns:
        parts.append(_campaigns(campaigns, now, width))
        parts += _left_out(len(now.campaigns) - len(campaigns), "campaign")
    else:
        parts.append(Text("No campaigns yet. Begin with: sark-node init", style="dim"))
    parts.append(Text())
    room = len(now.devices) if rows is None else max(1, rows - max(1, len(campaigns)))
    devices = _busiest(now.devices, room)
    if devices:
        parts.append(_devices(devices, now, width))
        parts += _left_out(len(now.devices) - len(devices), "device")
    else:
        parts.append(_nobody(now))
    if hint:
        parts += [Text(), Text(hint, style="dim", no_wrap=True, overflow="ellipsis")]
    return Group(*parts)


def _headline(now: TopSnapshot, width: int) -> Text:
    running = sum(item.campaign.ended is None for item in now.campaigns)
    silent = sum(item.pong is None for item in now.devices)
    queue = sum(item.pong.queue for item in now.devices if item.pong is not None)
    at = datetime.fromtimestamp(now.at, UTC).astimezone()
    parts = [
        count(len(now.devices), "device") + (f", {silent} silent" if silent else ""),
        f"{queue} queued",
        f"{count(running, 'campaign')} open",
    ]
    line = Text("  ".join(("sark-node top", *parts)), style="bold", no_wrap=True, overflow="ellipsis")
    gap = width - line.cell_len - 8
    if gap <= 0:
        return line
    return line.append(" " * (gap if width < PIPE_WIDTH else 2) + f"{at:%H:%M:%S}", style="dim not bold")


def _campaigns(items: Sequence[CampaignSummary], now: TopSnapshot, width: int) -> Table:
    roomy = width >= ROOMY
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=width < PIPE_WIDTH)
    table.add_column("campaign", no_wrap=True, min_width=10)
    table.add_column("name", no_wrap=True, overflow="ellipsis", min_width=8, ratio=1)
    table.add_column("", no_wrap=True, width=16 if roomy else 8)
    table.add_column("done", no_wrap=True, justify="right", min_width=5)
    table.add_column("failed", no_wrap=True, justify="right", min_width=6)
    table.add_column("status", no_wrap=True, overflow="ellipsis", min_width=9)
    table.add_column("for", no_wrap=True, justify="right", min_width=5)
    for item in items:
        status, style = _status(item, scheduling=now.scheduling)
        ended = sum(item.counts.get(state, 0) for state in _ENDED)
        failed = item.counts.get(TaskState.FAILED, 0)
        campaign = item.campaign
        table.add_row(
            campaign.id,
            Text(marked(safe_text(campaign.name, 80), asks_for_it(campaign.spec))),
            Text(bar(ended / item.tasks, 16 if roomy else 8) if item.tasks else "", style=style),
            f"{item.counts.get(TaskState.SUCCEEDED, 0)}/{item.tasks}" if campaign.planned else "-",
            Text(str(failed) if failed else "", style="red"),
            Text(status, style=style),
            show_elapsed((campaign.ended or now.at) - campaign.created),
        )
    return table


_ENDED: Final = (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED)
_OUTCOMES: Final = {"succeeded": "green", "failed": "red", "cancelled": "yellow"}


def _status(item: CampaignSummary, *, scheduling: bool) -> tuple[str, str]:
    campaign = item.campaign
    if campaign.ended is not None:
        outcome = str(campaign.outcome)
        word = "elsewhere" if campaign.outcome is CampaignStatus.ADOPTED else outcome
        return word, _OUTCOMES.get(outcome, "")
    if not scheduling:
        return "halted", "yellow"
    return ("cancelling", "yellow") if campaign.cancel else ("running", "cyan")


def bar(share: float, columns: int) -> str:
    """`━━━╌╌╌`; full only when all is done, empty only when nothing is."""
    full = int(max(0.0, min(1.0, share)) * columns)
    if share > 0:
        full = max(1, full)
    return "━" * full + "╌" * (columns - full)


def _devices(items: Sequence[ObservedDevice], now: TopSnapshot, width: int) -> Table:
    roomy = width >= ROOMY
    by_worker: dict[str, list[TaskRow]] = {}
    for task in now.tasks:
        by_worker.setdefault(task.worker or "", []).append(task)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=width < PIPE_WIDTH)
    table.add_column("device", no_wrap=True, overflow="ellipsis", min_width=8, max_width=_most(width, 24, 16))
    table.add_column("state", no_wrap=True, overflow="ellipsis", min_width=9, max_width=_most(width, 28, 12))
    table.add_column("runs", no_wrap=True, overflow="ellipsis", min_width=16, ratio=1)
    table.add_column("queue", no_wrap=True, justify="right", min_width=5)
    table.add_column("path", no_wrap=True, overflow="ellipsis", min_width=8, max_width=_most(width, 30, 18))
    for item in items:
        state, style = device_state(item)
        direct = item.path is None or item.path.direct
        table.add_row(
            Text(shown_name(item.advert, 80)),
            Text(state, style=style),
            _work(item, by_worker.get(item.advert.peer, ()), roomy=roomy),
            "" if item.pong is None else str(item.pong.queue),
            Text(path_words(item.path, item.advert.addresses), style="" if direct else "yellow"),
        )
    return table


def _most(width: int, roomy: int, narrow: int) -> int | None:
    """The most columns of one that could take all; None: as many as it wants, as in a pipe."""
    return None if width >= PIPE_WIDTH else roomy if width >= ROOMY else narrow


def _work(item: ObservedDevice, tasks: Sequence[TaskRow], *, roomy: bool) -> Text:
    """The tasks of this home that it runs, and how many of others. `roomy`: with models and units."""
    if item.pong is None:
        return Text(safe_text(item.error), style="dim")
    parts = []
    for task in tasks:
        what = f" {safe_text(task.model, 40)}, {safe_text(task.unit, 40)}:" if roomy else ""
        parts.append(f"{task.campaign}/{task.n}{what} {progress_text(task)}")
    others = item.pong.running - len(tasks)
    if others > 0:
        parts.append(f"{count(others, 'task')} of others")
    return Text("; ".join(parts), style="cyan" if tasks else "")


def _busiest(devices: Sequence[ObservedDevice], room: int) -> list[ObservedDevice]:
    """By name, so that lines keep their places; those left out for want of room are idle ones first."""
    names = sorted(devices, key=lambda item: (item.advert.name, item.advert.peer))
    if len(names) <= room:
        return names
    busiest = sorted(names, key=lambda item: 2 if item.pong is None else 0 if item.pong.running else 1)
    chosen = {item.advert.peer for item in busiest[:room]}
    return [item for item in names if item.advert.peer in chosen]


def _left_out(number: int, noun: str) -> list[RenderableType]:
    return [Text(f"… and {count(number, f'more {noun}')}", style="dim")] if number > 0 else []


def _nobody(now: TopSnapshot) -> Text:
    if not now.observed:
        return Text("looking for devices …", style="dim")
    if now.unreachable:
        return Text(f"No device can be reached: {safe_text(now.unreachable)}", style="yellow")
    return Text("The gate answers, but no device has joined yet: sark-node join")
