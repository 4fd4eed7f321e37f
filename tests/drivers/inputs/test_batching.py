"""The batch of an order: laid on the right dimension, or refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from drivers.contract.base import DriverError, Unfit, WorkOrder
from drivers.inputs.batching import dims_of, failed_with
from drivers.inputs.made import Input
from drivers.launch.launch import Zygote
from tests.drivers.onnx.test_driver import run
from tests.drivers.onnx_models import FLOAT, OnnxModels, node, value

IMAGE = Input("x", "float", ("N", 3, 8, 8))
TEXT = [Input("ids", "int64", ("batch", "seq")), Input("mask", "int64", ("batch", "seq"))]
SPEECH = [
    Input("input", "float", (None, None)),
    Input("state", "float", (2, None, 128)),
    Input("sr", "int64", ()),
]


def order(batch: int | None = 8, **more: Any) -> WorkOrder:
    return WorkOrder("m", "CPU (ONNX)", batch=batch, **more)


@pytest.mark.parametrize(
    ("inputs", "dims"),
    [
        ([IMAGE], {"N": 8}),
        (TEXT, {"batch": 8}),
        (SPEECH, {"input[0]": 8, "state[1]": 8}),
        ([Input("x", "float", ("s77", 4))], {"s77": 8}),
        ([*TEXT, Input("boxes", "float", ("num_boxes", 4))], {"batch": 8}),
        ([Input("audio", "float", ("samples",)), Input("x", "float", ("rows", 4))], {"rows": 8}),
        ([Input("lengths", "int64", (None,)), Input("x", "float", (None, 4))], {"x[0]": 8}),
        ([Input("x", "float", (None,))], {"x[0]": 8}),
        ([Input("x", "float", (8, 4))], {}),
    ],
    ids=[
        "image",
        "text",
        "state",
        "any symbol",
        "named one",
        "not samples",
        "not flat",
        "flat",
        "fixed at it",
    ],
)
def test_the_batch_is_laid_on(inputs: list[Input], dims: dict[str, int]) -> None:
    assert dims_of(order(), inputs) == dims


def test_without_a_batch_the_dims_stay_as_they_are() -> None:
    assert dims_of(order(None, dims={"seq": 3}), TEXT) == {"seq": 3}


def test_other_dims_are_kept_and_the_same_size_may_stand_there_too() -> None:
    assert dims_of(order(dims={"seq": 3, "batch": 8}), TEXT) == {"seq": 3, "batch": 8}


@pytest.mark.parametrize("named", ["rows", "y[0]"], ids=["by symbol", "by place"])
def test_the_campaign_may_name_the_dimension(named: str) -> None:
    inputs = [Input("x", "float", ("cols", 4)), Input("y", "float", ("rows", 4))]
    assert dims_of(order(batch_dim=named), inputs) == {"rows": 8}


@pytest.mark.parametrize(
    ("inputs", "more", "why"),
    [
        ([Input("x", "float", (1, 4))], {}, "'x' begins with 1; export it with a dynamic first dimension"),
        ([Input("x", "float", ("seq", 4))], {}, "has a batch of its own: 'x' begins with seq"),
        ([Input("x", "float", ("rows", 4)), Input("y", "float", ("cols", 4))], {}, "'rows', 'cols'; name it"),
        (TEXT, {"batch_dim": "N"}, "batch_dim 'N' is no dynamic dimension .* there are: 'batch', 'seq'"),
        (TEXT, {"dims": {"batch": 2}}, "the batch is to be 8, but dims says 'batch' is 2"),
    ],
    ids=["fixed", "a sequence", "two of them", "a name nobody has", "dims say otherwise"],
)
def test_invalid_batches_are_refused(inputs: list[Input], more: dict[str, Any], why: str) -> None:
    with pytest.raises(Unfit, match=why):
        dims_of(order(**more), inputs)


def test_a_failure_names_the_batch_it_was_with() -> None:
    assert str(failed_with(order(), Unfit("bad reshape"))) == "it does not run with a batch of 8: bad reshape"
    assert str(failed_with(order(None), Unfit("bad reshape"))) == "bad reshape"


def test_the_onnx_driver_runs_the_batch_and_says_so(models: OnnxModels, zygote: Zygote) -> None:
    described = run(zygote, models.embedding(), batch=4, dims={"sequence": 6}).described
    assert described.batch == 4
    assert set(described.shapes.values()) == {(4, 6)}
    assert run(zygote, models.embedding(), dims={"sequence": 6}).described.batch is None


def test_a_model_with_a_fixed_batch_fails_in_words(models: OnnxModels, zygote: Zygote) -> None:
    with pytest.raises(DriverError, match="'x' begins with 1"):
        run(zygote, models.nano(), batch=4)


def test_a_shape_that_is_fixed_inside_fails_in_words(models: OnnxModels, zygote: Zygote) -> None:
    model = models.put(
        "inside",
        [node("Constant", [], ["to"], value_ints=[1, 8]), node("Reshape", ["x", "to"], ["y"])],
        [value("x", FLOAT, ["batch", 8])],
        [value("y", FLOAT, [1, 8])],
    )
    assert run(zygote, model, batch=1).described.shapes == {"x": (1, 8)}
    with pytest.raises(DriverError, match="does not run with a batch of 3"):
        run(zygote, model, batch=3)
