"""The values of generated inputs."""

from __future__ import annotations

import numpy as np
import pytest

from drivers.contract.base import Unfit
from drivers.inputs.synthetic import DTYPES, Input, element_type, id_bounds, make


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_values_are_the_same_for_the_same_seed_and_others_for_another(dtype: str) -> None:
    one = Input("x", dtype, (64,))
    first, again, other = make(one, (64,), 1, 100), make(one, (64,), 1, 100), make(one, (64,), 2, 100)
    assert (first == again).all()
    assert first.shape == (64,)
    if dtype != "string":
        assert (first != other).any()


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint16", "uint64"])
def test_integers_lie_below_their_bound(dtype: str) -> None:
    values = make(Input("ids", dtype, (1000,)), (1000,), 0, 10)
    assert values.min() >= 0
    assert values.max() == 9


def test_what_a_name_means_decides_its_values() -> None:
    def filled(name: str, dtype: str, shape: tuple[int, ...] = (4,)) -> list[object]:
        return list(make(Input(name, dtype, shape), shape, 0, 100).reshape(-1))

    assert filled("attention_mask", "int64") == [1] * 4
    assert filled("mask", "bool") == [True] * 4
    assert filled("mask", "bfloat16") == [0x3F80] * 4
    assert filled("state", "float") == [0.0] * 4
    assert filled("token_type_ids", "int32") == [0] * 4
    assert filled("sr", "int64", ()) == [16000]
    assert filled("position_ids", "int64") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "dtype", "middle", "deviation"),
    [
        ("x", "float", 0, 1),
        ("x", "float16", 0, 1),
        ("audio", "double", 0, 0.1),
        ("score_threshold", "float", 0.5, 0.289),
    ],
)
def test_floats_are_noise_of_what_the_name_suggests(
    name: str, dtype: str, middle: float, deviation: float
) -> None:
    values = make(Input(name, dtype, (20_000,)), (20_000,), 0, 100).astype(np.float64)
    assert values.mean() == pytest.approx(middle, abs=0.02)
    assert values.std() == pytest.approx(deviation, rel=0.03)
    if deviation == 1:
        assert np.mean(np.abs(values) < 1) == pytest.approx(0.67, abs=0.02), "as of the normal law"


def test_the_same_bits_are_made_on_every_machine() -> None:
    values = make(Input("x", "float", (4,)), (4,), 7, 100)
    assert values.tobytes().hex() == "f1aa843f654802bf504c1a40e150433f"


def test_bfloat16_values_are_noise_too() -> None:
    bits = make(Input("x", "bfloat16", (1000,)), (1000,), 0, 100)
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    assert abs(values.mean()) < 0.1
    assert values.std() == pytest.approx(1, rel=0.1)


def test_an_input_of_many_gibibytes_is_refused_before_it_is_made() -> None:
    with pytest.raises(Unfit, match="larger than 1024 MiB"):
        make(Input("x", "float", (1 << 20, 1 << 20)), (1 << 20, 1 << 20), 0, 1)


@pytest.mark.parametrize(
    "described",
    ["seq(tensor(float))", "map(string,tensor(float))", "tensor(float4e2m1)", "tensor(complex64)"],
)
def test_what_cannot_be_made_up_is_refused_by_name(described: str) -> None:
    with pytest.raises(Unfit, match="input 'x' is of type"):
        element_type("x", described)


@pytest.mark.parametrize(
    ("dtype", "least", "most"), [("int8", -128, 127), ("uint8", 0, 255), ("int16", -32768, 32767)]
)
def test_steps_of_a_scale_are_of_the_whole_range_whatever_the_bound(
    dtype: str, least: int, most: int
) -> None:
    one = Input("mask", dtype, (400_000,), full_range=True)
    values = make(one, (400_000,), 0, 10)
    assert (values.min(), values.max()) == (least, most)
    assert str(values.dtype) == dtype
    assert len(id_bounds([one])) == 1
    assert len(id_bounds([one, Input("ids", "int64", (1,))])) > 1
