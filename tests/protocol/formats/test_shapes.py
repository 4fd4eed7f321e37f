"""The shapes of a model's inputs: given, derived, missing and contradictory ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.formats.shapes import (
    GivenSizes,
    InputPort,
    MissingShape,
    ShapeError,
    read_shape,
    resolve,
)

IMAGE = InputPort("x", ("N", 3, "height", "width"))
CUT = InputPort("x", ("?", 3, "?", "?"))
"""Like a text recogniser: two axes with the same symbol that differ."""
TEXT = (InputPort("ids", ("batch", "seq")), InputPort("mask", ("batch", "seq")))
SPEECH = (InputPort("input", (None, None)), InputPort("state", (2, None, 128)), InputPort("sr", ()))


def shapes(*ports: InputPort, **sizes: Any) -> dict[str, tuple[int, ...]]:
    return resolve(ports, GivenSizes(**sizes))


def test_only_the_batch_has_a_size_of_its_own() -> None:
    assert shapes(InputPort("x", ("N", 3, 8, 8))) == {"x": (1, 3, 8, 8)}
    assert shapes(InputPort("x", (None, 4))) == {"x": (1, 4)}
    assert shapes(InputPort("x", ("unk__1915", 4)), InputPort("y", ("p2o.DynamicDimension.0", 4))) == {
        "x": (1, 4),
        "y": (1, 4),
    }
    assert shapes(InputPort("x", ("seq", "batch", 4)), dims={"seq": 7}) == {"x": (7, 1, 4)}
    assert shapes(InputPort("x", ())) == {"x": ()}


@pytest.mark.parametrize(
    ("ports", "named"),
    [
        ([IMAGE], "input x is N×3×height×width: give the sizes"),
        ([CUT], "input x is ?×3×?×?: give the sizes"),
        (TEXT, "inputs ids is batch×seq, mask is batch×seq: give the sizes"),
        ([InputPort("x", ("seq_len", 576))], "input x is seq_len×576"),
        ([InputPort("x", (None,))], "input x is ?"),
        ([InputPort("boxes", (1, "N", 4))], "input boxes is 1×N×4"),
    ],
    ids=["image", "placeholders", "text", "frames first", "flat", "N inside"],
)
def test_every_other_dimension_is_asked_for(ports: list[InputPort], named: str) -> None:
    with pytest.raises(MissingShape, match=named.replace("?", "[?]")):
        resolve(ports, GivenSizes())


def test_what_to_add_is_written_out_with_what_is_known() -> None:
    with pytest.raises(MissingShape) as missing:
        shapes(CUT, dims={"x[2]": 48})
    assert missing.value.options == "such as --shape 'x=1,3,48,224'"
    assert missing.value.yaml == "such as inputs: {x: [1, 3, 48, 224]}"
    name, _, sizes = missing.value.options.removeprefix("such as --shape '").removesuffix("'").partition("=")
    assert shapes(CUT, shapes={name: read_shape(sizes)}) == {"x": (1, 3, 48, 224)}, (
        "it can be typed as it stands"
    )


@pytest.mark.parametrize(
    ("ports", "sizes", "result"),
    [
        ([IMAGE], {"shapes": {"x": [2, 3, 48, 320]}}, {"x": (2, 3, 48, 320)}),
        ([IMAGE], {"dims": {"height": 48, "x[3]": 320}}, {"x": (1, 3, 48, 320)}),
        ([CUT], {"dims": {"x[2]": 48, "x[3]": 192}}, {"x": (1, 3, 48, 192)}),
        (TEXT, {"dims": {"seq": 7}}, {"ids": (1, 7), "mask": (1, 7)}),
        (TEXT, {"shapes": {"ids": (4, 7)}}, {"ids": (4, 7), "mask": (4, 7)}),
        (TEXT, {"dims": {"seq": 0}}, {"ids": (1, 0), "mask": (1, 0)}),
        (SPEECH, {"dims": {"input[1]": 512}}, {"input": (1, 512), "state": (2, 1, 128), "sr": ()}),
        ([InputPort("a", ("H", "H"))], {"dims": {"a[0]": 2, "a[1]": 3}}, {"a": (2, 3)}),
        (
            [InputPort("a", ("s0", 4)), InputPort("b", ("s0", 4))],
            {"dims": {"s0": 3}},
            {"a": (3, 4), "b": (3, 4)},
        ),
    ],
)
def test_sizes_are_given_by_shape_by_symbol_and_by_place(
    ports: list[InputPort], sizes: dict[str, Any], result: dict[str, tuple[int, ...]]
) -> None:
    assert shapes(*ports, **sizes) == result


@pytest.mark.parametrize(
    ("ports", "sizes", "why"),
    [
        (
            [IMAGE],
            {"dims": {"heigth": 4}},
            "no dynamic dimension 'heigth': x is N×3×height×width; did you mean height",
        ),
        ([IMAGE], {"dims": {"x[1]": 4}}, "no dynamic dimension 'x.1.'"),
        (
            [InputPort("x", (1, 2))],
            {"dims": {"H": 4}},
            "no dynamic dimension 'H': x is 1×2; remove it: all sizes are fixed",
        ),
        ([IMAGE], {"shapes": {"y": [1]}}, "no input 'y'; its inputs: x"),
        ([IMAGE], {"shapes": {"x": [1, 3]}}, "x is N×3×height×width, but 1×3 was given; give 4 sizes"),
        ([IMAGE], {"shapes": {"x": [1, 4, 8, 8]}}, "its axis 1 is 3, not 4"),
        (
            [CUT],
            {"dims": {"?": 4}},
            "several axes are called '[?]'; name each by its place: x.0., x.2., x.3.",
        ),
        (
            [IMAGE],
            {"shapes": {"x": [1, 3, 8, 8]}, "dims": {"width": 9}},
            "the shape of x says .* is 8, but dim width says 9",
        ),
        (
            [IMAGE],
            {"dims": {"width": 8, "x[3]": 9}},
            "dim width says that x.3. is 8, but dim x.3. says 9; leave one",
        ),
        (TEXT, {"dims": {"batch": 2}, "batch": 8}, "dim batch says that ids.0. is 2, but the batch says 8"),
        ([IMAGE], {"dims": {"width": -1}}, "gives x.3. the size -1"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(
    ports: list[InputPort], sizes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ShapeError, match=why):
        shapes(*ports, **sizes)


@pytest.mark.parametrize(
    ("ports", "result"),
    [
        ([InputPort("x", ("N", 3))], {"x": (8, 3)}),
        ([InputPort("x", ("s77", 4))], {"x": (8, 4)}),
        ([InputPort("ids", ("batch", 5)), InputPort("boxes", ("num_boxes", 4))], None),
        ([InputPort("audio", ("samples",)), InputPort("x", ("rows", 4))], None),
        ([InputPort("lengths", (None,)), InputPort("x", (None, 4))], None),
        ([InputPort("x", (None,))], {"x": (8,)}),
        ([InputPort("x", (8, 4))], {"x": (8, 4)}),
        (
            [InputPort("input", (None, 4)), InputPort("state", (2, None, 128))],
            {"input": (8, 4), "state": (2, 8, 128)},
        ),
    ],
)
def test_the_batch_is_laid_on_its_axes_alone(
    ports: list[InputPort], result: dict[str, tuple[int, ...]] | None
) -> None:
    if result is not None:
        assert shapes(*ports, batch=8) == result
        return
    with pytest.raises(MissingShape) as missing:
        shapes(*ports, batch=8)
    assert len(missing.value.example) == 1, "the other has the batch"
    assert 8 not in next(iter(missing.value.example.values()))


@pytest.mark.parametrize("named", ["rows", "y[0]"], ids=["by symbol", "by place"])
def test_the_campaign_may_name_the_axis_of_the_batch(named: str) -> None:
    ports = [InputPort("x", ("cols", 4)), InputPort("y", ("rows", 4))]
    assert shapes(*ports, batch=8, batch_dim=named, dims={"cols": 2}) == {"x": (2, 4), "y": (8, 4)}


@pytest.mark.parametrize(
    ("ports", "named", "why"),
    [
        (
            [InputPort("x", (1, 4))],
            None,
            "cannot be 8 .x begins with 1.; export it with a dynamic first .* batch: .1.",
        ),
        ([InputPort("x", ("seq", 4))], None, "cannot be 8 .x begins with seq"),
        (
            [InputPort("x", ("rows", 4)), InputPort("y", ("cols", 4))],
            None,
            "could be the batch: rows, cols; name it: batch_dim",
        ),
        (TEXT, "N", "batch_dim 'N' is not a dynamic dimension .* there are: batch, seq"),
    ],
    ids=["fixed", "a sequence", "two of them", "a name nobody has"],
)
def test_a_batch_that_cannot_be_is_refused(ports: list[InputPort], named: str | None, why: str) -> None:
    with pytest.raises(ShapeError, match=why):
        shapes(*ports, batch=8, batch_dim=named)


SIZES = st.none() | st.integers(0, 4) | st.sampled_from(["batch", "seq", "height", "foo", "", "?", "s0"])


@given(st.lists(st.lists(SIZES, max_size=4), max_size=4), st.integers(0, 9))
def test_the_example_of_what_is_missing_always_does(axes: list[list[int | str | None]], foo: int) -> None:
    ports = [InputPort(f"in{number}", tuple(shape)) for number, shape in enumerate(axes)]
    dims = {"foo": foo} if any("foo" in shape for shape in axes) else {}
    try:
        result = resolve(ports, GivenSizes(dims))
    except MissingShape as missing:
        result = resolve(ports, GivenSizes(dims, missing.example))
    for port in ports:
        filled = result[port.name]
        assert len(filled) == len(port.shape)
        for size, was in zip(filled, port.shape, strict=True):
            assert size == was if isinstance(was, int) else size >= 0
            assert was != "foo" or size == foo


def test_shapes_are_read() -> None:
    assert read_shape("1, 3,48,320") == read_shape("1x3x48x320") == (1, 3, 48, 320)
    assert read_shape("") == ()
    for wrong in ("1,,2", "a", "1,-2", "1.5", "1x"):
        with pytest.raises(ValueError, match="is not a shape"):
            read_shape(wrong)


def test_the_example_for_sound_beside_its_rate_is_a_piece_that_such_models_take() -> None:
    with pytest.raises(MissingShape) as missing:
        resolve(SPEECH, GivenSizes())
    assert missing.value.example == {"input": (1, 512)}
    with pytest.raises(MissingShape) as missing:
        resolve(SPEECH[:1], GivenSizes())
    assert missing.value.example == {"input": (1, 128)}


def test_a_size_that_may_be_of_another_model_is_not_asked_of_this_one() -> None:
    dims = {"height": 8, "width": 9, "sequence": 5}
    assert resolve([IMAGE], GivenSizes(dims, own=("height",))) == {"x": (1, 3, 8, 9)}
    with pytest.raises(
        ShapeError,
        match="no dynamic dimension 'sequence': x is N×3×height×width; there are: N, height, width",
    ):
        resolve([IMAGE], GivenSizes(dims, own=("sequence",)))
