"""This home's campaigns and the swarm's devices with their work, as `sark-node top` shows them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from protocol.values.attempt import TaskState
from results.analysis.sittings import IntervalCoverage
from results.row.form import utc
from results.row.simulated import shown_name
from scheduler.output.campaigns import campaign_name, campaign_state
from scheduler.output.coverage import NO_COVERAGE
from scheduler.output.fleet import ObservedDevice, device_tasks, fleet_device
from scheduler.output.peers import device_path, device_state
from scheduler.output.readings import readings_lines, readings_table, shown_readings
from scheduler.output.schemas import campaign_info
from scheduler.output.terminal import name, number, table
from scheduler.store.progress import progress_text
from scheduler.store.readings import LiveReading
from scheduler.store.rows import FINAL_TASK_STATES, CampaignSummary, TaskRow
from swarm.base.names import disambiguate_names
from swarm.base.screen import PIPE_WIDTH
from swarm.base.text import count, safe_text
from swarm.base.units import show_elapsed

ROOMY: Final = 100
"""Terminal width from which paths and longer bars fit."""
FEW: Final = 5
"""Lines for campaigns if there is no room for more."""
HEADS: Final = 7
"""Lines that are neither a campaign nor a device: headline, gaps, the tables' heads, what is left out, the hint."""
READING_HEADS: Final = 3
"""Such lines of the table of readings: gap, head, what is left out."""


@dataclass(frozen=True, slots=True)
class TopSnapshot:
    """This home and the swarm at one moment."""

    at: float
    """Wall seconds since 1970."""
    campaigns: Sequence[CampaignSummary]
    """The home's campaigns, the latest first."""
    tasks: Sequence[TaskRow]
    """Tasks of this home that are at some device."""
    devices: Sequence[ObservedDevice]
    scheduling: bool
    """Whether a scheduler process runs on this home."""
    unreachable: str = ""
    """Why the swarm cannot be observed."""
    observed: bool = True
    """Whether an observation of the swarm was attempted, successfully or not."""
    readings: Mapping[str, LiveReading] = field(default_factory=dict)
    """Readings of devices that run tasks, by worker."""


def top_json(
    now: TopSnapshot, names: Mapping[str, str], held: Mapping[str, IntervalCoverage] = NO_COVERAGE
) -> dict[str, Any]:
    """The snapshot for programs. `names`: of models, by hash; `held`: by device."""
    tasks = device_tasks(now.tasks)
    shown = shown_readings(now.readings, tasks, now.at)
    return {
        "at": utc(now.at),
        "campaigns": [campaign_info(item, scheduling=now.scheduling) for item in now.campaigns],
        "count": len(now.devices),
        "peers": [fleet_device(device, tasks, names, held, shown) for device in now.devices],
        "unreachable": now.unreachable or None,
    }


def draw(now: TopSnapshot, *, width: int, height: int | None, hint: str = "") -> RenderableType:
    """The whole screen in at most `height` lines (None: as many as needed)."""
    rows = max(2, height - HEADS - (2 if hint else 0)) if height is not None else None
    readings: Sequence[tuple[str, LiveReading]] = _readings(now)
    running = len(readings)
    if rows is not None and running:  # what the other tables leave, or a third
        left = rows - min(FEW, len(now.campaigns)) - len(now.devices)
        readings = _fitting(readings, max(left, rows // 3) - READING_HEADS)
        rows -= readings_lines(readings) + READING_HEADS if readings else 0
    most = len(now.campaigns)
    if rows is not None:  # leave at least one line for a device
        most = min(most, max(1, min(FEW, rows // 2), rows - len(now.devices)))
    campaigns = sorted(now.campaigns, key=lambda item: item.campaign.ended is not None)[:most]
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
    if readings:
        parts += [Text(), readings_table(readings, now.at, width=width, most=_most(width, 24, 15))]
        parts += _left_out(running - len(readings), "device")
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
    length = 16 if width >= ROOMY else 8

    def state(item: CampaignSummary) -> Text:
        return campaign_state(item.campaign, scheduling=now.scheduling)

    def progress(item: CampaignSummary) -> Text:
        ended = sum(item.counts.get(TaskState(each), 0) for each in FINAL_TASK_STATES)
        return Text(bar(ended / item.tasks, length) if item.tasks else "", state(item).style)

    def done(item: CampaignSummary) -> str:
        return f"{item.counts.get(TaskState.SUCCEEDED, 0)}/{item.tasks}" if item.campaign.planned else "-"

    def took(item: CampaignSummary) -> str:
        return show_elapsed((item.campaign.ended or now.at) - item.campaign.created)

    return table(
        items,
        (name("campaign", 10), lambda item: item.campaign.id),
        (name("name", 8, ratio=1), lambda item: campaign_name(item.campaign, 80)),
        (Column("", width=length), progress),
        (number("done", 5), done),
        (number("failed", 6), lambda item: Text(str(item.counts.get(TaskState.FAILED) or ""), "red")),
        (name("status", 9), state),
        (number("for", 5), took),
        expand=width < PIPE_WIDTH,
    )


def bar(share: float, columns: int) -> str:
    """`━━━╌╌╌`; full only when everything is done, empty only when nothing is."""
    full = int(max(0.0, min(1.0, share)) * columns)
    if share > 0:
        full = max(1, full)
    return "━" * full + "╌" * (columns - full)


def _devices(items: Sequence[ObservedDevice], now: TopSnapshot, width: int) -> Table:
    labels = _labels(items)
    by_worker: dict[str, list[TaskRow]] = {}
    for task in now.tasks:
        by_worker.setdefault(task.worker or "", []).append(task)

    def work(item: ObservedDevice) -> Text:
        """The tasks of this home that it runs, and the number of others' tasks."""
        tasks = by_worker.get(item.advert.peer, ())
        if item.pong is None:
            return Text(safe_text(item.error), style="dim")
        parts = []
        for task in tasks:
            what = f" {safe_text(task.model, 40)}, {safe_text(task.unit, 40)}:" if width >= ROOMY else ""
            parts.append(f"{task.campaign}/{task.n}{what} {progress_text(task)}")
        if (others := item.pong.running - len(tasks)) > 0:
            parts.append(f"{count(others, 'task')} of others")
        return Text("; ".join(parts), style="cyan" if tasks else "")

    return table(
        items,
        (name("device", 8, _most(width, 24, 16)), lambda item: labels[item.advert.peer]),
        (name("state", 9, _most(width, 28, 12)), device_state),
        (name("runs", 16, ratio=1), work),
        (number("queue", 5), lambda item: "" if item.pong is None else str(item.pong.queue)),
        (name("path", 8, _most(width, 30, 18)), device_path),
        expand=width < PIPE_WIDTH,
    )


def _readings(now: TopSnapshot) -> list[tuple[str, LiveReading]]:
    """Readings of the devices that run tasks of this home, sorted by name, each with its label."""
    running = {task.worker for task in now.tasks}
    labels = _labels(now.devices)
    shown = [(labels[peer], one) for peer, one in now.readings.items() if peer in running and peer in labels]
    return sorted(shown, key=itemgetter(0))


def _fitting(readings: Sequence[tuple[str, LiveReading]], lines: int) -> Sequence[tuple[str, LiveReading]]:
    """As many readings as fit into `lines` lines."""
    return next(
        (
            readings[:count]
            for count in range(len(readings), 0, -1)
            if readings_lines(readings[:count]) <= lines
        ),
        (),
    )


def _labels(devices: Sequence[ObservedDevice]) -> dict[str, str]:
    return disambiguate_names({item.advert.peer: shown_name(item.advert, 80) for item in devices})


def _most(width: int, roomy: int, narrow: int) -> int | None:
    """The width limit of one column that could take all space; None: no limit, as in a pipe."""
    return None if width >= PIPE_WIDTH else roomy if width >= ROOMY else narrow


def _busiest(devices: Sequence[ObservedDevice], room: int) -> list[ObservedDevice]:
    """Devices sorted by name, so that lines keep their places; if there is no room for all, idle ones are left out first."""
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
