"""The whole scheduler over the in-memory swarm, against scripted workers that speak the protocol. Time jumps; nothing waits in earnest."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import Refused, ResourceError
from protocol.formats.phase import Phase
from protocol.messages.work import AdoptRequest, Cancel, Commit, Denied, Progress, Renew
from protocol.values.attempt import TaskState
from protocol.values.lease import Fence
from protocol.values.reading import DeviceReading
from protocol.values.record import RunFacts, Timing, pack_samples
from protocol.values.task import Model
from protocol.wire.base import MAX_INLINE, Message
from protocol.words import Reason, RunOutcome
from results.row.verdicts import RowVerdict
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign, Devices, ModelEntry, TrustText
from scheduler.conversation.effects import SleepUntil
from scheduler.core.allocator import MAX_HANDED_OUT
from scheduler.core.commands import CommitTo, EndPending
from scheduler.core.entries import BEGIN_S
from scheduler.core.failures import PORTION
from scheduler.models.files import CampaignFile
from scheduler.planning.tasks import derive_cells, tasks_of
from scheduler.run.service import BEAT_S
from scheduler.store.readers import campaign_rows
from scheduler.store.rows import AttemptState, NewCampaign, NewModel
from scheduler.store.rows import CampaignStatus as CampaignStatus
from scheduler.store.store import Store
from swarm.blobs.client import fetch_blob
from swarm.net.identity import Identity
from tests.scheduler.conftest import MODEL, SCHEDULER, SHA

World = Any
"""`World` of conftest.py."""


async def test_a_campaign_runs_to_its_end_and_the_scheduler_leaves(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini")
    world.submit(3)
    await world.run()
    assert world.states() == {TaskState.SUCCEEDED}
    assert sorted(worker.ran) == [("c-one/1", 1), ("c-one/2", 1), ("c-one/3", 1)]
    (summary,) = world.store.campaigns.summaries()
    assert summary.campaign.outcome is CampaignStatus.SUCCEEDED
    rows = world.store.results.rows("c-one")
    assert all(row.record is not None and row.worker == worker.peer for row in rows)
    assert worker.answers == ["accepted"] * 3


async def test_what_a_workers_sensors_show_is_handed_on_though_newer_progress_follows_at_once(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=1.0)
    worker.reading = DeviceReading(cpu=0.5, power_w=45.0)
    world.submit(2)
    shown: list[dict[str, DeviceReading]] = []
    await world.service(show=lambda readings: shown.append(dict(readings))).run()
    assert shown == [{worker.peer: worker.reading}] * 2


async def test_the_sensors_of_whoever_holds_no_lease_are_not_shown(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=1.0)
    world.submit(1)
    shown: list[dict[str, DeviceReading]] = []
    note = Progress(
        lease="other",
        fence=Fence(incarnation=1, number=1),
        seq=9,
        phase=Phase.RUN,
        reading=DeviceReading(cpu=1.0),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.service(show=lambda readings: shown.append(dict(readings))).run)
        await world.until(lambda: bool(worker.ran))
        await worker.link.tell(note)
    assert not shown


@pytest.mark.slow
async def test_a_queue_of_a_hundred_keeps_the_worker_busy_back_to_back(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=0.02)
    world.submit(100)
    began = trio.current_time()
    await world.run()
    assert world.states() == {TaskState.SUCCEEDED}
    assert len(worker.ran) == 100
    assert trio.current_time() - began < 100 * (0.02 + 0.015) + 2
    assert len(worker.commits) == 100


async def test_tasks_are_spread_over_the_workers_that_fit(world: World, autojump_clock: MockClock) -> None:
    workers = [world.worker(name, seconds=1.0) for name in ("a", "b", "c")]
    world.submit(9)
    await world.run()
    assert [len(worker.ran) for worker in workers] == [3, 3, 3]


async def test_a_queued_task_moves_from_a_busy_worker_to_one_that_turns_up_idle(
    world: World, autojump_clock: MockClock
) -> None:
    busy = world.worker("busy", seconds=100.0)
    world.submit(2)
    async with world.scheduler():
        await world.until(lambda: world.states() == {TaskState.QUEUED, TaskState.RUNNING})
        idle = world.worker("idle", seconds=1.0)  # met when the index is asked again
        await world.until(lambda: TaskState.SUCCEEDED in world.states())
        (moved,) = (task for task in world.store.tasks.all("c-one") if task.state is TaskState.SUCCEEDED)
        assert moved.worker == idle.peer
        assert (moved.id, 1) not in busy.ran
        assert len(busy.ran) == 1


async def test_the_model_is_served_to_the_worker_that_holds_the_task_and_to_nobody_else(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=1.0)
    stranger = world.swarm.node(Identity.from_seed("stranger"))
    worker.fetch = True
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: bool(worker.ran))
        with pytest.raises(Refused, match="not served") as caught:
            await fetch_blob(stranger, world.network.peer_id, world.network.addresses, world.sha256, sink=len)
        assert caught.value.reason is Reason.NOT_ALLOWED
        await world.until(lambda: world.states() == {TaskState.SUCCEEDED})


async def test_what_a_decision_leaves_is_handed_out_at_once_and_not_at_the_next_beat(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini")
    worker.slots, worker.mute = 64, (Commit,)
    world.submit(70)
    async with world.scheduler():
        await world.until(lambda: len(world.store.attempts.all("c-one")) >= MAX_HANDED_OUT)
        first = trio.current_time()
        await world.until(lambda: len(world.store.attempts.all("c-one")) >= 64)
        assert trio.current_time() - first < BEAT_S / 2


async def test_a_large_record_is_pulled_by_its_hash(world: World, autojump_clock: MockClock) -> None:
    worker = world.worker("mini")
    noise = random.Random(5)
    samples = pack_samples([noise.randrange(10**9) for _ in range(15_000)])
    timing = Timing(samples=samples, warmup=pack_samples([]), cpu_s=1, wall_s=100_000)
    worker.outcome = lambda task: {"timings": (timing,)}
    world.submit(1, runs=15_000)
    await world.run()
    row = world.store.results.rows("c-one")[0]
    assert row.record is not None
    assert len(row.record) > MAX_INLINE
    assert worker.answers == ["accepted"]
    assert world.read_aside == 1  # so that everything else goes on


async def test_a_worker_that_dies_in_mid_run_loses_its_tasks_to_another(
    world: World, autojump_clock: MockClock
) -> None:
    first = world.worker("first", seconds=1000.0)
    world.submit(2)
    async with world.scheduler():
        await world.until(lambda: bool(first.ran) and TaskState.RUNNING in world.states())
        second = world.worker("second")
        died = trio.current_time()
        first.die()
        await world.until(lambda: world.states() == {TaskState.SUCCEEDED})
        assert trio.current_time() - died < 6  # its port refuses: it is not waited for as silence would be
        assert {task for task, _ in second.ran} == {"c-one/1", "c-one/2"}
    lost = [row for row in world.store.attempts.all("c-one") if row.state is AttemptState.LOST]
    assert [(row.worker, row.reason) for row in lost] == [(first.peer, Reason.LOST)]


async def test_a_worker_that_restarts_gets_its_tasks_anew_at_once(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=1000.0)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        worker.die()
        worker.seconds = 0.1
        worker.restart()
        restarted = trio.current_time()
        await world.until(lambda: world.task().state is TaskState.SUCCEEDED)
        assert trio.current_time() - restarted < 10
    assert worker.ran == [("c-one/1", 1), ("c-one/1", 2)]


async def test_a_result_delivered_twice_is_recorded_once(world: World, autojump_clock: MockClock) -> None:
    worker = world.worker("mini")
    worker.deliveries = 3
    world.submit(1)
    await world.run()
    assert worker.answers == ["accepted"] * 3
    assert [event.name for event in world.store.events.since("c-one")].count("task.succeeded") == 1


async def test_a_partitioned_worker_comes_back_with_a_stale_result(
    world: World, autojump_clock: MockClock
) -> None:
    cut = world.worker("cut", seconds=40.0)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        other = world.worker("other", seconds=60.0)
        world.swarm.partition([cut.peer], [world.network.peer_id])
        await world.until(lambda: bool(other.ran))
        place = next(iter(cut.places.values()))
        await world.until(lambda: place.state == "reporting")
        world.swarm.heal()
        world.submit(1, campaign="c-next")
        await world.until(lambda: bool(cut.answers), seconds=200)
        assert cut.answers[0] == "fenced"
        await world.until(lambda: world.states() == {TaskState.SUCCEEDED}, seconds=200)
    assert world.task().worker == other.peer


async def test_a_scheduler_that_was_killed_carries_on_and_nothing_runs_twice(
    world: World, autojump_clock: MockClock
) -> None:
    workers = [world.worker(name, seconds=3.0) for name in ("a", "b")]
    world.submit(6)
    async with world.scheduler():
        await world.until(lambda: len(workers[0].ran) >= 2 and TaskState.SUCCEEDED in world.states())
    world.new_process()
    await world.run()
    assert world.states() == {TaskState.SUCCEEDED}
    ran = sorted(task for worker in workers for task, _ in worker.ran)
    assert ran == sorted(set(ran))
    row = world.store.campaigns.get("c-one")
    assert row is not None
    assert row.epoch > 1


async def test_a_scheduler_killed_before_it_asked_asks_again(world: World, autojump_clock: MockClock) -> None:
    worker = world.worker("mini")
    world.submit(1)
    # the very state that a kill between intent and commit leaves
    world.store.attempts.begin([CommitTo("c-one/1", 1, "c-one/1/1", worker.peer, "mini", 1)])
    world.store.workers.save(worker.peer, "mini", worker.advert.addresses)
    await world.run()
    assert world.states() == {TaskState.SUCCEEDED}
    assert worker.ran == [("c-one/1", 2)]


async def test_a_cancel_ends_running_queued_and_pending_tasks(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=1000.0)
    world.submit(20)
    async with world.scheduler():
        await world.until(lambda: TaskState.RUNNING in world.states())
        asked = trio.current_time()
        with Store(world.store_path) as other:
            assert other.campaigns.request_cancel("c-one") == 20
        await world.until(lambda: not world.store.campaigns.unfinished())
        assert trio.current_time() - asked < 2
    assert world.states() == {TaskState.CANCELLED}
    assert worker.ran[0][0] in worker.cancelled
    assert world.store.campaigns.summaries()[0].campaign.outcome is CampaignStatus.CANCELLED


async def test_a_cancel_of_very_many_tasks_goes_on_where_a_crash_left_it_and_others_have_their_turn(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit(2 * PORTION + 50)
    ends: list[int] = []
    write = world.store.attempts.end_pending

    def write_twice(end: EndPending) -> None:
        if len(ends) == 2:
            raise ResourceError("the disk is full")
        ends.append(len(end.tasks))
        write(end)

    monkeypatch.setattr(world.store.attempts, "end_pending", write_twice)
    with Store(world.store_path) as other:
        other.campaigns.request_cancel("c-one")
    with pytest.raises(ResourceError):
        await world.run()
    assert ends == [PORTION, PORTION]
    assert world.states() == {TaskState.PENDING, TaskState.CANCELLED}
    world.new_process()
    await world.run()
    assert world.states() == {TaskState.CANCELLED}
    (summary,) = world.store.campaigns.summaries()
    assert summary.campaign.outcome is CampaignStatus.CANCELLED


async def test_what_a_worker_says_while_its_campaign_is_still_to_be_taken_up_waits_for_that(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=1.0)
    world.submit(1, campaign="c-later")
    async with world.scheduler():
        await world.until(lambda: world.task(campaign="c-later").state is TaskState.RUNNING)
        world.submit(1, campaign="c-first", priority=90)
        await world.until(lambda: world.task(campaign="c-first").state is TaskState.QUEUED)
    await world.until(lambda: "reporting" in {place.state for place in worker.places.values()})
    world.new_process()
    service = world.service()
    restore = service.restore

    async def restore_slowly(campaign: str, epoch: int) -> Any:
        if campaign == "c-later":
            await SleepUntil(trio.current_time() + 3.0)
        return await restore(campaign, epoch)

    service.restore = restore_slowly
    await service.run()
    assert worker.ran == [("c-later/1", 1), ("c-first/1", 1)]
    assert len(world.store.attempts.all("c-later")) == 1


async def test_a_cancel_of_a_task_on_a_vanished_worker_ends_when_its_lease_does(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=1000.0)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        worker.die()
        with Store(world.store_path) as other:
            other.campaigns.request_cancel("c-one/1")
        asked = trio.current_time()
        await world.until(lambda: world.task().state is TaskState.CANCELLED)
        assert trio.current_time() - asked < 20


@pytest.mark.parametrize(
    "mute", [(Renew,), (Renew, AdoptRequest), (Cancel,)], ids=["renew", "adopt", "cancel"]
)
async def test_a_worker_that_takes_links_but_does_not_answer_loses_what_it_has(
    world: World, autojump_clock: MockClock, mute: tuple[type[Message], ...]
) -> None:
    worker = world.worker("mute", seconds=10_000.0)
    worker.mute = mute
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        with Store(world.store_path) as other:
            other.campaigns.request_cancel("c-one")
        asked = trio.current_time()
        await world.until(lambda: not world.store.campaigns.unfinished())
        assert trio.current_time() - asked < 35
    assert world.states() == {TaskState.CANCELLED}


async def test_a_task_leaves_a_worker_that_answers_everything_but_renewals(
    world: World, autojump_clock: MockClock
) -> None:
    mute = world.worker("mute", seconds=10_000.0)
    mute.mute = (Renew, AdoptRequest)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        other = world.worker("other")
        await world.until(lambda: world.task().state is TaskState.SUCCEEDED)
        assert world.task().worker == other.peer


async def test_nothing_fits_is_reported_clause_by_clause_after_the_wait(
    world: World, autojump_clock: MockClock
) -> None:
    world.worker("mini")
    world.submit(2, "ram >= 64 GiB", wait_s=10.0)
    began = trio.current_time()
    await world.run()
    assert 10 <= trio.current_time() - began < 20
    assert world.states() == {TaskState.FAILED}
    task = world.task()
    assert task.reason is Reason.NOTHING_FITS
    assert "ram >= 64 GiB" in task.detail
    assert "nearest: mini has 8 GiB" in task.detail
    assert "Smallest change: ram >= 8 GiB → 1 device" in task.detail


async def test_a_device_that_turns_up_within_the_wait_gets_the_task(
    world: World, autojump_clock: MockClock
) -> None:
    world.submit(1, wait_s=30.0)
    async with world.scheduler():
        await world.until(lambda: "no device" in world.task().note)
        world.worker("late")
        await world.until(lambda: world.task().state is TaskState.SUCCEEDED)


@pytest.mark.parametrize("hours", [1, 30])
async def test_a_device_that_went_away_is_waited_for_also_by_a_scheduler_that_was_restarted_meanwhile(
    world: World, autojump_clock: MockClock, hours: int
) -> None:
    """The device is in no answer of the index any more. After more than a day it counts as one that never was."""
    worker, at = world.worker("mini", seconds=30.0), [time.time()]
    world.wall = lambda: at[0]
    world.store.wall = world.wall
    world.submit(2, wait_s=10.0)
    async with world.scheduler():
        await world.until(lambda: TaskState.SUCCEEDED in world.states())
        worker.die()
        world.index.workers.remove(worker)
        world.awaited.add(worker.peer)
    at[0] += hours * 3600
    world.new_process()
    async with world.scheduler():
        await trio.sleep(300)
        (other,) = [task for task in world.store.tasks.all("c-one") if task.state is not TaskState.SUCCEEDED]
        if hours > 24:
            assert other.reason is Reason.NOTHING_FITS
            return
        assert other.state is TaskState.PENDING
        assert "mini is gone; waiting for a device, since 20" in other.note
        worker.start()
        world.index.workers.append(worker)
        await world.until(lambda: world.states() == {TaskState.SUCCEEDED})


async def test_a_model_that_two_devices_call_broken_is_not_tried_on_a_third(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini")
    workers = [worker, world.worker("other"), world.worker("third")]
    worker.outcome = workers[1].outcome = workers[2].outcome = lambda task: {
        "outcome": RunOutcome.FAILED,
        "reason": Reason.BROKEN_MODEL,
        "permanent": True,
        "detail": "not a model",
        "timings": (),
    }
    world.submit(1)
    await world.run()
    task = world.task()
    assert (task.state, task.reason, task.detail, task.attempt) == (
        TaskState.FAILED,
        Reason.BROKEN_MODEL,
        "not a model",
        2,
    )
    assert world.store.results.rows("c-one")[0].record is not None


async def test_a_crash_is_tried_on_another_device(world: World, autojump_clock: MockClock) -> None:
    workers = [world.worker(name) for name in ("a", "b", "c")]
    for worker in workers:
        worker.outcome = lambda task: {
            "outcome": RunOutcome.FAILED,
            "reason": Reason.CRASHED,
            "timings": (),
            "detail": "signal 11",
        }
    world.submit(1)
    await world.run()
    task = world.task()
    assert (task.state, task.reason, task.tries) == (TaskState.FAILED, Reason.CRASHED, 2)
    assert {row.worker for row in world.store.attempts.all("c-one")} == {worker.peer for worker in workers}


async def test_another_unit_than_was_asked_for_is_a_failure_for_good(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini")
    worker.outcome = lambda task: {"ran": RunFacts(unit="GPU (CUDA)", driver="fake", runtime="fake 1")}
    world.submit(1)
    await world.run()
    assert (world.task().reason, world.task().attempt) == (Reason.WRONG_UNIT, 1)


async def test_a_job_whose_unit_cannot_run_the_model_fails_before_any_device_is_asked(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini")
    jobs = [{"compute_unit": unit} for unit in ("CPU (ONNX)", "GPU (CoreML)")]
    campaign = parse_campaign(json.dumps({"model_url": "tiny.onnx", "jobs": jobs}).encode(), "c.json")
    models = {"tiny.onnx": CampaignFile(None, Model(name="tiny.onnx", sha256=SHA, size=len(MODEL)))}
    cells = derive_cells(campaign, models, campaign_id="c-one", scheduler=SCHEDULER.peer_id)
    new = NewCampaign("c-one", "one", SCHEDULER.peer_id, campaign.spec(), wait_s=60.0)
    world.store.campaigns.create(new, [], tasks_of(cells))
    await world.run()
    assert [task.state for task in world.store.tasks.all("c-one")] == [TaskState.SUCCEEDED, TaskState.FAILED]
    failed = world.task(2)
    assert (failed.reason, failed.attempt, worker.ran) == (Reason.WRONG_UNIT, 0, [("c-one/1", 1)])
    assert failed.detail.startswith("GPU (CoreML) cannot run model 'tiny.onnx'; units that can: CPU (ONNX), ")
    assert failed.ended < world.task(1).ended


async def test_workers_that_refuse_are_named_with_the_reason(world: World, autojump_clock: MockClock) -> None:
    for name in ("a", "b"):
        world.worker(name).deny = Denied(reason=Reason.NOT_ALLOWED, detail="serves its owner only")
    world.submit(1, wait_s=5.0)
    await world.run()
    task = world.task()
    assert (task.state, task.reason) == (TaskState.FAILED, Reason.NOT_ALLOWED)
    assert "serves its owner only" in task.detail
    assert "refused by 2 of 2 devices that fit" in task.detail
    assert "--allow" in task.detail


async def test_a_forged_record_is_refused_and_the_task_runs_elsewhere(
    world: World, autojump_clock: MockClock
) -> None:
    liar = world.worker("liar")
    liar.sign = Identity.from_seed("somebody else").sign
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: liar.answers == ["bad-request"])
        honest = world.worker("honest")
        await world.until(lambda: world.task().state is TaskState.SUCCEEDED)
        assert world.task().worker == honest.peer


@pytest.mark.slow
async def test_a_full_disk_ends_the_scheduler_with_one_line_and_a_new_start_carries_on(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini")
    world.submit(200)
    pages = world.store.database.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    world.store.database.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 12}")
    with pytest.raises(ResourceError, match="the disk is full"):
        await world.run()
    done = sum(task.state is TaskState.SUCCEEDED for task in world.store.tasks.all("c-one"))
    world.new_process()
    await world.run()
    assert world.states() == {TaskState.SUCCEEDED}
    assert worker.answers.count("accepted") >= 200 - done


async def test_a_worker_that_sends_half_a_measurement_does_not_get_it_recorded(
    world: World, autojump_clock: MockClock
) -> None:
    lazy = world.worker("lazy")
    lazy.outcome = lambda task: {"loads": ()}
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: lazy.answers == ["bad-request"])
        world.worker("honest")
        await world.until(lambda: world.task().state is TaskState.SUCCEEDED)
    assert all(row.worker != lazy.peer for row in world.store.results.rows("c-one"))


async def test_a_run_that_was_reported_before_its_grant_was_heard_is_one_that_began(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=BEGIN_S + 60)
    worker.commit_s = 0.5
    world.submit(1)
    await world.run()
    assert worker.ran == [("c-one/1", 1)]
    assert world.task().state is TaskState.SUCCEEDED


async def test_outputs_that_differ_from_the_reference_mark_the_row_and_keep_its_times(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini")
    worker.outcome = lambda task: {"ran": RunFacts(unit="CPU (ONNX)", driver="f", runtime="r", agrees=False)}
    world.submit(1)
    await world.run()
    assert (world.task().state, world.task().reason) == (TaskState.SUCCEEDED, None)
    (row,) = campaign_rows(world.store.results.rows("c-one"))
    assert row.verdict == RowVerdict.MISMATCH
    assert row.inference_ms_median is not None


def over_devices(
    world: World,
    *where: str,
    wait_s: float = 60.0,
    limit_s: float | None = None,
    trust: TrustText = "mine",
) -> None:
    """A campaign whose tasks are fixed once the devices are seen."""
    spec = Campaign(
        campaign="everywhere",
        models=(ModelEntry(path="tiny.onnx"),),
        units=("CPU (ONNX)",),
        devices=Devices(spread="device", where=where, trust=trust),
    )
    label = spec.models[0].label
    new = NewCampaign(
        "c-all", "everywhere", world.network.peer_id, spec.model_dump_json(), wait_s=wait_s, limit_s=limit_s
    )
    with Store(world.store_path) as other:
        other.campaigns.create(new, [NewModel(label, world.sha256, 7, facts="tiny.onnx")], None)


async def test_a_campaign_for_each_device_is_planned_on_those_that_are_there(
    world: World, autojump_clock: MockClock
) -> None:
    over_devices(world)
    async with world.scheduler():
        await trio.sleep(5)
        workers = [world.worker(name) for name in ("a", "b", "c")]
        await world.until(lambda: not world.store.campaigns.unfinished())
    assert [len(worker.ran) for worker in workers] == [1, 1, 1]
    assert world.states("c-all") == {TaskState.SUCCEEDED}


async def test_a_glimpse_of_the_index_is_no_ground_for_a_plan(
    world: World, autojump_clock: MockClock
) -> None:
    workers = [world.worker(name) for name in ("a", "b", "c")]
    world.index.partial = 3
    over_devices(world)
    await world.run()
    assert [len(worker.ran) for worker in workers] == [1, 1, 1]


async def test_devices_that_come_up_together_are_all_planned_for(
    world: World, autojump_clock: MockClock
) -> None:
    workers = [world.worker("a")]
    world.awaited.add(Identity.from_seed("b").peer_id)
    over_devices(world)
    asked = 0

    def look() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            workers.append(world.worker("b"))

    world.index.asked = look
    await world.run()
    assert [len(worker.ran) for worker in workers] == [1, 1]


async def test_an_index_that_never_answers_whole_is_planned_on_after_the_wait(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("a")
    world.index.partial = 1000
    over_devices(world, wait_s=10.0)
    await world.run()
    assert len(worker.ran) == 1


async def test_a_cancel_that_comes_between_the_last_look_and_the_plan_is_heeded(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("a", seconds=1000.0)
    over_devices(world)
    planned = world.store.campaigns.plan

    def plan(campaign: str, tasks: Any) -> None:
        with Store(world.store_path) as other:
            other.campaigns.request_cancel(campaign)
        planned(campaign, tasks)

    world.store.campaigns.plan = plan
    await world.run()
    assert world.states("c-all") == {TaskState.CANCELLED}
    assert not worker.ran


async def test_a_campaign_submitted_while_the_scheduler_starts_is_seen(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("a")
    world.submit(1)
    epoch = world.store.campaigns.next_epoch

    def slow(campaign: str, **above: int) -> int:
        if campaign == "c-one":
            world.submit(1, campaign="c-two")
        return int(epoch(campaign, **above))

    world.store.campaigns.next_epoch = slow
    with trio.fail_after(60):
        await world.run()
    assert len(worker.ran) == 2


@pytest.mark.parametrize("jump", [-1e6, 1e6], ids=["back", "forward"])
async def test_a_clock_that_was_set_does_not_prolong_a_campaign_and_ends_one_at_the_earliest_at_once(
    world: World, autojump_clock: MockClock, jump: float
) -> None:
    world.worker("a", seconds=1000.0)
    world.submit(1, limit_s=50.0)
    world.wall = lambda: time.time() + jump
    began = trio.current_time()
    await world.run()
    assert world.task().reason is Reason.TIMED_OUT
    assert trio.current_time() - began <= (60 if jump < 0 else 5)


async def test_a_plan_waits_no_longer_than_the_campaign_may_last(
    world: World, autojump_clock: MockClock
) -> None:
    over_devices(world, wait_s=1000.0, limit_s=20.0)
    began, submitted = trio.current_time(), time.time()
    world.wall = lambda: submitted + trio.current_time() - began
    await world.run()
    assert trio.current_time() - began < 30
    assert world.task(campaign="c-all").reason is Reason.TIMED_OUT


async def test_a_campaign_for_each_device_that_finds_none_says_so(
    world: World, autojump_clock: MockClock
) -> None:
    world.worker("mini")
    over_devices(world, "ram >= 64 GiB", wait_s=30.0)
    began, service = trio.current_time(), world.service()
    await service.run()
    assert not service._waited, "nothing is kept of a campaign that has ended"
    assert 30 <= trio.current_time() - began < 40, "it waits once, not again when it is planned"
    (task,) = world.store.tasks.all("c-all")
    assert (task.state, task.reason) == (TaskState.FAILED, Reason.NOTHING_FITS)
    assert "ram >= 64 GiB" in task.detail


async def test_a_campaign_that_is_cancelled_before_it_is_planned_ends(
    world: World, autojump_clock: MockClock
) -> None:
    over_devices(world)
    async with world.scheduler():
        await trio.sleep(3)
        with Store(world.store_path) as other:
            assert other.campaigns.request_cancel("c-all") == 1
        await world.until(lambda: not world.store.campaigns.unfinished())
    assert world.store.campaigns.summaries()[0].campaign.outcome is CampaignStatus.CANCELLED


async def test_a_scheduler_that_is_stopped_while_a_campaign_waits_for_its_devices_ends(
    world: World, autojump_clock: MockClock
) -> None:
    over_devices(world)
    read, looks = world.store.campaigns.models, 0

    def models(campaign: str) -> Any:
        nonlocal looks
        looks += 1
        if looks == 100:  # it would go on for ever
            world.store.campaigns.end("c-all")
        return read(campaign)

    async with world.scheduler():
        await trio.sleep(3)
        world.store.campaigns.models = models
    assert not looks
