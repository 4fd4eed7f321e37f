"""The inputs of one forward pass, from the arguments of a model's class and its config. Pure: sizes that the config leaves open are
symbols."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from drivers.contract.base import Unfit
from drivers.inputs.feeds import NAMES
from drivers.inputs.synthetic import Input

IDS: Final = ("input_ids", "attention_mask", "decoder_input_ids")
PICTURES: Final = ("pixel_values",)
SOUND: Final = ("input_features", "input_values")
KNOWN: Final = (*IDS, *PICTURES, *SOUND)


def inputs_of(config: Any, takes: Collection[str], main: str, dtype: str) -> tuple[Input, ...]:
    """The inputs, in the order of `KNOWN`. `takes`: names of the arguments of a forward pass. `main`: the class's main input. `dtype`:
    torch's name of the weights' type. Raises `Unfit`."""
    if main not in KNOWN:
        raise Unfit(f"the model takes {main[:60]!r}, which cannot be generated; only {', '.join(KNOWN)} can")
    names = [main]
    if main == "input_ids":
        names += [name for name in ("attention_mask",) if name in takes]
        if getattr(config, "vision_config", None) is not None and "pixel_values" in takes:
            names.append("pixel_values")
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        names.append("decoder_input_ids")
    return tuple(_input(name, config, NAMES[dtype]) for name in KNOWN if name in names)


def _input(name: str, config: Any, dtype: str) -> Input:
    match name:
        case "input_ids" | "decoder_input_ids":
            side = "decoder_sequence" if name.startswith("decoder") else "sequence"
            return Input(name, "int64", ("batch", side), vocabulary(config))
        case "attention_mask":
            return Input(name, "int64", ("batch", "sequence"))
        case "pixel_values":
            seen = getattr(config, "vision_config", None) or config
            return Input(name, dtype, ("batch", _size(seen, "num_channels") or "channels", *_image(seen)))
        case "input_features":
            length = _size(config, "max_source_positions")
            bins = _size(config, "num_mel_bins") or "mel_bins"
            return Input(name, dtype, ("batch", bins, 2 * length if length else "frames"))
        case _:
            return Input(name, dtype, ("batch", "audio_samples"))


def vocabulary(config: Any) -> int | None:
    """Size of the vocabulary of the model's text part."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return _size(text, "vocab_size")


def _image(config: Any) -> tuple[int | str, int | str]:
    size = getattr(config, "image_size", None)
    if type(size) is int and size > 0:
        return size, size
    if isinstance(size, list | tuple) and len(size) == 2 and all(type(one) is int for one in size):
        return size[0], size[1]
    return "height", "width"


def _size(config: Any, name: str) -> int | None:
    value = getattr(config, name, None)
    return value if type(value) is int and value > 0 else None
