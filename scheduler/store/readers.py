"""Turns the stored tasks of a campaign into rows and raw results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from protocol.errors import RemoteProtocolError
from protocol.values.record import SignedRecord, read_record
from protocol.values.task import TaskReader, read_task
from results.analysis.sittings import SittingPool, pool_sittings
from results.export.raw import RawResult, raw_result
from results.row.form import utc
from results.row.make import make_row
from results.row.replicas import compare_replicas
from results.row.row import Row
from results.row.scores import Scores
from results.row.witness import WitnessAccount
from results.scoring.account import EvaluationAccount
from scheduler.campaign.destination import folder_of
from scheduler.store.rows import ResultRow
from scheduler.store.store import Store

T = TypeVar("T")
MAX_REPLICAS: Final = 16
"""Most replicas of one task; they are numbered consecutively."""
NONE: Final[Mapping[str, str]] = MappingProxyType({})
AT_ONCE: Final = 64
"""Tasks whose results are in memory at a time."""
PORTION: Final = 50
"""Records of other sittings in memory at a time."""


def campaign_rows(stored: Sequence[ResultRow]) -> list[Row]:
    """A row for each ended task, in the campaign's order."""
    reader = TaskReader()
    rows = [_row(item, reader) for item in stored if item.task.ended is not None]
    return pool_sittings(compare_replicas(rows))


class RowReader:
    """Rows of a campaign, a portion at a time, as if the whole campaign was read. Of other sittings only the figures are kept."""

    def __init__(self, store: Store, campaign: str) -> None:
        self._store, self._campaign = store, campaign
        self._tasks, self._sittings, self._known = TaskReader(), SittingPool(), set[int]()

    def rows(self, low: int, high: int) -> list[Row]:
        """Rows of the ended tasks with numbers `low` to `high`."""
        return [row for _, row in self._read(low, high)]

    def raw(self, low: int, high: int) -> list[RawResult]:
        """Like `rows`, with every observation included."""
        accounts = _read_accounts(self._store.campaigns.evaluations(self._campaign))
        return [_raw(item, row, accounts) for item, row in self._read(low, high)]

    def each_row(self) -> Iterator[Row]:
        """A row for each ended task, in the campaign's order."""
        return self._each(self.rows)

    def each_raw(self) -> Iterator[RawResult]:
        """Like `each_row`, with every observation included."""
        return self._each(self.raw)

    def _each(self, read: Callable[[int, int], list[T]]) -> Iterator[T]:
        last = 0
        while numbers := self._store.tasks.ended_numbers(self._campaign, limit=AT_ONCE, after=last):
            last = numbers[-1]
            yield from read(numbers[0], last)

    def _read(self, low: int, high: int) -> list[tuple[ResultRow, Row]]:
        near = [
            item
            for item in self._store.results.rows(self._campaign, low - MAX_REPLICAS, high + MAX_REPLICAS)
            if item.task.ended is not None and (low <= item.task.n <= high or item.task.replica is not None)
        ]
        rows = compare_replicas(self._learn(near))
        own = [pair for pair in zip(near, rows, strict=True) if low <= pair[0].task.n <= high]
        others = sorted({number for item, _ in own for number in self._numbers(item)} - self._known)
        for first in range(0, len(others), PORTION):
            items = self._store.results.numbered(self._campaign, others[first : first + PORTION])
            self._learn([item for item in items if item.task.ended is not None])
        pooled = self._sittings.pooled(row for _, row in own)
        return [(item, row) for (item, _), row in zip(own, pooled, strict=True)]

    def _learn(self, ended: Sequence[ResultRow]) -> list[Row]:
        rows = [_row(item, self._tasks) for item in ended]
        self._sittings.add(rows)
        self._known |= {item.task.n for item in ended}
        return rows

    def _numbers(self, item: ResultRow) -> tuple[int, ...]:
        sitting = self._tasks.read(item.task.id, item.body).sitting
        return () if sitting is None else sitting.numbers(item.task.n)


def siblings(store: Store, stored: ResultRow) -> list[ResultRow]:
    """A task with its replicas and the other sittings of its cell, in the campaign's order."""
    task, own = stored.task, read_task(stored.body)
    before = None if task.replica is None else task.n - task.replica
    alike = {task.n, *(() if own.sitting is None else own.sitting.numbers(task.n))}
    near = () if before is None else range(before + 1, before + 1 + MAX_REPLICAS)
    return [
        item
        for item in store.results.numbered(task.campaign, sorted(alike.union(near)))
        if item.task.n in alike or item.task.n - (item.task.replica or 0) == before
    ]


def raw_results(stored: Sequence[ResultRow], evaluations: Mapping[str, str] = NONE) -> list[RawResult]:
    """Like `campaign_rows`, with every observation included. `evaluations`: from `CampaignRepository.evaluations`."""
    ended, accounts = [item for item in stored if item.task.ended is not None], _read_accounts(evaluations)
    return [_raw(item, row, accounts) for item, row in zip(ended, campaign_rows(ended), strict=True)]


def _read_accounts(evaluations: Mapping[str, str]) -> dict[str, EvaluationAccount]:
    return {name: EvaluationAccount.model_validate_json(text) for name, text in evaluations.items()}


def _raw(item: ResultRow, row: Row, accounts: Mapping[str, EvaluationAccount]) -> RawResult:
    examples = read_task(item.body).examples if row.examples_sha256 else None
    account = None if examples is None else accounts.get(examples.name)
    return raw_result(row, item.body, _signed(item), account_of(item), account)


def _row(item: ResultRow, reader: TaskReader) -> Row:
    signed = _signed(item)
    try:
        record = read_record(signed.body) if signed is not None else None
    except RemoteProtocolError:  # it was readable when accepted: the row says that nothing was measured
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
        scores=None if item.scores is None else Scores.model_validate_json(item.scores),
        results_url="" if item.url is None else folder_of(item.url, item.task.campaign),
    )


def account_of(item: ResultRow) -> WitnessAccount | None:
    """What was witnessed of the run, if its worker was a stranger."""
    return None if item.account is None else WitnessAccount.model_validate_json(item.account)


def _signed(item: ResultRow) -> SignedRecord | None:
    if item.record is None or item.signature is None:
        return None
    return SignedRecord(body=item.record, signature=item.signature)
