"""Element types that onnxruntime accepts, and real models: all results are complete, with plausible shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest

from drivers.contract.base import CheckReport, Limits, MeasureReport, ModelDescription, WorkOrder
from drivers.inputs.synthetic import DTYPES, NARROW, Input, make
from drivers.launch.launch import Zygote, measure
from drivers.native.ort_api import NUMBERS
from drivers.onnx.runner import from_bytes, packed
from tests.drivers import zoo

LIMITS = Limits(load_s=30, run_s=60)


def run(zygote: Zygote, model: Path) -> tuple[ModelDescription, MeasureReport, CheckReport]:
    """Two runs in one launch."""
    order = WorkOrder(str(model), "CPU (ONNX)", runs=2, loads=1, warmup=1, threads=1)
    events = list(measure(order, LIMITS, zygote))
    (described,) = [event for event in events if isinstance(event, ModelDescription)]
    (measured,) = [event for event in events if isinstance(event, MeasureReport)]
    (checked,) = [event for event in events if isinstance(event, CheckReport)]
    return described, measured, checked


FEW: Final = ("BFLOAT16", "BOOL", "FLOAT8E5M2", "INT4", "STRING", "UINT2", "UINT64")
"""One type of each kind, each in a launch. test_runner.py runs all types in this process; benchmarks/measuring/zoo.py launches all."""


@pytest.mark.parametrize("name", FEW)
def test_a_model_of_an_element_type_runs_and_is_right(zygote: Zygote, tmp_path: Path, name: str) -> None:
    described, measured, checked = run(zygote, zoo.put(tmp_path, name))
    assert described.shapes == {"x": (1, 3, 7)}
    assert len(measured.samples_ns) == 2
    assert checked.agrees is True, checked.note


def test_a_real_graph_runs_with_the_shape_of_an_image(zygote: Zygote, light_models: Path) -> None:
    described, _, checked = run(zygote, light_models / "light_shufflenet.onnx")
    assert list(described.shapes.values()) == [(1, 3, 224, 224)]
    assert checked.agrees is True, checked.note


def test_a_real_classifier_runs_with_its_own_shape(zygote: Zygote, magika_model: str) -> None:
    described, _, checked = run(zygote, Path(magika_model))
    assert described.shapes == {"bytes": (1, 2048)}
    assert checked.agrees is True, checked.note


def test_the_interface_knows_every_type_that_is_made() -> None:
    assert set(DTYPES) <= set(NUMBERS)


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3, 5), (0, 4)])
def test_narrow_integers_survive_being_packed(name: str, shape: tuple[int, ...]) -> None:
    values = make(Input("x", name, shape), shape, 0, 100)
    held = packed(name, values)
    assert held.nbytes == -(-values.size * NARROW[name] // 8)
    assert np.array_equal(from_bytes(name, shape, held.tobytes()), values)
