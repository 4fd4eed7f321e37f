"""Which formats of models there are, and which of them the units of each framework run: known before a device is asked.

A unit's name ends in its framework: `CPU (ONNX)`. A framework that is not listed here, of a driver of somebody else's, may run any format.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from protocol.formats.model_files import ModelFormat


class Format(NamedTuple):
    """A format of model files."""

    title: str
    """Of one model in it, with its article."""
    kinds: tuple[ModelFormat, ...]
    """What its bytes show; empty: they do not tell."""
    endings: tuple[str, ...]
    """Of file names that are in this format and no other."""


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        "onnx": Format("an ONNX model", (), (".onnx", ".ort")),
        "pt2": Format("a torch.export program", (ModelFormat.EXPORTED,), (".pt2",)),
        "torchscript": Format("a TorchScript program", (ModelFormat.TORCHSCRIPT,), (".ts",)),
        "safetensors": Format(
            "safetensors with a declaration",
            (ModelFormat.DECLARED, ModelFormat.SAFETENSORS),
            (".safetensors",),
        ),
        "coreml": Format("a CoreML model", (ModelFormat.MLPACKAGE,), (".mlpackage", ".mlmodel")),
        "tflite": Format("a LiteRT model", (ModelFormat.TFLITE,), (".tflite",)),
        "openvino": Format("an OpenVINO model", (ModelFormat.OPENVINO,), ()),
        "gguf": Format("a GGUF model", (ModelFormat.GGUF,), (".gguf",)),
        "pte": Format("an ExecuTorch program", (ModelFormat.EXECUTORCH,), (".pte",)),
        "transformers": Format("a Transformers model", (ModelFormat.TRANSFORMERS,), ()),
    }
)
"""By the word that campaigns and drivers use."""

RUN_BY: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "ONNX": ("onnx",),
        "Torch": ("pt2", "torchscript", "safetensors"),
        "CoreML": ("coreml",),
        "LiteRT": ("tflite",),
        "OpenVINO": ("openvino", "onnx", "tflite"),
        "llama.cpp": ("gguf",),
        "Transformers": ("transformers",),
    }
)
"""Formats by framework. No driver of ours runs `pte` yet."""


NO_UNIT: Final = "no unit of Sark runs it yet"


def framework_of(unit: str) -> str:
    """`ONNX` of `CPU (ONNX)`; empty if the name has none."""
    return unit[unit.rindex("(") + 1 : -1] if unit.endswith(")") and "(" in unit else ""


def format_of_name(name: str) -> str | None:
    """The format of a file called so; None: the ending does not tell."""
    lower = name.rstrip("/\\").lower()
    return next((key for key, form in FORMATS.items() if lower.endswith(form.endings)), None)


def format_of_kind(kind: ModelFormat) -> str | None:
    """The format of a model with such bytes; None: they do not tell."""
    return next((key for key, form in FORMATS.items() if kind in form.kinds), None)


def runs(unit: str, form: str | None) -> bool:
    """Whether the unit may run a model in this format. None: it is not known."""
    taken = RUN_BY.get(framework_of(unit))
    return form is None or taken is None or form in taken


def words_of(unit: str) -> str:
    """The formats that a unit of a listed framework runs: `pt2, torchscript and safetensors`."""
    *first, last = RUN_BY[framework_of(unit)]
    return f"{', '.join(first)} and {last}" if first else last


def plain_unit(form: str) -> str | None:
    """The unit that every device with a driver for the format has: `CPU (LiteRT)`. None: no driver of ours runs it."""
    return next((f"CPU ({framework})" for framework, taken in RUN_BY.items() if form in taken), None)


def suggestion(form: str) -> str:
    """What to write for a model that its units do not run: `measure it with units: [CPU (LiteRT)]`."""
    unit = plain_unit(form)
    return NO_UNIT if unit is None else f"measure it with units: [{unit}]"
