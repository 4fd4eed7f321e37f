"""The closed list of architectures that weights may be declared for: names and sizes, never code. Without torch.

    {"architecture": "mlp", "inputs": 8, "hidden": [16], "outputs": 4, "activation": "relu"}
    {"architecture": "cnn", "channels": [3, 16, 32], "image": [32, 32], "kernel": 3, "outputs": 10}
    {"architecture": "transformer-encoder", "width": 64, "heads": 4, "layers": 2, "feedforward": 256}

The weights have the names that torch gives them: an `nn.Sequential` of Linear (and activation) for the mlp; of Conv2d, activation and
MaxPool2d(2), then AdaptiveAvgPool2d(1), Flatten and Linear for the cnn; an `nn.TransformerEncoder` (batch first) for the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from drivers.contract.base import MIB, Unfit
from drivers.contract.formats import read_json
from drivers.torch.safetensors import Weights, read
from protocol.formats.model_files import ModelFormat

DECLARATION: Final = "model.json"
"""File next to the weights in a folder; in a single file the same text is under `declaration` in the metadata of the weights."""
KEY: Final = "declaration"
ACTIVATIONS: Final = ("relu", "gelu", "tanh", "sigmoid")
FLOATS: Final = frozenset({"F64", "F32", "F16", "BF16"})
MAX_SIZE: Final = 1 << 20
MAX_LAYERS: Final = 512

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Declaration:
    """A checked declaration. `sizes` has the architecture's own keys, with defaults filled in."""

    architecture: str
    sizes: Mapping[str, Any]

    def weights(self) -> Shapes:
        """Name and shape of every weight of the architecture."""
        return ARCHITECTURES[self.architecture].weights(self.sizes)

    def input_shape(self) -> tuple[int | str, ...]:
        """Shape of the only input, `x`; symbols are dynamic."""
        return ARCHITECTURES[self.architecture].shape(self.sizes)


def _whole(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_SIZE


def _wholes(least: int, most: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and least <= len(value) <= most and all(map(_whole, value))


@dataclass(frozen=True, slots=True)
class Architecture:
    """The keys of the architecture's declaration, and what follows from them."""

    keys: Mapping[str, Callable[[object], bool]]
    defaults: Mapping[str, object]
    weights: Callable[[Mapping[str, Any]], Shapes]
    shape: Callable[[Mapping[str, Any]], tuple[int | str, ...]]


def _linear(name: str, ins: int, outs: int) -> Shapes:
    return {f"{name}.weight": (outs, ins), f"{name}.bias": (outs,)}


def _mlp(sizes: Mapping[str, Any]) -> Shapes:
    steps = pairwise([sizes["inputs"], *sizes["hidden"], sizes["outputs"]])
    return {
        key: shape for at, (a, b) in enumerate(steps) for key, shape in _linear(f"{2 * at}", a, b).items()
    }


def _cnn(sizes: Mapping[str, Any]) -> Shapes:
    made: Shapes = {}
    channels: Sequence[int] = sizes["channels"]
    for at, (ins, outs) in enumerate(pairwise(channels)):
        made[f"{3 * at}.weight"] = (outs, ins, sizes["kernel"], sizes["kernel"])
        made[f"{3 * at}.bias"] = (outs,)
    return made | _linear(str(3 * (len(channels) - 1) + 2), channels[-1], sizes["outputs"])


def _encoder(sizes: Mapping[str, Any]) -> Shapes:
    width, wide = sizes["width"], sizes["feedforward"]
    made: Shapes = {}
    for at in range(sizes["layers"]):
        layer = f"layers.{at}"
        made |= {f"{layer}.self_attn.in_proj_weight": (3 * width, width)}
        made |= {f"{layer}.self_attn.in_proj_bias": (3 * width,)}
        made |= _linear(f"{layer}.self_attn.out_proj", width, width)
        made |= _linear(f"{layer}.linear1", width, wide) | _linear(f"{layer}.linear2", wide, width)
        for norm in ("norm1", "norm2"):
            made |= {f"{layer}.{norm}.weight": (width,), f"{layer}.{norm}.bias": (width,)}
    return made


_ACTIVATION: Final = {"activation": lambda value: value in ACTIVATIONS}
_SMALL: Final[Callable[[object], bool]] = lambda value: type(value) is int and 1 <= value <= MAX_LAYERS  # noqa: E731

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "mlp": Architecture(
        {"inputs": _whole, "hidden": _wholes(0, MAX_LAYERS), "outputs": _whole, **_ACTIVATION},
        {"hidden": [], "activation": "relu"},
        _mlp,
        lambda sizes: ("batch", sizes["inputs"]),
    ),
    "cnn": Architecture(
        {
            "channels": _wholes(2, 32),
            "image": _wholes(2, 2),
            "outputs": _whole,
            **_ACTIVATION,
            "kernel": lambda value: type(value) is int and 1 <= value <= 15 and value % 2 == 1,
        },
        {"kernel": 3, "activation": "relu"},
        _cnn,
        lambda sizes: ("batch", sizes["channels"][0], *sizes["image"]),
    ),
    "transformer-encoder": Architecture(
        {"width": _whole, "heads": _whole, "layers": _SMALL, "feedforward": _whole, **_ACTIVATION},
        {"activation": "relu"},
        _encoder,
        lambda sizes: ("batch", "length", sizes["width"]),
    ),
}


def read_declaration(fields: Mapping[str, object]) -> Declaration:
    """A checked declaration. Raises `Unfit`, naming the key that is wrong."""
    name = fields.get("architecture")
    architecture = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None:
        raise Unfit(f"architecture {str(name)[:60]!r} is not known: there are {', '.join(ARCHITECTURES)}")
    sizes: dict[str, Any] = {
        **architecture.defaults,
        **{key: value for key, value in fields.items() if key != "architecture"},
    }
    if odd := sorted(sizes.keys() - architecture.keys.keys()):
        raise Unfit(
            f"the declaration says {odd[0][:60]!r}, which is not a key of a {name}: its keys are {', '.join(architecture.keys)}"
        )
    for key, good in architecture.keys.items():
        if key not in sizes:
            raise Unfit(f"the declaration of a {name} lacks {key!r}")
        if not good(sizes[key]):
            raise Unfit(f"the declaration's {key!r} cannot be {str(sizes[key])[:60]}: see drivers/README.md")
    if name == "transformer-encoder" and sizes["width"] % sizes["heads"]:
        raise Unfit("the declaration's 'width' must be a multiple of its 'heads'")
    if name == "transformer-encoder" and sizes["activation"] not in ("relu", "gelu"):
        raise Unfit("the activation of a transformer-encoder is relu or gelu")
    if name == "cnn" and min(sizes["image"]) < 2 ** (len(sizes["channels"]) - 1):
        raise Unfit("the declaration's 'image' is too small: each layer halves it")
    return Declaration(str(name), sizes)


def open_declared(model: Path, kind: ModelFormat) -> tuple[Declaration, Weights]:
    """The declaration and the weights of a model. Raises `Unfit` if they do not match."""
    if kind is ModelFormat.DECLARED:
        files = sorted(model.glob("*.safetensors"))
        if len(files) != 1:
            raise Unfit(f"the model's folder holds {len(files)} safetensors files; it must hold exactly one")
        weights = read(files[0])
        with (model / DECLARATION).open("rb") as source:
            fields = read_json(source.read(MIB), DECLARATION)
    else:
        weights = read(model)
        if KEY not in weights.metadata:
            raise Unfit(
                "the safetensors file does not declare the network of its weights: put it into a folder with a "
                f"{DECLARATION}, or the same text under {KEY!r} in its metadata; see drivers/README.md"
            )
        fields = read_json(weights.metadata[KEY].encode(), "the declaration in the metadata")
    declaration = read_declaration(fields)
    _check_fit(declaration, weights)
    return declaration, weights


def _check_fit(declaration: Declaration, weights: Weights) -> None:
    expected = declaration.weights()
    for name, shape in expected.items():
        tensor = weights.tensors.get(name)
        if tensor is None:
            raise Unfit(f"the weights lack {name!r}, which the declared {declaration.architecture} has")
        if tensor.shape != shape:
            raise Unfit(
                f"the weight {name!r} has the shape {list(tensor.shape)}, the declaration needs {list(shape)}"
            )
    if odd := sorted(weights.tensors.keys() - expected.keys()):
        raise Unfit(
            f"the weights hold {odd[0][:100]!r}, which is not a weight of the declared {declaration.architecture}"
        )
    types = {weights.tensors[name].dtype for name in expected}
    if len(types) != 1 or not types <= FLOATS:
        raise Unfit(f"all weights must be of one floating type; these are {', '.join(sorted(types))}")
