"""From what the store holds of a campaign's tasks to their rows and raw results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.values.record import SignedRecord, read_record
from protocol.values.task import TaskReader, read_task
from results.analysis.sittings import pool_sittings
from results.export.raw import RawResult, raw_result
from results.row.form import utc
from results.row.replicas import compare_replicas
from results.row.row import Row, make_row
from results.row.witness import WitnessAccount
from scheduler.store.rows import ResultRow
from scheduler.store.store import Store

MAX_REPLICAS: Final = 16
"""Of one task, which are numbered consecutively."""


def campaign_rows(stored: Sequence[ResultRow]) -> list[Row]:
    """A row for each ended task, in the campaign's order."""
    reader = TaskReader()
    rows = [_row(item, reader) for item in stored if item.task.ended is not None]
    return pool_sittings(compare_replicas(rows))


def with_siblings(store: Store, campaign: str, low: int, high: int) -> Sequence[ResultRow]:
    """The tasks with numbers `low` to `high`, and those that their rows are compared or pooled with, which may be some more."""
    stored = store.results.rows(campaign, low - MAX_REPLICAS, high + MAX_REPLICAS)
    sitting = read_task(stored[0].body).sitting if stored else None
    if sitting is None:
        return stored
    span = (sitting.of - 1) * sitting.step + MAX_REPLICAS
    return store.results.rows(campaign, low - span, high + span)


def raw_results(stored: Sequence[ResultRow]) -> list[RawResult]:
    """The same with everything that was observed."""
    ended = [item for item in stored if item.task.ended is not None]
    return [
        raw_result(row, item.body, _signed(item), account_of(item))
        for item, row in zip(ended, campaign_rows(ended), strict=True)
    ]


def _row(item: ResultRow, reader: TaskReader) -> Row:
    signed = _signed(item)
    try:
        record = read_record(signed.body) if signed is not None else None
    except RemoteProtocolError:  # readable when it was accepted: the row says that nothing was measured
        record = None
    return make_row(
        reader.read(item.task.id, item.body),
        item.task.state,
        record,
        reason=item.task.reason,
        detail=item.task.detail,
        attempt=item.attempt or item.task.attempt or None,
        device=item.task.device,
        trust=item.task.trust,
        device_key=item.device_key,
        preempted=item.task.preempted,
        account=account_of(item),
        ended_at=utc(item.accepted) or "",
    )


def account_of(item: ResultRow) -> WitnessAccount | None:
    """What was witnessed of the run, if a stranger made it."""
    return None if item.account is None else WitnessAccount.model_validate_json(item.account)


def _signed(item: ResultRow) -> SignedRecord | None:
    if item.record is None or item.signature is None:
        return None
    return SignedRecord(body=item.record, signature=item.signature)
