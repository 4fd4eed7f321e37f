"""From a signed record to the columns that lists and pivots read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from protocol.values.record import Record
from protocol.values.task import Task
from protocol.words import RunOutcome
from results.export.pivots import FigureColumn
from results.row.make import record_fields
from results.row.record import RecordView
from results.row.row import Row
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
_FIELDS: Final = _FACTS | {str(figure): str(figure) for figure in FigureColumn}
_UNSET: Final[dict[str, Any]] = {field: Row.model_fields[field].default for field in _FIELDS.values()}


def figures_of(
    task: Task,
    record: Record,
    account: WitnessAccount | None = None,
    observed: RecordView | None = None,
) -> dict[str, Any]:
    """The columns that follow from a record, by name; no figures where it does not say that it is complete. `observed`: what is in it, if
    it was unpacked already."""
    complete = record.outcome is RunOutcome.COMPLETE
    try:
        return _columns(record_fields(task, record, account, observed, complete=complete, listed=True))
    except ArithmeticError:  # a stranger's numbers: a list without them is no reason not to record the result
        return {}


def unconfirmed(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a stranger's record of which no inference was confirmed: `unchecked`, or what is graver."""
    verdict = columns.get("verdict", "")
    milder = verdict == RowVerdict.VALID or verdict in GRAVITY[GRAVITY.index(RowVerdict.UNCHECKED) :]
    return {**columns, "verdict": str(RowVerdict.UNCHECKED)} if milder else dict(columns)


def columns_of(row: Row) -> dict[str, Any]:
    """The same from a row."""
    return _columns({field: getattr(row, field) for field in _FIELDS.values()})


def _columns(fields: Mapping[str, Any]) -> dict[str, Any]:
    """From fields of a row; one that is not there has the value that it has in every row."""
    return {name: fields.get(field, _UNSET[field]) for name, field in _FIELDS.items()}
