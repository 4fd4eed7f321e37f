"""The contents of a CoreML model: the package's manifest, its inputs, and parts that are never run. Pure: specifications are arguments.

A specification is coremltools' protobuf message (`coremltools.utils.load_spec`), or any object with the same attributes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from drivers.contract.base import MIB, Unfit
from drivers.contract.formats import read_json
from drivers.inputs.synthetic import Input
from protocol.formats.model_files import ModelFormat

ARRAYS: Final = {65568: "float", 65600: "double", 65552: "float16", 131104: "int32", 131080: "int8"}
"""`ArrayFeatureType.ArrayDataType` → element types as `drivers.inputs.synthetic` calls them."""
CHANNELS: Final = {10: 1, 20: 3, 30: 3, 40: 1}
"""`ImageFeatureType.ColorSpace` → channels: grayscale, RGB, BGR, 16-bit grayscale."""
SCALARS: Final = {"int64Type": "int64", "doubleType": "double"}
MAX_ITEMS: Final = 64


def check_package(folder: Path) -> None:
    """Refuse a `.mlpackage` whose manifest names nothing, or something outside the package. Raises `Unfit`."""
    try:
        with (folder / "Manifest.json").open("rb") as source:
            json = read_json(source.read(MIB), "Manifest.json")
    except OSError as why:
        raise Unfit(f"the mlpackage has no readable Manifest.json: {why.strerror or why}") from why
    items = json.get("itemInfoEntries")
    if not isinstance(items, dict) or not 1 <= len(items) <= MAX_ITEMS:
        raise Unfit("the mlpackage's manifest lists no items, or too many")
    for item in items.values():
        path = item.get("path") if isinstance(item, dict) else None
        steps = path.split("/") if isinstance(path, str) else [""]
        if any(step in ("", ".", "..") for step in steps):
            raise Unfit("the mlpackage's manifest names an item outside the package")
        if not (folder / "Data" / str(path)).exists():
            raise Unfit(f"the mlpackage lacks {str(path)[:100]!r}, which its manifest names")
    if json.get("rootModelIdentifier") not in items:
        raise Unfit("the mlpackage's manifest names no model")


def check_kind(path: Path, kind: ModelFormat) -> str:
    """The suffix that CoreML requires in this model's name. Raises `Unfit` for a model that is clearly in none of its formats."""
    if kind is ModelFormat.MLPACKAGE:
        check_package(path)
        return ".mlpackage"
    if kind is not ModelFormat.OTHER:
        raise Unfit(f"CoreML runs .mlmodel files and .mlpackage folders; this is neither ({kind})")
    return ".mlmodel"


def refuse_custom(spec: Any) -> None:
    """Refuse custom models and layers, whose code belongs to an application. Raises `Unfit`."""
    kind = spec.WhichOneof("Type")
    if kind == "customModel":
        raise Unfit("the model is a custom model whose code is in an application: it cannot run here")
    network = (
        getattr(spec, kind, None) if isinstance(kind, str) and kind.startswith("neuralNetwork") else None
    )
    if network is not None and any(layer.WhichOneof("layer") == "custom" for layer in network.layers):
        raise Unfit("the model has custom layers whose code is in an application: it cannot run here")


def inputs_of(spec: Any) -> tuple[Input, ...]:
    """The model's required inputs. An image is an input of bytes, [height, width, channels]. Raises `Unfit` for inputs that cannot be
    synthesised."""
    return tuple(_input(text) for text in spec.description.input if not text.type.isOptional)


def images_of(spec: Any) -> dict[str, int]:
    """Channels of each input that is an image."""
    images = [text for text in spec.description.input if text.type.WhichOneof("Type") == "imageType"]
    return {text.name: CHANNELS.get(text.type.imageType.colorSpace, 0) for text in images}


def _input(described: Any) -> Input:
    kind = described.type.WhichOneof("Type")
    if kind in SCALARS:
        return Input(described.name, SCALARS[kind], ())
    if kind == "imageType":
        image = described.type.imageType
        channels = CHANNELS.get(image.colorSpace)
        if channels is None or image.colorSpace == 40:
            raise Unfit(f"input {described.name!r} is an image in a colour space that cannot be generated")
        return Input(described.name, "uint8", (int(image.height), int(image.width), channels))
    if kind != "multiArrayType":
        raise Unfit(f"input {described.name!r} is a {kind}, which cannot be generated")
    array = described.type.multiArrayType
    if array.dataType not in ARRAYS:
        raise Unfit(
            f"input {described.name!r} is of an element type that cannot be generated ({array.dataType})"
        )
    return Input(described.name, ARRAYS[array.dataType], _shape(array))


def _shape(array: Any) -> tuple[int | str | None, ...]:
    """The shape: dynamic where a range allows more than one size. For enumerated shapes it is the default one, else the first."""
    default = tuple(int(size) for size in array.shape)
    flexible = array.WhichOneof("ShapeFlexibility")
    if flexible == "enumeratedShapes" and not default:
        return tuple(int(size) for size in array.enumeratedShapes.shapes[0].shape)
    if flexible != "shapeRange":
        return default
    ranges = array.shapeRange.sizeRanges
    return tuple(int(one.lowerBound) if one.lowerBound == one.upperBound else None for one in ranges)
