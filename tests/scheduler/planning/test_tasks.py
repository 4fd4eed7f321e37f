"""From campaign to tasks: pure, numbered, and pinned where the spread requires it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from protocol.errors import CampaignError
from protocol.values.advert import Advert, UnitOffer
from protocol.values.index_keys import named_peers
from protocol.values.match import match
from protocol.values.task import MAX_TASK, Model, Step, Task, read_task, task_body
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.models.files import CampaignFile
from scheduler.planning.tasks import (
    GIB,
    LARGE_MODEL,
    MAX_TASKS,
    cells,
    derive_cells,
    device_class,
    least_tasks,
    needs_devices,
    requirements,
    tasks_of,
)

SCHEDULER = "12D3KooW" + "S" * 44


def campaign(
    extra: str = "", *, models: str = "[a.onnx, b.onnx]", units: str = "[CPU (ONNX), GPU (ONNX)]"
) -> Campaign:
    return parse_campaign(f"campaign: t\nmodels: {models}\nunits: {units}\n{extra}".encode(), "c.yaml")


def files(plan: Campaign, size: int = 1000) -> dict[str, tuple[Path, Model]]:
    return {
        entry.label: CampaignFile(Path(entry.label), Model(name=entry.label, sha256=f"{n:064x}", size=size))
        for n, entry in enumerate(plan.models)
    }


def tasks(plan: Campaign, devices: Sequence[Advert] = (), size: int = 1000) -> tuple[Task, ...]:
    return tasks_of(
        derive_cells(plan, files(plan, size), campaign_id="c-1", scheduler=SCHEDULER, devices=devices)
    )


def device(
    name: str,
    *,
    units: tuple[str, ...] = ("CPU (ONNX)",),
    soc: str = "Chip 1",
    ram: int | None = 16 * GIB,
    os: str = "Linux 6.1",
    arch: str = "x86_64",
    node: int = 1,
    gone: bool = False,
) -> Advert:
    peer = f"{name}{node}".ljust(40, "x").replace("l", "L").replace("0", "z")
    return Advert(
        peer=peer,
        seq=1,
        device=f"dev-{name}",
        name=name,
        os=os,
        arch=arch,
        soc=soc,
        ram=ram,
        units=tuple(UnitOffer(unit=unit, runtime="r") for unit in units),
        gone=gone,
    )


def clauses(task: Task) -> list[str]:
    return [str(clause) for clause in task.requirement.clauses]


def test_the_matrix_is_models_by_units_by_threads_in_the_order_of_the_file() -> None:
    plan = campaign("measure: {threads: [physical, 2], dims: {N: 1}}\n")
    results = [(task.model.name, task.unit, task.measure.threads) for task in tasks(plan)]
    assert results == [
        (model, unit, threads)
        for model in ("a.onnx", "b.onnx")
        for unit in ("CPU (ONNX)", "GPU (ONNX)")
        for threads in (None, 2)
    ]
    assert [task.task for task in tasks(plan)] == [f"c-1/{n}" for n in range(1, 9)]
    assert len(cells(plan)) == 8


def test_what_the_file_says_of_measuring_is_in_the_task() -> None:
    plan = campaign(
        "measure: {runs: 7, loads: 2, warmup: 3, seed: 9, check: none, dims: {N: 1, H: 2}}\n"
        "timeouts: {queue: 1m, fetch: 2m, load: 3s, run: 4s}\n",
        models="[{path: a.onnx, dims: {H: 5}}]",
        units="[CPU (ONNX)]",
    )
    (task,) = tasks(plan)
    measure = task.measure
    assert (measure.runs, measure.loads, measure.warmup, measure.seed, measure.check) == (7, 2, 3, 9, False)
    assert measure.dims == {"N": 1, "H": 5}
    limits = task.timeouts
    assert (limits.queue_s, limits.fetch_s, limits.load_s, limits.run_s) == (60, 120, 3, 4)


def test_a_task_asks_for_its_unit_first_and_then_for_the_clauses_of_the_file() -> None:
    plan = campaign("devices: {where: [ram >= 8 GiB, os ~ Linux*]}\n", models="[a]", units="[CPU (ONNX)]")
    (task,) = tasks(plan)
    assert clauses(task) == ["units has CPU (ONNX)", "ram >= 8 GiB", "os ~ Linux*"]


def test_a_small_model_asks_for_no_memory_and_a_large_one_for_twice_its_size() -> None:
    plan = campaign(models="[a]", units="[CPU (ONNX)]")
    assert clauses(tasks(plan, size=LARGE_MODEL - 1)[0]) == ["units has CPU (ONNX)"]
    (task,) = tasks(plan, size=2 * GIB)
    assert clauses(task) == ["units has CPU (ONNX)", "ram >= 4 GiB"]
    assert task.memory == 9 * GIB


def test_tasks_survive_the_wire() -> None:
    for task in tasks(campaign("devices: {where: [ram >= 8 GiB]}\n")):
        assert read_task(task_body(task)) == task


def test_only_a_task_for_any_device_does_without_knowing_them() -> None:
    assert needs_devices(campaign())
    assert not needs_devices(campaign("devices: {spread: any}\n"))
    for spread in ("class", "device", "worker"):
        assert needs_devices(campaign(f"devices: {{spread: {spread}}}\n"))


def test_spread_any_makes_one_task_whatever_devices_there_are() -> None:
    plan = campaign("devices: {spread: any}\n")
    assert tasks(plan) == tasks(plan, [device("a"), device("b")])


def test_spread_device_makes_one_pinned_task_for_each_device_that_fits() -> None:
    plan = campaign("devices: {where: [ram >= 8 GiB], spread: device}\n", models="[a]", units="[CPU (ONNX)]")
    devices = [
        device("mini"),
        device("mini", node=2),
        device("small", ram=4 * GIB),
        device("big", ram=64 * GIB),
        device("left", gone=True),
    ]
    result = tasks(plan, devices)
    assert [clauses(task)[-1] for task in result] == ["device == dev-big", "device == dev-mini"]
    for task in result:
        fitting = {
            advert.device for advert in devices if not advert.gone and match(task.requirement, advert).fits
        }
        assert [f"device == {name}" for name in fitting] == [clauses(task)[-1]]


def test_spread_worker_makes_one_task_for_each_worker_and_trusts_none_by_it() -> None:
    devices = [device("mini"), device("mini", node=2), device("big")]
    limited = tasks(
        campaign("devices: {spread: worker, limit: 2}\n", models="[a]", units="[CPU (ONNX)]"), devices
    )
    result = tasks(campaign("devices: {spread: worker}\n", models="[a]", units="[CPU (ONNX)]"), devices)
    admitted = [
        [advert.peer for advert in devices if match(task.requirement, advert).fits] for task in result
    ]
    assert admitted == [[devices[2].peer], [devices[0].peer], [devices[1].peer]]
    assert [task.requirement for task in limited] == [task.requirement for task in result[:2]]
    assert not any(named_peers(task.requirement) for task in result), "a peer that is named is trusted"


def test_devices_are_taken_unit_by_unit() -> None:
    plan = campaign("devices: {spread: device}\n", models="[a]")
    result = tasks(plan, [device("a"), device("b", units=("CPU (ONNX)", "GPU (ONNX)"))])
    assert [(task.unit, clauses(task)[-1]) for task in result] == [
        ("CPU (ONNX)", "device == dev-a"),
        ("CPU (ONNX)", "device == dev-b"),
        ("GPU (ONNX)", "device == dev-b"),
    ]


def test_a_cell_that_no_device_fits_is_one_open_task_and_not_forgotten() -> None:
    plan = campaign("devices: {spread: device}\n", models="[a]")
    result = tasks(plan, [device("a")])
    assert [clauses(task) for task in result] == [
        ["units has CPU (ONNX)", "device == dev-a"],
        ["units has GPU (ONNX)"],
    ]
    assert len(tasks(plan, [])) == 2


def test_spread_class_takes_one_of_each_kind_and_the_pin_admits_only_that_kind() -> None:
    devices = [
        device("a", ram=16 * GIB - 100),
        device("b", ram=16 * GIB + 100, os="Linux 6.8"),
        device("c", ram=32 * GIB),
        device("d", soc="Chip 2"),
        device("e", os="Darwin 24"),
        device("f", arch="arm64"),
    ]
    plan = campaign("devices: {spread: class}\n", models="[a]", units="[CPU (ONNX)]")
    result = tasks(plan, devices)
    admitted = [
        {advert.name for advert in devices if match(task.requirement, advert).fits} for task in result
    ]
    assert admitted == [{"a", "b"}, {"c"}, {"d"}, {"e"}, {"f"}]


def test_a_class_with_an_unknown_fact_is_pinned_to_its_members() -> None:
    devices = [device("a", soc=""), device("b", soc=""), device("c")]
    plan = campaign("devices: {spread: class}\n", models="[a]", units="[CPU (ONNX)]")
    result = tasks(plan, devices)
    admitted = [
        {advert.name for advert in devices if match(task.requirement, advert).fits} for task in result
    ]
    assert admitted == [{"a", "b"}, {"c"}]


@pytest.mark.parametrize(("spread", "count"), [("device", 2), ("class", 3)])
def test_limit_counts_devices_or_classes(spread: str, count: int) -> None:
    devices = [device("a"), device("b"), device("c", soc="Chip 2")]
    plan = campaign(f"devices: {{spread: {spread}, limit: 2}}\n", models="[a]", units="[CPU (ONNX)]")
    result = tasks(plan, devices)
    assert len(result) == 2
    admitted = {advert.name for advert in devices for task in result if match(task.requirement, advert).fits}
    assert len(admitted) == count


@pytest.mark.parametrize("spread", ["any", "class", "device", "worker"])
def test_the_plan_does_not_depend_on_the_order_in_which_devices_were_found(spread: str) -> None:
    plan = campaign(f"devices: {{spread: {spread}}}\n")
    devices = [
        device(f"d{n}", soc=f"Chip {n % 3}", units=("CPU (ONNX)", "GPU (ONNX)")[: n % 2 + 1])
        for n in range(9)
    ]
    first = tasks(plan, devices)
    for seed in range(5):
        random.Random(seed).shuffle(devices)
        assert tasks(plan, devices) == first


def test_too_many_tasks_are_refused_with_the_limit_as_hint() -> None:
    threads = ", ".join(str(n) for n in range(1, 65))
    plan = campaign(
        f"devices: {{spread: device}}\nmeasure: {{threads: [{threads}]}}\n",
        models="[" + ", ".join(f"m{n}" for n in range(4)) + "]",
        units="[CPU (ONNX)]",
    )
    assert least_tasks(plan) == 256
    devices = [device("a"), device("b")]
    assert len(tasks(plan, devices)) == 512 < MAX_TASKS
    with pytest.raises(CampaignError, match="more than 511 tasks") as caught:
        derive_cells(plan, files(plan), campaign_id="c-1", scheduler=SCHEDULER, devices=devices, most=511)
    assert "devices.limit" in caught.value.hint


def test_the_largest_task_that_a_file_can_ask_for_fits_the_protocol() -> None:
    dims = ", ".join(f"{n:02}{'x' * 98}: 1" for n in range(64))
    long = ", ".join(f"name == {n:02}{'x' * 190}" for n in range(24))
    plan = campaign(
        f"devices: {{where: [{long}]}}\nmeasure: {{dims: {{{dims}}}}}\n", models="[a]", units="[CPU (ONNX)]"
    )
    (task,) = tasks(plan)
    assert len(task_body(task)) <= MAX_TASK, "the largest of everything a file may hold still fits"


def test_discovery_gets_requirements_before_there_are_tasks() -> None:
    plan = campaign("devices: {where: [ram >= 8 GiB], spread: device}\n")
    result = requirements(plan)
    assert [[str(clause) for clause in need.clauses] for need in result] == [
        ["units has CPU (ONNX)", "ram >= 8 GiB"],
        ["units has GPU (ONNX)", "ram >= 8 GiB"],
    ]


def test_jobs_of_the_plain_form_keep_their_own_runs_and_devices() -> None:
    text = (
        "model_url: m.onnx\njobs:\n"
        " - {compute_unit: CPU (ONNX), num_inference_runs: 10, device_udid: dev-a}\n"
        " - {compute_unit: CPU (ONNX), num_inference_runs: 20}\n"
        " - {compute_unit: CPU (ONNX), num_inference_runs: 20}\n"
    )
    plan = parse_campaign(text.encode(), "c.yaml")
    result = tasks(plan)
    assert [task.measure.runs for task in result] == [10, 20, 20]
    assert clauses(result[0]) == ["units has CPU (ONNX)", "device == dev-a"]
    assert len(requirements(plan)) == 2


def test_a_class_is_chip_memory_system_and_architecture() -> None:
    assert device_class(device("a", ram=int(15.6 * GIB))) == ("Chip 1", 16, "Linux", "x86_64")


# -- replicas -----------------------------------------------------------------------------------------------------------------------


def admitted(found: tuple[Task, ...], devices: list[Advert]) -> list[set[str]]:
    return [{advert.name for advert in devices if match(task.requirement, advert).fits} for task in found]


def test_replicas_are_planned_on_devices() -> None:
    assert needs_devices(campaign("replicas: 2\n"))
    assert [task.replica for task in tasks(campaign())] == [None] * 4


def test_replicas_go_to_the_class_with_most_devices_and_no_two_may_have_the_same_device() -> None:
    plan = campaign("replicas: 2\n", models="[a]", units="[CPU (ONNX)]")
    devices = [
        device("a", soc="Chip 2"),
        device("b"),
        device("c"),
        device("d"),
        device("d", node=2),
        device("e", soc="Chip 2", node=1),
        device("e", soc="Chip 2", node=2),
        device("e", soc="Chip 2", node=3),
    ]
    result = tasks(plan, devices)
    assert [task.replica for task in result] == [1, 2]
    assert admitted(result, devices) == [{"b", "d"}, {"c"}], "more nodes on one device are not more devices"
    assert [task.note for task in result] == ["", ""]


def test_replicas_for_each_class_when_the_spread_is_class() -> None:
    plan = campaign("replicas: 2\ndevices: {spread: class}\n", models="[a]", units="[CPU (ONNX)]")
    devices = [device("a"), device("b"), device("c", soc="Chip 2"), device("d", soc="Chip 2"), device("e")]
    result = tasks(plan, devices)
    assert [task.replica for task in result] == [1, 2, 1, 2]
    assert admitted(result, devices) == [{"a", "e"}, {"b"}, {"c"}, {"d"}]


def test_too_few_devices_leave_a_replica_that_waits_for_another_one_and_says_so() -> None:
    plan = campaign("replicas: 3\n", models="[a]", units="[CPU (ONNX)]")
    result = tasks(plan, [device("a"), device("b")])
    late = device("late")
    assert admitted(result, [device("a"), device("b"), late]) == [{"a"}, {"b"}, {"late"}]
    assert [task.note for task in result] == [
        "",
        "",
        "3 devices of one class are needed, but only 2 are there",
    ]
    none = tasks(plan, [device("g", units=("GPU (ONNX)",))])
    assert [task.replica for task in none] == [1, 2, 3]
    assert {task.note for task in none} == {"3 devices of one class are needed, but none is there"}


def test_a_class_whose_facts_are_not_known_is_named_device_by_device() -> None:
    plan = campaign("replicas: 2\n", models="[a]", units="[CPU (ONNX)]")
    devices = [device("a", soc=""), device("b", soc=""), device("c", soc="")]
    assert admitted(tasks(plan, devices), devices) == [{"a", "c"}, {"b"}]


def test_replicas_that_need_too_many_clauses_are_refused_at_the_model() -> None:
    wheres = ", ".join(f"ram >= {n} MiB" for n in range(1, 25))
    plan = campaign(f"replicas: 5\ndevices: {{where: [{wheres}]}}\n", models="[a]", units="[CPU (ONNX)]")
    with pytest.raises(CampaignError, match="more than 32 clauses"):
        tasks(plan, [device("a"), device("b"), device("c")])


def test_a_sustained_run_is_one_launch_whose_limit_covers_it_and_the_rest() -> None:
    plan = campaign("measure: {sustain: 10m}\ntimeouts: {run: 2m}\n", models="[a.onnx]", units="[CPU (ONNX)]")
    (task,) = tasks(plan)
    assert (task.measure.sustain_s, task.measure.loads) == (600.0, 1)
    assert task.timeouts.run_s == 600 + 60 + 120
    assert '"sustain":"600s"' in plan.spec()
    assert "sustain" not in campaign().spec(), "an older program can still read the rest"


@pytest.mark.parametrize(("by", "pauses_s"), [("runs: 60", 120), ("precision: 2%", 19 * 24)])
def test_the_limit_of_launches_that_are_spread_covers_their_pauses(by: str, pauses_s: float) -> None:
    plan = campaign(
        f"measure: {{over: 2m, {by}}}\ntimeouts: {{run: 1m}}\n", models="[a.onnx]", units="[CPU (ONNX)]"
    )
    (task,) = tasks(plan)
    assert task.measure.over_s == 120
    assert task.timeouts.run_s == pytest.approx(60 + pauses_s)
    assert "over" not in campaign().spec(), "an older program can still read the rest"


def test_sittings_are_tasks_whose_places_are_known_from_each_of_them() -> None:
    plan = campaign(
        "measure: {sittings: 3, apart: 30m}\ndevices: {spread: device}\n", models="[a]", units="[CPU (ONNX)]"
    )
    made = tasks(plan, [device("a"), device("b")])
    assert [(task.task, task.sitting.number) for task in made if task.sitting] == [
        ("c-1/1", 1),
        ("c-1/2", 1),
        ("c-1/3", 2),
        ("c-1/4", 2),
        ("c-1/5", 3),
        ("c-1/6", 3),
    ]
    last = made[-1]
    assert last.sitting is not None
    assert (last.sitting.of, last.sitting.apart_s) == (3, 1800)
    assert [last.sitting.task(last.task, number) for number in (1, 2)] == ["c-1/2", "c-1/4"]
    assert clauses(made[1]) == clauses(made[3]) == clauses(last)
    assert read_task(task_body(last)) == last


def test_replicas_sit_each_on_its_own() -> None:
    plan = campaign("measure: {sittings: 2}\nreplicas: 2\n", models="[a]", units="[CPU (ONNX)]")
    made = tasks(plan, [device("a"), device("b")])
    assert [(task.replica, task.sitting and task.sitting.number) for task in made] == [
        (1, 1),
        (2, 1),
        (1, 2),
        (2, 2),
    ]
    assert made[2].sitting is not None
    assert made[2].sitting.task(made[2].task, 1) == made[0].task
    assert made[2].sitting.apart_s == 3600
    assert all(task.sitting is None for task in tasks(campaign()))


def test_a_precision_and_steps_are_carried_to_the_task() -> None:
    extra = "measure: {precision: 2%, pre: [{step: transpose, of: x, order: [1, 0]}], post: [softmax]}"
    (task,) = tasks(campaign(extra, models="[a.onnx]", units="[CPU (ONNX)]"))
    assert task.measure.precision == 0.02
    assert task.measure.pre == (Step(step="transpose", of="x", options={"order": (1, 0)}),)
    assert task.measure.post == (Step(step="softmax"),)
    again = read_task(task_body(task))
    assert again == task
    assert again.measure.pre[0].options["order"] == (1, 0)
    assert str(again.measure.pre[0].options) == "{'order': (1, 0)}", "axes stay whole numbers"
