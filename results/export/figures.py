"""From a signed record to the columns that lists and pivots read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from protocol.values.attempt import TaskState
from protocol.values.record import Record
from protocol.values.task import Task
from protocol.words import RunOutcome
from results.export.pivots import FigureColumn
from results.row.row import Row, make_row
from results.row.verdicts import GRAVITY, RowVerdict
from results.row.witness import WitnessAccount

_FACTS: Final[dict[str, str]] = {
    "device": "device_name",
    "device_id": "device_id",
    "soc": "soc",
    "system": "device_os",
    "runtime": "runtime",
    "threads": "threads",
    "verdict": "verdict",
    "fingerprint": "fingerprint",
    "remarks": "remarks",
}
"""Columns, and the field of the row that each has."""


def figures_of(task: Task, record: Record, account: WitnessAccount | None = None) -> dict[str, Any]:
    """The columns that follow from a record, by name; no figures where it does not say that it is complete."""
    complete = record.outcome is RunOutcome.COMPLETE
    try:
        state = TaskState.SUCCEEDED if complete else TaskState.FAILED
        return columns_of(make_row(task, state, record, account=account))
    except ArithmeticError:  # a stranger's numbers: a list without them is no reason not to record the result
        return {}


def unconfirmed(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a stranger's record of which no inference was confirmed: `unchecked`, or what is graver."""
    verdict = columns.get("verdict", "")
    milder = verdict == RowVerdict.VALID or verdict in GRAVITY[GRAVITY.index(RowVerdict.UNCHECKED) :]
    return {**columns, "verdict": str(RowVerdict.UNCHECKED)} if milder else dict(columns)


def columns_of(row: Row) -> dict[str, Any]:
    """The same from a row."""
    facts = {name: getattr(row, field) for name, field in _FACTS.items()}
    return facts | {str(figure): getattr(row, figure) for figure in FigureColumn}
