"""A running campaign as its matrix: devices as columns, and in each cell the measurement or the progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from protocol.formats.phase import Phase
from protocol.values.attempt import TaskState
from protocol.values.requirement import Op
from protocol.values.task import Task, read_task
from results.analysis.matrix import MatrixCell
from scheduler.output.campaign_tasks import Standing, standing_of
from scheduler.output.matrix_table import GridRow, grid_lines
from scheduler.output.watch import NO_OUTCOMES, STATE_VIEWS, headline_of
from scheduler.store.progress import STATE_WORDS, fraction
from scheduler.store.results import REMARK
from scheduler.store.rows import CampaignRow, TaskRow
from scheduler.store.store import Store
from swarm.base.names import disambiguate_names
from swarm.base.text import safe_text


class LiveMatrix:
    """Draws one campaign, for `watch`."""

    def __init__(self, store: Store, campaign_id: str, names: Mapping[str, str]) -> None:
        """`names`: display names of devices or workers, by the id to which their tasks are pinned."""
        self._store, self._campaign, self._names = store, campaign_id, names
        self._columns: dict[str, str] = {}
        """The name of the device for each task, by task id."""

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
    ) -> RenderableType:
        if len(self._columns) != len(tasks):
            self._columns = columns_of(self._store.tasks.bodies(self._campaign), self._names)
        lines = live_lines(tasks, self._columns, outcomes, width)
        room = max(1, height)
        if len(lines) > room:
            lines = [*lines[: room - 1], Text(f"… {len(lines) - room + 1} more lines", "dim")]
        legend = "medians in ms; ?: doubtful; ·: with a remark  " if outcomes else ""
        footer = Text(f"  {legend}{hint}", "dim", no_wrap=True, overflow="ellipsis")
        return Group(headline_of(campaign, standing or standing_of(tasks), now, width), *lines, footer)


def columns_of(bodies: Mapping[str, bytes], names: Mapping[str, str]) -> dict[str, str]:
    """The device, or worker, to which each task is pinned; empty for a task that any may run."""
    keys = {id: _pin(read_task(body)) for id, body in bodies.items()}
    labels = disambiguate_names({key: names.get(key, key) for key in keys.values() if key})
    return {id: labels.get(key, "") for id, key in keys.items()}


def _pin(task: Task) -> str:
    pins = {
        clause.attribute: str(clause.value)
        for clause in task.requirement.clauses
        if clause.op in (Op.EQ, Op.LIKE)
    }
    return pins.get("peer") or pins.get("device", "")


def live_lines(
    tasks: Sequence[TaskRow], columns: Mapping[str, str], outcomes: Mapping[str, str], width: int
) -> list[Text]:
    """A row for each model and unit, a column for each device."""
    by_id = {task.id: task for task in tasks}
    rows: dict[str, dict[str, dict[str, MatrixCell]]] = {}
    for task in tasks:
        column = columns.get(task.id) or safe_text(task.device)
        cell = MatrixCell(model=task.model, device=column, unit=task.unit, job=task.id)
        rows.setdefault(task.model, {}).setdefault(task.unit, {}).setdefault(column, cell)
    drawn: list[GridRow] = []
    for model, units in rows.items():
        drawn.append(GridRow(safe_text(model)))
        drawn += (GridRow(f"  {safe_text(unit)}", cells) for unit, cells in units.items())
    devices = dict.fromkeys(column for units in rows.values() for cells in units.values() for column in cells)

    def show(cell: MatrixCell) -> str:
        return cell_words(by_id[cell.job], outcomes.get(cell.job, ""))

    def style(cell: MatrixCell) -> str:
        return STATE_VIEWS[by_id[cell.job].state].style or "dim"

    return grid_lines(drawn, sorted(devices, key=lambda name: (not name, name)), show, width, style)


def cell_words(task: TaskRow, outcome: str) -> str:
    """`12.5 ±2%` in ms, with `?` if doubtful, `·` if there is a remark; `run 40%`, `queued`, `failed`."""
    match task.state:
        case TaskState.SUCCEEDED:
            measured, remark, _ = outcome.partition(REMARK)
            time, doubt, _ = measured.partition(",")
            mark = " ?" if doubt else " ·" if remark else ""
            return time.replace(" ms", "").replace(" %", "%") + mark or "done"
        case TaskState.FAILED | TaskState.CANCELLED:
            return str(task.state)
        case TaskState.PENDING | TaskState.QUEUED:
            return "waiting" if task.state is TaskState.PENDING else "queued"
        case TaskState.COMMITTING:
            return STATE_WORDS[task.state]
    if task.phase is Phase.QUEUED:
        return "queued"
    if task.phase is Phase.PREPARE and task.total:
        return "host busy"
    share = fraction(task)
    return f"{task.phase or 'starting'}{'' if share is None else f' {share:.0%}'}"
