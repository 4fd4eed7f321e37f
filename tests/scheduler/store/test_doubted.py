"""A refuted stranger: its measurements for open campaigns are doubted, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.values.attempt import TaskEvent
from results.row.witness import WitnessAccount
from scheduler.store.readers import account_of as account_of
from scheduler.store.store import Store
from tests.scheduler.store.test_store import FENCE, WORKER, begin, fill, grant

OTHER = "1" * 52


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.db", wall=lambda: 1000.0) as made:
        yield made


def measured(store: Store, task: str, worker: str, account: WitnessAccount | None) -> None:
    begin(store, task, worker=worker)
    grant(store, task)
    store.attempts.record_result(
        task=task,
        attempt=1,
        fence=FENCE,
        worker=worker,
        sha256=task.encode().hex().ljust(64, "0"),
        body=b"record",
        signature=b"s" * 64,
        event=TaskEvent.SUCCEED,
        figures={"verdict": "valid"},
        account=None if account is None else account.model_dump_json(),
    )


def test_only_a_strangers_own_results_of_open_campaigns_are_doubted(store: Store) -> None:
    fill(store, "c-ended", tasks=1)
    measured(store, "c-ended/1", WORKER, WitnessAccount())
    store.campaigns.end("c-ended", detail="")
    fill(store, tasks=4)
    measured(store, "c-one/1", WORKER, WitnessAccount(canary="launch 1 confirmed"))
    measured(store, "c-one/2", OTHER, WitnessAccount())
    measured(store, "c-one/3", WORKER, None)
    store.attempts.doubt_results(WORKER)
    accounts = [account_of(item) for item in store.results.rows("c-one")]
    assert accounts == [
        WitnessAccount(canary="launch 1 confirmed", refuted=True),
        WitnessAccount(),
        None,
        None,
    ]
    assert [account_of(item) for item in store.results.rows("c-ended")] == [WitnessAccount()]
    verdicts = {line.task: line.verdict for line in store.results.page().results}
    assert verdicts == {
        "c-ended/1": "valid",
        "c-one/1": "unwitnessed",
        "c-one/2": "valid",
        "c-one/3": "valid",
    }
