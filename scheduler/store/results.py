"""Results in the store: signed records and rows of one campaign, and lists and pivots over all ended tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from protocol.errors import CampaignError
from protocol.values.attempt import TaskState
from protocol.values.trust import TrustKind
from protocol.words import SIMULATED_UNIT
from results.export.pivots import Dimension, FigureColumn, Filters, Pivot, PivotCell, ResultLine, ResultsPage
from results.row.form import median_text
from results.row.verdicts import RowVerdict
from scheduler.store import schema as t
from scheduler.store.database import Database, batched, columns_of
from scheduler.store.rows import ResultRow, TaskRow
from swarm.base.names import disambiguate_names

if TYPE_CHECKING:
    from results.analysis.sittings import IntervalCoverage

MAX_PAGE: Final = 1000
REMARK: Final = " · "
"""Separates what was measured from remarks about it."""
_DEVICE: Final = t.results.c.device_id + " " + t.results.c.device_key
"""The same text as `results.row.identity.device_identity`."""
_EXACT: Final = ("campaign", "model", "sha256", "unit", "soc", "state", "verdict")


class ResultRepository:
    """Results, read only; `AttemptRepository.record_result` writes them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def rows(
        self, campaign: str, low: int = 0, high: int | None = None, *, first_ended: int | None = None
    ) -> tuple[ResultRow, ...]:
        """The tasks of a campaign with numbers `low` to `high`, each with the record that decided it. `first_ended`: only that many, and
        only tasks that have ended.
        """
        query = self._query(campaign).where(t.tasks.c.n >= low)
        if high is not None:
            query = query.where(t.tasks.c.n <= high)
        if first_ended is not None:
            query = query.where(t.tasks.c.ended.is_not(None)).limit(first_ended)
        return self._read(query)

    def numbered(self, campaign: str, numbers: Sequence[int]) -> tuple[ResultRow, ...]:
        """Like `rows`, for the tasks that exist among these numbers, at most 500."""
        return self._read(self._query(campaign).where(t.tasks.c.n.in_(numbers)))

    def _query(self, campaign: str) -> sa.Select[Any]:
        r, own = t.records.c, columns_of(TaskRow)
        return (
            sa.select(*own, t.tasks.c.body, r.worker, r.attempt, r.body, r.signature, r.accepted, r.account)
            .add_columns(sa.func.coalesce(r.device_key, ""), r.scores, t.sendings.c.url)
            .join_from(t.tasks, t.records, (r.task == t.tasks.c.id) & r.decides, isouter=True)
            .join(t.sendings, t.sendings.c.campaign == t.tasks.c.campaign, isouter=True)
            .where(t.tasks.c.campaign == campaign)
            .order_by(t.tasks.c.n)
        )

    def _read(self, query: sa.Select[Any]) -> tuple[ResultRow, ...]:
        own = len(columns_of(TaskRow))
        return tuple(ResultRow(TaskRow(*row[:own]), *row[own:]) for row in self._database.all(query))

    def outcomes(self, tasks: Sequence[str]) -> dict[str, str]:
        """`12.5 ms ±2 %, noisy` or `12.5 ms ±2 % · host busy 6%` for each of these tasks that has a time, by id."""
        r = t.results.c
        figures = (r.inference_ms_median, r.inference_ms_median_low, r.inference_ms_median_high)
        found: dict[str, str] = {}
        for portion in batched(tasks):
            own = (r.task, r.verdict, r.remarks)
            query = sa.select(*own, *figures).where(r.task.in_(portion), figures[0].is_not(None))
            for task, verdict, remarks, *times in self._database.tuples(query):
                valid = verdict in ("", RowVerdict.VALID)
                more = (f"{REMARK}{remarks}" if remarks else "") if valid else f", {verdict}"
                found[task] = median_text(*times) + more
        return found

    def coverage(self) -> dict[str, IntervalCoverage]:
        """For each device, as `device_identity` names it: how many of its own sittings' intervals hold the median of the other sittings."""
        from results.analysis.sittings import SittingFigure, coverage_of_devices
        from results.row.stats import MIN_LAUNCHES

        r = t.results.c
        low, middle, high = r.inference_ms_median_low, r.inference_ms_median, r.inference_ms_median_high
        usable = (
            r.state == TaskState.SUCCEEDED,
            r.fingerprint != "",
            r.verdict.not_in((str(RowVerdict.SIMULATED), str(RowVerdict.UNREADABLE))),
            low > 0,
            high.is_not(None),
        )
        often = sa.select(r.fingerprint).where(*usable).group_by(r.fingerprint).having(sa.func.count() > 2)
        query = sa.select(_DEVICE, r.fingerprint, middle, low, high, r.ended).where(
            *usable, r.fingerprint.in_(often)
        )
        return coverage_of_devices(
            (device, cell, SittingFigure(median_ms, low_ms, high_ms, MIN_LAUNCHES, ended))
            for device, cell, median_ms, low_ms, high_ms, ended in self._database.tuples(query)
        )

    def page(self, after: str | None = None, limit: int = 100, filters: Filters | None = None) -> ResultsPage:
        """Ended tasks, the latest first, at most `limit` (1 to 1000). `after`: the `next` of the previous page.

        Tasks that end meanwhile appear on no later page, and shift none. Raises `CampaignError` for an `after` that no page returned.
        """
        r, limit = t.results.c, max(1, min(limit, MAX_PAGE))
        query = (
            sa.select(t.results, t.campaigns.c.name.label("campaign_name"))
            .join(t.campaigns, t.campaigns.c.id == r.campaign)
            .where(*_where(filters or Filters()))
            .order_by(r.ended.desc(), r.task.desc())
            .limit(limit + 1)
        )
        if after is not None:
            ended, task = _parse_cursor(after)
            query = query.where(r.ended <= ended, sa.or_(r.ended < ended, r.task < task))
        lines = tuple(_line(row) for row in self._database.all(query))
        last = lines[limit - 1] if len(lines) > limit else None
        return ResultsPage(lines[:limit], f"{last.ended!r}~{last.task}" if last else None)

    def pivot(
        self, rows: Dimension, columns: Dimension, value: FigureColumn, filters: Filters | None = None
    ) -> Pivot:
        """The median of `value` over all succeeded tasks that have it, for each pair of `rows` and `columns`. Simulations are left out when
        anything was measured. Unless each device has cells of its own, strangers' results are left out when anybody else measured
        something.
        """
        row, column, figure = _dimension(rows), _dimension(columns), t.results.c[str(value)]
        where = [
            t.results.c.state == TaskState.SUCCEEDED,
            figure.is_not(None),
            *_where(filters or Filters()),
        ]
        measured = t.results.c.verdict != str(RowVerdict.SIMULATED)
        believed = t.results.c.trust != str(TrustKind.STRANGER)
        apart = Dimension.DEVICE in (rows, columns)  # then each cell says whose device it is
        choices = (
            ([*where, measured], where)
            if apart
            else ([*where, measured, believed], [*where, measured], where)
        )
        cells = next(filter(None, (self._cells(row, column, figure, each) for each in choices)), [])
        names = self._device_names() if Dimension.DEVICE in (rows, columns) else {}
        if rows is Dimension.DEVICE:
            cells = [replace(cell, row=names.get(cell.row, cell.row)) for cell in cells]
        if columns is Dimension.DEVICE:
            cells = [replace(cell, column=names.get(cell.column, cell.column)) for cell in cells]
        cells.sort(key=lambda cell: (_order(cell.row), _order(cell.column)))
        return Pivot(
            rows=tuple(sorted({cell.row for cell in cells}, key=_order)),
            columns=tuple(sorted({cell.column for cell in cells}, key=_order)),
            cells=tuple(cells),
        )

    def _device_names(self) -> dict[str, str]:
        """The display name of each device: its latest name, distinct from others, and why it is trusted."""
        r = t.results.c
        latest, facts = sa.func.max(r.ended), (_DEVICE, r.device, r.trust)
        query = sa.select(*facts, latest).group_by(*facts).order_by(latest)
        known = {device: (name, trust) for device, name, trust, _ in self._database.tuples(query)}
        labels = disambiguate_names({device: name for device, (name, _) in known.items()})
        return {
            device: labels[device] + ("" if trust in ("", TrustKind.OWN) else f" ({trust})")
            for device, (_, trust) in known.items()
        }

    def _cells(
        self,
        row: sa.ColumnElement[Any],
        column: sa.ColumnElement[Any],
        figure: sa.ColumnElement[Any],
        where: Sequence[sa.ColumnElement[bool]],
    ) -> list[PivotCell]:
        if self._database.backend.has_median:
            middle = sa.func.percentile_cont(0.5).within_group(figure)
            numbers = (sa.func.count(), middle, sa.func.min(figure), sa.func.max(figure))
            query = sa.select(row, column, *numbers).where(*where).group_by(row, column)
            return [PivotCell(_text(r), _text(c), *cell) for r, c, *cell in self._database.tuples(query)]
        values: defaultdict[tuple[Any, Any], list[float]] = defaultdict(list)
        # Reading every number is three times as fast as asking SQLite for the medians.
        for r, c, number in self._database.tuples(sa.select(row, column, figure).where(*where)):
            values[r, c].append(number)
        return [
            PivotCell(_text(r), _text(c), len(cell), median(cell), min(cell), max(cell))
            for (r, c), cell in values.items()
        ]


def _dimension(name: Dimension) -> sa.ColumnElement[Any]:
    """A column. For devices: their ids with their keys, since devices with one name or one id may be different devices."""
    return _DEVICE if name is Dimension.DEVICE else t.results.c[str(name)]


def _where(filters: Filters) -> list[sa.ColumnElement[bool]]:
    r = t.results.c
    where = [r[name] == getattr(filters, name) for name in _EXACT if getattr(filters, name) is not None]
    if filters.device is not None:
        where.append(
            sa.or_(*(column == filters.device for column in (r.device, r.device_id, r.device_key, _DEVICE)))
        )
    if filters.simulated is not None:
        where.append(r.unit == SIMULATED_UNIT if filters.simulated else r.unit != SIMULATED_UNIT)
    if filters.since is not None:
        where.append(r.ended >= filters.since)
    if filters.until is not None:
        where.append(r.ended < filters.until)
    return where


def _parse_cursor(after: str) -> tuple[float, str]:
    ended, tilde, task = after.partition("~")
    try:
        if not tilde:
            raise ValueError(after)
        return float(ended), task
    except ValueError:
        raise CampaignError(
            f"no page ends with `after` {after!r}", hint="pass the `next` of the page before"
        ) from None


def _line(row: sa.Row[Any]) -> ResultLine:
    values = row._mapping
    own = {name: values[name] for name in ResultLine.__dataclass_fields__ if name != "figures"}
    return ResultLine(**own, figures={figure: values[figure] for figure in FigureColumn})


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _order(text: str) -> tuple[int, int, str]:
    """A sort key that puts numbers, by value, before text."""
    return (0, int(text), "") if text.isdecimal() else (1, 0, text)
