"""Retrying: only failed or cancelled tasks, under new names, with the models they need; the old campaign stays unchanged."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from rich.console import Console

from protocol.errors import CampaignError
from protocol.values.attempt import TaskEvent
from protocol.values.lease import Fence
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.sitting import Sitting
from protocol.values.task import Measure, Model, Task, Timeouts, read_task
from protocol.words import Reason
from results.row.row import RowStatus
from scheduler.campaign.load import parse_campaign
from scheduler.core.commands import CommitTo, EndPending, RecordGrant
from scheduler.output.campaigns import campaigns_table
from scheduler.output.schemas import campaign_info
from scheduler.store.progress import progress_text
from scheduler.store.readers import campaign_rows
from scheduler.store.rows import CampaignStatus, NewCampaign, NewModel
from scheduler.store.store import Store
from scheduler.submit.submit import cancel_and_wait, retry_campaign
from swarm.base.home import Home
from swarm.net.identity import Identity, load_or_create

OLD = Identity.from_seed("scheduler").peer_id
WORKER = Identity.from_seed("worker").peer_id
MODEL = b"a model"
SHA = hashlib.sha256(MODEL).hexdigest()
SPEC = parse_campaign(b"campaign: t\nmodels: [m.onnx]\nunits: [CPU (ONNX)]\nreplicas: 2\n", "c.yaml")


def a_task(n: int, replica: int | None = None) -> Task:
    return Task(
        campaign="c-old",
        task=f"c-old/{n}",
        scheduler=OLD,
        model=Model(name="m.onnx", sha256=SHA, size=len(MODEL)),
        unit="CPU (ONNX)",
        requirement=Requirement(clauses=(parse_clause(f"device == d{n}"),)),
        measure=Measure(),
        timeouts=Timeouts(),
        replica=replica,
    )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "m.onnx").write_bytes(MODEL)
    return Home.at(tmp_path / "home")


def ended(home: Home, tasks: list[Task], done: tuple[int, ...] = ()) -> Store:
    """A campaign whose tasks in `done` succeeded, while the others failed."""
    store = Store(home.store, wall=lambda: 1000.0)
    store.campaigns.create(
        NewCampaign("c-old", "t", OLD, SPEC.model_dump_json(), attempts=7, priority=30),
        [NewModel("m.onnx", SHA, len(MODEL), facts="m.onnx")],
        tasks,
    )
    for n in range(1, len(tasks) + 1):
        if n not in done:
            store.attempts.end_pending(EndPending([f"c-old/{n}"], TaskEvent.FAIL, reason=Reason.NOTHING_FITS))
            continue
        fence = Fence(incarnation=1, number=n)
        store.attempts.begin([CommitTo(f"c-old/{n}", 1, f"k{n}", WORKER, "d", 1)])
        store.attempts.record_grant(RecordGrant(f"c-old/{n}", 1, lease=f"l{n}", fence=fence, queued=False))
        store.attempts.record_result(
            task=f"c-old/{n}", attempt=1, fence=fence, worker=WORKER, sha256="ab" * 32, body=b"r",
            signature=b"s" * 64, event=TaskEvent.SUCCEED,
        )  # fmt: skip
    store.campaigns.end("c-old")
    return store


def test_only_what_did_not_succeed_runs_again_and_the_old_campaign_stays(home: Home, tmp_path: Path) -> None:
    with ended(home, [a_task(1), a_task(2), a_task(3)], done=(2,)) as store:
        before = store.tasks.all("c-old")
        new, count = retry_campaign(home, store, "c-old", tmp_path)
        assert count == 2
        tasks = [read_task(body) for body in store.tasks.bodies(new).values()]
        assert [task.task for task in tasks] == [f"{new}/1", f"{new}/2"]
        assert [str(task.requirement.clauses[0]) for task in tasks] == ["device == d1", "device == d3"]
        assert {task.scheduler for task in tasks} == {load_or_create(home.key("scheduler")).peer_id}
        row = store.campaigns.get(new)
        assert row is not None
        assert (row.name, row.attempts, row.priority, row.ended) == ("t", 7, 30, None)
        assert (home.spool / SHA).read_bytes() == MODEL
        assert store.tasks.all("c-old") == before


def test_replicas_stay_together_or_are_none(home: Home, tmp_path: Path) -> None:
    tasks = [a_task(1, 1), a_task(2, 2), a_task(3, 1), a_task(4, 2)]
    with ended(home, tasks, done=(1,)) as store:
        new, _ = retry_campaign(home, store, "c-old", tmp_path)
        assert [task.replica for task in store.tasks.all(new)] == [None, 1, 2]


def test_of_sittings_those_that_are_retried_are_the_sittings(home: Home, tmp_path: Path) -> None:
    """Two cells with three sittings each: 1 3 5 and 2 4 6."""
    tasks = [
        a_task(n).model_copy(update={"sitting": Sitting(number=(n + 1) // 2, of=3, step=2, apart_s=60.0)})
        for n in range(1, 7)
    ]
    with ended(home, tasks, done=(1, 2, 4)) as store:
        new, _ = retry_campaign(home, store, "c-old", tmp_path)
        retried = [read_task(body) for body in store.tasks.bodies(new).values()]
    assert [str(task.requirement.clauses[0]) for task in retried] == [
        "device == d3",
        "device == d5",
        "device == d6",
    ]
    first, second, alone = (task.sitting for task in retried)
    assert alone is None
    assert first is not None
    assert second is not None
    assert (first.number, second.number, second.of, second.step) == (1, 2, 2, 1)


def test_it_is_refused_when_it_goes_on_has_nothing_to_retry_or_lacks_its_model(
    home: Home, tmp_path: Path
) -> None:
    with ended(home, [a_task(1)]) as store:
        with pytest.raises(CampaignError, match="no such file"):
            retry_campaign(home, store, "c-old", tmp_path / "elsewhere")
        (tmp_path / "m.onnx").write_bytes(b"another")
        with pytest.raises(CampaignError, match="has changed"):
            retry_campaign(home, store, "c-old", tmp_path)
        (tmp_path / "m.onnx").write_bytes(MODEL)
        new, _ = retry_campaign(home, store, "c-old", tmp_path)
        with pytest.raises(CampaignError, match="has not ended yet"):
            retry_campaign(home, store, new, tmp_path)
        assert len(store.campaigns.summaries()) == 2


def test_nothing_is_made_of_a_campaign_in_which_all_went_well(home: Home, tmp_path: Path) -> None:
    with (
        ended(home, [a_task(1)], done=(1,)) as store,
        pytest.raises(CampaignError, match="no task of c-old failed"),
    ):
        retry_campaign(home, store, "c-old", tmp_path)


def test_what_another_scheduler_carries_on_is_neither_retried_nor_cancelled_nor_reported_as_cancelled(
    home: Home, tmp_path: Path
) -> None:
    with Store(home.store, wall=lambda: 1000.0) as store:
        store.campaigns.create(
            NewCampaign("c-old", "t", OLD, SPEC.model_dump_json(), attempts=7),
            [NewModel("m.onnx", SHA, len(MODEL), facts="m.onnx")],
            [a_task(1)],
        )
        store.attempts.end_pending(
            EndPending(["c-old/1"], TaskEvent.CANCEL, reason=Reason.ADOPTED, detail="carried on elsewhere")
        )
        assert store.campaigns.end("c-old", detail="carried on elsewhere (adopted)") is CampaignStatus.ADOPTED
        with pytest.raises(CampaignError, match=r"c-old is carried on elsewhere \(adopted\)"):
            retry_campaign(home, store, "c-old", tmp_path)
        with pytest.raises(CampaignError) as refused:
            retry_campaign(home, store, "c-old", tmp_path)
        assert "sark-node retry c-old --adopted" in (refused.value.hint or "")
        (tmp_path / "m.onnx").write_bytes(MODEL)
        assert retry_campaign(home, store, "c-old", tmp_path, adopted=True)[1] == 1
        with pytest.raises(CampaignError, match="carried on elsewhere"):
            cancel_and_wait(store, "c-old", keep_alive=lambda: None)
        assert [row.status for row in campaign_rows(store.results.rows("c-old"))] == [RowStatus.ADOPTED]
        assert campaign_info(store.campaigns.summary("c-old")).status == "adopted"
        assert progress_text(store.tasks.all("c-old")[0]) == "carried on elsewhere (adopted)"


def test_a_campaign_that_nobody_carries_on_is_shown_as_halted(home: Home) -> None:
    with Store(home.store, wall=lambda: 1000.0) as store:
        store.campaigns.create(
            NewCampaign("c-old", "t", OLD, SPEC.model_dump_json(), attempts=7), [], [a_task(1)]
        )
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(campaigns_table(store.campaigns.summaries(), scheduling=False))
        assert "halted" in console.export_text()
        assert campaign_info(store.campaigns.summaries()[0], scheduling=False).carried_on is False
