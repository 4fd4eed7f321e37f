"""Witnessed runs: each launch's inputs follow from the reveal and from the launch before."""

from __future__ import annotations

from typing import Any

import pytest

from drivers.contract.base import (
    Crashed,
    Event,
    LoadReport,
    MeasureReport,
    ModelDescription,
    OutputReport,
    WorkOrder,
)
from drivers.contract.frames import Garbled
from drivers.launch.events import LaunchEvents
from drivers.launch.launch import Launch, Zygote, digest_of
from drivers.measure.stopping import LaunchSpec, MeasureJob
from drivers.testing.fake import scripted_outputs
from protocol.formats.chain import launch_seed
from tests.drivers.launching import QUICK, Script, order
from tests.drivers.onnx_models import OnnxModels

OPENING, REVEAL = b"o" * 32, b"r" * 32
UNIT = "CPU (ONNX)"


def witnessed(work_order: WorkOrder, zygote: Zygote) -> list[Event]:
    return list(Launch(work_order, QUICK, zygote, reveal=lambda: (OPENING, REVEAL)).events())


def outputs(events: list[Event]) -> list[OutputReport]:
    return [event for event in events if isinstance(event, OutputReport)]


def test_the_first_launch_follows_from_the_opening_and_the_others_from_the_reveal_and_what_came_before(
    stage: Zygote, script: Script
) -> None:
    work_order = order(script(), runs=12, loads=3)
    events = witnessed(work_order, stage)
    seed, made = launch_seed(OPENING, 1), []
    for launch in (1, 2, 3):
        made.append(scripted_outputs(WorkOrder(work_order.model, work_order.unit, seed=seed)))
        seed = launch_seed(REVEAL, launch + 1, digest_of(made[-1]))
    assert outputs(events) == made
    assert len({report.output_sha256 for report in made}) == 3
    described = next(event for event in events if isinstance(event, ModelDescription))
    assert described.seed == launch_seed(OPENING, 1)


def test_the_outputs_come_before_the_times_that_led_to_them(stage: Zygote, script: Script) -> None:
    kinds = [type(event) for event in witnessed(order(script(), runs=8, loads=2), stage)]
    kinds = [kind for kind in kinds if kind in (OutputReport, MeasureReport)]
    assert kinds == [OutputReport, MeasureReport] * 2


def test_launches_that_only_load_have_no_part_in_the_chain(stage: Zygote, script: Script) -> None:
    events = witnessed(order(script(), runs=3, loads=3), stage)
    assert len(outputs(events)) == 1
    assert sum(isinstance(event, LoadReport) for event in events) == 4


def test_a_run_that_is_not_witnessed_keeps_the_seed_of_its_order(zygote: Zygote, models: OnnxModels) -> None:
    work_order = WorkOrder(models.nano(), UNIT, runs=8, loads=2, warmup=1, seed=11)
    events = list(Launch(work_order, QUICK, zygote).events())
    assert len(outputs(events)) == 1, "of the full launch"
    assert next(event for event in events if isinstance(event, ModelDescription)).seed == 11


def test_a_real_model_answers_each_launch_with_other_outputs_and_repeats_them(
    zygote: Zygote, models: OnnxModels
) -> None:
    work_order = WorkOrder(models.nano(), UNIT, runs=8, loads=2, warmup=1)
    first, second = outputs(witnessed(work_order, zygote)), outputs(witnessed(work_order, zygote))
    assert first == second
    assert len({report.output_sha256 for report in first}) == 2
    assert all(report.sketches for report in first)


def test_what_a_check_sees_is_what_was_reported(zygote: Zygote, models: OnnxModels) -> None:
    events = witnessed(WorkOrder(models.nano(), UNIT, runs=4, loads=1, warmup=1), zygote)
    checked: Any = next(event for event in events if type(event).__name__ == "CheckReport")
    assert checked.agrees
    assert checked.output_sha256 == outputs(events)[0].output_sha256


def test_a_driver_that_does_not_tell_its_outputs_cannot_be_witnessed() -> None:
    checker = LaunchEvents(LaunchSpec(MeasureJob.REPEAT, 1), served=False, cold=False, witnessed=True)
    checker.take(LoadReport(1, None, None))
    with pytest.raises(Garbled, match="before the outputs"):
        checker.take(MeasureReport((1,), (1,), 0, 0, None, 0, None))


def test_outputs_of_a_launch_that_is_not_witnessed_are_one_too_many() -> None:
    checker = LaunchEvents(LaunchSpec(MeasureJob.REPEAT, 1), served=False, cold=False)
    with pytest.raises(Garbled, match="an unexpected OutputReport"):
        checker.take(OutputReport("0" * 64))


def test_a_refused_reveal_ends_the_run_before_any_launch(stage: Zygote, script: Script) -> None:
    def refuse() -> tuple[bytes, bytes]:
        raise Crashed("no")

    events: list[Event] = []
    with pytest.raises(Crashed, match="no"):
        events.extend(Launch(order(script()), QUICK, stage, reveal=refuse).events())
    assert events == []
