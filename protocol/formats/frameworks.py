"""Which formats of models there are, and which of them the units of each framework run: known before a device is asked.

A unit's name ends in its framework: `CPU (ONNX)`. Units of frameworks that are not listed here, of drivers of somebody
else's, say themselves which formats they run (`UnitFormats`), as their devices advertise; those that do not say may run any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from protocol.formats.gpu_units import without_number
from protocol.formats.model_files import ModelFormat

UnitFormats = Mapping[str, tuple[str, ...]]
"""Formats that units of frameworks not listed here run, by unit without a number; empty: it does not say. A format that is not in `FORMATS`
is one of a driver's own."""


class Format(NamedTuple):
    """A format of model files."""

    title: str
    """Of one model in it, with its article."""
    kinds: tuple[ModelFormat, ...]
    """What its bytes show; empty: they do not tell."""
    endings: tuple[str, ...]
    """Of file names that are in this format and no other."""
    unmarked: tuple[str, ...] = ()
    """Of these, those of files whose bytes do not tell."""


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
"""By the word that campaigns and drivers use."""

RUN_BY: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
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
"""Formats by framework. Each has a driver, called as the framework in small letters, and a unit on the processor, but for those in
`ON_GPUS_ALONE`."""
NO_MORE: Final[UnitFormats] = MappingProxyType({})
ON_GPUS_ALONE: Final[Mapping[str, str]] = MappingProxyType({"TensorRT": "ONNX"})
"""Frameworks without a unit on the processor, and the one that runs their formats there."""


WORKLOADS: Final = (".yaml", ".yml", ".json")
"""Endings of workloads, which stand in the place of a model for units that ask a server."""
TITLES: Final = (
    f"models are {', '.join(form.title for form in FORMATS.values())}, or a workload ({', '.join(WORKLOADS)})"
)


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


def taken_by(unit: str, more: UnitFormats = NO_MORE) -> tuple[str, ...] | None:
    """The formats that the unit runs, its framework's own first; None: it is not known."""
    return RUN_BY.get(framework_of(unit)) or more.get(without_number(unit)) or None


def runs(unit: str, form: str | None, more: UnitFormats = NO_MORE) -> bool:
    """Whether the unit may run a model in this format. None: it is not known."""
    taken = taken_by(unit, more)
    return form is None or taken is None or form in taken


def chosen_format(unit: str, forms: Sequence[str], more: UnitFormats = NO_MORE) -> str | None:
    """Which of several files of one model the unit measures: its framework's own format before those that it converts. None: none of them,
    or, of a unit of which nothing is known, any."""
    return next((form for form in taken_by(unit, more) or () if form in forms), None)


def words_of(unit: str, more: UnitFormats = NO_MORE) -> str:
    """The formats that a unit runs of which they are known: `pt2, torchscript and safetensors`."""
    *first, last = taken_by(unit, more) or ("any format",)
    return f"{', '.join(first)} and {last}" if first else last


def driver_of(framework: str) -> str:
    """The name of its driver: `llamacpp` of `llama.cpp`."""
    return framework.lower().replace(".", "")


def cpu_unit(framework: str) -> str:
    """The unit that every device with its driver has, or with that of `ON_GPUS_ALONE`."""
    return f"CPU ({ON_GPUS_ALONE.get(framework, framework)})"


def plain_unit(form: str) -> str:
    """The first such unit that runs the format: `CPU (LiteRT)`."""
    return next(cpu_unit(framework) for framework, taken in RUN_BY.items() if form in taken)


def suggestion(form: str) -> str:
    """What to write for a model that its units do not run: `measure it with units: [CPU (LiteRT)]`."""
    return f"measure it with units: [{plain_unit(form)}]"
