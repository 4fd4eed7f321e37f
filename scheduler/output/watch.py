"""Watching a campaign: a live table on a terminal, else a line for each step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from protocol.formats.phase import Phase
from protocol.values.attempt import TaskState
from protocol.words import asks_for_it
from results.row.row import Configuration, configuration_of
from results.row.simulated import marked
from scheduler.output.top import bar
from scheduler.store.progress import BUSY, STATE_WORDS, fraction, progress_text
from scheduler.store.rows import ENDED, CampaignRow, TaskRow
from scheduler.store.store import Store
from swarm.base.screen import Screen, can_live
from swarm.base.text import ordinal, safe_text
from swarm.base.units import show_elapsed

REFRESH_S = 0.125
NARROW = 76
"""Columns below which the unit gives way to the phase."""
HEADS = 3
"""Lines that are no task: headline, the table's head, what is left out with the hint."""
TAKEN = 14
"""Columns for a task's number, and between the columns."""
WIDE = 100
"""Columns from which there is room for a bar."""
_STYLES = {
    TaskState.SUCCEEDED: "green",
    TaskState.FAILED: "red",
    TaskState.CANCELLED: "yellow",
    TaskState.RUNNING: "cyan",
    TaskState.LEASED: "cyan",
}
_WORDS = {
    TaskState.RUNNING: "running",
    TaskState.LEASED: "running",
    TaskState.QUEUED: "waiting",
    TaskState.COMMITTING: "waiting",
    TaskState.PENDING: "waiting",
    TaskState.FAILED: "failed",
    TaskState.CANCELLED: "cancelled",
    TaskState.SUCCEEDED: "done",
}
_MARKS = {TaskState.SUCCEEDED: "✓", TaskState.FAILED: "✗", TaskState.CANCELLED: "–"}


def watch(
    store: Store,
    campaign_id: str,
    console: Console,
    *,
    keep_alive: Callable[[], None],
    hint: str = "q or Ctrl-C leaves it running",
    pause: Callable[[float], None] = time.sleep,
    wall: Callable[[], float] = time.time,
) -> CampaignRow:
    """Show how the campaign goes until it has ended; returns it then.

    `keep_alive` is called about once a second: it restarts the scheduler process if that died. `hint` stands below the table.
    """
    show = _LiveTable(console, wall, hint) if can_live(console) else _Lines(console)
    with show:
        rounds, version = 0, -1
        tasks: Sequence[TaskRow] = ()
        configurations: dict[str, Configuration] = {}
        while True:
            changed = store.changes_by_others()
            if changed != version:
                version = changed
                tasks = store.tasks.all(campaign_id)
                if len(configurations) != len(tasks):
                    bodies = store.tasks.bodies(campaign_id)
                    configurations = {task: configuration_of(body) for task, body in bodies.items()}
                tasks = [replace(task, unit=configurations[task.id].on(task.unit)) for task in tasks]
            campaign = store.campaigns.get(campaign_id)
            if campaign is None:
                raise LookupError(campaign_id)  # the store was replaced
            show.update(campaign, tasks)
            if campaign.ended is not None:
                return campaign
            if rounds % 8 == 0:
                keep_alive()
            rounds += 1
            pause(REFRESH_S)


class _LiveTable:
    """A table that stays in place."""

    def __init__(self, console: Console, wall: Callable[[], float], hint: str) -> None:
        self._console = console
        self._wall = wall
        self._hint = hint
        self._screen = Screen(console)

    def __enter__(self) -> _LiveTable:
        self._screen.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._screen.__exit__(*exc)

    def update(self, campaign: CampaignRow, tasks: Sequence[TaskRow]) -> None:
        width, height = self._console.size
        room = max(1, height - HEADS)
        self._screen.show(render(campaign, tasks, self._wall(), width=width, height=room, hint=self._hint))


class _Lines:
    """A line when a task moves on. Launches repeat their phases; each is printed once an attempt."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: dict[str, str] = {}
        self._phases: set[tuple[str, int, str]] = set()

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def update(self, campaign: CampaignRow, tasks: Sequence[TaskRow]) -> None:
        for task in tasks:
            step = (
                progress_text(task) if task.state in ENDED or task.state is TaskState.PENDING else _step(task)
            )
            if self._last.get(task.id) != step and not self._is_repeated(task, step):
                self._last[task.id] = step
                where = f" on {safe_text(task.device)}" if task.device else ""
                line = f"{task.id}  {safe_text(task.model)} × {safe_text(task.unit)}{where}: {step}"
                self._console.print(Text(line), soft_wrap=True)

    def _is_repeated(self, task: TaskRow, step: str) -> bool:
        if task.state is not TaskState.RUNNING or task.phase in (None, Phase.QUEUED):
            return False
        key = (task.id, task.attempt, step)
        repeated = key in self._phases
        self._phases.add(key)
        return repeated


def _step(task: TaskRow) -> str:
    """The phase without its counts: a line for each phase and not for each inference."""
    if task.state is TaskState.QUEUED and task.position is not None:
        return f"queued {ordinal(task.position)}"
    if task.phase is Phase.PREPARE and task.total:
        return f"{BUSY}, at most {task.total} s"
    return str(task.phase or STATE_WORDS.get(task.state, task.state))


def render(
    campaign: CampaignRow, tasks: Sequence[TaskRow], now: float, *, width: int, height: int, hint: str
) -> RenderableType:
    """A headline and as many tasks as fit, those that move first."""
    done = sum(task.state is TaskState.SUCCEEDED for task in tasks)
    failed = sum(task.state is TaskState.FAILED for task in tasks)
    status = Text.assemble(
        f"  {campaign.id}  ",
        f"{done} of {len(tasks)} done" if tasks else "waiting for devices",
        (f"  {failed} failed", "red") if failed else "",
        f"  {show_elapsed((campaign.ended or now) - campaign.created)}",
    )
    mark = marked("", asks_for_it(campaign.spec))
    name = Text(safe_text(campaign.name), "bold")
    name.truncate(max(8, width - cell_len(mark) - status.cell_len), overflow="ellipsis")
    headline = Text.assemble(name, (mark, "bold"), status, no_wrap=True, overflow="ellipsis")
    shown = _most_interesting(tasks, height)
    narrow, wide = width < NARROW, width >= WIDE
    names = width - TAKEN  # of this room the phase, which is what one looks for, has the larger half
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim", expand=True)
    table.add_column("task", no_wrap=True)
    table.add_column(
        "model", no_wrap=True, overflow="ellipsis", max_width=max(10, min(40, names * 24 // 100))
    )
    if not narrow:
        table.add_column(
            "unit", no_wrap=True, overflow="ellipsis", max_width=max(10, min(30, names * 34 // 100))
        )
    table.add_column(
        "device", no_wrap=True, overflow="ellipsis", min_width=6, max_width=max(8, min(24, names * 17 // 100))
    )
    if wide:
        table.add_column("", no_wrap=True, width=8)
    table.add_column("phase", no_wrap=True, overflow="ellipsis", min_width=20, ratio=1)
    for task in shown:
        style = _STYLES.get(task.state, "")
        mark = _MARKS.get(task.state, " ")
        table.add_row(
            Text(f"{mark} {task.n}", style=style),
            Text(safe_text(task.model)),
            *(() if narrow else (Text(safe_text(task.unit)),)),
            Text(safe_text(task.device)),
            *((Text(_bar(task), style=style),) if wide else ()),
            Text(progress_text(task), style=style),
        )
    footer = Text("  ".join(filter(None, (left_out(tasks, shown), hint))), style="dim")
    return Group(headline, table, Text.assemble("  ", footer, no_wrap=True, overflow="ellipsis"))


def left_out(tasks: Sequence[TaskRow], shown: Sequence[TaskRow]) -> str:
    """`… 41 more: 30 waiting, 11 done`; empty where all are shown."""
    numbers = {task.n for task in shown}
    hidden = Counter(_WORDS[task.state] for task in tasks if task.n not in numbers)
    words = ", ".join(f"{hidden[word]} {word}" for word in dict.fromkeys(_WORDS.values()) if hidden[word])
    return f"… {hidden.total()} more: {words}" if hidden else ""


def _bar(task: TaskRow) -> str:
    share = fraction(task)
    return "" if share is None else bar(share, 8)


def _most_interesting(tasks: Sequence[TaskRow], room: int) -> list[TaskRow]:
    """All in order if they fit; else what runs, then what waits, then what failed, then the latest that ended."""
    if len(tasks) <= room:
        return list(tasks)
    rank = {TaskState.RUNNING: 0, TaskState.LEASED: 0, TaskState.FAILED: 1, TaskState.QUEUED: 2}
    rank |= {TaskState.COMMITTING: 2, TaskState.PENDING: 3, TaskState.CANCELLED: 4, TaskState.SUCCEEDED: 4}
    chosen = sorted(tasks, key=lambda task: (rank[task.state], -(task.ended or 0), task.n))[:room]
    return sorted(chosen, key=lambda task: task.n)
