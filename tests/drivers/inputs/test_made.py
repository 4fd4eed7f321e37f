"""Values of made inputs."""

from __future__ import annotations

import numpy as np
import pytest

from drivers.contract.base import Unfit
from drivers.inputs.made import DTYPES, Input, element_type, make


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


def test_bfloat16_values_are_between_nought_and_one() -> None:
    bits = make(Input("x", "bfloat16", (1000,)), (1000,), 0, 100)
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    assert 0 <= values.min() < 0.1
    assert 0.9 < values.max() <= 1


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
