"""Each model gets its own sizes out of those that `bench` is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler.local.everywhere import campaign_on
from scheduler.local.own_sizes import own_sizes
from tests.tiny_onnx import tiny_onnx

SHAPES = {"x": (1, 4), "a": (2, 4)}


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str, str]:
    """A model with the input x of n × 4, one with a of m × 4, and one that cannot be inspected here."""
    one, other, unknown = tmp_path / "x.onnx", tmp_path / "a.onnx", tmp_path / "unknown.pt"
    one.write_bytes(tiny_onnx(shape=("n", 4)))
    other.write_bytes(tiny_onnx(shape=("m", 4)).replace(b"\n\x01x", b"\n\x01a"))
    unknown.write_bytes(b"PK\x03\x04")
    return str(one), str(other), str(unknown)


@pytest.mark.parametrize(
    ("chosen", "given", "expected"),
    [
        ("xa", SHAPES, [{"x": (1, 4)}, {"a": (2, 4)}]),
        ("x", SHAPES, [SHAPES]),  # alone, the model refuses a
        ("xa", {"q": (1,)}, [{"q": (1,)}, {"q": (1,)}]),  # both refuse q
        ("xu", SHAPES, [{"x": (1, 4)}, SHAPES]),  # the other model may have an input a
        ("ua", SHAPES, [SHAPES, {"a": (2, 4)}]),
    ],
)
def test_a_shape_goes_to_the_models_that_have_the_input(
    models: tuple[str, str, str], chosen: str, given: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    files = [models["xau".index(letter)] for letter in chosen]
    assert [own["shapes"] for own in own_sizes(files, {"shapes": given, "runs": 3})] == expected


def test_a_dimension_goes_to_the_models_that_have_it_and_the_rest_to_all(
    models: tuple[str, str, str],
) -> None:
    options = {"dims": {"n": 8, "m": 9, "x[0]": 8}, "runs": 3}
    one, other = own_sizes(models[:2], options)
    assert one == {"dims": {"n": 8, "x[0]": 8}, "runs": 3}
    assert other == {"dims": {"m": 9}, "runs": 3}
    assert options["dims"] == {"n": 8, "m": 9, "x[0]": 8}, "what was given is not altered"


def test_a_campaign_on_other_devices_has_the_sizes_of_each_model(models: tuple[str, str, str]) -> None:
    campaign = campaign_on(models[:2], ["CPU (ONNX)"], [], {"shapes": SHAPES})
    assert [dict(entry.inputs) for entry in campaign.models] == [{"x": (1, 4)}, {"a": (2, 4)}]
