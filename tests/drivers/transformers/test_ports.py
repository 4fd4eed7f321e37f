"""The inputs of a forward pass: sizes fixed by the config, and symbols for those that the order must give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from drivers.contract.base import Unfit, Unshaped, WorkOrder
from drivers.inputs.feeds import shapes_of
from drivers.inputs.synthetic import Input
from drivers.transformers.ports import inputs_of


def config(**has: Any) -> Any:
    return SimpleNamespace(**has)


def shapes(main: str, takes: tuple[str, ...] = (), **has: Any) -> dict[str, tuple[int | str | None, ...]]:
    return {one.name: one.shape for one in inputs_of(config(**has), (main, *takes), main, "float32")}


def test_texts_have_ids_below_the_vocabulary_and_the_length_that_the_order_says() -> None:
    ports = inputs_of(
        config(vocab_size=100), ("input_ids", "attention_mask", "labels"), "input_ids", "bfloat16"
    )
    assert ports == (
        Input("input_ids", "int64", ("batch", "sequence"), 100),
        Input("attention_mask", "int64", ("batch", "sequence")),
    )
    order = WorkOrder("m", "CPU (Transformers)")
    with pytest.raises(Unshaped, match=r"input_ids is batch×sequence.*--shape 'input_ids=1,128'"):
        shapes_of(order, ports)
    sized = WorkOrder("m", "CPU (Transformers)", dims={"sequence": 7}, batch=2)
    assert shapes_of(sized, ports) == {"input_ids": (2, 7), "attention_mask": (2, 7)}


@pytest.mark.parametrize(
    ("size", "sides"),
    [(32, (32, 32)), ([24, 48], (24, 48)), (None, ("height", "width")), ("224", ("height", "width"))],
)
def test_pictures_have_the_configs_size(size: object, sides: tuple[int | str, ...]) -> None:
    found = shapes("pixel_values", image_size=size, num_channels=3)
    assert found == {"pixel_values": ("batch", 3, *sides)}
    assert shapes("pixel_values", image_size=size)["pixel_values"][1] == "channels"


def test_models_of_two_parts_take_both() -> None:
    two = shapes("input_ids", ("pixel_values",), vision_config=config(image_size=8, num_channels=1))
    assert two == {"input_ids": ("batch", "sequence"), "pixel_values": ("batch", 1, 8, 8)}
    both = shapes("input_ids", ("decoder_input_ids",), is_encoder_decoder=True)
    assert both["decoder_input_ids"] == ("batch", "decoder_sequence")
    sound = ("input_features", ("decoder_input_ids",))
    heard = shapes(*sound, is_encoder_decoder=True, num_mel_bins=80, max_source_positions=1500)
    assert heard["input_features"] == ("batch", 80, 3000)
    assert shapes("input_values") == {"input_values": ("batch", "audio_samples")}


def test_other_inputs_are_refused_by_name() -> None:
    with pytest.raises(Unfit, match="takes 'bbox', which cannot be generated"):
        shapes("bbox")
