"""The campaign manifests of a home: created once, the same after a restart, removed with the campaign."""

from __future__ import annotations

import hashlib
from pathlib import Path

from protocol.messages.work import LiveLease
from protocol.values.advert import Advert
from protocol.values.attempt import TaskState
from protocol.values.campaign_manifest import open_manifest, read_cover
from protocol.values.lease import Fence
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body
from scheduler.adoption.adopt import tally
from scheduler.adoption.recovery import Recovery, WorkerReport
from scheduler.core.entries import TaskEntry
from scheduler.run.manifests import CampaignManifests
from scheduler.run.models import MissingModels
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store
from swarm.net.identity import Identity, verify

ANN, BOB = Identity.from_seed("ann"), Identity.from_seed("bob")
SHA = "a" * 64


def tasks(count: int) -> list[Task]:
    return [
        Task(
            campaign="c-one",
            task=f"c-one/{n}",
            scheduler=ANN.peer_id,
            model=Model(name="m.onnx", sha256=SHA, size=10),
            unit="CPU (ONNX)",
            requirement=Requirement(),
            measure=Measure(),
            timeouts=Timeouts(),
        )
        for n in range(1, count + 1)
    ]


def test_a_manifest_is_made_once_and_says_what_the_campaign_is(tmp_path: Path) -> None:
    new = NewCampaign("c-one", "one", ANN.peer_id, "{}", limit_s=60.0, priority=70)
    models = [NewModel("m", SHA, 10, "m.onnx")]
    with Store(tmp_path / "store.db", wall=lambda: 1_790_000_000.5) as store:
        store.campaigns.create(new, models, tasks(12))
        row = store.campaigns.get("c-one")
        assert row is not None
        bodies = {task.id: store.tasks.bodies("c-one")[task.id] for task in store.tasks.all("c-one")}
    manifests = CampaignManifests(tmp_path)
    stored = manifests.take_up(row, models, bodies, ANN)
    assert stored is not None
    data = stored.path.read_bytes()
    assert (stored.sha256, stored.size) == (hashlib.sha256(data).hexdigest(), len(data))
    cover = read_cover(data)
    assert verify(ANN.peer_id, cover.message, cover.signature)
    manifest = open_manifest(cover).manifest
    assert (manifest.limit_s, manifest.created, manifest.priority) == (60.0, 1_790_000_000, 70)
    assert manifest.tasks == tuple(task_body(task) for task in tasks(12))
    again = CampaignManifests(tmp_path)
    assert again.take_up(row, models, bodies, ANN) == stored
    assert again.find(stored.sha256, ["c-one"]) == stored.path
    assert again.find(stored.sha256, ["c-two"]) is None
    again.tidy(["c-one"])
    assert stored.path.exists()
    again.tidy([])
    assert not stored.path.exists()
    assert CampaignManifests(tmp_path).take_up(row, models, bodies, BOB) is None, "only its owner can sign it"


def report(name: str, *leases: LiveLease, epoch: int = 1) -> tuple[str, WorkerReport]:
    peer = Identity.from_seed(name).peer_id
    return peer, WorkerReport(Advert(peer=peer, seq=1, device=f"d-{name}", name=name), leases, epoch)


def lease(n: int, attempt: int = 1, *, queued: bool = False, settled: bool = False) -> LiveLease:
    fence = Fence(incarnation=1, number=n)
    return LiveLease(
        task=f"c-one/{n}",
        attempt=attempt,
        lease=f"w-{n}.{attempt}",
        fence=fence,
        queued=queued,
        settled=settled,
    )


def test_a_task_is_where_it_got_furthest() -> None:
    recovery = Recovery()
    recovery.reports |= dict(
        [
            report("one", lease(1, settled=True), lease(2, settled=True), lease(3, queued=True), epoch=2),
            report("two", lease(1, 2, queued=True), lease(2, 2), lease(3, 2, queued=True), epoch=4),
        ]
    )
    places = recovery.places()
    assert {task: (place.device, place.attempt) for task, place in places.items()} == {
        "c-one/1": ("one", 1),  # the ticket was a second one, or is asked for again if the first had failed
        "c-one/2": ("two", 2),  # it would not run again if it had succeeded
        "c-one/3": ("two", 2),
    }
    assert recovery.epoch == 4


def test_the_count_of_an_adoption_is_one_line(tmp_path: Path) -> None:
    recovery = Recovery()
    recovery.reports |= dict([report("one", lease(1), lease(2, settled=True), lease(3, queued=True))])
    with Store(tmp_path / "store.db") as store:
        store.campaigns.create(NewCampaign("c-one", "one", ANN.peer_id, "{}"), [], tasks(5))
        row = store.campaigns.get("c-one")
        assert row is not None
        stored = CampaignManifests(tmp_path).take_up(row, [], store.tasks.bodies("c-one"), ANN)
    assert stored is not None
    opened = open_manifest(read_cover(stored.path.read_bytes()))
    adoption = tally(opened.manifest, opened.tasks, recovery.places(), {})
    assert adoption.line() == "5 tasks: 1 running, 1 waiting in queues, 1 finished elsewhere, 2 to do"


def test_a_task_without_its_model_waits_until_the_model_is_brought(tmp_path: Path) -> None:
    missing_models = MissingModels(tmp_path)
    entry = TaskEntry(tasks(1)[0])
    ((task, words),) = missing_models.mark([entry])
    assert task == "c-one/1"
    assert words == "waits for its model m.onnx: sark-node adopt c-one --models FOLDER"
    ((_, there),) = MissingModels(tmp_path, "db1").mark([TaskEntry(tasks(1)[0])])
    assert there == "waits for its model m.onnx: on db1, sark-node adopt c-one --models FOLDER"
    missing_models.look(10.0)
    assert entry.model_missing
    (tmp_path / SHA).write_bytes(b"0123456789")
    missing_models.look(11.0)
    assert entry.model_missing, "the disk was looked at just now"
    missing_models.look(12.0)
    assert not entry.model_missing
    assert missing_models.mark([TaskEntry(tasks(1)[0])]) == ()


def test_a_task_waits_for_each_of_its_models(tmp_path: Path) -> None:
    missing_models = MissingModels(tmp_path)
    other = Model(name="other.onnx", sha256="cd" * 32, size=1)
    entry = TaskEntry(tasks(1)[0].model_copy(update={"beside": (other,)}))
    (tmp_path / SHA).write_bytes(b"0123456789")
    ((_, words),) = missing_models.mark([entry])
    assert "waits for its model other.onnx" in words
    assert missing_models.look(10.0) == []
    (tmp_path / other.sha256).write_bytes(b"0")
    assert missing_models.look(20.0) == [entry]
    assert (entry.model_missing, missing_models.waiting) == (False, [])


def test_a_task_that_ended_without_its_model_is_not_watched_for_any_more(tmp_path: Path) -> None:
    missing_models = MissingModels(tmp_path)
    ended, waits = (TaskEntry(task) for task in tasks(2))
    missing_models.mark([ended, waits])
    assert len(missing_models.waiting) == 2
    ended.state = TaskState.CANCELLED
    missing_models.look(10.0)
    assert len(missing_models.waiting) == 1
    waits.state = TaskState.CANCELLED
    missing_models.look(20.0)
    assert len(missing_models.waiting) == 0
