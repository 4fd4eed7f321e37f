"""Shapes and values of made inputs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.contract.base import Unfit
from drivers.inputs.made import DTYPES, Input, attempts, candidates, element_type, make, unused

IMAGE = Input("images", "float", ("N", 3, None, None))
TEXT = [Input("input_ids", "int64", ("batch", "seq")), Input("attention_mask", "int64", ("batch", "seq"))]


def best(
    *inputs: Input, dims: dict[str, int] | None = None, metadata: dict[str, str] | None = None
) -> list[tuple[int, ...]]:
    """Shapes of the first candidate."""
    shapes = next(candidates(inputs, dims or {}, metadata or {}))
    return [shapes.of(one) for one in inputs]


def test_a_static_model_has_one_way_and_nothing_to_say() -> None:
    (only,) = candidates([Input("x", "float", (1, 8))], {}, {})
    assert only.notes() == ()


def test_an_image_is_not_one_pixel() -> None:
    assert best(IMAGE) == [(1, 3, 224, 224)]


def test_an_image_with_its_channels_last_is_one_too() -> None:
    assert best(Input("x", "float", (None, None, None, 3))) == [(1, 224, 224, 3)]


def test_token_ids_and_their_mask_get_one_length() -> None:
    assert best(*TEXT) == [(1, 128), (1, 128)]


def test_the_campaigns_dims_come_first() -> None:
    assert best(*TEXT, dims={"seq": 7, "batch": 2}, metadata={"seq": "9"}) == [(2, 7), (2, 7)]


def test_a_nameless_dimension_is_given_by_its_place() -> None:
    assert best(IMAGE, dims={"images[2]": 64, "images[3]": 32}) == [(1, 3, 64, 32)]


def test_the_models_own_metadata_comes_before_any_guess() -> None:
    assert best(*TEXT, metadata={"seq": "9"}) == [(1, 9), (1, 9)]


def test_every_guess_is_named_and_nothing_else() -> None:
    shapes = next(candidates(TEXT, {"batch": 2}, {}))
    assert shapes.notes() == ("dim 'seq' not given: 128 is taken",)


def test_a_recurrent_state_has_its_batch_second_and_it_is_one() -> None:
    signal, state = Input("input", "float", (None, None)), Input("state", "float", (2, None, 128))
    tried = [(shapes.of(signal), shapes.of(state)) for shapes in candidates([signal, state], {}, {})]
    assert tried[0] == ((1, 128), (2, 1, 128))
    assert ((1, 640), (2, 1, 128)) in tried


def test_a_dim_that_fits_nothing_is_named() -> None:
    assert unused(TEXT, {"seq": 1, "sequence": 2}) == (
        "dim 'sequence' is given but is no dynamic dimension of the model",
    )


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(Unfit, match="'seq' is -1"):
        best(*TEXT, dims={"seq": -1})


def test_the_ladder_climbs_and_ends() -> None:
    tried = [shapes.of(TEXT[0]) for shapes in candidates(TEXT, {}, {})]
    assert tried[0] == (1, 128)
    assert {(1, 1), (1, 640), (640, 640)} <= set(tried)
    assert len(set(tried)) == len(tried)
    assert len(list(attempts(TEXT, {}, {}))) < 100


SIZES = st.none() | st.integers(0, 4) | st.sampled_from(["batch", "seq", "height", "foo", ""])


@given(
    st.lists(
        st.builds(
            lambda n, shape: Input(f"in{n}", "float", tuple(shape)),
            st.integers(0, 9),
            st.lists(SIZES, max_size=5),
        ),
        max_size=4,
    )
)
def test_every_candidate_fills_every_shape_and_keeps_what_is_fixed(inputs: list[Input]) -> None:
    for shapes in itertools.islice(candidates(inputs, {"foo": 5}, {}), 5):
        for one in inputs:
            filled = shapes.of(one)
            assert len(filled) == len(one.shape)
            for size, was in zip(filled, one.shape, strict=True):
                assert size >= 0
                if isinstance(was, int):
                    assert size == was
                if was == "foo":
                    assert size == 5


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
