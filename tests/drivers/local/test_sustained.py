"""A sustained run in a real child: one launch with all parts of a run, and its findings stretch by stretch."""

from __future__ import annotations

import pytest

from drivers.contract.base import (
    CheckReport,
    Event,
    Limits,
    LoadReport,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    SustainedReport,
    Unfit,
    WorkOrder,
)
from drivers.launch.launch import Launch, Zygote
from drivers.testing.fake import UNIT as FAKE
from protocol.formats.phase import Phase
from tests.drivers.launching import QUICK, Script
from tests.drivers.onnx_models import OnnxModels


def test_one_launch_lasts_rests_and_is_checked(zygote: Zygote, models: OnnxModels) -> None:
    order = WorkOrder(models.nano("m"), "CPU (ONNX)", threads=1, warmup=1, sustain_s=1.0)
    events = list[Event](Launch(order, Limits(load_s=120, run_s=120), zygote).events())
    for kind, number in ((MeasureReport, 1), (ModelDescription, 1), (CheckReport, 1), (LoadReport, 2)):
        assert sum(isinstance(event, kind) for event in events) == number, kind
    measured = next(event for event in events if isinstance(event, MeasureReport))
    lasted = next(event for event in events if isinstance(event, SustainedReport))
    rounding_ns = len(measured.samples_ns) * measured.per_sample / 2
    assert sum(measured.samples_ns) * measured.per_sample <= measured.wall_s * 1e9 + rounding_ns
    assert measured.wall_s >= 1.0
    assert len(lasted.starts_ns) == len(measured.blocks)
    assert 2 <= len(lasted.probes_ns) <= 5, "the rest is too short for all"
    assert lasted.pauses_ns[-1] >= 0.1e9
    totals = {
        event.total for event in events if isinstance(event, ProgressReport) and event.phase is Phase.RUN
    }
    assert totals == {2}, "seconds, the rest counted in"


def test_a_driver_that_does_not_sustain_says_so(stage: Zygote, script: Script) -> None:
    with pytest.raises(Unfit, match="remove sustain"):
        list(Launch(WorkOrder(script(), FAKE, sustain_s=5.0), QUICK, stage).events())


def test_models_that_take_turns_are_not_sustained(stage: Zygote, script: Script) -> None:
    with pytest.raises(Unfit, match="sustain cannot be combined with a comparison"):
        list(Launch(WorkOrder(script(), FAKE, beside=(script(),), sustain_s=5.0), QUICK, stage).events())
