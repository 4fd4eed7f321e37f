"""Turns a signed record into the columns that lists and pivots read."""

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
from results.row.verdicts import VERDICTS_BY_SEVERITY, RowVerdict
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
"""Columns, each with its field of the row."""
_FIELDS: Final = _FACTS | {str(figure): str(figure) for figure in FigureColumn}
_UNSET: Final[dict[str, Any]] = {field: Row.model_fields[field].default for field in _FIELDS.values()}


def figures_of(
    task: Task,
    record: Record,
    account: WitnessAccount | None = None,
    observed: RecordView | None = None,
) -> dict[str, Any]:
    """The columns that follow from a record, by name; no figures unless the record says that it is complete. `observed`: the record's
    contents, if already unpacked.
    """
    complete = record.outcome is RunOutcome.COMPLETE
    try:
        return _columns(record_fields(task, record, account, observed, complete=complete, listed=True))
    except ArithmeticError:  # a stranger's absurd numbers: record the result without them
        return {}


def unconfirmed(columns: Mapping[str, Any]) -> dict[str, Any]:
    """`columns` for a stranger's record without a confirmed inference: the verdict is `unchecked` or graver."""
    verdict = columns.get("verdict", "")
    milder = (
        verdict == RowVerdict.VALID
        or verdict in VERDICTS_BY_SEVERITY[VERDICTS_BY_SEVERITY.index(RowVerdict.UNCHECKED) :]
    )
    return {**columns, "verdict": str(RowVerdict.UNCHECKED)} if milder else dict(columns)


def columns_of(row: Row) -> dict[str, Any]:
    """The columns of a row."""
    return _columns({field: getattr(row, field) for field in _FIELDS.values()})


def _columns(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Columns from fields of a row; a missing field gets the row's default."""
    return {name: fields.get(field, _UNSET[field]) for name, field in _FIELDS.items()}
