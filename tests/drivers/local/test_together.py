"""Models that take turns in one child: what the launch reports of each, and what it refuses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import (
    BesideReport,
    BetweenLaunches,
    CheckReport,
    Event,
    Limits,
    LoadReport,
    MeasureReport,
    ModelDescription,
    RoundsReport,
    Unfit,
    WorkOrder,
)
from drivers.launch.launch import EnoughRounds, Launch, Zygote
from drivers.measure.interleave import ROUNDS
from drivers.testing.fake import UNIT as FAKE
from protocol.formats.reference_model import reference_model
from tests.drivers.launching import QUICK, Script
from tests.drivers.onnx_models import FLOAT, OnnxModels, node, value

UNIT = "CPU (ONNX)"


def take_turns(
    zygote: Zygote, model: str, *beside: str, unit: str = UNIT, enough: EnoughRounds | None = None, **how: Any
) -> list[Event]:
    """All events of a comparison."""
    order = WorkOrder(model, unit, threads=1, warmup=1, beside=beside, **how)
    return list(Launch(order, Limits(load_s=120, run_s=120), zygote, enough=enough).events())


def only(events: Sequence[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_models_of_one_child_are_timed_in_turns_each_described_and_checked(
    zygote: Zygote, models: OnnxModels
) -> None:
    events = take_turns(zygote, models.nano("own", 0.1), models.nano("other", 0.2), models.nano("third", 0.3))
    (rounds,) = only(events, RoundsReport)
    assert [len(each) for each in rounds.wall_ns] == [ROUNDS] * 3
    assert all(ns > 0 for each in rounds.wall_ns for ns in each)
    assert (rounds.cpu_ns is not None) is (sys.platform == "linux")
    assert (rounds.turns, len(rounds.per_block)) == (2, 3)
    outputs = [event.checked.output_sha256 for event in only(events, BesideReport)]
    (checked,) = only(events, CheckReport)
    assert len({*outputs, checked.output_sha256}) == 3, "each of them ran itself"
    assert [event.checked.agrees for event in only(events, BesideReport)] == [True, True]
    (measured,) = only(events, MeasureReport)
    assert measured.samples_ns == rounds.wall_ns[-1]
    assert measured.per_sample == 2 * rounds.per_block[-1]
    assert len(only(events, LoadReport)) == len(only(events, ModelDescription)) == 1


def test_launches_go_on_until_it_is_enough_and_only_the_first_describes(
    zygote: Zygote, models: OnnxModels
) -> None:
    seen: list[int] = []

    def enough(rounds: Sequence[RoundsReport]) -> bool:
        seen.append(len(rounds))
        return len(rounds) == 3

    events = take_turns(zygote, models.nano("own"), models.nano("other"), enough=enough)
    assert seen == [1, 2, 3]
    kinds = (RoundsReport, MeasureReport, LoadReport, BesideReport, CheckReport, BetweenLaunches)
    assert [len(only(events, kind)) for kind in kinds] == [3, 3, 3, 1, 1, 2]


def test_the_reference_model_runs_beside_any_with_inputs_of_its_own(
    zygote: Zygote, models: OnnxModels, tmp_path: Path
) -> None:
    reference = tmp_path / "reference"
    reference.write_bytes(reference_model())
    dynamic = models.put(
        "dynamic",
        [node("Add", ["x", "x"], ["y"])],
        [value("x", FLOAT, ["n", 3])],
        [value("y", FLOAT, ["n", 3])],
    )
    events = take_turns(zygote, dynamic, str(reference), dims={"n": 7}, shapes={"x": (7, 3)})
    (described,) = only(events, ModelDescription)
    (beside,) = only(events, BesideReport)
    assert described.shapes == {"x": (7, 3)}
    assert beside.described.shapes == {"x": (32, 192)}
    assert beside.checked.agrees


def test_models_with_inputs_of_other_shapes_do_not_compare(zygote: Zygote, models: OnnxModels) -> None:
    wide = models.put(
        "wide", [node("Neg", ["x"], ["y"])], [value("x", FLOAT, [2, 8])], [value("y", FLOAT, [2, 8])]
    )
    with pytest.raises(Unfit, match="different shapes \\(2×8 and 1×8\\)"):
        take_turns(zygote, models.nano("own"), wide)


def test_a_driver_that_knows_no_turns_says_so(stage: Zygote, script: Script) -> None:
    with pytest.raises(Unfit, match="cannot take turns"):
        list(Launch(WorkOrder(script(), FAKE, beside=(script(),)), QUICK, stage).events())


def test_a_broken_model_beside_is_an_error_of_the_run(zygote: Zygote, models: OnnxModels) -> None:
    broken = models.folder / "broken.onnx"
    broken.write_bytes(b"no graph")
    with pytest.raises(Unfit):
        take_turns(zygote, models.nano("own"), str(broken))
