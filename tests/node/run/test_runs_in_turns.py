"""A task of several models: all are fetched and held, and the record lists the models that ran beside the first."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from drivers.contract.base import (
    BesideReport,
    CheckReport,
    Limits,
    MeasureReport,
    ModelDescription,
    WorkOrder,
)
from node.run.record_builder import RecordJob, RunObservations
from node.run.runner import StopRun, limits, run, work_order
from node.store.cache import ModelCache
from protocol.values.task import Model, Timeouts
from protocol.words import Reason, RunOutcome
from tests.node.run.runner_parts import (
    CHECKED,
    CONTENT,
    LOADED,
    MEASURED,
    ScriptedLaunch,
    bench,
    described,
    job,
    source_of,
    task,
)

OTHER = Model(name="other.onnx", sha256=hashlib.sha256(b"another").hexdigest(), size=7)


async def test_all_models_of_a_task_are_fetched_and_held_until_it_is_measured(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "both", 10**9, free=lambda path: 10**12)

    def model(what: RecordJob, which: Model, progress: Any) -> AbstractAsyncContextManager[Path]:
        return cache.using(which, source_of(b"another" if which == OTHER else CONTENT), progress)

    orders: list[tuple[bytes, ...]] = []

    def launch(order: WorkOrder, limits: Limits) -> ScriptedLaunch:
        orders.append(tuple(Path(path).read_bytes() for path in (order.model, *order.beside)))
        return ScriptedLaunch(LOADED, described(), MEASURED, CHECKED)

    both = job(task(beside=(OTHER,)))
    record = await run(both, bench(tmp_path, launch, model=model), StopRun(), lambda *progress: None)
    assert orders == [(CONTENT, b"another")]
    assert record.outcome is RunOutcome.COMPLETE


async def test_the_model_that_does_not_come_is_named(tmp_path: Path) -> None:
    @contextlib.asynccontextmanager
    async def model(what: RecordJob, which: Model, progress: Any) -> AsyncIterator[Path]:
        if which == OTHER:
            await trio.sleep_forever()
        yield tmp_path

    both = job(task(beside=(OTHER,), timeouts=Timeouts(fetch_s=0.01)))
    fields = bench(tmp_path, lambda *_: ScriptedLaunch(), model=model)
    record = await run(both, fields, StopRun(), lambda *progress: None)
    assert record.reason is Reason.FETCH_FAILED
    assert record.detail.startswith("other.onnx did not arrive within the fetch limit")


def test_each_model_of_a_task_may_take_its_memory_and_all_together_no_more_than_the_device_gives() -> None:
    other = Model(name="other.onnx", sha256="ab" * 32, size=1)
    of_two = task(memory=100, beside=(other,))
    assert (limits(of_two, 1000).memory_bytes, limits(of_two, 150).memory_bytes) == (200, 150)
    order = work_order(of_two, "/m/own", beside=(Path("/m/other"),))
    assert (order.model, order.beside, order.beside_units) == ("/m/own", ("/m/other",), ())
    apart = of_two.model_copy(update={"beside_units": ("CPU (Torch)",)})
    assert work_order(apart, "/m/own", beside=(Path("/m/other"),)).beside_units == ("CPU (Torch)",)


def test_a_model_beside_that_ran_elsewhere_is_no_comparison() -> None:
    other = Model(name="other.onnx", sha256="ab" * 32, size=1)
    asked = task(beside=(other,), beside_units=("CPU (Torch)",))
    observations = RunObservations()
    own = ModelDescription(asked.unit, "onnx", "r", ("CPUExecutionProvider",), 1, {}, {}, 0)
    observations.add(own, 0.0)
    observations.add(MeasureReport((1,), (1,), 0.0, 0.0, None, 0, None), 0.0)
    checked = CheckReport(None, "", None, None)
    observations.add(BesideReport(replace(own, unit="CPU (Torch)", providers=("cpu",)), checked), 0.0)
    assert observations.verdict(asked).outcome is RunOutcome.COMPLETE
    observations.beside[0] = BesideReport(own, checked)
    assert observations.verdict(asked).reason is Reason.WRONG_UNIT
