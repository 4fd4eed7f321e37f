"""The whole scheduler over the in-memory swarm, against scripted workers that speak the protocol. Time jumps, so nothing waits in real
time.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import Refused
from protocol.formats.phase import Phase
from protocol.messages.work import Commit, Denied, Progress
from protocol.values.attempt import TaskState
from protocol.values.lease import Fence
from protocol.values.reading import DeviceReading
from protocol.values.record import RunFacts, Timing, pack_samples
from protocol.values.task import Model
from protocol.wire.base import MAX_INLINE
from protocol.words import Reason, RunOutcome
from results.row.verdicts import RowVerdict
from scheduler.campaign.load import parse_campaign
from scheduler.core.allocator import MAX_HANDED_OUT
from scheduler.models.files import CampaignFile
from scheduler.planning.tasks import derive_cells, tasks_of
from scheduler.run.service import BEAT_S
from scheduler.store.readers import campaign_rows
from scheduler.store.rows import CampaignStatus as CampaignStatus
from scheduler.store.rows import NewCampaign
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
        idle = world.worker("idle", seconds=1.0)  # found when the index is asked again
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
    """The index no longer lists the device. After more than a day it counts as one that never existed."""
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
