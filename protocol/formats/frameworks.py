"""The formats of models, and which of them the units of each framework run; known before a device is asked.

A unit's name ends in its framework: `CPU (ONNX)`. Units of frameworks that are not listed here, from third-party drivers, say themselves
which formats they run (`UnitFormats`), and their devices advertise it. A unit that does not say may run any format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from protocol.formats.gpu_units import without_number
from protocol.formats.model_files import ModelFormat

UnitFormats = Mapping[str, tuple[str, ...]]
"""Formats that units of frameworks not listed here run, by unit without a number; empty: the unit does not say. A format that is not in
`FORMATS` is a driver's own."""


class Format(NamedTuple):
    """A format of model files."""

    title: str
    """Name of one model in the format, with its article."""
    kinds: tuple[ModelFormat, ...]
    """What the bytes of its files show; empty: they do not identify the format."""
    endings: tuple[str, ...]
    """File name endings that belong to this format and no other."""
    unmarked: tuple[str, ...] = ()
    """Those of `endings` whose files cannot be identified by their bytes."""


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        "onnx": Format("an ONNX model", (), (".onnx", ".ort"), (".onnx", ".ort")),
        "pt2": Format("a torch.export program", (ModelFormat.EXPORTED,), (".pt2",)),
        "torchscript": Format("a TorchScript program", (ModelFormat.TORCHSCRIPT,), (".ts",)),
        "safetensors": Format(
            "safetensors with a declaration",
            (ModelFormat.DECLARED, ModelFormat.SAFETENSORS),
            (".safetensors",),
        ),
        "coreml": Format(
            "a CoreML model", (ModelFormat.MLPACKAGE,), (".mlpackage", ".mlmodel"), (".mlmodel",)
        ),
        "tflite": Format("a LiteRT model", (ModelFormat.TFLITE,), (".tflite",)),
        "openvino": Format("an OpenVINO model", (ModelFormat.OPENVINO,), ()),
        "gguf": Format("a GGUF model", (ModelFormat.GGUF,), (".gguf",)),
        "pte": Format("an ExecuTorch program", (ModelFormat.EXECUTORCH,), (".pte",)),
        "transformers": Format("a Transformers model", (ModelFormat.TRANSFORMERS,), ()),
    }
)
"""Formats by the word that campaigns and drivers use."""

FORMATS_BY_FRAMEWORK: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "ONNX": ("onnx",),
        "Torch": ("pt2", "torchscript", "safetensors"),
        "CoreML": ("coreml",),
        "LiteRT": ("tflite",),
        "OpenVINO": ("openvino", "onnx", "tflite"),
        "TensorRT": ("onnx",),
        "llama.cpp": ("gguf",),
        "ExecuTorch": ("pte",),
        "Transformers": ("transformers",),
        "MLX": ("transformers",),
    }
)
"""Formats by framework. Each framework has a driver, named after it in lower case, and a unit on the processor unless it is in
`GPU_ONLY_FRAMEWORKS`."""
NO_EXTRA_FORMATS: Final[UnitFormats] = MappingProxyType({})
GPU_ONLY_FRAMEWORKS: Final[Mapping[str, str]] = MappingProxyType({"TensorRT": "ONNX"})
"""Frameworks without a unit on the processor → the framework that runs their formats there."""


WORKLOADS: Final = (".yaml", ".yml", ".json")
"""File name endings of workloads, which take the place of a model for units that send requests to a server."""
TITLES: Final = (
    f"models are {', '.join(form.title for form in FORMATS.values())}, or a workload ({', '.join(WORKLOADS)})"
)


def framework_of(unit: str) -> str:
    """`ONNX` for `CPU (ONNX)`; empty if the name has no framework."""
    return unit[unit.rindex("(") + 1 : -1] if unit.endswith(")") and "(" in unit else ""


def format_of_name(name: str) -> str | None:
    """The format of a file with this name; None: the ending does not identify it."""
    lower = name.rstrip("/\\").lower()
    return next((key for key, form in FORMATS.items() if lower.endswith(form.endings)), None)


def format_of_kind(kind: ModelFormat) -> str | None:
    """The format of a model with such bytes; None: they do not identify it."""
    return next((key for key, form in FORMATS.items() if kind in form.kinds), None)


def taken_by(unit: str, more: UnitFormats = NO_EXTRA_FORMATS) -> tuple[str, ...] | None:
    """The formats that the unit runs, its framework's own first; None: unknown."""
    return FORMATS_BY_FRAMEWORK.get(framework_of(unit)) or more.get(without_number(unit)) or None


def runs(unit: str, form: str | None, more: UnitFormats = NO_EXTRA_FORMATS) -> bool:
    """Whether the unit may run a model in this format; also true if its formats are unknown."""
    taken = taken_by(unit, more)
    return form is None or taken is None or form in taken


def chosen_format(unit: str, forms: Sequence[str], more: UnitFormats = NO_EXTRA_FORMATS) -> str | None:
    """Which of several files of one model the unit measures: its framework's own format before formats that it converts. None: none of them
    or, if nothing is known about the unit, any of them."""
    return next((form for form in taken_by(unit, more) or () if form in forms), None)


def words_of(unit: str, more: UnitFormats = NO_EXTRA_FORMATS) -> str:
    """The formats that a unit runs, in words, if they are known: `pt2, torchscript and safetensors`."""
    *first, last = taken_by(unit, more) or ("any format",)
    return f"{', '.join(first)} and {last}" if first else last


def driver_of(framework: str) -> str:
    """The name of the framework's driver: `llamacpp` for `llama.cpp`."""
    return framework.lower().replace(".", "")


def cpu_unit(framework: str) -> str:
    """The unit that every device has which has the framework's driver, or the driver of the one in `GPU_ONLY_FRAMEWORKS`."""
    return f"CPU ({GPU_ONLY_FRAMEWORKS.get(framework, framework)})"


def plain_unit(form: str) -> str:
    """The first such unit that runs the format: `CPU (LiteRT)`."""
    return next(cpu_unit(framework) for framework, taken in FORMATS_BY_FRAMEWORK.items() if form in taken)


def suggestion(form: str) -> str:
    """What to write for a model whose units cannot run it: `measure it with units: [CPU (LiteRT)]`."""
    return f"measure it with units: [{plain_unit(form)}]"
