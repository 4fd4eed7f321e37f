"""Lists and pivots over all that has ended, out of the table that holds nothing else: 100,000 results are looked through at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

import sqlalchemy as sa

from protocol.errors import CampaignError
from protocol.values.attempt import TaskState
from protocol.words import UNIT
from results.export.columns import Dimension, FigureColumn, Filters, Pivot, PivotCell, ResultLine, ResultsPage
from results.row.verdict import RowVerdict
from scheduler.store import schema as t
from scheduler.store.queries import Queries

MAX_PAGE: Final = 1000
Column = sa.ColumnElement[Any]
Where = Sequence[sa.ColumnElement[bool]]
_EXACT: Final = ("campaign", "model", "sha256", "unit", "soc", "state", "verdict")


class ResultSearch(Queries):
    """Part of `scheduler.store.Store`."""

    def results_page(
        self, after: str | None = None, limit: int = 100, filters: Filters | None = None
    ) -> ResultsPage:
        """Ended tasks, the latest first, at most `limit` (1 to 1000). `after`: the `next` of the page before.

        What ends meanwhile is on no later page, and moves none. Raises `CampaignError` for an `after` that was never given out.
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
            ended, task = _cursor(after)
            query = query.where(r.ended <= ended, sa.or_(r.ended < ended, r.task < task))
        found = tuple(_line(row) for row in self._all(query))
        shown = found[:limit]
        more = len(found) > limit
        return ResultsPage(shown, f"{shown[-1].ended!r}~{shown[-1].task}" if more else None)

    def _tuples(self, query: sa.Executable) -> Sequence[Sequence[Any]]:
        """The driver's own rows, of columns that need no translation: half the time where there are very many."""
        with self._backend.told():
            result = self._open().execute(query)
            cursor: Any = result.cursor
            try:
                return list(cursor.fetchall())
            finally:
                result.close()

    def pivot(
        self, rows: Dimension, columns: Dimension, value: FigureColumn, filters: Filters | None = None
    ) -> Pivot:
        """How `value` is in each pair of `rows` and `columns`: the median over all succeeded tasks that have it. Simulations are left out
        where anything else is found.
        """
        down, across, figure = (t.results.c[str(name)] for name in (rows, columns, value))
        all_ = (
            t.results.c.state == str(TaskState.SUCCEEDED),
            figure.is_not(None),
            *_where(filters or Filters()),
        )
        measured = (*all_, t.results.c.verdict != str(RowVerdict.SIMULATED))
        make = self._cells_of_server if self._backend.makes_medians else self._cells
        cells = make(down, across, figure, measured) or make(down, across, figure, all_)
        cells.sort(key=lambda cell: (_order(cell.row), _order(cell.column)))
        return Pivot(
            rows=tuple(sorted({cell.row for cell in cells}, key=_order)),
            columns=tuple(sorted({cell.column for cell in cells}, key=_order)),
            cells=tuple(cells),
        )

    def _cells(self, down: Column, across: Column, figure: Column, where: Where) -> list[PivotCell]:
        """Every number is read: three times as quick as asking SQLite for the medians."""
        found: defaultdict[tuple[Any, Any], list[float]] = defaultdict(list)
        for one, other, number in self._tuples(sa.select(down, across, figure).where(*where)):
            found[one, other].append(number)
        return [
            PivotCell(_shown(one), _shown(other), len(each), median(each), min(each), max(each))
            for (one, other), each in found.items()
        ]

    def _cells_of_server(self, down: Column, across: Column, figure: Column, where: Where) -> list[PivotCell]:
        """No number leaves the server but those of the cells."""
        middle = sa.func.percentile_cont(0.5).within_group(figure)
        numbers = (sa.func.count(), middle, sa.func.min(figure), sa.func.max(figure))
        query = sa.select(down, across, *numbers).where(*where).group_by(down, across)
        return [PivotCell(_shown(one), _shown(other), *each) for one, other, *each in self._tuples(query)]


def _where(filters: Filters) -> list[sa.ColumnElement[bool]]:
    r = t.results.c
    found = [r[name] == str(getattr(filters, name)) for name in _EXACT if getattr(filters, name) is not None]
    if filters.device is not None:
        found.append(sa.or_(r.device == filters.device, r.device_id == filters.device))
    if filters.simulated is not None:
        pretended = r.unit == UNIT
        found.append(pretended if filters.simulated else sa.not_(pretended))
    if filters.since is not None:
        found.append(r.ended >= filters.since)
    if filters.until is not None:
        found.append(r.ended < filters.until)
    return found


def _cursor(after: str) -> tuple[float, str]:
    ended, mark, task = after.partition("~")
    try:
        if not mark:
            raise ValueError(after)
        return float(ended), task
    except ValueError:
        raise CampaignError(
            "`after` is none that a page gave", hint="take the `next` of the page before"
        ) from None


def _line(row: sa.Row[Any]) -> ResultLine:
    values = row._mapping
    own = {name: values[name] for name in ResultLine.__dataclass_fields__ if name not in ("figures", "state")}
    return ResultLine(
        **own, state=TaskState(row.state), figures={figure: values[str(figure)] for figure in FigureColumn}
    )


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def _order(text: str) -> tuple[int, int, str]:
    """Numbers as numbers, and before words."""
    return (0, int(text), "") if text.isdecimal() else (1, 0, text)
