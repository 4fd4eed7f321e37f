"""Watching a campaign: a live table on a terminal, otherwise a line for each step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Column
from rich.text import Text

from protocol.formats.phase import BUSY, Phase
from protocol.values.attempt import TaskState
from protocol.words import asks_for_simulated_unit
from results.row.form import Configuration, configurations_of
from results.row.simulated import mark_simulated
from results.row.strangers import of_stranger
from scheduler.output.campaign_tasks import CampaignTasks, FrontTasks, Standing, standing_of
from scheduler.output.terminal import ShortName, name, print_lines, table
from scheduler.output.top import bar
from scheduler.store.progress import STATE_WORDS, fraction, progress_text
from scheduler.store.rows import FINAL_TASK_STATES, CampaignRow, TaskRow
from scheduler.store.store import Store
from swarm.base.screen import Screen, can_live
from swarm.base.text import ordinal, safe_text
from swarm.base.units import show_elapsed

WAITING_S: Final = 5.0
"""Seconds for which a campaign may wait for a first device before `watch` says how to learn why."""
REFRESH_S = 0.125
MANY = 1000
"""Number of tasks from which on the screen is drawn less often."""
REFRESH_MANY_S = 1.0
NARROW = 76
"""Terminal width below which the unit makes room for the phase."""
HEADS = 3
"""Lines that are not tasks: headline, the table's head, and the line with what is left out and the hint."""
TAKEN = 14
"""Columns for a task's number, and between the columns."""
WIDE = 100
"""Terminal width from which a bar fits."""


class StateView(NamedTuple):
    """How a task in a state is shown. `rank`: if not all fit, tasks with a low rank come first."""

    word: str
    style: str = ""
    mark: str = " "
    rank: int = 2


STATE_VIEWS: Final = {
    TaskState.RUNNING: StateView("running", "cyan", rank=0),
    TaskState.LEASED: StateView("running", "cyan", rank=0),
    TaskState.QUEUED: StateView("waiting"),
    TaskState.COMMITTING: StateView("waiting"),
    TaskState.PENDING: StateView("waiting", rank=3),
    TaskState.FAILED: StateView("failed", "red", "✗", 1),
    TaskState.CANCELLED: StateView("cancelled", "yellow", "–", 4),
    TaskState.SUCCEEDED: StateView("done", "green", "✓", 4),
}
NO_OUTCOMES: Final[Mapping[str, str]] = {}
"""No outcome is known."""


class Draw(Protocol):
    """Draws a running campaign."""

    def __call__(
        self,
        campaign: CampaignRow,
        tasks: Sequence[TaskRow],
        now: float,
        *,
        width: int,
        height: int,
        hint: str,
        outcomes: Mapping[str, str] = NO_OUTCOMES,
        standing: Standing | None = None,
    ) -> RenderableType: ...


def watch(
    store: Store,
    campaign_id: str,
    console: Console,
    *,
    keep_alive: Callable[[], None],
    hint: str = "q or Ctrl-C leaves it running",
    draw: Draw | None = None,
    crash: Callable[[], str] = lambda: "",
    pause: Callable[[float], None] = time.sleep,
    wall: Callable[[], float] = time.time,
) -> CampaignRow:
    """Show a campaign's progress until it has ended, and return it.

    `keep_alive` is called about once a second: it restarts the scheduler process if that died. `hint` is shown below the table; a report
    from `crash` replaces it. `draw`: what a terminal shows instead of the list of tasks.
    """
    lines = _Lines(console)
    rounds, live = 0, can_live(console)
    front = FrontTasks(store, campaign_id) if live and draw is None else None
    rows = front or CampaignTasks(store, campaign_id, None if live else MANY)
    shown: dict[str, TaskRow] = {}
    tasks: Sequence[TaskRow] = ()
    configurations: dict[str, Configuration] = {}
    outcomes: dict[str, str] = {}
    crashed = ""
    with Screen(console) if live else nullcontext() as screen:
        while True:
            if changed := rows.look(console.size.height):
                unknown = [task.id for task in changed if task.id not in configurations]
                configurations |= configurations_of(store.tasks.bodies_of(unknown))
                changed = [replace(task, unit=configurations[task.id].on(task.unit)) for task in changed]
                latest = {task.id: task for task in changed}
                tasks = [latest.get(task.id) or shown[task.id] for task in rows.all]
                shown = {task.id: task for task in tasks}
                ended = [task.id for task in changed if task.state is TaskState.SUCCEEDED]
                outcomes |= store.results.outcomes(ended)
                if len(outcomes) > len(shown):  # drop tasks that are not shown any more
                    outcomes = {id: outcome for id, outcome in outcomes.items() if id in shown}
                    configurations = {id: each for id, each in configurations.items() if id in shown}
            campaign = store.campaigns.get(campaign_id)
            if campaign is None:
                raise LookupError(campaign_id)  # the store was replaced
            waiting = waiting_line(campaign, rows.standing, wall())
            if screen is None:
                lines.begin(campaign_id, rows.standing)
                lines.update(changed, outcomes)
                lines.once(waiting)
            else:
                width, height = console.size
                room = max(1, height - HEADS)
                screen.show(
                    (draw or render)(
                        campaign,
                        tasks,
                        wall(),
                        width=width,
                        height=room,
                        hint=crashed or "  ".join(filter(None, (waiting, hint))),
                        outcomes=outcomes,
                        standing=None if front is None else front.standing,
                    )
                )
            if campaign.ended is not None:
                return campaign
            if rounds % 8 == 0:
                crashed, before = crash(), crashed
                if screen is None and crashed not in ("", before):
                    print_lines([crashed], console)
                keep_alive()
            rounds += 1
            pause(REFRESH_S if rows.standing.total < MANY else REFRESH_MANY_S)


class _Lines:
    """Prints a line when a task moves on. Launches repeat their phases; each phase is printed once for each attempt."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: dict[str, str] = {}
        self._phases: set[tuple[str, int, str]] = set()
        self._begun = False
        self._said: set[str] = set()

    def once(self, line: str) -> None:
        """Print a line the first time; never an empty line."""
        if line and line not in self._said:
            self._said.add(line)
            print_lines([line], self._console)

    def begin(self, campaign: str, standing: Standing) -> None:
        """Print once how many tasks of a large campaign are in each state, since not every task has a line."""
        if not self._begun and standing.total > MANY:
            print_lines([standing_line(campaign, standing)], self._console)
            self._begun = True

    def update(self, tasks: Sequence[TaskRow], outcomes: Mapping[str, str] = NO_OUTCOMES) -> None:
        for task in tasks:
            whole = task.state in FINAL_TASK_STATES or task.state is TaskState.PENDING
            step = progress_text(task, outcomes.get(task.id, "")) if whole else _step(task)
            if self._last.get(task.id) != step and not self._is_repeated(task, step):
                self._last[task.id] = step
                where = f" on {safe_text(task.device)}" if task.device else ""
                line = f"{task.id}  {safe_text(task.model)} × {safe_text(task.unit)}{where}: {step}"
                print_lines([line], self._console)

    def _is_repeated(self, task: TaskRow, step: str) -> bool:
        if task.state is not TaskState.RUNNING or task.phase in (None, Phase.QUEUED):
            return False
        key = (task.id, task.attempt, step)
        repeated = key in self._phases
        self._phases.add(key)
        return repeated


def _step(task: TaskRow) -> str:
    """The phase without its counts: one line for each phase, not for each inference."""
    if task.state is TaskState.QUEUED and task.position is not None:
        return f"queued {ordinal(task.position)}"
    if task.phase is Phase.PREPARE and task.total:
        return f"{BUSY}, at most {task.total} s"
    return str(task.phase or STATE_WORDS.get(task.state, task.state))


def render(
    campaign: CampaignRow,
    tasks: Sequence[TaskRow],
    now: float,
    *,
    width: int,
    height: int,
    hint: str,
    outcomes: Mapping[str, str] = NO_OUTCOMES,
    standing: Standing | None = None,
) -> RenderableType:
    """A headline and as many tasks as fit, by rank. `outcomes`: what succeeded tasks measured; `standing`: the counts of all tasks, if
    `tasks` are not all.
    """
    standing = standing or standing_of(tasks)
    headline = headline_of(campaign, standing, now, width)
    shown = _most_interesting(tasks, height)
    narrow, wide = width < NARROW, width >= WIDE
    names = width - TAKEN  # the phase, which matters most, gets the larger half

    def styled(task: TaskRow, text: str) -> Text:
        return Text(text, STATE_VIEWS[task.state].style)

    def progress(task: TaskRow) -> Text:
        share = fraction(task)
        return styled(task, "" if share is None else bar(share, 8))

    model, unit, device = (
        max(least, min(most, names * share // 100))
        for least, most, share in ((10, 40, 24), (10, 30, 34), (8, 24, 17))
    )
    drawn = table(
        shown,
        (Column("task", no_wrap=True), lambda task: styled(task, f"{STATE_VIEWS[task.state].mark} {task.n}")),
        (name("model", most=model), lambda task: ShortName(safe_text(task.model))),
        None if narrow else (name("unit", most=unit), lambda task: safe_text(task.unit)),
        (name("device", 6, device), _device),
        (Column("", no_wrap=True, width=8), progress) if wide else None,
        (
            name("phase", 20, ratio=1),
            lambda task: styled(task, progress_text(task, outcomes.get(task.id, ""))),
        ),
        expand=True,
    )
    footer = Text("  ".join(filter(None, (left_out(standing, shown), hint))), style="dim")
    return Group(headline, drawn, Text.assemble("  ", footer, no_wrap=True, overflow="ellipsis"))


def waiting_line(campaign: CampaignRow, standing: Standing, now: float) -> str:
    """How to learn why no task of a campaign has a device yet; empty for a new campaign, and once a task has one."""
    moved = sum(count for state, count in standing.counts.items() if state is not TaskState.PENDING)
    if moved or campaign.ended or now - campaign.created < WAITING_S:
        return ""
    return f"No device has taken a task yet. Why: sark-node explain {campaign.id}"


def _progress_of(campaign: CampaignRow, done: int, tasks: int) -> str:
    if not tasks:
        return "waiting for devices"
    return f"{done} of {tasks} done" if campaign.planned else f"being planned: {tasks} tasks so far"


def headline_of(campaign: CampaignRow, standing: Standing, now: float, width: int) -> Text:
    """The campaign's name and id, how many tasks have ended, and how long it has run."""
    done, failed = (standing.counts.get(state, 0) for state in (TaskState.SUCCEEDED, TaskState.FAILED))
    status = Text.assemble(
        f"  {campaign.id}  ",
        _progress_of(campaign, done, standing.total),
        (f"  {failed} failed", "red") if failed else "",
        f"  {standing.scoring} being scored" if standing.scoring else "",
        f"  {show_elapsed((campaign.ended or now) - campaign.created)}",
    )
    mark = mark_simulated("", asks_for_simulated_unit(campaign.spec))
    title = Text(safe_text(campaign.name), "bold")
    title.truncate(max(8, width - cell_len(mark) - status.cell_len), overflow="ellipsis")
    return Text.assemble(title, (mark, "bold"), status, no_wrap=True, overflow="ellipsis")


def left_out(standing: Standing, shown: Sequence[TaskRow]) -> str:
    """`… 41 more: 30 waiting, 11 done`; empty where all are shown."""
    hidden = Counter(standing.counts)
    hidden.subtract(task.state for task in shown)
    number = hidden.total()
    return f"… {number} more: {_in_words(hidden)}" if number else ""


def standing_line(campaign: str, standing: Standing) -> str:
    """The number of a large campaign's tasks in each state, before the lines of tasks that move on."""
    words = _in_words(standing.counts)
    return f"{campaign}: {standing.total} tasks: {words}; a line follows for each task that changes"


def _in_words(counts: Mapping[TaskState, int]) -> str:
    """`30 waiting, 11 done`"""
    by_word = Counter[str]()
    for state, view in STATE_VIEWS.items():
        by_word[view.word] += counts.get(state, 0)
    return ", ".join(f"{number} {word}" for word, number in by_word.items() if number)


def _most_interesting(tasks: Sequence[TaskRow], room: int) -> list[TaskRow]:
    """All tasks if they fit; else running ones first, then failed, then waiting ones, then the latest that ended. Sorted by number."""
    if len(tasks) <= room:
        return list(tasks)
    chosen = sorted(tasks, key=lambda task: (STATE_VIEWS[task.state].rank, -(task.ended or 0), task.n))[:room]
    return sorted(chosen, key=lambda task: task.n)


def _device(task: TaskRow) -> str:
    """The device's name; a stranger's is marked."""
    name = safe_text(task.device)
    return f"{name} (stranger)" if name and of_stranger(task) else name
