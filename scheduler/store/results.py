"""Rows and raw results of a campaign, made from what the store keeps."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import RemoteProtocolError
from protocol.values.record import SignedRecord, read_record
from protocol.values.task import read_task
from results.export.raw import RawResult, raw_result
from results.row.replicas import compare_replicas
from results.row.row import Row, make_row
from scheduler.store.rows import ResultRow


def campaign_rows(stored: Sequence[ResultRow]) -> list[Row]:
    """A row for each task that has ended, in the campaign's order."""
    return compare_replicas([_row(item) for item in stored if item.task.ended is not None])


def raw_results(stored: Sequence[ResultRow]) -> list[RawResult]:
    """The same with everything that was observed."""
    ended = [item for item in stored if item.task.ended is not None]
    return [
        raw_result(row, item.body, _signed(item))
        for item, row in zip(ended, campaign_rows(ended), strict=True)
    ]


def _row(item: ResultRow) -> Row:
    signed = _signed(item)
    record = None
    if signed is not None:
        try:
            record = read_record(signed.body)
        except (
            RemoteProtocolError
        ):  # it could be read when it was accepted: the row says that nothing was measured
            record = None
    return make_row(
        read_task(item.body),
        item.task.state,
        record,
        reason=item.task.reason,
        detail=item.task.detail,
        attempt=item.attempt or item.task.attempt or None,
        device=item.task.device,
    )


def _signed(item: ResultRow) -> SignedRecord | None:
    if item.record is None or item.signature is None:
        return None
    return SignedRecord(body=item.record, signature=item.signature)
