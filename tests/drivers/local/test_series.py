"""Lists of times that a model keeps of its own inferences reach the record's findings, only from the launch that describes the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from drivers.contract.base import Event, RunFindings, WorkOrder
from drivers.inputs.feeds import Shapes
from drivers.inputs.synthetic import Input
from drivers.local.driver import LocalDriver
from drivers.local.model import ExecutionPlace, LocalModel, Prepared
from drivers.measure.timing import TimedCalls


class CountingModel(LocalModel):
    inputs: tuple[Input, ...] = ()

    def load(self) -> int:
        return 1

    def verify(self) -> None:
        pass

    def attempt(self, shapes: Shapes, bound: int) -> Prepared:
        def outputs() -> Mapping[str, Any]:
            return {"y": np.zeros(1)}

        return Prepared(lambda: TimedCalls(lambda _: None), outputs, outputs, {}, {}, bound, 0, 1, False)

    def series(self) -> dict[str, tuple[int, ...]]:
        return {"ttft": (7, 8)}

    def ran_on(self, prepared: Prepared) -> ExecutionPlace:
        return ExecutionPlace(self.order.unit, ("plain",))

    def notes(self, prepared: Prepared) -> list[str]:
        return []

    def reference(self, prepared: Prepared) -> Mapping[str, Any]:
        return prepared.outputs()


class CountingDriver(LocalDriver):
    name = "counting"

    def open(self, order: WorkOrder) -> LocalModel:
        return CountingModel(order, "plain 1")


def findings(events: Iterator[Event]) -> list[RunFindings]:
    return [event for event in events if isinstance(event, RunFindings)]


def test_a_models_own_times_are_found_beside_its_latency() -> None:
    order = WorkOrder("nowhere", "CPU (Counting)", runs=4, warmup=1)
    assert findings(CountingDriver().run(order)) == [RunFindings({}, {"ttft": (7, 8)})]
    assert findings(CountingDriver().run(replace(order, brief=True))) == []
