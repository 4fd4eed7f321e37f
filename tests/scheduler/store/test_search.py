"""Lists and pivots over all results, on both kinds of store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol.errors import CampaignError
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.record import DeviceFacts, Record, RunFacts, Timing, pack_samples, record_body
from protocol.values.task import Task
from protocol.words import Reason, RunOutcome
from results.export.figures import columns_of, figures_of
from results.export.pivots import Dimension, FigureColumn, Filters, without_figures
from results.row.row import Row, RowStatus
from results.row.verdicts import RowVerdict
from scheduler.core.commands import CommitTo, EndPending, RecordGrant
from scheduler.store import schema
from scheduler.store.database import Location
from scheduler.store.readers import campaign_rows
from scheduler.store.rows import NewCampaign
from scheduler.store.store import Store
from tests.scheduler.core_parts import PEERS, SCHEDULER, SHA, UNIT, a_task


def a_record(task: Task, device: str, ms: int, outcome: RunOutcome = RunOutcome.COMPLETE) -> Record:
    return Record(
        campaign=task.campaign,
        task=task.task,
        attempt=1,
        fence=Fence(incarnation=1, number=1),
        worker=PEERS[0],
        task_sha256="ab" * 32,
        model_sha256=SHA,
        outcome=outcome,
        reason=None if outcome is RunOutcome.COMPLETE else Reason.CRASHED,
        device=DeviceFacts(device=f"id-{device}", name=device, soc="Chip"),
        ran=RunFacts(unit=UNIT, driver="x", runtime="r 1", threads=4),
        timings=(
            Timing(samples=pack_samples([ms * 1_000_000] * 3), warmup=pack_samples([1]), cpu_s=0, wall_s=1),
        ),
    )


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(place: Location, clock: Clock) -> Iterator[Store]:
    with Store(place, wall=clock) as opened:
        yield opened


def campaign(store: Store, name: str, tasks: int) -> None:
    new = NewCampaign(name, f"the {name}", SCHEDULER, "{}")
    store.campaigns.create(new, [], [a_task(n, campaign=name) for n in range(1, tasks + 1)])


def finish(
    store: Store,
    name: str,
    n: int,
    device: str,
    ms: int,
    event: TaskEvent = TaskEvent.SUCCEED,
    device_key: str = "",
) -> None:
    task = a_task(n, campaign=name)
    record = a_record(
        task, device, ms, RunOutcome.COMPLETE if event is TaskEvent.SUCCEED else RunOutcome.FAILED
    )
    store.attempts.begin([CommitTo(task.task, 1, task.task, PEERS[0], device, 1)])
    fence = Fence(incarnation=1, number=1)
    store.attempts.record_grant(RecordGrant(task.task, 1, lease="l", fence=fence, queued=False))
    stored = store.attempts.record_result(
        task=task.task,
        attempt=1,
        fence=fence,
        worker=PEERS[0],
        sha256=SHA,
        body=record_body(record),
        signature=bytes(64),
        event=event,
        reason=record.reason,
        figures=figures_of(task, record),
        device_key=device_key,
    )
    assert stored.stale is None


def test_what_has_ended_is_listed_the_latest_first_a_page_at_a_time(store: Store, clock: Clock) -> None:
    campaign(store, "c-one", 7)
    assert store.results.page().results == ()
    for n in range(1, 6):
        clock.now += n % 2  # some end at the same instant
        finish(store, "c-one", n, "mini", n)
    store.attempts.end_pending(EndPending(["c-one/6"], TaskEvent.CANCEL, reason=Reason.CANCELLED))
    result, after = [], None
    while True:
        page = store.results.page(after, limit=2)
        result += [line.task for line in page.results]
        after = page.next
        if after is None:
            break
        clock.now += 1
        if len(result) == 2:  # a task that ends meanwhile shifts no page
            finish(store, "c-one", 7, "mini", 7)
    assert sorted(result) == [f"c-one/{n}" for n in range(1, 7)]
    assert len(store.results.page().results) == 7
    (latest, *_) = store.results.page().results
    assert (latest.task, latest.campaign_name, latest.state, latest.device, latest.device_id) == (
        "c-one/7",
        "the c-one",
        TaskState.SUCCEEDED,
        "mini",
        "id-mini",
    )
    assert (latest.soc, latest.runtime, latest.threads, latest.figures[FigureColumn.INFERENCE]) == (
        "Chip",
        "r 1",
        4,
        7.0,
    )


def test_a_list_is_narrowed_by_what_is_asked_for(store: Store, clock: Clock) -> None:
    campaign(store, "c-one", 2)
    campaign(store, "c-two", 2)
    finish(store, "c-one", 1, "mini", 5)
    clock.now = 2000.0
    finish(store, "c-two", 1, "maxi", 6)
    finish(store, "c-two", 2, "mini", 6, TaskEvent.FAIL)

    def names(filters: Filters) -> list[str]:
        return [line.task for line in store.results.page(filters=filters).results]

    assert names(Filters(campaign="c-one")) == ["c-one/1"]
    assert names(Filters(device="mini")) == ["c-two/2", "c-one/1"]
    assert names(Filters(device="id-maxi")) == ["c-two/1"]
    assert names(Filters(state=TaskState.FAILED)) == ["c-two/2"]
    assert names(Filters(since=2000.0, state=TaskState.SUCCEEDED)) == ["c-two/1"]
    assert names(Filters(until=2000.0)) == ["c-one/1"]
    assert names(Filters(model="m.onnx", unit=UNIT, sha256=SHA, soc="Chip", verdict="none such")) == []


def test_a_task_that_failed_has_no_figures_whatever_its_record_says(store: Store) -> None:
    campaign(store, "c-one", 1)
    finish(store, "c-one", 1, "mini", 5, TaskEvent.FAIL)
    (line,) = store.results.page().results
    assert (line.state, line.reason, line.device_id, line.verdict) == (
        TaskState.FAILED,
        "crashed",
        "id-mini",
        "",
    )
    assert set(line.figures.values()) == {None}


def test_what_tasks_measured_is_told_in_words(store: Store) -> None:
    campaign(store, "c-one", 3)
    finish(store, "c-one", 1, "mini", 5)
    finish(store, "c-one", 2, "mini", 5, TaskEvent.FAIL)
    outcomes = store.results.outcomes([f"c-one/{n}" for n in (1, 2, 3)])
    assert list(outcomes) == ["c-one/1"]
    assert outcomes["c-one/1"].startswith("5 ms")


@pytest.mark.parametrize(
    ("verdict", "words"), [("valid", "5 ms · host busy 6%"), ("busy-host", "5 ms, busy-host")]
)
def test_a_remark_stands_behind_a_time_whose_verdict_stands(store: Store, verdict: str, words: str) -> None:
    campaign(store, "c-one", 1)
    finish(store, "c-one", 1, "mini", 5)
    with store.database.transaction() as c:
        values = {"verdict": verdict, "remarks": "host busy 6%", "inference_ms_median_low": None}
        c.execute(schema.results.update().values(values))
    assert store.results.outcomes(["c-one/1"]) == {"c-one/1": words}
    (line,) = store.results.page().results
    assert line.remarks == "host busy 6%"


def test_remarks_are_kept_of_what_was_measured_and_not_of_what_failed() -> None:
    row = Row(
        status=RowStatus.COMPLETE,
        job_id="c-1/1",
        file_name="m",
        file_size=1,
        compute_units="CPU (ONNX)",
        remarks="host busy 6%",
    )
    assert columns_of(row)["remarks"] == "host busy 6%"
    assert "remarks" not in without_figures(columns_of(row))


def test_a_cursor_that_was_never_given_out_is_refused(store: Store) -> None:
    for after in ("x", "1000", "x~y"):
        with pytest.raises(CampaignError, match="after"):
            store.results.page(after)


def test_a_pivot_shows_the_median_of_each_pair(store: Store) -> None:
    campaign(store, "c-one", 8)
    for n, (device, ms) in enumerate(
        [("mini", 1), ("mini", 9), ("mini", 2), ("maxi", 4), ("maxi", 8)], start=1
    ):
        finish(store, "c-one", n, device, ms)
    finish(store, "c-one", 6, "mini", 100, TaskEvent.FAIL)
    pivot = store.results.pivot(Dimension.DEVICE, Dimension.MODEL, FigureColumn.INFERENCE)
    assert (pivot.rows, pivot.columns) == (("maxi", "mini"), ("m.onnx",))
    assert [(cell.row, cell.count, cell.median, cell.low, cell.high) for cell in pivot.cells] == [
        ("maxi", 2, 6.0, 4.0, 8.0),
        ("mini", 3, 2.0, 1.0, 9.0),
    ]
    narrowed = store.results.pivot(
        Dimension.THREADS, Dimension.UNIT, FigureColumn.INFERENCE, Filters(device="maxi")
    )
    assert [(cell.row, cell.column, cell.count) for cell in narrowed.cells] == [("4", UNIT, 2)]
    assert store.results.pivot(Dimension.DEVICE, Dimension.UNIT, FigureColumn.TOKENS).cells == ()


def test_two_devices_that_look_alike_are_two_in_a_pivot(store: Store) -> None:
    campaign(store, "c-one", 2)
    finish(store, "c-one", 1, "lab-1", 4, device_key="key-aaaaaa")
    finish(store, "c-one", 2, "lab-l", 8, device_key="key-bbbbbb")
    pivot = store.results.pivot(Dimension.DEVICE, Dimension.MODEL, FigureColumn.INFERENCE)
    assert pivot.rows == ("lab-1 …aaaaaa", "lab-l …bbbbbb")


def test_devices_of_two_keys_with_one_id_and_one_name_are_two_and_keys_of_one_device_are_one(
    store: Store,
) -> None:
    campaign(store, "c-one", 3)
    for n, key in enumerate(("key-aaaaaa", "key-bbbbbb", "key-aaaaaa"), start=1):
        finish(store, "c-one", n, "mini", n, device_key=key)
    pivot = store.results.pivot(Dimension.DEVICE, Dimension.MODEL, FigureColumn.INFERENCE)
    assert [(cell.row, cell.count) for cell in pivot.cells] == [("mini …aaaaaa", 2), ("mini …bbbbbb", 1)]
    for device, count in (("id-mini", 3), ("key-aaaaaa", 2), ("id-mini key-bbbbbb", 1)):
        assert len(store.results.page(filters=Filters(device=device)).results) == count
    assert {row.device_key for row in campaign_rows(store.results.rows("c-one"))} == {
        "key-aaaaaa",
        "key-bbbbbb",
    }


def test_simulations_are_in_a_pivot_only_where_nothing_was_measured(store: Store) -> None:
    campaign(store, "c-one", 3)
    finish(store, "c-one", 1, "mini", 5)
    finish(store, "c-one", 2, "mini", 9)
    with store.database.transaction() as c:
        c.execute(schema.results.update().values(verdict=str(RowVerdict.SIMULATED)))
    (cell,) = store.results.pivot(Dimension.DEVICE, Dimension.MODEL, FigureColumn.INFERENCE).cells
    assert (cell.count, cell.median) == (2, 7.0)
    finish(store, "c-one", 3, "mini", 1)
    (cell,) = store.results.pivot(Dimension.DEVICE, Dimension.MODEL, FigureColumn.INFERENCE).cells
    assert (cell.count, cell.median) == (1, 1.0)


def test_every_figure_has_a_column() -> None:
    assert {str(figure) for figure in FigureColumn} <= {column.name for column in schema.results.c}


def test_a_strangers_time_moves_no_median_of_ones_own(store: Store) -> None:
    campaign(store, "c-one", 3)
    for n, ms in enumerate((9, 11, 1), start=1):
        finish(store, "c-one", n, f"mini-{n}", ms)
    with store.database.transaction() as c:
        c.execute(schema.results.update().where(schema.results.c.n > 1).values(trust="stranger"))
    (cell,) = store.results.pivot(Dimension.UNIT, Dimension.MODEL, FigureColumn.INFERENCE).cells
    assert (cell.count, cell.median) == (1, 9.0)
    by_device = store.results.pivot(Dimension.DEVICE, Dimension.MODEL, FigureColumn.INFERENCE)
    assert len(by_device.cells) == 3
    with store.database.transaction() as c:
        c.execute(schema.results.update().values(trust="stranger"))
    (cell,) = store.results.pivot(Dimension.UNIT, Dimension.MODEL, FigureColumn.INFERENCE).cells
    assert cell.count == 3


def test_how_often_a_devices_intervals_hold_is_read_from_its_own_sittings(store: Store) -> None:
    hour = 3600.0
    tasks = [a_task(n) for n in range(1, 9)]
    store.campaigns.create(NewCampaign("c-one", "one", SCHEDULER, "{}"), [], tasks)
    store.attempts.end_pending(EndPending([task.task for task in tasks], TaskEvent.FAIL))
    figures = [(n, "id-a", 10.0 + (3.0 if n == 6 else 0.01 * n)) for n in range(1, 7)] + [(7, "id-b", 5.0)]
    with store.database.transaction() as c:
        for n, device, ms in figures:
            values = {
                "state": TaskState.SUCCEEDED,
                "device_id": device,
                "device_key": "k",
                "fingerprint": f"f-{device}",
                "ended": n * hour,
                "inference_ms_median": ms,
                "inference_ms_median_low": 0.99 * ms,
                "inference_ms_median_high": 1.01 * ms,
            }
            changed = schema.results.update().where(schema.results.c.task == f"c-one/{n}").values(values)
            assert c.execute(changed).rowcount == 1
    held = store.results.coverage()
    assert held.keys() == {"id-a k"}
    assert held["id-a k"].sittings == 6
    assert held["id-a k"].share is not None
    assert held["id-a k"].held < 6, "one of them was far off"
