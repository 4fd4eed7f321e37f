"""Examples that a loaded model answers outside the timed part."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drivers.contract.base import (
    AnswersReport,
    Crashed,
    DriverError,
    Event,
    Limits,
    LoadReport,
    MeasureReport,
    ProgressReport,
    TimedOut,
    Unfit,
    WorkOrder,
)
from drivers.inputs.synthetic import Input
from drivers.launch.launch import Launch, Zygote, measure
from drivers.local import examples as local_examples
from drivers.measure.stopping import LaunchSpec, MeasureJob
from drivers.onnx.driver import OnnxDriver
from protocol.formats.examples import UNNAMED, Value, pack_examples, text_value, unpack_examples
from protocol.formats.phase import Phase
from tests.drivers.launching import QUICK, Script, order
from tests.tiny_onnx import tiny_onnx

UNIT = "CPU (ONNX)"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a private folder, because a driver writes into the current directory of its process."""
    monkeypatch.chdir(tmp_path)


def row(*numbers: float, dtype: str = "float32") -> Value:
    return value(np.array([numbers], dtype))


def value(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Value:
    return Value(str(array.dtype), array.shape, array.tobytes())


def order_for(
    folder: Path, examples: Sequence[Mapping[str, Value]], shape: tuple[int | str, ...] = (1, 4)
) -> WorkOrder:
    model, file = folder / "same.onnx", folder / "digits.examples"
    model.write_bytes(tiny_onnx(shape=shape))
    file.write_bytes(pack_examples(examples))
    return WorkOrder(str(model), UNIT, runs=4, loads=1, dims={"n": 1}, examples=str(file))


def answered(order: WorkOrder) -> AnswersReport:
    (report,) = (event for event in OnnxDriver().answer(order) if isinstance(event, AnswersReport))
    return report


def outputs(report: AnswersReport) -> list[list[list[float]]]:
    assert not report.why
    return [
        np.frombuffer(answer["y"].data, answer["y"].dtype).reshape(answer["y"].shape).tolist()
        for answer in unpack_examples(b64decode(report.answers))
    ]


def test_each_example_is_answered_in_order(tmp_path: Path) -> None:
    order = order_for(tmp_path, [{"x": row(1, 2, 3, 4)}, {UNNAMED: row(5, 6, 7, 8)}])
    assert outputs(answered(order)) == [[[1, 2, 3, 4]], [[5, 6, 7, 8]]]


def test_examples_may_have_sizes_of_their_own(tmp_path: Path) -> None:
    examples = [{"x": value(np.full((size, 4), size, "float32"))} for size in (1, 3, 2)]
    made = outputs(answered(order_for(tmp_path, examples, ("n", 4))))
    assert [np.shape(one) for one in made] == [(1, 4), (3, 4), (2, 4)]
    assert made[1] == [[3, 3, 3, 3]] * 3


def test_wider_numbers_become_those_of_the_input(tmp_path: Path) -> None:
    order = order_for(tmp_path, [{"x": row(1, 2, 3, 4, dtype="float64")}])
    assert outputs(answered(order)) == [[[1, 2, 3, 4]]]


@pytest.mark.parametrize(
    ("example", "why"),
    [
        ({"x": row(1, 2, 3)}, "input 'x' is 1×4, and the example gives 1×3"),
        ({"x": value(np.zeros(4, "float32"))}, "input 'x' is 1×4, and the example gives 4"),
        ({"z": row(1, 2, 3, 4)}, "the model's inputs are x; the example's are z"),
        ({"x": row(1, 2, 3, 4), "z": row(1)}, "the model's inputs are x; the example's are x, z"),
        ({"x": text_value("four")}, "input 'x' is float, which examples cannot give"),
        ({UNNAMED: text_value("four")}, "take tensors, and the example is a text"),
    ],
)
def test_an_example_for_another_model_is_named(
    tmp_path: Path, example: Mapping[str, Value], why: str
) -> None:
    report = answered(order_for(tmp_path, [{"x": row(1, 2, 3, 4)}, example]))
    assert not report.answers
    assert report.why.startswith("example 2 of 2: ")
    assert why in report.why


def test_floats_are_no_input_of_integers() -> None:
    with pytest.raises(Unfit, match="input 'ids' is int64, and the example gives float32"):
        local_examples.feeds_of({"ids": row(1.5)}, [Input("ids", "int64", (1, 1))])


def test_answers_that_no_record_can_hold_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_examples, "MAX_ANSWER_BYTES", 40)
    report = answered(order_for(tmp_path, [{"x": row(1, 2, 3, 4)}] * 3))
    assert not report.answers
    assert report.why == "the outputs of 3 of 3 examples exceed 0 MiB"


def test_a_file_that_holds_no_examples_is_named(tmp_path: Path) -> None:
    order = order_for(tmp_path, [])
    Path(order.examples).write_bytes(b"no examples")
    assert answered(order).why.startswith("its examples cannot be read: ")


def test_a_sandboxed_child_reads_its_examples(tmp_path: Path, zygote: Zygote) -> None:
    order = order_for(tmp_path, [{"x": row(1, 2, 3, 4)}])
    events = list(measure(order, Limits(load_s=60, run_s=120), zygote))
    assert outputs(events[-1] if isinstance(events[-1], AnswersReport) else AnswersReport()) == [
        [[1, 2, 3, 4]]
    ]
    assert sum(isinstance(event, LoadReport) for event in events) == 2, "of the timed launch alone, once warm"


@pytest.mark.parametrize("error", [Crashed("killed by SIGSEGV"), TimedOut("still running")])
def test_a_model_that_breaks_on_an_example_was_measured_all_the_same(
    tmp_path: Path, stage: Zygote, script: Script, monkeypatch: pytest.MonkeyPatch, error: DriverError
) -> None:
    run_one = Launch._run_one

    def breaking(self: Launch, launch: LaunchSpec, cold: bool) -> Iterator[Event]:
        if launch.job is MeasureJob.ANSWER:
            yield ProgressReport(Phase.CHECK, 1, 9)
            raise error
        yield from run_one(self, launch, cold)

    monkeypatch.setattr(Launch, "_run_one", breaking)
    asked = replace(order(script()), examples=str(tmp_path))
    events = list(measure(asked, QUICK, stage))
    assert any(isinstance(event, MeasureReport) for event in events)
    assert events[-1] == AnswersReport(why=str(error))


def test_a_driver_that_answers_nothing_says_so_and_measures(
    stage: Zygote, script: Script, tmp_path: Path
) -> None:
    (tmp_path / "x.examples").write_bytes(pack_examples(()))
    events = list(measure(replace(order(script()), examples=str(tmp_path / "x.examples")), QUICK, stage))
    assert any(isinstance(event, MeasureReport) for event in events)
    assert events[-1] == AnswersReport(why="the driver fake cannot answer examples")
