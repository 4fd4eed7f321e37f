"""A running scheduler and workers that it trusts, does not trust, and no longer trusts."""

from __future__ import annotations

import csv
import io

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import CampaignError, Refused
from protocol.values.attempt import TaskState
from protocol.values.record import DeviceFacts
from protocol.words import Reason
from results.analysis.matrix import make_matrix
from results.export.csv import csv_lines
from results.export.pivots import Filters
from results.export.raw import ResultSource
from results.report.charts import names_of
from results.report.document import make_page
from results.report.facts import Report
from results.report.markdown import markdown_report
from scheduler.campaign.model import Campaign, Devices, ModelEntry
from scheduler.output.comparisons import one_device
from scheduler.output.results_table import plain_lines
from scheduler.store.readers import campaign_rows, raw_results
from scheduler.store.rows import AttemptState
from swarm.blobs.client import fetch_blob
from tests.scheduler.conftest import UNIT, World
from tests.scheduler.run.test_planning_on_devices import over_devices


def spec(**devices: object) -> str:
    return Campaign(
        campaign="one",
        models=(ModelEntry(path="tiny.onnx"),),
        units=(UNIT,),
        devices=Devices.model_validate(devices),
    ).spec()


async def test_strangers_take_none_of_a_campaigns_tasks_however_many_they_are(
    world: World, autojump_clock: MockClock
) -> None:
    own = world.worker("own", seconds=1.0)
    strangers = [world.worker(f"stranger {n}") for n in range(5)]
    world.strangers |= {worker.peer for worker in strangers}
    world.submit(4)
    await world.run()
    assert len(own.ran) == 4
    assert [worker.commits for worker in strangers] == [[]] * 5
    assert {row.trust for row in campaign_rows(world.store.results.rows("c-one"))} == {"own"}


async def test_a_campaign_that_is_open_to_anyone_says_which_rows_are_of_strangers(
    world: World, autojump_clock: MockClock
) -> None:
    world.strangers.add(world.worker("stranger").peer)
    world.submit(1, spec=spec(trust="anyone"))
    await world.run()
    (row,) = campaign_rows(world.store.results.rows("c-one"))
    assert row.trust == "stranger"
    assert [attempt.trust for attempt in world.store.attempts.all("c-one")] == ["stranger"]
    assert [line.trust for line in world.store.results.page().results] == ["stranger"]


async def test_a_campaign_names_a_stranger_by_its_key(world: World, autojump_clock: MockClock) -> None:
    named, other = world.worker("named"), world.worker("other")
    world.strangers |= {named.peer, other.peer}
    world.submit(2, spec=spec(trust=[named.peer]))
    world.submit(1, f"peer == {other.peer}", campaign="c-two")
    await world.run()
    assert {task for task, _ in named.ran} == {"c-one/1", "c-one/2"}
    assert [task for task, _ in other.ran] == ["c-two/1"]
    assert {row.trust for row in campaign_rows(world.store.results.rows("c-one"))} == {"listed"}
    assert {row.trust for row in campaign_rows(world.store.results.rows("c-two"))} == {"listed"}


async def test_a_worker_whose_trust_ends_in_mid_run_is_stopped_and_its_late_result_is_not_recorded(
    world: World, autojump_clock: MockClock
) -> None:
    liar = world.worker("liar", seconds=10.0)
    liar.stop = lambda held, cancel: liar.cancelled.append(held.lease)  # type: ignore[method-assign,misc,assignment]
    world.submit(1, attempts=1)
    async with world.scheduler():
        await world.until(lambda: world.states() == {TaskState.RUNNING})
        world.strangers.add(liar.peer)
        heir = world.worker("heir", seconds=30.0)
        await world.until(lambda: bool(liar.answers))
        await world.until(lambda: world.states() == {TaskState.SUCCEEDED})
    assert len(liar.cancelled) == 1
    assert liar.answers == ["fenced"]
    assert world.task().worker == heir.peer
    ended = world.store.attempts.all("c-one")[0]
    assert (ended.state, ended.reason, ended.detail) == (
        AttemptState.REFUSED,
        Reason.NOT_TRUSTED,
        "liar is not trusted any more",
    )


async def test_a_worker_that_comes_to_be_trusted_in_mid_campaign_gets_tasks(
    world: World, autojump_clock: MockClock
) -> None:
    newcomer = world.worker("newcomer")
    world.strangers.add(newcomer.peer)
    world.submit(1)
    async with world.scheduler():
        await trio.sleep(20.0)
        assert newcomer.commits == []
        world.strangers.clear()
        await world.until(lambda: world.states() == {TaskState.SUCCEEDED})


async def test_no_model_goes_to_a_worker_whose_trust_ended_while_it_holds_a_task(
    world: World, autojump_clock: MockClock
) -> None:
    """The worker asks by the hash that it knows from its task."""
    worker = world.worker("mini", seconds=1000.0)
    worker.stop = lambda held, cancel: None  # type: ignore[method-assign]
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: bool(worker.ran))
        world.strangers.add(worker.peer)
        await trio.sleep(0.5)
        with pytest.raises(Refused, match="not served") as caught:
            await fetch_blob(
                worker.network, world.network.peer_id, world.network.addresses, world.sha256, sink=len
            )
        assert caught.value.reason is Reason.NOT_ALLOWED


async def test_a_stranger_with_an_own_devices_name_id_and_chip_gets_nothing(
    world: World, autojump_clock: MockClock
) -> None:
    own, clone = world.worker("own"), world.worker("clone")
    clone.advert = own.advert.model_copy(
        update={"peer": clone.peer, "addresses": clone.advert.addresses, "pools": ("home",)}
    )
    world.strangers.add(clone.peer)
    world.submit(2)
    world.submit(2, f"device == {own.advert.device}", campaign="c-pinned")
    over_devices(world)
    await world.run()
    assert clone.commits == []
    for campaign in ("c-one", "c-pinned", "c-all"):
        assert world.states(campaign) == {TaskState.SUCCEEDED}
        assert {row.worker_id for row in campaign_rows(world.store.results.rows(campaign))} == {own.peer}


async def test_a_strangers_root_is_where_it_is_seen_and_not_where_it_says_that_it_is(
    world: World, autojump_clock: MockClock
) -> None:
    liar = world.worker("liar")
    liar.advert = liar.advert.model_copy(
        update={"addresses": (*liar.advert.addresses, "/ip4/198.51.99.7/tcp/4102")}
    )
    world.strangers.add(liar.peer)
    world.submit(1, spec=spec(trust="anyone"))
    service = world.service()
    await service.run()
    assert liar.commits
    trust = service._core.state.trust_of(liar.peer)
    assert (trust.text, trust.root) == ("stranger", liar.peer)


async def test_a_stranger_with_an_own_devices_name_id_and_chip_is_another_device_wherever_results_are_shown(
    world: World, autojump_clock: MockClock
) -> None:
    own, clone, liar = (world.worker(name) for name in ("own", "clone", "liar"))
    clone.advert = own.advert.model_copy(update={"peer": clone.peer, "addresses": clone.advert.addresses})
    facts = DeviceFacts(device=own.advert.device, name="own", soc="chip")
    for worker in (own, clone, liar):
        worker.outcome = lambda task: {"device": facts}
    world.strangers |= {clone.peer, liar.peer}
    over_devices(world, f"device == {own.advert.device}", trust="anyone")
    world.submit(1, f"device == {liar.advert.device}", spec=spec(trust="anyone"))
    await world.run()
    (row,) = campaign_rows(world.store.results.rows("c-all"))
    assert (row.worker_id, row.device_key, row.trust) == (own.peer, own.peer, "own")
    assert clone.commits == []
    (forged,) = campaign_rows(world.store.results.rows("c-one"))
    assert (forged.worker_id, forged.device_key, forged.trust) == (liar.peer, liar.peer, "stranger")
    assert (forged.device_id, forged.device_name, forged.soc) == (row.device_id, row.device_name, row.soc)
    labels = [f"own …{own.peer[-6:]}", f"own …{liar.peer[-6:]}"]
    assert {cell.device for cell in make_matrix([row, forged])} == set(labels)
    assert all(label in "\n".join(plain_lines([row, forged])) for label in labels)
    assert names_of([row, forged], model=False) == labels
    heads = csv_lines([row, forged])
    cells = list(csv.DictReader(io.StringIO("".join(heads), newline="")))
    assert [line["DeviceKey"] for line in cells] == [own.peer, liar.peer]
    lines = world.store.results.page().results
    assert {(line.task, line.device_key) for line in lines} == {
        (row.job_id, own.peer),
        (forged.job_id, liar.peer),
    }
    both = ResultSource("both", "c-one", (), rows=(row, forged))
    assert one_device(both, own.peer).rows == (row,)
    with pytest.raises(CampaignError, match="2 devices") as caught:
        one_device(both, row.device_id)
    assert all(key in str(caught.value) + caught.value.hint for key in (own.peer, liar.peer))
    assert [line.task for line in world.store.results.page(filters=Filters(device=own.peer)).results] == [
        row.job_id
    ]
    stored = raw_results(world.store.results.rows("c-all")) + raw_results(world.store.results.rows("c-one"))
    text = markdown_report(make_page(Report(stored, "c-one", "both", 0.0, "1")))
    assert all(label in text for label in labels)


async def test_rows_of_two_own_workers_of_one_machine_are_of_one_device(
    world: World, autojump_clock: MockClock
) -> None:
    one, other = world.worker("one"), world.worker("other")
    other.advert = other.advert.model_copy(update={"device": one.advert.device})
    world.signed[one.advert.device] = {"home": frozenset({one.peer, other.peer})}
    world.submit(1, f"peer == {one.peer}")
    world.submit(1, f"peer == {other.peer}", campaign="c-two")
    await world.run()
    rows = [row for name in ("c-one", "c-two") for row in campaign_rows(world.store.results.rows(name))]
    assert [row.worker_id for row in rows] == [one.peer, other.peer]
    assert len({row.device_key for row in rows}) == 1
